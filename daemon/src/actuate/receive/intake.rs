// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's threads that take packets in (NAPI), in real time, and watched: whoever sends a flood keeps them busy
//! without end, and would so stop the machine. In come threads and a priority, out goes the journal. Who uses more than
//! a share is ordinary for a window.

use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::AsFd as _;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::realtime::OWN_PRIORITY;
use giveway_engine::receive::{Share, WINDOW};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::journal::{Changed, Journal};
use super::thread::{self, Raised};
use crate::kernel::now;

/// Of one CPU, all threads together.
const SHARE_PERCENT: u32 = 80;
const LOOK_EVERY_MS: u16 = 100;

/// Ends with its watch, and the watch with it. The journal sets the threads back.
pub struct Intake {
    /// Closed, it ends the watch.
    lasts: Option<PipeWriter>,
    watch: Option<JoinHandle<()>>,
}

struct Threads {
    tids: Vec<u32>,
    priority: u32,
    raised: Vec<Raised>,
    journal: Journal,
}

impl Intake {
    pub fn start(tids: Vec<u32>, priority: u32, journal: Journal) -> Result<Self> {
        let mut threads = Threads {
            tids,
            priority,
            raised: Vec::new(),
            journal,
        };
        let (end, lasts) = pipe().context("cannot make a pipe")?;
        threads.raise()?;
        let watch = std::thread::Builder::new()
            .name("giveway-intake".to_owned())
            .spawn(move || threads.watch(&end));
        Ok(Self {
            lasts: Some(lasts),
            watch: Some(watch.context("cannot start the watch over NAPI threads")?),
        })
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        self.lasts = None;
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}

impl Threads {
    fn raise(&mut self) -> Result<()> {
        for tid in &self.tids {
            thread::raise(*tid, *tid, self.priority, |raised| {
                self.journal.add(&Changed::Thread(raised))?;
                self.raised.push(raised);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn lower(&mut self) {
        for raised in self.raised.drain(..) {
            if let Err(error) = raised.lower() {
                tracing::warn!("{error:#}");
            }
        }
    }

    fn cpu(&self) -> Duration {
        self.tids.iter().filter_map(|tid| thread::cpu(*tid)).sum()
    }

    fn watch(&mut self, end: &PipeReader) {
        let own = nix::unistd::gettid().as_raw().cast_unsigned();
        if let Err(error) = thread::raise(std::process::id(), own, OWN_PRIORITY, |_| Ok(())) {
            tracing::warn!("nobody can watch over NAPI threads, so they are ordinary: {error:#}");
            return self.lower();
        }
        let (mut share, mut counted) = (Share::new(now(), SHARE_PERCENT), self.cpu());
        let mut ordinary_until = None;
        loop {
            let mut waits = [PollFd::new(end.as_fd(), PollFlags::POLLIN)];
            if !matches!(
                poll(&mut waits, PollTimeout::from(LOOK_EVERY_MS)),
                Ok(0) | Err(Errno::EINTR)
            ) {
                return;
            }
            let cpu = self.cpu();
            let is_in_bounds = share.spend(now(), cpu.saturating_sub(counted));
            counted = cpu;
            if !is_in_bounds && ordinary_until.is_none() {
                tracing::warn!("NAPI threads have used {SHARE_PERCENT}% of a CPU: ordinary for a second");
                self.lower();
                ordinary_until = Some(now() + WINDOW);
            }
            if ordinary_until.is_some_and(|until| now() >= until) {
                ordinary_until = None;
                share = Share::new(now(), SHARE_PERCENT);
                if let Err(error) = self.raise() {
                    tracing::warn!("NAPI threads stay ordinary: {error:#}");
                    return;
                }
            }
        }
    }
}
