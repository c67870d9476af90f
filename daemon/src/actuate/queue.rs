// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Puts a queue up on the managed link, tunes it, and takes it down again. Input: plans. Output: success or one reason,
//! with nothing of the plan left. It never decides, and never touches a qdisc that another tool put in place of ours.
//!
//! What was there is journalled before anything is changed ([`Before`]), and put back from there, in this process or after
//! its death.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use giveway_engine::class::{RateLimit, Treatment};
use giveway_engine::config::{Config, Deadline};
use giveway_engine::matcher::ProcessId;
use giveway_engine::model::Cookie;
use giveway_engine::network::queue::traffic::{Band, Bands, QueueCounters, Refusal, Refused as RefusedPackets, Served};
use giveway_engine::network::queue::{Backend, BackgroundFlow, Plan, Tuning, Uplink};
use libbpf_rs::MapHandle;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::interface::Interface;
use crate::journal::{Entry, Journal};
use crate::kernel::netlink::{Netlink, Refused};
use crate::kernel::now;
use crate::kernel::qdisc::{self, Qdisc, ROOT, tcmsg};
use crate::kernel::uplink;
use crate::pins::QDISC;
use crate::place::{JournalFile, Place};

pub mod admission;
mod bpf_qdisc;
mod htb;
mod ingress;
mod sojourn;

use admission::Admission;
use bpf_qdisc::BpfQdisc;
use ingress::Ingress;

/// The queue of a rate limit may stand for so many full packets of its rate: TCP holds at least two of each socket there,
/// and with shorter queues many slow sockets lose so many that they do not reach the limit.
const LIMIT_TARGET_PACKETS: u64 = 200;
/// Real time, streams, best effort, background.
const BANDS: usize = 4;
/// Of our root qdisc, whatever its kind ("gw").
const HANDLE: u32 = 0x6777_0000;
const SINGLE_SEGMENTS: u32 = 1;
/// Background flows that a user may have added, all users but root together, and everybody: those of the configuration,
/// 1,024 at most, fit into the kernel's table with them.
const FLOWS_OF_A_USER: usize = 256;
const FLOWS_OF_USERS: usize = 1024;
const FLOWS_ADDED: usize = 2048;

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
}

fn of_earlier_versions() -> bool {
    true
}

pub struct QueueActuator {
    netlink: Netlink,
    place: Place,
    journal: Journal<Before>,
    /// As it was journalled.
    before: Option<Before>,
    rules: Vec<Deadline>,
    /// What arrival.bpf.c knows of requests, for their answers.
    requests: Option<MapHandle>,
    /// Of tasks that giveway makes nice itself; None: it makes none.
    nice_notes: Option<MapHandle>,
    /// With the user who added it; None for one of the configuration.
    background: Named,
    /// What is said of sockets by their classes.
    treated: BTreeMap<Cookie, Treatment>,
    /// And of processes, for what they connect.
    treated_processes: BTreeMap<ProcessId, Treatment>,
    /// Loaded when the first queue is put up, and kept from then on.
    admission: Option<Admission>,
    qdisc: Option<BpfQdisc>,
    /// None unless it is asked for.
    ingress: Option<Result<Ingress>>,
    in_force: Option<Plan>,
    /// What htb has counted, and when that was read.
    served: Option<(Duration, [Served; BANDS])>,
}

type Named = BTreeMap<BackgroundFlow, Option<u32>>;

impl QueueActuator {
    pub fn open(
        place: &Place,
        config: &Config,
        requests: Option<&MapHandle>,
        nice_notes: Option<&MapHandle>,
    ) -> Result<Self> {
        let requests = requests.map(MapHandle::try_from).transpose();
        let nice_notes = nice_notes.map(MapHandle::try_from).transpose();
        Ok(Self {
            nice_notes: nice_notes.context("cannot share the notes of nice tasks")?,
            requests: requests.context("cannot share what was received")?,
            netlink: Netlink::open()?,
            place: place.clone(),
            journal: Journal::at(place.journal(JournalFile::Queue)),
            before: None,
            rules: config.deadline.clone(),
            background: config
                .background
                .iter()
                .map(|flow| (BackgroundFlow::from(flow).canonical(), None))
                .collect(),
            treated: BTreeMap::new(),
            treated_processes: BTreeMap::new(),
            admission: None,
            qdisc: None,
            ingress: None,
            in_force: None,
            served: None,
        })
    }

    /// The link as it is now.
    pub fn look(&mut self, interface: &Interface) -> Result<Uplink> {
        uplink::look(&mut self.netlink, interface.index, &interface.name, is_ours)
    }

    /// Puts the plan up, in place of whatever of ours stands. None only takes ours down.
    pub fn set(&mut self, plan: Option<&Plan>, name: &str) -> Result<()> {
        let Some(plan) = plan else {
            return self.take_down();
        };
        let goes_on = |old: &Plan| (old.ifindex, old.backend) == (plan.ifindex, plan.backend);
        if self.in_force.as_ref().is_some_and(|old| !goes_on(old)) {
            self.take_down()?;
        }
        if self.before.is_none() && plan.backend != Backend::None {
            // What could not be taken down then is no hindrance now.
            let undone = self.journal.undo();
            ensure!(undone.failed.is_empty(), "{}", undone.failed.join("; "));
            self.before = Some(self.write_down(plan.ifindex, name)?);
        }
        self.put_up(plan).inspect_err(|_| self.give_up())
    }

    /// Changes the numbers that the queue in force goes by. After an error nothing of it is left.
    pub fn tune(&mut self, tuning: &Tuning) -> Result<()> {
        self.write_tuning(tuning).inspect_err(|_| self.give_up())
    }

    fn give_up(&mut self) {
        if let Err(error) = self.take_down() {
            tracing::warn!("{error:#}");
        }
    }

    fn write_tuning(&mut self, tuning: &Tuning) -> Result<()> {
        let plan = self.in_force.as_mut().context("no queue is in force")?;
        plan.tuning.clone_from(tuning);
        if let Some(admission) = &mut self.admission {
            admission.set_packet_rules(&tuning.packet_rules)?;
        }
        self.configure()?;
        match (&self.in_force, &self.qdisc) {
            (Some(plan), _) if plan.backend == Backend::Htb => htb::tune(&mut self.netlink, plan),
            (_, Some(qdisc)) => qdisc.set_limits(tuning),
            _ => Ok(()),
        }
    }

    /// Takes everything of ours off the link; what is loaded stays so.
    pub fn take_down(&mut self) -> Result<()> {
        self.in_force = None;
        self.served = None;
        self.ingress = None;
        self.before = None;
        let undone = self.journal.undo();
        if let Some(admission) = &mut self.admission {
            admission.detach();
        }
        self.configure()?;
        ensure!(undone.failed.is_empty(), "{}", undone.failed.join("; "));
        Ok(())
    }

    /// Writes what is in force for admission and the qdisc.
    fn configure(&self) -> Result<()> {
        let Some(admission) = &self.admission else {
            return Ok(());
        };
        let plan = self.in_force.as_ref();
        admission.configure(plan, self.background.len(), self.treated.len())
    }

    /// From now on these packets are background, as this user asks. False where they already were.
    pub fn add_background(&mut self, flow: BackgroundFlow, uid: u32) -> Result<bool> {
        let flow = flow.canonical();
        if let Some(by) = self.background.get_mut(&flow) {
            // What root wants too, a user cannot take back.
            *by = by.map(|by| if uid == 0 { 0 } else { by });
            return Ok(false);
        }
        self.has_room_for(uid)?;
        if let Some(admission) = &self.admission {
            admission.add_background(&flow)?;
        }
        self.background.insert(flow, Some(uid));
        self.configure().map(|()| true)
    }

    fn has_room_for(&self, uid: u32) -> Result<()> {
        let added = || self.background.values().flatten();
        let own = added().filter(|by| **by == uid).count();
        let (of_users, all) = (added().filter(|by| **by != 0).count(), added().count());
        ensure!(
            uid == 0 || own < FLOWS_OF_A_USER,
            "uid {uid} has added {own} flows, which is the most; remove one of them first"
        );
        ensure!(
            all < FLOWS_ADDED && (uid == 0 || of_users < FLOWS_OF_USERS),
            "{all} flows were added, {of_users} of them by users, which is the most; one has to be removed first"
        );
        Ok(())
    }

    /// And no longer, if this user made them so, or is root. False where they were not.
    pub fn remove_background(&mut self, flow: BackgroundFlow, uid: u32) -> Result<bool> {
        let flow = flow.canonical();
        let Some(by) = self.background.get(&flow) else {
            return Ok(false);
        };
        if uid != 0 && *by != Some(uid) {
            let Some(by) = by else {
                bail!("the configuration made this flow background; only root takes it back");
            };
            bail!("uid {by} made this flow background; only that user and root take it back");
        }
        self.background.remove(&flow);
        if let Some(admission) = &self.admission {
            admission.remove_background(&flow)?;
        }
        self.configure().map(|()| true)
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
        Ok(())
    }

    pub fn background(&self) -> impl Iterator<Item = &BackgroundFlow> {
        self.background.keys()
    }

    pub fn is_in_force(&self) -> bool {
        self.in_force.is_some()
    }

    /// Refusals that were not fetched yet, oldest first.
    pub fn refusals(&self) -> Result<Vec<Refusal>> {
        self.admission.as_ref().map_or(Ok(Vec::new()), Admission::refusals)
    }

    /// None before the first queue was put up. What htb counts costs more to read: it may be this old.
    pub fn counters(&mut self, at_most_old: Duration) -> Result<Option<QueueCounters>> {
        if self.in_force.as_ref().is_some_and(|plan| plan.backend == Backend::None) {
            return Ok(None);
        }
        let served = self.bands(at_most_old)?;
        let Some(admission) = &self.admission else {
            return Ok(None);
        };
        let counted = admission.counters()?;
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
        Ok(Some(QueueCounters {
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
            bands,
        }))
    }

    fn bands(&mut self, at_most_old: Duration) -> Result<Option<[Served; BANDS]>> {
        match (&self.in_force, &self.qdisc) {
            (Some(plan), _) if plan.backend == Backend::Htb => {
                if let Some((read, served)) = self.served
                    && now().saturating_sub(read) < at_most_old
                {
                    return Ok(Some(served));
                }
                let served = htb::bands(&mut self.netlink, plan.ifindex)?;
                self.served = Some((now(), served));
                Ok(Some(served))
            }
            (_, Some(qdisc)) => qdisc.bands().map(Some),
            _ => Ok(None),
        }
    }

    /// What does not work of a queue that is in force, and why.
    pub fn missing(&self) -> Vec<String> {
        let Some(plan) = &self.in_force else {
            return Vec::new();
        };
        let nice = self.admission.as_ref().and_then(Admission::nice_missing);
        let early = self.admission.as_ref().and_then(Admission::early_missing);
        let gate = self
            .qdisc
            .as_ref()
            .filter(|_| plan.tuning.gate)
            .and_then(BpfQdisc::gate_missing);
        let ingress = self.ingress.as_ref().and_then(|ingress| ingress.as_ref().err());
        let ingress = ingress.map(|error| format!("what arrives for background flows is not deferred: {error:#}"));
        [nice, early, gate, ingress].into_iter().flatten().collect()
    }

    fn write_down(&mut self, ifindex: u32, name: &str) -> Result<Before> {
        let device = uplink::device(&mut self.netlink, ifindex)?;
        let root = qdisc::root(&mut self.netlink, ifindex)?;
        ensure!(
            !is_ours(&root.qdisc),
            "there is a qdisc of giveway's that is in no journal; delete it"
        );
        let before = Before {
            ifindex,
            name: name.to_owned(),
            qdisc: root.qdisc,
            gso_max_segments: device.gso_max_segments,
            limits_segments: false,
        };
        self.journal.add([&before])?;
        Ok(before)
    }

    fn put_up(&mut self, plan: &Plan) -> Result<()> {
        self.load(plan.backend)?;
        // Before anything is attached: it goes by this from its first packet on.
        self.in_force = Some(plan.clone());
        if let Some(admission) = &mut self.admission {
            admission.set_packet_rules(&plan.tuning.packet_rules)?;
        }
        self.configure()?;
        let admission = self.admission.as_mut().context("admission is not loaded")?;
        admission.follow_htb(plan.backend == Backend::Htb)?;
        admission.attach(plan.ifindex)?;
        match (plan.backend, &mut self.qdisc) {
            (Backend::Qdisc, Some(qdisc)) => {
                // Unpinned it serves just as well, but cannot be put up again once this process is gone.
                if let Err(error) = self.place.pins().make(|folder| qdisc.pin(&folder.join(QDISC))) {
                    tracing::warn!("{error:#}");
                }
                qdisc.set_limits(&plan.tuning)?;
                qdisc.put_up(&mut self.netlink, plan.ifindex)?;
            }
            (Backend::Htb, _) => htb::put_up(&mut self.netlink, plan)?,
            _ => return Ok(()),
        }
        if !plan.ingress {
            self.ingress = None;
        } else if self.ingress.is_none() {
            self.ingress = Some(Ingress::attach(
                plan.ifindex,
                admission.shared.background_answers.as_fd(),
            ));
        }
        self.limit_segments(plan)
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
                )?);
                // Whatever is in the table, the queue starts.
                let mut lost = Vec::new();
                for flow in self.background.keys() {
                    if let Err(error) = admission.add_background(flow) {
                        tracing::warn!("{}: {error:#}", flow.address);
                        lost.push(*flow);
                    }
                }
                self.background.retain(|flow, _| !lost.contains(flow));
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
            self.qdisc = Some(BpfQdisc::register(netns_inum, &admission.shared)?);
        }
        crate::kernel::give_back_memory();
        Ok(())
    }

    fn limit_segments(&mut self, plan: &Plan) -> Result<()> {
        let before = self.before.as_mut().filter(|before| before.ifindex == plan.ifindex);
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
                before.limits_segments = false;
                before.gso_max_segments
            }
            _ => return Ok(()),
        };
        set_gso_max_segments(&mut self.netlink, plan.ifindex, wanted)
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

fn put_back(netlink: &mut Netlink, before: &Before, dry_run: bool) -> Result<Vec<String>> {
    let device = match uplink::device(netlink, before.ifindex) {
        // It took everything with it.
        Err(error) if refused(&error) == Some(Errno::ENODEV) => return Ok(Vec::new()),
        device => device?,
    };
    let mut undone = Vec::new();
    if is_ours(&qdisc::root(netlink, before.ifindex)?.qdisc) {
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
        netlink.change(libc::RTM_DELQDISC, 0, &tcmsg(*ifindex, HANDLE, ROOT))?;
    } else {
        let message = tcmsg(*ifindex, qdisc.handle, ROOT).text(qdisc::KIND, &qdisc.kind);
        let message = match &qdisc.options {
            Some(options) => message.attribute(qdisc::OPTIONS, options),
            None => message,
        };
        netlink.change(libc::RTM_NEWQDISC, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, &message)?;
    }
    let now = qdisc::root(netlink, *ifindex)?.qdisc;
    ensure!(
        if qdisc.handle == 0 {
            now.handle == 0
        } else {
            now == *qdisc
        },
        "{now:?} stands there in place of {qdisc:?}"
    );
    Ok(())
}

/// How long the queue of a rate limit may stand (RFC 8289).
fn target_us(limit: &RateLimit, tuning: &Tuning) -> u64 {
    let packet_us = u64::from(tuning.max_packet_bytes) * 1_000_000 / limit.bytes_per_s.max(1);
    (LIMIT_TARGET_PACKETS * packet_us).max(tuning.sojourn_target_us.into())
}

fn is_ours(qdisc: &Qdisc) -> bool {
    qdisc.handle == HANDLE && (qdisc.kind == htb::KIND || qdisc.kind.starts_with(bpf_qdisc::KIND_PREFIX))
}

fn set_gso_max_segments(netlink: &mut Netlink, ifindex: u32, segments: u32) -> Result<()> {
    let message = uplink::ifinfomsg(ifindex).attribute(libc::IFLA_GSO_MAX_SEGS, &segments.to_ne_bytes());
    netlink
        .change(libc::RTM_NEWLINK, 0, &message)
        .context("cannot set gso_max_segs")?;
    // Connections keep the limit that they found with their route; this makes those over IPv4 look again. IPv6 has no
    // such means: its open connections keep the old limit, until they end or their route changes.
    let _ = fs::write("/proc/sys/net/ipv4/route/flush", "1");
    Ok(())
}

fn refused(error: &anyhow::Error) -> Option<Errno> {
    error.downcast_ref::<Refused>().map(|refused| refused.0)
}
