// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One narrow link between two network namespaces: a rate, a queue that loses what exceeds it, random loss, and a delay,
//! which this machine's kernel may have no qdisc for. A thread carries the packets between two TUN devices. The test's
//! thread lives in the near namespace.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpCongestion;

use super::caller;
use super::lab::{run, visit};
use super::tcp::set_option;
use super::wait::First;

const FAR: &str = "10.98.0.2";
const PACKET_BYTES: usize = 1_500;
const NAP: Duration = Duration::from_micros(200);

#[derive(Clone, Copy)]
pub struct Shape {
    pub mbit: u64,
    pub rtt: Duration,
    pub queue: Duration,
    /// One in so many packets is lost; 0: none.
    pub loses_one_in: u64,
}

pub struct Bottleneck {
    names: [String; 2],
    ends: Arc<AtomicBool>,
    relay: Option<JoinHandle<()>>,
    /// The longest wait in the queue since it was last asked for.
    longest_us: Arc<AtomicU64>,
    /// Takes timestamps away from what the remote host receives, as a middlebox may.
    strips: Arc<AtomicBool>,
}

impl Bottleneck {
    /// Moves the calling thread into the near namespace, for good. The narrow direction is from there to the far one.
    pub fn enter(shape: Shape) -> Self {
        caller::forget();
        let names = ["n", "f"].map(|side| format!("gwb{}{side}", std::process::id()));
        let tuns = [1, 2].map(|number| {
            let name = names[number - 1].clone();
            run(&format!("ip netns add {name}"));
            let made = name.clone();
            let tun = thread::spawn(move || in_netns(&made)).join().unwrap();
            run(&format!("ip -n {name} address add 10.98.0.{number}/24 dev gwt"));
            run(&format!("ip -n {name} link set gwt txqueuelen 5000 up"));
            tun
        });
        visit(&names[0]);
        let (ends, longest_us) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, longest) = (ends.clone(), longest_us.clone());
        let strips = Arc::new(AtomicBool::new(false));
        let is_to_strip = strips.clone();
        let relay = thread::spawn(move || carry(tuns, shape, &over, &longest, &is_to_strip));
        Self {
            names,
            ends,
            relay: Some(relay),
            longest_us,
            strips,
        }
    }

    pub fn strip_timestamps(&self) {
        self.strips.store(true, Ordering::Relaxed);
    }

    /// Sends at full speed by this congestion control, put on the open connection.
    pub fn transfer(&self, congestion_control: &str) -> Transfer {
        let (near, far) = self.connect();
        setsockopt(&near, TcpCongestion, &congestion_control.into()).unwrap();
        Transfer::begin(near, far)
    }

    /// A connection, from the near end to the far one.
    pub fn connect(&self) -> (TcpStream, TcpStream) {
        let listener = self.at_remote_host(|| TcpListener::bind((FAR, 0)).unwrap());
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// What is done in the far namespace.
    pub fn at_remote_host<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let far = || {
            visit(&self.names[1]);
            work()
        };
        thread::scope(|scope| scope.spawn(far).join()).unwrap()
    }

    /// The longest wait in the queue since the last call.
    pub fn longest_wait(&self) -> Duration {
        Duration::from_micros(self.longest_us.swap(0, Ordering::Relaxed))
    }
}

impl Drop for Bottleneck {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.relay.take().map(JoinHandle::join);
        for name in &self.names {
            let _ = std::process::Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// Ends with it.
pub struct Transfer {
    from: TcpStream,
    received: Arc<AtomicU64>,
}

impl Transfer {
    /// At full speed.
    pub fn begin(mut from: TcpStream, mut to: TcpStream) -> Self {
        let received = Arc::new(AtomicU64::new(0));
        let counted = received.clone();
        let transfer = Self {
            from: from.try_clone().unwrap(),
            received,
        };
        thread::spawn(move || while from.write(&[0; 16 * 1024]).is_ok() {});
        thread::spawn(move || {
            let mut buffer = [0; 64 * 1024];
            while let Ok(read @ 1..) = to.read(&mut buffer) {
                counted.fetch_add(read as u64, Ordering::Relaxed);
            }
        });
        transfer
    }

    /// Its sender paces it from now on.
    pub fn hold_to(&self, mbit: f64) {
        let bytes_per_s = (mbit * 125e3) as u32;
        set_option(&self.from, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, bytes_per_s);
    }

    /// What arrives during this time.
    pub fn mbit_during(&self, time: Duration) -> f64 {
        let (before, start) = (self.received.load(Ordering::Relaxed), Instant::now());
        thread::sleep(time);
        let bytes = self.received.load(Ordering::Relaxed) - before;
        bytes as f64 * 8e-6 / start.elapsed().as_secs_f64()
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let _ = self.from.shutdown(std::net::Shutdown::Both);
    }
}

fn in_netns(name: &str) -> File {
    visit(name);
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let tun = options.open("/dev/net/tun").unwrap();
    // SAFETY: all zeros are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, byte) in request.ifr_name.iter_mut().zip(*b"gwt") {
        *to = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which outlives the call.
    Errno::result(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &mut request) }).unwrap();
    tun
}

/// Packets under way, with the time at which each arrives.
type Line = VecDeque<(Instant, Vec<u8>)>;

fn carry([mut near, mut far]: [File; 2], shape: Shape, ends: &AtomicBool, longest_us: &AtomicU64, strips: &AtomicBool) {
    let _first = First::of_all();
    let (mut up, mut down) = (Line::new(), Line::new());
    let mut free = Instant::now();
    let mut random = 88_172_645_463_325_252_u64;
    while !ends.load(Ordering::Relaxed) {
        while let Some(mut packet) = receive(&mut near) {
            if strips.load(Ordering::Relaxed) {
                strip_timestamp(&mut packet);
            }
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let now = Instant::now();
            let wait = free.saturating_duration_since(now);
            let is_lost = shape.loses_one_in > 0 && random.is_multiple_of(shape.loses_one_in);
            if is_lost || wait > shape.queue {
                continue;
            }
            longest_us.fetch_max(wait.as_micros() as u64, Ordering::Relaxed);
            free = now + wait + Duration::from_nanos(packet.len() as u64 * 8_000 / shape.mbit);
            up.push_back((free + shape.rtt / 2, packet));
        }
        while let Some(packet) = receive(&mut far) {
            down.push_back((Instant::now() + shape.rtt / 2, packet));
        }
        deliver(&mut up, &mut far);
        deliver(&mut down, &mut near);
        thread::sleep(NAP);
    }
}

fn receive(tun: &mut File) -> Option<Vec<u8>> {
    let mut packet = vec![0; PACKET_BYTES];
    let length = tun.read(&mut packet).ok()?;
    packet.truncate(length);
    Some(packet)
}

/// Of IPv4 without options, and TCP with this one alone. The checksum is brought in line (RFC 1624).
fn strip_timestamp(packet: &mut [u8]) {
    const OPTION: std::ops::Range<usize> = 40..52;
    const CHECKSUM: usize = 36;
    const NOPS: [u8; 12] = [1; 12];
    if packet.len() < OPTION.end || packet[9] != 6 || packet[OPTION.start..][..4] != [1, 1, 8, 10] {
        return;
    }
    let words = |bytes: &[u8]| {
        bytes
            .chunks(2)
            .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
            .sum::<u32>()
    };
    let inverse = 6 * 0xffff - words(&packet[OPTION]);
    let mut sum = (0xffff - words(&packet[CHECKSUM..][..2])) + inverse + words(&NOPS);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[OPTION].copy_from_slice(&NOPS);
    packet[CHECKSUM..][..2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

fn deliver(line: &mut Line, to: &mut File) {
    let now = Instant::now();
    while let Some((_, packet)) = line.pop_front_if(|(due, _)| *due <= now) {
        let _ = to.write(&packet);
    }
}
