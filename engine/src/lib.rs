// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What giveway decides.
//!
//! In: observations of the kernel, of the neighbours and of the configuration, each with the time at which
//! it was made. Out: actions, and a snapshot that explains them. Never: a clock, a socket, a file, an
//! environment variable, `unsafe`. That is what lets many devices be simulated in virtual time.
#![forbid(unsafe_code)]

pub mod config;
pub mod model;
pub mod policy;
pub mod wire;
