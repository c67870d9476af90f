// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The generated pages and the schema in `docs/reference`: the command line from clap, the configuration from its keys, the
//! metrics from their families, the schema of `--json` from the types. These tests fail where a file is not what the program
//! has; this rewrites them:
//!
//!     UPDATE_REFERENCE=1 cargo test --profile tests --lib reference::
#![allow(clippy::disallowed_methods)]

mod schema;

use std::fs;
use std::path::Path;

use clap::{Arg, Command};
use giveway_engine::config::Config;

use crate::cli;
use crate::commands::{web, wrapped};

/// Outside of tables.
const COLUMNS: usize = 100;
const LINES: usize = 700;
const GENERATED: &str = "<!-- Generated from the source: see daemon/src/reference.rs. -->";

/// Compares with the file, or writes it.
fn is_current(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/reference")
        .join(name);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    let file = fs::read_to_string(&path).unwrap_or_default();
    let differs = file.lines().zip(text.lines()).position(|(old, new)| old != new);
    assert!(
        file == text,
        "docs/reference/{name} is not current (from line {}): UPDATE_REFERENCE=1 cargo test --profile tests --lib reference::",
        differs.unwrap_or_else(|| file.lines().count().min(text.lines().count())) + 1
    );
}

fn paragraph(text: &str) -> String {
    wrapped(text, COLUMNS).join("\n") + "\n\n"
}

fn cell(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace('|', "\\|")
}

fn page(title: &str, intro: &str) -> String {
    format!("# {title}\n\n{GENERATED}\n\n{}", paragraph(intro))
}

fn command_line() -> String {
    let mut text = page(
        "Command line",
        "Rates, times and sizes have their unit with them: `2.5mbit`, `800kbit`; `500us`, `100ms`, `30s`, `1h`. Ports, \
         pids, priorities, CPUs, percent and counts have none. `--json` prints one object, which begins with `\"schema\": 1` \
         and is described by [giveway.schema.json](giveway.schema.json).",
    );
    for command in cli::shown().get_subcommands() {
        add_command(&mut text, command);
    }
    text.trim_end().to_owned() + "\n"
}

fn add_command(text: &mut String, command: &Command) {
    let name = format!("giveway {}", command.get_name());
    *text += &format!("## {name}\n");
    let about = command.get_long_about().or_else(|| command.get_about()).unwrap();
    *text += &paragraph(&one_paragraph(&about.to_string()));
    let after = command.get_after_help().unwrap().to_string();
    let (examples, codes) = after.split_once("\nExit codes: ").unwrap();
    let usage_line = (!command.has_subcommands()).then(|| usage(command, "giveway"));
    for line in usage_line.iter().map(String::as_str).chain(examples.lines().skip(1)) {
        *text += &format!("    {}\n", line.trim());
    }
    *text += "\n";
    if command.has_subcommands() {
        *text += "| Command | Meaning | Options |\n|---|---|---|\n";
        for sub in command.get_subcommands() {
            let about = sub.get_long_about().or_else(|| sub.get_about()).unwrap();
            let options: Vec<String> = options(sub)
                .map(|arg| format!("{}: {}", shown(arg), meaning(arg)))
                .collect();
            let row = [usage(sub, &name), one_paragraph(&about.to_string()), options.join(". ")];
            *text += &format!("| `{}` | {} | {} |\n", cell(&row[0]), cell(&row[1]), cell(&row[2]));
        }
        *text += &format!("| Exit codes | {} | |\n\n", cell(codes));
    } else {
        *text += "| Option | Meaning |\n|---|---|\n";
        for arg in options(command) {
            *text += &format!("| {} | {} |\n", cell(&shown(arg)), cell(&meaning(arg)));
        }
        *text += &format!("| Exit codes | {} |\n\n", cell(codes));
    }
}

/// The first line ends without a full stop.
fn one_paragraph(text: &str) -> String {
    text.split("\n\n").collect::<Vec<_>>().join(". ").replace('\n', " ")
}

fn usage(command: &Command, parent: &str) -> String {
    let name = format!("{parent} {}", command.get_name());
    let usage = command.clone().bin_name(name).render_usage().to_string();
    usage.trim_start_matches("Usage: ").replace('\n', " ")
}

fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str()))
}

/// With its value, if it has one.
fn shown(arg: &Arg) -> String {
    let value = match arg.get_action().takes_values() {
        true => arg
            .get_value_names()
            .unwrap_or_default()
            .iter()
            .map(ToString::to_string)
            .collect(),
        false => Vec::new(),
    };
    let value = value.join(" ");
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    match (names.is_empty(), value.is_empty()) {
        (true, _) => format!("`{value}`"),
        (false, true) => format!("`{}`", names.join("`, `")),
        (false, false) => format!("`{} {value}`", names.join("`, `")),
    }
}

fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or_else(|| arg.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let values = match arg.get_action().takes_values() {
        true => arg.get_possible_values(),
        false => Vec::new(),
    };
    let values: Vec<String> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
    let default: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    let mut parts = vec![help];
    parts.extend((!values.is_empty()).then(|| format!("One of {}", values.join(", "))));
    let has_default = arg.get_action().takes_values() && !default.is_empty();
    parts.extend(has_default.then(|| format!("Default: `{}`", default.join(","))));
    parts.retain(|part| !part.is_empty());
    parts.join(". ")
}

/// From the commented default file, which has all that is said of a key.
fn configuration() -> String {
    let mut text = page(
        "Configuration",
        "A TOML file, /etc/giveway/giveway.toml or the one of `giveway run --config`. An empty file is valid: each key has the \
         value that is shown unless its text says otherwise. An unknown key is refused. Sections in two brackets may be \
         written as often as wanted. The unit is in the key's name. `giveway config check FILE` checks a file.",
    );
    text += "## Above all sections\n\n| Key | Meaning |\n|---|---|\n";
    let mut said: Vec<&str> = Vec::new();
    for line in Config::default_file()
        .lines()
        .skip(1)
        .map(str::to_owned)
        .collect::<Vec<_>>()
        .iter()
    {
        if let Some(comment) = line.strip_prefix("# ") {
            said.push(comment);
            continue;
        }
        let about = std::mem::take(&mut said).join(" ");
        let line = line.trim_start_matches('#');
        if line.starts_with('[') {
            text += &format!("\n## {line}\n{}", paragraph(&about));
            text += "| Key | Meaning |\n|---|---|\n";
        } else if !line.is_empty() {
            text += &format!("| `{}` | {} |\n", cell(line), cell(&about));
        }
    }
    text.replace("| Key | Meaning |\n|---|---|\n\n", "\n")
}

fn metrics() -> String {
    page(
        "Metrics",
        "What `giveway web` serves below /metrics, for Prometheus. Labels are classes, bands, reasons and managed links: no \
         process, address or rule is one.",
    ) + &web::metrics_page()
}

#[test]
fn the_pages_are_what_the_program_has_and_no_longer_than_they_may_be() {
    let pages = [
        ("command-line.md", command_line()),
        ("configuration.md", configuration()),
        ("metrics.md", metrics()),
    ];
    let lines: usize = pages.iter().map(|(_, text)| text.lines().count()).sum();
    assert!(lines <= LINES, "{lines} lines");
    for (name, text) in &pages {
        let is_long = |line: &&str| line.chars().count() > COLUMNS && !line.starts_with('|');
        assert_eq!(text.lines().find(is_long), None, "{name}");
        is_current(name, text);
    }
}

#[test]
fn the_schema_is_that_of_the_types() {
    let text = serde_json::to_string_pretty(&schema::schema()).unwrap() + "\n";
    is_current("giveway.schema.json", &text);
}
