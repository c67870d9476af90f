// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes, and their properties for classification.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::class::{Class, LimitNumber, Rates, RuleId};

/// The user without bounds.
pub const ROOT: u32 = 0;

/// A process, identified over pid reuse.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize, JsonSchema)]
pub struct ProcessId {
    /// The thread group's id in the initial pid namespace.
    pub pid: u32,
    /// Start time since boot: a pid is reused, the pair is not.
    pub start_ns: u64,
}

/// The properties of a process at one moment.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
pub struct Process {
    /// As in /proc; for people only.
    pub exe: String,
    /// Those of the rules' executables that are this very file, as written in the rules.
    pub executables: Vec<String>,
    /// Those of them that only root controls, both the file's content and the path to it.
    pub trusted: Vec<String>,
    /// Arguments separated by blanks, cut at 4096 bytes.
    pub cmdline: String,
    /// The real and the effective user.
    pub uid: u32,
    pub euid: u32,
    /// Below the mount of the hierarchy: `/system.slice/camera.service`.
    pub cgroup: String,
    #[serde(default)]
    pub idleness: Idleness,
    /// By `giveway exec --class`, for it or a parent.
    #[serde(default)]
    pub chosen: Option<Choice>,
    #[serde(default)]
    pub inherited: Option<Inherited>,
    /// A bit for each setting by hand for it or a parent ([`crate::class::by_hand`]).
    #[serde(default)]
    pub by_hand: u64,
}

/// Inherited from a parent by a rule that matches that one.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
pub struct Inherited {
    pub rule: RuleId,
    pub from: ProcessId,
    /// The parent's name, for people.
    pub name: String,
    /// The parent's user when it started the child.
    pub uid: u32,
}

/// A cheap summary of all that a process's class depends on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Fingerprint {
    pub id: ProcessId,
    pub uid: u32,
    /// Changes with each exec.
    pub image: u64,
    pub cgroup_id: u64,
    /// A bit for each kind.
    pub idleness: u32,
    /// Class and rate limit in one.
    pub chosen: u32,
    /// The rule, and the parent.
    pub inherited: Option<(RuleId, u32)>,
    /// A bit for each setting by hand.
    pub by_hand: u64,
    pub nice: Option<Nice>,
    /// The rule whose class its own children inherit, as installed in the kernel.
    pub names: Option<RuleId>,
}

/// Reniced by giveway: nice 19 or the idle I/O class.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Nice {
    /// The process that was reniced: this one, or a parent.
    pub by: u32,
    /// The cause; 0: it is about to be restored.
    pub cause: u32,
}

/// A class, the user who chose it, and a rate limit if requested.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
pub struct Choice {
    /// None: unchanged.
    pub class: Option<Class>,
    pub uid: u32,
    #[serde(default)]
    pub limit: Option<ChosenLimit>,
}

/// For all child processes in total.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
pub struct ChosenLimit {
    pub number: LimitNumber,
    pub rates: Rates,
}

/// Ways in which the main thread was made to yield.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
pub struct Idleness {
    pub nice_19: bool,
    pub sched_idle: bool,
    pub io_idle: bool,
    /// cpu.idle (`CPUWeight=idle`) of its cgroup, or of one above it.
    pub group_idle: bool,
}

/// The systemd unit of a cgroup's path: the first one below its slices, or else the last slice. Below that unit a
/// container, or a user's own manager, chooses the names.
pub fn unit_of(cgroup: &str) -> Option<&str> {
    let is_slice = |name: &&str| name.ends_with(".slice");
    let names = || cgroup.split('/').filter(|name| !name.is_empty());
    let unit = names().find(|name| !is_slice(name)).filter(|name| {
        let kinds = [".service", ".scope"];
        kinds.iter().any(|kind| name.ends_with(kind))
    });
    unit.or_else(|| names().take_while(is_slice).last())
}
