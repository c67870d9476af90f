// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `giveway try --peer` and `giveway try --serve` say to each other over TCP. A connection begins with a hello that names its kind. On a
//! probe each 16 bytes come back. On a transfer both ends send frames: filling one way or the other, and between it questions
//! that come back as answers.

use std::io;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncBufRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_buf, sink};
use tokio::net::TcpStream;

/// With the version.
const HELLO: [u8; 6] = *b"gwtry1";
pub const HELLO_BYTES: usize = HELLO.len() + 1;
pub const PROBE_BYTES: usize = 16;
/// Of what fills a transfer: a question waits for one such frame at most before it is written.
const FILLING_BYTES: u16 = 16 * 1024;
/// Written and not yet sent, so that a question does not wait behind megabytes in the sender's own buffer (as HTTP/2
/// servers do: `TCP_NOTSENT_LOWAT`, tcp(7)).
const UNSENT_BYTES: u32 = 128 * 1024;
/// A connection lasts no longer, and carries no more.
pub const LONGEST: Duration = Duration::from_secs(150);
pub const MOST_BYTES: u64 = 16 << 30;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionKind {
    Probe,
    /// From the one that connects.
    Up,
    Down,
}

const KINDS: [(u8, ConnectionKind); 3] = [
    (b'p', ConnectionKind::Probe),
    (b'u', ConnectionKind::Up),
    (b'd', ConnectionKind::Down),
];

pub fn hello(kind: ConnectionKind) -> [u8; HELLO_BYTES] {
    let mut bytes = [b'p'; HELLO_BYTES];
    bytes[..HELLO.len()].copy_from_slice(&HELLO);
    for (letter, of) in KINDS {
        if of == kind {
            bytes[HELLO.len()] = letter;
        }
    }
    bytes
}

/// None where it is not one, or of another version.
pub fn kind_of(hello: &[u8; HELLO_BYTES]) -> Option<ConnectionKind> {
    let (version, letter) = hello.split_at(HELLO.len());
    let kind = KINDS.iter().find(|(of, _)| letter == [*of])?;
    (version == HELLO).then_some(kind.1)
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Frame {
    Filling,
    Question(u64),
    Answer(u64),
}

const FILLING: u8 = 0;
const QUESTION: u8 = 1;
const ANSWER: u8 = 2;
const HEADER_BYTES: usize = 3;

pub async fn write_frame(to: &mut (impl AsyncWrite + Unpin), frame: Frame) -> io::Result<usize> {
    static ZEROS: [u8; FILLING_BYTES as usize] = [0; FILLING_BYTES as usize];
    let number;
    let (kind, body) = match frame {
        Frame::Filling => (FILLING, &ZEROS[..]),
        Frame::Question(of) | Frame::Answer(of) => {
            number = of.to_be_bytes();
            let kind = if matches!(frame, Frame::Answer(_)) {
                ANSWER
            } else {
                QUESTION
            };
            (kind, &number[..])
        }
    };
    let [high, low] = (body.len() as u16).to_be_bytes();
    to.write_all(&[kind, high, low]).await?;
    to.write_all(body).await?;
    Ok(HEADER_BYTES + body.len())
}

/// The next one, and how many bytes it had.
pub async fn read_frame(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<(Frame, usize)> {
    let mut header = [0; HEADER_BYTES];
    from.read_exact(&mut header).await?;
    let [kind, high, low] = header;
    let length = u16::from_be_bytes([high, low]);
    let frame = match (kind, length) {
        (FILLING, _) => {
            let skipped = copy_buf(&mut from.take(length.into()), &mut sink()).await?;
            if skipped < u64::from(length) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Frame::Filling
        }
        (QUESTION, 8) => Frame::Question(from.read_u64().await?),
        (ANSWER, 8) => Frame::Answer(from.read_u64().await?),
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame that is none")),
    };
    Ok((frame, HEADER_BYTES + usize::from(length)))
}

/// Small things are sent at once, and filling waits in the application.
pub fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(work)
    }

    #[test]
    fn what_is_written_reads_back() {
        run(async {
            let frames = [
                Frame::Filling,
                Frame::Question(7),
                Frame::Answer(u64::MAX),
                Frame::Filling,
            ];
            let mut bytes = Vec::new();
            let mut written = 0;
            for frame in frames {
                written += write_frame(&mut bytes, frame).await.unwrap();
            }
            assert_eq!(written, bytes.len());
            let mut from = bytes.as_slice();
            for frame in frames {
                assert_eq!(read_frame(&mut from).await.unwrap().0, frame);
            }
            assert!(read_frame(&mut from).await.is_err());
        });
        for (_, kind) in KINDS {
            assert_eq!(kind_of(&hello(kind)), Some(kind));
        }
        assert_eq!(kind_of(b"gwtry2u"), None);
        assert_eq!(kind_of(b"gwtry1x"), None);
    }

    #[test]
    fn what_is_no_frame_or_is_cut_short_is_an_error() {
        run(async {
            for bytes in [
                &[3, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0][..],
                &[1, 0, 2, 0, 0],
                &[0, 0, 9, 0],
                &[1, 0],
            ] {
                assert!(read_frame(&mut &*bytes).await.is_err(), "{bytes:?}");
            }
        });
    }
}
