// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A TAP device inside a named network namespace.
//!
//! Input: its namespace, name and MAC address, and whether packets carry their access category. Output: a non-blocking
//! descriptor of bare Ethernet frames; the device goes when the descriptor is closed. The calling thread keeps its own
//! namespace. Sets no addresses, routes or queues: those are the caller's.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow};
use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns};

use super::marking::mark_packets_of;
use super::spec::Attachment;
use crate::calls::become_tap;
use crate::namespace::ip;
use crate::process::run;

/// MTU 1500, an Ethernet header, and room to notice longer frames.
pub const FRAME_ROOM: usize = 2_048;
pub const MAX_FRAME: usize = 1_518;

pub struct Tap {
    file: File,
}

impl Tap {
    pub fn create(at: &Attachment, mac: [u8; 6], marks: bool) -> Result<Self> {
        // A separate thread enters the namespace, so that no error path can leave the process in it.
        let outcome = thread::scope(|scope| scope.spawn(|| create_in_this_thread(at, mac, marks)).join());
        outcome
            .map_err(|_| anyhow!("the thread that enters the namespace panicked"))?
            .with_context(|| format!("cannot create {} in the namespace {}", at.device, at.netns))
    }

    /// The next frame that the kernel sent, if any.
    pub fn receive<'a>(&self, buffer: &'a mut [u8; FRAME_ROOM]) -> io::Result<Option<&'a [u8]>> {
        match nix::unistd::read(&self.file, buffer) {
            Ok(length) => Ok(Some(&buffer[..length])),
            Err(nix::errno::Errno::EAGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Hands a frame to the kernel; `false` when the device refuses it, as it does while it is down.
    pub fn send(&self, frame: &[u8]) -> bool {
        nix::unistd::write(&self.file, frame).is_ok()
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn create_in_this_thread(at: &Attachment, mac: [u8; 6], marks: bool) -> Result<Tap> {
    let path = Path::new("/run/netns").join(&at.netns);
    let namespace = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    setns(&namespace, CloneFlags::CLONE_NEWNET).context("cannot enter it (root is needed)")?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open("/dev/net/tun")
        .context("cannot open /dev/net/tun")?;
    become_tap(&file, &at.device).context("TUNSETIFF was refused")?;
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
    run(ip(&["-n", &at.netns, "link", "set", &at.device, "address", &mac])).context("cannot set its MAC address")?;
    if marks {
        mark_packets_of(&at.device)?;
    }
    Ok(Tap { file })
}
