// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whatever was asked for a command or a flow and is not enforced is said so: when the command starts, in `status` and `why`,
//! and in the log.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use giveway::kernel::own_netns;
use serde_json::Value;

use crate::support::lab::{FAR_V4, Lab, NEAR_V4, run};
use crate::support::process::{Daemon, KillOnDrop, backend, failure, giveway, program};
use crate::support::scratch::Scratch;
use crate::support::wait::{await_some, until};

const LIMITED: [&str; 5] = ["exec", "--class", "bulk", "--up", "2mbit"];

/// A daemon that manages the lab's link, with a queue on it, and what it logs.
struct Managed {
    daemon: Daemon,
    log: Scratch,
    _files: [Scratch; 2],
}

impl Managed {
    /// `rate_mbit`: of the link; without one htb cannot order, and there is no queue.
    fn start(rate_mbit: Option<f64>, rules: &str, arguments: &[&str]) -> Self {
        let rate = rate_mbit.map_or(String::new(), |mbit| format!("[link]\nrate_mbit = {mbit:.1}\n"));
        let config = Scratch::new(
            "enforced.toml",
            &format!("{rate}[queue]\nbackend = \"{}\"\n{rules}", backend()),
        );
        let folder = Scratch::new("enforced.d", "");
        fs::remove_file(&folder.0).unwrap();
        fs::create_dir(&folder.0).unwrap();
        let log = Scratch::new("enforced.log", "");
        let mut command = Command::new(program());
        command
            .args([
                "run",
                "--config",
                config.path(),
                "--rules",
                folder.path(),
                "--interface",
                "gwv",
            ])
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log.0).unwrap());
        let daemon = Daemon(KillOnDrop::spawn(&mut command));
        until("the daemon answers", || giveway(&["status", "--json"]).status.success());
        if rate_mbit.is_some() {
            until("its queue is active", || {
                !daemon.status()["queue"]["installed"].is_null()
            });
        }
        Self {
            daemon,
            log,
            _files: [config, folder],
        }
    }

    /// The flow to this port, once it is judged.
    fn flow(&self, port: u16, is: impl Fn(&Value) -> bool) -> Value {
        await_some("the flow is as it should be", || {
            let status = self.daemon.status();
            let mut flows = status["flows"].as_array().unwrap().iter();
            let flow = flows.find(|flow| {
                flow["remote"]
                    .as_str()
                    .is_some_and(|to| to.ends_with(&format!(":{port}")))
            })?;
            is(flow).then(|| flow.clone())
        })
    }

    /// The lines of the log with this in them.
    fn logged(&self, what: &str) -> Vec<String> {
        let log = fs::read_to_string(&self.log.0).unwrap();
        log.lines()
            .filter(|line| line.contains(what))
            .map(str::to_owned)
            .collect()
    }
}

/// Sends for as long as the test takes.
fn sender(to: &str, port: u16) -> String {
    format!("exec 3>/dev/tcp/{to}/{port}; while head -c 20000 /dev/zero; do sleep 0.02; done >&3")
}

/// A command under `giveway exec` with these arguments; what it was told at its start is collected when it ends.
fn exec(arguments: &[&str], script: &str) -> KillOnDrop {
    let mut command = Command::new(program());
    command
        .args(arguments)
        .args(["--", "setpriv", "--pdeathsig", "KILL", "bash", "-c", script]);
    KillOnDrop::spawn(command.stdin(Stdio::null()).stderr(Stdio::piped()))
}

fn told_at_start(arguments: &[&str]) -> String {
    let ran = giveway(&[arguments, &["--", "true"]].concat());
    assert!(ran.status.success(), "{ran:?}");
    String::from_utf8(ran.stderr).unwrap()
}

fn explained(subject: &str) -> String {
    String::from_utf8(giveway(&["why", subject]).stdout).unwrap()
}

/// A second way out of the near namespace, which is not managed.
fn second_link(lab: &Lab) {
    run(&format!("ip link add gwv2 type veth peer name gwv2 netns {}", lab.far));
    for (netns, address) in [(&lab.near, "10.99.2.1/24"), (&lab.far, "10.99.2.2/24")] {
        run(&format!("ip -n {netns} address add {address} dev gwv2"));
        run(&format!("ip -n {netns} link set gwv2 up"));
    }
}

/// A reader at this address of the far namespace; returns its port.
fn reader_at(lab: &Lab, address: &'static str) -> u16 {
    let listener = lab.far_listener(address);
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        while stream.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {}
    });
    port
}

#[test]
fn a_background_flow_in_the_own_subnet_of_a_link_that_leaves_that_out_is_said_to_be_ordered_by_nobody() {
    let lab = Lab::enter();
    let port = reader_at(&lab, FAR_V4);
    let rule = format!("[[rule]]\nport = {port}\nclass = \"background\"\n");
    let text = format!("[link]\nrate_mbit = 20\nlocal = \"unlimited\"\n[queue]\nbackend = \"htb\"\n{rule}");
    let config = Scratch::new("local-order.toml", &text);
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("its queue is active", || {
        !daemon.status()["queue"]["installed"].is_null()
    });
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "bash", "-c", &sender(FAR_V4, port)]);
    let _sends = KillOnDrop::spawn(command.stdin(Stdio::null()));
    let short = await_some("it is told", || {
        daemon.status()["not_enforced"].as_array()?.first().cloned()
    });
    assert_eq!(
        [&short["cause"], &short["class"], &short["interface"]],
        ["local", "background", "gwv"],
        "{short}"
    );
    assert!(short["upload_limit_mbit"].is_null(), "{short}");
    let reason = explained(&port.to_string());
    assert!(
        reason.contains("its class is not enforced: local traffic of gwv bypasses the queue"),
        "{reason}"
    );
}

#[test]
fn a_limited_flow_is_shown_with_the_link_whose_queue_enforces_it() {
    let lab = Lab::enter();
    let managed = Managed::start(Some(50.0), "", &[]);
    let port = lab.reader();
    let _sender = exec(&[&LIMITED[..], &["--require"]].concat(), &sender(FAR_V4, port));
    let flow = managed.flow(port, |flow| flow["limit"]["upload"]["enforced_by"] == "gwv");
    assert_eq!(flow["limit"]["upload"]["mbit"], 2.0, "{flow}");
    let reason = explained(&port.to_string());
    assert!(
        reason.contains("its upload limit of 2 Mbit/s is enforced by gwv"),
        "{reason}"
    );
    assert!(managed.logged("not enforced").is_empty());
}

#[test]
fn a_limited_command_over_a_link_that_is_not_managed_is_told_of_at_its_start_and_by_its_flow() {
    let lab = Lab::enter();
    second_link(&lab);
    let managed = Managed::start(Some(50.0), "", &[]);
    let expected = "gwv2 has routes and is not managed (set `interfaces = [\"gwv\", \"gwv2\"]`)";
    let told = told_at_start(&LIMITED);
    assert!(told.contains(expected) && told.contains("warning: "), "{told}");
    assert!(told.contains("sends at most 2 Mbit/s (upload) by gwv"), "{told}");
    let (line, code) = failure(&giveway(&[&LIMITED[..], &["--require", "--", "true"]].concat()));
    assert!(code == 125 && line.contains(expected), "{line}");

    let port = reader_at(&lab, "10.99.2.2");
    let _sender = exec(&LIMITED, &sender("10.99.2.2", port));
    let flow = managed.flow(port, |flow| {
        flow["limit"]["upload"]["enforced_by"].is_null() && flow["limit"]["upload"].is_object()
    });
    let reason = "it leaves by gwv2, which is not managed (set `interfaces = [\"gwv\", \"gwv2\"]`)";
    until("it is known to reach no managed link", || {
        managed.flow(port, |_| true)["limit"]["upload"]["reason"] == reason
    });
    assert_eq!(flow["limit"]["upload"]["mbit"], 2.0, "{flow}");
    let why = explained(&port.to_string());
    assert!(
        why.contains(&format!("its upload limit of 2 Mbit/s is not enforced: {reason}")),
        "{why}"
    );
    until("the log has a line", || {
        managed.logged("rate limit 2 Mbit/s -> not enforced").len() == 1
    });
    let status = String::from_utf8(giveway(&["status"]).stdout).unwrap();
    assert!(status.contains("not enforced  rate limit 2 Mbit/s on gwv2"), "{status}");
}

/// A VPN in user space: it reads what is sent from a TUN device, and sends it on in packets of its own.
#[test]
fn a_limited_flow_through_a_tunnel_is_told_of_with_the_tunnels_name() {
    let lab = Lab::enter();
    let managed = Managed::start(Some(50.0), "", &[]);
    let tunnel = |own, near, far| KillOnDrop::spawn(Command::new("python3").args(["-c", TUNNEL, own, near, far]));
    let _far = lab.far(|| tunnel("10.98.0.2", FAR_V4, NEAR_V4));
    let _near = tunnel("10.98.0.1", NEAR_V4, FAR_V4);
    let probe = await_some("the remote host of the tunnel is there", || {
        lab.far(|| TcpListener::bind(("10.98.0.2", 0)).ok())
    });
    until("the tunnel is up", || {
        TcpStream::connect_timeout(&probe.local_addr().unwrap(), Duration::from_millis(500)).is_ok()
    });
    let tunnelled = reader_at(&lab, "10.98.0.2");
    let _sender = exec(&LIMITED, &sender("10.98.0.2", tunnelled));
    let reason = "it leaves by the tunnel gwtun (tun), which is not managed (set `interfaces = [\"gwv\", \"gwtun\"]`)";
    managed.flow(tunnelled, |flow| flow["limit"]["upload"]["reason"] == reason);
    until("the log has a line", || managed.logged(reason).len() == 1);
}

/// A TUN device with this address, whose packets go from one address of the lab to the other by UDP.
const TUNNEL: &str = "
import fcntl, os, select, socket, struct, subprocess, sys
own, near, far = sys.argv[1:]
tun = os.open('/dev/net/tun', os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack('16sH', b'gwtun', 0x1001))
subprocess.run(['ip', 'address', 'add', own + '/24', 'dev', 'gwtun'], check=True)
subprocess.run(['ip', 'link', 'set', 'gwtun', 'mtu', '1300', 'up'], check=True)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((near, 5555))
udp.connect((far, 5555))
while True:
    for ready in select.select([tun, udp], [], [])[0]:
        try:
            if ready == tun:
                udp.send(os.read(tun, 2000))
            else:
                os.write(tun, udp.recv(2000))
        except ConnectionRefusedError:
            pass
";

/// A packet keeps its socket, so that the queue of the link below knows it.
#[test]
fn a_limited_flow_by_a_bridge_or_a_tunnel_of_the_kernel_is_enforced_by_the_managed_link_below_it() {
    let bridge = |_: &Lab| {
        run("ip link add gwbr type bridge");
        run("ip link set gwv master gwbr");
        run(&format!("ip address del {NEAR_V4}/24 dev gwv"));
        run(&format!("ip address add {NEAR_V4}/24 dev gwbr"));
        run("ip link set gwbr up");
        FAR_V4
    };
    let vxlan = |lab: &Lab| {
        for (netns, own, other, address) in [
            (&lab.near, NEAR_V4, FAR_V4, "10.99.7.1/24"),
            (&lab.far, FAR_V4, NEAR_V4, "10.99.7.2/24"),
        ] {
            let ends = format!("local {own} remote {other} dev gwv");
            run(&format!(
                "ip -n {netns} link add gwvx type vxlan id 7 dstport 4789 {ends}"
            ));
            run(&format!("ip -n {netns} address add {address} dev gwvx"));
            run(&format!("ip -n {netns} link set gwvx up"));
        }
        "10.99.7.2"
    };
    let devices: [&dyn Fn(&Lab) -> &'static str; 2] = [&bridge, &vxlan];
    for make in devices {
        let lab = Lab::enter();
        let to = make(&lab);
        let managed = Managed::start(Some(50.0), "", &[]);
        let port = reader_at(&lab, to);
        let _sender = exec(&LIMITED, &sender(to, port));
        managed.flow(port, |flow| flow["limit"]["upload"]["enforced_by"] == "gwv");
        assert!(managed.logged("-> not enforced").is_empty());
    }
}

/// IPv4 datagrams of 1,000 bytes, 10 Mbit/s of them, made by the program itself.
const RAW_SENDER: &str = "
import socket, sys, time
kind, near, far, mac = sys.argv[1:]
payload = bytes(980)
if kind == 'raw':
    sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, 253)
    sender.connect((far, 0))
else:
    sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sender.bind(('gwv', 0))
    header = bytes([0x45, 0]) + (1000).to_bytes(2, 'big') + bytes([0, 0, 0, 0, 64, 253, 0, 0])
    addresses = socket.inet_aton(near) + socket.inet_aton(far)
    payload = bytes.fromhex(mac.replace(':', '')) + bytes(6) + bytes([8, 0]) + header + addresses + payload
start, sent = time.monotonic(), 0
while True:
    try:
        sender.send(payload)
    except OSError:
        pass
    sent += 1
    time.sleep(max(0, start + sent / 1250 - time.monotonic()))
";

fn received_bytes(lab: &Lab) -> u64 {
    let shown: Value = serde_json::from_str(&run(&format!("ip -n {} -s -j link show gwv", lab.far))).unwrap();
    shown[0]["stats64"]["rx"]["bytes"].as_u64().unwrap()
}

/// The daemon lists no such socket.
#[test]
fn what_a_program_sends_by_a_raw_or_a_packet_socket_has_its_rate_limit() {
    let lab = Lab::enter();
    let _managed = Managed::start(Some(50.0), "", &[]);
    let far: Value = serde_json::from_str(&run(&format!("ip -n {} -j link show gwv", lab.far))).unwrap();
    let mac = far[0]["address"].as_str().unwrap();
    for kind in ["raw", "packet"] {
        let mut command = Command::new(program());
        let sender = ["--", "python3", "-c", RAW_SENDER, kind, NEAR_V4, FAR_V4, mac];
        command
            .args(LIMITED)
            .args(sender)
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let _sender = KillOnDrop::spawn(&mut command);
        let measured = |time: Duration| {
            let (start, at_start) = (Instant::now(), received_bytes(&lab));
            thread::sleep(time);
            (received_bytes(&lab) - at_start) as f64 * 8e-6 / start.elapsed().as_secs_f64()
        };
        let begun = received_bytes(&lab);
        until("it sends", || received_bytes(&lab) > begun + 100_000);
        // The daemon knows a program within a second or two of its start.
        until("it sends no more than it may", || {
            measured(Duration::from_secs(1)) < 2.3
        });
        let mbit = measured(Duration::from_secs(3));
        println!("{kind} socket: {mbit:.2} Mbit/s of 2");
        assert!((1.5..2.2).contains(&mbit), "{kind} socket: {mbit:.2} Mbit/s");
    }
}

#[test]
fn a_command_that_goes_to_another_network_namespace_is_told_of() {
    let lab = Lab::enter();
    let managed = Managed::start(Some(50.0), "", &[]);
    let script = format!("exec ip netns exec {} sleep 60", lab.far);
    // A limit alone is enough.
    let elsewhere = exec(&["exec", "--down", "2mbit"], &script);
    let pid = elsewhere.id();
    let status = await_some("it is seen there", || {
        let status = managed.daemon.status();
        (status["elsewhere"][0]["pid"] == pid).then_some(status)
    });
    assert_eq!(status["elsewhere"][0]["command"], "sleep", "{status}");
    let reason = explained(&pid.to_string());
    assert!(reason.contains("in another network namespace (net:["), "{reason}");
    until("the log has a line", || {
        managed.logged("in another network namespace").len() == 1
    });
    let shown = String::from_utf8(giveway(&["status"]).stdout).unwrap();
    assert!(
        shown.contains("not enforced  what `giveway exec` was asked for sleep"),
        "{shown}"
    );
}

#[test]
fn a_command_is_told_of_a_dry_run_and_of_a_link_without_a_queue_and_does_not_run_where_that_is_required() {
    for (rate, arguments, expected) in [
        (Some(50.0), &["--dry-run"][..], "a dry run changes nothing"),
        (None, &[][..], "gwv has no giveway queue: "),
    ] {
        let _lab = Lab::enter();
        let _managed = Managed::start(rate, "", arguments);
        let background = ["exec", "--class", "background"];
        let told = told_at_start(&background);
        assert!(
            told.contains("warning: the class is not enforced everywhere: ") && told.contains(expected),
            "{told}"
        );
        let (line, code) = failure(&giveway(&[&background[..], &["--require", "--", "true"]].concat()));
        assert!(code == 125 && line.contains(expected), "{line}");
        // What needs no queue is nothing that is missing.
        assert_eq!(told_at_start(&["exec", "--class", "standard", "--require"]), "");
    }
}

#[test]
fn deadlines_by_an_interface_that_is_not_managed_are_told_of_in_status() {
    let lab = Lab::enter();
    second_link(&lab);
    let deadline = "[[deadline]]\nport = 5005\ndeadline_ms = 20.0\n";
    let managed = Managed::start(Some(50.0), deadline, &[]);
    until("it is told", || {
        let warnings = managed.daemon.status()["warnings"].to_string();
        warnings.contains("[[deadline]] guarantees nothing for packets that leave by gwv2, which is not managed")
    });
    assert_eq!(
        managed
            .logged("interface gwv2: deadlines promised -> not enforced")
            .len(),
        1
    );
}

#[test]
fn a_command_is_told_that_giveway_is_paused() {
    let _lab = Lab::enter();
    let managed = Managed::start(Some(50.0), "", &[]);
    let path = format!("/run/giveway/netns-{}/control", own_netns().unwrap());
    let mut pause = UnixStream::connect(path).unwrap();
    writeln!(pause, r#"{{"request":"pause","for_s":60}}"#).unwrap();
    until("it is paused", || !managed.daemon.status()["paused"].is_null());
    let told = told_at_start(&["exec", "--class", "background"]);
    assert!(
        told.contains("warning: the class is not enforced everywhere: giveway is paused: "),
        "{told}"
    );
    let (line, code) = failure(&giveway(&["exec", "--class", "background", "--require", "--", "true"]));
    assert!(code == 125 && line.contains("giveway is paused: "), "{line}");
    drop(pause);
    until("it is over", || managed.daemon.status()["paused"].is_null());
    until("its queue is active again", || {
        told_at_start(&["exec", "--class", "background"]).is_empty()
    });
}

/// Of a UDP socket that is not connected each packet has a route of its own.
#[test]
fn a_limited_udp_socket_that_is_not_connected_is_shown_with_the_queue_that_its_packets_are_in() {
    let lab = Lab::enter();
    second_link(&lab);
    let managed = Managed::start(Some(50.0), "", &[]);
    for (to, expected) in [(FAR_V4, "gwv"), ("10.99.2.2", "")] {
        let script = format!(
            "exec python3 -c 'import socket, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
             while True:\n s.sendto(b\"x\" * 1000, (\"{to}\", 9))\n time.sleep(0.05)'"
        );
        let sender = exec(&LIMITED, &script);
        let flow = || {
            let status = managed.daemon.status();
            let mut flows = status["datagrams"].as_array().unwrap().iter();
            flows.find(|flow| flow["pid"] == sender.id()).cloned()
        };
        match expected {
            "" => {
                until("it is known to reach no managed link", || {
                    flow().is_some_and(|flow| {
                        flow["limit"]["upload"]["reason"] == "none of its packets reaches a managed link"
                    })
                });
                until("the log has a line", || {
                    managed.logged("rate limit 2 Mbit/s -> not enforced").len() == 1
                });
            }
            link => {
                until("it is in the queue", || {
                    flow().is_some_and(|flow| flow["limit"]["upload"]["enforced_by"] == link)
                });
            }
        }
    }
}
