// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The history of each socket: whether it sends or receives, how much, its process, its class, and its limits. Input:
//! polls and events of the monitor. Output: facts; decisions are made elsewhere.

use crate::change::{Setting, Value};
use crate::model::{Cookie, Flow, FlowEvent};
use setting::Outcome;

pub mod flows;
pub mod goodput;
pub mod judgement;
pub mod owners;
pub mod receiving;
pub mod requests;
pub mod setting;
pub mod trace;

#[derive(Debug)]
pub enum Input {
    /// The UDP sockets that sent something; an absent one is closed.
    Datagrams(Vec<Flow>),
    /// Socket events, in order.
    Events(Vec<(Cookie, FlowEvent)>),
    /// The kernel capped new connections by the table [`crate::share::limiter::CapTable`].
    CappedAtConnect(Vec<(Cookie, u32)>),
    /// The outcome of each setting of each [`setting::Request`].
    Outcomes(Vec<(Cookie, Setting, Outcome)>),
    /// Settings of giveway that another tool has overwritten with these values.
    TakenOver(Vec<(Cookie, Setting, Value)>),
}
