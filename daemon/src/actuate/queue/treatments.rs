// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What admission and the qdisc are told: of sockets, of processes for what they connect, of flows that are background, and of links
//! where what is limited takes a detour. What is told before admission is loaded is told when it is.

use std::collections::BTreeSet;

use anyhow::Result;
use giveway_engine::enforcement::traced::TRACED_WITHIN;
use giveway_engine::model::{Cookie, ProcessId, Treatment};
use giveway_engine::queue::BackgroundFlow;

use super::QueueActuator;
use super::admission::PacketLookups;
use super::forwarded::ForwardedContainers;

impl QueueActuator {
    /// What its class says of a socket; None: nothing.
    pub fn treat(&mut self, socket: Cookie, treatment: Option<Treatment>) -> Result<()> {
        if treatment.is_none() && self.treated.remove(&socket).is_none() {
            return Ok(());
        }
        if let Some(admission) = &self.admission {
            admission.treat(socket, treatment)?;
        }
        self.treated.extend(treatment.map(|treatment| (socket, treatment)));
        self.configure()
    }

    /// The same of what a process connects.
    pub fn treat_process(&mut self, process: ProcessId, treatment: Option<Treatment>) -> Result<()> {
        if treatment.is_none() && self.treated_processes.remove(&process).is_none() {
            return Ok(());
        }
        if let Some(admission) = &self.admission {
            admission.treat_process(process, treatment)?;
        }
        self.treated_processes
            .extend(treatment.map(|treatment| (process, treatment)));
        self.configure()
    }

    /// From now on these packets are background, as those of `[[background]]` are.
    pub fn add_background(&mut self, flow: BackgroundFlow) -> Result<()> {
        let flow = flow.canonical();
        if let Some(admission) = &self.admission {
            admission.add_background(&flow)?;
        }
        self.background.insert(flow);
        self.configure()
    }

    /// What is limited takes a detour where these links are left by.
    pub fn set_detours(&mut self, detours: BTreeSet<u32>) -> Result<()> {
        self.detours = detours;
        self.configure()
    }

    /// Writes what is active for admission and the qdisc.
    pub(super) fn configure(&self) -> Result<()> {
        let Some(admission) = &self.admission else {
            return Ok(());
        };
        let is_limited = |treatment: &Treatment| !treatment.limits.is_none();
        let containers = self.containers.as_ref().and_then(|loaded| loaded.as_ref().ok());
        let forwards = containers.is_some_and(ForwardedContainers::is_attached);
        let limits_containers = containers.is_some_and(ForwardedContainers::are_limited);
        let lookups = PacketLookups {
            background_flows: self.background.len(),
            treated_sockets: self.treated.len(),
            limits_processes: self.treated_processes.values().any(is_limited),
            limits_sockets: self.treated.values().any(is_limited) || limits_containers,
            detours: Some(&self.detours),
            forwards,
        };
        let mut links = self.links.values();
        links.try_for_each(|link| admission.configure(link.number, Some((&link.plan, lookups))))
    }

    /// For each of these sockets the link in whose queue a packet of it was within the last moments; None: in none.
    pub fn trace(&self, sockets: Vec<Cookie>) -> Vec<(Cookie, Option<u32>)> {
        let on = |socket| self.admission.as_ref()?.queued_on(socket, TRACED_WITHIN);
        sockets.into_iter().map(|socket| (socket, on(socket))).collect()
    }
}
