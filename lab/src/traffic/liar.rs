// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device on the link that tells its peers what is not true: the role `liar`, until it is killed.
//! Input: which lie. Output: reports as giveway sends them, from the engine's own protocol, with false numbers in them. It
//! transfers nothing; what its machine sends besides, others send.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use giveway_engine::model::{CaState, Class};
use giveway_engine::peers::codec::MAX_SENDERS;
use giveway_engine::peers::{Key, Keyring, MAX_DATAGRAM_BYTES, PaceConfig, PeerGroup, Sender, UNLIMITED_KBIT};
use nix::sys::socket::{setsockopt, sockopt};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::{Deserialize, Serialize};

use crate::channel::STATION_DEVICE;
use crate::namespace::Namespace;
use crate::process::Process;
use crate::role::Role;

const GROUP_PORT: u16 = 339;
const WAIT: Duration = Duration::from_millis(10);
const FLAPS_EVERY: Duration = Duration::from_secs(1);
/// More would be a flood of the air, for which nobody needs giveway.
const IDENTITIES_EVERY: Duration = Duration::from_millis(20);
const IDENTITIES: usize = 1_000;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub enum Lie {
    /// A member that has, wants and could use more than there is.
    Everything,
    /// A member that has nothing, and could use nothing.
    Nothing,
    /// A member that says each second that it begins or ends.
    Flapping,
    /// A member with as many senders as a report can list, which tells nothing of what they could use.
    Crowd,
    /// A thousand devices, with a key that is not the group's.
    Identities,
}

/// Begins to lie at once.
pub fn start(at: &Namespace, own: Ipv4Addr, lie: Lie, key: &Path) -> Result<Process> {
    Role::start(at, "liar", &(own, lie, key))?.into_process()
}

/// The role `liar`.
pub fn run(description: &str) -> Result<()> {
    let (own, lie, key): (Ipv4Addr, Lie, PathBuf) = serde_json::from_str(description)?;
    let socket = socket(own)?;
    let mut random = ChaCha20Rng::seed_from_u64(1);
    let text = match lie {
        Lie::Identities => Key::from_secret([1; 32]).reveal(),
        _ => std::fs::read_to_string(&key).context("no key")?,
    };
    println!();
    let begun = Instant::now();
    let mut liars = Vec::new();
    loop {
        let now = begun.elapsed();
        let wanted = match lie {
            Lie::Identities => (now.as_millis() / IDENTITIES_EVERY.as_millis()) as usize,
            _ => 1,
        };
        while liars.len() < wanted.min(IDENTITIES) {
            let keyring = Keyring::parse(&text).context("the key cannot be read")?;
            liars.push(Liar::new(now, &mut random, keyring));
        }
        let mut buffer = [0; MAX_DATAGRAM_BYTES];
        let heard = match socket.recv_from(&mut buffer) {
            Ok((bytes, from)) => Some((from.ip(), &buffer[..bytes])),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
            Err(error) => return Err(error).context("cannot hear the peers"),
        };
        let now = begun.elapsed();
        for liar in &mut liars {
            if let Some((from, datagram)) = heard {
                let _ = liar.peer_group.receive(now, from, datagram);
            }
            liar.lie(now, lie, &socket);
        }
    }
}

fn socket(own: Ipv4Addr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(("0.0.0.0", GROUP_PORT)).with_context(|| format!("cannot bind for {own}"))?;
    setsockopt(&socket, sockopt::BindToDevice, &STATION_DEVICE.into())?;
    socket.set_broadcast(true)?;
    setsockopt(&socket, sockopt::Ipv4Ttl, &255)?;
    socket.set_read_timeout(Some(WAIT))?;
    Ok(socket)
}

struct Liar {
    peer_group: PeerGroup,
    sends: bool,
    changed: Duration,
}

impl Liar {
    fn new(now: Duration, random: &mut ChaCha20Rng, keyring: Keyring) -> Self {
        Self {
            peer_group: PeerGroup::new(now, random, Some(keyring), PaceConfig::default()),
            sends: false,
            changed: now,
        }
    }

    fn lie(&mut self, now: Duration, lie: Lie, socket: &UdpSocket) {
        self.peer_group.expire(now);
        let is_due = now - self.changed >= FLAPS_EVERY;
        if !self.sends || (lie == Lie::Flapping && is_due) {
            self.sends = !self.sends;
            self.changed = now;
            match self.sends {
                true => self.peer_group.sender_started(now),
                false => self.peer_group.sender_stopped(now),
            }
        }
        let count = if lie == Lie::Crowd { MAX_SENDERS } else { 1 };
        let senders = if self.sends {
            vec![claim(lie); count]
        } else {
            Vec::new()
        };
        while let Some(report) = self.peer_group.poll_report(now, &senders) {
            let to = report.to.unwrap_or(Ipv4Addr::BROADCAST.into());
            // What does not leave is lost like any other.
            let _ = socket.send_to(&report.datagram, (to, GROUP_PORT));
        }
    }
}

fn claim(lie: Lie) -> Sender {
    let rtt_us = 256_000;
    let honest = Sender {
        cwnd_segments: 40,
        min_rtt_us: rtt_us,
        srtt_us: rtt_us,
        queue_bytes: u32::MAX,
        ca_state: CaState::Open,
        delivery_rate_kbit: 2_000,
        retransmits: 0,
        class: Class::Standard,
        demand_kbit: 2_000,
    };
    match lie {
        Lie::Nothing => Sender {
            cwnd_segments: 1,
            queue_bytes: 0,
            delivery_rate_kbit: 0,
            demand_kbit: 0,
            ..honest
        },
        Lie::Crowd => Sender {
            demand_kbit: UNLIMITED_KBIT,
            ..honest
        },
        Lie::Everything | Lie::Flapping | Lie::Identities => Sender {
            cwnd_segments: u32::MAX,
            delivery_rate_kbit: u32::MAX,
            class: Class::Realtime,
            demand_kbit: u32::MAX - 1,
            ..honest
        },
    }
}
