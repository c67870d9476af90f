// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes a recording of each engine of this process into the folder `GIVEWAY_CORPUS`; without it, nothing.
// The only part of this crate with files, and only with the feature.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::plain::Written;

static RECORDED: AtomicUsize = AtomicUsize::new(0);

/// Of one engine.
#[derive(Debug)]
pub struct Recording {
    inputs: File,
    actions: File,
    /// Inputs so far.
    count: usize,
    random: ChaCha20Rng,
}

impl Recording {
    /// None: not recording.
    pub fn of_network(now: Duration, config: &impl Written, setup: &impl Written, seed: [u8; 32]) -> Option<Self> {
        let header = json!({"engine": "network", "t": now.write(), "config": config.write(), "setup": setup.write()});
        Self::new(&header, seed)
    }

    /// None: not recording.
    pub fn of_priority(
        limits: &impl Written,
        grants: &impl Written,
        rules: &impl Written,
        dry_run: bool,
    ) -> Option<Self> {
        let header = json!({
            "engine": "priority", "limits": limits.write(), "grants": grants.write(), "rules": rules.write(),
            "dry_run": dry_run,
        });
        Self::new(&header, [0; 32])
    }

    fn new(header: &Value, seed: [u8; 32]) -> Option<Self> {
        let folder = PathBuf::from(std::env::var_os("GIVEWAY_CORPUS")?);
        let thread = std::thread::current();
        let number = RECORDED.fetch_add(1, Ordering::Relaxed);
        let name = format!(
            "{}-{}-{number:04}",
            thread.name().unwrap_or("engine"),
            std::process::id()
        );
        let open = |list: &str| create(&folder, &format!("{}.{list}", name.replace([':', '/'], "-")));
        let mut recording = Self {
            inputs: open("inputs")?,
            actions: open("actions")?,
            count: 0,
            random: ChaCha20Rng::from_seed(seed),
        };
        line(&mut recording.inputs, header);
        line(&mut recording.actions, &json!("engine"));
        Some(recording)
    }

    /// Records an input, before its actions.
    pub fn input(&mut self, now: Duration, input: &impl Written) {
        self.note(&json!({"t": now.write(), "in": input.write()}));
    }

    /// Records a direct call of an engine, before its actions.
    pub fn call(&mut self, now: Duration, call: &impl Written) {
        self.note(&json!({"t": now.write(), "call": call.write()}));
    }

    pub fn actions<A: Written>(&mut self, actions: &[A]) {
        for action in actions {
            line(&mut self.actions, &json!([self.count, action.write()]));
        }
    }

    /// Replaces the kernel's randomness by a sequence of the seed, which the replay can draw as well.
    pub fn refreshed(&mut self, slept: Duration) -> [u8; 32] {
        self.note(&json!({"slept": slept.write()}));
        let mut random = [0; 32];
        self.random.fill_bytes(&mut random);
        random
    }

    fn note(&mut self, value: &Value) {
        self.count += 1;
        line(&mut self.inputs, value);
    }
}

fn create(folder: &Path, name: &str) -> Option<File> {
    File::create(folder.join(name)).ok()
}

/// A write error shows in the replay.
fn line(file: &mut File, value: &Value) {
    let _ = file.write_all(format!("{value}\n").as_bytes());
}
