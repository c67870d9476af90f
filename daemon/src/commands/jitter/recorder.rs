// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flight recorder of `bpf/wakeup_trace.bpf.c`: loaded here, read by the measuring threads. It yields the intervals
//! of one CPU back to a moment, and when a measuring thread was woken. It decides nothing.

use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd as _, OwnedFd};

use anyhow::{Context as _, Result, anyhow, ensure};
use libbpf_rs::Link;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Typedef;
use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};

use super::policy::{Policy, Scheduling};
use crate::kernel::bpf::{self, Mapping};
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
pub struct ActivityInterval {
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
        let id = bpf::run(&self.introduce, &introduction)
            .map_err(|errno| anyhow!("a thread cannot be made known to the recorder: {}", errno.desc()))?;
        ensure!(id != 0, "the recorder knows too many threads");
        Ok(id)
    }

    /// When this measuring thread was woken last; None: never yet.
    pub fn waking(&self, number: u16) -> Option<Waking> {
        let waking: types::gw_waking = self.wakings.read(number.into(), 0)?;
        (waking.t_ns > 0).then_some(Waking {
            t_ns: waking.t_ns,
            cpu: waking.cpu as usize,
        })
    }

    /// What a CPU did, newest first, back to the interval that was running at this time if the ring reaches so far.
    pub fn intervals(&self, cpu: usize, since_ns: u64) -> Vec<ActivityInterval> {
        let Some(next) = self.rings.read::<u64>(cpu, offset_of!(types::gw_ring, next)) else {
            return Vec::new();
        };
        let count = places_in(|ring| &ring.intervals) as u64;
        let mut intervals: Vec<ActivityInterval> = Vec::new();
        for position in (next.saturating_sub(count)..next).rev() {
            let place = (position % count) as usize * size_of::<types::gw_interval>();
            let read = || {
                let found: types::gw_interval = self.rings.read(cpu, offset_of!(types::gw_ring, intervals) + place)?;
                (found.position == position + 1).then_some(found)
            };
            // Whatever was being written meanwhile is left out.
            let (Some(found), Some(_)) = (read(), read()) else {
                continue;
            };
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

fn places_in<T, const N: usize>(_: fn(&types::gw_ring) -> &[T; N]) -> usize {
    N
}

/// A kind that this build does not know is left out.
fn interval(raw: &types::gw_interval) -> Option<ActivityInterval> {
    let kind = types::gw_interval_kind(raw.kind.into());
    Some(ActivityInterval {
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
