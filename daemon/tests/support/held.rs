// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A directory whose lock somebody holds, as any user can who may list it: `getdents` keeps the lock while it writes to
//! memory, and that memory may be a file's whose server never answers. Whoever else waits for it cannot be killed. Here a
//! userfaultfd stands for the server.

use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::unistd::gettid;

use super::scratch::NOBODY;
use super::wait::until;

const PAGE: usize = 4096;
// include/uapi/linux/userfaultfd.h
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const MODE_MISSING: u64 = 1;

/// A daemon that waits for it cannot be ended: a test that fails is not to wait with it.
const LONGEST: Duration = Duration::from_secs(45);

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
        let mut threads = vec![asleep("the list is being written", list)];
        // Those who only look names up share the lock, unless another waits to change the directory.
        threads.push(asleep("another waits", move || {
            let new = path.join("giveway-held");
            let _ = fs::create_dir(&new);
            let _ = fs::remove_dir(&new);
        }));
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

/// A page that cannot be written to before the descriptor is closed.
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
    let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    let mut api = [0xaa_u64, 0, 0];
    let mut range = [page as u64, PAGE as u64, MODE_MISSING, 0];
    for (request, argument) in [(UFFDIO_API, api.as_mut_ptr()), (UFFDIO_REGISTER, range.as_mut_ptr())] {
        // SAFETY: each points to as many bytes as its request takes.
        assert_eq!(unsafe { libc::ioctl(memory.as_raw_fd(), request, argument) }, 0);
    }
    (memory, page as usize)
}

/// Starts a thread, and returns when it waits for something.
fn asleep(what: &str, act: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let (tell, told) = mpsc::channel();
    let thread = thread::spawn(move || {
        tell.send(gettid()).unwrap();
        act();
    });
    let call = format!("/proc/self/task/{}/syscall", told.recv().unwrap());
    let calls = [libc::SYS_getdents64, libc::SYS_mkdir, libc::SYS_mkdirat].map(|call| format!("{call} "));
    until(what, || {
        let call = fs::read_to_string(&call).unwrap_or_default();
        calls.iter().any(|name| call.starts_with(name))
    });
    thread
}
