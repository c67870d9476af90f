// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which processes of giveway act on this network namespace, whatever each has mounted at /run. Input: the kernel's list of
//! Unix sockets (sock_diag), and of who holds them. Output: daemons, watchdogs and reverts; and the announcement of this
//! process.
//!
//! Each of them has a socket bound to an abstract name, which belongs to the network namespace and goes with the process. Any
//! user may bind such a name, to a socket that root has made and passed on, too (a service's standard output is one). So a
//! name counts only where the process that it tells of holds that very socket, is root's, of this program, and in this network
//! namespace: the kernel says who that is ([`holders`]). Each name has a random part, so that nobody can have taken it before.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};

use crate::kernel::holders::{self, SocketHolder};
use crate::kernel::namespace::is_initial_pid;
use crate::kernel::netlink::{Body, Netlink, attribute, u32_at};
use crate::kernel::process::end::ProcessIdentity;
use crate::kernel::{own_netns, random};

const PREFIX: &str = "giveway/";
const TRIES: usize = 8;
/// Where state folders are, from the root of a process.
const RUN: [&str; 2] = ["run", "run/giveway"];

// include/uapi/linux/unix_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UDIAG_SHOW_NAME: u32 = 1;
const UDIAG_SHOW_UID: u32 = 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;
/// In `unix_diag_msg`: the socket's inode, and its cookie in two halves.
const INODE_AT: usize = 4;
const COOKIE_AT: usize = 8;
/// Of `unix_diag_msg`.
const MESSAGE_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Role {
    Daemon,
    Watchdog,
    Revert,
}

const ROLES: [(Role, &str); 3] = [
    (Role::Daemon, "daemon"),
    (Role::Watchdog, "watchdog"),
    (Role::Revert, "revert"),
];

/// A state folder, by its device and inode: processes with another /run have another one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Folder(u64, u64);

impl Folder {
    pub fn of(path: &Path) -> Result<Self> {
        let about = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self(about.dev(), about.ino()))
    }
}

/// A process of giveway's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AnnouncedProcess {
    pub role: Role,
    /// As the kernel tells who holds its socket. None where that cannot be told from here (for another user than root, or in a
    /// pid namespace that does not see all processes): then the name is all there is, and it may be made up.
    pub process: Option<ProcessIdentity>,
    pub folder: Folder,
}

/// What a name says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct SocketName {
    role: Role,
    named: ProcessIdentity,
    folder: Folder,
}

/// A socket that root has made, and that has such a name.
#[derive(Clone, Copy, Debug)]
struct BoundSocket {
    name: SocketName,
    inode: u64,
    cookie: u64,
}

/// This process is announced until it is dropped, or dies.
#[derive(Debug)]
pub struct Announcement(#[allow(dead_code)] OwnedFd);

/// Announces this process to the others of this network namespace.
pub fn announce(role: Role, folder: Folder) -> Result<Announcement> {
    let own = SocketName {
        role,
        named: ProcessIdentity::own()?,
        folder,
    };
    let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .context("cannot announce this process")?;
    let mut bound = Err(Errno::EADDRINUSE);
    for _ in 0..TRIES {
        let [a, b, c, d, ..] = random()?;
        let name = format!("{} {:x}", own.to_text(), u32::from_ne_bytes([a, b, c, d]));
        let address = UnixAddr::new_abstract(name.as_bytes())?;
        bound = bind(socket.as_raw_fd(), &address);
        if bound != Err(Errno::EADDRINUSE) {
            break;
        }
    }
    bound.context("cannot announce this process")?;
    Ok(Announcement(socket))
}

/// Root's processes of giveway's that act here, this one among them where it is announced.
///
/// # Errors
/// Where the kernel does not list Unix sockets (CONFIG_UNIX_DIAG), or does not tell who holds them.
pub fn all() -> Result<Vec<AnnouncedProcess>> {
    let bound = bound()?;
    if bound.is_empty() {
        return Ok(Vec::new());
    }
    let is_root = nix::unistd::geteuid().is_root();
    // After the names: each has been held by then.
    let held = if is_root {
        holders::all(own_netns()?)?
    } else {
        Vec::new()
    };
    let sees_all = is_root && is_initial_pid()?;
    let present = |bound: &BoundSocket| {
        let process = bound.holder(&held);
        (process.is_some() || !sees_all).then_some(AnnouncedProcess {
            role: bound.name.role,
            process,
            folder: bound.name.folder,
        })
    };
    Ok(bound.iter().filter_map(present).collect())
}

/// Whether one may act here that cannot be seen from this pid namespace.
pub fn is_any_unseen() -> bool {
    let is_unseen = |all: Vec<AnnouncedProcess>| all.iter().any(|one| one.process.is_none());
    !is_initial_pid().unwrap_or_default() && all().is_ok_and(is_unseen)
}

fn bound() -> Result<Vec<BoundSocket>> {
    let mut fixed = vec![AddressFamily::Unix as u8, 0, 0, 0];
    fixed.extend_from_slice(&u32::MAX.to_ne_bytes());
    fixed.extend_from_slice(&0u32.to_ne_bytes());
    fixed.extend_from_slice(&(UDIAG_SHOW_NAME | UDIAG_SHOW_UID).to_ne_bytes());
    // INET_DIAG_NOCOOKIE
    fixed.extend_from_slice(&[0xff; 8]);
    let mut found = Vec::new();
    let mut netlink = Netlink::open_diagnostics()?;
    let take = |message: &[u8]| {
        found.extend(bound_by_root(message));
        true
    };
    netlink
        .dump_while(SOCK_DIAG_BY_FAMILY, &Body::new(&fixed), take)
        .context("the kernel does not list Unix sockets (CONFIG_UNIX_DIAG)")?;
    Ok(found)
}

/// One that root has made.
fn bound_by_root(message: &[u8]) -> Option<BoundSocket> {
    let uid = attribute(message, MESSAGE_BYTES, UNIX_DIAG_UID)?;
    if u32_at(uid, 0).ok()? != 0 {
        return None;
    }
    let name = attribute(message, MESSAGE_BYTES, UNIX_DIAG_NAME)?;
    let half = |at: usize| u32_at(message, at).ok().map(u64::from);
    Some(BoundSocket {
        name: SocketName::parse(std::str::from_utf8(name.strip_prefix(&[0])?).ok()?)?,
        inode: half(INODE_AT)?,
        cookie: half(COOKIE_AT)? | half(COOKIE_AT + 4)? << 32,
    })
}

impl BoundSocket {
    /// The process that its name tells of, by its number here, where it holds this socket. Others may for a moment: what
    /// giveway starts holds what giveway does, until it executes something.
    fn holder(&self, held: &[SocketHolder]) -> Option<ProcessIdentity> {
        let is_this = |one: &&SocketHolder| {
            one.cookie
                .map_or(one.inode == self.inode, |cookie| cookie == self.cookie)
        };
        let mut holders = held
            .iter()
            .filter(is_this)
            .filter_map(|one| ProcessIdentity::of(one.pid).ok().flatten());
        holders.find(|process| process.is_marked_as(self.name.named))
    }
}

impl SocketName {
    fn to_text(self) -> String {
        let role = ROLES.iter().find(|(role, _)| *role == self.role);
        let words = self.named.to_words().into_iter().chain([self.folder.0, self.folder.1]);
        let words: Vec<String> = words.map(|word| format!("{word:x}")).collect();
        format!("{PREFIX}{} {}", role.map_or("", |(_, name)| name), words.join(" "))
    }

    fn parse(name: &str) -> Option<Self> {
        let mut words = name.strip_prefix(PREFIX)?.split(' ');
        let role = words.next()?;
        let (role, _) = ROLES.iter().find(|(_, name)| *name == role)?;
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        Some(Self {
            role: *role,
            named: ProcessIdentity::from_words([number()?, number()?, number()?, number()?])?,
            folder: Folder(number()?, number()?),
        })
    }
}

impl AnnouncedProcess {
    /// Whether it acts in this state folder, or in one of this /run that was removed since.
    pub fn is_here(self, folder: Folder) -> bool {
        self.folder == folder || self.has_this_run() == Some(true)
    }

    /// Whether its /run is this process's; None where that cannot be told, as by who is not root.
    pub fn has_this_run(self) -> Option<bool> {
        let process = self.process?;
        let of_root = |root: &str| RUN.map(|path| Folder::of(&Path::new(root).join(path)).ok());
        let (own, its) = (of_root("/"), of_root(&format!("/proc/{}/root", process.pid)));
        // A later process may have its number.
        let is_told = its[0].is_some() && process.is_there().ok()?;
        is_told.then_some(own == its)
    }

    /// That it runs, and who it is, for one who has to look for it.
    pub fn shown(self, netns_inum: u32) -> String {
        match self.process {
            Some(ProcessIdentity { pid, .. }) => format!(
                "another giveway runs in this network namespace (pid {pid}), its state is under \
                 /proc/{pid}/root/run/giveway/netns-{netns_inum}"
            ),
            None => format!(
                "another giveway seems to run in this network namespace (its process is not visible from \
                 here); its state is in its own /run/giveway/netns-{netns_inum}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_present(role: Role) -> bool {
        let own = ProcessIdentity::own().unwrap();
        all()
            .unwrap()
            .iter()
            .any(|one| (one.role, one.process) == (role, Some(own)))
    }

    #[test]
    fn a_process_is_listed_in_its_network_namespace_as_long_as_its_announcement_lives() {
        std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let folder = Folder::of(Path::new("/")).unwrap();
            let announced = announce(Role::Daemon, folder).unwrap();
            assert!(is_present(Role::Daemon) && !is_present(Role::Watchdog));
            let elsewhere = std::thread::spawn(|| {
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
                is_present(Role::Daemon)
            });
            assert!(!elsewhere.join().unwrap(), "of another network namespace");
            drop(announced);
            assert!(!is_present(Role::Daemon));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_name_that_another_user_has_bound_does_not_count() {
        std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            crate::kernel::calls::become_user(65534).unwrap();
            let folder = Folder(1, 2);
            let _announced = announce(Role::Daemon, folder).unwrap();
            assert_eq!(all().unwrap(), []);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_name_is_read_back_and_garbage_is_nobody() {
        let own = SocketName {
            role: Role::Watchdog,
            named: ProcessIdentity::own().unwrap(),
            folder: Folder(u64::MAX, 7),
        };
        let longest = own.to_text().len() + 9;
        assert!(longest < 107, "{longest}");
        assert_eq!(SocketName::parse(&format!("{} 1f", own.to_text())), Some(own));
        for garbage in [
            "",
            "giveway/",
            "giveway/daemon",
            "giveway/daemon 1 2 1 x 4 5",
            "giveway/other 1 2 1 3 4 5",
        ] {
            assert_eq!(SocketName::parse(garbage), None, "{garbage:?}");
        }
    }
}
