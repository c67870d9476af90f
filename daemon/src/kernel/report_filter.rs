// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bpf/report_filter.bpf.c: which datagrams may wake the daemon. Takes the peers' socket, and gives counts of what it
//! kept from it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _};

use anyhow::{Context as _, Result};
use giveway_engine::peers::{Filtered, MAGIC, MAX_DATAGRAM_BYTES, MIN_DATAGRAM_BYTES, VERSION};
use libbpf_rs::MapHandle;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use socket2::Socket;

use super::calls::set_option;
use super::libbpf_log::explain;
use super::records::{self, socket_address};
use super::skeletons::report_filter as skeleton;
use skeleton::types;

/// A filter active: the socket holds its program.
pub struct ReportFilter {
    counters: MapHandle,
    /// What was told of before.
    reported: Filtered,
}

impl ReportFilter {
    pub fn attach(socket: &Socket) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::ReportFilterSkelBuilder::default();
        let mut open = explain("open the filter of reports", || builder.open(&mut storage))?;
        let constants = open.maps.rodata_data.as_deref_mut();
        let constants = constants.context("the filter of reports has no constants")?;
        let [a, b, c] = MAGIC;
        constants.protocol_word = u32::from_be_bytes([a, b, c, VERSION]);
        constants.min_bytes = MIN_DATAGRAM_BYTES as u32;
        constants.max_bytes = MAX_DATAGRAM_BYTES as u32;
        let skeleton = explain("load the filter of reports", || open.load())?;
        let program = skeleton.progs.gw_filter_report.as_fd().as_raw_fd();
        set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, program)
            .context("cannot attach the filter of reports")?;
        Ok(Self {
            counters: MapHandle::try_from(&skeleton.maps.bss).context("cannot keep the counters of the filter")?,
            reported: Filtered::default(),
        })
    }

    /// What was kept back since the last call; None: nothing.
    pub fn take(&mut self) -> Result<Option<Filtered>> {
        let types::bss { filtered } = records::counters(&self.counters, "the filter of reports")?;
        let older_from = socket_address(filtered.family as u32, filtered.older_from, 0, 0).ip();
        let now = Filtered {
            off_link: filtered.off_link,
            malformed: filtered.malformed,
            older_version: filtered.older_version,
            older_from: (filtered.older_version > self.reported.older_version).then_some(older_from),
        };
        let reported = std::mem::replace(&mut self.reported, now);
        let new = Filtered {
            off_link: now.off_link - reported.off_link,
            malformed: now.malformed - reported.malformed,
            older_version: now.older_version - reported.older_version,
            older_from: now.older_from,
        };
        Ok((new != Filtered::default()).then_some(new))
    }
}
