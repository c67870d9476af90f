// SPDX-License-Identifier: Apache-2.0 OR MIT
//! For tests: prints its UDP port, then answers each request with itself.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods)]

use std::net::UdpSocket;

fn main() -> std::io::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    println!("{}", socket.local_addr()?.port());
    let mut packet = [0; 64];
    loop {
        let (length, from) = socket.recv_from(&mut packet)?;
        socket.send_to(&packet[..length], from)?;
    }
}
