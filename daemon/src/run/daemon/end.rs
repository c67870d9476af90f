// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of the loop: everything that was changed is restored.

use anyhow::{Context as _, Result};
use giveway_engine::peers::Outgoing;

use super::Running;
use crate::journal;
use crate::kernel::{now, random, slept};
use crate::life::LONG_WORK;
use crate::run::priority::PriorityThread;
use crate::undo::undo_all;

/// The farewell is sent more than once: broadcasts get lost.
const FAREWELLS: usize = 3;

impl Running {
    /// Whatever fails here is left to the watchdog, which has not been dismissed. After a revert nothing is kept for the next
    /// start.
    pub(super) fn end(&mut self, is_revert: bool) -> Result<()> {
        self.heartbeat.beat_before(LONG_WORK);
        // Nothing that fails here keeps the rest from being put back.
        if let Ok(random) = random() {
            self.daemon.engine.refresh(random, slept());
        }
        for _ in 0..FAREWELLS {
            if let Some(datagram) = self.daemon.engine.farewell(now()) {
                self.send(&Outgoing { to: None, datagram });
            }
        }
        let daemon = &mut self.daemon;
        // Priorities first: nothing may keep the rest from running.
        let set_back = daemon.realtime.take().map_or(Ok(0), PriorityThread::stop);
        let Some(guarded) = daemon.guarded.take() else {
            return Ok(());
        };
        daemon.receiver.close();
        let lifted = daemon.sockets.revert().context("the watchdog restores the sockets");
        self.heartbeat.beat_before(LONG_WORK);
        for taken_down in [daemon.download.take_down(), daemon.upload.take_down()] {
            if let Err(error) = taken_down {
                tracing::warn!("{error:#}");
            }
        }
        journal::restore_removed();
        // Before the folder of pins is cleared up.
        let kept = daemon.owners.leave();
        let undone = undo_all(&daemon.place);
        let (set_back, lifted, undone) = (set_back?, lifted?, undone?);
        guarded.dismiss();
        for line in undone.lines {
            tracing::info!("{line}");
        }
        match kept {
            Ok(kept) => {
                if let Some(line) = kept_line(kept, is_revert) {
                    tracing::info!("{line}");
                }
            }
            Err(error) => tracing::warn!("{error:#}"),
        }
        tracing::info!(
            "stopped: {lifted} sockets and the priorities of {set_back} processes restored, no change of \
             giveway is left"
        );
        Ok(())
    }
}

/// What is said of so many processes whose choice or inheritance is still noted.
fn kept_line(kept: usize, is_revert: bool) -> Option<String> {
    (kept > 0 && !is_revert).then(|| {
        format!(
            "what {kept} running processes have chosen or inherited is kept for the next start; `giveway revert` forgets it"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revert_does_not_say_that_something_is_kept() {
        assert!(kept_line(2, false).is_some_and(|line| line.starts_with("what 2 running processes")));
        assert_eq!(kept_line(2, true), None);
        assert_eq!(kept_line(0, false), None);
    }
}
