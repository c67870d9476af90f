// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whatever arrives, a device keeps its authenticated peers: 100,000 datagrams that are garbage, truncated, flipped,
//! replayed, sealed with a foreign key, or from a future version are refused, each counted once. A member's datagram is
//! read as it was written, or refused.

use giveway_engine::model::{CaState, Class};
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use giveway_engine::peers::{
    Counters, DatagramRefusal, Heard, Key, Keyring, PaceConfig, PeerGroup, Purpose, Report, Sender, VERSION,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{TestCaseError, TestRunner};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;

const NOW: Duration = Duration::from_secs(10);
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

fn key(secret: u8) -> Keyring {
    Keyring::new(Key::from_secret([secret; 32]))
}

/// A device that has authenticated one peer, which sends; with the peer's reports.
struct Settled {
    device: PeerGroup,
    recorded: Vec<Vec<u8>>,
    rng: ChaCha20Rng,
}

fn settled() -> Settled {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let mut device = PeerGroup::new(NOW, &mut rng, Some(key(7)), PaceConfig::default());
    let mut peer = PeerGroup::new(NOW, &mut rng, Some(key(7)), PaceConfig::default());
    let first = device
        .poll_report(NOW + Duration::from_secs(1), &[])
        .expect("a report is due")
        .datagram;
    assert_eq!(peer.receive(NOW, PEER, &first), Err(DatagramRefusal::Unauthenticated));
    let mut recorded = Vec::new();
    for count in 1..=16 {
        let due = peer.next_deadline().expect("a key");
        let datagram = peer
            .poll_report(due, &vec![SENDER; count])
            .expect("a report is due")
            .datagram;
        assert!(device.receive(NOW, PEER, &datagram).is_ok());
        recorded.push(datagram);
    }
    Settled { device, recorded, rng }
}

const SENDER: Sender = Sender {
    cwnd_segments: 43,
    min_rtt_us: 256_000,
    srtt_us: 262_144,
    queue_bytes: 500_000,
    ca_state: CaState::Recovery,
    delivery_rate_kbit: 1_950,
    retransmits: 17,
    class: Class::Bulk,
    demand_kbit: 10_000,
};

impl Settled {
    fn authenticated(&self) -> Vec<(u64, IpAddr, Vec<Sender>)> {
        let authenticated = self.device.peers().filter(|peer| peer.authenticated);
        authenticated
            .map(|peer| (peer.session, peer.address, peer.senders.to_vec()))
            .collect()
    }

    /// Counted once, without any change of what is authenticated.
    fn refuses(&mut self, datagram: &[u8], expected: impl Fn(DatagramRefusal) -> bool) -> Result<(), TestCaseError> {
        let (authenticated, before) = (self.authenticated(), self.device.counters());
        let outcome = self.device.receive(NOW, PEER, datagram);
        let after = self.device.counters();
        prop_assert!(outcome.is_err_and(expected), "{outcome:?}");
        prop_assert_eq!(self.authenticated(), authenticated);
        prop_assert_eq!(after.heard(), before.heard() + 1);
        prop_assert_eq!(after.received, before.received);
        let aside = |counters: Counters| (counters.sent, counters.expired);
        prop_assert_eq!(aside(after), aside(before));
        Ok(())
    }
}

/// Runs `case` on `cases` inputs against one settled device.
fn for_all<S: Strategy>(cases: u32, inputs: S, case: impl Fn(&mut Settled, S::Value) -> Result<(), TestCaseError>) {
    let settled = RefCell::new(settled());
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(&inputs, |input| case(&mut settled.borrow_mut(), input));
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn garbage_is_refused() {
    let header = vec(any::<u8>(), 0..600);
    for_all(25_000, (header, any::<bool>()), |settled, (mut bytes, ours)| {
        if let Some(start) = bytes.first_chunk_mut::<8>().filter(|_| ours) {
            *start = *settled.recorded[0].first_chunk().unwrap();
        }
        settled.refuses(&bytes, |_| true)
    });
}

#[test]
fn a_truncated_report_is_refused() {
    for_all(15_000, (any::<Index>(), any::<Index>()), |settled, (which, length)| {
        let whole = which.get(&settled.recorded).clone();
        let part = &whole[..length.index(whole.len())];
        settled.refuses(part, |reason| {
            matches!(reason, DatagramRefusal::TooShort(_) | DatagramRefusal::Forged)
        })
    });
}

#[test]
fn a_report_with_flipped_bits_is_refused() {
    for_all(
        15_000,
        (any::<Index>(), vec((any::<Index>(), 0..8u8), 1..4)),
        |settled, (which, flips)| {
            let original = which.get(&settled.recorded).clone();
            let mut flipped = original.clone();
            flips
                .iter()
                .for_each(|(at, bit)| flipped[at.index(original.len())] ^= 1 << bit);
            let unchanged = flipped == original;
            settled.refuses(&flipped, |reason| (reason == DatagramRefusal::Replayed) == unchanged)
        },
    );
}

#[test]
fn a_replayed_report_is_refused() {
    for_all(10_000, any::<Index>(), |settled, which| {
        let datagram = which.get(&settled.recorded).clone();
        settled.refuses(&datagram, |reason| reason == DatagramRefusal::Replayed)
    });
}

#[test]
fn a_report_under_a_foreign_key_is_refused() {
    let inputs = (any::<[u8; 32]>(), any::<bool>());
    for_all(10_000, inputs, |settled, (secret, disguised)| {
        let foreign = Keyring::new(Key::from_secret(secret));
        let mut datagram = foreign.seal(&mut settled.rng, b"content").unwrap();
        if disguised {
            datagram[..8].copy_from_slice(&settled.recorded[0][..8]);
        }
        let expected = if disguised {
            DatagramRefusal::Forged
        } else {
            DatagramRefusal::UnknownKey
        };
        settled.refuses(&datagram, |reason| reason == expected)
    });
}

#[test]
fn a_report_of_a_future_version_is_refused() {
    for_all(
        15_000,
        (any::<Index>(), VERSION + 1..=255u8, vec(any::<u8>(), 0..600)),
        |settled, (which, version, tail)| {
            let mut datagram = which.get(&settled.recorded).clone();
            datagram[3] = version;
            datagram.extend(tail);
            settled.refuses(&datagram, |reason| reason == DatagramRefusal::FutureVersion(version))
        },
    );
}

#[test]
fn a_report_of_an_older_version_is_refused_with_its_own_reason() {
    for_all(
        5_000,
        (any::<Index>(), 1..VERSION, vec(any::<u8>(), 0..600)),
        |settled, (which, version, tail)| {
            let mut datagram = which.get(&settled.recorded).clone();
            datagram[3] = version;
            datagram.extend(tail);
            settled.refuses(&datagram, |reason| reason == DatagramRefusal::OlderVersion(version))?;
            prop_assert_eq!(settled.device.older(), Some(PEER));
            Ok(())
        },
    );
}

#[test]
fn a_holder_of_the_key_is_not_authenticated_without_the_challenge() {
    for_all(5_000, reports(), |settled, report| {
        let Some(datagram) = key(7).seal(&mut settled.rng, &report.encode().unwrap()) else {
            return Ok(());
        };
        settled.refuses(&datagram, |reason| reason == DatagramRefusal::Unauthenticated)
    });
}

#[test]
fn any_sealed_content_is_read_or_refused_without_a_panic() {
    for_all(5_000, vec(any::<u8>(), 0..464), |settled, content| {
        let expected = match Report::decode(&content) {
            Ok(_) => DatagramRefusal::Unauthenticated,
            Err(malformed) => DatagramRefusal::Malformed(malformed),
        };
        let datagram = key(7).seal(&mut settled.rng, &content).unwrap();
        settled.refuses(&datagram, |reason| reason == expected)
    });
}

#[test]
fn an_authenticated_members_reports_are_accepted() {
    let mut settled = settled();
    let authenticated = settled.authenticated();
    let last = key(7).open(settled.recorded.last().unwrap()).unwrap();
    let last = Report::decode(&last).unwrap();
    let next = Report {
        counter: last.counter + 1,
        senders: vec![],
        ..last
    };
    let datagram = key(7).seal(&mut settled.rng, &next.encode().unwrap()).unwrap();
    assert_eq!(settled.device.receive(NOW, PEER, &datagram), Ok(Heard::Stopped));
    assert_ne!(settled.authenticated(), authenticated);
}

fn numbers() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), 0..300u32, Just(0), Just(u32::MAX)]
}

fn senders() -> impl Strategy<Value = Sender> {
    let states = [
        CaState::Open,
        CaState::Disorder,
        CaState::Cwr,
        CaState::Recovery,
        CaState::Loss,
    ];
    let classes = [
        Class::Realtime,
        Class::Stream,
        Class::Standard,
        Class::Bulk,
        Class::Background,
    ];
    let kinds = (select(states.to_vec()), select(classes.to_vec()));
    let counts = (
        numbers(),
        numbers(),
        numbers(),
        numbers(),
        numbers(),
        numbers(),
        numbers(),
    );
    (kinds, counts).prop_map(|((ca_state, class), n)| Sender {
        cwnd_segments: n.0,
        min_rtt_us: n.1,
        srtt_us: n.2,
        queue_bytes: n.3,
        delivery_rate_kbit: n.4,
        retransmits: n.5,
        demand_kbit: n.6,
        ca_state,
        class,
    })
}

fn reports() -> impl Strategy<Value = Report> {
    let purposes = select(vec![Purpose::Telling, Purpose::Leaving, Purpose::Asking]);
    let ids = (any::<u64>(), any::<u64>(), any::<u64>(), 20..=600_000u32, purposes);
    (
        ids,
        vec(any::<u16>(), 0..=4),
        vec(any::<u64>(), 0..=16),
        vec(senders(), 0..=16),
    )
        .prop_map(
            |((session, counter, challenge, interval_ms, purpose), challenged, responses, senders)| Report {
                session,
                counter,
                challenge,
                interval_ms,
                purpose,
                challenged,
                responses,
                senders,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn a_report_is_read_as_it_was_written(report in reports()) {
        prop_assert_eq!(Report::decode(&report.encode().unwrap()), Ok(report));
    }

    #[test]
    fn a_report_has_one_encoding(report in reports(), at in any::<Index>(), byte in any::<u8>()) {
        let mut bytes = report.encode().unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(other) = Report::decode(&bytes) {
            prop_assert_eq!(other.encode().unwrap(), bytes);
        }
    }

    #[test]
    fn missing_or_extra_bytes_are_refused(report in reports(), cut in any::<Index>(), tail in vec(any::<u8>(), 1..9)) {
        let bytes = report.encode().unwrap();
        prop_assert!(Report::decode(&bytes[..cut.index(bytes.len())]).is_err());
        prop_assert!(Report::decode(&[bytes, tail].concat()).is_err());
    }

    #[test]
    fn too_many_entries_are_refused(report in reports(), which in 0..3) {
        let mut report = report;
        match which {
            0 => report.challenged = vec![0; 5],
            1 => report.responses = vec![0; 17],
            _ => report.senders = vec![SENDER; 17],
        }
        prop_assert!(report.encode().is_err());
    }
}
