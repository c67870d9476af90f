// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registers the congestion control that keeps a change of the clamp from restarting slow start (bpf/avoidance.bpf.c) under a name of its own.
//! Optional: without it a clear restarts slow start.

use std::mem::MaybeUninit;

use anyhow::Result;
use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::kernel::libbpf_log::explain;
use crate::kernel::skeletons::avoidance as skeleton;

/// Registered until it is dropped.
pub struct Avoidance {
    kernel_name: [i8; 16],
    _registered: Link,
}

impl Avoidance {
    /// Names are machine-wide and at most 15 characters; longer ones are cut.
    pub fn register(name: &str) -> Result<Self> {
        let mut kernel_name = [0; 16];
        kernel_name
            .iter_mut()
            .zip(name.bytes().take(15))
            .for_each(|(c, byte)| *c = byte.cast_signed());
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::AvoidanceSkelBuilder::default();
        let mut open = explain("open the congestion control for clearing a clamp", || {
            builder.open(&mut storage)
        })?;
        open.struct_ops.gw_avoidance_mut().name = kernel_name;
        let mut skeleton = explain("load the congestion control for clearing a clamp", || open.load())?;
        let register = format!("register the congestion control for clearing a clamp {name}");
        Ok(Self {
            kernel_name,
            _registered: explain(&register, || skeleton.maps.gw_avoidance.attach_struct_ops())?,
        })
    }

    pub fn kernel_name(&self) -> [i8; 16] {
        self.kernel_name
    }
}
