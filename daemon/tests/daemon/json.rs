// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each command prints with `--json`, beside a real daemon with a real connection, is as docs/reference/giveway.schema.json
//! says.

use std::collections::BTreeSet;
use std::fs;

use clap::CommandFactory as _;
use giveway::cli::Cli;
use serde_json::{Value, json};

use crate::support::lab::{FAR_V4, Lab};
use crate::support::planted::Peer;
use crate::support::process::{Daemon, backend, giveway};
use crate::support::scratch::Scratch;
use crate::support::tcp::fill;

/// The schema file, whose `$defs` have each command by its name.
struct Schema(Value);

impl Schema {
    fn read() -> Self {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/giveway.schema.json");
        Self(serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap())
    }

    fn check(&self, name: &str, output: &Value) {
        let mut schema = self.0.clone();
        schema["$ref"] = json!(format!("#/$defs/{name}"));
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<String> = validator
            .iter_errors(output)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{name}: {errors:#?}\n{output}");
    }

    /// By the command's words, or as many of the first of them as have one.
    fn name_of(&self, words: &[&str]) -> String {
        let names = (1..=words.len()).rev().map(|count| words[..count].join("_"));
        let mut known = names.filter(|name| self.0["$defs"].get(name).is_some());
        known.next().unwrap_or_else(|| panic!("no schema of {words:?}"))
    }
}

fn with_json(command: &clap::Command, words: &str, found: &mut BTreeSet<String>) {
    if command.get_arguments().any(|arg| arg.get_long() == Some("json")) {
        found.insert(words.trim().to_owned());
    }
    for sub in command.get_subcommands() {
        with_json(sub, &format!("{words} {}", sub.get_name()), found);
    }
}

#[test]
fn what_each_command_prints_is_as_the_schema_file_says() {
    let lab = Lab::enter();
    let peer = Peer::start(&lab);
    let text = format!(
        "[link]\nrate_mbit = 20.0\ndownload_rate_mbit = 20.0\n[queue]\nbackend = \"{}\"\n[marks]\nbulk = \"CS1\"\n\
         [[rule]]\nport = 873\nclass = \"bulk\"\nrate_limit_mbit = 4.0\n",
        backend()
    );
    let config = Scratch::new("giveway.toml", &text);
    let wrong = Scratch::new("wrong.toml", "[lnk]\n");
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("group.key");
    let key = key.to_str().unwrap();
    let _daemon = Daemon::start(&["--interface", "gwv", "--config", config.path()]);
    let (mut near, _far) = lab.connect(FAR_V4);
    fill(&mut near);
    let pid = std::process::id().to_string();
    let pid = pid.as_str();
    let test = [
        "try",
        "--peer",
        &peer.address,
        "--pairs",
        "20",
        "--interval",
        "100ms",
        "--settle",
        "50ms",
    ];
    // Each with its exit code. After a change come those that show it.
    let calls: &[(&[&str], i32)] = &[
        (&["class", "set", pid, "background"], 0),
        (&["class", "list"], 0),
        (&["limit", "set", pid, "--up", "4mbit", "--down", "8mbit"], 0),
        (&["limit", "list"], 0),
        (&["focus", "set", "/"], 0),
        (&["focus", "show"], 0),
        (&["priority", "add", "--exe", "/bin/sleep", "--name", "mine"], 0),
        (&["priority", "list"], 0),
        (&["link", "set", "gwv", "--up", "9mbit", "--down", "9mbit"], 0),
        (&["link", "show"], 0),
        (&["config", "show"], 0),
        (&["status"], 0),
        (&["why"], 0),
        (&["why", "gwv"], 0),
        (&["why", pid], 0),
        (&["why", "nothing-of-this-name"], 1),
        (&["doctor"], 0),
        (&["class", "clear", pid], 0),
        (&["class", "clear", pid], 1),
        (&["limit", "clear", pid], 0),
        (&["limit", "clear", pid], 1),
        (&["focus", "clear"], 0),
        (&["focus", "clear"], 1),
        (&["priority", "remove", "mine"], 0),
        (&["link", "clear", "gwv"], 0),
        (&["link", "clear", "gwv"], 1),
        (&["pause", "--for", "1h"], 0),
        (&["status"], 0),
        (&["resume"], 0),
        (&["resume"], 0),
        (&["reload"], 0),
        (&["config", "check", config.path()], 0),
        (&["config", "check", wrong.path()], 2),
        (&["key", "new", key], 0),
        (&["key", "new", key], 0),
        (&["jitter", "--wakeups", "20", "--period", "1ms"], 0),
        (&test, 0),
        (&["revert", "--dry-run"], 0),
        (&["revert"], 0),
        (&["revert"], 0),
    ];
    let schema = Schema::read();
    let mut wanted = BTreeSet::new();
    with_json(&Cli::command(), "", &mut wanted);
    for (words, code) in calls {
        let output = giveway(&[words, &["--json"][..]].concat());
        assert_eq!(output.status.code(), Some(*code), "{words:?}: {output:?}");
        assert!(output.stdout.starts_with(b"{\"schema\":1"), "{words:?}: {output:?}");
        let name = match *words {
            ["revert", "--dry-run"] => "revert_dry_run".to_owned(),
            words => schema.name_of(words),
        };
        schema.check(&name, &serde_json::from_slice(&output.stdout).unwrap());
        wanted.retain(|command| !words.join(" ").starts_with(command.as_str()));
    }
    assert!(wanted.is_empty(), "not tried: {wanted:?}");
    let refused = giveway(&["priority", "remove", "mine"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}

#[test]
fn a_field_that_is_not_in_the_schema_or_lacks_is_found() {
    let schema = Schema::read();
    let mut wrong = json!({"schema": 1, "was_paused": true});
    schema.check("resume", &wrong);
    wrong["more"] = json!(1);
    assert!(std::panic::catch_unwind(|| schema.check("resume", &wrong)).is_err());
    assert!(std::panic::catch_unwind(|| schema.check("resume", &json!({"schema": 1}))).is_err());
}
