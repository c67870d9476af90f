// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file of rules, and what it says.

use crate::config::{ClassRule, Located};

/// A file, as it was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Source {
    /// By which a problem is told.
    pub path: String,
    /// Its name in its folder, by which files are in order.
    pub name: String,
    /// Or why it could not be read.
    pub text: Result<String, String>,
}

/// Of a file: its path, and its rules with the line of each.
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
