// SPDX-License-Identifier: Apache-2.0 OR MIT
//! giveway's queue before a modem.

use anyhow::Result;
use serde_json::{Value, json};

use crate::experiment::Run;
use crate::giveway::Daemon;
use crate::modem::Modem;

/// `rate`: of the link, or that it is to be found.
pub fn start_queue(modem: &Modem, rate: Value, run: &Run) -> Result<Daemon> {
    let configuration = json!({
        "cap": {"policy": "none"},
        "link": {"rate_mbit": rate},
        // The upload is what it is without giveway.
        "classes": {"congestion_control": false},
    });
    let mut daemon = Daemon::launch(&modem.device, &configuration, &run.file(""))?;
    daemon.wait_until_queueing(&modem.device)?;
    Ok(daemon)
}
