// SPDX-License-Identifier: Apache-2.0 OR MIT
//! giveway-lab: real TCP stacks on one emulated access point, and the scenarios that giveway is judged by. Input: the
//! command line. Output: a table or one JSON object on stdout, progress on stderr, figures in a folder; exit code 0
//! when every bound holds, 1 when one does not or the run failed, 2 for usage.

/// The output of libbpf-cargo for a BPF program, which documents none of its unsafe blocks.
macro_rules! skeleton {
    ($name:literal) => {
        #[allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
        mod skeleton {
            include!(concat!(env!("OUT_DIR"), "/", $name, ".skel.rs"));
        }
    };
}

mod access_point;
mod applicant;
mod bpf_objects;
mod calls;
mod cell;
mod cgroup;
mod channel;
mod check;
mod experiment;
mod giveway;
mod guest;
mod histogram;
mod interrupt;
mod kernels;
mod link;
mod medium;
mod meter;
mod model_time;
mod modem;
mod namespace;
mod network;
mod outcome;
mod parameters;
mod plot;
mod proc;
mod process;
mod progress;
mod records;
mod report;
mod results;
mod role;
mod runner;
mod scenario;
mod scenarios;
mod scheduling;
mod statistics;
mod testbed;
mod traffic;
mod uplink;
mod usage;

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use outcome::Results;
use parameters::Parameters;
use report::ScenarioReport;
use results::Origin;
use role::report;

use runner::guests::RESULTS_FILE;
use scenario::{Plan, Quantity, Scenario};
use traffic::realtime;

#[derive(Parser)]
#[command(
    name = "giveway-lab",
    version,
    about = "Real TCP stacks on one emulated access point"
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Name the scenarios and what can be set
    List {
        /// Only this one
        scenario: Option<String>,
    },
    /// Run one scenario and judge its numbers
    Run(RunArguments),
    /// Run a command in a QEMU guest with another kernel
    Guest(guest::GuestArguments),
    /// Write the pages of the results that the repository keeps, or take in a run's
    Results(results::ResultsArguments),
    /// Try each capability on each kernel: this machine's, and those of guests
    Kernels(kernels::KernelsArguments),
    #[command(hide = true)]
    Medium,
    /// One of the lab's own processes
    #[command(hide = true)]
    Role { name: String, description: String },
}

/// Given its description.
type Act = fn(&str) -> Result<()>;

/// The processes of the lab that run in namespaces of their own.
const ROLES: &[(&str, Act)] = &[
    ("abuser", |d| role::report(d, scenarios::abuse::run_abuser)),
    ("application", traffic::application::run),
    ("arrivals", traffic::arrivals::run),
    ("application-sink", traffic::application::run_sink),
    ("crowd-guest", traffic::crowd::run_guest),
    ("crowd-host", traffic::crowd::run_host),
    ("endless-handler", scenarios::runaway::received::run_handler),
    ("endless-observed-sender", traffic::endless::run_observed_sender),
    ("endless-probe", traffic::endless::run_probe),
    ("endless-datagrams", traffic::endless::run_datagrams),
    ("endless-sender", traffic::endless::run_sender),
    ("endless-sink", traffic::endless::run_sink),
    ("far-end", traffic::http::run_remote_host),
    ("flood", realtime::flood::run),
    ("hand-over", |d| report(d, scenarios::switch_cost::handover::run)),
    ("hostile", traffic::hostile::sender::run),
    ("http", traffic::http::run_client),
    ("icmp-flood", realtime::icmp::run),
    ("injector", scenarios::faults::injector::run),
    ("kernels-far", kernels::run_far),
    ("kernels-near", kernels::run_near),
    ("liar", traffic::liar::run),
    ("limit-cost-far", scenarios::limit_cost::flows::run_far),
    ("limit-cost-near", scenarios::limit_cost::flows::run_near),
    ("marking-sender", |d| report(d, scenarios::marking::sender::run)),
    ("marking-sink", scenarios::marking::sender::run_sink),
    ("plain-bursts", |d| report(d, realtime::plain::run)),
    ("reach-sender", scenarios::reach::sender::run),
    ("reach-tunnel", scenarios::reach::tunnel::run),
    ("realtime-enqueue", |d| {
        report(d, scenarios::admission_cost::enqueue::run)
    }),
    ("realtime-receiver", |d| report(d, realtime::receiver::run)),
    ("realtime-requests", |d| report(d, realtime::requests::run)),
    ("realtime-sender", |d| report(d, realtime::sender::run)),
    ("realtime-service", |d| report(d, realtime::service::run)),
    ("request-handler", scenarios::fails_open::changes::run_handler),
    ("request-sender", scenarios::fails_open::changes::run_sender),
    ("sink", traffic::stream::run_sink),
    ("source", traffic::stream::run_source),
    ("targets-far", scenarios::targets::transfer::run_far),
    ("targets-looker", scenarios::targets::views::run_looker),
    ("targets-near", scenarios::targets::transfer::run_near),
    ("targets-transfer", scenarios::targets::transfer::run_transfer),
    ("upload", traffic::http::run_upload),
    ("work", traffic::work::run),
];

#[derive(Args)]
struct RunArguments {
    /// By its name: `giveway-lab list` has all, `giveway-lab list SCENARIO` what can be set of one
    scenario: String,
    /// Change a parameter; bounds stated for its default are then not judged
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Where figures and raw results go [default: ./out/SCENARIO]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// So many variants of this machine at once, each in a lab of its own [default: 1]. For variants that need little
    /// CPU time, such as stations on a shared channel; the bound on the channel's lateness fails if it was too many
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true, value_parser = clap::value_parser!(u8).range(1..=16))]
    jobs: u8,
    /// In another lab: these variants and no others, judged by the one that asked
    #[arg(long, value_name = "VARIANT", hide = true)]
    exactly: Vec<String>,
}

fn main() -> ExitCode {
    let done = match CommandLine::parse().command {
        Command::Medium => return medium::run(),
        Command::Guest(arguments) => match guest::command(&arguments) {
            Ok(code) => return ExitCode::from(code),
            Err(error) => Err(error),
        },
        Command::Kernels(arguments) => kernels::command(&arguments),
        Command::Results(arguments) => results::command(&arguments),
        Command::List { scenario } => list(scenario.as_deref()),
        Command::Run(arguments) => run(&arguments),
        Command::Role { name, description } => act(&name, &description).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("giveway-lab: {error:#}");
            ExitCode::from(if error.is::<usage::Usage>() { 2 } else { 1 })
        }
    }
}

fn act(name: &str, description: &str) -> Result<()> {
    let role = ROLES.iter().find(|(role, _)| *role == name);
    let (_, act) = role.with_context(|| format!("unknown role `{name}`"))?;
    act(description)
}

fn list(only: Option<&str>) -> Result<bool> {
    let wanted: Vec<&Scenario> = match only {
        Some(name) => vec![scenarios::find(name)?],
        None => scenarios::all(),
    };
    let mut out = io::stdout().lock();
    match write_list(&mut out, &wanted) {
        // The reader has closed the pipe, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(true),
        written => Ok(written.map(|()| true)?),
    }
}

fn write_list(out: &mut impl Write, wanted: &[&Scenario]) -> io::Result<()> {
    writeln!(
        out,
        "giveway-lab run SCENARIO [--set KEY=VALUE]...; each KEY with default and limits\n"
    )?;
    for scenario in wanted {
        writeln!(out, "{}\n    {}", scenario.name, scenario.about)?;
        let parameters = scenario.all_parameters();
        for parameter in parameters.iter().filter(|parameter| !parameter.kind.is_fixed()) {
            let accepted = parameter.kind.describe();
            writeln!(out, "  {:<15} {accepted:<25} {}", parameter.name, parameter.about)?;
        }
        writeln!(out)?;
    }
    out.flush()
}

fn run(arguments: &RunArguments) -> Result<bool> {
    let scenario = scenarios::find(&arguments.scenario)?;
    let parameters = Parameters::new(&scenario.all_parameters(), &arguments.settings)?;
    let mut plan = scenario.plan.at(&parameters)?;
    interrupt::install()?;
    let default_out = || PathBuf::from("out").join(scenario.name);
    let out = arguments.out.clone().unwrap_or_else(default_out);
    if !arguments.exactly.is_empty() {
        plan.variants
            .retain(|variant| arguments.exactly.contains(&variant.name));
        return hand_over(&runner::run(scenario.name, &plan, &parameters, 1, &out)?, &out);
    }
    let results = runner::run(scenario.name, &plan, &parameters, arguments.jobs, &out)?;

    let variants = results.means();
    plan.checks.extend(check::of_machine(&variants));
    let at_defaults = scenario.is_at_defaults(&parameters);
    if !at_defaults {
        check::too_busy(&variants)
            .iter()
            .for_each(|told| eprintln!("warning: {told}"));
    }
    let words = parameters.list("variants");
    let is_selected = |name: &str| runner::is_selected(name, words);
    let checks = check::judge(&plan.checks, &variants, at_defaults, is_selected);
    let report = ScenarioReport {
        scenario: scenario.name,
        params: &parameters,
        kernel: results.kernels.iter().cloned().collect::<Vec<_>>().join(", "),
        variants,
        spread: results.spread(),
        said: results.said.clone(),
        failed: &results.failed,
        checks,
        origin: Origin::of_this_run(),
    };
    let figures = plot::draw(&plan.plots, &results, &out)?;
    let json = serde_json::to_string(&report)?;
    let result = out.join("result.json");
    std::fs::write(&result, &json).with_context(|| format!("cannot write {}", result.display()))?;
    if arguments.json {
        println!("{json}");
    } else {
        print_report(scenario, &plan, &report, at_defaults);
        for figure in figures {
            println!("figure: {}", figure.display());
        }
    }
    Ok(report.holds())
}

/// Leaves the results for the lab that asked.
fn hand_over(results: &Results, out: &Path) -> Result<bool> {
    let file = File::create(out.join(RESULTS_FILE))?;
    serde_json::to_writer(BufWriter::new(file), results)?;
    Ok(true)
}

fn print_report(scenario: &Scenario, plan: &Plan, report: &ScenarioReport, at_defaults: bool) {
    let variants: Vec<_> = plan.variants.iter().map(|variant| variant.name.as_str()).collect();
    println!("{}: {}\n", scenario.name, scenario.about);
    print!("{}", report.table(&variants, plan.columns));
    print!("{}", report.stations_table(&variants));
    print!("{}", report.sentences(&variants));
    println!();
    for check in &plan.checks {
        if let Quantity::Ratio { variant, over, metric } = &check.of {
            print!("{}", report.comparison(variant, over, metric));
        }
    }
    print!("{}", report.verdicts());
    if !at_defaults {
        println!("Bounds apply at the default parameters; this run has its own.");
    }
}
