// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes, and what is known of one at the moment at which it is judged.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::class::{Class, LimitNumber, Rates, RuleId};

/// The user whom no bound and no user's word binds.
pub const ROOT: u32 = 0;

/// A process, held by a pidfd where it is named so.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ProcessId {
    /// The thread group's id, as the initial pid namespace counts.
    pub pid: u32,
    /// When it was started, since boot: a pid is used again, both together are not.
    pub start_ns: u64,
}

/// What a process is, at the moment at which it is judged.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Process {
    /// As /proc shows it; for people only.
    pub exe: String,
    /// Those of the rules' executables that are this very file, as the rules write them.
    pub executables: Vec<String>,
    /// Of these, those where only root decides what is in the file, and to which file the path leads.
    pub trusted: Vec<String>,
    /// Arguments with blanks between them, cut at 4096 bytes.
    pub cmdline: String,
    /// The real and the effective user.
    pub uid: u32,
    pub euid: u32,
    /// Below the mount of the hierarchy: `/system.slice/camera.service`.
    pub cgroup: String,
    #[serde(default)]
    pub idleness: Idleness,
    /// By `giveway exec --class`, for it or for one that started it.
    #[serde(default)]
    pub chosen: Option<Choice>,
    #[serde(default)]
    pub inherited: Option<Inherited>,
    /// A bit for each setting by hand that is for it, or was for one that started it ([`crate::class::by_hand`]).
    #[serde(default)]
    pub by_hand: u64,
}

/// From the process that started it, or from one before that: by a rule that names that one.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Inherited {
    pub rule: RuleId,
    pub from: ProcessId,
    /// That process's name, for people.
    pub name: String,
    /// As which it has started the other.
    pub uid: u32,
}

/// What tells cheaply whether anything has changed that a process's class depends on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Fingerprint {
    pub id: ProcessId,
    pub uid: u32,
    /// Another one after each exec.
    pub image: u64,
    pub cgroup_id: u64,
    /// A bit for each way.
    pub idleness: u32,
    /// Class and rate limit in one.
    pub chosen: u32,
    /// By which rule, and from which process.
    pub inherited: Option<(RuleId, u32)>,
    /// A bit for each setting by hand.
    pub by_hand: u64,
    pub nice: Option<Nice>,
    /// The rule by which it hands its class on itself, as the kernel knows.
    pub names: Option<RuleId>,
}

/// giveway's doing: nice 19 or the idle I/O class.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Nice {
    /// The process for whose sake it was done: this one, or one that started it.
    pub by: u32,
    /// By which it was done; 0: it is about to get back what it had.
    pub cause: u32,
}

/// A class, the user who chose it, and a rate limit where that was asked for.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Choice {
    /// None: whatever it would have.
    pub class: Option<Class>,
    pub uid: u32,
    #[serde(default)]
    pub limit: Option<ChosenLimit>,
}

/// For all that the process starts, together.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct ChosenLimit {
    pub number: LimitNumber,
    pub rates: Rates,
}

/// Ways in which a process was told that nobody waits for it; of its main thread.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Idleness {
    pub nice_19: bool,
    pub sched_idle: bool,
    pub io_idle: bool,
    /// cpu.idle (`CPUWeight=idle`) of its cgroup, or of one above it.
    pub group_idle: bool,
}

/// The systemd unit of a cgroup's path: the first one below its slices, or else the last slice. Below that unit a container,
/// or a user's own manager, chooses the names.
pub fn unit_of(cgroup: &str) -> Option<&str> {
    let is_slice = |name: &&str| name.ends_with(".slice");
    let names = || cgroup.split('/').filter(|name| !name.is_empty());
    let unit = names().find(|name| !is_slice(name)).filter(|name| {
        let kinds = [".service", ".scope"];
        kinds.iter().any(|kind| name.ends_with(kind))
    });
    unit.or_else(|| names().take_while(is_slice).last())
}
