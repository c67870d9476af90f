// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The types that describe the machine to the engine: sockets, processes, devices, and the terms of rules. The lowest
//! layer: decides nothing, and depends on nothing else here.

mod class;
mod link;
mod process;
mod protocol;
mod socket;

pub use class::{Class, Forwarded, Limit, LimitNumber, LimitNumbers, RateLimit, Rates, RuleId, Treatment};
pub use link::{Device, Interface};
pub use process::{Choice, ChosenLimit, Fingerprint, Idleness, Inherited, Nice, Process, ProcessId, ROOT, unit_of};
pub use protocol::{Dscp, Mark, Prefix, Protocol};
pub use socket::{CaState, Cookie, Flow, FlowEvent, Owner, TcpState};
