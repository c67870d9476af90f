// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the three test crates share: network namespaces, TCP traffic between them, the built program as a process,
//! temporary files, directories that never answer, and waiting for a condition with a deadline.

pub mod bottleneck;
pub mod freezer;
pub mod held;
pub mod host;
pub mod lab;
pub mod process;
pub mod scratch;
pub mod tcp;
pub mod terminal;
pub mod wait;
