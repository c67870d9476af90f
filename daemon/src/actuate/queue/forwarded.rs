// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bpf/forwarded.bpf.c where packets of containers come out of their veth pairs: each carries from there the number of its
//! cgroup, by which admission finds at the link what is said of that. Input: the veth devices of this namespace, and classes of cgroups. Output: the
//! cgroups that send. It changes nothing but a number that packets carry, and ends with the process.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use giveway_engine::model::Forwarded;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use super::QueueActuator;
use super::admission::number_of;
use crate::actuate::download::containers::Receiving;
use crate::kernel::libbpf_log::explain;
use crate::kernel::now;
use crate::kernel::records::{bytes_of, record};
use crate::kernel::skeletons::admission::types::gw_forwarded_number;
use crate::kernel::skeletons::forwarded as skeleton;
use crate::kernel::tcx::{self, TcxHook};
use crate::kernel::uplink::{self, Veth};
use skeleton::types;

const FIRST: u32 = gw_forwarded_number::GW_FIRST_FORWARDED.0;
/// Which has sent nothing for so long is forgotten.
const SENDS_FOR: Duration = Duration::from_secs(60);
/// Each takes a descriptor.
const MOST_DEVICES: usize = 256;

pub struct ForwardedContainers {
    program: OwnedFd,
    /// By interface.
    devices: BTreeMap<u32, Veth>,
    attached: BTreeMap<u32, OwnedFd>,
    cgroups: MapHandle,
    /// By number, for admission.
    treatments: MapHandle,
    /// The number of each cgroup of which something is said.
    treated: BTreeMap<u64, (u32, Forwarded)>,
    /// The number that was given last: the next one is given before it is given again, since packets may carry it.
    last: u32,
    /// By which device those with limited downloads have sent.
    receive_by: BTreeMap<u64, u32>,
}

impl QueueActuator {
    /// What comes out of these devices is told apart by its cgroup, while anything is active.
    /// `changed`: devices may have come or gone since the last time.
    ///
    /// # Errors
    /// Where it is to be asked for again.
    pub fn follow_containers(&mut self, changed: bool) -> Result<()> {
        let links: BTreeSet<u32> = self.links.keys().copied().collect();
        if !changed && self.followed.as_ref() == Some(&links) {
            return Ok(());
        }
        let mut devices = match self.links.is_empty() {
            true => BTreeMap::new(),
            false => uplink::veths(&mut self.netlink)?,
        };
        devices.retain(|ifindex, _| !links.contains(ifindex));
        self.followed = Some(links);
        if devices.is_empty() && self.containers.is_none() {
            return Ok(());
        }
        if self.containers().is_none()
            && let Some(admission) = &self.admission
        {
            self.containers = Some(ForwardedContainers::load(
                &admission.shared.received.forwarded_treatments,
            ));
        }
        let outcome = match self.containers() {
            Some(containers) => containers.follow(devices),
            None => Err(anyhow!("containers' packets are not told apart yet")),
        };
        self.configure()?;
        outcome
    }

    /// Those that send.
    pub fn forwarding(&mut self) -> Result<BTreeSet<u64>> {
        self.containers()
            .map_or_else(|| Ok(BTreeSet::new()), ForwardedContainers::sending)
    }

    /// What is forwarded for this cgroup; None: nothing is said of it.
    pub fn treat_forwarded(&mut self, cgroup: u64, forwarded: Option<Forwarded>) -> Result<()> {
        let Some(containers) = self.containers() else {
            return Ok(());
        };
        containers.set_treatment(cgroup, forwarded)?;
        self.configure()
    }

    /// The containers whose downloads are limited.
    pub fn receiving(&self) -> Option<Receiving<'_>> {
        self.containers.as_ref()?.as_ref().ok()?.receiving()
    }

    fn containers(&mut self) -> Option<&mut ForwardedContainers> {
        self.containers.as_mut()?.as_mut().ok()
    }
}

impl ForwardedContainers {
    pub fn load(treatments: &MapHandle) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::ForwardedSkelBuilder::default();
        let open = explain("open what knows containers' packets", || builder.open(&mut storage))?;
        let skeleton = explain("load what knows containers' packets", || open.load())?;
        Ok(Self {
            program: skeleton.progs.gw_write_cgroup.as_fd().try_clone_to_owned()?,
            devices: BTreeMap::new(),
            attached: BTreeMap::new(),
            cgroups: MapHandle::try_from(&skeleton.maps.forwarded).context("cannot keep the map of cgroups")?,
            treatments: MapHandle::try_from(treatments).context("cannot share what is said of cgroups")?,
            treated: BTreeMap::new(),
            last: FIRST,
            receive_by: BTreeMap::new(),
        })
    }

    /// Attaches it to these devices, and to no others.
    ///
    /// # Errors
    /// Where one of them cannot have it now.
    pub fn follow(&mut self, devices: BTreeMap<u32, Veth>) -> Result<()> {
        self.devices = devices;
        let devices = &self.devices;
        let still = |link: &OwnedFd| tcx::is_attached(link.as_fd()).unwrap_or(true);
        self.attached
            .retain(|ifindex, link| devices.contains_key(ifindex) && still(link));
        let mut outcome = Ok(());
        for ifindex in devices.keys() {
            if self.attached.len() == MOST_DEVICES {
                tracing::debug!("more than {MOST_DEVICES} veth devices: the rest is not looked at");
                break;
            }
            if self.attached.contains_key(ifindex) {
                continue;
            }
            match tcx::attach(self.program.as_fd(), *ifindex, TcxHook::Ingress) {
                Ok(link) => drop(self.attached.insert(*ifindex, link)),
                // It may have just gone, or descriptors are short for a while.
                Err(error) => outcome = Err(error.context(format!("interface {ifindex}"))),
            }
        }
        outcome
    }

    pub fn is_attached(&self) -> bool {
        !self.attached.is_empty()
    }

    /// The cgroups that send. What the kernel's table has pushed out meanwhile is said again.
    pub fn sending(&mut self) -> Result<BTreeSet<u64>> {
        // While others push entries out, the kernel begins anew.
        let most = 2 * self.cgroups.max_entries() as usize;
        let keys: Vec<Vec<u8>> = self.cgroups.keys().take(most).collect();
        let mut sending = BTreeSet::new();
        self.receive_by.clear();
        for key in keys {
            let Some(known) = self
                .cgroups
                .lookup(&key, MapFlags::ANY)
                .context("cannot read the map of cgroups")?
            else {
                continue;
            };
            let known: types::gw_forwarded = record(&known).context("a cgroup's record has another size")?;
            let cgroup = u64::from_ne_bytes(key[..].try_into().context("a cgroup's number has another size")?);
            if now().saturating_sub(Duration::from_nanos(known.seen_ns)) > SENDS_FOR {
                // Somebody may have removed it by now.
                let _ = self.cgroups.delete(&key);
                continue;
            }
            sending.insert(cgroup);
            let forwarded = self.treated.get(&cgroup);
            let number = forwarded.map_or(0, |(number, _)| *number);
            if forwarded.is_some_and(|(_, forwarded)| forwarded.treatment.limits.down.is_some()) {
                self.receive_by.insert(cgroup, known.device);
            }
            if known.number != number {
                self.write(cgroup, types::gw_forwarded { number, ..known })?;
            }
        }
        self.treated.retain(|cgroup, _| sending.contains(cgroup));
        Ok(sending)
    }

    /// None: nothing is said of it.
    pub fn set_treatment(&mut self, cgroup: u64, forwarded: Option<Forwarded>) -> Result<()> {
        let number = match forwarded {
            Some(forwarded) => self.number(cgroup, forwarded)?,
            None => {
                self.treated.remove(&cgroup);
                0
            }
        };
        let key = cgroup.to_ne_bytes();
        let known = self.cgroups.lookup(&key, MapFlags::ANY).ok().flatten();
        let known: Option<types::gw_forwarded> = known.and_then(|known| record(&known));
        let known = types::gw_forwarded {
            seen_ns: now().as_nanos() as u64,
            number,
            device: known.map_or(0, |known| known.device),
        };
        match forwarded.is_some_and(|forwarded| forwarded.treatment.limits.down.is_some()) {
            true => drop(self.receive_by.insert(cgroup, known.device)),
            false => drop(self.receive_by.remove(&cgroup)),
        }
        self.write(cgroup, known)
    }

    /// Under which this is said of it from now on.
    fn number(&mut self, cgroup: u64, forwarded: Forwarded) -> Result<u32> {
        let in_use: BTreeSet<u32> = self.treated.values().map(|(number, _)| *number).collect();
        let end = self.treatments.max_entries();
        let mut all = (self.last + 1..end).chain(FIRST..=self.last);
        let known = self.treated.get(&cgroup).map(|(number, _)| *number);
        let free = known.or_else(|| all.find(|number| !in_use.contains(number)));
        let number = free.context("no more containers can be told apart")?;
        self.last = known.map_or(number, |_| self.last);
        let treatment = types::gw_forwarded_treatment {
            treatment: number_of(forwarded.treatment),
            rules: forwarded.rules_before.into(),
        };
        self.treatments
            .update(&number.to_ne_bytes(), bytes_of(&treatment), MapFlags::ANY)
            .context("cannot tell the queue of a container")?;
        self.treated.insert(cgroup, (number, forwarded));
        Ok(number)
    }

    pub fn are_limited(&self) -> bool {
        self.treated
            .values()
            .any(|(_, forwarded)| !forwarded.treatment.limits.is_none())
    }

    /// Where the downloads of some are.
    pub fn receiving(&self) -> Option<Receiving<'_>> {
        let mut forwarded = self.treated.values();
        let are_limited = forwarded.any(|(_, forwarded)| forwarded.treatment.limits.down.is_some());
        let veths = self.receive_by.values();
        are_limited.then(|| Receiving {
            cgroups: &self.cgroups,
            devices: veths
                .filter_map(|ifindex| Some((*ifindex, self.devices.get(ifindex)?)))
                .collect(),
        })
    }

    fn write(&self, cgroup: u64, known: types::gw_forwarded) -> Result<()> {
        self.cgroups
            .update(&cgroup.to_ne_bytes(), bytes_of(&known), MapFlags::ANY)
            .context("cannot tell the queue of a container")
    }
}
