// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A link of the test's own in the network namespace that the tests were started in: what works only in namespaces that
//! a test has made does not work where it is used. One test at a time has one, on the whole machine. It goes with the
//! test, and where the test was killed, with the next one.

use std::fs::File;
use std::process::Command;

use nix::fcntl::{Flock, FlockArg};

use super::caller;
use super::lab::run;

/// Of the names of both ends.
const PREFIX: &str = "gwhost";
const TURN: &str = "/run/giveway-test-host";

pub struct HostLink {
    pub near: String,
    pub far: String,
    _turn: Flock<File>,
}

impl HostLink {
    pub fn make() -> Self {
        caller::forget();
        let turn = File::create(TURN).unwrap();
        let turn = Flock::lock(turn, FlockArg::LockExclusive).unwrap();
        remove_all();
        let name = |end| format!("{PREFIX}{end}");
        let link = Self {
            near: name('a'),
            far: name('b'),
            _turn: turn,
        };
        run(&format!("ip link add {} type veth peer name {}", link.near, link.far));
        // Without it a virtual device has no NAPI threads.
        run(&format!("ethtool -K {} gro on", link.near));
        for end in [&link.near, &link.far] {
            run(&format!("ip link set {end} addrgenmode none up"));
        }
        link
    }
}

impl Drop for HostLink {
    fn drop(&mut self) {
        remove_all();
    }
}

/// Whoever has the turn is the only one who has any.
fn remove_all() {
    let near = format!("{PREFIX}a");
    if std::path::Path::new("/sys/class/net").join(&near).exists() {
        let _ = Command::new("ip").args(["link", "del", &near]).status();
    }
}
