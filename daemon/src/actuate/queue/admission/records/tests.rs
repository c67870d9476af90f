// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys of the kernel's tables beside the matcher.

use std::net::SocketAddr;

use giveway_engine::config::Config;
use giveway_engine::matcher::{Ends, Matcher};
use giveway_engine::model::Protocol;

use super::*;
use crate::kernel::records::bytes_of;

fn packets() -> impl Iterator<Item = Ends> {
    let remotes = [
        "192.0.2.1:5005",
        "192.0.2.2:5005",
        "192.0.2.1:5006",
        "[2001:db8::1]:5005",
    ];
    let remotes = remotes.map(|text| text.parse::<SocketAddr>().unwrap());
    let ends = move |protocol| {
        remotes.into_iter().flat_map(move |remote| {
            [40_000, 40_001].map(|port| Ends {
                protocol,
                local: SocketAddr::new(remote.ip(), port),
                remote,
            })
        })
    };
    [Protocol::Udp, Protocol::Tcp].into_iter().flat_map(ends)
}

/// As bpf/admission.bpf.c looks a packet up, with its local port and without.
fn background_keys(ends: &Ends) -> [types::gw_background_key; 2] {
    [ends.local.port(), 0].map(|local_port| {
        key_of(&BackgroundFlow {
            address: ends.remote.ip(),
            port: ends.remote.port(),
            local_port: (local_port != 0).then_some(local_port),
        })
    })
}

#[test]
fn the_kernel_finds_just_the_packets_that_the_rule_matches() {
    let text = "[[deadline]]\nport = 5005\n[[deadline]]\nport = 5006\nprotocol = \"tcp\"\n\
                [[background]]\naddress = \"192.0.2.1\"\nport = 5005\n\
                [[background]]\naddress = \"::ffff:192.0.2.2\"\nport = 5005\nlocal_port = 40001\n\
                [[background]]\naddress = \"2001:db8::1\"\nport = 5005\n";
    let config = Config::parse(text).unwrap();
    for rule in &config.deadline {
        let (key, _) = rule_of(rule);
        let matcher = Matcher::new(&rule.conditions, None);
        for ends in packets() {
            let found = (key.remote_port, key.protocol) == (ends.remote.port(), ends.protocol.number());
            assert_eq!(found, matcher.holds(None, Some(&ends)), "{rule:?} {ends:?}");
        }
    }
    for flow in &config.background {
        let key = key_of(&BackgroundFlow::from(flow).canonical());
        let matcher = Matcher::new(&flow.conditions, None);
        for ends in packets() {
            let found = background_keys(&ends).iter().any(|of| bytes_of(of) == bytes_of(&key));
            assert_eq!(found, matcher.holds(None, Some(&ends)), "{flow:?} {ends:?}");
        }
    }
}
