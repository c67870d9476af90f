// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is served, and how much of the server each may take. Whose a connection on the loopback is the kernel says: who may
//! not look is turned away before anything is read, and takes no place of those who may. Each of these has places of their
//! own, and so has each address that connects from elsewhere. Whatever comes slowly, or never ends, has an end all the same.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use crate::kernel::peer::Peers;

/// Connections of one user, or of one address elsewhere. A browser has six.
const OF_ONE: usize = 16;
const OF_ALL: usize = 64;
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

pub enum Admission {
    /// These users, by the loopback.
    Users(Vec<u32>),
    Anyone,
}

/// Who connects.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Who {
    User(u32),
    /// Of another machine, or of this one where the kernel does not tell.
    Address(IpAddr),
}

/// Connections of each.
type Places = Rc<RefCell<BTreeMap<Who, usize>>>;

struct Turnstile {
    admission: Admission,
    peers: Option<Peers>,
    places: Places,
    turned_away: Rc<()>,
}

/// One connection's place, until it ends.
struct Held {
    who: Who,
    places: Places,
}

pub async fn serve(listener: TcpListener, router: Router, admission: Admission) -> Result<()> {
    let mut turnstile = Turnstile::new(admission)?;
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
    NotAllowed(Who),
    Crowded,
}

impl Turnstile {
    fn new(admission: Admission) -> Result<Self> {
        let peers = match &admission {
            Admission::Anyone => Peers::open().ok(),
            Admission::Users(_) => Some(Peers::open()?),
        };
        Ok(Self {
            admission,
            peers,
            places: Places::default(),
            turned_away: Rc::default(),
        })
    }

    fn admit(&mut self, stream: &TcpStream, from: SocketAddr) -> Result<Held, Refusal> {
        let who = self.user(stream, from).map_or(Who::Address(from.ip()), Who::User);
        match (&self.admission, who) {
            (Admission::Users(users), Who::User(user)) if users.contains(&user) => {}
            (Admission::Anyone, _) => {}
            _ => return Err(Refusal::NotAllowed(who)),
        }
        Held::take(&self.places, who)
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

impl Held {
    fn take(places: &Places, who: Who) -> Result<Self, Refusal> {
        let mut taken = places.borrow_mut();
        if taken.values().sum::<usize>() >= OF_ALL || taken.get(&who).is_some_and(|own| *own >= OF_ONE) {
            return Err(Refusal::Crowded);
        }
        *taken.entry(who).or_default() += 1;
        Ok(Self {
            who,
            places: places.clone(),
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut taken = self.places.borrow_mut();
        if let Some(own) = taken.get_mut(&self.who) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.who);
            }
        }
    }
}

impl Refusal {
    /// Whatever was asked: it is not read.
    fn answer(&self) -> String {
        let (status, why) = match self {
            Self::NotAllowed(Who::User(uid)) => (
                "403 Forbidden",
                format!("uid {uid} is not served here: `giveway web --allow {uid}` serves it too\n"),
            ),
            Self::NotAllowed(Who::Address(_)) => (
                "403 Forbidden",
                "the kernel does not tell whose connection this is (inet_diag): `giveway web --anyone` serves it\n"
                    .to_owned(),
            ),
            Self::Crowded => (
                "503 Service Unavailable",
                format!("{OF_ONE} connections of a user are the most, {OF_ALL} of all\n"),
            ),
        };
        let length = why.len();
        let head = "Content-Type: text/plain\r\nX-Content-Type-Options: nosniff\r\nConnection: close";
        format!("HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {length}\r\n\r\n{why}")
    }
}

/// Answers the requests of one connection, to its end.
async fn converse(stream: TcpStream, router: Router, _held: Held) {
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
        let places = Places::default();
        let take = |who| Held::take(&places, who).ok();
        let own: Vec<Held> = (0..1000).map_while(|_| take(Who::User(1000))).collect();
        assert_eq!(own.len(), OF_ONE);
        assert!(take(Who::User(1001)).is_some());
        drop(own);
        assert!(take(Who::User(1000)).is_some(), "what ended is free again");
        assert!(places.borrow().is_empty());
    }
}
