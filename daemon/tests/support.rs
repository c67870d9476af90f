// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the three test crates share: network namespaces, TCP traffic between them, the built program as a process,
//! temporary files, directories that never answer, waiting for a condition with a deadline, and what whoever starts the tests has set.

pub mod bottleneck;
pub mod caller;
pub mod freezer;
pub mod held;
pub mod host;
pub mod lab;
pub mod planted;
pub mod process;
pub mod scratch;
pub mod tcp;
pub mod terminal;
pub mod turn;
pub mod wait;
