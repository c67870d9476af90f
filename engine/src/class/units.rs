// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings in systemd units: `X-GivewayClass=bulk`, `X-GivewayDownloadLimit=2.5mbit` in the unit's file or a drop-in.
//! systemd reserves keys that begin with `X-` for others. Input: texts. Output: a rule for each unit, or what is wrong.

use crate::model::Class;
use std::collections::BTreeMap;

use super::source::{RuleLines, Source};
use crate::config::{ClassRule, Conditions, Located};
use crate::rate;

/// The prefix of all keys.
pub const KEY: &str = "X-Giveway";
const CLASS: &str = "X-GivewayClass";
const UPLOAD: &str = "X-GivewayUploadLimit";
const DOWNLOAD: &str = "X-GivewayDownloadLimit";

/// A file of a unit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnitFile {
    /// Such as `backup.service`, or `backup@.service` for all instances of a template.
    pub unit: String,
    pub source: Source,
}

/// A unit's settings, and the place of the last one.
#[derive(Default)]
struct UnitRule {
    file: String,
    /// From 1 on.
    line: usize,
    class: Option<Class>,
    upload_mbit: Option<f64>,
    download_mbit: Option<f64>,
}

/// The last setting of each key of each unit; an empty one removes it. Templates come last: instances override them.
pub(super) fn rules(files: Vec<UnitFile>) -> Vec<Result<RuleLines, Located>> {
    let (mut said, mut all) = (BTreeMap::new(), Vec::new());
    for UnitFile { unit, source } in files {
        let of_unit = said.entry((unit.contains("@."), unit)).or_default();
        if let Err(problem) = hear(of_unit, &source) {
            all.push(Err(problem));
        }
    }
    for ((_, unit), said) in said {
        match said.class {
            Some(class) => all.push(Ok((said.file.clone(), vec![(said.line, rule(&unit, class, &said))]))),
            None if said.upload_mbit.is_none() && said.download_mbit.is_none() => {}
            // Its class would be undefined: neither another rule nor implicit classification applies any more.
            None => all.push(Err(Located {
                problem: format!("a limit needs a class beside it, as `{CLASS}=standard`"),
                file: said.file,
                line: Some(said.line),
            })),
        }
    }
    all
}

/// A file with any error counts for nothing.
fn hear(said: &mut UnitRule, source: &Source) -> Result<(), Located> {
    let mut heard = Vec::new();
    for (line, text) in (1..).zip(source.text()?.lines()) {
        let Some((key, value)) = text.split_once('=') else {
            continue;
        };
        let (key, value) = (key.trim(), value.trim());
        if key.starts_with(KEY) {
            let word = UnitSetting::of(key, value).map_err(|problem| Located {
                file: source.path.clone(),
                line: Some(line),
                problem: format!("`{key}`: {problem}"),
            })?;
            heard.push((line, word));
        }
    }
    for (line, word) in heard {
        (said.file, said.line) = (source.path.clone(), line);
        match word {
            UnitSetting::Class(class) => said.class = class,
            UnitSetting::Upload(mbit) => said.upload_mbit = mbit,
            UnitSetting::Download(mbit) => said.download_mbit = mbit,
        }
    }
    Ok(())
}

/// The setting of one line; None removes it.
enum UnitSetting {
    Class(Option<Class>),
    Upload(Option<f64>),
    Download(Option<f64>),
}

impl UnitSetting {
    fn of(key: &str, value: &str) -> Result<Self, String> {
        let limit = || match value {
            "" => Ok(None),
            rate => rate::parse(rate).map(|bytes_per_s| Some(rate::mbit(bytes_per_s))),
        };
        match key {
            CLASS => {
                let class = Class::ALL.into_iter().find(|class| class.name() == value);
                if class.is_none() && !value.is_empty() {
                    let names = Class::ALL.map(Class::name).join(", ");
                    return Err(format!("there is no class `{value}`; it is one of {names}"));
                }
                Ok(Self::Class(class))
            }
            UPLOAD => limit().map(Self::Upload),
            DOWNLOAD => limit().map(Self::Download),
            _ => Err(format!(
                "a unit may say `{CLASS}`, `{UPLOAD}` and `{DOWNLOAD}`; for more, write a [[rule]] with `unit`"
            )),
        }
    }
}

fn rule(unit: &str, class: Class, said: &UnitRule) -> ClassRule {
    ClassRule {
        conditions: Conditions {
            unit: Some(unit.replace("@.", "@*.")),
            ..Conditions::default()
        },
        class: Some(class),
        upload_limit_mbit: said.upload_mbit,
        download_limit_mbit: said.download_mbit,
        reason: Some("its unit says so".to_owned()),
        ..ClassRule::default()
    }
}
