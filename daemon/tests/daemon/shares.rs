// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A capacity that nobody configured (`policy = "estimated"`): cwnd and pacing rate are limited together, and put back.

use std::fs;

use nix::sys::signal::Signal;

use crate::support::lab::{FAR_V4, Lab};
use crate::support::process::{Daemon, giveway};
use crate::support::tcp::{Transfer, max_pacing_rate, scanned};
use crate::support::wait::until;

const UNLIMITED: u32 = u32::MAX;
const FOUND: &str = "[cap]\npolicy = \"estimated\"\n";

#[test]
fn a_share_that_is_found_limits_both_and_a_kill_leaves_neither() {
    let lab = Lab::enter();
    lab.narrow(20, 60_000);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("giveway.toml");
    fs::write(&file, FOUND).unwrap();
    let (near, far) = lab.connect(FAR_V4);
    let _transfer = Transfer::start(&near, far);
    let mut monitor = lab.monitor();
    for ends in [Signal::SIGTERM, Signal::SIGKILL] {
        let daemon = Daemon::start(&["--config", file.to_str().unwrap(), "--interface", "gwv"]);
        until("its pacing rate is limited", || max_pacing_rate(&near) != UNLIMITED);
        until("its window is limited", || scanned(&mut monitor, &near).clamp.is_some());
        let port = near.local_addr().unwrap().port().to_string();
        let reason = String::from_utf8(giveway(&["why", &port]).stdout).unwrap();
        assert!(
            reason.contains("pacing rate") && reason.contains("a share of "),
            "{reason}"
        );
        let shown = String::from_utf8(giveway(&["status"]).stdout).unwrap();
        assert!(shown.contains("shared by 1 sending device"), "{shown}");
        daemon.signal(ends);
        until("its pacing rate is its own again", || {
            max_pacing_rate(&near) == UNLIMITED
        });
        until("and its window", || scanned(&mut monitor, &near).clamp.is_none());
        drop(daemon);
    }
}
