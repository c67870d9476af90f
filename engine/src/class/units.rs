// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a systemd unit says of itself: `X-GivewayClass=bulk` in its file, or in one that changes it (a drop-in). systemd
//! leaves keys that begin with `X-` to others. Input: texts. Output: a rule for each unit, or what is wrong.

use std::collections::BTreeMap;

use super::Class;
use super::rules::{Source, Written};
use crate::config::{ClassRule, Conditions, Located};

pub const KEY: &str = "X-GivewayClass";
const OURS: &str = "X-Giveway";

/// A file of a unit's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnitFile {
    /// As `backup.service`, or `backup@.service` for all of a template.
    pub unit: String,
    pub source: Source,
}

/// The last word on each unit; an empty one takes back what was said before. Templates come last: what is said of one
/// unit counts more.
pub(super) fn rules(files: Vec<UnitFile>) -> Vec<Result<Written, Located>> {
    let (mut said, mut all) = (BTreeMap::new(), Vec::new());
    for UnitFile { unit, source } in files {
        match class_in(&source) {
            Ok(None) => {}
            Ok(Some((line, class))) => drop(said.insert((unit.contains("@."), unit), (source.path, line, class))),
            Err(problem) => all.push(Err(problem)),
        }
    }
    for ((_, unit), (path, line, class)) in said {
        if class.is_some() {
            all.push(Ok((path, vec![(line, rule(&unit, class))])));
        }
    }
    all
}

/// With its line, from 1 on; the last one counts.
fn class_in(source: &Source) -> Result<Option<(usize, Option<Class>)>, Located> {
    let mut found = None;
    for (line, text) in (1..).zip(source.text()?.lines()) {
        let Some((key, value)) = text.split_once('=') else {
            continue;
        };
        let (key, value) = (key.trim(), value.trim());
        if !key.starts_with(OURS) {
            continue;
        }
        if key != KEY {
            return Err(Located {
                file: source.path.clone(),
                line: Some(line),
                problem: format!(
                    "`{key}`: a unit may say `{KEY}` and nothing else; for more, write a [[rule]] with `unit`"
                ),
            });
        }
        let class = Class::ALL.into_iter().find(|class| class.name() == value);
        if class.is_none() && !value.is_empty() {
            let names = Class::ALL.map(Class::name).join(", ");
            return Err(Located {
                file: source.path.clone(),
                line: Some(line),
                problem: format!("`{KEY}`: there is no class `{value}`; it is one of {names}"),
            });
        }
        found = Some((line, class));
    }
    Ok(found)
}

fn rule(unit: &str, class: Option<Class>) -> ClassRule {
    ClassRule {
        conditions: Conditions {
            unit: Some(unit.replace("@.", "@*.")),
            ..Conditions::default()
        },
        class,
        reason: Some(format!("its unit has {KEY}")),
        ..ClassRule::default()
    }
}
