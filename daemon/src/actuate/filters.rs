// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bpf/upload.bpf.c, a filter of clsact at the egress of devices: it sends the packets that are marked for it by an intermediate
//! device (ifb), and they come back. The device's own queue stays what it is. Input: devices. Output: the same, but for those that
//! refuse.
//!
//! Filters stay where this process dies. They do nothing then: the program that marks packets for them is gone. What is
//! journalled for each device takes them off.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use anyhow::{Context as _, Result};
use giveway_engine::downlink::LeftOut;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::journal::{Entry, Journal};
use crate::kernel::libbpf_log::explain;
use crate::kernel::netlink::{
    Body, NLM_F_CREATE, NLM_F_EXCL, Netlink, RTM_DELQDISC, RTM_DELTFILTER, RTM_NEWQDISC, RTM_NEWTFILTER, refused,
};
use crate::kernel::qdisc::{KIND, OPTIONS, tcmsg};
use crate::kernel::skeletons::upload as skeleton;
use crate::kernel::tcx::{self, TcxHook};
use crate::kernel::{uplink, way_in};

/// The parent of what clsact is, and of its filters at the egress; its own number (include/uapi/linux/pkt_sched.h).
const CLSACT: u32 = 0xffff_fff1;
const EGRESS: u32 = 0xffff_fff3;
const CLSACT_HANDLE: u32 = 0xffff_0000;
/// Of our filter among those of the device: behind what others put there, and known by it.
const PREFERENCE: u32 = 0xc7d3;
const ALL_PROTOCOLS: u16 = 0x0003;
const FILTER: u32 = 1;
/// Attributes of cls_bpf, of actions, and of mirred (pkt_cls.h, tc_act/tc_mirred.h).
const TCA_BPF_ACT: u16 = 1;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TCA_EGRESS_REDIR: u32 = 1;
const TC_ACT_STOLEN: u32 = 4;

/// A device whose egress has our filter, as it is journalled.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FilteredDevice {
    pub ifindex: u32,
    pub name: String,
    /// There was no clsact before.
    pub made_clsact: bool,
}

pub struct Filters {
    /// The intermediate device.
    by: u32,
    program: OwnedFd,
    _to_class: OwnedFd,
    devices: BTreeMap<u32, FilteredDevice>,
}

impl Filters {
    /// Puts none up yet. `is_fair`: each limit has one queue there, in which fq_codel sees to its flows.
    pub fn load(by: u32, is_fair: bool) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::UploadSkelBuilder::default();
        let mut open = explain("open the filter of limits", || builder.open(&mut storage))?;
        let constants = open.maps.rodata_data.as_deref_mut();
        let constants = constants.context("the filter of limits has no constants")?;
        constants.ifb_ifindex = by;
        constants.is_fair = is_fair;
        let skeleton = explain("load the filter of limits", || open.load())?;
        Ok(Self {
            by,
            program: skeleton.progs.gw_leaves.as_fd().try_clone_to_owned()?,
            _to_class: tcx::attach(skeleton.progs.gw_to_class.as_fd(), by, TcxHook::Egress)?,
            devices: BTreeMap::new(),
        })
    }

    /// The devices that have one, by interface.
    pub fn devices(&self) -> &BTreeMap<u32, FilteredDevice> {
        &self.devices
    }

    /// These devices have one from now on, and no others, but for those that refuse: which, and why.
    pub fn follow<E: Entry + From<FilteredDevice>>(
        &mut self,
        netlink: &mut Netlink,
        journal: &mut Journal<E>,
        wanted: &BTreeMap<u32, String>,
    ) -> Result<LeftOut> {
        let gone: Vec<u32> = self
            .devices
            .keys()
            .copied()
            .filter(|ifindex| !wanted.contains_key(ifindex))
            .collect();
        for ifindex in gone {
            if let Some(filtered) = self.devices.get(&ifindex) {
                take_off(netlink, filtered)?;
            }
            self.devices.remove(&ifindex);
        }
        let mut new = wanted
            .iter()
            .filter(|(ifindex, _)| !self.devices.contains_key(ifindex))
            .peekable();
        let mut left_out = LeftOut::new();
        if new.peek().is_none() {
            return Ok(left_out);
        }
        let new: Vec<(&u32, &String)> = new.collect();
        let with_clsact = way_in::with_clsact(netlink)?;
        for (ifindex, name) in new {
            let filtered = FilteredDevice {
                ifindex: *ifindex,
                name: name.clone(),
                made_clsact: !with_clsact.contains(ifindex),
            };
            journal.add([&filtered.clone().into()])?;
            // Before the filter: where that fails, clsact is to be taken off.
            self.devices.insert(*ifindex, filtered.clone());
            if let Err(error) = self.put(netlink, &filtered) {
                take_off(netlink, &filtered)?;
                self.devices.remove(ifindex);
                left_out.insert(*ifindex, format!("{error:#}"));
            }
        }
        Ok(left_out)
    }

    fn put(&self, netlink: &mut Netlink, filtered: &FilteredDevice) -> Result<()> {
        if filtered.made_clsact {
            let clsact = tcmsg(filtered.ifindex, CLSACT_HANDLE, CLSACT).text(KIND, "clsact");
            netlink
                .change(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, &clsact)
                .context("cannot put clsact at the egress")?;
        }
        // struct tc_mirred: index, capabilities, action, two counts, direction, interface.
        let mirred = [0, 0, TC_ACT_STOLEN, 0, 0, TCA_EGRESS_REDIR, self.by]
            .map(u32::to_ne_bytes)
            .concat();
        let action = Body::default()
            .text(TCA_ACT_KIND, "mirred")
            .nested(TCA_ACT_OPTIONS, Body::default().attribute(TCA_MIRRED_PARMS, &mirred));
        let options = Body::default()
            .nested(TCA_BPF_ACT, Body::default().nested(1, action))
            .attribute(TCA_BPF_FD, &self.program.as_raw_fd().to_ne_bytes())
            .text(TCA_BPF_NAME, "giveway");
        let message = filter_message(filtered.ifindex)
            .text(KIND, "bpf")
            .nested(OPTIONS, options);
        let put = netlink.change(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, &message);
        put.map_err(|error| match refused(&error) {
            Some(Errno::ENOENT) => {
                error.context("this kernel has no cls_bpf or no mirred (CONFIG_NET_CLS_BPF, CONFIG_NET_ACT_MIRRED)")
            }
            _ => error.context("cannot put a filter at the egress"),
        })
    }

    /// The devices that are there, and whose filter somebody has taken off, with their names. They have none from now on.
    pub fn lost(&mut self, netlink: &mut Netlink) -> Vec<(u32, String)> {
        let Ok(with_clsact) = way_in::with_clsact(netlink) else {
            return Vec::new();
        };
        let mut is_lost = |ifindex: &u32| {
            let filters = way_in::preferences(netlink, &with_clsact, *ifindex, EGRESS);
            filters.is_ok_and(|filters| !filters.contains(&PREFERENCE)) && uplink::device(netlink, *ifindex).is_ok()
        };
        let lost: Vec<u32> = self
            .devices
            .keys()
            .copied()
            .filter(|ifindex| is_lost(ifindex))
            .collect();
        let lost = lost.into_iter().filter_map(|ifindex| {
            let filtered = self.devices.remove(&ifindex)?;
            // Our clsact may still be there.
            let _ = take_off(netlink, &filtered);
            Some((ifindex, filtered.name))
        });
        lost.collect()
    }

    /// Takes all of them off.
    pub fn end(self, netlink: &mut Netlink) -> Result<()> {
        let mut outcome = Ok(());
        for filtered in self.devices.values() {
            outcome = outcome.and(take_off(netlink, filtered));
        }
        outcome
    }
}

/// What stands in the way of limits at the egress of this device.
pub fn hindrance(netlink: &mut Netlink, with_clsact: &BTreeSet<u32>, ifindex: u32, name: &str) -> Option<String> {
    let filters = way_in::preferences(netlink, with_clsact, ifindex, EGRESS).unwrap_or_default();
    filters.iter().any(|other| *other != PREFERENCE).then(|| {
        format!(
            "filters of tc stand at the egress of {name} (`tc filter show dev {name} egress`): they decide before giveway's, or would not see what is limited"
        )
    })
}

fn filter_message(ifindex: u32) -> Body {
    let words = [
        0,
        ifindex,
        FILTER,
        EGRESS,
        PREFERENCE << 16 | u32::from(ALL_PROTOCOLS.to_be()),
    ];
    Body::new(&words.map(u32::to_ne_bytes).concat())
}

/// Our filter, and clsact where that was ours and nobody else has a filter there.
fn take_off(
    netlink: &mut Netlink,
    FilteredDevice {
        ifindex,
        name,
        made_clsact,
    }: &FilteredDevice,
) -> Result<()> {
    let delete = filter_message(*ifindex).text(KIND, "bpf");
    let gone = |error: &anyhow::Error| matches!(refused(error), Some(Errno::ENOENT | Errno::ENODEV | Errno::EINVAL));
    match netlink.change(RTM_DELTFILTER, 0, &delete) {
        Err(error) if gone(&error) => {}
        deleted => deleted.with_context(|| format!("cannot take the filter off the egress of {name}"))?,
    }
    if *made_clsact && way_in::is_clsact_free(netlink, *ifindex)? {
        match netlink.change(RTM_DELQDISC, 0, &tcmsg(*ifindex, CLSACT_HANDLE, CLSACT)) {
            Err(error) if gone(&error) => {}
            deleted => deleted.with_context(|| format!("cannot take clsact off {name}"))?,
        }
    }
    Ok(())
}

impl Entry for FilteredDevice {
    fn restore(&self, dry_run: bool) -> Result<Vec<String>> {
        let mut netlink = Netlink::open()?;
        let mut lines = Vec::new();
        let with_clsact = way_in::with_clsact(&mut netlink)?;
        if way_in::preferences(&mut netlink, &with_clsact, self.ifindex, EGRESS)?.contains(&PREFERENCE) {
            lines.push(format!("the filter at the egress of {} is removed", self.name));
        }
        if !dry_run {
            take_off(&mut netlink, self)?;
        }
        Ok(lines)
    }
}
