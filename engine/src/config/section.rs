// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A declared section of the configuration: its keys, and its part of the commented default file.

use super::conditions::Conditions;
use super::key::{Absent, ConfigKey, Declared, comment};
use super::matching::{Matching, Presence};

/// A declared section of the configuration.
pub struct Section {
    pub name: &'static str,
    /// A list: may be written several times, each with two brackets.
    pub repeated: bool,
    about: &'static [&'static str],
    own: &'static [ConfigKey],
    /// For a list whose entries also have conditions.
    pub matching: Option<&'static Matching>,
}

impl Section {
    pub const fn of<T: Declared>(name: &'static str) -> Self {
        Self {
            name,
            repeated: false,
            about: T::ABOUT,
            own: T::KEYS,
            matching: match T::MATCHING {
                [matching, ..] => Some(matching),
                [] => None,
            },
        }
    }

    pub const fn list_of<T: Declared>(name: &'static str) -> Self {
        Self {
            repeated: true,
            ..Self::of::<T>(name)
        }
    }

    /// All keys, conditions first, with the meaning of their absence.
    pub fn keys(&self) -> Vec<(&'static ConfigKey, Absent)> {
        let accepts = self.matching.map(|matching| matching.accepts).unwrap_or_default();
        let conditions = Conditions::KEYS.iter().filter_map(|key| {
            let (_, given) = accepts.iter().find(|(name, _)| *name == key.name)?;
            let absent = match given {
                Presence::Must => Absent::Refused,
                Presence::May => Absent::Nothing,
                Presence::Else(value) => Absent::Default((*value).into()),
            };
            Some((key, absent))
        });
        conditions
            .chain(self.own.iter().map(|key| (key, key.absent())))
            .collect()
    }

    /// As written in a file.
    pub fn written(&self) -> String {
        if self.repeated {
            format!("[[{}]]", self.name)
        } else {
            format!("[{}]", self.name)
        }
    }

    /// Its part of the default file.
    pub fn render(&self, text: &mut String) {
        text.push('\n');
        comment(self.about, text);
        // An empty list entry would be an entry; an empty section changes nothing.
        *text += if self.repeated { "#" } else { "" };
        *text += &format!("{}\n", self.written());
        for (key, absent) in self.keys() {
            key.render(&absent, text);
        }
    }
}
