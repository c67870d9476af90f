// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last program on a packet's way to a station's TAP (`bpf/access.bpf.c`): writes the access category that only
//! `skb->priority` has into the frame. Input: a device of the calling thread's namespace. Output: the program on it, as
//! long as the device exists.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{TC_EGRESS, TcHookBuilder};
use nix::net::if_::if_nametoindex;

skeleton!("access");

pub fn mark_packets_of(device: &str) -> Result<()> {
    let mut storage = MaybeUninit::uninit();
    let open = skeleton::AccessSkelBuilder::default().open(&mut storage)?;
    let programs = open.load().context("cannot load the program that marks packets")?;
    let mut hook = TcHookBuilder::new(programs.progs.lab_tell_access.as_fd())
        .ifindex(if_nametoindex(device)? as i32)
        .handle(1)
        .priority(1)
        .hook(TC_EGRESS);
    hook.create()
        .context("cannot make a place for the program that marks packets")?;
    hook.attach()
        .map(drop)
        .context("cannot attach the program that marks packets")
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::UdpSocket;
    use std::time::Duration;

    use nix::sched::{CloneFlags, setns};
    use nix::sys::socket::{setsockopt, sockopt};

    use crate::interrupt::wait_for;
    use crate::medium::access::Category;
    use crate::medium::spec::Attachment;
    use crate::medium::tap::{FRAME_ROOM, Tap};
    use crate::namespace::Namespace;

    /// The category that the TAP receives from a socket with this priority and TOS.
    fn category(tap: &Tap, (priority, tos): (i32, i32)) -> Category {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        setsockopt(&socket, sockopt::Ipv4Tos, &tos).unwrap();
        setsockopt(&socket, sockopt::Priority, &priority).unwrap();
        socket.send_to(&[7; 100], "10.77.9.2:9").unwrap();
        let frame = wait_for("the packet", Duration::from_secs(10), || {
            let mut buffer = [0; FRAME_ROOM];
            let frame = tap.receive(&mut buffer)?.map(|frame| frame.to_vec());
            Ok(frame.filter(|frame| frame.len() == 14 + 20 + 8 + 100))
        });
        Category::of(&frame.unwrap())
    }

    #[test]
    fn skb_priority_reaches_the_medium() {
        assert!(nix::unistd::geteuid().is_root(), "run the tests as root");
        let place = Namespace::create("marking").unwrap();
        let at = Attachment {
            netns: place.name().into(),
            device: "wlan0".into(),
        };
        let tap = Tap::create(&at, [2, 0, 0, 0, 0, 1], true).unwrap();
        place.ip("address add 10.77.9.1/24 dev wlan0").unwrap();
        place.ip("link set wlan0 up").unwrap();
        place
            .ip("neighbour replace 10.77.9.2 lladdr 02:00:00:00:00:fe dev wlan0 nud permanent")
            .unwrap();
        let namespace = File::open(format!("/run/netns/{}", place.name())).unwrap();
        let seen = std::thread::scope(|scope| {
            let send = || {
                setns(&namespace, CloneFlags::CLONE_NEWNET).unwrap();
                [(257, 0), (261, 8 << 2), (262, 0), (256, 46 << 2), (0, 46 << 2), (7, 0)]
                    .map(|marks| category(&tap, marks))
            };
            scope.spawn(send).join().unwrap()
        });
        use Category::{Background, BestEffort, Video, Voice};
        assert_eq!(seen, [Background, Video, Voice, BestEffort, Voice, BestEffort]);
    }
}
