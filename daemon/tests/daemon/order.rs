// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a link's rate downwards is known, bulk and background that arrive yield to all else, and have what that leaves.
//! The link is narrow at the remote host, where a queue of 100 ms is: what stands there has no order.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::classes::{Rules, rule};
use super::download::{Received, is_clean, source};
use crate::support::lab::{FAR_V4, FAR_V6, Lab, run};
use crate::support::process::{Daemon, giveway};
use crate::support::scratch::Scratch;
use crate::support::wait::until;

const LINK_MBIT: f64 = 20.0;
/// 80% of it, of which a packet of 1,514 bytes has 1,448.
const MOST_MBIT: f64 = 16.0 * 1448.0 / 1514.0;
const ANSWER_BYTES: usize = 200_000;

struct Link {
    lab: Lab,
    rules: Rules,
    config: Scratch,
}

impl Link {
    /// `own`: what else is said of the link.
    fn new(own: &str) -> Self {
        let lab = Lab::enter();
        run(&format!(
            "tc -n {} qdisc replace dev gwv root tbf rate {LINK_MBIT}mbit burst 5000 limit 250000",
            lab.far
        ));
        let config = Scratch::new(
            "order.toml",
            &format!("[link]\ndownload_rate_mbit = {LINK_MBIT:.1}\n{own}"),
        );
        let rules = Rules::new();
        Self { lab, rules, config }
    }

    fn start(&self) -> Daemon {
        let daemon = Daemon::start(&[
            "--config",
            self.config.path(),
            "--rules",
            self.rules.path(),
            "--interface",
            "gwv",
        ]);
        until("what arrives is ordered", || is_ordered(&daemon));
        daemon
    }

    /// A source whose downloads have this class.
    fn source(&self, class: &str) -> u16 {
        let port = source(&self.lab, FAR_V4);
        self.rules
            .write(&format!("50-{class}.toml"), &rule(&format!("port = {port}"), class));
        port
    }
}

/// What `status` lists beside the limits: what the class may have now, and has, Mbit/s.
fn in_use(daemon: &Daemon, class: &str) -> (f64, f64) {
    let status = daemon.status();
    let mut limits = status["limits"].as_array().unwrap().iter();
    let listed = limits.find(|limit| limit["of"] == format!("{class} by gwv")).unwrap();
    assert_eq!(listed["limited_by"], "order", "{listed}");
    let download = &listed["download"];
    (
        download["limit_mbit"].as_f64().unwrap(),
        download["queue"]["throughput_mbit"].as_f64().unwrap(),
    )
}

fn is_ordered(daemon: &Daemon) -> bool {
    daemon.status()["downloads"]["orders"]
        .as_array()
        .is_some_and(|orders| !orders.is_empty())
}

/// Answers each connection's request by so many bytes.
fn server(lab: &Lab, ip: &str) -> u16 {
    let listener = lab.far_listener(ip);
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || answer(&listener));
    port
}

fn answer(listener: &TcpListener) {
    while let Ok((mut stream, _)) = listener.accept() {
        thread::spawn(move || {
            let _ = stream.read(&mut [0]);
            let _ = stream.write_all(&[0; ANSWER_BYTES]);
        });
    }
}

fn get(ip: &str, port: u16) -> Duration {
    let ip: IpAddr = ip.parse().unwrap();
    let begun = Instant::now();
    let mut stream = TcpStream::connect((ip, port)).unwrap();
    stream.write_all(b"x").unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), ANSWER_BYTES);
    begun.elapsed()
}

/// The median of so many, with time between them.
fn gets(ip: &str, port: u16, count: usize) -> Duration {
    let one = || {
        thread::sleep(Duration::from_millis(700));
        get(ip, port)
    };
    let mut all: Vec<Duration> = (0..count).map(|_| one()).collect();
    all.sort_unstable();
    eprintln!("GETs of {ip}: {all:?}");
    all[all.len() / 2]
}

fn downloads(port: u16, connections: usize) -> Vec<Received> {
    let all = (0..connections).map(|_| Received::over_tcp(FAR_V4, port));
    all.collect()
}

fn mbit(of: &[Received], time: Duration) -> f64 {
    let waiting = thread::scope(|scope| {
        let all: Vec<_> = of.iter().map(|one| scope.spawn(move || one.mbit(time))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    waiting.iter().sum()
}

#[test]
fn background_downloads_leave_others_their_time_and_have_what_is_left() {
    leave_others_their_time("background");
}

#[test]
fn bulk_downloads_leave_others_their_time_and_have_what_is_left() {
    leave_others_their_time("bulk");
}

fn leave_others_their_time(class: &str) {
    let link = Link::new("");
    let port = link.source(class);
    let servers = [FAR_V4, FAR_V6].map(|ip| (ip, server(&link.lab, ip)));
    let times = |count| servers.map(|(ip, port)| gets(ip, port, count));
    let alone = times(3);
    let plain = downloads(port, 4);
    thread::sleep(Duration::from_secs(3));
    let without = times(1);
    drop(plain);
    let daemon = link.start();
    let ordered = downloads(port, 4);
    thread::sleep(Duration::from_secs(4));
    let with = times(7);
    eprintln!("{class}: alone {alone:?}, without {without:?}, with {with:?}");
    for ((alone, without), with) in alone.into_iter().zip(without).zip(with) {
        assert!(with < without / 4, "{class}: {alone:?}, {without:?}, {with:?}");
    }
    thread::sleep(Duration::from_secs(2));
    let left = mbit(&ordered, Duration::from_secs(5));
    eprintln!("{class}: {left} Mbit/s of {MOST_MBIT}");
    assert!(
        (MOST_MBIT * 0.9..MOST_MBIT * 1.03).contains(&left),
        "{class}: {left} Mbit/s"
    );
    let status = daemon.status();
    let flows = status["flows"].as_array().unwrap();
    let flow = flows
        .iter()
        .find(|flow| flow["remote"] == format!("{FAR_V4}:{port}"))
        .unwrap();
    assert_eq!(flow["download_order"]["interface"], "gwv", "{flow}");
    assert_ne!(flow["receive_yields"], true, "{flow}");
    let order = &status["downloads"]["orders"][0];
    assert!(order[class]["passed_bytes"].as_u64().unwrap() > 1_000_000, "{order}");
    drop(daemon);
    until("nothing is left", is_clean);
}

#[test]
fn background_has_what_bulk_leaves_and_bulk_what_all_else_leaves() {
    let link = Link::new("");
    let [bulk, background] = ["bulk", "background"].map(|class| link.source(class));
    let standard = source(&link.lab, FAR_V4);
    let daemon = link.start();
    let lowest = downloads(background, 1);
    thread::sleep(Duration::from_secs(2));
    let higher = downloads(bulk, 1);
    thread::sleep(Duration::from_secs(3));
    let [of_bulk, of_background] = [&higher, &lowest].map(|one| mbit(one, Duration::from_secs(2)));
    eprintln!("bulk {of_bulk}, background {of_background}");
    assert!(of_bulk > 13.0 && of_background < 2.0, "{of_bulk}, {of_background}");
    let (may, has) = in_use(&daemon, "bulk");
    assert!(
        (13.0..16.5).contains(&may) && has > 12.0,
        "bulk may have {may}, has {has}"
    );
    let (may, has) = in_use(&daemon, "background");
    assert!(may > 13.0 && has < 3.0, "background may have {may}, has {has}");
    let first = downloads(standard, 1);
    thread::sleep(Duration::from_secs(4));
    let [of_standard, of_bulk] = [&first, &higher].map(|one| mbit(one, Duration::from_secs(2)));
    eprintln!("standard {of_standard}, bulk {of_bulk}");
    assert!(of_standard > 14.0 && of_bulk < 3.0, "{of_standard}, {of_bulk}");
}

#[test]
fn what_comes_from_the_own_subnets_is_neither_counted_nor_ordered_where_the_rate_is_not_for_it() {
    let link = Link::new("local = \"unlimited\"\n");
    let [port, beside] = [link.source("background"), source(&link.lab, FAR_V4)];
    let daemon = link.start();
    // Addresses of links are looked at once a second.
    thread::sleep(Duration::from_secs(2));
    let (_one, _other) = (downloads(port, 1), downloads(beside, 1));
    thread::sleep(Duration::from_secs(3));
    let order = daemon.status()["downloads"]["orders"][0].clone();
    assert_eq!(order["background"]["passed_packets"], 0, "{order}");
    assert!(order["throughput_mbit"].as_f64().unwrap() < 0.5, "{order}");
}

#[test]
fn with_the_daemon_and_its_watchdog_dead_everything_arrives_and_nothing_is_left() {
    let link = Link::new("");
    let port = link.source("background");
    run(&format!("tc -n {} qdisc del dev gwv root", link.lab.far));
    for guarded in [true, false] {
        let mut daemon = link.start();
        let held = downloads(port, 2);
        thread::sleep(Duration::from_secs(3));
        let before = mbit(&held, Duration::from_secs(1));
        assert!(before < MOST_MBIT * 1.2, "{before} Mbit/s");
        let killed = Instant::now();
        match guarded {
            true => drop(daemon.kill()),
            false => daemon.kill_both(),
        }
        until("everything arrives", || {
            mbit(&held, Duration::from_millis(200)) > 2.0 * LINK_MBIT
        });
        assert!(killed.elapsed() < Duration::from_secs(3), "{:?}", killed.elapsed());
        daemon.0.wait().unwrap();
        if !guarded {
            assert!(!is_clean());
            let said = giveway(&["revert"]);
            assert!(said.status.success(), "{said:?}");
        }
        assert!(is_clean());
    }
}

#[test]
fn a_rate_that_is_set_while_it_runs_orders_from_then_on_until_it_is_cleared() {
    let lab = Lab::enter();
    let daemon = Daemon::start(&["--interface", "gwv"]);
    until("the link is managed", || {
        !daemon.status()["links"].as_array().is_none_or(Vec::is_empty)
    });
    assert!(is_clean(), "no rate, nothing attached");
    let set = giveway(&["link", "set", "gwv", "--down", "20mbit"]);
    assert!(set.status.success(), "{set:?}");
    until("what arrives is ordered", || is_ordered(&daemon));
    let shown = String::from_utf8(giveway(&["link", "show"]).stdout).unwrap();
    assert!(shown.contains("20 Mbit/s down (giveway link set)"), "{shown}");
    let status = String::from_utf8(giveway(&["status"]).stdout).unwrap();
    assert!(status.contains("80% of the 20 Mbit/s"), "{status}");
    assert!(giveway(&["link", "clear", "gwv"]).status.success());
    until("nothing is left", is_clean);
    drop(lab);
}
