// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiment that most figures need, as data: a topology, loads on it, and probes that measure beside the loads.
//! Input: what stands, what disturbs, what is measured. Output: the probes' metrics.
//!
//! The probes are made ready on the idle topology, the loads start, everything warms up; then the probes measure, one
//! after the other, the loads end, and the probes report.

pub mod load;
pub mod place;
pub mod probe;

use anyhow::Result;

use crate::experiment::{Run, pause};
use crate::guest::Guest;
use crate::outcome::Outcome;
use crate::scenario::Variant;
pub use load::Load;
pub use place::Topology;
pub use probe::Probe;

pub struct Testbed {
    pub topology: Topology,
    pub loads: Vec<Load>,
    /// From the start of the loads until the first probe measures.
    pub warmup_s: f64,
    pub probes: Vec<Box<dyn Probe>>,
}

impl Testbed {
    pub fn variant(self, name: impl Into<String>, guest: Option<Guest>) -> Variant {
        let estimated_s = self.warmup_s + self.probes.iter().map(|probe| probe.estimated_s(&self)).sum::<f64>();
        let access_point = match self.topology {
            Topology::AccessPoint(access_point) => Some(access_point),
            _ => None,
        };
        let variant = Variant::new(name, guest, estimated_s, move |run| self.run(run));
        Variant {
            access_point,
            ..variant
        }
    }

    fn run(&self, run: &Run) -> Result<Outcome> {
        self.topology.with(run, |place| {
            let ready = self.probes.iter().map(|probe| probe.prepare(self, place, run));
            let mut ready: Vec<_> = ready.collect::<Result<_>>()?;
            let loads = load::start(&self.loads, place, run)?;
            run.progress.tick("warming up");
            ready.iter_mut().try_for_each(|probe| probe.warm_up(place))?;
            pause(self.warmup_s)?;
            ready.iter_mut().try_for_each(|probe| probe.measure(place, run))?;
            drop(loads);
            let mut outcome = Outcome::default();
            ready
                .into_iter()
                .try_for_each(|probe| probe.report(place, run, &mut outcome))?;
            Ok(outcome)
        })
    }
}
