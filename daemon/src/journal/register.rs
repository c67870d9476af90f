// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which journals there are, and how each is restored. Who writes a journal says so beside its entries ([`UndoHandler`]);
//! [`crate::undo`] goes through them.

use super::{Entry, JournalContents, UndoFn};

/// One writer each.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum JournalFile {
    /// Threads of `[[priority]]`.
    Realtime,
    /// Handlers of `[[chain]]`.
    Chains,
    /// The kernel's threads that take packets in.
    Napi,
    /// Background processes and what they start.
    Nice,
    Settings,
    Queue,
    /// What arrives takes a detour.
    Downlink,
    /// What is sent does.
    Uplink,
    Sockets,
}

impl JournalFile {
    pub const ALL: [Self; 9] = [
        Self::Realtime,
        Self::Chains,
        Self::Napi,
        Self::Nice,
        Self::Settings,
        Self::Queue,
        Self::Downlink,
        Self::Uplink,
        Self::Sockets,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Realtime => "realtime",
            Self::Chains => "chains",
            Self::Napi => "napi",
            Self::Nice => "nice",
            Self::Settings => "settings",
            Self::Queue => "queue",
            Self::Downlink => "downlink",
            Self::Uplink => "uplink",
            Self::Sockets => "sockets",
        }
    }

    /// What it names are threads, which do not end with a network namespace.
    pub fn is_machines(self) -> bool {
        matches!(self, Self::Realtime | Self::Chains | Self::Napi | Self::Nice)
    }
}

/// A journal, by what its lines are.
#[derive(Clone, Copy)]
pub struct UndoHandler {
    pub file: JournalFile,
    pub restore: UndoFn,
}

impl UndoHandler {
    pub const fn of<E: Entry>(file: JournalFile) -> Self {
        Self {
            file,
            restore: JournalContents::restore::<E>,
        }
    }
}
