// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The answering side. Each connection is a task that reads one request, judges it, and hands it to the
//! daemon; it never touches the daemon's state itself.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{broadcast, mpsc, oneshot};

use super::{Answer, Background, Request, Status};
use crate::kernel::now;
use crate::place::Place;
use crate::run::realtime::Asker;
use giveway_engine::config::RealtimeLimits;
use giveway_engine::record::{Header, Record, What};

mod realtime;

/// A request that was found lawful, on its way to the daemon, with the way back.
pub enum Asked {
    Status(oneshot::Sender<Status>),
    Record(oneshot::Sender<(Header, broadcast::Receiver<Rc<str>>)>),
    /// The request is one of those about background flows.
    Lbe(Request, oneshot::Sender<Result<Background, String>>),
    /// The daemon ends; dropping the sender tells the client that it has.
    Stop(mpsc::Sender<()>),
}

/// A request is one short line, and comes at once.
const REQUEST_BYTES: u64 = 4096;
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);
/// So many clients other than root at a time; more are turned away, so that nobody keeps root waiting.
const CLIENTS: usize = 32;
/// A client that takes nothing for so long is left.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);

/// Whom the requests go to.
#[derive(Clone)]
pub struct Desks {
    /// The daemon's loop.
    pub daemon: mpsc::Sender<Asked>,
    /// The thread that grants real time.
    pub realtime: Asker,
    pub limits: Rc<RealtimeLimits>,
}

/// Opens the socket and serves it until the receiver of `desks.daemon` is gone.
pub fn serve(place: &Place, group: &str, desks: Desks) -> Result<()> {
    let path = place.control_socket();
    // The namespace's lock is held, so a socket that is already there belongs to a daemon that died.
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).with_context(|| format!("cannot open {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666))
        .context("cannot open the control socket to its clients")?;
    let readers = Group::from_name(group).ok().flatten().map(|g| g.gid);
    let places = Arc::new(tokio::sync::Semaphore::new(CLIENTS));
    tokio::task::spawn_local(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let Ok(peer) = stream.peer_cred() else { continue };
                    let place = places.clone().try_acquire_owned().ok();
                    if place.is_none() && peer.uid() != 0 {
                        continue;
                    }
                    let desks = desks.clone();
                    tokio::task::spawn_local(async move {
                        if let Err(error) = answer(stream, peer, readers, desks).await {
                            tracing::debug!("a client of the control socket: {error:#}");
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!("cannot accept on the control socket: {error}; trying again in a second");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    });
    Ok(())
}

async fn answer(mut stream: UnixStream, peer: UCred, readers: Option<Gid>, desks: Desks) -> Result<()> {
    let mut line = String::new();
    let (reader, _) = stream.split();
    let mut reader = BufReader::new(reader.take(REQUEST_BYTES));
    tokio::time::timeout(REQUEST_PATIENCE, reader.read_line(&mut line))
        .await
        .context("asked nothing")??;
    let request: Request = match serde_json::from_str(&line) {
        Ok(request) => request,
        Err(error) => return refuse(&mut stream, &format!("the request is not understood: {error}")).await,
    };
    // Whose groups these are may have to be asked of a server.
    let (judged, gids) = {
        let request = request.clone();
        tokio::task::spawn_blocking(move || (judge(&request, &peer, readers), groups_of(&peer))).await?
    };
    if let Err(reason) = judged {
        return refuse(&mut stream, &reason).await;
    }
    match request {
        Request::Status => {
            let (back, status) = oneshot::channel();
            desks.ask(Asked::Status(back)).await?;
            let mut status = status.await?;
            status.realtime = desks.realtime.view().await;
            write_line(&mut stream, &Answer::Ok(status)).await
        }
        Request::Record => {
            let (back, records) = oneshot::channel();
            desks.ask(Asked::Record(back)).await?;
            let (header, records) = records.await?;
            write_line(&mut stream, &Answer::Ok(header)).await?;
            stream_records(&mut stream, records).await
        }
        Request::LbeAdd { .. } | Request::LbeRemove { .. } | Request::LbeList => {
            let (back, flows) = oneshot::channel();
            desks.ask(Asked::Lbe(request, back)).await?;
            respond(&mut stream, flows.await?).await
        }
        Request::RealtimeAdd { .. } | Request::RealtimeRemove { .. } | Request::Launch { .. } => {
            let outcome = realtime::change(&desks, request, &peer, gids).await;
            respond(&mut stream, outcome).await
        }
        Request::RealtimeList => {
            let view = desks.realtime.view().await;
            respond(
                &mut stream,
                view.ok_or_else(|| "nothing looks after real time here".to_owned()),
            )
            .await
        }
        Request::Stop => {
            let (ended, mut end) = mpsc::channel(1);
            write_line(&mut stream, &Answer::Ok(std::process::id())).await?;
            desks.ask(Asked::Stop(ended)).await?;
            end.recv().await;
            Ok(())
        }
    }
}

impl Desks {
    async fn ask(&self, asked: Asked) -> Result<()> {
        self.daemon.send(asked).await.ok().context("the daemon is ending")
    }
}

async fn respond(stream: &mut UnixStream, outcome: Result<impl Serialize, String>) -> Result<()> {
    match outcome {
        Ok(answer) => write_line(stream, &Answer::Ok(answer)).await,
        Err(reason) => refuse(stream, &reason).await,
    }
}

async fn stream_records(stream: &mut UnixStream, mut records: broadcast::Receiver<Rc<str>>) -> Result<()> {
    loop {
        match records.recv().await {
            Ok(line) => write(stream, line.as_bytes()).await?,
            // A client that reads too slowly loses lines, and is told how many: the daemon waits for nobody.
            Err(broadcast::error::RecvError::Lagged(lines)) => {
                let what = What::Lost { lines };
                write_line(stream, &Record::at(now(), what)).await?;
            }
            Err(broadcast::error::RecvError::Closed) => return Ok(()),
        }
    }
}

/// The group reads, and names background flows, which can only lower a flow. What a user may have of real time, the
/// grants say. Root changes the rest.
fn judge(request: &Request, peer: &UCred, readers: Option<Gid>) -> Result<(), String> {
    let reads = || readers.is_some_and(|gid| groups_of(peer).contains(&gid.as_raw()));
    match request {
        _ if peer.uid() == 0 => Ok(()),
        Request::Stop => Err("only root may end giveway; ask again with sudo".to_owned()),
        Request::RealtimeAdd { .. } | Request::RealtimeRemove { .. } | Request::Launch { .. } => Ok(()),
        _ if reads() => Ok(()),
        _ => Err("only root and the members of the group in [control] (by default `giveway`) may ask this".to_owned()),
    }
}

/// The groups of whoever asks: its present one, and those of its user.
fn groups_of(peer: &UCred) -> Vec<u32> {
    let primary = Gid::from_raw(peer.gid());
    let listed = || {
        let user = User::from_uid(Uid::from_raw(peer.uid())).ok()??;
        getgrouplist(&CString::new(user.name).ok()?, primary).ok()
    };
    listed()
        .unwrap_or_else(|| vec![primary])
        .into_iter()
        .map(Gid::as_raw)
        .collect()
}

async fn refuse(stream: &mut UnixStream, reason: &str) -> Result<()> {
    write_line(stream, &Answer::<()>::Error(reason.to_owned())).await
}

async fn write_line(stream: &mut UnixStream, answer: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    write(stream, &line).await
}

async fn write(stream: &mut UnixStream, bytes: &[u8]) -> Result<()> {
    tokio::time::timeout(WRITE_PATIENCE, stream.write_all(bytes))
        .await
        .context("the client reads nothing")?
        .context("the client went away")
}
