// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon: reads the configuration, takes the namespace, and turns what it sees into inputs of the
//! engine and the engine's actions into changes. It decides nothing itself.

pub mod asked;
mod daemon;
pub mod priority;
mod start;

pub use start::{RunArgs, USUAL_CONFIGURATION, missing_group, priority_engine, run};
