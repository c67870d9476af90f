// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose a TCP connection is that comes from this machine: the user that made its other end, as the kernel says (inet_diag).
//! Needs no privilege. Knows nothing of what comes from elsewhere.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{AddressFamily, SockProtocol};

use super::netlink::{Body, Netlink, u32_at};

// include/uapi/linux/sock_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Of `inet_diag_msg` (include/uapi/linux/inet_diag.h).
const STATE_AT: usize = 1;
const UID_AT: usize = 64;
const INODE_AT: usize = 68;
const ESTABLISHED: u8 = 1;

pub struct ConnectionUsers(Netlink);

impl ConnectionUsers {
    pub fn open() -> Result<Self> {
        Netlink::open_diagnostics().map(Self)
    }

    /// The user at `theirs` of the connection to `ours`.
    ///
    /// # Errors
    /// Where no such socket is open here, or the kernel has no inet_diag.
    pub fn user(&mut self, theirs: SocketAddr, ours: SocketAddr) -> Result<u32> {
        let answer = self
            .0
            .get(SOCK_DIAG_BY_FAMILY, &request(theirs, ours))
            .context("the kernel does not tell whose connection it is")?;
        // One that nobody has open any more would be root's.
        let is_open = answer.get(STATE_AT) == Some(&ESTABLISHED) && u32_at(&answer, INODE_AT)? != 0;
        ensure!(is_open, "the connection was closed");
        u32_at(&answer, UID_AT)
    }
}

/// `inet_diag_req_v2` for one socket, seen from its own end.
fn request(local: SocketAddr, remote: SocketAddr) -> Body {
    let (local_ip, remote_ip) = (local.ip().to_canonical(), remote.ip().to_canonical());
    let family = if local_ip.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let mut fixed = vec![family as u8, SockProtocol::Tcp as u8, 0, 0];
    fixed.extend_from_slice(&u32::MAX.to_ne_bytes());
    fixed.extend_from_slice(&local.port().to_be_bytes());
    fixed.extend_from_slice(&remote.port().to_be_bytes());
    fixed.extend_from_slice(&sixteen_bytes(local_ip));
    fixed.extend_from_slice(&sixteen_bytes(remote_ip));
    fixed.extend_from_slice(&0u32.to_ne_bytes());
    // INET_DIAG_NOCOOKIE
    fixed.extend_from_slice(&[0xff; 8]);
    Body::new(&fixed)
}

fn sixteen_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_is_its_users_and_one_that_is_closed_nobodys() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6.
            let Ok(listener) = TcpListener::bind(address) else {
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, theirs) = listener.accept().unwrap();
            let ours = server.local_addr().unwrap();
            let mut peers = ConnectionUsers::open().unwrap();
            assert_eq!(peers.user(theirs, ours).unwrap(), nix::unistd::geteuid().as_raw());
            drop(client);
            assert!(peers.user(theirs, ours).is_err(), "{address}");
        }
    }
}
