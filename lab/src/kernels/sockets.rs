// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP connections as `ss` shows them: the kernel's view, not giveway's. Input: a namespace. Output: the connections to
//! or from a port, with the fields of `ss -ti`.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::experiment::pause;
use crate::namespace::Namespace;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Socket {
    /// Not yet sent or acknowledged.
    pub queued_bytes: u64,
    pub control: String,
    pub cwnd: u32,
    pub rtt_ms: f64,
    pub acked_bytes: u64,
    /// The window that the other end offers.
    pub window_bytes: u64,
}

/// The connection to (`dport`) or from (`sport`) this port.
pub fn socket(at: &Namespace, which: &str, port: u16) -> Result<Socket> {
    let shown = at
        .run("ss", &format!("-tinOH state established {which} = :{port}"))?
        .stdout;
    let shown = String::from_utf8_lossy(&shown).into_owned();
    let line = shown.lines().next();
    line.and_then(read)
        .with_context(|| format!("`ss` shows no connection with {which} {port}"))
}

/// Acknowledged Mbit/s of these connections meanwhile.
pub fn rates<const N: usize>(at: &Namespace, ports: [u16; N], seconds: f64) -> Result<[f64; N]> {
    let acked = || -> Result<Vec<u64>> {
        let of = |port: &u16| Ok(socket(at, "dport", *port)?.acked_bytes);
        ports.iter().map(of).collect()
    };
    let (before, begun) = (acked()?, std::time::Instant::now());
    pause(seconds)?;
    let (after, took) = (acked()?, begun.elapsed().max(Duration::from_millis(1)));
    let mut rates = [0.0; N];
    for (rate, (after, before)) in rates.iter_mut().zip(after.iter().zip(&before)) {
        *rate = after.saturating_sub(*before) as f64 * 8e-6 / took.as_secs_f64();
    }
    Ok(rates)
}

fn read(line: &str) -> Option<Socket> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // After both addresses come the connection's fields, its congestion control first; without `timer:(...)`.
    let control = words
        .iter()
        .position(|word| word.starts_with("wscale:"))?
        .checked_sub(1)?;
    let after = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
    Some(Socket {
        queued_bytes: words.get(1)?.parse().ok()?,
        control: words[control].into(),
        cwnd: after("cwnd:")?.parse().ok()?,
        rtt_ms: after("rtt:")?.split('/').next()?.parse().ok()?,
        acked_bytes: after("bytes_acked:").and_then(|bytes| bytes.parse().ok()).unwrap_or(0),
        window_bytes: after("snd_wnd:").and_then(|bytes| bytes.parse().ok()).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_ss_is_read() {
        let line = "0      262144  10.77.1.1:40330    10.77.1.2:5401  cubic wscale:7,7 rto:204 rtt:2.414/0.05 ato:40 mss:1448 \
                    pmtu:1500 rcvmss:536 advmss:1448 cwnd:6 ssthresh:6 bytes_sent:9288 bytes_acked:8112 segs_out:5 snd_wnd:65536";
        let expected = Socket {
            queued_bytes: 262_144,
            control: "cubic".into(),
            cwnd: 6,
            rtt_ms: 2.414,
            acked_bytes: 8_112,
            window_bytes: 65_536,
        };
        assert_eq!(read(line), Some(expected));
        assert_eq!(read("0 0 1.2.3.4:5 6.7.8.9:10"), None);
    }
}
