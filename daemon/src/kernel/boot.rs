// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which start of the machine this is. Numbers of processes, threads, devices and even the marks that tell them apart are used
//! again after the next one, so what was written down before it means nothing now.

use std::sync::OnceLock;

use super::apart;

/// The kernel's name of this boot, the same in all namespaces; None where it cannot be read.
pub fn id() -> Option<&'static str> {
    static ID: OnceLock<Option<String>> = OnceLock::new();
    let read = || {
        let text = apart::text(c"/proc/sys/kernel/random/boot_id").ok()?;
        Some(text.trim().to_owned()).filter(|id| !id.is_empty())
    };
    ID.get_or_init(read).as_deref()
}

/// Whether what was written down in the boot of this name was written in another one than this. What cannot be told is
/// taken for this one's.
pub fn is_another(written: &str) -> bool {
    id().is_some_and(|own| own != written)
}
