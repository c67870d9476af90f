// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon says, asked for in a thread of its own, so that keys work while it does not answer. Input: a wish for each answer.
//! Output: the answer, or why there is none. The daemon is asked once a second at most, and less often where an answer is much work.

use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use giveway_engine::status::Status;

use crate::control::client;
use crate::exit;
use crate::place::Place;

pub type StatusResult = Result<Box<Status>, String>;

const EVERY: Duration = Duration::from_secs(1);
/// An answer takes at most one in so many parts of the time, the daemon's and ours together.
const WORK_SHARE: u32 = 10;

/// Until nobody wishes, or hears, any more.
pub fn serve(place: &Place, wishes: &Receiver<()>, mut heard: impl FnMut(StatusResult) -> bool) {
    let mut next = Instant::now();
    for () in wishes {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let begun = Instant::now();
        let answer = client::status(place)
            .map(Box::new)
            .map_err(|error| exit::message(&error));
        // No answer is no work: it is looked for each second.
        let pause = if answer.is_ok() {
            begun.elapsed() * WORK_SHARE
        } else {
            EVERY
        };
        next = begun + pause.max(EVERY);
        if !heard(answer) {
            return;
        }
    }
}
