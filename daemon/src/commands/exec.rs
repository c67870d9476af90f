// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway exec`: becomes another program, with what was asked for it. The command keeps the process, so its exit
//! code, signals, files and terminal are its own.
//!
//! Where giveway cannot give what was asked, the command runs without it, as with nice(1), and a line says so; with
//! `--require` it does not run. Exit codes of giveway's own are those of env(1): 125 it failed itself, 126 the command
//! cannot be run, 127 there is none.

use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt as _;

use anyhow::{Context as _, Result};
use clap::Args;
use giveway_engine::config::SchedPolicyName;
use giveway_engine::model::{Class, Rates};
use giveway_engine::rate::mbit;
use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::execvp;

use crate::commands::args::{RateArgs, classes, policies};
use crate::control::{ChoiceOutcome, LaunchTerms, Request, client};
use crate::exit::Code;
use crate::inherited::give_back;
use crate::place::Place;
use crate::say::note;

/// Between SIGXCPU, which a program may catch to mend its ways, and SIGKILL.
const GRACE_MS: u64 = 200;
/// About what is not enforced.
const MOST_LINES: usize = 4;

#[derive(Args)]
pub struct ExecArgs {
    /// As traffic of this class, with everything that it starts; users may choose what [classes] lets them
    #[arg(long, value_parser = classes())]
    pub class: Option<Class>,
    #[command(flatten)]
    pub rates: RateArgs,
    /// With this real-time priority (1 to 48)
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(u32).range(1..=48))]
    pub priority: Option<u32>,
    /// How equals take turns: `fifo` until they pause, `rr` by time slices
    #[arg(long, value_parser = policies(&["fifo", "rr"]), default_value = "fifo", requires = "priority")]
    pub policy: SchedPolicyName,
    /// Only on these CPUs, e.g. 0,2
    #[arg(long, value_delimiter = ',', requires = "priority")]
    pub cpus: Vec<u32>,
    /// Do not run the command without what was asked for it (exit code 125). Known at its start, and so refused, are: no
    /// daemon, a dry run, a pause, for `background` and `stream` a managed link without a queue of giveway's, for `--up` one
    /// with tc filters at its egress, for `--down` one with tc filters or an nftables chain at its ingress, and another interface with routes that is not
    /// managed. What comes to light later (a tunnel, another network namespace) `giveway status` and `giveway why` say
    #[arg(long)]
    pub require: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

pub fn run(args: &ExecArgs) -> Result<Infallible> {
    let rates = args.rates.rates();
    if args.class.is_some() || !rates.is_none() {
        let missing = match (args.class, rates.is_none()) {
            (Some(_), false) => "no class and no limit of its own",
            (Some(_), true) => "no class of its own",
            (None, _) => "no limit of its own",
        };
        let chosen = accept(args, missing, choose(args, rates))?;
        say_what_is_not_enforced(args, rates, chosen.as_ref());
    }
    if let Some(priority) = args.priority {
        accept(args, "no real-time priority", ask_for_real_time(args, priority))?;
    }
    if args.class.is_none() && rates.is_none() && args.priority.is_none() {
        note("none of --class, --down, --up, --rate-limit and --priority is given, so the command runs as it is");
    }
    become_the_command(args)
}

/// Goes on where `missing` is not required.
fn accept<T>(args: &ExecArgs, missing: &str, outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Err(error) if args.require => Err(error.context(Code(125)).context(format!("{missing}: command not run"))),
        Err(error) => {
            note(format_args!("{missing}: running the command without it: {error:#}"));
            Ok(None)
        }
        Ok(given) => Ok(Some(given)),
    }
}

fn choose(args: &ExecArgs, rates: Rates) -> Result<ChoiceOutcome> {
    let request = Request::Choose {
        class: args.class,
        upload_limit_mbit: rates.up.map(mbit),
        download_limit_mbit: rates.down.map(mbit),
        require: args.require,
    };
    let place = Place::here()?;
    client::patiently(|| client::ask(&place, request.clone())?.first())
}

/// As far as it is known before the command sends anything; `status` and `why` say what comes to light later.
fn say_what_is_not_enforced(args: &ExecArgs, rates: Rates, chosen: Option<&ChoiceOutcome>) {
    let Some(chosen) = chosen else { return };
    let holds = |rate: Option<u64>, links: &[String]| rate.is_none() || !links.is_empty();
    let holds = holds(rates.up, &chosen.limits_sent) && holds(rates.down, &chosen.limits_received);
    let what = match (args.class, holds) {
        (Some(_), false) => "class and limit are",
        (Some(_), true) => "the class is",
        (None, _) => "the limit is",
    };
    for reason in chosen.not_enforced.iter().take(MOST_LINES) {
        note(format_args!("warning: {what} not enforced everywhere: {reason}"));
    }
    let more = chosen.not_enforced.len().saturating_sub(MOST_LINES);
    if more > 0 {
        note(format_args!(
            "warning: and not on {more} more interfaces: `giveway status` lists the managed ones"
        ));
    }
    chosen
        .in_place
        .iter()
        .for_each(|reason| note(format_args!("warning: the limit is not enforced: {reason}")));
    if chosen.in_place.is_empty() {
        limit_lines(rates, chosen).iter().for_each(note);
    }
    if args.class == Some(Class::Bulk)
        && rates.is_none()
        && chosen.orders_sent.is_empty()
        && chosen.orders_received.is_empty()
    {
        note(
            "warning: class bulk has no effect here: no managed link has a giveway queue (set `rate_mbit`) \
             or shapes downloads (set `download_rate_mbit`; `giveway status` says why a configured one does \
             not)",
        );
    }
    let yields = matches!(args.class, Some(Class::Bulk | Class::Background)) && !chosen.orders_received.is_empty();
    match (yields, rates.down) {
        (true, None) => note(format_args!(
            "downloads of the command on {} yield to traffic of other classes",
            chosen.orders_received.join(", ")
        )),
        (true, Some(_)) => {
            note("downloads of the command are limited, but do not yield to other classes below the limit")
        }
        (false, _) => {}
    }
}

/// Where each limit holds.
fn limit_lines(rates: Rates, chosen: &ChoiceOutcome) -> Vec<String> {
    let line = |does: &str, direction: &str, rate: u64, by: &[String]| {
        let mbit = mbit(rate);
        let by = match (chosen.not_enforced.is_empty(), by.is_empty()) {
            (true, false) => String::new(),
            (false, false) => format!(" by {}", by.join(", ")),
            (_, true) => return format!("no link enforces the {direction} limit of {mbit} Mbit/s now"),
        };
        format!("the command {does} at most {mbit} Mbit/s ({direction}){by}")
    };
    let up = rates.up.map(|rate| line("sends", "upload", rate, &chosen.limits_sent));
    let down = rates
        .down
        .map(|rate| line("receives", "download", rate, &chosen.limits_received));
    up.into_iter().chain(down).collect()
}

fn ask_for_real_time(args: &ExecArgs, priority: u32) -> Result<()> {
    let request = Request::Launch {
        policy: args.policy,
        priority,
        cpus: args.cpus.clone(),
    };
    let place = Place::here()?;
    let granted: LaunchTerms = client::patiently(|| client::ask(&place, request.clone())?.first())?;
    let rttime_us = u64::from(granted.rttime_ms) * 1000;
    // Should the daemon and its watchdog die, a thread that never pauses must still come to an end.
    setrlimit(Resource::RLIMIT_RTTIME, rttime_us, rttime_us + GRACE_MS * 1000)
        .context("granted, but its CPU time could not be limited (RLIMIT_RTTIME)")
}

fn become_the_command(args: &ExecArgs) -> Result<Infallible> {
    let words = args.command.iter().map(|word| CString::new(word.as_bytes()));
    let words: Vec<CString> = words
        .collect::<Result<_, _>>()
        .context(Code(125))
        .context("a NUL in the command")?;
    // The mask of modes, signals and closed descriptors are the command's as they were this process's.
    give_back();
    let Err(errno) = execvp(&words[0], &words);
    let code = if errno == Errno::ENOENT { 127 } else { 126 };
    let name = words[0].to_string_lossy().into_owned();
    Err(anyhow::Error::from(errno)
        .context(Code(code))
        .context(format!("cannot run `{name}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_said_of_the_links_that_enforce_it_where_others_do_not() {
        let line = |not_enforced: &[&str], enforced_by: &[&str]| {
            let [not_enforced, enforced_by] =
                [not_enforced, enforced_by].map(|names| names.iter().map(ToString::to_string).collect());
            let chosen = ChoiceOutcome {
                in_place: Vec::new(),
                not_enforced,
                limits_received: enforced_by,
                limits_sent: Vec::new(),
                orders_sent: Vec::new(),
                orders_received: Vec::new(),
            };
            let rates = Rates {
                up: None,
                down: Some(250_000),
            };
            limit_lines(rates, &chosen).remove(0)
        };
        assert_eq!(
            line(&["lan0 has no queue"], &["eth0", "wwan0"]),
            "the command receives at most 2 Mbit/s (download) by eth0, wwan0"
        );
        assert_eq!(line(&[], &["eth0"]), "the command receives at most 2 Mbit/s (download)");
        assert_eq!(
            line(&["a dry run changes nothing"], &[]),
            "no link enforces the download limit of 2 Mbit/s now"
        );
    }
}
