// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model, in steps of a millisecond and whole packets: CUBIC's window growth and its response to loss, fq_codel's
//! fairness and drops.

use std::collections::VecDeque;

use super::super::*;

const PACKET: f64 = 1514.0;
const SEGMENT: u32 = 1448;
/// The modem's buffer.
const BELOW_PACKETS: usize = 1_000;
const OURS_PACKETS: usize = 1_000;
/// The buffer before a slow remote host.
const FAR_PACKETS: f64 = 500.0;
const POLL_MS: u64 = 100;

#[derive(Clone, Copy)]
pub enum Load {
    Cubic {
        round_trip_ms: u64,
    },
    Udp {
        mbit: f64,
    },
    /// Not before that time.
    UdpFrom {
        mbit: f64,
        from_s: f64,
    },
    /// Behind the same modem, but not through giveway's queue.
    Stranger {
        round_trip_ms: u64,
    },
    /// The path continues over a slower link with its own queue.
    SlowRemoteHost {
        round_trip_ms: u64,
        mbit: f64,
    },
    /// Its remote host acknowledges a packet every so many milliseconds; it keeps so many in flight and ignores losses.
    Hoards {
        packets: u64,
        every_ms: u64,
    },
}

#[derive(Clone, Copy, PartialEq)]
pub enum Way {
    /// Giveway's queue neither shapes nor drops.
    Plain,
    /// It knows the true rate.
    Told,
    Auto,
}

pub struct Link(Box<dyn Fn(f64) -> f64>);

impl Link {
    pub fn new(mbit: impl Fn(f64) -> f64 + 'static) -> Self {
        Self(Box::new(mbit))
    }

    /// Every half second the rate is multiplied by 2^x, x uniform in -1 to 1, and reflected at 1 and 20 Mbit/s.
    pub fn trace(seed: u64) -> Self {
        let mut state = seed;
        let mut next = move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) as f64 / u64::MAX as f64
        };
        let most = 20_f64.log2();
        let mut at = most / 2.0;
        let mbit: Vec<f64> = (0..200)
            .map(|_| {
                at = (at + 2.0 * next() - 1.0).abs();
                at = most - (most - at).abs();
                at.exp2()
            })
            .collect();
        Self::new(move |t_s| mbit[(t_s * 2.0) as usize])
    }
}

#[derive(Debug)]
#[allow(dead_code, reason = "shown where a bound is missed")]
pub struct Ran {
    pub goodput_mbit: f64,
    /// At the bottleneck.
    pub below_p50_ms: f64,
    pub below_p95_ms: f64,
    /// In both.
    pub wait_p50_ms: f64,
    pub wait_p95_ms: f64,
    /// The fraction of the packets sent under a guarantee that waited 10 ms longer at the bottleneck than guaranteed.
    pub broken: f64,
    /// Finally; infinite: not shaping.
    pub paced_mbit: f64,
}

#[derive(Clone, Copy)]
struct Packet {
    flow: usize,
    queued_ms: u64,
    below_ms: u64,
    promised_ms: Option<u64>,
}

#[derive(Default)]
struct CoDel {
    above_since: Option<u64>,
    next_drop: Option<u64>,
    count: u32,
}

struct Flow {
    round_trip_ms: Option<u64>,
    is_ours: bool,
    udp_per_ms: f64,
    from_ms: u64,
    due: f64,
    cwnd: f64,
    ssthresh: f64,
    most: f64,
    reduced_ms: u64,
    recovers_until: u64,
    in_flight: u64,
    smoothed_ms: f64,
    latest_ms: u64,
    delivered: u32,
    /// Over the slower link: the time for a packet, and when it is free.
    far_packet_ms: f64,
    far_free_ms: f64,
    hoards: bool,
    queue: VecDeque<Packet>,
    codel: CoDel,
}

impl Flow {
    fn new(load: Load) -> Self {
        let (round_trip_ms, udp_per_ms) = match load {
            Load::Cubic { round_trip_ms }
            | Load::Stranger { round_trip_ms }
            | Load::SlowRemoteHost { round_trip_ms, .. } => (Some(round_trip_ms), 0.0),
            Load::Hoards { .. } => (Some(20), 0.0),
            Load::Udp { mbit } | Load::UdpFrom { mbit, .. } => (None, mbit * 125.0 / PACKET),
        };
        Self {
            round_trip_ms,
            is_ours: !matches!(load, Load::Stranger { .. }),
            udp_per_ms,
            from_ms: match load {
                Load::UdpFrom { from_s, .. } => (from_s * 1e3) as u64,
                _ => 0,
            },
            due: 0.0,
            cwnd: match load {
                Load::Hoards { packets, .. } => packets as f64,
                _ => 10.0,
            },
            ssthresh: f64::INFINITY,
            most: 0.0,
            reduced_ms: 0,
            recovers_until: 0,
            in_flight: 0,
            smoothed_ms: round_trip_ms.unwrap_or(0) as f64,
            latest_ms: round_trip_ms.unwrap_or(0),
            delivered: 0,
            far_packet_ms: match load {
                Load::SlowRemoteHost { mbit, .. } => PACKET / (mbit * 125.0),
                Load::Hoards { every_ms, .. } => every_ms as f64,
                _ => 0.0,
            },
            far_free_ms: 0.0,
            hoards: matches!(load, Load::Hoards { .. }),
            queue: VecDeque::new(),
            codel: CoDel::default(),
        }
    }

    /// RFC 9438, without its region for small windows.
    fn acknowledged(&mut self, now_ms: u64, sent_ms: u64) {
        self.latest_ms = now_ms - sent_ms;
        self.smoothed_ms += ((now_ms - sent_ms) as f64 - self.smoothed_ms) / 8.0;
        self.in_flight -= 1;
        self.delivered += 1;
        if now_ms < self.recovers_until || self.hoards {
            return;
        }
        if self.cwnd < self.ssthresh {
            self.cwnd += 1.0;
            return;
        }
        let t = (now_ms - self.reduced_ms) as f64 / 1e3;
        let k = (self.most * 0.3 / 0.4).cbrt();
        let wanted = 0.4 * (t + 0.05 - k).powi(3) + self.most;
        let reno = self.most * 0.7 + 0.53 * t / (self.round_trip_ms.unwrap_or(1) as f64 / 1e3);
        let wanted = wanted.max(reno).min(1.5 * self.cwnd);
        self.cwnd += ((wanted - self.cwnd) / self.cwnd).max(0.01 / self.cwnd);
    }

    fn lost(&mut self, now_ms: u64, until_ms: u64) {
        self.in_flight -= 1;
        if now_ms < self.recovers_until || self.hoards {
            return;
        }
        self.most = if self.cwnd < self.most {
            self.cwnd * 0.85
        } else {
            self.cwnd
        };
        self.cwnd = (self.cwnd * 0.7).max(2.0);
        self.ssthresh = self.cwnd;
        (self.reduced_ms, self.recovers_until) = (now_ms, until_ms);
    }
}

/// RFC 8289.
fn drops(codel: &mut CoDel, now_ms: u64, sojourn_ms: u64, target_ms: u64, interval_ms: u64, left: usize) -> bool {
    if sojourn_ms < target_ms || left == 0 {
        (codel.above_since, codel.next_drop) = (None, None);
        return false;
    }
    let since = *codel.above_since.get_or_insert(now_ms);
    if now_ms - since < interval_ms {
        return false;
    }
    let next = codel.next_drop.get_or_insert_with(|| {
        codel.count = codel.count.saturating_sub(2);
        now_ms
    });
    if now_ms < *next {
        return false;
    }
    codel.count += 1;
    *next += (interval_ms as f64 / f64::from(codel.count).sqrt()) as u64;
    true
}

enum Event {
    Acknowledged(usize, u64),
    Lost(usize),
}

pub fn run(link: &Link, load: &[Load], way: Way, warmup_s: f64, seconds: f64) -> Ran {
    let mut flows: Vec<Flow> = load.iter().map(|load| Flow::new(*load)).collect();
    let mut events: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
    let mut below: VecDeque<Packet> = VecDeque::new();
    let (mut credit, mut link_credit) = (0.0, 0.0);
    let mut measured = Measured::default();
    let (mut sent, mut tcp_sent, mut turn) = (0_u64, 0_u64, 0);
    let (mut arrived, mut belows, mut waits) = (0_u64, Vec::new(), Vec::new());
    let (mut promised, mut broken) = (0_u64, 0_u64);
    let [begin_ms, end_ms] = [warmup_s * 1e3, (warmup_s + seconds) * 1e3].map(|ms| ms as u64);
    let jitter = |now_ms: u64| now_ms * 7 % 3;
    for now_ms in 0..end_ms {
        let mbit = (link.0)(now_ms as f64 / 1e3);
        for event in events.remove(&now_ms).unwrap_or_default() {
            match event {
                Event::Acknowledged(flow, sent_ms) => flows[flow].acknowledged(now_ms, sent_ms),
                Event::Lost(flow) => {
                    let until = now_ms + flows[flow].round_trip_ms.unwrap_or(1);
                    flows[flow].lost(now_ms, until);
                }
            }
        }
        for (number, flow) in flows.iter_mut().enumerate() {
            flow.due += if now_ms < flow.from_ms { 0.0 } else { flow.udp_per_ms };
            while (flow.round_trip_ms.is_some() && flow.in_flight < flow.cwnd as u64) || flow.due >= 1.0 {
                flow.due = (flow.due - 1.0).max(0.0);
                flow.in_flight += 1;
                let packet = Packet {
                    flow: number,
                    queued_ms: now_ms,
                    below_ms: now_ms,
                    promised_ms: None,
                };
                if !flow.is_ours && below.len() < BELOW_PACKETS {
                    below.push_back(packet);
                } else if flow.is_ours && flow.queue.len() < OURS_PACKETS {
                    flow.queue.push_back(packet);
                } else {
                    events
                        .entry(now_ms + flow.round_trip_ms.unwrap_or(1))
                        .or_default()
                        .push(Event::Lost(number));
                }
            }
        }
        let paced = match way {
            Way::Plain => f64::INFINITY,
            Way::Told => mbit * 125_000.0,
            Way::Auto => measured.paced_bytes_per_s().unwrap_or(f64::INFINITY),
        };
        // As `Queue::plan` has it.
        let target_ms = 1.5 * PACKET * 1e3 / paced;
        let target_ms = target_ms.max(5.0) + measured.patience().as_secs_f64() * 1e3;
        let interval_ms = (2.0 * target_ms).max(100.0);
        credit = f64::min(credit + paced / 1e3, PACKET + paced / 1e3);
        while credit >= PACKET && flows.iter().any(|flow| !flow.queue.is_empty()) {
            turn = (turn + 1) % flows.len();
            let flow = &mut flows[turn];
            let Some(mut packet) = flow.queue.pop_front() else {
                continue;
            };
            let (sojourn, left) = (now_ms - packet.queued_ms, flow.queue.len());
            let round_trip_ms = flow.round_trip_ms.unwrap_or(1);
            let is_dropped = way != Way::Plain
                && drops(
                    &mut flow.codel,
                    now_ms,
                    sojourn,
                    target_ms as u64,
                    interval_ms as u64,
                    left,
                );
            if is_dropped {
                events
                    .entry(now_ms + round_trip_ms + 1)
                    .or_default()
                    .push(Event::Lost(turn));
                continue;
            }
            credit -= PACKET;
            sent += PACKET as u64;
            tcp_sent += if flow.round_trip_ms.is_some() { PACKET as u64 } else { 0 };
            packet.below_ms = now_ms;
            packet.promised_ms = measured.promise().map(|promise| promise.below.as_millis() as u64);
            if below.len() < BELOW_PACKETS {
                below.push_back(packet);
            } else {
                events
                    .entry(now_ms + round_trip_ms + 1)
                    .or_default()
                    .push(Event::Lost(turn));
            }
        }
        link_credit = f64::min(link_credit + mbit * 125.0, PACKET + mbit * 125.0);
        while link_credit >= PACKET {
            let Some(packet) = below.pop_front() else { break };
            link_credit -= PACKET;
            let round_trip_ms = flows[packet.flow].round_trip_ms;
            // With a little jitter.
            let at = now_ms + round_trip_ms.unwrap_or(1).max(1) + jitter(now_ms);
            let flow = &mut flows[packet.flow];
            let waits_ms = (flow.far_free_ms - now_ms as f64).max(0.0);
            let is_full = waits_ms > FAR_PACKETS * flow.far_packet_ms;
            let (at, event) = if is_full && flow.far_packet_ms > 0.0 && !flow.hoards {
                (at + waits_ms as u64, Event::Lost(packet.flow))
            } else {
                flow.far_free_ms = now_ms as f64 + waits_ms + flow.far_packet_ms;
                (at + waits_ms as u64, Event::Acknowledged(packet.flow, packet.queued_ms))
            };
            events.entry(at).or_default().push(event);
            if now_ms >= begin_ms {
                belows.push(now_ms - packet.below_ms);
                waits.push(now_ms - packet.queued_ms);
                promised += u64::from(packet.promised_ms.is_some());
                broken += u64::from(packet.promised_ms.is_some_and(|ms| now_ms - packet.below_ms > ms + 10));
                let flow = &flows[packet.flow];
                arrived += u64::from(flow.is_ours && flow.round_trip_ms.is_some() && !flow.hoards);
            }
        }
        if now_ms % POLL_MS == 0 && way == Way::Auto {
            let sockets: Vec<Socket> = flows
                .iter()
                .enumerate()
                .filter(|(_, flow)| flow.is_ours)
                .filter_map(|(number, flow)| {
                    Some(Socket {
                        cookie: Cookie(number as u64),
                        delivered_segments: flow.delivered,
                        acked_bytes: u64::from(flow.delivered) * u64::from(SEGMENT),
                        in_flight_bytes: flow.in_flight * u64::from(SEGMENT),
                        segment_bytes: SEGMENT,
                        min_rtt: Some(Duration::from_millis(flow.round_trip_ms?)),
                        smoothed_rtt: Duration::from_secs_f64(flow.smoothed_ms / 1e3),
                        latest_rtt: Some(Duration::from_millis(flow.latest_ms)),
                    })
                })
                .collect();
            let queued = |counts: fn(&&Flow) -> bool| -> u64 {
                let packets: usize = flows.iter().filter(counts).map(|flow| flow.queue.len()).sum();
                packets as u64 * PACKET as u64
            };
            let passed = LinkCounters {
                sent_bytes: sent,
                backlog_bytes: queued(|_| true),
                tcp_sent_bytes: tcp_sent,
                tcp_backlog_bytes: queued(|flow| flow.round_trip_ms.is_some()),
            };
            measured.observe(Duration::from_millis(now_ms + 1_000), &sockets, passed);
        }
    }
    let percentile = |all: &mut Vec<u64>, part: f64| {
        all.sort_unstable();
        all.get((all.len() as f64 * part) as usize)
            .map_or(f64::NAN, |ms| *ms as f64)
    };
    Ran {
        goodput_mbit: arrived as f64 * f64::from(SEGMENT) * 8.0 / 1e6 / seconds,
        below_p50_ms: percentile(&mut belows, 0.5),
        below_p95_ms: percentile(&mut belows, 0.95),
        wait_p50_ms: percentile(&mut waits, 0.5),
        wait_p95_ms: percentile(&mut waits, 0.95),
        broken: broken as f64 / promised.max(1) as f64,
        paced_mbit: measured.paced_bytes_per_s().map_or(f64::INFINITY, |rate| rate / 125e3),
    }
}
