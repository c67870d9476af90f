// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What docs/reference/compatibility.md promises of records, status and requests, tried on what earlier versions wrote (compatibility/).
// A test prints and makes files as it likes: `clippy.toml` is for the program.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods)]

#[cfg(test)]
mod compatibility {
    use giveway::commands::plot::series::{PlotData, read};
    use giveway::control::Request;
    use giveway_engine::status::Status;

    fn drawn(record: &str) -> PlotData {
        read(record.as_bytes()).unwrap()
    }

    #[test]
    fn a_record_of_version_1_is_drawn() {
        let log = drawn(include_str!("compatibility/record-1.jsonl"));
        assert_eq!(log.left_out_text(), "");
        assert!(
            log.sockets
                .iter()
                .any(|socket| socket.samples.len() > 5 && socket.label.contains("iperf3"))
        );
    }

    #[test]
    fn the_status_of_a_daemon_of_0_1_is_understood() {
        let status: Status = serde_json::from_str(include_str!("compatibility/status-0.1.json")).unwrap();
        assert_eq!(status.daemon.version, "0.1.0");
        assert_eq!(status.network.policy.estimate, None);
    }

    #[test]
    fn each_request_of_a_client_of_0_1_is_understood() {
        let requests = include_str!("compatibility/requests-0.1.jsonl");
        for line in requests.lines() {
            let request = serde_json::from_str::<Request>(line);
            assert!(request.is_ok(), "{line}: {request:?}");
        }
        assert_eq!(requests.lines().count(), 14);
    }
}
