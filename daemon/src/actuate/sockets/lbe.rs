// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registers the congestion control for background transfers (bpf/ledbat.bpf.c). Input: its name. Output: sockets can be
//! given it. Optional: without it background transfers keep what they have.

use std::mem::MaybeUninit;

use anyhow::Result;
use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::kernel::libbpf_log::explain;
use crate::kernel::skeletons::ledbat as skeleton;

/// Names are machine-wide and have at most 15 characters.
pub const NAME: &str = "giveway_lbe";

/// Registered until it is dropped. Sockets that have it then keep it until they close.
pub struct Lbe {
    _registered: Link,
}

impl Lbe {
    pub fn register(name: &str) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::LedbatSkelBuilder::default();
        let mut open = explain("open the background congestion control", || builder.open(&mut storage))?;
        let kernel_name = &mut open.struct_ops.giveway_lbe_mut().name;
        kernel_name.fill(0);
        kernel_name
            .iter_mut()
            .zip(name.bytes().take(15))
            .for_each(|(to, byte)| *to = byte.cast_signed());
        let mut skeleton = explain("load the background congestion control", || open.load())?;
        let register = format!("register the background congestion control {name}");
        Ok(Self {
            _registered: explain(&register, || skeleton.maps.giveway_lbe.attach_struct_ops())?,
        })
    }
}
