// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One setting of one socket: from the policy's target to the next value to request. Every setting follows the same
//! path, each with its own active value, request, reason and outcome.
//!
//! A write of the clamp sets ssthresh to the clamp as well (`bpf_setsockopt`, TCP_BPF_SNDCWND_CLAMP), so that a raised
//! clamp lets cwnd grow by slow start up to it. Hence: no write without need, lowering at once, raising in steps.

use crate::change::{Reason, Setting, Value};
use crate::model::{Cookie, Flow};
use crate::share::Sharing;

/// A raise goes to at most 5/4 of the present cap, once a poll.
const STEP: (u32, u32) = (5, 4);
/// A clamp of this multiple of cwnd no longer limits it, and may be cleared.
const LOOSE: u32 = 2;
/// A foreign value must be seen in this many successive polls: a poll may fall between the kernel's write for a new
/// connection and its report.
const FOREIGN_AFTER_POLLS: u32 = 2;

/// A request about one socket.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub cookie: Cookie,
    pub settings: Vec<Wish>,
}

/// `Unset` restores the original value.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    pub setting: Setting,
    pub value: Value,
    pub reason: Reason,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Applied,
    /// The kernel is in loss recovery; requested again in the next poll.
    Deferred,
    /// The scan was aborted: the value may or may not be set. The next poll of the socket shows it.
    Unknown,
    /// Another tool has set this value.
    Foreign {
        found: Value,
    },
    /// The socket is closed.
    Gone,
    /// The kernel refused, with this error.
    Failed {
        errno: String,
    },
    /// No means to set it here.
    Unable,
}

/// The settings that limit senders.
pub const OF_SENDERS: [Setting; 2] = [Setting::Cap, Setting::PacingRate];

/// The settings that a poll shows.
pub fn shown_by(flow: &Flow) -> [(Setting, Value); 2] {
    [
        (Setting::Cap, flow.clamp.into()),
        (Setting::CongestionControl, flow.congestion_control.as_str().into()),
    ]
}

/// When a target becomes a request.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub sharing: Sharing,
    /// With this number of senders, a number that differs by less than this fraction is no new target.
    pub settled_within: u64,
    /// True once a poll.
    pub may_raise: bool,
    /// A cap that is to be cleared does not first grow to `LOOSE` times cwnd: it limits nothing any more.
    pub clears_at_once: bool,
}

/// One setting of one socket.
#[derive(Clone, Debug, Default)]
pub struct SettingState {
    /// Giveway's value, and its reason.
    pub installed: Value,
    pub reason: Reason,
    /// The original value, if known.
    pub before: Value,
    /// Requested and not yet answered.
    pub asked: Option<(Value, Reason)>,
    /// The kernel deferred the last request: nothing is requested before the next poll of the socket.
    pub deferred: bool,
    /// Requested in a scan that was aborted: this may be set.
    pub unanswered: Option<(Value, Reason)>,
    /// The policy's latest target, and its number of senders.
    pub wanted: Option<(Sharing, Value)>,
    /// A conflict: another tool has set it, and giveway does not override it.
    pub conflict: bool,
    foreign_polls: u32,
}

impl SettingState {
    pub fn may_change(&self) -> bool {
        !self.conflict && self.asked.is_none() && !self.deferred
    }

    /// Sets the pending request, until it is answered.
    pub fn ask(&mut self, setting: &Setting, value: Value, reason: Reason) -> Wish {
        self.asked = Some((value.clone(), reason.clone()));
        Wish {
            setting: setting.clone(),
            value,
            reason,
        }
    }

    /// The value to request now for this target.
    pub fn next(&mut self, setting: &Setting, terms: Terms, wanted: Value, flow: &Flow) -> Option<Value> {
        let is_cap = *setting == Setting::Cap;
        if !self.may_change() || (is_cap && !flow.ca_state.tolerates_clamp_write()) {
            return None;
        }
        let wanted = settle(self.wanted.take(), terms, wanted);
        self.wanted = Some((terms.sharing, wanted.clone()));
        if is_cap {
            next_cap(segments(&self.installed), segments(&wanted), terms, flow.cwnd).map(Value::from)
        } else {
            (wanted != self.installed || self.unanswered.is_some()).then_some(wanted)
        }
    }

    /// Whether the value on the socket is no longer giveway's.
    pub fn doubt(&mut self, found: &Value) -> Option<Doubt> {
        if self.asked.is_none()
            && let Some((value, reason)) = self.unanswered.take()
            && value == *found
            && value != self.installed
        {
            let before = std::mem::replace(&mut self.installed, value);
            (self.reason, self.foreign_polls) = (reason, 0);
            return Some(Doubt::Written { before });
        }
        let ours = self.asked.is_some() || *found == self.installed;
        self.foreign_polls = if ours { 0 } else { self.foreign_polls + 1 };
        (!self.conflict && self.foreign_polls >= FOREIGN_AFTER_POLLS).then_some(Doubt::Foreign)
    }
}

/// The meaning of an unexpected value.
#[derive(Clone, Debug, PartialEq)]
pub enum Doubt {
    /// Written by a scan that was aborted.
    Written { before: Value },
    /// Another tool's, or an answer of the kernel was lost.
    Foreign,
}

/// A cap, segments.
pub fn segments(cap: &Value) -> Option<u32> {
    match cap {
        Value::Number(segments) => u32::try_from(*segments).ok(),
        _ => None,
    }
}

/// The request, if any: `Some(None)` clears the cap. `cwnd` is the connection's present window.
fn next_cap(installed: Option<u32>, wanted: Option<u32>, terms: Terms, cwnd: u32) -> Option<Option<u32>> {
    let may_raise = terms.may_raise;
    match (installed, wanted) {
        (None, None) => None,
        (None, Some(cap)) => Some(Some(cap)),
        (Some(now), Some(cap)) if cap < now => Some(Some(cap)),
        (Some(now), Some(cap)) => (may_raise && cap > now).then(|| Some(raised(now).min(cap))),
        (Some(_), None) if !may_raise => None,
        (Some(now), None) if terms.clears_at_once || now >= cwnd.saturating_mul(LOOSE) => Some(None),
        (Some(now), None) => Some(Some(raised(now))),
    }
}

/// The policy's target without jitter: while the same devices share the medium, a number that differs little from the
/// last one (a minimum RTT that moved by microseconds) is the same.
fn settle(last: Option<(Sharing, Value)>, terms: Terms, wanted: Value) -> Value {
    match (last, &wanted) {
        (Some((same, Value::Number(before))), Value::Number(now))
            if same == terms.sharing && before.abs_diff(*now) <= before / terms.settled_within =>
        {
            Value::Number(before)
        }
        _ => wanted,
    }
}

fn raised(cap: u32) -> u32 {
    let (times, over) = STEP;
    (u64::from(cap) * u64::from(times) / u64::from(over)).clamp(u64::from(cap) + 1, i32::MAX as u64 - 1) as u32
}

#[cfg(test)]
mod tests;
