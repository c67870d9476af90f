// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the scenarios of real-time priority are made of: data, as in `scenario`.

/// Timers that wake up late, beside loads.
pub struct Wakeup {
    pub timers: Timers,
    pub who: Who,
}

pub struct Timers {
    pub period_us: u64,
    /// Evenly spread over the period.
    pub threads: u64,
    /// Of all threads together.
    pub wakeups: u64,
    pub loads: &'static [&'static str],
    /// Find out what made the worst late; that costs a little itself.
    pub causes: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Who {
    /// An ordinary program, and no daemon.
    Normal,
    /// The same program, to which a daemon gives priority by a rule.
    Rule,
    /// cyclictest at the highest priority.
    Reference,
}

/// Programs that start all the time, some of which a rule means.
pub struct Starts {
    pub per_s: u64,
    pub count: u64,
    /// Each so-manieth is meant.
    pub one_in: u64,
    /// How long one that is meant lives at most without priority.
    pub limit_ms: u64,
    /// Ordinary processes compute meanwhile, one for each CPU.
    pub is_busy: bool,
}

/// Programs with priority that would freeze the machine.
pub struct Runaway {
    pub kind: Kind,
    pub seconds: u64,
    /// How often it is tried.
    pub times: u64,
    /// A daemon with a rule for them; without, they are ordinary.
    pub has_rule: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// Computes without end on the CPU of the shell.
    SpinnerOne,
    /// On every CPU.
    SpinnerAll,
    /// So many processes that each start the program anew.
    ForkBomb { processes: u64 },
    /// Programs that each keep to their rule's budget and together leave nothing of the shell's CPU.
    Together { programs: u64 },
}

impl Wakeup {
    pub fn estimated_s(&self) -> f64 {
        let timers = &self.timers;
        (timers.wakeups.div_ceil(timers.threads) * timers.period_us) as f64 / 1e6 + 3.0
    }
}

impl Starts {
    pub fn estimated_s(&self) -> f64 {
        self.count as f64 / self.per_s as f64 + 1.0
    }
}

impl Runaway {
    pub fn estimated_s(&self) -> f64 {
        (self.times * (self.seconds + 2)) as f64
    }
}
