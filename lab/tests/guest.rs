// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest, booted once: what it is, what time it has, and what comes back from it.

use std::process::Command;
use std::time::{Duration, Instant};

/// `None` where there is no QEMU, which CI does not accept.
fn lab_guest() -> Option<Command> {
    let found = Command::new("qemu-system-x86_64").arg("--version").output();
    if found.is_err() {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI has to boot the guest: packaging/need"
        );
        eprintln!("skipped: qemu-system-x86_64 is missing (packaging/need installs it)");
        return None;
    }
    let mut lab = Command::new(env!("CARGO_BIN_EXE_giveway-lab"));
    lab.arg("guest");
    Some(lab)
}

/// In virtual time: however busy this machine is. `packaging/check` runs it beside the others.
mod in_guest {
    use super::*;

    #[test]
    pub fn a_command_runs_on_a_7_x_kernel_in_virtual_time_and_its_files_come_back() {
        let Some(mut lab) = lab_guest() else { return };
        let out = std::env::temp_dir().join(format!("giveway-guest-test-{}", std::process::id()));
        let script = "uname -r; nproc; date +%F; giveway -V; ip link add va type veth peer vb; \
                      tc qdisc add dev va root fq && echo kept > /out/kept; \
                      echo aside >&2; cat /proc/uptime; sleep 600; cat /proc/uptime; \
                      cat /sys/kernel/debug/sched/preempt; exit 7";
        lab.args(["--cpus", "2", "--preempt", "full", "--seconds", "300", "--out"])
            .arg(&out);
        let begun = Instant::now();
        let done = lab
            .args(["--", "sh", "-c", script])
            .output()
            .expect("giveway-lab starts");
        let took = begun.elapsed();
        let told = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(7), "{told}");
        assert!(told.contains("aside"), "{told}");

        let said = String::from_utf8(done.stdout).expect("text");
        let lines: Vec<_> = said.lines().collect();
        assert!(lines[0].starts_with("7."), "{said}");
        assert_eq!(lines[1..3], ["2", "2026-01-01"], "{said}");
        assert!(lines[3].starts_with("giveway "), "{said}");
        let uptime_s = |line: &str| line.split(' ').next().and_then(|word| word.parse::<f64>().ok());
        let [before, after] = [4, 5].map(|line| uptime_s(lines[line]).expect("seconds"));
        assert!(lines[6].contains("(full)"), "{said}");
        // Ten minutes of sleep pass at once: the guest's time is its own.
        assert!((600.0..605.0).contains(&(after - before)), "{said}");
        assert!(took < Duration::from_secs(300), "{took:?}");

        let file = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_default();
        assert_eq!(file("kept"), "kept\n", "{told}");
        assert!(file("kernel.log").contains("Linux version 7."));
        assert!(!told.contains("complained"), "{told}");
        std::fs::remove_dir_all(&out).expect("the folder can go");
    }
}

#[test]
fn a_guest_needs_a_command() {
    let done = Command::new(env!("CARGO_BIN_EXE_giveway-lab")).arg("guest").output();
    assert_eq!(done.expect("giveway-lab starts").status.code(), Some(2));
}
