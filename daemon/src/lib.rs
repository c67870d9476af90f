// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The I/O around the engine. `kernel` brings in, `actuate` puts out, `run` ties them to the engine; the
//! other modules are the commands that ask the daemon or clean up after it.

// Its tests make files as they like.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod actuate;
pub mod cli;
pub mod commands;
pub mod control;
pub mod exit;
pub mod files;
pub mod holder;
pub mod inherited;
pub mod interface;
pub mod journal;
pub mod kernel;
pub mod key;
pub mod life;
pub mod lookup;
pub mod notify;
pub mod peers;
pub mod pins;
pub mod place;
pub mod presence;
#[cfg(test)]
mod reference;
pub mod rules;
pub mod run;
pub mod say;
pub mod takeover;
pub mod undo;
pub mod watchdog;
pub mod words;
