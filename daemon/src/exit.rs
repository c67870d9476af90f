// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exit codes: 0 done, 1 failed, 2 asked for something that cannot be (usage or configuration). `exec` has those of
//! env(1) besides.

use std::fmt::{self, Display, Formatter};

use thiserror::Error;

/// The user's own words are at fault: exit code 2.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// A context that gives an error an exit code of its own.
#[derive(Debug)]
pub struct Code(pub u8);

impl Display for Code {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {}", self.0)
    }
}

pub fn code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<Code>() {
        Some(Code(code)) => *code,
        None if error.downcast_ref::<Usage>().is_some() => 2,
        None => 1,
    }
}
