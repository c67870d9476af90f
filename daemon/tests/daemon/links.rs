// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several managed links: each has a queue, a rate, limits and promises of its own, comes and goes alone, and however the
//! daemon ends, all of them are what they were.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use giveway::kernel::now;
use nix::net::if_::if_nametoindex;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::admission::{pair, refused, with_deadline};
use crate::support::lab::{FAR_V4, Lab, run};
use crate::support::process::{Daemon, backend, giveway};
use crate::support::scratch::Scratch;
use crate::support::wait::{await_some, until};

/// The second link, beside the lab's own, `gwv`.
const SECOND: &str = "gwu";
const NEAR_2: &str = "10.98.0.1";
const FAR_2: &str = "10.98.0.2";
const BOTH: [&str; 2] = ["gwv", SECOND];
const LIMITED_PORT: u16 = 7007;

/// What a link that comes has to have its queue within.
const AT_ONCE: Duration = Duration::from_secs(2);

/// A lab with two links between its ends.
fn two_links() -> Lab {
    let lab = Lab::enter();
    make(&lab, SECOND, "");
    run(&format!("ip address add {NEAR_2}/24 dev {SECOND}"));
    run(&format!("ip -n {} address add {FAR_2}/24 dev {SECOND}", lab.far));
    lab
}

fn make(lab: &Lab, name: &str, options: &str) {
    run(&format!(
        "ip link add {name} {options} type veth peer name {name} netns {}",
        lab.far
    ));
    run(&format!("ip -n {} link set {name} up", lab.far));
    run(&format!("ip link set {name} up"));
}

/// 20 Mbit/s on the first and 4 on the second.
fn configuration(interfaces: &str) -> String {
    let backend = backend();
    format!(
        "{interfaces}\n[queue]\nbackend = \"{backend}\"\n\
         [[uplink]]\ninterface = \"gwv\"\nrate_mbit = 20\n[[uplink]]\ninterface = \"{SECOND}\"\nrate_mbit = 4\n"
    )
}

const NAMED: &str = "interfaces = [\"gwv\", \"gwu\"]";

fn daemon(name: &str, interfaces: &str) -> (Daemon, Scratch) {
    let config = Scratch::new(name, &configuration(interfaces));
    (Daemon::start(&["--config", config.path()]), config)
}

/// With a queue on both.
fn managing_both(name: &str) -> (Daemon, Scratch) {
    let (daemon, config) = daemon(name, NAMED);
    for link in BOTH {
        until("its queue is up", || has_queue(&daemon, link));
    }
    (daemon, config)
}

/// What `status` says of this link.
fn shown(daemon: &Daemon, name: &str) -> Value {
    let status = daemon.status();
    let mut links = status["links"].as_array().unwrap().iter();
    links
        .find(|link| link["interface"] == name)
        .cloned()
        .unwrap_or_default()
}

fn has_queue(daemon: &Daemon, name: &str) -> bool {
    !shown(daemon, name)["installed"].is_null() && qdiscs(name).contains(" 6777: root")
}

/// As tc shows them, leaves included.
fn qdiscs(name: &str) -> String {
    run(&format!("tc qdisc show dev {name}"))
}

fn gso_max_segs(name: &str) -> String {
    of_gso(&run(&format!("ip -details link show dev {name}")))
}

fn of_gso(link: &str) -> String {
    let mut words = link.split_whitespace().skip_while(|word| *word != "gso_max_segs");
    words.nth(1).unwrap().to_owned()
}

/// All that a queue changes of both.
fn of_both() -> [(String, String); 2] {
    BOTH.map(|link| (qdiscs(link), gso_max_segs(link)))
}

/// How often the queue of this link was changed, whatever became of it.
fn changes(daemon: &Daemon, name: &str) -> u64 {
    let status = daemon.status();
    let changes = status["changes"].as_array().unwrap().iter();
    let of_it = changes.filter(|change| change["setting"] == "queue" && change["interface"] == name);
    of_it.map(|change| change["times"].as_u64().unwrap()).sum()
}

/// What the queue of this link has counted by the first poll after this call.
fn counted(daemon: &Daemon, name: &str, path: &str) -> u64 {
    let asked_ns = now().as_nanos() as u64;
    await_some("a poll counts", || {
        let link = shown(daemon, name);
        let is_new = link["counted_t_ns"].as_u64()? > asked_ns;
        link["counters"].pointer(path)?.as_u64().filter(|_| is_new)
    })
}

fn sent_bytes(name: &str) -> u64 {
    let counted = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = counted
        .lines()
        .find(|line| line.trim_start().starts_with(&format!("{name}:")));
    line.unwrap().split_whitespace().nth(9).unwrap().parse().unwrap()
}

/// What leaves by both, in Mbit/s, while as much as can be is sent to this port by both.
fn flooded_mbit(lab: &Lab, port: u16) -> [f64; 2] {
    let stop = AtomicBool::new(false);
    // Nobody reads; but a port without a socket would answer.
    let _sinks = [FAR_V4, FAR_2].map(|ip| lab.far(|| UdpSocket::bind((ip, port)).unwrap()));
    thread::scope(|scope| {
        for far in [FAR_V4, FAR_2] {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _ = socket.send_to(&[0; 1000], (far, port));
                }
            });
        }
        thread::sleep(Duration::from_secs(1));
        let (before, began) = (BOTH.map(sent_bytes), Instant::now());
        thread::sleep(Duration::from_secs(3));
        let (after, seconds) = (BOTH.map(sent_bytes), began.elapsed().as_secs_f64());
        stop.store(true, Ordering::Relaxed);
        [0, 1].map(|n| (after[n] - before[n]) as f64 * 8e-6 / seconds)
    })
}

#[test]
fn two_links_have_their_own_queues_and_rates_and_one_limit() {
    let lab = two_links();
    let rule = format!("[[rule]]\nprotocol = \"udp\"\nport = {LIMITED_PORT}\nclass = \"bulk\"\nrate_limit_mbit = 1\n");
    let config = Scratch::new("two.toml", &(configuration(NAMED) + &rule));
    let daemon = Daemon::start(&["--config", config.path()]);
    for (link, bytes_per_s) in [("gwv", 2_500_000), (SECOND, 500_000)] {
        until("its queue is up", || has_queue(&daemon, link));
        let queue = shown(&daemon, link);
        assert_eq!(queue["installed"]["rate_bytes_per_s"], bytes_per_s, "{queue}");
        assert!(queue["reason"].to_string().contains("[[uplink]]"), "{queue}");
    }
    assert_eq!(
        daemon.status()["queue"]["installed"]["rate_bytes_per_s"],
        2_500_000,
        "that of the first"
    );
    let shown = String::from_utf8(giveway(&["status"]).stdout).unwrap();
    for queue in ["gwv: ", "gwu: "] {
        assert!(shown.contains(queue), "{shown}");
    }
    let [first, second] = flooded_mbit(&lab, LIMITED_PORT + 1);
    assert!(
        (18.0..20.5).contains(&first) && (3.6..4.1).contains(&second),
        "{first}, {second} Mbit/s"
    );
    let [first, second] = flooded_mbit(&lab, LIMITED_PORT);
    assert!(
        (0.9..1.1).contains(&(first + second)),
        "one limit over both: {first}, {second} Mbit/s"
    );
}

#[test]
fn what_is_promised_on_one_link_takes_nothing_from_the_other() {
    let lab = two_links();
    let (daemon, _config) = managing_both("promises.toml");
    let [(first, _first_far), (second, _second_far)] = [FAR_V4, FAR_2].map(|far| pair(&lab, far));
    // More than the second link can carry by then.
    let deadline = Duration::from_millis(50);
    let told = refused(200, || with_deadline(&second, deadline));
    assert!(told > 0, "nothing was refused");
    assert_eq!(refused(5, || with_deadline(&first, deadline)), 0);
    assert_eq!(counted(&daemon, SECOND, "/refused/total"), told);
    assert_eq!(counted(&daemon, "gwv", "/refused/total"), 0);
    assert_eq!(counted(&daemon, "gwv", "/admitted"), 5);
}

#[test]
fn sigkill_leaves_nothing_on_either_link() {
    let _lab = two_links();
    let before = of_both();
    let (daemon, _config) = managing_both("kill-two.toml");
    let took = daemon.kill();
    assert_eq!(of_both(), before);
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn with_the_watchdog_killed_too_revert_puts_both_back() {
    let _lab = two_links();
    let before = of_both();
    let (daemon, _config) = managing_both("revert-two.toml");
    daemon.kill_both();
    drop(daemon);
    assert!(giveway(&["revert"]).status.success());
    assert_eq!(of_both(), before);
}

#[test]
fn the_queue_follows_the_default_route_to_another_link_and_back() {
    let _lab = two_links();
    run(&format!("ip route add default via {FAR_V4} dev gwv"));
    let (daemon, _config) = daemon("failover.toml", "");
    until("the queue is up", || has_queue(&daemon, "gwv"));
    assert!(shown(&daemon, SECOND).is_null(), "it has no default route");
    run(&format!("ip route replace default via {FAR_2} dev {SECOND}"));
    let took = until("the second link has it", || has_queue(&daemon, SECOND));
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(daemon.status()["interface"]["name"], SECOND);
    assert_eq!(
        daemon.status()["links"][0]["interface"],
        SECOND,
        "which is preferred now"
    );
    run(&format!("ip route replace default via {FAR_V4} dev gwv"));
    let took = until("the first link is preferred again", || {
        daemon.status()["links"][0]["interface"] == "gwv" && has_queue(&daemon, "gwv")
    });
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(changes(&daemon, "gwv"), 1, "it kept its queue meanwhile");
    let took = until("the second one loses its queue", || !qdiscs(SECOND).contains("6777:"));
    assert!(took < Duration::from_secs(14), "{took:?}");
    assert!(has_queue(&daemon, "gwv"));
}

#[test]
fn a_link_that_is_renamed_goes_by_its_new_name() {
    let _lab = Lab::enter();
    run(&format!("ip route add default via {FAR_V4} dev gwv"));
    let text = format!(
        "[link]\nrate_mbit = 20\ndownload_rate_mbit = 20\n[queue]\nbackend = \"{}\"\n\
         [[rule]]\nport = {LIMITED_PORT}\nclass = \"bulk\"\nrate_limit_mbit = 2\n",
        backend()
    );
    let config = Scratch::new("renamed.toml", &text);
    let daemon = Daemon::start(&["--config", config.path()]);
    let is_known_as = |name: &str| {
        let status = daemon.status();
        let orders = &status["downloads"]["orders"];
        has_queue(&daemon, name)
            && status["interface"]["name"] == name
            && [&status["uploads"]["links"], &status["downloads"]["links"]].map(|links| links[0] == name) == [true; 2]
            && orders[0]["interface"] == name
    };
    until("it is managed", || is_known_as("gwv"));
    run("ip link set gwv name gwr");
    until("it is known by its new name", || is_known_as("gwr"));
}

#[test]
fn every_link_with_a_default_route_is_managed() {
    let _lab = two_links();
    run(&format!("ip route add default via {FAR_2} dev {SECOND} metric 600"));
    let (daemon, _config) = daemon("routes.toml", "");
    until("the only one has its queue", || has_queue(&daemon, SECOND));
    run(&format!("ip route add default via {FAR_V4} dev gwv metric 100"));
    let took = until("so has the other", || has_queue(&daemon, "gwv"));
    assert!(took < AT_ONCE, "{took:?}");
    let status = daemon.status();
    let order = [0, 1].map(|n| status["links"][n]["interface"].clone());
    assert_eq!(order, BOTH, "by their metrics");
    assert_eq!(changes(&daemon, SECOND), 1);
}

/// Both links are managed without being named, the first one preferred.
fn both_are_found(name: &str) -> (Daemon, Scratch) {
    let (daemon, config) = daemon(name, "");
    for link in BOTH {
        until("its queue is up", || has_queue(&daemon, link));
    }
    assert_eq!(order(&daemon), BOTH);
    (daemon, config)
}

/// The links in the order of preference.
fn order(daemon: &Daemon) -> Vec<String> {
    let status = daemon.status();
    let links = status["links"].as_array().unwrap().iter();
    links
        .map(|link| link["interface"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn policy_routing_over_two_uplinks_manages_both() {
    let _lab = two_links();
    run(&format!("ip route add default via {FAR_V4} dev gwv"));
    run(&format!("ip route add default via {FAR_2} dev {SECOND} table 101"));
    run(&format!("ip rule add from {NEAR_2} lookup 101"));
    let (daemon, _config) = both_are_found("policy.toml");
    run(&format!("ip rule del from {NEAR_2} lookup 101"));
    let took = until("no rule leads to the second link any more", || {
        !qdiscs(SECOND).contains("6777:")
    });
    assert!(took < Duration::from_secs(14), "{took:?}");
    assert!(has_queue(&daemon, "gwv"));
}

#[test]
fn both_next_hops_of_a_route_are_managed() {
    let _lab = two_links();
    run(&format!(
        "ip route add default nexthop via {FAR_V4} dev gwv nexthop via {FAR_2} dev {SECOND}"
    ));
    let _both = both_are_found("ecmp.toml");
}

#[test]
fn a_group_of_nexthop_objects_is_managed_whether_the_kernel_shows_its_members_or_not() {
    for compatible in ["1", "0"] {
        let _lab = two_links();
        std::fs::write("/proc/sys/net/ipv4/nexthop_compat_mode", compatible).unwrap();
        run(&format!("ip nexthop add id 1 via {FAR_V4} dev gwv"));
        run(&format!("ip nexthop add id 2 via {FAR_2} dev {SECOND}"));
        run("ip nexthop add id 10 group 1/2");
        run("ip route add default nhid 10");
        let _both = both_are_found("nexthop.toml");
    }
}

#[test]
fn links_with_ipv6_alone_are_managed() {
    let _lab = two_links();
    run("ip -4 address flush dev gwv");
    run(&format!("ip -4 address flush dev {SECOND}"));
    run("ip -6 route add default dev gwv metric 100");
    run(&format!("ip -6 route add default dev {SECOND} table 101"));
    run("ip -6 rule add fwmark 1 lookup 101");
    let _both = both_are_found("ipv6.toml");
}

#[test]
fn a_vpn_that_moves_the_default_route_leaves_the_link_that_carries_it_managed() {
    let _lab = two_links();
    run(&format!("ip route add default via {FAR_V4} dev gwv"));
    let (daemon, _config) = daemon("vpn.toml", "");
    until("the queue is up", || has_queue(&daemon, "gwv"));
    run("ip tuntap add gwtun mode tun");
    run("ip link set gwtun up");
    // As wg-quick does: all but the tunnel's own packets.
    run("ip route add default dev gwtun table 51820");
    run("ip rule add not fwmark 51820 lookup 51820");
    run("ip rule add lookup main suppress_prefixlength 0");
    until("the tunnel is shown", || order(&daemon).len() == 2);
    assert_eq!(order(&daemon), ["gwv", "gwtun"], "the tunnel comes last");
    // Another client: the link's own route moves to a table of its own, the tunnel's is the main one.
    run(&format!("ip route add default via {FAR_V4} dev gwv table 52"));
    run("ip rule add fwmark 52 lookup 52");
    run("ip route replace default dev gwtun");
    let settled = Instant::now() + Duration::from_secs(13);
    while Instant::now() < settled {
        assert_eq!(order(&daemon), ["gwv", "gwtun"]);
        assert!(
            has_queue(&daemon, "gwv"),
            "what is unmanaged loses its queue after ten seconds"
        );
        thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(daemon.status()["interface"]["name"], "gwv", "whose rate [link] tells");
    assert_eq!(changes(&daemon, "gwv"), 1);
}

/// A third network namespace.
struct Elsewhere(String);

impl Elsewhere {
    fn make(lab: &Lab) -> Self {
        let name = format!("{}-else", lab.near);
        run(&format!("ip netns add {name}"));
        Self(name)
    }

    fn gso_max_segs(&self) -> String {
        of_gso(&run(&format!("ip -n {} -details link show dev {SECOND}", self.0)))
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        run(&format!("ip netns del {}", self.0));
    }
}

#[test]
fn a_link_that_moves_to_another_namespace_and_back_keeps_nothing_of_giveways() {
    let lab = two_links();
    let elsewhere = Elsewhere::make(&lab);
    let usual = gso_max_segs(SECOND);
    let (mut daemon, _config) = managing_both("moved.toml");
    assert_eq!(gso_max_segs(SECOND), "1");
    run(&format!("ip link set {SECOND} netns {}", elsewhere.0));
    let took = until("it is restored there", || elsewhere.gso_max_segs() == usual);
    println!("moved: gso_max_segs 1 -> {usual} after {} ms", took.as_millis());
    assert!(has_queue(&daemon, "gwv"));
    run(&format!("ip -n {} link set {SECOND} name gwmoved", elsewhere.0));
    run(&format!(
        "ip -n {} link set gwmoved netns {} name {SECOND}",
        elsewhere.0, lab.near
    ));
    run(&format!("ip link set {SECOND} up"));
    until("it is managed again", || {
        has_queue(&daemon, SECOND) && gso_max_segs(SECOND) == "1"
    });
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!(gso_max_segs(SECOND), usual);
}

#[test]
fn a_link_that_moved_while_the_daemon_was_dead_is_restored_by_revert() {
    let lab = two_links();
    let elsewhere = Elsewhere::make(&lab);
    let usual = gso_max_segs(SECOND);
    let (daemon, _config) = managing_both("moved-dead.toml");
    daemon.kill_both();
    drop(daemon);
    run(&format!("ip link set {SECOND} netns {}", elsewhere.0));
    let reverted = giveway(&["revert"]);
    let said = String::from_utf8(reverted.stdout).unwrap();
    assert!(
        reverted.status.success() && said.contains("in the namespace that it has moved to"),
        "{said}"
    );
    assert_eq!(elsewhere.gso_max_segs(), usual);
}

#[test]
fn a_link_that_moves_out_of_reach_is_named_and_has_its_own_value_when_it_is_back() {
    let lab = two_links();
    let elsewhere = Elsewhere::make(&lab);
    let usual = gso_max_segs(SECOND);
    let config = Scratch::new("out-of-reach.toml", &configuration(NAMED));
    // As the systemd unit has it.
    let mut daemon = Daemon::start_without("sys_admin", &["--config", config.path()]);
    until("its queue is up", || has_queue(&daemon, SECOND));
    run(&format!("ip link set {SECOND} netns {}", elsewhere.0));
    until("it is told", || {
        let warnings = daemon.status()["warnings"].to_string();
        warnings.contains("has moved to another network namespace") && warnings.contains("CAP_SYS_ADMIN")
    });
    assert_eq!(elsewhere.gso_max_segs(), "1");
    run(&format!("ip -n {} link set {SECOND} netns {}", elsewhere.0, lab.near));
    until("its own value is back", || gso_max_segs(SECOND) == usual);
    run(&format!("ip link set {SECOND} up"));
    until("it is managed again", || has_queue(&daemon, SECOND));
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!(gso_max_segs(SECOND), usual);
}

#[test]
fn what_is_beyond_eight_links_is_named_in_status() {
    let lab = Lab::enter();
    for n in 0..9 {
        make(&lab, &format!("gwm{n}"), "");
        run(&format!("ip route add default dev gwm{n} metric {}", 100 + n));
    }
    let (daemon, _config) = daemon("nine.toml", "");
    until("the ninth is told", || {
        daemon.status()["warnings"].to_string().contains("(gwm8)")
    });
    assert_eq!(order(&daemon).len(), 8);
}

/// The link is deleted and made anew while the daemon cannot look, under this number or another one.
fn made_anew(index: impl Fn(u32) -> String) {
    let lab = two_links();
    let (mut daemon, _config) = managing_both("anew.toml");
    let before = of_both();
    daemon.signal(Signal::SIGSTOP);
    let options = index(if_nametoindex(SECOND).unwrap());
    run(&format!("ip link del {SECOND}"));
    make(&lab, SECOND, &options);
    let unmanaged = (qdiscs(SECOND), gso_max_segs(SECOND));
    run(&format!("ip address add {NEAR_2}/24 dev {SECOND}"));
    run(&format!("ip -n {} address add {FAR_2}/24 dev {SECOND}", lab.far));
    daemon.signal(Signal::SIGCONT);
    let took = until("its queue is up", || has_queue(&daemon, SECOND));
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!(of_both(), before);
    let (near, _far) = pair(&lab, FAR_2);
    let so_far = counted(&daemon, SECOND, "/admitted");
    let told = refused(200, || with_deadline(&near, Duration::from_millis(50)));
    assert_eq!(
        counted(&daemon, SECOND, "/admitted") - so_far,
        200 - told,
        "packets are looked at"
    );
    assert!(told > 0, "nothing was refused");
    assert_eq!(changes(&daemon, "gwv"), 1, "the other link was let alone");
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!((qdiscs(SECOND), gso_max_segs(SECOND)), unmanaged);
}

#[test]
fn a_link_that_is_made_anew_has_its_queue_again() {
    made_anew(|_| String::new());
}

#[test]
fn a_link_that_is_made_anew_under_the_same_number_has_its_queue_again() {
    made_anew(|index| format!("index {index}"));
}

#[test]
fn a_link_that_is_named_may_come_later() {
    let lab = Lab::enter();
    let (daemon, _config) = daemon("late.toml", NAMED);
    until("the one that is there has its queue", || has_queue(&daemon, "gwv"));
    make(&lab, SECOND, "");
    let took = until("so has the other when it comes", || has_queue(&daemon, SECOND));
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(changes(&daemon, "gwv"), 1);
}

#[test]
fn a_link_with_another_tools_qdisc_is_left_alone_and_the_other_managed() {
    let lab = two_links();
    lab.narrow(10, 30_000);
    let before = of_both();
    let (mut daemon, _config) = daemon("theirs.toml", NAMED);
    until("the second has its queue", || has_queue(&daemon, SECOND));
    until("it says why the first has none", || {
        let reason = shown(&daemon, "gwv")["reason"].to_string();
        reason.contains("tbf") && reason.contains("not replaced")
    });
    assert_eq!(qdiscs("gwv"), before[0].0);
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!(of_both(), before);
}

#[test]
fn a_qdisc_that_another_tool_puts_on_one_link_stays_and_the_other_keeps_ours() {
    let _lab = two_links();
    let (daemon, _config) = managing_both("replaced-on-one.toml");
    run(&format!("tc qdisc replace dev {SECOND} root handle 7: pfifo limit 55"));
    let theirs = qdiscs(SECOND);
    until("it steps back there", || {
        shown(&daemon, SECOND)["reason"].to_string().contains("another tool")
    });
    assert!(has_queue(&daemon, "gwv"));
    assert_eq!(changes(&daemon, "gwv"), 1);
    daemon.kill();
    assert_eq!(qdiscs(SECOND), theirs);
    assert!(!qdiscs("gwv").contains("6777:"));
}
