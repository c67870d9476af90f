// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the qdisc tells the rules of background, in the kernel: until when this machine's own queue kept them waiting
//! (bpf/local_wait.h). Each of them is loaded by itself, so the map is made before all of them.

use anyhow::Result;
use giveway_engine::config::MOST_LINKS;
use libbpf_rs::MapHandle;

use super::array;
use super::skeletons::qdisc::types;

pub fn create() -> Result<MapHandle> {
    let value_bytes = size_of::<types::gw_local_wait>() as u32;
    array("local_waits", value_bytes, MOST_LINKS as u32)
}
