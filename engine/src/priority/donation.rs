// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Priority that is donated. Who waits for a lock with priority inheritance donates its priority to the lock's owner, and whoever
//! that one waits for, until the lock is free. What they compute counts as if the donor had computed it: it chose to wait.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::spent::Spent;
use super::{Action, Priority, WINDOW};
use crate::model::ProcessId;

/// No program needs so many threads to wait for each other in a row, and the kernel's account has an end (4,096).
pub(super) const MOST_RECIPIENTS: u32 = 64;

/// Whose priority it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Donor {
    /// By a rule.
    Process(ProcessId),
    /// By a chain.
    Handler { tid: u32 },
}

/// A process that computes at a priority which is donated to it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Recipient {
    pub pid: u32,
    pub name: String,
}

/// CPU time that others used at a priority that was donated to them, since this was told last.
#[derive(Clone, Debug, PartialEq)]
pub struct DonatedTime {
    pub donor: Donor,
    pub used: Duration,
    /// Threads that have it at this moment.
    pub recipients: u32,
    /// The latest of them that computed.
    pub to: Recipient,
}

impl Display for Recipient {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "its priority was inherited through a futex by process {} ({})",
            self.pid, self.name
        )
    }
}

/// What a process has donated lately.
#[derive(Debug, Default)]
pub(super) struct DonatedSpan {
    pub spent: Spent,
    /// Since its own CPU time was looked at last.
    pub since_look: Duration,
    to: Option<Recipient>,
}

impl DonatedSpan {
    /// In words, within this time; None where there is nothing to say.
    pub fn shown(&self, now: Duration, window: Duration) -> Option<String> {
        let ms = self.spent.within(now, window).as_millis();
        let to = self.to.as_ref().filter(|_| ms > 0)?;
        Some(format!("{to}, which ran for {ms} ms"))
    }
}

impl Priority {
    pub(super) fn donate(&mut self, now: Duration, donated: DonatedTime) {
        let crowd = (donated.recipients > MOST_RECIPIENTS).then(|| {
            let DonatedTime { recipients, to, .. } = &donated;
            format!("{to} and others: {recipients} threads at once, of at most {MOST_RECIPIENTS}")
        });
        match donated.donor {
            Donor::Handler { tid } => self.chains.donate(now, tid, &donated, crowd, &mut self.actions),
            Donor::Process(id) if self.having.contains(&id) => {
                self.donate_to(now, id, donated);
                if let Some(reason) = crowd {
                    self.demote(now, id, &reason);
                }
            }
            Donor::Process(_) => {}
        }
    }

    fn donate_to(&mut self, now: Duration, id: ProcessId, donated: DonatedTime) {
        let Some(held) = self.held.get_mut(&id) else { return };
        let (window, used) = (self.limits.window, donated.used);
        held.donation.since_look += used;
        held.donation.to = Some(donated.to);
        held.donation.spent.add(now, used, window);
        let account = self.accounts.entry(held.account.clone()).or_default();
        for spent in [&mut held.spent, &mut account.spent, &mut self.of_rules.spent] {
            spent.add(now, used, window);
        }
    }

    /// The starvation detector waits because of what was donated: those who donated a tenth of that time or more pay,
    /// and the others nothing. False where there are none, or all that was donated does not explain it.
    pub(super) fn demote_donors(&mut self, now: Duration, cpu: u32, waited: Duration) -> bool {
        let time = waited.min(self.limits.window);
        let donated = self
            .granted_of(None)
            .map(|(id, held)| (id, held.donation.spent.within(now, time)));
        let donors: Vec<_> = donated
            .filter(|(_, donated)| *donated * 10 >= time && !donated.is_zero())
            .collect();
        if donors.iter().map(|(_, donated)| *donated).sum::<Duration>() * 2 < time {
            return false;
        }
        for (id, _) in &donors {
            let donation = self.held.get(id).and_then(|held| held.donation.shown(now, time));
            let waited = waited.as_millis();
            let reason = format!(
                "starvation on CPU {cpu}: an ordinary thread could not run for {waited} ms; {} of that",
                donation.unwrap_or_default()
            );
            self.demote(now, *id, &reason);
        }
        true
    }
}

impl super::chain::Chains {
    /// A thread that it has raised, or had until a moment ago, has donated its priority: its share pays.
    fn donate(
        &mut self,
        now: Duration,
        tid: u32,
        donated: &DonatedTime,
        crowd: Option<String>,
        actions: &mut Vec<Action>,
    ) {
        let Some(service) = self.threads.get(&tid).map(|thread| thread.service) else {
            return;
        };
        if let Some(reason) = crowd {
            self.bar(now, service, WINDOW, reason.into(), actions);
        } else if !self.charge(now, service, donated.used, actions)
            && let Some(thread) = self.threads.get_mut(&tid)
        {
            thread.reason = format!("{}; {}", thread.reason, donated.to).into();
        }
    }
}
