// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records that are whole, broken, old and too new.

use super::*;

fn header(version: u32) -> String {
    format!(
        r#"{{"schema":"giveway.record","version":{version},"kernel":"6.18","host":"h","interface":"wlan0","started_t_ns":1000000000,"started_unix_ns":0}}"#
    )
}

fn flow(t_ns: u64, cwnd: u32) -> String {
    format!(
        r#"{{"t_ns":{t_ns},"kind":"flow","cookie":7,"local":"10.0.0.1:1","remote":"10.0.0.2:2","state":"established","pid":1,"command":"cp","cgroup_id":1,"ifindex":2,"cwnd":{cwnd},"clamp":43,"ssthresh":null,"mss_bytes":1448,"srtt_us":256000,"min_rtt_us":256000,"rttvar_us":0,"in_flight_bytes":0,"unsent_bytes":0,"unacked_bytes":0,"delivery_rate_bytes_per_s":125000,"pacing_rate_bytes_per_s":null,"retransmits":0,"ca_state":"open","congestion_control":"cubic"}}"#
    )
}

#[test]
fn samples_are_told_from_the_start_of_the_record() {
    let text = [header(1), flow(1_500_000_000, 10), flow(2_000_000_000, 20)].join("\n");
    let log = read(text.as_bytes()).unwrap();
    let socket = &log.sockets[0];
    assert_eq!((socket.samples[0].at_s, socket.samples[1].cwnd), (0.5, 20.0));
    assert_eq!(
        (socket.samples[0].mbit, socket.samples[0].rtt_ms, socket.samples[0].cap),
        (1.0, 256.0, Some(43.0))
    );
}

#[test]
fn a_broken_line_is_counted_and_passed_over() {
    let text = [header(1), flow(1, 10), "{\"t_ns\":".to_owned(), flow(2, 20)].join("\n");
    assert_eq!(read(text.as_bytes()).unwrap().left_out_lines, 1);
}

#[test]
fn a_newer_version_is_refused_by_number() {
    let error = read(header(VERSION + 1).as_bytes()).unwrap_err().to_string();
    assert!(error.contains(&format!("version {}", VERSION + 1)), "{error}");
}

/// As giveway wrote it before `change` stood for `cap` and `queue`.
#[test]
fn a_record_of_version_1_is_drawn_and_nothing_of_it_counts_as_broken() {
    let changes = [
        r#"{"t_ns":1100000000,"kind":"cap","cookie":7,"old":null,"new":43,"rule":"fixed","reason":"8 devices","made":true}"#,
        r#"{"t_ns":1200000000,"kind":"queue","interface":"wlan0","old":"noqueue (not giveway's)","new":"htb at 20000 kbit/s","rule":"auto","reason":"wlan0 has 20 Mbit/s","made":true}"#,
        r#"{"t_ns":1300000000,"kind":"senders","devices":8,"connections":1}"#,
    ];
    let text = [
        &header(1),
        &flow(1_500_000_000, 10),
        changes[0],
        changes[1],
        changes[2],
        &flow(2, 20),
    ]
    .join("\n");
    let log = read(text.as_bytes()).unwrap();
    assert_eq!((log.sockets[0].samples.len(), log.left_out_lines), (2, 0));
}

#[test]
fn what_is_no_record_is_refused() {
    assert!(read("hello\n".as_bytes()).is_err());
    assert!(read("".as_bytes()).is_err());
}
