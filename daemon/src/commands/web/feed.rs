// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks the daemon for those who look. Input: that somebody looks. Output: the latest [`Snapshot`], the same for all of them.
//!
//! A thread of its own asks, and only what it decides by itself says how often: once a second at most, and so seldom that
//! asking takes a twentieth of the time. While nobody looks nobody is asked, so that a page that nobody has open costs
//! nothing; the history has a gap then. A Prometheus that comes every 15 s is somebody who looks.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::sync::watch;

use super::history::History;
use super::snapshot::{Snapshot, SnapshotMaker};
use crate::control::client;
use crate::exit;
use crate::place::Place;

const LEAST_INTERVAL: Duration = Duration::from_secs(1);
/// However long an answer took.
const MOST_INTERVAL: Duration = Duration::from_secs(10);
/// Of the time that an answer took, at least so much passes until the next question.
const REST: u32 = 20;
/// Who looks waits no longer than this for a new answer.
const PATIENCE: Duration = Duration::from_secs(4);

#[derive(Clone)]
pub struct Feed {
    latest: watch::Receiver<Arc<Snapshot>>,
    wanted: SyncSender<()>,
    history: Arc<Mutex<History>>,
}

impl Feed {
    pub fn start(place: Place) -> Result<Self> {
        let (publish, latest) = watch::channel(Arc::new(Snapshot::without("the daemon has not answered yet")));
        let (wanted, wants) = sync_channel(1);
        let history = Arc::new(Mutex::new(History::default()));
        let asker = StatusPoller {
            place,
            publish,
            history: history.clone(),
        };
        thread::Builder::new()
            .name("giveway-ask".to_owned())
            .spawn(move || asker.run(&wants))
            .context("cannot start the thread that asks the daemon")?;
        Ok(Self {
            latest,
            wanted,
            history,
        })
    }

    /// The latest snapshot, or a new one where that is old.
    pub async fn latest(&self) -> Arc<Snapshot> {
        let mut latest = self.latest.clone();
        let snapshot = latest.borrow_and_update().clone();
        if snapshot.is_fresh() {
            return snapshot;
        }
        // A full channel says the same already.
        let _ = self.wanted.try_send(());
        match tokio::time::timeout(PATIENCE, latest.changed()).await {
            Ok(Ok(())) => latest.borrow().clone(),
            Ok(Err(_)) => Arc::new(Snapshot::without(
                "the thread that queries the daemon has ended: restart `giveway web`",
            )),
            Err(_) => Arc::new(Snapshot::without("the daemon does not answer")),
        }
    }

    pub fn history(&self) -> Vec<u8> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).to_json()
    }
}

struct StatusPoller {
    place: Place,
    publish: watch::Sender<Arc<Snapshot>>,
    history: Arc<Mutex<History>>,
}

impl StatusPoller {
    fn run(self, wants: &Receiver<()>) {
        let mut maker = SnapshotMaker::default();
        // Its end is the end of all who might look.
        while wants.recv().is_ok() {
            let asked = Instant::now();
            let snapshot = match client::status(&self.place) {
                Ok(status) => maker.take(&status, asked.elapsed()),
                Err(error) => Snapshot::without(&exit::message(&error)),
            };
            let interval = (asked.elapsed() * REST).clamp(LEAST_INTERVAL, MOST_INTERVAL);
            if let Some(sample) = &snapshot.sample {
                let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
                history.add(sample.clone());
            }
            self.publish.send_replace(Arc::new(snapshot.fresh_for(interval)));
            // Whoever asked meanwhile has their answer.
            while wants.try_recv().is_ok() {}
            thread::sleep(interval.saturating_sub(asked.elapsed()));
        }
    }
}
