// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two network namespaces joined by a veth pair. The test's thread lives in the near one, which is watched; sockets of
//! the far one are made by threads that visit it.

use std::fs::{self, File};
use std::io::Read as _;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use giveway::kernel::flow_monitor::FlowMonitor;
use giveway::kernel::own_netns;
use nix::sched::{CloneFlags, setns};

use super::caller;
use super::tcp::pair;
use super::turn::Turn;

pub const NEAR_V4: &str = "10.99.0.1";
pub const FAR_V4: &str = "10.99.0.2";
pub const NEAR_V6: &str = "fd99::1";
pub const FAR_V6: &str = "fd99::2";

pub struct Lab {
    pub near: String,
    pub far: String,
    /// The near end's interface.
    pub ifindex: u32,
    _turn: Turn,
}

impl Lab {
    /// Moves the calling thread into the near namespace, for good.
    pub fn enter() -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "these tests load BPF programs and make namespaces: run them as root"
        );
        let turn = Turn::beside_others();
        caller::forget();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = |side| format!("gwk{}-{number}{side}", std::process::id());
        let mut lab = Self {
            near: name("n"),
            far: name("f"),
            ifindex: 0,
            _turn: turn,
        };
        run(&format!("ip netns add {}", lab.near));
        run(&format!("ip netns add {}", lab.far));
        run(&format!(
            "ip -n {} link add gwv type veth peer name gwv netns {}",
            lab.near, lab.far
        ));
        for (netns, v4, v6) in [(&lab.near, NEAR_V4, NEAR_V6), (&lab.far, FAR_V4, FAR_V6)] {
            run(&format!("ip -n {netns} link set lo up"));
            run(&format!("ip -n {netns} address add {v4}/24 dev gwv"));
            run(&format!("ip -n {netns} address add {v6}/64 dev gwv nodad"));
            run(&format!("ip -n {netns} link set gwv up"));
        }
        visit(&lab.near);
        lab.ifindex = nix::net::if_::if_nametoindex("gwv").unwrap();
        lab
    }

    pub fn monitor(&self) -> FlowMonitor {
        FlowMonitor::open(own_netns().unwrap()).unwrap()
    }

    /// Does something in the far namespace.
    pub fn far<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    visit(&self.far);
                    what()
                })
                .join()
                .unwrap()
        })
    }

    pub fn far_listener(&self, ip: &str) -> TcpListener {
        let ip: IpAddr = ip.parse().unwrap();
        self.far(|| TcpListener::bind((ip, 0)).unwrap())
    }

    /// Something at the remote host that reads whatever comes on one connection; returns its port.
    pub fn reader(&self) -> u16 {
        let listener = self.far_listener(FAR_V4);
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            while stream.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {}
        });
        port
    }

    /// A connection from the near to the far side: (near end, remote host).
    pub fn connect(&self, far_ip: &str) -> (TcpStream, TcpStream) {
        pair(&self.far_listener(far_ip))
    }

    /// A link of this rate, with a queue that loses what exceeds it, out of the near side.
    pub fn narrow(&self, mbit: u32, queue_bytes: u32) {
        run(&format!(
            "tc qdisc replace dev gwv root tbf rate {mbit}mbit burst 5000 limit {queue_bytes}"
        ));
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for netns in [&self.near, &self.far] {
            let _ = Command::new("ip").args(["netns", "del", netns]).status();
        }
    }
}

/// Runs a command in the calling thread's namespace; its failure is the test's.
pub fn run(command: &str) -> String {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .unwrap_or_else(|e| panic!("{command}: {e}"));
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// What a device of the calling thread's namespace has received and sent, bytes.
pub fn carried(device: &str) -> (u64, u64) {
    // A thread sees the /sys of the namespace that it was mounted for.
    let devices = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let named = devices.lines().filter_map(|line| line.trim().split_once(':'));
    let counters = named
        .filter(|(name, _)| *name == device)
        .map(|(_, counters)| counters)
        .next();
    let counters = counters
        .unwrap_or_else(|| panic!("no device {device}"))
        .split_whitespace();
    let counters: Vec<u64> = counters.map(|counter| counter.parse().unwrap()).collect();
    (counters[0], counters[8])
}

pub fn visit(netns: &str) {
    setns(
        File::open(format!("/run/netns/{netns}")).unwrap(),
        CloneFlags::CLONE_NEWNET,
    )
    .unwrap();
}
