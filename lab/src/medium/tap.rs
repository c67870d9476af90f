// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A TAP device inside a named network namespace.
//!
//! In: where to create it, what to call it, its MAC address. Out: a non-blocking descriptor that carries
//! bare Ethernet frames; the device goes when the descriptor is closed. The calling thread keeps its own
//! namespace. Sets no addresses, routes or queues: those are the caller's.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::spec::Attachment;

/// MTU 1500, an Ethernet header, and room to notice what is longer.
const FRAME_ROOM: usize = 2_048;
pub const MAX_FRAME: usize = 1_518;

pub struct Tap {
    file: File,
}

impl Tap {
    pub fn create(at: &Attachment, mac: [u8; 6]) -> Result<Self> {
        // A thread of its own enters the namespace, so that no way out of here can leave the process in it.
        let outcome = thread::scope(|scope| scope.spawn(|| create_in_this_thread(at, mac)).join());
        outcome
            .map_err(|_| anyhow!("the thread that enters the namespace panicked"))?
            .with_context(|| format!("cannot create {} in the namespace {}", at.device, at.netns))
    }

    /// The next frame that the kernel sent, if there is one.
    pub fn receive<'a>(&self, buffer: &'a mut FrameBuffer) -> io::Result<Option<&'a [u8]>> {
        match nix::unistd::read(&self.file, &mut buffer.0) {
            Ok(length) => Ok(Some(&buffer.0[..length])),
            Err(nix::errno::Errno::EAGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Hands a frame to the kernel; `false` when the device does not take it, as it does not while it is down.
    pub fn send(&self, frame: &[u8]) -> bool {
        nix::unistd::write(&self.file, frame).is_ok()
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

pub struct FrameBuffer([u8; FRAME_ROOM]);

impl FrameBuffer {
    pub fn new() -> Self {
        Self([0; FRAME_ROOM])
    }
}

fn create_in_this_thread(at: &Attachment, mac: [u8; 6]) -> Result<Tap> {
    let path = Path::new("/run/netns").join(&at.netns);
    let namespace = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    setns(&namespace, CloneFlags::CLONE_NEWNET).context("cannot enter it (root is needed)")?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .context("cannot open /dev/net/tun")?;
    let mut request = interface_request(&at.device);
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, and `request` is one that outlives the call.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) };
    nix::errno::Errno::result(done).context("TUNSETIFF was refused")?;
    set_mac(&at.device, mac).context("cannot set its MAC address")?;
    Ok(Tap { file })
}

fn set_mac(device: &str, mac: [u8; 6]) -> Result<()> {
    let control = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut request = interface_request(device);
    let mut data: [libc::c_char; 14] = [0; 14];
    for (to, from) in data.iter_mut().zip(mac) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_hwaddr = libc::sockaddr {
        sa_family: libc::ARPHRD_ETHER,
        sa_data: data,
    };
    // SAFETY: SIOCSIFHWADDR reads one ifreq with the hardware address set, and `request` is one.
    let done = unsafe { libc::ioctl(control.as_raw_fd(), libc::SIOCSIFHWADDR, &request) };
    nix::errno::Errno::result(done)?;
    Ok(())
}

fn interface_request(device: &str) -> libc::ifreq {
    // SAFETY: ifreq is plain data; all zeroes is a valid value of every member of its union.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request
}
