// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commands that a user can type. Each is a module of its own, which has its arguments.

use clap::{Parser, Subcommand};

use crate::commands::active::ActiveArgs;
use crate::commands::args::Json;
use crate::commands::by_hand::{ClassCommand, LimitCommand};
use crate::commands::config::ConfigArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::exec::ExecArgs;
use crate::commands::jitter::args::{JitterArgs, LoadArgs};
use crate::commands::link::LinkCommand;
use crate::commands::pause::PauseArgs;
use crate::commands::peer::PeerArgs;
use crate::commands::plot::PlotArgs;
use crate::commands::realtime::RealtimeCommand;
use crate::commands::record::RecordArgs;
use crate::commands::revert::RevertArgs;
use crate::commands::top::TopArgs;
use crate::commands::trial::args::TryArgs;
use crate::commands::web::WebArgs;
use crate::commands::why::WhyArgs;
use crate::key::KeyCommand;
use crate::run::RunArgs;

const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("GIVEWAY_COMMIT"),
    "\nfeatures (BPF objects): ",
    env!("GIVEWAY_OBJECTS")
);

/// Makes this endpoint give way on its own: to what its user does now, and to its peers on the same
/// access point. Nothing to change on the router or the remote host.
#[derive(Parser)]
#[command(name = "giveway", version, long_version = LONG_VERSION, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the daemon for this network namespace, in the foreground
    Run(RunArgs),
    /// Show what is active: caps, queue, priorities, rules, sockets with their classes, peers
    ///
    /// In the list of sockets `>` is before those that send, and `!` before those of which giveway leaves a setting alone
    /// because another tool has set it or the kernel refused it. `UP/DOWN` is the payload, Mbit/s, that was acknowledged and that
    /// arrived in the last second.
    Status(Json),
    /// Watch what is active, live: sockets and processes with class, cwnd, cap, RTT and rate; the queue, peers, real time
    ///
    /// `h` shows the keys. Nothing is changed, and the daemon is asked once a second at most. Colours are left out where
    /// NO_COLOR is set.
    Top(TopArgs),
    /// Show what was changed on a process, a thread, a socket or the queue, by which rule, on what evidence, and when
    Why(WhyArgs),
    /// Serve one page on the loopback that shows what is active, live, and /metrics for Prometheus
    Web(WebArgs),
    /// Show what this kernel allows, what is therefore off, and what keeps this machine from answering in time
    Doctor(DoctorArgs),
    /// Write the kernel monitor's log to a file until interrupted
    Record(RecordArgs),
    /// Show what giveway changes on this link: intervals with it and without it, in random order
    ///
    /// What is measured is this machine's own traffic, or with --peer transfers to and from another machine that fill the
    /// link, and what others wait for meanwhile. Without giveway means that the daemon revokes all that it has changed,
    /// for that interval; it is active again as soon as this command ends, in whatever way.
    Try(TryArgs),
    /// Be the remote host of `giveway try` on another machine, until interrupted; whoever reaches its address may fill this link
    Peer(PeerArgs),
    /// Measure how late this machine wakes up, and name what made the worst wake-ups late
    Jitter(JitterArgs),
    /// Put one load on this machine until standard input ends (started by `jitter` itself)
    #[command(hide = true)]
    JitterLoad(LoadArgs),
    /// Draw cwnd, cap, RTT and rate over time from a record
    Plot(PlotArgs),
    /// Set the class of what runs already: a process with all that it starts, a systemd unit, a cgroup, or a flow
    ///
    /// Active within a second, for connections that are open as for new ones, before all rules. Users set it for their own,
    /// as far as [classes] lets them choose. It is kept when giveway is restarted, not when the machine is, and ends with its
    /// target.
    #[command(subcommand)]
    Class(ClassCommand),
    /// Limit the rate of what runs already: a process with all that it starts, a systemd unit, a cgroup, or a flow
    ///
    /// All that one limit is for shares it. Active within a second, for connections that are open as for new ones. A
    /// user's limit is for that user's own, and lifts neither a rule's nor root's. It is kept when giveway is restarted, not
    /// when the machine is, and ends with its target.
    #[command(subcommand)]
    Limit(LimitCommand),
    /// Show the managed links, and set their rates while giveway runs
    ///
    /// What is set is kept when giveway is restarted, not when the machine is, and counts in place of the configuration's.
    #[command(subcommand)]
    Link(LinkCommand),
    /// Take everything back that giveway has changed, until `giveway resume` or for a while
    ///
    /// The daemon goes on watching. A restart of it ends the pause.
    Pause(PauseArgs),
    /// End a pause: everything is active again
    Resume,
    /// Run a command as traffic of a class, with real-time priority, or both, as far as the configuration lets you
    Exec(ExecArgs),
    /// Say what you are doing now, by its cgroup: your bulk elsewhere counts as background meanwhile (everybody's, if root
    /// says so). Without arguments show what is active, and by whose word
    Active(ActiveArgs),
    /// Name processes that get real-time priority as soon as they are started
    #[command(subcommand)]
    Realtime(RealtimeCommand),
    /// Make a key for a group of devices
    #[command(subcommand)]
    Key(KeyCommand),
    /// Undo everything that giveway has changed in this network namespace, now, and end the daemon
    Revert(RevertArgs),
    /// Read the rules for classes again
    Reload,
    /// Print the configuration file with every key, its documentation and default, or check files
    Config(ConfigArgs),
    /// Wait for the daemon's end and undo what it left behind (started by `run` itself)
    #[command(hide = true)]
    Watchdog,
    /// Look up executables that rules name (started by `run` itself)
    #[command(hide = true)]
    LookUp,
}
