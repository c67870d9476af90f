// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The JSON Schema of all that `--json` prints, from the types.

use giveway_engine::config::Config;
use giveway_engine::priority::PriorityStatus;
use giveway_engine::status::{PausedView, Status};
use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use serde_json::{Map, Value, json};

use crate::commands::config::CheckReport;
use crate::commands::doctor::DoctorReport;
use crate::commands::jitter::JitterReport;
use crate::commands::json::WithSchema;
use crate::commands::key::NewKey;
use crate::commands::link::{LinkChange, LinkList};
use crate::commands::pause::Resumed;
use crate::commands::revert::{RevertPlan, RevertReport};
use crate::commands::trial::TrialReport;
use crate::commands::why::Explanation;
use crate::control::{ByHandNow, FocusNow, PriorityChange, ReloadSummary};

/// Of every command that has `--json`, each below `$defs` by its name with `_` for blanks.
pub fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut of = Vec::new();
    macro_rules! outputs {
        ($($name:literal: $type:ty),* $(,)?) => {
            $(of.push(($name, generator.subschema_for::<WithSchema<'static, $type>>()));)*
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
                        daemon/src/reference.rs.",
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
