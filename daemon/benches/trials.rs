// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Three trials each of a planted gain, a planted loss and neither, sized by their own dry runs; and with TRY_RECORD 220
//! intervals of neither. Writes them where TRY_OUT says. Takes an hour (docs/contributing/statistics.md). As root.
//!
//!     TRY_OUT=DIR cargo bench --bench trials
// It prints and makes files as it likes: `clippy.toml` is for the program.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods, clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use tests::support::planted::{Link, Planted};

#[path = "../tests"]
#[allow(dead_code, reason = "the tests use more of it")]
mod tests {
    pub mod support;
}

/// Mbit/s, where nothing is planted.
const PLAIN: f64 = 10.0;
const KINDS: [(&str, f64); 3] = [("gain", 1.1), ("loss", 0.9), ("none", 1.0)];

fn main() {
    let out = std::env::var("TRY_OUT").expect("TRY_OUT names a folder");
    let length = std::env::var("TRY_INTERVAL").unwrap_or_else(|_| "1s".to_owned());
    let link = Link::new();
    let words = ["--interval", &length, "--settle", "500ms"];
    let record = |name: &str, ratio: f64, more: [&str; 2]| {
        let planted = Planted {
            with: PLAIN * ratio,
            without: PLAIN,
        };
        let report = link.try_it(planted, &[&words[..], &more].concat());
        for answer in report["answers"].as_array().unwrap() {
            let (question, verdict) = (&answer["question"]["name"], &answer["verdict"]);
            println!(
                "{name}: {question} {verdict} {} [{}, {}]",
                answer["ratio"], answer["low"], answer["high"]
            );
        }
        fs::write(Path::new(&out).join(name), report.to_string()).unwrap();
    };
    if std::env::var_os("TRY_RECORD").is_some() {
        return record("real-intervals.json", 1.0, ["--pairs", "110"]);
    }
    for number in 1..=3 {
        for (name, ratio) in KINDS {
            record(&format!("{name}-{number}.json"), ratio, ["--max-time", "6m"]);
        }
    }
}
