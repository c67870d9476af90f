// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a limit is set for: a process that transfers by a child of its own, and what names it.

use std::fs;

use anyhow::Result;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::transfer::{FAR_ADDRESS, PORT};
use crate::cgroup::Cgroup;
use crate::role::Role;

/// Debian's `nobody`.
pub const USER: u32 = 65_534;

#[derive(Clone, Copy, PartialEq)]
pub enum TargetKind {
    /// A pid, with its children.
    Process,
    /// The same, of an ordinary user.
    UsersProcess,
    /// By its name: systemd is not asked.
    Unit,
    Cgroup,
    UserByRule,
    /// By the slice that systemd gives each user.
    UserBySlice,
    Flow,
    /// The cgroup of a process behind a veth, in a network namespace of its own.
    Container,
}

pub struct Target {
    pub kind: TargetKind,
    /// As the command takes it.
    pub name: String,
    pub near: Role,
    group: Option<Cgroup>,
}

impl TargetKind {
    pub fn is_users(self) -> bool {
        matches!(self, Self::UsersProcess | Self::UserByRule | Self::UserBySlice)
    }

    /// Where its process stands.
    fn cgroup(self) -> Option<String> {
        let own = std::process::id();
        match self {
            Self::Unit => Some(format!("gwlab{own}.slice/gwlab{own}.service")),
            Self::Cgroup => Some(format!("gwlab{own}")),
            Self::UserBySlice => Some(format!("user.slice/user-{USER}.slice/gwlab{own}.scope")),
            Self::Container => Some(format!("gwlab{own}.slice/docker-gwlab{own}.scope")),
            Self::Process | Self::UsersProcess | Self::UserByRule | Self::Flow => None,
        }
    }
}

impl Target {
    pub fn around(kind: TargetKind, near: Role) -> Result<Self> {
        let path = kind.cgroup();
        let group = path.as_deref().map(Cgroup::make).transpose()?;
        if let Some(group) = &group {
            fs::write(group.folder.join("cgroup.procs"), near.id().to_string())?;
        }
        let path = path.unwrap_or_default();
        let name = match kind {
            TargetKind::Process | TargetKind::UsersProcess => near.id().to_string(),
            TargetKind::Unit => path.rsplit('/').next().unwrap_or_default().to_owned(),
            TargetKind::Cgroup | TargetKind::Container => format!("/{path}"),
            TargetKind::UserBySlice => format!("/user.slice/user-{USER}.slice"),
            TargetKind::Flow => flow(),
            TargetKind::UserByRule => String::new(),
        };
        Ok(Self {
            kind,
            name,
            near,
            group,
        })
    }

    pub fn begin(&mut self) -> Result<()> {
        self.near.send_line("begin")?;
        self.near.wait()
    }
}

impl Drop for Target {
    /// With its child, and then its cgroup.
    fn drop(&mut self) {
        let ended = killpg(Pid::from_raw(self.near.id()), Signal::SIGKILL).map_err(Into::into);
        if let Err(error) = ended.and_then(|()| self.near.kill()) {
            eprintln!("cannot end the process of a target: {error:#}");
        }
        drop(self.group.take());
    }
}

/// By its remote end.
pub fn flow() -> String {
    format!("{FAR_ADDRESS}:{PORT}")
}
