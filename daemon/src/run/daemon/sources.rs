// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The inputs of the network engine: passes, events, refusals, the managed links, and the group's keys.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use giveway_engine::class;
use giveway_engine::downlink;
use giveway_engine::downlink::{Arrival, Way};
use giveway_engine::enforcement;
use giveway_engine::network::action::Input;
use giveway_engine::peers;
use giveway_engine::queue;
use giveway_engine::record::What;
use giveway_engine::sockets;
use nix::net::if_::if_indextoname;

use super::Running;
use crate::interface::{Choice, Interface};
use crate::kernel::devices::devices;
use crate::kernel::flow_monitor::SocketEvent;
use crate::kernel::libbpf_log::one_line;
use crate::kernel::netlink::Netlink;
use crate::kernel::{cpu_time, now, scanner};
use crate::life::LONG_WORK;
use crate::peers::Peers;

/// How old the queue's counters may be where reading them takes a dump of the kernel's.
const COUNTERS_AGE: Duration = Duration::from_secs(1);

impl Running {
    /// One pass over the active sockets, or over all of them when it is time for that.
    pub(super) fn pass(&mut self) -> Result<()> {
        let every = Duration::from_secs(self.daemon.config.monitor.full_scan_s.into());
        let mut complete = self.last_scan.is_none_or(|at| now().saturating_sub(at) >= every);
        if !complete && !self.daemon.monitor.is_due() {
            return self.drain_events();
        }
        let begun = cpu_time() + scanner::spent();
        let flows = match complete {
            true => self.daemon.monitor.scan(),
            false => self.daemon.monitor.poll(),
        };
        // A scan takes as long as there are connections.
        self.heartbeat.beat();
        let mut flows = self.tolerate(flows)?;
        if complete && flows.is_none() && self.daemon.monitor.why_all_sockets().is_none() {
            // A pass waits for no lock.
            complete = false;
            let active = self.daemon.monitor.poll();
            flows = self.tolerate(active)?;
        }
        let Some(flows) = flows else {
            return self.drain_events();
        };
        if complete {
            self.last_scan = Some(now());
        }
        self.short_of = None;
        // What happened before this poll must be known before it is judged.
        self.drain_events()?;
        self.records.write_flows(&flows);
        // By htb they come from a dump, which waits for whoever changes links.
        self.heartbeat.beat_before(LONG_WORK);
        let counters = self.daemon.queue.counters(COUNTERS_AGE);
        self.heartbeat.beat();
        let queues = counters
            .inspect_err(|error| tracing::debug!("{error:#}"))
            .unwrap_or_default();
        self.step(Input::Poll {
            flows,
            complete,
            queues,
        })?;
        self.trace()?;
        let cost = if complete { &mut self.scans } else { &mut self.polls };
        cost.add((cpu_time() + scanner::spent()).saturating_sub(begun));
        Ok(())
    }

    /// Whether a queue has what leaves by other devices than managed links.
    fn trace(&mut self) -> Result<()> {
        let sockets = self.daemon.engine.overview().to_be_traced();
        if sockets.is_empty() {
            return Ok(());
        }
        let traced = self.daemon.queue.trace(sockets);
        self.step(Input::Enforcement(enforcement::Input::Traced(traced)))
    }

    /// What was chosen for a process holds for what it sends from here.
    pub(super) fn poll_other_namespaces(&mut self) -> Result<()> {
        let elsewhere = self.daemon.owners.elsewhere();
        let Some(elsewhere) = self.tolerate(elsewhere)? else {
            return Ok(());
        };
        self.step(Input::Enforcement(enforcement::Input::Elsewhere(elsewhere)))
    }

    /// UDP sockets come and go without an event: all of them each time.
    pub(super) fn poll_datagrams(&mut self) -> Result<()> {
        let flows = self.daemon.monitor.datagrams();
        let Some(flows) = self.tolerate(flows)? else {
            return Ok(());
        };
        self.step(Input::Sockets(sockets::Input::Datagrams(flows)))?;
        self.trace()
    }

    /// Where there is a queue that what they connect could be held in, background is reniced, or rules are inherited.
    pub(super) fn poll_processes(&mut self) -> Result<()> {
        let inherit = self.daemon.owners.rules_are_inherited();
        if !inherit && !self.daemon.queue.is_installed() && !self.daemon.config.classes.cpu_and_disk {
            return Ok(());
        }
        if inherit {
            self.hand_down(&[])?;
        }
        let listed = self.daemon.owners.tasks().fingerprints();
        let Some(listed) = self.tolerate(listed)? else {
            return Ok(());
        };
        self.step(Input::Class(class::Input::Processes(listed)))
    }

    /// Packets of containers have no socket here: their cgroups are.
    pub(super) fn poll_forwarded(&mut self) -> Result<()> {
        let sending = self.daemon.queue.forwarding();
        let Some(sending) = self.tolerate(sending)? else {
            return Ok(());
        };
        self.step(Input::Class(class::Input::Forwarding(sending)))
    }

    pub(super) fn drain_events(&mut self) -> Result<()> {
        let capped = self.daemon.sockets.capped_at_connect()?;
        if !capped.is_empty() {
            self.step(Input::Sockets(sockets::Input::CappedAtConnect(capped)))?;
        }
        let taken = self.daemon.sockets.taken_over()?;
        if !taken.is_empty() {
            self.step(Input::Sockets(sockets::Input::TakenOver(taken)))?;
        }
        // What comes meanwhile waits for the next time: a flood of events must not keep the polls waiting.
        let mut arrived = Vec::new();
        self.daemon.monitor.poll_events(&mut |event| arrived.push(event))?;
        let mut events = Vec::new();
        for SocketEvent { t_ns, cookie, what, .. } in arrived {
            let line = What::Event { cookie, event: what };
            self.records.write(Duration::from_nanos(t_ns), line);
            events.push((cookie, what));
        }
        if events.is_empty() {
            return Ok(());
        }
        self.step(Input::Sockets(sockets::Input::Events(events)))
    }

    /// At each poll's time, though nothing of TCP was sent: a packet of any kind may want an order.
    pub(super) fn poll_ordered_links(&mut self) -> Result<()> {
        let waiting = self.daemon.engine.links_without_queue();
        if waiting.is_empty() {
            return Ok(());
        }
        // What waits in a qdisc is told by a dump; and the first time the queue's programs are loaded.
        self.heartbeat.beat_before(LONG_WORK);
        if let Err(error) = self.daemon.queue.prepare() {
            tracing::debug!("{error:#}");
        }
        let on = self.daemon.queue.ordered(&waiting);
        self.heartbeat.beat();
        if on.is_empty() {
            return Ok(());
        }
        self.step(Input::Queue(queue::Input::Ordered(on)))
    }

    /// What was refused since the last poll.
    pub(super) fn drain_refusals(&mut self) -> Result<()> {
        let refusals = self.daemon.queue.refusals()?;
        if refusals.is_empty() {
            return Ok(());
        }
        self.step(Input::Queue(queue::Input::Refusals(refusals)))
    }

    /// Other interfaces may be the managed ones by now, or the same ones may have changed.
    pub(super) fn poll_managed_links(&mut self) -> Result<()> {
        // Each call may have to wait for whoever changes links, in any namespace: the kernel has one lock for all of them.
        self.heartbeat.beat_before(LONG_WORK);
        match self.daemon.choice.find() {
            Ok(found) => {
                let first = found.first.clone();
                self.found = found;
                if first != self.interface {
                    self.manage(first)?;
                }
                let (receiver, priority) = (&mut self.daemon.receiver, self.daemon.realtime.as_ref());
                receiver.refresh(self.daemon.owners.tasks(), priority);
            }
            // It stays what it was.
            Err(error) => tracing::debug!("cannot find the managed interface: {error}"),
        }
        self.heartbeat.beat_before(LONG_WORK);
        self.poll_uplinks()?;
        if self.daemon.engine.wants_arrivals() {
            self.check_detours()?;
        }
        self.heartbeat.beat_before(LONG_WORK);
        let changed = std::mem::take(&mut self.links_changed);
        if changed {
            self.poll_devices()?;
        }
        if changed && let Err(error) = self.daemon.queue.retry() {
            tracing::debug!("{error:#}");
        }
        if let Err(error) = self.daemon.queue.follow_networks() {
            tracing::debug!("{error:#}");
        }
        self.step(Input::Queue(queue::Input::Subnets(self.daemon.queue.subnets())))?;
        if let Err(error) = self.daemon.queue.follow_containers(changed) {
            tracing::debug!("{error:#}");
            self.links_changed = true;
        }
        self.limit_containers();
        self.heartbeat.beat_before(LONG_WORK);
        self.open_peers();
        self.heartbeat.beat();
        Ok(())
    }

    /// What containers receive.
    pub(super) fn limit_containers(&mut self) {
        let super::Daemon { queue, download, .. } = &mut self.daemon;
        if let Err(error) = download.follow_containers(queue.receiving(), queue.received()) {
            tracing::warn!("what containers receive is not limited: {error:#}");
        }
    }

    /// There are limits: by which links packets can take a detour for them, and what would be bypassed there.
    pub(super) fn check_detours(&mut self) -> Result<()> {
        self.heartbeat.beat_before(LONG_WORK);
        if let Some(reason) = self.daemon.download.lost(&self.daemon.queue.numbers()) {
            let way = Way::Received;
            self.step_alone(Input::Downlink(downlink::Input::Lost { way, reason }))?;
        }
        if let Some(reason) = self.daemon.upload.lost() {
            self.daemon.queue.set_detours(BTreeSet::new())?;
            let way = Way::Sent;
            self.step_alone(Input::Downlink(downlink::Input::Lost { way, reason }))?;
        }
        let links = self.links_installed();
        let arrivals = self.daemon.download.arrivals(&links).and_then(|arrivals| {
            let departures = self.daemon.upload.departures(&arrivals)?;
            Ok((arrivals, departures))
        });
        let (mut arrivals, mut departures) = match arrivals {
            Ok(both) => both,
            // As nftables' chains that change while they are listed. What was seen before counts until the next look.
            Err(error) => {
                tracing::debug!("{error:#}");
                self.heartbeat.beat();
                return Ok(());
            }
        };
        let is_served = |ifindex| links.iter().any(|(served, _)| *served == ifindex);
        let others = self.found.links.iter().filter(|(ifindex, _)| !is_served(*ifindex));
        for (ifindex, name) in others {
            let unseen = Arrival {
                ifindex: *ifindex,
                name: name.clone(),
                hindrance: Some("giveway classifies nothing there (`giveway status` says why at the link)".to_owned()),
                ..Arrival::default()
            };
            departures.push(unseen.clone());
            arrivals.push(unseen);
        }
        let counted = self.daemon.upload.counted();
        self.step_alone(Input::Downlink(downlink::Input::Arrivals {
            way: Way::Sent,
            arrivals: departures,
            counted,
        }))?;
        let ports = self.daemon.engine.overview().ports_of_datagrams_held();
        if let Err(error) = self.daemon.download.note_ports(&ports) {
            tracing::debug!("{error:#}");
        }
        let counted = self.daemon.download.counted();
        self.heartbeat.beat();
        self.step_alone(Input::Downlink(downlink::Input::Arrivals {
            way: Way::Received,
            arrivals,
            counted,
        }))
    }

    /// By the names that they have now.
    fn links_installed(&self) -> Vec<(u32, String)> {
        let mut links = self.daemon.queue.installed();
        for (ifindex, name) in &mut links {
            let now = self.found.links.iter().find(|(found, _)| found == ifindex);
            if let Some((_, now)) = now {
                name.clone_from(now);
            }
        }
        links
    }

    /// What has come by links where bulk and background have what is left.
    pub(super) fn poll_arrived(&mut self) -> Result<()> {
        let arrived = self.daemon.download.arrived();
        self.step(Input::Downlink(downlink::Input::Arrived(arrived)))
    }

    fn poll_devices(&mut self) -> Result<()> {
        match Netlink::open().and_then(|mut netlink| devices(&mut netlink)) {
            Ok(devices) => self.step(Input::Class(class::Input::Devices(devices))),
            Err(error) => {
                tracing::debug!("{error:#}");
                self.links_changed = true;
                Ok(())
            }
        }
    }

    fn manage(&mut self, found: Option<Interface>) -> Result<()> {
        match &found {
            Some(i) => tracing::info!("managing {} (index {})", i.name, i.index),
            None => tracing::warn!(
                "no link to manage: monitoring only, until one has a default route or a configured one is up"
            ),
        }
        if let Some(peers) = &mut self.peers
            && !found.as_ref().is_some_and(|found| peers.serves(found))
        {
            peers.give_up();
        }
        self.heartbeat.beat_before(LONG_WORK);
        let (receiver, priority) = (&mut self.daemon.receiver, self.daemon.realtime.as_ref());
        receiver.manage(found.as_ref(), self.daemon.owners.tasks(), priority);
        self.interface.clone_from(&found);
        self.step(Input::Interface(found))
    }

    /// Rate, MTU and qdisc of a link may be changed at any time, by any tool.
    fn poll_uplinks(&mut self) -> Result<()> {
        let wanted = self.found.links.clone();
        let named = |ifindex| Some((ifindex, if_indextoname(ifindex).ok()?.into_string().ok()?));
        let contested = self.daemon.engine.contested_links().into_iter().filter_map(named);
        let stands: BTreeMap<u32, String> = contested.chain(self.daemon.queue.installed()).collect();
        let stands = stands.into_iter();
        let also: Vec<_> = stands
            .filter(|(ifindex, _)| wanted.iter().all(|(one, _)| one != ifindex))
            .collect();
        let (mut uplinks, mut gone) = (Vec::new(), Vec::new());
        let all = wanted
            .into_iter()
            .map(|link| (link, true))
            .chain(also.into_iter().map(|link| (link, false)));
        for ((ifindex, name), is_up) in all {
            // One that was named keeps its queue while it is down.
            let keeps = self.is_named(&name) && self.daemon.queue.serves(ifindex);
            let looked = self.daemon.queue.read_uplink(ifindex, &name, is_up || keeps);
            match looked {
                Ok(Some(uplink)) => uplinks.push(uplink),
                Ok(None) => gone.push(ifindex),
                // It stays what it was; the next second shows more.
                Err(error) => {
                    tracing::debug!("{name}: {error:#}");
                    let sent = self.sent_uplinks.iter().find(|sent| sent.ifindex == ifindex).cloned();
                    uplinks.extend(sent.map(|mut sent| {
                        // A queue that was installed since is no other tool's.
                        sent.root.ours |= self.daemon.queue.serves(ifindex);
                        sent
                    }));
                }
            }
        }
        // What has its number and name by now is another device: it is managed anew by the next look.
        if self.interface.as_ref().is_some_and(|first| gone.contains(&first.index)) {
            self.manage(None)?;
        }
        if !std::mem::take(&mut self.resend_uplinks) && self.sent_uplinks == uplinks {
            return Ok(());
        }
        let first = self.interface.as_ref().map(|first| first.index);
        let is_sent = |ifindex| self.sent_uplinks.iter().any(|sent| sent.ifindex == ifindex);
        for uplink in &uplinks {
            if Some(uplink.ifindex) != first && !is_sent(uplink.ifindex) {
                tracing::info!("managing {} (index {}) too", uplink.name, uplink.ifindex);
            }
        }
        self.sent_uplinks.clone_from(&uplinks);
        self.step(Input::Queue(queue::Input::Uplinks(uplinks)))
    }

    fn is_named(&self, name: &String) -> bool {
        match &self.daemon.choice {
            Choice::Named(names) => names.contains(name),
            Choice::DefaultRoute => false,
        }
    }

    fn open_peers(&mut self) {
        let (Some(interface), true) = (&self.interface, self.daemon.keys.is_some()) else {
            return;
        };
        if self.peers.as_ref().is_some_and(|one| one.serves(interface)) {
            return;
        }
        self.heartbeat.beat_before(LONG_WORK);
        match Peers::open(interface, self.daemon.config.group.port) {
            Ok(peers) => {
                // The one before is closed by now, not earlier: the port is never anybody's.
                self.peers = Some(peers);
                self.alone_because = None;
            }
            Err(error) => {
                let name = &interface.name;
                let error = one_line(&error);
                let port = self.daemon.config.group.port;
                let line = format!(
                    "cannot reach the peers on {name}, UDP port {port} ([group] port): {error}; working alone, and trying again \
                     each second"
                );
                if self.alone_because.as_ref() != Some(&line) {
                    tracing::warn!("{line}");
                }
                self.alone_because = Some(line);
            }
        }
    }

    pub(super) fn hear_peers(&mut self) -> Result<()> {
        let Some(peers) = &mut self.peers else {
            return Ok(());
        };
        match peers.receive() {
            Ok(datagrams) => datagrams
                .iter()
                .try_for_each(|(from, bytes)| self.step(Input::Peers(peers::Input::Datagram { from: *from, bytes }))),
            Err(error) => {
                tracing::warn!("cannot hear the peers: {error}; trying again in a second");
                peers.give_up();
                Ok(())
            }
        }
    }

    /// Datagrams that woke nobody count as well.
    pub(super) fn note_filtered(&mut self) -> Result<()> {
        let Some(peers) = &mut self.peers else {
            return Ok(());
        };
        let filtered = match peers.filtered() {
            Ok(Some(filtered)) => filtered,
            Ok(None) => return Ok(()),
            Err(error) => {
                // They are counted on, and told of the next time.
                tracing::debug!("{error:#}");
                return Ok(());
            }
        };
        if let (Some(address), false) = (filtered.older_from, self.told_of_older) {
            tracing::warn!("{address} speaks an older version of the peers' protocol and is not heard: upgrade it");
            self.told_of_older = true;
        }
        self.step(Input::Peers(peers::Input::Filtered(filtered)))
    }

    /// The key file may change while the daemon runs: a group changes its key without a restart.
    pub(super) fn reread_keys(&mut self) -> Result<()> {
        match self.daemon.keys.as_mut().and_then(|file| file.changed()) {
            Some(Ok(keys)) => {
                let valid = keys.ids().count();
                tracing::info!("the group's key file has changed; {valid} keys are valid");
                self.step(Input::Peers(peers::Input::Keys(Some(keys))))
            }
            Some(Err(error)) => {
                tracing::warn!("{error:#}; the keys read before stay valid");
                Ok(())
            }
            None => Ok(()),
        }
    }
}
