// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine's present state, as [`crate::status`] describes it.

use std::time::Duration;

use super::Network;
use super::routes::medium;
use crate::change::{Latest, Setting, Subject, Value};
use crate::class::Verdict;
use crate::model::{Class, Protocol, unit_of};
use crate::queue::QueueView;
use crate::sockets::flows::Tracked;
use crate::sockets::goodput::GoodputRates;
use crate::sockets::setting::segments;
use crate::status::{FlowView, ForwardedView, NetworkStatus, PeerView, PolicyView, ReportView};

impl Network {
    pub fn status(&self, now: Duration) -> NetworkStatus {
        let overview = self.overview();
        let links = self.links.views(now);
        let (policy, link) = (self.limiter.policy(), self.limiter.link(medium!(self)));
        let (downloads, uploads) = (self.downloads.view(), self.uploads.view());
        NetworkStatus {
            taken_t_ns: now.as_nanos() as u64,
            interface: self.interface.clone(),
            policy: PolicyView {
                name: policy.name().to_owned(),
                senders: link.sharing.devices,
                connections: link.sharing.connections,
                cooperates: self.cooperates,
                doing: policy.doing(&link),
                estimate: policy.estimate(&link),
                dry_run: self.dry_run,
            },
            flows: self.flow_views(Protocol::Tcp, now),
            datagrams: self.flow_views(Protocol::Udp, now),
            forwarded: self.forwarded_views(),
            peers: self.peer_group.peers().map(PeerView::from).collect(),
            reports: ReportView {
                interval_ms: self.peer_group.interval().as_millis() as u64,
                airtime_percent: self.peer_group.airtime_percent(),
                older: self.peer_group.older(),
                counters: self.peer_group.counters(),
            },
            queue: links
                .first()
                .map_or_else(QueueView::of_no_link, |link| link.queue.clone()),
            links,
            limits: overview.limits_in_use(&downloads, &uploads),
            downloads,
            uploads,
            not_enforced: self.shortfalls.views(overview),
            elsewhere: self.elsewhere.views(),
            by_hand: overview.by_hand_views(|_| true),
            focus: self.classes.active().to_vec(),
            reniced_processes: self.processes.nice(),
            processes_left_out: self.processes.left_out(),
            refusals: self.refusals.iter().cloned().collect(),
        }
    }

    /// The latest changes, oldest first.
    pub fn changes(&self) -> Vec<Latest> {
        let mut changes = self.changes.to_vec();
        for change in changes.iter_mut().map(|latest| &mut latest.change) {
            // A connection that was capped as it opened had no name yet.
            if let (Subject::Socket { cookie }, true) = (&change.subject, change.name.is_empty())
                && let Some(tracked) = self.flows.get(*cookie)
            {
                change.name = tracked.flow.shown();
            }
        }
        changes
    }

    fn forwarded_views(&self) -> Vec<ForwardedView> {
        let view = |(cgroup, class, verdict): (&str, Class, &Verdict)| ForwardedView {
            cgroup: cgroup.to_owned(),
            class,
            class_rule: verdict.rule.clone(),
            class_reason: verdict.reason.clone(),
        };
        self.forwarded.verdicts().map(view).collect()
    }

    fn flow_views(&self, protocol: Protocol, now: Duration) -> Vec<FlowView> {
        let of = self.flows.iter().filter(|tracked| tracked.flow.protocol == protocol);
        of.map(|tracked| self.flow_view(tracked, now)).collect()
    }

    fn flow_view(&self, tracked: &Tracked, now: Duration) -> FlowView {
        let (flow, overview) = (&tracked.flow, self.overview());
        let GoodputRates {
            upload_mbit,
            download_mbit,
        } = tracked.goodput.rates(now);
        let cgroup = self.owners.cgroup(flow).map(|path| path.to_string());
        FlowView {
            flow: flow.clone(),
            upload_mbit,
            download_mbit,
            class: tracked.class,
            class_rule: tracked.judged.verdict.rule.clone(),
            limit: overview.limits_view(tracked),
            class_enforcement: overview.order_view(tracked),
            download_order: overview.download_order(tracked),
            mark: self.links.mark(flow.ifindex, tracked.class),
            class_reason: tracked.judged.verdict.reason.clone(),
            cap: segments(&tracked.installed(&Setting::Cap)),
            scavenger: text(tracked.installed(&Setting::CongestionControl)),
            receive_yields: text(tracked.installed(&Setting::ReceiveWindow)).is_some(),
            receiver: tracked.receiving.is_bulk(),
            sender: tracked.sending,
            conflict: tracked.settings.values().any(|state| state.conflict),
            exe: self.owners.process(flow).map(|process| process.exe.clone()),
            unit: cgroup.as_deref().and_then(unit_of).map(str::to_owned),
            cgroup,
        }
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}
