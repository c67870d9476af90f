// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The broker's whole life: it hands questions to workers, one for each user, and gives up those who do not answer. It has
//! one thread and opens no file, so that it can fork, and never waits for anything but messages.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::MsgFlags;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{LookupAnswer, PathTarget, Question, Subject, pair, path, receive_message, send_message, sessions};
use crate::kernel::descriptors::close_others;
use crate::kernel::process::{CMDLINE_BYTES, cmdline};
use crate::kernel::program::fork_alone;
use crate::kernel::signals;

/// A question without an answer after so long has none.
const PATIENCE: Duration = Duration::from_secs(1);
/// So often a path is looked at, and what sessions there are, as long as it answers ...
const EVERY: Duration = Duration::from_secs(1);
/// ... and when it does not.
const EVERY_IF_SILENT: Duration = Duration::from_secs(5);
/// A worker without a question ends after so long.
const IDLE: Duration = Duration::from_secs(5);
/// Workers of one user but root that could not be killed yet. With so many, the user's questions have no answer. Root has
/// one for each path at most: users may keep a path of root's from answering, and must not keep the others from it.
const STUCK_OF_A_USER: usize = 2;
/// Workers of all users but root, whose own are not counted, in all.
const WORKERS: usize = 16;
/// Questions of a user that wait, besides paths: rules are bounded by their own number.
const WAITING: usize = 64;

pub fn serve() -> Result<()> {
    // A Ctrl-C or a service manager's SIGTERM reaches the whole group; the daemon says when it needs this no more.
    for ignored in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals::ignore(ignored as i32).context("cannot ignore signals")?;
    }
    std::env::set_current_dir("/").context("cannot leave the daemon's folder")?;
    let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().context("cannot hear the daemon");
    Broker {
        daemon: own(std::io::stdin().as_fd())?,
        death: own(std::io::stdout().as_fd())?,
        watched: BTreeMap::new(),
        users: BTreeMap::new(),
    }
    .serve()
}

struct Broker {
    daemon: OwnedFd,
    /// Hung up when the daemon has died, though a thread of it that waits in the kernel for good may keep the socket open.
    death: OwnedFd,
    watched: BTreeMap<(u32, Subject), PolledAnswer>,
    users: BTreeMap<u32, User>,
}

/// What is looked at again and again.
struct PolledAnswer {
    last_answer: Option<LookupAnswer>,
    next: Instant,
    is_asked: bool,
}

#[derive(Default)]
struct User {
    worker: Option<Worker>,
    /// Killed, and not yet dead, with what they were asked.
    stuck: Vec<(Pid, Subject)>,
    waiting: VecDeque<Question>,
}

struct Worker {
    pid: Pid,
    socket: OwnedFd,
    asked: Option<Question>,
    since: Instant,
}

impl Broker {
    fn serve(mut self) -> Result<()> {
        loop {
            self.reap();
            self.ask_due();
            self.give_up_late();
            self.hand_out();
            let Some(ready) = self.wait().context("cannot wait for questions")? else {
                return Ok(());
            };
            for uid in ready {
                self.hear_worker(uid);
            }
            loop {
                match receive_message::<Question>(&self.daemon, MsgFlags::MSG_DONTWAIT) {
                    Ok(Some(question)) => question.into_iter().for_each(|question| self.take(question)),
                    Err(Errno::EAGAIN | Errno::EINTR) => break,
                    // The daemon has ended. So do the workers.
                    Ok(None) | Err(_) => return Ok(()),
                }
            }
        }
    }

    fn take(&mut self, question: Question) {
        let Question { uid, about } = question;
        match about {
            Subject::Path(_) | Subject::Sessions(_) => {
                let new = PolledAnswer {
                    last_answer: None,
                    next: Instant::now(),
                    is_asked: false,
                };
                self.watched.insert((uid, about), new);
            }
            Subject::NoLonger(path) => {
                // A user may say so as often as they like.
                if let Some(user) = self.users.get_mut(&uid) {
                    user.waiting
                        .retain(|waiting| !matches!(&waiting.about, Subject::Path(of) if *of == path));
                }
                self.watched.remove(&(uid, Subject::Path(path)));
            }
            Subject::Arguments(..) => {
                let question = Question { uid, about };
                let waiting = &mut self.users.entry(uid).or_default().waiting;
                if waiting.len() < WAITING + self.watched.len() {
                    waiting.push_back(question);
                } else {
                    self.answer(question, None);
                }
            }
        }
    }

    /// Ends of workers.
    fn reap(&mut self) {
        while let Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) =
            waitpid(None, Some(WaitPidFlag::WNOHANG))
        {
            for user in self.users.values_mut() {
                user.stuck.retain(|(stuck, _)| *stuck != pid);
            }
        }
        self.users
            .retain(|_, user| user.worker.is_some() || !user.stuck.is_empty() || !user.waiting.is_empty());
    }

    fn ask_due(&mut self) {
        let now = Instant::now();
        let due = self
            .watched
            .iter_mut()
            .filter(|(_, watched)| !watched.is_asked && watched.next <= now);
        for ((uid, about), watched) in due {
            watched.is_asked = true;
            self.users.entry(*uid).or_default().waiting.push_back(Question {
                uid: *uid,
                about: about.clone(),
            });
        }
    }

    /// Kills who has not answered.
    fn give_up_late(&mut self) {
        let mut late = Vec::new();
        for user in self.users.values_mut() {
            let is_late = |worker: &mut Worker| worker.asked.is_some() && worker.since.elapsed() >= PATIENCE;
            if let Some(worker) = user.worker.take_if(is_late) {
                let _ = kill(worker.pid, Signal::SIGKILL);
                let asked = worker.asked.into_iter();
                user.stuck.extend(asked.clone().map(|asked| (worker.pid, asked.about)));
                late.extend(asked);
            }
            // Its socket's end ends it.
            user.worker
                .take_if(|worker| worker.asked.is_none() && user.waiting.is_empty() && worker.since.elapsed() >= IDLE);
        }
        late.into_iter().for_each(|question| self.answer(question, None));
    }

    fn hand_out(&mut self) {
        let of = |user: &User| usize::from(user.worker.is_some()) + user.stuck.len();
        let mut workers: usize = self
            .users
            .iter()
            .filter(|(uid, _)| **uid != 0)
            .map(|(_, user)| of(user))
            .sum();
        let mut refused = Vec::new();
        for (uid, user) in &mut self.users {
            if user.worker.as_ref().is_some_and(|worker| worker.asked.is_some()) {
                continue;
            }
            // Another worker would only be stuck there too.
            let is_stuck = |waiting: &Question| user.stuck.iter().any(|(_, at)| *at == waiting.about);
            let (without_answer, waiting): (VecDeque<_>, _) = user.waiting.drain(..).partition(is_stuck);
            refused.extend(without_answer);
            user.waiting = waiting;
            if user.waiting.is_empty() {
                continue;
            }
            if user.worker.is_none() {
                let is_room = *uid == 0 || (user.stuck.len() < STUCK_OF_A_USER && workers < WORKERS);
                user.worker = is_room.then(Worker::start).and_then(Result::ok);
                workers += usize::from(*uid != 0 && user.worker.is_some());
            }
            let Some(worker) = &mut user.worker else {
                refused.extend(user.waiting.drain(..));
                continue;
            };
            let Some(question) = user.waiting.pop_front() else {
                continue;
            };
            worker.since = Instant::now();
            // One that has ended is found out when it is waited for.
            let _ = send_message(&worker.socket, &question, MsgFlags::MSG_DONTWAIT);
            worker.asked = Some(question);
        }
        refused.into_iter().for_each(|question| self.answer(question, None));
    }

    /// Until something is to be done; the users whose workers say something. None: the daemon has died.
    fn wait(&self) -> Result<Option<Vec<u32>>, Errno> {
        let mut sources = vec![
            PollFd::new(self.death.as_fd(), PollFlags::empty()),
            PollFd::new(self.daemon.as_fd(), PollFlags::POLLIN),
        ];
        let mut uids = Vec::new();
        for (uid, user) in &self.users {
            if let Some(worker) = &user.worker {
                sources.push(PollFd::new(worker.socket.as_fd(), PollFlags::POLLIN));
                uids.push(*uid);
            }
        }
        let asked = self.users.values().filter_map(|user| user.worker.as_ref());
        let asked = asked
            .filter(|worker| worker.asked.is_some())
            .map(|worker| worker.since + PATIENCE);
        let due = self
            .watched
            .values()
            .filter(|watched| !watched.is_asked)
            .map(|watched| watched.next);
        // Workers that are stuck or idle are looked at now and then.
        let seldom = (!self.users.is_empty()).then(|| Instant::now() + EVERY);
        let next = asked.chain(due).chain(seldom).min();
        let timeout = next.map_or(PollTimeout::NONE, |at| {
            let left_ms = at.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
            PollTimeout::from(u16::try_from(left_ms).unwrap_or(u16::MAX))
        });
        match poll(&mut sources, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        let mut spoke = sources.iter().map(|source| source.any().unwrap_or_default());
        let has_died = spoke.next() == Some(true);
        let ready = uids.into_iter().zip(spoke.skip(1));
        let ready = ready.filter_map(|(uid, spoke)| spoke.then_some(uid)).collect();
        Ok((!has_died).then_some(ready))
    }

    fn hear_worker(&mut self, uid: u32) {
        let Some(worker) = self.users.get_mut(&uid).and_then(|user| user.worker.as_mut()) else {
            return;
        };
        let heard = receive_message::<LookupAnswer>(&worker.socket, MsgFlags::MSG_DONTWAIT);
        if let Err(Errno::EAGAIN | Errno::EINTR) = heard {
            return;
        }
        let question = worker.asked.take();
        worker.since = Instant::now();
        let answer = heard.ok().flatten();
        if answer.is_none()
            && let Some(user) = self.users.get_mut(&uid)
        {
            user.worker = None;
        }
        if let Some(question) = question {
            self.answer(question, answer.flatten());
        }
    }

    /// Tells the daemon what it does not know yet. None: there is no answer.
    fn answer(&mut self, question: Question, answer: Option<LookupAnswer>) {
        let answer = match question.about {
            Subject::Path(_) | Subject::Sessions(_) => self.news(question, answer),
            Subject::Arguments(id, image) => answer.or(Some(LookupAnswer::Arguments { id, image, text: None })),
            Subject::NoLonger(_) => None,
        };
        if let Some(answer) = answer {
            // The daemon reads at once; where it has ended, so does this process, soon.
            let _ = send_message(&self.daemon, &answer, MsgFlags::empty());
        }
    }

    fn news(&mut self, question: Question, answer: Option<LookupAnswer>) -> Option<LookupAnswer> {
        let Question { uid, about } = question;
        let watched = self.watched.get_mut(&(uid, about.clone()))?;
        let every = if answer.is_some() { EVERY } else { EVERY_IF_SILENT };
        (watched.is_asked, watched.next) = (false, Instant::now() + every);
        let is_file = |last_answer: &LookupAnswer| matches!(last_answer, LookupAnswer::Path { found, .. } if matches!(found, PathTarget::File(_)));
        let answer = match (answer, about) {
            (Some(answer), _) => answer,
            (None, Subject::Path(path)) if !watched.last_answer.as_ref().is_some_and(is_file) => LookupAnswer::Path {
                uid,
                path,
                found: PathTarget::Silent,
            },
            // While its folder does not answer, it stays what it was found to be.
            (None, _) => return None,
        };
        if watched.last_answer.as_ref() == Some(&answer) {
            return None;
        }
        watched.last_answer = Some(answer.clone());
        Some(answer)
    }
}

impl Worker {
    fn start() -> Result<Self> {
        let (socket, theirs) = pair()?;
        Ok(Self {
            // The broker has one thread.
            pid: fork_alone(|| work(&theirs)).context("cannot fork")?,
            socket,
            asked: None,
            since: Instant::now(),
        })
    }
}

/// A worker's whole life. It keeps one descriptor of the broker's.
fn work(socket: &OwnedFd) {
    close_others(socket.as_raw_fd());
    if set_pdeathsig(Signal::SIGKILL).is_err() {
        return;
    }
    while let Ok(Some(question)) = receive_message::<Question>(socket, MsgFlags::empty()) {
        let Some(Question { uid, about }) = question else {
            continue;
        };
        let answer = match about {
            Subject::Path(path) => LookupAnswer::Path {
                uid,
                found: path::resolve(&path),
                path,
            },
            Subject::Arguments(id, image) => LookupAnswer::Arguments {
                id,
                image,
                text: arguments(id.pid),
            },
            Subject::Sessions(folder) => LookupAnswer::Sessions(sessions::read_sessions(Path::new(&folder))),
            Subject::NoLonger(_) => continue,
        };
        if send_message(socket, &answer, MsgFlags::empty()).is_err() {
            return;
        }
    }
}

fn arguments(pid: u32) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{pid}/cmdline")).ok()?;
    file.take(CMDLINE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(cmdline(&bytes))
}
