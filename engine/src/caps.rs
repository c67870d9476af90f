// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the cap that the policy wants to the cap that is asked for next: one connection, one moment.
//!
//! A write of the clamp sets ssthresh to the clamp as well (`bpf_setsockopt`, TCP_BPF_SNDCWND_CLAMP), so
//! that a raised clamp lets cwnd grow by slow start up to it. Hence: no write without need, lowering at
//! once, raising in steps.

use crate::policy::Sharing;

/// A raise goes to at most 5/4 of the present cap, once a pass.
const STEP: (u32, u32) = (5, 4);
/// A clamp this many times cwnd no longer holds it, and may go.
const LOOSE: u32 = 2;

/// What to ask for, if anything: `Some(None)` lifts the cap. `may_raise` is true once a pass; `cwnd` is the
/// connection's present window.
pub fn next(in_force: Option<u32>, wanted: Option<u32>, may_raise: bool, cwnd: u32) -> Option<Option<u32>> {
    match (in_force, wanted) {
        (None, None) => None,
        (None, Some(cap)) => Some(Some(cap)),
        (Some(now), Some(cap)) if cap < now => Some(Some(cap)),
        (Some(now), Some(cap)) => (may_raise && cap > now).then(|| Some(raised(now).min(cap))),
        (Some(_), None) if !may_raise => None,
        (Some(now), None) if now >= cwnd.saturating_mul(LOOSE) => Some(None),
        (Some(now), None) => Some(Some(raised(now))),
    }
}

/// What the policy wants, without trembling: while the same devices share the air, a wish that differs by
/// little from the last one (a minimum RTT that moved by some microseconds) is taken as the same.
pub fn settle(last: Option<(Sharing, Option<u32>)>, sharing: Sharing, wanted: Option<u32>) -> Option<u32> {
    match (last, wanted) {
        (Some((same, Some(before))), Some(now)) if same == sharing && before.abs_diff(now) <= before / 16 => {
            Some(before)
        }
        _ => wanted,
    }
}

fn raised(cap: u32) -> u32 {
    let (times, over) = STEP;
    (u64::from(cap) * u64::from(times) / u64::from(over)).clamp(u64::from(cap) + 1, i32::MAX as u64 - 1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowering_is_immediate() {
        assert_eq!(next(Some(69), Some(43), false, 69), Some(Some(43)));
    }

    #[test]
    fn nothing_is_written_without_need() {
        assert_eq!(next(Some(43), Some(43), true, 43), None);
        assert_eq!(next(None, None, true, 43), None);
    }

    #[test]
    fn raising_takes_steps_and_arrives() {
        let mut cap = 43;
        let mut steps = 0;
        while let Some(Some(higher)) = next(Some(cap), Some(346), true, cap) {
            assert!(higher <= cap * 5 / 4 + 1);
            cap = higher;
            steps += 1;
        }
        assert_eq!((cap, steps), (346, 10));
        assert_eq!(next(Some(43), Some(346), false, 43), None);
    }

    #[test]
    fn lifting_goes_on_until_the_cap_no_longer_holds() {
        assert_eq!(next(Some(43), None, true, 43), Some(Some(53)));
        assert_eq!(next(Some(86), None, true, 43), Some(None));
    }

    #[test]
    fn a_wish_that_trembles_is_settled() {
        let sharing = Sharing {
            devices: 2,
            connections: 1,
        };
        let more = Sharing {
            devices: 3,
            connections: 1,
        };
        assert_eq!(settle(Some((sharing, Some(100))), sharing, Some(103)), Some(100));
        assert_eq!(settle(Some((sharing, Some(100))), sharing, Some(120)), Some(120));
        assert_eq!(settle(Some((sharing, Some(100))), more, Some(103)), Some(103));
    }
}
