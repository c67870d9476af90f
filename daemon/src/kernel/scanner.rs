// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scans over all sockets. Input: an iterator. Output: its records, or that somebody keeps a socket locked.
//!
//! The kernel takes the lock of each socket that it shows (`iter/tcp`, `iter/udp`), and whoever owns a socket can keep its
//! lock for good, by a send from a mapped file whose server never answers. Who waits for the lock cannot be killed, and
//! keeps its process from ending. So another process reads: a fork of this one that has nothing of it but a socket, the
//! iterator, and memory into which it reads. One that does not answer in time is killed and left behind, and ends when the
//! lock is let go; before that nobody else is sent there.

use std::io::{self, IoSlice, Read};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::back_off::BackOff;
use libbpf_rs::{Link, libbpf_sys};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, recv, sendmsg, socketpair};

use super::descriptors::close_others;
use super::program::Child;
use super::records::{READ_BYTES, Record, read_all};

/// A scan that takes longer as a whole is stuck, or about to be: who keeps many locks for a moment each holds it up as well, and the
/// watchdog hears nothing meanwhile. Ten thousand sockets take some 10 ms.
const PATIENCE: Duration = Duration::from_secs(1);
/// One that was killed and is not stuck has ended by then.
const MOMENT_MS: u8 = 50;
/// What is read between two answers.
const WINDOW_BYTES: usize = 8 * READ_BYTES;
const WINDOW: NonZeroUsize = NonZeroUsize::new(WINDOW_BYTES).expect("it is not empty");
/// After so long without a scan that was stuck, the next one is the first again.
const QUIET: Duration = Duration::from_secs(300);

/// Which sockets an iterator shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SocketProtocol {
    Tcp,
    Udp,
}

/// Why a scan was not made, or not to its end. It is made the next time, and everything else goes on.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ScanError {
    #[error(
        "somebody keeps a TCP socket locked, as a send from a file that does not answer does: what is set on connections \
         stays as it is, and idle ones are not looked at, until the lock is let go; the queue, marks, priorities and \
         peers go on"
    )]
    TcpLocked,
    #[error(
        "somebody keeps a UDP socket locked, as a send from a file that does not answer does: UDP sockets cannot be looked \
         at until the lock is let go, so new ones have no class by their process; everything else goes on"
    )]
    UdpLocked,
    #[error("a scan of the sockets took longer than a second and was aborted; it will be repeated soon")]
    Slow,
    #[error("the process that scans over the sockets has ended; another one is started")]
    Ended,
}

/// One for the whole process: scans are seldom made at the same time.
static SCANS: LazyLock<Mutex<Scans>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Scans {
    scanner: Option<Scanner>,
    tcp: Hindrance,
    udp: Hindrance,
    /// Not needed any more, and not yet collected.
    ended: Vec<Child>,
    buffer: Vec<u8>,
    spent: Duration,
}

/// What keeps sockets of one protocol from being shown.
#[derive(Default)]
struct Hindrance {
    reason: Option<ScanError>,
    stuck: Option<Child>,
    failed: Option<Duration>,
    back_off: BackOff,
}

/// Starts the process, while this one is small and has no secrets. Without this the first scan does.
pub fn start() {
    let mut scans = scans();
    if scans.scanner.is_none() {
        scans.scanner = Scanner::start().ok();
    }
}

/// Whether such a scan can be tried now.
///
/// # Errors
/// Where the last one is stuck still, or it is too soon to try again.
pub fn check(sockets: SocketProtocol) -> Result<(), ScanError> {
    scans().of(sockets).check()
}

/// What keeps scans from being made just now, a line for each.
pub fn hindrances() -> Vec<ScanError> {
    let mut scans = scans();
    let all = [SocketProtocol::Tcp, SocketProtocol::Udp].map(|sockets| scans.of(sockets).check().err());
    all.into_iter().flatten().collect()
}

/// CPU time of all scans since the start.
pub fn spent() -> Duration {
    scans().spent
}

/// Runs the iterator once to its end. Where that fails, some of it may have been handed over.
pub fn run<T: Record>(link: &Link, sockets: SocketProtocol, each: impl FnMut(T)) -> Result<()> {
    // SAFETY: takes no pointers.
    let iterator = unsafe { libbpf_sys::bpf_iter_create(link.as_fd().as_raw_fd()) };
    if iterator < 0 {
        return Err(io::Error::from_raw_os_error(-iterator)).context("cannot start a BPF iterator");
    }
    // SAFETY: it was just opened, and is nobody else's.
    read(unsafe { OwnedFd::from_raw_fd(iterator) }, sockets, each)
}

fn read<T: Record>(iterator: OwnedFd, sockets: SocketProtocol, each: impl FnMut(T)) -> Result<()> {
    let mut scans = scans();
    scans.of(sockets).check()?;
    let scanner = scans.asked(&iterator)?;
    drop(iterator);
    let mut buffer = std::mem::take(&mut scans.buffer);
    let mut answer = ScanReader::of(scanner);
    let read = read_all(&mut answer, &mut buffer, each);
    let ScanReader { scanner, failed, .. } = answer;
    scans.buffer = buffer;
    scans.spent += scanner.spent_since;
    let Some(failed) = failed else {
        scans.scanner = Some(scanner);
        return read;
    };
    Err(scans.give_up(scanner, failed, sockets).into())
}

fn scans() -> MutexGuard<'static, Scans> {
    SCANS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scans {
    fn of(&mut self, sockets: SocketProtocol) -> &mut Hindrance {
        self.ended.retain_mut(|child| !child.has_ended());
        match sockets {
            SocketProtocol::Tcp => &mut self.tcp,
            SocketProtocol::Udp => &mut self.udp,
        }
    }

    /// The process, which scans now; another one where it has ended meanwhile.
    fn asked(&mut self, iterator: &OwnedFd) -> Result<Scanner> {
        if let Some(scanner) = self.scanner.take() {
            if scanner.request_batch(Some(iterator)).is_ok() {
                return Ok(scanner);
            }
            self.ended.push(scanner.end());
        }
        let scanner = Scanner::start().context("cannot start the process that scans over the sockets")?;
        match scanner.request_batch(Some(iterator)) {
            Ok(()) => Ok(scanner),
            Err(_) => {
                self.ended.push(scanner.end());
                Err(ScanError::Ended.into())
            }
        }
    }

    fn give_up(&mut self, scanner: Scanner, failed: ScannerFailure, sockets: SocketProtocol) -> ScanError {
        let mut child = scanner.end();
        let reason = match failed {
            ScannerFailure::Ended => ScanError::Ended,
            ScannerFailure::Late if child.ends_within_ms(MOMENT_MS) => ScanError::Slow,
            ScannerFailure::Late if sockets == SocketProtocol::Tcp => ScanError::TcpLocked,
            ScannerFailure::Late => ScanError::UdpLocked,
        };
        match reason {
            ScanError::Ended => self.ended.push(child),
            _ => self.of(sockets).begin(reason, child),
        }
        reason
    }
}

impl Hindrance {
    fn begin(&mut self, reason: ScanError, stuck: Child) {
        let now = super::now();
        if self.failed.is_none_or(|at| now.saturating_sub(at) > QUIET) {
            self.back_off.reset();
        }
        self.back_off.failed(now);
        (self.reason, self.stuck, self.failed) = (Some(reason), Some(stuck), Some(now));
    }

    fn check(&mut self) -> Result<(), ScanError> {
        let Some(reason) = self.reason else { return Ok(()) };
        if self.stuck.as_mut().is_some_and(|stuck| !stuck.has_ended()) {
            return Err(reason);
        }
        self.stuck = None;
        // Whoever locks it again and again delays little.
        if self.back_off.next().is_some_and(|next| super::now() < next) {
            return Err(reason);
        }
        self.reason = None;
        Ok(())
    }
}

enum ScannerFailure {
    Late,
    Ended,
}

/// The other process, as this one sees it.
struct Scanner {
    child: Child,
    socket: OwnedFd,
    memory: Memory,
    /// CPU time by its last answer, and of the scan that goes on.
    spent: Duration,
    spent_since: Duration,
}

/// What it says when it has filled the memory, or is at the iterator's end.
#[repr(C)]
#[derive(Clone, Copy)]
struct BatchStatus {
    filled: u32,
    /// At its end: 0, or why.
    errno: i32,
    is_last: u64,
    spent_ns: u64,
}

// SAFETY: integers without padding.
unsafe impl Record for BatchStatus {}

impl Scanner {
    fn start() -> Result<Self> {
        let memory = Memory::new().context("cannot map memory")?;
        let (socket, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
            .context("cannot make a pair of sockets")?;
        // No handler of this process's is ever to run there, and only SIGKILL is to end it.
        let mut before = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
        // SAFETY: the child makes system calls and nothing else, and never returns.
        let forked = Errno::result(unsafe { libc::fork() });
        if forked == Ok(0) {
            // SAFETY: both are the child's own.
            unsafe { serve(theirs.as_raw_fd(), memory.0.as_ptr()) }
        }
        let restored = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
        let child = Child::of(forked.context("cannot fork")?);
        restored?;
        Ok(Self {
            child,
            socket,
            memory,
            spent: Duration::ZERO,
            spent_since: Duration::ZERO,
        })
    }

    /// For a scan, or for more of the one that goes on.
    fn request_batch(&self, iterator: Option<&OwnedFd>) -> Result<(), Errno> {
        let fds: Vec<RawFd> = iterator.iter().map(|fd| fd.as_raw_fd()).collect();
        let with = [ControlMessage::ScmRights(&fds)];
        let with = if fds.is_empty() { &[][..] } else { &with[..] };
        let flags = MsgFlags::MSG_NOSIGNAL;
        sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(b"w")], with, flags, None).map(drop)
    }

    fn wait_for_batch(&mut self, begun: Duration) -> Result<BatchStatus, ScannerFailure> {
        loop {
            let left = PATIENCE.saturating_sub(super::now().saturating_sub(begun));
            let mut heard = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut heard, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO)) {
                Ok(0) => return Err(ScannerFailure::Late),
                Err(Errno::EINTR) => continue,
                Err(_) => return Err(ScannerFailure::Ended),
                Ok(_) => {}
            }
            let mut bytes = [0; size_of::<BatchStatus>()];
            return match recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EINTR | Errno::EAGAIN) => continue,
                Ok(read) => super::records::record::<BatchStatus>(&bytes[..read]).ok_or(ScannerFailure::Ended),
                Err(_) => Err(ScannerFailure::Ended),
            };
        }
    }

    fn end(self) -> Child {
        self.child.kill();
        self.child
    }
}

/// What it reads, as it comes.
struct ScanReader {
    scanner: Scanner,
    at: usize,
    filled: usize,
    begun: Duration,
    is_begun: bool,
    is_last: bool,
    failed: Option<ScannerFailure>,
}

impl ScanReader {
    fn of(mut scanner: Scanner) -> Self {
        scanner.spent_since = Duration::ZERO;
        Self {
            scanner,
            at: 0,
            filled: 0,
            begun: super::now(),
            is_begun: false,
            is_last: false,
            failed: None,
        }
    }

    fn next(&mut self) -> Result<BatchStatus, ScannerFailure> {
        if self.is_begun {
            self.scanner.request_batch(None).map_err(|_| ScannerFailure::Ended)?;
        }
        self.is_begun = true;
        self.scanner.wait_for_batch(self.begun)
    }
}

impl Read for ScanReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.filled && !self.is_last {
            let status = self.next().map_err(|failed| {
                self.failed = Some(failed);
                io::Error::from(io::ErrorKind::BrokenPipe)
            })?;
            let spent = Duration::from_nanos(status.spent_ns);
            self.scanner.spent_since += spent.saturating_sub(self.scanner.spent);
            self.scanner.spent = spent;
            (self.at, self.filled, self.is_last) = (0, (status.filled as usize).min(WINDOW_BYTES), status.is_last != 0);
            if status.errno != 0 {
                return Err(io::Error::from_raw_os_error(status.errno));
            }
        }
        let count = into.len().min(self.filled - self.at);
        // SAFETY: the memory has that many bytes from there, and the other process writes none before it is asked again.
        unsafe { ptr::copy_nonoverlapping(self.scanner.memory.0.as_ptr().add(self.at), into.as_mut_ptr(), count) };
        self.at += count;
        Ok(count)
    }
}

/// Shared with the other process.
struct Memory(NonNull<u8>);

// SAFETY: it is owned, like a box.
unsafe impl Send for Memory {}

impl Memory {
    fn new() -> nix::Result<Self> {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new memory, wherever the kernel puts it.
        let at = unsafe { mmap_anonymous(None, WINDOW, protection, MapFlags::MAP_SHARED) }?;
        Ok(Self(at.cast()))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and nothing refers to it any more.
        let _ = unsafe { munmap(self.0.cast(), WINDOW_BYTES) };
    }
}

/// The whole life of the other process. It calls nothing but what may be called after a fork, and ends with its socket.
///
/// # Safety
/// Right after a fork; the memory has [`WINDOW_BYTES`].
unsafe fn serve(socket: RawFd, memory: *mut u8) -> ! {
    // SAFETY: the names end with a zero.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"giveway-scan".as_ptr());
        libc::chdir(c"/".as_ptr());
    }
    close_others(socket);
    // SAFETY: as of this function.
    while let Some(iterator) = unsafe { asked(socket) } {
        // SAFETY: the descriptor was just handed over.
        if !unsafe { scan(socket, iterator, memory) } {
            break;
        }
        // SAFETY: the same.
        unsafe { libc::close(iterator) };
    }
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(0) }
}

/// The descriptor that came with a request, or -1. None: there are no more.
///
/// # Safety
/// None is needed but that it may be called after a fork.
unsafe fn asked(socket: RawFd) -> Option<RawFd> {
    let (mut byte, mut control) = (0u8, [0u64; 8]);
    let mut part = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    loop {
        // SAFETY: all zero is a message without anything; what is put there outlives the call.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control) as _;
            match libc::recvmsg(socket, &raw mut message, 0) {
                1 => {
                    let header = libc::CMSG_FIRSTHDR(&raw const message);
                    let is_fd = !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS;
                    return Some(match is_fd {
                        true => libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned(),
                        false => -1,
                    });
                }
                -1 if *libc::__errno_location() == libc::EINTR => {}
                _ => return None,
            }
        }
    }
}

/// Reads the iterator to its end. False where nobody wants to hear it.
///
/// # Safety
/// As of [`serve`].
unsafe fn scan(socket: RawFd, iterator: RawFd, memory: *mut u8) -> bool {
    loop {
        let mut status = BatchStatus {
            filled: 0,
            errno: 0,
            is_last: 0,
            spent_ns: 0,
        };
        // The kernel writes no more than this much in one read.
        while status.filled as usize + READ_BYTES <= WINDOW_BYTES && status.is_last == 0 {
            // SAFETY: so much is left of the memory.
            let read = unsafe { libc::read(iterator, memory.add(status.filled as usize).cast(), READ_BYTES) };
            // SAFETY: the C library's own, of this thread.
            let errno = unsafe { *libc::__errno_location() };
            match read {
                // It pauses after a million elements without output.
                ..0 if errno == libc::EINTR || errno == libc::EAGAIN => {}
                ..0 => (status.errno, status.is_last) = (errno, 1),
                0 => status.is_last = 1,
                _ => status.filled += read as u32,
            }
        }
        // SAFETY: it is written to a value, and sent from it.
        unsafe {
            let mut spent: libc::timespec = std::mem::zeroed();
            libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut spent);
            status.spent_ns = spent.tv_sec.cast_unsigned() * 1_000_000_000 + spent.tv_nsec.cast_unsigned();
            let size = size_of::<BatchStatus>();
            if libc::send(socket, (&raw const status).cast(), size, libc::MSG_NOSIGNAL) != size.cast_signed() {
                return false;
            }
        }
        if status.is_last != 0 {
            return true;
        }
        // SAFETY: as of this function.
        if unsafe { asked(socket) } != Some(-1) {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_another_process_reads_comes_whole_and_in_order() {
        let (reader, mut writer) = io::pipe().unwrap();
        // More than is read between two answers, and no whole number of them.
        let all: Vec<u32> = (0..300_001).collect();
        let bytes: Vec<u8> = all.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let writing = thread::spawn(move || writer.write_all(&bytes));
        let mut told = Vec::new();
        read(reader.into(), SocketProtocol::Tcp, |number: u32| told.push(number)).unwrap();
        writing.join().unwrap().unwrap();
        assert!(told == all, "{} records", told.len());
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"half").unwrap();
        writer.write_all(b"one").unwrap();
        drop(writer);
        let error = read(reader.into(), SocketProtocol::Tcp, |_: u32| ()).unwrap_err();
        assert!(error.to_string().contains("within a record"), "{error:#}");
    }

    #[test]
    fn one_that_does_not_answer_is_given_up_and_another_tries_a_second_later() {
        let (reader, writer) = io::pipe().unwrap();
        let begun = Instant::now();
        let error = read(reader.into(), SocketProtocol::Udp, |_: u32| ()).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&ScanError::Slow));
        assert!(begun.elapsed() >= PATIENCE);
        let empty = || io::pipe().unwrap().0;
        let too_soon = read(empty().into(), SocketProtocol::Udp, |_: u32| ()).unwrap_err();
        assert_eq!(too_soon.downcast_ref(), Some(&ScanError::Slow));
        assert!(hindrances().contains(&ScanError::Slow));
        while check(SocketProtocol::Udp).is_err() {
            assert!(begun.elapsed() < 5 * PATIENCE);
            thread::sleep(Duration::from_millis(10));
        }
        read(empty().into(), SocketProtocol::Udp, |_: u32| ()).unwrap();
        drop(writer);
    }
}
