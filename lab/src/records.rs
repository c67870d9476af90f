// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conversion between the structs of the lab's BPF programs and bytes; and a copy of memory that the kernel writes
//! meanwhile. Bytes of another length are an error, never a guess.

use anyhow::{Result, ensure};

/// A plain struct of a BPF program's.
///
/// # Safety
/// Every combination of bytes of this size is a valid value, and none of them is padding.
pub unsafe trait Record: Copy {}

pub fn record<T: Record>(bytes: &[u8]) -> Result<T> {
    ensure!(
        bytes.len() == size_of::<T>(),
        "a record of a BPF program has {} bytes",
        bytes.len()
    );
    // SAFETY: exactly the type's size is read, without asking for its alignment, and every value is valid.
    Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

pub fn bytes_of<T: Record>(record: &T) -> &[u8] {
    // SAFETY: the reference is valid for this many bytes, and none of them is padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast(), size_of::<T>()) }
}

/// A copy, since the kernel may write it meanwhile.
pub fn now<T: Copy>(changing: &T) -> T {
    // SAFETY: the reference is valid for reads.
    unsafe { std::ptr::read_volatile(changing) }
}
