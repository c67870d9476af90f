// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What fills the link while it is measured: transfers to and from the peer, in a thread of their own. Input: how many, and
//! the time that counts. Output: what they carried in it, and how long questions waited that were asked between the filling.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use socket2::SockRef;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, interval_at, sleep_until, timeout};

use super::wire::{ConnectionKind, Frame, hello, read_frame, tune, write_frame};
use crate::kernel::calls::tcp_info;

/// For a connection to the peer.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Between two questions on each transfer.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(100);
/// DSCP LE (RFC 8622), as IP_TOS has it.
const LOWER_EFFORT: u32 = 1 << 2;

/// The time that counts.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub start: Instant,
    pub end: Instant,
}

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub peer: SocketAddr,
    /// Transfers each way.
    pub streams: u16,
    /// They say that they are background, by their DSCP.
    pub background: bool,
}

/// In the window.
#[derive(Debug, Default)]
pub struct LoadResult {
    pub up_bytes_per_s: f64,
    pub down_bytes_per_s: f64,
    /// Segments up, and those of them that were sent again.
    pub sent: u64,
    pub retransmitted: u64,
    /// Of each question on a transfer.
    pub waits: Vec<Duration>,
}

/// Until the window's end.
pub fn run(plan: Plan, window: Window) -> Result<LoadResult> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let ways = [ConnectionKind::Up, ConnectionKind::Down].into_iter().cycle();
        let all = ways.take(2 * usize::from(plan.streams));
        let transfers: Vec<_> = all
            .map(|kind| tokio::task::spawn_local(transfer(plan, kind, window)))
            .collect();
        let mut carried = LoadResult::default();
        for transfer in transfers {
            carried.add(transfer.await??);
        }
        Ok(carried)
    })
}

impl LoadResult {
    fn add(&mut self, more: Self) {
        self.up_bytes_per_s += more.up_bytes_per_s;
        self.down_bytes_per_s += more.down_bytes_per_s;
        self.sent += more.sent;
        self.retransmitted += more.retransmitted;
        self.waits.extend(more.waits);
    }
}

/// A connection of this kind, after its hello.
pub async fn connect(peer: SocketAddr, kind: ConnectionKind) -> Result<TcpStream> {
    let connected = timeout(PATIENCE, TcpStream::connect(peer)).await;
    let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let mut stream =
        connected.with_context(|| format!("cannot reach the peer at {peer}: does `giveway try --serve` run there?"))?;
    tune(&stream)?;
    stream.write_all(&hello(kind)).await.context("the peer is gone")?;
    Ok(stream)
}

async fn transfer(plan: Plan, kind: ConnectionKind, window: Window) -> Result<LoadResult> {
    let stream = connect(plan.peer, kind).await?;
    if plan.background {
        let socket = SockRef::from(&stream);
        let marked = match plan.peer {
            SocketAddr::V4(_) => socket.set_tos_v4(LOWER_EFFORT),
            SocketAddr::V6(_) => socket.set_tclass_v6(LOWER_EFFORT),
        };
        marked.context("cannot mark a transfer as background")?;
    }
    let (reader, writer) = stream.into_split();
    let socket = writer.as_ref().as_fd().try_clone_to_owned();
    let socket = socket.context("cannot hold the socket of a transfer")?;
    let read_info = || tcp_info(&socket).context("cannot read what a transfer has carried");
    let (questions, asked) = mpsc::unbounded_channel();
    let waits = Rc::new(RefCell::new(Waits::default()));
    let measure = async {
        sleep_until(window.start).await;
        let (before, begun) = (read_info()?, Instant::now());
        send_questions(&questions, &waits, window.end).await;
        let (after, seconds) = (read_info()?, begun.elapsed().as_secs_f64());
        Ok::<_, anyhow::Error>(LoadResult {
            up_bytes_per_s: (after.tcpi_bytes_acked - before.tcpi_bytes_acked) as f64 / seconds,
            down_bytes_per_s: (after.tcpi_bytes_received - before.tcpi_bytes_received) as f64 / seconds,
            sent: u64::from(after.tcpi_data_segs_out) - u64::from(before.tcpi_data_segs_out),
            retransmitted: u64::from(after.tcpi_total_retrans - before.tcpi_total_retrans),
            waits: Vec::new(),
        })
    };
    let mut carried = tokio::select! {
        carried = measure => carried?,
        failed = read_frames(reader, &waits) => bail!("the peer ended a transfer: {}", broken(failed)),
        failed = write_frames(writer, asked, kind == ConnectionKind::Up) => bail!("the peer ended a transfer: {}", broken(failed)),
    };
    carried.waits = waits.take().all(window.end);
    Ok(carried)
}

fn broken(outcome: io::Result<()>) -> String {
    outcome
        .err()
        .map_or_else(|| "nothing more came".to_owned(), |error| error.to_string())
}

/// Questions and how long their answers took.
#[derive(Debug, Default)]
struct Waits {
    asked: BTreeMap<u64, Instant>,
    took: Vec<Duration>,
}

impl Waits {
    /// What was not answered until the end took that long at least.
    fn all(mut self, end: Instant) -> Vec<Duration> {
        let unanswered = self.asked.into_values().map(|at| end.saturating_duration_since(at));
        self.took.extend(unanswered);
        self.took
    }
}

async fn send_questions(questions: &UnboundedSender<u64>, waits: &RefCell<Waits>, end: Instant) {
    let mut clock = interval_at(Instant::now(), BETWEEN_QUESTIONS);
    for number in 0.. {
        tokio::select! {
            _ = clock.tick() => {}
            () = sleep_until(end) => return,
        }
        waits.borrow_mut().asked.insert(number, Instant::now());
        // Where nobody takes it any more, the transfer has failed, and is told of there.
        let _ = questions.send(number);
    }
}

async fn read_frames(reader: OwnedReadHalf, waits: &RefCell<Waits>) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(64 * 1024, reader);
    loop {
        if let (Frame::Answer(number), _) = read_frame(&mut reader).await? {
            let mut waits = waits.borrow_mut();
            if let Some(at) = waits.asked.remove(&number) {
                waits.took.push(at.elapsed());
            }
        }
    }
}

async fn write_frames(mut writer: OwnedWriteHalf, mut asked: UnboundedReceiver<u64>, fills: bool) -> io::Result<()> {
    loop {
        let frame = match asked.try_recv() {
            Ok(number) => Frame::Question(number),
            Err(_) if fills => Frame::Filling,
            Err(_) => match asked.recv().await {
                Some(number) => Frame::Question(number),
                None => return Ok(()),
            },
        };
        write_frame(&mut writer, frame).await?;
    }
}
