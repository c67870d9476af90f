// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether `giveway revert` has asked a start to end since it began. A start that has no control socket yet, and maybe no
//! lock, can be told nothing, so the request is a file that stays. The start remembers what that said when it began, and
//! compares at each step; the last time when its control socket is open, by which it is told from then on.

use anyhow::Result;

use crate::place::Place;

/// The moment at which a start began.
pub struct StartMoment {
    before: Option<String>,
}

/// `giveway revert` has asked for it.
#[derive(Debug, thiserror::Error)]
#[error("`giveway revert` asked for the end of this start")]
pub struct RevertRequested;

impl StartMoment {
    /// Call it before anything else.
    pub fn now() -> Self {
        let before = Place::here().ok().and_then(|place| place.last_request());
        Self { before }
    }

    /// # Errors
    /// [`RevertRequested`] where there was a request since.
    pub fn check(&self, place: &Place) -> Result<()> {
        match place.last_request() {
            // Whoever clears a folder takes an old request with it.
            None => Ok(()),
            same if same == self.before => Ok(()),
            Some(_) => Err(RevertRequested.into()),
        }
    }
}
