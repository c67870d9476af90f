// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks up what a user may keep from ever answering: the executable that a rule names (its path may lead through a
//! directory of theirs, whose lock they hold, or a file system that they serve), the arguments of a process that was
//! started before the rule (they lie in its own memory), and the sessions at the seats (everybody may list their folder). A thread that waits for that cannot be killed, and would keep
//! the whole daemon from dying. So it is done by processes apart, which share nothing with it:
//!
//!   giveway-rt  ── questions ──▶  broker (`giveway look-up`)  ── a question at a time ──▶  one worker for each user
//!
//! The broker touches no such thing itself. It kills a worker that does not answer in time; one that cannot be killed
//! counts against its user until it ends. The daemon's end never waits for it, and here nothing does either.

use giveway_engine::model::ProcessId;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{IoSlice, PipeReader};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::kernel::process::Target;
use crate::kernel::program::{self, Child};

mod broker;
mod path;
mod sessions;

pub use broker::serve;
pub use sessions::Sessions;

/// Of a question or an answer: a path of the greatest length, each byte of it written as six.
const MESSAGE_BYTES: usize = 32 * 1024;
/// PATH_MAX: the kernel finds no file by a longer one.
const PATH_BYTES: usize = 4096;

/// On behalf of a user, whose fault it is if there is no answer.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
struct Question {
    uid: u32,
    about: Subject,
}

#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
enum Subject {
    /// To be looked at again and again, and told whenever it is something else.
    Path(String),
    NoLonger(String),
    /// The sessions at the seats, by systemd's folder; the same.
    Sessions(String),
    /// What is known by this image of it.
    Arguments(ProcessId, u64),
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum LookupAnswer {
    Path {
        uid: u32,
        path: String,
        found: PathTarget,
    },
    /// None where they could not be read within a moment.
    Arguments {
        id: ProcessId,
        image: u64,
        text: Option<String>,
    },
    Sessions(Sessions),
}

/// What a path leads to, in the broker's mount namespace, which is the daemon's.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum PathTarget {
    File(Target),
    /// To no file that can be executed.
    Missing,
    /// It did not say within a moment.
    Silent,
}

/// The daemon's end.
#[derive(Debug)]
pub struct LookUps {
    socket: OwnedFd,
    broker: Child,
    asked: BTreeSet<(u32, String)>,
    follows_sessions: bool,
}

impl LookUps {
    /// Starts a broker, which ends when this is dropped, or `death` is hung up. Not for a thread above others: that
    /// takes a while.
    pub fn start(death: Option<&PipeReader>) -> Result<Self> {
        let (socket, theirs) = pair()?;
        let nothing = File::options().read(true).write(true).open("/dev/null")?;
        let files = [
            theirs.as_fd(),
            death.map_or(nothing.as_fd(), |death| death.as_fd()),
            nothing.as_fd(),
        ];
        let broker =
            program::again(c"look-up", None, files).context("cannot start the process that looks up executables")?;
        Ok(Self {
            socket,
            broker,
            asked: BTreeSet::new(),
            follows_sessions: false,
        })
    }

    /// Readable when answers wait, or the broker has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// From now on these are looked at, for these users, and no others. What finds no room is asked in the next call.
    pub fn want(&mut self, paths: &BTreeSet<(u32, String)>) {
        let new = paths
            .difference(&self.asked)
            .filter(|(_, path)| path.len() <= PATH_BYTES);
        let gone = self.asked.difference(paths).map(|key| (key, false));
        let changes: Vec<_> = new
            .map(|key| (key, true))
            .chain(gone)
            .map(|(key, is_new)| (key.clone(), is_new))
            .collect();
        for ((uid, path), is_new) in changes {
            let about = if is_new { Subject::Path } else { Subject::NoLonger };
            let question = Question {
                uid,
                about: about(path.clone()),
            };
            if !self.send_question(&question) {
                return;
            }
            if is_new {
                self.asked.insert((uid, path));
            } else {
                self.asked.remove(&(uid, path));
            }
        }
    }

    /// From now on the sessions of this folder of systemd's are looked at.
    pub fn follow_sessions(&mut self, folder: &str) {
        let question = || Question {
            uid: 0,
            about: Subject::Sessions(folder.to_owned()),
        };
        self.follows_sessions = self.follows_sessions || self.send_question(&question());
    }

    /// What a process of this user was started with. False where there is no room for the question.
    pub fn arguments(&self, uid: u32, id: ProcessId, image: u64) -> bool {
        self.send_question(&Question {
            uid,
            about: Subject::Arguments(id, image),
        })
    }

    fn send_question(&self, question: &Question) -> bool {
        send_message(&self.socket, question, MsgFlags::MSG_DONTWAIT).is_ok()
    }

    /// Those that wait.
    ///
    /// # Errors
    /// Where the broker has ended: start another one.
    pub fn answers(&mut self) -> Result<Vec<LookupAnswer>> {
        let mut answers = Vec::new();
        loop {
            match receive_message(&self.socket, MsgFlags::MSG_DONTWAIT) {
                Ok(Some(answer)) => answers.extend(answer),
                Err(Errno::EAGAIN | Errno::EINTR) => return Ok(answers),
                Ok(None) | Err(_) => {
                    // It is killed already, or ends by itself.
                    self.broker.has_ended();
                    bail!("the process that looks up executables has ended");
                }
            }
        }
    }
}

/// Keeps the borders between messages.
fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).context("cannot make a pair of sockets")
}

fn send_message(socket: &OwnedFd, message: &impl Serialize, flags: MsgFlags) -> Result<(), Errno> {
    let bytes = serde_json::to_vec(message).map_err(|_| Errno::EINVAL)?;
    send(
        socket.as_raw_fd(),
        &IoSlice::new(&bytes),
        flags | MsgFlags::MSG_NOSIGNAL,
    )
    .map(drop)
}

/// None at the end; an empty one for what cannot be read.
fn receive_message<T: DeserializeOwned>(socket: &OwnedFd, flags: MsgFlags) -> Result<Option<Option<T>>, Errno> {
    let mut bytes = [0; MESSAGE_BYTES];
    let read = recv(socket.as_raw_fd(), &mut bytes, flags)?;
    Ok((read > 0).then(|| serde_json::from_slice(&bytes[..read]).ok()))
}
