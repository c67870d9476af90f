// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Round robin over users. Input: things, each with its user, a user's own in their order. Output: all of them, so that
//! nobody's first one comes after another's second.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct Turns {
    /// The user whose turn is first, or the next one after it.
    next: u32,
}

impl Turns {
    pub fn order<T>(&self, things: impl IntoIterator<Item = (u32, T)>) -> Vec<(u32, T)> {
        let mut had = BTreeMap::<u32, usize>::new();
        let turn = |(uid, thing): (u32, T)| {
            let nth = had.entry(uid).or_default();
            *nth += 1;
            ((*nth, uid.wrapping_sub(self.next)), (uid, thing))
        };
        let mut turns: Vec<_> = things.into_iter().map(turn).collect();
        turns.sort_by_key(|(turn, _)| *turn);
        turns.into_iter().map(|(_, thing)| thing).collect()
    }

    /// This user has had a turn.
    pub fn had(&mut self, uid: u32) {
        self.next = uid.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_take_turns_beginning_with_the_next() {
        let things = [(5, 'a'), (5, 'b'), (5, 'c'), (7, 'd'), (7, 'e'), (9, 'f')];
        let order = |turns: &Turns| {
            turns
                .order(things)
                .into_iter()
                .map(|(_, thing)| thing)
                .collect::<String>()
        };
        let mut turns = Turns::default();
        assert_eq!(order(&turns), "adfbec");
        turns.had(5);
        assert_eq!(order(&turns), "dfaebc");
        turns.had(9);
        assert_eq!(order(&turns), "adfbec");
    }
}
