// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs in the kernel, run on packets that go nowhere (BPF_PROG_TEST_RUN), and what they leave in their maps.

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use giveway::kernel::skeletons::admission::types;
use libbpf_rs::btf::types::{MemberAttr, Struct};
use libbpf_rs::btf::{Btf, HasSize};
use libbpf_rs::libbpf_sys::{bpf_prog_get_fd_by_id, bpf_prog_test_run_opts, bpf_test_run_opts};
use libbpf_rs::query::{MapInfo, MapInfoIter, ProgInfoIter, ProgInfoQueryOptions, ProgramInfo};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

/// Words of `struct __sk_buff` (include/uapi/linux/bpf.h).
const WORDS: usize = 48;
const PRIORITY: usize = 8;
const CONTROL_BLOCK: usize = 12;
const TSTAMP: usize = 38;
const GSO_SEGS: usize = 41;
const FIRST: [u8; 4] = [0; 4];

pub struct Program {
    id: u32,
    map_ids: Vec<u32>,
    fd: OwnedFd,
}

/// What is said of a packet beside its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside {
    pub priority: u32,
    pub tstamp: u64,
    pub gso_segs: u32,
}

#[derive(Debug)]
pub struct Ran {
    pub returned: u32,
    pub control_block: [u32; 5],
    pub priority: u32,
    pub frame: Vec<u8>,
}

impl Program {
    /// This process's own of this name: it has the program open, or a map of it.
    pub fn find(name: &str) -> Self {
        let (programs, maps) = (open_here("prog_id:"), open_here("map_id:"));
        let is_it = |program: &ProgramInfo| {
            program.name.as_encoded_bytes() == name.as_bytes()
                && (programs.contains(&program.id) || program.map_ids.iter().any(|map| maps.contains(map)))
        };
        let with_maps = ProgInfoQueryOptions::default().include_map_ids(true);
        let found = ProgInfoIter::with_query_opts(with_maps).find(is_it);
        let ProgramInfo { id, map_ids, .. } = found.expect("the program is loaded");
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { bpf_prog_get_fd_by_id(id) };
        assert!(fd >= 0, "cannot open {name}: {}", std::io::Error::last_os_error());
        // SAFETY: a descriptor that was just made and that nobody else owns.
        Self {
            id,
            map_ids,
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
        }
    }

    /// One of those that it uses.
    pub fn map(&self, name: &str) -> MapHandle {
        let is_it = |map: &MapInfo| map.name.as_encoded_bytes() == name.as_bytes() && self.map_ids.contains(&map.id);
        let found = MapInfoIter::default().find(is_it).expect("the map is there");
        MapHandle::from_map_id(found.id).expect("the map can be opened")
    }

    /// None where the kernel has no packet of these bytes.
    pub fn run(&self, frame: &[u8], beside: Beside) -> Option<Ran> {
        let mut context = [0_u32; WORDS];
        context[PRIORITY] = beside.priority;
        context[TSTAMP] = beside.tstamp as u32;
        context[TSTAMP + 1] = (beside.tstamp >> 32) as u32;
        context[GSO_SEGS] = beside.gso_segs;
        let (mut after, mut out) = ([0_u32; WORDS], vec![0; frame.len()]);
        let mut run = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            data_out: out.as_mut_ptr().cast(),
            data_size_out: out.len() as u32,
            ctx_in: (&raw const context).cast(),
            ctx_size_in: size_of_val(&context) as u32,
            ctx_out: (&raw mut after).cast(),
            ctx_size_out: size_of_val(&after) as u32,
            ..Default::default()
        };
        // SAFETY: `run` and what it points to live until the call returns, and state their sizes.
        let done = unsafe { bpf_prog_test_run_opts(self.fd.as_raw_fd(), &raw mut run) };
        out.truncate(run.data_size_out as usize);
        (done == 0).then(|| Ran {
            returned: run.retval,
            control_block: *after[CONTROL_BLOCK..].first_chunk().expect("a whole control block"),
            priority: after[PRIORITY],
            frame: out,
        })
    }

    /// Where this field is in a struct of the program's own, in bytes, and how many bytes the struct has.
    fn place(&self, of: &str, field: &str) -> (usize, usize) {
        let btf = Btf::from_prog_id(self.id).expect("the program has types");
        let known: Option<Struct> = btf.type_by_name(of);
        let known = known.unwrap_or_else(|| panic!("there is no struct {of}"));
        let member = known
            .iter()
            .find(|member| member.name.is_some_and(|name| name == field));
        let member = member.unwrap_or_else(|| panic!("struct {of} has no {field}"));
        let MemberAttr::Normal { offset } = member.attr else {
            panic!("{of}.{field} is a bit field");
        };
        let bytes = known.size();
        (offset as usize / 8, bytes)
    }
}

/// What this process has open, by this word of /proc/self/fdinfo. Other daemons' objects have the same names.
fn open_here(word: &str) -> Vec<u32> {
    let descriptors = fs::read_dir("/proc/self/fdinfo").expect("/proc is mounted");
    let texts = descriptors.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    let id = |text: String| {
        text.lines()
            .find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
    };
    texts.filter_map(id).collect()
}

/// What is promised on the link: `struct gw_link`, by the names of its fields.
pub struct LinkState {
    map: MapHandle,
    fields: Fields,
}

struct Fields {
    promised: usize,
    packets: usize,
    fifo: usize,
    fifo_promised_ns: usize,
    fifo_gone_ns: usize,
    fifo_due_ns: usize,
    fifo_promised: usize,
    fifo_gone: usize,
    tree: usize,
    slack_bytes: usize,
}

#[derive(Debug, Eq, PartialEq)]
pub struct Promised {
    pub packets: u32,
    /// The sum of what the slots have.
    pub in_slots: u32,
    pub work_ns: i64,
    /// Slots with packets and no work, or work and no packets.
    pub broken_slots: usize,
    pub fifo_waiting: u32,
    pub fifo_work_ns: i64,
}

impl LinkState {
    pub fn of(admission: &Program) -> Self {
        let place = |of, field| admission.place(of, field).0;
        let fields = Fields {
            promised: place("gw_link", "promised"),
            packets: place("gw_link", "packets"),
            fifo: place("gw_link", "fifo"),
            fifo_promised_ns: place("gw_fifo", "promised_ns"),
            fifo_gone_ns: place("gw_fifo", "gone_ns"),
            fifo_due_ns: place("gw_fifo", "due_ns"),
            fifo_promised: place("gw_fifo", "promised"),
            fifo_gone: place("gw_fifo", "gone"),
            tree: place("gw_link", "tree") + place("gw_slack_tree", "node"),
            slack_bytes: admission.place("gw_slack", "work_ns").1,
        };
        Self {
            map: admission.map("link_state"),
            fields,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let bytes = self
            .map
            .lookup(&FIRST, MapFlags::ANY)
            .expect("the link's state can be read");
        bytes.expect("there is one")
    }

    pub fn promised(&self) -> Promised {
        let (bytes, at) = (self.bytes(), &self.fields);
        let word = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().expect("within the struct"));
        let long = |at: usize| i64::from_ne_bytes(*bytes[at..].first_chunk().expect("within the struct"));
        let slots = (bytes.len() - at.packets) / 4;
        let work = |node: usize| long(at.tree + node * at.slack_bytes);
        let packets = |slot: usize| word(at.packets + 4 * slot);
        let is_broken = |slot: &usize| (packets(*slot) > 0) != (work(slots + slot) > 0);
        Promised {
            packets: word(at.promised),
            in_slots: (0..slots).map(packets).sum(),
            work_ns: work(1),
            broken_slots: (0..slots).filter(is_broken).count(),
            fifo_waiting: word(at.fifo + at.fifo_promised).wrapping_sub(word(at.fifo + at.fifo_gone)),
            fifo_work_ns: long(at.fifo + at.fifo_promised_ns) - long(at.fifo + at.fifo_gone_ns),
        }
    }

    /// As if what a FIFO has promised had been due long ago.
    pub fn age_fifo(&self) {
        let mut bytes = self.bytes();
        let at = self.fields.fifo + self.fields.fifo_due_ns;
        bytes[at..at + 8].fill(0);
        self.map
            .update(&FIRST, &bytes, MapFlags::ANY)
            .expect("the link's state can be set");
    }
}

/// What has arrived on this CPU for a chain: `struct arrival`.
pub struct Arrivals {
    map: MapHandle,
    cpu: usize,
    next: usize,
    waiting: usize,
    due: usize,
    noted_bytes: usize,
}

#[derive(Debug, Eq, PartialEq)]
pub struct Arrived {
    pub noted: u32,
    pub waiting: u32,
    pub in_ring: u32,
}

impl Arrivals {
    pub fn of(arrival: &Program, cpu: usize) -> Self {
        let (due, noted_bytes) = arrival.place("noted", "due_ns");
        Self {
            map: arrival.map("arrivals"),
            cpu,
            next: arrival.place("arrival", "next").0,
            waiting: arrival.place("arrival", "waiting").0,
            due: arrival.place("arrival", "noted").0 + due,
            noted_bytes,
        }
    }

    pub fn look(&self) -> Arrived {
        let all = self
            .map
            .lookup_percpu(&FIRST, MapFlags::ANY)
            .expect("arrivals can be read");
        let here = &all.expect("there are some")[self.cpu];
        let word = |at: usize| u32::from_ne_bytes(*here[at..].first_chunk().expect("within the struct"));
        let due = |slot: usize| {
            here[self.due + slot * self.noted_bytes..][..8]
                .iter()
                .any(|byte| *byte > 0)
        };
        Arrived {
            noted: word(self.next),
            waiting: word(self.waiting),
            in_ring: (0..RING).filter(|slot| due(*slot)).count() as u32,
        }
    }
}

/// `NOTED` of bpf/arrival.bpf.c.
const RING: usize = 16;

pub fn configure(map: &MapHandle, config: &types::gw_link_config) {
    let bytes = giveway::kernel::records::bytes_of(config);
    map.update(&FIRST, bytes, MapFlags::ANY)
        .expect("the link can be configured");
}
