// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HTTP/1.1 messages, as little of them as two programs of the lab need to understand each other.
//! Input: bytes, which may be anything. Output: a head with the length of its body, or an error.

use std::io::{BufRead, Read};

use anyhow::{Context, Result, ensure};

/// Head and body as one piece, so that no packet ends where they meet.
pub fn with_body(head: String, bytes: u64) -> Vec<u8> {
    let mut whole = head.into_bytes();
    whole.resize(whole.len() + bytes as usize, 0);
    whole
}

pub struct Head {
    pub start: String,
    pub content_length: u64,
}

/// The start line and the headers; nothing at the end of the connection.
pub fn read_head(from: &mut impl BufRead) -> Result<Option<Head>> {
    const LONGEST_BYTES: u64 = 8 * 1024;
    let mut limited = from.take(LONGEST_BYTES);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if limited.read_line(&mut line)? == 0 {
            ensure!(lines.is_empty(), "a head of HTTP ended in the middle");
            return Ok(None);
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let length = lines.iter().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse())
    });
    let start = lines.first().context("a head of HTTP without a start line")?.clone();
    let content_length = length
        .transpose()
        .context("a content length that is no number")?
        .unwrap_or(0);
    Ok(Some(Head { start, content_length }))
}

pub fn swallow(from: &mut impl Read, bytes: u64) -> Result<()> {
    let got = std::io::copy(&mut from.take(bytes), &mut std::io::sink())?;
    ensure!(got == bytes, "a body of {bytes} bytes ended after {got}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Option<Head>> {
        read_head(&mut text.as_bytes())
    }

    #[test]
    fn a_head_ends_at_the_empty_line_and_says_how_long_the_body_is() {
        let head = head("POST / HTTP/1.1\r\nHost: x\r\ncontent-LENGTH: 17\r\n\r\nbody")
            .unwrap()
            .unwrap();
        assert_eq!((head.start.as_str(), head.content_length), ("POST / HTTP/1.1", 17));
    }

    #[test]
    fn a_head_that_is_cut_short_or_nonsense_is_an_error() {
        assert!(head("").unwrap().is_none());
        assert!(head("GET / HTTP/1.1\r\nHost: x\r\n").is_err());
        assert!(head("\r\n").is_err());
        assert!(head("GET / HTTP/1.1\r\nContent-Length: many\r\n\r\n").is_err());
        assert!(head(&"x".repeat(100_000)).is_err());
    }

    #[test]
    fn a_body_that_ends_early_is_an_error() {
        assert!(swallow(&mut &b"1234"[..], 4).is_ok());
        assert!(swallow(&mut &b"123"[..], 4).is_err());
    }
}
