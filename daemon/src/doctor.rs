// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway doctor`.
use anyhow::Result;

use crate::cli::Json;

pub fn run(_args: &Json) -> Result<()> {
    Ok(())
}
