// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program that scans over all sockets once and changes those that a map of the kernel's names. Input: what is wanted,
//! by cookie. Output: what the program says of each; a socket of which it says nothing is gone.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use giveway_engine::model::Cookie;
use giveway_engine::sockets::setting::Outcome;
use libbpf_rs::{ErrorKind, Link, MapCore as _, MapFlags, MapHandle};

use crate::kernel::records::{Record, bytes_of};
use crate::kernel::scanner::{self, SocketProtocol};

/// The map holds so many; what is more has another scan.
pub const AT_ONCE: usize = 65_536;

pub struct SocketScan {
    program: Link,
    pub(super) wanted: MapHandle,
}

impl SocketScan {
    pub fn new(program: Link, wanted: MapHandle) -> Self {
        Self { program, wanted }
    }

    /// In as few scans as can be. `of` is the cookie that a record speaks of. Also returns which are gone.
    pub fn run<W: Record, O: Record>(
        &mut self,
        wanted: BTreeMap<Cookie, W>,
        of: impl Fn(&O) -> Cookie,
    ) -> Result<(Vec<O>, Vec<Cookie>)> {
        scanner::check(SocketProtocol::Tcp)?;
        let wanted: Vec<(Cookie, W)> = wanted.into_iter().collect();
        let (mut records, mut gone) = (Vec::with_capacity(wanted.len()), Vec::new());
        for some in wanted.chunks(AT_ONCE) {
            let before = records.len();
            let scanned = self
                .stage(some)
                .and_then(|()| scanner::run(&self.program, SocketProtocol::Tcp, |o| records.push(o)));
            // What stayed there would be written by the next scan, whoever asks for that, and by one that was given up.
            let unstaged = self.unstage(some);
            scanned.and(unstaged)?;
            let answered: BTreeSet<Cookie> = records[before..].iter().map(&of).collect();
            gone.extend(
                some.iter()
                    .map(|(cookie, _)| *cookie)
                    .filter(|cookie| !answered.contains(cookie)),
            );
        }
        Ok((records, gone))
    }

    /// The same, with an outcome for each.
    pub fn apply<W: Record, O: Record>(
        &mut self,
        wanted: BTreeMap<Cookie, W>,
        outcome: impl Fn(&O) -> (Cookie, Outcome),
    ) -> Result<Vec<(Cookie, Outcome)>> {
        let (records, gone) = self.run(wanted, |of| outcome(of).0)?;
        let gone = gone.into_iter().map(|cookie| (cookie, Outcome::Gone));
        Ok(records.iter().map(&outcome).chain(gone).collect())
    }

    fn stage<W: Record>(&self, wanted: &[(Cookie, W)]) -> Result<()> {
        wanted.iter().try_for_each(|(cookie, wanted)| {
            let staged = self
                .wanted
                .update(&cookie.0.to_ne_bytes(), bytes_of(wanted), MapFlags::ANY);
            staged.context("cannot name a socket that is to be changed")
        })
    }

    /// All of them, whatever becomes of one.
    fn unstage<W>(&self, wanted: &[(Cookie, W)]) -> Result<()> {
        let delete = |(cookie, _): &(Cookie, W)| match self.wanted.delete(&cookie.0.to_ne_bytes()) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            deleted => deleted.context("cannot remove the name of a socket"),
        };
        wanted.iter().map(delete).fold(Ok(()), Result::and)
    }
}
