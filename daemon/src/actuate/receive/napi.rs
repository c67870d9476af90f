// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives the kernel's threads that take packets in (NAPI) real time and takes it back; what they were is journalled first.
//! It decides nothing.
//!
//! Each thread is a process of its own, so that a pidfd holds it and its CPU time is told without opening anything.

use giveway_engine::model::ProcessId;
use giveway_engine::priority::RefusedThread;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::actuate::thread::{self, ThreadChange};
use crate::journal::Journal;
use crate::kernel::process::Handle;
use crate::kernel::tasks::Tasks;
use crate::place::Place;

pub struct NapiThreads {
    tasks: Arc<Tasks>,
    journal: Journal<ThreadChange>,
    /// By number.
    raised: BTreeMap<u32, RaisedNapiThread>,
    /// While raised, by all of them so far.
    used: Duration,
}

struct RaisedNapiThread {
    process: Handle,
    changed: ThreadChange,
    /// Its CPU time when it was counted last.
    counted: Duration,
}

impl NapiThreads {
    pub fn new(place: &Place, tasks: Arc<Tasks>) -> Self {
        Self {
            tasks,
            journal: Journal::at(place.journal(thread::NAPI.file)),
            raised: BTreeMap::new(),
            used: Duration::ZERO,
        }
    }

    /// Each for itself; returns those that are not raised now.
    pub fn raise(&mut self, threads: &[ProcessId], priority: u32) -> Vec<RefusedThread> {
        let outcomes = threads.iter().map(|id| (id.pid, self.raise_one(*id, priority)));
        let refused = outcomes.filter_map(|(tid, outcome)| {
            let reason = format!("{:#}", outcome.err()?);
            Some(RefusedThread { tid, reason })
        });
        refused.collect()
    }

    fn raise_one(&mut self, id: ProcessId, priority: u32) -> Result<()> {
        let process = Handle::of(id, &self.tasks).context("it cannot be opened")?;
        let mut change = None;
        let outcome = thread::raise(id.pid, id.pid, priority, |changed| {
            self.journal.add([&changed])?;
            change = Some(changed);
            Ok(())
        });
        if let Some(changed) = change {
            // However that went: what was begun is revoked.
            let counted = process.cpu();
            let raised = RaisedNapiThread {
                process,
                changed,
                counted,
            };
            self.raised.insert(id.pid, raised);
        }
        outcome?;
        if !self.raised.contains_key(&id.pid) {
            bail!("already FIFO {priority}, set by another tool; left unchanged");
        }
        Ok(())
    }

    /// Where that fails for one, it is tried again with the next call, and the journal remembers it.
    ///
    /// # Errors
    /// Of the first for which it failed.
    pub fn lower(&mut self) -> Result<()> {
        self.cpu();
        let mut outcome = Ok(());
        self.raised.retain(|_, raised| match raised.changed.revoke() {
            Ok(_) => false,
            Err(error) => {
                outcome = Err(error);
                raised.process.is_alive()
            }
        });
        if self.raised.is_empty() {
            // One that cannot be cleared names what is lowered already.
            let _ = self.journal.clear();
        }
        outcome
    }

    /// Used so far by all of them while they were raised.
    pub fn cpu(&mut self) -> Duration {
        for raised in self.raised.values_mut() {
            let cpu = raised.process.cpu();
            self.used += cpu.saturating_sub(raised.counted);
            // Of one that has ended nothing is told any more.
            raised.counted = raised.counted.max(cpu);
        }
        self.used
    }
}

impl Drop for NapiThreads {
    fn drop(&mut self) {
        let _ = self.lower();
    }
}
