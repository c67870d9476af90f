// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds complaints in a kernel's log. Input: the log, as `dmesg` prints it. Output: the lines about a fault of the
//! kernel itself.

/// How a kernel reports a fault of its own, or a loss.
const COMPLAINTS: &[&str] = &[
    "WARNING: ",
    "BUG: ",
    "Oops: ",
    "kernel BUG at",
    "general protection fault",
    "Kernel panic",
    "refcount_t: ",
    "possible circular locking",
    "inconsistent lock state",
    "suspicious RCU usage",
    "scheduling while atomic",
    "memory leak",
    "unreferenced object",
    "blocked for more than",
    "detected stalls",
    "soft lockup",
    "list_add corruption",
    "list_del corruption",
    "unregister_netdevice: waiting",
    "Leaking ",
    " leaked ",
];

pub fn complaints(log: &str) -> impl Iterator<Item = &str> {
    let is_complaint = |line: &&str| COMPLAINTS.iter().any(|words| line.contains(words));
    log.lines().filter(is_complaint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_found_and_a_boot_is_quiet() {
        let log = "[    0.1] Kernel command line: console=ttyS0 panic=-1\n\
                   [    0.4] Spectre V2 : Mitigation: Retpolines\n\
                   [    7.0] WARNING: CPU: 0 PID: 71 at net/sched/sch_generic.c:1 qdisc_destroy+0x1/0x2\n\
                   [    7.1] refcount_t: underflow; use-after-free.\n";
        assert_eq!(complaints(log).count(), 2);
    }
}
