// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flight recorder of `bpf/wakeup_trace.bpf.c`: loaded here, read by the measuring threads. It yields the intervals
//! of one CPU back to a moment, and when a measuring thread was woken. It decides nothing.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::ptr;

use anyhow::{Context as _, Result, ensure};
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Typedef;
use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{Link, MapCore, libbpf_sys};
use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

use super::policy::{Policy, Scheduling};
use crate::kernel::libbpf_log::explain;
use crate::kernel::skeletons::wakeup_trace as skeleton;
use skeleton::types;

/// What a CPU did for a while.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Activity {
    Idle,
    Thread {
        tid: u32,
        name: [u8; 16],
        scheduling: Scheduling,
        /// The kernel's own measure, in which less is more.
        priority: i32,
    },
    Softirq(u32),
    Irq(u32),
    /// What a CPU interrupts itself or another one with.
    Vector(&'static str),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Interval {
    /// CLOCK_MONOTONIC.
    pub from_ns: u64,
    pub to_ns: u64,
    pub activity: Activity,
    /// How long the hypervisor ran something else, between the end of the interval before in the ring and this one's.
    pub stolen_ns: u64,
    pub stolen_after_ns: u64,
}

/// When and where a thread was woken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Waking {
    pub t_ns: u64,
    pub cpu: usize,
}

/// The loaded programs and the memory that they write; dropping it takes them out of the kernel.
#[derive(Debug)]
pub struct Recorder {
    rings: Mapping<types::gw_ring>,
    wakings: Mapping<types::gw_waking>,
    introduce: OwnedFd,
    _tracing: Vec<Link>,
}

impl Recorder {
    pub fn open() -> Result<Self> {
        crate::kernel::check_requirements()?;
        let cpus = libbpf_rs::num_possible_cpus().context("cannot count the CPUs")?;
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::WakeupTraceSkelBuilder::default();
        let mut open = explain("open the recorder of wake-ups", || builder.open(&mut storage))?;
        let max_entries = u32::try_from(cpus).context("more CPUs than there can be")?;
        explain("make a ring for each CPU", || {
            open.maps.rings.set_max_entries(max_entries)
        })?;
        let kernel = explain("read the kernel's types", Btf::from_vmlinux)?;
        for mut program in open.open_object_mut().progs_mut() {
            let section = program.section().to_string_lossy().into_owned();
            // Not every architecture tells of what has no interrupt number.
            let is_known = |point| {
                kernel
                    .type_by_name::<Typedef<'_>>(&format!("btf_trace_{point}"))
                    .is_some()
            };
            program.set_autoload(section.strip_prefix("tp_btf/").is_none_or(is_known));
        }
        let skeleton = explain("load the recorder of wake-ups", || open.load())?;
        let mut tracing = Vec::new();
        for program in skeleton.object().progs_mut() {
            let section = program.section().to_string_lossy().into_owned();
            if program.autoload() && section.starts_with("tp_btf/") {
                tracing.push(explain(&format!("attach to {section}"), || program.attach())?);
            }
        }
        Ok(Self {
            rings: Mapping::of(&skeleton.maps.rings).context("cannot map the recorder's rings")?,
            wakings: Mapping::of(&skeleton.maps.wakings).context("cannot map the recorder's wake-ups")?,
            introduce: skeleton.progs.gw_introduce.as_fd().try_clone_to_owned()?,
            _tracing: tracing,
        })
    }

    /// The calling thread is measuring thread `number` from now on. Its id as the kernel counts is the answer.
    pub fn introduce(&self, number: u16) -> Result<u32> {
        let introduction = types::gw_introduction { number: number.into() };
        let mut run = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
            ctx_in: ptr::from_ref(&introduction).cast(),
            ctx_size_in: size_of_val(&introduction) as u32,
            ..Default::default()
        };
        // SAFETY: `run` and what it points to live until the call returns, and state their sizes.
        let outcome = unsafe { libbpf_sys::bpf_prog_test_run_opts(self.introduce.as_raw_fd(), &mut run) };
        ensure!(
            outcome == 0,
            "a thread cannot be made known to the recorder: {}",
            Errno::from_raw(-outcome).desc()
        );
        ensure!(run.retval != 0, "the recorder knows too many threads");
        Ok(run.retval)
    }

    /// When this measuring thread was woken last; None: never yet.
    pub fn waking(&self, number: u16) -> Option<Waking> {
        // SAFETY: the kernel writes there, so it is read as something that changes; integers only.
        let waking = unsafe { ptr::read_volatile(self.wakings.at(number.into())?) };
        (waking.t_ns > 0).then_some(Waking {
            t_ns: waking.t_ns,
            cpu: waking.cpu as usize,
        })
    }

    /// What a CPU did, newest first, back to the interval that was running at this time if the ring reaches so far.
    pub fn intervals(&self, cpu: usize, since_ns: u64) -> Vec<Interval> {
        let Some(ring) = self.rings.at(cpu) else {
            return Vec::new();
        };
        // SAFETY: `ring` points into the mapping; the kernel writes there, so it is read as something that changes.
        let next = unsafe { ptr::read_volatile(&raw const (*ring).next) };
        // SAFETY: only the address is computed.
        let places = unsafe { &raw const (*ring).intervals };
        let count = places_in(places) as u64;
        let mut intervals: Vec<Interval> = Vec::new();
        for position in (next.saturating_sub(count)..next).rev() {
            // SAFETY: the remainder is a place of the array; integers only.
            let read =
                || unsafe { ptr::read_volatile(places.cast::<types::gw_interval>().add((position % count) as usize)) };
            let found = read();
            // Whatever was being written meanwhile is left out.
            if found.position != position + 1 || read().position != position + 1 {
                continue;
            }
            if let Some(next) = intervals.last_mut() {
                next.stolen_after_ns = found.to_ns;
            }
            if found.to_ns < since_ns {
                break;
            }
            intervals.extend(interval(&found));
        }
        intervals
    }
}

fn places_in<T, const N: usize>(_: *const [T; N]) -> usize {
    N
}

/// A kind that this build does not know is left out.
fn interval(raw: &types::gw_interval) -> Option<Interval> {
    let kind = types::gw_interval_kind(raw.kind.into());
    Some(Interval {
        from_ns: raw.from_ns,
        to_ns: raw.to_ns,
        stolen_ns: raw.stolen_ns.into(),
        stolen_after_ns: raw.from_ns,
        activity: match kind {
            types::gw_interval_kind::GW_THREAD if raw.id == 0 => Activity::Idle,
            types::gw_interval_kind::GW_THREAD => Activity::Thread {
                tid: raw.id,
                name: raw.name.map(i8::cast_unsigned),
                scheduling: Scheduling::from_kernel(Policy(raw.policy.into()), raw.priority),
                priority: raw.priority,
            },
            types::gw_interval_kind::GW_SOFTIRQ => Activity::Softirq(raw.id),
            types::gw_interval_kind::GW_IRQ => Activity::Irq(raw.id),
            types::gw_interval_kind::GW_VECTOR => Activity::Vector(vector(raw.id)?),
            _ => return None,
        },
    })
}

fn vector(id: u32) -> Option<&'static str> {
    Some(match types::gw_vector(id) {
        types::gw_vector::GW_VECTOR_TIMER => "timer",
        types::gw_vector::GW_VECTOR_RESCHEDULE => "reschedule",
        types::gw_vector::GW_VECTOR_CALL => "function-call",
        types::gw_vector::GW_VECTOR_WORK => "irq-work",
        _ => return None,
    })
}

/// A map of the kernel's in this process's memory: an array of `T`, integers only, which only the kernel writes.
#[derive(Debug)]
struct Mapping<T> {
    memory: MmapRaw,
    count: usize,
    of: PhantomData<T>,
}

impl<T> Mapping<T> {
    fn of(map: &impl MapCore) -> Result<Self> {
        let count = map.max_entries() as usize;
        let stride = (map.value_size() as usize).next_multiple_of(8);
        ensure!(stride == size_of::<T>(), "a map has values of {stride} bytes");
        let memory = MmapOptions::new().len(count * stride).map_raw_read_only(&map.as_fd())?;
        Ok(Self {
            memory,
            count,
            of: PhantomData,
        })
    }

    fn at(&self, index: usize) -> Option<*const T> {
        // SAFETY: the index is within the mapping.
        (index < self.count).then(|| unsafe { self.memory.as_ptr().cast::<T>().add(index) })
    }
}
