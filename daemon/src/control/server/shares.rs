// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much of the control socket each user may take: so many connections at a time, and so many requests a second. So no
//! user keeps another waiting, and root none of them. Input: who connects and who asks. Output: a share, which ends with
//! the connection, or the reason for a refusal; and how long a request has to wait.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Connections of one user at a time, and of all but root together.
const OF_A_USER: usize = 8;
const OF_USERS: usize = 64;
/// Root's are its own, so that nobody keeps root from it.
const OF_ROOT: usize = 64;
/// Requests of one user come no faster than one in this time; root's do. Those that are too fast wait for it.
pub(super) const BETWEEN_REQUESTS: Duration = Duration::from_millis(20);
/// After one that makes much work (all processes are looked at, or everything is told).
pub(super) const AFTER_MUCH: Duration = Duration::from_millis(200);

/// Of one user that is connected, or has just asked something.
#[derive(Debug)]
struct User {
    connections: usize,
    /// When the next request may be served.
    next: Instant,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Shares(Rc<RefCell<BTreeMap<u32, User>>>);

/// A connection's.
#[derive(Debug)]
pub(super) struct UserSlot {
    uid: u32,
    shares: Shares,
}

impl Shares {
    /// # Errors
    /// Why this user has to wait.
    pub fn take(&self, uid: u32) -> Result<UserSlot, String> {
        let mut users = self.0.borrow_mut();
        let now = Instant::now();
        // Those that are gone: the table is as long as what is connected, and has asked a moment ago.
        users.retain(|_, user| user.connections > 0 || user.next > now);
        let own = users.get(&uid).map_or(0, |user| user.connections);
        let most = if uid == 0 { OF_ROOT } else { OF_A_USER };
        if own >= most {
            return Err(format!(
                "uid {uid} has {own} connections to giveway already, which is the most; try again, or end one of them"
            ));
        }
        let others = users.iter().filter(|(other, _)| **other != 0);
        if uid != 0 && others.map(|(_, user)| user.connections).sum::<usize>() >= OF_USERS {
            return Err(format!(
                "{OF_USERS} connections of all users are the most that giveway takes; try again"
            ));
        }
        let user = users.entry(uid).or_insert(User {
            connections: 0,
            next: now,
        });
        user.connections += 1;
        Ok(UserSlot {
            uid,
            shares: self.clone(),
        })
    }
}

impl UserSlot {
    /// Waits until it is this request's turn: behind those of the same user, and no others. The one behind it waits for so
    /// long more, which is settled now: it may come before this one is served.
    pub async fn turn(&self, takes: Duration) {
        if self.uid == 0 {
            return;
        }
        let turn = {
            let mut users = self.shares.0.borrow_mut();
            let Some(user) = users.get_mut(&self.uid) else { return };
            let turn = user.next.max(Instant::now());
            user.next = turn + takes;
            turn
        };
        sleep_until(turn).await;
    }
}

impl Drop for UserSlot {
    fn drop(&mut self) {
        if let Some(user) = self.shares.0.borrow_mut().get_mut(&self.uid) {
            user.connections -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_takes_anothers_share_and_none_takes_roots() {
        let shares = Shares::default();
        let own: Vec<UserSlot> = (0..OF_A_USER).map(|_| shares.take(1000).unwrap()).collect();
        let refused = shares.take(1000).unwrap_err();
        assert!(refused.contains("uid 1000 has 8 connections"), "{refused}");
        let others: Vec<UserSlot> = (1001..)
            .map_while(|uid| shares.take(uid).ok())
            .take(2 * OF_USERS)
            .collect();
        assert_eq!(own.len() + others.len(), OF_USERS);
        let root: Vec<UserSlot> = (0..OF_ROOT).map(|_| shares.take(0).unwrap()).collect();
        assert!(shares.take(0).is_err());
        drop((own, others));
        assert!(shares.take(1000).is_ok(), "what ended is free again");
        drop(root);
        assert_eq!(
            shares.0.borrow().values().map(|user| user.connections).sum::<usize>(),
            0
        );
    }

    #[tokio::test]
    async fn a_users_requests_come_one_after_another_and_roots_at_once() {
        let shares = Shares::default();
        let (user, root) = (shares.take(1000).unwrap(), shares.take(0).unwrap());
        let begun = Instant::now();
        user.turn(BETWEEN_REQUESTS).await;
        for _ in 0..1000 {
            root.turn(AFTER_MUCH).await;
        }
        assert!(begun.elapsed() < 100 * BETWEEN_REQUESTS, "{:?}", begun.elapsed());
        let begun = Instant::now();
        for _ in 0..9 {
            user.turn(BETWEEN_REQUESTS).await;
        }
        assert!(begun.elapsed() >= 8 * BETWEEN_REQUESTS, "{:?}", begun.elapsed());
        let begun = Instant::now();
        user.turn(AFTER_MUCH).await;
        user.turn(BETWEEN_REQUESTS).await;
        assert!(begun.elapsed() >= AFTER_MUCH, "{:?}", begun.elapsed());
    }
}
