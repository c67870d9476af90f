// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loads bpf/admission.bpf.c once, onto the egress of each managed link, where it puts each packet into its band and
//! refuses deadlines that cannot be kept. Input: plans, rules and background flows; output: counters and refusals. It
//! ends with the process; the queue that is left then gets unclassified packets until it is undone too.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::class::flow_table::MOST_TREATED;
use giveway_engine::class::forwarded::MOST_CGROUPS;
use giveway_engine::class::processes::MOST_PROCESSES;
use giveway_engine::class::{MOST_COMMAND_LIMITS, MOST_LIMITS, MOST_PACKET_RULES, PacketRule};
use giveway_engine::config::MOST_LINKS;
use giveway_engine::config::{Deadline, MOST_FLOWS};
use giveway_engine::model::{Cookie, ProcessId, Treatment};
use giveway_engine::queue::traffic::Refusal;
use giveway_engine::queue::{BackgroundFlow, Plan};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle, MapMut, ProgramMut};

use crate::kernel::bpf::attach_to_tracepoint;
use crate::kernel::libbpf_log::explain;
use crate::kernel::records::{bytes_of, lookup, record};
use crate::kernel::ring::Ring;
use crate::kernel::skeletons::admission as skeleton;
use crate::kernel::tcx::{self, TcxHook};
use crate::kernel::{cgroup, check_release, now};
use skeleton::types;

mod records;

pub use records::number_of;
use records::{config_of, has_limits, key_of, network_key, packet_rule_of, refusal, rule_of};
pub use types::gw_admission_counters as Counters;

/// Before this Linux no program of this kind may read the storage of tasks: who was reniced by giveway, and what was chosen.
const NOTES_NEED: (u32, u32) = (6, 16);
/// More than the ring holds; so a flood of refusals cannot keep the caller for ever.
const EVENTS_AT_ONCE: usize = 1_024;

/// What the engine counts on.
const _: () = {
    use types::gw_most as most;
    assert!(MOST_LINKS == most::GW_LINKS.0 as usize);
    assert!(MOST_FLOWS == most::GW_DEADLINE_RULES.0 as usize && MOST_FLOWS == most::GW_BACKGROUND_FLOWS.0 as usize);
    assert!(MOST_PACKET_RULES == most::GW_PACKET_RULES.0 as usize);
    assert!(MOST_LIMITS == most::GW_LIMITS_OF_RULES.0 as usize);
    assert!(MOST_LIMITS + MOST_COMMAND_LIMITS == most::GW_LIMITS.0 as usize - 1);
    assert!(MOST_TREATED == most::GW_TREATED_SOCKETS.0 as usize);
    assert!(MOST_PROCESSES == most::GW_TREATED_PROCESSES.0 as usize);
    assert!(MOST_CGROUPS == most::GW_FORWARDED_CGROUPS.0 as usize);
};

/// The loaded program; dropping it takes it off the links.
pub struct Admission {
    program: OwnedFd,
    /// The interfaces that it is attached to.
    attached: BTreeMap<u32, OwnedFd>,
    /// Sees what leaves htb.
    leave: OwnedFd,
    leaving: Option<OwnedFd>,
    /// Sockets of tasks at nice 19 are background, unless this failed.
    nice: Result<Link>,
    /// Connections have their class from their first packet on, unless this failed.
    early: Result<[Link; 3]>,
    pub shared: Shared,
    rules: u32,
    /// Answers have their requests' deadlines.
    inherits: bool,
    treated_sockets: MapHandle,
    treated_processes: MapHandle,
    background_flows: MapHandle,
    packet_rules: MapHandle,
    local_networks: MapHandle,
    /// As they are written there.
    networks: BTreeSet<LocalNetwork>,
    /// What was written, and how often.
    written: (Vec<PacketRule>, u32),
    counters: MapHandle,
    events: Ring<types::gw_queue_event>,
}

/// The maps that other programs work on as well.
pub struct Shared {
    pub link_state: MapHandle,
    pub link_config: MapHandle,
    pub queue_events: MapHandle,
    /// For download.bpf.c.
    pub received: ReceiveMaps,
}

/// By which what arrives follows the same decisions as what leaves.
pub struct ReceiveMaps {
    pub treated_sockets: MapHandle,
    pub new_sockets: MapHandle,
    pub packet_rules: MapHandle,
    /// Of cgroups whose packets are forwarded.
    pub forwarded_treatments: MapHandle,
    pub treatment_of_flows: MapHandle,
    pub link_config: MapHandle,
    pub download_ports: MapHandle,
    pub local_networks: MapHandle,
}

/// A subnet of the link of this number.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct LocalNetwork {
    pub link: u32,
    pub address: IpAddr,
    pub bits: u8,
}

/// What there is to look up, so that a packet looks for nothing else.
#[derive(Clone, Copy, Default)]
pub struct PacketLookups<'a> {
    pub background_flows: usize,
    pub treated_sockets: usize,
    /// Of some processes there is a limit.
    pub limits_processes: bool,
    /// Of some sockets or cgroups there is one.
    pub limits_sockets: bool,
    /// The links at whose egress what is limited takes a detour.
    pub detours: Option<&'a BTreeSet<u32>>,
    /// Of some packets it is said whose they are.
    pub forwards: bool,
}

/// Who makes tasks nice, and whether giveway's doing can be told from the users' word.
enum Nice<'a> {
    ByUsers,
    Saved(BorrowedFd<'a>),
    ByAnybody,
}

impl Admission {
    /// Loads it for the namespace of this number, which must be the caller's own. Touches no link yet.
    /// `requests`: of arrival.bpf.c, where there are chains. `saved_tasks`: of tasks that giveway renices, if it makes any.
    pub fn load(
        netns_inum: u32,
        rules: &[Deadline],
        requests: Option<BorrowedFd<'_>>,
        saved_tasks: Option<BorrowedFd<'_>>,
        records: Option<BorrowedFd<'_>>,
    ) -> Result<Self> {
        let load = |nice| Self::load_with(netns_inum, rules, requests, nice, records);
        let Some(saved) = saved_tasks else {
            return load(Nice::ByUsers);
        };
        let saved = load(Nice::Saved(saved));
        saved.or_else(|error| {
            match check_release(NOTES_NEED) {
                Err(_) => tracing::debug!("{error:#}"),
                Ok(()) => tracing::warn!("what giveway reniced counts as reniced by its user: {error:#}"),
            }
            load(Nice::ByAnybody)
        })
    }

    fn load_with(
        netns_inum: u32,
        rules: &[Deadline],
        requests: Option<BorrowedFd<'_>>,
        nice: Nice<'_>,
        records: Option<BorrowedFd<'_>>,
    ) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::AdmissionSkelBuilder::default();
        let mut open = explain("open admission", || builder.open(&mut storage))?;
        configure(&mut open, netns_inum, requests, nice, records)?;
        let skeleton = explain("load admission", || open.load())?;
        let (programs, maps) = (&skeleton.progs, &skeleton.maps);
        for rule in rules {
            let (key, value) = rule_of(rule);
            maps.deadline_rules
                .update(bytes_of(&key), bytes_of(&value), MapFlags::ANY)
                .context("cannot pass a [[deadline]] rule to admission")?;
        }
        let at_root = |what: &str, program: &ProgramMut<'_>| {
            let root = cgroup::CgroupRoot::open()?;
            explain(what, || program.attach_cgroup(root.directory.as_raw_fd()))
        };
        let nice = at_root("mark the sockets of tasks at nice 19", &programs.gw_flag_nice);
        let connecting = |program| at_root("see who connects", program);
        let early = connecting(&programs.gw_connect_v4).and_then(|v4| {
            Ok([
                v4,
                connecting(&programs.gw_connect_v6)?,
                connecting(&programs.gw_shorten)?,
            ])
        });
        let shared = Shared {
            link_state: keep(&maps.link_state)?,
            link_config: keep(&maps.link_config)?,
            queue_events: keep(&maps.queue_events)?,
            received: receive_maps(maps)?,
        };
        Ok(Self {
            program: programs.gw_admit.as_fd().try_clone_to_owned()?,
            attached: BTreeMap::new(),
            leave: programs.gw_leave.as_fd().try_clone_to_owned()?,
            leaving: None,
            nice,
            early,
            treated_processes: keep(&maps.treated_processes)?,
            events: Ring::open("refusals", &shared.queue_events)?,
            shared,
            rules: u32::try_from(rules.len())?,
            inherits: requests.is_some(),
            treated_sockets: keep(&maps.treated_sockets)?,
            background_flows: keep(&maps.background_flows)?,
            packet_rules: keep(&maps.packet_rules)?,
            local_networks: keep(&maps.local_networks)?,
            networks: BTreeSet::new(),
            written: (Vec::new(), 0),
            counters: keep(&maps.admission_counters)?,
        })
    }

    /// Why sockets of tasks at nice 19 are not known; None if they are.
    pub fn nice_missing(&self) -> Option<String> {
        self.nice.as_ref().err().map(|error| format!("{error:#}"))
    }

    /// Why a connection's first packets have no class by its process; None if they have.
    pub fn early_missing(&self) -> Option<String> {
        self.early.as_ref().err().map(|error| format!("{error:#}"))
    }

    /// What both programs go by from now on, on the link of this number. None: there is none, every packet passes.
    pub fn configure(&self, number: u32, plan: Option<(&Plan, PacketLookups<'_>)>) -> Result<()> {
        let mut config = plan.map(|(plan, _)| config_of(plan)).unwrap_or_default();
        let lookups = plan.map(|(_, lookups)| lookups).unwrap_or_default();
        config.number = number;
        config.packet_rules = u32::try_from(self.written.0.len())?;
        config.rules_of = self.written.1;
        config.rules = self.rules;
        if self.inherits {
            config.flags |= types::gw_link_flag::GW_INHERIT.0;
        }
        if plan.is_some_and(|(plan, lookups)| lookups.detours.is_some_and(|links| links.contains(&plan.ifindex))) {
            config.flags |= types::gw_link_flag::GW_REDIRECT.0;
        }
        if lookups.limits_processes {
            config.flags |= types::gw_link_flag::GW_LIMITED_PROCESSES.0;
        }
        if plan.is_some_and(|(plan, lookups)| lookups.limits_sockets || lookups.limits_processes || has_limits(plan)) {
            config.flags |= types::gw_link_flag::GW_LIMITED.0;
        }
        if lookups.forwards {
            config.flags |= types::gw_link_flag::GW_FORWARDED.0;
        }
        config.background_flows = u32::try_from(lookups.background_flows)?;
        config.treated_sockets = u32::try_from(lookups.treated_sockets)?;
        self.shared
            .link_config
            .update(&number.to_ne_bytes(), bytes_of(&config), MapFlags::ANY)
            .context("cannot configure admission")
    }

    /// Attaches it to this interface, behind whatever else is attached there.
    pub fn attach(&mut self, ifindex: u32) -> Result<()> {
        if self.is_on(ifindex) != Some(true) {
            let attached = tcx::attach(self.program.as_fd(), ifindex, TcxHook::Egress)?;
            self.attached.insert(ifindex, attached);
        }
        Ok(())
    }

    /// Whether it is still attached to the device that it was attached to under this number; None: to none, as far as can
    /// be told.
    pub fn is_on(&self, ifindex: u32) -> Option<bool> {
        let attached = tcx::is_attached(self.attached.get(&ifindex)?.as_fd());
        attached.inspect_err(|error| tracing::debug!("{error:#}")).ok()
    }

    pub fn detach(&mut self, ifindex: u32) {
        self.attached.remove(&ifindex);
    }

    /// How many links there can be.
    pub fn links(&self) -> u32 {
        self.shared.link_config.max_entries()
    }

    /// What was promised and counted on a link that had this number before is not the next one's.
    pub fn forget(&self, number: u32) -> Result<()> {
        for map in [&self.shared.link_state, &self.counters] {
            let nothing = vec![0; map.value_size() as usize];
            map.update(&number.to_ne_bytes(), &nothing, MapFlags::ANY)
                .context("cannot forget what was promised on an earlier link")?;
        }
        Ok(())
    }

    /// Of what htb serves, admission learns by the packets that leave; the BPF qdisc tells by itself.
    pub fn follow_htb(&mut self, serves: bool) -> Result<()> {
        if !serves {
            self.leaving = None;
        } else if self.leaving.is_none() {
            let link = attach_to_tracepoint(&self.leave);
            self.leaving = Some(link.context("cannot see what leaves htb (tracepoint qdisc_dequeue)")?);
        }
        Ok(())
    }

    /// In the order in which they count. Active with the next [`Self::configure`].
    pub fn set_packet_rules(&mut self, rules: &[PacketRule]) -> Result<()> {
        // What they say of flows is remembered for as long as they are these.
        if self.written.0 == rules {
            return Ok(());
        }
        for (at, rule) in (0u32..).zip(rules) {
            self.packet_rules
                .update(&at.to_ne_bytes(), bytes_of(&packet_rule_of(rule)), MapFlags::ANY)
                .context("cannot tell the queue of a rule")?;
        }
        self.written = (rules.to_vec(), self.written.1.wrapping_add(1));
        Ok(())
    }

    /// Whatever its packets are marked with; None: by these, and by packet rules.
    pub fn treat(&self, socket: Cookie, treatment: Option<Treatment>) -> Result<()> {
        let key = socket.0.to_ne_bytes();
        let value = treatment.map(|treatment| types::gw_treated_socket {
            treatment: number_of(treatment),
            ..types::gw_treated_socket::default()
        });
        let done = match &value {
            Some(value) => self.treated_sockets.update(&key, bytes_of(value), MapFlags::ANY),
            None => self.treated_sockets.delete(&key),
        };
        done.context("cannot tell the queue of a flow")
    }

    /// The link in whose queue a packet of this socket was within so much time; None: in none.
    pub fn queued_on(&self, socket: Cookie, within: Duration) -> Option<u32> {
        let bytes = self.treated_sockets.lookup(&socket.0.to_ne_bytes(), MapFlags::ANY);
        let treated: types::gw_treated_socket = record(&bytes.ok()??)?;
        let queued = Duration::from_nanos(treated.queued_ns);
        (treated.queued_ns > 0 && now().saturating_sub(queued) < within).then_some(treated.queued_on)
    }

    /// What it connects, until more is known.
    pub fn treat_process(&self, process: ProcessId, treatment: Option<Treatment>) -> Result<()> {
        let key = process.pid.to_ne_bytes();
        let value = treatment.map(|treatment| types::gw_treated_process {
            start_ns: process.start_ns,
            treatment: number_of(treatment),
            reserved: 0,
        });
        let done = match &value {
            Some(value) => self.treated_processes.update(&key, bytes_of(value), MapFlags::ANY),
            None => self.treated_processes.delete(&key),
        };
        done.context("cannot tell the queue of a process")
    }

    /// The subnets of the links of these numbers, which their rates are not for.
    pub fn follow_networks(&mut self, networks: &BTreeSet<LocalNetwork>) -> Result<()> {
        let most = self.local_networks.max_entries() as usize;
        let networks: BTreeSet<LocalNetwork> = networks.iter().take(most).copied().collect();
        for gone in self.networks.difference(&networks) {
            let _ = self.local_networks.delete(bytes_of(&network_key(gone)));
        }
        for new in networks.difference(&self.networks) {
            let key = network_key(new);
            let added = self.local_networks.update(bytes_of(&key), &[1], MapFlags::ANY);
            added.context("cannot tell the queue of a subnet")?;
        }
        self.networks = networks;
        Ok(())
    }

    pub fn networks(&self) -> &BTreeSet<LocalNetwork> {
        &self.networks
    }

    pub fn add_background(&self, flow: &BackgroundFlow) -> Result<()> {
        self.background_flows
            .update(bytes_of(&key_of(flow)), &[1], MapFlags::ANY)
            .context("cannot tell the queue of a background flow")
    }

    pub fn counters(&self, number: u32) -> Result<Counters> {
        let counters = lookup(&self.counters, number, "admission's counters")?;
        counters.context("admission has no counters")
    }

    /// Readable when refusals wait; but admission wakes no reader, so look at each poll.
    pub fn refusals(&self) -> Result<Vec<Refusal>> {
        let arrived = self.events.take(EVENTS_AT_ONCE)?;
        Ok(arrived.iter().filter_map(refusal).collect())
    }
}

impl Shared {
    /// The maps of the qdisc, by the names that they have in every object.
    pub fn by_name(&self) -> [(&'static str, BorrowedFd<'_>); 3] {
        [
            ("link_state", self.link_state.as_fd()),
            ("link_config", self.link_config.as_fd()),
            ("queue_events", self.queue_events.as_fd()),
        ]
    }
}

/// What it is loaded with.
fn configure(
    open: &mut skeleton::OpenAdmissionSkel<'_>,
    netns_inum: u32,
    requests: Option<BorrowedFd<'_>>,
    nice: Nice<'_>,
    records: Option<BorrowedFd<'_>>,
) -> Result<()> {
    let constants = open.maps.rodata_data.as_deref_mut();
    let constants = constants.context("admission has no constants")?;
    constants.netns_inum = netns_inum;
    constants.nice_makers = match &nice {
        Nice::ByUsers => types::gw_nice_makers::GW_NICE_BY_USERS,
        Nice::Saved(_) => types::gw_nice_makers::GW_NICE_SAVED,
        Nice::ByAnybody => types::gw_nice_makers::GW_NICE_BY_ANYBODY,
    };
    constants.has_records = records.is_some() && check_release(NOTES_NEED).is_ok();
    if let Some(records) = records {
        explain("use what was chosen for tasks", || {
            open.maps.gw_records_3.reuse_fd(records)
        })?;
    }
    if let Nice::Saved(saved) = nice {
        explain("use the saved state of reniced tasks", || {
            open.maps.gw_saved_tasks.reuse_fd(saved)
        })?;
    }
    if let Some(requests) = requests {
        explain("share what was received", || {
            open.maps.chain_requests.reuse_fd(requests)
        })?;
    }
    Ok(())
}

fn keep(map: &MapMut<'_>) -> Result<MapHandle> {
    MapHandle::try_from(map).context("cannot keep a map of admission")
}

fn receive_maps(maps: &skeleton::AdmissionMaps<'_>) -> Result<ReceiveMaps> {
    Ok(ReceiveMaps {
        treated_sockets: keep(&maps.treated_sockets)?,
        new_sockets: keep(&maps.new_sockets)?,
        packet_rules: keep(&maps.packet_rules)?,
        forwarded_treatments: keep(&maps.forwarded_treatments)?,
        treatment_of_flows: keep(&maps.treatment_of_flows)?,
        link_config: keep(&maps.link_config)?,
        download_ports: keep(&maps.download_ports)?,
        local_networks: keep(&maps.local_networks)?,
    })
}
