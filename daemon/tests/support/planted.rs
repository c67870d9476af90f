// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A trial (`giveway try`) by the real daemon and peer, over a link on which a difference between its intervals is planted.

use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use giveway::control::client;
use giveway::place::Place;
use serde_json::Value;

use super::lab::{FAR_V4, Lab, run, visit};
use super::process::{Daemon, KillOnDrop, giveway, program};
use super::scratch::Scratch;
use super::wait::until;

/// A peer in the far namespace, on a port of the kernel's choice.
pub struct Peer {
    _process: KillOnDrop,
    pub address: String,
}

impl Peer {
    pub fn start(lab: &Lab) -> Self {
        let far = format!("/run/netns/{}", lab.far);
        let listener = lab.far_listener(FAR_V4);
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={far}")).arg(program());
        let quiet = command.stdin(Stdio::null()).stderr(Stdio::null());
        let process = KillOnDrop::spawn(quiet.args(["try", "--serve", &address]));
        until("the peer listens", || TcpStream::connect(&address).is_ok());
        Self {
            _process: process,
            address,
        }
    }
}

/// The rate of the way to the peer in each kind of interval, Mbit/s: what is planted.
#[derive(Clone, Copy)]
pub struct Planted {
    pub with: f64,
    pub without: f64,
}

/// A daemon that changes nothing of this traffic, a peer, and a link of which the rate follows the intervals: the lab asks
/// the daemon a hundred times a second whether it is paused.
pub struct Link {
    lab: Lab,
    peer: Peer,
    _daemon: Daemon,
    _config: Scratch,
}

impl Link {
    pub fn new() -> Self {
        let lab = Lab::enter();
        lab.far(|| run("tc qdisc replace dev gwv root tbf rate 20mbit burst 5000 limit 100000"));
        let config = Scratch::new("try-link.toml", "[queue]\nbackend = \"none\"\n");
        let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
        let peer = Peer::start(&lab);
        Self {
            lab,
            peer,
            _daemon: daemon,
            _config: config,
        }
    }

    fn shape(mbit: f64) {
        let kbit = (mbit * 1000.0).round();
        // Room for what a short interval sends: a first packet that is lost costs a second, in which nothing moves.
        run(&format!(
            "tc qdisc replace dev gwv root tbf rate {kbit}kbit burst 5000 limit 300000"
        ));
    }

    /// What the trial finds, as JSON.
    pub fn try_it(&self, planted: Planted, words: &[&str]) -> Value {
        let ends = AtomicBool::new(false);
        let near = self.lab.near.clone();
        Self::shape(planted.with);
        let (ready, readied) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                visit(&near);
                let place = Place::here().unwrap();
                ready.send(()).unwrap();
                let mut was_paused = false;
                while !ends.load(Ordering::Relaxed) {
                    // It may be too busy for a moment.
                    let is_paused = client::status(&place).map_or(was_paused, |status| status.daemon.paused.is_some());
                    if is_paused != was_paused {
                        Self::shape(if is_paused { planted.without } else { planted.with });
                        was_paused = is_paused;
                    }
                    thread::sleep(Duration::from_millis(10));
                }
            });
            readied.recv().unwrap();
            let output = giveway(&[&["try", "--peer", &self.peer.address, "--json"], words].concat());
            ends.store(true, Ordering::Relaxed);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}");
            serde_json::from_slice(&output.stdout).unwrap()
        })
    }
}

pub fn answer<'a>(report: &'a Value, question: &str) -> &'a Value {
    let mut answers = report["answers"].as_array().unwrap().iter();
    answers.find(|answer| answer["question"]["name"] == question).unwrap()
}
