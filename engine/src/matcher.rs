// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a rule matches: a process, the two ends of a packet or flow, or both, against the rule's conditions. One
//! matcher for every table of rules. Reads nothing by itself.
//!
//! An executable is matched by its file, never by its name: the reader of the process determines which of the rules'
//! executables it runs, by device and inode in the daemon's own mount namespace. So a file of the same name in another
//! root, or a renamed process, never matches.

use std::net::SocketAddr;

use crate::config::Conditions;
use crate::model::{Dscp, Prefix, Process, Protocol, unit_of};

mod glob;

pub use glob::Glob;

/// The two ends of a packet or flow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ends {
    pub protocol: Protocol,
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

/// The marks of a socket's packets, and their interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Marks<'a> {
    pub dscp: Dscp,
    /// None: unknown.
    pub interface: Option<&'a str>,
}

/// [`Conditions`] with names resolved; all that are given must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matcher {
    /// An absolute path.
    pub exe: Option<String>,
    /// `*` is any text, `?` any character, here and below.
    pub cmdline: Option<Glob>,
    /// Must be the real and the effective user, so that no setuid program lends its own.
    pub uid: Option<u32>,
    pub unit: Option<Glob>,
    pub cgroup: Option<Glob>,
    pub protocol: Option<Protocol>,
    /// The remote host's.
    pub address: Option<Prefix>,
    pub port: Option<u16>,
    pub local_port: Option<u16>,
    pub dscp: Option<Dscp>,
    pub interface: Option<String>,
}

impl Matcher {
    /// `uid`: of the conditions' user, which the caller resolves.
    pub fn new(conditions: &Conditions, uid: Option<u32>) -> Self {
        let pattern = |pattern: &Option<String>| pattern.as_deref().map(Glob::new);
        Self {
            exe: conditions.exe.clone(),
            cmdline: pattern(&conditions.cmdline),
            uid,
            unit: pattern(&conditions.unit),
            cgroup: pattern(&conditions.cgroup),
            protocol: conditions.protocol,
            address: conditions.address,
            port: conditions.port,
            local_port: conditions.local_port,
            dscp: conditions.dscp,
            interface: conditions.interface.clone(),
        }
    }

    pub fn matches(&self, process: &Process) -> bool {
        self.holds(Some(process), None)
    }

    /// Whether all conditions hold. One on an unknown part does not.
    pub fn holds(&self, process: Option<&Process>, ends: Option<&Ends>) -> bool {
        self.holds_for_flow(process, ends, None)
    }

    /// The same for a flow with known marks.
    pub fn holds_for_flow(&self, process: Option<&Process>, ends: Option<&Ends>, marks: Option<&Marks<'_>>) -> bool {
        given(&self.exe, process, |exe, process| process.executables.contains(exe))
            && given(&self.uid, process, |uid, process| {
                [process.uid, process.euid] == [*uid; 2]
            })
            && given(&self.cmdline, process, |pattern, process| {
                pattern.matches(&process.cmdline)
            })
            && given(&self.unit, process, |pattern, process| {
                pattern.matches(unit_of(&process.cgroup).unwrap_or_default())
            })
            && given(&self.cgroup, process, |pattern, process| {
                pattern.matches(&process.cgroup)
            })
            && given(&self.protocol, ends, |protocol, ends| *protocol == ends.protocol)
            && given(&self.address, ends, |address, ends| address.contains(ends.remote.ip()))
            && given(&self.port, ends, |port, ends| *port == ends.remote.port())
            && given(&self.local_port, ends, |port, ends| *port == ends.local.port())
            && given(&self.dscp, marks, |dscp, marks| *dscp == marks.dscp)
            && given(&self.interface, marks, |interface, marks| {
                marks.interface == Some(interface)
            })
    }

    /// Whether a match may get more than others: a user is given, or only root controls the executable.
    pub fn is_trusted(&self, process: &Process) -> bool {
        self.uid.is_some() || self.exe.as_ref().is_some_and(|exe| process.trusted.contains(exe))
    }

    /// Whether it holds whenever the other does, as far as equal conditions show.
    pub fn covers(&self, other: &Self) -> bool {
        fn covers<T: PartialEq>(mine: &Option<T>, others: &Option<T>) -> bool {
            mine.is_none() || mine == others
        }
        covers(&self.exe, &other.exe)
            && covers(&self.cmdline, &other.cmdline)
            && covers(&self.uid, &other.uid)
            && covers(&self.unit, &other.unit)
            && covers(&self.cgroup, &other.cgroup)
            && covers(&self.protocol, &other.protocol)
            && covers(&self.address, &other.address)
            && covers(&self.port, &other.port)
            && covers(&self.local_port, &other.local_port)
            && covers(&self.dscp, &other.dscp)
            && covers(&self.interface, &other.interface)
    }

    /// Whether no flow can match both, as far as their texts show.
    pub fn excludes(&self, other: &Self) -> bool {
        fn differ<T: PartialEq>(mine: &Option<T>, others: &Option<T>) -> bool {
            mine.is_some() && others.is_some() && mine != others
        }
        let patterns_differ = |mine: &Option<Glob>, others: &Option<Glob>| {
            let exact = |glob: &Option<Glob>| glob.as_ref().is_some_and(Glob::is_exact);
            exact(mine) && exact(others) && mine != others
        };
        differ(&self.exe, &other.exe)
            || differ(&self.uid, &other.uid)
            || differ(&self.protocol, &other.protocol)
            || differ(&self.local_port, &other.local_port)
            || differ(&self.dscp, &other.dscp)
            || patterns_differ(&self.cmdline, &other.cmdline)
            || patterns_differ(&self.unit, &other.unit)
            || patterns_differ(&self.cgroup, &other.cgroup)
    }

    /// Whether it has a condition on the process itself, beyond its cgroup.
    pub fn asks_who(&self) -> bool {
        self.exe.is_some() || self.cmdline.is_some() || self.uid.is_some()
    }

    /// The executable, if that is the only condition.
    pub fn only_executable(&self) -> Option<&str> {
        let only = Self {
            exe: self.exe.clone(),
            ..Self::default()
        };
        self.exe.as_deref().filter(|_| *self == only)
    }

    /// Without conditions on the remote host; None if it has none.
    pub fn wherever_it_goes(&self) -> Option<Self> {
        let asks = self.address.is_some() || self.port.is_some() || self.interface.is_some();
        asks.then(|| Self {
            address: None,
            port: None,
            interface: None,
            ..self.clone()
        })
    }

    /// Without packet conditions; None if it has none.
    pub fn whatever_it_sends(&self) -> Option<Self> {
        let asks = self.protocol.is_some() || self.local_port.is_some() || self.dscp.is_some();
        let wherever = self.wherever_it_goes();
        (asks || wherever.is_some()).then(|| Self {
            protocol: None,
            local_port: None,
            dscp: None,
            ..wherever.unwrap_or_else(|| self.clone())
        })
    }

    /// Whether it has packet conditions only.
    pub fn asks_only_packet(&self) -> bool {
        !self.asks_who() && self.unit.is_none() && self.cgroup.is_none()
    }

    /// The number of patterns to match.
    pub fn patterns(&self) -> usize {
        [&self.cmdline, &self.unit, &self.cgroup].into_iter().flatten().count()
    }

    /// For people.
    pub fn shown(&self) -> String {
        let pattern = |name, p: &Option<Glob>| p.as_ref().map(|p| format!("{name} {p}"));
        let conditions = [
            self.exe.as_ref().map(|exe| format!("exe {exe}")),
            pattern("cmdline", &self.cmdline),
            self.uid.map(|uid| format!("uid {uid}")),
            pattern("unit", &self.unit),
            pattern("cgroup", &self.cgroup),
            self.protocol.map(|protocol| format!("protocol {protocol}")),
            self.address.map(|address| format!("address {address}")),
            self.port.map(|port| format!("port {port}")),
            self.local_port.map(|port| format!("local port {port}")),
            self.dscp.map(|dscp| format!("dscp {dscp}")),
            self.interface.as_ref().map(|name| format!("interface {name}")),
        ];
        conditions.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// Whether an optional condition holds for an optional part.
fn given<C, P>(condition: &Option<C>, part: Option<&P>, holds: impl Fn(&C, &P) -> bool) -> bool {
    let holds_for = |condition| part.is_some_and(|part| holds(condition, part));
    condition.as_ref().is_none_or(holds_for)
}

#[cfg(test)]
mod tests;
