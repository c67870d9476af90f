// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The asking side: blocking, one request a connection.

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::de::DeserializeOwned;

use super::{Answer, Request, Status};
use crate::place::Place;

/// The daemon's answers to one request.
pub struct Answers(BufReader<UnixStream>);

/// Asks the daemon of this network namespace.
///
/// # Errors
/// When none runs here, or it refuses.
pub fn ask(place: &Place, request: Request) -> Result<Answers> {
    connect(place)?.map_or_else(
        || bail!("no giveway daemon runs in this network namespace; start one with `giveway run` (as root)"),
        |stream| send(stream, request),
    )
}

pub fn status(place: &Place) -> Result<Status> {
    ask(place, Request::Status)?.first()
}

/// Asks the daemon to undo its work and end, and waits for it. Returns its pid; None where none runs.
pub fn stop_daemon(place: &Place) -> Result<Option<u32>> {
    let Some(stream) = connect(place)? else { return Ok(None) };
    let mut answers = send(stream, Request::Stop)?;
    let pid = answers.first()?;
    // The daemon closes the connection when it ends, after its work is undone.
    while answers.line()?.is_some() {}
    Ok(Some(pid))
}

impl Answers {
    /// The first line: the answer itself, or the reason for a refusal.
    pub fn first<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self.line()?.context("the daemon ended without an answer")?;
        match serde_json::from_str(&line).context("the daemon's answer is not understood: is it of another version?")? {
            Answer::Ok(answer) => Ok(answer),
            Answer::Error(reason) => Err(anyhow!(reason)),
        }
    }

    /// A second handle, by which another thread may end the stream.
    pub fn connection(&self) -> Result<UnixStream> {
        Ok(self.0.get_ref().try_clone()?)
    }

    /// The next line of a stream; None at its end.
    pub fn line(&mut self) -> Result<Option<String>> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(line)),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error).context("the connection to the daemon broke"),
        }
    }
}

fn connect(place: &Place) -> Result<Option<UnixStream>> {
    let path = place.control_socket();
    match UnixStream::connect(&path) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot reach the daemon at {}", path.display())),
    }
}

fn send(mut stream: UnixStream, request: Request) -> Result<Answers> {
    let mut line = serde_json::to_vec(&request)?;
    line.push(b'\n');
    stream.write_all(&line).context("cannot ask the daemon")?;
    Ok(Answers(BufReader::new(stream)))
}
