// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Inputs of the queues.

use std::collections::BTreeMap;

use super::Uplink;
use super::links::LinkRates;
use super::traffic::Refusal;
use crate::model::Prefix;

#[derive(Debug)]
pub enum Input {
    /// The egress of each link: those to manage, in the order of preference, and those that still have giveway's queue.
    Uplinks(Vec<Uplink>),
    /// The rates that were set at run time, by link name.
    Rates(BTreeMap<String, LinkRates>),
    /// The local subnets of links whose rates exclude local traffic, by interface; complete.
    Subnets(BTreeMap<u32, Vec<Prefix>>),
    /// Interfaces without giveway's queue on which background, stream or deadline packets were sent, with their
    /// backlog.
    Ordered(BTreeMap<u32, u32>),
    /// The outcome of [`LinkRequest`](super::links::LinkRequest); after an error giveway's queue is not installed
    /// there.
    Outcome { ifindex: u32, outcome: Result<(), String> },
    /// Packets that missed their deadlines and were not sent, oldest first.
    Refusals(Vec<Refusal>),
}
