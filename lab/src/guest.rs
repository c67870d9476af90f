// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A QEMU guest with a real kernel of Debian's, in which this very build runs anything. Input: a command, a kernel, a
//! clock. Output: its output as it arrives, its exit code, the files left under /out, the kernel's log. One guest at a
//! time on a machine; a second one waits and says so. Installs nothing.

mod architecture;
mod archive;
mod kernel;
pub mod log;
mod machine;
mod modules;
pub mod preemption;
mod root;
mod source;

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::interrupt::{self, wait_for};
use crate::process::Process;
pub use architecture::Architecture;
pub use kernel::Flavour;
use kernel::Kernel;
use machine::QemuMachine;
pub use preemption::Preemption;
use source::ProgramSource;
pub use source::find;

/// How long to wait for another run's guest.
const TURN_LIMIT: Duration = Duration::from_secs(3600);
/// How much of the console an error quotes.
const QUOTED_LINES: usize = 12;

// The machine that a run needs.
#[derive(Args, Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Guest {
    #[arg(long, value_enum, default_value = "stock")]
    pub kernel: Flavour,
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub cpus: u8,
    #[arg(long, value_enum, default_value = "virtual")]
    pub clock: Clock,
    /// When the kernel may take a processor away from what runs in it [default: as it is built]
    #[arg(long = "preempt", value_enum, value_name = "MODEL")]
    pub preemption: Option<Preemption>,
    #[arg(long = "arch", value_enum, default_value = "amd64")]
    pub architecture: Architecture,
}

impl Guest {
    /// One processor of the stock kernel, in virtual time: what most figures are taken from.
    pub const VIRTUAL: Self = Self {
        kernel: Flavour::Stock,
        cpus: 1,
        clock: Clock::Virtual,
        preemption: None,
        architecture: Architecture::Amd64,
    };
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, ValueEnum)]
pub enum Clock {
    /// One instruction is one nanosecond, and idle time is skipped: figures do not depend on the host
    Virtual,
    /// The host's
    Real,
}

/// A task for a guest.
pub struct Errand<'a> {
    pub command: &'a [OsString],
    /// Programs that the guest has besides the lab's own, found by name.
    pub programs: &'a [PathBuf],
    /// The host's time for it, boot included.
    pub limit: Duration,
    /// Receives the files of the guest's /out, `kernel.log` and `console.log`.
    pub out: &'a Path,
}

pub struct GuestExit {
    pub code: u8,
    /// Lines of the kernel's log that say something is wrong with it.
    pub complaints: Vec<String>,
}

#[derive(Args)]
pub struct GuestArguments {
    #[command(flatten)]
    guest: Guest,
    /// The host's time for boot and command together
    #[arg(long, value_name = "LIMIT", default_value_t = 300)]
    seconds: u64,
    /// A further program for the guest's path, with the libraries it needs: a file, or the name of one that is installed
    #[arg(long = "with", value_name = "FILE")]
    programs: Vec<PathBuf>,
    /// Where the files of the guest's /out and its logs go
    #[arg(long, value_name = "DIR", default_value = "out/guest")]
    out: PathBuf,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// `giveway-lab guest`: the command's exit code is ours.
pub fn command(arguments: &GuestArguments) -> Result<u8> {
    interrupt::install()?;
    let errand = Errand {
        command: &arguments.command,
        programs: &arguments.programs,
        limit: Duration::from_secs(arguments.seconds),
        out: &arguments.out,
    };
    let ended = arguments.guest.run(&errand, &mut io::stdout(), &mut io::stderr())?;
    if let Some(first) = ended.complaints.first() {
        let log = arguments.out.join("kernel.log");
        eprintln!(
            "guest: the kernel complained {} times, see {}: {first}",
            ended.complaints.len(),
            log.display()
        );
    }
    Ok(ended.code)
}

/// `stock-2-virtual`: kernel, CPUs, clock; `stock-1-virtual-full` where the preemption model is asked for, and
/// `stock-1-virtual-arm64` on that.
impl fmt::Display for Guest {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        let word = |value: Option<PossibleValue>| value.map(|value| value.get_name().to_owned()).unwrap_or_default();
        let [kernel, clock] = [self.kernel.to_possible_value(), self.clock.to_possible_value()].map(word);
        write!(to, "{kernel}-{}-{clock}", self.cpus)?;
        self.preemption.map_or(Ok(()), |model| write!(to, "-{model}"))?;
        match self.architecture {
            Architecture::Amd64 => Ok(()),
            other => write!(to, "-{}", other.debian()),
        }
    }
}

/// Whether this machine is such a guest.
pub fn is_inside() -> bool {
    std::env::var_os("GIVEWAY_LAB_INSIDE").is_some()
}

impl Guest {
    /// Whether this machine matches, as far as its kernel shows.
    pub fn is_this(&self) -> Result<bool> {
        let uname = nix::sys::utsname::uname()?;
        let is_realtime = uname.version().to_string_lossy().contains("PREEMPT_RT");
        let is_installed = self.preemption.map_or(Ok(true), Preemption::is_installed)?;
        Ok(is_inside() && is_realtime == (self.kernel == Flavour::Realtime) && is_installed)
    }

    /// Must be called from the main thread, as every start of a process.
    pub fn run(
        &self,
        errand: &Errand,
        stdout: &mut (impl Write + Send),
        stderr: &mut (impl Write + Send),
    ) -> Result<GuestExit> {
        let cache = cache()?;
        let turn = turn(&cache, self.clock)?;
        let kernel = newest_kernel(self.kernel, self.architecture, &cache)?;
        let initrd = cache.join(format!("initrd-{}", turn.place));
        let source = ProgramSource::new(self.architecture, &cache)?;
        write_initrd(&kernel, errand, &source, &initrd)?;
        fs::create_dir_all(errand.out).with_context(|| format!("cannot create {}", errand.out.display()))?;
        let console = errand.out.join("console.log");
        for old in ["exit", "kernel.log"].map(|name| errand.out.join(name)) {
            if old.exists() {
                fs::remove_file(old)?;
            }
        }
        let begun = Instant::now();
        eprintln!("guest: booting {} as {self}", kernel.release);
        let machine = QemuMachine::start(self, &kernel.image(), &initrd, &console)?;
        follow(machine, errand, stdout, stderr).map_err(|error| explain(error, &console))?;
        let code = code(errand.out).map_err(|error| explain(error, &console))?;
        eprintln!("guest: ended with {code} after {:.1} s", begun.elapsed().as_secs_f64());
        let log = fs::read(errand.out.join("kernel.log")).context("the guest left no kernel log")?;
        let log = String::from_utf8_lossy(&log);
        Ok(GuestExit {
            code,
            complaints: log::complaints(&log).map(Into::into).collect(),
        })
    }
}

/// Where kernels are kept: GIVEWAY_LAB_CACHE, or the user's own cache.
fn cache() -> Result<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let users = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let cache = set("GIVEWAY_LAB_CACHE").or_else(|| Some(users()?.join("giveway-lab")));
    let cache = cache.context("there is no HOME to keep a kernel in: name a folder in GIVEWAY_LAB_CACHE")?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    Ok(cache)
}

/// A guest's slot among the running ones, until it is dropped.
struct Turn {
    /// Of the initrd, which each guest has for itself.
    place: usize,
    _locks: Vec<Flock<File>>,
}

/// In virtual time as many guests run as there are CPUs: figures do not depend on the others. By the host's clock one
/// runs alone.
fn turn(cache: &Path, clock: Clock) -> Result<Turn> {
    let places = std::thread::available_parallelism().map_or(1, usize::from);
    let wait = |what: &str, take: &mut dyn FnMut() -> Result<Option<Turn>>| {
        let mut told = false;
        wait_for("another guest to end", TURN_LIMIT, || {
            let turn = take()?;
            if turn.is_none() && !std::mem::replace(&mut told, true) {
                eprintln!("guest: waiting for {what} to end");
            }
            Ok(turn)
        })
    };
    if clock == Clock::Virtual {
        return wait("another guest", &mut || {
            for place in 0..places {
                let lock = try_lock(&cache.join(format!("lock-{place}")))?;
                if let Some(lock) = lock {
                    let _locks = vec![lock];
                    return Ok(Some(Turn { place, _locks }));
                }
            }
            Ok(None)
        });
    }
    // A process that waits for all slots keeps those that it has: nobody else waits for all meanwhile.
    let mut locks = Vec::new();
    wait("all other guests", &mut || {
        while locks.len() <= places {
            let name = match locks.len() {
                0 => "lock-alone".to_owned(),
                next => format!("lock-{}", next - 1),
            };
            let Some(lock) = try_lock(&cache.join(name))? else {
                return Ok(None);
            };
            locks.push(lock);
        }
        Ok(Some(Turn {
            place: 0,
            _locks: std::mem::take(&mut locks),
        }))
    })
}

/// None while another process has it.
fn try_lock(path: &Path) -> Result<Option<Flock<File>>> {
    match Flock::lock(File::create(path)?, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// Fetched by one process at a time.
fn newest_kernel(flavour: Flavour, architecture: Architecture, cache: &Path) -> Result<Kernel> {
    let path = cache.join("lock-kernels");
    let _lock = wait_for("another run to fetch the guest's kernel", TURN_LIMIT, || {
        try_lock(&path)
    })?;
    kernel::newest(flavour, architecture, cache)
}

fn write_initrd(kernel: &Kernel, errand: &Errand, source: &ProgramSource, initrd: &Path) -> Result<()> {
    let tree = root::tree(errand.command, errand.programs, source)?;
    fs::copy(kernel.modules(), initrd).context("cannot copy the kernel's modules")?;
    let end = File::options().append(true).open(initrd)?;
    tree.write(io::BufWriter::new(end))
        .with_context(|| format!("cannot write {}", initrd.display()))
}

/// Relays the guest's output until it is off.
fn follow(
    machine: QemuMachine,
    errand: &Errand,
    stdout: &mut (impl Write + Send),
    stderr: &mut (impl Write + Send),
) -> Result<()> {
    let QemuMachine {
        mut qemu,
        stdout: said,
        stderr: told,
        files,
    } = machine;
    let mut unpack = unpack(errand.out)?;
    let archive = unpack.pipes().stdin.take().context("tar has no input")?;
    let has_come = thread::scope(|scope| {
        let received = scope.spawn(|| receive(files, archive));
        let relays = [scope.spawn(|| relay(said, stdout)), scope.spawn(|| relay(told, stderr))];
        let status = wait_for("the guest to end", errand.limit, || qemu.exit());
        // Its end closes the streams, and so ends the relays.
        drop(qemu);
        let relayed = relays.into_iter().map(ScopedJoinHandle::join);
        let relayed: Vec<io::Result<()>> = relayed.map(|done| done.unwrap_or(Ok(()))).collect();
        let status = status?;
        if !status.success() {
            bail!("QEMU failed ({status})");
        }
        relayed
            .into_iter()
            .try_for_each(|done| done.context("cannot pass on the guest's output"))?;
        received
            .join()
            .unwrap_or(Ok(false))
            .context("cannot receive the guest's files")
    })?;
    let unpacked = wait_for("the guest's files", errand.limit, || unpack.exit())?;
    ensure!(
        !has_come || unpacked.success(),
        "tar cannot unpack the guest's files ({unpacked})"
    );
    Ok(())
}

/// Passes the guest's archive on and returns true once it is complete; false if the guest ended before.
fn receive(files: UnixStream, mut archive: impl Write) -> io::Result<bool> {
    let mut from = BufReader::new(&files);
    let mut size = String::new();
    from.read_line(&mut size)?;
    let Ok(size) = size.trim().parse() else {
        return Ok(false);
    };
    if io::copy(&mut from.take(size), &mut archive)? < size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    (&files).write_all(b"has_all\n")?;
    Ok(true)
}

/// To the end, even when nobody reads any more: a guest that cannot write would hang.
fn relay(mut from: UnixStream, to: &mut impl Write) -> io::Result<()> {
    let mut some = [0; 65_536];
    let mut passed_on = Ok(());
    loop {
        let count = from.read(&mut some)?;
        if count == 0 {
            return passed_on;
        }
        passed_on = passed_on.and_then(|()| to.write_all(&some[..count]).and_then(|()| to.flush()));
    }
}

fn unpack(out: &Path) -> Result<Process> {
    let mut tar = Command::new("tar");
    tar.args(["--no-same-owner", "-xC"]).arg(out);
    // An incomplete archive says more than tar's complaint about an empty one.
    tar.stdin(Stdio::piped()).stderr(Stdio::null());
    Process::spawn(tar)
}

/// The command's, which the guest leaves as a file.
fn code(out: &Path) -> Result<u8> {
    let file = out.join("exit");
    let text = fs::read_to_string(&file).map_err(|_| anyhow!("the guest ended before its command did"))?;
    fs::remove_file(&file)?;
    text.trim().parse().context("the guest's exit code is not readable")
}

/// The console's output from the first complaint on, or its last lines.
fn explain(error: anyhow::Error, console: &Path) -> anyhow::Error {
    let said = fs::read(console).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let lines = said.lines().map(str::trim_end).filter(|line| !line.is_empty());
    let lines: Vec<_> = lines.collect();
    let complaint = log::complaints(&said).next().map(str::trim_end);
    let complaint = lines.iter().position(|line| Some(*line) == complaint);
    let from = complaint.unwrap_or(lines.len().saturating_sub(QUOTED_LINES));
    let quoted: Vec<_> = lines.into_iter().skip(from).take(QUOTED_LINES).collect();
    let console = console.display();
    match quoted.is_empty() {
        true => error.context(format!("the guest said nothing on its console ({console})")),
        false => anyhow!("{error:#}; its console ({console}) says:\n{}", quoted.join("\n")),
    }
}
