// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is served, and how much of the server each may take. Whose a connection on the loopback is the kernel says: who may
//! not look is turned away before anything is read, and takes no place of those who may. Each of these has places of their
//! own, and so has each network that connects from elsewhere: an IPv4 address, or a /64, which is one host's as easily as a
//! subnet's. Where all places are taken, whoever has fewer than others gets one of theirs. Whatever comes slowly, or never ends, has an
//! end all the same.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use crate::kernel::connection_users::ConnectionUsers;

/// Connections of one user, or of one network elsewhere. A browser has six.
const OF_ONE: usize = 16;
const OF_ALL: usize = 64;
/// Leading bits by which networks are told apart where all places are taken, from the widest on: who has many of one width has
/// one of the width above.
const WIDTHS_V4: [u32; LEVELS] = [16, 20, 24, 32];
const WIDTHS_V6: [u32; LEVELS] = [32, 48, 56, 64];
const LEVELS: usize = 4;
/// A request has come as a whole within this time, and so has the next one.
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);
const REQUEST_BYTES: usize = 16 * 1024;
const REQUEST_HEADERS: usize = 64;
/// After so long a connection takes no more requests ...
const LONGEST: Duration = Duration::from_secs(60);
/// ... and the last answer has to be read within this time.
const FAREWELL: Duration = Duration::from_secs(5);
/// Whoever is turned away has so long to read why; more than these at a time are not told.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);
const REFUSED_AT_ONCE: usize = 64;

pub enum AccessPolicy {
    /// These users, by the loopback.
    Users(Vec<u32>),
    Anyone,
}

/// Who connects.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum ClientId {
    User(u32),
    /// Of another machine, or of this one where the kernel does not tell. The host's bits are zero.
    Network(IpAddr),
}

/// All connections, the oldest first.
type ConnectionSlots = Rc<RefCell<BTreeMap<u64, ConnectionSlot>>>;

struct ConnectionSlot {
    who: ClientId,
    /// Told when another one is to have it.
    given_away: Rc<Notify>,
}

struct AccessControl {
    admission: AccessPolicy,
    peers: Option<ConnectionUsers>,
    places: ConnectionSlots,
    turned_away: Rc<()>,
}

/// One connection's place, until it ends.
struct SlotGuard {
    number: u64,
    given_away: Rc<Notify>,
    places: ConnectionSlots,
}

pub async fn serve(listener: TcpListener, router: Router, admission: AccessPolicy) -> Result<()> {
    let mut turnstile = AccessControl::new(admission)?;
    let local = LocalSet::new();
    local
        .run_until(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, from)) => match turnstile.admit(&stream, from) {
                        Ok(held) => {
                            tokio::task::spawn_local(converse(stream, router.clone(), held));
                        }
                        Err(refusal) => turnstile.turn_away(stream, &refusal),
                    },
                    Err(error) => {
                        tracing::warn!("cannot accept a connection: {error}; trying again in a second");
                        sleep(Duration::from_secs(1)).await;
                    }
                }
            }
        })
        .await
}

enum Refusal {
    NotAllowed(ClientId),
    Crowded,
}

impl AccessControl {
    fn new(admission: AccessPolicy) -> Result<Self> {
        let peers = match &admission {
            AccessPolicy::Anyone => ConnectionUsers::open().ok(),
            AccessPolicy::Users(_) => Some(ConnectionUsers::open()?),
        };
        Ok(Self {
            admission,
            peers,
            places: ConnectionSlots::default(),
            turned_away: Rc::default(),
        })
    }

    fn admit(&mut self, stream: &TcpStream, from: SocketAddr) -> Result<SlotGuard, Refusal> {
        let who = self
            .user(stream, from)
            .map_or_else(|| ClientId::at(from.ip()), ClientId::User);
        match (&self.admission, who) {
            (AccessPolicy::Users(users), ClientId::User(user)) if users.contains(&user) => {}
            (AccessPolicy::Anyone, _) => {}
            _ => return Err(Refusal::NotAllowed(who)),
        }
        SlotGuard::take(&self.places, who)
    }

    /// None where it is not this machine's, or the kernel does not tell.
    fn user(&mut self, stream: &TcpStream, from: SocketAddr) -> Option<u32> {
        let ours = stream.local_addr().ok()?;
        let asked = self.peers.as_mut()?.user(from, ours);
        asked.inspect_err(|error| tracing::debug!("{from}: {error:#}")).ok()
    }

    fn turn_away(&self, stream: TcpStream, refusal: &Refusal) {
        let one_of_them = self.turned_away.clone();
        if Rc::strong_count(&one_of_them) > REFUSED_AT_ONCE + 1 {
            return;
        }
        let answer = refusal.answer();
        tokio::task::spawn_local(async move {
            let _ = stream.try_write(answer.as_bytes());
            // The kernel would take the answer back from who has asked, and was not heard.
            let _ = timeout(REFUSAL_PATIENCE, stream.readable()).await;
            let _ = stream.try_read(&mut [0; REQUEST_BYTES]);
            drop(one_of_them);
        });
    }
}

impl ClientId {
    fn at(address: IpAddr) -> Self {
        Self::Network(address.to_canonical()).within(LEVELS - 1)
    }

    /// The network of this level that it is in. A user is one at each of them.
    fn within(self, level: usize) -> Self {
        match self {
            Self::User(_) => self,
            Self::Network(IpAddr::V4(address)) => {
                let kept = u32::MAX << (u32::BITS - WIDTHS_V4[level]);
                Self::Network(Ipv4Addr::from_bits(address.to_bits() & kept).into())
            }
            Self::Network(IpAddr::V6(address)) => {
                let kept = u128::MAX << (u128::BITS - WIDTHS_V6[level]);
                Self::Network(Ipv6Addr::from_bits(address.to_bits() & kept).into())
            }
        }
    }
}

impl SlotGuard {
    fn take(places: &ConnectionSlots, who: ClientId) -> Result<Self, Refusal> {
        let mut taken = places.borrow_mut();
        if taken.values().filter(|place| place.who == who).count() >= OF_ONE {
            return Err(Refusal::Crowded);
        }
        if taken.len() >= OF_ALL {
            let theirs = to_give_away(&taken, who).ok_or(Refusal::Crowded)?;
            if let Some(place) = taken.remove(&theirs) {
                place.given_away.notify_one();
            }
        }
        let number = taken.last_key_value().map_or(0, |(last, _)| last + 1);
        let given_away = Rc::new(Notify::new());
        let place = ConnectionSlot {
            who,
            given_away: given_away.clone(),
        };
        taken.insert(number, place);
        Ok(Self {
            number,
            given_away,
            places: places.clone(),
        })
    }
}

/// The oldest connection of those who have the most, at the widest level at which they have more than the newcomer's network
/// would. None where nobody has.
fn to_give_away(taken: &BTreeMap<u64, ConnectionSlot>, newcomer: ClientId) -> Option<u64> {
    let mut among: Vec<(u64, ClientId)> = taken.iter().map(|(number, place)| (*number, place.who)).collect();
    let mut is_others = false;
    for level in 0..LEVELS {
        let mut counts: BTreeMap<ClientId, usize> = BTreeMap::new();
        for (_, who) in &among {
            *counts.entry(who.within(level)).or_default() += 1;
        }
        let (heaviest, most) = counts.iter().max_by_key(|(_, count)| **count)?;
        let own = newcomer.within(level);
        is_others |= *heaviest != own && *most > counts.get(&own).map_or(0, |count| *count) + 1;
        let chosen = if is_others { *heaviest } else { own };
        among.retain(|(_, who)| who.within(level) == chosen);
    }
    let oldest = among.first().map(|(number, _)| *number);
    oldest.filter(|_| is_others)
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.places.borrow_mut().remove(&self.number);
    }
}

impl Refusal {
    /// Whatever was asked: it is not read.
    fn answer(&self) -> String {
        let (status, reason) = match self {
            Self::NotAllowed(ClientId::User(uid)) => (
                "403 Forbidden",
                format!("uid {uid} is not allowed here: start `giveway web --allow {uid}`\n"),
            ),
            Self::NotAllowed(ClientId::Network(_)) => (
                "403 Forbidden",
                "the kernel does not report the owner of this connection (inet_diag): `giveway web --anyone` \
                 serves everyone\n"
                    .to_owned(),
            ),
            Self::Crowded => (
                "503 Service Unavailable",
                format!("too many connections: at most {OF_ONE} of a user or network, {OF_ALL} in all\n"),
            ),
        };
        let length = reason.len();
        let head = "Content-Type: text/plain\r\nX-Content-Type-Options: nosniff\r\nConnection: close";
        format!("HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {length}\r\n\r\n{reason}")
    }
}

/// Answers the requests of one connection, to its end.
async fn converse(stream: TcpStream, router: Router, held: SlotGuard) {
    tokio::select! {
        () = answer(stream, router) => {}
        () = held.given_away.notified() => tracing::debug!("a connection's place was given away"),
    }
}

async fn answer(stream: TcpStream, router: Router) {
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_PATIENCE)
        .max_header_size(REQUEST_BYTES)
        .max_headers(REQUEST_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    if let Ok(done) = timeout(LONGEST, connection.as_mut()).await {
        if let Err(error) = done {
            tracing::debug!("a connection ended: {error}");
        }
        return;
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(FAREWELL, connection).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_takes_anothers_place() {
        let places = ConnectionSlots::default();
        let take = |who| SlotGuard::take(&places, who).ok();
        let own: Vec<SlotGuard> = (0..1000).map_while(|_| take(ClientId::User(1000))).collect();
        assert_eq!(own.len(), OF_ONE);
        assert!(take(ClientId::User(1001)).is_some());
        drop(own);
        assert!(take(ClientId::User(1000)).is_some(), "what ended is free again");
        assert!(places.borrow().is_empty());
    }

    fn at(address: &str) -> ClientId {
        ClientId::at(address.parse().unwrap())
    }

    #[test]
    fn the_addresses_of_a_subnet_are_one() {
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:0:0:2"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("::ffff:192.0.2.1"), at("192.0.2.1"));
        assert_ne!(at("192.0.2.1"), at("192.0.2.2"));
    }

    /// As many connections as there are, each from the next of these addresses; and how many a newcomer then gets.
    fn places_beside(crowd: impl Fn(u16) -> String, newcomer: &str) -> usize {
        let places = ConnectionSlots::default();
        let held: Vec<SlotGuard> = (0..200)
            .filter_map(|number| SlotGuard::take(&places, at(&crowd(number))).ok())
            .collect();
        assert!(held.len() >= OF_ALL.min(OF_ONE));
        assert!(places.borrow().len() <= OF_ALL);
        let theirs: Vec<SlotGuard> = (0..1000)
            .map_while(|_| SlotGuard::take(&places, at(newcomer)).ok())
            .collect();
        assert!(places.borrow().len() <= OF_ALL);
        theirs.len()
    }

    #[test]
    fn who_has_many_networks_leaves_others_their_places() {
        // Of a /48, of a provider's /32, of one subnet with many addresses, and of an IPv4 network.
        assert_eq!(
            places_beside(|n| format!("2001:db8:1:{n:x}::1"), "2001:db8:2::1"),
            OF_ONE
        );
        assert_eq!(places_beside(|n| format!("2001:db8:{n:x}::1"), "2001:db9::1"), OF_ONE);
        assert_eq!(places_beside(|n| format!("2001:db8::{n:x}"), "2001:db8:1::1"), OF_ONE);
        assert_eq!(
            places_beside(|n| format!("198.51.100.{}", n % 256), "203.0.113.1"),
            OF_ONE
        );
        // A peer in that /48, and one in the very /56, where each has as many as another.
        assert_eq!(
            places_beside(|n| format!("2001:db8:1:{n:x}::1"), "2001:db8:1:9999::1"),
            OF_ONE
        );
        assert_eq!(places_beside(|n| format!("2001:db8:1:{n:x}::1"), "2001:db8:1:ff::1"), 0);
    }

    #[test]
    fn who_has_as_many_as_others_takes_nothing_from_them() {
        let places = ConnectionSlots::default();
        let _held: Vec<SlotGuard> = (0..4)
            .flat_map(|user| (0..OF_ONE).map(move |_| ClientId::User(user)))
            .map_while(|who| SlotGuard::take(&places, who).ok())
            .collect();
        let fifth: Vec<SlotGuard> = (0..1000)
            .map_while(|_| SlotGuard::take(&places, ClientId::User(9)).ok())
            .collect();
        assert_eq!(fifth.len(), OF_ALL / 5);
        assert_eq!(places.borrow().len(), OF_ALL);
    }
}
