// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bpf/forwarded.bpf.c where packets of containers come out of their veth pairs: each carries from there what is said of its
//! cgroup, and admission reads it at the link. Input: the veth devices of this namespace, and classes of cgroups. Output: the
//! cgroups that send. It changes nothing but a number that packets carry, and ends with the process.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::class::Forwarded;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use super::admission::number_of_class;
use crate::kernel::libbpf_log::explain;
use crate::kernel::now;
use crate::kernel::records::{bytes_of, record};
use crate::kernel::skeletons::forwarded as skeleton;
use crate::kernel::tcx::{self, Way};
use skeleton::types;

/// Of `bpf/queueing.h`.
const CLASS_SHIFT: u32 = 13;
const LIMIT_SHIFT: u32 = 7;
/// Which has sent nothing for so long is forgotten.
const SENDS_FOR: Duration = Duration::from_secs(60);
/// Each takes a descriptor.
const MOST_DEVICES: usize = 256;
/// Twice what the kernel's table holds.
const MOST_KEYS: usize = 2048;

pub struct Containers {
    program: OwnedFd,
    /// By interface.
    attached: BTreeMap<u32, OwnedFd>,
    cgroups: MapHandle,
    told: BTreeMap<u64, u32>,
}

impl Containers {
    pub fn load() -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::ForwardedSkelBuilder::default();
        let open = explain("open what knows containers' packets", || builder.open(&mut storage))?;
        let skeleton = explain("load what knows containers' packets", || open.load())?;
        Ok(Self {
            program: skeleton.progs.gw_say_whose.as_fd().try_clone_to_owned()?,
            attached: BTreeMap::new(),
            cgroups: MapHandle::try_from(&skeleton.maps.forwarded).context("cannot keep the map of cgroups")?,
            told: BTreeMap::new(),
        })
    }

    /// Attaches it to these devices, and to no others.
    ///
    /// # Errors
    /// Where one of them cannot have it now.
    pub fn follow(&mut self, devices: &BTreeSet<u32>) -> Result<()> {
        let still = |link: &OwnedFd| tcx::is_attached(link.as_fd()).unwrap_or(true);
        self.attached
            .retain(|ifindex, link| devices.contains(ifindex) && still(link));
        let mut outcome = Ok(());
        for ifindex in devices {
            if self.attached.len() == MOST_DEVICES {
                tracing::debug!("more than {MOST_DEVICES} veth devices: the rest is not looked at");
                break;
            }
            if self.attached.contains_key(ifindex) {
                continue;
            }
            match tcx::attach(self.program.as_fd(), *ifindex, Way::In) {
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
        let keys: Vec<Vec<u8>> = self.cgroups.keys().take(MOST_KEYS).collect();
        let mut sending = BTreeSet::new();
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
            let word = self.told.get(&cgroup).copied().unwrap_or(0);
            if known.word != word {
                self.write(cgroup, types::gw_forwarded { word, ..known })?;
            }
        }
        self.told.retain(|cgroup, _| sending.contains(cgroup));
        Ok(sending)
    }

    /// None: nothing is said of it.
    pub fn tell(&mut self, cgroup: u64, told: Option<Forwarded>) -> Result<()> {
        let word = told.map_or(0, word_of);
        match told {
            Some(_) => drop(self.told.insert(cgroup, word)),
            None => drop(self.told.remove(&cgroup)),
        }
        let known = types::gw_forwarded {
            seen_ns: now().as_nanos() as u64,
            word,
            reserved: 0,
        };
        self.write(cgroup, known)
    }

    fn write(&self, cgroup: u64, known: types::gw_forwarded) -> Result<()> {
        self.cgroups
            .update(&cgroup.to_ne_bytes(), bytes_of(&known), MapFlags::ANY)
            .context("cannot tell the queue of a container")
    }
}

fn word_of(
    Forwarded {
        treatment,
        rules_before,
    }: Forwarded,
) -> u32 {
    let limit = u32::from(treatment.limits.up.unwrap_or(0));
    u32::from(number_of_class(treatment.class)) << CLASS_SHIFT | limit << LIMIT_SHIFT | u32::from(rules_before)
}
