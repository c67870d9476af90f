// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recordings of engines' inputs and actions, made once and replayed forever: behaviour that a refactoring must not
//! change. Never in a shipped binary: built for tests, and with the feature `corpus` to record.
//!
//! A recording is two lists of JSON lines. Inputs: a header (which engine, configuration, seed, key), then one line for
//! each input with its time. Actions: for each action the number of its input since the header. The format is the
//! corpus's own: kinds and plain values, no texts for people. [`translation`] alone maps today's types to it.
// The recorder reads nothing.
#![cfg_attr(not(test), allow(dead_code))]

mod plain;
#[cfg(feature = "corpus")]
pub mod recorder;
#[cfg(test)]
mod replay;
mod translation;
