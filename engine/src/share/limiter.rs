// SPDX-License-Identifier: Apache-2.0 OR MIT
//! This device's part of the managed link: asks the policy for the limits of each connection, and requests those that
//! differ. Input: flows, the link and its peers. Output: requests with their reasons, the cap table for new
//! connections, and what to report to the peers. The outcome of a request belongs to [`crate::sockets::requests`].
//! (Limits of rules and of `limit set` are no shares: [`crate::downlink`].)

use std::time::Duration;

use crate::change::{Change, Reason, Value};
use crate::model::Cookie;
use crate::peers::codec::MAX_SENDERS;
use crate::peers::{PeerGroup, Sender, UNLIMITED_KBIT};
use crate::queue::traffic::QueueCounters;
use crate::share::{Limits, Link, Member, SharePolicy, Sharing};
use crate::sockets::flows::{Flows, Tracked};
use crate::sockets::setting::{OF_SENDERS, Request, SettingState, Terms};

/// A change of demand is reported at once no more often than this.
const BETWEEN_DEMANDS: Duration = Duration::from_secs(1);

/// Why a limit was cleared that a policy would have kept.
pub(crate) const ELSEWHERE: &str = "the connection no longer leaves by the managed interface";

/// The managed link and the peers on it.
#[derive(Clone, Copy)]
pub struct Medium<'a> {
    /// None: there is no managed link.
    pub ifindex: Option<u32>,
    pub peers: &'a PeerGroup,
    pub queue: Option<&'a QueueCounters>,
}

/// The caps for new connections on this link, by handshake RTT; 0: none.
#[derive(Clone, Debug, PartialEq)]
pub struct CapTable {
    pub ifindex: u32,
    pub caps: Vec<u32>,
}

/// Changes to report to the peers at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DemandChange {
    Stopped,
    Started,
    Other,
}

pub struct Limiter {
    policy: Box<dyn SharePolicy>,
    sharing: Sharing,
    /// This device's connections that could send more than allowed, as last reported.
    wanting_told: usize,
    /// When a change of that was last reported at once.
    demand_told: Duration,
    /// The RTTs at which the kernel distinguishes new connections, ascending; and the last table requested.
    rtt_resolution: Vec<Duration>,
    table: CapTable,
}

impl Limiter {
    pub fn new(policy: Box<dyn SharePolicy>, rtt_resolution: Vec<Duration>) -> Self {
        Self {
            policy,
            sharing: Sharing::default(),
            wanting_told: 0,
            demand_told: Duration::ZERO,
            table: CapTable {
                ifindex: 0,
                caps: vec![0; rtt_resolution.len()],
            },
            rtt_resolution,
        }
    }

    pub fn policy(&self) -> &dyn SharePolicy {
        &*self.policy
    }

    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    pub fn link<'a>(&self, medium: Medium<'a>) -> Link<'a> {
        Link {
            sharing: self.sharing,
            peers: medium.peers,
            queue: medium.queue,
        }
    }

    /// The managed interface is another one.
    pub fn forget(&mut self) {
        self.policy.forget();
    }

    /// Whether the sending devices have changed since they were last counted.
    pub fn is_outdated(&self, peers: &PeerGroup) -> bool {
        devices(peers, self.sharing.connections) != self.sharing.devices
    }

    /// The senders that share the link, if that has changed, and what to report to the peers.
    pub fn count(
        &mut self,
        now: Duration,
        flows: &Flows,
        medium: Medium<'_>,
    ) -> (Option<Sharing>, Option<DemandChange>) {
        let connections = senders(flows, medium).count() as u32;
        let sharing = Sharing {
            devices: devices(medium.peers, connections),
            connections,
        };
        let before = std::mem::replace(&mut self.sharing, sharing);
        // Such a report takes airtime like that of a start, so it is rare, and left out while no peer uses it.
        let is_time = now.saturating_sub(self.demand_told) >= BETWEEN_DEMANDS;
        let is_other = || self.policy.shares_by_demand() && is_time && wanting(flows, medium) != self.wanting_told;
        let change = match connections {
            0 if before.connections > 0 => Some(DemandChange::Stopped),
            more if more > before.connections => Some(DemandChange::Started),
            1.. if is_other() => Some(DemandChange::Other),
            _ => None,
        };
        if change == Some(DemandChange::Other) {
            self.demand_told = now;
        }
        ((sharing != before).then_some(sharing), change)
    }

    /// The senders to report to the peers, as many as fit into a report.
    pub fn reported(&self, flows: &Flows, medium: Medium<'_>) -> Vec<Sender> {
        let demand = self.policy.demand();
        let told = senders(flows, medium).map(|tracked| describe(tracked, demand));
        told.take(MAX_SENDERS).collect()
    }

    pub fn note_told(&mut self, flows: &Flows, medium: Medium<'_>) {
        self.wanting_told = wanting(flows, medium);
    }

    /// Limits for the connections that send.
    pub fn limit_senders(
        &mut self,
        now: Duration,
        flows: &mut Flows,
        medium: Medium<'_>,
        is_poll: bool,
    ) -> Vec<Request> {
        let members: Vec<Member> = senders(flows, medium).filter_map(Tracked::member).collect();
        let link = self.link(medium);
        let limits = self.policy.allot(now, &link, &members);
        let terms = Terms {
            sharing: self.sharing,
            settled_within: self.policy.settled_within(),
            may_raise: is_poll,
            clears_at_once: self.policy.clears_at_once(),
        };
        let mut requests = Vec::new();
        for (member, limits) in members.iter().zip(limits) {
            let Some(tracked) = flows.get_mut(member.cookie) else {
                continue;
            };
            let rtt = tracked.rtt().unwrap_or_default();
            let mut settings = Vec::new();
            for setting in OF_SENDERS {
                let value = limits.of(&setting);
                if value == Value::default() && !tracked.settings.contains_key(&setting) {
                    continue;
                }
                let state = tracked.settings.entry(setting.clone()).or_default();
                if let Some(value) = state.next(&setting, terms, value, &tracked.flow) {
                    settings.push(state.ask(&setting, value, self.reason(&link, rtt)));
                }
            }
            requests.push(Request {
                cookie: member.cookie,
                settings,
            });
        }
        requests
    }

    /// Limits left over from busier times: cleared on connections that no longer leave by the managed interface, and
    /// raised on idle ones to what a new one would get.
    pub fn limit_idle(&self, flows: &mut Flows, medium: Medium<'_>) -> Vec<Request> {
        let link = self.link(medium);
        let newcomer = self.policy.newcomer(&link);
        let of_socket = |tracked: &mut Tracked| {
            let rtt = tracked.rtt()?;
            // 0: no route at the moment, which proves nothing.
            let is_elsewhere = ![Some(0), medium.ifindex].contains(&Some(tracked.flow.ifindex));
            let (limits, is_idle) = match is_elsewhere {
                true => (Limits::default(), true),
                false => (newcomer(rtt), !tracked.sending),
            };
            let reason = || match is_elsewhere {
                true => self.because(ELSEWHERE.to_owned()),
                false => self.reason(&link, rtt),
            };
            let of_senders = tracked.settings.iter_mut();
            let settings = of_senders
                .filter(|(setting, _)| OF_SENDERS.contains(setting))
                .filter_map(|(setting, state)| {
                    let wish = limits.of(setting);
                    let is_less = if is_elsewhere { is_other } else { is_less };
                    (is_idle && state.may_change() && is_less(state, &wish)).then(|| state.ask(setting, wish, reason()))
                });
            Some(Request {
                settings: settings.collect(),
                cookie: tracked.flow.cookie,
            })
        };
        let limited = flows.iter_mut().filter(|tracked| !tracked.settings.is_empty());
        limited.filter_map(of_socket).collect()
    }

    /// The cap table for new connections, if it has changed; `is_on`: false removes all caps.
    pub fn limit_new(&mut self, medium: Medium<'_>, is_on: bool) -> Option<CapTable> {
        let caps: Vec<u32> = match medium.ifindex {
            Some(_) if is_on => {
                let newcomer = self.policy.newcomer(&self.link(medium));
                let rtts = self.rtt_resolution.iter();
                rtts.map(|rtt| newcomer(*rtt).cwnd.unwrap_or(0)).collect()
            }
            _ => vec![0; self.rtt_resolution.len()],
        };
        let is_empty = caps.iter().all(|cap| *cap == 0);
        let table = CapTable {
            ifindex: medium.ifindex.filter(|_| !is_empty).unwrap_or(0),
            caps,
        };
        (table != self.table).then(|| {
            self.table.clone_from(&table);
            table
        })
    }

    /// The kernel capped this connection by the table.
    pub fn note_capped(
        &self,
        flows: &mut Flows,
        medium: Medium<'_>,
        (cookie, cap): (Cookie, u32),
        made: bool,
    ) -> Change {
        let link = Link {
            sharing: self.sharing.with_one_more(),
            ..self.link(medium)
        };
        let rtt = flows.get(cookie).and_then(Tracked::rtt).unwrap_or_default();
        let reason = format!("a new connection; {}", self.policy.reason(&link, rtt));
        flows.note_capped(cookie, cap, self.because(reason), made)
    }

    /// The policy's reason as a whole.
    pub fn reason_now(&self, medium: Medium<'_>) -> Reason {
        self.reason(&self.link(medium), Duration::ZERO)
    }

    fn reason(&self, link: &Link<'_>, rtt: Duration) -> Reason {
        self.because(self.policy.reason(link, rtt))
    }

    fn because(&self, reason: String) -> Reason {
        Reason {
            rule: self.policy.name().to_owned(),
            reason,
        }
    }
}

fn is_other(state: &SettingState, wish: &Value) -> bool {
    state.installed != Value::default() && state.installed != *wish
}

/// The active limit is lower.
fn is_less(state: &SettingState, wish: &Value) -> bool {
    match (&state.installed, wish) {
        (Value::Unset(()), _) => false,
        (Value::Number(now), Value::Number(wish)) => wish > now,
        (now, wish) => now != wish,
    }
}

fn senders<'a>(flows: &'a Flows, medium: Medium<'_>) -> impl Iterator<Item = &'a Tracked> {
    let of_link = medium.ifindex.into_iter();
    of_link.flat_map(|ifindex| flows.senders(ifindex))
}

/// This device's connections that could send more than allowed, of those that fit into a report.
fn wanting(flows: &Flows, medium: Medium<'_>) -> usize {
    let told = senders(flows, medium).take(MAX_SENDERS);
    told.filter(|tracked| tracked.wants_more).count()
}

/// The sending devices, this one included if it has such connections.
fn devices(peers: &PeerGroup, connections: u32) -> u32 {
    peers.sending_devices() as u32 + u32::from(connections > 0)
}

/// A sender as reported to the peers.
fn describe(tracked: &Tracked, demand: Option<f64>) -> Sender {
    let flow = &tracked.flow;
    let small = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    Sender {
        cwnd_segments: flow.cwnd,
        min_rtt_us: flow.min_rtt_us.unwrap_or(flow.srtt_us),
        srtt_us: flow.srtt_us,
        queue_bytes: small(flow.unsent_bytes + flow.unacked_bytes),
        ca_state: flow.ca_state,
        delivery_rate_kbit: small(flow.delivery_rate_bytes_per_s / 125),
        retransmits: flow.retransmits,
        class: tracked.class,
        demand_kbit: demand.map_or(UNLIMITED_KBIT, |rate| (rate / 125.0) as u32),
    }
}
