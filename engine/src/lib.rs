// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The decisions of giveway.
//!
//! In: observations of the kernel, of the peers and of the configuration, each with its time. Out: actions, and a
//! status that explains them. Never: a clock, a socket, a file, an environment variable, `unsafe`. So many devices can
//! be simulated in virtual time.
//!
//! There are two engines. [`network`] decides at the pace of flows, several times a second, in an ordinary thread.
//! [`priority`] must decide within microseconds, in threads above everything that it gives priority to.
#![forbid(unsafe_code)]

pub mod back_off;
pub mod background;
pub mod change;
pub mod class;
pub mod config;
#[cfg(any(test, feature = "corpus"))]
pub mod corpus;
pub mod downlink;
pub mod enforcement;
pub mod matcher;
pub mod model;
pub mod network;
pub mod peers;
pub mod priority;
mod quantity;
pub mod queue;
pub mod rate;
pub mod record;
pub mod share;
pub mod sockets;
pub mod status;
pub mod time;
pub mod trial;
mod turns;
