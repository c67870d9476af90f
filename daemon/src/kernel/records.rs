// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes from BPF programs become records. In comes what an iterator or a ring buffer yields, out go values of one
//! type; bytes that are no whole record are an error, never a guess.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use anyhow::{Context, Result, ensure};
use libbpf_rs::{Iter, Link};

/// The kernel fills at most this much in one read.
const READ_BYTES: usize = 32 * 1024;

/// A plain struct of `bpf/giveway.h`.
///
/// # Safety
/// Every combination of bytes of this size is a valid value.
pub unsafe trait Record: Copy {}

/// The record that these bytes are.
pub fn record<T: Record>(bytes: &[u8]) -> Option<T> {
    // SAFETY: exactly the type's size is read, without asking for its alignment, and every value is valid.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// The bytes of a record, for a map's value.
pub fn bytes_of<T: Record>(record: &T) -> &[u8] {
    // SAFETY: the reference is valid for this many bytes; the structs of giveway.h have no padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast(), size_of::<T>()) }
}

/// An end of a `struct gw_tuple`. An IPv6 socket that speaks IPv4 is described by its IPv4 address.
pub fn socket_address(family: u32, bytes: [u8; 16], port: u16, scope_id: u32) -> SocketAddr {
    if family == libc::AF_INET as u32 {
        return (Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]), port).into();
    }
    match Ipv6Addr::from(bytes).to_canonical() {
        IpAddr::V4(ip) => (ip, port).into(),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope_id).into(),
    }
}

/// Runs iterators; its buffer is kept from run to run.
#[derive(Default)]
pub struct IteratorReader {
    buffer: Vec<u8>,
}

impl IteratorReader {
    /// Runs the iterator once to its end.
    pub fn run<T: Record>(&mut self, link: &Link, mut each: impl FnMut(T)) -> Result<()> {
        let mut iterator = Iter::new(link).context("cannot start a BPF iterator")?;
        self.buffer.resize(READ_BYTES, 0);
        let mut filled = 0;
        loop {
            let read = match iterator.read(&mut self.buffer[filled..]) {
                // The kernel pauses after a million elements without output.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => continue,
                result => result.context("cannot read a BPF iterator")?,
            };
            if read == 0 {
                ensure!(
                    filled == 0,
                    "a BPF iterator ended within a record ({filled} bytes of {})",
                    size_of::<T>()
                );
                return Ok(());
            }
            filled += read;
            let whole = filled - filled % size_of::<T>();
            self.buffer[..whole]
                .chunks_exact(size_of::<T>())
                .filter_map(record)
                .for_each(&mut each);
            self.buffer.copy_within(whole..filled, 0);
            filled -= whole;
        }
    }
}
