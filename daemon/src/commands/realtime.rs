// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway realtime`: asks the daemon to add or remove a rule, or lists the rules and the processes that they match.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};
use giveway_engine::config::{Conditions, PrioritySection, SchedPolicyName};
use giveway_engine::priority::{MatchedStatus, PriorityStatus};

use crate::commands::args::{Json, policies};
use crate::commands::{print, print_json};
use crate::control::{LaunchTerms, Request, client};
use crate::place::Place;
use crate::say::{note, print_line};

#[derive(Subcommand)]
pub enum RealtimeCommand {
    /// Give it to processes of this kind, also to those that run already, until the daemon ends
    Add(RealtimeRuleArgs),
    /// Remove a rule: its processes lose the priority
    Remove {
        /// As `list` shows it
        name: String,
    },
    /// Show the rules and the processes that have it
    List(Json),
}

#[derive(Args)]
pub struct RealtimeRuleArgs {
    /// The executable; root's, unless --user is given
    #[arg(long, value_name = "PATH", required_unless_present = "user")]
    pub exe: Option<PathBuf>,
    /// A pattern (* and ?) for the arguments with blanks between them
    #[arg(long, value_name = "PATTERN")]
    pub cmdline: Option<String>,
    /// Only processes of this user
    #[arg(long)]
    pub user: Option<String>,
    /// A pattern for the systemd unit
    #[arg(long, value_name = "PATTERN")]
    pub unit: Option<String>,
    /// A pattern for the cgroup's path
    #[arg(long, value_name = "PATTERN")]
    pub cgroup: Option<String>,
    #[arg(long, value_parser = policies(&["fifo", "rr", "deadline"]), default_value = "fifo")]
    pub policy: SchedPolicyName,
    /// For fifo and rr (1 to 48)
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=48))]
    pub priority: u32,
    /// For the deadline policy: so much CPU time ...
    #[arg(long, value_name = "US")]
    pub runtime_us: Option<u32>,
    /// ... within so long of each period's start; without it the period
    #[arg(long, value_name = "US")]
    pub deadline_us: Option<u32>,
    /// The deadline policy's period
    #[arg(long, value_name = "US")]
    pub period_us: Option<u32>,
    /// Only on these CPUs, e.g. 0,2
    #[arg(long, value_delimiter = ',')]
    pub cpus: Vec<u32>,
    /// Of one CPU, for all processes of this rule together
    #[arg(long)]
    pub budget_percent: Option<u32>,
    /// Threads that have it at once
    #[arg(long)]
    pub max_tasks: Option<u32>,
    /// What `remove` and `why` call it; the executable's path if absent
    #[arg(long)]
    pub name: Option<String>,
}

pub fn run(command: &RealtimeCommand) -> Result<()> {
    let place = Place::here()?;
    match command {
        RealtimeCommand::Add(args) => {
            let rule = Box::new(PrioritySection::from(args));
            let exe = rule.conditions.exe.clone();
            let _: Option<LaunchTerms> = client::ask(&place, Request::RealtimeAdd { rule })?.first()?;
            print("the rule holds until the daemon ends; `giveway priority list` shows it\n")?;
            if let Some(exe) = exe.filter(|exe| !Path::new(exe).exists()) {
                note(format_args!("there is no {exe} now; the rule waits for it"));
            }
        }
        RealtimeCommand::Remove { name } => {
            let request = Request::RealtimeRemove { name: name.clone() };
            let _: Option<LaunchTerms> = client::ask(&place, request)?.first()?;
            print_line(format_args!(
                "rule `{name}` is removed, and the priorities that it gave are revoked"
            ))?;
        }
        RealtimeCommand::List(output) => {
            let view: PriorityStatus = client::ask(&place, Request::RealtimeList)?.first()?;
            if output.json {
                print_json(&view)?;
            } else {
                print(&render(&view))?;
            }
        }
    }
    Ok(())
}

impl From<&RealtimeRuleArgs> for PrioritySection {
    fn from(args: &RealtimeRuleArgs) -> Self {
        let default = Self::default();
        let absolute = |exe: &std::path::PathBuf| std::path::absolute(exe).unwrap_or_else(|_| exe.clone());
        Self {
            name: args.name.clone(),
            conditions: Conditions {
                exe: args.exe.as_ref().map(|exe| absolute(exe).display().to_string()),
                cmdline: args.cmdline.clone(),
                user: args.user.clone(),
                unit: args.unit.clone(),
                cgroup: args.cgroup.clone(),
                ..Conditions::default()
            },
            policy: args.policy,
            priority: args.priority,
            runtime_us: args.runtime_us,
            deadline_us: args.deadline_us,
            period_us: args.period_us,
            cpus: args.cpus.clone(),
            budget_percent: args.budget_percent.unwrap_or(default.budget_percent),
            max_tasks: args.max_tasks.unwrap_or(default.max_tasks),
        }
    }
}

fn render(view: &PriorityStatus) -> String {
    let mut text = String::new();
    for rule in &view.rules {
        let by = rule
            .added_by
            .map_or("configuration".to_owned(), |uid| format!("uid {uid}"));
        text += &format!("{}  (by {by})\n", rule.name);
        text += &format!("   {}\n", rule.matches);
        text += &format!(
            "   {}, {}% of a CPU, {} tasks at most\n",
            rule.schedule, rule.budget_percent, rule.max_tasks
        );
    }
    if view.rules.is_empty() {
        text += "no rules; `giveway realtime add --exe PATH` makes one, [[priority]] in the configuration keeps it\n";
    }
    if !view.processes.is_empty() {
        text += "\n       PID TASKS   CPU%  PROCESS               NOW\n";
    }
    view.processes.iter().for_each(|held| text += &held_line(held));
    view.warnings
        .iter()
        .for_each(|line| text += &format!("\nlost: {line}\n"));
    text
}

fn held_line(held: &MatchedStatus) -> String {
    let name = held.exe.rsplit('/').next().unwrap_or_default();
    let now = if held.granted {
        held.schedule.as_str()
    } else {
        "no real-time priority: see `giveway why`"
    };
    format!(
        "{:>10} {:>5} {:>6.1}  {name:<20.20}  {now}\n",
        held.pid, held.tasks, held.cpu_percent
    )
}
