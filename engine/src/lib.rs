// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What giveway decides.
//!
//! In: observations of the kernel, of the neighbours and of the configuration, each with the time at which
//! it was made. Out: actions, and a snapshot that explains them. Never: a clock, a socket, a file, an
//! environment variable, `unsafe`. That is what lets many devices be simulated in virtual time.
#![forbid(unsafe_code)]

pub mod action;
mod caps;
pub mod config;
mod engine;
mod flows;
pub mod matcher;
pub mod model;
pub mod policy;
pub mod queue;
pub mod realtime;
pub mod receive;
pub mod record;
pub mod snapshot;
pub mod wire;

pub use engine::{Engine, Setup};
