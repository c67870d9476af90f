// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits for what is sent: admission marks it, a filter at the links' egress ([`super::filters`]) sends it by an intermediate device,
//! as [`super::download`] has one for the other direction, and it comes back. Input: plans. Output: success or one reason, with
//! nothing of the plan left.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};
use giveway_engine::downlink::{Arrival, Counted, DetourPlan, LeftOut};
use giveway_engine::model::LimitNumber;
use serde::{Deserialize, Serialize};

use super::download::device::{self, UP};
use super::download::tree::Tree;
use super::download::{self, drain, largest_packet};
use super::filters::{self, FilteredDevice, Filters};
use crate::journal::register::{JournalFile, UndoHandler};
use crate::journal::{Entry, Journal};
use crate::kernel::netlink::Netlink;
use crate::kernel::{uplink, way_in};
use crate::place::Place;

/// A link whose egress has a filter, as it is journalled.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct UploadEntry(FilteredDevice);

pub const UNDO: UndoHandler = UndoHandler::of::<UploadEntry>(JournalFile::Uplink);

impl From<FilteredDevice> for UploadEntry {
    fn from(filtered: FilteredDevice) -> Self {
        Self(filtered)
    }
}

pub struct UploadActuator {
    netlink: Netlink,
    journal: Journal<UploadEntry>,
    standing: Option<InstalledUpload>,
}

struct InstalledUpload {
    ifindex: u32,
    tree: Tree,
    filters: Filters,
}

impl UploadActuator {
    pub fn open(place: &Place) -> Result<Self> {
        Ok(Self {
            netlink: Netlink::open()?,
            journal: Journal::at(place.journal(UNDO.file)),
            standing: None,
        })
    }

    /// Puts the plan up, or changes what is there into it; None takes everything down. Returns the links that have refused.
    ///
    /// # Errors
    /// Where all of it fails; then nothing is left.
    pub fn set(&mut self, plan: Option<&DetourPlan>) -> Result<LeftOut> {
        let Some(plan) = plan else {
            return self.take_down().map(|()| LeftOut::new());
        };
        let install = self.install(plan);
        install.inspect_err(|_| self.give_up())
    }

    /// At whose egress what is limited takes the detour.
    pub fn links(&self) -> BTreeSet<u32> {
        let links = self
            .standing
            .iter()
            .flat_map(|standing| standing.filters.devices().keys());
        links.copied().collect()
    }

    fn install(&mut self, plan: &DetourPlan) -> Result<LeftOut> {
        if self.standing.is_none() {
            device::remove(&mut self.netlink, UP)?;
            let ifindex = device::make(&mut self.netlink, UP)?;
            let tree = Tree::install(&mut self.netlink, ifindex)?;
            let filters = Filters::load(ifindex, tree.is_fair())?;
            device::switch_on(&mut self.netlink, ifindex)?;
            self.standing = Some(InstalledUpload { ifindex, tree, filters });
        }
        let InstalledUpload { tree, filters, .. } = self.standing.as_mut().context("nothing stands")?;
        let largest = largest_packet(plan);
        tree.follow(&mut self.netlink, &plan.limits, &BTreeMap::new(), largest)?;
        let left_out = filters.follow(&mut self.netlink, &mut self.journal, &plan.links)?;
        let limits: BTreeSet<LimitNumber> = plan.limits.iter().map(|limit| limit.number).collect();
        tree.forget(&mut self.netlink, &limits, &BTreeMap::new())?;
        Ok(left_out)
    }

    /// The ways out of the links that these are the ways in of.
    pub fn departures(&mut self, links: &[Arrival]) -> Result<Vec<Arrival>> {
        let with_clsact = way_in::with_clsact(&mut self.netlink)?;
        let departure = |link: &Arrival| Arrival {
            others: way_in::others_at_egress(link.ifindex).unwrap_or(0),
            hindrance: filters::hindrance(&mut self.netlink, &with_clsact, link.ifindex, &link.name),
            ..link.clone()
        };
        Ok(links.iter().map(departure).collect())
    }

    /// Why what was installed does not work any more, if it does not.
    pub fn lost(&mut self) -> Option<String> {
        let reason = self.standing.as_mut()?.check(&mut self.netlink).err()?;
        self.give_up();
        Some(format!("{reason:#}"))
    }

    /// What each limit has let pass; None: not looked at now.
    pub fn counted(&mut self) -> Option<Counted> {
        let Some(standing) = &mut self.standing else {
            return Some(Counted::default());
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
        let ended = standing.filters.end(&mut self.netlink);
        device::remove(&mut self.netlink, UP)?;
        ended.and_then(|()| self.journal.clear())
    }
}

impl InstalledUpload {
    /// # Errors
    /// Where it does not work any more.
    fn check(&mut self, netlink: &mut Netlink) -> Result<()> {
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
        match self.filters.lost(netlink).pop() {
            Some((_, name)) => bail!("another tool has removed the filter at the egress of {name}"),
            None => Ok(()),
        }
    }
}

impl Entry for UploadEntry {
    fn restore(&self, dry_run: bool) -> Result<Vec<String>> {
        let mut lines = self.0.restore(dry_run)?;
        // In which packets that came this way may still wait.
        lines.extend(remove_all(dry_run)?);
        Ok(lines)
    }
}

pub fn remove_all(dry_run: bool) -> Result<Vec<String>> {
    download::remove_all(UP, dry_run)
}
