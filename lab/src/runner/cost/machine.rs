// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every round's numbers, and the machine that they are from, beside the results.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use crate::outcome::Metrics;

pub fn keep(raw: &Path, variant: &str, rounds: &[Metrics]) -> Result<()> {
    let kept = json!({"variant": variant, "machine": describe()?, "rounds": rounds});
    let file = raw.join(format!("{}.json", variant.replace('/', "-")));
    let text = serde_json::to_string_pretty(&kept)?;
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn describe() -> Result<serde_json::Value> {
    let uname = nix::sys::utsname::uname()?;
    let first = |file: &str, key: &str| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
        line.map(|rest| rest.trim_matches([' ', '\t', ':']).to_owned())
    };
    Ok(json!({
        "kernel": uname.release().to_string_lossy(),
        "architecture": uname.machine().to_string_lossy(),
        "processor": first("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism()?.get(),
        "memory": first("/proc/meminfo", "MemTotal"),
        "load_average": first("/proc/loadavg", ""),
        "bpf_jit": first("/proc/sys/net/core/bpf_jit_enable", ""),
    }))
}
