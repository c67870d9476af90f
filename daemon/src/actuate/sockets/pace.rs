// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits the pacing rate of connections, and restores what was there. Input: a rate by cookie, or nothing. Output: what
//! became of each. A rate that an application has set is left alone.
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
use crate::journal::Journal;
use crate::kernel::libbpf_log::explain;
use crate::kernel::shown_errno;
use crate::kernel::skeletons::pace as skeleton;
use crate::place::Place;
use skeleton::types;

const UNLIMITED: u64 = u64::MAX;
/// A program can set no more: the kernel takes 32 bits, and all of them for no limit.
const MOST: u64 = u32::MAX as u64 - 1;

pub struct PaceActuator {
    netns_inum: u32,
    scan: SocketScan,
    saved: MapHandle,
    /// Of the saved state.
    map_id: u32,
    /// None outside a daemon.
    journal: Option<Journal<CapEntry>>,
}

pub fn open(place: &Place, _: &MapHandle) -> Result<Box<dyn SocketActuator>> {
    let saved = saved::pinned(place)
        .context("the saved state of sockets would not outlive giveway, so nothing could undo the change")?;
    let mut actuator = PaceActuator::open(place.netns_inum(), saved)?;
    actuator.journal = Some(Journal::at(place.journal(saved::UNDO.file)));
    Ok(Box::new(actuator))
}

impl PaceActuator {
    /// For the namespace of this number, which must be the caller's own.
    pub fn open(netns_inum: u32, saved: MapHandle) -> Result<Self> {
        let map_id = saved.info().context("cannot query the saved state")?.info.id;
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::PaceSkelBuilder::default();
        let mut open = explain("open the programs for pacing rates", || builder.open(&mut storage))?;
        open.maps
            .rodata_data
            .as_deref_mut()
            .context("the programs for pacing rates have no constants")?
            .netns_inum = netns_inum;
        explain("use the saved state", || {
            open.maps.gw_saved_socks.reuse_fd(saved.as_fd())
        })?;
        let skeleton = explain("load the programs for pacing rates", || open.load())?;
        let apply = explain("attach the iterator for pacing rates", || {
            skeleton.progs.gw_apply_rates.attach()
        })?;
        let wanted = MapHandle::try_from(&skeleton.maps.wanted_rates).context("cannot keep the wanted pacing rates")?;
        Ok(Self {
            netns_inum,
            scan: SocketScan::new(apply, wanted),
            saved,
            map_id,
            journal: None,
        })
    }
}

impl SocketActuator for PaceActuator {
    fn setting(&self) -> Setting {
        Setting::PacingRate
    }

    fn apply(&mut self, wanted: &[(Cookie, Value)]) -> Result<Vec<(Cookie, Outcome)>> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(journal) = &mut self.journal {
            journal.add(&[CapEntry::Marked { map_id: self.map_id }])?;
        }
        let wanted = wanted.iter().map(|(cookie, value)| (*cookie, rate(value)));
        self.scan.apply(wanted.collect(), outcome)
    }

    fn revert(&mut self) -> Result<usize> {
        restore(self.netns_inum, &self.saved, "pacing rate")
    }
}

fn rate(value: &Value) -> types::gw_rate {
    let bytes_per_s = match value {
        Value::Number(rate) => (*rate).min(MOST),
        _ => UNLIMITED,
    };
    types::gw_rate { bytes_per_s }
}

fn outcome(o: &types::gw_rate_outcome) -> (Cookie, Outcome) {
    let outcome = match o.kind {
        types::gw_outcome_kind::GW_APPLIED | types::gw_outcome_kind::GW_UNCHANGED => Outcome::Applied,
        types::gw_outcome_kind::GW_FOREIGN => Outcome::Foreign {
            found: Value::Number(o.found),
        },
        _ => Outcome::Failed {
            errno: shown_errno(-o.error),
        },
    };
    (Cookie(o.cookie), outcome)
}
