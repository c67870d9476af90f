// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits for what containers receive: bpf/container.bpf.c at the egress of their veth devices marks what is limited, and a
//! filter behind it sends that by the intermediate device. Input: the devices, and what admission knows. Output: the same, but for
//! devices that refuse.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};

use anyhow::{Context as _, Result, anyhow};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use super::DownloadEntry;
use super::refusals::Refusals;
use crate::actuate::filters::{self, FilteredDevice, Filters};
use crate::actuate::queue::admission::ReceiveMaps;
use crate::journal::Journal;
use crate::kernel::libbpf_log::explain;
use crate::kernel::netlink::Netlink;
use crate::kernel::skeletons::container as skeleton;
use crate::kernel::tcx::{self, TcxHook};
use crate::kernel::uplink::Veth;
use crate::kernel::way_in;

/// The containers whose downloads are limited, as the queue tells of them.
pub struct Receiving<'a> {
    /// Numbers by cgroup.
    pub cgroups: &'a MapHandle,
    /// By which these have sent, by interface.
    pub devices: BTreeMap<u32, &'a Veth>,
}

pub struct ContainerDownloads {
    program: OwnedFd,
    namespaces: MapHandle,
    filters: Filters,
    attached: BTreeMap<u32, OwnedFd>,
    refusals: Refusals,
}

impl ContainerDownloads {
    pub fn load(filters: Filters, shared: &ReceiveMaps, cgroups: &MapHandle) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::ContainerSkelBuilder::default();
        let mut open = explain("open the limits of containers", || builder.open(&mut storage))?;
        explain("share what is said of containers", || {
            open.maps.treated_sockets.reuse_fd(shared.treated_sockets.as_fd())?;
            open.maps.new_sockets.reuse_fd(shared.new_sockets.as_fd())?;
            open.maps.packet_rules.reuse_fd(shared.packet_rules.as_fd())?;
            open.maps
                .treatment_of_flows
                .reuse_fd(shared.treatment_of_flows.as_fd())?;
            open.maps.link_config.reuse_fd(shared.link_config.as_fd())?;
            open.maps
                .forwarded_treatments
                .reuse_fd(shared.forwarded_treatments.as_fd())?;
            open.maps.forwarded.reuse_fd(cgroups.as_fd())
        })?;
        let skeleton = explain("load the limits of containers", || open.load())?;
        Ok(Self {
            program: skeleton.progs.gw_to_container.as_fd().try_clone_to_owned()?,
            namespaces: MapHandle::try_from(&skeleton.maps.namespaces).context("cannot keep the map of namespaces")?,
            filters,
            attached: BTreeMap::new(),
            refusals: Refusals::default(),
        })
    }

    /// At these devices, as far as another namespace is behind them, and at no others.
    pub fn follow(
        &mut self,
        netlink: &mut Netlink,
        journal: &mut Journal<DownloadEntry>,
        devices: &BTreeMap<u32, &Veth>,
    ) -> Result<()> {
        let lead = devices
            .iter()
            .filter_map(|(ifindex, veth)| Some((*ifindex, (*veth, veth.netns?))));
        let lead: BTreeMap<u32, (&Veth, u32)> = lead.collect();
        self.attached.retain(|ifindex, link| {
            let stays = lead.contains_key(ifindex) && tcx::is_attached(link.as_fd()).unwrap_or(true);
            if !stays {
                let _ = self.namespaces.delete(&ifindex.to_ne_bytes());
            }
            stays
        });
        self.refusals.keep(|ifindex| lead.contains_key(ifindex));
        for (ifindex, (veth, netns)) in &lead {
            if self.refusals.of(*ifindex).is_none()
                && let Err(error) = self.attach(*ifindex, *netns)
            {
                self.refusals.note(*ifindex, &veth.name, &error);
            }
        }
        self.notice_lost(netlink);
        let with_clsact = way_in::with_clsact(netlink)?;
        let mut wanted = BTreeMap::new();
        for (ifindex, (veth, _)) in &lead {
            if self.refusals.of(*ifindex).is_some() || !self.attached.contains_key(ifindex) {
                continue;
            }
            match filters::hindrance(netlink, &with_clsact, *ifindex, &veth.name) {
                None => drop(wanted.insert(*ifindex, veth.name.clone())),
                Some(reason) => self.refusals.note(*ifindex, &veth.name, &anyhow!(reason)),
            }
        }
        let left_out = self.filters.follow(netlink, journal, &wanted)?;
        for (ifindex, name) in &wanted {
            match left_out.get(ifindex) {
                Some(reason) => self.refusals.note(*ifindex, name, &anyhow!(reason.clone())),
                None => self.refusals.forget(*ifindex),
            }
        }
        Ok(())
    }

    fn attach(&mut self, ifindex: u32, netns: u32) -> Result<()> {
        self.namespaces
            .update(&ifindex.to_ne_bytes(), &netns.to_ne_bytes(), MapFlags::ANY)
            .context("cannot say which namespace is behind it")?;
        if !self.attached.contains_key(&ifindex) {
            let link = tcx::attach(self.program.as_fd(), ifindex, TcxHook::Egress)?;
            self.attached.insert(ifindex, link);
        }
        Ok(())
    }

    /// Why some containers' downloads are not limited.
    pub fn missing(&self) -> Vec<String> {
        let of_device =
            |(name, reason): (&str, &str)| format!("what arrives for containers by {name} is not limited: {reason}");
        self.refusals.waiting().map(of_device).collect()
    }

    /// Whose filter somebody has taken off; the others have theirs.
    fn notice_lost(&mut self, netlink: &mut Netlink) {
        for (ifindex, name) in self.filters.lost(netlink) {
            let reason = anyhow!("another tool has removed the filter at the egress of {name}");
            self.refusals.note(ifindex, &name, &reason);
        }
    }

    pub fn filters(&self) -> usize {
        self.filters.devices().len()
    }

    pub fn filtered(&self) -> impl Iterator<Item = FilteredDevice> {
        self.filters.devices().values().cloned()
    }

    pub fn end(self, netlink: &mut Netlink) -> Result<()> {
        self.filters.end(netlink)
    }
}
