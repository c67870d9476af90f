// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A link of 10 Mbit/s with htb and admission on it, senders and receivers on its two sides, and frames by hand.
//! What it put up is gone when it is dropped.

use std::cell::RefCell;
use std::fs;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use giveway::actuate::queue::QueueActuator;
use giveway::kernel::records::{bytes_of, record};
use giveway::kernel::skeletons::admission::types;
use giveway::place::{Lock, Place};
use giveway_engine::class::LinkMarks;
use giveway_engine::config::Config;
use giveway_engine::model::{Class, Cookie, LimitNumbers, Treatment};
use giveway_engine::queue::traffic::QueueCounters;
use giveway_engine::queue::{Backend, BackgroundFlow, Plan, Tuning};
use libbpf_rs::libbpf_sys::{
    BPF_TCX_EGRESS, bpf_prog_get_fd_by_id, bpf_prog_query_opts, bpf_prog_test_run_opts, bpf_test_run_opts,
};
use libbpf_rs::query::{MapInfo, MapInfoIter, ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nix::errno::Errno;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, recv, sendmsg};
use nix::sys::time::{TimeVal, TimeValLike as _};
use nix::time::{ClockId, clock_gettime};
use socket2::SockRef;

use crate::support::lab::{FAR_V4, FAR_V6, Lab, NEAR_V4, run};

const PATIENCE: Duration = Duration::from_secs(10);
const DEADLINE_MODE: u32 = 1;
const TCX_NEXT: u32 = u32::MAX;
/// Words of `struct __sk_buff` before its control block (include/uapi/linux/bpf.h).
const CONTROL_BLOCK: usize = 12;
/// As in bpf/link.h.
const STAMP_TCP: u32 = 4;
const IFINDEX: usize = 10;
const UDP_HEADER: [u8; 8] = [0x30, 0, 0x30, 1, 0, 40, 0, 0];

pub struct Link<'a> {
    lab: &'a Lab,
    actuator: RefCell<QueueActuator>,
    place: Place,
    /// Who starts a daemon elsewhere removes folders of which nobody holds the lock.
    _lock: Lock,
    far_mac: [u8; 6],
    near_mac: [u8; 6],
    frames: OwnedFd,
}

impl<'a> Link<'a> {
    pub fn of(lab: &'a Lab) -> Self {
        Self::with(lab, "")
    }

    /// With this configuration.
    pub fn with(lab: &'a Lab, configuration: &str) -> Self {
        // Whoever runs the tests may have lowered them, and with them every socket.
        set_niceness(0);
        let place = Place::here().unwrap();
        let lock = place.lock().unwrap();
        let config = Config::parse(configuration).unwrap();
        let mut actuator = QueueActuator::open(&place, &config, None, None, None, None).unwrap();
        actuator
            .set(lab.ifindex, "gwv", Some(&plan(lab.ifindex, &config)))
            .unwrap();
        let link = Self {
            lab,
            actuator: RefCell::new(actuator),
            place,
            _lock: lock,
            far_mac: mac(&lab.far),
            near_mac: mac(&lab.near),
            frames: packet_socket(lab.ifindex, 0),
        };
        link.know(FAR_V4, "gwv");
        link.know(FAR_V6, "gwv");
        link
    }

    /// A packet that waits for its peer never comes to admission in its sender's context.
    fn know(&self, far: &str, device: &str) {
        let mac = self.far_mac.map(|byte| format!("{byte:02x}")).join(":");
        run(&format!(
            "ip neighbour replace {far} lladdr {mac} dev {device} nud permanent"
        ));
    }

    pub fn counters(&self) -> QueueCounters {
        let counters = self.actuator.borrow_mut().counters(Duration::ZERO);
        counters.unwrap().remove(&self.lab.ifindex).unwrap()
    }

    pub fn missing(&self) -> Vec<String> {
        self.actuator.borrow().missing()
    }

    pub fn register(&mut self, receiver: &Receiver, local_port: Option<u16>) {
        let flow = BackgroundFlow {
            address: receiver.address.ip(),
            port: receiver.address.port(),
            local_port,
        };
        self.actuator.borrow_mut().add_background(flow).unwrap();
    }

    /// What the daemon says of the socket.
    pub fn treat(&self, socket: &impl AsFd, class: Class) {
        let cookie = Cookie(SockRef::from(socket).cookie().unwrap());
        let limits = LimitNumbers::NONE;
        let treatment = Treatment { class, limits };
        self.actuator.borrow_mut().treat(cookie, Some(treatment)).unwrap();
    }

    /// Shows what arrives on the far side from now on.
    pub fn watch(&self) -> Arrivals {
        let socket = self.lab.far(|| {
            let ifindex = nix::net::if_::if_nametoindex("gwv").unwrap();
            packet_socket(ifindex, libc::ETH_P_ALL as u16)
        });
        nix::sys::socket::setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(PATIENCE.as_secs() as i64)).unwrap();
        Arrivals {
            socket,
            far_mac: self.far_mac,
        }
    }

    /// That what is sent comes back to its sender, and counts as one refusal.
    #[track_caller]
    pub fn assert_refused(&self, send: impl FnOnce() -> Result<usize, Errno>) {
        let before = self.counters();
        assert_eq!(send(), Err(Errno::ENOBUFS));
        let after = self.counters();
        assert_eq!(
            (after.admitted, after.refused.total),
            (before.admitted, before.refused.total + 1)
        );
    }

    /// That it goes out, and counts as one promise.
    #[track_caller]
    pub fn assert_admitted(&self, bytes: usize, send: impl FnOnce() -> Result<usize, Errno>) {
        let before = self.counters();
        assert_eq!(send(), Ok(bytes));
        let after = self.counters();
        assert_eq!(
            (after.admitted, after.refused.total),
            (before.admitted + 1, before.refused.total)
        );
    }

    /// That admission has seen none yet.
    #[track_caller]
    pub fn assert_no_deadline(&self) {
        let counted = self.counters();
        assert_eq!((counted.bands.realtime.classified, counted.refused.total), (0, 0));
    }

    /// That of one packet, this many are background.
    pub fn assert_background(&self, sender: &Sender, packets: u64) {
        let before = self.counters().bands.background.classified;
        sender.send(&[7; 100]).unwrap();
        let after = self.counters().bands.background.classified;
        assert_eq!(after - before, packets, "{:?}", sender.socket.peer_addr());
    }

    pub fn receiver(&self, far: &str) -> Receiver<'a> {
        let ip: IpAddr = far.parse().unwrap();
        let socket = self.lab.far(|| UdpSocket::bind((ip, 0)).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let (level, options) = match ip {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVOPTS),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVDSTOPTS),
        };
        set(&socket, level, options, &1_i32.to_ne_bytes()).unwrap();
        Receiver {
            lab: self.lab,
            address: socket.local_addr().unwrap(),
            socket,
        }
    }

    pub fn send_frame(&self, frame: &[u8]) -> Result<usize, Errno> {
        nix::sys::socket::send(self.frames.as_raw_fd(), frame, MsgFlags::empty())
    }
}

/// The loaded program, run on packets that go nowhere.
pub struct Program {
    program: OwnedFd,
    ifindex: u32,
}

impl Program {
    /// Admission as it is attached, told that the BPF qdisc serves behind it, at this rate; 0: no rate is known.
    pub fn before_the_qdisc(link: &Link, rate_bytes_per_s: u64) -> Self {
        Self::configured(link, rate_bytes_per_s, |_| {})
    }

    /// The same, with what else is to be configured.
    pub fn configured(link: &Link, rate_bytes_per_s: u64, also: impl Fn(&mut types::gw_link_config)) -> Self {
        let id = attached(link.lab.ifindex);
        let with_maps = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true));
        let maps = with_maps.filter(|program| program.id == id).flat_map(|it| it.map_ids);
        let is_config = |map: &MapInfo| map.name.as_encoded_bytes() == b"link_config";
        let configs = MapInfoIter::default().filter(is_config).map(|map| map.id);
        let configs: Vec<u32> = configs.collect();
        let config = maps.into_iter().find(|map| configs.contains(map)).unwrap();
        let config = MapHandle::from_map_id(config).unwrap();
        let key = 0_u32.to_ne_bytes();
        let bytes = config.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        let mut edf = types::gw_link_config {
            backend: types::gw_backend::GW_BACKEND_EDF,
            rate_bytes_per_s,
            ..record(&bytes).unwrap()
        };
        also(&mut edf);
        config.update(&key, bytes_of(&edf), MapFlags::ANY).unwrap();
        // SAFETY: no pointers; the result is checked.
        let descriptor = Errno::result(unsafe { bpf_prog_get_fd_by_id(id) }).unwrap();
        Self {
            // SAFETY: a descriptor that was just made and that nobody else owns.
            program: unsafe { OwnedFd::from_raw_fd(descriptor) },
            ifindex: link.lab.ifindex,
        }
    }

    /// What the qdisc reads of this frame (`STAMP_MAGIC` in bpf/link.h): its band, and the work promised for it, in ns.
    pub fn stamp(&self, frame: &[u8]) -> (u32, u32) {
        let (retval, after) = self.run(frame);
        assert_eq!(retval, TCX_NEXT, "it passes");
        (after[CONTROL_BLOCK] & 0xffff & !STAMP_TCP, after[CONTROL_BLOCK + 3])
    }

    pub fn admits(&self, frame: &[u8]) -> bool {
        self.run(frame).0 == TCX_NEXT
    }

    fn run(&self, frame: &[u8]) -> (u32, [u32; 48]) {
        let (mut before, mut after) = ([0_u32; 48], [0_u32; 48]);
        before[IFINDEX] = self.ifindex;
        let mut run = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            ctx_in: (&raw const before).cast(),
            ctx_size_in: size_of_val(&before) as u32,
            ctx_out: (&raw mut after).cast(),
            ctx_size_out: size_of_val(&after) as u32,
            ..Default::default()
        };
        // SAFETY: `run` and what it points to live until the call returns, and state their sizes.
        let outcome = unsafe { bpf_prog_test_run_opts(self.program.as_raw_fd(), &raw mut run) };
        assert_eq!(outcome, 0);
        (run.retval, after)
    }
}

/// The one program that sees what leaves by this interface of the test's own namespace.
fn attached(ifindex: u32) -> u32 {
    let mut id = 0_u32;
    let mut asked = bpf_prog_query_opts {
        sz: size_of::<bpf_prog_query_opts>() as _,
        prog_ids: &raw mut id,
        ..Default::default()
    };
    asked.__bindgen_anon_1.count = 1;
    // SAFETY: `asked` says how many numbers there is room for, which is one.
    let done = unsafe { bpf_prog_query_opts(ifindex.cast_signed(), BPF_TCX_EGRESS, &raw mut asked) };
    Errno::result(done).unwrap();
    id
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        let undone = self.actuator.borrow_mut().take_down(self.lab.ifindex);
        if let Some(directory) = self.place.control_socket().parent() {
            let _ = fs::remove_dir_all(directory);
        }
        if !thread::panicking() {
            undone.unwrap();
        }
    }
}

fn plan(ifindex: u32, config: &Config) -> Plan {
    Plan {
        ifindex,
        backend: Backend::Htb,
        single_segments: false,
        only_if_free: false,
        tuning: Tuning {
            marks: LinkMarks::new(&config.marks, false, true),
            ..tuning()
        },
    }
}

fn tuning() -> Tuning {
    Tuning {
        rate_bytes_per_s: Some(1_250_000),
        rate_source: None,
        overhead_bytes: 0,
        max_packet_bytes: 1_514,
        spares_local: false,
        orders_downloads: false,
        driver_bytes: 1_514,
        realtime_percent: 80,
        guard_us: 100,
        path_budget_us: 0,
        below_us: 0,
        user_percent: None,
        background_min_bytes_per_s: 0,
        short_mss: None,
        sojourn_target_us: 5_000,
        sojourn_interval_us: 100_000,
        admission: true,
        drop_late: true,
        cpu_gate: false,
        call_marks: true,
        packet_rules: Vec::new(),
        marks: LinkMarks::default(),
    }
}

fn mac(netns: &str) -> [u8; 6] {
    let shown = run(&format!("ip -n {netns} -br link show dev gwv"));
    let text = shown.split_whitespace().nth(2).unwrap();
    let bytes: Vec<u8> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    bytes.try_into().unwrap()
}

/// Sends whole frames out of this interface and receives those of this protocol; of 0 none.
fn packet_socket(ifindex: u32, protocol: u16) -> OwnedFd {
    // SAFETY: no pointers; the result is checked.
    let descriptor = Errno::result(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) });
    // SAFETY: a descriptor that was just made and that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor.unwrap()) };
    // SAFETY: integers only, for which all zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = ifindex.cast_signed();
    address.sll_protocol = protocol.to_be();
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: a sockaddr_ll of this length, which the kernel only reads.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    Errno::result(bound).unwrap();
    socket
}

/// Frames to the far side.
pub struct Arrivals {
    socket: OwnedFd,
    far_mac: [u8; 6],
}

impl Arrivals {
    /// The next packet of TCP or UDP, or fragment of one, from its IP header on.
    pub fn next(&self) -> Vec<u8> {
        self.next_where(|frame| match frame.get(12..14) {
            Some([0x08, 0x00]) => matches!(frame[14 + 9], 6 | 17),
            Some([0x86, 0xdd]) => matches!(frame[14 + 6], 6 | 17 | 44 | 60),
            _ => false,
        })
    }

    /// What the next frame of this type carries. The kernel has taken a tag of VLAN off.
    pub fn next_of(&self, ethertype: [u8; 2]) -> Vec<u8> {
        self.next_where(|frame| frame.get(12..14) == Some(&ethertype))
    }

    fn next_where(&self, is_wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        loop {
            let mut frame = vec![0; 65_536];
            let length = recv(self.socket.as_raw_fd(), &mut frame, MsgFlags::empty()).expect("it arrives");
            frame.truncate(length);
            if is_wanted(&frame) && frame.starts_with(&self.far_mac) {
                return frame.split_off(14);
            }
        }
    }
}

pub struct Receiver<'a> {
    lab: &'a Lab,
    socket: UdpSocket,
    pub address: SocketAddr,
}

impl Receiver<'_> {
    pub fn receive(&self) -> usize {
        self.socket.recv(&mut [0; 65_536]).unwrap()
    }

    pub fn has_more(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        let has_more = self.socket.recv(&mut [0; 65_536]).is_ok();
        self.socket.set_nonblocking(false).unwrap();
        has_more
    }

    /// How long the next datagram is, and what the application is told beside it.
    pub fn receive_with_options(&self) -> (usize, Vec<u8>) {
        let (mut data, mut control) = ([0_u8; 2_048], [0_u8; 512]);
        let mut into = libc::iovec {
            iov_base: data.as_mut_ptr().cast(),
            iov_len: data.len(),
        };
        // SAFETY: integers and pointers, for which all zero is valid: none.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut into;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = control.len() as _;
        // SAFETY: every pointer in the header is good for the length beside it, for the whole call.
        let received = Errno::result(unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, 0) });
        (
            received.unwrap() as usize,
            control[..header.msg_controllen as usize].to_vec(),
        )
    }

    /// Fragments of this address's family that the far side was ever asked to put together.
    pub fn fragments_arrived(&self) -> u64 {
        let name = if self.address.is_ipv4() { "snmp" } else { "snmp6" };
        let text = self
            .lab
            .far(|| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap());
        if let Some(line) = text.lines().find(|line| line.starts_with("Ip6ReasmReqds")) {
            return line.split_whitespace().nth(1).unwrap().parse().unwrap();
        }
        let mut lines = text.lines().filter(|line| line.starts_with("Ip:"));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let at = names.split_whitespace().position(|name| name == "ReasmReqds").unwrap();
        values.split_whitespace().nth(at).unwrap().parse().unwrap()
    }
}

/// A datagram socket that is told of refusals.
pub struct Sender {
    pub socket: UdpSocket,
}

impl Sender {
    pub fn to(receiver: &Receiver) -> Self {
        let (any, level, errors) = if receiver.address.is_ipv4() {
            ("0.0.0.0:0", libc::IPPROTO_IP, libc::IP_RECVERR)
        } else {
            ("[::]:0", libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        };
        let socket = UdpSocket::bind(any).unwrap();
        set(&socket, level, errors, &1_i32.to_ne_bytes()).unwrap();
        socket.connect(receiver.address).unwrap();
        Self { socket }
    }

    /// A socket has its maker's user.
    pub fn of_user(uid: u32, receiver: &Receiver) -> Self {
        let making = || {
            // SAFETY: no pointers. Of the calling thread alone, which ends after this.
            unsafe { libc::setfsuid(uid) };
            Self::to(receiver)
        };
        std::thread::scope(|scope| scope.spawn(making).join().unwrap())
    }

    pub fn local_port(&self) -> u16 {
        self.socket.local_addr().unwrap().port()
    }

    /// As an IP option (P3), or for IPv6 as an option of the destination.
    pub fn state_time_left(&self, us: u32) {
        if self.socket.local_addr().unwrap().is_ipv4() {
            let option = [&[0x9e, 6][..], &us.to_be_bytes()].concat();
            set(&self.socket, libc::IPPROTO_IP, libc::IP_OPTIONS, &option).unwrap();
        } else {
            let header = [&[0, 0, 0x1e, 4][..], &us.to_be_bytes()].concat();
            set(&self.socket, libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS, &header).unwrap();
        }
    }

    pub fn ask_for_deadlines(&self) {
        let asked = [libc::CLOCK_MONOTONIC.to_ne_bytes(), DEADLINE_MODE.to_ne_bytes()].concat();
        set(&self.socket, libc::SOL_SOCKET, libc::SO_TXTIME, &asked).unwrap();
    }

    pub fn send(&self, data: &[u8]) -> Result<usize, Errno> {
        nix::sys::socket::send(self.socket.as_raw_fd(), data, MsgFlags::empty())
    }

    /// With so much time left.
    pub fn send_by(&self, data: &[u8], left: Duration) -> Result<usize, Errno> {
        let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap());
        let deadline_ns = (now + left).as_nanos() as u64;
        let nobody: Option<&SockaddrStorage> = None;
        let control = [ControlMessage::TxTime(&deadline_ns)];
        sendmsg(
            self.socket.as_raw_fd(),
            &[IoSlice::new(data)],
            &control,
            MsgFlags::empty(),
            nobody,
        )
    }
}

pub fn set(socket: &impl AsRawFd, level: libc::c_int, name: libc::c_int, value: &[u8]) -> Result<(), Errno> {
    let length = value.len() as libc::socklen_t;
    // SAFETY: the pointer is good for `length` bytes, which the kernel only reads.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.as_ptr().cast(), length) };
    Errno::result(set).map(drop)
}

/// Of the calling thread.
fn set_niceness(nice: i32) {
    rustix::process::setpriority_process(None, nice).unwrap();
}

/// In a thread that has lowered itself, and in no other.
pub fn at_nice_19<T: Send>(make: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let lowered = scope.spawn(|| {
            set_niceness(19);
            make()
        });
        lowered.join().unwrap()
    })
}

/// A fragment of the datagram of 4,000 bytes with this number: so many bytes of it, all of this value behind the UDP
/// header that the first one has, from this offset on.
pub fn fragment(link: &Link, options: &[u8], id: u8, from: u16, bytes: u16, value: u8) -> Vec<u8> {
    let mut frame = frame(link, options, usize::MAX);
    let header = frame.len() - UDP_HEADER.len() - 32;
    frame.truncate(if from == 0 { header + UDP_HEADER.len() } else { header });
    if from == 0 {
        frame[header + 4..header + 6].copy_from_slice(&4_008_u16.to_be_bytes());
    }
    frame.resize(header + usize::from(bytes), value);
    let total = (header - 14) as u16 + bytes;
    let more = if from + bytes < 4_008 { 0x2000 } else { 0 };
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[18..20].copy_from_slice(&[0, id]);
    frame[20..22].copy_from_slice(&(more | (from / 8)).to_be_bytes());
    frame
}

/// UDP in IPv4 with these options, cut off so many bytes behind its Ethernet header.
pub fn frame(link: &Link, options: &[u8], payload_bytes: usize) -> Vec<u8> {
    let (near, far): (IpAddr, IpAddr) = (NEAR_V4.parse().unwrap(), FAR_V4.parse().unwrap());
    let (IpAddr::V4(near), IpAddr::V4(far)) = (near, far) else {
        unreachable!("the addresses are IPv4")
    };
    let words = 5 + options.len().div_ceil(4) as u8;
    let total = (u16::from(words) * 4 + 40).to_be_bytes();
    let header = [0x40 | words, 0, total[0], total[1], 0, 1, 0, 0, 64, 17, 0, 0];
    let packet = [
        &header[..],
        &near.octets(),
        &far.octets(),
        options,
        &UDP_HEADER,
        &[7; 32],
    ]
    .concat();
    let kept = payload_bytes.min(packet.len());
    [&link.far_mac[..], &link.near_mac, &[8, 0], &packet[..kept]].concat()
}

/// None of which can be read as a packet with a deadline.
pub fn frames_of(link: &Link) -> Vec<Vec<u8>> {
    let right = [0x9e, 6, 0, 0, 0, 0, 1, 0];
    // Inside the headers, before the option is whole.
    let cut_short = (1..26).map(|bytes| frame(link, &right, bytes));
    let lying = (0..=255).filter(|length| *length != 6).map(|length| {
        let option = [0x9e, length, 0, 0, 0, 0, 0, 0];
        frame(link, &option, usize::MAX)
    });
    let versions = (0..=255_u8).filter(|first| first >> 4 != 4 || first & 0xf < 5);
    let of_no_version = versions.map(|first| {
        let mut frame = frame(link, &right, usize::MAX);
        frame[14] = first;
        frame
    });
    let cut_off_options = (1..40).map(|bytes| frame(link, &[1; 40][..bytes / 4 * 4], usize::MAX));
    cut_short
        .chain(lying)
        .chain(of_no_version)
        .chain(cut_off_options)
        .collect()
}
