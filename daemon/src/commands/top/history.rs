// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rates, and how they went. Input: one status after another, with counters since each socket's beginning. Output: bits a second of
//! sockets, bands and all of it. Of what is seen for the first time no rate is known. What is gone is forgotten.

use std::collections::{HashMap, VecDeque};

use giveway_engine::model::{Cookie, Flow};
use giveway_engine::queue::links::LinkView;
use giveway_engine::status::Status;

/// Of one counter.
const KEPT: usize = 32;

#[derive(Debug, Default)]
pub struct RateHistory {
    daemon: u32,
    taken_t_ns: u64,
    sockets: HashMap<Cookie, SocketTracks>,
    bands: HashMap<(u32, usize), Track>,
    pub out: VecDeque<f32>,
}

#[derive(Debug, Default)]
pub struct SocketTracks {
    pub out: Track,
    pub arrived: Track,
    /// Both together.
    pub total: Track,
}

/// One counter, and the rates that it has had.
#[derive(Debug, Default)]
pub struct Track {
    /// Each with the time when it was counted.
    counted: Option<(u64, u64)>,
    rates: VecDeque<f32>,
}

impl Track {
    fn add(&mut self, t_ns: u64, bytes: u64) {
        match self.counted {
            // Nothing new.
            Some((before_ns, _)) if t_ns <= before_ns => return,
            Some((before_ns, before)) => {
                let bits = bytes.saturating_sub(before) as f64 * 8.0;
                push(&mut self.rates, bits * 1e9 / (t_ns - before_ns) as f64);
            }
            None => {}
        }
        self.counted = Some((t_ns, bytes));
    }

    /// Bits a second, lately.
    pub fn rate(&self) -> Option<f64> {
        self.rates.back().map(|rate| f64::from(*rate))
    }

    pub fn rates(&self) -> &VecDeque<f32> {
        &self.rates
    }
}

/// The standard library's sum of nothing is -0.
fn sum(rates: impl Iterator<Item = f64>) -> f64 {
    rates.fold(0.0, |all, rate| all + rate)
}

impl RateHistory {
    pub fn add(&mut self, status: &Status) {
        let (daemon, network) = (status.daemon.pid, &status.network);
        if daemon != self.daemon || network.taken_t_ns < self.taken_t_ns {
            *self = Self {
                daemon,
                ..Self::default()
            };
        }
        let has_passed = self.taken_t_ns > 0 && network.taken_t_ns > self.taken_t_ns;
        self.taken_t_ns = network.taken_t_ns;
        self.add_sockets(network.flows.iter().map(|view| &view.flow));
        self.add_bands(&network.links);
        if has_passed {
            let rates = self.sockets.values().filter_map(|socket| socket.out.rate());
            let sum = sum(rates);
            push(&mut self.out, sum);
        }
    }

    pub fn socket(&self, cookie: Cookie) -> Option<&SocketTracks> {
        self.sockets.get(&cookie)
    }

    /// By the link's index and the band's place.
    pub fn band(&self, ifindex: u32, band: usize) -> Option<&Track> {
        self.bands.get(&(ifindex, band))
    }

    /// Of all sockets, bits a second: sent, and received.
    pub fn totals(&self) -> (Option<f64>, Option<f64>) {
        let total = |of: fn(&SocketTracks) -> &Track| {
            let rates = self.sockets.values().filter_map(move |socket| of(socket).rate());
            (!self.out.is_empty()).then(|| sum(rates))
        };
        (total(|socket| &socket.out), total(|socket| &socket.arrived))
    }

    fn add_sockets<'a>(&mut self, flows: impl Iterator<Item = &'a Flow>) {
        let mut before = std::mem::take(&mut self.sockets);
        for flow in flows {
            let mut socket = before.remove(&flow.cookie).unwrap_or_default();
            socket.out.add(self.taken_t_ns, flow.acked_bytes);
            socket.arrived.add(self.taken_t_ns, flow.received_bytes);
            socket
                .total
                .add(self.taken_t_ns, flow.acked_bytes.saturating_add(flow.received_bytes));
            self.sockets.insert(flow.cookie, socket);
        }
    }

    fn add_bands(&mut self, links: &[LinkView]) {
        let mut before = std::mem::take(&mut self.bands);
        for link in links {
            let Some(counters) = &link.queue.counters else { continue };
            let bands = counters.bands.in_order().into_iter();
            for (place, (_, band)) in bands.enumerate() {
                let Some(served) = band.served else { continue };
                let mut track = before.remove(&(link.ifindex, place)).unwrap_or_default();
                track.add(counters.served_t_ns, served.sent_bytes);
                self.bands.insert((link.ifindex, place), track);
            }
        }
    }
}

fn push(rates: &mut VecDeque<f32>, rate: f64) {
    if rates.len() == KEPT {
        rates.pop_front();
    }
    rates.push_back(rate as f32);
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn a_rate_is_what_was_acknowledged_since_the_last_status() {
        let mut history = RateHistory::default();
        let mut status = sample::status(2);
        let cookie = status.network.flows[0].flow.cookie;
        history.add(&status);
        assert_eq!(
            history.socket(cookie).unwrap().out.rate(),
            None,
            "nothing to compare with"
        );
        status.network.taken_t_ns += 2_000_000_000;
        status.network.flows[0].flow.acked_bytes += 250_000;
        history.add(&status);
        assert_eq!(history.socket(cookie).unwrap().out.rate(), Some(1e6));
        assert_eq!(history.totals(), (Some(1e6), Some(0.0)));
    }

    #[test]
    fn another_daemon_and_a_socket_that_is_gone_leave_nothing_behind() {
        let mut history = RateHistory::default();
        let mut status = sample::status(3);
        let gone = status.network.flows.remove(0).flow.cookie;
        history.add(&sample::status(3));
        status.network.taken_t_ns += 1_000_000_000;
        history.add(&status);
        assert!(history.socket(gone).is_none());
        status.daemon.pid += 1;
        status.network.taken_t_ns += 1_000_000_000;
        history.add(&status);
        assert_eq!(history.totals(), (None, None));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut history = RateHistory::default();
        let mut status = sample::status(1);
        for _ in 0..10 * KEPT {
            status.network.taken_t_ns += 1_000_000_000;
            history.add(&status);
        }
        let socket = history.socket(status.network.flows[0].flow.cookie).unwrap();
        assert_eq!((socket.out.rates.len(), history.out.len()), (KEPT, KEPT));
    }
}
