// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One small, real test of each capability, by the real daemon on real connections and processes. `ss`, `tc` and the
//! scheduler decide; giveway's own status is only waited for. Input: the testbed. Output: for each capability whether
//! it worked here, and what was measured.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use giveway_engine::queue::{Backend, QueueView};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ends::{BACKGROUND, DATAGRAMS, DOWNLOAD, UPLOAD};
use super::sockets::{Socket, rates, socket};
use super::stage::{CAP_SEGMENTS, ProbedDevice, RATE_MBIT};
use crate::experiment::pause;
use crate::giveway::{Daemon, answers};
use crate::interrupt::{check, wait_for, wait_until};
use crate::scheduling::{is_fully_nice, is_realtime};

/// For the effect of a poll or a scan over sockets, in an emulated machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// The time within which everything is undone after a death (README.md).
const DEATH: Duration = Duration::from_secs(1);
/// The end of waiting for it.
const GIVEN_UP: Duration = Duration::from_secs(10);
const DSCP_LE_TOS: &str = "4";
const DSCP_CS1_TOS: &str = "32";

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CapabilityVerdict {
    Works,
    /// It does not work, and `giveway doctor` says that this kernel lacks it.
    NotHere,
    Failed,
}

/// The result for one capability on one machine.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct CapabilityCell {
    pub capability: String,
    pub verdict: CapabilityVerdict,
    /// What was measured, or why it did not work.
    pub said: String,
    pub took_s: f64,
}

pub struct CapabilityProbe {
    pub capability: &'static str,
    /// What its test has run.
    pub ran: &'static str,
    /// The kernel capability that it needs, by its name in `giveway doctor`.
    needs: &'static str,
    act: fn(&mut ProbedDevice) -> Result<String>,
}

const TCX: &str = "admission (tcx)";

/// In this order: each leaves the testbed to the next.
pub const PROBES: [CapabilityProbe; 12] = [
    CapabilityProbe {
        capability: "receive window of a download",
        ran: "a CUBIC download over 20 Mbit/s that a rule makes background: the window that its sender is offered (`ss`, snd_wnd) \
              falls below half of what it was without giveway",
        needs: "background receive windows (sockops)",
        act: receive_window,
    },
    CapabilityProbe {
        capability: "cap",
        ran: "an upload that was open before the daemon, fixed_segments = 6: 20 times within 2 s `ss` shows cwnd at 6 or less, and it \
              goes on sending; acknowledgements come back slowly meanwhile, so that cwnd is what holds it back",
        needs: "caps on live connections",
        act: cap,
    },
    CapabilityProbe {
        capability: "monitor",
        ran: "the same upload in `giveway status --json`: its cwnd is what `ss` says just before or after, its RTT within a half, its \
              process the one that sends",
        needs: "flow monitor",
        act: monitor,
    },
    CapabilityProbe {
        capability: "background congestion control",
        ran: "an upload that was open before the daemon, background by a rule: `ss` shows gw_lbe_… on it, and CUBIC on the other",
        needs: "background congestion control (struct_ops)",
        act: scavenger,
    },
    CapabilityProbe {
        capability: "queue by BPF qdisc",
        ran: "backend = \"auto\" at 20 Mbit/s: `tc` shows giveway's qdisc at the root; both uploads at once: background gets less than \
              a tenth of the other, together no more than the rate",
        needs: "BPF qdisc",
        act: |stage| queue(stage, Backend::Bpf),
    },
    CapabilityProbe {
        capability: "marks on packets",
        ran: "20 UDP datagrams that a rule makes background: all arrive at the remote host with DSCP LE (under htb CS1)",
        needs: TCX,
        act: marks,
    },
    CapabilityProbe {
        capability: "admission",
        ran: "a datagram that is due in 200 ms is sent, one that is due now comes back as ENOBUFS, and giveway counts both",
        needs: TCX,
        act: admission,
    },
    CapabilityProbe {
        capability: "[[chain]]",
        ran: "requests over UDP to a port that a [[chain]] names: the thread that handles them has real-time priority",
        needs: TCX,
        act: chain,
    },
    CapabilityProbe {
        capability: "real-time priority at a program's start",
        ran: "a program that a [[priority]] rule names is started under the running daemon: SCHED_FIFO within a second",
        needs: "TCP tracepoints",
        act: realtime,
    },
    CapabilityProbe {
        capability: "nice background",
        ran: "a program that a [[rule]] makes background is started: nice 19 and the idle I/O class",
        needs: "renicing of background processes (task storage)",
        act: nice,
    },
    CapabilityProbe {
        capability: "watchdog undoes after SIGKILL",
        ran: "the daemon is killed with all of the above active: within a second the root qdisc, the congestion control, nice \
              values and priorities are as before, cwnd passes the cap again, and `giveway revert --dry-run` finds nothing",
        needs: "flow monitor",
        act: watchdog,
    },
    CapabilityProbe {
        capability: "queue by htb",
        ran: "a second daemon with backend = \"htb\": `tc` shows its four bands; both uploads at once as above",
        needs: "htb",
        act: |stage| {
            stage.start("htb")?;
            queue(stage, Backend::Htb)
        },
    },
];

/// Tests all of them on this machine. `doctor`: the output of `giveway doctor --json` here.
pub fn run(
    stage: &mut ProbedDevice,
    doctor: &Value,
    mut on_cell: impl FnMut(&CapabilityCell),
) -> Result<Vec<CapabilityCell>> {
    let started = stage.start("auto");
    let mut cells = Vec::new();
    for probe in &PROBES {
        check()?;
        let begun = Instant::now();
        let lacks = lacks(doctor, probe.needs);
        let done = match &started {
            Err(error) => Err(anyhow::anyhow!("the daemon does not start: {error:#}")),
            Ok(()) => (probe.act)(stage),
        };
        let (verdict, said) = match (done, lacks) {
            (Ok(said), None) => (CapabilityVerdict::Works, said),
            (Ok(said), Some(reason)) => (
                CapabilityVerdict::Works,
                format!("{said}; yet `giveway doctor` denies it: {reason}"),
            ),
            (Err(_), Some(reason)) => (CapabilityVerdict::NotHere, reason),
            (Err(error), None) => (CapabilityVerdict::Failed, format!("{error:#}")),
        };
        let cell = CapabilityCell {
            capability: probe.capability.into(),
            verdict,
            said,
            took_s: (begun.elapsed().as_secs_f64() * 10.0).round() / 10.0,
        };
        on_cell(&cell);
        cells.push(cell);
    }
    stage.daemon.as_mut().map_or(Ok(()), Daemon::stop)?;
    Ok(cells)
}

/// Why this kernel lacks it, by `giveway doctor`.
fn lacks(doctor: &Value, capability: &str) -> Option<String> {
    let all = doctor["capabilities"].as_array()?;
    let found = all.iter().find(|one| one["name"] == capability)?;
    Some(found["why_not"].as_str()?.to_owned())
}

fn queue_view(stage: &ProbedDevice) -> Result<QueueView> {
    Ok(answers::status(&stage.device)?.network.queue)
}

fn upload(stage: &ProbedDevice) -> Result<Socket> {
    socket(&stage.device, "dport", UPLOAD)
}

fn receive_window(stage: &mut ProbedDevice) -> Result<String> {
    let before = stage.before.window_bytes;
    let window = |stage: &ProbedDevice| Ok::<_, anyhow::Error>(socket(&stage.peer, "sport", DOWNLOAD)?.window_bytes);
    let mut last = 0;
    let narrowed = wait_until("the window to yield", PATIENCE, || {
        last = window(stage)?;
        Ok(last < before / 2)
    });
    let rate = rates_of_download(stage)?;
    stage.ask_near("end download")?;
    stage.answer_at_once(false)?;
    narrowed.with_context(|| format!("its sender is offered {last} bytes, and was {before} without giveway"))?;
    Ok(format!(
        "{before} bytes without giveway, {last} with it, at {rate:.1} Mbit/s"
    ))
}

fn rates_of_download(stage: &ProbedDevice) -> Result<f64> {
    let before = socket(&stage.peer, "sport", DOWNLOAD)?.acked_bytes;
    let begun = Instant::now();
    pause(1.0)?;
    let bytes = socket(&stage.peer, "sport", DOWNLOAD)?.acked_bytes - before;
    Ok(bytes as f64 * 8e-6 / begun.elapsed().as_secs_f64())
}

fn cap(stage: &mut ProbedDevice) -> Result<String> {
    let before = upload(stage)?.cwnd;
    ensure!(
        before > CAP_SEGMENTS,
        "cwnd was only {before} before: nothing would be shown"
    );
    stage.ask_near("upload")?;
    let is_held = || Ok(upload(stage)?.cwnd <= CAP_SEGMENTS);
    wait_until("cwnd to come down to the cap", PATIENCE, is_held)?;
    let first = upload(stage)?;
    let mut highest = 0;
    for _ in 0..20 {
        pause(0.1)?;
        highest = highest.max(upload(stage)?.cwnd);
    }
    let sent = upload(stage)?.acked_bytes - first.acked_bytes;
    ensure!(
        highest <= CAP_SEGMENTS,
        "cwnd was {highest} under a cap of {CAP_SEGMENTS}"
    );
    ensure!(sent > 0, "nothing was sent meanwhile");
    Ok(format!(
        "cwnd {before} before, at most {highest} under it, {} kB sent meanwhile",
        sent / 1_000
    ))
}

fn monitor(stage: &mut ProbedDevice) -> Result<String> {
    let mut last = String::new();
    let same = wait_until("giveway and `ss` to say the same", PATIENCE, || {
        let around = upload(stage)?;
        let status = answers::status(&stage.device)?;
        let after = upload(stage)?;
        let flow = status
            .network
            .flows
            .iter()
            .find(|flow| flow.flow.remote.port() == UPLOAD);
        let Some(flow) = flow.map(|flow| &flow.flow) else {
            last = "giveway does not show the connection".into();
            return Ok(false);
        };
        let rtt_ms = f64::from(flow.srtt_us) / 1e3;
        let process = flow.owner.as_ref().map_or("nobody", |owner| owner.command.as_str());
        last = format!(
            "giveway: cwnd {}, RTT {rtt_ms:.2} ms, process {process}; ss: cwnd {}, RTT {:.2} ms",
            flow.cwnd, after.cwnd, after.rtt_ms
        );
        let is_cwnd = [around.cwnd, after.cwnd].contains(&flow.cwnd);
        let is_rtt = [around.rtt_ms, after.rtt_ms]
            .iter()
            .any(|rtt| (rtt - rtt_ms).abs() <= 0.5 * rtt.max(0.1));
        Ok(is_cwnd && is_rtt && process == "giveway-lab")
    });
    same.with_context(|| last.clone())?;
    Ok(last)
}

fn scavenger(stage: &mut ProbedDevice) -> Result<String> {
    stage.ask_near("background")?;
    let control = |port| Ok::<_, anyhow::Error>(socket(&stage.device, "dport", port)?.control);
    let ours = wait_for("its congestion control", PATIENCE, || {
        Ok(Some(control(BACKGROUND)?).filter(|name| name.starts_with("gw_lbe_")))
    });
    let ours = ours.with_context(|| format!("giveway says: {}", warnings(stage)))?;
    let other = control(UPLOAD)?;
    ensure!(other == "cubic", "the other connection has {other}");
    Ok(format!("{ours} on it, {other} on the other"))
}

fn warnings(stage: &ProbedDevice) -> String {
    answers::status(&stage.device).map_or_else(|error| format!("{error:#}"), |status| status.daemon.warnings.join("; "))
}

fn queue(stage: &mut ProbedDevice, wanted: Backend) -> Result<String> {
    let done = queue_by(stage, wanted);
    stage.quiet()?;
    done
}

fn queue_by(stage: &mut ProbedDevice, wanted: Backend) -> Result<String> {
    let mut reason = String::new();
    let installed = wait_for("a queue", PATIENCE, || {
        let view = queue_view(stage)?;
        reason = view.reason;
        Ok(view.installed)
    });
    let backend = installed.with_context(|| format!("giveway says: {reason}"))?.backend;
    ensure!(backend == wanted, "giveway put up {backend:?}, and says: {reason}");
    let shown = stage.queue()?;
    let kind = shown.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let is_ours = match wanted {
        Backend::Bpf => kind.starts_with("gw"),
        _ => kind == "htb" && shown.contains("6777:"),
    };
    ensure!(is_ours, "`tc` shows {shown}");
    stage.answer_at_once(true)?;
    stage.ask_near("upload")?;
    stage.ask_near("background")?;
    pause(2.0)?;
    let [foreground, background] = rates(&stage.device, [UPLOAD, BACKGROUND], 3.0)?;
    let measured = format!("{kind} at the root; {foreground:.1} Mbit/s, and background {background:.2} beside it");
    ensure!(foreground > 10.0 * background, "no order: {measured}");
    ensure!(foreground + background <= 1.05 * RATE_MBIT, "not paced: {measured}");
    Ok(measured)
}

fn marks(stage: &mut ProbedDevice) -> Result<String> {
    let view = wait_for("packets to be marked", PATIENCE, || {
        Ok(Some(queue_view(stage)?).filter(|view| !view.marks.is_empty()))
    })?;
    let backend = view.installed.map(|plan| plan.backend);
    let (tos, name) = match backend {
        Some(Backend::Htb) => (DSCP_CS1_TOS, "CS1"),
        _ => (DSCP_LE_TOS, "LE"),
    };
    stage.ask_near("datagrams")?;
    pause(0.5)?;
    let counts: Value = stage.far.ask("")?;
    ensure!(
        counts[tos].as_u64() == Some(DATAGRAMS.into()),
        "by TOS there arrived {counts}, and {DATAGRAMS} with {tos} were wanted"
    );
    Ok(format!("{DATAGRAMS} of {DATAGRAMS} with DSCP {name}"))
}

fn admission(stage: &mut ProbedDevice) -> Result<String> {
    let before = answers::queue_counters(&stage.device)?;
    let in_time = stage.ask_near("in time")?;
    let late = stage.ask_near("late")?;
    let after = answers::queue_counters(&stage.device)?;
    let (admitted, refused) = (
        after.admitted - before.admitted,
        after.refused.total - before.refused.total,
    );
    let backend = queue_view(stage)?.installed.map(|plan| plan.backend);
    ensure!(
        !in_time && late && admitted == 1 && refused == 1,
        "in 200 ms: refused {in_time}; now: refused {late}; counted: admitted {admitted}, refused {refused}"
    );
    Ok(format!(
        "ENOBUFS for the late one alone, before {}",
        match backend {
            Some(Backend::Bpf) => "the BPF qdisc",
            Some(Backend::Htb) => "htb",
            _ => "no giveway queue",
        }
    ))
}

fn chain(stage: &mut ProbedDevice) -> Result<String> {
    let handler = stage.handler.id();
    let raised = wait_until("the handler to be raised", PATIENCE, || Ok(is_realtime(handler)));
    raised.with_context(|| format!("giveway says: {}", priority_warnings(stage)))?;
    Ok("the handler has real-time priority".into())
}

fn priority_warnings(stage: &ProbedDevice) -> String {
    answers::realtime(&stage.device).map_or_else(|error| format!("{error:#}"), |status| status.warnings.join("; "))
}

fn realtime(stage: &mut ProbedDevice) -> Result<String> {
    let program = stage.start_program("granted")?;
    let begun = Instant::now();
    let given = wait_for("real-time priority", PATIENCE, || {
        Ok(is_realtime(program.id()).then_some(begun.elapsed()))
    });
    stage.granted = Some(program);
    let took = given.with_context(|| format!("giveway says: {}", priority_warnings(stage)))?;
    ensure!(took < Duration::from_secs(1), "only after {:.1} s", took.as_secs_f64());
    Ok(format!("{:.1} ms after the start", took.as_secs_f64() * 1e3))
}

fn nice(stage: &mut ProbedDevice) -> Result<String> {
    let program = stage.start_program("nice")?;
    let begun = Instant::now();
    let given = wait_for("it to be nice", PATIENCE, || {
        Ok(is_fully_nice(program.id())?.then_some(begun.elapsed()))
    });
    stage.nice = Some(program);
    let took = given.with_context(|| format!("giveway says: {}", warnings(stage)))?;
    Ok(format!("{:.1} s after the start", took.as_secs_f64()))
}

/// The changes of giveway's that are still active.
fn left(stage: &ProbedDevice) -> Result<Vec<String>> {
    let mut left = Vec::new();
    let queue = stage.queue()?;
    if queue != stage.before.queue {
        left.push(format!("the queue ({queue})"));
    }
    let control = socket(&stage.device, "dport", BACKGROUND)?.control;
    if control != "cubic" {
        left.push(format!("the congestion control {control}"));
    }
    if upload(stage)?.cwnd <= CAP_SEGMENTS {
        left.push("the cap".into());
    }
    for (program, what) in [(&stage.granted, "a rule's priority"), (&stage.nice, "a nice value")] {
        let Some(program) = program else { continue };
        if is_realtime(program.id()) || is_fully_nice(program.id())? {
            left.push(what.into());
        }
    }
    if is_realtime(stage.handler.id()) {
        left.push("a chain's priority".into());
    }
    Ok(left)
}

fn watchdog(stage: &mut ProbedDevice) -> Result<String> {
    stage.answer_at_once(false)?;
    stage.ask_near("upload")?;
    stage.ask_near("background")?;
    pause(2.0)?;
    stage.keep("why.txt", &["why"])?;
    stage.keep("status.txt", &["status"])?;
    let had = left(stage)?;
    let mut daemon = stage.daemon.take().context("no daemon is running")?;
    let begun = Instant::now();
    nix::sys::signal::kill(Pid::from_raw(daemon.process.id()), nix::sys::signal::Signal::SIGKILL)?;
    let mut still = had.clone();
    let undone = wait_for("everything to be undone", GIVEN_UP, || {
        daemon.process.exit()?;
        still = left(stage)?;
        Ok(still.is_empty().then(|| begun.elapsed()))
    });
    stage.quiet()?;
    let took = undone.with_context(|| format!("left: {}", still.join(", ")))?;
    ensure!(
        had.iter().any(|what| what == "the cap"),
        "no cap was active before, only {had:?}"
    );
    let found = answers::others_found(&stage.device)?;
    ensure!(found.is_empty(), "`giveway revert --dry-run` finds {found:?}");
    if took > DEATH {
        bail!(
            "undone only {:.2} s after SIGKILL: {}",
            took.as_secs_f64(),
            had.join(", ")
        );
    }
    Ok(format!("{:.2} s after SIGKILL: {}", took.as_secs_f64(), had.join(", ")))
}
