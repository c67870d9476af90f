// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Undoes what giveway changed on sockets when the process that did is gone (bpf/clear.bpf.c). Input: the saved state, or where there are
//! none, the values that were recorded before they were used. Output: what was undone, socket by socket.

use std::fmt::{self, Display, Formatter};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;

use anyhow::{Context, Result, bail};
use giveway_engine::model::Cookie;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};

use super::avoidance::Avoidance;
use crate::kernel::check_requirements;
use crate::kernel::libbpf_log::explain;
use crate::kernel::records::{bytes_of, counters};
use crate::kernel::scanner::{self, SocketProtocol};
use crate::kernel::skeletons::clear as skeleton;
use skeleton::types;

pub use types::gw_saved_socket as SavedSocket;

/// The newest layout of a mark that is known here.
pub const LAYOUT: u32 = types::gw_saved_layout::GW_SAVED_LAYOUT.0;
const CWND_CLAMP: u32 = types::gw_setting::GW_CWND_CLAMP.0;
const SETTINGS: [(u32, &str); 4] = [
    (types::gw_setting::GW_PACING_RATE.0, "pacing rate"),
    (types::gw_setting::GW_WINDOW_CLAMP.0, "receive window"),
    (types::gw_setting::GW_CONGESTION_CONTROL.0, "congestion control"),
    (types::gw_setting::GW_ACK_CALLBACK.0, "callback"),
];

/// A socket that carried something of ours, which was undone unless only asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TreatedSocket {
    pub cookie: Cookie,
    /// Of its mark. One that is newer than [`LAYOUT`] was left alone.
    pub layout: u32,
    /// The cwnd clamp, and what is in its place; None where it was not ours.
    pub cap: Option<(u32, u32)>,
    settings: u32,
    /// The errno with which the kernel refused, if it did.
    pub error: Option<i32>,
}

impl Display for TreatedSocket {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let cap = self
            .cap
            .map(|(ours, before)| format!("cwnd clamp {ours} back to {}", shown(before)));
        let others = SETTINGS.iter().filter(|(bit, _)| self.settings & bit != 0);
        let others = others.map(|(_, name)| format!("{name} put back"));
        let all: Vec<String> = cap.into_iter().chain(others).collect();
        write!(f, "socket {}: {}", self.cookie.0, all.join(", "))
    }
}

/// The loaded programs.
pub struct Clear {
    undo: Link,
    our_values: MapHandle,
    state: MapHandle,
    _avoidance: Option<Avoidance>,
}

impl Clear {
    /// Loads what an undo needs, for the namespace of this number, which must be the caller's own. A dry run only finds.
    pub fn open(netns_inum: u32, saved: Option<&MapHandle>, dry_run: bool) -> Result<Self> {
        check_requirements()?;
        scanner::check(SocketProtocol::Tcp)?;
        // Without it the clear is plain, which is still a clear.
        let avoidance = (!dry_run)
            .then(|| Avoidance::register(&format!("gwl{netns_inum:08x}")).ok())
            .flatten();
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::ClearSkelBuilder::default();
        let mut open = explain("open the clear program", || builder.open(&mut storage))?;
        let constants = open
            .maps
            .rodata_data
            .as_deref_mut()
            .context("the clear program has no constants")?;
        constants.netns_inum = netns_inum;
        constants.dry_run = dry_run.into();
        constants.avoidance_name = avoidance.as_ref().map(Avoidance::kernel_name).unwrap_or_default();
        if let Some(saved) = saved {
            explain("use the saved state", || {
                open.maps.gw_saved_socks.reuse_fd(saved.as_fd())
            })?;
        }
        let skeleton = explain("load the clear program", || open.load())?;
        Ok(Self {
            undo: explain("attach the clear", || skeleton.progs.gw_undo.attach())?,
            our_values: MapHandle::try_from(&skeleton.maps.our_values).context("cannot keep the map of values")?,
            state: MapHandle::try_from(&skeleton.maps.bss).context("cannot keep the clear's state")?,
            _avoidance: avoidance,
        })
    }

    /// Undoes what is marked, and every clamp with one of these values on a socket without a mark.
    pub fn run(&mut self, values: &[u32]) -> Result<Vec<TreatedSocket>> {
        let values: Vec<u32> = values
            .iter()
            .copied()
            .filter(|value| *value < super::UNLIMITED)
            .collect();
        let mut found = self.undo(&[])?;
        for some in values.chunks(super::super::scan::AT_ONCE) {
            found.extend(self.undo(some)?);
        }
        Ok(found)
    }

    fn undo(&mut self, values: &[u32]) -> Result<Vec<TreatedSocket>> {
        for value in values {
            self.our_values
                .update(&value.to_ne_bytes(), &[1], MapFlags::ANY)
                .context("cannot name a value")?;
        }
        let mut found = Vec::new();
        let scanned = scanner::run(&self.undo, SocketProtocol::Tcp, |u: types::gw_undone| {
            found.push(TreatedSocket {
                cookie: Cookie(u.cookie),
                layout: u.layout,
                cap: (u.found & CWND_CLAMP != 0).then_some((u.clamp, u.clamp_before)),
                settings: u.found,
                error: (u.error != 0).then_some(-u.error),
            });
        });
        if scanned.is_err() {
            // It may go on in the kernel when somebody else has changed these sockets.
            let mut state: types::bss = counters(&self.state, "the clear")?;
            state.given_up = 1;
            let given_up = self.state.update(&0u32.to_ne_bytes(), bytes_of(&state), MapFlags::ANY);
            given_up.context("cannot stop an undo")?;
        }
        scanned?;
        for value in values {
            self.our_values
                .delete(&value.to_ne_bytes())
                .context("cannot take a value back")?;
        }
        Ok(found)
    }
}

/// Undoes all of one kind that this saved state records; returns on how many sockets.
pub fn restore(netns_inum: u32, saved: &MapHandle, what: &str) -> Result<usize> {
    let mut found = Clear::open(netns_inum, Some(saved), false)?.run(&[])?;
    // A newer giveway's are its own.
    found.retain(|one| one.layout <= LAYOUT);
    if let Some(errno) = found.iter().find_map(|one| one.error) {
        bail!("the kernel refused to restore a {what} (errno {errno}); the watchdog tries again");
    }
    Ok(found.len())
}

fn shown(clamp: u32) -> String {
    super::limit(clamp).map_or("none".to_owned(), |segments| segments.to_string())
}
