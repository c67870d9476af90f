// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tells the service manager how the daemon is (sd_notify(3)). Without one, which is the case unless it set NOTIFY_SOCKET,
//! nothing is told. Nobody waits for it. Not by the crate sd-notify: that one waits for a manager that does not read, opens a
//! socket for each word, which fails where descriptors are short, and knows no abstract names.

use std::env;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

pub const SOCKET: &str = "NOTIFY_SOCKET";
/// Set where the service manager wants to be told that the daemon lives.
const WATCHDOG: &str = "WATCHDOG_USEC";

#[derive(Default)]
pub struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
    is_ready: bool,
}

impl Notifier {
    pub fn of_environment() -> Self {
        let to = || {
            let name = env::var_os(SOCKET)?;
            let address = match name.as_bytes().strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name),
                None => SocketAddr::from_pathname(&name),
            };
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_nonblocking(true).ok()?;
            Some((socket, address.ok()?))
        };
        Self {
            to: to(),
            is_ready: false,
        }
    }

    /// Everything is active. Told once.
    pub fn ready(&mut self) {
        if !std::mem::replace(&mut self.is_ready, true) {
            self.notify_supervisor("READY=1");
        }
    }

    /// The daemon has ended before it was ready, as it was asked to: without the first word that would be a failure.
    pub fn ended(&mut self) {
        self.ready();
        self.notify_supervisor("STOPPING=1");
    }

    /// The daemon lives. Told if it is asked for.
    pub fn alive(&self) {
        if env::var_os(WATCHDOG).is_some() {
            self.notify_supervisor("WATCHDOG=1");
        }
    }

    fn notify_supervisor(&self, what: &str) {
        if let Some((socket, to)) = &self.to
            && let Err(error) = socket.send_to_addr(what.as_bytes(), to)
        {
            tracing::debug!("cannot notify the service manager ({what}): {error}");
        }
    }
}
