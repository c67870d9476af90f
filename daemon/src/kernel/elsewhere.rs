// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices that have moved to another network namespace, with what giveway had set on them. Input: what a device was known by
//! while it was here. Output: where it is now, and an act that is carried out there. The kernel gives each namespace that a
//! device moves to a number in the one that it leaves, and shows the devices of a numbered namespace; to change one, that
//! namespace has to be entered (CAP_SYS_ADMIN), by its file or by a process in it. It decides nothing.

use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use serde::{Deserialize, Serialize};

use super::calls::pidfd_of_process;
use super::netlink::{Body, Netlink, attribute, text, u32_at};
use super::uplink::{IFINFOMSG_BYTES, ifinfomsg, kind_of};

/// include/uapi/linux/if_link.h, rtnetlink.h and net_namespace.h
const IFLA_TARGET_NETNSID: u16 = 46;
const IFLA_PERM_ADDRESS: u16 = 54;
const RTM_GETNSID: u16 = 90;
const NETNSA_NSID: u16 = 1;
const NETNSA_PID: u16 = 2;
const NETNSA_FD: u16 = 3;
/// struct rtgenmsg, padded.
const RTGENMSG_BYTES: usize = 4;
/// Where namespaces have files: iproute2's and Docker's.
const FOLDERS: [&str; 2] = ["/run/netns", "/run/docker/netns"];
const PATIENCE: Duration = Duration::from_secs(2);
/// Numbered namespaces that are searched.
const MOST_NAMESPACES: usize = 1024;

/// What tells a device from others wherever it is.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Identity {
    name: String,
    /// Its own, or the present one of a virtual device; empty where it has none.
    address: Vec<u8>,
    /// Of a virtual device.
    kind: Option<String>,
    /// Of the hardware.
    parent: Option<String>,
}

#[derive(Debug, Eq, PartialEq)]
pub enum InterfaceLocation {
    /// In this namespace, under this index.
    Here(u32),
    /// In the namespace that has this number here.
    There {
        namespace: u32,
        ifindex: u32,
        name: String,
    },
    Gone,
}

impl Identity {
    fn of_message(message: &[u8]) -> Option<Self> {
        let get = |kind| attribute(message, IFINFOMSG_BYTES, kind);
        let address = get(IFLA_PERM_ADDRESS).or_else(|| get(libc::IFLA_ADDRESS));
        Some(Self {
            name: text(get(libc::IFLA_IFNAME)?)?,
            address: address.unwrap_or_default().to_vec(),
            kind: kind_of(message),
            parent: get(libc::IFLA_PARENT_DEV_NAME).and_then(text),
        })
    }

    /// The device of this index.
    pub fn of(netlink: &mut Netlink, ifindex: u32) -> Result<Self> {
        let message = netlink.get(libc::RTM_GETLINK, &ifinfomsg(ifindex));
        let message = message.context("cannot read the interface")?;
        Self::of_message(&message).context("the kernel tells a device without its name")
    }

    /// Also under another name, where it has an address.
    fn is(&self, other: &Self) -> bool {
        let has_address = self.address.iter().any(|byte| *byte != 0);
        (&self.address, &self.kind, &self.parent) == (&other.address, &other.kind, &other.parent)
            && (has_address || self.name == other.name)
    }

    /// Where it is now; it was here under this index.
    pub fn find(&self, netlink: &mut Netlink, ifindex: u32) -> Result<InterfaceLocation> {
        let here = listed(netlink, None)?;
        // An address may be changed in place.
        let is_still = |(index, found): &&(u32, Self)| *index == ifindex && (self.is(found) || self.name == found.name);
        let known = here
            .iter()
            .find(is_still)
            .or_else(|| here.iter().find(|(_, found)| self.is(found)));
        if let Some((ifindex, _)) = known {
            return Ok(InterfaceLocation::Here(*ifindex));
        }
        for namespace in namespaces(netlink)? {
            // One that has gone meanwhile, or may not be looked into.
            let Ok(there) = listed(netlink, Some(namespace)) else {
                continue;
            };
            if let Some((ifindex, found)) = there.into_iter().find(|(_, found)| self.is(found)) {
                let name = found.name;
                return Ok(InterfaceLocation::There {
                    namespace,
                    ifindex,
                    name,
                });
            }
        }
        Ok(InterfaceLocation::Gone)
    }
}

fn listed(netlink: &mut Netlink, namespace: Option<u32>) -> Result<Vec<(u32, Identity)>> {
    let request = ifinfomsg(0);
    let request = match namespace {
        Some(number) => request.attribute(IFLA_TARGET_NETNSID, &number.to_ne_bytes()),
        None => request,
    };
    let messages = netlink
        .dump(libc::RTM_GETLINK, &request)
        .context("cannot list the interfaces")?;
    let device = |message: &Vec<u8>| Some((u32_at(message, 4).ok()?, Identity::of_message(message)?));
    Ok(messages.iter().filter_map(device).collect())
}

/// Those that have a number here.
fn namespaces(netlink: &mut Netlink) -> Result<Vec<u32>> {
    let all = netlink.dump(RTM_GETNSID, &Body::new(&[0; RTGENMSG_BYTES]));
    let all = all.context("cannot list the network namespaces that have a number here")?;
    let number = |message: &Vec<u8>| u32_at(attribute(message, RTGENMSG_BYTES, NETNSA_NSID)?, 0).ok();
    Ok(all.iter().filter_map(number).take(MOST_NAMESPACES).collect())
}

/// Acts in the namespace of this number, in a thread that ends there. It reads folders that somebody may keep from
/// answering, and is waited for only so long.
///
/// # Errors
/// Of the act; and where the namespace cannot be entered.
pub fn within<T: Send + 'static>(namespace: u32, act: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (sender, receiver) = mpsc::channel();
    let enter = move || {
        setns(open(namespace)?, CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
            Errno::EPERM => anyhow!("its namespace cannot be entered without CAP_SYS_ADMIN"),
            errno => anyhow!("its namespace cannot be entered: {}", errno.desc()),
        })?;
        act()
    };
    thread::Builder::new()
        .spawn(move || drop(sender.send(enter())))
        .context("cannot start the thread that enters its namespace")?;
    let acted = receiver.recv_timeout(PATIENCE);
    acted.unwrap_or_else(|_| Err(anyhow!("its namespace is not entered in time")))
}

/// A file of the namespace, or a process in it.
fn open(namespace: u32) -> Result<OwnedFd> {
    let mut netlink = Netlink::open()?;
    let mut is_it = |kind, which: u32| {
        let request = Body::new(&[0; RTGENMSG_BYTES]).attribute(kind, &which.to_ne_bytes());
        let answer = netlink.get(RTM_GETNSID, &request).ok();
        let number = answer.and_then(|answer| u32_at(attribute(&answer, RTGENMSG_BYTES, NETNSA_NSID)?, 0).ok());
        number == Some(namespace)
    };
    for entry in FOLDERS.iter().flat_map(|folder| entries(folder)) {
        if let Ok(file) = File::open(Path::new(&entry))
            && is_it(NETNSA_FD, file.as_raw_fd().cast_unsigned())
        {
            return Ok(file.into());
        }
    }
    let processes = entries("/proc").into_iter();
    for pid in processes.filter_map(|entry| entry.strip_prefix("/proc/")?.parse::<u32>().ok()) {
        if !is_it(NETNSA_PID, pid) {
            continue;
        }
        if let Ok(process) = pidfd_of_process(pid)
            && is_it(NETNSA_PID, pid)
        {
            return Ok(process);
        }
    }
    Err(anyhow!(
        "its namespace has no process and no file in {}, so that it cannot be entered",
        FOLDERS.join(" or ")
    ))
}

fn entries(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some(entry.path().to_str()?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::net::if_::if_nametoindex;
    use nix::sched::unshare;

    use super::*;

    fn ip(arguments: &str) {
        let done = Command::new("ip").args(arguments.split(' ')).status().unwrap();
        assert!(done.success(), "ip {arguments}");
    }

    /// A namespace that has a file, until the end of the test.
    struct Named(String);

    impl Drop for Named {
        fn drop(&mut self) {
            ip(&format!("netns del {}", self.0));
        }
    }

    #[test]
    fn a_device_is_found_where_it_has_moved_to_under_whatever_name() {
        let there = Named(format!("gwe-{}", std::process::id()));
        ip(&format!("netns add {}", there.0));
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        ip("link add gwe-a type veth peer name gwe-b");
        let mut netlink = Netlink::open().unwrap();
        let ifindex = if_nametoindex("gwe-a").unwrap();
        let identity = Identity::of(&mut netlink, ifindex).unwrap();
        assert_eq!(
            identity.find(&mut netlink, ifindex).unwrap(),
            InterfaceLocation::Here(ifindex)
        );
        ip("link set gwe-a name gwe-c");
        assert_eq!(
            identity.find(&mut netlink, ifindex).unwrap(),
            InterfaceLocation::Here(ifindex)
        );
        ip(&format!("link set gwe-c netns {} name gwe-d", there.0));
        let found = identity.find(&mut netlink, ifindex).unwrap();
        let InterfaceLocation::There { namespace, name, .. } = found else {
            panic!("{found:?}");
        };
        assert_eq!(name, "gwe-d");
        let names = within(namespace, || Ok(if_nametoindex("gwe-d")?)).unwrap();
        assert!(
            names > 0 && if_nametoindex("gwe-d").is_err(),
            "it is there, and not here"
        );
        ip("link del gwe-b");
        assert_eq!(identity.find(&mut netlink, ifindex).unwrap(), InterfaceLocation::Gone);
    }
}
