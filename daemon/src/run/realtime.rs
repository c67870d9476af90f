// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real time is given and taken back by a thread of its own, whose priority is above all that it gives: it must run
//! when what it has to demote does. In come the kernel's events, the clock and requests of the main loop; it tells the
//! engine's [`Realtime`], and carries out what follows. It decides nothing, and never waits for anything ordinary: it
//! writes no log, and answers nobody who must read first.
//!
//! With no rule and nothing granted it sleeps until a request comes.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use giveway_engine::realtime::{OWN_PRIORITY, Policy, Realtime, RealtimeView, Rule, Schedule};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::gettid;
use tokio::sync::oneshot;

use crate::actuate::schedule::attributes::Attributes;
use crate::actuate::schedule::{self, ScheduleActuator};
use crate::kernel::process::CMDLINE_BYTES;
use crate::kernel::process::wary::WaryReader;
use crate::kernel::task_watch::TaskWatch;
use crate::place::Place;

mod canary;
mod keeper;

use canary::Canaries;
use keeper::Keeper;

/// A bug here must not freeze the machine: computing for so long without a pause ends the daemon, and the guardian
/// sets everything back.
const OWN_RTTIME: Duration = Duration::from_secs(1);

/// What the main loop asks for.
enum Request {
    View(oneshot::Sender<RealtimeView>),
    Add(Box<Rule>, u32, Vec<u32>, Answer),
    Remove(String, u32, Answer),
    Launch(u32, Schedule, u32, Vec<u32>, Answer),
    Stop,
}

type Answer = oneshot::Sender<Result<(), String>>;

/// The thread. Dropping it ends the thread, without waiting for what it sets back.
pub struct RealtimeThread {
    asker: Asker,
    /// For the guardian.
    pub tid: u32,
    thread: Option<JoinHandle<Result<usize>>>,
}

/// Asks the thread.
#[derive(Clone)]
pub struct Asker {
    requests: mpsc::Sender<Request>,
    /// A byte for each request.
    bell: Arc<PipeWriter>,
}

impl RealtimeThread {
    /// Starts it. Where this machine cannot grant anything, it runs all the same and says why in the view.
    pub fn start(place: &Place, realtime: Realtime, canary: Duration) -> Result<Self> {
        let (reader, bell) = pipe().context("cannot make a pipe")?;
        let (requests, asked) = mpsc::channel();
        let place = place.clone();
        let (ready, started) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("giveway-rt".to_owned())
            .spawn(move || {
                let inbox = Inbox { asked, bell: reader };
                guarded(&place, || {
                    match Tools::open(&place) {
                        Ok(tools) => {
                            let keeper = Keeper::start(realtime, tools, inbox, canary);
                            // Nobody waits any more if the start failed; here and below.
                            let _ = ready.send(gettid().as_raw().cast_unsigned());
                            keeper.keep()
                        }
                        Err(error) => {
                            let _ = ready.send(gettid().as_raw().cast_unsigned());
                            refuse_all(&realtime, &inbox, &format!("nothing gets real time: {error:#}"))
                        }
                    }
                })
            })
            .context("cannot start the thread for real time")?;
        let mut this = Self {
            tid: 0,
            asker: Asker {
                requests,
                bell: Arc::new(bell),
            },
            thread: Some(thread),
        };
        match started.recv() {
            Ok(tid) => {
                this.tid = tid;
                Ok(this)
            }
            Err(_) => {
                this.stop()?;
                bail!("the thread for real time ended at once")
            }
        }
    }

    pub fn asker(&self) -> Asker {
        self.asker.clone()
    }

    /// Whether it has ended though nobody asked it to: `stop` says why.
    pub fn has_failed(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Sets everything back; says how many processes had something.
    pub fn stop(mut self) -> Result<usize> {
        self.asker.ask(Request::Stop);
        let Some(thread) = self.thread.take() else { return Ok(0) };
        thread
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the thread for real time has failed")))
    }
}

impl Drop for RealtimeThread {
    fn drop(&mut self) {
        self.asker.ask(Request::Stop);
    }
}

impl Asker {
    /// None where the thread has ended.
    pub async fn view(&self) -> Option<RealtimeView> {
        let (back, answer) = oneshot::channel();
        self.ask(Request::View(back));
        answer.await.ok()
    }

    /// A rule more, by this user.
    ///
    /// # Errors
    /// Why not.
    pub async fn add(&self, rule: Rule, uid: u32, gids: Vec<u32>) -> Result<(), String> {
        self.answer(|back| Request::Add(Box::new(rule), uid, gids, back)).await
    }

    /// And one less.
    ///
    /// # Errors
    /// Why not.
    pub async fn remove(&self, name: String, uid: u32) -> Result<(), String> {
        self.answer(|back| Request::Remove(name, uid, back)).await
    }

    /// The process of this number, whose user asks, is to have this, whatever it executes next. Answers when it has it.
    ///
    /// # Errors
    /// Why not.
    pub async fn launch(&self, pid: u32, schedule: Schedule, uid: u32, gids: Vec<u32>) -> Result<(), String> {
        self.answer(|back| Request::Launch(pid, schedule, uid, gids, back))
            .await
    }

    async fn answer(&self, request: impl FnOnce(Answer) -> Request) -> Result<(), String> {
        let (back, answer) = oneshot::channel();
        self.ask(request(back));
        answer
            .await
            .unwrap_or_else(|_| Err("giveway's thread for real time has ended".to_owned()))
    }

    fn ask(&self, request: Request) {
        // Where the thread has ended, the answer's channel is closed with the request.
        if self.requests.send(request).is_ok() {
            let _ = (&*self.bell).write_all(&[0]);
        }
    }
}

/// The thread's end of the requests.
struct Inbox {
    asked: mpsc::Receiver<Request>,
    bell: PipeReader,
}

impl Inbox {
    /// The requests that wait; call when the bell can be read. The daemon's end is a request to stop.
    fn take(&self) -> Vec<Request> {
        let rung = (&self.bell).read(&mut [0; 64]);
        let mut requests: Vec<Request> = self.asked.try_iter().collect();
        if !rung.is_ok_and(|bytes| bytes > 0) {
            requests.push(Request::Stop);
        }
        requests
    }
}

/// What granting needs of this machine.
struct Tools {
    watch: TaskWatch,
    actuator: ScheduleActuator,
    canaries: Canaries,
    reader: WaryReader,
    netns_inum: u32,
}

impl Tools {
    /// Takes the calling thread's place above all that is granted, too.
    fn open(place: &Place) -> Result<Self> {
        let tools = Self {
            watch: TaskWatch::open(place.netns_inum())?,
            actuator: ScheduleActuator::open(place),
            canaries: Canaries::hatch()?,
            reader: WaryReader::new(CMDLINE_BYTES, || {
                // What waits for it has it too.
                let _ = take_priority();
            })?,
            netns_inum: place.netns_inum(),
        };
        let (_, hard) = getrlimit(Resource::RLIMIT_RTTIME).context("cannot read RLIMIT_RTTIME")?;
        setrlimit(Resource::RLIMIT_RTTIME, hard.min(OWN_RTTIME.as_micros() as u64), hard)
            .context("cannot bound giveway's own thread by RLIMIT_RTTIME")?;
        take_priority()?;
        Ok(tools)
    }
}

/// Puts the calling thread above all that is granted, but not what it starts.
pub fn take_priority() -> Result<()> {
    let own = Policy::Fifo { priority: OWN_PRIORITY };
    Attributes::for_policy(own)
        .set(0)
        .map_err(|errno| anyhow!(schedule::why_refused(errno, own)))
        .context("giveway's own thread must come before what it may have to demote, and cannot")
}

/// Makes the calling thread an ordinary one.
pub fn leave_priority() {
    // Lowering oneself is never refused.
    let _ = Attributes::ordinary().set(0);
}

/// Whatever ends the thread's work, nothing that it gave outlives it.
fn guarded(place: &Place, work: impl FnOnce() -> Result<usize>) -> Result<usize> {
    let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(anyhow!("it panicked")));
    let undone = schedule::undo(place, false);
    let set_back = outcome.context("the thread for real time has failed; everything was set back")?;
    Ok(set_back + undone?.len())
}

/// The life of a thread that can grant nothing: it says so.
fn refuse_all(realtime: &Realtime, inbox: &Inbox, why: &str) -> Result<usize> {
    loop {
        for request in inbox.take() {
            match request {
                Request::View(back) => {
                    let mut view = realtime.view(crate::kernel::now());
                    view.degraded = vec![why.to_owned()];
                    // Who asked may have gone, here and below.
                    let _ = back.send(view);
                }
                Request::Add(.., back) | Request::Remove(.., back) | Request::Launch(.., back) => {
                    let _ = back.send(Err(why.to_owned()));
                }
                Request::Stop => return Ok(0),
            }
        }
    }
}
