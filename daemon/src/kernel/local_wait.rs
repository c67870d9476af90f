// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the qdisc tells the rules of background, in the kernel: until when this machine's own queue kept them waiting
//! (bpf/local_wait.h). Each of them is loaded by itself, so the map is made before all of them.

use anyhow::{Context as _, Result};
use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapHandle, MapType};

use super::skeletons::qdisc::types;

/// As in bpf/queueing.h.
const GW_LINKS: u32 = 8;

pub fn create() -> Result<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as libbpf_rs::libbpf_sys::size_t,
        ..bpf_map_create_opts::default()
    };
    let value_bytes = size_of::<types::gw_local_wait>() as u32;
    MapHandle::create(MapType::Array, Some("local_waits"), 4, value_bytes, GW_LINKS, &options)
        .context("cannot make the map of local waits")
}
