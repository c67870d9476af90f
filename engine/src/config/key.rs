// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A declared key: its documentation, type, default, range and line in the commented default file. [`section!`]
//! generates all of it, and the struct that holds the values, from one place. Reads and checks nothing by itself.

use std::ops::RangeInclusive;

use serde::Deserialize;

use super::matching::Matching;
use super::nearest::nearest;

/// The columns of the default file.
const COLUMNS: usize = 100;

/// A declared key.
pub struct ConfigKey {
    pub name: &'static str,
    pub doc: &'static [&'static str],
    pub default: fn() -> Option<toml::Value>,
    pub example: fn() -> Option<toml::Value>,
    /// Whether a value is of the key's type.
    pub read: fn(&toml::Value) -> Result<(), toml::de::Error>,
    /// Of a numeric key, or of each number in its list. At most one.
    pub range: &'static [RangeInclusive<f64>],
}

/// The meaning of an absent key.
pub enum Absent {
    /// It is required.
    Refused,
    Default(toml::Value),
    /// No value, as its documentation explains.
    Nothing,
}

/// The struct that holds a section's values.
pub trait Declared {
    const ABOUT: &'static [&'static str];
    const KEYS: &'static [ConfigKey];
    const MATCHING: &'static [&'static Matching];
}

/// Declares one key: `name: type = default, example VALUE, in LEAST..=MOST`. The example is what the default file shows
/// where no default can be shown. A key whose default is out of its own range is required.
macro_rules! key {
    ($([$doc:literal])* $key:ident: $type:ty = $default:expr, [$($example:literal)?] [$($least:literal..=$most:expr)?]) => {
        $crate::config::key::ConfigKey {
            name: stringify!($key),
            doc: &[$($doc),*],
            default: || toml::Value::try_from::<$type>($default).ok(),
            example: || [$(toml::Value::from($example))?].into_iter().next(),
            read: $crate::config::key::read_as::<$type>,
            range: &[$(std::ops::RangeInclusive::new($least as f64, $most as f64))?],
        }
    };
}

/// Declares a section once: the struct that holds its values, their defaults, and what [`Declared`] says of its keys.
macro_rules! section {
    ($(#[doc = $about:literal])* $name:ident $(matching $conditions:ident as $matching:ident)? {
        $(
            $(#[doc = $doc:literal])*
            $key:ident: $type:ty = $default:expr $(, example $example:literal)? $(, in $least:literal..=$most:expr)?;
        )*
    }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, Deserialize, schemars::JsonSchema, PartialEq, Serialize)]
        #[serde(default)]
        pub struct $name {
            $(
                /// All that are given must hold.
                #[serde(flatten)]
                pub conditions: $conditions,
            )?
            $($(#[doc = $doc])* pub $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $(conditions: $conditions::default(),)? $($key: $default,)* }
            }
        }

        impl $crate::config::key::Declared for $name {
            const ABOUT: &'static [&'static str] = &[$($about),*];
            const KEYS: &'static [$crate::config::key::ConfigKey] = &[$(
                $crate::config::key::key!($([$doc])* $key: $type = $default, [$($example)?] [$($least..=$most)?]),
            )*];
            const MATCHING: &'static [&'static $crate::config::matching::Matching] = &[$(&$matching)?];
        }
    };
}

pub(super) use {key, section};

impl ConfigKey {
    pub fn absent(&self) -> Absent {
        match (self.default)() {
            Some(default) if self.in_range(&default) => Absent::Default(default),
            Some(_) => Absent::Refused,
            None => Absent::Nothing,
        }
    }

    /// The range, for people.
    pub fn shown_range(&self) -> Option<String> {
        let range = self.range.first()?;
        Some(format!("from {} to {}", range.start(), range.end()))
    }

    /// Whether a number is within the range; true for anything else.
    fn in_range(&self, value: &toml::Value) -> bool {
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let numbers = values.iter().filter_map(|value| match value {
            toml::Value::Integer(number) => Some(*number as f64),
            toml::Value::Float(number) => Some(*number),
            _ => None,
        });
        let within = |number| self.range.iter().all(|range| range.contains(&number));
        numbers.into_iter().all(within)
    }

    /// What is wrong with a value of this key.
    pub fn problem(&self, value: &toml::Value) -> Option<String> {
        if !self.in_range(value) {
            return self.shown_range().map(|range| format!("must be {range}"));
        }
        // It could control the terminal of `status` or `why`.
        if value.as_str().is_some_and(|text| text.chars().any(char::is_control)) {
            return Some("must not contain control characters".to_owned());
        }
        let error = (self.read)(value).err()?;
        let message = error.message();
        if let Some(known) = self.choices(message) {
            let quoted: Vec<String> = known.iter().map(|name| format!("\"{name}\"")).collect();
            let meant = value.as_str().map(str::to_lowercase);
            let meant = meant.and_then(|typed| nearest(&typed, known.iter().map(String::as_str)));
            let hint = meant.map_or(String::new(), |meant| format!("; did you mean \"{meant}\"?"));
            return Some(format!("must be {}{hint}", one_of(&quoted)));
        }
        let (what, kind) = match message.rsplit_once("expected ") {
            Some((what, "f64")) => (what, "number"),
            Some((what, "u32" | "u64")) => (what, "whole number"),
            // A port has no unit.
            Some((what, "u16")) => return Some(format!("{what}expected one port number, no range")),
            Some((_, "a boolean")) => {
                let hint = self.written(value).unwrap_or_default();
                return Some(format!("must be true or false{hint}"));
            }
            _ => return Some(format!("{message}{}", self.written(value).unwrap_or_default())),
        };
        let hint = self.written(value).unwrap_or_default();
        Some(format!("{what}expected a {kind}; the unit is in the key's name{hint}"))
    }

    /// The values of an enumeration: serde lists them, in backquotes, when it refuses a text.
    fn choices(&self, message: &str) -> Option<Vec<String>> {
        let of = |message: &str| {
            let (_, listed) = message.strip_prefix("unknown variant ")?.rsplit_once("expected ")?;
            Some(listed.split('`').skip(1).step_by(2).map(str::to_owned).collect())
        };
        of(message).or_else(|| of((self.read)(&toml::Value::String(String::new())).err()?.message()))
    }

    /// The corrected form of a value: with or without quotes, or as a list.
    fn written(&self, value: &toml::Value) -> Option<String> {
        let is_right = |value: &toml::Value| (self.read)(value).is_ok() && self.in_range(value);
        let bare = value
            .as_str()
            .and_then(|text| toml::from_str::<toml::Table>(&format!("x = {text}")).ok());
        if let Some(bare) = bare
            .as_ref()
            .and_then(|table| table.get("x"))
            .filter(|bare| is_right(bare))
        {
            return Some(format!("; write {bare} without quotes"));
        }
        let text = match value {
            toml::Value::Integer(number) => Some(toml::Value::String(number.to_string())),
            _ => None,
        };
        let list = toml::Value::Array(vec![value.clone()]);
        let meant = text.into_iter().chain([list]).find(is_right)?;
        Some(format!("; write {meant}"))
    }

    /// Its documentation and its line in the default file.
    pub fn render(&self, absent: &Absent, text: &mut String) {
        let range = self.shown_range().map(|range| range.replacen('f', "F", 1) + ".");
        let (value, note) = match absent {
            Absent::Default(value) => (Some(value.clone()), None),
            Absent::Refused => ((self.example)(), Some("Must be given.")),
            Absent::Nothing => ((self.example)(), Some("No default.")),
        };
        let sentences: Vec<_> = self.doc.iter().copied().chain(range.as_deref()).chain(note).collect();
        comment(&sentences, text);
        let value = value.map(|value| value.to_string()).unwrap_or_default();
        *text += &format!("#{} = {value}\n", self.name);
    }
}

fn one_of(names: &[String]) -> String {
    match names {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        names => names.concat(),
    }
}

/// Whether a value is of this type.
pub fn read_as<'a, T: Deserialize<'a>>(value: &toml::Value) -> Result<(), toml::de::Error> {
    T::deserialize(value.clone()).map(drop)
}

/// Sentences as comment lines within the columns.
pub fn comment(sentences: &[&str], text: &mut String) {
    let mut line = String::from("#");
    for word in sentences.iter().flat_map(|sentence| sentence.split_whitespace()) {
        if line.chars().count() + 1 + word.chars().count() > COLUMNS {
            *text += &format!("{line}\n");
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    *text += &format!("{line}\n");
}
