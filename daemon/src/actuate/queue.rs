// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queues of the managed links. Input: plans, and what is said of flows. Output: success or one reason, and what was counted; no
//! link's failure touches another. It never decides. Each job is a file: a queue is installed, tuned and taken down ([`install`],
//! [`segments`]), what stood there is restored ([`undo`]), packets are classified by what is said of them ([`treatments`],
//! [`forwarded`], [`local`]), and what comes of it is read ([`counters`], [`ordered`]). [`admission`], [`bpf_qdisc`] and [`htb`] are
//! what it works with.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::config::{Config, Deadline};
use giveway_engine::model::{Cookie, ProcessId, Treatment};
use giveway_engine::queue::traffic::Served;
use giveway_engine::queue::{Backend, BackgroundFlow, Plan, Uplink};
use libbpf_rs::MapHandle;
use nix::errno::Errno;

use crate::journal::Journal;
use crate::kernel::netlink::{Netlink, refused};
use crate::kernel::qdisc::Qdisc;
use crate::kernel::uplink;
use crate::place::Place;

pub mod admission;
mod bpf_qdisc;
mod counters;
mod forwarded;
pub mod htb;
mod install;
mod local;
mod ordered;
mod segments;
mod sojourn;
mod treatments;
pub mod undo;

use admission::{Admission, ReceiveMaps};
use bpf_qdisc::BpfQdisc;
use forwarded::ForwardedContainers;
use undo::{OriginalQueue, UNDO};

/// Real time, streams, best effort, background.
const BANDS: usize = 4;
/// Of our root qdisc, whatever its kind ("gw").
const HANDLE: u32 = 0x6777_0000;

pub struct QueueActuator {
    netlink: Netlink,
    place: Place,
    journal: Journal<OriginalQueue>,
    /// What could not be restored, and stays journalled; and why.
    left: Vec<(OriginalQueue, String)>,
    /// By interface.
    links: BTreeMap<u32, ManagedLink>,
    rules: Vec<Deadline>,
    /// What arrival.bpf.c knows of requests, for their answers.
    requests: Option<MapHandle>,
    /// Of tasks that giveway renices itself; None: it makes none.
    saved_tasks: Option<MapHandle>,
    /// What was chosen for tasks.
    records: Option<MapHandle>,
    /// What the qdisc tells of background that waits in it.
    local_waits: Option<MapHandle>,
    background: BTreeSet<BackgroundFlow>,
    /// Links at whose egress what is limited takes a detour.
    detours: BTreeSet<u32>,
    /// What is said of sockets by their classes.
    treated: BTreeMap<Cookie, Treatment>,
    /// And of processes, for what they connect.
    treated_processes: BTreeMap<ProcessId, Treatment>,
    /// Loaded when the first queue is installed, and kept from then on.
    admission: Option<Admission>,
    qdisc: Option<BpfQdisc>,
    is_prepared: bool,
    /// Loaded where there is a veth device beside the links.
    containers: Option<Result<ForwardedContainers>>,
    /// The links that were active when such devices were looked for.
    followed: Option<BTreeSet<u32>>,
}

/// A link on which a plan is active.
struct ManagedLink {
    /// By which BPF finds what is kept of it.
    number: u32,
    name: String,
    plan: Plan,
    /// As it was journalled; None where packets are only marked.
    before: Option<OriginalQueue>,
    /// What htb has counted, and when that was read.
    served: Option<(Duration, [Served; BANDS])>,
    /// Packets that wanted an order, where nothing of ours serves; None: not counted yet.
    ordered: Option<u64>,
}

impl QueueActuator {
    pub fn open(
        place: &Place,
        config: &Config,
        requests: Option<&MapHandle>,
        saved_tasks: Option<&MapHandle>,
        records: Option<&MapHandle>,
        local_waits: Option<&MapHandle>,
    ) -> Result<Self> {
        let requests = requests.map(MapHandle::try_from).transpose();
        let records = records.map(MapHandle::try_from).transpose();
        let saved_tasks = saved_tasks.map(MapHandle::try_from).transpose();
        let local_waits = local_waits.map(MapHandle::try_from).transpose();
        Ok(Self {
            records: records.context("cannot share what was chosen for tasks")?,
            saved_tasks: saved_tasks.context("cannot share the saved state of reniced tasks")?,
            local_waits: local_waits.context("cannot share the local waits")?,
            requests: requests.context("cannot share what was received")?,
            netlink: Netlink::open()?,
            place: place.clone(),
            journal: Journal::at(place.journal(UNDO.file)),
            left: Vec::new(),
            links: BTreeMap::new(),
            rules: config.deadline.clone(),
            background: config
                .background
                .iter()
                .map(|flow| BackgroundFlow::from(flow).canonical())
                .collect(),
            detours: BTreeSet::new(),
            treated: BTreeMap::new(),
            treated_processes: BTreeMap::new(),
            admission: None,
            qdisc: None,
            is_prepared: false,
            containers: None,
            followed: None,
        })
    }

    /// Loads what takes long before it is needed. Once; where it fails, so will the queue, and says why.
    pub fn prepare(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.is_prepared, true) {
            true => Ok(()),
            false => self.load(Backend::Bpf),
        }
    }

    /// What the backend needs, unless it is loaded already.
    fn load(&mut self, backend: Backend) -> Result<()> {
        if self.admission.is_some() && (backend != Backend::Bpf || self.qdisc.is_some()) {
            return Ok(());
        }
        let netns_inum = self.place.netns_inum();
        let admission = match &mut self.admission {
            Some(admission) => admission,
            none => {
                let admission = none.insert(Admission::load(
                    netns_inum,
                    &self.rules,
                    self.requests.as_ref().map(|map| map.as_fd()),
                    self.saved_tasks.as_ref().map(|map| map.as_fd()),
                    self.records.as_ref().map(|map| map.as_fd()),
                )?);
                // Whatever is in the table, the queue starts.
                let mut lost = Vec::new();
                for flow in &self.background {
                    if let Err(error) = admission.add_background(flow) {
                        tracing::warn!("{}: {error:#}", flow.address);
                        lost.push(*flow);
                    }
                }
                self.background.retain(|flow| !lost.contains(flow));
                for (process, treatment) in &self.treated_processes {
                    if let Err(error) = admission.treat_process(*process, Some(*treatment)) {
                        tracing::warn!("{error:#}");
                    }
                }
                for (socket, treatment) in &self.treated {
                    if let Err(error) = admission.treat(*socket, Some(*treatment)) {
                        tracing::warn!("{error:#}");
                    }
                }
                admission
            }
        };
        if backend == Backend::Bpf && self.qdisc.is_none() {
            self.qdisc = Some(BpfQdisc::register(
                netns_inum,
                &admission.shared,
                self.local_waits.as_ref(),
            )?);
        }
        crate::kernel::give_back_memory();
        Ok(())
    }

    /// The link as it is now, `chosen` or not; None where the device is gone, even if another one has its number by now.
    pub fn read_uplink(&mut self, ifindex: u32, name: &str, chosen: bool) -> Result<Option<Uplink>> {
        let is_another = self.admission.as_ref().and_then(|admission| admission.is_on(ifindex)) == Some(false);
        if is_another {
            return Ok(None);
        }
        match uplink::read(&mut self.netlink, ifindex, name, is_ours) {
            Err(error) if refused(&error) == Some(Errno::ENODEV) => Ok(None),
            looked => looked.map(|uplink| Some(Uplink { chosen, ..uplink })),
        }
    }

    /// What admission knows, for what arrives.
    pub fn received(&self) -> Option<&ReceiveMaps> {
        self.admission.as_ref().map(|admission| &admission.shared.received)
    }

    /// The links on which something is active, by number and name.
    pub fn installed(&self) -> Vec<(u32, String)> {
        let named = self.links.iter().map(|(ifindex, link)| (*ifindex, link.name.clone()));
        named.collect()
    }

    pub fn is_installed(&self) -> bool {
        !self.links.is_empty()
    }

    /// A queue of ours serves this link.
    pub fn serves(&self, ifindex: u32) -> bool {
        self.links
            .get(&ifindex)
            .is_some_and(|link| link.plan.backend != Backend::None)
    }

    /// By which BPF finds what is kept of each link, by interface.
    pub fn numbers(&self) -> BTreeMap<u32, u32> {
        let links = self.links.iter();
        links.map(|(ifindex, link)| (*ifindex, link.number)).collect()
    }

    /// What does not work of a queue that is active, and why.
    pub fn missing(&self) -> Vec<String> {
        let left = self.left.iter().map(|(_, reason)| reason.clone());
        if self.links.is_empty() {
            return left.collect();
        }
        let nice = self.admission.as_ref().and_then(Admission::nice_missing);
        let early = self.admission.as_ref().and_then(Admission::early_missing);
        let is_cpu_gated = self.links.values().any(|link| link.plan.tuning.cpu_gate);
        let cpu_gate = self
            .qdisc
            .as_ref()
            .filter(|_| is_cpu_gated)
            .and_then(BpfQdisc::gate_missing);
        let containers = self.containers.as_ref().and_then(|loaded| loaded.as_ref().err());
        let containers = containers.map(|error| format!("containers' packets are not told apart: {error:#}"));
        let missing = [nice, early, cpu_gate, containers];
        missing.into_iter().flatten().chain(left).collect()
    }
}

pub fn is_ours(qdisc: &Qdisc) -> bool {
    qdisc.handle == HANDLE && (qdisc.kind == htb::KIND || qdisc.kind.starts_with(bpf_qdisc::KIND_PREFIX))
}
