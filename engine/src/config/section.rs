// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A section of the configuration as it is declared: its keys, and its part of the commented default file.

use super::conditions::Conditions;
use super::key::{Absent, Declared, Key, comment};
use super::matching::{Given, Matching};

/// A section of the configuration as it is declared.
pub struct Section {
    pub name: &'static str,
    /// A list: written as often as wanted, each time with two brackets.
    pub repeated: bool,
    about: &'static [&'static str],
    own: &'static [Key],
    /// Where its entries also have conditions.
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

    /// All keys, conditions first, with what counts where they are absent.
    pub fn keys(&self) -> Vec<(&'static Key, Absent)> {
        let accepts = self.matching.map(|matching| matching.accepts).unwrap_or_default();
        let conditions = Conditions::KEYS.iter().filter_map(|key| {
            let (_, given) = accepts.iter().find(|(name, _)| *name == key.name)?;
            let absent = match given {
                Given::Must => Absent::Refused,
                Given::May => Absent::Nothing,
                Given::Else(value) => Absent::Default((*value).into()),
            };
            Some((key, absent))
        });
        conditions
            .chain(self.own.iter().map(|key| (key, key.absent())))
            .collect()
    }

    /// As it is written in a file.
    pub fn written(&self) -> String {
        if self.repeated {
            format!("[[{}]]", self.name)
        } else {
            format!("[{}]", self.name)
        }
    }

    /// As it stands in the default file.
    pub fn render(&self, text: &mut String) {
        text.push('\n');
        comment(self.about, text);
        // An empty list entry would be one with nothing in it; an empty section changes nothing.
        *text += if self.repeated { "#" } else { "" };
        *text += &format!("{}\n", self.written());
        for (key, absent) in self.keys() {
            key.render(&absent, text);
        }
    }
}
