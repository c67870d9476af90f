// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop's part that concerns the managed link's queue: tells the engine what the link is now, carries out what the
//! engine wants of it.

use anyhow::Result;
use giveway_engine::action::Input;
use giveway_engine::queue::traffic::QueueCounters;
use giveway_engine::queue::{Plan, QueueChange};

use super::Running;
use crate::control::{Background, Request};
use crate::kernel::probe::one_line;

impl Running {
    /// Rate, MTU and qdisc of the managed link may change at any time, by anybody.
    pub(super) fn look_at_uplink(&mut self) -> Result<()> {
        let uplink = self.interface.as_ref().and_then(|interface| {
            let looked = self.daemon.queue.look(interface);
            // The link may vanish while it is looked at; the next second tells.
            looked
                .inspect_err(|error| tracing::debug!("{}: {error:#}", interface.name))
                .ok()
        });
        if uplink != self.uplink {
            self.uplink.clone_from(&uplink);
            self.tell(Input::Uplink(uplink))?;
        }
        Ok(())
    }

    /// What was refused since the last pass.
    pub(super) fn drain_refusals(&mut self) -> Result<()> {
        let refusals = self.daemon.queue.refusals()?;
        if refusals.is_empty() {
            return Ok(());
        }
        self.tell(Input::Refusals(refusals))
    }

    /// None where there are none, or the link is just going away.
    pub(super) fn queue_counters(&mut self) -> Option<QueueCounters> {
        let counters = self.daemon.queue.counters();
        counters
            .inspect_err(|error| tracing::debug!("{error:#}"))
            .unwrap_or_default()
    }

    /// Names a background flow, or gives the list.
    pub(super) fn background(&mut self, request: Request) -> Result<Background, String> {
        let queue = &mut self.daemon.queue;
        let changed = match request {
            Request::LbeAdd { flow } => queue.add_background(flow),
            Request::LbeRemove { flow } => queue.remove_background(flow),
            _ => Ok(false),
        };
        let changed = changed.map_err(|error| one_line(&error))?;
        if changed {
            tracing::info!("background flows: {request:?}");
        }
        Ok(Background {
            flows: queue.background().copied().collect(),
            in_force: queue.is_in_force(),
            changed,
        })
    }

    pub(super) fn set_queue(&mut self, plan: Option<&Plan>) -> Result<(), String> {
        let name = self.interface.as_ref().map_or("", |interface| &interface.name);
        let outcome = self.daemon.queue.set(plan, name).map_err(|error| one_line(&error));
        // What stands there now is our own doing, and no news.
        self.uplink = None;
        outcome
    }
}

pub fn tell_log(change: &QueueChange) {
    let verb = if change.made { "" } else { "not changed: " };
    tracing::info!(
        "{verb}queue of {}: {} -> {}: {}",
        change.interface,
        change.old,
        change.new,
        change.why
    );
}
