// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the tests of lent priority run: does what its arguments say, one after the other, with locks (priority-inheriting
//! futexes) in a file that it shares with others. It computes for 5 s at most, by its own clock.
//!
//!   locks FILE [lock:N | unlock:N | compute:MS | say:WORD | read | serve] ...
//!
//! `serve` says its UDP port, and takes packets until one that says `go`.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods)]
#![allow(clippy::unwrap_used, reason = "it is run by tests alone, which see why it ended")]

use std::fs::OpenOptions;
use std::io::{Error, stdin};
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::ptr;
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};
use nix::time::{ClockId, clock_gettime};

const LOCKS: usize = 16;

fn futex(lock: *mut u32, operation: libc::c_int) {
    let no_timeout = ptr::null::<libc::timespec>();
    // SAFETY: the lock lies in memory that stays mapped.
    let done = unsafe { libc::syscall(libc::SYS_futex, lock, operation, 0, no_timeout) };
    assert_eq!(done, 0, "{}", Error::last_os_error());
}

fn compute(time: Duration) {
    let used = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let start = used();
    while used() - start < time {}
}

fn serve() {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
    println!("{}", socket.local_addr().unwrap().port());
    let mut packet = [0; 16];
    while !matches!(socket.recv(&mut packet), Ok(2) if packet.starts_with(b"go")) {}
}

fn main() {
    setrlimit(Resource::RLIMIT_CPU, 5, 5).unwrap();
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("the file of the locks");
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    file.set_len(4 * LOCKS as u64).unwrap();
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping of a file that is open and as long.
    let locks = unsafe { libc::mmap(ptr::null_mut(), 4 * LOCKS, access, flags, file.as_raw_fd(), 0) };
    assert_ne!(locks, libc::MAP_FAILED);
    let lock = |number: &str| {
        let number: usize = number.parse().unwrap();
        assert!(number < LOCKS);
        locks.cast::<u32>().wrapping_add(number)
    };
    for argument in arguments {
        match argument.split_once(':').unwrap_or((&argument, "")) {
            ("lock", number) => futex(lock(number), libc::FUTEX_LOCK_PI),
            ("unlock", number) => futex(lock(number), libc::FUTEX_UNLOCK_PI),
            ("compute", ms) => compute(Duration::from_millis(ms.parse().unwrap())),
            ("say", word) => println!("{word}"),
            ("serve", _) => serve(),
            ("read", _) => drop(stdin().read_line(&mut String::new())),
            _ => panic!("`{argument}` is nothing that it does"),
        }
    }
}
