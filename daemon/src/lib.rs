// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The I/O around the engine. `kernel` brings in, `actuate` puts out, `run` ties them to the engine; the
//! other modules are the commands that ask the daemon or clean up after it.

pub mod actuate;
pub mod cli;
pub mod control;
pub mod doctor;
pub mod exec;
pub mod exit;
pub mod guardian;
pub mod interface;
pub mod jitter;
pub mod kernel;
pub mod key;
pub mod lbe;
pub mod neighbours;
pub mod place;
pub mod plot;
pub mod realtime;
pub mod record;
pub mod revert;
pub mod run;
pub mod status;
pub mod why;
