// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The actions of the network engine: each goes to its actuator, and what became of it goes back as an input.

use std::collections::BTreeSet;

use anyhow::Result;
use giveway_engine::background::nice::{self, Reniced};
use giveway_engine::change::{Change, Setting};
use giveway_engine::class;
use giveway_engine::downlink::{self, DetourPlan, LeftOut, Way};
use giveway_engine::enforcement::is_shortfall;
use giveway_engine::network::action::{Action, Input};
use giveway_engine::peers::Outgoing;
use giveway_engine::queue;
use giveway_engine::queue::links::LinkRequest;
use giveway_engine::record::What;
use giveway_engine::sockets;
use giveway_engine::sockets::owners::Unidentified;
use giveway_engine::sockets::setting::Request;

use super::Running;
use crate::actuate::nice::NiceActuator;
use crate::kernel::inherit::InheritingProcess;
use crate::kernel::libbpf_log::one_line;
use crate::kernel::scanner::ScanError;
use crate::kernel::{is_shortage, now};
use crate::life::LONG_WORK;

/// Lines of the log about changes in a second. Strangers decide how many connections there are to be changed; `why` has
/// the latest of all.
const LINES_PER_S: u64 = 20;

/// How many lines there were in the present second, and how many were left out since the last one.
#[derive(Default)]
pub(super) struct LogQuota {
    second: u64,
    said: u64,
    left_out: u64,
}

impl LogQuota {
    fn log(&mut self, change: &Change) {
        if is_routine(change) {
            tracing::debug!("{change}");
            return;
        }
        let second = now().as_secs();
        if second != self.second {
            (self.second, self.said) = (second, 0);
        }
        if self.said == LINES_PER_S {
            self.left_out += 1;
            return;
        }
        self.said += 1;
        let line = match std::mem::take(&mut self.left_out) {
            0 => change.to_string(),
            more => format!("{change} (and {more} changes before; `giveway why` shows the latest)"),
        };
        if is_shortfall(change) {
            tracing::warn!("{line}");
        } else {
            tracing::info!("{line}");
        }
    }
}

/// A change that follows from a class or a share, of which there are some for each connection and background process.
fn is_routine(change: &Change) -> bool {
    let is_of_one = matches!(
        change.setting,
        Setting::Cap
            | Setting::PacingRate
            | Setting::ReceiveWindow
            | Setting::CongestionControl
            | Setting::Class
            | Setting::Niceness
    );
    is_of_one && change.made && !is_shortfall(change) && !change.reason.starts_with("conflict")
}

impl Running {
    /// Nothing is marked for a detour that is not there yet, or not any more.
    fn limit_sent(&mut self, plan: Option<&DetourPlan>) -> Result<LeftOut> {
        if plan.is_none() {
            self.daemon.queue.set_detours(BTreeSet::new())?;
        }
        let outcome = self.daemon.upload.set(plan);
        let links = self.daemon.upload.links();
        let refused = outcome?;
        self.daemon.queue.set_detours(links).map(|()| refused)
    }

    // Long: an arm an action, each a few lines.
    pub(super) fn carry_out(&mut self, actions: Vec<Action>) -> Result<Vec<Input<'static>>> {
        let mut outcomes = Vec::new();
        let mut limits = Vec::new();
        let mut is_nice_noted = false;
        let mut named = Vec::new();
        for action in actions {
            match action {
                Action::Set(Request { cookie, settings }) => {
                    limits.extend(settings.into_iter().map(|wish| (cookie, wish.setting, wish.value)));
                }
                Action::CapNew(table) => {
                    self.caps_of_new = Some(table);
                    self.cap_new()?;
                }
                Action::Queue(LinkRequest { ifindex, name, request }) => {
                    self.heartbeat.beat_before(LONG_WORK);
                    let outcome = match &request {
                        queue::QueueRequest::Set(plan) => self.daemon.queue.set(ifindex, &name, plan.as_ref()),
                        // Where it fails, the queue is taken down.
                        queue::QueueRequest::Tune(tuning) => self.daemon.queue.tune(ifindex, tuning),
                    };
                    // What the next look finds is our own change, and must be compared with that.
                    self.resend_uplinks |= matches!(request, queue::QueueRequest::Set(_));
                    outcomes.push(Input::Queue(queue::Input::Outcome {
                        ifindex,
                        outcome: outcome.map_err(|error| one_line(&error)),
                    }));
                }
                Action::Downlink(downlink::Action::Set { way, plan }) => {
                    self.heartbeat.beat_before(LONG_WORK);
                    let outcome = match way {
                        Way::Received => {
                            self.containers_changed = true;
                            let queue = &self.daemon.queue;
                            let numbers = queue.numbers();
                            self.daemon.download.set(plan.as_ref(), queue.received(), &numbers)
                        }
                        Way::Sent => self.limit_sent(plan.as_ref()),
                    };
                    let outcome = outcome.map_err(|error| one_line(&error));
                    for (ifindex, reason) in outcome.iter().flatten() {
                        let name = plan.as_ref().and_then(|plan| plan.links.get(ifindex));
                        tracing::warn!("limits do not hold by {}: {reason}", name.map_or("?", String::as_str));
                    }
                    outcomes.push(Input::Downlink(downlink::Input::Outcome { way, outcome }));
                }
                Action::Downlink(downlink::Action::MakeAvailable(available)) => {
                    // What stands in the way shows at the next look.
                    if let Err(error) = self.daemon.download.make_available(&available) {
                        tracing::debug!("{error:#}");
                    }
                }
                Action::Identify(Unidentified { processes, cgroups }) => outcomes.push(Input::Identified {
                    processes: processes
                        .into_iter()
                        .map(|id| (id, self.daemon.owners.process(id)))
                        .collect(),
                    cgroups: cgroups
                        .into_iter()
                        .map(|id| (id, self.daemon.owners.cgroup(id)))
                        .collect(),
                }),
                Action::Class(class::Action::Treat { cookie, treatment }) => {
                    // It is shown with its class all the same; only the queue does not know.
                    if let Err(error) = self.daemon.queue.treat(cookie, treatment) {
                        tracing::warn!("{error:#}");
                    }
                }
                Action::Class(class::Action::TreatProcess { process, treatment }) => {
                    // Its connections have their class when they are seen.
                    if let Err(error) = self.daemon.queue.treat_process(process, treatment) {
                        tracing::debug!("{error:#}");
                    }
                }
                Action::Class(class::Action::TreatForwarded { cgroup, told }) => {
                    // It is as if nothing were said of it.
                    if let Err(error) = self.daemon.queue.treat_forwarded(cgroup, told) {
                        tracing::debug!("{error:#}");
                    }
                    self.containers_changed = true;
                }
                Action::Class(class::Action::HandOn { process, image, rule }) => {
                    named.push(InheritingProcess { process, image, rule })
                }
                Action::Nice(nice::Action::Renice { process, cause, .. }) => {
                    let nice = self.daemon.nice.as_mut();
                    let outcome = nice.map_or_else(|| Ok(Reniced::default()), |nice| nice.apply(process, cause));
                    outcomes.push(Input::Nice(nice::Input::Outcome {
                        process,
                        outcome: outcome.map_err(|error| one_line(&error)),
                    }));
                    is_nice_noted = true;
                }
                Action::Nice(nice::Action::Causes(causes)) => {
                    if let Some(Err(error)) = self.daemon.nice.as_mut().map(|nice| nice.set_causes(causes)) {
                        tracing::warn!("{error:#}");
                    }
                }
                Action::Report(report) => self.send(&report),
                Action::Record(what) => {
                    if let What::Change(change) = &what {
                        self.lines.log(change);
                    }
                    self.records.write(now(), what);
                }
            }
        }
        if !named.is_empty() {
            self.hand_down(&named)?;
        }
        if !limits.is_empty() {
            let (done, scanned) = self.daemon.sockets.apply(limits);
            self.tolerate(scanned)?;
            outcomes.push(Input::Sockets(sockets::Input::Outcomes(done)));
        }
        if is_nice_noted {
            outcomes.extend(self.nice_taken());
        }
        Ok(outcomes)
    }

    /// Sets and restores what is noted; tells of what somebody else has set.
    fn nice_taken(&mut self) -> Option<Input<'static>> {
        let taken = self.daemon.nice.as_mut().map(NiceActuator::settle)?;
        (!taken.is_empty()).then_some(Input::Nice(nice::Input::Taken(taken)))
    }

    pub(super) fn settle_nice(&mut self) -> Result<()> {
        self.nice_taken().map_or(Ok(()), |taken| self.step(taken))
    }

    /// What processes hand on by rule, and what follows for those that they have started.
    pub(super) fn hand_down(&mut self, named: &[InheritingProcess]) -> Result<()> {
        let done = self.daemon.owners.hand_down(named);
        self.tolerate(done)?;
        Ok(())
    }

    /// The caps for new connections, where they are not those that the engine asked for.
    pub(super) fn cap_new(&mut self) -> Result<()> {
        let Some(table) = &self.caps_of_new else {
            return Ok(());
        };
        let done = self.daemon.sockets.cap_new(table.ifindex, &table.caps);
        if self.tolerate(done)?.is_some() {
            self.caps_of_new = None;
        }
        Ok(())
    }

    /// None for what failed only because something is short that all share. It is done the next time, and the daemon
    /// goes on without it.
    pub(super) fn tolerate<T>(&mut self, outcome: Result<T>) -> Result<Option<T>> {
        match outcome {
            // It is told of for as long as it is so.
            Err(error) if hindrance(&error).is_some_and(|hindrance| hindrance != ScanError::Ended) => Ok(None),
            Err(error) if is_shortage(&error) => {
                let line = format!("{}; trying again", one_line(&error));
                if self.short_of.is_none() {
                    tracing::warn!("{line}");
                }
                self.short_of = Some(line);
                Ok(None)
            }
            outcome => outcome.map(Some),
        }
    }

    pub(super) fn send(&self, report: &Outgoing) {
        if let Some(Err(error)) = self.peers.as_ref().map(|peers| peers.send(report)) {
            tracing::debug!("a report was not sent: {error}");
        }
    }
}

fn hindrance(error: &anyhow::Error) -> Option<ScanError> {
    error.downcast_ref().copied()
}
