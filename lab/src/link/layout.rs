// SPDX-License-Identifier: Apache-2.0 OR MIT
//! That the structs of link.bpf.c are plain.

use super::{Passed, Payload, Stamps};
use crate::records::Record;

// SAFETY: integers only (link.bpf.c).
unsafe impl Record for Stamps {}
// SAFETY: integers only (link.bpf.c).
unsafe impl Record for Payload {}
// SAFETY: integers only (link.bpf.c).
unsafe impl Record for Passed {}
