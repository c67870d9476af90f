// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway-lab kernels`: which capability works on which kernel, as a table. Input: the machines. Output: `matrix.md`
//! and `matrix.json`, and a folder for each machine with its output. Each machine is this one or a guest; a failure of
//! one leaves the others as they are. Judges by what worked ([`probes`]), not by what a kernel claims.

mod ends;
mod matrix;
mod probes;
mod sockets;
mod stage;

use std::fs::{self, File};
use std::io::stderr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::giveway;
use crate::guest::{Architecture, Errand, Flavour, Guest};
use crate::interrupt;
use crate::namespace::sweep;
pub use ends::{run_far, run_near};
use matrix::MatrixRow;
use probes::{CapabilityCell, CapabilityVerdict};
use stage::ProbedDevice;

const REPORT: &str = "report.json";
/// The host's time; the emulation takes ten to thirty times the guest's.
const LIMIT: Duration = Duration::from_secs(1_800);

struct Machine {
    name: &'static str,
    about: &'static str,
    /// None: this machine.
    guest: Option<Guest>,
}

const MACHINES: [Machine; 6] = [
    machine("host", "this machine", None),
    machine(
        "debian-13",
        "Debian 13's own kernel",
        Some((Flavour::Debian13, Architecture::Amd64)),
    ),
    machine(
        "newest",
        "the newest of Debian 13's backports",
        Some((Flavour::Stock, Architecture::Amd64)),
    ),
    machine(
        "newest-rt",
        "the same with PREEMPT_RT",
        Some((Flavour::Realtime, Architecture::Amd64)),
    ),
    machine(
        "arm64-debian-13",
        "Debian 13's own kernel for arm64",
        Some((Flavour::Debian13, Architecture::Arm64)),
    ),
    machine(
        "arm64-newest",
        "the newest of the backports for arm64",
        Some((Flavour::Stock, Architecture::Arm64)),
    ),
];

const fn machine(name: &'static str, about: &'static str, guest: Option<(Flavour, Architecture)>) -> Machine {
    let guest = match guest {
        None => None,
        Some((kernel, architecture)) => Some(Guest {
            kernel,
            architecture,
            ..Guest::VIRTUAL
        }),
    };
    Machine { name, about, guest }
}

#[derive(Args)]
pub struct KernelsArguments {
    /// Where the table goes, and what each machine said
    #[arg(long, value_name = "DIR", default_value = "out/kernels")]
    out: PathBuf,
    /// Only these machines; the table keeps what others have left in DIR before
    #[arg(long, value_name = "MACHINE", value_delimiter = ',', value_parser = PossibleValuesParser::new(MACHINES.map(|machine| machine.name)))]
    on: Vec<String>,
    /// Try this machine alone, and leave what came of it
    #[arg(long, hide = true)]
    here: bool,
}

/// The report of one machine.
#[derive(Deserialize, Serialize)]
struct MachineReport {
    /// As of `uname -r`, `-m` and `-v`.
    release: String,
    architecture: String,
    version: String,
    giveway: String,
    cells: Vec<CapabilityCell>,
    /// The output of `giveway doctor --json` there.
    doctor: Value,
    /// Lines of the kernel's log about a fault of its own; None if not checked.
    #[serde(default)]
    kernel_warnings: Option<Vec<String>>,
}

/// True if nothing has failed that the kernel should be able to do.
pub fn command(arguments: &KernelsArguments) -> Result<bool> {
    interrupt::install()?;
    if arguments.here {
        let report = try_here(&arguments.out)?;
        write(&arguments.out.join(REPORT), &report)?;
        return Ok(true);
    }
    fs::create_dir_all(&arguments.out).with_context(|| format!("cannot create {}", arguments.out.display()))?;
    let mut rows = Vec::new();
    for machine in &MACHINES {
        interrupt::check()?;
        let out = arguments.out.join(machine.name);
        let is_wanted = arguments.on.is_empty() || arguments.on.iter().any(|name| name == machine.name);
        let report = match is_wanted {
            true => {
                eprintln!("kernels: {} ({})", machine.name, machine.about);
                try_on(machine, &out)
            }
            false => match read(&out.join(REPORT)) {
                Ok(report) => Ok(report),
                Err(_) => continue,
            },
        };
        interrupt::check()?;
        if let Err(error) = &report {
            eprintln!("kernels: {}: {error:#}", machine.name);
        }
        rows.push(MatrixRow {
            name: machine.name,
            about: machine.about,
            report: report.map_err(|error| format!("{error:#}")),
        });
        // Written each time, in case the next machine fails.
        write(&arguments.out.join("matrix.json"), &matrix::json(&rows))?;
        fs::write(arguments.out.join("matrix.md"), matrix::markdown(&rows))?;
    }
    print!("{}", matrix::table(&rows));
    let is_good = |row: &MatrixRow| {
        let report = row.report.as_ref();
        report.is_ok_and(|report| {
            report
                .cells
                .iter()
                .all(|cell| cell.verdict != CapabilityVerdict::Failed)
        })
    };
    Ok(rows.iter().all(is_good))
}

fn try_on(machine: &Machine, out: &Path) -> Result<MachineReport> {
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    fs::create_dir_all(out)?;
    let Some(guest) = machine.guest else {
        let report = try_here(out)?;
        write(&out.join(REPORT), &report)?;
        return Ok(report);
    };
    let errand = Errand {
        command: &["giveway-lab", "kernels", "--here", "--out", "/out"].map(Into::into),
        programs: &[],
        limit: LIMIT,
        out,
    };
    let ended = guest.run(&errand, &mut stderr(), &mut stderr())?;
    if ended.code != 0 {
        bail!("the trial in the guest failed; its reason is above");
    }
    let mut report = read(&out.join(REPORT))?;
    report.kernel_warnings = Some(ended.complaints);
    write(&out.join(REPORT), &report)?;
    Ok(report)
}

fn try_here(out: &Path) -> Result<MachineReport> {
    if !nix::unistd::geteuid().is_root() {
        bail!("network namespaces and BPF programs need root: run it through sudo");
    }
    sweep()?;
    let said = Command::new(giveway::binary()?)
        .args(["doctor", "--json"])
        .output()?
        .stdout;
    let doctor: Value =
        serde_json::from_slice(&said).context("the answer of `giveway doctor --json` is not readable")?;
    let version = Command::new(giveway::binary()?).arg("-V").output()?.stdout;
    let begun = Instant::now();
    eprintln!("kernels: traffic begins, then the daemon");
    let mut stage = ProbedDevice::raise(out)?;
    let cells = probes::run(&mut stage, &doctor, |cell| {
        let word = matrix::word(cell.verdict);
        let after = begun.elapsed().as_secs();
        eprintln!("kernels: {after:4} s  {}: {word} ({})", cell.capability, cell.said);
    })?;
    drop(stage);
    for program in ["granted", "nice"] {
        fs::remove_file(out.join(program))?;
    }
    let uname = nix::sys::utsname::uname()?;
    let text = |name: &std::ffi::OsStr| name.to_string_lossy().into_owned();
    Ok(MachineReport {
        release: text(uname.release()),
        architecture: text(uname.machine()),
        version: text(uname.version()),
        giveway: String::from_utf8_lossy(&version).trim().into(),
        cells,
        doctor,
        kernel_warnings: None,
    })
}

fn read(file: &Path) -> Result<MachineReport> {
    let opened = File::open(file).with_context(|| format!("there is no {}", file.display()))?;
    serde_json::from_reader(opened).with_context(|| format!("cannot read {}", file.display()))
}

fn write(file: &Path, what: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(what)?;
    fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))
}
