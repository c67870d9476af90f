// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nothing is active for as long as a client holds its connection, and no longer than it has asked for. Both engines take
//! back what they gave by the requests that they always take it back by, so that the journals say at every moment what is
//! to be undone. What was set by `[receive]` is restored from its journal.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Result;
use giveway_engine::network::action::Input;
use giveway_engine::status::PausedView;
use tokio::sync::oneshot;

use super::{Running, instant_of, sleep};
use crate::control::server::{Asker, Pausing};
use crate::kernel::{now, scanner};
use crate::life::LONG_WORK;

pub(super) struct Pause {
    by: Asker,
    /// None: until somebody ends it.
    until: Option<Duration>,
    /// Ends with the client's connection; None: `giveway pause`, which outlives it.
    held: Option<oneshot::Receiver<Infallible>>,
}

impl Pause {
    pub fn view(&self) -> PausedView {
        PausedView {
            uid: self.by.uid,
            pid: self.by.pid,
            left_ms: self.until.map(|until| until.saturating_sub(now()).as_millis() as u64),
        }
    }

    fn who(&self) -> String {
        let pid = self.by.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        format!("paused by uid {}{pid}", self.by.uid)
    }

    /// For `status`.
    pub fn shown(&self) -> String {
        let left = match self.view().left_ms {
            Some(left_ms) => format!("for {} s more at most", left_ms.div_ceil(1000)),
            None => "until `giveway resume`".to_owned(),
        };
        format!("{}: nothing is active, {left}", self.who())
    }
}

/// Waits for ever where there is none.
pub(super) async fn is_over(pause: Option<&mut Pause>) {
    let Some(pause) = pause else {
        return std::future::pending().await;
    };
    let held = async {
        match &mut pause.held {
            Some(held) => _ = held.await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = held => {}
        () = sleep(pause.until.map(instant_of)) => {}
    }
}

fn cannot_revoke() -> Option<String> {
    let reason = scanner::hindrances().into_iter().next()?;
    Some(format!("settings of connections cannot be undone now: {reason}"))
}

impl Running {
    pub(super) fn pause(
        &mut self,
        by: Asker,
        time: Option<Duration>,
        held: Option<oneshot::Receiver<Infallible>>,
    ) -> Result<Result<Pausing, String>> {
        if let Some(pause) = self
            .pause
            .as_mut()
            .filter(|pause| pause.held.is_none() && held.is_none())
        {
            (pause.by, pause.until) = (by, time.map(|time| now() + time));
            let (_, set_back) = oneshot::channel();
            let view = pause.view();
            return Ok(Ok(Pausing { view, set_back }));
        }
        if let Some(pause) = &self.pause {
            return Ok(Err(format!("giveway is {} already; try again later", pause.who())));
        }
        if self.daemon.guarded.is_none() {
            return Ok(Err(
                "this daemon runs with --dry-run: it has nothing active that could be paused".to_owned(),
            ));
        }
        if let Some(refusal) = cannot_revoke() {
            return Ok(Err(refusal));
        }
        let until = time.map(|time| now() + time);
        let pause = Pause { by, until, held };
        let reason = pause.who();
        tracing::info!("{}: all changes are undone", pause.shown());
        self.heartbeat.beat_before(LONG_WORK);
        let (done, set_back) = oneshot::channel();
        if let Some(realtime) = &self.daemon.realtime {
            realtime.client().pause(reason.clone(), done);
        }
        for failed in self.daemon.receiver.pause() {
            tracing::warn!("{failed}");
        }
        self.step(Input::Pause(Some(reason)))?;
        self.settle_nice()?;
        let view = pause.view();
        self.pause = Some(pause);
        // The scan that takes it back may be the first to be held up.
        if let Some(refusal) = cannot_revoke() {
            self.resume()?;
            return Ok(Err(refusal));
        }
        Ok(Ok(Pausing { view, set_back }))
    }

    pub(super) fn resume(&mut self) -> Result<()> {
        let Some(pause) = self.pause.take() else { return Ok(()) };
        tracing::info!("no longer {}: all changes are active again", pause.who());
        self.heartbeat.beat_before(LONG_WORK);
        self.step(Input::Pause(None))?;
        self.settle_nice()?;
        self.daemon.receiver.resume();
        if let Some(realtime) = &self.daemon.realtime {
            realtime.client().resume();
        }
        Ok(())
    }
}
