// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits and order for what arrives: bpf/download.bpf.c at the way in of links sends what is limited, or yields, by an
//! intermediate device (ifb), whose queue ([`tree`]) holds it. Input: plans. Output: success or one reason, with nothing of the
//! plan left; and what has come.
//!
//! The programs are not pinned: when this process dies they are gone, and packets go the way that they always went. What is left is the
//! device, which nothing is sent to any more. It is journalled before it is made, and known by its alias whatever it is called.
//!
//! Taking down loses nothing: first the rates go, then what waits drains, then the programs are detached, last the device goes.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use giveway_engine::back_off::BackOff;
use giveway_engine::downlink::{Arrival, Arrived, Counted, DetourPlan, LeftOut};
use giveway_engine::model::LimitNumber;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use serde::{Deserialize, Serialize};

use crate::actuate::filters::{FilteredDevice, Filters};
use crate::actuate::queue::admission::ReceiveMaps;
use crate::journal::register::{JournalFile, UndoHandler};
use crate::journal::{Entry, Journal};
use crate::kernel::libbpf_log::explain;
use crate::kernel::netlink::Netlink;
use crate::kernel::records;
use crate::kernel::skeletons::download as skeleton;
use crate::kernel::skeletons::download::types;
use crate::kernel::tcx::{self, TcxHook};
use crate::kernel::{now, uplink, way_in};
use crate::place::Place;

pub mod containers;
pub mod device;
mod refusals;
pub mod tree;

use containers::{ContainerDownloads, Receiving};
use device::{DOWN, IfbDevice};
use tree::{OrderedLink, Tree};

/// A port that no socket has any more is forgotten within twice this time.
const PORTS_AGE: Duration = Duration::from_secs(60);
/// What waits behind a limit is gone within this time once the limit is.
const DRAINS_WITHIN: Duration = Duration::from_millis(200);
const DRAIN_STEP: Duration = Duration::from_millis(2);

/// The intermediate device, as it is journalled.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Detour {
    /// As it was made; by its alias it is found whatever it is called by now.
    pub device: String,
}

/// What is journalled here.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(untagged)]
pub enum DownloadEntry {
    /// At the egress of a container's device.
    Filter(FilteredDevice),
    Device(Detour),
}

pub const UNDO: UndoHandler = UndoHandler::of::<DownloadEntry>(JournalFile::Downlink);

impl From<FilteredDevice> for DownloadEntry {
    fn from(filtered: FilteredDevice) -> Self {
        Self::Filter(filtered)
    }
}

pub struct DownloadActuator {
    netlink: Netlink,
    journal: Journal<DownloadEntry>,
    standing: Option<InstalledDownload>,
}

struct InstalledDownload {
    ifindex: u32,
    program: OwnedFd,
    /// By interface, with its name.
    links: BTreeMap<u32, (String, OwnedFd)>,
    _comes_back: OwnedFd,
    tree: Tree,
    /// Where downloads of containers are limited.
    containers: Option<ContainerDownloads>,
    /// Why they are not, and when that is tried again.
    containers_failed: Option<(BackOff, String)>,
    ports: MapHandle,
    arrived: MapHandle,
    state: MapHandle,
    /// When the older set of ports was cleared.
    cleared: Duration,
}

impl DownloadActuator {
    pub fn open(place: &Place) -> Result<Self> {
        Ok(Self {
            netlink: Netlink::open()?,
            journal: Journal::at(place.journal(UNDO.file)),
            standing: None,
        })
    }

    /// Puts the plan up, or changes what is there into it; None takes everything down. `shared`: what admission knows. `numbers`:
    /// by which it knows links, by interface. Returns the links that have refused.
    ///
    /// # Errors
    /// Where all of it fails; then nothing is left.
    pub fn set(
        &mut self,
        plan: Option<&DetourPlan>,
        shared: Option<&ReceiveMaps>,
        numbers: &BTreeMap<u32, u32>,
    ) -> Result<LeftOut> {
        let Some(plan) = plan else {
            return self.take_down().map(|()| LeftOut::new());
        };
        let install = self.install(plan, shared, numbers);
        install.inspect_err(|_| self.give_up())
    }

    fn install(
        &mut self,
        plan: &DetourPlan,
        shared: Option<&ReceiveMaps>,
        numbers: &BTreeMap<u32, u32>,
    ) -> Result<LeftOut> {
        let mut standing = match self.standing.take() {
            Some(standing) => standing,
            None => self.begin(shared.context("admission is not loaded")?)?,
        };
        let done = standing.follow(&mut self.netlink, plan, numbers);
        self.standing = Some(standing);
        done
    }

    /// The device with its queue, and the programs; no packet takes the detour yet.
    fn begin(&mut self, shared: &ReceiveMaps) -> Result<InstalledDownload> {
        // One that was left behind, as by a daemon whose folder was lost.
        device::remove(&mut self.netlink, DOWN)?;
        let detour = Detour {
            device: DOWN.name.to_owned(),
        };
        self.journal.add([&DownloadEntry::Device(detour)])?;
        let ifindex = device::make(&mut self.netlink, DOWN)?;
        let tree = Tree::install(&mut self.netlink, ifindex)?;
        let standing = InstalledDownload::load(ifindex, tree, shared)?;
        device::switch_on(&mut self.netlink, ifindex)?;
        Ok(standing)
    }

    /// Why what was installed does not work any more, if it does not; at the next [`Self::set`] it is made anew.
    pub fn lost(&mut self, numbers: &BTreeMap<u32, u32>) -> Option<String> {
        let standing = self.standing.as_mut()?;
        let reason = standing.check(&mut self.netlink, numbers).err()?;
        let reason = format!("{reason:#}");
        self.give_up();
        Some(reason)
    }

    fn give_up(&mut self) {
        if let Err(error) = self.take_down() {
            tracing::warn!("{error:#}");
        }
    }

    pub fn take_down(&mut self) -> Result<()> {
        let mut standing = self.standing.take();
        if let Some(standing) = &standing
            && let Err(error) = drain(&mut self.netlink, standing.ifindex)
        {
            // It may just be gone.
            tracing::debug!("{error:#}");
        }
        let containers = standing.as_mut().and_then(|standing| standing.containers.take());
        let ended = containers.map_or(Ok(()), |containers| containers.end(&mut self.netlink));
        drop(standing);
        device::remove(&mut self.netlink, DOWN)?;
        ended?;
        self.journal.clear()
    }

    /// What these containers receive is limited, too; None: there are none.
    pub fn follow_containers(&mut self, receiving: Option<Receiving<'_>>, shared: Option<&ReceiveMaps>) -> Result<()> {
        let Some(standing) = &mut self.standing else {
            return Ok(());
        };
        let Some((receiving, shared)) = receiving.zip(shared) else {
            let containers = standing.containers.take();
            standing.containers_failed = None;
            return containers.map_or(Ok(()), |containers| containers.end(&mut self.netlink));
        };
        let waits = |(again, _): &(BackOff, String)| again.next().is_some_and(|next| next > now());
        if standing.containers_failed.as_ref().is_some_and(waits) {
            return Ok(());
        }
        let followed = standing.limit_containers(&mut self.netlink, &mut self.journal, &receiving, shared);
        match &followed {
            Ok(()) => standing.containers_failed = None,
            Err(error) => {
                let (again, reason) = standing.containers_failed.get_or_insert_default();
                again.failed(now());
                *reason = format!("what arrives for containers is not limited: {error:#}");
            }
        }
        followed
    }

    /// Why what containers receive is not limited, of those of which it is not.
    pub fn missing(&self) -> Vec<String> {
        let containers = self.standing.as_ref().and_then(|standing| standing.containers.as_ref());
        let failed = self
            .standing
            .iter()
            .filter_map(|standing| standing.containers_failed.as_ref());
        let failed = failed.map(|(_, reason)| reason.clone());
        failed
            .chain(containers.map(ContainerDownloads::missing).unwrap_or_default())
            .collect()
    }

    /// These local ports are looked at, although nothing may leave by them any more.
    pub fn note_ports(&self, ports: &BTreeSet<u16>) -> Result<()> {
        match &self.standing {
            Some(standing) if !ports.is_empty() => standing.note_ports(ports),
            _ => Ok(()),
        }
    }

    /// What each limit, and what yields, has let pass; None: not looked at now.
    pub fn counted(&mut self) -> Option<Counted> {
        let Some(standing) = &mut self.standing else {
            return Some(Counted::default());
        };
        let counted = standing.tree.counted(&mut self.netlink);
        counted
            .inspect_err(|error| tracing::debug!("{error:#}"))
            .unwrap_or_default()
    }

    /// What has come by links where it is ordered, by interface.
    pub fn arrived(&self) -> BTreeMap<u32, Arrived> {
        let Some(standing) = &self.standing else {
            return BTreeMap::new();
        };
        let of_link = |(number, ifindex)| Some((ifindex, standing.arrived_on(number)?));
        standing.tree.ordered().filter_map(of_link).collect()
    }

    /// Bulk and background that arrive by these interfaces have so much together from now on, bytes a second.
    pub fn make_available(&mut self, available: &BTreeMap<u32, u64>) -> Result<()> {
        let Some(standing) = &self.standing else {
            return Ok(());
        };
        for (ifindex, bytes_per_s) in available {
            standing
                .tree
                .make_available(&mut self.netlink, *ifindex, *bytes_per_s)?;
        }
        Ok(())
    }

    /// The ways in of these links, as they are now.
    pub fn arrivals(&mut self, links: &[(u32, String)]) -> Result<Vec<Arrival>> {
        let chains = way_in::filtered()?;
        let program = self.standing.as_ref().map(|standing| standing.program.as_fd());
        let mut arrivals = Vec::new();
        for (ifindex, name) in links {
            let hindrance = way_in::hindrance(&mut self.netlink, *ifindex, name, &chains);
            let bridge = device::bridge_of(&mut self.netlink, *ifindex);
            let device = uplink::device(&mut self.netlink, *ifindex);
            let others = program.and_then(|program| way_in::others_before(*ifindex, program).ok());
            // One that has just gone is told of by the next look at the links.
            let (Ok(hindrance), Ok(bridge), Ok(device)) = (hindrance, bridge, device) else {
                continue;
            };
            arrivals.push(Arrival {
                ifindex: *ifindex,
                name: name.clone(),
                hindrance,
                bridge,
                mtu_bytes: device.mtu_bytes,
                others: others.unwrap_or(0),
            });
        }
        Ok(arrivals)
    }
}

impl InstalledDownload {
    fn load(ifindex: u32, tree: Tree, shared: &ReceiveMaps) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::DownloadSkelBuilder::default();
        let mut open = explain("open the limits of what arrives", || builder.open(&mut storage))?;
        let constants = open.maps.rodata_data.as_deref_mut();
        let constants = constants.context("the limits of what arrives have no constants")?;
        constants.ifb_ifindex = ifindex;
        constants.is_fair = tree.is_fair();
        explain("share what is said of sockets", || {
            open.maps.treated_sockets.reuse_fd(shared.treated_sockets.as_fd())?;
            open.maps.new_sockets.reuse_fd(shared.new_sockets.as_fd())?;
            open.maps.packet_rules.reuse_fd(shared.packet_rules.as_fd())?;
            open.maps
                .forwarded_treatments
                .reuse_fd(shared.forwarded_treatments.as_fd())?;
            open.maps
                .treatment_of_flows
                .reuse_fd(shared.treatment_of_flows.as_fd())?;
            open.maps.link_config.reuse_fd(shared.link_config.as_fd())?;
            open.maps.local_networks.reuse_fd(shared.local_networks.as_fd())?;
            open.maps.download_ports.reuse_fd(shared.download_ports.as_fd())
        })?;
        let skeleton = explain("load the limits of what arrives", || open.load())?;
        let keep = |map| MapHandle::try_from(map).context("cannot keep a map of the limits of what arrives");
        let comes_back = tcx::attach(skeleton.progs.gw_return.as_fd(), ifindex, TcxHook::Egress)?;
        Ok(Self {
            ifindex,
            program: skeleton.progs.gw_redirect.as_fd().try_clone_to_owned()?,
            links: BTreeMap::new(),
            _comes_back: comes_back,
            tree,
            containers: None,
            containers_failed: None,
            ports: keep(&skeleton.maps.download_ports)?,
            arrived: keep(&skeleton.maps.arrived)?,
            state: keep(&skeleton.maps.bss)?,
            cleared: now(),
        })
    }

    fn limit_containers(
        &mut self,
        netlink: &mut Netlink,
        journal: &mut Journal<DownloadEntry>,
        receiving: &Receiving<'_>,
        shared: &ReceiveMaps,
    ) -> Result<()> {
        let containers = match &mut self.containers {
            Some(containers) => containers,
            none => {
                let filters = Filters::load(self.ifindex, self.tree.is_fair())?;
                none.insert(ContainerDownloads::load(filters, shared, receiving.cgroups)?)
            }
        };
        containers.follow(netlink, journal, &receiving.devices)?;
        if journal.is_long(containers.filters()) {
            let device = DownloadEntry::Device(Detour {
                device: DOWN.name.to_owned(),
            });
            let filters: Vec<DownloadEntry> = containers.filtered().map(DownloadEntry::Filter).collect();
            journal.replace([&device].into_iter().chain(&filters))?;
        }
        Ok(())
    }

    fn follow(&mut self, netlink: &mut Netlink, plan: &DetourPlan, numbers: &BTreeMap<u32, u32>) -> Result<LeftOut> {
        let mut ordered = BTreeMap::new();
        for (ifindex, most) in &plan.orders {
            let number = numbers.get(ifindex).context("the link is not managed any more")?;
            let link = OrderedLink {
                ifindex: *ifindex,
                most: *most,
            };
            ordered.insert(*number, link);
        }
        let limits: BTreeSet<LimitNumber> = plan.limits.iter().map(|limit| limit.number).collect();
        let largest = largest_packet(plan);
        self.tree.follow(netlink, &plan.limits, &ordered, largest)?;
        self.links.retain(|ifindex, _| plan.links.contains_key(ifindex));
        let mut left_out = LeftOut::new();
        for (ifindex, name) in &plan.links {
            if self.links.contains_key(ifindex) {
                continue;
            }
            match tcx::attach(self.program.as_fd(), *ifindex, TcxHook::Ingress) {
                Ok(link) => drop(self.links.insert(*ifindex, (name.clone(), link))),
                Err(error) => drop(left_out.insert(*ifindex, format!("{error:#}"))),
            }
        }
        // Nothing new comes to what is no limit any more.
        self.tree.forget(netlink, &limits, &ordered)?;
        Ok(left_out)
    }

    /// # Errors
    /// Where it does not work any more.
    fn check(&mut self, netlink: &mut Netlink, numbers: &BTreeMap<u32, u32>) -> Result<()> {
        let name = DOWN.name;
        let Ok(device) = uplink::device(netlink, self.ifindex) else {
            bail!("the intermediate device {name} is gone");
        };
        if !device.up || self.is_closed()? {
            bail!("the intermediate device {name} was switched off");
        }
        if !self.tree.stands(netlink)? {
            bail!("another tool has changed the queue of the intermediate device {name}");
        }
        // Its queue was installed anew meanwhile.
        let mut ordered = self.tree.ordered();
        if ordered.any(|(number, ifindex)| numbers.get(&ifindex).is_some_and(|now| *now != number)) {
            bail!("a link has another number now");
        }
        drop(ordered);
        for (ifindex, (name, link)) in &mut self.links {
            if !tcx::is_attached(link.as_fd()).unwrap_or(true) {
                // Somebody has taken it off; or the device is gone, which the links will show.
                match tcx::attach(self.program.as_fd(), *ifindex, TcxHook::Ingress) {
                    Ok(anew) => *link = anew,
                    Err(_) if uplink::device(netlink, *ifindex).is_err() => {}
                    Err(error) => return Err(error.context(format!("the program at the ingress of {name} is gone"))),
                }
                continue;
            }
            // What was put there since sees everything too, if it comes before.
            if !way_in::is_last(*ifindex, self.program.as_fd())? {
                tracing::info!("another program was attached at the ingress of {name}: giveway's goes behind it");
                tcx::detach(link.as_fd())?;
                *link = tcx::attach(self.program.as_fd(), *ifindex, TcxHook::Ingress)?;
            }
        }
        self.age_ports()
    }

    fn arrived_on(&self, number: u32) -> Option<Arrived> {
        let of_all = self.arrived.lookup_percpu(&number.to_ne_bytes(), MapFlags::ANY);
        let of_all = of_all.inspect_err(|error| tracing::debug!("{error:#}")).ok()??;
        let of_one = of_all.iter().filter_map(|bytes| records::record(bytes));
        let sum = of_one.fold(Arrived::default(), |sum, of_one: types::gw_arrived| Arrived {
            passed_bytes: sum.passed_bytes.wrapping_add(of_one.passed),
            ordered_bytes: sum.ordered_bytes.wrapping_add(of_one.ordered),
        });
        Some(sum)
    }

    fn is_closed(&self) -> Result<bool> {
        let bytes = self.state.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
        Ok(bytes.is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0)))
    }

    /// The older set of ports is cleared, and is the newer one from then on. What is noted meanwhile is noted again by the next
    /// packet that the socket sends.
    fn age_ports(&mut self) -> Result<()> {
        if now().saturating_sub(self.cleared) < PORTS_AGE {
            return Ok(());
        }
        self.cleared = now();
        self.change_ports(|newer, noted| {
            let older = usize::from(newer[0] & 1 == 0);
            newer[0] = u8::from(older == 1);
            let sets = noted.chunks_mut(PORT_BYTES);
            sets.skip(older).take(1).for_each(|set| set.fill(0));
        })
    }

    fn note_ports(&self, ports: &BTreeSet<u16>) -> Result<()> {
        self.change_ports(|newer, noted| {
            let newer = usize::from(newer[0] & 1) * PORT_BYTES;
            for port in ports {
                // The kernel's words are of 64 bits.
                let (word, bit) = (usize::from(port >> 6) * 8, u64::from(port & 63));
                let Some(bytes) = noted.get_mut(newer + word..newer + word + 8) else {
                    continue;
                };
                let mut value = [0; 8];
                value.copy_from_slice(bytes);
                bytes.copy_from_slice(&(u64::from_ne_bytes(value) | 1 << bit).to_ne_bytes());
            }
        })
    }

    /// Which of both sets is the newer one, and both, as struct gw_ports of bpf/ports.h has them.
    fn change_ports(&self, change: impl FnOnce(&mut [u8], &mut [u8])) -> Result<()> {
        let key = 0u32.to_ne_bytes();
        let mut ports = self.ports.lookup(&key, MapFlags::ANY)?.context("there are no ports")?;
        let before = ports.clone();
        let (newer, noted) = ports
            .split_at_mut_checked(PORTS_AT)
            .context("the ports have another size")?;
        change(newer, noted);
        if ports == before {
            return Ok(());
        }
        self.ports
            .update(&key, &ports, MapFlags::ANY)
            .context("cannot note ports")
    }
}

/// In struct gw_ports of bpf/ports.h: a bit a port.
const PORTS_AT: usize = 8;
const PORT_BYTES: usize = 8 * types::gw_ports_size::GW_PORT_WORDS.0 as usize;

/// With its link header.
pub fn largest_packet(plan: &DetourPlan) -> u32 {
    plan.mtu_bytes.max(1500).saturating_add(HEADER_BYTES)
}

/// Ethernet's, and a tag's.
const HEADER_BYTES: u32 = 18;

/// What waits goes at once.
pub fn drain(netlink: &mut Netlink, ifindex: u32) -> Result<()> {
    tree::lift(netlink, ifindex)?;
    wait_for(|| Ok(tree::waiting(netlink, ifindex)? == 0))
}

/// Not for long.
fn wait_for(mut is_over: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = now();
    while !is_over()? && now().saturating_sub(begun) < DRAINS_WITHIN {
        sleep(DRAIN_STEP);
    }
    Ok(())
}

impl Entry for DownloadEntry {
    fn restore(&self, dry_run: bool) -> Result<Vec<String>> {
        match self {
            Self::Filter(filtered) => filtered.restore(dry_run),
            Self::Device(_) => remove_all(DOWN, dry_run),
        }
    }
}

/// Removes every device of this kind, once what waits in it has gone.
pub fn remove_all(device: IfbDevice, dry_run: bool) -> Result<Vec<String>> {
    let mut netlink = Netlink::open()?;
    let mut lines = Vec::new();
    for (ifindex, name) in device::ours(&mut netlink, device)? {
        if !dry_run && let Err(error) = drain(&mut netlink, ifindex) {
            tracing::debug!("{error:#}");
        }
        lines.push(format!("the intermediate device {name} is removed"));
    }
    match dry_run {
        true => Ok(lines),
        false => device::remove(&mut netlink, device).map(|()| lines),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_down_is_read_again() {
        let device = DownloadEntry::Device(Detour {
            device: DOWN.name.to_owned(),
        });
        let filter = DownloadEntry::Filter(FilteredDevice {
            ifindex: 7,
            name: "veth0".to_owned(),
            made_clsact: true,
        });
        for taken in [device, filter] {
            let line = serde_json::to_string(&taken).unwrap();
            assert_eq!(serde_json::from_str::<DownloadEntry>(&line).unwrap(), taken);
        }
    }
}
