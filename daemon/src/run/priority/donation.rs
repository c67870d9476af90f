// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which threads may donate their priority, and what they have donated, as the engine counts it. Without it (an old kernel)
//! budgets see only what the granted compute themselves, and `status` says so.

use std::collections::BTreeMap;

use anyhow::Result;
use giveway_engine::model::ProcessId;
use giveway_engine::priority::{self, DonatedTime, Donor};

use crate::kernel::donation::{self, Donors, MayDonate};
use crate::kernel::load_patiently;

pub(super) struct Donation {
    account: Result<donation::DonationPrograms>,
    /// By number of the process.
    granted: BTreeMap<u32, Granted>,
}

struct Granted {
    id: ProcessId,
    threads: BTreeMap<u32, MayDonate>,
}

impl Donation {
    pub fn open() -> Self {
        Self {
            account: load_patiently(donation::DonationPrograms::open),
            granted: BTreeMap::new(),
        }
    }

    /// For threads that chains raise.
    pub fn donors(&self) -> Option<Donors> {
        self.account.as_ref().ok().map(donation::DonationPrograms::donors)
    }

    /// Whether this process has what it could donate.
    pub fn knows(&self, pid: u32) -> bool {
        self.granted.contains_key(&pid)
    }

    /// Whether what this thread donates is counted.
    pub fn has(&self, id: ProcessId, tid: u32) -> bool {
        let granted = self.granted.get(&id.pid);
        granted.is_some_and(|granted| granted.id == id && granted.threads.contains_key(&tid))
    }

    /// These threads of a process have it, or will in a moment. A thread that was known is another one by now.
    pub fn add(&mut self, id: ProcessId, tids: impl IntoIterator<Item = u32>) -> Result<()> {
        let Some(donors) = self.donors() else { return Ok(()) };
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
            granted.threads.insert(tid, donors.add(tid, Some(id.pid))?);
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

    /// What was donated since the last call.
    pub fn take(&mut self) -> Result<Vec<priority::Input>> {
        let Ok(account) = &mut self.account else {
            return Ok(Vec::new());
        };
        let of = |donated: &donation::DonatedTime| match donated.pid {
            Some(pid) => self.granted.get(&pid).map(|granted| Donor::Process(granted.id)),
            None => Some(Donor::Handler { tid: donated.tid }),
        };
        let input = |donated: donation::DonatedTime| {
            Some(priority::Input::Donated(DonatedTime {
                donor: of(&donated)?,
                used: donated.used,
                recipients: donated.recipients,
                to: donated.to,
            }))
        };
        Ok(account.take()?.into_iter().filter_map(input).collect())
    }

    /// What is not counted, and why.
    pub fn missing(&self) -> Option<String> {
        let not_counted = "what others compute at a real-time priority donated to them through a futex is not counted";
        match &self.account {
            Err(error) => Some(format!("{not_counted}: {error:#}")),
            Ok(account) => match account.not_recorded() {
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
        let mut donation = Donation::open();
        let pid = std::process::id();
        let [first, second] = [1, 2].map(|start_ns| ProcessId { pid, start_ns });
        for id in [first, second] {
            donation.add(id, [pid]).unwrap();
        }
        // The end of the first one may be heard of late.
        donation.remove(first);
        assert_eq!(donation.granted[&pid].id, second);
        donation.remove(second);
        assert!(!donation.knows(pid));
    }
}
