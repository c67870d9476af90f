// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exit codes: 0 done, 1 failed, 2 asked for something that cannot be (usage or configuration).

use thiserror::Error;

/// The user's own words are at fault: exit code 2.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Usage(pub String);

pub fn code(error: &anyhow::Error) -> u8 {
    if error.downcast_ref::<Usage>().is_some() { 2 } else { 1 }
}
