// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One device and everything that may happen to it.
//!
//! In: a sequence of events, each an operation, a length and that many bytes. Checked after each: a datagram is
//! counted once, memory is bounded, what decodes encodes to the same bytes, reports fit. The key is known, so
//! that mutations reach what lies behind the seal.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use giveway_engine::model::{CaState, Class};
use giveway_engine::peers::session::{MAX_AUTHENTICATED, MAX_CANDIDATES};
use giveway_engine::peers::{
    Key, Keyring, MAX_DATAGRAM_BYTES, Outgoing, PaceConfig, PeerGroup, Report, Sender, UNLIMITED_KBIT,
};
use libfuzzer_sys::fuzz_target;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;

struct Device {
    hood: PeerGroup,
    keyring: Keyring,
    rng: ChaCha20Rng,
    now: Duration,
    /// What stood in the device's last report.
    challenge: u64,
    senders: Vec<Sender>,
}

impl Device {
    fn new() -> Self {
        let mut rng = ChaCha20Rng::seed_from_u64(0);
        let keyring = || Keyring::new(Key::from_secret([7; 32]));
        let hood = PeerGroup::new(Duration::ZERO, &mut rng, Some(keyring()), PaceConfig::default());
        Self {
            hood,
            keyring: keyring(),
            rng,
            now: Duration::ZERO,
            challenge: 0,
            senders: Vec::new(),
        }
    }

    fn happens(&mut self, operation: u8, bytes: &[u8]) {
        match operation % 8 {
            0 => self.receive(bytes),
            1 | 2 => self.receive_sealed(bytes),
            3 | 4 => self.receive_authenticated(bytes),
            5 => self.now = Duration::from_millis(number(bytes)),
            6 => self.start(number(bytes) as u32),
            _ => self.stop(),
        }
        self.tick();
    }

    fn receive(&mut self, datagram: &[u8]) {
        let before = self.hood.counters().heard();
        let from = IpAddr::V4(Ipv4Addr::new(10, 0, 0, datagram.last().copied().unwrap_or(0)));
        let _ = self.hood.receive(self.now, from, datagram);
        assert_eq!(self.hood.counters().heard(), before + 1);
    }

    fn receive_sealed(&mut self, content: &[u8]) {
        if let Ok(report) = Report::decode(content) {
            assert_eq!(report.encode().as_deref(), Ok(content));
        }
        if let Some(datagram) = self.keyring.seal(&mut self.rng, content) {
            self.receive(&datagram);
        }
    }

    fn receive_authenticated(&mut self, content: &[u8]) {
        let Ok(mut report) = Report::decode(content) else {
            return;
        };
        report.responses.truncate(15);
        report.responses.push(self.challenge);
        self.receive_sealed(&report.encode().expect("what was decoded, with at most 16 echoes"));
    }

    fn start(&mut self, number: u32) {
        self.senders.push(Sender {
            cwnd_segments: number,
            min_rtt_us: number,
            srtt_us: number,
            queue_bytes: number,
            ca_state: CaState::Open,
            delivery_rate_kbit: number,
            retransmits: number,
            class: Class::Standard,
            demand_kbit: UNLIMITED_KBIT,
        });
        self.hood.sender_started(self.now);
    }

    fn stop(&mut self) {
        self.senders.pop();
        self.hood.sender_stopped(self.now);
    }

    fn tick(&mut self) {
        self.hood.expire(self.now);
        while let Some(Outgoing { datagram, .. }) = self.hood.poll_report(self.now, &self.senders) {
            assert!(datagram.len() <= MAX_DATAGRAM_BYTES);
            let content = self.keyring.open(&datagram).expect("sealed with the same key");
            self.challenge = Report::decode(&content).expect("a report of this version").challenge;
        }
        assert!(self.hood.next_deadline().is_some_and(|due| due >= self.now));
        assert!(self.hood.peers().count() <= MAX_AUTHENTICATED + MAX_CANDIDATES);
        assert!(self.hood.sending_devices() <= MAX_AUTHENTICATED);
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .take(8)
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fuzz_target!(|events: &[u8]| {
    let mut device = Device::new();
    let mut rest = events;
    while let [operation, high, low, tail @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
        let (bytes, next) = tail.split_at(length);
        device.happens(*operation, bytes);
        rest = next;
    }
});
