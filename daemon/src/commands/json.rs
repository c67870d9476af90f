// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `--json` prints: one object a command, which begins with the number of its schema. Input: what a command has to say.
//! Output: one line of JSON; and the JSON Schema of all of them, from the types.

use anyhow::Result;
use giveway_engine::config::Config;
use giveway_engine::priority::PriorityStatus;
use giveway_engine::status::{PausedView, Status};
use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::config::CheckReport;
use super::doctor::DoctorReport;
use super::jitter::JitterReport;
use super::link::{LinkChange, LinkList};
use super::pause::Resumed;
use super::revert::{RevertPlan, RevertReport};
use super::trial::TrialReport;
use super::why::Explanation;
use crate::control::{ByHandNow, FocusNow, PriorityChange, ReloadSummary};
use crate::key::NewKey;
use crate::say;

/// Of everything that `--json` prints. It rises when a field goes or changes its meaning, not when one is added.
const SCHEMA: u32 = 1;

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
struct Output<'a, T> {
    schema: u32,
    #[serde(flatten)]
    output: &'a T,
}

/// # Errors
/// Where it cannot be written.
pub fn print_json(output: &impl Serialize) -> Result<()> {
    say::print_json(&Output { schema: SCHEMA, output })
}

/// The same, or the text where no JSON is asked for.
///
/// # Errors
/// Where it cannot be written.
pub fn print_output(is_json: bool, output: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
    match is_json {
        true => print_json(output),
        false => say::print(&text()),
    }
}

/// Of every command that has `--json`, each below `$defs` by its name with `_` for blanks.
pub fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut of = Vec::new();
    macro_rules! outputs {
        ($($name:literal: $type:ty),* $(,)?) => {
            $(of.push(($name, generator.subschema_for::<Output<'static, $type>>()));)*
        };
    }
    outputs! {
        "status": Status,
        "why": Explanation<'static>,
        "doctor": DoctorReport<'static>,
        "jitter": JitterReport,
        "try": TrialReport,
        "class": ByHandNow,
        "limit": ByHandNow,
        "focus": FocusNow,
        "priority_list": PriorityStatus,
        "priority_add": PriorityChange,
        "priority_remove": PriorityChange,
        "link_show": LinkList<'static>,
        "link_set": LinkChange<'static>,
        "link_clear": LinkChange<'static>,
        "pause": PausedView,
        "resume": Resumed,
        "reload": ReloadSummary,
        "revert": RevertReport,
        "revert_dry_run": RevertPlan,
        "config_show": Config,
        "config_check": CheckReport,
        "key_new": NewKey,
    }
    let mut all: Map<String, Value> = generator.take_definitions(true);
    for (name, schema) in of {
        all.insert(name.to_owned(), schema.into());
    }
    for value in all.values_mut() {
        if let Ok(schema) = <&mut Schema>::try_from(value) {
            Closed.transform(schema);
        }
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What giveway prints with --json",
        "description": "Each command's object is below $defs by the command's name, with _ for blanks. Generated: see \
                        daemon/tests/reference.rs.",
        "$defs": all,
    })
}

/// A field that is not in the schema is an error.
struct Closed;

impl Transform for Closed {
    fn transform(&mut self, schema: &mut Schema) {
        let is_combined = ["allOf", "anyOf", "oneOf", "$ref"]
            .into_iter()
            .any(|key| schema.get(key).is_some());
        if schema.get("properties").is_some() && schema.get("additionalProperties").is_none() {
            let rule = if is_combined {
                "unevaluatedProperties"
            } else {
                "additionalProperties"
            };
            schema.insert(rule.to_owned(), false.into());
        }
        match schema.get("properties").is_some() && is_combined {
            // Its alternatives are closed together with it.
            true => {
                let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
                for property in properties.into_iter().flat_map(Map::values_mut) {
                    if let Ok(schema) = <&mut Schema>::try_from(property) {
                        self.transform(schema);
                    }
                }
            }
            false => transform_subschemas(self, schema),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_begins_with_its_schema() {
        let output = serde_json::json!({"a": 1});
        let all = Output {
            schema: SCHEMA,
            output: &output,
        };
        assert_eq!(serde_json::to_string(&all).unwrap(), r#"{"schema":1,"a":1}"#);
    }
}
