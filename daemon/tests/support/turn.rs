// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests run beside each other, but for one that holds what is the whole machine's: then no other one makes, changes or times
//! anything there.

use std::cell::Cell;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::new(());

thread_local! {
    static HAS_TURN: Cell<bool> = const { Cell::new(false) };
}

/// Until it is dropped.
pub struct Turn {
    _beside: Option<RwLockReadGuard<'static, ()>>,
    _alone: Option<RwLockWriteGuard<'static, ()>>,
    is_first: bool,
}

impl Turn {
    /// A second one of the same test has the first one's.
    pub fn beside_others() -> Self {
        let is_first = !HAS_TURN.replace(true);
        Self {
            _beside: is_first.then(|| MACHINE.read().unwrap_or_else(PoisonError::into_inner)),
            _alone: None,
            is_first,
        }
    }

    /// Before whatever else takes one in this test.
    pub fn alone() -> Self {
        assert!(!HAS_TURN.replace(true));
        Self {
            _beside: None,
            _alone: Some(MACHINE.write().unwrap_or_else(PoisonError::into_inner)),
            is_first: true,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_first {
            HAS_TURN.set(false);
        }
    }
}
