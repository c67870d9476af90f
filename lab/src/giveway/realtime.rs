// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real-time rules of the program under test. Input: executables that are to have priority. Output: a daemon with a
//! rule for each.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::Daemon;
use crate::namespace::Namespace;

/// Below the kernel's interrupt threads.
pub const PRIORITY: u32 = 40;

/// `[[priority]]`, with giveway's own limits.
pub fn rule(exe: &Path) -> Value {
    json!({"exe": exe, "policy": "fifo", "priority": PRIORITY})
}

/// Starts a daemon without any interface, and waits until it answers.
pub fn start_daemon(place: &Namespace, rules: &[Value], raw: &Path, label: &str) -> Result<Daemon> {
    let configuration = json!({"cap": {"policy": "none"}, "priority": rules});
    Daemon::raise_with(&[], place, &configuration, &raw.join(label))
}
