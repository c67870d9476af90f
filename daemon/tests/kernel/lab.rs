// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two network namespaces joined by a veth pair. The test's thread lives in the near one, which is watched; sockets of
//! the far one are made by threads that visit it.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use giveway::kernel::flow_monitor::FlowMonitor;
use giveway::kernel::own_netns;
use giveway_engine::model::Flow;
use nix::sched::{CloneFlags, setns};

pub const NEAR_V4: &str = "10.99.0.1";
pub const FAR_V4: &str = "10.99.0.2";
pub const NEAR_V6: &str = "fd99::1";
pub const FAR_V6: &str = "fd99::2";
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Lab {
    pub near: String,
    pub far: String,
    /// The near end's interface.
    pub ifindex: u32,
}

impl Lab {
    /// Moves the calling thread into the near namespace, for good.
    pub fn enter() -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "these tests load BPF programs and make namespaces: run them as root"
        );
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = |side| format!("gwk{}-{number}{side}", std::process::id());
        let mut lab = Self {
            near: name("n"),
            far: name("f"),
            ifindex: 0,
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

    /// A connection from the near to the far side: (near end, far end).
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

pub fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    (near, far)
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

fn visit(netns: &str) {
    setns(
        File::open(format!("/run/netns/{netns}")).unwrap(),
        CloneFlags::CLONE_NEWNET,
    )
    .unwrap();
}

/// Asks every 10 ms until there is an answer.
pub fn await_some<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "waited {PATIENCE:?} in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

pub fn find<'a>(flows: &'a [Flow], stream: &TcpStream) -> Option<&'a Flow> {
    let (local, remote) = (
        canonical(stream.local_addr().unwrap()),
        canonical(stream.peer_addr().unwrap()),
    );
    flows.iter().find(|flow| flow.local == local && flow.remote == remote)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    (address.ip().to_canonical(), address.port()).into()
}

/// The socket's flow in a full walk.
pub fn walked(monitor: &mut FlowMonitor, stream: &TcpStream) -> Flow {
    find(&monitor.walk().unwrap(), stream)
        .expect("the walk shows every connection")
        .clone()
}

/// Writes until the connection takes no more: what is queued then waits for a reader.
pub fn fill(stream: &mut TcpStream) {
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let block = [0; 16 * 1024];
    loop {
        match stream.write(&block) {
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => panic!("cannot fill a connection: {error}"),
        }
    }
}

/// Sends at full speed until dropped.
pub struct Transfer {
    near: TcpStream,
    threads: Vec<JoinHandle<()>>,
}

impl Transfer {
    pub fn start(near: &TcpStream, mut far: TcpStream) -> Self {
        let mut sender = near.try_clone().unwrap();
        let send = thread::spawn(move || while sender.write(&[0; 16 * 1024]).is_ok() {});
        let receive = thread::spawn(move || while far.read(&mut [0; 64 * 1024]).is_ok_and(|read| read > 0) {});
        Self {
            near: near.try_clone().unwrap(),
            threads: vec![send, receive],
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let _ = self.near.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
