// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When a cap is set, raised, lowered and cleared.

use super::*;

const ONCE_A_POLL: Terms = Terms {
    sharing: Sharing {
        devices: 1,
        connections: 1,
    },
    settled_within: 16,
    may_raise: true,
    clears_at_once: false,
};
const BETWEEN: Terms = Terms {
    may_raise: false,
    ..ONCE_A_POLL
};

#[test]
fn lowering_is_immediate() {
    assert_eq!(next_cap(Some(69), Some(43), BETWEEN, 69), Some(Some(43)));
}

#[test]
fn unchanged_caps_are_not_written() {
    assert_eq!(next_cap(Some(43), Some(43), ONCE_A_POLL, 43), None);
    assert_eq!(next_cap(None, None, ONCE_A_POLL, 43), None);
}

#[test]
fn raising_goes_in_steps_to_the_target() {
    let mut cap = 43;
    let mut steps = 0;
    while let Some(Some(higher)) = next_cap(Some(cap), Some(346), ONCE_A_POLL, cap) {
        assert!(higher <= cap * 5 / 4 + 1);
        cap = higher;
        steps += 1;
    }
    assert_eq!((cap, steps), (346, 10));
    assert_eq!(next_cap(Some(43), Some(346), BETWEEN, 43), None);
}

#[test]
fn clearing_raises_the_cap_until_it_no_longer_limits() {
    assert_eq!(next_cap(Some(43), None, ONCE_A_POLL, 43), Some(Some(53)));
    assert_eq!(next_cap(Some(86), None, ONCE_A_POLL, 43), Some(None));
}

#[test]
fn a_regained_connections_cap_is_cleared_at_once() {
    let at_once = Terms {
        clears_at_once: true,
        ..ONCE_A_POLL
    };
    assert_eq!(next_cap(Some(43), None, at_once, 43), Some(None));
}

#[test]
fn small_changes_of_a_target_are_ignored() {
    let sharing = Sharing {
        devices: 2,
        connections: 1,
    };
    let more = Sharing {
        devices: 3,
        connections: 1,
    };
    let settled = |sharing_now, wanted| {
        let terms = Terms {
            sharing: sharing_now,
            ..ONCE_A_POLL
        };
        settle(Some((sharing, Value::Number(100))), terms, Value::Number(wanted))
    };
    assert_eq!(settled(sharing, 103), Value::Number(100));
    assert_eq!(settled(sharing, 120), Value::Number(120));
    assert_eq!(settled(more, 103), Value::Number(103));
}
