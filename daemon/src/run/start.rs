// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the command line to a running daemon: every way in which a start can fail is found here, before
//! anything is changed, and gets its one clear line.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use giveway_engine::background::Means;
use giveway_engine::change::Setting;
use giveway_engine::config::{self, BackendName, Config, Control, RateMbit};
use giveway_engine::network::{Network, Setup};
use giveway_engine::peers::Keyring;
use giveway_engine::priority::{Names, Priority};
use giveway_engine::queue::Backends;
use nix::sys::prctl::set_dumpable;
use nix::unistd::Group;

use super::asked::{RevertRequested, StartMoment};
use super::daemon::Daemon;
use super::daemon::rules::ClassRules;
use super::priority::PriorityThread;
use super::priority::receive::{Receiver, chains_of};
use crate::actuate::download::DownloadActuator;
use crate::actuate::nice::NiceActuator;
use crate::actuate::queue::QueueActuator;
use crate::actuate::sockets::SocketActuators;
use crate::actuate::sockets::cap::rtt_floors_us;
use crate::actuate::sockets::scavenger;
use crate::actuate::upload::UploadActuator;
use crate::exit::Usage;
use crate::files::not_the_callers;
use crate::inherited::raise_limits;
use crate::interface::Choice;
use crate::journal::UndoReport;
use crate::kernel::flow_monitor::FlowMonitor;
use crate::kernel::libbpf_log::one_line;
use crate::kernel::local_wait;
use crate::kernel::owner::OwnerReader;
use crate::kernel::types::Types;
use crate::kernel::{random, uid_of};
use crate::key::KeyFile;
use crate::life::{LONG_WORK, Life, WatchedTask};
use crate::notify::Notifier;
use crate::peers::open_to_users;
use crate::place::Place;
use crate::rules::RuleFiles;
use crate::takeover::{self, TakeoverPurpose};
use crate::undo;
use crate::watchdog::guarded::GuardedDaemon;

/// The configuration where none is named.
pub const USUAL_CONFIGURATION: &str = "/etc/giveway/giveway.toml";

/// Whoever may list a folder of rules or units, which is everybody, may keep it from being read.
const RULES_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Args)]
pub struct RunArgs {
    /// The configuration (see `giveway config default`); else /etc/giveway/giveway.toml, and the defaults where there is no such file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A managed interface, once for each, that of the access point first; those with a default route if absent
    #[arg(long, value_name = "IF")]
    pub interface: Vec<String>,
    /// Decide and explain, but change nothing here; peers still hear what this device sends
    #[arg(long)]
    pub dry_run: bool,
    /// A folder with rules for classes, in place of /etc/giveway/rules.d, what units say, and /usr/share/giveway/rules.d;
    /// where there are several, those of the first come first
    #[arg(long, value_name = "FOLDER")]
    pub rules: Vec<PathBuf>,
    /// Where systemd-logind tells of seats and sessions, in place of /run/systemd (for tests)
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub sessions: Option<String>,
    /// Log more: each decision
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Log only warnings and errors
    #[arg(short, long)]
    pub quiet: bool,
}

impl RunArgs {
    /// Of the log, where GIVEWAY_LOG says nothing.
    pub fn log_level(&self) -> &'static str {
        match (self.verbose, self.quiet) {
            (true, _) => "debug",
            (_, true) => "warn",
            _ => "info",
        }
    }
}

/// `begun`: when this process did, as [`StartMoment::now`] says.
pub fn run(args: &RunArgs, begun: &StartMoment) -> Result<()> {
    let ended = start(args, begun);
    if let Err(error) = &ended
        && error.is::<RevertRequested>()
    {
        tracing::info!("{error}; nothing of giveway's is left");
        // To the service manager this is no failure, after which it would start giveway again.
        Notifier::of_environment().ended();
        return Ok(());
    }
    ended
}

// Long, since each step is to come after the one before it: the order is what it is about.
fn start(args: &RunArgs, begun: &StartMoment) -> Result<()> {
    crate::kernel::program::open().context("cannot open the program itself")?;
    crate::kernel::libbpf_files::keep();
    crate::kernel::scanner::start();
    let file = args.config.clone().or_else(usual_configuration);
    let config = configuration(args, file.as_deref())?;
    let rules = class_rules(RuleFiles::new(file.as_deref(), &args.rules))?;
    let sessions = Some(args).filter(|_| config.classes.follow_sessions).and_then(sessions);
    let choice = choose_interfaces(&config)?;
    let mut keys = config.group.key_file.as_deref().map(KeyFile::new);
    let keyring = keys
        .as_mut()
        .map(|file| file.read())
        .transpose()
        .map_err(|e| Usage(format!("{e:#}; nothing was changed")))?;
    let priority = priority_engine(&config, args.dry_run)?;
    crate::kernel::check_requirements()?;
    raise_limits();
    let place = Place::here()?;
    // No image of this process's memory is ever written to a file: it holds the group's key.
    set_dumpable(false).context("cannot keep core dumps from being written")?;
    crate::kernel::hold_little_memory();
    // The watchdog of a daemon that has just died may still be at work.
    let what_for = if args.dry_run {
        TakeoverPurpose::DryRun
    } else {
        TakeoverPurpose::Daemon
    };
    let lock = takeover::take_over(&place, what_for)?;
    begun.check(&place)?;
    let left_over = undo_earlier(&place, args.dry_run)?;
    // Before anything is loaded: a start that hangs is a death, too.
    let (life, page) = Life::new()?;
    let starts = life.heartbeat(WatchedTask::MainLoop);
    let guarded = (!args.dry_run).then(|| GuardedDaemon::start(life, page)).transpose()?;
    lock.name(guarded.as_ref().map(GuardedDaemon::pid));
    begun.check(&place)?;
    let owners = open_owners(&place, life, sessions, args.dry_run)?;
    starts.beat_before(LONG_WORK);
    begun.check(&place)?;
    let monitor = FlowMonitor::open(place.netns_inum()).context(
        "cannot watch this kernel's sockets, so giveway cannot run here; `giveway doctor` says what is missing",
    )?;
    warn_of_links(&choice, &config);
    begun.check(&place)?;
    let local_waits = (!args.dry_run).then(local_wait::create).transpose()?;
    let (sockets, mut warnings) = local_waits
        .as_ref()
        .map_or_else(Default::default, |waits| SocketActuators::open(&place, &config, waits));
    if let Some(saved) = sockets.saved_id() {
        life.hold_saved_sockets(saved);
    }
    let failed = left_over.failed.iter();
    warnings.extend(failed.map(|line| format!("an earlier daemon's change is not undone: {line}")));
    begun.check(&place)?;
    let qdisc = Types::load().bpf_qdisc().map_err(|error| one_line(&error));
    warnings.extend(not_to_be_had(&config, &qdisc));
    for line in &warnings {
        tracing::warn!("{line}");
    }
    let setup = setup(&config, &sockets, place.netns_inum(), keyring, qdisc, args.dry_run)?;
    let engine = Network::new(crate::kernel::now(), &config, setup);
    let receiver = Receiver::open(&place, &config, args.dry_run);
    let saved_tasks = (config.classes.cpu_and_disk && !args.dry_run).then_some(&owners.tasks().saved_tasks);
    let queue = QueueActuator::open(
        &place,
        &config,
        receiver.requests(),
        saved_tasks,
        Some(&owners.tasks().records),
        local_waits.as_ref(),
    )?;
    let download = DownloadActuator::open(&place)?;
    let upload = UploadActuator::open(&place)?;
    let nice = saved_tasks
        .map(|map| NiceActuator::new(&place, life, map))
        .transpose()?;
    begun.check(&place)?;
    let priority = priority.with_chains(crate::kernel::now(), chains_of(&config));
    let death = guarded.as_ref().map(GuardedDaemon::death).transpose()?;
    let realtime = PriorityThread::start(&place, priority, receiver.chains()?, life, death)?;

    crate::kernel::give_back_memory();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    let local = tokio::task::LocalSet::new();
    let daemon = Daemon {
        config,
        choice,
        place,
        lock,
        life,
        engine,
        monitor,
        sockets,
        queue,
        download,
        upload,
        nice,
        receiver,
        owners,
        rules,
        guarded,
        realtime: Some(realtime),
        keys,
        warnings,
    };
    let ended = runtime.block_on(local.run_until(daemon.run(begun)));
    // Everything is undone: a look-up that no server answers keeps nobody waiting.
    runtime.shutdown_background();
    ended
}

/// What a daemon left behind that has died.
fn undo_earlier(place: &Place, dry_run: bool) -> Result<UndoReport> {
    let left_over = undo::undo(place, dry_run);
    // What it wrote here later would undo what is done from now on.
    ensure!(
        !left_over.goes_on,
        "what an earlier daemon left behind is still being undone, so giveway does not start: {left_over}. Nothing else \
         was changed; start it again, or undo it with `giveway revert`"
    );
    if !dry_run {
        place.claim()?;
        place.remove_orphans(|other| drop(undo::threads(other, false)));
    }
    if !left_over.is_nothing() {
        let done = if dry_run { "would be" } else { "is" };
        tracing::info!("an earlier daemon died; what it left behind {done} undone: {left_over}");
    }
    Ok(left_over)
}

/// Of processes. By the same programs the watchdog lists this one's threads.
fn open_owners(place: &Place, life: Life, sessions: Option<String>, dry_run: bool) -> Result<OwnerReader> {
    let pins = (!dry_run).then(|| place.pins());
    let mut owners = OwnerReader::open(place.netns_inum(), pins).context(
        "cannot watch this kernel's processes, so giveway cannot run here; `giveway doctor` says what is missing",
    )?;
    if let Some(folder) = sessions {
        owners.follow_sessions(folder);
    }
    life.list_by(&owners.tasks().threads)?;
    if !dry_run
        && life.threads().is_err()
        && let Err(error) = owners.tasks().threads.pin(&place.pins())
    {
        tracing::warn!("a thread that is stuck while others run will not be found out: {error:#}");
    }
    Ok(owners)
}

fn warn_of_links(choice: &Choice, config: &Config) {
    let Ok(found) = choice.find() else { return };
    if found.links.is_empty() {
        return tracing::warn!("{choice}; meanwhile nothing is capped or queued");
    }
    let lines = choice.awaited(&found).into_iter();
    lines
        .chain(choice.unmanaged(&config.uplink, &found))
        .for_each(|line| tracing::warn!("{line}"));
}

/// What the configuration asks for and this machine does not have.
fn not_to_be_had(config: &Config, qdisc: &Result<(), String>) -> Vec<String> {
    let mut lines = Vec::new();
    if let (BackendName::Bpf, Err(reason)) = (config.queue.backend, qdisc) {
        lines.push(format!("[queue] backend = \"bpf\" is not to be had: {reason}"));
    }
    if let (true, Err(reason)) = (finds_a_rate(config), qdisc) {
        lines.push(format!(
            "rate_mbit = \"auto\" finds no rate, so nothing is paced and no deadline promised there: that takes the BPF qdisc, and \
             {reason}; give a number"
        ));
    }
    if config.group.key_file.is_some() {
        lines.extend(open_to_users(config.group.port));
    }
    if let Some(name) = missing_group(config) {
        lines.push(format!(
            "[control] group = \"{name}\": there is no such group, so only root may look"
        ));
    }
    lines
}

/// What of this machine the engine decides by.
fn setup(
    config: &Config,
    sockets: &SocketActuators,
    netns_inum: u32,
    keys: Option<Keyring>,
    qdisc: Result<(), String>,
    dry_run: bool,
) -> Result<Setup> {
    let rtt_resolution = rtt_floors_us().into_iter();
    Ok(Setup {
        seed: random()?,
        keys,
        rtt_resolution: rtt_resolution.map(|us| Duration::from_micros(us.into())).collect(),
        background: match dry_run {
            true => Means {
                control: config.classes.congestion_control.then(|| scavenger::name(netns_inum)),
                receive_window: config.classes.receive_window,
            },
            false => Means {
                control: sockets.scavenger().map(str::to_owned),
                receive_window: config.classes.receive_window && sockets.has(&Setting::ReceiveWindow),
            },
        },
        dry_run: dry_run || sockets.is_empty(),
        backends: Backends {
            bpf: qdisc,
            // Whether the kernel has it is found out by trying.
            htb: Ok(()),
            marks: Ok(()),
            dry_run,
        },
    })
}

fn usual_configuration() -> Option<PathBuf> {
    let file = PathBuf::from(USUAL_CONFIGURATION);
    let is_there = fs::symlink_metadata(&file).is_ok();
    if is_there {
        tracing::info!("the configuration is {USUAL_CONFIGURATION}");
    }
    is_there.then_some(file)
}

/// Somewhere at least.
fn finds_a_rate(config: &Config) -> bool {
    let uplinks = config.uplink.iter().map(|uplink| &uplink.rate_mbit);
    let mut all = uplinks.chain([&config.link.rate_mbit]);
    all.any(|rate| *rate == Some(RateMbit::Estimated))
}

/// One that was asked for; the usual one comes with the package.
pub fn missing_group(config: &Config) -> Option<&str> {
    let name = &config.control.group;
    let is_missing = *name != Control::default().group && Group::from_name(name).is_ok_and(|group| group.is_none());
    is_missing.then_some(name)
}

/// With what the command line says in its place.
fn configuration(args: &RunArgs, file: Option<&Path>) -> Result<Config> {
    let mut config = load_config(file)?;
    if !args.interface.is_empty() {
        (config.interface, config.interfaces) = (None, args.interface.clone());
        config.check().map_err(|e| Usage(format!("{e}; nothing was changed")))?;
    }
    Ok(config)
}

fn load_config(path: Option<&Path>) -> Result<Config> {
    let Some(path) = path else { return Ok(Config::default()) };
    let read = || {
        let mut file = File::open(path)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        Ok((file.metadata()?, text))
    };
    let refused = |reason: String| {
        Usage(format!(
            "the configuration {}: {reason}; nothing was changed",
            path.display()
        ))
    };
    let (about, text) = read().map_err(|error: io::Error| refused(format!("cannot be read: {error}")))?;
    // It decides what this process does with its privileges.
    if let Some(reason) = not_the_callers(path, &about) {
        return Err(refused(reason).into());
    }
    let (config, _) = config::read(&path.display().to_string(), &text)
        .map_err(|located| Usage(format!("{located}; nothing was changed")))?;
    Ok(config)
}

/// What is wrong in a folder of rules ends nothing; what is wrong in giveway.toml does, like everything there.
fn class_rules(files: RuleFiles) -> Result<ClassRules> {
    let Some((rules, problems)) = files.read_within(RULES_PATIENCE) else {
        let late = ClassRules::late(files);
        late.missing(false).for_each(|line| tracing::warn!("{line}"));
        return Ok(late);
    };
    for problem in &problems {
        if Some(&problem.file) == files.main().as_ref() {
            return Err(Usage(format!("{problem}; nothing was changed")).into());
        }
        tracing::warn!("{problem}; its rules are not active");
    }
    Ok(ClassRules::new(files, (rules, problems)))
}

/// The folder that tells of sessions, where systemd runs this machine.
fn sessions(args: &RunArgs) -> Option<String> {
    let usual = || {
        fs::exists("/run/systemd/system")
            .unwrap_or_default()
            .then(|| "/run/systemd".to_owned())
    };
    args.sessions.clone().or_else(usual)
}

pub fn priority_engine(config: &Config, dry_run: bool) -> Result<Priority> {
    let group = |name: &str| {
        name.parse()
            .ok()
            .or_else(|| Some(Group::from_name(name).ok()??.gid.as_raw()))
    };
    let names = Names {
        user: &uid_of,
        group: &group,
    };
    let cpus = u32::try_from(crate::kernel::online_cpus())?;
    Ok(Priority::from_config(config, cpus, &names, dry_run).map_err(|e| Usage(format!("{e}; nothing was changed")))?)
}

fn choose_interfaces(config: &Config) -> Result<Choice> {
    let names: Vec<String> = config.interface.iter().chain(&config.interfaces).cloned().collect();
    if names.is_empty() {
        return Ok(Choice::DefaultRoute);
    }
    if names.iter().any(|name| name == "lo") {
        return Err(Usage("`lo` is never managed: there is no one to yield to on the loopback".to_owned()).into());
    }
    let is_there = |name: &String| nix::net::if_::if_nametoindex(name.as_str()).is_ok();
    // Of several, one may come later.
    if !names.iter().any(is_there) {
        bail!(
            "there is no interface `{}` in this network namespace; nothing was changed. `ip link` lists them; \
             without --interface those with a default route are taken, and waited for",
            names.join("` or `")
        );
    }
    Ok(Choice::Named(names))
}
