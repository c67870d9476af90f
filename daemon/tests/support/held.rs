// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lock of the kernel's that somebody holds, as any user can: `getdents` keeps that of a directory while it writes to
//! memory, `SIOCETHTOOL` that of all network devices while it reads from there, `send` the socket's, and that memory may be a file's whose server
//! never answers. Whoever else waits for it cannot be killed. Here a userfaultfd stands for the server.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::unistd::gettid;

use super::scratch::NOBODY;
use super::wait::{PATIENCE, until};

const PAGE: usize = 4096;
// include/uapi/linux/userfaultfd.h
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const MODE_MISSING: u64 = 1;
// include/uapi/linux/sockios.h and ethtool.h
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GFEATURES: u32 = 0x3a;

/// A daemon that waits for it cannot be ended: a test that fails is not to wait with it. Longer than anything is waited for: who
/// waits for what the lock keeps from happening has failed before.
const LONGEST: Duration = Duration::from_secs(PATIENCE.as_secs() + 30);

/// Dropping it lets the lock go.
pub struct Held {
    release: Option<mpsc::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Held {
    /// A directory that every user may list. No name can be looked up in it now that the kernel does not remember.
    pub fn directory(path: impl AsRef<Path>) -> Self {
        use std::os::unix::process::CommandExt as _;
        let path = path.as_ref().to_owned();
        // Not by listing it: the kernel would remember the names.
        let asked = Command::new("test")
            .arg("-r")
            .arg(&path)
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .unwrap();
        assert!(asked.status.success(), "a user can list it: {asked:?}");
        let (memory, address) = unserved_page();
        let directory = File::open(&path).unwrap();
        let list = move || {
            // SAFETY: the page is mapped for good.
            unsafe { libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), address, PAGE) };
        };
        let list = Sleeper::new(list);
        // Those who only look names up share the lock, unless another waits to change the directory.
        let change = Sleeper::new(move || {
            let new = path.join("giveway-held");
            let _ = fs::create_dir(&new);
            let _ = fs::remove_dir(&new);
        });
        let mut held = Self::by(memory, list.asleep("the list is being written"));
        held.threads.push(change.asleep("another waits"));
        held
    }

    /// And the kernel remembers none.
    pub fn forgotten(path: impl AsRef<Path>) -> Self {
        let mut caches = File::options().write(true).open("/proc/sys/vm/drop_caches").unwrap();
        let held = Self::directory(path);
        caches.write_all(b"2").unwrap();
        held
    }

    /// The lock of the network devices of all namespaces.
    pub fn devices() -> Self {
        let (memory, address) = unserved_page();
        // Of struct ethtool_gfeatures the command is on the page before, and what the kernel reads with the lock is not.
        let command = address - 4;
        // SAFETY: the page before is mapped for good, and nobody else's.
        unsafe { (command as *mut u32).write(ETHTOOL_GFEATURES) };
        let ask = move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            // SAFETY: all zero is an interface request.
            let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
            (request.ifr_name[0], request.ifr_name[1]) = (b'l' as libc::c_char, b'o' as libc::c_char);
            request.ifr_ifru.ifru_data = command as *mut _;
            // SAFETY: the request outlives the call.
            unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
        };
        Self::by(memory, Sleeper::new(ask).asleep("the features are being asked for"))
    }

    /// The lock of this socket.
    pub fn socket(socket: impl AsFd) -> Self {
        let socket = socket.as_fd().try_clone_to_owned().unwrap();
        let (memory, address) = unserved_page();
        let send = move || {
            // Without MSG_MORE a datagram is copied before the lock is taken.
            let flags = libc::MSG_MORE | libc::MSG_NOSIGNAL;
            // SAFETY: the page is mapped for good.
            unsafe { libc::send(socket.as_raw_fd(), address as *const _, PAGE, flags) };
        };
        Self::by(memory, Sleeper::new(send).asleep("a page is being sent"))
    }

    /// What this thread holds, until the memory is let go.
    fn by(memory: OwnedFd, holder: JoinHandle<()>) -> Self {
        let mut threads = vec![holder];
        let (release, released) = mpsc::channel();
        threads.push(thread::spawn(move || {
            let is_late = released.recv_timeout(LONGEST) == Err(mpsc::RecvTimeoutError::Timeout);
            drop(memory);
            assert!(!is_late, "it was held no longer than {LONGEST:?}");
        }));
        Self {
            release: Some(release),
            threads,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release = None;
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "the lock was held all the time");
        }
    }
}

/// A page that cannot be read or written before the descriptor is closed, behind one that can be.
fn unserved_page() -> (OwnedFd, usize) {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    assert!(
        fd >= 0,
        "{}: userfaultfd is root's to use",
        std::io::Error::last_os_error()
    );
    // SAFETY: it was just opened.
    let memory = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: new memory, wherever the kernel puts it.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, protection, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    let page = page as usize + PAGE;
    let mut api = [0xaa_u64, 0, 0];
    let mut range = [page as u64, PAGE as u64, MODE_MISSING, 0];
    for (request, argument) in [(UFFDIO_API, api.as_mut_ptr()), (UFFDIO_REGISTER, range.as_mut_ptr())] {
        // SAFETY: each points to as many bytes as its request takes.
        assert_eq!(unsafe { libc::ioctl(memory.as_raw_fd(), request, argument) }, 0);
    }
    (memory, page)
}

/// A thread that will wait for something.
struct Sleeper {
    thread: JoinHandle<()>,
    go: mpsc::Sender<()>,
    /// Its `/proc/.../syscall`, opened early: what is held may be what that would be looked up in.
    call: File,
}

impl Sleeper {
    fn new(act: impl FnOnce() + Send + 'static) -> Self {
        let (tell, told) = mpsc::channel();
        let (go, gone) = mpsc::channel();
        let thread = thread::spawn(move || {
            tell.send(gettid()).unwrap();
            if gone.recv().is_ok() {
                act();
            }
        });
        let call = File::open(format!("/proc/self/task/{}/syscall", told.recv().unwrap())).unwrap();
        Self { thread, go, call }
    }

    /// Returns when it waits in the kernel.
    fn asleep(mut self, what: &str) -> JoinHandle<()> {
        let calls = [
            libc::SYS_getdents64,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mkdir,
            libc::SYS_mkdirat,
            libc::SYS_ioctl,
            libc::SYS_sendto,
        ]
        .map(|call| format!("{call} "));
        self.go.send(()).unwrap();
        until(what, || {
            let mut now = String::new();
            self.call.rewind().unwrap();
            self.call.read_to_string(&mut now).is_ok() && calls.iter().any(|name| now.starts_with(name))
        });
        self.thread
    }
}
