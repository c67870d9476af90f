// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection of the model: its two ends, the path behind the access point, and the application.

use super::packet::MSS_BYTES;
use super::receiver::Receiver;
use super::sender::TcpSender;

/// What an application has to send.
#[derive(Clone, Debug)]
pub enum Application {
    /// More than the network takes.
    Bulk,
    /// From these times on, in seconds, so many Mbit/s.
    Rates(Vec<(f64, f64)>),
}

/// A planned connection.
#[derive(Clone, Debug)]
pub struct ConnectionPlan {
    pub station: usize,
    /// Behind the access point and back; one for all of a station.
    pub rtt_ms: u64,
    pub from_s: f64,
    pub to_s: f64,
    pub application: Application,
    /// Set by hand, where no engine does.
    pub clamp: Option<u32>,
    pub pacing_mbit: Option<f64>,
}

impl ConnectionPlan {
    pub fn bulk(station: usize, rtt_ms: u64) -> Self {
        Self {
            station,
            rtt_ms,
            from_s: 0.0,
            to_s: f64::INFINITY,
            application: Application::Bulk,
            clamp: None,
            pacing_mbit: None,
        }
    }
}

pub struct Connection {
    pub plan: ConnectionPlan,
    pub syn_sent_ns: Option<u64>,
    pub sender: Option<TcpSender>,
    pub receiver: Receiver,
    /// Segments that the application wrote until then, and when it was asked last.
    written: f64,
    asked_ns: u64,
}

impl Connection {
    pub fn new(plan: ConnectionPlan) -> Self {
        Self {
            plan,
            syn_sent_ns: None,
            sender: None,
            receiver: Receiver::default(),
            written: 0.0,
            asked_ns: 0,
        }
    }

    /// The handshake is over.
    pub fn open(&mut self, now_ns: u64, clamp: Option<u32>) {
        let Some(sent_ns) = self.syn_sent_ns else { return };
        let mut sender = TcpSender::new(now_ns, now_ns - sent_ns);
        if let Some(clamp) = self.plan.clamp.or(clamp) {
            sender.set_clamp(Some(clamp));
        }
        sender.max_pacing = self.plan.pacing_mbit.map(|mbit| (mbit * 125_000.0) as u64);
        self.sender = Some(sender);
        self.asked_ns = now_ns;
    }

    /// The application writes what it has by now.
    pub fn write(&mut self, now_ns: u64) {
        let Some(sender) = &mut self.sender else { return };
        let now_s = now_ns as f64 / 1e9;
        if now_s >= self.plan.to_s {
            return;
        }
        match &self.plan.application {
            Application::Bulk => sender.written = u32::MAX / 2,
            Application::Rates(rates) => {
                let mbit = rates
                    .iter()
                    .rev()
                    .find(|(from_s, _)| *from_s <= now_s)
                    .map_or(0.0, |rate| rate.1);
                // Its socket's buffer is full at one megabyte.
                let room = f64::from(700u32.saturating_sub(sender.unsent_segments()));
                let more = mbit * 1e6 / 8.0 / MSS_BYTES as f64 * (now_ns - self.asked_ns) as f64 / 1e9;
                self.written += more.min(room);
                sender.written = self.written as u32;
            }
        }
        self.asked_ns = now_ns;
    }

    /// Stops without finishing its data.
    pub fn is_over(&self, now_ns: u64) -> bool {
        now_ns as f64 / 1e9 >= self.plan.to_s
    }
}
