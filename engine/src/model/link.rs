// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Network devices.

use std::net::Ipv4Addr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The managed interface.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Interface {
    pub name: String,
    pub index: u32,
    pub ipv4: Option<Ipv4Addr>,
}

impl Interface {
    /// Of the reports on it.
    pub fn ip_header_bytes(&self) -> u32 {
        if self.ipv4.is_some() { 20 } else { 40 }
    }
}

/// Device kinds, by rtnetlink's names, whose packets leave again by another device, encapsulated.
const TUNNELS: [&str; 22] = [
    "amt",
    "bareudp",
    "erspan",
    "geneve",
    "gre",
    "gretap",
    "gtp",
    "ip6erspan",
    "ip6gre",
    "ip6gretap",
    "ip6tnl",
    "ipip",
    "l2tpeth",
    "ovpn",
    "ppp",
    "sit",
    "tun",
    "vti",
    "vti6",
    "vxlan",
    "wireguard",
    "xfrm",
];

/// A network device of this namespace.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Device {
    pub name: String,
    /// Of a virtual one, as rtnetlink names it.
    #[serde(default)]
    pub kind: Option<String>,
    #[serde(default)]
    pub is_loopback: bool,
    /// It is up, and this host has routes to it.
    #[serde(default)]
    pub is_routed: bool,
}

impl Device {
    pub fn is_tunnel(&self) -> bool {
        self.kind.as_deref().is_some_and(|kind| TUNNELS.contains(&kind))
    }

    /// For people.
    pub fn shown(&self) -> String {
        match (self.is_tunnel(), &self.kind) {
            (true, Some(kind)) => format!("the tunnel {} ({kind})", self.name),
            _ => self.name.clone(),
        }
    }
}
