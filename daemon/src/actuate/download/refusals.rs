// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices of containers where what was to be put there could not be. Input: what failed, and what did not. Output: for which it
//! is too early to try again, and why. (Of links the engine says so: it knows of these devices only what they send.)

use std::collections::BTreeMap;

use giveway_engine::back_off::BackOff;

use crate::kernel::now;

/// Each is left alone for a while, and the others have theirs.
#[derive(Default)]
pub struct Refusals(BTreeMap<u32, Refusal>);

struct Refusal {
    name: String,
    reason: String,
    again: BackOff,
}

impl Refusals {
    pub fn note(&mut self, ifindex: u32, name: &str, error: &anyhow::Error) {
        let refusal = self.0.entry(ifindex).or_insert_with(|| Refusal {
            name: name.to_owned(),
            reason: String::new(),
            again: BackOff::default(),
        });
        refusal.reason = format!("{error:#}");
        refusal.again.failed(now());
        let shown = refusal.again.shown(now(), &refusal.reason);
        tracing::warn!("limits do not hold by {name}: {shown}");
    }

    pub fn forget(&mut self, ifindex: u32) {
        self.0.remove(&ifindex);
    }

    /// Of no others.
    pub fn keep(&mut self, is_there: impl Fn(&u32) -> bool) {
        self.0.retain(|ifindex, _| is_there(ifindex));
    }

    /// Until it is time to try again.
    pub fn of(&self, ifindex: u32) -> Option<String> {
        let refusal = self.0.get(&ifindex)?;
        refusal.waits().then(|| refusal.reason.clone())
    }

    /// Those that are left alone now, and why.
    pub fn waiting(&self) -> impl Iterator<Item = (&str, &str)> {
        let waiting = self.0.values().filter(|refusal| refusal.waits());
        waiting.map(|refusal| (refusal.name.as_str(), refusal.reason.as_str()))
    }
}

impl Refusal {
    fn waits(&self) -> bool {
        self.again.next().is_some_and(|next| next > now())
    }
}
