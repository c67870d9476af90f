// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The answering side. Each connection is a task that reads one request, authorises it, and passes it to its handler;
//! it never touches the daemon's state itself.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::socket::{Backlog, listen};
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{broadcast, mpsc, oneshot};

use super::{Answer, ByHandNow, ChoiceOutcome, FocusNow, LONGEST_PAUSE_FOR_S, ReloadSummary, Request};
use crate::kernel::now;
use crate::place::Place;
use crate::run::priority::Client;
use crate::words::json_line;
use giveway_engine::config::{Config, PriorityLimitsSection, PrioritySection};
use giveway_engine::model::{Class, Rates};
use giveway_engine::priority::PriorityStatus;
use giveway_engine::queue::links::LinkRates;
use giveway_engine::rate::bytes_per_s;
use giveway_engine::record::{Header, Record, What};
use giveway_engine::status::{PausedView, Status};

mod priority;
mod shares;

use shares::{AFTER_MUCH, BETWEEN_REQUESTS, Shares, UserSlot};

/// An authorised request for the daemon's loop, with the channel for its answer.
pub enum Call {
    /// Without what the real-time thread knows.
    Status(oneshot::Sender<Status>),
    Record(oneshot::Sender<(Header, broadcast::Receiver<Rc<str>>)>),
    /// One of the three requests about what is set by hand.
    ByHand {
        request: Request,
        asker: Asker,
        answer: oneshot::Sender<Result<ByHandNow, String>>,
    },
    /// This user chooses this class for this process, and that all that it starts send no more than this together.
    Choose {
        pid: u32,
        uid: u32,
        class: Option<Class>,
        rates: Rates,
        require: bool,
        answer: oneshot::Sender<Result<ChoiceOutcome, String>>,
    },
    /// One of the three requests about what is active.
    Focus {
        request: Request,
        asker: Asker,
        answer: oneshot::Sender<Result<FocusNow, String>>,
    },
    /// Nothing is active for so long, or until nobody holds the other end of `held`, where there is one.
    Pause {
        asker: Asker,
        time: Option<Duration>,
        held: Option<oneshot::Receiver<Infallible>>,
        answer: oneshot::Sender<Result<Pausing, String>>,
    },
    /// A pause ends. Whether there was one.
    Resume(oneshot::Sender<bool>),
    /// Links have other rates, or those that are configured.
    LinkRate {
        name: String,
        rates: Option<LinkRates>,
        answer: oneshot::Sender<Result<bool, String>>,
    },
    /// The rules for classes are read again.
    Reload(oneshot::Sender<Result<ReloadSummary, String>>),
    Config(oneshot::Sender<Config>),
    /// The daemon ends; dropping the sender ends the connection.
    Stop(mpsc::Sender<()>),
}

/// A pause that has begun.
pub struct Pausing {
    pub view: PausedView,
    /// When there is no real time any more.
    pub set_back: oneshot::Receiver<()>,
}

/// Who asks, as the kernel says.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// None where it is not visible in this pid namespace.
    pub pid: Option<u32>,
    pub uid: u32,
    pub is_reader: bool,
}

impl Asker {
    fn of(peer: &UCred, is_reader: bool) -> Self {
        Self {
            pid: pid_of(peer),
            uid: peer.uid(),
            is_reader,
        }
    }
}

/// A request is one short line, and comes at once.
const REQUEST_BYTES: u64 = 4096;
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);
/// A pause is for a trial, whose intervals are short.
const LONGEST_PAUSE_S: u32 = 300;
/// A client that reads nothing for so long is disconnected.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);
/// A connection that is turned away costs its user nothing, and to wake up costs more than to turn it away: so there is a
/// pause after one, and those that wait then are turned away together. So many may wait: few enough that it is soon
/// everybody's turn.
const TURNED_AWAY_AT_ONCE: usize = 64;
const PAUSE: Duration = Duration::from_millis(20);
const TOGETHER: Duration = Duration::from_millis(1);
const WAITING: i32 = 128;

/// What handles the requests.
#[derive(Clone)]
pub struct Handlers {
    /// The daemon's loop.
    pub daemon: mpsc::Sender<Call>,
    /// The real-time thread.
    pub realtime: Client,
    pub limits: Rc<PriorityLimitsSection>,
    pub users_may_choose: Rc<[Class]>,
}

/// Opens the sockets, everybody's and root's own, and serves them until the receiver of `handlers.daemon` is gone.
pub fn serve(place: &Place, group: &str, handlers: Handlers) -> Result<()> {
    let readers = Group::from_name(group).ok().flatten().map(|g| g.gid);
    for (path, mode) in [(place.control_socket(), 0o666), (place.roots_socket(), 0o600)] {
        let listener = open(&path, mode)?;
        tokio::task::spawn_local(accept(listener, readers, handlers.clone()));
    }
    Ok(())
}

fn open(path: &Path, mode: u32) -> Result<UnixListener> {
    // The namespace's lock is held, so a socket that is already there belongs to a daemon that died.
    let _ = fs::remove_file(path);
    let listener = UnixListener::bind(path).with_context(|| format!("cannot open {}", path.display()))?;
    listen(&listener, Backlog::new(WAITING)?).context("cannot shorten the row of waiting clients")?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("cannot open {} to its clients", path.display()))?;
    Ok(listener)
}

async fn accept(listener: UnixListener, readers: Option<Gid>, handlers: Handlers) {
    let shares = Shares::default();
    let mut turned_away = 0;
    let mut went_on = Instant::now();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(peer) = stream.peer_cred() else { continue };
                let share = match shares.take(peer.uid()) {
                    Ok(share) => share,
                    Err(reason) => {
                        turn_away(&stream, reason);
                        turned_away += 1;
                        if turned_away == TURNED_AWAY_AT_ONCE || went_on.elapsed() > TOGETHER {
                            tokio::time::sleep(PAUSE).await;
                            (turned_away, went_on) = (0, Instant::now());
                        }
                        continue;
                    }
                };
                let handlers = handlers.clone();
                tokio::task::spawn_local(async move {
                    if let Err(error) = answer(stream, peer, readers, handlers, share).await {
                        tracing::debug!("a client of the control socket: {error:#}");
                    }
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept on the control socket: {error}; trying again in a second");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// How long the next request of its user waits after this one.
fn time_of(request: &Request) -> Duration {
    match request {
        Request::Launch { .. } => BETWEEN_REQUESTS,
        // A choice, too: whom it renices is looked for among all tasks. So are those for whom something is set by hand.
        _ => AFTER_MUCH,
    }
}

/// Says why, if that can be said at once.
fn turn_away(stream: &UnixStream, reason: String) {
    let line = json_line(&Answer::<()>::Busy(reason)).unwrap_or_default();
    let _ = stream.try_write(line.as_bytes());
}

async fn answer(
    mut stream: UnixStream,
    peer: UCred,
    readers: Option<Gid>,
    handlers: Handlers,
    share: UserSlot,
) -> Result<()> {
    let mut line = String::new();
    let (reader, _) = stream.split();
    let mut reader = BufReader::new(reader.take(REQUEST_BYTES));
    tokio::time::timeout(REQUEST_PATIENCE, reader.read_line(&mut line))
        .await
        .context("asked nothing")??;
    let request = serde_json::from_str(&line);
    share.turn(request.as_ref().map_or(BETWEEN_REQUESTS, time_of)).await;
    let request: Request = match request {
        Ok(request) => request,
        Err(error) => return refuse(&mut stream, &format!("the request is not understood: {error}")).await,
    };
    // They may have to be looked up on a server. Root's are of no account, and must not be waited for.
    let gids = match peer.uid() {
        0 => Vec::new(),
        _ => tokio::task::spawn_blocking(move || groups_of(&peer)).await?,
    };
    let is_reader = peer.uid() == 0 || readers.is_some_and(|gid| gids.contains(&gid.as_raw()));
    if let Err(reason) = authorise(&request, peer.uid(), is_reader, &handlers.users_may_choose) {
        return refuse(&mut stream, &reason).await;
    }
    answer_request(stream, peer, gids, is_reader, handlers, request).await
}

// Long: an arm a request, each a few lines.
async fn answer_request(
    mut stream: UnixStream,
    peer: UCred,
    gids: Vec<u32>,
    is_reader: bool,
    handlers: Handlers,
    request: Request,
) -> Result<()> {
    match request {
        Request::Status => {
            let mut status = handlers.call(Call::Status).await?;
            status.add_priority(handlers.realtime.status().await);
            write_line(&mut stream, &Answer::Ok(status)).await
        }
        Request::Config => write_line(&mut stream, &Answer::Ok(handlers.call(Call::Config).await?)).await,
        Request::Record => {
            let (header, records) = handlers.call(Call::Record).await?;
            write_line(&mut stream, &Answer::Ok(header)).await?;
            stream_records(&mut stream, records).await
        }
        Request::Set { .. } | Request::Clear { .. } | Request::ByHand => {
            let asker = Asker::of(&peer, is_reader);
            let call = |answer| Call::ByHand { request, asker, answer };
            respond(&mut stream, handlers.call(call).await?).await
        }
        Request::PriorityAdd { rule } => {
            let added = priority::add(&handlers, *rule, peer.uid(), gids).await;
            respond(&mut stream, added).await
        }
        Request::PriorityRemove { name } => {
            let removed = priority::remove(&handlers, name, peer.uid(), &gids).await;
            respond(&mut stream, removed).await
        }
        Request::Launch { policy, priority, cpus } => {
            let rule = PrioritySection {
                policy,
                priority,
                cpus,
                ..PrioritySection::default()
            };
            let terms = priority::launch(&handlers, rule, &peer, gids).await;
            respond(&mut stream, terms).await
        }
        Request::PriorityList => {
            let view = handlers.priority(peer.uid(), &gids, is_reader).await;
            respond(&mut stream, view).await
        }
        Request::Choose {
            class,
            upload_limit_mbit,
            download_limit_mbit,
            require,
        } => {
            let chosen = match (rate_of(upload_limit_mbit), rate_of(download_limit_mbit)) {
                (Ok(up), Ok(down)) => handlers.choose(&peer, class, Rates { up, down }, require).await?,
                (Err(reason), _) | (_, Err(reason)) => Err(reason),
            };
            respond(&mut stream, chosen).await
        }
        Request::Focus { .. } | Request::FocusClear | Request::FocusShow => {
            let asker = Asker::of(&peer, is_reader);
            let call = |answer| Call::Focus { request, asker, answer };
            respond(&mut stream, handlers.call(call).await?).await
        }
        Request::Reload => respond(&mut stream, handlers.call(Call::Reload).await?).await,
        Request::Pause { for_s } => pause(stream, &peer, handlers, for_s).await,
        Request::PauseFor { for_s } => respond(&mut stream, pause_for(&peer, &handlers, for_s).await?).await,
        Request::Resume => {
            let was_paused = handlers.call(Call::Resume).await?;
            write_line(&mut stream, &Answer::Ok(was_paused)).await
        }
        Request::LinkRate { name, rates } => {
            let call = |answer| Call::LinkRate { name, rates, answer };
            respond(&mut stream, handlers.call(call).await?).await
        }
        Request::Stop => {
            let (ended, mut end) = mpsc::channel(1);
            write_line(&mut stream, &Answer::Ok(std::process::id())).await?;
            handlers.send(Call::Stop(ended)).await?;
            end.recv().await;
            Ok(())
        }
    }
}

impl Handlers {
    async fn send(&self, call: Call) -> Result<()> {
        self.daemon.send(call).await.ok().context("the daemon is ending")
    }

    /// Polls the call to the loop and waits for the answer.
    async fn call<T>(&self, call: impl FnOnce(oneshot::Sender<T>) -> Call) -> Result<T> {
        let (sender, answer) = oneshot::channel();
        self.send(call(sender)).await?;
        Ok(answer.await?)
    }

    async fn choose(
        &self,
        peer: &UCred,
        class: Option<Class>,
        rates: Rates,
        require: bool,
    ) -> Result<Result<ChoiceOutcome, String>> {
        let Some(pid) = pid_of(peer) else {
            return Ok(Err("the asking process is not visible in this pid namespace".to_owned()));
        };
        let uid = peer.uid();
        self.call(|answer| Call::Choose {
            pid,
            uid,
            class,
            rates,
            require,
            answer,
        })
        .await
    }

    /// All of it for a reader; their own for others who may have real time.
    async fn priority(&self, uid: u32, gids: &[u32], is_reader: bool) -> Result<PriorityStatus, String> {
        if !is_reader {
            self.realtime.may_ask(uid, gids)?;
        }
        let view = self.realtime.status().await;
        let view = view.ok_or("the real-time thread is not running")?;
        Ok(if is_reader { view } else { view.of_user(uid) })
    }
}

/// The pause lasts as long as the connection, whatever ends that, the asking process's death included.
async fn pause(mut stream: UnixStream, peer: &UCred, handlers: Handlers, for_s: u32) -> Result<()> {
    if !(1..=LONGEST_PAUSE_S).contains(&for_s) {
        let reason = format!("a pause is for 1 to {LONGEST_PAUSE_S} s, not {for_s}");
        return refuse(&mut stream, &reason).await;
    }
    let asker = Asker::of(peer, true);
    let time = Duration::from_secs(for_s.into());
    let (mut holds, held) = oneshot::channel();
    let call = |answer| Call::Pause {
        asker,
        time: Some(time),
        held: Some(held),
        answer,
    };
    let view = match handlers.call(call).await? {
        Ok(Pausing { view, set_back }) => {
            // Where the real-time thread has ended, nothing has real time either.
            let _ = set_back.await;
            view
        }
        Err(reason) => return refuse(&mut stream, &reason).await,
    };
    write_line(&mut stream, &Answer::Ok(view)).await?;
    tokio::select! {
        // Whatever is sent ends it, too.
        _ = stream.read_u8() => {}
        () = holds.closed() => {}
    }
    Ok(())
}

/// A pause that outlives the connection.
async fn pause_for(peer: &UCred, handlers: &Handlers, for_s: Option<u64>) -> Result<Result<PausedView, String>> {
    if for_s.is_some_and(|for_s| !(1..=LONGEST_PAUSE_FOR_S).contains(&for_s)) {
        return Ok(Err("a pause is for 1s to 30d".to_owned()));
    }
    let asker = Asker::of(peer, true);
    let call = |answer| Call::Pause {
        asker,
        time: for_s.map(Duration::from_secs),
        held: None,
        answer,
    };
    Ok(match handlers.call(call).await? {
        Ok(Pausing { view, set_back }) => {
            let _ = set_back.await;
            Ok(view)
        }
        Err(reason) => Err(reason),
    })
}

fn pid_of(peer: &UCred) -> Option<u32> {
    peer.pid().and_then(|pid| u32::try_from(pid).ok())
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
            // A client that reads too slowly loses lines, and gets their number: the daemon does not wait for it.
            Err(broadcast::error::RecvError::Lagged(lines)) => {
                let what = What::Lost { lines };
                write_line(stream, &Record::at(now(), what)).await?;
            }
            Err(broadcast::error::RecvError::Closed) => return Ok(()),
        }
    }
}

/// The group reads. The grants decide about real-time priority, the configuration about classes, the loop about what is
/// active and what is set by hand. Root changes the rest.
fn authorise(request: &Request, uid: u32, is_reader: bool, may_choose: &[Class]) -> Result<(), String> {
    match request {
        _ if uid == 0 => Ok(()),
        Request::Stop => Err("only root may end giveway; ask again with sudo".to_owned()),
        Request::Pause { .. } | Request::PauseFor { .. } | Request::Resume => {
            Err("only root may pause giveway; ask again with sudo".to_owned())
        }
        Request::LinkRate { .. } => Err("only root may set a link's rate; ask again with sudo".to_owned()),
        Request::Reload => Err("only root may change rules; ask again with sudo".to_owned()),
        Request::Choose { class: Some(class), .. } | Request::Set { class: Some(class), .. } if !may_choose.contains(class) => Err(format!(
            "only root may choose the class {}; users may choose: {} (users_may_choose in [classes])",
            class.name(),
            names_of(may_choose)
        )),
        Request::Choose { .. }
        | Request::Set { .. }
        | Request::Clear { .. }
        | Request::ByHand
        | Request::Focus { .. }
        | Request::FocusClear
        | Request::FocusShow
        | Request::PriorityAdd { .. }
        | Request::PriorityRemove { .. }
        | Request::PriorityList
        | Request::Launch { .. } => Ok(()),
        _ if is_reader => Ok(()),
        _ => Err("only root and the members of the group in [control] (by default `giveway`) may ask this: try it with `sudo`, or \
                   join the group (`usermod -aG giveway USER`, and log in again)"
            .to_owned()),
    }
}

fn rate_of(mbit: Option<f64>) -> Result<Option<u64>, String> {
    mbit.map(bytes_per_s).transpose()
}

fn names_of(classes: &[Class]) -> String {
    let names: Vec<&str> = classes.iter().map(|class| class.name()).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

/// The groups of the process that asks: its present one, and those of its user.
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
    write(stream, json_line(answer)?.as_bytes()).await
}

async fn write(stream: &mut UnixStream, bytes: &[u8]) -> Result<()> {
    tokio::time::timeout(WRITE_PATIENCE, stream.write_all(bytes))
        .await
        .context("the client reads nothing")?
        .context("the client went away")
}
