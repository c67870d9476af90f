// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The record for the clients that read it. Input: what is worth a line. Output: the same lines to each of them; a
//! client that is too slow loses some. Costs nothing while there is no client.

use std::ffi::OsStr;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use giveway_engine::model::{Flow, Interface};
use giveway_engine::record::{Header, Record, SCHEMA, VERSION, What};
use nix::sys::utsname::UtsName;
use tokio::sync::broadcast;

use crate::kernel::now;
use crate::words::json_line;

/// Lines kept for a reader that lags: some seconds at full rate.
const KEPT: usize = 4096;

pub struct Records(broadcast::Sender<Rc<str>>);

impl Default for Records {
    fn default() -> Self {
        Self(broadcast::channel(KEPT).0)
    }
}

impl Records {
    pub fn subscribe(&self) -> broadcast::Receiver<Rc<str>> {
        self.0.subscribe()
    }

    pub fn write(&self, at: Duration, what: What) {
        if self.0.receiver_count() > 0
            && let Ok(line) = json_line(&Record::at(at, what))
        {
            // A client may have gone meanwhile.
            let _ = self.0.send(line.into());
        }
    }

    pub fn write_flows(&self, flows: &[Flow]) {
        if self.0.receiver_count() > 0 {
            let at = now();
            flows
                .iter()
                .for_each(|flow| self.write(at, What::Flow(Box::new(flow.clone()))));
        }
    }
}

/// The first line, for a record that begins now.
pub fn header(interface: Option<&Interface>) -> Header {
    let uname = nix::sys::utsname::uname().ok();
    let text = |field: fn(&UtsName) -> &OsStr| {
        let found = uname.as_ref().map(|uname| field(uname).to_string_lossy().into_owned());
        found.unwrap_or_default()
    };
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Header {
        schema: SCHEMA.to_owned(),
        version: VERSION,
        kernel: text(UtsName::release),
        host: text(UtsName::nodename),
        interface: interface.map(|i| i.name.clone()),
        started_t_ns: now().as_nanos() as u64,
        started_unix_ns: since_1970.as_nanos() as u64,
    }
}
