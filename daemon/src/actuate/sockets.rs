// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The settings of TCP sockets. Input: a value for a setting of a socket. Output: what became of each. Decides nothing.
//!
//! Each setting has one actuator, listed in [`ACTUATORS`]: a new one is a file of its own and a line there.

use anyhow::Result;
use giveway_engine::change::{Setting, Value};
use giveway_engine::config::{CapPolicyName, Config};
use giveway_engine::model::Cookie;
use giveway_engine::sockets::setting::Outcome;
use libbpf_rs::MapHandle;

use crate::journal::Journal;
use crate::kernel::load_patiently;
use crate::place::Place;

pub mod cap;
mod control;
pub mod pace;
pub mod receive;
mod scan;
pub mod scavenger;

use cap::saved::{self, CapEntry};

/// Opens an actuator, where it is wanted; where that fails, this and the reason are what `status` shows.
const ACTUATORS: [(&str, IsWanted, Open); 4] = [
    ("nothing can be capped", |_| true, cap::open),
    (
        "an estimated share is enforced by cwnd alone",
        |config| config.cap_policy() == CapPolicyName::Estimated,
        pace::open,
    ),
    (
        "background connections keep their congestion control",
        |config| config.classes.congestion_control,
        control::open,
    ),
    (
        "background downloads do not yield",
        |config| config.classes.receive_window,
        receive::open,
    ),
];

type IsWanted = fn(&Config) -> bool;
type Open = fn(&Place, &MapHandle) -> Result<Box<dyn SocketActuator>>;

/// Writes one setting of sockets.
pub trait SocketActuator {
    fn setting(&self) -> Setting;

    /// Writes each value; `Unset` restores what giveway found. Whatever undoes a value after this process's death is
    /// recorded before the value is written.
    fn apply(&mut self, wanted: &[(Cookie, Value)]) -> Result<Vec<(Cookie, Outcome)>>;

    /// Puts back what giveway found, on every socket; returns on how many.
    fn revert(&mut self) -> Result<usize>;

    /// What does not work, and why.
    fn missing(&self) -> Vec<String> {
        Vec::new()
    }

    /// The map by which all is undone after this process's death, which the watchdog holds as well.
    fn saved_id(&self) -> Option<u32> {
        None
    }

    /// The congestion control that it gives background connections.
    fn scavenger(&self) -> Option<&str> {
        None
    }

    /// What somebody else has set since the last call, on sockets whose value was ours.
    fn taken_over(&mut self) -> Result<Vec<(Cookie, Value)>> {
        Ok(Vec::new())
    }

    /// From now on connections that leave by this interface have these caps (segments, 0 for none) as they open, by
    /// the steps of [`cap::rtt_floors_us`].
    fn cap_new(&mut self, _ifindex: u32, _caps: &[u32]) -> Result<()> {
        Ok(())
    }

    /// The connections that were capped as they opened, since the last call.
    fn capped_at_connect(&mut self) -> Result<Vec<(Cookie, u32)>> {
        Ok(Vec::new())
    }
}

/// All of them. Empty in a dry run.
#[derive(Default)]
pub struct SocketActuators {
    actuators: Vec<Box<dyn SocketActuator>>,
    /// What all of them have written down.
    journal: Option<Journal<CapEntry>>,
}

impl SocketActuators {
    /// Opens every actuator that this kernel has; also returns what does not work.
    /// `local_waits`: what the queue tells of background that waits in it.
    pub fn open(place: &Place, config: &Config, local_waits: &MapHandle) -> (Self, Vec<String>) {
        let (mut opened, mut missing) = (Vec::new(), Vec::new());
        for (lost, _, open) in ACTUATORS.iter().filter(|(_, is_wanted, _)| is_wanted(config)) {
            match load_patiently(|| open(place, local_waits)) {
                Ok(actuator) => {
                    missing.extend(actuator.missing());
                    opened.push(actuator);
                }
                Err(error) => missing.push(format!("{lost}: {error:#}; watching and reporting go on")),
            }
        }
        let sockets = Self {
            actuators: opened,
            journal: Some(Journal::at(place.journal(saved::UNDO.file))),
        };
        (sockets, missing)
    }

    pub fn saved_id(&self) -> Option<u32> {
        self.actuators.iter().find_map(|actuator| actuator.saved_id())
    }

    pub fn scavenger(&self) -> Option<&str> {
        self.actuators.iter().find_map(|actuator| actuator.scavenger())
    }

    pub fn is_empty(&self) -> bool {
        self.actuators.is_empty()
    }

    /// What became of each value; and what went wrong, where some of that is not known.
    pub fn apply(
        &mut self,
        mut wanted: Vec<(Cookie, Setting, Value)>,
    ) -> (Vec<(Cookie, Setting, Outcome)>, Result<()>) {
        let (mut outcomes, mut failed) = (Vec::with_capacity(wanted.len()), Ok(()));
        for actuator in &mut self.actuators {
            let setting = actuator.setting();
            let mine: Vec<(Cookie, Value)> = wanted
                .extract_if(.., |(_, of, _)| *of == setting)
                .map(|(cookie, _, value)| (cookie, value))
                .collect();
            let done = actuator.apply(&mine).unwrap_or_else(|error| {
                failed = Err(error);
                mine.iter().map(|(cookie, _)| (*cookie, Outcome::Unknown)).collect()
            });
            outcomes.extend(
                done.into_iter()
                    .map(|(cookie, outcome)| (cookie, setting.clone(), outcome)),
            );
        }
        let unable = |(cookie, setting, _)| (cookie, setting, Outcome::Unable);
        outcomes.extend(wanted.into_iter().map(unable));
        (outcomes, failed)
    }

    pub fn cap_new(&mut self, ifindex: u32, caps: &[u32]) -> Result<()> {
        self.actuators
            .iter_mut()
            .try_for_each(|actuator| actuator.cap_new(ifindex, caps))
    }

    pub fn capped_at_connect(&mut self) -> Result<Vec<(Cookie, u32)>> {
        let mut capped = Vec::new();
        for actuator in &mut self.actuators {
            capped.extend(actuator.capped_at_connect()?);
        }
        Ok(capped)
    }

    pub fn has(&self, setting: &Setting) -> bool {
        self.actuators.iter().any(|actuator| actuator.setting() == *setting)
    }

    pub fn taken_over(&mut self) -> Result<Vec<(Cookie, Setting, Value)>> {
        let mut all = Vec::new();
        for actuator in &mut self.actuators {
            let setting = actuator.setting();
            let taken = actuator.taken_over()?.into_iter();
            all.extend(taken.map(|(cookie, found)| (cookie, setting.clone(), found)));
        }
        Ok(all)
    }

    /// Reverts all of them, and fails only then. Nothing is forgotten before every one has put back what it found.
    pub fn revert(&mut self) -> Result<usize> {
        let all = self.actuators.drain(..);
        let reverted: Vec<Result<usize>> = all.map(|mut actuator| actuator.revert()).collect();
        let count = reverted.into_iter().sum::<Result<usize>>()?;
        if let Some(journal) = &mut self.journal {
            journal.clear()?;
        }
        Ok(count)
    }
}
