// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The asking side: blocking, one request a connection. Nothing is waited for without a limit, but for the lines of a stream.

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::geteuid;
use serde::de::DeserializeOwned;
use socket2::{Domain, SockAddr, Socket, Type};

use giveway_engine::status::{PausedView, Status};

use super::{Answer, Request};
use crate::life::LONG_WORK;
use crate::place::Place;
use crate::presence::{self, Folder, Role};

/// For the first answer.
const PATIENCE: Duration = Duration::from_secs(2);
const BETWEEN_TRIES: Duration = Duration::from_millis(50);
/// A daemon that has said that it ends is done within this time; should it hang meanwhile, its watchdog ends it before.
const PATIENCE_WITH_END: Duration = LONG_WORK.saturating_mul(2).saturating_add(Duration::from_secs(10));

/// No answer in time.
#[derive(Debug, thiserror::Error)]
#[error(
    "giveway runs here but did not answer within {} s. Either it is still starting, and may do later what was asked, or \
     it is stopped, stuck or starved: then its watchdog ends it within seconds and undoes everything, and `giveway revert` (as \
     root) does so now", PATIENCE.as_secs()
)]
pub struct NoAnswer;

/// Others wait before it.
#[derive(Debug, thiserror::Error)]
#[error(
    "giveway runs here, but more clients wait for it than it takes in {} s, or it is stuck. Try again; root is answered at \
     once, on a socket of its own", PATIENCE.as_secs()
)]
pub struct Crowded;

/// It takes no more connections now.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Busy(String);

/// Asks again for some time where the daemon takes no more connections, as where many commands start at once.
///
/// # Errors
/// The last one of what is asked.
pub fn patiently<T>(ask: impl Fn() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    loop {
        match ask() {
            Err(error) if error.is::<Busy>() && began.elapsed() < PATIENCE => sleep(BETWEEN_TRIES),
            outcome => return outcome,
        }
    }
}

/// The daemon's answers to one request.
pub struct Answers(BufReader<UnixStream>);

/// Asks the daemon of this network namespace.
///
/// # Errors
/// When none runs here, or it refuses.
pub fn ask(place: &Place, request: Request) -> Result<Answers> {
    connect(place)?.map_or_else(|| Err(absent(place)), |stream| send(stream, request))
}

fn absent(place: &Place) -> anyhow::Error {
    let holder = place
        .holder()
        .daemon
        .filter(|daemon| daemon.is_there().unwrap_or_default());
    match holder {
        Some(daemon) => anyhow!(
            "giveway (pid {}) is starting or stopping and takes no requests; try again in a few seconds",
            daemon.pid
        ),
        None => elsewhere(place).unwrap_or_else(|| {
            anyhow!("no giveway daemon runs in this network namespace; start one with `giveway run` (as root)")
        }),
    }
}

/// A daemon with another /run, or whose state folder was removed.
fn elsewhere(place: &Place) -> Option<anyhow::Error> {
    let all = presence::all().ok()?;
    let daemon = all.into_iter().find(|one| one.role == Role::Daemon)?;
    let is_emptied = Folder::of(place.folder_path()).is_ok_and(|folder| folder == daemon.folder);
    let has_this_run = if is_emptied { Some(true) } else { daemon.has_this_run() };
    let shown = daemon.shown(place.netns_inum());
    Some(match (has_this_run, daemon.process) {
        (Some(true), Some(process)) => anyhow!(
            "giveway (pid {}) runs in this network namespace, but its state folder {} was removed, so it takes no requests; \
             `giveway revert` (as root) and a start bring it back",
            process.pid,
            place.folder_path().display()
        ),
        (Some(false), _) => anyhow!("{shown}, which is not this /run; ask it there"),
        _ => anyhow!("{shown}, which is not this /run or was removed; as root this command says which"),
    })
}

pub fn status(place: &Place) -> Result<Status> {
    ask(place, Request::Status)?.first()
}

/// Asks the daemon to undo its work and end, and waits for it. Returns its pid; None where none runs.
///
/// # Errors
/// [`NoAnswer`] where it does not answer, or does not come to its end.
pub fn stop_daemon(place: &Place) -> Result<Option<u32>> {
    let Some(stream) = connect(place)? else { return Ok(None) };
    // One that has just died leaves its socket behind for a moment.
    let Ok(mut answers) = send(stream, Request::Stop) else {
        return Ok(None);
    };
    let Some(first) = answers.line()? else { return Ok(None) };
    let pid = read(&first)?;
    answers.0.get_ref().set_read_timeout(Some(PATIENCE_WITH_END))?;
    // The daemon closes the connection when it ends, after its work is undone.
    while answers.line()?.is_some() {}
    Ok(Some(pid))
}

/// Nothing of giveway's is active for as long as this lives, and no longer than the daemon was asked for.
pub struct PauseSession(Answers);

/// Asks the daemon to take everything back for so long, and waits until it has.
///
/// # Errors
/// Where it refuses, or does not come to the end of it.
pub fn pause(place: &Place, for_s: u32) -> Result<PauseSession> {
    let mut answers = ask(place, Request::Pause { for_s })?;
    answers.0.get_ref().set_read_timeout(Some(PATIENCE_WITH_END))?;
    let _: PausedView = answers.first()?;
    Ok(PauseSession(answers))
}

impl PauseSession {
    /// Whether it lasted until now.
    pub fn holds(&self) -> bool {
        let mut byte = [0];
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        recv(self.0.0.get_ref().as_raw_fd(), &mut byte, flags) == Err(Errno::EAGAIN)
    }
}

impl Answers {
    /// The first line: the answer itself, or the reason for a refusal.
    pub fn first<T: DeserializeOwned>(&mut self) -> Result<T> {
        let first = self.line()?.context("the daemon ended without an answer")?;
        // What follows comes when it happens.
        self.0.get_ref().set_read_timeout(None)?;
        read(&first)
    }

    /// A second handle, by which another thread may end the stream.
    pub fn connection(&self) -> Result<UnixStream> {
        Ok(self.0.get_ref().try_clone()?)
    }

    /// The next line of a stream; None at its end.
    pub fn line(&mut self) -> Result<Option<String>> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(line)),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(NoAnswer.into()),
            Err(error) => Err(error).context("the connection to the daemon broke"),
        }
    }
}

fn read<T: DeserializeOwned>(line: &str) -> Result<T> {
    match serde_json::from_str(line).context("the daemon's answer is not understood: is it of another version?")? {
        Answer::Ok(answer) => Ok(answer),
        Answer::Error(reason) => Err(anyhow!(reason)),
        Answer::Busy(reason) => Err(Busy(reason).into()),
    }
}

/// Root by the socket that is root's alone, where there is one.
fn connect(place: &Place) -> Result<Option<UnixStream>> {
    if geteuid().is_root()
        && let Some(stream) = connect_to(&place.roots_socket())?
    {
        return Ok(Some(stream));
    }
    connect_to(&place.control_socket())
}

fn connect_to(path: &Path) -> Result<Option<UnixStream>> {
    // A daemon that accepts nobody keeps waiting who connects, too.
    let connect = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect(&SockAddr::unix(path)?)?;
        Ok(UnixStream::from(OwnedFd::from(socket)))
    };
    match connect() {
        Ok(stream) => Ok(Some(stream)),
        Err(error) => match std::io::Error::kind(&error) {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Ok(None),
            ErrorKind::WouldBlock if geteuid().is_root() => Err(NoAnswer.into()),
            ErrorKind::WouldBlock => Err(Crowded.into()),
            _ => Err(error).with_context(|| format!("cannot reach the daemon at {}", path.display())),
        },
    }
}

fn send(mut stream: UnixStream, request: Request) -> Result<Answers> {
    let mut line = serde_json::to_vec(&request)?;
    line.push(b'\n');
    match stream.write_all(&line) {
        // Refused before it was asked; the reason waits to be read.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.context("cannot ask the daemon")?,
    }
    Ok(Answers(BufReader::new(stream)))
}
