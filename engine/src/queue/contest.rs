// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A conflict with another tool over a link's root qdisc. Input: the root qdisc, and the time. Output: whether giveway
//! may install its queue, why not, and when it is restored. Never replaces a qdisc that another tool has configured. An
//! unconfigured root is taken back after a while, three times in ten minutes; then the other tool has won until the
//! link was down. (A network manager resets a qdisc once; two tools that insist would go on forever.)

use std::collections::VecDeque;
use std::time::Duration;

use super::RootQdisc;

/// The first wait; each is twice as long as the one before.
const RETURNS_AFTER: Duration = Duration::from_secs(3);
const MOST_RETURNS: usize = 3;
const WITHIN: Duration = Duration::from_secs(600);

/// Of one link, since it came up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contest {
    /// Another tool has removed giveway's queue.
    pub began: bool,
    /// When it was restored lately.
    returns: VecDeque<Duration>,
    /// The root is free, and giveway's queue is restored then.
    pub until: Option<Duration>,
    is_lost: bool,
}

impl Contest {
    /// Giveway's queue was at the root, which is this now.
    pub fn taken(&mut self, now: Duration, root: &RootQdisc) {
        self.returns.retain(|at| now.saturating_sub(*at) < WITHIN);
        self.is_lost = self.returns.len() >= MOST_RETURNS;
        self.began = true;
        self.until = None;
        self.observe(now, root, false);
    }

    /// Takes in the root qdisc. `serves`: giveway's queue is installed, as far as is known.
    pub fn observe(&mut self, now: Duration, root: &RootQdisc, serves: bool) {
        if !self.began || self.is_lost || serves || root.ours {
            return;
        }
        let wait = RETURNS_AFTER * (1 << self.returns.len());
        self.until = match is_free(root) {
            true => self.until.or(Some(now + wait)),
            false => None,
        };
    }

    /// Whether the queue is due for restoration. True once.
    pub fn is_due(&mut self, now: Duration) -> bool {
        let is_due = self.until.take_if(|until| *until <= now).is_some();
        if is_due {
            self.returns.push_back(now);
        }
        is_due
    }

    /// Why giveway's queue may not be installed now.
    pub fn hindrance(&self, name: &str, root: &RootQdisc) -> Option<String> {
        if !self.began || root.ours {
            return None;
        }
        let taken = format!("another tool removed giveway's queue from {name}");
        if self.is_lost {
            return Some(format!(
                "{taken} after it was restored {MOST_RETURNS} times in ten minutes; it is not restored until giveway is \
                 restarted or the link was down"
            ));
        }
        if !is_free(root) {
            return Some(format!(
                "another tool has put the qdisc {} on {name} in place of giveway's; it is not replaced while it is there",
                root.kind
            ));
        }
        self.until.map(|_| {
            format!(
                "{taken}; it is restored soon ({} of {MOST_RETURNS} times in ten minutes)",
                self.returns.len() + 1
            )
        })
    }
}

/// Installed by the kernel, not configured by anybody.
fn is_free(root: &RootQdisc) -> bool {
    root.handle == 0
}
