// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The promises of docs/reference/compatibility.md, tested on files of earlier versions (compatibility/).

use giveway_engine::config::{BackendName, Config};
use giveway_engine::model::{CaState, Class};
use giveway_engine::peers::{Keyring, Purpose, Report, Sender, UNLIMITED_KBIT};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .trim()
        .chars()
        .map(|digit| digit.to_digit(16).expect("a hexadecimal digit") as u8)
        .collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn keys() -> Keyring {
    Keyring::parse(include_str!("compatibility/group.key")).expect("a key file")
}

#[test]
fn a_configuration_of_0_1_is_read_and_means_the_same() {
    let config = Config::parse(include_str!("compatibility/giveway-0.1.toml")).unwrap();
    assert_eq!(config.interfaces, ["wlan0", "wwan0"]);
    assert_eq!(config.cap.capacity_mbit, Some(20.0));
    assert_eq!(config.queue.backend, BackendName::Htb);
    assert_eq!((config.receive.napi_priority, config.receive.busy_poll_us), (30, 50));
    assert_eq!(
        (config.uplink.len(), config.priority.len(), config.rule.len()),
        (2, 2, 1)
    );
    assert_eq!(config.rule[0].rate_limit_mbit, Some(2.5));
    assert_eq!(config.deadline[0].conditions.port(), 5005);
}

/// Sealed by another implementation of docs/reference/protocol.md, PyNaCl's XChaCha20-Poly1305.
#[test]
fn a_report_of_version_2_is_opened_and_says_the_same() {
    let content = keys().open(&bytes(include_str!("compatibility/report-2.hex"))).unwrap();
    let report = Report::decode(&content).unwrap();
    let standard = Sender {
        cwnd_segments: 43,
        min_rtt_us: 256_000,
        srtt_us: 262_144,
        queue_bytes: 500_000,
        ca_state: CaState::Open,
        delivery_rate_kbit: 1_950,
        retransmits: 17,
        class: Class::Standard,
        demand_kbit: UNLIMITED_KBIT,
    };
    let background = Sender {
        cwnd_segments: 10,
        min_rtt_us: 20_000,
        srtt_us: 90_000,
        queue_bytes: 0,
        ca_state: CaState::Recovery,
        delivery_rate_kbit: 8_000,
        retransmits: 300,
        class: Class::Background,
        demand_kbit: 2_500,
    };
    let told = Report {
        session: 0x0102_0304_0506_0708,
        challenge: 0x1112_1314_1516_1718,
        counter: 300,
        interval_ms: 500,
        purpose: Purpose::Telling,
        challenged: vec![0xbeef],
        responses: vec![0x2122_2324_2526_2728],
        senders: vec![standard, background],
    };
    assert_eq!(report, told);
}
