// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Culprits of a known kind, planted on one CPU. Each disturbs for a few milliseconds at a time, so that the machine goes on,
//! and ends with its guard, after [`LONGEST`] by itself.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::unistd::Pid;
use socket2::{Domain, SockFilter, Socket, Type};

const LONGEST: Duration = Duration::from_secs(5);
const BURST: Duration = Duration::from_millis(3);
const PAUSE: Duration = Duration::from_millis(12);
/// Below what is measured: such a thread is no culprit itself, and comes to its turn on a busy machine.
const HARMLESS: i32 = 10;
/// A storm's timers, all due at once: each takes the kernel a tenth of a microsecond or more. Fewer where a process may
/// not have so many open files.
const TIMERS: usize = 19_000;
const DESCRIPTORS_OF_OTHERS: usize = 100;
/// Sockets that all get each broadcast, and how many divisions each makes before it throws it away.
const SOCKETS: usize = 250;
const DIVISIONS: usize = 1500;

/// The running disturbance.
pub struct Planted {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Planted {
    /// Does something again and again, with pauses, in a FIFO thread of this name on this CPU. `prepare` runs there too.
    fn grow<T>(
        name: &str,
        cpu: usize,
        priority: i32,
        prepare: impl FnOnce() -> T + Send + 'static,
        disturb: impl Fn(&T) + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (prepared, is_prepared) = std::sync::mpsc::channel();
        let stopped = Arc::clone(&stop);
        let life = move || {
            let mut only = CpuSet::new();
            only.set(cpu).unwrap();
            sched_setaffinity(Pid::from_raw(0), &only).unwrap();
            let prepared_state = prepare();
            let parameters = libc::sched_param {
                sched_priority: priority,
            };
            // SAFETY: the structure is read at once.
            Errno::result(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) }).unwrap();
            prepared.send(()).unwrap();
            let start = Instant::now();
            while !stopped.load(Ordering::Relaxed) && start.elapsed() < LONGEST {
                disturb(&prepared_state);
                thread::sleep(PAUSE);
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(life).unwrap();
        is_prepared
            .recv()
            .expect("the culprit cannot be planted (are you root?)");
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let outcome = self.thread.take().unwrap().join();
        assert!(outcome.is_ok() || thread::panicking(), "the planted culprit failed");
    }
}

/// A thread of this real-time priority that computes for 3 ms at a time.
pub fn spinner(name: &str, cpu: usize, priority: i32) -> Planted {
    Planted::grow(
        name,
        cpu,
        priority,
        || (),
        |()| {
            let start = Instant::now();
            while start.elapsed() < BURST {
                std::hint::spin_loop();
            }
        },
    )
}

/// A thread whose every packet makes the kernel compute for milliseconds in the softirq that receives it.
pub fn long_softirq(cpu: usize) -> Planted {
    let prepare = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let outcome = std::process::Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status()
            .unwrap();
        assert!(outcome.success(), "a loopback that is up is needed");
        let receivers: Vec<Socket> = (0..SOCKETS).map(|_| receiver()).collect();
        let sender = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        sender.set_broadcast(true).unwrap();
        (sender, receivers)
    };
    Planted::grow("planted-sender", cpu, HARMLESS, prepare, |(sender, _)| {
        sender.send_to(&[0], &everyone().into()).unwrap();
    })
}

fn everyone() -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(127, 255, 255, 255), 9999)
}

/// A socket that divides (classic BPF: linux/filter.h) and takes no packet.
fn receiver() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_broadcast(true).unwrap();
    let load_length = SockFilter::new((libc::BPF_LD | libc::BPF_W | libc::BPF_LEN) as u16, 0, 0, 0);
    let copy = SockFilter::new((libc::BPF_MISC | libc::BPF_TAX) as u16, 0, 0, 0);
    let drop_it = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
    let mut program = vec![load_length, copy];
    program
        .extend((0..DIVISIONS).map(|_| SockFilter::new((libc::BPF_ALU | libc::BPF_DIV | libc::BPF_X) as u16, 0, 0, 0)));
    program.push(drop_it);
    socket.attach_filter(&program).unwrap();
    socket
        .bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, everyone().port()).into())
        .unwrap();
    socket
}

/// Thousands of timers that expire at the same moment, in the CPU's timer interrupt.
pub fn interrupt_storm(cpu: usize) -> Planted {
    let prepare = || {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
        let room = usize::try_from(hard).unwrap().saturating_sub(DESCRIPTORS_OF_OTHERS);
        (0..TIMERS.min(room)).map(|_| timer()).collect::<Vec<_>>()
    };
    Planted::grow("planted-storm", cpu, HARMLESS, prepare, |timers| {
        let due = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
        let due = Duration::from(due) + Duration::from_millis(20);
        timers.iter().for_each(|timer| arm(timer, due));
    })
}

fn timer() -> TimerFd {
    TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC).unwrap()
}

fn arm(timer: &TimerFd, due: Duration) {
    let due = Expiration::OneShot(due.into());
    timer.set(due, TimerSetTimeFlags::TFD_TIMER_ABSTIME).unwrap();
}
