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
    /// Those more often after which the daemon need not be started again: its programs take seconds to load here.
    pub const WEIGHTS: [(Operation, usize); 16] = [
        (Operation::QdiscReplaced, 1),
        (Operation::QdiscDeleted, 1),
        (Operation::QdiscTwice, 6),
        (Operation::UnderMq, 2),
        (Operation::OnAnotherDevice, 4),
        (Operation::LinkFlapped, 6),
        (Operation::MtuChanged, 6),
        (Operation::OffloadsChanged, 4),
        (Operation::DeviceRecreated, 1),
        (Operation::NamespaceRecreated, 2),
        (Operation::Reverted, 1),
        (Operation::Reconfigured, 1),
        (Operation::DaemonKilled, 1),
        (Operation::BothKilled, 2),
        (Operation::BackgroundFlow, 4),
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
