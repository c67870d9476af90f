// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rate limits that users request for a command (`giveway exec --rate-limit`). Input: the user, and the limits that any
//! task or flow still has. Output: limit numbers, after those of the rules. A limit is reused as late as possible: its
//! former task may still be starting.

use std::collections::{BTreeMap, BTreeSet};

use super::{FAIREST_LIMITS, MOST_COMMAND_LIMITS, MOST_LIMITS};
use crate::model::{ChosenLimit, Class, Limit, LimitNumber, Rates};

const FIRST: LimitNumber = MOST_LIMITS as LimitNumber + 1;
const LAST_PREFERRED: LimitNumber = (MOST_LIMITS + FAIREST_LIMITS) as LimitNumber;
const LAST: LimitNumber = (MOST_LIMITS + MOST_COMMAND_LIMITS) as LimitNumber;
const OF_A_USER: usize = 16;
/// The rest is reserved for root.
const OF_USERS: usize = 256;

#[derive(Debug, Default)]
pub struct CommandLimits {
    given: BTreeMap<LimitNumber, (u32, Limit)>,
    last: Option<LimitNumber>,
}

impl CommandLimits {
    /// Assigns a number; those not `in_use` are free.
    ///
    /// # Errors
    /// Where the user's share or all numbers are used up.
    pub fn give(
        &mut self,
        uid: u32,
        rates: Rates,
        class: Class,
        in_use: &BTreeSet<LimitNumber>,
    ) -> Result<ChosenLimit, String> {
        self.keep(in_use);
        let of = |is: fn(u32, u32) -> bool| self.given.values().filter(|(by, _)| is(*by, uid)).count();
        let own = of(|by, uid| by == uid);
        if uid != 0 && (own >= OF_A_USER || of(|by, _| by != 0) >= OF_USERS) {
            return Err(format!(
                "{own} commands of uid {uid} have a rate limit, {} in all; a user may have {OF_A_USER}, all users {OF_USERS}",
                self.given.len()
            ));
        }
        let after = self.last.map_or(FIRST, |last| last + 1);
        let preferred = (after..=LAST_PREFERRED).chain(FIRST..after.min(LAST_PREFERRED + 1));
        let free = preferred
            .chain(LAST_PREFERRED + 1..=LAST)
            .find(|number| !self.given.contains_key(number) && !in_use.contains(number));
        let number = free.ok_or("no more commands can have a rate limit")?;
        self.last = Some(number);
        let limit = Limit { number, rates, class };
        self.given.insert(number, (uid, limit));
        Ok(ChosenLimit { number, rates })
    }

    /// Limits assigned by an earlier daemon, with the user of each; repetitions are allowed.
    pub fn restore(&mut self, given: impl Iterator<Item = (u32, Limit)>) {
        let known = given.filter(|(_, limit)| (FIRST..=LAST).contains(&limit.number));
        self.given
            .extend(known.map(|(uid, limit)| (limit.number, (uid, limit))));
        self.last = self.given.keys().next_back().copied();
    }

    /// Changes the rate or the band of one of them.
    pub fn change(&mut self, limit: Limit) {
        if let Some((_, given)) = self.given.get_mut(&limit.number) {
            *given = limit;
        }
    }

    /// Frees those that are not `in_use`. Whether there were any.
    pub fn keep(&mut self, in_use: &BTreeSet<LimitNumber>) -> bool {
        let before = self.given.len();
        self.given.retain(|number, _| in_use.contains(number));
        self.given.len() != before
    }

    pub fn all(&self) -> impl Iterator<Item = Limit> {
        self.given.values().map(|(_, limit)| *limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(bytes_per_s: u64) -> Rates {
        Rates {
            up: Some(bytes_per_s),
            down: None,
        }
    }

    fn numbers(limits: &CommandLimits) -> BTreeSet<LimitNumber> {
        limits.all().map(|limit| limit.number).collect()
    }

    #[test]
    fn each_command_has_its_own_limit_number_which_is_reused_last() {
        let mut limits = CommandLimits::default();
        let first = limits.give(1_000, up(125_000), Class::Bulk, &BTreeSet::new()).unwrap();
        let second = limits
            .give(1_000, up(125_000), Class::Bulk, &[first.number].into())
            .unwrap();
        assert_ne!(first.number, second.number);
        let third = limits
            .give(1_000, up(250_000), Class::Background, &[second.number].into())
            .unwrap();
        assert_eq!(numbers(&limits), [second.number, third.number].into());
        let mut later: Vec<LimitNumber> = Vec::new();
        for _ in FIRST..=LAST_PREFERRED {
            let next = limits.give(1_000, up(1), Class::Bulk, &BTreeSet::new()).unwrap();
            later.push(next.number);
        }
        let of_first = later.iter().position(|number| *number == first.number);
        let of_third = later.iter().position(|number| *number == third.number);
        assert_eq!(of_third, Some(later.len() - 1));
        assert!(of_first < of_third);
    }

    #[test]
    fn a_user_has_at_most_sixteen_command_limits() {
        let mut limits = CommandLimits::default();
        let mut give = |uid| {
            let in_use = numbers(&limits);
            limits.give(uid, up(1), Class::Background, &in_use)
        };
        for uid in 1..=16 {
            assert!((0..16).all(|_| give(uid).is_ok()));
            assert!(give(uid).is_err());
        }
        assert!(give(17).unwrap_err().contains("all users 256"));
        assert!((256..960).all(|_| give(0).is_ok()));
        assert_eq!(give(0).unwrap_err(), "no more commands can have a rate limit");
    }
}
