// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Holds cwnd of TCP connections below a cap. Input: caps by cookie, and a table for new connections. Output: what became
//! of each. It never decides a cap, never caps loopback, and leaves a clamp alone that it did not set.
//!
//! What it puts on a socket outlives the process: its saved state is written before ([`saved`]), so that [`clear::Clear`] can
//! undo it. The iterators work on the namespace of the calling thread.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd};

use anyhow::{Context, Result, anyhow, bail, ensure};
use giveway_engine::change::{Setting, Value};
use giveway_engine::model::{CaState, Cookie};
use giveway_engine::sockets::setting::Outcome;
use giveway_engine::sockets::setting::segments;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle, ProgramMut};

use super::SocketActuator;
use super::scan::SocketScan;
use crate::journal::Journal;
use crate::kernel::libbpf_log::explain;
use crate::kernel::records::bytes_of;
use crate::kernel::ring::Ring;
use crate::kernel::skeletons::cap as skeleton;
use crate::kernel::{cgroup, check_requirements, shown_errno};
use crate::place::Place;
use saved::CapEntry;
use skeleton::types;

pub mod avoidance;
pub mod clear;
pub mod saved;

/// More wait for the next call.
const REPORTS_AT_ONCE: usize = 4096;

/// Clamps from here on hold nothing down.
pub const UNLIMITED: u32 = types::gw_limit::GW_UNLIMITED.0;

/// What became of one socket's cap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapOutcome {
    pub cookie: Cookie,
    /// The clamp before; None where nothing limited cwnd (or the socket is gone).
    pub old: Option<u32>,
    /// The clamp that was asked for; None for a clear.
    pub wanted: Option<u32>,
    pub result: CapResult,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CapResult {
    /// Written. `without_restart`: the write would have restarted slow start, and was kept from it.
    Applied { without_restart: bool },
    /// It was there already.
    Unchanged,
    /// The kernel repairs a loss; to be asked again.
    Deferred(CaState),
    /// The clamp on the socket is another tool's, and stays.
    Foreign,
    /// Leaves by a loopback interface, which is never capped.
    Loopback,
    /// The connection has ended.
    Gone,
    /// The kernel refused, with this errno.
    Failed(i32),
}

pub use types::gw_new_capped as NewCapped;

/// The loaded programs. Dropping it takes them out of the kernel, but clears no cap: `revert` does.
pub struct CapActuator {
    scan: SocketScan,
    netns_inum: u32,
    new_connections: Result<Link>,
    new_caps: MapHandle,
    events: Ring<types::gw_new_capped>,
    generation: u32,
    avoidance: Result<avoidance::Avoidance>,
    saved: MapHandle,
    /// None outside a daemon.
    journal: Option<Journal<CapEntry>>,
    /// The pinned map, or why it does not outlive this process, so that caps are undone by value.
    saved_id: Result<u32>,
}

impl CapActuator {
    /// Loads the actuator for the namespace of this number, which must be the caller's own. Caps no socket yet.
    pub fn open(netns_inum: u32) -> Result<Self> {
        Self::open_with(netns_inum, None)
    }

    /// The same for a daemon: what it caps can be undone after its death.
    fn open_at(place: &Place) -> Result<Self> {
        // What could not be undone of an earlier daemon's is ours as well.
        let mut actuator = Self::open_with(place.netns_inum(), saved::pinned(place).as_ref())?;
        actuator.journal = Some(Journal::at(place.journal(saved::UNDO.file)));
        actuator.saved_id = saved::keep(&mut actuator.saved, place);
        Ok(actuator)
    }

    fn open_with(netns_inum: u32, saved: Option<&MapHandle>) -> Result<Self> {
        check_requirements()?;
        let avoidance = avoidance::Avoidance::register(&format!("gwc{netns_inum:08x}"));
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::CapSkelBuilder::default();
        let mut open = explain("open the cap programs", || builder.open(&mut storage))?;
        let constants = open
            .maps
            .rodata_data
            .as_deref_mut()
            .context("the cap programs have no constants")?;
        constants.netns_inum = netns_inum;
        constants.avoidance_name = avoidance
            .as_ref()
            .map(avoidance::Avoidance::kernel_name)
            .unwrap_or_default();
        if let Some(saved) = saved {
            explain("use the saved state", || {
                open.maps.gw_saved_socks.reuse_fd(saved.as_fd())
            })?;
        }
        let skeleton = explain("load the cap programs", || open.load())?;
        let (programs, maps) = (&skeleton.progs, &skeleton.maps);
        let keep = |map| MapHandle::try_from(map).context("cannot keep a map of the cap programs");
        Ok(Self {
            scan: SocketScan::new(
                explain("attach the cap iterator", || programs.gw_apply_caps.attach())?,
                keep(&maps.wanted_caps)?,
            ),
            netns_inum,
            new_connections: attach_to_root_cgroup(&programs.gw_cap_new),
            new_caps: keep(&maps.new_caps)?,
            events: Ring::open("new connections", &maps.capped_events)?,
            generation: 0,
            avoidance,
            saved: keep(&maps.gw_saved_socks)?,
            journal: None,
            saved_id: Err(anyhow!("not a daemon's")),
        })
    }

    /// The saved state of sockets, each under its descriptor.
    pub fn saved(&self) -> &MapHandle {
        &self.saved
    }

    /// Before the caps are used.
    fn write_down(&mut self, caps: impl Iterator<Item = u32>) -> Result<()> {
        let Some(journal) = &mut self.journal else {
            return Ok(());
        };
        let mut caps = caps.filter(|cap| *cap < UNLIMITED).peekable();
        match self.saved_id {
            Ok(map_id) if caps.peek().is_some() => journal.add(&[CapEntry::Marked { map_id }]),
            Ok(_) => Ok(()),
            Err(_) => journal.add(&caps.map(CapEntry::Value).collect::<Vec<_>>()),
        }
    }

    /// Why new connections cannot be capped as they open (they are when a poll has seen them); None if they are.
    pub fn new_connections_missing(&self) -> Option<String> {
        self.new_connections.as_ref().err().map(|error| format!("{error:#}"))
    }

    /// Why a clear, or a cap above the window that the network allows, restarts slow start; None if it does not.
    pub fn ease_missing(&self) -> Option<String> {
        self.avoidance.as_ref().err().map(|error| format!("{error:#}"))
    }

    /// Writes caps (segments), or clears, in as few scans over the sockets as can be; one outcome for each.
    pub fn write(&mut self, wanted: impl IntoIterator<Item = (Cookie, Option<u32>)>) -> Result<Vec<CapOutcome>> {
        let clamp = |(cookie, cap): (Cookie, Option<u32>)| (cookie, cap.unwrap_or(UNLIMITED).clamp(1, UNLIMITED));
        let asked: BTreeMap<Cookie, u32> = wanted.into_iter().map(clamp).collect();
        self.write_down(asked.values().copied())?;
        let of = |o: &types::gw_outcome| Cookie(o.cookie);
        let (records, gone) = self.scan.run(asked.clone(), of)?;
        let gone = gone.into_iter().map(|cookie| CapOutcome {
            cookie,
            old: None,
            wanted: asked.get(&cookie).and_then(|clamp| limit(*clamp)),
            result: CapResult::Gone,
        });
        Ok(records.iter().map(outcome).chain(gone).collect())
    }

    /// From now on, connections that leave by this interface are capped as they open. Each step is the RTT from which
    /// it applies, in microseconds, and its cap in segments; a connection below the first step is left alone.
    /// No steps: no caps.
    pub fn publish_new(&mut self, ifindex: u32, steps: &[(u32, u32)]) -> Result<u32> {
        let mut table = types::gw_new_caps {
            ifindex,
            ..Default::default()
        };
        ensure!(
            steps.len() <= table.step.len(),
            "a table has at most {} steps of RTT",
            table.step.len()
        );
        ensure!(
            steps.is_sorted_by(|a, b| a.0 < b.0),
            "a table's steps of RTT must ascend"
        );
        ensure!(steps.iter().all(|step| step.1 > 0), "a cap is at least one segment");
        self.write_down(steps.iter().map(|step| step.1))?;
        table.generation = self.generation + 1;
        table.steps = u32::try_from(steps.len())?;
        for (entry, (rtt_floor_us, cap)) in table.step.iter_mut().zip(steps) {
            *entry = types::gw_new_cap {
                rtt_floor_us: *rtt_floor_us,
                cap: *cap,
            };
        }
        self.new_caps
            .update(&0u32.to_ne_bytes(), bytes_of(&table), MapFlags::LOCK)
            .context("cannot publish the caps for new connections")?;
        self.generation = table.generation;
        Ok(self.generation)
    }

    /// The reports of capped new connections that wait, oldest first.
    pub fn new_capped(&self) -> Result<Vec<NewCapped>> {
        self.events.take(REPORTS_AT_ONCE)
    }

    /// Caps no new connections any more and undoes what is marked, whatever the socket's state, listeners included: as
    /// after a death, so that nothing is left by one way that the other finds. The journal stays: it names the saved state of
    /// every setting.
    pub fn clear_all(&mut self) -> Result<Vec<clear::TreatedSocket>> {
        self.publish_new(0, &[])?;
        let mut found = clear::Clear::open(self.netns_inum, Some(&self.saved), false)?.run(&[])?;
        // A newer giveway's are its own.
        found.retain(|one| one.layout <= clear::LAYOUT);
        Ok(found)
    }
}

pub fn open(place: &Place, _local_waits: &MapHandle) -> Result<Box<dyn SocketActuator>> {
    Ok(Box::new(CapActuator::open_at(place)?))
}

impl SocketActuator for CapActuator {
    fn setting(&self) -> Setting {
        Setting::Cap
    }

    fn apply(&mut self, wanted: &[(Cookie, Value)]) -> Result<Vec<(Cookie, Outcome)>> {
        let outcome = |o: CapOutcome| match o.result {
            CapResult::Applied { .. } | CapResult::Unchanged => Outcome::Applied,
            CapResult::Deferred(_) => Outcome::Deferred,
            CapResult::Foreign => Outcome::Foreign { found: o.old.into() },
            CapResult::Gone | CapResult::Loopback => Outcome::Gone,
            CapResult::Failed(errno) => Outcome::Failed {
                errno: shown_errno(errno),
            },
        };
        let outcomes = self.write(wanted.iter().map(|(cookie, cap)| (*cookie, segments(cap))))?;
        Ok(outcomes.into_iter().map(|o| (o.cookie, outcome(o))).collect())
    }

    fn revert(&mut self) -> Result<usize> {
        let found = self.clear_all()?;
        if let Some(errno) = found.iter().find_map(|one| one.error) {
            bail!("the kernel refused to clear a cap (errno {errno}); the watchdog tries again");
        }
        Ok(found.len())
    }

    fn saved_id(&self) -> Option<u32> {
        self.saved_id.as_ref().ok().copied()
    }

    fn missing(&self) -> Vec<String> {
        let by_value = self.saved_id.as_ref().err().map(|error| {
            format!("should giveway be killed, caps are cleared by value, which may clear another tool's: {error:#}")
        });
        let missing = [by_value, self.new_connections_missing(), self.ease_missing()];
        missing.into_iter().flatten().collect()
    }

    fn cap_new(&mut self, ifindex: u32, caps: &[u32]) -> Result<()> {
        let steps = rtt_floors_us().into_iter().zip(caps.iter().copied());
        let steps: Vec<(u32, u32)> = steps.filter(|(_, cap)| *cap > 0).collect();
        self.publish_new(ifindex, &steps).map(drop)
    }

    fn capped_at_connect(&mut self) -> Result<Vec<(Cookie, u32)>> {
        let reports = self.new_capped()?;
        Ok(reports.iter().map(|new| (Cookie(new.cookie), new.cap)).collect())
    }
}

/// RTTs at half octaves from 128 us up, in microseconds: a table with a step at each is at most 30% below any RTT.
/// Shorter ones are left to the next poll.
pub fn rtt_floors_us() -> Vec<u32> {
    (14..64)
        .map(|half_octaves| 2f64.powf(f64::from(half_octaves) / 2.0).ceil() as u32)
        .collect()
}

pub fn attach_to_root_cgroup(program: &ProgramMut<'_>) -> Result<Link> {
    let root = cgroup::CgroupRoot::open()?;
    explain("attach to the root cgroup", || {
        program.attach_cgroup(root.directory.as_raw_fd())
    })
}

fn limit(segments: u32) -> Option<u32> {
    (segments < UNLIMITED).then_some(segments)
}

fn outcome(o: &types::gw_outcome) -> CapOutcome {
    let result = match o.kind {
        types::gw_outcome_kind::GW_APPLIED => CapResult::Applied {
            without_restart: o.without_restart != 0,
        },
        types::gw_outcome_kind::GW_UNCHANGED => CapResult::Unchanged,
        types::gw_outcome_kind::GW_DEFERRED => {
            CapResult::Deferred(CaState::from_kernel(o.ca_state.try_into().unwrap_or(u8::MAX)))
        }
        types::gw_outcome_kind::GW_FOREIGN => CapResult::Foreign,
        types::gw_outcome_kind::GW_LOOPBACK => CapResult::Loopback,
        _ => CapResult::Failed(-o.error),
    };
    CapOutcome {
        cookie: Cookie(o.cookie),
        old: limit(o.old_clamp),
        wanted: limit(o.wanted),
        result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actuate::sockets::scan::AT_ONCE;

    #[test]
    fn what_could_not_be_staged_as_a_whole_is_not_staged_at_all() {
        let mut actuator = CapActuator::open(crate::kernel::own_netns().unwrap()).unwrap();
        let map = MapHandle::try_from(&actuator.scan.wanted).unwrap();
        // Cookies of no socket, and room for one more.
        let first = u64::MAX - AT_ONCE as u64 + 2;
        for cookie in first..=u64::MAX {
            map.update(&cookie.to_ne_bytes(), &UNLIMITED.to_ne_bytes(), MapFlags::ANY)
                .unwrap();
        }
        let asked = [1, 2].map(|cookie| (Cookie(first - cookie), Some(10)));
        let failed = actuator.write(asked).unwrap_err();
        assert!(format!("{failed:#}").contains("cannot name a socket"), "{failed:#}");
        let left: Vec<Vec<u8>> = asked
            .iter()
            .filter_map(|(cookie, _)| map.lookup(&cookie.0.to_ne_bytes(), MapFlags::ANY).unwrap())
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
