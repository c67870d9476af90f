// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bpf/lending.bpf.c: what others compute at a priority that giveway has given to a thread which waits for them. Takes the
//! threads that may lend, gives what was lent since the last call. It changes no thread.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::priority::Borrower;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle};

use super::libbpf_log::explain;
use super::now;
use super::records::{IteratorReader, bytes_of, counters, record, text};
use super::skeletons::lending as skeleton;
use skeleton::types;

/// Lenders are looked at so often, though the kernel has told of no borrower: a walk over both maps takes 0.2 ms.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What others used of a thread's priority.
#[derive(Debug)]
pub struct LentTime {
    pub tid: u32,
    /// Its process, where that is accounted for as a whole.
    pub pid: Option<u32>,
    pub used: Duration,
    /// Threads that have it at this moment.
    pub borrowers: u32,
    /// The latest of them that computed.
    pub to: Borrower,
}

/// The loaded programs; dropping them ends everything here.
pub struct LendingPrograms {
    lenders: Lenders,
    counters: MapHandle,
    account: Link,
    reader: IteratorReader,
    /// When lenders were last looked at, how often borrowing had begun by then, and whether somebody borrowed.
    looked: Option<(Duration, u64, bool)>,
    _tracing: Vec<Link>,
}

/// Names threads that may lend, from any thread.
#[derive(Clone)]
pub struct Lenders(Arc<LenderMap>);

struct LenderMap {
    lenders: MapHandle,
    /// How often one was named.
    namings: AtomicU32,
}

/// A thread that may lend, until this is dropped.
pub struct MayLend {
    lenders: Lenders,
    key: types::gw_lender_key,
    naming: u32,
}

impl LendingPrograms {
    pub fn open() -> Result<Self> {
        super::check_requirements()?;
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::LendingSkelBuilder::default();
        let open = explain("open the account of lent priority", || builder.open(&mut storage))?;
        let skeleton = explain("load the account of lent priority", || open.load())?;
        let (programs, maps) = (&skeleton.progs, &skeleton.maps);
        let keep = |map| MapHandle::try_from(map).context("cannot keep a map of lent priority");
        Ok(Self {
            lenders: Lenders(Arc::new(LenderMap {
                lenders: keep(&maps.lenders)?,
                namings: AtomicU32::default(),
            })),
            counters: keep(&maps.bss)?,
            account: explain("attach to those who lend and borrow", || programs.gw_account.attach())?,
            reader: IteratorReader::default(),
            looked: None,
            _tracing: [
                ("sched_pi_setprio", &programs.gw_see_inheritance),
                ("sched_process_exit", &programs.gw_forget_borrower),
            ]
            .into_iter()
            .map(|(point, program)| explain(&format!("attach to the tracepoint {point}"), || program.attach()))
            .collect::<Result<_>>()?,
        })
    }

    pub fn lenders(&self) -> Lenders {
        self.lenders.clone()
    }

    /// What was lent since the last call.
    pub fn take(&mut self) -> Result<Vec<LentTime>> {
        let (now, begun) = (now(), self.counters()?.begun);
        let is_quiet = |(at, before, borrows): (Duration, u64, bool)| {
            !borrows && begun == before && now.saturating_sub(at) < LOOK_EVERY
        };
        if self.looked.is_some_and(is_quiet) {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        self.reader
            .run(&self.account, |lent: types::gw_lent| all.push(read(&lent)))?;
        let borrows = all.iter().any(|lent| lent.borrowers > 0);
        self.looked = Some((now, begun, borrows));
        Ok(all)
    }

    /// How often something was not counted, because too many borrowed at once.
    pub fn not_noted(&self) -> Result<u64> {
        Ok(self.counters()?.not_noted)
    }

    fn counters(&self) -> Result<types::bss> {
        counters(&self.counters, "lent priority")
    }
}

impl Lenders {
    /// `process`: where that is accounted for as a whole; None: only the thread is. A thread may be both.
    pub fn add(&self, tid: u32, process: Option<u32>) -> Result<MayLend> {
        let naming = self.0.namings.fetch_add(1, Ordering::Relaxed);
        let lender = types::gw_lender {
            tgid: process.unwrap_or(0),
            naming,
            ..types::gw_lender::default()
        };
        let key = types::gw_lender_key {
            tid,
            of_process: process.is_some().into(),
        };
        let done = self.0.lenders.update(bytes_of(&key), bytes_of(&lender), MapFlags::ANY);
        done.with_context(|| format!("what thread {tid} lends is not counted"))?;
        Ok(MayLend {
            lenders: self.clone(),
            key,
            naming,
        })
    }
}

impl Drop for MayLend {
    fn drop(&mut self) {
        // It may have ended, and its entry with it; and its number may be another thread's, which was named since.
        let (lenders, key) = (&self.lenders.0.lenders, bytes_of(&self.key));
        let named = lenders.lookup(key, MapFlags::ANY).ok().flatten();
        if named
            .and_then(|bytes| record(&bytes))
            .is_some_and(|it: types::gw_lender| it.naming == self.naming)
        {
            let _ = lenders.delete(key);
        }
    }
}

fn read(lent: &types::gw_lent) -> LentTime {
    LentTime {
        tid: lent.tid,
        pid: (lent.tgid != 0).then_some(lent.tgid),
        used: Duration::from_nanos(lent.lent_ns),
        borrowers: lent.borrowers,
        to: Borrower {
            pid: lent.borrower,
            name: text(&lent.name),
        },
    }
}
