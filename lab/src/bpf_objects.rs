// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All BPF objects in the kernel, and the run time of programs. Input: nothing, or a program's name. Output: programs,
//! maps and links by id; the processes that hold them; a program's run time in nanoseconds and its count of runs. With
//! a virtual clock, nanoseconds are instructions. The kernel counts only on request, and its own reading of the clock
//! is included; `Nothing` measures that part.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::ops::Sub;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, bail};
use libbpf_rs::query::{LinkInfo, LinkInfoIter, LinkTypeInfo, MapInfoIter, ProgInfoIter};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ProgramType};

use crate::calls::{count_run_times, program_info};

skeleton!("nothing");

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum ObjectKind {
    Program,
    /// It ends with its socket, and no process shows that it holds it.
    SocketFilter,
    Map,
    Link,
}

/// An object of the kernel.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Object {
    pub kind: ObjectKind,
    pub id: u32,
    /// Links have none.
    pub name: String,
    /// Part of a struct_ops: a congestion control or a qdisc.
    pub is_struct_ops: bool,
}

impl ObjectKind {
    /// The name of its number in /proc/PID/fdinfo.
    fn in_fdinfo(self) -> &'static str {
        match self {
            ObjectKind::Program | ObjectKind::SocketFilter => "prog_id:",
            ObjectKind::Map => "map_id:",
            ObjectKind::Link => "link_id:",
        }
    }
}

pub fn all() -> BTreeSet<Object> {
    let object = |kind, id, name: String, is_struct_ops| Object {
        kind,
        id,
        name,
        is_struct_ops,
    };
    let text = |name: &std::ffi::OsStr| name.to_string_lossy().into_owned();
    let programs = ProgInfoIter::default().map(|info| {
        let is_struct_ops = info.ty == ProgramType::StructOps;
        let kind = match info.ty {
            ProgramType::SocketFilter => ObjectKind::SocketFilter,
            _ => ObjectKind::Program,
        };
        object(kind, info.id, text(&info.name), is_struct_ops)
    });
    let maps = MapInfoIter::default().map(|info| object(ObjectKind::Map, info.id, text(&info.name), false));
    let links = LinkInfoIter::default().map(|info| {
        let is_struct_ops = matches!(info.info, LinkTypeInfo::StructOps(_));
        object(ObjectKind::Link, info.id, String::new(), is_struct_ops)
    });
    programs.chain(maps).chain(links).collect()
}

/// The objects of a kind that a process has open; none if it is gone. A dead process remains while a thread of it is
/// stuck.
pub fn held_by(pid: i32, kind: ObjectKind) -> BTreeSet<u32> {
    let entries = |folder: String| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let leader = entries(format!("/proc/{pid}/fdinfo")).map(|entry| entry.path());
    let mut descriptors: Vec<_> = leader.collect();
    if descriptors.is_empty() {
        let threads = entries(format!("/proc/{pid}/task"));
        let of = |thread: std::fs::DirEntry| entries(format!("{}/fdinfo", thread.path().display()));
        descriptors = threads.flat_map(of).map(|entry| entry.path()).collect();
    }
    let mut held = BTreeSet::new();
    for descriptor in descriptors {
        let about = std::fs::read_to_string(descriptor).unwrap_or_default();
        let id = |line: &str| line.strip_prefix(kind.in_fdinfo())?.trim().parse::<u32>().ok();
        held.extend(about.lines().filter_map(id));
    }
    held
}

/// The links among these that are still attached, of the kinds that can be detached from outside.
pub fn attached_links(ids: &BTreeSet<u32>) -> Vec<Object> {
    let is_attached = |info: &LinkTypeInfo| match info {
        LinkTypeInfo::Cgroup(link) => link.cgroup_id != 0,
        LinkTypeInfo::Tcx(link) => link.ifindex != 0,
        LinkTypeInfo::StructOps(link) => link.map_id != 0,
        _ => false,
    };
    let attached = LinkInfoIter::default().filter(|link| ids.contains(&link.id) && is_attached(&link.info));
    let object = |link: LinkInfo| Object {
        kind: ObjectKind::Link,
        id: link.id,
        name: format!("{:?}", link.info),
        is_struct_ops: matches!(link.info, LinkTypeInfo::StructOps(_)),
    };
    attached.map(object).collect()
}

/// The values of every map of this name, by map and key; a map may vanish meanwhile.
pub fn values_of_maps(name: &str) -> BTreeMap<(u32, Vec<u8>), Vec<u8>> {
    let mut values = BTreeMap::new();
    for info in MapInfoIter::default().filter(|info| info.name == name) {
        let Ok(map) = MapHandle::from_map_id(info.id) else {
            continue;
        };
        for key in map.keys() {
            if let Ok(Some(value)) = map.lookup(&key, MapFlags::ANY) {
                values.insert((info.id, key), value);
            }
        }
    }
    values
}

/// The kernel counts run times for as long as the descriptor is open.
pub fn enable_statistics() -> Result<OwnedFd> {
    count_run_times().context("cannot switch on the kernel's BPF statistics")
}

/// A loaded program.
pub struct Program {
    name: &'static str,
    fd: OwnedFd,
}

/// Totals; the difference of two is a period.
#[derive(Clone, Copy, Default)]
pub struct Runs {
    pub time_ns: u64,
    pub count: u64,
}

impl Runs {
    /// Without the cost of the kernel's clock.
    pub fn net_ns(self, clock_ns: f64) -> f64 {
        self.time_ns as f64 - self.count as f64 * clock_ns
    }
}

impl Sub for Runs {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            time_ns: self.time_ns - earlier.time_ns,
            count: self.count - earlier.count,
        }
    }
}

/// Of these programs, by name; programs of one name together.
pub fn runs_of(ids: &BTreeSet<u32>) -> BTreeMap<String, Runs> {
    let mut all = BTreeMap::<String, Runs>::new();
    for info in ProgInfoIter::default().filter(|info| ids.contains(&info.id)) {
        let runs = all.entry(info.name.to_string_lossy().into_owned()).or_default();
        runs.time_ns += info.run_time_ns;
        runs.count += info.run_cnt;
    }
    all
}

impl Program {
    /// The only one of this name.
    pub fn find(name: &'static str) -> Result<Self> {
        let found: Vec<_> = ProgInfoIter::default().filter(|info| info.name == name).collect();
        let [info] = &found[..] else {
            bail!("{} BPF programs have the name {name}", found.len());
        };
        let fd = libbpf_rs::Program::fd_from_id(info.id);
        let fd = fd.with_context(|| format!("cannot open the BPF program {name}"))?;
        Ok(Self { name, fd })
    }

    pub fn runs(&self) -> Result<Runs> {
        let info = program_info(&self.fd);
        let info = info.with_context(|| format!("cannot ask about the BPF program {}", self.name))?;
        Ok(Runs {
            time_ns: info.run_time_ns,
            count: info.run_cnt,
        })
    }
}

/// The empty program, which runs for every packet; dropping it takes it out of the kernel.
pub struct Nothing {
    pub program: Program,
    _link: Link,
}

impl Nothing {
    pub fn load() -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let open = skeleton::NothingSkelBuilder::default().open(&mut storage)?;
        let mut nothing = open.load().context("cannot load an empty BPF program")?;
        nothing.attach().context("cannot attach an empty BPF program")?;
        let link = nothing.links.lab_nothing.take();
        // Another lab may have one, too.
        let program = Program {
            name: "lab_nothing",
            fd: nothing.progs.lab_nothing.as_fd().try_clone_to_owned()?,
        };
        Ok(Self {
            program,
            _link: link.context("the empty BPF program is not attached")?,
        })
    }
}
