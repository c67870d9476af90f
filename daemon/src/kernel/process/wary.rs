// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads what another process may keep from being read: its command line lies in its own memory, and that may be a
//! file's that is served by a server that never answers. In comes a path, out go its bytes within a moment, or nothing.
//!
//! A thread does the reading. One that gets stuck is left to itself, and another takes its place; not without end.

use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

const PATIENCE: Duration = Duration::from_millis(50);
const MAX_THREADS: usize = 8;
const STACK_BYTES: usize = 64 * 1024;

type Answer = std::io::Result<Vec<u8>>;
type Thread = (Sender<String>, Receiver<Answer>);

/// No answer within a moment, or too many who gave none: another time perhaps.
#[derive(Debug, thiserror::Error)]
#[error("it does not let itself be read")]
pub struct Hesitant;

pub struct WaryReader {
    /// What a new thread does first.
    prepare: fn(),
    limit_bytes: u64,
    thread: Option<Thread>,
    /// Each thread has one of these until it ends.
    counted: Arc<()>,
}

impl WaryReader {
    /// Its first thread is ready when this returns.
    pub fn new(limit_bytes: u64, prepare: fn()) -> Result<Self> {
        let mut reader = Self {
            prepare,
            limit_bytes,
            thread: None,
            counted: Arc::new(()),
        };
        let (thread, ready) = reader.start()?;
        ready.recv().context("the reading thread has ended")?;
        reader.thread = Some(thread);
        Ok(reader)
    }

    /// The beginning of this file.
    ///
    /// # Errors
    /// Where it cannot be read, or not within a moment.
    pub fn read(&mut self, path: String) -> Result<Vec<u8>> {
        let (asked, answers) = match self.thread.take() {
            Some(thread) => thread,
            None => self.start()?.0,
        };
        asked.send(path).context("the reading thread has ended")?;
        // A thread that is not put back ends when it has nobody to answer.
        let answer = answers.recv_timeout(PATIENCE).map_err(|_| Hesitant)?;
        self.thread = Some((asked, answers));
        Ok(answer?)
    }

    fn start(&self) -> Result<(Thread, Receiver<()>)> {
        ensure!(Arc::strong_count(&self.counted) <= MAX_THREADS, Hesitant);
        let (asked, requests) = channel::<String>();
        let (back, answers) = channel();
        let (is_ready, ready) = channel();
        let (prepare, limit_bytes, counted) = (self.prepare, self.limit_bytes, Arc::clone(&self.counted));
        let work = move || {
            prepare();
            // Nobody needs to have waited for it.
            let _ = is_ready.send(());
            for path in requests {
                if back.send(beginning_of(&path, limit_bytes)).is_err() {
                    break;
                }
            }
            drop(counted);
        };
        thread::Builder::new()
            .name("gw-reader".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(work)
            .context("cannot start a reading thread")?;
        Ok(((asked, answers), ready))
    }
}

fn beginning_of(path: &str, limit_bytes: u64) -> Answer {
    let mut bytes = Vec::with_capacity(limit_bytes.try_into().unwrap_or_default());
    File::open(path)?.take(limit_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_answers_keeps_nobody_waiting() {
        let path = std::env::temp_dir().join(format!("giveway-wary-{}", std::process::id()));
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut reader = WaryReader::new(4, || ()).unwrap();
        // A pipe without a writer cannot even be opened.
        for _ in 0..MAX_THREADS {
            let refused = reader.read(path.display().to_string()).unwrap_err();
            assert!(refused.is::<Hesitant>(), "{refused}");
        }
        let refused = reader.read("/proc/self/stat".to_owned()).unwrap_err();
        assert!(refused.is::<Hesitant>(), "though this one would answer: {refused}");
        // When they do answer, everything goes on.
        drop(File::options().write(true).open(&path).unwrap());
        let start = std::time::Instant::now();
        let read = loop {
            match reader.read("/proc/self/cmdline".to_owned()) {
                Ok(read) => break read,
                Err(error) => assert!(start.elapsed() < Duration::from_secs(20), "{error}"),
            }
        };
        assert_eq!(read.len(), 4);
        std::fs::remove_file(&path).unwrap();
    }
}
