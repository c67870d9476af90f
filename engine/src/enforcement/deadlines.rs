// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices on which deadlines are not guaranteed, if any are configured: reported once each.

use std::collections::{BTreeMap, BTreeSet};

use super::{NOT_ENFORCED, Overview};
use crate::change::{Change, Setting, Subject, Value};
use crate::config::Config;

#[derive(Debug, Default)]
pub struct PastDeadlines {
    /// Deadlines are configured.
    is_on: bool,
    /// By name.
    devices: BTreeSet<String>,
}

impl PastDeadlines {
    pub fn new(config: &Config) -> Self {
        Self {
            is_on: !config.deadline.is_empty(),
            devices: BTreeSet::new(),
        }
    }

    pub fn follow(&mut self, overview: Overview<'_>) -> Vec<Change> {
        if !self.is_on || overview.links.is_none_managed() {
            return Vec::new();
        }
        let unmanaged = overview.unmanaged().into_iter();
        let unmanaged: BTreeMap<String, String> =
            unmanaged.map(|device| (device.name.clone(), device.shown())).collect();
        let before = std::mem::replace(&mut self.devices, unmanaged.keys().cloned().collect());
        let news = unmanaged.into_iter().filter(|(name, _)| !before.contains(name));
        let change = |(name, shown): (String, String)| {
            let how = overview.links.how_to_manage(&name);
            Change {
                subject: Subject::Interface { name },
                name: String::new(),
                setting: Setting::Deadlines,
                old: Value::from("promised"),
                new: Value::from(NOT_ENFORCED),
                rule: "[[deadline]]".to_owned(),
                reason: format!("{shown} has routes and is not managed ({how})"),
                made: true,
            }
        };
        news.map(change).collect()
    }
}
