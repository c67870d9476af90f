// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bpf/donation.bpf.c: what others compute at a priority that giveway has given to a thread which waits for them. Takes the
//! threads that may donate, gives what was donated since the last call. It changes no thread.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::priority::Recipient;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle};

use super::libbpf_log::explain;
use super::now;
use super::records::{IteratorReader, bytes_of, counters, record, text};
use super::skeletons::donation as skeleton;
use skeleton::types;

/// Donors are looked at so often, though the kernel has told of no recipient: a scan over both maps takes 0.2 ms.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What others used of a thread's priority.
#[derive(Debug)]
pub struct DonatedTime {
    pub tid: u32,
    /// Its process, where that is accounted for as a whole.
    pub pid: Option<u32>,
    pub used: Duration,
    /// Threads that have it at this moment.
    pub recipients: u32,
    /// The latest of them that computed.
    pub to: Recipient,
}

/// The loaded programs; dropping them ends everything here.
pub struct DonationPrograms {
    donors: Donors,
    counters: MapHandle,
    account: Link,
    reader: IteratorReader,
    /// When donors were last looked at, how often borrowing had begun by then, and whether somebody borrowed.
    looked: Option<(Duration, u64, bool)>,
    _tracing: Vec<Link>,
}

/// Names threads that may donate, from any thread.
#[derive(Clone)]
pub struct Donors(Arc<DonorMap>);

struct DonorMap {
    donors: MapHandle,
    /// How often one was named.
    namings: AtomicU32,
}

/// A thread that may donate, until this is dropped.
pub struct MayDonate {
    donors: Donors,
    key: types::gw_donor_key,
    naming: u32,
}

impl DonationPrograms {
    pub fn open() -> Result<Self> {
        super::check_requirements()?;
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::DonationSkelBuilder::default();
        let open = explain("open the account of donated priority", || builder.open(&mut storage))?;
        let skeleton = explain("load the account of donated priority", || open.load())?;
        let (programs, maps) = (&skeleton.progs, &skeleton.maps);
        let keep = |map| MapHandle::try_from(map).context("cannot keep a map of donated priority");
        Ok(Self {
            donors: Donors(Arc::new(DonorMap {
                donors: keep(&maps.donors)?,
                namings: AtomicU32::default(),
            })),
            counters: keep(&maps.bss)?,
            account: explain("attach to those who donate and borrow", || programs.gw_account.attach())?,
            reader: IteratorReader::default(),
            looked: None,
            _tracing: [
                ("sched_pi_setprio", &programs.gw_see_inheritance),
                ("sched_process_exit", &programs.gw_forget_recipient),
            ]
            .into_iter()
            .map(|(point, program)| explain(&format!("attach to the tracepoint {point}"), || program.attach()))
            .collect::<Result<_>>()?,
        })
    }

    pub fn donors(&self) -> Donors {
        self.donors.clone()
    }

    /// What was donated since the last call.
    pub fn take(&mut self) -> Result<Vec<DonatedTime>> {
        let (now, begun) = (now(), self.counters()?.begun);
        let is_quiet = |(at, before, borrows): (Duration, u64, bool)| {
            !borrows && begun == before && now.saturating_sub(at) < LOOK_EVERY
        };
        if self.looked.is_some_and(is_quiet) {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        self.reader
            .run(&self.account, |donated: types::gw_donated| all.push(read(&donated)))?;
        let borrows = all.iter().any(|donated| donated.recipients > 0);
        self.looked = Some((now, begun, borrows));
        Ok(all)
    }

    /// How often something was not counted, because too many borrowed at once.
    pub fn not_recorded(&self) -> Result<u64> {
        Ok(self.counters()?.not_recorded)
    }

    fn counters(&self) -> Result<types::bss> {
        counters(&self.counters, "donated priority")
    }
}

impl Donors {
    /// `process`: where that is accounted for as a whole; None: only the thread is. A thread may be both.
    pub fn add(&self, tid: u32, process: Option<u32>) -> Result<MayDonate> {
        let naming = self.0.namings.fetch_add(1, Ordering::Relaxed);
        let donor = types::gw_donor {
            tgid: process.unwrap_or(0),
            naming,
            ..types::gw_donor::default()
        };
        let key = types::gw_donor_key {
            tid,
            of_process: process.is_some().into(),
        };
        let done = self.0.donors.update(bytes_of(&key), bytes_of(&donor), MapFlags::ANY);
        done.with_context(|| format!("what thread {tid} donates is not counted"))?;
        Ok(MayDonate {
            donors: self.clone(),
            key,
            naming,
        })
    }
}

impl Drop for MayDonate {
    fn drop(&mut self) {
        // It may have ended, and its entry with it; and its number may be another thread's, which was named since.
        let (donors, key) = (&self.donors.0.donors, bytes_of(&self.key));
        let named = donors.lookup(key, MapFlags::ANY).ok().flatten();
        if named
            .and_then(|bytes| record(&bytes))
            .is_some_and(|it: types::gw_donor| it.naming == self.naming)
        {
            let _ = donors.delete(key);
        }
    }
}

fn read(donated: &types::gw_donated) -> DonatedTime {
    DonatedTime {
        tid: donated.tid,
        pid: (donated.tgid != 0).then_some(donated.tgid),
        used: Duration::from_nanos(donated.donated_ns),
        recipients: donated.recipients,
        to: Recipient {
            pid: donated.recipient,
            name: text(&donated.name),
        },
    }
}
