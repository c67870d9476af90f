// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway priority`: asks the daemon to add or remove a rule, or lists the rules and the processes that they match.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use giveway_engine::config::{Conditions, PrioritySection, SchedPolicyName};
use giveway_engine::priority::{MatchedStatus, PriorityStatus};

use crate::commands::args::{ASKS, Json, REMOVES, after, duration, policies};
use crate::commands::print_output;
use crate::control::{PriorityChange, Request, client};
use crate::place::Place;
use crate::say::note;

#[derive(Subcommand)]
pub enum PriorityCommand {
    /// Add a rule, also for processes that run already
    ///
    /// It holds until the daemon ends; [[priority]] in the configuration keeps it.
    #[command(after_help = after(
        ASKS,
        &[
            "sudo giveway priority add --exe /usr/bin/controller --priority 20",
            "giveway priority add --exe /usr/bin/controller --user robot --priority 5 --cpus 2",
            "sudo giveway priority add --exe /usr/bin/camera --policy deadline --runtime 2ms --period 10ms",
        ],
    ))]
    Add(Box<PriorityRuleArgs>),
    /// Remove a rule: its processes lose the priority
    #[command(after_help = after(REMOVES, &["sudo giveway priority remove /usr/bin/controller"]))]
    Remove {
        /// As `list` shows it
        name: String,
        #[command(flatten)]
        output: Json,
    },
    /// Show the rules and the processes that have real-time priority
    #[command(after_help = after(ASKS, &["giveway priority list", "giveway priority list --json"]))]
    List(Json),
}

#[derive(Args)]
pub struct PriorityRuleArgs {
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
    /// For the deadline policy: so much CPU time (2ms) ...
    #[arg(long, value_name = "TIME", value_parser = duration("us", LEAST..=MOST))]
    pub runtime: Option<Duration>,
    /// ... within so long of each period's start; without it the period
    #[arg(long, value_name = "TIME", value_parser = duration("us", LEAST..=MOST))]
    pub deadline: Option<Duration>,
    /// The deadline policy's period
    #[arg(long, value_name = "TIME", value_parser = duration("us", LEAST..=MOST))]
    pub period: Option<Duration>,
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
    #[command(flatten)]
    pub output: Json,
}

const LEAST: Duration = Duration::from_micros(1);
/// The kernel's own bounds are narrower; the daemon knows them.
const MOST: Duration = Duration::from_secs(60);

pub fn run(command: &PriorityCommand) -> Result<()> {
    let place = Place::here()?;
    match command {
        PriorityCommand::Add(args) => {
            let rule = Box::new(PrioritySection::from(&**args));
            let exe = rule.conditions.exe.clone();
            let added: PriorityChange = client::ask(&place, Request::PriorityAdd { rule })?.first()?;
            print_output(args.output.json, &added, || {
                format!(
                    "rule `{}` added until the daemon ends; `giveway priority list` shows it\n",
                    added.name
                )
            })?;
            if let Some(exe) = exe.filter(|exe| !Path::new(exe).exists()) {
                note(format_args!("{exe} does not exist yet; the rule applies once it does"));
            }
            Ok(())
        }
        PriorityCommand::Remove { name, output } => {
            let request = Request::PriorityRemove { name: name.clone() };
            let removed: PriorityChange = client::ask(&place, request)?.first()?;
            print_output(output.json, &removed, || {
                format!("rule `{}` removed, its priorities revoked\n", removed.name)
            })
        }
        PriorityCommand::List(output) => {
            let view: PriorityStatus = client::ask(&place, Request::PriorityList)?.first()?;
            print_output(output.json, &view, || render(&view))
        }
    }
}

impl From<&PriorityRuleArgs> for PrioritySection {
    fn from(args: &PriorityRuleArgs) -> Self {
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
            runtime_us: args.runtime.map(us),
            deadline_us: args.deadline.map(us),
            period_us: args.period.map(us),
            cpus: args.cpus.clone(),
            budget_percent: args.budget_percent.unwrap_or(default.budget_percent),
            max_tasks: args.max_tasks.unwrap_or(default.max_tasks),
        }
    }
}

fn us(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
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
        text += "no rules; `giveway priority add --exe PATH` adds one, [[priority]] in the configuration makes \
                 it permanent\n";
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
