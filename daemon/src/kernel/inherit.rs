// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bpf/inherit.bpf.c: what a process starts inherits its class, chosen or by a rule that names it. Input: processes by their
//! pidfds and numbers, executables, and the choice or rule of each. Output: the rate limits that tasks have.
//! [`super::tasks`] tells what a process has inherited; this only writes it down, and changes no process.
//!
//! The map of records is pinned, so that the next daemon finds what the one before has written. The programs end with the
//! daemon; what is started between the two inherits from its parent, when the next one looks at the tree of processes.

use giveway_engine::model::{Choice, Class, Limit, LimitNumber, ProcessId, Rates, RuleId};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use anyhow::{Context as _, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle, MapType};

use super::ids::{FileId, start_of};
use super::libbpf_log::{explain, one_line};
use super::records::{bytes_of, record};
use super::skeletons::inherit as skeleton;
use super::tasks::{Tasks, class_of, run_over_all};
use crate::pins::{Pins, RECORDS};
use skeleton::types;

/// Of the map, with the number of its layout.
const MAP: &str = "gw_records_3";
/// Scans until whoever was started meanwhile has been found; as deep a tree of processes as is followed where their numbers
/// go down in it.
const MOST_SCANS: usize = 16;

/// What makes new tasks inherit, until it is dropped.
pub struct Inheritance {
    _links: [Link; 3],
    hand_down: OwnedFd,
    list_limits: OwnedFd,
    list_inheriting: OwnedFd,
    set_by_hand: OwnedFd,
    list_by_hand: OwnedFd,
    files: MapHandle,
    orders: MapHandle,
    hand_orders: MapHandle,
    /// Why it ends with this process.
    pub unpinned: Option<String>,
}

/// Of one process: the rule by which it hands its class on.
#[derive(Clone, Copy, Debug)]
pub struct InheritingProcess {
    pub process: ProcessId,
    /// The program of which that is said.
    pub image: u64,
    pub rule: Option<RuleId>,
}

/// A rate limit that commands have.
#[derive(Clone, Copy, Debug)]
pub struct UserLimit {
    pub uid: u32,
    pub limit: Limit,
}

/// What an earlier daemon has left.
pub enum EarlierRecords {
    Nothing,
    Records(MapHandle),
    /// They mean nothing to this version.
    Another(String),
}

/// The records of the daemon before.
///
/// # Errors
/// Where that cannot be looked for.
pub fn left(pins: &Pins) -> Result<EarlierRecords> {
    let found = pins.with_existing(|folder| Ok(MapHandle::from_pinned_path(folder.join(RECORDS)).ok()))?;
    let Some(map) = found.flatten() else {
        return Ok(EarlierRecords::Nothing);
    };
    let is_ours = map.map_type() == MapType::TaskStorage
        && map.name() == OsStr::new(MAP)
        && map.value_size() as usize == size_of::<types::gw_record>();
    Ok(match is_ours {
        true => EarlierRecords::Records(map),
        false => EarlierRecords::Another(map.name().to_string_lossy().into_owned()),
    })
}

impl Inheritance {
    /// Of what is written into these tasks' map. `pins`: None where it is to end with this process.
    ///
    /// # Errors
    /// Where the kernel does not load it.
    pub fn open(tasks: &Tasks, netns_inum: u32, pins: Option<&Pins>) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::InheritSkelBuilder::default();
        let mut open = explain("open the inheritance of classes", || builder.open(&mut storage))?;
        open.maps
            .rodata_data
            .as_deref_mut()
            .context("the inheritance of classes has no constants")?
            .netns_inum = netns_inum;
        explain("use the map of records", || {
            open.maps.gw_records_3.reuse_fd(tasks.records.as_fd())
        })?;
        let skeleton = explain("load the inheritance of classes", || open.load())?;
        let attach = || {
            Ok([
                skeleton.progs.gw_inherit.attach()?,
                skeleton.progs.gw_inherit_late.attach()?,
                skeleton.progs.gw_see_exec.attach()?,
            ])
        };
        let links = explain(
            "attach to the tracepoints task_newtask, sched_wakeup_new and sched_process_exec",
            attach,
        )?;
        let unpinned = pins.and_then(|pins| pin(pins, tasks).err());
        let unpinned = unpinned.map(|error| {
            format!(
                "what commands choose with `giveway exec`, and programs hand on, ends with this daemon: {}",
                one_line(&error)
            )
        });
        if let Some(reason) = &unpinned {
            tracing::warn!("{reason}");
        }
        let keep = |map| MapHandle::try_from(map).context("cannot keep a map of the inheritance of classes");
        Ok(Self {
            _links: links,
            hand_down: skeleton.progs.gw_hand_down.as_fd().try_clone_to_owned()?,
            list_inheriting: skeleton.progs.gw_list_inheriting.as_fd().try_clone_to_owned()?,
            list_limits: skeleton.progs.gw_list_limits.as_fd().try_clone_to_owned()?,
            set_by_hand: skeleton.progs.gw_set_by_hand.as_fd().try_clone_to_owned()?,
            list_by_hand: skeleton.progs.gw_list_by_hand.as_fd().try_clone_to_owned()?,
            files: keep(&skeleton.maps.rule_of_file)?,
            orders: keep(&skeleton.maps.name_orders)?,
            hand_orders: keep(&skeleton.maps.hand_orders)?,
            unpinned,
        })
    }

    /// What runs one of these files hands its class on by this rule, from its start on.
    pub fn set_files(&self, files: &[(FileId, RuleId)]) -> Result<()> {
        let wanted: BTreeMap<Vec<u8>, RuleId> = files.iter().map(|(file, rule)| (key_of(*file), *rule)).collect();
        for (file, rule) in &wanted {
            self.files
                .update(file, &rule.to_ne_bytes(), MapFlags::ANY)
                .context("cannot say which executables hand their class on")?;
        }
        let known: Vec<Vec<u8>> = self.files.keys().collect();
        for file in known.iter().filter(|file| !wanted.contains_key(*file)) {
            self.files
                .delete(file)
                .context("cannot say which executables hand nothing on any more")?;
        }
        Ok(())
    }

    /// Writes down by which rules these processes hand their class on, and what follows for what they have started. What
    /// goes wrong with one keeps no other back.
    ///
    /// # Errors
    /// What went wrong first.
    pub fn hand_down(&self, named: &[InheritingProcess]) -> Result<()> {
        if named.is_empty() {
            return self.scan();
        }
        let most = self.orders.max_entries() as usize;
        let some = named.chunks(most).map(|some| self.hand_down_some(some));
        some.fold(Ok(()), Result::and)
    }

    fn hand_down_some(&self, named: &[InheritingProcess]) -> Result<()> {
        // One that was interrupted may have left some.
        let clear = self.clear_orders();
        let ordered = named.iter().map(|named| self.order(*named)).fold(Ok(()), Result::and);
        // Who inherits may be looked at before the one that it inherits from.
        let scanned = self.scan().and_then(|()| self.scan());
        clear.and(ordered).and(scanned).and(self.clear_orders())
    }

    fn order(&self, InheritingProcess { process, image, rule }: InheritingProcess) -> Result<()> {
        let key = types::gw_process_key {
            start_ns: process.start_ns,
            tgid: process.pid,
            reserved: 0,
        };
        let order = types::gw_name_order {
            rule: rule.unwrap_or_default(),
            image,
            ..types::gw_name_order::default()
        };
        self.orders
            .update(bytes_of(&key), bytes_of(&order), MapFlags::ANY)
            .context("cannot say by which rule a process hands its class on")
    }

    fn scan(&self) -> Result<()> {
        let scanned = run_over_all::<types::gw_chosen_limit>(&self.hand_down);
        scanned.map(drop).context("cannot say what processes inherit")
    }

    fn clear_orders(&self) -> Result<()> {
        let known: Vec<Vec<u8>> = self.orders.keys().collect();
        let cleared = known
            .iter()
            .map(|order| self.orders.delete(order))
            .fold(Ok(()), Result::and);
        cleared.context("cannot clear what processes are named by")
    }

    /// The rate limits that any task has.
    pub fn limits(&self) -> Result<BTreeMap<LimitNumber, UserLimit>> {
        let found = run_over_all::<types::gw_chosen_limit>(&self.list_limits).context("cannot list rate limits")?;
        let limited = |found: types::gw_chosen_limit| {
            let number = LimitNumber::try_from(found.number).ok()?;
            let limit = Limit {
                number,
                rates: rates_of(found.rates),
                class: class_of(found.class).unwrap_or(Class::Standard),
            };
            Some((number, UserLimit { uid: found.uid, limit }))
        };
        Ok(found.into_iter().filter_map(limited).collect())
    }

    /// How many processes have chosen or inherited anything, or hand it on.
    pub fn inheriting(&self) -> Result<usize> {
        let found = run_over_all::<u32>(&self.list_inheriting).context("cannot list inherited classes")?;
        Ok(found.len())
    }

    /// From now on this setting by hand is for this process and all that it has started, as far as it is `uid`'s (None:
    /// anybody's), and says this of what they connect. Returns the processes for which it is news.
    ///
    /// # Errors
    /// Where the kernel does not tell, or keeps it for none.
    pub fn set_by_hand(
        &self,
        process: ProcessId,
        number: u8,
        uid: Option<u32>,
        treatment: u32,
    ) -> Result<BTreeSet<ProcessId>> {
        let order = types::gw_hand_order {
            bit: 1 << number,
            start_ns: process.start_ns,
            tgid: process.pid,
            uid: uid.unwrap_or(u32::MAX),
            treatment,
            reserved: 0,
        };
        let mut all = BTreeSet::new();
        for _ in 0..MOST_SCANS {
            let more = self.order_by_hand(&order)?;
            if more.is_empty() {
                break;
            }
            all.extend(more);
        }
        Ok(all)
    }

    /// It is for nobody any more.
    pub fn clear_by_hand(&self, number: u8) -> Result<BTreeSet<ProcessId>> {
        let order = types::gw_hand_order {
            bit: 1 << number,
            ..types::gw_hand_order::default()
        };
        // One that was just started has what its parent had.
        let (mut all, more) = (self.order_by_hand(&order)?, self.order_by_hand(&order)?);
        all.extend(more);
        Ok(all)
    }

    fn order_by_hand(&self, order: &types::gw_hand_order) -> Result<BTreeSet<ProcessId>> {
        self.hand_orders
            .update(&0u32.to_ne_bytes(), bytes_of(order), MapFlags::ANY)
            .context("cannot say which processes are set by hand")?;
        let found = run_over_all::<types::gw_process_key>(&self.set_by_hand);
        let process = |key: types::gw_process_key| ProcessId {
            pid: key.tgid,
            start_ns: start_of(key.start_ns),
        };
        let found = found.context("cannot set processes by hand")?;
        Ok(found.into_iter().map(process).collect())
    }

    /// A bit for each setting by hand that any task has.
    pub fn set_by_hand_in_use(&self) -> Result<u64> {
        let found = run_over_all::<u64>(&self.list_by_hand).context("cannot list run-time settings")?;
        Ok(found.into_iter().fold(0, |all, one| all | one))
    }

    /// By their numbers.
    pub fn limits_in_use(&self) -> Result<BTreeSet<LimitNumber>> {
        Ok(self.limits()?.into_keys().collect())
    }

    pub fn choose(&self, tasks: &Tasks, pidfd: BorrowedFd<'_>, choice: Choice) -> Result<()> {
        let key = pidfd.as_raw_fd().to_ne_bytes();
        let found = tasks
            .records
            .lookup(&key, MapFlags::ANY)
            .context("the kernel tells no class of the process")?;
        let mut record = found.map_or_else(|| Ok(types::gw_record::default()), |bytes| record_of(&bytes))?;
        record.class = choice.class.map_or(0, |class| 1 + class as u32);
        record.uid = choice.uid;
        record.limit = choice.limit.map_or(0, |limit| limit.number.into());
        let rates = choice.limit.map(|limit| limit.rates).unwrap_or_default();
        record.rates = types::gw_rates {
            up: rates.up.unwrap_or(0),
            down: rates.down.unwrap_or(0),
        };
        tasks
            .records
            .update(&key, bytes_of(&record), MapFlags::ANY)
            .context("the kernel keeps no class for the process")
    }
}

fn rates_of(found: types::gw_rates) -> Rates {
    Rates {
        up: (found.up > 0).then_some(found.up),
        down: (found.down > 0).then_some(found.down),
    }
}

fn record_of(bytes: &[u8]) -> Result<types::gw_record> {
    record(bytes).context("a record of classes has another size")
}

fn key_of(file: FileId) -> Vec<u8> {
    let key = types::gw_executable {
        inode: file.inode,
        device: file.device,
        owner: file.owner,
    };
    bytes_of(&key).to_vec()
}

fn pin(pins: &Pins, tasks: &Tasks) -> Result<()> {
    let mut map = MapHandle::try_from(&tasks.records).context("cannot share the records of classes")?;
    pins.make(|folder| {
        let path = folder.join(RECORDS);
        let _ = fs::remove_file(&path);
        map.pin(&path).with_context(|| format!("cannot pin {}", path.display()))
    })
}
