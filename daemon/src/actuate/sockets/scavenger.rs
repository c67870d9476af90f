// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registers the congestion control for background transfers (bpf/ledbat.bpf.c). Input: its name. Output: sockets can be
//! given it. Optional: without it background transfers keep what they have.

use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;

use anyhow::Result;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapHandle};

use crate::kernel::libbpf_log::explain;
use crate::kernel::skeletons::ledbat as skeleton;

/// Its name for the daemon of this network namespace. Names are the machine's, and registrations end with their process:
/// with one for all, the first daemon's end would take it from the others.
pub fn name(netns_inum: u32) -> String {
    format!("gw_lbe_{netns_inum:08x}")
}

/// At most 15 characters; longer names are cut.
pub fn kernel_name(name: &str) -> [i8; 16] {
    let mut kernel_name = [0; 16];
    kernel_name
        .iter_mut()
        .zip(name.bytes().take(15))
        .for_each(|(to, byte)| *to = byte.cast_signed());
    kernel_name
}

/// Registered until it is dropped. Sockets that have it then keep it until they close.
pub struct Scavenger {
    name: String,
    _registered: Link,
}

impl Scavenger {
    /// `local_waits`: what the queue tells of background that waits in it.
    pub fn register(name: &str, local_waits: Option<&MapHandle>) -> Result<Self> {
        // Kernels without this operation refuse whoever names it.
        Self::load(name, local_waits, true).or_else(|_| Self::load(name, local_waits, false))
    }

    fn load(name: &str, local_waits: Option<&MapHandle>, has_start: bool) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::LedbatSkelBuilder::default();
        let mut open = explain("open the background congestion control", || builder.open(&mut storage))?;
        let operations = open.struct_ops.giveway_ledbat_mut();
        operations.name = kernel_name(name);
        if !has_start {
            operations.cwnd_event_tx_start = std::ptr::null_mut();
        }
        if let Some(map) = local_waits {
            explain("share the local waits", || open.maps.local_waits.reuse_fd(map.as_fd()))?;
        }
        let mut skeleton = explain("load the background congestion control", || open.load())?;
        let register = format!("register the background congestion control {name}");
        Ok(Self {
            name: name.to_owned(),
            _registered: explain(&register, || skeleton.maps.giveway_ledbat.attach_struct_ops())?,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}
