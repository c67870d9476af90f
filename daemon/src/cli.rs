// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user can type. Parsing only; each command is a module of its own.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Makes this endpoint give way on its own: to what its user does now, and to its neighbours on the same
/// access point. Nothing to change on the router or the far end.
#[derive(Parser)]
#[command(name = "giveway", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the daemon for this network namespace, in the foreground
    Run(RunArgs),
    /// Show what is in force: policy, senders, sockets, neighbours
    Status(Json),
    /// Show what was changed on a process, a socket or the queue, by which rule, on what evidence, and when
    Why(WhyArgs),
    /// Show what this kernel allows, and what is therefore off
    Doctor(Json),
    /// Write the kernel monitor's log to a file until interrupted
    Record(RecordArgs),
    /// Draw cwnd, cap, RTT and rate over time from a record
    Plot(PlotArgs),
    /// Name flows that are background: lower than best effort, for as long as the daemon runs
    #[command(subcommand)]
    Lbe(LbeCommand),
    /// Make a key for a group of devices
    #[command(subcommand)]
    Key(KeyCommand),
    /// Undo everything that giveway has changed in this network namespace, now
    Revert(RevertArgs),
    /// Print the configuration file with every key, its documentation and default
    Config,
    /// Wait for the daemon's end and undo what it left behind (started by `run` itself)
    #[command(hide = true)]
    Guardian,
}

#[derive(Args)]
pub struct RunArgs {
    /// The configuration (see `giveway config`); without one, the defaults
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The interface whose access point is shared; the default route's if absent
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
    /// Decide and explain, but change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Args)]
pub struct Json {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct WhyArgs {
    /// A process id, a socket cookie, an address and port as `status` prints them, or `queue`; everything if absent
    #[arg(value_name = "PID|FLOW")]
    pub subject: Option<String>,
    #[command(flatten)]
    pub output: Json,
}

#[derive(Args)]
pub struct RecordArgs {
    /// Where to write; `-` is standard output
    pub file: PathBuf,
}

#[derive(Args)]
pub struct PlotArgs {
    /// A file that `giveway record` wrote, here or on another machine
    pub file: PathBuf,
    /// The SVG to write
    #[arg(short, long, value_name = "SVG")]
    pub output: PathBuf,
}

#[derive(Subcommand)]
pub enum LbeCommand {
    /// Packets to this address and port are background from now on
    Add(LbeFlow),
    /// They are no longer
    Remove(LbeFlow),
    /// Show which are
    List(Json),
}

#[derive(Args)]
pub struct LbeFlow {
    /// Of the remote end
    pub address: IpAddr,
    /// Of the remote end
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Any if absent
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub local_port: Option<u16>,
}

#[derive(Subcommand)]
pub enum KeyCommand {
    /// Make a new key; an existing file keeps its newest key as the second one, for the change
    New {
        #[arg(default_value = "/etc/giveway/group.key")]
        file: PathBuf,
    },
}

#[derive(Args)]
pub struct RevertArgs {
    /// Only say what would be undone
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: Json,
}
