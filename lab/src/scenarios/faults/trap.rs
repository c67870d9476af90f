// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stops system calls of a program and of all its children, by a seccomp filter whose listener is here
//! (seccomp_unotify(2)). Input: a program, and which calls. Output: each stopped call, which then continues or fails. A
//! failed call does not happen.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, execv, fork};

use crate::interrupt::wait_for;

const START_LIMIT: Duration = Duration::from_secs(5);
const LISTENER: &str = "anon_inode:seccomp notify";
/// pidfd_getfd(2) and seccomp(2): since Linux 5.19.
const WAIT_KILLABLE: libc::c_ulong = 1 << 5;

/// Which calls are stopped.
pub enum Stopped<'a> {
    AllBut(&'a [libc::c_long]),
    Only(libc::c_long),
}

/// The program, and the listener of its stopped calls.
pub struct Trap {
    pub pid: i32,
    listener: OwnedFd,
}

impl Trap {
    /// Starts the program, whose messages go to a file. The caller must have a single thread.
    pub fn start(program: &[String], log: File, stopped: &Stopped) -> Result<Self> {
        let words: Vec<CString> = program
            .iter()
            .map(|word| Ok(CString::new(word.as_str())?))
            .collect::<Result<_>>()?;
        let filter = filter(stopped);
        let nothing = File::open("/dev/null")?;
        nix::sys::prctl::set_child_subreaper(true)?;
        // SAFETY: this process has one thread, so the child may do whatever it likes.
        match unsafe { fork() }.context("cannot start a process")? {
            ForkResult::Child => {
                let started = become_program(&words, &filter, &nothing, &log);
                eprintln!("cannot start {program:?}: {started:?}");
                // SAFETY: ends the process without running what belongs to its parent.
                unsafe { libc::_exit(127) }
            }
            ForkResult::Parent { child } => Ok(Self {
                pid: child.as_raw(),
                listener: listener_of(child)?,
            }),
        }
    }

    /// The next stopped call; none where it has ended meanwhile.
    pub fn next(&self) -> Result<Option<libc::seccomp_notif>> {
        // SAFETY: integers only; the kernel wants zeros.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills the struct, which is of the request's size.
        let done = unsafe { libc::ioctl(self.listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) };
        match Errno::result(done) {
            Ok(_) => Ok(Some(call)),
            Err(Errno::ENOENT | Errno::EINTR) => Ok(None),
            Err(errno) => Err(errno).context("cannot receive a stopped call"),
        }
    }

    /// Lets it happen, or fail.
    pub fn answer(&self, call: &libc::seccomp_notif, error: Option<Errno>) -> Result<()> {
        let mut answer = libc::seccomp_notif_resp {
            id: call.id,
            val: 0,
            error: error.map_or(0, |errno| -(errno as i32)),
            flags: match error {
                None => libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
                Some(_) => 0,
            },
        };
        // SAFETY: the kernel reads the struct, which is of the request's size.
        let done = unsafe {
            libc::ioctl(
                self.listener.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SEND,
                &raw mut answer,
            )
        };
        match Errno::result(done) {
            // Its thread was killed.
            Ok(_) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno).context("cannot answer a stopped call"),
        }
    }

    /// How the program has ended, if it just did. Also collects its orphans: the filter lives until they are collected.
    pub fn ended(&self) -> Result<Option<String>> {
        loop {
            let (pid, how) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, format!("exit {code}")),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, signal.as_str().to_owned()),
                Ok(_) | Err(Errno::ECHILD) => return Ok(None),
                Err(errno) => return Err(errno).context("cannot wait for the program"),
            };
            if pid.as_raw() == self.pid {
                return Ok(Some(how));
            }
        }
    }
}

impl AsFd for Trap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

fn become_program(words: &[CString], filter: &[libc::sock_filter], nothing: &File, log: &File) -> Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    dup2_stdin(nothing)?;
    dup2_stdout(log)?;
    dup2_stderr(log)?;
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE;
    // SAFETY: the program is valid for the call, which copies it.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    Errno::result(listener).context("no seccomp filter (Linux 5.19, root)")?;
    execv(&words[0], words)?;
    Ok(())
}

/// The child waits at its exec, which every filter stops, until somebody listens.
fn listener_of(child: Pid) -> Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.as_raw(), 0) };
    let pidfd = own(pidfd).context("cannot open the child")?;
    let found = wait_for("the child's listener", START_LIMIT, || {
        let fds = std::fs::read_dir(format!("/proc/{child}/fd"))?.flatten();
        let is_it =
            |fd: &std::fs::DirEntry| std::fs::read_link(fd.path()).is_ok_and(|link| link.as_os_str() == LISTENER);
        let mut found = fds.filter(is_it);
        Ok(found
            .next()
            .and_then(|fd| fd.file_name().to_string_lossy().parse::<RawFd>().ok()))
    });
    if found.is_err() {
        kill(child, Signal::SIGKILL)?;
    }
    // SAFETY: takes no pointers.
    let listener = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), found?, 0) };
    own(listener).context("cannot take the child's listener")
}

fn own(descriptor: libc::c_long) -> io::Result<OwnedFd> {
    let descriptor = Errno::result(descriptor)?;
    // SAFETY: the kernel has just opened it for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) })
}

/// By number alone: whatever the program runs is of this machine's own architecture.
fn filter(stopped: &Stopped) -> Vec<libc::sock_filter> {
    let exec = libc::SYS_execve;
    let (numbers, if_listed, otherwise) = match stopped {
        Stopped::AllBut(numbers) => (numbers.to_vec(), libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_USER_NOTIF),
        Stopped::Only(number) => (
            vec![*number, exec],
            libc::SECCOMP_RET_USER_NOTIF,
            libc::SECCOMP_RET_ALLOW,
        ),
    };
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut filter = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for number in numbers {
        filter.push(instruction(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            number as u32,
        ));
        filter.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, if_listed));
    }
    filter.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, otherwise));
    filter
}
