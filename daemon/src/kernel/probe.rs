// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this kernel and these privileges allow, for `giveway doctor`.

use anyhow::{Context, Result};

/// What loading and attaching our programs takes, by bit (include/uapi/linux/capability.h).
const NEEDED: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];
const CAP_SYS_ADMIN: u32 = 21;

/// The capabilities that this process lacks.
pub fn missing_privileges() -> Result<Vec<&'static str>> {
    let status = std::fs::read_to_string("/proc/thread-self/status").context("cannot read /proc/thread-self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .context("the kernel tells no CapEff")?;
    let effective = u64::from_str_radix(line.trim(), 16).with_context(|| format!("CapEff is no number: {line}"))?;
    let has = |bit: u32| effective & (1 << bit) != 0;
    let admin = has(CAP_SYS_ADMIN);
    Ok(NEEDED
        .iter()
        .filter(|(bit, _)| !has(*bit) && !(admin && *bit > 12))
        .map(|(_, name)| *name)
        .collect())
}
