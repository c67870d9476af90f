// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the turmoil is made of: how long, and what may happen in it.

/// Random operations on giveway and its link while hostile traffic is sent.
pub struct Turmoil {
    pub seconds: f64,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Operation {
    /// Somebody else's qdisc at the root.
    QdiscReplaced,
    QdiscDeleted,
    /// Ours, put there once more by somebody else: two instances for a moment.
    QdiscTwice,
    /// Ours below `mq`, an instance for each queue of the device.
    UnderMq,
    /// Ours where it refuses to be: on another device.
    OnAnotherDevice,
    LinkFlapped,
    MtuChanged,
    OffloadsChanged,
    DeviceRecreated,
    /// The network namespace deleted, with or without a living daemon.
    NamespaceRecreated,
    Reverted,
    /// The daemon ended and started with another configuration.
    Reconfigured,
    DaemonKilled,
    /// And its guardian.
    BothKilled,
    BackgroundFlow,
    /// The senders stop, and what was counted is compared.
    Quiet,
}

impl Operation {
    /// Those more often that are cheap, or happen to nothing but the queue.
    pub const WEIGHTS: [(Operation, u64); 16] = [
        (Operation::QdiscReplaced, 2),
        (Operation::QdiscDeleted, 2),
        (Operation::QdiscTwice, 6),
        (Operation::UnderMq, 4),
        (Operation::OnAnotherDevice, 4),
        (Operation::LinkFlapped, 8),
        (Operation::MtuChanged, 8),
        (Operation::OffloadsChanged, 6),
        (Operation::DeviceRecreated, 3),
        (Operation::NamespaceRecreated, 2),
        (Operation::Reverted, 1),
        (Operation::Reconfigured, 2),
        (Operation::DaemonKilled, 2),
        (Operation::BothKilled, 2),
        (Operation::BackgroundFlow, 6),
        (Operation::Quiet, 4),
    ];

    pub fn name(self) -> &'static str {
        match self {
            Operation::QdiscReplaced => "qdisc_replaced",
            Operation::QdiscDeleted => "qdisc_deleted",
            Operation::QdiscTwice => "qdisc_twice",
            Operation::UnderMq => "under_mq",
            Operation::OnAnotherDevice => "on_another_device",
            Operation::LinkFlapped => "link_flapped",
            Operation::MtuChanged => "mtu_changed",
            Operation::OffloadsChanged => "offloads_changed",
            Operation::DeviceRecreated => "device_recreated",
            Operation::NamespaceRecreated => "namespace_recreated",
            Operation::Reverted => "reverted",
            Operation::Reconfigured => "reconfigured",
            Operation::DaemonKilled => "daemon_killed",
            Operation::BothKilled => "both_killed",
            Operation::BackgroundFlow => "background_flow",
            Operation::Quiet => "quiet",
        }
    }
}
