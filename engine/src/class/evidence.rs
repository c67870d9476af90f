// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Implicit classification: signs, without any rule, that nobody waits for a flow. It only demotes: an application that
//! sets one of these gives up something of its own. The first that applies counts; `docs/reference/rules.md` has the same
//! table.
//!
//! Giveway's own settings, nice 19 and the idle I/O class of background processes, are excluded: the kernel part
//! recognises them by its saved state (`bpf/nice.h`).
//!
//! DSCP CS1 does not count: RFC 8622 replaces it by LE, and OpenSSH 7.8 to 10.0 marks every session without a terminal
//! so, including a `git push` that somebody waits for.

use std::net::SocketAddr;

use super::active::is_in_background_slice;
use super::{By, FlowFacts, Verdict};
use crate::matcher::{Ends, Marks};
use crate::model::{Class, Dscp, Idleness, LimitNumbers, Process, Protocol};

struct Evidence {
    rule: &'static str,
    holds: fn(&FlowFacts<'_>) -> bool,
    class: Class,
    reason: &'static str,
    /// Each packet carries it, so the queue sees it at once, and no longer when it is gone.
    is_on_packets: bool,
}

const EVIDENCE: [Evidence; 7] = [
    Evidence {
        rule: "SCHED_IDLE",
        holds: |seen| idleness(seen).sched_idle,
        class: Class::Background,
        reason: "its process runs only when the CPU has nothing else to do",
        is_on_packets: false,
    },
    Evidence {
        rule: "nice 19",
        holds: |seen| idleness(seen).nice_19,
        class: Class::Background,
        reason: "its process yields to all others on the CPU",
        is_on_packets: false,
    },
    Evidence {
        rule: "idle I/O class",
        holds: |seen| idleness(seen).io_idle,
        class: Class::Background,
        reason: "its process uses the disk only when nobody else does (ionice -c 3)",
        is_on_packets: false,
    },
    Evidence {
        rule: "CPUWeight=idle",
        holds: |seen| idleness(seen).group_idle,
        class: Class::Background,
        reason: "cpu.idle is set for its cgroup or one above it",
        is_on_packets: false,
    },
    Evidence {
        rule: "background.slice",
        holds: |seen| is_in_background_slice(seen.cgroup),
        class: Class::Background,
        reason: "its process is in a background.slice",
        is_on_packets: false,
    },
    Evidence {
        rule: "SO_PRIORITY 1",
        holds: |seen| seen.priority == 1,
        class: Class::Background,
        reason: "the application set SO_PRIORITY to 1 (filler traffic)",
        is_on_packets: true,
    },
    Evidence {
        rule: "DSCP LE",
        holds: |seen| seen.marks.dscp == Dscp::LE,
        class: Class::Background,
        reason: "the application marks it as lower effort (RFC 8622)",
        is_on_packets: true,
    },
];

pub(super) fn judge(seen: &FlowFacts<'_>) -> Option<Verdict> {
    let found = EVIDENCE.iter().find(|evidence| (evidence.holds)(seen))?;
    Some(Verdict {
        class: found.class,
        by: if found.is_on_packets { By::Mark } else { By::Evidence },
        rule: found.rule.to_owned(),
        reason: found.reason.to_owned(),
        limits: LimitNumbers::NONE,
    })
}

/// By the process alone, or if that is unknown, by its cgroup.
pub(super) fn judge_sender(process: Option<&Process>, cgroup: &str) -> Option<Verdict> {
    let nowhere = SocketAddr::from(([0; 4], 0));
    judge(&FlowFacts {
        process,
        cgroup,
        ends: Ends {
            protocol: Protocol::Tcp,
            local: nowhere,
            remote: nowhere,
        },
        sends_anywhere: true,
        marks: Marks {
            dscp: Dscp::new(0),
            interface: None,
        },
        priority: 0,
        named: None,
        by_hand: None,
    })
}

fn idleness(seen: &FlowFacts<'_>) -> Idleness {
    seen.process.map(|process| process.idleness).unwrap_or_default()
}
