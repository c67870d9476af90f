// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The consequences of one subject's result for the others: a request becomes an action, or in a dry run its own
//! outcome; a change is kept and recorded; classified flows go on to background and enforcement.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::action::Action;
use super::{Network, WAYS};
use crate::background::nice::{self, Reniced};
use crate::change::{Change, Reason, Setting, Subject, Value};
use crate::class::by_hand::SetByHand;
use crate::class::flows::JudgedFlows;
use crate::class::{Rules, of_choice};
use crate::downlink::{self, Arrival, Arrived, Counted, Downlink, LeftOut, Way};
use crate::enforcement::arriving::is_late;
use crate::enforcement::elsewhere::Elsewhere;
use crate::enforcement::{shortfalls, traced};
use crate::model::{
    Choice, Class, Cookie, Device, Fingerprint, Flow, FlowEvent, Interface, Limit, Process, ProcessId, Protocol,
    Treatment,
};
use crate::peers::{Heard, Keyring};
use crate::queue::Uplink;
use crate::queue::links::{LinkRates, LinkRequest};
use crate::queue::traffic::{QueueCounters, Refusal};
use crate::record::What;
use crate::share::limiter::DemandChange;
use crate::sockets::requests::Conclusion;
use crate::sockets::setting::{Outcome, Request};

/// The latest refusals, for `why`.
const REFUSALS_KEPT: usize = 64;

/// The engine's parts that form the shared link, so that the others stay mutable.
macro_rules! medium {
    ($network:expr) => {{
        let ifindex = $network.interface.as_ref().map(|interface| interface.index);
        crate::share::limiter::Medium {
            ifindex,
            peers: &$network.peer_group,
            queue: ifindex.and_then(|ifindex| $network.links.counters(ifindex)),
        }
    }};
}
pub(super) use medium;

// Everything at once.
impl Network {
    pub(super) fn follow_interface(&mut self, now: Duration, interface: Option<Interface>) {
        if let Some(interface) = &interface {
            self.peer_group.set_ip_header(interface.ip_header_bytes());
        }
        if interface != self.interface {
            self.limiter.forget();
        }
        self.interface = interface;
        self.limit_idle(now);
    }

    /// Updates everything that depends on the devices that share the medium.
    pub(super) fn decide(&mut self, now: Duration, is_poll: bool) {
        self.expire(now);
        (self.decided, self.undecided) = (now, false);
        self.count_senders(now);
        match (&self.paused, is_poll) {
            (None, _) => {
                let requests = self.limiter.limit_senders(now, &mut self.flows, medium!(self), is_poll);
                self.ask_sockets(now, requests);
            }
            // Deferred restorations, and connections opened after the pause.
            (Some(_), true) => self.suspend(now),
            (Some(_), false) => {}
        }
        let table = self.limiter.limit_new(medium!(self), self.paused.is_none());
        self.actions.extend(table.filter(|_| !self.dry_run).map(Action::CapNew));
        self.report(now);
    }

    pub(super) fn tick(&mut self, now: Duration) {
        let wanted = self.links.try_again(now);
        self.ask_queues(now, wanted);
        for way in WAYS {
            let wanted = self.detour(way).try_again(now);
            self.ask_detour(way, wanted);
        }
        self.expire(now);
        self.report(now);
    }

    /// Suspends or resumes everything. Flows, links and processes stay known, and are updated meanwhile.
    pub(super) fn pause(&mut self, now: Duration, reason: Option<String>) {
        let was_paused = std::mem::replace(&mut self.paused, reason);
        let wanted = self.links.pause(self.paused.as_ref());
        self.ask_queues(now, wanted);
        for way in WAYS {
            let reason = self.paused.clone();
            let wanted = self.detour(way).pause(reason.as_ref());
            self.ask_detour(way, wanted);
        }
        let reason = self.paused.clone().or(was_paused).unwrap_or_default();
        let (causes, changes) = self.nice.pause(self.paused.is_some(), &reason);
        self.actions.extend(causes.map(Action::Nice));
        self.note_all(now, changes);
        if self.paused.is_some() {
            self.suspend(now);
            return;
        }
        self.processes.judge_again();
        self.judge_processes();
        self.renice_due(now);
        let all: Vec<Cookie> = self.flows.iter().map(|tracked| tracked.flow.cookie).collect();
        self.follow_background(now, &all);
    }

    fn suspend(&mut self, now: Duration) {
        let Some(reason) = &self.paused else { return };
        let requests = self.flows.suspend(&Reason::of_pause(reason));
        self.ask_sockets(now, requests);
    }

    fn note(&mut self, now: Duration, change: Change) {
        self.changes.note(now, change.clone());
        self.actions.push(Action::Record(What::Change(Box::new(change))));
    }

    fn note_all(&mut self, now: Duration, changes: impl IntoIterator<Item = Change>) {
        changes.into_iter().for_each(|change| self.note(now, change));
    }
}

// Sockets.
impl Network {
    pub(super) fn observe(&mut self, now: Duration, flows: Vec<Flow>, complete: bool) {
        // Connections shorter than a poll interval are not identified: they end before they could be read, and
        // outsiders decide how many there are.
        let lasting = |flow: &&Flow| complete || self.flows.get(flow.cookie).is_some();
        let lasting: Vec<&Flow> = flows.iter().filter(lasting).collect();
        let lasting_ones: Vec<Cookie> = lasting.iter().map(|flow| flow.cookie).collect();
        let datagrams = self.flows.iter().map(|tracked| &tracked.flow);
        let datagrams = datagrams.filter(|flow| complete && flow.protocol == Protocol::Udp);
        let owned: Vec<&Flow> = lasting.into_iter().chain(datagrams).collect();
        let unknown = self.owners.unknown(now, &owned, complete);
        self.actions.extend(unknown.map(Action::Identify));
        let shown = self.flows.observe(now, flows, complete.then_some(Protocol::Tcp));
        shown.ended.into_iter().for_each(|cookie| self.end(cookie));
        self.judge_shown(now, lasting_ones);
        // In a dry run none of the limits is really set.
        if !self.dry_run {
            let (changes, requests) = self
                .flows
                .resolve(shown.doubtful, &self.limiter.reason_now(medium!(self)));
            self.note_all(now, changes);
            self.ask_sockets(now, requests);
        }
        if complete {
            self.limit_idle(now);
        }
    }

    /// UDP sockets have no limits of their own: their class goes to the queue.
    pub(super) fn observe_datagrams(&mut self, now: Duration, flows: Vec<Flow>) {
        let unknown = self.owners.unknown(now, &flows.iter().collect::<Vec<_>>(), false);
        self.actions.extend(unknown.map(Action::Identify));
        let cookies: Vec<Cookie> = flows.iter().map(|flow| flow.cookie).collect();
        let shown = self.flows.observe(now, flows, Some(Protocol::Udp));
        shown.ended.into_iter().for_each(|cookie| self.end(cookie));
        self.judge_shown(now, cookies);
    }

    pub(super) fn follow_events(&mut self, events: Vec<(Cookie, FlowEvent)>) {
        self.undecided = true;
        for (cookie, event) in events {
            self.flows.event(cookie, event);
            if event == FlowEvent::Close {
                self.end(cookie);
            }
        }
    }

    fn end(&mut self, cookie: Cookie) {
        self.changes.ended(&Subject::Socket { cookie });
        self.actions
            .extend(self.classes.end(cookie).into_iter().map(Action::Class));
        self.shortfalls.end(cookie);
    }

    pub(super) fn note_capped(&mut self, now: Duration, new: Vec<(Cookie, u32)>) {
        for capped in new {
            let medium = medium!(self);
            let change = self.limiter.note_capped(&mut self.flows, medium, capped, !self.dry_run);
            self.note(now, change);
        }
    }

    fn limit_idle(&mut self, now: Duration) {
        if self.paused.is_none() {
            let requests = self.limiter.limit_idle(&mut self.flows, medium!(self));
            self.ask_sockets(now, requests);
        }
    }

    fn ask_sockets(&mut self, now: Duration, requests: Vec<Request>) {
        for request in requests.into_iter().filter(|request| !request.settings.is_empty()) {
            if self.dry_run {
                let settings = request.settings.into_iter().map(|wish| wish.setting);
                let done = settings.map(|setting| (request.cookie, setting, Outcome::Applied));
                self.conclude_settings(now, done.collect());
            } else {
                self.actions.push(Action::Set(request));
            }
        }
    }

    pub(super) fn conclude_settings(&mut self, now: Duration, outcomes: Vec<(Cookie, Setting, Outcome)>) {
        for (cookie, setting, outcome) in outcomes {
            match self.flows.conclude(cookie, &setting, outcome, !self.dry_run) {
                Conclusion::Nothing => {}
                Conclusion::Changed(change) => self.note(now, change),
                Conclusion::Gone => self.end(cookie),
            }
        }
    }

    /// Another tool has set these.
    pub(super) fn note_taken_over(&mut self, now: Duration, taken: Vec<(Cookie, Setting, Value)>) {
        for (cookie, setting, found) in taken {
            let rule = self.limiter.policy().name();
            let change = self.flows.report_conflict(cookie, &setting, found, rule, !self.dry_run);
            self.note_all(now, change);
        }
    }
}

// Classes and their consequences.
impl Network {
    fn judge_shown(&mut self, now: Duration, cookies: Vec<Cookie>) {
        let shown = cookies.clone();
        let judged = self
            .classes
            .judge_shown(now, &mut self.flows, &self.owners, shown, !self.dry_run);
        self.follow_judged(now, judged);
        self.enforce(now, &cookies);
    }

    fn judge_all(&mut self, now: Duration) {
        let judged = self.classes.judge_all(&mut self.flows, &self.owners, !self.dry_run);
        self.follow_judged(now, judged);
    }

    fn follow_judged(&mut self, now: Duration, judged: JudgedFlows) {
        self.actions.extend(judged.actions.into_iter().map(Action::Class));
        self.note_all(now, judged.changes);
        self.follow_background(now, &judged.cookies);
    }

    fn follow_background(&mut self, now: Duration, cookies: &[Cookie]) {
        if self.paused.is_some() {
            return;
        }
        let downloads = &self.downloads;
        // An order with more than the link's rate has no effect.
        let is_ordered = |ifindex| {
            let order = downloads.orders(ifindex);
            order.is_some_and(|(_, order)| !order.is_too_high())
        };
        let requests = self.background.follow(now, &mut self.flows, cookies, is_ordered);
        self.ask_sockets(now, requests);
    }

    pub(super) fn set_rules(&mut self, now: Duration, rules: Arc<Rules>) {
        self.actions.extend(self.nice.set_rules(&rules).map(Action::Nice));
        self.processes.read_again();
        self.classes.set_rules(rules);
        self.follow_limits(now);
        self.judge_all(now);
    }

    pub(super) fn set_command_limits(&mut self, now: Duration, limits: Vec<Limit>) {
        self.classes.set_command_limits(limits);
        self.follow_limits(now);
    }

    fn follow_limits(&mut self, now: Duration) {
        let limits = self.classes.limits();
        let packet_rules = self.classes.rules().packet_rules();
        let wanted = self.links.follow(!limits.is_empty(), &packet_rules);
        self.ask_queues(now, wanted);
        let wanted = self.downloads.follow(limits.iter().filter_map(Limit::down).collect());
        self.ask_detour(Way::Received, wanted);
        let wanted = self.uploads.follow(limits.iter().filter_map(Limit::up).collect());
        self.ask_detour(Way::Sent, wanted);
    }

    pub(super) fn set_by_hand(&mut self, now: Duration, all: Vec<SetByHand>, reason: &str) {
        let difference = self.classes.set_by_hand(all);
        let (changes, over) = difference.changes(reason, !self.links.dry_run());
        self.note_all(now, changes);
        over.iter().for_each(|subject| self.changes.ended(subject));
        let concerned = self.flows.iter().filter(|tracked| difference.concerns_flow(tracked));
        let concerned = concerned.map(|tracked| tracked.flow.cookie).collect();
        let judged = self
            .classes
            .judge_anew(&mut self.flows, &self.owners, concerned, !self.dry_run);
        self.follow_judged(now, judged);
        self.processes
            .judge_again_where(|process| difference.concerns_process(process));
        self.judge_processes();
        self.renice_due(now);
        self.forwarded.judge_again();
        self.judge_forwarded(now);
    }

    pub(super) fn follow_devices(&mut self, now: Duration, devices: BTreeMap<u32, Device>) {
        let decide = self.classes.set_devices(devices);
        self.note_past_deadlines(now);
        if decide {
            self.judge_all(now);
        }
    }

    pub(super) fn follow_choice(&mut self, now: Duration, process: ProcessId, choice: Choice) {
        let of = Process {
            uid: choice.uid,
            ..Process::default()
        };
        let limits = choice.limit.map(|limit| limit.rates.numbered(limit.number));
        let treatment = Treatment {
            class: choice.class.unwrap_or_default(),
            limits: limits.unwrap_or_default(),
        };
        // For its first connection.
        self.actions
            .push(Action::Class(self.processes.chosen(process, treatment)));
        let Some(verdict) = of_choice(choice) else { return };
        let action = self.nice.chosen(process, &of, &verdict);
        self.renice(now, action);
    }

    pub(super) fn observe_processes(&mut self, now: Duration, listed: Vec<Fingerprint>) {
        // New processes with an inherited niceness.
        for (id, is) in self.processes.newly_nice(&listed) {
            let change = self.nice.inherited(id, is);
            self.note_all(now, change);
        }
        self.nice.keep(&listed);
        let (actions, unidentified) = self.processes.observe(listed);
        self.actions.extend(actions.into_iter().map(Action::Class));
        self.actions.extend(unidentified.map(Action::Identify));
        self.judge_processes();
        self.renice_due(now);
    }

    fn judge_processes(&mut self) {
        let (actions, judged) = self.processes.judge(&self.classes);
        for of in judged {
            self.nice.judged(of.id, &of.process, of.verdict.as_ref(), of.nice);
        }
        self.actions.extend(actions.into_iter().map(Action::Class));
    }

    pub(super) fn observe_forwarded(&mut self, now: Duration, sending: &BTreeSet<u64>) {
        let (ended, unidentified) = self.forwarded.observe(sending);
        for path in ended {
            self.changes.ended(&Subject::Cgroup { path: path.to_string() });
        }
        self.actions.extend(unidentified.map(Action::Identify));
        self.judge_forwarded(now);
    }

    fn judge_forwarded(&mut self, now: Duration) {
        let (actions, changes) = self.forwarded.judge(&self.classes);
        self.actions.extend(actions.into_iter().map(Action::Class));
        self.note_all(now, changes);
    }

    pub(super) fn identify(
        &mut self,
        now: Duration,
        processes: Vec<(ProcessId, Option<Arc<Process>>)>,
        cgroups: Vec<(u64, Option<Arc<str>>)>,
    ) {
        self.forwarded.identified(&cgroups);
        self.judge_forwarded(now);
        if self.processes.identified(&processes) {
            self.judge_processes();
        }
        if self.owners.identified(processes, cgroups) {
            self.judge_all(now);
        }
    }

    fn renice_due(&mut self, now: Duration) {
        let due = self.nice.due(now);
        self.renice(now, due);
    }

    fn renice(&mut self, now: Duration, actions: impl IntoIterator<Item = nice::Action>) {
        for action in actions {
            match action {
                nice::Action::Renice { process, .. } if self.nice.dry_run => {
                    self.conclude_nice(now, process, Ok(Reniced::default()));
                }
                action => self.actions.push(Action::Nice(action)),
            }
        }
    }

    pub(super) fn conclude_nice(&mut self, now: Duration, process: ProcessId, outcome: nice::Outcome) {
        let change = self.nice.conclude(now, process, outcome);
        self.note_all(now, change);
    }

    pub(super) fn note_nice_taken(&mut self, now: Duration, taken: Vec<(ProcessId, u32, String)>) {
        let changes = taken
            .iter()
            .map(|(process, tid, found)| nice::taken(*process, *tid, found));
        self.note_all(now, changes);
    }
}

// Queues and detours.
impl Network {
    pub(super) fn count_queues(&mut self, now: Duration, queues: BTreeMap<u32, QueueCounters>, flows: &[Flow]) {
        let wanted = self.links.count(now, queues);
        self.ask_queues(now, wanted);
        let wanted = self.links.measure(now, flows);
        self.ask_queues(now, wanted);
    }

    pub(super) fn follow_uplinks(&mut self, now: Duration, uplinks: Vec<Uplink>) {
        let first = self.interface.as_ref().map(|interface| interface.index);
        let (changes, wanted) = self.links.observe(now, uplinks, first);
        self.note_all(now, changes);
        self.ask_queues(now, wanted);
        self.follow_download_rates(now);
        self.note_past_deadlines(now);
    }

    pub(super) fn set_link_rates(&mut self, now: Duration, rates: BTreeMap<String, LinkRates>) {
        let wanted = self.links.set_rates(now, rates);
        self.ask_queues(now, wanted);
        self.follow_download_rates(now);
    }

    pub(super) fn demand_queues(&mut self, now: Duration, waiting: &BTreeMap<u32, u32>) {
        let wanted = self.links.demand(now, waiting);
        self.ask_queues(now, wanted);
    }

    fn ask_queues(&mut self, now: Duration, wanted: Vec<LinkRequest>) {
        for request in wanted {
            match self.links.dry_run() {
                true => self.conclude_queue(now, request.ifindex, Ok(())),
                false => self.actions.push(Action::Queue(request)),
            }
        }
    }

    pub(super) fn conclude_queue(&mut self, now: Duration, ifindex: u32, outcome: Result<(), String>) {
        let (change, wanted) = self.links.conclude(now, ifindex, outcome);
        self.note_all(now, change);
        self.ask_queues(now, wanted.into_iter().collect());
    }

    pub(super) fn note_refusals(&mut self, refusals: Vec<Refusal>) {
        for refusal in refusals {
            if self.refusals.len() == REFUSALS_KEPT {
                self.refusals.pop_front();
            }
            self.refusals.push_back(refusal.clone());
            self.actions.push(Action::Record(What::Refusal(refusal)));
        }
    }

    fn follow_download_rates(&mut self, now: Duration) {
        let rates = self.links.download_rates();
        if self.classes.set_marks_count(!rates.is_empty()) {
            self.judge_all(now);
        }
        let wanted = self.downloads.follow_rates(rates);
        self.ask_detour(Way::Received, wanted);
    }

    pub(super) fn observe_arrivals(
        &mut self,
        now: Duration,
        way: Way,
        arrivals: Vec<Arrival>,
        counted: Option<Counted>,
    ) {
        let detour = self.detour(way);
        let is_compared = way == Way::Received && counted.is_some();
        counted.into_iter().for_each(|counted| detour.count(now, counted));
        let wanted = detour.observe(now, arrivals);
        self.ask_detour(way, wanted);
        if is_compared {
            self.compare_arriving(now);
        }
    }

    /// Compares the goodput of connections with the counters of their queues.
    fn compare_arriving(&mut self, now: Duration) {
        for (cookie, is_bypass) in self.overview().bypasses(now) {
            if let Some(tracked) = self.flows.get_mut(cookie) {
                tracked.trace.note_bypass(is_bypass);
            }
        }
        let flows = &self.flows;
        let judged = self
            .downloads
            .judge(now, |ifindex| flows.receivers(ifindex).any(is_late));
        let background = self.flows.iter().filter(|tracked| {
            let is_judged = judged.contains(&tracked.flow.ifindex);
            is_judged && tracked.class == Class::Background
        });
        let background: Vec<Cookie> = background.map(|tracked| tracked.flow.cookie).collect();
        self.follow_background(now, &background);
    }

    pub(super) fn balance(&mut self, now: Duration, arrived: &BTreeMap<u32, Arrived>) {
        let available = self.downloads.balance(now, arrived);
        let is_news = !available.is_empty();
        let action = is_news.then_some(downlink::Action::MakeAvailable(available));
        self.actions.extend(action.map(Action::Downlink));
    }

    pub(super) fn conclude_detour(&mut self, now: Duration, way: Way, outcome: Result<LeftOut, String>) {
        let (changes, wanted) = self.detour(way).conclude(now, outcome);
        self.note_all(now, changes);
        self.ask_detour(way, wanted);
    }

    pub(super) fn lose_detour(&mut self, now: Duration, way: Way, reason: String) {
        let changes = self.detour(way).lost(now, reason);
        self.note_all(now, changes);
    }

    fn detour(&mut self, way: Way) -> &mut Downlink {
        match way {
            Way::Sent => &mut self.uploads,
            Way::Received => &mut self.downloads,
        }
    }

    fn ask_detour(&mut self, way: Way, wanted: Option<Option<downlink::DetourPlan>>) {
        let action = wanted.map(|plan| downlink::Action::Set { way, plan });
        self.actions.extend(action.map(Action::Downlink));
    }
}

// Shortfalls of enforcement.
impl Network {
    pub(super) fn note_traced(&mut self, now: Duration, seen: &[(Cookie, Option<u32>)]) {
        traced::note_traced(&mut self.flows, &self.classes, seen);
        let cookies: Vec<Cookie> = seen.iter().map(|(cookie, _)| *cookie).collect();
        self.enforce(now, &cookies);
    }

    fn enforce(&mut self, now: Duration, cookies: &[Cookie]) {
        let found = self.overview().found_of(cookies);
        let found = shortfalls::settled(now, &mut self.flows, found);
        let mut known = std::mem::take(&mut self.shortfalls);
        let changes = known.follow(now, found, self.overview());
        self.shortfalls = known;
        self.note_all(now, changes);
    }

    pub(super) fn note_elsewhere(&mut self, now: Duration, elsewhere: Vec<Elsewhere>) {
        let (changes, gone) = self.elsewhere.follow(now, elsewhere);
        self.note_all(now, changes);
        gone.iter().for_each(|subject| self.changes.ended(subject));
    }

    fn note_past_deadlines(&mut self, now: Duration) {
        let mut known = std::mem::take(&mut self.past_deadlines);
        let changes = known.follow(self.overview());
        self.past_deadlines = known;
        self.note_all(now, changes);
    }
}

// Peers.
impl Network {
    pub(super) fn set_keys(&mut self, keys: Option<Keyring>) {
        self.cooperates = keys.is_some();
        self.peer_group.set_keyring(keys);
    }

    pub(super) fn hear(&mut self, now: Duration, from: IpAddr, bytes: &[u8]) {
        // Refusals are counted in the peer group, without further consequences.
        let Ok(heard) = self.peer_group.receive(now, from, bytes) else {
            return;
        };
        if let Heard::Joined | Heard::Left = heard {
            self.actions.push(Action::Record(What::Peer {
                address: from,
                present: heard == Heard::Joined,
                expired: false,
            }));
        }
        self.undecided |= self.limiter.is_outdated(&self.peer_group);
    }

    fn expire(&mut self, now: Duration) {
        for address in self.peer_group.expire(now) {
            self.undecided = true;
            self.actions.push(Action::Record(What::Peer {
                address,
                present: false,
                expired: true,
            }));
        }
    }

    fn count_senders(&mut self, now: Duration) {
        let (sharing, change) = self.limiter.count(now, &self.flows, medium!(self));
        match change {
            Some(DemandChange::Stopped) => self.peer_group.sender_stopped(now),
            Some(DemandChange::Started) => self.peer_group.sender_started(now),
            Some(DemandChange::Other) => self.peer_group.demand_changed(now),
            None => {}
        }
        let news = sharing.map(|sharing| What::Senders {
            devices: sharing.devices,
            connections: sharing.connections,
        });
        self.actions.extend(news.map(Action::Record));
    }

    /// Sends the reports that are due.
    fn report(&mut self, now: Duration) {
        let senders = self.limiter.reported(&self.flows, medium!(self));
        while let Some(report) = self.peer_group.poll_report(now, &senders) {
            if report.to.is_none() {
                self.limiter.note_told(&self.flows, medium!(self));
            }
            self.actions.push(Action::Report(report));
        }
    }
}
