// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The prospects of a class or a limit about to be chosen, with the links and devices that decide them; for `exec`,
//! `config check` and `status`.

use super::{Asked, Overview};
use crate::class::{By, Verdict};
use crate::model::{Class, Device, LimitNumbers, Rates};

impl<'a> Overview<'a> {
    /// Why a command's choice will not be enforced on some route of this host, as far as that is known before it sends
    /// anything.
    pub fn shortfalls_of(&self, class: Option<Class>, rates: Rates) -> Vec<String> {
        let verdict = Verdict {
            class: class.unwrap_or_default(),
            by: By::Choice,
            limits: rates.numbered(0),
            ..Verdict::default()
        };
        if Asked::of(&verdict).is_none() && rates.down.is_none() {
            return Vec::new();
        }
        if let Some(reason) = self.shortfall_of_all() {
            return vec![reason.reason];
        }
        // A limit applies without a queue, too.
        let order = Asked::of(&Verdict {
            limits: LimitNumbers::NONE,
            ..verdict
        });
        let mut managed = match order.is_some() || self.links.is_none_managed() {
            true => self.links.shortfalls(),
            false => Vec::new(),
        };
        if rates.up.is_some() {
            managed.extend(self.uploads.hindrances());
        }
        if rates.down.is_some() {
            managed.extend(self.downloads.hindrances());
        }
        let others = self.unmanaged().into_iter().map(|device| {
            let how = self.links.how_to_manage(&device.name);
            format!("{} has routes and is not managed ({how})", device.shown())
        });
        managed.into_iter().chain(others).collect()
    }

    /// The links that order uploads.
    pub fn enforcing(&self) -> Vec<String> {
        match self.shortfall_of_all() {
            Some(_) => Vec::new(),
            None => self.links.enforcing().map(str::to_owned).collect(),
        }
    }

    /// Unmanaged devices with routes of this host.
    pub fn unmanaged(self) -> Vec<&'a Device> {
        let is_managed = |ifindex: &u32| self.links.serves(*ifindex).is_some();
        let devices = self.classes.devices().iter();
        let others = devices.filter(|(ifindex, device)| device.is_routed && !is_managed(ifindex));
        others.map(|(_, device)| device).collect()
    }

    /// Managed links whose packets leave again by another one.
    pub fn managed_tunnels(self) -> Vec<&'a Device> {
        let devices = self.classes.devices().iter();
        let managed = devices.filter(|(ifindex, device)| device.is_tunnel() && self.links.serves(**ifindex).is_some());
        managed.map(|(_, device)| device).collect()
    }
}
