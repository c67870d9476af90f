// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The window that a connection offers, by which what others send to this machine is held back. Input: which connections,
//! and for each whether it is to yield, by a rule that is the kernel's side's (bpf/rledbat.bpf.c). Output: what became of
//! each, and whose window somebody else has set meanwhile: that is left alone.
//!
//! What it puts on a socket outlives the process: its saved state is written before ([`saved`]). Without saved state that outlives
//! the process it is not to be had.

use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result, ensure};
use giveway_engine::change::{Setting, Value};
use giveway_engine::model::Cookie;
use giveway_engine::sockets::setting::Outcome;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore as _, MapHandle};

use super::SocketActuator;
use super::cap::attach_to_root_cgroup;
use super::cap::clear::restore;
use super::cap::saved::{self, CapEntry};
use super::scan::SocketScan;
use crate::journal::Journal;
use crate::kernel::libbpf_log::explain;
use crate::kernel::ring::Ring;
use crate::kernel::skeletons::rledbat as skeleton;
use crate::kernel::{apart, check_release, shown_errno};
use crate::place::Place;
use skeleton::types;

/// Since then a program may ask for a socket's callbacks (TCP_BPF_SOCK_OPS_CB_FLAGS).
pub const NEEDS: (u32, u32) = (6, 12);
/// More wait for the next call.
const LOST_AT_ONCE: usize = 256;

pub struct ReceiveActuator {
    netns_inum: u32,
    scan: SocketScan,
    saved: MapHandle,
    /// Of the saved state.
    map_id: u32,
    /// None outside a daemon.
    journal: Option<Journal<CapEntry>>,
    lost: Ring<types::gw_receiver_lost>,
    /// While it is there the kernel asks.
    offer: Option<Link>,
}

pub fn open(place: &Place, local_waits: &MapHandle) -> Result<Box<dyn SocketActuator>> {
    let saved = saved::pinned(place)
        .context("the saved state of sockets would not outlive giveway, so nothing could undo the change")?;
    let mut actuator = ReceiveActuator::open(place.netns_inum(), saved, Some(local_waits))?;
    actuator.journal = Some(Journal::at(place.journal(saved::UNDO.file)));
    Ok(Box::new(actuator))
}

impl ReceiveActuator {
    /// For the namespace of this number, which must be the caller's own.
    pub fn open(netns_inum: u32, saved: MapHandle, local_waits: Option<&MapHandle>) -> Result<Self> {
        check_release(NEEDS)?;
        check_that_windows_stay()?;
        let map_id = saved.info().context("cannot query the saved state")?.info.id;
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::RledbatSkelBuilder::default();
        let mut open = explain("open the programs for receive windows", || builder.open(&mut storage))?;
        open.maps
            .rodata_data
            .as_deref_mut()
            .context("the programs for receive windows have no constants")?
            .netns_inum = netns_inum;
        explain("use the saved state", || {
            open.maps.gw_saved_socks.reuse_fd(saved.as_fd())
        })?;
        if let Some(map) = local_waits {
            explain("share the local waits", || open.maps.local_waits.reuse_fd(map.as_fd()))?;
        }
        let skeleton = explain("load the programs for receive windows", || open.load())?;
        let apply = explain("attach the iterator for receive windows", || {
            skeleton.progs.gw_apply_receivers.attach()
        })?;
        let wanted = MapHandle::try_from(&skeleton.maps.wanted_receivers)
            .context("cannot keep the names of those that are to yield")?;
        Ok(Self {
            netns_inum,
            scan: SocketScan::new(apply, wanted),
            saved,
            map_id,
            journal: None,
            lost: Ring::open("receive windows", &skeleton.maps.lost_windows)?,
            offer: Some(attach_to_root_cgroup(&skeleton.progs.gw_offer)?),
        })
    }
}

/// Where the kernel revokes what it offered, it measures round-trip times by the rest, which are none.
fn check_that_windows_stay() -> Result<()> {
    // Who keeps this file from answering is not to decide that.
    let shrinks = apart::text(c"/proc/sys/net/ipv4/tcp_shrink_window")?;
    ensure!(
        shrinks.trim() != "1",
        "net.ipv4.tcp_shrink_window is 1, by which the kernel revokes windows that it offered"
    );
    Ok(())
}

impl SocketActuator for ReceiveActuator {
    fn setting(&self) -> Setting {
        Setting::ReceiveWindow
    }

    fn apply(&mut self, wanted: &[(Cookie, Value)]) -> Result<Vec<(Cookie, Outcome)>> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(journal) = &mut self.journal {
            journal.add(&[CapEntry::Marked { map_id: self.map_id }])?;
        }
        let named = |(cookie, value): &(Cookie, Value)| (*cookie, types::gw_receiver_wanted { window: wish(value) });
        self.scan.apply(wanted.iter().map(named).collect(), outcome)
    }

    fn revert(&mut self) -> Result<usize> {
        // As long as it is asked, a window that is restored is ours again with the next packet.
        self.offer = None;
        restore(self.netns_inum, &self.saved, "receive window")
    }

    fn taken_over(&mut self) -> Result<Vec<(Cookie, Value)>> {
        let lost = self.lost.take(LOST_AT_ONCE)?;
        Ok(lost
            .iter()
            .map(|lost| (Cookie(lost.cookie), Value::Number(lost.found)))
            .collect())
    }
}

fn wish(value: &Value) -> u32 {
    let wish = match value {
        Value::Unset(()) => types::gw_window_wish::GW_WINDOW_FREE,
        _ => types::gw_window_wish::GW_WINDOW_YIELDS,
    };
    wish.0
}

fn outcome(o: &types::gw_receiver_outcome) -> (Cookie, Outcome) {
    let outcome = match o.kind {
        types::gw_outcome_kind::GW_APPLIED => Outcome::Applied,
        _ => Outcome::Failed {
            errno: shown_errno(-o.error),
        },
    };
    (Cookie(o.cookie), outcome)
}
