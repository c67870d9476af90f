// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine's state at one moment, as [`crate::status`] describes it.

use std::time::Duration;

use super::{Network, name_of};
use crate::change::{Latest, Setting, Subject, Value};
use crate::model::{Protocol, unit_of};
use crate::queue::QueueView;
use crate::sockets::flows::Tracked;
use crate::sockets::goodput::Rates;
use crate::sockets::limits::segments;
use crate::status::{FlowView, NeighbourView, NetworkStatus, PolicyView, ReportView};

impl Network {
    /// The links that another tool has taken giveway's queue off.
    pub fn contested_links(&self) -> Vec<u32> {
        self.links.contested().collect()
    }

    /// On these a queue comes when there is something to hold.
    pub fn links_without_queue(&self) -> Vec<u32> {
        self.links.without_queue()
    }

    pub fn status(&self, now: Duration) -> NetworkStatus {
        let links = self.links.views(now);
        let (downloads, uploads) = (self.downloads.view(), self.uploads.view());
        NetworkStatus {
            taken_t_ns: now.as_nanos() as u64,
            interface: self.interface.clone(),
            policy: PolicyView {
                name: self.policy.name().to_owned(),
                senders: self.sharing.devices,
                connections: self.sharing.connections,
                cooperates: self.cooperates,
                doing: self.policy.doing(&self.link()),
                found: self.policy.found(&self.link()),
                dry_run: self.dry_run,
            },
            flows: self.flow_views(Protocol::Tcp, now),
            datagrams: self.flow_views(Protocol::Udp, now),
            forwarded: self.forwarded.views(),
            neighbours: self.neighbourhood.peers().map(NeighbourView::from).collect(),
            reports: ReportView {
                interval_ms: self.neighbourhood.interval().as_millis() as u64,
                airtime_percent: self.neighbourhood.airtime_percent(),
                older: self.neighbourhood.older(),
                counters: self.neighbourhood.counters(),
            },
            queue: links
                .first()
                .map_or_else(QueueView::of_no_link, |link| link.queue.clone()),
            links,
            limits: self.limits_in_use(&downloads, &uploads),
            downloads,
            uploads,
            not_enforced: self.shortfall_views(),
            elsewhere: self.elsewhere_views(),
            by_hand: self.set_by_hand_views(),
            active: self.classes.active().to_vec(),
            nice_processes: self.early.nice(),
            processes_left_out: self.early.left_out(),
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
                change.name = name_of(&tracked.flow);
            }
        }
        changes
    }

    fn flow_views(&self, protocol: Protocol, now: Duration) -> Vec<FlowView> {
        let of = self.flows.iter().filter(|tracked| tracked.flow.protocol == protocol);
        of.map(|tracked| self.flow_view(tracked, now)).collect()
    }

    fn flow_view(&self, tracked: &Tracked, now: Duration) -> FlowView {
        let flow = &tracked.flow;
        let Rates {
            sent_mbit,
            received_mbit,
        } = tracked.goodput.rates(now);
        let cgroup = self.owners.cgroup(flow).map(|path| path.to_string());
        FlowView {
            flow: flow.clone(),
            sent_mbit,
            received_mbit,
            class: tracked.class,
            class_rule: tracked.judged.verdict.rule.clone(),
            limit: self.limits_view(tracked),
            class_enforcement: self.order_view(tracked),
            download_order: self.download_order(tracked),
            mark: self.links.mark(flow.ifindex, tracked.class),
            class_why: tracked.judged.verdict.why.clone(),
            cap: segments(&tracked.in_force(&Setting::Cap)),
            background_control: text(tracked.in_force(&Setting::CongestionControl)),
            receive_gives_way: text(tracked.in_force(&Setting::ReceiveWindow)).is_some(),
            receiver: tracked.receiving.is_bulk(),
            sender: tracked.sending,
            stepped_back: tracked.held.values().any(|held| held.stepped_back),
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
