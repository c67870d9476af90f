// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which threads may lend their priority, and what they have lent, as the engine counts it. Without it (an old kernel)
//! budgets see only what the granted compute themselves, and `status` says so.

use std::collections::BTreeMap;

use anyhow::Result;
use giveway_engine::model::ProcessId;
use giveway_engine::priority::{self, Lender, LentTime};

use crate::kernel::lending::{self, Lenders, MayLend};
use crate::kernel::load_patiently;

pub(super) struct Lending {
    account: Result<lending::LendingPrograms>,
    /// By number of the process.
    granted: BTreeMap<u32, Granted>,
}

struct Granted {
    id: ProcessId,
    threads: BTreeMap<u32, MayLend>,
}

impl Lending {
    pub fn open() -> Self {
        Self {
            account: load_patiently(lending::LendingPrograms::open),
            granted: BTreeMap::new(),
        }
    }

    /// For threads that chains raise.
    pub fn lenders(&self) -> Option<Lenders> {
        self.account.as_ref().ok().map(lending::LendingPrograms::lenders)
    }

    /// Whether this process has what it could lend.
    pub fn knows(&self, pid: u32) -> bool {
        self.granted.contains_key(&pid)
    }

    /// Whether what this thread lends is counted.
    pub fn has(&self, id: ProcessId, tid: u32) -> bool {
        let granted = self.granted.get(&id.pid);
        granted.is_some_and(|granted| granted.id == id && granted.threads.contains_key(&tid))
    }

    /// These threads of a process have it, or will in a moment. A thread that was known is another one by now.
    pub fn add(&mut self, id: ProcessId, tids: impl IntoIterator<Item = u32>) -> Result<()> {
        let Some(lenders) = self.lenders() else { return Ok(()) };
        let new = || Granted {
            id,
            threads: BTreeMap::new(),
        };
        let granted = self.granted.entry(id.pid).or_insert_with(new);
        if granted.id != id {
            // The number is another process's by now.
            *granted = new();
        }
        for tid in tids {
            granted.threads.insert(tid, lenders.add(tid, Some(id.pid))?);
        }
        Ok(())
    }

    /// It has nothing any more.
    pub fn remove(&mut self, id: ProcessId) {
        if self.granted.get(&id.pid).is_some_and(|granted| granted.id == id) {
            self.granted.remove(&id.pid);
        }
    }

    /// Forgets threads that are not among these any more.
    pub fn tidy(&mut self, has: impl Fn(ProcessId, u32) -> bool) {
        for Granted { id, threads } in self.granted.values_mut() {
            threads.retain(|tid, _| has(*id, *tid));
        }
    }

    /// What was lent since the last call.
    pub fn take(&mut self) -> Result<Vec<priority::Input>> {
        let Ok(account) = &mut self.account else {
            return Ok(Vec::new());
        };
        let of = |lent: &lending::LentTime| match lent.pid {
            Some(pid) => self.granted.get(&pid).map(|granted| Lender::Process(granted.id)),
            None => Some(Lender::Handler { tid: lent.tid }),
        };
        let input = |lent: lending::LentTime| {
            Some(priority::Input::Lent(LentTime {
                lender: of(&lent)?,
                used: lent.used,
                borrowers: lent.borrowers,
                to: lent.to,
            }))
        };
        Ok(account.take()?.into_iter().filter_map(input).collect())
    }

    /// What is not counted, and why.
    pub fn missing(&self) -> Option<String> {
        let not_counted = "what others compute at a real-time priority lent to them through a futex is not counted";
        match &self.account {
            Err(error) => Some(format!("{not_counted}: {error:#}")),
            Ok(account) => match account.not_noted() {
                Ok(0) => None,
                Ok(times) => Some(format!("{times} times {not_counted}: too many borrowed at once")),
                Err(error) => Some(format!("{error:#}")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let mut lending = Lending::open();
        let pid = std::process::id();
        let [first, second] = [1, 2].map(|start_ns| ProcessId { pid, start_ns });
        for id in [first, second] {
            lending.add(id, [pid]).unwrap();
        }
        // The end of the first one may be heard of late.
        lending.remove(first);
        assert_eq!(lending.granted[&pid].id, second);
        lending.remove(second);
        assert!(!lending.knows(pid));
    }
}
