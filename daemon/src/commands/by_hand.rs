// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway class` and `giveway limit`: set and show the class and the rate limit of what runs already. A process is named by
//! its number and its start, a cgroup by its id, so that the daemon has no path to look up and takes no other for it.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use giveway_engine::enforcement::by_hand::HandView;
use giveway_engine::model::{Class, ProcessId};
use giveway_engine::queue::BackgroundFlow;
use giveway_engine::rate;

use crate::commands::args::{ASKS, Json, REMOVES, RateArgs, after, classes};
use crate::commands::{counted, focus, print_json, print_output};
use crate::control::{ByHandNow, Request, SettingKind, TargetId, client};
use crate::kernel::process::thread_start;
use crate::place::Place;
use crate::say::{note, print_line};

/// About what is not enforced.
const MOST_LINES: usize = 4;

#[derive(Subcommand)]
pub enum ClassCommand {
    /// Set its class, from now on
    #[command(after_help = after(ASKS, &["giveway class set steam.scope bulk", "giveway class set 4711 background"]))]
    Set {
        #[command(flatten)]
        target: TargetArg,
        #[arg(value_parser = classes())]
        class: Class,
        #[command(flatten)]
        output: Json,
    },
    /// Clear it: rules and implicit classification decide again
    #[command(after_help = after(REMOVES, &["giveway class clear steam.scope"]))]
    Clear {
        #[command(flatten)]
        target: TargetArg,
        #[command(flatten)]
        output: Json,
    },
    /// Show what is set, and by whom
    #[command(after_help = after(ASKS, &["giveway class list"]))]
    List(Json),
}

#[derive(Subcommand)]
pub enum LimitCommand {
    /// Limit what everything in the target sends and receives together
    #[command(mut_group("RateArgs", |rates| rates.required(true)))]
    #[command(after_help = after(
        ASKS,
        &["giveway limit set 4711 --up 2.5mbit", "giveway limit set steam.scope --down 20mbit --up 800kbit"],
    ))]
    Set {
        #[command(flatten)]
        target: TargetArg,
        #[command(flatten)]
        rates: RateArgs,
        #[command(flatten)]
        output: Json,
    },
    /// Clear it: limits of rules and of `giveway exec` hold again
    #[command(after_help = after(REMOVES, &["giveway limit clear steam.scope"]))]
    Clear {
        #[command(flatten)]
        target: TargetArg,
        #[command(flatten)]
        output: Json,
    },
    /// Show each with who set it, and its rate in the last second
    #[command(after_help = after(ASKS, &["giveway limit list"]))]
    List(Json),
}

#[derive(Args)]
pub struct TargetArg {
    /// A process by its pid (with all that it starts and has started), a systemd unit (steam.scope), a cgroup
    /// (/user.slice/...), or a flow by its remote end and, where it matters, its local port (192.0.2.7:873,
    /// [2001:db8::7]:873:40000)
    pub target: String,
}

pub fn class(command: &ClassCommand) -> Result<()> {
    match command {
        ClassCommand::Set { target, class, output } => {
            let request = Request::Set {
                target: named(&target.target)?,
                class: Some(*class),
                upload_limit_mbit: None,
                download_limit_mbit: None,
            };
            change(request, output.json, &format!("{} from now on", class.name()))
        }
        ClassCommand::Clear { target, output } => {
            let (target, what) = (named(&target.target)?, SettingKind::Class);
            change(Request::Clear { target, what }, output.json, "no class is set")
        }
        ClassCommand::List(output) => list(output.json, SettingKind::Class),
    }
}

pub fn limit(command: &LimitCommand) -> Result<()> {
    match command {
        LimitCommand::Set { target, rates, output } => {
            let rates = rates.rates();
            let request = Request::Set {
                target: named(&target.target)?,
                class: None,
                upload_limit_mbit: rates.up.map(rate::mbit),
                download_limit_mbit: rates.down.map(rate::mbit),
            };
            let said = format!("limited to {} in total from now on", rates.shown());
            change(request, output.json, &said)
        }
        LimitCommand::Clear { target, output } => {
            let (target, what) = (named(&target.target)?, SettingKind::Limit);
            change(Request::Clear { target, what }, output.json, "no limit is set")
        }
        LimitCommand::List(output) => list(output.json, SettingKind::Limit),
    }
}

fn change(request: Request, json: bool, done: &str) -> Result<()> {
    let place = Place::here()?;
    let is_clear = matches!(request, Request::Clear { .. });
    let now: ByHandNow = client::patiently(|| client::ask(&place, request.clone())?.first())?;
    let target = now.target.as_deref().unwrap_or_default();
    if json {
        print_json(&now)?;
    }
    ensure!(!is_clear || now.changed, "{target}: nothing is set");
    if json {
        return Ok(());
    }
    match now.changed {
        true => print_line(format_args!("{target}: {done}"))?,
        false => print_line(format_args!("{target}: {done}; unchanged"))?,
    }
    if let Some(reason) = &now.comes_back {
        note(format_args!("warning: {reason}"));
    }
    for reason in now.not_enforced.iter().take(MOST_LINES) {
        note(format_args!("warning: not enforced everywhere: {reason}"));
    }
    let more = now.not_enforced.len().saturating_sub(MOST_LINES);
    if more > 0 {
        note(format_args!("warning: and {more} more; `giveway status` has all"));
    }
    Ok(())
}

fn list(json: bool, part: SettingKind) -> Result<()> {
    let mut now: ByHandNow = client::ask(&Place::here()?, Request::ByHand)?.first()?;
    now.by_hand.retain(|view| match part {
        SettingKind::Class => view.set.class.is_some(),
        SettingKind::Limit => view.set.limit.is_some(),
    });
    print_output(json, &now, || {
        if now.by_hand.is_empty() {
            let what = if part == SettingKind::Class { "class" } else { "limit" };
            return format!("no {what} is set; `giveway {what} set TARGET` sets one for a running target\n");
        }
        now.by_hand.iter().map(|view| line(view, part) + "\n").collect()
    })
}

fn line(view: &HandView, part: SettingKind) -> String {
    let what = match part {
        SettingKind::Class => class_shown(view),
        SettingKind::Limit => limit_shown(view),
    };
    format!("{}: {what}{}", view.set.target.shown(), lacks_shown(view))
}

fn class_shown(view: &HandView) -> String {
    let class = view.set.class.map_or("no class", |class| class.name());
    format!("{class} (by uid {}; {} now)", view.set.uid, counted(view.flows, "flow"))
}

fn limit_shown(view: &HandView) -> String {
    let part = |way: &str, most: Option<f64>, had: Option<f64>| {
        Some(format!(
            "at most {} Mbit/s {way}, {}",
            most?,
            had.map_or("not enforced on any link".to_owned(), |had| format!("{had:.2} now"))
        ))
    };
    let parts = [
        part("up", view.upload_limit_mbit, view.upload_mbit),
        part("down", view.download_limit_mbit, view.download_mbit),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let flows = counted(view.flows, "flow");
    format!("{} (by uid {}; {flows} now)", parts.join("; "), view.set.uid)
}

fn lacks_shown(view: &HandView) -> String {
    match view.not_enforced.is_empty() {
        true => String::new(),
        false => format!(
            "; not enforced for all: {}",
            Vec::from_iter(view.not_enforced.clone()).join("; ")
        ),
    }
}

/// What is set, in a few words, for `status`.
pub fn shown(view: &HandView) -> String {
    let class = view.set.class.map(|_| class_shown(view));
    let limit = view.set.limit.map(|_| limit_shown(view));
    let what: Vec<String> = class.into_iter().chain(limit).collect();
    format!("{}: {}{}", view.set.target.shown(), what.join("; "), lacks_shown(view))
}

fn named(target: &str) -> Result<TargetId> {
    if let Ok(pid) = target.parse::<u32>() {
        return process(pid).map(TargetId::Process);
    }
    if let Some(flow) = flow(target) {
        return Ok(TargetId::Flow(flow));
    }
    let id = focus::id_of(target);
    let id = id.map_err(|error| {
        anyhow!(
            "{error:#}. TARGET is a pid (`pidof NAME`), NAME.service, the path of a cgroup below its mount, or a flow as ADDRESS:PORT, of \
             IPv6 [ADDRESS]:PORT; `giveway link set` is for links, a rule with `user` for users"
        )
    })?;
    Ok(TargetId::Cgroup(id))
}

fn process(pid: u32) -> Result<ProcessId> {
    let start = thread_start(pid, pid).with_context(|| format!("cannot read process {pid}"))?;
    match start {
        Some(start_ns) => Ok(ProcessId { pid, start_ns }),
        None => bail!("there is no process {pid}"),
    }
}

/// ADDRESS:PORT or ADDRESS:PORT:LOCALPORT; of IPv6 the address in brackets.
fn flow(target: &str) -> Option<BackgroundFlow> {
    let of = |remote: SocketAddr, local_port| {
        (remote.port() > 0).then(|| BackgroundFlow {
            address: remote.ip(),
            port: remote.port(),
            local_port,
        })
    };
    if let Ok(remote) = target.parse() {
        return of(remote, None);
    }
    let (remote, local_port) = target.rsplit_once(':')?;
    let local_port = local_port.parse().ok().filter(|port| *port > 0)?;
    of(remote.parse().ok()?, Some(local_port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_named_by_its_remote_end_and_maybe_its_local_port() {
        let named = |text: &str| flow(text).map(|flow| (flow.address.to_string(), flow.port, flow.local_port));
        assert_eq!(named("192.0.2.7:873"), Some(("192.0.2.7".into(), 873, None)));
        assert_eq!(
            named("192.0.2.7:873:40000"),
            Some(("192.0.2.7".into(), 873, Some(40_000)))
        );
        assert_eq!(named("[2001:db8::7]:873"), Some(("2001:db8::7".into(), 873, None)));
        assert_eq!(named("[2001:db8::7]:873:4"), Some(("2001:db8::7".into(), 873, Some(4))));
        for none in [
            "192.0.2.7",
            "192.0.2.7:0",
            "192.0.2.7:873:0",
            "192.0.2.7:873:x",
            "a.service",
            "/a:1",
            "",
        ] {
            assert_eq!(named(none), None, "{none}");
        }
    }
}
