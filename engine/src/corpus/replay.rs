// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every recording of `engine/tests/corpus` is replayed: the same actions in the same order. `GIVEWAY_CORPUS` names
//! another folder, such as one with new recordings. For an intended change of behaviour, `GIVEWAY_CORPUS_REWRITE=1
//! cargo test --lib replay` rewrites the actions, and fails once more to show the difference; the commit gives the
//! reason.
// Recordings are files.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::read::GzDecoder;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::plain::{Readable, Written, get};
use crate::config::Config;
use crate::network::{self, Network, Setup};
use crate::priority::call::Call;
use crate::priority::{self, Grants, Priority, first_match};

const CORPUS: &str = "tests/corpus";
/// The longest input or action in a message.
const SHOWN: usize = 600;
const ENGINE: &str = "engine";

/// An engine of a recording.
struct Engine {
    kind: Kind,
    inputs: usize,
}

enum Kind {
    Network {
        network: Box<Network>,
        /// The sequence of the kernel's randomness.
        random: Box<ChaCha20Rng>,
    },
    Priority(Box<Priority>),
}

impl Engine {
    fn of(header: &Value) -> Result<Self, String> {
        let kind = match header[ENGINE].as_str() {
            Some("network") => {
                let config = Config::read(&header["config"])?;
                let setup = Setup::read(&header["setup"])?;
                let random = ChaCha20Rng::from_seed(setup.seed).into();
                let network = Network::new(Duration::read(&header["t"])?, &config, setup).into();
                Kind::Network { network, random }
            }
            Some("priority") => {
                let (limits, grants) = (get(header, "limits")?, Grants(get(header, "grants")?));
                let engine = Priority::new(limits, grants, get(header, "rules")?, get(header, "dry_run")?);
                Kind::Priority(engine.into())
            }
            _ => return Err(format!("no engine: {}", header[ENGINE])),
        };
        Ok(Self { kind, inputs: 0 })
    }

    /// The actions after a line of inputs.
    fn follow(&mut self, line: &Value) -> Result<Vec<Value>, String> {
        self.inputs += 1;
        match &mut self.kind {
            Kind::Network { network, random } => {
                if let Some(slept) = line.get("slept") {
                    let mut bytes = [0; 32];
                    random.fill_bytes(&mut bytes);
                    network.refresh(bytes, Duration::read(slept)?);
                    return Ok(Vec::new());
                }
                let input = get::<network::action::Input<'static>>(line, "in")?;
                Ok(written(self.inputs, &network.step(get(line, "t")?, input)))
            }
            Kind::Priority(engine) => {
                let now = get(line, "t")?;
                let actions = match line.get("call") {
                    Some(call) => call_on(engine, now, Call::read(call)?),
                    None => engine.step(now, matched_anew(engine, get(line, "in")?)),
                };
                Ok(written(self.inputs, &actions))
            }
        }
    }
}

/// Rules are matched outside of the engine, by its rules: that is replayed too.
fn matched_anew(engine: &Priority, input: priority::Input) -> priority::Input {
    match input {
        priority::Input::Started { started, rule: _ } => priority::Input::Started {
            rule: first_match(&engine.rules(), &started.process),
            started,
        },
        input => input,
    }
}

/// A refused call has no actions.
fn call_on(engine: &mut Priority, now: Duration, call: Call) -> Vec<priority::Action> {
    let answer = match call {
        Call::Chains(chains) => {
            engine.set_chains(now, chains);
            return Vec::new();
        }
        Call::AddRule { rule, uid, gids } => engine.add_rule(rule, uid, &gids),
        Call::RemoveRule { name, uid } => engine.remove_rule(now, &name, uid),
        Call::Launch { asking, schedule, gids } => engine.launch(now, asking, schedule, &gids),
        Call::Pause => Ok(engine.pause(now, String::new())),
        Call::Resume => Ok(engine.resume(now)),
    };
    answer.unwrap_or_default()
}

fn written<A: Written>(input: usize, actions: &[A]) -> Vec<Value> {
    let lines = actions.iter().map(|action| json!([input, action.write()]));
    lines.collect()
}

fn read(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|problem| panic!("{problem}: {}", shown(line)))
}

fn unpacked(path: &Path) -> String {
    let mut text = String::new();
    let packed = fs::File::open(path).unwrap();
    GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    text
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

/// All actions, each with the input before it.
fn replayed(inputs: &str) -> (Vec<Value>, Vec<&str>) {
    let (mut actions, mut after) = (Vec::new(), Vec::new());
    let mut engine: Option<Engine> = None;
    for text in inputs.lines() {
        let line = read(text);
        let followed = match (&mut engine, line.get(ENGINE)) {
            (_, Some(_)) => {
                engine = Some(Engine::of(&line).unwrap());
                vec![json!(ENGINE)]
            }
            (Some(engine), None) => engine
                .follow(&line)
                .unwrap_or_else(|problem| panic!("{problem}: {}", shown(text))),
            (None, None) => panic!("an input before its engine"),
        };
        after.extend(followed.iter().map(|_| text));
        actions.extend(followed);
    }
    (actions, after)
}

/// The first difference of two lists of actions.
fn difference(recorded: &[Value], (replayed, after): &(Vec<Value>, Vec<&str>)) -> Option<String> {
    let at = (0..recorded.len().max(replayed.len())).find(|at| recorded.get(*at) != replayed.get(*at))?;
    let one = |list: &[Value]| {
        list.get(at)
            .map_or("nothing".to_owned(), |action| shown(&action.to_string()))
    };
    let engine = replayed[..at.min(replayed.len())]
        .iter()
        .filter(|action| action.as_str() == Some(ENGINE))
        .count();
    let after = after.get(at).map_or("the last input".to_owned(), |text| shown(text));
    let (was, is) = (one(recorded), one(replayed));
    Some(format!(
        "action {at}, of engine {engine}:\n  recorded {was}\n  now      {is}\n  after    {after}"
    ))
}

/// The surplus of actions of each kind in one list.
fn counted(recorded: &[Value], replayed: &[Value]) -> String {
    let mut kinds: BTreeMap<String, i64> = BTreeMap::new();
    for (list, sign) in [(recorded, -1), (replayed, 1)] {
        for action in list {
            let kind = action.get(1).and_then(|of| super::plain::kind_of(of).ok());
            *kinds
                .entry(kind.map_or(ENGINE, |(kind, _)| kind).to_owned())
                .or_default() += sign;
        }
    }
    kinds.retain(|_, more| *more != 0);
    format!("{kinds:?}")
}

fn recordings() -> Vec<PathBuf> {
    let folder = std::env::var_os("GIVEWAY_CORPUS").map_or_else(|| CORPUS.into(), PathBuf::from);
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> = entries
        .filter(|path| path.to_string_lossy().ends_with(".inputs.gz"))
        .collect();
    all.sort();
    all
}

#[test]
fn every_recording_replays_to_the_same_actions() {
    let rewrites = std::env::var_os("GIVEWAY_CORPUS_REWRITE").is_some();
    let mut differences = Vec::new();
    for path in recordings() {
        let of_actions = PathBuf::from(path.to_string_lossy().replace(".inputs.gz", ".actions"));
        let recorded: Vec<Value> = fs::read_to_string(&of_actions)
            .unwrap_or_default()
            .lines()
            .map(read)
            .collect();
        let inputs = unpacked(&path);
        let now = replayed(&inputs);
        let Some(difference) = difference(&recorded, &now) else {
            continue;
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let kinds = counted(&recorded, &now.0);
        differences.push(format!("{name}: {kinds}\n{difference}"));
        if rewrites {
            let text: String = now.0.iter().map(|action| format!("{action}\n")).collect();
            fs::write(&of_actions, text).unwrap();
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(!recordings().is_empty(), "there are no recordings in {CORPUS}");
}
