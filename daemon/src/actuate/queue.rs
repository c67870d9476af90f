// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Puts a queue up on each managed link, tunes it, and takes it down again. Input: plans. Output: success or one reason,
//! with nothing of the plan left; no link's failure touches another. It never decides, and never touches a qdisc that
//! another tool put in place of ours.
//!
//! What was there is journalled before anything is changed ([`Before`]), and put back from there, in this process or after
//! its death.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use giveway_engine::config::{Config, Deadline};
use giveway_engine::model::{Cookie, Forwarded, Prefix, ProcessId, Treatment};
use giveway_engine::network::queue::traffic::{Band, Bands, QueueCounters, Refusal, Refused as RefusedPackets, Served};
use giveway_engine::network::queue::{Backend, BackgroundFlow, Plan, RootQdisc, Tuning, Uplink, may_replace};
use libbpf_rs::MapHandle;
use nix::errno::Errno;
use nix::net::if_::if_indextoname;
use serde::{Deserialize, Serialize};

use crate::actuate::download::containers::Receiving;
use crate::actuate::{download, upload};
use crate::journal::register::{JournalFile, Undo};
use crate::journal::{Entry, Journal};
use crate::kernel::elsewhere::{self, Identity, Whereabouts};
use crate::kernel::libbpf_log::one_line;
use crate::kernel::netlink::{
    IFLA_GROUP, IFLA_GSO_MAX_SEGS, NLM_F_CREATE, NLM_F_REPLACE, Netlink, RTM_DELQDISC, RTM_NEWLINK, RTM_NEWQDISC,
    Refused,
};
use crate::kernel::now;
use crate::kernel::qdisc::{self, Qdisc, ROOT, tcmsg};
use crate::kernel::uplink;
use crate::pins::QDISC;
use crate::place::Place;

pub mod admission;
mod bpf_qdisc;
mod forwarded;
pub mod htb;
mod local;
mod sojourn;

use admission::{Admission, Received, Told};
use bpf_qdisc::BpfQdisc;
use forwarded::Containers;

/// Real time, streams, best effort, background.
const BANDS: usize = 4;
/// Of our root qdisc, whatever its kind ("gw").
const HANDLE: u32 = 0x6777_0000;
const SINGLE_SEGMENTS: u32 = 1;

/// For so long a queue that is wanted waits for what is in its place to be empty.
const PUT_OFF: Duration = Duration::from_secs(1);
/// A packet that was in a queue so lately tells where its flow goes now.
const TRACED_WITHIN: Duration = Duration::from_millis(1500);

/// What a device's queue was before it was touched.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Before {
    pub ifindex: u32,
    pub name: String,
    pub qdisc: Qdisc,
    pub gso_max_segments: u32,
    /// Whether that is, or is about to be, 1 by giveway.
    #[serde(default = "of_earlier_versions")]
    pub limits_segments: bool,
    /// By which it is found in another namespace, and known again.
    #[serde(default)]
    pub identity: Option<Identity>,
}

pub const UNDO: Undo = Undo::of::<Before>(JournalFile::Queue);

fn of_earlier_versions() -> bool {
    true
}

pub struct QueueActuator {
    netlink: Netlink,
    place: Place,
    journal: Journal<Before>,
    /// What could not be put back, and stays journalled; and why.
    left: Vec<(Before, String)>,
    /// By interface.
    links: BTreeMap<u32, Link>,
    rules: Vec<Deadline>,
    /// What arrival.bpf.c knows of requests, for their answers.
    requests: Option<MapHandle>,
    /// Of tasks that giveway makes nice itself; None: it makes none.
    nice_notes: Option<MapHandle>,
    /// What was chosen for tasks.
    records: Option<MapHandle>,
    /// What the qdisc tells of background that waits in it.
    local_waits: Option<MapHandle>,
    /// With the user who added it; None for one of the configuration.
    background: BTreeSet<BackgroundFlow>,
    /// Links at whose egress what is limited takes a detour.
    detours: BTreeSet<u32>,
    /// What is said of sockets by their classes.
    treated: BTreeMap<Cookie, Treatment>,
    /// And of processes, for what they connect.
    treated_processes: BTreeMap<ProcessId, Treatment>,
    /// Loaded when the first queue is put up, and kept from then on.
    admission: Option<Admission>,
    qdisc: Option<BpfQdisc>,
    is_prepared: bool,
    /// Loaded where there is a veth device beside the links.
    containers: Option<Result<Containers>>,
    /// The links that were in force when such devices were looked for.
    followed: Option<BTreeSet<u32>>,
}

/// A link on which a plan is in force.
struct Link {
    /// By which BPF finds what is kept of it.
    number: u32,
    name: String,
    plan: Plan,
    /// As it was journalled; None where packets are only marked.
    before: Option<Before>,
    /// What htb has counted, and when that was read.
    served: Option<(Duration, [Served; BANDS])>,
    /// Packets that wanted an order, where nothing of ours serves; None: not counted yet.
    ordered: Option<u64>,
    /// Since when something has waited in what serves instead.
    put_off: Option<Duration>,
}

impl QueueActuator {
    pub fn open(
        place: &Place,
        config: &Config,
        requests: Option<&MapHandle>,
        nice_notes: Option<&MapHandle>,
        records: Option<&MapHandle>,
        local_waits: Option<&MapHandle>,
    ) -> Result<Self> {
        let requests = requests.map(MapHandle::try_from).transpose();
        let records = records.map(MapHandle::try_from).transpose();
        let nice_notes = nice_notes.map(MapHandle::try_from).transpose();
        let local_waits = local_waits.map(MapHandle::try_from).transpose();
        Ok(Self {
            records: records.context("cannot share what was chosen for tasks")?,
            nice_notes: nice_notes.context("cannot share the notes of nice tasks")?,
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

    /// The link as it is now, `chosen` or not; None where the device is gone, even if another one has its number by now.
    pub fn look(&mut self, ifindex: u32, name: &str, chosen: bool) -> Result<Option<Uplink>> {
        let is_another = self.admission.as_ref().and_then(|admission| admission.is_on(ifindex)) == Some(false);
        if is_another {
            return Ok(None);
        }
        match uplink::look(&mut self.netlink, ifindex, name, is_ours) {
            Err(error) if refused(&error) == Some(Errno::ENODEV) => Ok(None),
            looked => looked.map(|uplink| Some(Uplink { chosen, ..uplink })),
        }
    }

    /// What is limited takes a detour where these links are left by.
    pub fn set_detours(&mut self, detours: BTreeSet<u32>) -> Result<()> {
        self.detours = detours;
        self.configure()
    }

    /// What admission knows, for what arrives.
    pub fn received(&self) -> Option<&Received> {
        self.admission.as_ref().map(|admission| &admission.shared.received)
    }

    /// The links on which something is in force, by number and name.
    pub fn in_force(&self) -> Vec<(u32, String)> {
        let named = self.links.iter().map(|(ifindex, link)| (*ifindex, link.name.clone()));
        named.collect()
    }

    /// By which BPF finds what is kept of each link, by interface.
    pub fn numbers(&self) -> BTreeMap<u32, u32> {
        let links = self.links.iter();
        links.map(|(ifindex, link)| (*ifindex, link.number)).collect()
    }

    /// Puts the plan up on this link, in place of whatever of ours stands there. None only takes ours down.
    pub fn set(&mut self, ifindex: u32, name: &str, plan: Option<&Plan>) -> Result<()> {
        let Some(plan) = plan else {
            return self.take_down(ifindex);
        };
        let stands = self.links.get(&ifindex).map(|link| link.plan.backend);
        let replaced = match (stands, plan.backend) {
            // Packets keep their marks meanwhile.
            (Some(Backend::None), Backend::Qdisc) => self.get_ready(ifindex, name, plan),
            (Some(Backend::Qdisc), Backend::None) => self.put_back(ifindex),
            (Some(stands), wanted) if stands != wanted => return self.replace(ifindex, name, plan),
            _ => Ok(()),
        };
        let put_up = replaced.and_then(|()| self.put_up(ifindex, name, plan));
        put_up.inspect_err(|_| self.give_up(ifindex))
    }

    fn replace(&mut self, ifindex: u32, name: &str, plan: &Plan) -> Result<()> {
        self.take_down(ifindex)?;
        self.put_up(ifindex, name, plan).inspect_err(|_| self.give_up(ifindex))
    }

    /// Packets were only marked there, and the queue comes.
    fn get_ready(&mut self, ifindex: u32, name: &str, plan: &Plan) -> Result<()> {
        self.undo_left(ifindex)?;
        let before = self.write_down(ifindex, name, plan)?;
        let link = self.links.get_mut(&ifindex).context("the link has just gone")?;
        link.before = Some(before);
        self.qdisc.as_ref().map_or(Ok(()), |qdisc| qdisc.forget(link.number))
    }

    /// The queue goes, and packets are only marked from then on.
    fn put_back(&mut self, ifindex: u32) -> Result<()> {
        let link = self.links.get_mut(&ifindex).context("no queue is in force")?;
        link.ordered = None;
        let before = link.before.take();
        let undone = self.undo(before.as_ref());
        self.rest(ifindex);
        undone
    }

    /// The queue of this link has gone: what watches the CPUs is for those that are left.
    fn rest(&mut self, ifindex: u32) {
        let mut others = self.links.iter().filter(|(other, _)| **other != ifindex);
        let is_wanted = others.any(|(_, link)| link.plan.backend == Backend::Qdisc);
        if let Some(qdisc) = &mut self.qdisc {
            qdisc.watch_cpus(is_wanted);
        }
    }

    /// Loads what takes long before it is needed. Once; where it fails, so will the queue, and says why.
    pub fn prepare(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.is_prepared, true) {
            true => Ok(()),
            false => self.load(Backend::Qdisc),
        }
    }

    /// Of these, where a queue comes when it is wanted: those on which packets came since the last time that one would have to
    /// order. What waits in a qdisc is lost with it, so for a while a moment is waited for in which nothing does.
    pub fn ordered(&mut self, waiting: &[u32]) -> Vec<u32> {
        let Some(admission) = &self.admission else {
            return Vec::new();
        };
        let mut on = Vec::new();
        for (ifindex, link) in &mut self.links {
            if link.plan.backend != Backend::None || !waiting.contains(ifindex) {
                continue;
            }
            match admission.counters(link.number) {
                Ok(counted) => {
                    let [realtime, stream, _, background] = counted.packets;
                    let packets = realtime + stream + background + counted.only_ordered;
                    if link.ordered.is_some_and(|before| before != packets) {
                        let since = *link.put_off.get_or_insert_with(now);
                        let mut waits = || qdisc::counted(&mut self.netlink, *ifindex, ROOT);
                        if now().saturating_sub(since) < PUT_OFF
                            && matches!(waits(), Ok(Some(root)) if root.waiting_packets > 0)
                        {
                            continue;
                        }
                        on.push(*ifindex);
                    }
                    (link.ordered, link.put_off) = (Some(packets), None);
                }
                Err(error) => tracing::debug!("{}: {error:#}", link.name),
            }
        }
        on
    }

    /// A queue of ours serves this link.
    pub fn serves(&self, ifindex: u32) -> bool {
        self.links
            .get(&ifindex)
            .is_some_and(|link| link.plan.backend != Backend::None)
    }

    /// Changes the numbers that the queue in force on this link goes by. After an error nothing of it is left.
    pub fn tune(&mut self, ifindex: u32, tuning: &Tuning) -> Result<()> {
        self.write_tuning(ifindex, tuning)
            .inspect_err(|_| self.give_up(ifindex))
    }

    fn give_up(&mut self, ifindex: u32) {
        if let Err(error) = self.take_down(ifindex) {
            tracing::warn!("{error:#}");
        }
    }

    fn write_tuning(&mut self, ifindex: u32, tuning: &Tuning) -> Result<()> {
        let link = self.links.get_mut(&ifindex).context("no queue is in force")?;
        link.plan.tuning.clone_from(tuning);
        if let Some(admission) = &mut self.admission {
            admission.set_packet_rules(&tuning.packet_rules)?;
        }
        self.configure()?;
        let link = self.links.get(&ifindex).context("no queue is in force")?;
        match link.plan.backend {
            Backend::Htb => htb::tune(&mut self.netlink, &link.plan),
            Backend::Qdisc | Backend::None => Ok(()),
        }
    }

    /// Takes everything of ours off this link; what is loaded stays so.
    pub fn take_down(&mut self, ifindex: u32) -> Result<()> {
        let link = self.links.remove(&ifindex);
        let undone = link.as_ref().map_or(Ok(()), |link| self.undo(link.before.as_ref()));
        if let (Some(admission), Some(link)) = (&mut self.admission, &link) {
            admission.detach(ifindex);
            admission.configure(link.number, None)?;
        }
        self.rest(ifindex);
        self.follow_htb()?;
        undone
    }

    /// Puts back what was there, and journals no more than what is still to be.
    fn undo(&mut self, before: Option<&Before>) -> Result<()> {
        let Some(before) = before else { return Ok(()) };
        let undone = before.put_back(false);
        match &undone {
            Ok(lines) => lines.iter().for_each(|line| tracing::debug!("{line}")),
            Err(error) => {
                let why = one_line(error);
                tracing::warn!("{why}");
                self.left.push((before.clone(), why));
            }
        }
        self.shorten_journal()?;
        undone.map(drop)
    }

    /// What could not be put back, as of a device that is out of reach, may be by now: devices have changed.
    pub fn retry(&mut self) -> Result<()> {
        if self.left.is_empty() {
            return Ok(());
        }
        self.left.retain(|(before, _)| match before.put_back(false) {
            Ok(lines) => {
                lines.iter().for_each(|line| tracing::info!("{line}"));
                false
            }
            Err(_) => true,
        });
        self.shorten_journal()
    }

    /// What could not be put back then is tried again, and is a hindrance on its own link only.
    fn undo_left(&mut self, ifindex: u32) -> Result<()> {
        if self.left.is_empty() {
            return Ok(());
        }
        let mut undone = Ok(());
        self.left.retain(|(before, _)| match before.put_back(false) {
            Ok(_) => false,
            Err(error) if before.ifindex == ifindex => {
                undone = Err(error);
                true
            }
            Err(_) => true,
        });
        self.shorten_journal()?;
        undone
    }

    fn shorten_journal(&mut self) -> Result<()> {
        let kept: Vec<&Before> = self
            .links
            .values()
            .filter_map(|link| link.before.as_ref())
            .chain(self.left.iter().map(|(before, _)| before))
            .collect();
        match kept.is_empty() {
            true => self.journal.clear(),
            false => self.journal.replace(kept),
        }
    }

    /// Writes what is in force for admission and the qdisc.
    fn configure(&self) -> Result<()> {
        let Some(admission) = &self.admission else {
            return Ok(());
        };
        let is_limited = |treatment: &Treatment| !treatment.limits.is_none();
        let containers = self.containers.as_ref().and_then(|loaded| loaded.as_ref().ok());
        let forwards = containers.is_some_and(Containers::is_attached);
        let limits_containers = containers.is_some_and(Containers::are_limited);
        let told = Told {
            background_flows: self.background.len(),
            treated_sockets: self.treated.len(),
            limits_processes: self.treated_processes.values().any(is_limited),
            limits_sockets: self.treated.values().any(is_limited) || limits_containers,
            detours: Some(&self.detours),
            forwards,
        };
        let mut links = self.links.values();
        links.try_for_each(|link| admission.configure(link.number, Some((&link.plan, told))))
    }

    fn follow_htb(&mut self) -> Result<()> {
        let serves = self.links.values().any(|link| link.plan.backend == Backend::Htb);
        self.admission
            .as_mut()
            .map_or(Ok(()), |admission| admission.follow_htb(serves))
    }

    /// From now on these packets are background, as those of `[[background]]` are.
    pub fn add_background(&mut self, flow: BackgroundFlow) -> Result<()> {
        let flow = flow.canonical();
        if let Some(admission) = &self.admission {
            admission.add_background(&flow)?;
        }
        self.background.insert(flow);
        self.configure()
    }

    /// What its class says of a socket; None: nothing.
    pub fn treat(&mut self, socket: Cookie, treatment: Option<Treatment>) -> Result<()> {
        if treatment.is_none() && self.treated.remove(&socket).is_none() {
            return Ok(());
        }
        if let Some(admission) = &self.admission {
            admission.treat(socket, treatment)?;
        }
        self.treated.extend(treatment.map(|treatment| (socket, treatment)));
        self.configure()
    }

    /// For each of these sockets the link in whose queue a packet of it was within the last moments; None: in none.
    pub fn trace(&self, sockets: Vec<Cookie>) -> Vec<(Cookie, Option<u32>)> {
        let on = |socket| self.admission.as_ref()?.queued_on(socket, TRACED_WITHIN);
        sockets.into_iter().map(|socket| (socket, on(socket))).collect()
    }

    /// The same of what a process connects.
    pub fn treat_process(&mut self, process: ProcessId, treatment: Option<Treatment>) -> Result<()> {
        if treatment.is_none() && self.treated_processes.remove(&process).is_none() {
            return Ok(());
        }
        if let Some(admission) = &self.admission {
            admission.treat_process(process, treatment)?;
        }
        self.treated_processes
            .extend(treatment.map(|treatment| (process, treatment)));
        self.configure()
    }

    /// The subnets of links whose rates are not for these, as their addresses are now.
    pub fn follow_networks(&mut self) -> Result<()> {
        let Some(admission) = &mut self.admission else {
            return Ok(());
        };
        let spares = |link: &&Link| link.plan.tuning.spares_local;
        let links: Vec<(u32, String)> = self
            .links
            .values()
            .filter(spares)
            .map(|link| (link.number, link.name.clone()))
            .collect();
        admission.follow_networks(&local::networks(&links)?)
    }

    /// The subnets that admission knows, by the links' interfaces.
    pub fn subnets(&self) -> BTreeMap<u32, Vec<Prefix>> {
        let networks = self.admission.iter().flat_map(Admission::networks);
        let mut subnets: BTreeMap<u32, Vec<Prefix>> = BTreeMap::new();
        for network in networks {
            let of_it = self.links.iter().find(|(_, link)| link.number == network.link);
            if let (Some((ifindex, _)), Some(subnet)) = (of_it, Prefix::new(network.address, network.bits)) {
                subnets.entry(*ifindex).or_default().push(subnet);
            }
        }
        subnets
    }

    /// What comes out of these devices is told apart by its cgroup, while anything is in force.
    /// `changed`: devices may have come or gone since the last time.
    ///
    /// # Errors
    /// Where it is to be asked for again.
    pub fn follow_containers(&mut self, changed: bool) -> Result<()> {
        let links: BTreeSet<u32> = self.links.keys().copied().collect();
        if !changed && self.followed.as_ref() == Some(&links) {
            return Ok(());
        }
        let mut devices = match self.links.is_empty() {
            true => BTreeMap::new(),
            false => uplink::veths(&mut self.netlink)?,
        };
        devices.retain(|ifindex, _| !links.contains(ifindex));
        self.followed = Some(links);
        if devices.is_empty() && self.containers.is_none() {
            return Ok(());
        }
        if self.containers().is_none()
            && let Some(admission) = &self.admission
        {
            self.containers = Some(Containers::load(&admission.shared.received.forwarded_treatments));
        }
        let outcome = match self.containers() {
            Some(containers) => containers.follow(devices),
            None => Err(anyhow!("containers' packets are not told apart yet")),
        };
        self.configure()?;
        outcome
    }

    /// Those that send.
    pub fn forwarding(&mut self) -> Result<BTreeSet<u64>> {
        self.containers()
            .map_or_else(|| Ok(BTreeSet::new()), Containers::sending)
    }

    /// What is forwarded for this cgroup; None: nothing is said of it.
    pub fn treat_forwarded(&mut self, cgroup: u64, told: Option<Forwarded>) -> Result<()> {
        let Some(containers) = self.containers() else {
            return Ok(());
        };
        containers.tell(cgroup, told)?;
        self.configure()
    }

    /// The containers whose downloads are limited.
    pub fn receiving(&self) -> Option<Receiving<'_>> {
        self.containers.as_ref()?.as_ref().ok()?.receiving()
    }

    fn containers(&mut self) -> Option<&mut Containers> {
        self.containers.as_mut()?.as_mut().ok()
    }
    pub fn is_in_force(&self) -> bool {
        !self.links.is_empty()
    }

    /// Refusals that were not fetched yet, oldest first.
    pub fn refusals(&self) -> Result<Vec<Refusal>> {
        self.admission.as_ref().map_or(Ok(Vec::new()), Admission::refusals)
    }

    /// By interface, where a queue is in force. What htb counts costs more to read: it may be this old.
    pub fn counters(&mut self, at_most_old: Duration) -> Result<BTreeMap<u32, QueueCounters>> {
        let Some(admission) = &self.admission else {
            return Ok(BTreeMap::new());
        };
        let mut all = BTreeMap::new();
        for (ifindex, link) in &mut self.links {
            if link.plan.backend == Backend::None {
                continue;
            }
            match link.counters(&mut self.netlink, admission, self.qdisc.as_ref(), at_most_old) {
                Ok(counters) => drop(all.insert(*ifindex, counters)),
                // It is just going away.
                Err(error) => tracing::debug!("{}: {error:#}", link.name),
            }
        }
        Ok(all)
    }

    /// What does not work of a queue that is in force, and why.
    pub fn missing(&self) -> Vec<String> {
        let left = self.left.iter().map(|(_, why)| why.clone());
        if self.links.is_empty() {
            return left.collect();
        }
        let nice = self.admission.as_ref().and_then(Admission::nice_missing);
        let early = self.admission.as_ref().and_then(Admission::early_missing);
        let is_gated = self.links.values().any(|link| link.plan.tuning.gate);
        let gate = self
            .qdisc
            .as_ref()
            .filter(|_| is_gated)
            .and_then(BpfQdisc::gate_missing);
        let containers = self.containers.as_ref().and_then(|loaded| loaded.as_ref().err());
        let containers = containers.map(|error| format!("containers' packets are not told apart: {error:#}"));
        let missing = [nice, early, gate, containers];
        missing.into_iter().flatten().chain(left).collect()
    }

    fn write_down(&mut self, ifindex: u32, name: &str, plan: &Plan) -> Result<Before> {
        let device = uplink::device(&mut self.netlink, ifindex)?;
        let root = qdisc::root(&mut self.netlink, ifindex)?;
        ensure!(
            !is_ours(&root.qdisc),
            "there is a qdisc of giveway's that is in no journal; delete it"
        );
        // It may have been changed since the engine saw it.
        let seen = RootQdisc {
            kind: root.qdisc.kind.clone(),
            handle: root.qdisc.handle,
            entangled: root.entangled,
            ours: false,
        };
        may_replace(name, &seen).map_err(|why| anyhow!(why))?;
        ensure!(
            !plan.only_if_free || seen.handle == 0,
            "another tool has put the qdisc {} on {name} in place of ours",
            seen.kind
        );
        let before = Before {
            ifindex,
            name: name.to_owned(),
            qdisc: root.qdisc,
            gso_max_segments: device.gso_max_segments,
            limits_segments: false,
            identity: Some(Identity::of(&mut self.netlink, ifindex)?),
        };
        self.journal.add([&before])?;
        Ok(before)
    }

    fn put_up(&mut self, ifindex: u32, name: &str, plan: &Plan) -> Result<()> {
        self.load(plan.backend)?;
        self.begin(ifindex, name, plan)?;
        let admission = self.admission.as_mut().context("admission is not loaded")?;
        admission.set_packet_rules(&plan.tuning.packet_rules)?;
        // Before anything is attached: it goes by this from its first packet on.
        self.configure()?;
        self.follow_networks()?;
        self.follow_htb()?;
        let admission = self.admission.as_mut().context("admission is not loaded")?;
        admission.attach(ifindex)?;
        let link = self.links.get_mut(&ifindex).context("the link has just gone")?;
        if let Some(before) = &link.before {
            check_unchanged(&mut self.netlink, before)?;
        }
        match (plan.backend, &mut self.qdisc) {
            (Backend::Qdisc, Some(qdisc)) => {
                // Unpinned it serves just as well, but cannot be put up again once this process is gone.
                if let Err(error) = self.place.pins().make(|folder| qdisc.pin(&folder.join(QDISC))) {
                    tracing::warn!("{error:#}");
                }
                qdisc.put_up(&mut self.netlink, ifindex)?;
                qdisc.watch_cpus(true);
            }
            (Backend::Htb, _) => htb::put_up(&mut self.netlink, plan)?,
            _ => return Ok(()),
        }
        self.limit_segments(ifindex, plan)
    }

    /// Gives the link its number, and writes down what stands there.
    fn begin(&mut self, ifindex: u32, name: &str, plan: &Plan) -> Result<()> {
        if let Some(link) = self.links.get_mut(&ifindex) {
            link.plan.clone_from(plan);
            return Ok(());
        }
        let admission = self.admission.as_ref().context("admission is not loaded")?;
        let is_free = |number: &u32| self.links.values().all(|link| link.number != *number);
        let number = (0..admission.links()).find(is_free);
        let number = number.with_context(|| format!("{} links are managed, which is the most", admission.links()))?;
        admission.forget(number)?;
        self.qdisc.as_ref().map_or(Ok(()), |qdisc| qdisc.forget(number))?;
        let before = match plan.backend {
            Backend::None => None,
            Backend::Qdisc | Backend::Htb => {
                self.undo_left(ifindex)?;
                Some(self.write_down(ifindex, name, plan)?)
            }
        };
        let link = Link {
            number,
            name: name.to_owned(),
            plan: plan.clone(),
            before,
            served: None,
            ordered: Some(0),
            put_off: None,
        };
        self.links.insert(ifindex, link);
        Ok(())
    }

    /// What the backend needs, unless it is loaded already.
    fn load(&mut self, backend: Backend) -> Result<()> {
        if self.admission.is_some() && (backend != Backend::Qdisc || self.qdisc.is_some()) {
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
                    self.nice_notes.as_ref().map(|map| map.as_fd()),
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
        if backend == Backend::Qdisc && self.qdisc.is_none() {
            self.qdisc = Some(BpfQdisc::register(
                netns_inum,
                &admission.shared,
                self.local_waits.as_ref(),
            )?);
        }
        crate::kernel::give_back_memory();
        Ok(())
    }

    fn limit_segments(&mut self, ifindex: u32, plan: &Plan) -> Result<()> {
        let before = self.links.get_mut(&ifindex).and_then(|link| link.before.as_mut());
        let before = before.context("what the queue was is not journalled")?;
        let found = uplink::device(&mut self.netlink, plan.ifindex)?.gso_max_segments;
        let is_single = found == SINGLE_SEGMENTS;
        let wanted = match (plan.single_segments, before.limits_segments) {
            (true, _) if !is_single => {
                (before.gso_max_segments, before.limits_segments) = (found, true);
                self.journal.add([&*before])?;
                SINGLE_SEGMENTS
            }
            (false, true) if is_single => {
                let wanted = before.gso_max_segments;
                set_gso_max_segments(&mut self.netlink, plan.ifindex, wanted)?;
                before.limits_segments = false;
                // What somebody else sets from now on is not ours to put back.
                let standing = self.links.values().filter_map(|link| link.before.as_ref());
                return self.journal.replace(standing);
            }
            _ => return Ok(()),
        };
        set_gso_max_segments(&mut self.netlink, plan.ifindex, wanted)
    }
}

impl Link {
    fn counters(
        &mut self,
        netlink: &mut Netlink,
        admission: &Admission,
        qdisc: Option<&BpfQdisc>,
        at_most_old: Duration,
    ) -> Result<QueueCounters> {
        let (served_at, served) = self.bands(netlink, qdisc, at_most_old)?;
        let counted = admission.counters(self.number)?;
        let band = |band: usize| Band {
            classified: counted.packets[band],
            served: served.map(|served| served[band]),
        };
        let bands = Bands {
            realtime: band(0),
            stream: band(1),
            best_effort: band(2),
            background: band(3),
        };
        let late = bands.realtime.served.and_then(|served| served.more);
        let [_, own, others, full, share, _] = counted.refused;
        Ok(QueueCounters {
            admitted: counted.admitted,
            refused: RefusedPackets {
                total: own + others + full + share,
                own,
                others,
                full,
                share,
            },
            late: late.map_or(0, |more| more.dropped_late),
            expired: counted.expired,
            untold: counted.events_lost,
            served_t_ns: served_at.as_nanos() as u64,
            only_ordered: counted.only_ordered,
            bands,
        })
    }

    /// When it was read, and what was.
    fn bands(
        &mut self,
        netlink: &mut Netlink,
        qdisc: Option<&BpfQdisc>,
        at_most_old: Duration,
    ) -> Result<(Duration, Option<[Served; BANDS]>)> {
        let now = now();
        match (self.plan.backend, qdisc) {
            (Backend::Htb, _) => {
                if let Some((read, served)) = self.served
                    && now.saturating_sub(read) < at_most_old
                {
                    return Ok((read, Some(served)));
                }
                let served = htb::bands(netlink, self.plan.ifindex)?;
                self.served = Some((now, served));
                Ok((now, Some(served)))
            }
            (Backend::Qdisc, Some(qdisc)) => Ok((now, Some(qdisc.bands(self.number)?))),
            _ => Ok((now, None)),
        }
    }
}

impl Entry for Before {
    fn put_back(&self, dry_run: bool) -> Result<Vec<String>> {
        let context = || {
            format!(
                "the queue of {} is not what it was; try `giveway revert` again",
                self.name
            )
        };
        put_back(&mut Netlink::open()?, self, dry_run).with_context(context)
    }
}

/// Another tool may have put its own there since it was written down. (What it does from here to the put-up, some microseconds, is not
/// seen: no call of the kernel's replaces one qdisc and no other.)
fn check_unchanged(netlink: &mut Netlink, before: &Before) -> Result<()> {
    let Some(root) = qdisc::find_root(netlink, before.ifindex)? else {
        return Ok(());
    };
    let now = root.qdisc;
    ensure!(
        now == before.qdisc || is_ours(&now),
        "another tool has just put {} on {} in place of {}",
        now.kind,
        before.name,
        before.qdisc.kind
    );
    Ok(())
}

/// Takes off each queue of ours that is in no journal: the folder of these was lost with the daemon and its guardian. What was there
/// before is not known, so the kernel's default comes. The caller holds the lock, and has undone what the journals know.
pub fn take_down_unjournalled() -> Result<Vec<String>> {
    let mut netlink = Netlink::open()?;
    let mut lines = download::remove_all(download::device::DOWN, false)?;
    lines.extend(upload::remove_all(false)?);
    for (ifindex, qdisc) in qdisc::roots(&mut netlink)? {
        if !is_ours(&qdisc) {
            continue;
        }
        // A device that has just gone took its queue with it.
        let Ok(name) = if_indextoname(ifindex) else { continue };
        let name = name.to_string_lossy().into_owned();
        netlink
            .change(RTM_DELQDISC, 0, &tcmsg(ifindex, HANDLE, ROOT))
            .with_context(|| {
                format!("giveway's queue on {name}, which no journal has: `tc qdisc del dev {name} root`")
            })?;
        let mut line = format!("qdisc of {name}, which no journal had, back to the kernel's default");
        if uplink::device(&mut netlink, ifindex)?.gso_max_segments == SINGLE_SEGMENTS {
            line += &format!(
                "; its gso_max_segs is 1, and what it was is not known: `ip link set {name} gso_max_segs 65535` is usual"
            );
        }
        lines.push(line);
    }
    Ok(lines)
}

fn put_back(netlink: &mut Netlink, before: &Before, dry_run: bool) -> Result<Vec<String>> {
    let found = match &before.identity {
        Some(identity) => identity.find(netlink, before.ifindex)?,
        None => Whereabouts::Here(before.ifindex),
    };
    let name = &before.name;
    match found {
        Whereabouts::Here(ifindex) => put_back_here(
            netlink,
            &Before {
                ifindex,
                ..before.clone()
            },
            dry_run,
        ),
        // It left its queue behind.
        Whereabouts::There { .. } if !before.limits_segments => Ok(Vec::new()),
        Whereabouts::There {
            namespace,
            ifindex,
            name: there,
        } => {
            let moved = Before {
                ifindex,
                ..before.clone()
            };
            let put_back = elsewhere::within(namespace, move || put_back_here(&mut Netlink::open()?, &moved, dry_run));
            let put_back = put_back.with_context(|| {
                format!(
                    "{name} has moved to another network namespace, and its gso_max_segs may still be {SINGLE_SEGMENTS} there; it is \
                     restored when it is back (or: `ip link set {there} gso_max_segs {}` in its namespace)",
                    before.gso_max_segments
                )
            })?;
            let in_its_place = |line| format!("{line} (in the namespace that it has moved to, as {there})");
            Ok(put_back.into_iter().map(in_its_place).collect())
        }
        // It took everything with it.
        Whereabouts::Gone => Ok(Vec::new()),
    }
}

fn put_back_here(netlink: &mut Netlink, before: &Before, dry_run: bool) -> Result<Vec<String>> {
    let device = match uplink::device(netlink, before.ifindex) {
        Err(error) if refused(&error) == Some(Errno::ENODEV) => return Ok(Vec::new()),
        device => device?,
    };
    let mut undone = Vec::new();
    // One that is down may have none.
    if qdisc::find_root(netlink, before.ifindex)?.is_some_and(|root| is_ours(&root.qdisc)) {
        undone.push(format!("qdisc of {} back to {}", before.name, before.qdisc.kind));
        if !dry_run {
            restore(netlink, before)?;
        }
    }
    if before.limits_segments && device.gso_max_segments == SINGLE_SEGMENTS {
        undone.push(format!(
            "gso_max_segs of {} back to {}",
            before.name, before.gso_max_segments
        ));
        if !dry_run {
            set_gso_max_segments(netlink, before.ifindex, before.gso_max_segments)?;
        }
    }
    Ok(undone)
}

fn restore(netlink: &mut Netlink, before: &Before) -> Result<()> {
    let Before { ifindex, qdisc, .. } = before;
    if qdisc.handle == 0 {
        // The kernel puts its default there.
        netlink.change(RTM_DELQDISC, 0, &tcmsg(*ifindex, HANDLE, ROOT))?;
    } else {
        let message = tcmsg(*ifindex, qdisc.handle, ROOT).text(qdisc::KIND, &qdisc.kind);
        let message = match &qdisc.options {
            Some(options) => message.attribute(qdisc::OPTIONS, options),
            None => message,
        };
        netlink.change(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, &message)?;
    }
    let now = qdisc::find_root(netlink, *ifindex)?.map(|root| root.qdisc);
    let is_back = match &now {
        // A device that is down gets its default when it comes up.
        None => qdisc.handle == 0,
        Some(now) if qdisc.handle == 0 => now.handle == 0,
        Some(now) => now == qdisc,
    };
    ensure!(is_back, "{now:?} stands there in place of {qdisc:?}");
    Ok(())
}

pub fn is_ours(qdisc: &Qdisc) -> bool {
    qdisc.handle == HANDLE && (qdisc.kind == htb::KIND || qdisc.kind.starts_with(bpf_qdisc::KIND_PREFIX))
}

fn set_gso_max_segments(netlink: &mut Netlink, ifindex: u32, segments: u32) -> Result<()> {
    let group = uplink::device(netlink, ifindex)?.group;
    // Connections keep the limit that they found with their route. Those over IPv4 look again after any change of a link
    // that the kernel tells of, as it does when a group is set, be it the same one. (So does a write to ipv4/route/flush; but
    // whoever lists that folder can keep it waiting.) IPv6 has no such means: its open connections keep the old limit, until
    // they end or their route changes.
    let message = uplink::ifinfomsg(ifindex)
        .attribute(IFLA_GSO_MAX_SEGS, &segments.to_ne_bytes())
        .attribute(IFLA_GROUP, &group.to_ne_bytes());
    netlink
        .change(RTM_NEWLINK, 0, &message)
        .context("cannot set gso_max_segs")?;
    Ok(())
}

fn refused(error: &anyhow::Error) -> Option<Errno> {
    error.downcast_ref::<Refused>().map(|refused| refused.0)
}
