// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long the link makes others wait while it is full: connections of their own to the peer, and messages that have to be
//! answered by a deadline. Input: the time that counts. Output: one wait for each.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, interval_at, sleep_until, timeout_at};

use super::load::{Window, connect};
use super::wire::{ConnectionKind, PROBE_BYTES, hello};

const BETWEEN_CONNECTIONS: Duration = Duration::from_millis(100);
const BETWEEN_MESSAGES: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub struct ProbeResult {
    /// For a handshake, and then for an answer.
    pub to_connect: Vec<Duration>,
    pub to_answer: Vec<Duration>,
    pub late: u64,
    pub messages: u64,
}

/// Until the window's end.
pub fn run(peer: SocketAddr, deadline: Duration, window: Window) -> Result<ProbeResult> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let (connections, messages) = tokio::join!(connections(peer, window), messages(peer, deadline, window));
        let (to_connect, to_answer) = connections;
        let (late, messages) = messages?;
        Ok(ProbeResult {
            to_connect,
            to_answer,
            late,
            messages,
        })
    })
}

type Waits = Rc<RefCell<(Vec<Duration>, Vec<Duration>)>>;

async fn connections(peer: SocketAddr, window: Window) -> (Vec<Duration>, Vec<Duration>) {
    let waits = Waits::default();
    let mut clock = interval_at(window.start, BETWEEN_CONNECTIONS);
    let mut probes = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            _ = clock.tick() => {}
            () = sleep_until(window.end) => break,
        }
        probes.spawn_local(probe(peer, window.end, waits.clone()));
    }
    while probes.join_next().await.is_some() {}
    waits.take()
}

/// What has not come until the end, or not at all, took that long at least.
async fn probe(peer: SocketAddr, end: Instant, waits: Waits) {
    let begun = Instant::now();
    let connected = timeout_at(end, tokio::net::TcpStream::connect(peer)).await;
    waits.borrow_mut().0.push(begun.elapsed());
    let Ok(Ok(mut stream)) = connected else { return };
    let _ = stream.set_nodelay(true);
    let begun = Instant::now();
    let exchange = async {
        let question = [&hello(ConnectionKind::Probe)[..], &[0; PROBE_BYTES]].concat();
        stream.write_all(&question).await?;
        stream.read_exact(&mut [0; PROBE_BYTES]).await
    };
    let answered = timeout_at(end, exchange).await;
    let took = match answered {
        Ok(Ok(_)) => begun.elapsed(),
        // The peer has broken it off: as bad as none.
        _ => end.saturating_duration_since(begun),
    };
    waits.borrow_mut().1.push(took);
}

/// How many were answered after their deadline, of how many. Those whose deadline is after the end are not counted.
async fn messages(peer: SocketAddr, deadline: Duration, window: Window) -> Result<(u64, u64)> {
    let stream = connect(peer, ConnectionKind::Probe).await?;
    let (mut reader, mut writer) = stream.into_split();
    let sent = Rc::new(RefCell::new(Vec::<Instant>::new()));
    let answered = RefCell::new(Vec::<Instant>::new());
    let last = window.end.checked_sub(deadline).unwrap_or(window.start);
    let send = async {
        let mut clock = interval_at(window.start, BETWEEN_MESSAGES);
        while clock.tick().await < last {
            sent.borrow_mut().push(Instant::now());
            writer.write_all(&[0; PROBE_BYTES]).await?;
        }
        std::future::pending::<std::io::Result<()>>().await
    };
    let hear = async {
        loop {
            reader.read_exact(&mut [0; PROBE_BYTES]).await?;
            answered.borrow_mut().push(Instant::now());
            if answered.borrow().len() > sent.borrow().len() {
                return Err(std::io::Error::other("it answers what was not asked"));
            }
        }
    };
    let ended: Result<std::io::Result<()>, _> = timeout_at(window.end, async {
        tokio::select! { done = send => done, done = hear => done }
    })
    .await;
    if let Ok(failed) = ended {
        failed.context("the connection for messages ended")?;
    }
    let (sent, answered) = (sent.take(), answered.take());
    let in_time = sent
        .iter()
        .zip(&answered)
        .filter(|(sent, answered)| **answered <= **sent + deadline);
    Ok((sent.len() as u64 - in_time.count() as u64, sent.len() as u64))
}
