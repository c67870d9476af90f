// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The role `hand-over`: packets go from this task to their worker (`bpf/handover.bpf.c`), and are dropped.
//! Input: who, and how many; the pair of devices of its namespace. Output: instructions, as one JSON object.
//!
//! The threads are real-time ones: each packet then switches to its thread and back at once. At a lower priority a
//! thread takes many at a time, which is cheaper, and late.

use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, ProgramMut, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHookBuilder};
use nix::net::if_::if_nametoindex;
use serde::{Deserialize, Serialize};

use super::Worker;
use crate::outcome::Metrics;
use crate::scheduling;
use crate::uplink::queue::kernel_threads;

skeleton!("handover");

use skeleton::{HandoverSkel, types};

pub const FROM: &str = "from";
pub const TO: &str = "to";
const SENDER: &str = "10.79.0.1";
const TAKER: &str = "10.79.0.2";
const PAYLOAD_BYTES: usize = 64;
/// Of the one CPU's thread, packets.
const THREAD_QUEUE: u32 = 512;

#[derive(Clone, Copy, Deserialize, Serialize)]
pub struct HandOver {
    pub to: Worker,
    pub packets: u32,
}

/// The role `hand-over`.
pub fn run(trial: HandOver) -> Result<Metrics> {
    match trial.to {
        Worker::Task => yields(trial.packets),
        _ => hand_over(&trial),
    }
}

fn hand_over(trial: &HandOver) -> Result<Metrics> {
    let mut storage = MaybeUninit::uninit();
    let open = skeleton::HandoverSkelBuilder::default().open(&mut storage)?;
    let mut programs = open.load().context("cannot load the programs that hand packets over")?;
    let _receiver = receive(&mut programs, trial.to)?;
    attach(&programs.progs.lab_give, FROM, TC_EGRESS)?;

    let n = f64::from(trial.packets);
    give(&mut programs, trial.packets)?; // with cold caches
    let (seconds, counted) = give(&mut programs, trial.packets)?;
    let _watching = watch_switches(&mut programs)?;
    let (_, watched) = give(&mut programs, trial.packets)?;
    let per_packet = watched.switches as f64 / n;
    ensure!(
        (0.99..1.01).contains(&per_packet),
        "there were {per_packet} switches to each packet's work, not one"
    );
    let switch = watched.switched_ns as f64 / watched.switches as f64;
    Ok(Metrics::from([
        ("packet_instructions".into(), seconds * 1e9 / n),
        ("hand_over_instructions".into(), counted.between_ns as f64 / n),
        ("switch_instructions".into(), switch),
    ]))
}

/// Prepares the worker that takes the packets; a thread becomes a real-time one.
fn receive(programs: &mut HandoverSkel, to: Worker) -> Result<Option<Link>> {
    let (link, threads) = if to == Worker::CpumapThread {
        let program = programs.progs.lab_take_thread.as_fd().as_raw_fd();
        // struct bpf_cpumap_val
        let value = [THREAD_QUEUE.to_ne_bytes(), program.to_ne_bytes()].concat();
        let map = &programs.maps.threads;
        map.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)
            .context("cannot make a thread for packets")?;
        let link = programs.progs.lab_pass_to_thread.attach_xdp(if_nametoindex(TO)? as i32);
        (
            Some(link.context("cannot pass packets on")?),
            kernel_threads("cpumap/0/map:")?,
        )
    } else {
        attach(&programs.progs.lab_take, TO, TC_INGRESS)?;
        (None, kernel_threads(&format!("napi/{TO}-"))?)
    };
    let thread = match (to, &threads[..]) {
        (Worker::Softirq, []) => return Ok(link),
        (Worker::NapiThread | Worker::CpumapThread, [thread]) => *thread as i32,
        _ => bail!("{} kernel threads take packets", threads.len()),
    };
    scheduling::set(thread, crate::calls::SCHED_FIFO, 1)?;
    counters(programs)?.thread = thread;
    Ok(link)
}

fn counters<'a>(programs: &'a mut HandoverSkel) -> Result<&'a mut types::bss> {
    let counters = programs.maps.bss_data.as_deref_mut();
    counters.context("the programs have no counters")
}

/// For as long as the device is there.
fn attach(program: &ProgramMut, device: &str, at: TcAttachPoint) -> Result<()> {
    let mut hook = TcHookBuilder::new(program.as_fd())
        .ifindex(if_nametoindex(device)? as i32)
        .handle(1)
        .priority(1)
        .hook(at);
    hook.create().context("cannot make a place for programs")?;
    hook.attach().map(drop).context("cannot attach a program")
}

fn watch_switches(programs: &mut HandoverSkel) -> Result<[Link; 4]> {
    let progs = &mut programs.progs;
    let attach = |program: &mut ProgramMut| program.attach().context("cannot watch switches");
    Ok([
        attach(&mut progs.lab_note_raise)?,
        attach(&mut progs.lab_note_entry)?,
        attach(&mut progs.lab_note_waking)?,
        attach(&mut progs.lab_note_switch)?,
    ])
}

/// Sends packets one after the other; gives back how long that took with all that came of it, and what was counted.
fn give(programs: &mut HandoverSkel, packets: u32) -> Result<(f64, types::counted)> {
    counters(programs)?.counted = types::counted::default();
    let socket = UdpSocket::bind((SENDER, 0))?;
    socket.connect((TAKER, 9))?;
    let begun = Instant::now();
    for _ in 0..packets {
        socket.send(&[0; PAYLOAD_BYTES]).context("cannot send")?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let counters = counters(programs)?;
    let counted = crate::records::now(&counters.counted);
    let taken = counted.taken;
    ensure!(taken == u64::from(packets), "of {packets} packets {taken} were taken");
    Ok((seconds, counted))
}

/// Two real-time tasks on one processor: each call makes the other go on.
fn yields(count: u32) -> Result<Metrics> {
    scheduling::take_fifo(1)?;
    let call = || {
        for _ in 0..count {
            std::thread::yield_now();
        }
    };
    let begun = Instant::now();
    call();
    let alone_ns = begun.elapsed().as_secs_f64() * 1e9 / f64::from(count);
    let barrier = Barrier::new(2);
    let seconds = std::thread::scope(|scope| {
        scope.spawn(|| {
            barrier.wait();
            call();
        });
        barrier.wait();
        let begun = Instant::now();
        call();
        begun.elapsed().as_secs_f64()
    });
    let together_ns = seconds * 1e9 / (2.0 * f64::from(count));
    Ok(Metrics::from([
        ("switch_instructions".into(), together_ns),
        ("yield_instructions".into(), alone_ns),
    ]))
}
