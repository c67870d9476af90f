// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The processes and threads that the loop depends on: a watchdog that has died or hangs is replaced, a real-time thread
//! that has failed is reported. The service manager is told that all of them live.

use super::Running;
use crate::kernel::scanner;
use crate::life::DAEMON;

impl Running {
    /// What keeps sockets from being looked at. Whoever locks and lets go without end gets a line a second at most.
    pub(super) fn report_hindrances(&mut self) {
        let hindrances = scanner::hindrances();
        if hindrances == self.hindrances {
            return;
        }
        let new = hindrances.iter().filter(|one| !self.hindrances.contains(one));
        new.for_each(|one| tracing::warn!("{one}"));
        if hindrances.is_empty() {
            tracing::info!("sockets are monitored again");
        }
        self.hindrances = hindrances;
    }

    pub(super) fn supervise(&mut self) {
        let daemon = &mut self.daemon;
        if let Some(failed) = daemon.realtime.take_if(|thread| thread.has_failed())
            && let Err(error) = failed.stop()
        {
            let line = format!("{error:#}; nothing gets real-time priority until giveway is started again");
            tracing::warn!("{line}");
            daemon.warnings.push(line);
        }
        if let Some(guarded) = &mut daemon.guarded {
            match guarded.check_watchdog(&daemon.owners.tasks().threads) {
                Ok(true) => {
                    daemon.lock.name(Some(guarded.pid()));
                    self.unguarded =
                        Some("the watchdog has ended or hangs, and another was started just now".to_owned());
                }
                Ok(false) => self.unguarded = None,
                Err(error) => {
                    let line = format!("there is no watchdog now: {error:#}; trying again every second");
                    if self.unguarded.as_ref() != Some(&line) {
                        tracing::warn!("{line}");
                    }
                    self.unguarded = Some(line);
                }
            }
        }
        if daemon.life.is_well(&DAEMON) {
            self.notifier.alive();
        }
    }
}
