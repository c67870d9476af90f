// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The conditions of a rule, the same in every table of rules. A new condition is declared here, accepted by a table in
//! `sections.rs` (by [`super::matching`]) and evaluated in [`crate::matcher`].

use crate::model::{Dscp, Prefix, Protocol};

use serde::{Deserialize, Serialize};

use super::key::section;

section! {
    /// The conditions of a rule; all that are given must hold.
    Conditions {
        /// The executable: an absolute path, resolved by the daemon.
        exe: Option<String> = None, example "/usr/bin/camera";
        /// Its whole command line, with blanks between the arguments; * is any text, ? any character. Of a longer one
        /// the first 4,096 bytes are matched. A pattern has at most 256 bytes, and at most 64 between two *.
        cmdline: Option<String> = None, example "*--live*";
        /// A user's name or number, which must be the real and the effective one.
        user: Option<String> = None, example "robot";
        /// The systemd unit, with * and ?.
        unit: Option<String> = None, example "camera@*.service";
        /// The cgroup's path below the mount of cgroup v2, with * and ?.
        cgroup: Option<String> = None, example "/system.slice/*";
        /// "udp" or "tcp".
        protocol: Option<Protocol> = None, example "tcp";
        /// The remote address; in a [[rule]] also a prefix, as 192.0.2.0/24.
        address: Option<Prefix> = None, example "192.0.2.1";
        /// The remote port.
        port: Option<u16> = None, example 5005, in 1..=65535;
        /// The local port.
        local_port: Option<u16> = None, example 5006, in 1..=65535;
        /// The DSCP that the application has set: a name ("LE", "CS1", "AF21", "EF") or a number ("46").
        dscp: Option<Dscp> = None, example "CS1";
        /// The interface that its packets leave by.
        interface: Option<String> = None, example "wlan0";
    }
}

/// For tables in which these are required or have defaults.
impl Conditions {
    pub fn protocol(&self) -> Protocol {
        self.protocol.unwrap_or_default()
    }

    pub fn port(&self) -> u16 {
        self.port.unwrap_or_default()
    }

    pub fn local_port(&self) -> u16 {
        self.local_port.unwrap_or_default()
    }
}
