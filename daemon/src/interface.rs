// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which interfaces are managed, and what the kernel shows of them now. Looked up every second: interfaces
//! come and go, and the default route moves from Wi-Fi to a cable.

use std::fmt::{self, Display, Formatter};

use anyhow::Result;
use giveway_engine::config::MOST_LINKS;
use giveway_engine::config::UplinkSection;
pub use giveway_engine::model::Interface;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};

use crate::kernel::routes::{Defaults, default_interfaces};

/// How the managed interfaces were chosen.
#[derive(Clone, Debug)]
pub enum Choice {
    Named(Vec<String>),
    /// All that have one.
    DefaultRoute,
}

/// What is waited for where there is none.
impl Display for Choice {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(names) => write!(f, "waiting for {} to come up", names.join(" or ")),
            Self::DefaultRoute => write!(
                f,
                "waiting for a default route (--interface names a device without one)"
            ),
        }
    }
}

/// What is to be managed now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ManagedLinks {
    /// The one of the access point: the first that was named, else the preferred default route's; None while it is not
    /// up.
    pub first: Option<Interface>,
    /// All, by number and name, in the order of preference.
    pub links: Vec<(u32, String)>,
    /// These have a default route too.
    pub left_out: Vec<String>,
    /// So many tables of routes are not looked at.
    pub unread_tables: usize,
}

impl Choice {
    /// The interfaces that exist, are up and are not the loopback.
    ///
    /// # Errors
    /// Where that cannot be told now.
    pub fn find(&self) -> Result<ManagedLinks> {
        let Defaults { names, unread_tables } = match self {
            Self::Named(names) => Defaults {
                names: names.clone(),
                unread_tables: 0,
            },
            Self::DefaultRoute => default_interfaces()?,
        };
        let addresses: Vec<_> = getifaddrs()?.collect();
        let is_managed = |flags: InterfaceFlags| flags & UP_OR_LOOPBACK == InterfaceFlags::IFF_UP;
        let mut found = ManagedLinks {
            unread_tables,
            ..ManagedLinks::default()
        };
        for (place, name) in names.into_iter().enumerate() {
            let mut of_it = addresses.iter().filter(|a| a.interface_name == name);
            let index = match if_nametoindex(name.as_str()) {
                Err(Errno::ENODEV) => continue,
                index => index?,
            };
            if !of_it.clone().next().is_some_and(|first| is_managed(first.flags)) {
                continue;
            }
            let ipv4 = of_it.find_map(|a| Some(a.address.as_ref()?.as_sockaddr_in()?.ip()));
            let is_first = match self {
                Self::Named(_) => place == 0,
                Self::DefaultRoute => found.first.is_none(),
            };
            if found.links.len() == MOST_LINKS {
                found.left_out.push(name);
                continue;
            }
            found.links.push((index, name.clone()));
            if is_first {
                found.first = Some(Interface { name, index, ipv4 });
            }
        }
        Ok(found)
    }
}

impl Choice {
    /// Those that were named and are not up, where others are.
    pub fn awaited(&self, found: &ManagedLinks) -> Vec<String> {
        let Self::Named(names) = self else { return Vec::new() };
        let is_there = |name: &String| found.links.is_empty() || found.links.iter().any(|(_, there)| there == name);
        let missing = names.iter().filter(|name| !is_there(name));
        missing
            .map(|name| format!("{name} is not up, and waited for"))
            .collect()
    }
}

impl Choice {
    /// Each [[uplink]] that says something of a link that is not managed now, where that is by its default route.
    pub fn unmanaged(&self, uplinks: &[UplinkSection], found: &ManagedLinks) -> Vec<String> {
        if matches!(self, Self::Named(_)) {
            return Vec::new();
        }
        let managed: Vec<&str> = found.links.iter().map(|(_, name)| name.as_str()).collect();
        let named = uplinks.iter().filter_map(|own| own.interface.as_deref());
        let others = named.filter(|name| !managed.contains(name));
        let line = |name| {
            let managed = if managed.is_empty() {
                "none".to_owned()
            } else {
                managed.join(" and ")
            };
            format!(
                "the [[uplink]] of {name} does nothing: {name} is not managed, since it has no default route ({managed} has); name \
                 all links to manage in `interfaces`"
            )
        };
        others.map(line).collect()
    }
}

const UP_OR_LOOPBACK: InterfaceFlags = InterfaceFlags::IFF_UP.union(InterfaceFlags::IFF_LOOPBACK);
