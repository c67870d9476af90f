// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rate limit of a rule: what all its flows together send, over TCP and UDP, from one socket and from many, before
//! each kind of queue. Every window of ten seconds counts, as the sender's device counts its bytes.

use anyhow::Result;
use serde_json::{Value, json};

use super::iperf3;
use super::passed::{Limit, counted, sample, stays_near};
use crate::channel::STATION_DEVICE;
use crate::experiment::{Run, pause};
use crate::giveway::{Daemon, wait_until_queued};
use crate::guest::Guest;
use crate::link::wire::{RECEIVER_ADDRESS, Wire};
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::scenario::{Plot, Variant};
use crate::traffic::iperf3::Protocol;

const LIMITS_MBIT: [f64; 3] = [0.5, 5.0, 50.0];
/// What floods, and what its line is called.
const FLOODS: [(Protocol, u32, &str, &str); 4] = [
    (Protocol::Tcp, 1, "tcp-1", "TCP, one socket"),
    (Protocol::Tcp, 20, "tcp-20", "TCP, twenty sockets"),
    (Protocol::Udp, 1, "udp-1", "UDP, one socket"),
    (Protocol::Udp, 20, "udp-20", "UDP, twenty sockets"),
];
const LINK_MBIT: f64 = 100.0;
const PORT: u16 = 5201;

/// The queue of the link.
#[derive(Clone, Copy)]
struct LinkQueue {
    name: &'static str,
    backend: &'static str,
    /// Of the link, which the limit does not need.
    rate_mbit: Option<f64>,
    /// For what this machine's kernel may not have.
    guest: Option<Guest>,
    about: &'static str,
}

const HTB: LinkQueue = LinkQueue {
    name: "htb",
    backend: "htb",
    rate_mbit: Some(LINK_MBIT),
    guest: None,
    about: "htb",
};
const QDISC: LinkQueue = LinkQueue {
    name: "qdisc",
    backend: "bpf",
    guest: Some(Guest::VIRTUAL),
    about: "the BPF qdisc",
    ..HTB
};
const UNPACED: LinkQueue = LinkQueue {
    name: "qdisc-unpaced",
    rate_mbit: None,
    about: "the BPF qdisc, which knows no rate of the link",
    ..QDISC
};
const QUEUES: [LinkQueue; 3] = [HTB, QDISC, UNPACED];

#[derive(Clone, Copy)]
struct Trial {
    queue: LinkQueue,
    protocol: Protocol,
    sockets: u32,
    limit_mbit: f64,
    warmup_s: f64,
    seconds: f64,
}

pub fn variants(parameters: &Parameters) -> Result<Vec<Variant>> {
    let mut variants = Vec::new();
    for queue in QUEUES {
        for (protocol, sockets, flood, _) in FLOODS {
            for limit_mbit in LIMITS_MBIT {
                let trial = Trial {
                    queue,
                    protocol,
                    sockets,
                    limit_mbit,
                    warmup_s: parameters.seconds("warmup_s"),
                    seconds: parameters.seconds("seconds"),
                };
                let name = format!("{}/{flood}/{limit_mbit}", queue.name);
                let estimated_s = trial.warmup_s + trial.seconds + 2.0;
                let checks = stays_near(&name);
                let variant = Variant::new(name, queue.guest, estimated_s, move |run| send(run, trial));
                variants.push(variant.expect(checks));
            }
        }
    }
    Ok(variants)
}

pub fn figures() -> Vec<Plot> {
    let figure = |queue: LinkQueue| {
        let line = |(_, _, flood, label)| (label, format!("{}/{flood}", queue.name));
        let file = format!("rate-limit-{}", queue.name);
        let title = format!(
            "What a rule's flows send together, beside its limit: before {}",
            queue.about
        );
        let y = ("goodput_of_limit", "sent, of the limit");
        Plot::sweep(&file, &title, "limit, Mbit/s", y, FLOODS.map(line))
    };
    QUEUES.map(figure).into()
}

/// A flood under a rule with a limit.
fn send(run: &Run, trial: Trial) -> Result<Outcome> {
    let wire = Wire::create()?;
    let mut daemon = Daemon::raise(&wire.sender, &configuration(trial), &run.file(""))?;
    wait_until_queued(&wire.sender)?;
    let _server = iperf3::serve(&wire, PORT, None)?;
    let udp = match trial.protocol {
        Protocol::Tcp => "",
        Protocol::Udp => "--udp --bitrate 0 --length 1400",
    };
    // Longer than it is looked at: it is ended.
    let length_s = trial.warmup_s + trial.seconds + 60.0;
    let words = format!("--parallel {} {udp}", trial.sockets);
    let _client = iperf3::send(&wire, PORT, length_s, &words)?;
    run.progress.tick("sending");
    pause(trial.warmup_s)?;
    let sent = sample(trial.seconds, || {
        Ok(vec![counted(&wire.sender, STATION_DEVICE, "tx/bytes")?])
    })?;
    run.keep(&sent[0])?;
    let limit = Limit {
        mbit: trial.limit_mbit,
        seconds: trial.seconds,
    };
    let mut outcome = Outcome::default();
    limit.set_metrics(&mut outcome, run.name, "goodput_of_limit", &sent[0])?;
    daemon.stop()?;
    Ok(outcome)
}

fn configuration(trial: Trial) -> Value {
    let link = trial.queue.rate_mbit.map(|rate_mbit| json!({"rate_mbit": rate_mbit}));
    json!({
        "cap": {"policy": "none"},
        "link": link.unwrap_or_else(|| json!({})),
        "queue": {"backend": trial.queue.backend},
        "rule": [{"address": RECEIVER_ADDRESS, "class": "bulk", "rate_limit_mbit": trial.limit_mbit}],
    })
}
