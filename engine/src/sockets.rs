// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is known of each socket over time: whether it sends or receives, how much, which process has it, its class, and what
//! limits it. Input: what the monitor shows, and events. Output: facts; what follows from them is decided elsewhere.

use crate::change::{Setting, Value};
use crate::model::{Cookie, Flow, FlowEvent};
use setting::Outcome;

pub mod flows;
pub mod goodput;
pub mod judged;
pub mod owners;
pub mod receiving;
pub mod requests;
pub mod setting;
pub mod trace;

#[derive(Debug)]
pub enum Input {
    /// The UDP sockets that something was sent on; one that is absent is gone.
    Datagrams(Vec<Flow>),
    /// What happened to sockets, in order.
    Events(Vec<(Cookie, FlowEvent)>),
    /// New connections were given their caps in the kernel, from the table of [`crate::share::limiter::CapTable`].
    CappedAtConnect(Vec<(Cookie, u32)>),
    /// The outcome of each setting of each [`setting::Request`].
    Outcomes(Vec<(Cookie, Setting, Outcome)>),
    /// Settings that were ours until somebody else set them, to this.
    TakenOver(Vec<(Cookie, Setting, Value)>),
}
