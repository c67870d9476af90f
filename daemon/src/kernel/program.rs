// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts this program anew: the same file, whatever its path leads to by now. It is opened once and executed by its
//! descriptor: /proc/self/exe would be looked up in folders whose lock any user can hold. Between fork and execution there are
//! libc's calls alone, which allocate nothing.

use std::ffi::{CStr, CString, OsStr, OsString, c_char};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

static OWN: OnceLock<File> = OnceLock::new();

/// Opens it, while the path by which it was started is still its own. The kernel remembers the names of what runs.
///
/// # Errors
/// Where it cannot be opened.
pub fn open() -> io::Result<&'static File> {
    if let Some(own) = OWN.get() {
        return Ok(own);
    }
    // SAFETY: the kernel leaves a text there for as long as the process lives, or nothing.
    let name = unsafe {
        let at = libc::getauxval(libc::AT_EXECFN) as *const c_char;
        (!at.is_null()).then(|| CStr::from_ptr(at))
    };
    let by = |path: &OsStr| File::options().read(true).custom_flags(OFlag::O_PATH.bits()).open(path);
    // Who starts it by a descriptor (fexecve) leaves the descriptor's name, which may be another file's by now.
    let name = name.filter(|name| !name.to_bytes().starts_with(b"/dev/fd/"));
    let own = match name.map(|name| by(OsStr::from_bytes(name.to_bytes()))) {
        Some(Ok(own)) => own,
        _ => by(OsStr::new("/proc/self/exe"))?,
    };
    Ok(OWN.get_or_init(|| own))
}

/// This program, called giveway, with this argument and these standard files. Its environment is the caller's without
/// `hidden`, or nothing.
///
/// Not by `std::process::Command`: where that one cannot hear whether the program was executed, it waits for its end.
pub fn again(argument: &CStr, hidden: Option<&str>, files: [BorrowedFd<'_>; 3]) -> io::Result<Child> {
    let own = open()?;
    let kept = std::env::vars_os().filter(|(name, _)| hidden.is_some_and(|hidden| name != hidden));
    let line =
        |(name, value): (OsString, OsString)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok();
    let variables: Vec<CString> = kept.filter_map(line).collect();
    let pointers = |texts: &[&CStr]| -> Vec<*const c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let arguments = pointers(&[c"giveway", argument]);
    let environment = pointers(&variables.iter().map(CString::as_c_str).collect::<Vec<_>>());
    let (mut reader, writer) = io::pipe()?;
    // SAFETY: the child makes system calls and nothing else, and never returns.
    let pid = Errno::result(unsafe { libc::fork() })?;
    if pid == 0 {
        // SAFETY: the lists end with a null, and what they point to is the child's own copy. The three files are not among
        // those that are replaced, for the standard ones are always open (`main`).
        unsafe {
            let mut none = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
            if (0..)
                .zip(files)
                .all(|(number, file)| libc::dup2(file.as_raw_fd(), number) >= 0)
            {
                let (arguments, environment) = (arguments.as_ptr(), environment.as_ptr());
                let (own, path, flags) = (own.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH);
                libc::syscall(libc::SYS_execveat, own, path, arguments, environment, flags);
            }
            let reason = Errno::last_raw();
            libc::write(writer.as_raw_fd(), (&raw const reason).cast(), size_of::<i32>());
            libc::_exit(127)
        }
    }
    drop(writer);
    let mut child = Child::of(pid);
    let mut reason = [0; size_of::<i32>()];
    // The pipe ends with the execution. Where it cannot be read, the child's own signs of life must tell.
    match reader.read(&mut reason) {
        Ok(length) if length == reason.len() => {
            child.wait();
            Err(io::Error::from_raw_os_error(i32::from_ne_bytes(reason)))
        }
        _ => Ok(child),
    }
}

/// A child of this process that does this, and ends without cleaning up what is its parent's. For a process with one thread:
/// of several, another might hold a lock that nobody would release in the child.
pub fn fork_alone(act: impl FnOnce()) -> nix::Result<Pid> {
    // SAFETY: this process has one thread.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            act();
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(0) }
        }
    }
}

/// A program that was started here, and whose number nobody else has until it was waited for.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    has_ended: bool,
}

impl Child {
    /// A child of this process that nobody has waited for.
    pub(super) fn of(pid: i32) -> Self {
        let pid = Pid::from_raw(pid);
        Self { pid, has_ended: false }
    }

    pub fn id(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    pub fn kill(&self) {
        if !self.has_ended {
            let _ = kill(self.pid, Signal::SIGKILL);
        }
    }

    pub fn wait(&mut self) {
        while !self.has_ended {
            self.wait_with(WaitPidFlag::empty());
        }
    }

    pub fn ends_within_ms(&mut self, limit: u8) -> bool {
        for _ in 0..limit {
            if self.has_ended() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.has_ended()
    }

    pub fn has_ended(&mut self) -> bool {
        if !self.has_ended {
            self.wait_with(WaitPidFlag::WNOHANG);
        }
        self.has_ended
    }

    fn wait_with(&mut self, flags: WaitPidFlag) {
        let answer = waitpid(self.pid, Some(flags));
        self.has_ended = !matches!(answer, Ok(WaitStatus::StillAlive) | Err(Errno::EINTR));
    }
}
