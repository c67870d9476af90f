// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway try --serve`: the peer of a test that another machine runs. It takes and sends what fills the link, and answers
//! probes. Anybody who reaches its address may use it, so everything is bounded, and it sends nothing to an address that has
//! not completed a TCP handshake.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::{sleep, timeout};

use super::wire::{
    ConnectionKind, Frame, HELLO_BYTES, LONGEST, MOST_BYTES, PROBE_BYTES, kind_of, read_frame, tune, write_frame,
};

/// Connections at a time, of one address and of all.
const OF_AN_ADDRESS: usize = 64;
const OF_ALL: usize = 256;
/// For the first bytes.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);
/// Questions of a transfer that wait for their answers.
const WAITING: usize = 64;

pub fn run(address: SocketAddr) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the server")?;
    tokio::task::LocalSet::new().block_on(&runtime, serve(address))
}

async fn serve(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}: choose another address or port"))?;
    let at = listener.local_addr()?;
    tracing::info!("on the other machine: giveway try --peer {at}  (Ctrl-C stops serving)");
    if !at.ip().to_canonical().is_loopback() {
        tracing::warn!("warning: anyone who reaches {at} can fill this machine's link while it runs");
    }
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let guests = Guests::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
        };
        match accepted {
            // Dropped at once: an address that has as many as it may is turned away.
            Ok((stream, from)) => {
                if let Some(guest) = guests.admit(from.ip()) {
                    tokio::task::spawn_local(attend(stream, guest));
                }
            }
            Err(error) => {
                tracing::warn!("cannot accept: {error}; trying again in a second");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Who is connected, by address.
#[derive(Clone, Default)]
struct Guests(Rc<RefCell<BTreeMap<IpAddr, usize>>>);

/// A connection's place.
struct Guest {
    from: IpAddr,
    guests: Guests,
}

impl Guests {
    fn admit(&self, from: IpAddr) -> Option<Guest> {
        let from = network_of(from);
        let mut guests = self.0.borrow_mut();
        let all: usize = guests.values().sum();
        let own = guests.get(&from).copied().unwrap_or_default();
        if own >= OF_AN_ADDRESS || all >= OF_ALL {
            return None;
        }
        guests.insert(from, own + 1);
        Some(Guest {
            from,
            guests: self.clone(),
        })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut guests = self.guests.0.borrow_mut();
        if let Some(own) = guests.get_mut(&self.from) {
            *own -= 1;
        }
        guests.retain(|_, own| *own > 0);
    }
}

/// A host has a whole /64 of IPv6.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

async fn attend(stream: TcpStream, guest: Guest) {
    let done = timeout(LONGEST, answer(stream)).await;
    if let Ok(Err(error)) = done {
        tracing::debug!("{}: {error:#}", guest.from);
    }
}

async fn answer(mut stream: TcpStream) -> Result<()> {
    tune(&stream)?;
    // What its end does not take goes with the connection, and does not stay in the kernel after its place is free.
    stream.set_zero_linger()?;
    let mut hello = [0; HELLO_BYTES];
    timeout(HELLO_PATIENCE, stream.read_exact(&mut hello))
        .await
        .context("it says nothing")??;
    match kind_of(&hello) {
        Some(ConnectionKind::Probe) => answer_probes(stream).await,
        Some(kind) => {
            let (reader, writer) = stream.into_split();
            let (questions, asked) = mpsc::channel(WAITING);
            tokio::select! {
                heard = read_frames(reader, questions) => heard,
                said = write_frames(writer, asked, kind == ConnectionKind::Down) => said,
            }
        }
        None => bail!("not a `giveway try` of this version"),
    }
}

async fn answer_probes(mut stream: TcpStream) -> Result<()> {
    let mut probe = [0; PROBE_BYTES];
    loop {
        stream.read_exact(&mut probe).await?;
        stream.write_all(&probe).await?;
    }
}

async fn read_frames(reader: OwnedReadHalf, questions: Sender<u64>) -> Result<()> {
    let mut reader = BufReader::with_capacity(64 * 1024, reader);
    let mut heard = 0;
    while heard < MOST_BYTES {
        let (frame, bytes) = read_frame(&mut reader).await?;
        heard += bytes as u64;
        if let Frame::Question(number) = frame {
            ensure!(
                questions.try_send(number).is_ok(),
                "it sends requests faster than it reads answers"
            );
        }
    }
    Ok(())
}

async fn write_frames(mut writer: OwnedWriteHalf, mut asked: Receiver<u64>, fills: bool) -> Result<()> {
    let mut said = 0;
    while said < MOST_BYTES {
        let frame = match asked.try_recv() {
            Ok(number) => Frame::Answer(number),
            Err(TryRecvError::Empty) if fills => Frame::Filling,
            Err(TryRecvError::Empty) => match asked.recv().await {
                Some(number) => Frame::Answer(number),
                None => return Ok(()),
            },
            Err(TryRecvError::Disconnected) => return Ok(()),
        };
        said += write_frame(&mut writer, frame).await? as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_so_many_places_and_gives_them_back() {
        let guests = Guests::default();
        let from = |text: &str| guests.admit(text.parse().unwrap());
        let own: Vec<_> = (0..OF_AN_ADDRESS).map(|_| from("2001:db8::1").unwrap()).collect();
        assert!(from("2001:db8::2").is_none(), "of the same network");
        let others: Vec<_> = (0..)
            .map_while(|n| from(&format!("192.0.2.{}", n / OF_AN_ADDRESS)))
            .collect();
        assert_eq!(own.len() + others.len(), OF_ALL);
        drop(own);
        assert!(from("2001:db8::2").is_some());
        drop(others);
        assert!(guests.0.borrow().is_empty());
    }
}
