// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits for what is sent by links that no queue of ours serves: bpf/upload.bpf.c, a filter of clsact at their egress, sends what
//! admission has marked by an intermediate device, as [`super::download`] has one for the other direction, and it comes back. The link's
//! own queue stays what it is. Input: plans. Output: success or one reason, with nothing of the plan left.
//!
//! Filters stay where this process dies. They do nothing then: admission, which marks packets for them, is gone. What is
//! journalled for each link takes them off.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use anyhow::{Context as _, Result, bail};
use giveway_engine::class::LimitNumber;
use giveway_engine::downlink::{Arrival, Counted, LeftOut, Plan};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::download::device::{self, UP};
use super::download::tree::Tree;
use super::download::{self, Refusals, drain, largest_packet};
use crate::journal::{Entry, Journal};
use crate::kernel::libbpf_log::explain;
use crate::kernel::netlink::{Body, Netlink, Refused};
use crate::kernel::qdisc::{KIND, OPTIONS, tcmsg};
use crate::kernel::skeletons::upload as skeleton;
use crate::kernel::tcx::{self, Way};
use crate::kernel::{uplink, way_in};
use crate::place::{JournalFile, Place};

/// The parent of what clsact is, and of its filters at the egress; its own number (include/uapi/linux/pkt_sched.h).
const CLSACT: u32 = 0xffff_fff1;
const EGRESS: u32 = 0xffff_fff3;
const CLSACT_HANDLE: u32 = 0xffff_0000;
/// Of our filter among those of the link: behind what others put there, and known by it.
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

/// A link whose egress has our filter, as it is journalled.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Filtered {
    pub ifindex: u32,
    pub name: String,
    /// There was no clsact before.
    pub made_clsact: bool,
}

pub struct UploadActuator {
    netlink: Netlink,
    journal: Journal<Filtered>,
    standing: Option<Standing>,
    refusals: Refusals,
}

struct Standing {
    ifindex: u32,
    program: OwnedFd,
    links: BTreeMap<u32, Filtered>,
    _to_class: OwnedFd,
    tree: Tree,
}

impl UploadActuator {
    pub fn open(place: &Place) -> Result<Self> {
        Ok(Self {
            netlink: Netlink::open()?,
            journal: Journal::at(place.journal(JournalFile::Uplink)),
            standing: None,
            refusals: Refusals::default(),
        })
    }

    /// Puts the plan up, or changes what is there into it; None takes everything down. Returns the links that have refused.
    ///
    /// # Errors
    /// Where all of it fails; then nothing is left.
    pub fn set(&mut self, plan: Option<&Plan>) -> Result<LeftOut> {
        let Some(plan) = plan else {
            return self.take_down().map(|()| LeftOut::new());
        };
        let put_up = self.put_up(plan);
        put_up.inspect_err(|_| self.give_up())?;
        let has = self.links();
        Ok(self.refusals.among(plan.links.keys(), |ifindex| has.contains(ifindex)))
    }

    /// At whose egress what is limited takes the detour.
    pub fn links(&self) -> BTreeSet<u32> {
        let links = self.standing.iter().flat_map(|standing| standing.links.keys());
        links.copied().collect()
    }

    fn put_up(&mut self, plan: &Plan) -> Result<()> {
        if self.standing.is_none() {
            device::remove(&mut self.netlink, UP)?;
            let ifindex = device::make(&mut self.netlink, UP)?;
            let tree = Tree::put_up(&mut self.netlink, ifindex)?;
            self.standing = Some(Standing::load(ifindex, tree)?);
            device::switch_on(&mut self.netlink, ifindex)?;
        }
        let standing = self.standing.as_mut().context("nothing stands")?;
        let largest = largest_packet(plan);
        standing
            .tree
            .follow(&mut self.netlink, &plan.limits, &BTreeMap::new(), largest)?;
        let gone: Vec<u32> = standing
            .links
            .keys()
            .copied()
            .filter(|link| !plan.links.contains_key(link))
            .collect();
        for ifindex in gone {
            if let Some(filtered) = standing.links.remove(&ifindex) {
                take_off(&mut self.netlink, &filtered)?;
            }
        }
        for (ifindex, name) in &plan.links {
            if standing.links.contains_key(ifindex) {
                continue;
            }
            let filtered = Filtered {
                ifindex: *ifindex,
                name: name.clone(),
                made_clsact: !way_in::has_clsact(&mut self.netlink, *ifindex)?,
            };
            self.journal.add([&filtered])?;
            // Before the filter: where that fails, clsact is to be taken off.
            standing.links.insert(*ifindex, filtered.clone());
            match standing.filter(&mut self.netlink, &filtered) {
                Ok(()) => self.refusals.forget(*ifindex),
                Err(error) => {
                    take_off(&mut self.netlink, &filtered)?;
                    standing.links.remove(ifindex);
                    self.refusals.note(*ifindex, name, &error);
                }
            }
        }
        let limits: BTreeSet<LimitNumber> = plan.limits.iter().map(|limit| limit.number).collect();
        standing.tree.forget(&mut self.netlink, &limits, &BTreeMap::new())
    }

    /// The way out of the link that this is the way in of.
    pub fn departure(&mut self, link: &Arrival) -> Arrival {
        let name = &link.name;
        let decided_before = way_in::has_other_filters(&mut self.netlink, link.ifindex, EGRESS, PREFERENCE);
        let foreign = decided_before.unwrap_or(false).then(|| {
            format!(
                "filters of tc stand at the egress of {name} (`tc filter show dev {name} egress`): they decide before giveway's, or would not see what is limited"
            )
        });
        Arrival {
            others_first: 0,
            hindrance: foreign.or_else(|| self.refusals.of(link.ifindex)),
            ..link.clone()
        }
    }

    /// Why what was put up does not work any more, if it does not.
    pub fn lost(&mut self) -> Option<String> {
        let why = self.standing.as_ref()?.look(&mut self.netlink).err()?;
        self.give_up();
        Some(format!("{why:#}"))
    }

    /// What each limit has let pass.
    pub fn counted(&mut self) -> Counted {
        let Some(standing) = &self.standing else {
            return Counted::default();
        };
        let counted = standing.tree.counted(&mut self.netlink);
        counted
            .inspect_err(|error| tracing::debug!("{error:#}"))
            .unwrap_or_default()
    }

    fn give_up(&mut self) {
        if let Err(error) = self.take_down() {
            tracing::warn!("{error:#}");
        }
    }

    pub fn take_down(&mut self) -> Result<()> {
        let Some(standing) = self.standing.take() else {
            return device::remove(&mut self.netlink, UP);
        };
        if let Err(error) = drain(&mut self.netlink, standing.ifindex) {
            tracing::debug!("{error:#}");
        }
        let mut outcome = Ok(());
        for filtered in standing.links.values() {
            outcome = outcome.and(take_off(&mut self.netlink, filtered));
        }
        drop(standing);
        device::remove(&mut self.netlink, UP)?;
        outcome.and_then(|()| self.journal.clear())
    }
}

impl Standing {
    fn load(ifindex: u32, tree: Tree) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::UploadSkelBuilder::default();
        let mut open = explain("open the limits of what is sent", || builder.open(&mut storage))?;
        let constants = open.maps.rodata_data.as_deref_mut();
        let constants = constants.context("the limits of what is sent have no constants")?;
        constants.detour_ifindex = ifindex;
        constants.is_fair = tree.is_fair();
        let skeleton = explain("load the limits of what is sent", || open.load())?;
        Ok(Self {
            ifindex,
            program: skeleton.progs.gw_leaves.as_fd().try_clone_to_owned()?,
            links: BTreeMap::new(),
            _to_class: tcx::attach(skeleton.progs.gw_to_class.as_fd(), ifindex, Way::Out)?,
            tree,
        })
    }

    fn filter(&self, netlink: &mut Netlink, filtered: &Filtered) -> Result<()> {
        if filtered.made_clsact {
            let clsact = tcmsg(filtered.ifindex, CLSACT_HANDLE, CLSACT).text(KIND, "clsact");
            netlink
                .change(libc::RTM_NEWQDISC, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &clsact)
                .context("cannot put clsact at the egress")?;
        }
        // struct tc_mirred: index, capabilities, action, two counts, direction, interface.
        let mirred = [0, 0, TC_ACT_STOLEN, 0, 0, TCA_EGRESS_REDIR, self.ifindex]
            .map(u32::to_ne_bytes)
            .concat();
        let action = Body::default()
            .text(TCA_ACT_KIND, "mirred")
            .nested(TCA_ACT_OPTIONS, Body::default().attribute(TCA_MIRRED_PARMS, &mirred));
        let options = Body::default()
            .nested(TCA_BPF_ACT, Body::default().nested(1, action))
            .attribute(TCA_BPF_FD, &self.program.as_raw_fd().to_ne_bytes())
            .text(TCA_BPF_NAME, "giveway-up");
        let message = filter_message(filtered.ifindex)
            .text(KIND, "bpf")
            .nested(OPTIONS, options);
        let put = netlink.change(libc::RTM_NEWTFILTER, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &message);
        put.map_err(|error| match refused(&error) {
            Some(Errno::ENOENT) => {
                error.context("this kernel has no cls_bpf or no mirred (CONFIG_NET_CLS_BPF, CONFIG_NET_ACT_MIRRED)")
            }
            _ => error.context("cannot put a filter at the egress"),
        })
    }

    /// # Errors
    /// Where it does not work any more.
    fn look(&self, netlink: &mut Netlink) -> Result<()> {
        let name = UP.name;
        let Ok(device) = uplink::device(netlink, self.ifindex) else {
            bail!("the intermediate device {name} is gone");
        };
        if !device.up {
            bail!("the intermediate device {name} was switched off");
        }
        if !self.tree.stands(netlink)? {
            bail!("another tool has changed the queue of the intermediate device {name}");
        }
        for (ifindex, filtered) in &self.links {
            if uplink::device(netlink, *ifindex).is_ok() && !way_in::has_filter(netlink, *ifindex, EGRESS, PREFERENCE)?
            {
                bail!("another tool has removed the filter at the egress of {}", filtered.name);
            }
        }
        Ok(())
    }
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
    Filtered {
        ifindex,
        name,
        made_clsact,
    }: &Filtered,
) -> Result<()> {
    let delete = filter_message(*ifindex).text(KIND, "bpf");
    let gone = |error: &anyhow::Error| matches!(refused(error), Some(Errno::ENOENT | Errno::ENODEV | Errno::EINVAL));
    match netlink.change(libc::RTM_DELTFILTER, 0, &delete) {
        Err(error) if gone(&error) => {}
        deleted => deleted.with_context(|| format!("cannot take the filter off the egress of {name}"))?,
    }
    if *made_clsact && way_in::is_clsact_free(netlink, *ifindex)? {
        match netlink.change(libc::RTM_DELQDISC, 0, &tcmsg(*ifindex, CLSACT_HANDLE, CLSACT)) {
            Err(error) if gone(&error) => {}
            deleted => deleted.with_context(|| format!("cannot take clsact off {name}"))?,
        }
    }
    Ok(())
}

impl Entry for Filtered {
    fn put_back(&self, dry_run: bool) -> Result<Vec<String>> {
        let mut netlink = Netlink::open()?;
        let mut lines = Vec::new();
        if way_in::has_filter(&mut netlink, self.ifindex, EGRESS, PREFERENCE)? {
            lines.push(format!("the filter at the egress of {} is removed", self.name));
        }
        if !dry_run {
            take_off(&mut netlink, self)?;
        }
        lines.extend(remove_all(dry_run)?);
        Ok(lines)
    }
}

pub fn remove_all(dry_run: bool) -> Result<Vec<String>> {
    download::remove_all(UP, dry_run)
}

fn refused(error: &anyhow::Error) -> Option<Errno> {
    error.downcast_ref::<Refused>().map(|refused| refused.0)
}
