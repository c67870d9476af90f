// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flow table of the queue, which has a fixed size. Input: the treatment of each flow, and its user. Output: what
//! to install and remove. While there is room every flow gets an entry; then a user with fewer entries takes one of the
//! user with the most, until they differ by one. Root gets an entry as long as any user has one. Flows without an entry
//! wait for one.

use std::collections::{BTreeMap, BTreeSet};

use super::action::Action;
use crate::model::{Cookie, ROOT, Treatment};

/// The size of the kernel's table.
pub const MOST_TREATED: usize = 16_384;

#[derive(Debug, Default)]
pub struct FlowTable {
    flows: BTreeMap<Cookie, u32>,
    users: BTreeMap<u32, User>,
    places: usize,
    /// Users with waiting flows, those with the fewest entries first.
    waiting: BTreeSet<(usize, u32)>,
    /// Users that may lose an entry, those with the most last.
    holding: BTreeSet<(usize, u32)>,
}

#[derive(Debug, Default)]
struct User {
    told: BTreeMap<Cookie, Treatment>,
    waiting: BTreeMap<Cookie, Treatment>,
}

impl FlowTable {
    /// Sets the treatment of the flow; None: by its marks.
    pub fn want(&mut self, cookie: Cookie, uid: u32, treatment: Option<Treatment>) -> Vec<Action> {
        let Some(treatment) = treatment else {
            return self.end(cookie);
        };
        let mut actions = Vec::new();
        if self.flows.insert(cookie, uid).is_some_and(|before| before != uid) {
            actions = self.end(cookie);
            self.flows.insert(cookie, uid);
        }
        let news = self.of_user(uid, |user| match user.told.insert(cookie, treatment) {
            None => {
                user.told.remove(&cookie);
                user.waiting.insert(cookie, treatment);
                false
            }
            before => before != Some(treatment),
        });
        if news {
            actions.push(treat(cookie, Some(treatment)));
        }
        actions.extend(self.settle());
        actions
    }

    pub fn has(&self, cookie: Cookie) -> bool {
        let of = self.flows.get(&cookie).and_then(|uid| self.users.get(uid));
        of.is_some_and(|user| user.told.contains_key(&cookie))
    }

    /// The flow has ended, or needs no entry.
    pub fn end(&mut self, cookie: Cookie) -> Vec<Action> {
        let Some(uid) = self.flows.remove(&cookie) else {
            return Vec::new();
        };
        let was_told = self.of_user(uid, |user| {
            user.waiting.remove(&cookie);
            user.told.remove(&cookie).is_some()
        });
        if !was_told {
            return Vec::new();
        }
        self.places -= 1;
        let mut actions = vec![treat(cookie, None)];
        actions.extend(self.settle());
        actions
    }

    /// Assigns entries to waiting flows, as far as they are due.
    fn settle(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some((has, uid)) = self.waiting.first().copied() {
            if self.places == MOST_TREATED {
                let Some((most, from)) = self.holding.last().copied() else {
                    break;
                };
                if uid != ROOT && has + 1 >= most {
                    break;
                }
                actions.extend(self.take(from));
            }
            actions.extend(self.give(uid));
        }
        actions
    }

    fn give(&mut self, uid: u32) -> Option<Action> {
        let (cookie, treatment) = self.of_user(uid, |user| {
            let (cookie, treatment) = user.waiting.pop_first()?;
            user.told.insert(cookie, treatment);
            Some((cookie, treatment))
        })?;
        self.places += 1;
        Some(treat(cookie, Some(treatment)))
    }

    fn take(&mut self, uid: u32) -> Option<Action> {
        let cookie = self.of_user(uid, |user| {
            let (cookie, treatment) = user.told.pop_last()?;
            user.waiting.insert(cookie, treatment);
            Some(cookie)
        })?;
        self.places -= 1;
        Some(treat(cookie, None))
    }

    /// Keeps the order of users up to date.
    fn of_user<T>(&mut self, uid: u32, change: impl FnOnce(&mut User) -> T) -> T {
        let user = self.users.entry(uid).or_default();
        let rank = |user: &User| (if uid == ROOT { 0 } else { user.told.len() }, uid);
        let before = rank(user);
        let outcome = change(user);
        let (after, is_waiting) = (rank(user), !user.waiting.is_empty());
        if user.told.is_empty() && !is_waiting {
            self.users.remove(&uid);
        }
        self.waiting.remove(&before);
        self.holding.remove(&before);
        if is_waiting {
            self.waiting.insert(after);
        }
        if after.0 > 0 {
            self.holding.insert(after);
        }
        outcome
    }
}

fn treat(cookie: Cookie, treatment: Option<Treatment>) -> Action {
    Action::Treat { cookie, treatment }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{Class, LimitNumbers};

    const LIMITED: Treatment = Treatment {
        class: Class::Bulk,
        limits: LimitNumbers {
            up: Some(1),
            down: None,
        },
    };
    const HOG: u32 = 1000;

    /// The kernel's table.
    #[derive(Default)]
    struct Table(BTreeMap<Cookie, Treatment>);

    impl Table {
        fn obey(&mut self, actions: Vec<Action>) {
            for action in actions {
                let Action::Treat { cookie, treatment } = action else {
                    panic!("{action:?}")
                };
                match treatment {
                    Some(treatment) => assert_ne!(self.0.insert(cookie, treatment), Some(treatment), "no news"),
                    None => assert!(self.0.remove(&cookie).is_some(), "it was not there"),
                }
                assert!(self.0.len() <= MOST_TREATED);
            }
        }
    }

    /// A user's first flow.
    fn first_of(uid: u32) -> u64 {
        u64::from(uid) << 32
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn no_flow_waits_while_an_entry_is_free_or_another_user_has_more(
            hog in 0..2 * MOST_TREATED as u64,
            steps in prop::collection::vec((0..4u32, 0..1500u64, prop::option::of(any::<bool>())), 0..4000),
        ) {
            let (mut told, mut table) = (FlowTable::default(), Table::default());
            for n in 0..hog {
                table.obey(told.want(Cookie(first_of(HOG) + n), HOG, Some(LIMITED)));
            }
            for (uid, n, wanted) in steps {
                let class = |background| if background { Class::Background } else { Class::Bulk };
                let treatment = wanted.map(|background| Treatment { class: class(background), ..LIMITED });
                table.obey(told.want(Cookie(first_of(uid) + n), uid, treatment));
            }
            let has = |user: &User| user.told.len();
            prop_assert_eq!(table.0.len(), told.places);
            prop_assert_eq!(told.users.values().map(has).sum::<usize>(), told.places);
            let most = told.users.iter().filter(|(uid, _)| **uid != ROOT).map(|(_, user)| has(user)).max();
            for (uid, user) in told.users.iter().filter(|(_, user)| !user.waiting.is_empty()) {
                prop_assert_eq!(told.places, MOST_TREATED);
                let least = if *uid == ROOT { 0 } else { most.unwrap_or_default() };
                prop_assert!(*uid == ROOT && most == Some(0) || has(user) + 1 >= least, "uid {}", uid);
            }
        }
    }
}
