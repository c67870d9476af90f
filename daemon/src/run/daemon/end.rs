// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of the loop: everything that was changed is put back.

use anyhow::{Context as _, Result};
use giveway_engine::wire::Outgoing;

use super::Running;
use crate::journal;
use crate::kernel::{now, random, slept};
use crate::life::LONG_WORK;
use crate::run::priority::PriorityThread;
use crate::undo::undo_all;

/// The farewell is sent more than once: broadcasts get lost.
const FAREWELLS: usize = 3;

impl Running {
    /// Whatever fails here is left to the guardian, which has not been dismissed.
    pub(super) fn end(&mut self) -> Result<()> {
        self.sign.give_for(LONG_WORK);
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
        let lifted = daemon
            .sockets
            .revert()
            .context("what is set on sockets is left to the guardian");
        self.sign.give_for(LONG_WORK);
        journal::look_after();
        // Before the folder of pins is cleared up.
        let kept = daemon.owners.leave();
        let undone = undo_all(&daemon.place);
        let (set_back, lifted, undone) = (set_back?, lifted?, undone?);
        guarded.dismiss();
        for line in undone.lines {
            tracing::info!("{line}");
        }
        match kept {
            Ok(0) => {}
            Ok(kept) => tracing::info!(
                "what {kept} running processes have chosen or inherited is kept for the next start; `giveway revert` forgets it"
            ),
            Err(error) => tracing::warn!("{error:#}"),
        }
        tracing::info!(
            "ended; {lifted} sockets put back, {set_back} processes back at their former priority, nothing of giveway's is left"
        );
        Ok(())
    }
}
