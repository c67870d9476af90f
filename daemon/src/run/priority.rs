// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real-time priority is given and taken back by threads of their own, above everything that they give it to: they must
//! run when what they have to demote does. They read the kernel's events, feed the engine and carry out what follows.
//!
//!   giveway-rt      rules' processes, NAPI threads, budgets and canaries: pauses to bound its own CPU time
//!   giveway-chain   threads that handle requests: runs within microseconds of each event, above the other one
//!
//! Neither opens a file or looks a path up: a directory's lock may be held by whoever may read it. What the kernel knows
//! of processes comes from `kernel::tasks`, what only a path tells from `lookup`. They write to the journals, in a folder
//! that nobody else may read.
//!
//! Both feed one engine, behind a lock that is held for a step only, by these two threads and no other. The one that
//! waits for it waits for microseconds: its holder is FIFO 49 or 50, so that on one CPU only the kernel's interrupt threads
//! can come between, and on two the holder goes on running on the other one. Requests of the main loop come in by a queue;
//! no answer waits for anything with a lower priority, and nothing is logged here.
//!
//! With no rule and nothing granted both sleep, and only give a sign of life now and then.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use giveway_engine::model::ProcessId;
use giveway_engine::priority::{self, Grants, Priority, PriorityRule, PriorityStatus, Schedule, watched};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::oneshot;

use crate::actuate::receive::NapiThreads;
use crate::actuate::schedule::ScheduleActuator;
use crate::actuate::thread::take_priority;
use crate::kernel::libbpf_log::one_line;
use crate::kernel::task_watch::TaskWatch;
use crate::kernel::tasks::Tasks;
use crate::kernel::{load_patiently, now};
use crate::life::{LONG_WORK, Life, WatchedTask};
use crate::lookup::LookUps;
use crate::place::Place;
use crate::undo;

mod chain;
mod donation;
pub mod receive;
mod rules;
mod starvation_detector;

use chain::ChainThread;
use donation::Donation;
use receive::ChainSource;
use rules::RulesLoop;
use starvation_detector::Canaries;

/// A bug here must not freeze the machine: computing for so long without a pause ends the daemon, and the watchdog
/// sets everything back.
const OWN_RTTIME: Duration = Duration::from_secs(1);

/// What the main loop or the other thread asks for.
enum ThreadRequest {
    Status(oneshot::Sender<PriorityStatus>),
    Add(Box<PriorityRule>, u32, Vec<u32>, ReplySender),
    Remove(String, u32, ReplySender),
    Launch(u32, Schedule, u32, Vec<u32>, ReplySender),
    NapiThreads(Vec<ProcessId>, u32),
    /// Everything is revoked for this reason; answered when it is.
    Pause(String, oneshot::Sender<()>),
    Resume,
    /// What followed in the other thread and is this one's to do.
    CarryOut(Vec<priority::Action>),
    /// Something went wrong there.
    Report(String),
    /// What looks executables up, started by a thread of its own.
    LookUps(Result<Box<LookUps>>),
    Stop,
}

type ReplySender = oneshot::Sender<Result<(), String>>;

/// The engine, for the two threads.
#[derive(Clone)]
struct Engine {
    priority: Arc<Mutex<Priority>>,
    /// Budgets and canaries are being looked at. Set under the lock, so that a thread that has raised something since sees it.
    is_watched: Arc<AtomicBool>,
}

impl Engine {
    fn new(priority: Priority) -> Self {
        Self {
            priority: Arc::new(Mutex::new(priority)),
            is_watched: Arc::default(),
        }
    }

    fn step(&self, input: priority::Input) -> Vec<priority::Action> {
        self.lock().step(now(), input)
    }

    /// For moments only. A thread that panicked with it has ended, and with it what it gave.
    fn lock(&self) -> MutexGuard<'_, Priority> {
        self.priority.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Both threads. Dropping it ends them, without waiting for what they set back.
pub struct PriorityThread {
    client: Client,
    thread: Option<JoinHandle<Result<usize>>>,
}

/// Sends requests to the thread.
#[derive(Clone)]
pub struct Client {
    requests: mpsc::Sender<ThreadRequest>,
    /// A byte for each request.
    bell: Arc<PipeWriter>,
    is_watched: Arc<AtomicBool>,
    grants: Arc<Grants>,
}

impl PriorityThread {
    /// Starts it. Where this machine cannot grant anything, it runs all the same and says why in the status. `chains`: None
    /// where there are none. `death`: by which what it starts sees that this process has died.
    pub fn start(
        place: &Place,
        priority: Priority,
        chains: Option<ChainSource>,
        life: Life,
        death: Option<PipeReader>,
    ) -> Result<Self> {
        let (reader, bell) = pipe().context("cannot make a pipe")?;
        // A full pipe rings already.
        fcntl(&bell, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).context("cannot make a pipe that keeps nobody waiting")?;
        let (requests, queue) = mpsc::channel();
        let grants = Arc::new(priority.grants());
        let engine = Engine::new(priority);
        let client = Client {
            requests,
            bell: Arc::new(bell),
            is_watched: Arc::clone(&engine.is_watched),
            grants,
        };
        let (place, own) = (place.clone(), client.clone());
        let (ready, started) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("giveway-rt".to_owned())
            .spawn(move || {
                let inbox = Inbox { queue, bell: reader };
                // From its start on: who waits for it would wait for ever if it hung.
                let heartbeat = life.heartbeat(WatchedTask::Rules);
                heartbeat.beat_before(LONG_WORK);
                let is_any_path = !watched(&engine.lock().rules()).0.is_empty();
                let tools = || load_patiently(|| Tools::open(&place, death.as_ref(), is_any_path));
                guarded(&place, || match tools() {
                    Ok(tools) => {
                        let (tasks, donors) = (Arc::clone(&tools.tasks), tools.donation.donors());
                        let chains = chains.map(|source| {
                            ChainThread::start(source, &place, engine.clone(), own.clone(), tasks, donors, life)
                        });
                        let rules = RulesLoop::start(engine, tools, inbox, own, chains, heartbeat);
                        // Nobody waits any more if the start failed; here and below.
                        let _ = ready.send(());
                        rules.run()
                    }
                    Err(error) => {
                        let _ = ready.send(());
                        drop((own, heartbeat));
                        tracing::warn!("nothing gets real time: {}", one_line(&error));
                        refuse_all(&engine, &inbox, &format!("nothing gets real time: {error:#}"))
                    }
                })
            })
            .context("cannot start the real-time thread")?;
        let this = Self {
            client,
            thread: Some(thread),
        };
        if started.recv().is_err() {
            this.stop()?;
            bail!("the real-time thread ended at once");
        }
        Ok(this)
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The managed device's NAPI threads, and the priority that they are to have; 0: what they have now.
    pub fn napi_threads(&self, threads: Vec<ProcessId>, priority: u32) {
        self.client.send(ThreadRequest::NapiThreads(threads, priority));
    }

    /// Whether it has ended without being asked to: `stop` says why.
    pub fn has_failed(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Sets everything back; returns how many processes had something.
    pub fn stop(mut self) -> Result<usize> {
        self.client.send(ThreadRequest::Stop);
        let Some(thread) = self.thread.take() else { return Ok(0) };
        thread
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the real-time thread has failed")))
    }
}

impl Drop for PriorityThread {
    fn drop(&mut self) {
        self.client.send(ThreadRequest::Stop);
    }
}

impl Client {
    /// Asked before the thread is: who may have nothing takes none of its time.
    ///
    /// # Errors
    /// Where this user may have nothing.
    pub fn may_ask(&self, uid: u32, gids: &[u32]) -> Result<(), String> {
        self.grants.of(uid, gids).map(drop)
    }

    /// None where the thread has ended.
    pub async fn status(&self) -> Option<PriorityStatus> {
        let (back, answer) = oneshot::channel();
        self.send(ThreadRequest::Status(back));
        answer.await.ok()
    }

    /// Adds a rule of this user's.
    ///
    /// # Errors
    /// Why not.
    pub async fn add(&self, rule: PriorityRule, uid: u32, gids: Vec<u32>) -> Result<(), String> {
        self.answer(|back| ThreadRequest::Add(Box::new(rule), uid, gids, back))
            .await
    }

    /// Removes one.
    ///
    /// # Errors
    /// Why not.
    pub async fn remove(&self, name: String, uid: u32) -> Result<(), String> {
        self.answer(|back| ThreadRequest::Remove(name, uid, back)).await
    }

    /// The process of this number, whose user asks, is to have this, whatever it executes next. Answers when it has it.
    ///
    /// # Errors
    /// Why not.
    pub async fn launch(&self, pid: u32, schedule: Schedule, uid: u32, gids: Vec<u32>) -> Result<(), String> {
        self.answer(|back| ThreadRequest::Launch(pid, schedule, uid, gids, back))
            .await
    }

    /// Takes everything back until [`Self::resume`]; `told` is told when it is.
    pub fn pause(&self, reason: String, done: oneshot::Sender<()>) {
        self.send(ThreadRequest::Pause(reason, done));
    }

    pub fn resume(&self) {
        self.send(ThreadRequest::Resume);
    }

    async fn answer(&self, request: impl FnOnce(ReplySender) -> ThreadRequest) -> Result<(), String> {
        let (back, answer) = oneshot::channel();
        self.send(request(back));
        answer
            .await
            .unwrap_or_else(|_| Err("giveway's real-time thread has ended".to_owned()))
    }

    /// Never waits.
    fn send(&self, request: ThreadRequest) {
        // Where the thread has ended, the answer's channel is closed with the request.
        if self.requests.send(request).is_ok() {
            self.ring();
        }
    }

    fn ring(&self) {
        let _ = (&*self.bell).write(&[0]);
    }

    fn carry_out(&self, actions: Vec<priority::Action>) {
        if !actions.is_empty() {
            self.send(ThreadRequest::CarryOut(actions));
        }
    }

    fn report(&self, line: String) {
        self.send(ThreadRequest::Report(line));
    }

    /// Something may have been raised: budgets and canaries have to be looked at from now on.
    fn wake_if_idle(&self) {
        if !self.is_watched.load(Ordering::Acquire) {
            self.ring();
        }
    }
}

/// The thread's end of the requests.
struct Inbox {
    queue: mpsc::Receiver<ThreadRequest>,
    bell: PipeReader,
}

impl Inbox {
    /// The requests that wait. Reads the bell only where it `is_rung`; where it could not be rung, they are found at the next
    /// turn. The daemon's end is a request to stop.
    fn take(&self, is_rung: bool) -> Vec<ThreadRequest> {
        let has_ended = is_rung && !(&self.bell).read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0);
        let mut requests: Vec<ThreadRequest> = self.queue.try_iter().collect();
        if has_ended {
            requests.push(ThreadRequest::Stop);
        }
        requests
    }
}

/// What granting needs of this machine.
struct Tools {
    watch: TaskWatch,
    donation: Donation,
    tasks: Arc<Tasks>,
    actuator: ScheduleActuator,
    napi: NapiThreads,
    canaries: Canaries,
    /// None while no rule names an executable.
    look_ups: Option<LookUps>,
    death: Option<Arc<PipeReader>>,
}

impl Tools {
    /// Takes the calling thread's place above all that is granted, too.
    fn open(place: &Place, death: Option<&PipeReader>, is_any_path: bool) -> Result<Self> {
        let tasks = Arc::new(Tasks::load(place.netns_inum())?);
        let tools = Self {
            watch: TaskWatch::open(place.netns_inum())?,
            donation: Donation::open(),
            actuator: ScheduleActuator::open(place, Arc::clone(&tasks)),
            napi: NapiThreads::new(place, Arc::clone(&tasks)),
            canaries: Canaries::start()?,
            look_ups: is_any_path.then(|| LookUps::start(death)).transpose()?,
            death: death.map(PipeReader::try_clone).transpose()?.map(Arc::new),
            tasks,
        };
        let (_, hard) = getrlimit(Resource::RLIMIT_RTTIME).context("cannot read RLIMIT_RTTIME")?;
        setrlimit(Resource::RLIMIT_RTTIME, hard.min(OWN_RTTIME.as_micros() as u64), hard)
            .context("cannot bound giveway's own thread by RLIMIT_RTTIME")?;
        take_priority()?;
        Ok(tools)
    }
}

/// Whatever ends the thread's work, nothing that it gave outlives it.
fn guarded(place: &Place, work: impl FnOnce() -> Result<usize>) -> Result<usize> {
    let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(anyhow!("it panicked")));
    let undone = undo::realtime(place);
    let set_back = outcome.context("the real-time thread has failed; everything was set back")?;
    ensure!(undone.failed.is_empty(), "{}", undone.failed.join("; "));
    Ok(set_back + undone.lines.len())
}

/// The life of a thread that can grant nothing: it says so.
fn refuse_all(engine: &Engine, inbox: &Inbox, reason: &str) -> Result<usize> {
    loop {
        for request in inbox.take(true) {
            match request {
                ThreadRequest::Status(back) => {
                    let mut status = engine.lock().status(now());
                    status.warnings = vec![reason.to_owned()];
                    // The client may have gone, here and below.
                    let _ = back.send(status);
                }
                ThreadRequest::Add(.., back) | ThreadRequest::Remove(.., back) | ThreadRequest::Launch(.., back) => {
                    let _ = back.send(Err(reason.to_owned()));
                }
                ThreadRequest::NapiThreads(..) | ThreadRequest::Pause(..) | ThreadRequest::Resume => {}
                ThreadRequest::CarryOut(_) | ThreadRequest::Report(_) | ThreadRequest::LookUps(_) => {}
                ThreadRequest::Stop => return Ok(0),
            }
        }
    }
}
