// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `--json` prints: one object a command, which begins with the number of its schema. Input: what a command has to say.
//! Output: one line of JSON.

use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;

use crate::say;

/// Of everything that `--json` prints. It rises when a field goes or changes its meaning, not when one is added.
const SCHEMA: u32 = 1;

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
pub struct WithSchema<'a, T> {
    schema: u32,
    #[serde(flatten)]
    output: &'a T,
}

/// # Errors
/// Where it cannot be written.
pub fn print_json(output: &impl Serialize) -> Result<()> {
    say::print_json(&WithSchema { schema: SCHEMA, output })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_begins_with_its_schema() {
        let output = serde_json::json!({"a": 1});
        let all = WithSchema {
            schema: SCHEMA,
            output: &output,
        };
        assert_eq!(serde_json::to_string(&all).unwrap(), r#"{"schema":1,"a":1}"#);
    }
}
