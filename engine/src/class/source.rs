// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file of rules, and its content.

use crate::config::{ClassRule, Located};

/// A file as read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Source {
    /// Its path, as reported with a problem.
    pub path: String,
    /// Its file name, which decides the order.
    pub name: String,
    /// Its text, or why it could not be read.
    pub text: Result<String, String>,
}

/// A file's path, and its rules with their lines.
pub(super) type RuleLines = (String, Vec<(usize, ClassRule)>);

impl Source {
    pub(super) fn text(&self) -> Result<&str, Located> {
        self.text.as_deref().map_err(|reason| Located {
            file: self.path.clone(),
            line: None,
            problem: reason.clone(),
        })
    }
}
