// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the queue of a device was before it was touched: journalled before anything is changed, and put back from there, in
//! this process or after its death. What cannot be restored now stays journalled.

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nix::net::if_::if_indextoname;
use serde::{Deserialize, Serialize};

use super::segments::{SINGLE_SEGMENTS, set_gso_max_segments};
use super::{HANDLE, QueueActuator, is_ours};
use crate::actuate::{download, upload};
use crate::journal::Entry;
use crate::journal::register::{JournalFile, UndoHandler};
use crate::kernel::elsewhere::{self, Identity, InterfaceLocation};
use crate::kernel::libbpf_log::one_line;
use crate::kernel::netlink::{NLM_F_CREATE, NLM_F_REPLACE, Netlink, RTM_DELQDISC, RTM_NEWQDISC, refused};
use crate::kernel::qdisc::{self, Qdisc, ROOT, tcmsg};
use crate::kernel::uplink;

/// What a device's queue was before it was touched.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct OriginalQueue {
    pub ifindex: u32,
    pub name: String,
    pub qdisc: Qdisc,
    pub gso_max_segments: u32,
    /// Whether that is, or is about to be, 1 by giveway.
    #[serde(default = "of_earlier_versions")]
    pub limits_segments: bool,
    /// By which it is found in another namespace, and known again.
    #[serde(default)]
    pub identity: Option<Identity>,
}

pub const UNDO: UndoHandler = UndoHandler::of::<OriginalQueue>(JournalFile::Queue);

fn of_earlier_versions() -> bool {
    true
}

impl QueueActuator {
    /// Puts back what was there, and journals no more than what is still to be.
    pub(super) fn undo(&mut self, before: Option<&OriginalQueue>) -> Result<()> {
        let Some(before) = before else { return Ok(()) };
        let undone = before.restore(false);
        match &undone {
            Ok(lines) => lines.iter().for_each(|line| tracing::debug!("{line}")),
            Err(error) => {
                let reason = one_line(error);
                tracing::warn!("{reason}");
                self.left.push((before.clone(), reason));
            }
        }
        self.shorten_journal()?;
        undone.map(drop)
    }

    /// What could not be restored, as of a device that is out of reach, may be by now: devices have changed.
    pub fn retry(&mut self) -> Result<()> {
        if self.left.is_empty() {
            return Ok(());
        }
        self.left.retain(|(before, _)| match before.restore(false) {
            Ok(lines) => {
                lines.iter().for_each(|line| tracing::info!("{line}"));
                false
            }
            Err(_) => true,
        });
        self.shorten_journal()
    }

    /// What could not be restored then is tried again, and is a hindrance on its own link only.
    pub(super) fn undo_left(&mut self, ifindex: u32) -> Result<()> {
        if self.left.is_empty() {
            return Ok(());
        }
        let mut undone = Ok(());
        self.left.retain(|(before, _)| match before.restore(false) {
            Ok(_) => false,
            Err(error) if before.ifindex == ifindex => {
                undone = Err(error);
                true
            }
            Err(_) => true,
        });
        self.shorten_journal()?;
        undone
    }

    fn shorten_journal(&mut self) -> Result<()> {
        let kept: Vec<&OriginalQueue> = self
            .links
            .values()
            .filter_map(|link| link.before.as_ref())
            .chain(self.left.iter().map(|(before, _)| before))
            .collect();
        match kept.is_empty() {
            true => self.journal.clear(),
            false => self.journal.replace(kept),
        }
    }
}

impl Entry for OriginalQueue {
    fn restore(&self, dry_run: bool) -> Result<Vec<String>> {
        let context = || format!("the queue of {} is not restored; try `giveway revert` again", self.name);
        restore(&mut Netlink::open()?, self, dry_run).with_context(context)
    }
}

/// Takes off each queue of ours that is in no journal: the folder of these was lost with the daemon and its watchdog. What was there
/// before is not known, so the kernel's default comes. The caller holds the lock, and has undone what the journals know.
pub fn take_down_unjournalled() -> Result<Vec<String>> {
    let mut netlink = Netlink::open()?;
    let mut lines = download::remove_all(download::device::DOWN, false)?;
    lines.extend(upload::remove_all(false)?);
    for (ifindex, qdisc) in qdisc::roots(&mut netlink)? {
        if !is_ours(&qdisc) {
            continue;
        }
        // A device that has just gone took its queue with it.
        let Ok(name) = if_indextoname(ifindex) else { continue };
        let name = name.to_string_lossy().into_owned();
        netlink
            .change(RTM_DELQDISC, 0, &tcmsg(ifindex, HANDLE, ROOT))
            .with_context(|| {
                format!("giveway's queue on {name}, which no journal has: `tc qdisc del dev {name} root`")
            })?;
        let mut line = format!("qdisc of {name}, which no journal had, back to the kernel's default");
        if uplink::device(&mut netlink, ifindex)?.gso_max_segments == SINGLE_SEGMENTS {
            line += &format!(
                "; its gso_max_segs is 1 and the former value is unknown: `ip link set {name} gso_max_segs \
                 65535` is usual"
            );
        }
        lines.push(line);
    }
    Ok(lines)
}

fn restore(netlink: &mut Netlink, before: &OriginalQueue, dry_run: bool) -> Result<Vec<String>> {
    let found = match &before.identity {
        Some(identity) => identity.find(netlink, before.ifindex)?,
        None => InterfaceLocation::Here(before.ifindex),
    };
    let name = &before.name;
    match found {
        InterfaceLocation::Here(ifindex) => restore_here(
            netlink,
            &OriginalQueue {
                ifindex,
                ..before.clone()
            },
            dry_run,
        ),
        // It left its queue behind.
        InterfaceLocation::There { .. } if !before.limits_segments => Ok(Vec::new()),
        InterfaceLocation::There {
            namespace,
            ifindex,
            name: there,
        } => {
            let moved = OriginalQueue {
                ifindex,
                ..before.clone()
            };
            let restore = elsewhere::within(namespace, move || restore_here(&mut Netlink::open()?, &moved, dry_run));
            let restore = restore.with_context(|| {
                format!(
                    "{name} has moved to another network namespace, and its gso_max_segs may still be {SINGLE_SEGMENTS} there; it is \
                     restored when it is back (or: `ip link set {there} gso_max_segs {}` in its namespace)",
                    before.gso_max_segments
                )
            })?;
            let in_its_place = |line| format!("{line} (in the namespace that it has moved to, as {there})");
            Ok(restore.into_iter().map(in_its_place).collect())
        }
        // It took everything with it.
        InterfaceLocation::Gone => Ok(Vec::new()),
    }
}

fn restore_here(netlink: &mut Netlink, before: &OriginalQueue, dry_run: bool) -> Result<Vec<String>> {
    let device = match uplink::device(netlink, before.ifindex) {
        Err(error) if refused(&error) == Some(Errno::ENODEV) => return Ok(Vec::new()),
        device => device?,
    };
    let mut undone = Vec::new();
    // One that is down may have none.
    if qdisc::find_root(netlink, before.ifindex)?.is_some_and(|root| is_ours(&root.qdisc)) {
        undone.push(format!("qdisc of {} back to {}", before.name, before.qdisc.kind));
        if !dry_run {
            reinstall(netlink, before)?;
        }
    }
    if before.limits_segments && device.gso_max_segments == SINGLE_SEGMENTS {
        undone.push(format!(
            "gso_max_segs of {} back to {}",
            before.name, before.gso_max_segments
        ));
        if !dry_run {
            set_gso_max_segments(netlink, before.ifindex, before.gso_max_segments)?;
        }
    }
    Ok(undone)
}

fn reinstall(netlink: &mut Netlink, before: &OriginalQueue) -> Result<()> {
    let OriginalQueue { ifindex, qdisc, .. } = before;
    if qdisc.handle == 0 {
        // The kernel puts its default there.
        netlink.change(RTM_DELQDISC, 0, &tcmsg(*ifindex, HANDLE, ROOT))?;
    } else {
        let message = tcmsg(*ifindex, qdisc.handle, ROOT).text(qdisc::KIND, &qdisc.kind);
        let message = match &qdisc.options {
            Some(options) => message.attribute(qdisc::OPTIONS, options),
            None => message,
        };
        netlink.change(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, &message)?;
    }
    let now = qdisc::find_root(netlink, *ifindex)?.map(|root| root.qdisc);
    let is_back = match &now {
        // A device that is down gets its default when it comes up.
        None => qdisc.handle == 0,
        Some(now) if qdisc.handle == 0 => now.handle == 0,
        Some(now) => now == qdisc,
    };
    ensure!(is_back, "{now:?} stands there in place of {qdisc:?}");
    Ok(())
}
