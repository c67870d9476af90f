// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What measures on a topology beside its loads; one file each.

pub mod computing;
pub mod deadlines;
pub mod requests;
pub mod transfers;

use anyhow::Result;

use super::Testbed;
use super::place::Place;
use crate::experiment::Run;
use crate::outcome::Outcome;

/// A probe as data.
pub trait Probe {
    fn estimated_s(&self, testbed: &Testbed) -> f64;

    /// On the idle topology, before the loads start.
    fn prepare<'a>(&'a self, testbed: &'a Testbed, place: &mut Place, run: &Run) -> Result<Box<dyn Measure + 'a>>;
}

/// A probe at work.
pub trait Measure {
    /// Beside the loads, before anything counts.
    fn warm_up(&mut self, _place: &mut Place) -> Result<()> {
        Ok(())
    }

    fn measure(&mut self, place: &mut Place, run: &Run) -> Result<()>;

    /// When the loads have ended.
    fn report(self: Box<Self>, place: &mut Place, run: &Run, outcome: &mut Outcome) -> Result<()>;
}
