// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Puts a queue up on the managed link and takes it down again. In come plans, out goes success or one reason, with
//! nothing of the plan left. It never decides, and never touches a qdisc that somebody put in place of ours.
//!
//! What was there is written down before anything is changed; [`undo`] puts it back from there, in this process or
//! after its death.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result, ensure};
use giveway_engine::config::{Config, Deadline};
use giveway_engine::queue::traffic::{Band, Bands, QueueCounters, Refusal, Refused as RefusedPackets, Served};
use giveway_engine::queue::{Backend, BackgroundFlow, Plan, Uplink};
use libbpf_rs::MapHandle;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::interface::Interface;
use crate::kernel::netlink::{Netlink, Refused};
use crate::kernel::qdisc::{self, Qdisc, ROOT, tcmsg};
use crate::kernel::uplink;
use crate::place::Place;

mod admission;
mod bpf_qdisc;
mod htb;
mod ingress;
mod sojourn;

use admission::Admission;
use bpf_qdisc::BpfQdisc;
use ingress::Ingress;

/// Of our root qdisc, whatever its kind ("gw").
const HANDLE: u32 = 0x6777_0000;
const SINGLE_SEGMENTS: u32 = 1;

/// What a device's queue was before it was touched.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Before {
    pub ifindex: u32,
    pub name: String,
    pub qdisc: Qdisc,
    pub gso_max_segments: u32,
}

pub struct QueueActuator {
    netlink: Netlink,
    place: Place,
    rules: Vec<Deadline>,
    /// What arrival.bpf.c knows of requests, for their answers.
    requests: Option<MapHandle>,
    background: BTreeSet<BackgroundFlow>,
    /// Loaded when the first queue is put up, and kept from then on.
    admission: Option<Admission>,
    qdisc: Option<BpfQdisc>,
    /// None unless it is asked for.
    ingress: Option<Result<Ingress>>,
    in_force: Option<Plan>,
}

impl QueueActuator {
    pub fn open(place: &Place, config: &Config, requests: Option<&MapHandle>) -> Result<Self> {
        let requests = requests.map(MapHandle::try_from).transpose();
        Ok(Self {
            requests: requests.context("cannot share what was received")?,
            netlink: Netlink::open()?,
            place: place.clone(),
            rules: config.deadline.clone(),
            background: config
                .background
                .iter()
                .map(|flow| BackgroundFlow::from(flow).canonical())
                .collect(),
            admission: None,
            qdisc: None,
            ingress: None,
            in_force: None,
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
        if self.place.journalled_queues()?.is_empty() {
            self.write_down(plan.ifindex, name)?;
        }
        self.put_up(plan).inspect_err(|_| {
            if let Err(error) = self.take_down() {
                tracing::warn!("{error:#}");
            }
        })
    }

    /// Takes everything of ours off the link; what is loaded stays so.
    pub fn take_down(&mut self) -> Result<()> {
        self.in_force = None;
        self.ingress = None;
        let undone = undo(&self.place, false);
        if let Some(admission) = &mut self.admission {
            admission.detach();
        }
        self.configure().and(undone).map(drop)
    }

    /// Tells admission and the qdisc what is in force.
    fn configure(&self) -> Result<()> {
        let Some(admission) = &self.admission else {
            return Ok(());
        };
        let plan = self.in_force.as_ref();
        let class_of_band = match plan.map(|plan| plan.backend) {
            Some(Backend::Htb) => htb::CLASS_OF_BAND,
            _ => [0; 3],
        };
        admission.configure(plan, class_of_band, self.background.len())
    }

    /// From now on these packets are background. False where they already were.
    pub fn add_background(&mut self, flow: BackgroundFlow) -> Result<bool> {
        let flow = flow.canonical();
        if self.background.contains(&flow) {
            return Ok(false);
        }
        if let Some(admission) = &self.admission {
            admission.add_background(&flow)?;
        }
        self.background.insert(flow);
        self.configure().map(|()| true)
    }

    /// And no longer. False where they were not.
    pub fn remove_background(&mut self, flow: BackgroundFlow) -> Result<bool> {
        let flow = flow.canonical();
        if !self.background.remove(&flow) {
            return Ok(false);
        }
        if let Some(admission) = &self.admission {
            admission.remove_background(&flow)?;
        }
        self.configure().map(|()| true)
    }

    pub fn background(&self) -> impl Iterator<Item = &BackgroundFlow> {
        self.background.iter()
    }

    pub fn is_in_force(&self) -> bool {
        self.in_force.is_some()
    }

    /// Refusals that nobody was told of yet, oldest first.
    pub fn refusals(&self) -> Result<Vec<Refusal>> {
        self.admission.as_ref().map_or(Ok(Vec::new()), Admission::refusals)
    }

    /// None before the first queue was put up.
    pub fn counters(&mut self) -> Result<Option<QueueCounters>> {
        let served = self.bands()?;
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
            best_effort: band(1),
            background: band(2),
        };
        let late = bands.realtime.served.and_then(|served| served.more);
        let [_, own, others, full, _] = counted.refused;
        Ok(Some(QueueCounters {
            admitted: counted.admitted,
            refused: RefusedPackets {
                total: own + others + full,
                own,
                others,
                full,
            },
            late: late.map_or(0, |more| more.dropped_late),
            expired: counted.expired,
            untold: counted.events_lost,
            bands,
        }))
    }

    fn bands(&mut self) -> Result<Option<[Served; 3]>> {
        match (&self.in_force, &self.qdisc) {
            (Some(plan), _) if plan.backend == Backend::Htb => htb::bands(&mut self.netlink, plan.ifindex).map(Some),
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
        let gate = self
            .qdisc
            .as_ref()
            .filter(|_| plan.gate)
            .and_then(BpfQdisc::gate_missing);
        let ingress = self.ingress.as_ref().and_then(|ingress| ingress.as_ref().err());
        let ingress = ingress.map(|error| format!("what arrives for background flows is not deferred: {error:#}"));
        [nice, gate, ingress].into_iter().flatten().collect()
    }

    fn write_down(&mut self, ifindex: u32, name: &str) -> Result<()> {
        let device = uplink::device(&mut self.netlink, ifindex)?;
        let root = qdisc::root(&mut self.netlink, ifindex)?;
        ensure!(
            !is_ours(&root.qdisc),
            "there is a qdisc of giveway's that nobody remembers; delete it"
        );
        self.place.journal_queue(&Before {
            ifindex,
            name: name.to_owned(),
            qdisc: root.qdisc,
            gso_max_segments: device.gso_max_segments,
        })
    }

    fn put_up(&mut self, plan: &Plan) -> Result<()> {
        self.load(plan.backend)?;
        // Before anything is attached: it goes by this from its first packet on.
        self.in_force = Some(plan.clone());
        self.configure()?;
        let admission = self.admission.as_mut().context("admission is not loaded")?;
        admission.attach(plan.ifindex)?;
        match (plan.backend, &self.qdisc) {
            (Backend::Qdisc, Some(qdisc)) => {
                // Unpinned it serves just as well, but cannot be put up again once this process is gone.
                if let Some(Err(error)) = self.place.qdisc_pin().map(|path| qdisc.pin(&path)) {
                    tracing::warn!("{error:#}");
                }
                qdisc.put_up(&mut self.netlink, plan.ifindex)?;
            }
            _ => htb::put_up(&mut self.netlink, plan)?,
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
        if self.admission.is_some() && (backend == Backend::Htb || self.qdisc.is_some()) {
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
                )?);
                for flow in &self.background {
                    admission.add_background(flow)?;
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
        let wanted = if plan.single_segments {
            SINGLE_SEGMENTS
        } else {
            let known = self.place.journalled_queues()?;
            let before = known.iter().find(|before| before.ifindex == plan.ifindex);
            before.context("nobody wrote down what the queue was")?.gso_max_segments
        };
        if uplink::device(&mut self.netlink, plan.ifindex)?.gso_max_segments == wanted {
            return Ok(());
        }
        set_gso_max_segments(&mut self.netlink, plan.ifindex, wanted)
    }
}

/// Puts back what the journal tells of, or in a dry run only finds it; says what, a line each. What another tool has
/// changed since is its own.
pub fn undo(place: &Place, dry_run: bool) -> Result<Vec<String>> {
    let known = place.journalled_queues()?;
    if known.is_empty() {
        return Ok(Vec::new());
    }
    let mut netlink = Netlink::open()?;
    let mut undone = Vec::new();
    let mut failed = None;
    for before in &known {
        match put_back(&mut netlink, before, dry_run) {
            Ok(lines) => undone.extend(lines),
            Err(error) => failed = Some(error.context(format!("the qdisc of {} is not what it was", before.name))),
        }
    }
    match failed {
        Some(error) => return Err(error),
        None if !dry_run => {
            if let Some(pin) = place.qdisc_pin() {
                let _ = fs::remove_file(pin);
            }
            place.clear_queue_journal()?;
        }
        None => {}
    }
    Ok(undone)
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
    if device.gso_max_segments == SINGLE_SEGMENTS && before.gso_max_segments != SINGLE_SEGMENTS {
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
