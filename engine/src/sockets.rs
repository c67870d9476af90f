// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is known of each socket over time: whether it sends or receives, how much, which process has it, its class, and what
//! limits it. Input: what the monitor shows, and events. Output: facts; what follows from them is decided elsewhere.

pub mod flows;
pub mod goodput;
pub mod judged;
pub mod limits;
pub mod owners;
pub mod receiving;
pub mod trace;
