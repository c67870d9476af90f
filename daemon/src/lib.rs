// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything of giveway that does I/O.

pub mod actuate;
pub mod kernel;
