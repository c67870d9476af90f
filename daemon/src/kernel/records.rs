// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes from BPF programs become records: what an iterator or a ring buffer yields is read as values of one
//! type; bytes that are no whole record are an error, never a guess.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use anyhow::{Context, Result, ensure};
use libbpf_rs::{Iter, Link, MapCore as _, MapFlags, MapHandle};
use nix::sys::socket::AddressFamily;

/// The kernel fills at most this much in one read.
pub const READ_BYTES: usize = 32 * 1024;

/// A plain struct of `bpf/giveway.h`.
///
/// # Safety
/// Every combination of bytes of this size is a valid value.
pub unsafe trait Record: Copy {}

// SAFETY: any four bytes are one.
unsafe impl Record for u32 {}

// SAFETY: any eight bytes are one.
unsafe impl Record for u64 {}

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

/// The record of this number in a map, which is named by `what` in errors; None where there is none.
pub fn lookup<T: Record>(map: &MapHandle, key: u32, what: &str) -> Result<Option<T>> {
    let bytes = map.lookup(&key.to_ne_bytes(), MapFlags::ANY);
    let bytes = bytes.with_context(|| format!("cannot read {what}"))?;
    let whole = |bytes: Vec<u8>| record(&bytes).with_context(|| format!("{what}: the record has another size"));
    bytes.map(whole).transpose()
}

/// The counters that a program keeps in the first record of a map.
pub fn counters<T: Record>(map: &MapHandle, of: &str) -> Result<T> {
    let what = format!("the counters of {of}");
    lookup(map, 0, &what)?.with_context(|| format!("{what} are gone"))
}

/// The kernel's names end at the first NUL and may be anything before it.
pub fn text(name: &[i8; 16]) -> String {
    let bytes: Vec<u8> = name.iter().map(|c| c.cast_unsigned()).take_while(|c| *c != 0).collect();
    // Any process may choose its name; it must not choose what a terminal does.
    String::from_utf8_lossy(&bytes).replace(char::is_control, "?")
}

/// An end of a `struct gw_tuple`. An IPv6 socket that speaks IPv4 is described by its IPv4 address.
pub fn socket_address(family: u32, bytes: [u8; 16], port: u16, scope_id: u32) -> SocketAddr {
    if family == AddressFamily::Inet as u32 {
        return (Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]), port).into();
    }
    match Ipv6Addr::from(bytes).to_canonical() {
        IpAddr::V4(ip) => (ip, port).into(),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope_id).into(),
    }
}

/// Runs iterators that take no lock that anybody can keep; those over sockets are the scanner's
/// ([`super::scanner`]). Its buffer is kept from run to run.
#[derive(Default)]
pub struct IteratorReader {
    buffer: Vec<u8>,
}

impl IteratorReader {
    /// Runs the iterator once to its end.
    pub fn run<T: Record>(&mut self, link: &Link, each: impl FnMut(T)) -> Result<()> {
        // The library's error says the same, but not by number.
        let mut iterator = Iter::new(link)
            .map_err(|_| std::io::Error::last_os_error())
            .context("cannot start a BPF iterator")?;
        read_all(&mut iterator, &mut self.buffer, each)
    }
}

/// Reads an iterator to its end.
pub fn read_all<T: Record>(iterator: &mut impl Read, buffer: &mut Vec<u8>, mut each: impl FnMut(T)) -> Result<()> {
    buffer.resize(READ_BYTES, 0);
    let mut filled = 0;
    loop {
        let read = match iterator.read(&mut buffer[filled..]) {
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
        buffer[..whole]
            .chunks_exact(size_of::<T>())
            .filter_map(record)
            .for_each(&mut each);
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
    }
}
