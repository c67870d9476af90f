// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Raw data of a run in one archive that is small enough for the repository.
//! Input: the folder of a run. Output: `raw.tar.xz`, and how its numbers were thinned. Plots are left out: they can be drawn again.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Number, Value};

use super::RESULT;

const ARCHIVE: &str = "raw.tar.xz";
/// Of the archive.
const MOST_BYTES: u64 = 1_000_000;
/// A list that is no longer is no series, and kept whole.
const SHORT: usize = 32;
/// Thinner than this a series says nothing any more.
const LONGEST_STRIDE: usize = 256;

/// None: the run has no raw data.
pub fn pack(run: &Path, into: &Path) -> Result<Option<String>> {
    let archive = into.join(ARCHIVE);
    let work = into.join("raw");
    let mut stride = 1;
    while stride <= LONGEST_STRIDE {
        let _ = fs::remove_dir_all(&work);
        let any = copy(run, &work, stride)?;
        if !any {
            return Ok(None);
        }
        let tar = Command::new("tar")
            .args([
                "-cJf",
                &archive.to_string_lossy(),
                "--sort=name",
                "--owner=0",
                "--group=0",
                "--mtime=@0",
            ])
            .args(["-C", &into.to_string_lossy(), "raw"])
            .status()
            .context("cannot run tar")?;
        fs::remove_dir_all(&work)?;
        if !tar.success() {
            bail!("tar failed");
        }
        if fs::metadata(&archive)?.len() <= MOST_BYTES {
            let rounded = "numbers to four significant digits".to_owned();
            let thinned = format!("{rounded}, every {stride}th element of longer series");
            return Ok(Some(if stride == 1 { rounded } else { thinned }));
        }
        stride *= 2;
    }
    bail!("{}: raw data cannot be thinned to {MOST_BYTES} bytes", run.display())
}

/// Whether there was anything.
fn copy(from: &Path, to: &Path, stride: usize) -> Result<bool> {
    let mut any = false;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        let Some(name) = path.file_name() else { continue };
        let target = to.join(name);
        if path.is_dir() {
            any |= copy(&path, &target, stride)?;
            continue;
        }
        let is_left_out =
            name == RESULT || name == "README.md" || path.extension().is_some_and(|extension| extension == "svg");
        if is_left_out {
            continue;
        }
        fs::create_dir_all(to)?;
        let bytes = fs::read(&path)?;
        let thinned = if path.extension().is_some_and(|extension| extension == "json") {
            thin(&bytes, stride)
        } else {
            None
        };
        fs::write(&target, thinned.unwrap_or(bytes))?;
        any = true;
    }
    Ok(any)
}

/// None: no JSON.
fn thin(bytes: &[u8], stride: usize) -> Option<Vec<u8>> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    serde_json::to_vec(&thinner(value, stride)).ok()
}

fn thinner(value: Value, stride: usize) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, thinner(value, stride)))
            .collect(),
        Value::Array(elements) => {
            let stride = if elements.len() > SHORT { stride } else { 1 };
            elements
                .into_iter()
                .step_by(stride)
                .map(|element| thinner(element, stride))
                .collect()
        }
        Value::Number(number) if number.is_f64() => rounded(&number),
        other => other,
    }
}

fn rounded(number: &Number) -> Value {
    let text = number.as_f64().map(|value| format!("{value:.3e}"));
    text.and_then(|text| text.parse().ok())
        .and_then(Number::from_f64)
        .map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_and_only_long_series_are_thinned() {
        let series: Vec<f64> = (0..100).map(|n| f64::from(n) + 0.123_456).collect();
        let value = serde_json::json!({"few": [1.0, 2.345_678], "many": series, "count": 1_234_567});
        let thin = thinner(value, 4);
        assert_eq!(thin["few"], serde_json::json!([1.0, 2.346]));
        assert_eq!(thin["many"].as_array().unwrap().len(), 25);
        assert_eq!(thin["many"][1], 4.123);
        assert_eq!(thin["count"], 1_234_567);
    }
}
