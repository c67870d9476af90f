// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two ends of the traffic that capabilities are tested on. The role `kernels-near`, on the device: two uploads, a
//! download, and datagrams, each on request. The role `kernels-far` receives and sends, and counts the marks of the
//! datagrams.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::socket::{setsockopt, sockopt};
use nix::time::ClockId;
use socket2::{Domain, Protocol, Socket, Type};

use crate::role::answer_each;
use crate::traffic::realtime::{monotonic_ns, send_due, send_with_deadlines};

pub const UPLOAD: u16 = 5_401;
pub const BACKGROUND: u16 = 5_402;
pub const DOWNLOAD: u16 = 5_403;
/// Of datagrams that a rule makes background.
pub const MARKED: u16 = 5_404;
const DEADLINE: u16 = 5_405;
pub const DATAGRAMS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(5);
const CHUNK: [u8; 16 * 1024] = [7; 16 * 1024];
/// Of a packet with a deadline.
const BYTES: usize = 200;
const AMPLE_NS: u64 = 200_000_000;

/// The role `kernels-near`; its description is the remote host's address.
pub fn run_near(description: &str) -> Result<()> {
    let far: String = serde_json::from_str(description)?;
    let connect = |port| {
        let connection = TcpStream::connect((far.as_str(), port));
        let connection = connection.with_context(|| format!("cannot reach port {port}"))?;
        choose_cubic(&connection)?;
        Ok::<_, anyhow::Error>(connection)
    };
    let [upload, background] = [connect(UPLOAD)?, connect(BACKGROUND)?].map(Upload::new);
    let download = connect(DOWNLOAD)?;
    let received = download.try_clone()?;
    std::thread::spawn(move || while matches!((&received).read(&mut [0; 65_536]), Ok(read) if read > 0) {});
    println!("connected");
    answer_each(|word| {
        let mut said = true;
        match word {
            "upload" => upload.run(true),
            "background" => background.run(true),
            "quiet" => [&upload, &background].iter().for_each(|one| one.run(false)),
            "end download" => download.shutdown(Shutdown::Both)?,
            "datagrams" => send_datagrams(&far)?,
            "in time" => said = is_refused(&far, AMPLE_NS)?,
            "late" => said = is_refused(&far, 0)?,
            other => bail!("`{other}` is nothing that can be asked for"),
        }
        Ok(said)
    })
}

/// Machines have different defaults.
fn choose_cubic(connection: &TcpStream) -> Result<()> {
    setsockopt(connection, sockopt::TcpCongestion, &"cubic".into()).context("cannot choose CUBIC")
}

/// A connection that sends without end while switched on.
struct Upload(Arc<AtomicBool>);

impl Upload {
    fn new(mut connection: TcpStream) -> Self {
        let runs = Arc::new(AtomicBool::new(false));
        let is_to_run = runs.clone();
        std::thread::spawn(move || {
            loop {
                match is_to_run.load(Ordering::Relaxed) {
                    true if connection.write_all(&CHUNK).is_err() => return,
                    true => {}
                    false => std::thread::sleep(PAUSE),
                }
            }
        });
        Self(runs)
    }

    fn run(&self, is_to_run: bool) {
        self.0.store(is_to_run, Ordering::Relaxed);
    }
}

fn send_datagrams(far: &str) -> Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    for _ in 0..DATAGRAMS {
        socket.send_to(&[7; 100], (far, MARKED))?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Whether a packet with this deadline is refused.
fn is_refused(far: &str, after_ns: u64) -> Result<bool> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect((far, DEADLINE))?;
    send_with_deadlines(&socket, ClockId::CLOCK_MONOTONIC)?;
    let due_ns = monotonic_ns()? + after_ns;
    send_due::<BYTES>(&socket, (1, 1), (due_ns, due_ns), due_ns)
}

/// The role `kernels-far`. Each line that it reads asks for the datagrams so far, by their TOS.
pub fn run_far(_description: &str) -> Result<()> {
    let listeners = [UPLOAD, BACKGROUND, DOWNLOAD].map(|port| TcpListener::bind(("0.0.0.0", port)));
    let [upload, background, download] = listeners;
    for listener in [upload?, background?] {
        std::thread::spawn(move || {
            for mut connection in listener.incoming().flatten() {
                std::thread::spawn(
                    move || {
                        while matches!(connection.read(&mut [0; 65_536]), Ok(read) if read > 0) {}
                    },
                );
            }
        });
    }
    let download = download?;
    std::thread::spawn(move || {
        for mut connection in download.incoming().flatten() {
            let _ = choose_cubic(&connection);
            while connection.write_all(&CHUNK).is_ok() {}
        }
    });
    let _taken = [MARKED, DEADLINE].map(|port| UdpSocket::bind(("0.0.0.0", port)));
    let counts = Arc::new(Mutex::new(BTreeMap::<u8, u32>::new()));
    let counted = counts.clone();
    // It shows the packets' headers.
    let mut packets = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).context("cannot see packets whole")?;
    std::thread::spawn(move || {
        let mut packet = [0; 2_048];
        while let Ok(length) = packets.read(&mut packet) {
            if let Some(tos) = tos(&packet[..length]) {
                let mut counts = counted.lock().unwrap_or_else(PoisonError::into_inner);
                *counts.entry(tos).or_default() += 1;
            }
        }
    });
    println!("listening");
    answer_each(|_| Ok(counts.lock().unwrap_or_else(PoisonError::into_inner).clone()))
}

/// Of a datagram to the port of marked ones.
fn tos(packet: &[u8]) -> Option<u8> {
    let header = usize::from(packet.first()? & 0x0f) * 4;
    let port = packet.get(header + 2..header + 4)?;
    (u16::from_be_bytes(port.try_into().ok()?) == MARKED).then(|| packet[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tos_is_read_only_for_the_requested_port() {
        let mut packet = [0; 28];
        packet[0] = 0x45;
        packet[1] = 4;
        packet[22..24].copy_from_slice(&MARKED.to_be_bytes());
        assert_eq!(tos(&packet), Some(4));
        packet[22] = 0;
        assert_eq!(tos(&packet), None);
        assert_eq!(tos(&packet[..20]), None);
    }
}
