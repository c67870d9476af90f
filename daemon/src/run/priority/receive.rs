// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The main loop's side of what comes in: sets up the managed device by `[receive]`, shows its packets to the programs
//! behind `[[chain]]`, and names its NAPI threads to the real-time thread. What cannot be done is listed in
//! [`Receiver::missing`] and tried again, and everything else goes on.

use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::back_off::BackOff;
use giveway_engine::change::{Changes, Latest};
use giveway_engine::config::{Chain, Config, ReceiveSection};
use giveway_engine::model::ProcessId;
use giveway_engine::priority::{ChainLimits, Service};
use libbpf_rs::MapHandle;

use super::PriorityThread;
use crate::actuate::receive::{Setting, settings};
use crate::interface::Interface;
use crate::journal::Journal;
use crate::kernel::arrival::{Arrival, HandlerMaps, Rule};
use crate::kernel::tasks::Tasks;
use crate::kernel::{load_patiently, napi, now, uid_of};
use crate::place::Place;

/// So often NAPI threads are named anew, though they are the same: what could not be raised is tried again.
const NAMED_EVERY: Duration = Duration::from_secs(10);

pub struct Receiver {
    section: ReceiveSection,
    journal: Journal<Setting>,
    managed: Option<Interface>,
    /// What of the section could not be done yet, and when it is tried again.
    to_do: ReceiveSection,
    again: BackOff,
    /// As the real-time thread knows them, and since when.
    named: (Vec<ProcessId>, Duration),
    /// Why they cannot be named.
    unnamed: Option<String>,
    /// None without any [[chain]].
    arrival: Option<Result<Arrival>>,
    rules: Vec<Rule>,
    changes: Changes,
    missing: Vec<String>,
    is_paused: bool,
}

/// What the thread that raises handlers of requests works with.
pub struct ChainSource {
    pub handlers: HandlerMaps,
    pub rules: Vec<Rule>,
}

impl Receiver {
    /// Loads what chains need. Nothing is changed yet.
    pub fn open(place: &Place, config: &Config, dry_run: bool) -> Self {
        let rules = config.chain.iter().map(rule_of).collect::<Result<Vec<_>>>();
        let load = |rules: &Result<Vec<Rule>>| match rules {
            Ok(rules) => load_patiently(|| Arrival::load(place.netns_inum(), rules)),
            Err(error) => Err(anyhow::anyhow!("{error:#}")),
        };
        let arrival = (!config.chain.is_empty() && !dry_run).then(|| load(&rules));
        if let Some(Err(error)) = &arrival {
            tracing::warn!("requests of [[chain]] get no priority: {error:#}");
        }
        Self {
            journal: Journal::at(place.journal(settings::UNDO.file)),
            section: if dry_run {
                ReceiveSection::default()
            } else {
                config.receive.clone()
            },
            managed: None,
            to_do: ReceiveSection::default(),
            again: BackOff::default(),
            named: (Vec::new(), Duration::ZERO),
            unnamed: None,
            rules: rules.unwrap_or_default(),
            arrival,
            changes: Changes::default(),
            missing: Vec::new(),
            is_paused: false,
        }
    }

    /// What admission needs for the answers' deadlines.
    pub fn requests(&self) -> Option<&MapHandle> {
        Some(&self.arrival.as_ref()?.as_ref().ok()?.requests)
    }

    /// None where there is no chain, or its programs could not be loaded.
    pub fn chains(&self) -> Result<Option<ChainSource>> {
        let Some(Ok(arrival)) = &self.arrival else {
            return Ok(None);
        };
        Ok(Some(ChainSource {
            handlers: arrival.handlers()?,
            rules: self.rules.clone(),
        }))
    }

    /// From now on it is about this interface, which may have another address than before.
    pub fn manage(&mut self, interface: Option<&Interface>, tasks: &Tasks, priority: Option<&PriorityThread>) {
        let device = |interface: &Interface| (interface.index, interface.name.clone());
        let is_same = self.managed.as_ref().map(device) == interface.map(device);
        self.managed = interface.cloned();
        if !is_same && !self.is_paused {
            self.to_do = self.section.clone();
            self.again.reset();
            self.set_up();
        }
        self.refresh(tasks, priority);
    }

    /// Tries again what could not be done, and names the NAPI threads that there are now. Call it now and then.
    pub fn refresh(&mut self, tasks: &Tasks, priority: Option<&PriorityThread>) {
        if self.again.is_due(now()) {
            self.set_up();
        }
        if !self.section.threaded_napi || self.is_paused {
            return;
        }
        let managed = self.managed.as_ref();
        let found = managed.map_or(Ok(Vec::new()), |interface| napi::threads(interface.index, tasks));
        let unnamed = match (found, priority) {
            (Err(error), _) => Some(format!("{error:#}")),
            (Ok(threads), None) if !threads.is_empty() => Some("the real-time thread is not running".to_owned()),
            (Ok(threads), Some(priority)) => {
                self.name(threads, priority);
                None
            }
            _ => None,
        };
        if let Some(reason) = unnamed.as_ref().filter(|_| unnamed != self.unnamed) {
            tracing::warn!("NAPI threads stay as they are: {reason}");
        }
        self.unnamed = unnamed;
    }

    fn name(&mut self, threads: Vec<ProcessId>, priority: &PriorityThread) {
        let (known, since) = &self.named;
        if *known != threads || now().saturating_sub(*since) >= NAMED_EVERY {
            self.named = (threads.clone(), now());
            priority.napi_threads(threads, self.section.napi_priority);
        }
    }

    /// What of it is still to be done.
    fn set_up(&mut self) {
        let before = std::mem::take(&mut self.missing);
        if let Some(Ok(arrival)) = &mut self.arrival
            && let Err(error) = arrival.attach(
                self.managed
                    .as_ref()
                    .filter(|_| !self.is_paused)
                    .map(|interface| interface.index),
            )
        {
            self.missing.push(format!("requests are not seen: {error:#}"));
        }
        if let Some(interface) = &self.managed {
            let (changes, missing) = settings::apply(&mut self.to_do, interface, &mut self.journal);
            self.missing.extend(missing);
            for change in changes {
                tracing::info!("{change}");
                self.changes.note(now(), change);
            }
        }
        for line in self.missing.iter().filter(|line| !before.contains(line)) {
            tracing::warn!("{line}");
        }
        if !self.missing.is_empty() {
            self.again.failed(now());
        }
    }

    /// What does not work, and why.
    pub fn missing(&self) -> impl Iterator<Item = String> + '_ {
        let chains = self.arrival.as_ref().and_then(|arrival| arrival.as_ref().err());
        let chains = chains.map(|error| format!("requests of [[chain]] get no priority: {error:#}"));
        let missing = self.missing.iter().map(|line| self.again.shown(now(), line));
        let unnamed = self
            .unnamed
            .iter()
            .map(|reason| format!("NAPI threads stay as they are: {reason}"));
        missing.chain(unnamed).chain(chains)
    }

    /// The settings that were changed.
    pub fn changes(&self) -> Vec<Latest> {
        self.changes.to_vec()
    }

    /// What was set is restored, and requests are not seen, for a while. Returns what could not be restored.
    pub fn pause(&mut self) -> Vec<String> {
        self.is_paused = true;
        self.to_do = ReceiveSection::default();
        self.named = (Vec::new(), Duration::ZERO);
        self.set_up();
        self.journal.undo().failed
    }

    pub fn resume(&mut self) {
        self.is_paused = false;
        self.to_do = self.section.clone();
        self.again.reset();
        self.set_up();
    }

    /// Its programs leave the kernel. What was set is restored from the journal.
    pub fn close(&mut self) {
        self.arrival = None;
    }
}

fn rule_of(chain: &Chain) -> Result<Rule> {
    Ok(Rule {
        chain: chain.clone(),
        uid: uid_of(chain.user()).with_context(|| format!("there is no user {}", chain.user()))?,
    })
}

/// The chains of a configuration, for the engine.
pub fn chains_of(config: &Config) -> impl Iterator<Item = (Service, ChainLimits)> {
    config.chain.iter().map(|chain| {
        let terms = ChainLimits {
            priority: chain.priority,
            share_percent: chain.share_percent,
        };
        (service_of(chain), terms)
    })
}

/// What a chain's requests are for.
pub fn service_of(chain: &Chain) -> Service {
    Service {
        protocol: chain.conditions.protocol(),
        local_port: chain.conditions.local_port(),
    }
}
