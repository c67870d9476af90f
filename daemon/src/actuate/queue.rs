// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Puts a queue up on the managed link and takes it down again. In come plans, out goes success or one reason, with
//! nothing of the plan left. It never decides, and never touches a qdisc that somebody put in place of ours.
//!
//! What was there is written down before anything is changed; [`undo`] puts it back from there, in this process or
//! after its death.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use giveway_engine::queue::{Backend, Plan, Uplink};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::interface::Interface;
use crate::kernel::netlink::{Netlink, Refused};
use crate::kernel::qdisc::{self, Qdisc, ROOT, tcmsg};
use crate::kernel::uplink;
use crate::place::Place;

mod htb;

/// Of our root qdisc, whatever its kind ("gw").
const HANDLE: u32 = 0x6777_0000;
const SINGLE_SEGMENTS: u32 = 1;

/// What a device's queue was before it was touched.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Before {
    pub ifindex: u32,
    pub name: String,
    pub qdisc: Qdisc,
    pub gso_max_segments: u32,
}

pub struct QueueActuator {
    netlink: Netlink,
    place: Place,
}

impl QueueActuator {
    pub fn open(place: &Place) -> Result<Self> {
        Ok(Self {
            netlink: Netlink::open()?,
            place: place.clone(),
        })
    }

    /// The link as it is now.
    pub fn look(&mut self, interface: &Interface) -> Result<Uplink> {
        uplink::look(&mut self.netlink, interface.index, &interface.name, is_ours)
    }

    /// Puts the plan up, in place of whatever of ours stands. None only takes ours down.
    pub fn set(&mut self, plan: Option<&Plan>, name: &str) -> Result<()> {
        let Some(plan) = plan else {
            return undo(&self.place, false).map(drop);
        };
        let mut known = self.place.journalled_queues()?;
        if known.iter().any(|before| before.ifindex != plan.ifindex) {
            undo(&self.place, false)?;
            known.clear();
        }
        if known.is_empty() {
            self.write_down(plan.ifindex, name)?;
        }
        self.put_up(plan).inspect_err(|_| {
            if let Err(error) = undo(&self.place, false) {
                tracing::warn!("{error:#}");
            }
        })
    }

    fn write_down(&mut self, ifindex: u32, name: &str) -> Result<()> {
        let device = uplink::device(&mut self.netlink, ifindex)?;
        let root = qdisc::root(&mut self.netlink, ifindex)?;
        ensure!(
            !is_ours(&root.qdisc),
            "there is a qdisc of giveway's that nobody remembers; delete it"
        );
        self.place.journal_queue(&Before {
            ifindex,
            name: name.to_owned(),
            qdisc: root.qdisc,
            gso_max_segments: device.gso_max_segments,
        })
    }

    fn put_up(&mut self, plan: &Plan) -> Result<()> {
        match plan.backend {
            Backend::Htb => htb::put_up(&mut self.netlink, plan)?,
            Backend::Qdisc => bail!("this version of giveway has no BPF qdisc"),
        }
        if plan.single_segments {
            set_gso_max_segments(&mut self.netlink, plan.ifindex, SINGLE_SEGMENTS)?;
        }
        Ok(())
    }
}

/// Puts back what the journal tells of, or in a dry run only finds it; says what, a line each. What another tool has
/// changed since is its own.
pub fn undo(place: &Place, dry_run: bool) -> Result<Vec<String>> {
    let known = place.journalled_queues()?;
    if known.is_empty() {
        return Ok(Vec::new());
    }
    let mut netlink = Netlink::open()?;
    let mut undone = Vec::new();
    let mut failed = None;
    for before in &known {
        match put_back(&mut netlink, before, dry_run) {
            Ok(lines) => undone.extend(lines),
            Err(error) => failed = Some(error.context(format!("the qdisc of {} is not what it was", before.name))),
        }
    }
    match failed {
        Some(error) => return Err(error),
        None if !dry_run => place.clear_queue_journal()?,
        None => {}
    }
    Ok(undone)
}

fn put_back(netlink: &mut Netlink, before: &Before, dry_run: bool) -> Result<Vec<String>> {
    let device = match uplink::device(netlink, before.ifindex) {
        // It took everything with it.
        Err(error) if refused(&error) == Some(Errno::ENODEV) => return Ok(Vec::new()),
        device => device?,
    };
    let mut undone = Vec::new();
    if is_ours(&qdisc::root(netlink, before.ifindex)?.qdisc) {
        undone.push(format!("qdisc of {} back to {}", before.name, before.qdisc.kind));
        if !dry_run {
            restore(netlink, before)?;
        }
    }
    if device.gso_max_segments == SINGLE_SEGMENTS && before.gso_max_segments != SINGLE_SEGMENTS {
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

fn restore(netlink: &mut Netlink, before: &Before) -> Result<()> {
    let Before { ifindex, qdisc, .. } = before;
    if qdisc.handle == 0 {
        // The kernel puts its default there.
        netlink.change(libc::RTM_DELQDISC, 0, &tcmsg(*ifindex, HANDLE, ROOT))?;
    } else {
        let message = tcmsg(*ifindex, qdisc.handle, ROOT).text(qdisc::KIND, &qdisc.kind);
        let message = match &qdisc.options {
            Some(options) => message.attribute(qdisc::OPTIONS, options),
            None => message,
        };
        netlink.change(libc::RTM_NEWQDISC, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, &message)?;
    }
    let now = qdisc::root(netlink, *ifindex)?.qdisc;
    ensure!(
        if qdisc.handle == 0 {
            now.handle == 0
        } else {
            now == *qdisc
        },
        "{now:?} stands there in place of {qdisc:?}"
    );
    Ok(())
}

fn is_ours(qdisc: &Qdisc) -> bool {
    qdisc.handle == HANDLE && qdisc.kind == htb::KIND
}

fn set_gso_max_segments(netlink: &mut Netlink, ifindex: u32, segments: u32) -> Result<()> {
    let message = uplink::ifinfomsg(ifindex).attribute(libc::IFLA_GSO_MAX_SEGS, &segments.to_ne_bytes());
    netlink
        .change(libc::RTM_NEWLINK, 0, &message)
        .context("cannot set gso_max_segs")?;
    // Connections keep the limit that they found with their route; this makes those over IPv4 look again. IPv6 has no
    // such means: its open connections keep the old limit, until they end or their route changes.
    let _ = fs::write("/proc/sys/net/ipv4/route/flush", "1");
    Ok(())
}

fn refused(error: &anyhow::Error) -> Option<Errno> {
    error.downcast_ref::<Refused>().map(|refused| refused.0)
}
