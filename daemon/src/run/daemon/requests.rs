// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What clients of the control socket may ask of the loop, each request already authorised.

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};
use giveway_engine::class;
use giveway_engine::model::{Choice, ChosenLimit, Class, LimitNumber, Process, ROOT, Rates};
use giveway_engine::network::action::Input;
use giveway_engine::queue::Backend;
use giveway_engine::queue::links::LinkView;
use giveway_engine::status::{DaemonStatus, NetworkStatus, Status};
use tokio::sync::mpsc;

use super::Running;
use super::pause::Pause;
use super::records::header;
use crate::actuate::nice::NiceActuator;
use crate::control::ChoiceOutcome;
use crate::control::server::Call;
use crate::kernel::libbpf_log::one_line;
use crate::kernel::{now, scanner};

impl Running {
    /// Returns the connection of a client that asked for the end. A client that has gone meanwhile is no error.
    pub(super) fn answer(&mut self, call: Call) -> Result<Option<mpsc::Sender<()>>> {
        match call {
            Call::Status(answer) => {
                let _ = answer.send(self.status());
            }
            Call::Record(answer) => {
                let _ = answer.send((header(self.interface.as_ref()), self.records.subscribe()));
            }
            Call::ByHand { request, asker, answer } => {
                let _ = answer.send(self.answer_by_hand(&request, asker)?);
            }
            Call::Choose {
                pid,
                uid,
                class,
                rates,
                require,
                answer,
            } => {
                let chosen = self.choose(pid, uid, class, rates, require);
                let done = match chosen {
                    // Before its program starts.
                    Ok((input, chosen)) => {
                        self.step(input)?;
                        Ok(chosen)
                    }
                    Err(error) => Err(one_line(&error)),
                };
                let _ = answer.send(done);
            }
            Call::Focus { request, asker, answer } => {
                let _ = answer.send(self.answer_focus(&request, asker)?);
            }
            Call::Pause {
                asker,
                time,
                held,
                answer,
            } => {
                // Where the client has gone, `held` says so.
                let _ = answer.send(self.pause(asker, time, held)?);
            }
            Call::Resume(answer) => {
                let was_paused = self.pause.is_some();
                self.resume()?;
                let _ = answer.send(was_paused);
            }
            Call::LinkRate { name, rates, answer } => {
                let _ = answer.send(self.set_link_rates(name, rates)?);
            }
            Call::Config(answer) => {
                let _ = answer.send(self.effective_config());
            }
            Call::Reload(answer) => self.begin_reload(Some(answer)),
            Call::Stop(client) => return Ok(Some(client)),
        }
        Ok(None)
    }

    fn status(&self) -> Status {
        let daemon = &self.daemon;
        let network = daemon.engine.status(now());
        let paused = self.pause.as_ref().map(Pause::shown);
        let all_sockets = daemon.monitor.why_all_sockets();
        let all_sockets =
            all_sockets.map(|reason| format!("each poll goes over all sockets, and costs more: {reason}"));
        let missing = daemon.queue.missing().into_iter().chain(daemon.receiver.missing());
        Status {
            daemon: DaemonStatus {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                uptime_s: now().saturating_sub(self.started).as_secs_f64(),
                lost_events: daemon.monitor.lost_events().unwrap_or_default(),
                polls: self.polls,
                full_scans: self.scans,
                warnings: paused
                    .iter()
                    .chain(&daemon.warnings)
                    .chain(&all_sockets)
                    .chain(&self.alone_because)
                    .chain(&self.short_of)
                    .chain(&self.unguarded)
                    .chain(&self.active.problem)
                    .chain(&self.by_hand.problem)
                    .cloned()
                    .chain(scanner::hindrances().iter().map(ToString::to_string))
                    .chain(missing)
                    .chain(self.unmanaged_links())
                    .chain(daemon.choice.awaited(&self.found))
                    .chain(daemon.choice.unmanaged(&daemon.config.uplink, &self.found))
                    .chain(self.unpromised_deadlines(&network))
                    .chain(daemon.rules.missing(!daemon.engine.limiting_sent().is_empty()))
                    .chain(daemon.download.missing())
                    .chain(daemon.owners.missing().cloned())
                    .chain(daemon.nice.iter().flat_map(NiceActuator::missing))
                    .collect(),
                class_rules: daemon.rules.len(),
                paused: self.pause.as_ref().map(Pause::view),
            },
            network,
            // The real-time thread adds its part, and its changes.
            priority: None,
            changes: [daemon.engine.changes(), daemon.receiver.changes()].concat(),
        }
    }

    /// There are more than are managed, or may be.
    fn unmanaged_links(&self) -> impl Iterator<Item = String> + use<> {
        let left_out = (!self.found.left_out.is_empty()).then(|| {
            let (more, most) = (self.found.left_out.len(), self.found.links.len());
            let names: Vec<&str> = self.found.left_out.iter().take(most).map(String::as_str).collect();
            let and_more = if more > most { ", ..." } else { "" };
            format!(
                "{more} more interfaces have a default route than the {most} that are managed ({}{and_more}): name those that \
                 matter in `interfaces`",
                names.join(", ")
            )
        });
        let unread_tables = (self.found.unread_tables > 0).then(|| {
            format!(
                "`ip rule` leads to {} more routing tables than are read: name the interfaces that matter in `interfaces`",
                self.found.unread_tables
            )
        });
        left_out.into_iter().chain(unread_tables)
    }

    /// Where `[[deadline]]` promises less than it seems to.
    fn unpromised_deadlines(&self, network: &NetworkStatus) -> Vec<String> {
        let daemon = &self.daemon;
        if daemon.config.deadline.is_empty() {
            return Vec::new();
        }
        let promises = |link: &LinkView| {
            let plan = link.queue.installed.as_ref();
            plan.is_some_and(|plan| plan.backend != Backend::None && plan.tuning.rate_bytes_per_s.is_some())
        };
        let unpromised = (!network.links.iter().any(promises)).then(|| {
            "[[deadline]] guarantees nothing: no link has a queue with a known rate (`giveway link show` says why; `rate_mbit` in \
             [link], or in its [[uplink]], names it)"
                .to_owned()
        });
        let past_deadlines = daemon.engine.overview().unmanaged().into_iter().map(|device| {
            format!(
                "[[deadline]] guarantees nothing for packets that leave by {}, which is not managed ({})",
                device.shown(),
                daemon.engine.overview().links.how_to_manage(&device.name)
            )
        });
        let tunnels = daemon.engine.overview().managed_tunnels().into_iter().map(|device| {
            format!(
                "[[deadline]] promises no more than that packets leave {} in time: what they wait on the link below it is not counted",
                device.shown()
            )
        });
        unpromised.into_iter().chain(past_deadlines).chain(tunnels).collect()
    }

    /// And where it is not enforced, as far as that is known before the command sends anything.
    fn choose(
        &mut self,
        pid: u32,
        uid: u32,
        class: Option<Class>,
        rates: Rates,
        require: bool,
    ) -> Result<(Input<'static>, ChoiceOutcome)> {
        if let Some(reason) = self.daemon.engine.paused().filter(|_| !rates.is_none()) {
            bail!("giveway is paused ({reason}): a command that starts now has no limit, also after `giveway resume`");
        }
        if !rates.is_none() {
            self.check_detours()?;
        }
        let refuse = |not_enforced: &[String]| {
            let in_words = not_enforced.join("; ");
            ensure!(
                not_enforced.is_empty() || !require,
                "it is not enforced everywhere: {in_words}"
            );
            anyhow::Ok(())
        };
        refuse(&self.daemon.engine.overview().shortfalls_of(class, rates))?;
        let in_place = self.rules_that_bind(pid, uid, rates)?;
        refuse(&in_place)?;
        let limit = (!rates.is_none()).then(|| self.limit_command(uid, class, rates));
        let limit = limit.transpose()?;
        // Where nothing stood before, a link may have refused.
        let not_enforced = self.daemon.engine.overview().shortfalls_of(class, rates);
        refuse(&not_enforced)?;
        let choice = Choice { class, uid, limit };
        let process = self.daemon.owners.choose(pid, choice)?;
        let chosen = ChoiceOutcome {
            not_enforced,
            in_place,
            limits_sent: self.daemon.engine.limiting_sent(),
            limits_received: self.daemon.engine.limiting_received(),
            orders_sent: self.daemon.engine.overview().enforcing(),
            orders_received: self.daemon.engine.ordering_received(),
        };
        Ok((Input::Class(class::Input::Chosen { process, choice }), chosen))
    }

    /// Of what is known before the process becomes the command: whose it is, and its cgroup.
    fn rules_that_bind(&self, pid: u32, uid: u32, rates: Rates) -> Result<Vec<String>> {
        let facts = match uid {
            ROOT => None,
            _ if rates.is_none() => None,
            _ => self.daemon.owners.tasks().process(pid)?,
        };
        let process = facts.map(|facts| Process {
            uid,
            euid: uid,
            cgroup: facts.cgroup,
            ..Process::default()
        });
        Ok(process.map_or_else(Vec::new, |process| {
            self.daemon.engine.overview().rules_that_bind(&process, rates)
        }))
    }

    pub(super) fn limit_command(&mut self, uid: u32, class: Option<Class>, rates: Rates) -> Result<ChosenLimit> {
        let of_flows = self.limits_beyond_tasks();
        let owners = &mut self.daemon.owners;
        let limit = owners.limit_command(uid, rates, class, &of_flows)?;
        let all = owners.command_limits();
        self.step(Input::Class(class::Input::CommandLimits(all)))?;
        // Where nothing was limited before, giveway sees packets since now.
        self.check_detours()?;
        let status = self.daemon.engine.status(now());
        let reason = |reasons: &[String]| match reasons.is_empty() {
            true => "no interface is managed".to_owned(),
            false => reasons.join("; "),
        };
        ensure!(
            rates.up.is_none() || !status.uploads.links.is_empty(),
            "{}",
            reason(&status.uploads.reasons)
        );
        ensure!(
            rates.down.is_none() || !status.downloads.links.is_empty(),
            "{}",
            reason(&status.downloads.reasons)
        );
        Ok(limit)
    }

    /// Numbers of limits that are in use whatever tasks have.
    fn limits_beyond_tasks(&self) -> BTreeSet<LimitNumber> {
        let engine = &self.daemon.engine;
        &engine.limits_of_flows() | &engine.limits_by_hand()
    }

    /// Of commands that were started under the daemon before.
    pub(super) fn restore_limits(&mut self) -> Result<()> {
        let all = self.daemon.owners.command_limits();
        if all.is_empty() {
            return Ok(());
        }
        self.step(Input::Class(class::Input::CommandLimits(all)))
    }

    /// A limit that no command has any more holds no queue.
    pub(super) fn forget_limits(&mut self) -> Result<()> {
        let of_flows = self.limits_beyond_tasks();
        let forgotten = self.daemon.owners.forget_limits(&of_flows);
        if !self.tolerate(forgotten)?.unwrap_or(false) {
            return Ok(());
        }
        let all = self.daemon.owners.command_limits();
        self.step(Input::Class(class::Input::CommandLimits(all)))
    }
}
