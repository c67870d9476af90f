// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line. Each command is a module of its own, which has its arguments; here are their names, what `--help` says
//! first, their exit codes and examples.

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::commands::args::{ASKS, Json, REMOVES, after};
use crate::commands::by_hand::{ClassCommand, LimitCommand};
use crate::commands::completions::CompletionsArgs;
use crate::commands::config::ConfigCommand;
use crate::commands::doctor::DoctorArgs;
use crate::commands::exec::ExecArgs;
use crate::commands::focus::FocusCommand;
use crate::commands::jitter::args::{JitterArgs, LoadArgs};
use crate::commands::key::KeyCommand;
use crate::commands::link::LinkCommand;
use crate::commands::pause::PauseArgs;
use crate::commands::plot::PlotArgs;
use crate::commands::priority::PriorityCommand;
use crate::commands::record::RecordArgs;
use crate::commands::revert::RevertArgs;
use crate::commands::top::TopArgs;
use crate::commands::trial::args::TryArgs;
use crate::commands::web::WebArgs;
use crate::commands::why::WhyArgs;
use crate::run::RunArgs;

const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("GIVEWAY_COMMIT"),
    "\nfeatures (BPF objects): ",
    env!("GIVEWAY_OBJECTS")
);

/// Makes a Linux endpoint give way on its own
///
/// It yields to what its user does now, and to other devices on the same access point. Nothing is changed on the router or
/// the remote host.
#[derive(Parser)]
#[command(name = "giveway", version, long_version = LONG_VERSION, max_term_width = 100)]
#[command(after_help = after(
    "0 done; 1 failed, nothing found or nothing to remove; 2 usage or configuration",
    &["sudo giveway run", "giveway exec --class background -- rsync -a photos/ nas:photos/", "giveway status"],
))]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the daemon for this network namespace, in the foreground
    ///
    /// Its log goes to standard error. GIVEWAY_LOG is the log's filter (error, warn, info, debug, or as
    /// `giveway::run=debug`), and wins over -v and -q.
    #[command(after_help = after(
        "0 ended by a signal or `giveway revert`; 1 failed; 2 usage or configuration",
        &["sudo giveway run", "sudo giveway run --interface wlan0 --dry-run -v"],
    ))]
    Run(RunArgs),
    /// Run a command as traffic of a class, with a rate limit or priority
    ///
    /// As far as the configuration lets users choose. The command keeps the process: its exit code, signals, files and
    /// terminal are its own.
    #[command(after_help = after(
        "those of the command; 125 giveway failed (--require); 126 the command cannot be run; 127 there is no such command; \
         2 usage",
        &[
            "giveway exec --class background -- rsync -a photos/ nas:photos/",
            "giveway exec --up 2.5mbit --down 20mbit -- apt-get update",
            "giveway exec --priority 10 --require -- ./controller",
        ],
    ))]
    Exec(ExecArgs),
    /// Show caps, queues, rules, sockets with their classes, and peers
    ///
    /// In the list of sockets `>` marks senders, and `!` a conflict: a setting that another tool has set or the kernel has
    /// refused, which giveway does not override. `UP/DOWN` is the payload acknowledged and received in the last second, Mbit/s.
    #[command(after_help = after(ASKS, &["giveway status", "giveway status --json"]))]
    Status(Json),
    /// Watch the status live: sockets, processes, queue, peers, priorities
    ///
    /// `h` shows the keys. Nothing is changed, and the daemon is asked once a second at most. Colours are left out where
    /// NO_COLOR is set.
    #[command(after_help = after(ASKS, &["giveway top", "giveway top --once --filter rsync"]))]
    Top(TopArgs),
    /// Show what was changed, by which rule, for what reason, and when
    ///
    /// On a process, a thread, a socket or a link.
    #[command(after_help = after(
        "0 done; 1 failed, or nothing is known of the subject; 2 usage",
        &["giveway why", "giveway why rsync", "giveway why 192.0.2.7:873 --json"],
    ))]
    Why(WhyArgs),
    /// Serve the status as a page on the loopback, and /metrics
    ///
    /// /metrics is for Prometheus.
    #[command(after_help = after(
        "0 ended by a signal; 1 failed; 2 usage",
        &["giveway web", "sudo giveway web --allow prometheus"],
    ))]
    Web(WebArgs),
    /// Show what this kernel allows, and what delays wake-ups here
    ///
    /// What is missing, and what is off without it; and which settings of this machine make tasks wait.
    #[command(after_help = after(
        "0 done; 1 failed, or giveway cannot run on this kernel; 2 usage",
        &["giveway doctor", "sudo giveway doctor --measure"],
    ))]
    Doctor(DoctorArgs),
    /// Write what the daemon measures and does to a file, until Ctrl-C
    #[command(after_help = after(ASKS, &["giveway record log.jsonl", "giveway record - > log.jsonl"]))]
    Record(RecordArgs),
    /// Draw cwnd, cap, RTT and rate over time from a record
    #[command(after_help = after("0 done; 1 failed; 2 usage", &["giveway plot log.jsonl -o log.svg"]))]
    Plot(PlotArgs),
    /// Measure how late this machine wakes up, and why
    ///
    /// Threads wake up periodically, beside loads of your choice. Needs no daemon.
    #[command(after_help = after(
        "0 done; 1 failed; 2 usage",
        &[
            "sudo giveway jitter --duration 10s",
            "sudo giveway jitter --period 1ms --policy fifo --priority 49 --load cpu,net",
        ],
    ))]
    Jitter(JitterArgs),
    /// Put one load on this machine until standard input ends (started by `jitter` itself)
    #[command(hide = true)]
    JitterLoad(LoadArgs),
    /// Measure what giveway changes on this link: an A/B test
    ///
    /// Intervals with giveway and without it, in random order. What is measured is this machine's own traffic, or with
    /// --peer transfers to and from another machine that fill the link, and what others wait for meanwhile. Without giveway
    /// means that the daemon is paused for that interval; it is active again as soon as this command ends, in whatever way.
    #[command(after_help = after(
        "0 done; 1 failed; 2 usage, or not root",
        &[
            "giveway try --serve 192.0.2.7:7000",
            "sudo giveway try --peer 192.0.2.7:7000 --background",
            "sudo giveway try --interval 20s --max-time 1h",
        ],
    ))]
    Try(TryArgs),
    /// Set the class of a process, unit, cgroup or flow that runs already
    ///
    /// Active within a second, for connections that are open as for new ones, before all rules. Users set it for their own,
    /// as far as [classes] lets them choose. It is kept when giveway is restarted, not when the machine is, and ends with its
    /// target.
    #[command(subcommand)]
    #[command(after_help = after(
        REMOVES,
        &["giveway class set steam.scope bulk", "giveway class set 4711 background", "giveway class list"],
    ))]
    Class(ClassCommand),
    /// Limit the rate of a process, unit, cgroup or flow that runs already
    ///
    /// Everything in the target shares the limit. Active within a second, for connections that are open as for new ones. A
    /// user's limit is for that user's own, and lifts neither a rule's nor root's. It is kept when giveway is restarted, not
    /// when the machine is, and ends with its target.
    #[command(subcommand)]
    #[command(after_help = after(
        REMOVES,
        &["giveway limit set 4711 --up 2.5mbit", "giveway limit clear 4711", "giveway limit list"],
    ))]
    Limit(LimitCommand),
    /// Say what you use now: bulk traffic of the rest yields to it
    ///
    /// Your bulk traffic outside of that cgroup counts as background meanwhile; everybody's, if root says so.
    #[command(subcommand)]
    #[command(after_help = after(
        REMOVES,
        &["giveway focus set teleop.service", "giveway focus set teleop.service --for 1h", "giveway focus clear"],
    ))]
    Focus(FocusCommand),
    /// Give real-time priority to processes, also to future ones
    ///
    /// By rules that last until the daemon ends; [[priority]] in the configuration keeps them.
    #[command(subcommand)]
    #[command(after_help = after(
        REMOVES,
        &[
            "sudo giveway priority add --exe /usr/bin/controller --priority 20",
            "sudo giveway priority remove /usr/bin/controller",
            "giveway priority list",
        ],
    ))]
    Priority(PriorityCommand),
    /// Show the managed links, and set their rates while giveway runs
    ///
    /// What is set is kept when giveway is restarted, not when the machine is, and counts in place of the configuration's.
    #[command(subcommand)]
    #[command(after_help = after(
        REMOVES,
        &["giveway link show", "sudo giveway link set wwan0 --up 8mbit --down 40mbit", "sudo giveway link clear wwan0"],
    ))]
    Link(LinkCommand),
    /// Undo every change until `giveway resume`, or for a while
    ///
    /// The daemon goes on watching. A restart of it ends the pause.
    #[command(after_help = after(ASKS, &["sudo giveway pause", "sudo giveway pause --for 1h"]))]
    Pause(PauseArgs),
    /// End a pause: everything is active again
    #[command(after_help = after(
        "0 giveway is not paused (any more); 1 failed; 2 usage",
        &["sudo giveway resume"],
    ))]
    Resume(Json),
    /// Read the rules for classes again
    #[command(after_help = after("0 done; 1 failed, or a rule is wrong; 2 usage", &["sudo giveway reload"]))]
    Reload(Json),
    /// Undo every change in this network namespace and end the daemon
    ///
    /// Also what a daemon left behind that was killed.
    #[command(after_help = after(
        "0 nothing of giveway's is left; 1 something could not be undone; 2 usage",
        &["sudo giveway revert", "sudo giveway revert --dry-run"],
    ))]
    Revert(RevertArgs),
    /// Show the configuration that the daemon uses, or check files
    #[command(subcommand)]
    #[command(after_help = after(
        "0 done; 1 failed; 2 usage, or a file is wrong",
        &["giveway config show", "giveway config default", "giveway config check /etc/giveway/giveway.toml"],
    ))]
    Config(ConfigCommand),
    /// Make a key for a group of devices
    #[command(subcommand)]
    #[command(after_help = after("0 done; 1 failed; 2 usage", &["sudo giveway key new"]))]
    Key(KeyCommand),
    /// Print completions for a shell
    #[command(after_help = after("0 done; 1 failed; 2 usage", &["giveway completions bash"]))]
    Completions(CompletionsArgs),
    /// Wait for the daemon's end and undo what it left behind (started by `run` itself)
    #[command(hide = true)]
    Watchdog,
    /// Look up executables that rules name (started by `run` itself)
    #[command(hide = true)]
    LookUp,
}

/// The command line without the commands that users are not to see, for completions and pages.
pub fn shown() -> clap::Command {
    let command = Cli::command();
    let kept = command.get_subcommands().filter(|command| !command.is_hide_set());
    let shown = clap::Command::new("giveway")
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments().cloned())
        .subcommands(kept.cloned())
        .max_term_width(100);
    let about = command.get_about().cloned().unwrap_or_default();
    let long = command.get_long_about().cloned().unwrap_or_default();
    let after = command.get_after_help().cloned().unwrap_or_default();
    shown.about(about).long_about(long).after_help(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each visible command with its full name.
    fn walk(command: &clap::Command, name: &str, each: &mut dyn FnMut(&str, &clap::Command)) {
        each(name, command);
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            walk(sub, &format!("{name} {}", sub.get_name()), each);
        }
    }

    #[test]
    fn each_command_has_a_short_first_line_its_exit_codes_and_one_to_three_examples_that_are_valid() {
        walk(&shown(), "giveway", &mut |name, command| {
            let about = command
                .get_about()
                .unwrap_or_else(|| panic!("{name} has no text"))
                .to_string();
            assert!(about.len() <= 72 && !about.contains('\n'), "{name}: {about}");
            let after = command
                .get_after_help()
                .unwrap_or_else(|| panic!("{name} has no exit codes"));
            let after = after.to_string();
            assert!(after.contains("Exit codes: "), "{name}: {after}");
            let examples: Vec<&str> = after.lines().filter_map(|line| line.strip_prefix("  ")).collect();
            assert!((1..=3).contains(&examples.len()), "{name}: {after}");
            for example in examples {
                let words = example.split(" > ").next().unwrap_or_default();
                let words = words.trim_start_matches("sudo ").split_whitespace();
                if let Err(error) = Cli::try_parse_from(words) {
                    panic!("{name}: `{example}`: {error}");
                }
                assert!(example.contains(name), "{name}: `{example}`");
            }
        });
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
