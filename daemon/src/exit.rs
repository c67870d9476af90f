// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exit codes: 0 done, 1 failed, 2 asked for something that cannot be (usage or configuration). `exec` has those of
//! env(1) besides.

use std::fmt::{self, Display, Formatter};

use thiserror::Error;

/// The user's own words are at fault: exit code 2.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// A context that gives an error an exit code of its own. It says nothing.
#[derive(Debug)]
pub struct Code(pub u8);

impl Display for Code {
    fn fmt(&self, _: &mut Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

/// The error and its causes, but for those that say nothing.
pub fn message(error: &anyhow::Error) -> String {
    let causes = error.chain().map(ToString::to_string);
    causes.filter(|cause| !cause.is_empty()).collect::<Vec<_>>().join(": ")
}

pub fn code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<Code>() {
        Some(Code(code)) => *code,
        None if error.downcast_ref::<Usage>().is_some() => 2,
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn a_code_counts_and_says_nothing() {
        let error = anyhow::anyhow!("no daemon")
            .context(Code(125))
            .context("it was not run");
        assert_eq!(
            (message(&error).as_str(), code(&error)),
            ("it was not run: no daemon", 125)
        );
        let plain = Err::<(), _>(Usage("a".to_owned())).context("b").unwrap_err();
        assert_eq!((message(&plain), code(&plain)), (format!("{plain:#}"), 2));
    }
}
