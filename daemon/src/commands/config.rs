// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway config`: shows what the running daemon uses, prints every key, or checks files without a daemon.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use giveway_engine::class::{Folders, Rules, Source};
use giveway_engine::config::{self, BackendName, Cap, CapPolicyName, Config, Located, Monitor, RateMbit};
use nix::net::if_::if_nametoindex;
use schemars::JsonSchema;
use serde::Serialize;

use super::args::{Json, after};
use super::{counted, print, print_output};
use crate::commands::args::ASKS;
use crate::control::{Request, client};
use crate::exit::Usage;
use crate::files::not_the_callers;
use crate::kernel::uid_of;
use crate::peers::open_to_users;
use crate::place::Place;
use crate::rules::{self, is_script, starts};
use crate::run::USUAL_CONFIGURATION;

mod machine;

use machine::{MachineCheck, no_unit};

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Show what the running daemon uses, with what was set of links since
    ///
    /// As TOML. Rules for classes are in their files; a key of a group is in its own, and is not shown.
    #[command(after_help = after(ASKS, &["giveway config show", "giveway config show --json"]))]
    Show(Json),
    /// Print every key with its documentation and default
    #[command(after_help = after("0 done; 1 failed; 2 usage", &["giveway config default > giveway.toml"]))]
    Default,
    /// Say what is wrong with files, and what does nothing here
    ///
    /// Each with its line, and what they come to on this machine: links, queues, limits, users, programs. Files in a folder
    /// rules.d have only rules. Nothing is changed, and a running giveway is not asked.
    #[command(after_help = after(
        "0 done; 1 failed, or with --strict this machine lacks something; 2 usage, or a file is wrong",
        &["giveway config check /etc/giveway/giveway.toml", "giveway config check --offline robot.toml"],
    ))]
    Check(CheckArgs),
}

#[derive(Args)]
pub struct CheckArgs {
    /// Warnings are errors: exit code 2 where a file is at fault, 1 where this machine lacks something
    #[arg(long)]
    pub strict: bool,
    /// Only the files: they are for another machine
    #[arg(long)]
    pub offline: bool,
    /// A configuration, or files of rules
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Json,
}

/// What a check has to say.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct CheckReport {
    /// Those without an error.
    files: Vec<CheckedFile>,
    errors: Vec<String>,
    /// None where a file is wrong, or with --offline.
    machine: Option<MachineCheck>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct CheckedFile {
    file: String,
    /// For classes.
    rules: usize,
    warnings: Vec<String>,
}

pub fn run(command: &ConfigCommand) -> Result<()> {
    match command {
        ConfigCommand::Show(output) => {
            let config: Config = client::ask(&Place::here()?, Request::Config)?.first()?;
            let text = config.to_toml()?;
            print_output(output.json, &config, || text)
        }
        ConfigCommand::Default => print(&Config::default_file()),
        ConfigCommand::Check(args) => {
            let mut counts = WarningCounts::default();
            let report = check(&args.files, args.offline, &mut counts);
            print_output(args.output.json, &report, || shown(&report))?;
            if !report.errors.is_empty() {
                let lines = report.errors.iter().map(String::as_str).chain([WHAT_FOLLOWS]);
                let lines: Vec<&str> = lines.collect();
                return Err(Usage(lines.join("\ngiveway: ")).into());
            }
            if args.strict { counts.as_errors() } else { Ok(()) }
        }
    }
}

fn shown(report: &CheckReport) -> String {
    let mut text = String::new();
    for file in &report.files {
        let of_classes = match file.rules {
            0 => String::new(),
            count => format!(", {} for classes", counted(count, "rule")),
        };
        text += &format!("{}: ok{of_classes}\n", file.file);
        file.warnings.iter().for_each(|line| text += &format!("  {line}\n"));
    }
    if let Some(machine) = &report.machine {
        text += "this machine:\n";
        let lines = machine.lines.iter().chain(&machine.missing);
        lines.for_each(|line| text += &format!("  {line}\n"));
    }
    text
}

/// How many warnings there were.
#[derive(Default)]
struct WarningCounts {
    of_files: usize,
    of_machine: usize,
}

impl WarningCounts {
    fn count(&mut self, remark: &Warning) {
        *(if remark.is_machines {
            &mut self.of_machine
        } else {
            &mut self.of_files
        }) += 1;
    }

    fn as_errors(&self) -> Result<()> {
        let Self { of_files, of_machine } = self;
        if *of_files > 0 {
            let text = format!(
                "{} with --strict: a file is at fault",
                counted(of_files + of_machine, "warning")
            );
            return Err(Usage(text).into());
        }
        ensure!(
            *of_machine == 0,
            "{} with --strict: this machine lacks what the files ask for",
            counted(*of_machine, "warning")
        );
        Ok(())
    }
}

/// What does nothing, or less than it says.
struct Warning {
    line: String,
    /// On another machine it might.
    is_machines: bool,
}

impl Warning {
    fn of_file(line: String) -> Self {
        Self {
            line,
            is_machines: false,
        }
    }

    fn of_machine(line: String) -> Self {
        Self {
            line,
            is_machines: true,
        }
    }
}

fn check(files: &[impl AsRef<Path>], offline: bool, counts: &mut WarningCounts) -> CheckReport {
    let mut report = CheckReport::default();
    let (mut main, mut folder) = (None, Vec::new());
    for path in files.iter().map(AsRef::as_ref) {
        let text = fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"));
        match rules_of(path, &text) {
            Ok(rules) => {
                let of_file = unread(path)
                    .into_iter()
                    .chain(somebody_elses(path))
                    .map(Warning::of_file);
                let mut remarks: Vec<Warning> = of_file.chain(idle(&rules)).collect();
                remarks.extend(text.iter().flat_map(|text| idle_keys(path, text)));
                remarks.retain(|remark| !(offline && remark.is_machines));
                remarks.sort_by_key(|remark| line_of(&remark.line));
                remarks.iter().for_each(|remark| counts.count(remark));
                report.files.push(CheckedFile {
                    file: path.display().to_string(),
                    rules: rules.len(),
                    warnings: remarks.into_iter().map(|remark| remark.line).collect(),
                });
                match is_in_a_folder_of_rules(path) {
                    true => folder.push(source_of(path, &text)),
                    false => main = main.or_else(|| Some(source_of(path, &text))),
                }
            }
            Err(found) => report.errors.extend(found.iter().map(Located::to_string)),
        }
    }
    if report.errors.is_empty() && !offline {
        let machine = check_machine(main, folder);
        counts.of_machine += machine.missing.len();
        report.machine = Some(machine);
    }
    report
}

/// Files of rules are for links that the usual configuration tells of.
fn check_machine(main: Option<Source>, folder: Vec<Source>) -> MachineCheck {
    let usual = || fs::read_to_string(USUAL_CONFIGURATION).ok();
    let text = main.as_ref().map_or_else(usual, |main| main.text.clone().ok());
    let config = text.and_then(|text| Config::parse(&text).ok()).unwrap_or_default();
    let (rules, _) = Rules::of(
        Folders {
            main,
            folders: vec![folder],
            ..Folders::default()
        },
        &uid_of,
    );
    MachineCheck::run(&config, &rules)
}

const WHAT_FOLLOWS: &str = "a running daemon keeps its configuration; `giveway run` refuses an invalid giveway.toml and \
                            ignores an invalid rules file, as `giveway reload` does";

/// `FILE:LINE: ...`
fn line_of(remark: &str) -> Option<u32> {
    let (place, _) = remark.split_once(": ")?;
    place.rsplit_once(':')?.1.parse().ok()
}

/// Why the daemon would not read it among its folder's rules.
fn unread(path: &Path) -> Option<String> {
    if !is_in_a_folder_of_rules(path) {
        return None;
    }
    let file = path.display();
    if path.extension().is_none_or(|extension| extension != "toml") {
        return Some(format!("{file}: ignored: its name must end in .toml"));
    }
    rules::text(path, true)
        .err()
        .map(|reason| format!("{file}: ignored: {reason}"))
}

/// Why `giveway run` would refuse it.
fn somebody_elses(path: &Path) -> Option<String> {
    let reason = not_the_callers(path, &fs::metadata(path).ok()?)?;
    Some(format!("{}: refused by `giveway run`: {reason}", path.display()))
}

/// What does nothing beside the rules: keys that another one stands in for, and real-time priority of no program.
fn idle_keys(path: &Path, text: &str) -> Vec<Warning> {
    let Ok(config) = Config::parse(text) else {
        return Vec::new();
    };
    let programs = config.priority.iter().filter_map(|rule| rule.conditions.exe.as_deref());
    let idle = programs.filter_map(|exe| {
        Some(Warning::of_machine(format!(
            "the [[priority]] of {exe} matches nothing here: {}",
            no_program(exe)?
        )))
    });
    let alone = config.priority.iter().map(|rule| &rule.conditions).filter(|asked| {
        [&asked.cmdline, &asked.unit, &asked.cgroup]
            .into_iter()
            .all(Option::is_none)
    });
    let shared = alone.filter_map(|asked| {
        let exe = asked.exe.as_deref()?;
        Some(Warning::of_machine(format!(
            "the [[priority]] of {exe} {}",
            shared(exe)?
        )))
    });
    let port = config
        .group
        .key_file
        .as_ref()
        .and_then(|_| open_to_users(config.group.port));
    let of_file = idle_of_cap(&config).into_iter().chain(idle_rates(&config));
    let said = idle
        .chain(shared)
        .chain(of_file.map(Warning::of_file))
        .chain(port.map(Warning::of_machine));
    let placed = |remark: Warning| Warning {
        line: format!("{}: {}", path.display(), remark.line),
        ..remark
    };
    said.map(placed).collect()
}

/// No access point carries more, Mbit/s.
const MORE_THAN_ANY_MBIT: f64 = 10_000.0;

/// Keys of [cap] beside which others do not count.
fn idle_of_cap(config: &Config) -> Vec<String> {
    let (cap, default) = (&config.cap, Cap::default());
    if config.cap_policy() == CapPolicyName::Estimated {
        return beside_found(config);
    }
    let needs_found = [
        ("prefer has no effect", cap.prefer != default.prefer),
        ("floor_mbit has no effect", cap.floor_mbit != default.floor_mbit),
    ];
    let idle = needs_found.into_iter().filter(|(_, is_given)| *is_given);
    let idle = idle.map(|(what, _)| {
        format!(
            "[cap] {what}: the capacity is not estimated here (that needs policy = \"estimated\", or a group \
                 key and no configured capacity)"
        )
    });
    let stands_in = cap.capacity_mbit.is_some() && cap.fixed_segments.is_some();
    let unused = stands_in.then(|| "[cap] capacity_mbit has no effect: fixed_segments replaces the formula".to_owned());
    idle.chain(unused).collect()
}

fn beside_found(config: &Config) -> Vec<String> {
    let cap = &config.cap;
    let of_fixed = [
        ("capacity_mbit", cap.capacity_mbit.is_some()),
        ("margin_bytes", cap.margin_bytes > 0),
        ("rtt_ms", cap.rtt_ms.is_some()),
        ("fixed_segments", cap.fixed_segments.is_some()),
    ];
    let given = of_fixed.into_iter().filter(|(_, is_given)| *is_given);
    let mut said: Vec<String> = given
        .map(|(key, _)| format!("[cap] {key} has no effect: the capacity is estimated"))
        .collect();
    let group_on = config.interface.as_ref().or(config.interfaces.first());
    let of_link = config.link.rate_mbit.filter(|_| config.interfaces.len() < 2);
    let own = config
        .uplink
        .iter()
        .find(|uplink| uplink.interface.as_ref() == group_on);
    if own.and_then(|uplink| uplink.rate_mbit).or(of_link) == Some(RateMbit::Estimated) {
        said.push(
            "rate_mbit = \"auto\" on the group's interface: both estimators use the same packets, a \
                   combination that is untested"
                .to_owned(),
        );
    }
    if config.group.key_file.is_none() {
        said.push(
            "[cap] policy = \"estimated\" without [group] key_file: this device estimates a share alone, and \
             treats your other devices as stations without giveway"
                .to_owned(),
        );
    }
    let carries = rates(config).filter_map(|(_, rate)| match rate {
        RateMbit::Fixed(mbit) => Some(mbit),
        RateMbit::Estimated => None,
    });
    let carries = carries.reduce(f64::min).unwrap_or(MORE_THAN_ANY_MBIT);
    if cap.floor_mbit >= carries {
        said.push(format!(
            "[cap] floor_mbit = {}: no link is faster, so caps never apply",
            cap.floor_mbit
        ));
    }
    let (passes, tried) = (config.monitor.polls_per_second, Monitor::default().polls_per_second);
    if passes < tried {
        said.push(format!(
            "[monitor] polls_per_second = {passes}: policy = \"estimated\" checks for a queue at each poll \
             and is tested with {tried}; with fewer polls it reacts late"
        ));
    }
    said
}

/// Of each link that has one, with the key.
fn rates(config: &Config) -> impl Iterator<Item = (&'static str, RateMbit)> {
    let of_link = config.link.rate_mbit.map(|rate| ("[link] rate_mbit", rate));
    let own = config.uplink.iter().filter_map(|uplink| uplink.rate_mbit);
    of_link
        .into_iter()
        .chain(own.map(|rate| ("[[uplink]] rate_mbit", rate)))
}

/// A rate that is to be found where nothing finds it.
fn idle_rates(config: &Config) -> Vec<String> {
    let backend = match config.queue.backend {
        BackendName::Htb => "htb",
        BackendName::None => "none",
        _ => return Vec::new(),
    };
    let found = rates(config).filter(|(_, rate)| *rate == RateMbit::Estimated);
    let mut said: Vec<String> = found
        .map(|(key, _)| {
            format!(
                "{key} = \"auto\" has no effect: it needs the BPF qdisc, which [queue] backend = \"{backend}\" \
                 excludes"
            )
        })
        .collect();
    said.dedup();
    said
}

/// Why nothing here is started from it.
fn no_program(exe: &str) -> Option<String> {
    match starts(exe) {
        Err(error) if error.kind() == ErrorKind::NotFound && exe.contains(['*', '?']) => Some(format!(
            "{exe} does not exist: `exe` is a path, not a pattern (use `cmdline` for patterns)"
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => Some(format!("{exe} does not exist")),
        Ok(start) if start == *b"#!" => Some(format!(
            "{exe} is a script, whose executable is its interpreter: use `cmdline = \"*{exe}*\"`"
        )),
        _ => None,
    }
}

/// Why a rule that names it holds for more than it says: it is a link to a file that runs under other names, too. Between
/// the versions of one program there is no such difference.
fn shared(exe: &str) -> Option<String> {
    let path = Path::new(exe);
    let file = fs::canonicalize(path).ok()?;
    // The interpreter of such an environment is everybody's.
    let is_in_venv = || fs::exists(path.parent()?.parent()?.join("pyvenv.cfg")).ok();
    let is_other = stem(path) != stem(&file) || path.is_symlink() && is_in_venv().unwrap_or_default();
    is_other.then(|| {
        format!(
            "matches everything that runs {} ({exe} is a link to it): use cmdline or unit",
            file.display()
        )
    })
}

/// The base name without a version.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.trim_end_matches(|end: char| end.is_ascii_digit() || ".-".contains(end))
        .to_owned()
}

/// What in it does nothing, here at least.
fn idle(rules: &Rules) -> impl Iterator<Item = Warning> {
    let anywhere = rules.remarks().into_iter();
    let anywhere = anywhere.map(|(rule, reason)| Warning::of_file(format!("{rule}: {reason}")));
    let idle = rules.by_executable().filter_map(|(rule, exe)| {
        let reason = no_program(exe)?;
        Some(format!("{rule}: matches nothing here: {reason}"))
    });
    let shared = rules.by_executable_alone().filter_map(|(rule, exe)| {
        // Of a script the above is the matter.
        let reason = shared(exe).filter(|_| no_program(exe).is_none())?;
        Some(format!("{rule}: {reason}"))
    });
    let elsewhere = rules
        .by_interface()
        .filter(|(_, interface)| if_nametoindex(*interface).is_err())
        .map(|(rule, interface)| format!("{rule}: matches nothing now: no interface {interface}"));
    let no_units = rules.by_unit().filter_map(|(rule, unit)| {
        let reason = no_unit(&unit)?;
        Some(format!("{rule}: matches nothing now: {reason}"))
    });
    let scripts = rules.by_script(&is_script).into_iter();
    let scripts = scripts.map(|(rule, reason)| format!("{rule}: {reason}"));
    let of_nobody = rules.for_nobody().map(|(rule, reason)| format!("{rule}: {reason}"));
    let here = idle
        .chain(shared)
        .chain(elsewhere)
        .chain(no_units)
        .chain(scripts)
        .chain(of_nobody);
    anywhere.chain(here.map(Warning::of_machine))
}

fn is_in_a_folder_of_rules(path: &Path) -> bool {
    let folder = path.parent().and_then(Path::file_name);
    folder.is_some_and(|name| name == "rules.d")
}

fn source_of(path: &Path, text: &Result<String, String>) -> Source {
    Source {
        path: path.display().to_string(),
        name: path.display().to_string(),
        text: text.clone(),
    }
}

/// Its rules, or all that is wrong with it. A file in a folder `rules.d` has only rules.
fn rules_of(path: &Path, text: &Result<String, String>) -> Result<Rules, Vec<Located>> {
    let of_text = |text: &String| config::problems(&path.display().to_string(), text);
    let mut all = text.as_ref().map(of_text).unwrap_or_default();
    let source = source_of(path, text);
    let folders = match is_in_a_folder_of_rules(path) {
        true => Folders {
            folders: vec![vec![source]],
            ..Folders::default()
        },
        false => Folders {
            main: Some(source),
            ..Folders::default()
        },
    };
    let (rules, mut problems) = Rules::of(folders, &uid_of);
    let Some(first) = problems.pop() else {
        return Ok(rules);
    };
    if !all.contains(&first) {
        all.insert(0, first);
    }
    Err(all)
}
