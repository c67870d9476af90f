// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What giveway changes on the machine. Each actuator applies and reverts one kind of change; none decides.

pub mod download;
pub mod filters;
pub mod nice;
pub mod queue;
pub mod receive;
pub mod schedule;
pub mod sockets;
pub mod thread;
pub mod upload;
