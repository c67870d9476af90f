// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Priority inheritance: a thread that waits for a lock with priority inheritance donates its priority to the lock's
//! owner, transitively, until the lock is free. The recipients' CPU time counts as the donor's, which chose to wait.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::spent::Spent;
use super::{Action, Priority, WINDOW};
use crate::model::ProcessId;

/// No program needs so long a chain of waiting threads, and the kernel part counts to 4,096 at most.
pub(super) const MOST_RECIPIENTS: u32 = 64;

/// The donor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Donor {
    /// By a rule.
    Process(ProcessId),
    /// By a chain.
    Handler { tid: u32 },
}

/// A process that runs with an inherited priority.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Recipient {
    pub pid: u32,
    pub name: String,
}

/// CPU time that others used with inherited priority since the last report.
#[derive(Clone, Debug, PartialEq)]
pub struct DonatedTime {
    pub donor: Donor,
    pub used: Duration,
    /// Threads that have it at this moment.
    pub recipients: u32,
    /// The latest of them to run.
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

/// Recent donations of a process.
#[derive(Debug, Default)]
pub(super) struct DonatedSpan {
    pub spent: Spent,
    /// Since its own CPU time was last polled.
    pub since_look: Duration,
    to: Option<Recipient>,
}

impl DonatedSpan {
    /// For people, over this time; None without a donation.
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

    /// Starvation because of donated time: donors of a tenth of that time or more pay, and the others nothing. False
    /// without any, or if donated time does not explain the wait.
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
    /// A raised thread, or one raised until a moment ago, has donated its priority: its share pays.
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
