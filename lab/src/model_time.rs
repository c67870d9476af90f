// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab in model time: the same channel (`medium`), the real engine, and between them hosts reduced to a model of
//! TCP. A minute of eight stations takes seconds, and one seed gives one run.
//!
//! Input: a description of a cell. Output: the figures that the live lab reports. It searches and compares policies;
//! the results are then measured live, with real TCP. docs/contributing/lab.md states how well they agree.

pub mod connection;
mod cubic;
mod device;
pub mod experiment;
pub mod oracle;
mod packet;
mod rate;
mod receiver;
mod rtt;
mod sender;
pub mod world;

#[cfg(test)]
mod tests;
