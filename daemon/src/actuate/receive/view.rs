// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The receiving side as `status` and `why` show it: what is set, and of each thread that handles requests its latest
//! change. In comes a subject, out go lines.

use std::fmt::Write as _;

use giveway_engine::config::Protocol;
use giveway_engine::receive::HandlerView;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ReceiveView {
    /// Changes by `[receive]`, a line each.
    pub settings: Vec<String>,
    pub handlers: Vec<HandlerView>,
}

impl ReceiveView {
    /// What concerns a thread, a port, or (`receive`) all of it.
    pub fn about(&self, subject: Option<&str>) -> Self {
        let all = subject.is_none_or(|subject| subject == "receive");
        let is_of = |handler: &&HandlerView| {
            let names = [handler.tid.to_string(), handler.service.local_port.to_string()];
            all || subject.is_some_and(|subject| names.iter().any(|name| name == subject))
        };
        Self {
            settings: if all { self.settings.clone() } else { Vec::new() },
            handlers: self.handlers.iter().filter(is_of).cloned().collect(),
        }
    }

    pub fn line(&self) -> String {
        let raised = self
            .handlers
            .iter()
            .filter(|handler| handler.priority.is_some())
            .count();
        format!(
            "{} settings, {} of {} threads with requests are raised (`giveway why receive`)",
            self.settings.len(),
            raised,
            self.handlers.len()
        )
    }

    pub fn shown(&self) -> String {
        let mut text = String::new();
        for line in &self.settings {
            let _ = writeln!(text, "receiving: {line}, rule [receive]");
        }
        for handler in &self.handlers {
            let protocol = match handler.service.protocol {
                Protocol::Udp => "udp",
                Protocol::Tcp => "tcp",
            };
            let priority = handler
                .priority
                .map_or("as it was".to_owned(), |priority| format!("FIFO {priority}"));
            let _ = writeln!(
                text,
                "{:.3} s since boot: thread {}, requests to {protocol} port {}\n  {priority}, raised {} times, rule [[chain]]\n  because {}",
                handler.t_ns as f64 / 1e9,
                handler.tid,
                handler.service.local_port,
                handler.raises,
                handler.why,
            );
            for (why, times) in &handler.lowers {
                let _ = writeln!(text, "  lowered {times} times: {why}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use giveway_engine::receive::Service;

    use super::*;

    #[test]
    fn a_thread_is_found_by_its_number_and_by_its_port() {
        let handler = HandlerView {
            tid: 77,
            service: Service {
                protocol: Protocol::Udp,
                local_port: 5005,
            },
            priority: Some(40),
            raises: 3,
            lowers: [("something else came".to_owned(), 2)].into(),
            t_ns: 1_500_000_000,
            why: "a request with a deadline came".to_owned(),
        };
        let view = ReceiveView {
            settings: vec!["threaded: 0 -> 1".to_owned()],
            handlers: vec![handler],
        };
        assert_eq!(view.about(Some("77")).shown(), view.about(Some("5005")).shown());
        assert!(view.about(Some("77")).shown().contains("FIFO 40, raised 3 times"));
        assert_eq!(view.about(Some("78")), ReceiveView::default());
        assert_eq!(view.about(Some("receive")), view);
        assert_eq!(view.about(None), view);
    }
}
