// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives background connections the congestion control that yields, and their own back. Input: its name by cookie, or
//! nothing. Output: what became of each. What somebody else has changed since is left alone.
//!
//! What it puts on a socket outlives the process: its saved state is written before ([`saved`]). Without saved state that outlives
//! the process it is not to be had.

use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result};
use giveway_engine::change::{Setting, Value};
use giveway_engine::model::Cookie;
use giveway_engine::sockets::setting::Outcome;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore as _, MapHandle};

use super::SocketActuator;
use super::cap::clear::restore;
use super::cap::saved::{self, CapEntry};
use super::scan::SocketScan;
use super::scavenger::{self, Scavenger};
use crate::journal::Journal;
use crate::kernel::libbpf_log::explain;
use crate::kernel::records::text;
use crate::kernel::shown_errno;
use crate::kernel::skeletons::control as skeleton;
use crate::kernel::types::Types;
use crate::place::Place;
use skeleton::types;

struct ControlActuator {
    netns_inum: u32,
    scan: SocketScan,
    saved: MapHandle,
    /// Of the saved state.
    map_id: u32,
    journal: Journal<CapEntry>,
    /// The last to go: sockets that still have it keep it.
    scavenger: Scavenger,
}

pub fn open(place: &Place, local_waits: &MapHandle) -> Result<Box<dyn SocketActuator>> {
    Types::load().scavenger()?;
    let saved = saved::pinned(place)
        .context("the saved state of sockets would not outlive giveway, so nothing could undo the change")?;
    let map_id = saved.info().context("cannot query the saved state")?.info.id;
    let mut storage = MaybeUninit::uninit();
    let builder = skeleton::ControlSkelBuilder::default();
    let mut open = explain("open the programs for congestion control", || {
        builder.open(&mut storage)
    })?;
    open.maps
        .rodata_data
        .as_deref_mut()
        .context("the programs for congestion control have no constants")?
        .netns_inum = place.netns_inum();
    explain("use the saved state", || {
        open.maps.gw_saved_socks.reuse_fd(saved.as_fd())
    })?;
    let skeleton = explain("load the programs for congestion control", || open.load())?;
    let apply = explain("attach the iterator for congestion control", || {
        skeleton.progs.gw_apply_controls.attach()
    })?;
    let wanted =
        MapHandle::try_from(&skeleton.maps.wanted_controls).context("cannot keep the wanted congestion controls")?;
    Ok(Box::new(ControlActuator {
        netns_inum: place.netns_inum(),
        scan: SocketScan::new(apply, wanted),
        saved,
        map_id,
        journal: Journal::at(place.journal(saved::UNDO.file)),
        scavenger: Scavenger::register(&scavenger::name(place.netns_inum()), Some(local_waits))?,
    }))
}

impl SocketActuator for ControlActuator {
    fn setting(&self) -> Setting {
        Setting::CongestionControl
    }

    fn apply(&mut self, wanted: &[(Cookie, Value)]) -> Result<Vec<(Cookie, Outcome)>> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let map_id = self.map_id;
        self.journal.add(&[CapEntry::Marked { map_id }])?;
        let wanted = wanted.iter().map(|(cookie, value)| (*cookie, control(value)));
        self.scan.apply(wanted.collect(), outcome)
    }

    fn revert(&mut self) -> Result<usize> {
        restore(self.netns_inum, &self.saved, "congestion control")
    }

    fn scavenger(&self) -> Option<&str> {
        Some(self.scavenger.name())
    }
}

/// Longer names than the kernel's are cut.
fn control(value: &Value) -> types::gw_control {
    let mut control = types::gw_control::default();
    if let Value::Text(name) = value {
        control.name = scavenger::kernel_name(name);
    }
    control
}

fn outcome(o: &types::gw_control_outcome) -> (Cookie, Outcome) {
    let outcome = match o.kind {
        types::gw_outcome_kind::GW_APPLIED | types::gw_outcome_kind::GW_UNCHANGED => Outcome::Applied,
        types::gw_outcome_kind::GW_FOREIGN => Outcome::Foreign {
            found: text(&o.found).into(),
        },
        _ => Outcome::Failed {
            errno: shown_errno(-o.error),
        },
    };
    (Cookie(o.cookie), outcome)
}
