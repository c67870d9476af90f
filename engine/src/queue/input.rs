// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What queues are told.

use std::collections::BTreeMap;

use super::Uplink;
use super::links::LinkRates;
use super::traffic::Refusal;
use crate::model::Prefix;

#[derive(Debug)]
pub enum Input {
    /// The egress of each link as it is now: those to manage, in the order of preference, and those where ours still
    /// stands.
    Uplinks(Vec<Uplink>),
    /// The rates that were set for links at run time, by their names.
    Rates(BTreeMap<String, LinkRates>),
    /// The own subnets of links whose rates are not for them, all of these, by the links' numbers.
    Subnets(BTreeMap<u32, Vec<Prefix>>),
    /// Where no queue of ours stands, packets of these interfaces were background, streams or had a deadline; and so many wait
    /// there, in what stands in its place.
    Ordered(BTreeMap<u32, u32>),
    /// The outcome of [`LinkRequest`](super::links::LinkRequest); after an error no queue of ours is left there.
    Outcome { ifindex: u32, outcome: Result<(), String> },
    /// Packets with deadlines that were not sent, oldest first.
    Refusals(Vec<Refusal>),
}
