// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks at a file that any user may keep from ever answering, by holding the lock of its folder: another process looks, and is
//! waited for only so long. One that does not answer is left behind, and is init's; a thread would keep this process from
//! ending. The other process shares this thread's namespaces, and `/proc/self` is its own.

use std::ffi::CStr;
use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::descriptors::close_others;

const PATIENCE: Duration = Duration::from_secs(1);
/// What is told is no longer.
const MOST_BYTES: usize = 4096;

/// The inode's number.
pub fn inode(path: &CStr) -> Result<u64> {
    let output = in_child(path, || {
        // SAFETY: the struct is the child's own, all zero is valid, and the path ends with a zero.
        unsafe {
            let mut about: libc::stat = std::mem::zeroed();
            if libc::stat(path.as_ptr(), &raw mut about) == 0 {
                libc::write(0, (&raw const about.st_ino).cast(), size_of::<u64>());
            }
        }
    })?;
    let number = output.first_chunk();
    ensure!(number.is_some(), "cannot read {}", path.to_string_lossy());
    Ok(number.map_or(0, |number| u64::from_ne_bytes(*number)))
}

/// What a small file says; empty where it cannot be opened.
pub fn text(path: &CStr) -> Result<String> {
    let output = in_child(path, || {
        let mut bytes = [0u8; MOST_BYTES];
        // SAFETY: the buffer is the child's own and as long as is said, and the path ends with a zero.
        unsafe {
            let file = libc::open(path.as_ptr(), libc::O_RDONLY);
            let length = libc::read(file, bytes.as_mut_ptr().cast(), bytes.len());
            libc::write(0, bytes.as_ptr().cast(), length.max(0).cast_unsigned());
        }
    })?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// What `act` writes to descriptor 0. It calls nothing but what may be called after a fork.
fn in_child(path: &CStr, act: impl FnOnce()) -> Result<Vec<u8>> {
    let (mut reader, writer) = std::io::pipe()?;
    // SAFETY: the child calls nothing but what may be called after a fork, and never returns.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: takes no pointers; nothing of Rust's uses these descriptors in the child. Its child is the one that looks.
        unsafe {
            if libc::fork() == 0 && libc::dup2(writer.as_raw_fd(), 0) == 0 {
                // Nobody is to wait for the end of what this process had open.
                close_others(0);
                act();
            }
            libc::_exit(0)
        }
    }
    drop(writer);
    let child = Errno::result(child)?;
    // It waits for nobody.
    while waitpid(Pid::from_raw(child), None) == Err(Errno::EINTR) {}
    let (end, mut output, mut is_told) = (Instant::now() + PATIENCE, Vec::new(), false);
    while !is_told && Instant::now() < end {
        let left = end.saturating_duration_since(Instant::now());
        let mut waited = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
        let mut bytes = [0; MOST_BYTES];
        if poll(&mut waited, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO)) == Ok(1) {
            let Ok(read) = reader.read(&mut bytes) else { break };
            output.extend_from_slice(&bytes[..read]);
            is_told = read == 0;
        }
    }
    ensure!(is_told, "{} does not answer", path.to_string_lossy());
    Ok(output)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::linux::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn what_a_file_says_is_told_by_another_process() {
        let path = c"/proc/sys/kernel/ostype";
        assert_eq!(
            text(path).unwrap(),
            fs::read_to_string("/proc/sys/kernel/ostype").unwrap()
        );
        assert_eq!(inode(c"/proc").unwrap(), fs::metadata("/proc").unwrap().st_ino());
        assert!(inode(c"/proc/none").is_err() && text(c"/proc/none").unwrap().is_empty());
    }

    #[test]
    fn one_that_never_answers_is_not_waited_for_and_no_child_of_this_process() {
        let scratch = tempfile::tempdir().unwrap();
        let silent = scratch.path().join("silent");
        nix::unistd::mkfifo(&silent, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let path = std::ffi::CString::new(silent.to_str().unwrap()).unwrap();
        assert!(text(&path).unwrap_err().to_string().contains("does not answer"));
        // Who opens the other end ends it.
        fs::File::options().write(true).open(&silent).unwrap();
        // Other tests' threads have children of their own.
        assert_eq!(fs::read_to_string("/proc/thread-self/children").unwrap(), "");
    }
}
