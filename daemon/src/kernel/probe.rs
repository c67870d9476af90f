// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this kernel and these privileges allow, for `giveway doctor`. Out goes a list: what is there, what is not and
//! why, and what is lost without. Where it is cheap, a thing is tried, not guessed from a version; whatever is tried
//! is taken back at once.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use libbpf_rs::btf::{Btf, BtfType};

use super::flow_monitor::FlowMonitor;
use super::{KERNEL_BTF, cgroup, check_btf, own_netns};
use crate::actuate::cap::{CapActuator, ease::Ease};

/// What loading and attaching our programs takes, by bit (include/uapi/linux/capability.h).
const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

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
#[derive(Clone, Debug)]
pub struct Capability {
    pub name: &'static str,
    /// None where it is available.
    pub why_not: Option<String>,
    /// What the user goes without where it is missing.
    pub lost: &'static str,
}

impl Capability {
    pub fn available(&self) -> bool {
        self.why_not.is_none()
    }
}

/// The capabilities that this process lacks.
pub fn missing_privileges() -> Result<Vec<&'static str>> {
    let path = "/proc/thread-self/status";
    let status = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .context("the kernel tells no CapEff")?;
    let effective = u64::from_str_radix(line.trim(), 16).with_context(|| format!("CapEff is no number: {line}"))?;
    let has = |bit: u32| effective & (1 << bit) != 0;
    // CAP_SYS_ADMIN contains the two newer ones.
    let needed = [
        ("CAP_NET_ADMIN", has(CAP_NET_ADMIN)),
        ("CAP_PERFMON", has(CAP_PERFMON) || has(CAP_SYS_ADMIN)),
        ("CAP_BPF", has(CAP_BPF) || has(CAP_SYS_ADMIN)),
    ];
    Ok(needed
        .into_iter()
        .filter(|(_, held)| !held)
        .map(|(name, _)| name)
        .collect())
}

/// As `uname -r` says.
pub fn kernel_release() -> String {
    nix::sys::utsname::uname()
        .map(|names| names.release().to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Tries everything; takes about a second.
pub fn capabilities() -> Vec<Capability> {
    let types = Types::load();
    let mut list = vec![
        capability(
            "privileges",
            "everything: giveway neither sees nor changes anything",
            privileges(),
        ),
        capability(
            "kernel types (BTF)",
            "everything: no program can be loaded",
            check_btf(KERNEL_BTF),
        ),
        capability(
            "tracepoints of TCP",
            "passes over active sockets, and events",
            types.have(&TRACEPOINTS),
        ),
        capability(
            "iterators over sockets and files",
            "walks, owners, caps on live connections",
            types.have(&ITERATORS),
        ),
        capability(
            ESSENTIAL,
            "watching connections, and every decision that rests on it",
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
        capability("caps on live connections", "cooperation on a shared link", live),
        capability(
            "caps on new connections",
            "the first 0.1 s of each connection, until a pass has seen it",
            new,
        ),
        capability(
            "eased lifts (struct_ops)",
            "a lifted cap restarts slow start",
            eased_lifts(),
        ),
        capability(
            "admission (tcx)",
            "no packet is classified, none with a deadline refused in time",
            types.have(&["tcx_prog_attach"]).context("needs Linux 6.6"),
        ),
        capability(
            "BPF qdisc",
            "no deadline order but FIFO within the band, no sojourn figures, no gate; htb where the link's rate is known",
            qdisc(&types),
        ),
        capability("htb", "no bands where there is no BPF qdisc", htb(&types)),
    ]);
    list
}

/// Whether this kernel has BPF qdiscs.
pub fn bpf_qdisc() -> Result<()> {
    qdisc(&Types::load())
}

fn qdisc(types: &Types) -> Result<()> {
    types
        .have(&["Qdisc_ops", "bpf_qdisc_skb_drop"])
        .context("needs Linux 6.16 with CONFIG_NET_SCH_BPF")
}

fn capability(name: &'static str, lost: &'static str, tried: Result<()>) -> Capability {
    Capability {
        name,
        lost,
        why_not: tried.err().map(|error| one_line(&error)),
    }
}

/// The loader's own log stays out: its last word is in the outer message.
pub fn one_line(error: &anyhow::Error) -> String {
    let causes = error
        .chain()
        .map(ToString::to_string)
        .filter(|cause| !cause.contains('\n'));
    causes.collect::<Vec<_>>().join(": ")
}

fn privileges() -> Result<()> {
    let missing = missing_privileges()?;
    ensure!(missing.is_empty(), "{} missing: run as root", missing.join(", "));
    Ok(())
}

fn flow_monitor() -> Result<()> {
    FlowMonitor::open(own_netns()?)?.walk().map(drop)
}

fn cgroup_v2() -> Result<()> {
    cgroup::CgroupNames::open().map(drop)
}

/// Caps on live and on new connections.
fn caps() -> (Result<()>, Result<()>) {
    match own_netns().and_then(CapActuator::open) {
        Ok(actuator) => (
            Ok(()),
            actuator
                .new_connections_missing()
                .map_or(Ok(()), |why| Err(anyhow::Error::msg(why))),
        ),
        Err(error) => {
            let same = anyhow::Error::msg(one_line(&error));
            (Err(error), Err(same))
        }
    }
}

fn eased_lifts() -> Result<()> {
    Ease::register(&format!("gwp{:x}", std::process::id())).map(drop)
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

/// The kernel's type information, in which each function and tracepoint has its name.
struct Types(Option<Btf<'static>>);

impl Types {
    fn load() -> Self {
        let load = |()| super::libbpf_log::explain("read the kernel's types", Btf::from_vmlinux);
        Self(check_btf(KERNEL_BTF).and_then(load).ok())
    }

    fn have(&self, names: &[&str]) -> Result<()> {
        let btf = self
            .0
            .as_ref()
            .context("cannot tell without the kernel's types (BTF)")?;
        let there = |name: &str| btf.type_by_name::<BtfType<'_>>(name).is_some();
        let missing: Vec<&str> = names.iter().copied().filter(|name| !there(name)).collect();
        ensure!(
            missing.is_empty(),
            "this kernel ({}) has no {}",
            kernel_release(),
            missing.join(", ")
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_and_what_is_there_is_not() {
        let types = Types::load();
        types.have(&["tcp_sendmsg"]).unwrap();
        let message = types
            .have(&["tcp_sendmsg", "no_such_function"])
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("no_such_function") && !message.contains("tcp_sendmsg"),
            "{message}"
        );
    }

    #[test]
    fn something_that_is_not_btf_is_refused() {
        let message = check_btf("/dev/zero").unwrap_err().to_string();
        assert!(message.contains("is not BTF"), "{message}");
        assert!(check_btf("/dev/null").is_err());
    }
}
