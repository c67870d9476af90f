// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The role `reach-tunnel`: a VPN's client, as far as packets see it. Makes a TUN device and sends what it reads there to a
//! remote host, in UDP of its own.

use std::fs::File;
use std::io::Read as _;
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use nix::errno::Errno;

const SET_INTERFACE: libc::c_ulong = 0x4004_54ca;
const TUN_WITHOUT_HEADER: libc::c_short = 0x1001;
const MOST_BYTES: usize = 2_048;

#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: libc::c_short,
    rest: [u8; 22],
}

/// The role `reach-tunnel`.
pub fn run(description: &str) -> Result<()> {
    let (name, far): (String, SocketAddrV4) = serde_json::from_str(description)?;
    let mut device = File::options().read(true).write(true).open("/dev/net/tun")?;
    let mut request = Request {
        name: [0; 16],
        flags: TUN_WITHOUT_HEADER,
        rest: [0; 22],
    };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the request is valid for the call, and as long as the kernel reads.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), SET_INTERFACE, &raw mut request) };
    Errno::result(made).context("cannot make a TUN device")?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    println!("ready");
    let mut packet = [0; MOST_BYTES];
    loop {
        let length = device.read(&mut packet)?;
        // What is refused is lost like any other.
        let _ = socket.send_to(&packet[..length], far);
    }
}
