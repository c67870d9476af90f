// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this kernel and these privileges allow, for `giveway doctor`: what is there, what is not and
//! why, and what is lost without it. Where it is cheap, a thing is tried, not guessed from a version; whatever is tried
//! is revoked at once.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use schemars::JsonSchema;
use serde::Serialize;

use crate::actuate::nice;
use crate::actuate::sockets::cap::{CapActuator, avoidance::Avoidance};
use crate::actuate::sockets::receive;
use crate::actuate::sockets::scavenger::Scavenger;
use crate::kernel::donation::DonationPrograms;
use crate::kernel::flow_monitor::FlowMonitor;
use crate::kernel::libbpf_log::one_line;
use crate::kernel::types::{Types, check_btf};
use crate::kernel::{cgroup, check_release, kernel_release, missing_privileges, own_netns};

/// The kernel's hooks that the flow monitor is built on, by the names that the kernel's types have for them.
const TRACEPOINTS: [&str; 6] = [
    "btf_trace_tcp_probe",
    "btf_trace_sock_send_length",
    "btf_trace_tcp_rcv_space_adjust",
    "btf_trace_inet_sock_set_state",
    "btf_trace_tcp_retransmit_skb",
    "btf_trace_tcp_cong_state_set",
];
const ITERATORS: [&str; 3] = ["bpf_iter_tcp", "bpf_iter_task_file", "bpf_iter_bpf_sk_storage_map"];

/// The capability that nothing works without.
pub const ESSENTIAL: &str = "flow monitor";

/// One thing that giveway can use.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Capability {
    pub name: &'static str,
    pub available: bool,
    /// None where it is available.
    pub why_not: Option<String>,
    /// What the user goes without where it is missing.
    pub lost: &'static str,
}

/// Tries everything; takes about a second.
// Long: a table, an entry a capability.
pub fn capabilities() -> Vec<Capability> {
    let types = Types::load();
    let mut list = vec![
        capability("privileges", "everything", privileges()),
        capability("kernel types (BTF)", "everything", check_btf()),
        capability(
            "TCP tracepoints",
            "polls of active sockets, and events",
            types.have(&TRACEPOINTS),
        ),
        capability(
            "iterators over sockets and files",
            "full scans, owners, caps on live connections",
            types.have(&ITERATORS),
        ),
        capability(
            ESSENTIAL,
            "monitoring of connections, and every decision based on it",
            flow_monitor(),
        ),
        capability(
            "cgroup v2",
            "names of cgroups, caps on connections as they open",
            cgroup_v2(),
        ),
    ];
    let (live, new) = caps();
    list.extend([
        capability("caps on live connections", "shares of a shared channel", live),
        capability(
            "caps on new connections",
            "caps in the first 0.1 s of a connection",
            new,
        ),
        capability(
            "clamp clearing without slow-start restart (struct_ops)",
            "clearing a cap without restarting slow start",
            clear_without_restart(),
        ),
        capability(
            "background congestion control (struct_ops)",
            "yielding of background uploads beyond this machine's own queue",
            scavenger(&types),
        ),
        capability(
            "background receive windows (sockops)",
            "yielding of background downloads",
            check_release(receive::NEEDS),
        ),
        capability(
            "renicing of background processes (task storage)",
            "lower CPU and I/O priority of background processes",
            nice::probe(),
        ),
        capability(
            "accounting of priority inheritance",
            "accounting of CPU time at a priority inherited through a futex",
            DonationPrograms::open().map(drop),
        ),
        capability(
            "admission (tcx)",
            "classification of packets, admission of deadlines",
            types.have(&["tcx_prog_attach"]).context("needs Linux 6.6"),
        ),
        capability(
            "BPF qdisc",
            "deadline order within the band, sojourn times, the CPU gate; htb is used where the link's rate \
             is known",
            types.bpf_qdisc(),
        ),
        capability("htb", "bands where there is no BPF qdisc", htb(&types)),
    ]);
    list
}

fn capability(name: &'static str, lost: &'static str, tried: Result<()>) -> Capability {
    Capability {
        name,
        lost,
        available: tried.is_ok(),
        why_not: tried.err().map(|error| one_line(&error)),
    }
}

fn privileges() -> Result<()> {
    let missing = missing_privileges()?;
    ensure!(missing.is_empty(), "{} missing: run as root", missing.join(", "));
    Ok(())
}

fn flow_monitor() -> Result<()> {
    FlowMonitor::open(own_netns()?)?.scan().map(drop)
}

fn cgroup_v2() -> Result<()> {
    cgroup::CgroupRoot::open().map(drop)
}

/// Caps on live and on new connections.
fn caps() -> (Result<()>, Result<()>) {
    match own_netns().and_then(CapActuator::open) {
        Ok(actuator) => {
            let missing = actuator.new_connections_missing();
            (Ok(()), missing.map_or(Ok(()), |reason| Err(anyhow::Error::msg(reason))))
        }
        Err(error) => {
            let same = anyhow::Error::msg(one_line(&error));
            (Err(error), Err(same))
        }
    }
}

fn clear_without_restart() -> Result<()> {
    Avoidance::register(&format!("gwp{:x}", std::process::id())).map(drop)
}

fn scavenger(types: &Types) -> Result<()> {
    types.scavenger()?;
    Scavenger::register(&format!("gwd{:x}", std::process::id()), None).map(drop)
}

/// Built in, loaded, or there to be loaded.
fn htb(types: &Types) -> Result<()> {
    let modules = Path::new("/lib/modules").join(kernel_release());
    let lists = [modules.join("modules.dep"), "/proc/modules".into()];
    let listed = |list: &Path| std::fs::read_to_string(list).is_ok_and(|text| text.contains("sch_htb"));
    if lists.iter().any(|list| listed(list)) {
        return Ok(());
    }
    types
        .have(&["htb_enqueue"])
        .context("no module sch_htb, and not built in (CONFIG_NET_SCH_HTB)")
}
