// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parameters of `--set key=value`. Input: a scenario's parameters and the user's words. Output: a value for each,
//! or a usage error with the nearest parameter. Decides nothing about the values' meaning.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use crate::usage::{nearest, usage};

/// A parameter with its default and what it accepts.
#[derive(Clone, Copy)]
pub struct Parameter {
    pub name: &'static str,
    pub kind: ParameterKind,
    pub about: &'static str,
}

impl Parameter {
    /// A number from 1 to a million.
    pub const fn count(name: &'static str, default: u64, about: &'static str) -> Self {
        Self::range(name, default, 1, 1_000_000, about)
    }

    pub const fn range(name: &'static str, default: u64, least: u64, most: u64, about: &'static str) -> Self {
        let kind = ParameterKind::Count { default, least, most };
        Self { name, kind, about }
    }

    pub const fn choice(name: &'static str, of: &'static [&'static str], about: &'static str) -> Self {
        let kind = ParameterKind::Choice(of);
        Self { name, kind, about }
    }

    pub const fn list(name: &'static str, default: &'static str, about: &'static str) -> Self {
        let kind = ParameterKind::List(default);
        Self { name, kind, about }
    }
}

#[derive(Clone, Copy)]
pub enum ParameterKind {
    Count {
        default: u64,
        least: u64,
        most: u64,
    },
    /// One of some words; by default the scenario uses its own.
    Choice(&'static [&'static str]),
    /// Words with commas between them.
    List(&'static str),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    Count(u64),
    Choice(Option<String>),
    List(Vec<String>),
}

/// The values of one run.
#[derive(Serialize)]
#[serde(transparent)]
pub struct Parameters {
    values: BTreeMap<&'static str, Value>,
}

impl Parameters {
    pub fn new(known: &[Parameter], settings: &[String]) -> Result<Self> {
        let mut values: BTreeMap<_, _> = known.iter().map(|p| (p.name, p.kind.default())).collect();
        for setting in settings {
            let Some((name, text)) = setting.split_once('=') else {
                return Err(usage(format!("`--set {setting}` is not of the form key=value")));
            };
            let Some(parameter) = known.iter().find(|p| p.name == name) else {
                let hint = nearest(name, known.iter().map(|p| p.name));
                return Err(usage(format!("unknown parameter `{name}`{hint}")));
            };
            let value = parameter.kind.read(text);
            let value = value.map_err(|reason| usage(format!("`{name}={text}`: {reason}")))?;
            values.insert(parameter.name, value);
        }
        Ok(Self { values })
    }

    /// The settings that `new` would read as these values.
    pub fn settings(&self) -> Vec<String> {
        let text = |(name, value): (&&str, &Value)| match value {
            Value::Count(count) => Some(format!("{name}={count}")),
            Value::Choice(word) => word.as_ref().map(|word| format!("{name}={word}")),
            Value::List(words) => Some(format!("{name}={}", words.join(","))),
        };
        self.values.iter().filter_map(text).collect()
    }

    /// A name that the scenario does not have is a mistake in the scenario.
    fn value(&self, name: &str) -> &Value {
        self.values
            .get(name)
            .unwrap_or_else(|| panic!("the scenario has no parameter `{name}`"))
    }

    pub fn count(&self, name: &str) -> u64 {
        match self.value(name) {
            Value::Count(count) => *count,
            other => panic!("parameter `{name}` is no count but {other:?}"),
        }
    }

    pub fn seconds(&self, name: &str) -> f64 {
        self.count(name) as f64
    }

    pub fn choice(&self, name: &str) -> Option<&str> {
        match self.value(name) {
            Value::Choice(word) => word.as_deref(),
            other => panic!("parameter `{name}` is no choice but {other:?}"),
        }
    }

    pub fn list(&self, name: &str) -> &[String] {
        match self.value(name) {
            Value::List(words) => words,
            other => panic!("parameter `{name}` is no list but {other:?}"),
        }
    }

    /// Numbers of a list that holds nothing else.
    pub fn counts(&self, name: &str) -> Result<Vec<u64>> {
        let number = |word: &String| {
            let wrong = || usage(format!("`{name}`: `{word}` is not a whole number"));
            word.parse().map_err(|_| wrong())
        };
        self.list(name).iter().map(number).collect()
    }
}

impl ParameterKind {
    pub fn default(&self) -> Value {
        match self {
            ParameterKind::Count { default, .. } => Value::Count(*default),
            ParameterKind::Choice(_) => Value::Choice(None),
            ParameterKind::List(default) => Value::List(words(default)),
        }
    }

    /// The scenario has one value of it only.
    pub fn is_fixed(&self) -> bool {
        matches!(self, ParameterKind::Count { least, most, .. } if least == most)
    }

    fn read(&self, text: &str) -> Result<Value, String> {
        match self {
            ParameterKind::Count { least, most, .. } => match text.parse() {
                Ok(count) if (*least..=*most).contains(&count) => Ok(Value::Count(count)),
                _ if least == most => Err(format!("is always {least} in this scenario, and cannot be set")),
                _ => Err(format!("want a whole number from {least} to {most}")),
            },
            ParameterKind::Choice(of) if of.contains(&text) => Ok(Value::Choice(Some(text.into()))),
            ParameterKind::Choice(of) => Err(format!("want {}{}", of.join(", "), nearest(text, of.iter().copied()))),
            ParameterKind::List(_) => Ok(Value::List(words(text))),
        }
    }

    /// The default and the limits, for `giveway-lab list`.
    pub fn describe(&self) -> String {
        match self {
            ParameterKind::Count { default, least, most } => format!("{default} ({least} to {most})"),
            ParameterKind::Choice(of) => of.join(" | "),
            ParameterKind::List("") => "all".into(),
            ParameterKind::List(default) => (*default).into(),
        }
    }
}

fn words(text: &str) -> Vec<String> {
    let words = text.split(',').map(str::trim);
    words.filter(|word| !word.is_empty()).map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Parameter] = &[
        Parameter::range("stations", 8, 1, 16, ""),
        Parameter::choice("medium", &["fixed54", "arf"], ""),
        Parameter::list("caps", "10,20", ""),
        Parameter::range("rtt_ms", 20, 20, 20, ""),
    ];

    fn set(settings: &[&str]) -> Result<Parameters> {
        let settings: Vec<_> = settings.iter().map(|s| s.to_string()).collect();
        Parameters::new(KNOWN, &settings)
    }

    fn refusal(setting: &str) -> String {
        set(&[setting]).err().expect("refused").to_string()
    }

    #[test]
    fn defaults_hold_until_they_are_set() {
        let parameters = set(&["stations=3", "caps=7, 9"]).expect("valid");
        assert_eq!(parameters.count("stations"), 3);
        assert_eq!(parameters.choice("medium"), None);
        assert_eq!(parameters.counts("caps").expect("numbers"), [7, 9]);
    }

    #[test]
    fn settings_give_the_same_values_again() {
        let parameters = set(&["stations=3", "medium=arf", "caps="]).expect("valid");
        let settings = parameters.settings();
        let again = Parameters::new(KNOWN, &settings).expect("valid");
        assert_eq!(parameters.values, again.values);
        assert_eq!(
            set(&[]).expect("valid").settings(),
            ["caps=10,20", "rtt_ms=20", "stations=8"]
        );
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_nearest() {
        assert!(refusal("station=3").contains("did you mean `stations`?"));
        assert!(refusal("medium=fixed55").contains("did you mean `fixed54`?"));
    }

    #[test]
    fn a_wrong_value_is_answered_with_what_is_accepted() {
        assert!(refusal("stations=0").contains("from 1 to 16"));
        assert!(refusal("stations=many").contains("from 1 to 16"));
        assert!(refusal("stations").contains("key=value"));
        assert!(refusal("rtt_ms=30").contains("is always 20 in this scenario"));
        assert!(set(&["caps=ten"]).expect("a list").counts("caps").is_err());
    }
}
