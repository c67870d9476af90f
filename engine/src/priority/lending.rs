// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Priority that is lent. Who waits for a lock with priority inheritance lends its priority to the lock's owner, and whoever
//! that one waits for, until the lock is free. What they compute counts as if the lender had computed it: it chose to wait.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::spent::Spent;
use super::{Action, Priority, WINDOW};
use crate::model::ProcessId;

/// No program needs so many threads to wait for each other in a row, and the kernel's account has an end (4,096).
pub(super) const MOST_BORROWERS: u32 = 64;

/// Whose priority it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Lender {
    /// By a rule.
    Process(ProcessId),
    /// By a chain.
    Handler { tid: u32 },
}

/// A process that computes at a priority which is lent to it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Borrower {
    pub pid: u32,
    pub name: String,
}

/// CPU time that others used at a priority that was lent to them, since this was told last.
#[derive(Clone, Debug, PartialEq)]
pub struct LentTime {
    pub lender: Lender,
    pub used: Duration,
    /// Threads that have it at this moment.
    pub borrowers: u32,
    /// The latest of them that computed.
    pub to: Borrower,
}

impl Display for Borrower {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "its priority was lent through a futex to process {} ({})",
            self.pid, self.name
        )
    }
}

/// What a process has lent lately.
#[derive(Debug, Default)]
pub(super) struct Loan {
    pub spent: Spent,
    /// Since its own CPU time was looked at last.
    pub since_look: Duration,
    to: Option<Borrower>,
}

impl Loan {
    /// In words, within this time; None where there is nothing to say.
    pub fn shown(&self, now: Duration, window: Duration) -> Option<String> {
        let ms = self.spent.within(now, window).as_millis();
        let to = self.to.as_ref().filter(|_| ms > 0)?;
        Some(format!("{to}, which computed {ms} ms"))
    }
}

impl Priority {
    pub(super) fn lend(&mut self, now: Duration, lent: LentTime) {
        let crowd = (lent.borrowers > MOST_BORROWERS).then(|| {
            let LentTime { borrowers, to, .. } = &lent;
            format!("{to} and others: to {borrowers} threads at once, where {MOST_BORROWERS} are the most")
        });
        match lent.lender {
            Lender::Handler { tid } => self.chains.lend(now, tid, &lent, crowd, &mut self.actions),
            Lender::Process(id) if self.having.contains(&id) => {
                self.lend_to(now, id, lent);
                if let Some(why) = crowd {
                    self.demote(now, id, &why);
                }
            }
            Lender::Process(_) => {}
        }
    }

    fn lend_to(&mut self, now: Duration, id: ProcessId, lent: LentTime) {
        let Some(held) = self.held.get_mut(&id) else { return };
        let (window, used) = (self.limits.window, lent.used);
        held.loan.since_look += used;
        held.loan.to = Some(lent.to);
        held.loan.spent.add(now, used, window);
        let account = self.accounts.entry(held.account.clone()).or_default();
        for spent in [&mut held.spent, &mut account.spent, &mut self.of_rules.spent] {
            spent.add(now, used, window);
        }
    }

    /// The starvation detector waits because of what was lent: those who lent a tenth of that time or more pay,
    /// and the others nothing. False where there are none, or all that was lent does not explain it.
    pub(super) fn demote_lenders(&mut self, now: Duration, cpu: u32, waited: Duration) -> bool {
        let time = waited.min(self.limits.window);
        let lent = self
            .granted_of(None)
            .map(|(id, held)| (id, held.loan.spent.within(now, time)));
        let lenders: Vec<_> = lent.filter(|(_, lent)| *lent * 10 >= time && !lent.is_zero()).collect();
        if lenders.iter().map(|(_, lent)| *lent).sum::<Duration>() * 2 < time {
            return false;
        }
        for (id, _) in &lenders {
            let loan = self.held.get(id).and_then(|held| held.loan.shown(now, time));
            let waited = waited.as_millis();
            let why = format!(
                "a thread without real time on CPU {cpu} could not run for {waited} ms; {} of that",
                loan.unwrap_or_default()
            );
            self.demote(now, *id, &why);
        }
        true
    }
}

impl super::chain::Chains {
    /// A thread that it has raised, or had until a moment ago, has lent its priority: its share pays.
    fn lend(&mut self, now: Duration, tid: u32, lent: &LentTime, crowd: Option<String>, actions: &mut Vec<Action>) {
        let Some(service) = self.threads.get(&tid).map(|thread| thread.service) else {
            return;
        };
        if let Some(why) = crowd {
            self.bar(now, service, WINDOW, why.into(), actions);
        } else if !self.charge(now, service, lent.used, actions)
            && let Some(thread) = self.threads.get_mut(&tid)
        {
            thread.why = format!("{}; {}", thread.why, lent.to).into();
        }
    }
}
