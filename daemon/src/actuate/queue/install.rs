// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Puts a queue up on a link, tunes it, and takes it down again. Input: plans. Output: success or one reason, with nothing of the
//! plan left. Never touches a qdisc that another tool put in place of ours.

use anyhow::{Context as _, Result, anyhow, ensure};
use giveway_engine::queue::{Backend, Plan, RootQdisc, Tuning, may_replace};

use super::undo::OriginalQueue;
use super::{ManagedLink, QueueActuator, htb, is_ours};
use crate::kernel::elsewhere::Identity;
use crate::kernel::netlink::Netlink;
use crate::kernel::{qdisc, uplink};
use crate::pins::QDISC;

impl QueueActuator {
    /// Puts the plan up on this link, in place of whatever of ours stands there. None only takes ours down.
    pub fn set(&mut self, ifindex: u32, name: &str, plan: Option<&Plan>) -> Result<()> {
        let Some(plan) = plan else {
            return self.take_down(ifindex);
        };
        let stands = self.links.get(&ifindex).map(|link| link.plan.backend);
        let replaced = match (stands, plan.backend) {
            // Packets keep their marks meanwhile.
            (Some(Backend::None), Backend::Bpf) => self.get_ready(ifindex, name, plan),
            (Some(Backend::Bpf), Backend::None) => self.restore(ifindex),
            (Some(stands), wanted) if stands != wanted => return self.replace(ifindex, name, plan),
            _ => Ok(()),
        };
        let install = replaced.and_then(|()| self.install(ifindex, name, plan));
        install.inspect_err(|_| self.give_up(ifindex))
    }

    fn replace(&mut self, ifindex: u32, name: &str, plan: &Plan) -> Result<()> {
        self.take_down(ifindex)?;
        self.install(ifindex, name, plan).inspect_err(|_| self.give_up(ifindex))
    }

    fn install(&mut self, ifindex: u32, name: &str, plan: &Plan) -> Result<()> {
        self.load(plan.backend)?;
        self.begin(ifindex, name, plan)?;
        let admission = self.admission.as_mut().context("admission is not loaded")?;
        admission.set_packet_rules(&plan.tuning.packet_rules)?;
        // Before anything is attached: it goes by this from its first packet on.
        self.configure()?;
        self.follow_networks()?;
        self.follow_htb()?;
        let admission = self.admission.as_mut().context("admission is not loaded")?;
        admission.attach(ifindex)?;
        let link = self.links.get_mut(&ifindex).context("the link has just gone")?;
        if let Some(before) = &link.before {
            check_unchanged(&mut self.netlink, before)?;
        }
        match (plan.backend, &mut self.qdisc) {
            (Backend::Bpf, Some(qdisc)) => {
                // Unpinned it serves just as well, but cannot be installed again once this process is gone.
                if let Err(error) = self.place.pins().make(|folder| qdisc.pin(&folder.join(QDISC))) {
                    tracing::warn!("{error:#}");
                }
                qdisc.install(&mut self.netlink, ifindex)?;
                qdisc.watch_cpus(true);
            }
            (Backend::Htb, _) => htb::install(&mut self.netlink, plan)?,
            _ => return Ok(()),
        }
        self.limit_segments(ifindex, plan)
    }

    /// Gives the link its number, and writes down what stands there.
    fn begin(&mut self, ifindex: u32, name: &str, plan: &Plan) -> Result<()> {
        if let Some(link) = self.links.get_mut(&ifindex) {
            link.plan.clone_from(plan);
            return Ok(());
        }
        let admission = self.admission.as_ref().context("admission is not loaded")?;
        let is_free = |number: &u32| self.links.values().all(|link| link.number != *number);
        let number = (0..admission.links()).find(is_free);
        let number = number.with_context(|| format!("{} links are managed, which is the most", admission.links()))?;
        admission.forget(number)?;
        self.qdisc.as_ref().map_or(Ok(()), |qdisc| qdisc.forget(number))?;
        let before = match plan.backend {
            Backend::None => None,
            Backend::Bpf | Backend::Htb => {
                self.undo_left(ifindex)?;
                Some(self.write_down(ifindex, name, plan)?)
            }
        };
        let link = ManagedLink {
            number,
            name: name.to_owned(),
            plan: plan.clone(),
            before,
            served: None,
            ordered: Some(0),
        };
        self.links.insert(ifindex, link);
        Ok(())
    }

    /// Packets were only marked there, and the queue comes.
    fn get_ready(&mut self, ifindex: u32, name: &str, plan: &Plan) -> Result<()> {
        self.undo_left(ifindex)?;
        let before = self.write_down(ifindex, name, plan)?;
        let link = self.links.get_mut(&ifindex).context("the link has just gone")?;
        link.before = Some(before);
        self.qdisc.as_ref().map_or(Ok(()), |qdisc| qdisc.forget(link.number))
    }

    /// The queue goes, and packets are only marked from then on.
    fn restore(&mut self, ifindex: u32) -> Result<()> {
        let link = self.links.get_mut(&ifindex).context("no queue is active")?;
        link.ordered = None;
        let before = link.before.take();
        let undone = self.undo(before.as_ref());
        self.rest(ifindex);
        undone
    }

    fn write_down(&mut self, ifindex: u32, name: &str, plan: &Plan) -> Result<OriginalQueue> {
        let device = uplink::device(&mut self.netlink, ifindex)?;
        let root = qdisc::root(&mut self.netlink, ifindex)?;
        ensure!(
            !is_ours(&root.qdisc),
            "there is a qdisc of giveway's that is in no journal; delete it"
        );
        // It may have been changed since the engine saw it.
        let seen = RootQdisc {
            kind: root.qdisc.kind.clone(),
            handle: root.qdisc.handle,
            entangled: root.entangled,
            ours: false,
        };
        may_replace(name, &seen).map_err(|reason| anyhow!(reason))?;
        ensure!(
            !plan.only_if_free || seen.handle == 0,
            "another tool has put the qdisc {} on {name} in place of ours",
            seen.kind
        );
        let before = OriginalQueue {
            ifindex,
            name: name.to_owned(),
            qdisc: root.qdisc,
            gso_max_segments: device.gso_max_segments,
            limits_segments: false,
            identity: Some(Identity::of(&mut self.netlink, ifindex)?),
        };
        self.journal.add([&before])?;
        Ok(before)
    }

    /// Changes the numbers that the queue active on this link goes by. After an error nothing of it is left.
    pub fn tune(&mut self, ifindex: u32, tuning: &Tuning) -> Result<()> {
        self.write_tuning(ifindex, tuning)
            .inspect_err(|_| self.give_up(ifindex))
    }

    fn write_tuning(&mut self, ifindex: u32, tuning: &Tuning) -> Result<()> {
        let link = self.links.get_mut(&ifindex).context("no queue is active")?;
        link.plan.tuning.clone_from(tuning);
        if let Some(admission) = &mut self.admission {
            admission.set_packet_rules(&tuning.packet_rules)?;
        }
        self.configure()?;
        let link = self.links.get(&ifindex).context("no queue is active")?;
        match link.plan.backend {
            Backend::Htb => htb::tune(&mut self.netlink, &link.plan),
            Backend::Bpf | Backend::None => Ok(()),
        }
    }

    /// Takes everything of ours off this link; what is loaded stays so.
    pub fn take_down(&mut self, ifindex: u32) -> Result<()> {
        let link = self.links.remove(&ifindex);
        let undone = link.as_ref().map_or(Ok(()), |link| self.undo(link.before.as_ref()));
        if let (Some(admission), Some(link)) = (&mut self.admission, &link) {
            admission.detach(ifindex);
            admission.configure(link.number, None)?;
        }
        self.rest(ifindex);
        self.follow_htb()?;
        undone
    }

    fn give_up(&mut self, ifindex: u32) {
        if let Err(error) = self.take_down(ifindex) {
            tracing::warn!("{error:#}");
        }
    }

    fn follow_htb(&mut self) -> Result<()> {
        let serves = self.links.values().any(|link| link.plan.backend == Backend::Htb);
        self.admission
            .as_mut()
            .map_or(Ok(()), |admission| admission.follow_htb(serves))
    }

    /// The queue of this link has gone: what watches the CPUs is for those that are left.
    fn rest(&mut self, ifindex: u32) {
        let mut others = self.links.iter().filter(|(other, _)| **other != ifindex);
        let is_wanted = others.any(|(_, link)| link.plan.backend == Backend::Bpf);
        if let Some(qdisc) = &mut self.qdisc {
            qdisc.watch_cpus(is_wanted);
        }
    }
}

/// Another tool may have put its own there since it was written down. (What it does from here to the put-up, some microseconds, is not
/// seen: no call of the kernel's replaces one qdisc and no other.)
fn check_unchanged(netlink: &mut Netlink, before: &OriginalQueue) -> Result<()> {
    let Some(root) = qdisc::find_root(netlink, before.ifindex)? else {
        return Ok(());
    };
    let now = root.qdisc;
    ensure!(
        now == before.qdisc || is_ours(&now),
        "another tool has just put {} on {} in place of {}",
        now.kind,
        before.name,
        before.qdisc.kind
    );
    Ok(())
}
