// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page and a call beside downloads of the same device, which meet in a router's queue before they arrive: how long the page
//! takes, how long the call's packets wait, and what the downloads still get. Where the link's rate is known, bulk and
//! background yield as they arrive; where it is not, background has its receive windows alone.

use std::time::Duration;

use anyhow::Result;
use giveway_engine::downlink::PART;
use serde_json::json;

use super::crossing::{Crossing, FAR_ADDRESS, RouterLink, RouterQueue, SECOND_ADDRESS};
use crate::channel::STATION_DEVICE;
use crate::experiment::{Run, pause};
use crate::giveway::{Daemon, answers};
use crate::guest::Guest;
use crate::interrupt::wait_until;
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::scenario::{Check, Relation, Variant};
use crate::statistics::{mean, percentile};
use crate::traffic::endless::{Arrivals, start_probe, start_sender, start_sink};
use crate::traffic::http::{Client, HttpMethod, KB, RemoteHost};
use crate::traffic::realtime::monotonic_ns;

/// It has every queue, a delay, and a clock that the machine does not disturb.
const GUEST: Guest = Guest::VIRTUAL;
/// An emulated processor passes no more than this.
const LINK_MBIT: f64 = 20.0;
const RTTS_MS: [u64; 2] = [20, 80];
const QUEUES: [RouterQueue; 3] = [RouterQueue::Fifo100, RouterQueue::Fifo1000, RouterQueue::FqCodel];
const CLASSES: [&str; 2] = ["background", "bulk"];
const CONNECTIONS: [usize; 2] = [1, 8];
const PORT: u16 = 5_501;
/// The call alone, before the downloads.
const IDLE_S: f64 = 3.0;
/// Of the call beside them, until its own beginning is over.
const CALL_BEGINS_S: f64 = 5.0;
const BETWEEN_REQUESTS_S: f64 = 0.5;
const INSTALLED_WITHIN: Duration = Duration::from_secs(60);
/// CAKE at the ingress: of the rate, as its authors advise.
const CAKE: f64 = 0.9;

const PAGE: f64 = 1.05;
const PAGE_BESIDE_BULK: f64 = 1.2;
const CALL_WAITS_MS: f64 = 20.0;

#[derive(Clone, Copy, PartialEq)]
enum Treatment {
    Plain,
    /// At this part of the rate.
    Cake(f64),
    /// giveway; None: it does not know the rate. It is told so much of the rate, of which bulk and background have [`PART`].
    Giveway(Option<f64>),
}

#[derive(Clone, Copy, PartialEq)]
struct DownloadLoad {
    class: &'static str,
    connections: usize,
}

#[derive(Clone)]
struct Trial {
    link: RouterLink,
    way: Treatment,
    load: Option<DownloadLoad>,
    warmup_s: f64,
    seconds: f64,
    requests: u64,
    sizes_kb: Vec<u64>,
}

impl Treatment {
    /// All that arrives has what bulk and background have at most.
    const SHAPED: Self = Self::Cake(PART);
    const KNOWN: Self = Self::Giveway(Some(1.0));
    const ALL: [Self; 4] = [Self::Plain, Self::Cake(CAKE), Self::Giveway(None), Self::KNOWN];
    /// Bulk and background have so much of the link.
    const OTHER_PARTS: [Self; 3] = [
        Self::Giveway(Some(0.75 / PART)),
        Self::Giveway(Some(0.85 / PART)),
        Self::Giveway(Some(0.9 / PART)),
    ];

    fn name(self) -> String {
        match self {
            Self::Plain => "plain".to_owned(),
            Self::Cake(CAKE) => "cake".to_owned(),
            Self::Cake(_) => "shaped".to_owned(),
            Self::Giveway(None) => "unknown".to_owned(),
            Self::KNOWN => "known".to_owned(),
            Self::Giveway(Some(of_rate)) => format!("known-{:.0}", 100.0 * PART * of_rate),
        }
    }
}

pub fn variants(parameters: &Parameters) -> Result<Vec<Variant>> {
    let sizes_kb = parameters.counts("sizes_kb")?;
    let variant = |(link, way, load): (RouterLink, Treatment, Option<DownloadLoad>)| {
        let place = format!("{}ms/{}", link.rtt_ms, link.queue.name());
        let what = load.map_or("alone".to_owned(), |load| {
            format!("{}-{}", load.class, load.connections)
        });
        let name = format!("{place}/{what}/{}", way.name());
        let checks = match (way, load) {
            (Treatment::Giveway(known), Some(load)) if Treatment::ALL.contains(&way) => {
                let alone = match (known, load.class) {
                    (None, _) => Treatment::Plain,
                    (Some(_), "background") => Treatment::SHAPED,
                    (Some(_), _) => Treatment::KNOWN,
                };
                let alone = format!("{place}/alone/{}", alone.name());
                load.checks(&name, &alone, known.is_some(), &sizes_kb)
            }
            _ => Vec::new(),
        };
        let trial = Trial {
            link,
            way,
            load,
            warmup_s: parameters.seconds("warmup_s"),
            seconds: parameters.seconds("seconds"),
            requests: parameters.count("requests"),
            sizes_kb: sizes_kb.clone(),
        };
        trial.variant(name).expect(checks)
    };
    Ok(cells().into_iter().map(variant).collect())
}

/// In each place the page and the call alone, and beside downloads; in the first one with other parts of the rate too.
fn cells() -> Vec<(RouterLink, Treatment, Option<DownloadLoad>)> {
    let mut cells = Vec::new();
    for (rtt_ms, queue) in RTTS_MS
        .into_iter()
        .flat_map(|rtt_ms| QUEUES.map(|queue| (rtt_ms, queue)))
    {
        let link = RouterLink {
            queue,
            mbit: LINK_MBIT,
            rtt_ms,
        };
        let mut add = |ways: &[Treatment], load| cells.extend(ways.iter().map(|way| (link, *way, load)));
        let load = |class, connections| Some(DownloadLoad { class, connections });
        add(&[Treatment::Plain, Treatment::KNOWN, Treatment::SHAPED], None);
        if (rtt_ms, queue) == (RTTS_MS[0], QUEUES[0]) {
            CLASSES
                .into_iter()
                .for_each(|class| add(&Treatment::OTHER_PARTS, load(class, 8)));
        }
        for class in CLASSES {
            for connections in CONNECTIONS {
                add(&Treatment::ALL, load(class, connections));
            }
        }
    }
    cells
}

impl DownloadLoad {
    fn checks(self, name: &str, alone: &str, is_known: bool, sizes_kb: &[u64]) -> Vec<Check> {
        let is_background = self.class == "background";
        let page = |kb: &u64| {
            let (ours, over) = (format!("{name}/get/{kb}"), format!("{alone}/get/{kb}"));
            let most = if is_background { PAGE } else { PAGE_BESIDE_BULK };
            let holds = Relation::AtMost(most);
            let check = Check::ratio(format!("{ours} / {over}"), &ours, &over, "completion_mean_s", holds);
            // Beside bulk nothing is promised without a rate.
            if is_background || is_known { check } else { check.goal() }
        };
        let mut checks: Vec<Check> = sizes_kb.iter().map(page).collect();
        if is_known {
            let waits = Check::metric(name, "call_waits_p95_ms", Relation::AtMost(CALL_WAITS_MS));
            checks.push(waits);
            let left = |percent| Check::metric(name, "load_percent_of_left", Relation::AtLeast(percent));
            checks.extend([left(60.0), left(80.0).goal()]);
        }
        checks
    }
}

impl Trial {
    fn variant(self, name: String) -> Variant {
        let size_s: f64 = self.sizes_kb.iter().map(|kb| 1.0 + *kb as f64 / 500.0).sum();
        let seconds = 20.0 + self.warmup_s + self.seconds + self.requests as f64 * size_s;
        Variant::new(name, Some(GUEST), seconds, move |run| self.run(run))
    }

    /// A call alone and beside the downloads, then pages beside them.
    fn run(&self, run: &Run) -> Result<Outcome> {
        let crossing = Crossing::raise(self.link)?;
        let ([source, other], device) = (&crossing.devices, &crossing.far);
        let _daemon = self.prepare(device, run)?;
        let _remote_host = RemoteHost::start(other)?;
        let sink = start_sink(device, &[PORT])?;
        let mut client = Client::start(device, SECOND_ADDRESS.parse()?, None)?;
        // The first finds cold caches everywhere.
        client.request(HttpMethod::Get, KB)?;
        let call = start_probe(other, FAR_ADDRESS)?;
        let idle = monotonic_ns()?;
        pause(IDLE_S)?;
        run.progress.tick("downloading");
        let begun = monotonic_ns()?;
        let connections = self.load.map_or(0, |load| load.connections);
        let downloads = (0..connections).map(|_| start_sender(source, FAR_ADDRESS, PORT, "cubic"));
        let _downloads: Vec<_> = downloads.collect::<Result<_>>()?;
        pause(self.warmup_s.max(CALL_BEGINS_S))?;
        let beside = monotonic_ns()?;
        pause(self.seconds)?;
        let beside = (beside, monotonic_ns()?);
        drop(call);
        let mut outcome = Outcome::default();
        for kb in &self.sizes_kb {
            run.progress.tick(&format!("pages of {kb} kB"));
            let request = |_| {
                pause(BETWEEN_REQUESTS_S)?;
                Ok(client.request(HttpMethod::Get, kb * KB)?.seconds)
            };
            let seconds: Vec<f64> = (0..self.requests).map(request).collect::<Result<_>>()?;
            let point = format!("{}/get/{kb}", run.name);
            outcome.set(&point, "completion_mean_s", mean(&seconds));
            outcome.set(&point, "completion_p95_s", percentile(&seconds, 95.0));
        }
        let arrivals: Arrivals = sink.finish()?;
        run.keep(&arrivals)?;
        let idle_ms = percentile(&arrivals.delays_ms((idle, begun)), 50.0);
        for (metric, percent) in [("call_waits_p50_ms", 50.0), ("call_waits_p95_ms", 95.0)] {
            let waits_ms = percentile(&arrivals.delays_ms(beside), percent);
            let added_ms = waits_ms.zip(idle_ms).map(|(waits, idle)| waits - idle);
            outcome.set(run.name, metric, added_ms);
        }
        if self.load.is_some() {
            let mbit = arrivals.mbit(PORT, beside);
            outcome.set(run.name, "load_mbit", mbit);
            // With headers, as the link's rate. The call has next to nothing.
            outcome.set(run.name, "load_percent_of_left", 100.0 * mbit / LINK_MBIT);
        }
        Ok(outcome)
    }

    fn prepare(&self, device: &Namespace, run: &Run) -> Result<Option<Daemon>> {
        match self.way {
            Treatment::Plain => Ok(None),
            Treatment::Cake(part) => {
                let (mbit, interface) = (part * LINK_MBIT, STATION_DEVICE);
                device.ip("link add ifb-cake type ifb")?;
                device.ip("link set ifb-cake up")?;
                device.tc(&format!(
                    "qdisc add dev ifb-cake root cake bandwidth {mbit}mbit ingress"
                ))?;
                device.tc(&format!("qdisc add dev {interface} clsact"))?;
                device.tc(&format!(
                    "filter add dev {interface} ingress matchall action mirred egress redirect dev ifb-cake"
                ))?;
                Ok(None)
            }
            Treatment::Giveway(of_rate) => self.start_daemon(device, of_rate, run).map(Some),
        }
    }

    fn start_daemon(&self, device: &Namespace, of_rate: Option<f64>, run: &Run) -> Result<Daemon> {
        let class = self.load.map_or("bulk", |load| load.class);
        let mut configuration = json!({
            "cap": {"policy": "none"},
            "queue": {"backend": "none"},
            "rule": [{"local_port": PORT, "class": class}],
        });
        if let Some(of_rate) = of_rate {
            configuration["link"] = json!({"download_rate_mbit": of_rate * LINK_MBIT});
        }
        let daemon = Daemon::raise(device, &configuration, &run.file(""))?;
        if of_rate.is_some() {
            wait_until("what arrives is ordered", INSTALLED_WITHIN, || {
                let downloads = answers::status(device)?.network.downloads;
                Ok(!downloads.orders.is_empty())
            })?;
        }
        Ok(daemon)
    }
}
