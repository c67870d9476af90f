// SPDX-License-Identifier: Apache-2.0 OR MIT
//! giveway-lab: real TCP stacks on one emulated access point, and the scenarios that giveway is
//! judged by.
//! In: the command line. Out: a table or one JSON object on stdout, progress on stderr, figures in a
//! folder; exit code 0 when every bound holds, 1 when one does not or the run failed, 2 for usage.

mod air;
mod applicant;
mod cell;
mod check;
mod giveway;
mod guest;
mod histogram;
mod interrupt;
mod link;
mod medium;
mod namespace;
mod outcome;
mod parameters;
mod plot;
mod process;
mod program_time;
mod report;
mod runner;
mod scenario;
mod scenarios;
mod statistics;
mod topology;
mod traffic;
mod uplink;
mod usage;

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use outcome::Results;
use parameters::Parameters;
use report::Report;
use runner::guests::RESULTS_FILE;
use scenario::{Plan, Quantity, Scenario};

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
    List,
    /// Run one scenario and judge its numbers
    Run(RunArguments),
    /// Run a command in a QEMU guest with the newest 7.x kernel
    Guest(guest::Arguments),
    #[command(hide = true)]
    Medium,
    #[command(hide = true)]
    Source,
    #[command(hide = true)]
    Sink,
    #[command(hide = true)]
    FarEnd,
    #[command(hide = true)]
    Http(uplink::watch::LinkEnd),
    #[command(hide = true)]
    Upload(traffic::http::Upload),
    #[command(hide = true)]
    Work,
    #[command(hide = true)]
    HandOver(runner::switch_cost::trial::Trial),
    #[command(hide = true)]
    CrowdHost(traffic::crowd::Crowd),
    #[command(hide = true)]
    CrowdGuest(traffic::crowd::Crowd),
    #[command(hide = true)]
    RealtimeSender { description: String },
    #[command(hide = true)]
    RealtimeReceiver,
    #[command(hide = true)]
    RealtimeService { description: String },
    #[command(hide = true)]
    RealtimeRequests { description: String },
    #[command(hide = true)]
    IcmpFlood { to: std::net::Ipv4Addr },
    #[command(hide = true)]
    RealtimeEnqueue { description: String },
    #[command(hide = true)]
    PlainBursts { description: String },
    #[command(hide = true)]
    Hostile { seed: u64, interface: String },
    #[command(hide = true)]
    Flood { description: String },
}

#[derive(Args)]
struct RunArguments {
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
    /// In a guest: these variants and no others, judged by the host
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
        Command::List => list(),
        Command::Run(arguments) => run(&arguments),
        Command::Source => traffic::stream::run_source().map(|()| true),
        Command::Sink => traffic::stream::run_sink().map(|()| true),
        Command::CrowdHost(crowd) => traffic::crowd::run_host(&crowd).map(|()| true),
        Command::CrowdGuest(crowd) => traffic::crowd::run_guest(&crowd).map(|()| true),
        Command::RealtimeSender { description } => traffic::realtime::sender::run(&description).map(|()| true),
        Command::RealtimeReceiver => traffic::realtime::receiver::run().map(|()| true),
        Command::RealtimeService { description } => traffic::realtime::service::run(&description).map(|()| true),
        Command::RealtimeRequests { description } => traffic::realtime::requests::run(&description).map(|()| true),
        Command::IcmpFlood { to } => traffic::realtime::icmp::run(to).map(|()| true),
        Command::RealtimeEnqueue { description } => traffic::realtime::enqueue::run(&description).map(|()| true),
        Command::PlainBursts { description } => traffic::realtime::plain::run(&description).map(|()| true),
        Command::Hostile { seed, interface } => traffic::hostile::sender::run(seed, &interface).map(|()| true),
        Command::Flood { description } => traffic::realtime::flood::run(&description).map(|()| true),
        Command::FarEnd => traffic::http::run_far_end().map(|()| true),
        Command::Http(link) => traffic::http::run_client(&link).map(|()| true),
        Command::Upload(upload) => traffic::http::run_upload(&upload).map(|()| true),
        Command::Work => traffic::work::run().map(|()| true),
        Command::HandOver(trial) => runner::switch_cost::trial::run(&trial).map(|()| true),
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

fn list() -> Result<bool> {
    println!("giveway-lab run SCENARIO [--set KEY=VALUE]...; each KEY with default and limits\n");
    for scenario in scenarios::ALL {
        println!("{}\n    {}", scenario.name, scenario.about);
        for parameter in scenario.all_parameters() {
            let accepted = parameter.kind.describe();
            println!("  {:<10} {accepted:<25} {}", parameter.name, parameter.about);
        }
        println!();
    }
    Ok(true)
}

fn run(arguments: &RunArguments) -> Result<bool> {
    let scenario = scenarios::find(&arguments.scenario)?;
    let parameters = Parameters::new(&scenario.all_parameters(), &arguments.settings)?;
    let mut plan = (scenario.plan)(&parameters)?;
    interrupt::install()?;
    let default_out = || PathBuf::from("out").join(scenario.name);
    let out = arguments.out.clone().unwrap_or_else(default_out);
    if !arguments.exactly.is_empty() {
        plan.variants
            .retain(|variant| arguments.exactly.contains(&variant.name));
        return hand_over(&runner::run(scenario.name, &plan, &parameters, &out)?, &out);
    }
    let results = runner::run(scenario.name, &plan, &parameters, &out)?;

    let variants = results.means();
    let at_defaults = scenario.is_at_defaults(&parameters);
    let words = parameters.list("variants");
    let is_selected = |name: &str| runner::is_selected(name, words);
    let checks = check::judge(&plan.checks, &variants, at_defaults, is_selected);
    let report = Report {
        scenario: scenario.name,
        params: &parameters,
        kernel: results.kernels.iter().cloned().collect::<Vec<_>>().join(", "),
        variants,
        checks,
    };
    let figures = plot::draw(&plan.plots, &results, &out)?;
    let json = serde_json::to_string(&report)?;
    let result = out.join("result.json");
    std::fs::write(&result, &json).with_context(|| format!("cannot write {}", result.display()))?;
    if arguments.json {
        println!("{json}");
    } else {
        tell(scenario, &plan, &report, at_defaults);
        for figure in figures {
            println!("figure: {}", figure.display());
        }
    }
    Ok(report.holds())
}

/// Leaves the results for the host that booted this guest.
fn hand_over(results: &Results, out: &Path) -> Result<bool> {
    let file = File::create(out.join(RESULTS_FILE))?;
    serde_json::to_writer(BufWriter::new(file), results)?;
    Ok(true)
}

fn tell(scenario: &Scenario, plan: &Plan, report: &Report, at_defaults: bool) {
    let variants: Vec<_> = plan.variants.iter().map(|variant| variant.name.as_str()).collect();
    println!("{}: {}\n", scenario.name, scenario.about);
    print!("{}", report.table(&variants, plan.columns));
    print!("{}", report.stations_table(&variants));
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
