// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP connections, what the flow monitor shows of them, and traffic on them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use giveway::kernel::flow_monitor::FlowMonitor;
use giveway_engine::model::{Cookie, Flow};
use nix::errno::Errno;

/// A connection to a listener: (connecting end, accepted end).
pub fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    (near, far)
}

pub fn find<'a>(flows: &'a [Flow], stream: &TcpStream) -> Option<&'a Flow> {
    let (local, remote) = (
        canonical(stream.local_addr().unwrap()),
        canonical(stream.peer_addr().unwrap()),
    );
    flows.iter().find(|flow| flow.local == local && flow.remote == remote)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    (address.ip().to_canonical(), address.port()).into()
}

/// The kernel's number of the socket.
pub fn cookie(stream: &TcpStream) -> Cookie {
    Cookie(option(stream, libc::SOL_SOCKET, libc::SO_COOKIE))
}

/// The largest window that it may offer, in bytes.
pub fn window_clamp(stream: &TcpStream) -> u32 {
    option(stream, libc::SOL_TCP, libc::TCP_WINDOW_CLAMP)
}

pub fn set_window_clamp(stream: &TcpStream, bytes: u32) {
    set_option(stream, libc::SOL_TCP, libc::TCP_WINDOW_CLAMP, bytes);
}

/// Bytes a second; `u32::MAX`: not limited.
pub fn max_pacing_rate(stream: &TcpStream) -> u32 {
    option(stream, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE)
}

pub fn set_max_pacing_rate(stream: &TcpStream, bytes_per_s: u32) {
    set_option(stream, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, bytes_per_s);
}

/// A reader is woken for this much at once.
pub fn set_least_to_wake_for(stream: &TcpStream, bytes: u32) {
    set_option(stream, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes);
}

pub fn set_option(stream: &TcpStream, level: i32, name: i32, value: u32) {
    let length = size_of::<u32>() as libc::socklen_t;
    let value = std::ptr::from_ref(&value).cast();
    // SAFETY: setsockopt reads the integer, which outlives the call.
    let outcome = unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, value, length) };
    Errno::result(outcome).unwrap();
}

fn option<T: Default>(stream: &TcpStream, level: i32, name: i32) -> T {
    let (mut value, mut length) = (T::default(), size_of::<T>() as libc::socklen_t);
    // SAFETY: getsockopt writes at most as many bytes as the integer has.
    let outcome = unsafe {
        let into = std::ptr::from_mut(&mut value).cast();
        libc::getsockopt(stream.as_raw_fd(), level, name, into, &raw mut length)
    };
    Errno::result(outcome).unwrap();
    value
}

/// The socket's flow in a full scan.
pub fn scanned(monitor: &mut FlowMonitor, stream: &TcpStream) -> Flow {
    find(&monitor.scan().unwrap(), stream)
        .expect("the scan shows every connection")
        .clone()
}

/// Writes until the connection takes no more: what is queued then waits for a reader.
pub fn fill(stream: &mut TcpStream) {
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let block = [0; 16 * 1024];
    loop {
        match stream.write(&block) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => panic!("cannot fill a connection: {error}"),
        }
    }
}

/// Sends at full speed until dropped.
pub struct Transfer {
    near: TcpStream,
    threads: Vec<JoinHandle<()>>,
}

impl Transfer {
    pub fn start(near: &TcpStream, mut far: TcpStream) -> Self {
        let mut sender = near.try_clone().unwrap();
        let send = thread::spawn(move || while sender.write(&[0; 16 * 1024]).is_ok() {});
        let receive = thread::spawn(move || while far.read(&mut [0; 64 * 1024]).is_ok_and(|read| read > 0) {});
        Self {
            near: near.try_clone().unwrap(),
            threads: vec![send, receive],
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let _ = self.near.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
