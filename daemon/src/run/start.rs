// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the command line to a running daemon: every way in which a start can fail is found here, before
//! anything is changed, and gets its one clear line.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use giveway_engine::config::Config;
use giveway_engine::queue::Backends;
use giveway_engine::realtime::{Names, Realtime};
use giveway_engine::{Engine, Setup};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Group, User};

use super::daemon::Daemon;
use super::realtime::RealtimeThread;
use crate::actuate::cap::{CapActuator, rtt_floors_us};
use crate::actuate::queue::QueueActuator;
use crate::actuate::receive::Receiver;
use crate::cli::RunArgs;
use crate::exit::Usage;
use crate::guardian::Guarded;
use crate::interface::Choice;
use crate::kernel::flow_monitor::FlowMonitor;
use crate::kernel::probe;
use crate::key::KeyFile;
use crate::place::Place;
use crate::revert;

pub fn run(args: &RunArgs) -> Result<()> {
    let mut config = load_config(args.config.as_deref())?;
    if let Some(interface) = &args.interface {
        config.interface = Some(interface.clone());
    }
    let choice = choose_interface(&config)?;
    let mut keys = config.group.key_file.as_deref().map(KeyFile::new);
    let keyring = keys
        .as_mut()
        .map(|file| file.read())
        .transpose()
        .map_err(|e| Usage(format!("{e:#}; nothing was changed")))?;
    let realtime = realtime_rules(&config, args.dry_run)?;
    crate::kernel::check_requirements()?;
    // A descriptor for each process that is held; the usual 1,024 are few.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    let place = Place::here()?;
    // The guardian of a daemon that has just died may still be at work.
    let lock = place.lock_within(revert::PATIENCE)?;
    let left_over = revert::undo(&place, args.dry_run)?;
    if !args.dry_run {
        place.remove_orphaned_pins();
    }
    if !left_over.is_nothing() {
        let done = if args.dry_run { "would be" } else { "is" };
        tracing::info!("an earlier daemon died; what it left behind {done} undone: {left_over}");
    }
    let monitor = FlowMonitor::open(place.netns_inum()).context(
        "cannot watch this kernel's sockets, so giveway cannot run here; `giveway doctor` says what is missing",
    )?;
    let (caps, mut degraded) = open_caps(&place, args.dry_run);
    if keys.is_none() {
        degraded.push("no group key: this device works alone (`giveway key new`, then key_file in [group])".to_owned());
    }
    for line in &degraded {
        tracing::warn!("{line}");
    }
    let mut seed = [0; 32];
    fs::File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut seed))
        .context("no randomness from /dev/urandom")?;
    let rtt_resolution = rtt_floors_us()
        .into_iter()
        .map(|us| Duration::from_micros(us.into()))
        .collect();
    let setup = Setup {
        seed,
        keys: keyring,
        rtt_resolution,
        dry_run: args.dry_run || caps.is_none(),
        backends: Backends {
            qdisc: probe::bpf_qdisc().map_err(|error| probe::one_line(&error)),
            // Whether the kernel has it is found out by trying.
            htb: Ok(()),
            dry_run: args.dry_run,
        },
    };
    let engine = Engine::new(crate::kernel::now(), &config, setup);
    let receiver = Receiver::open(&place, &config, args.dry_run);
    let queue = QueueActuator::open(&place, &config, receiver.requests())?;
    let mut guarded = if args.dry_run { None } else { Some(Guarded::start()?) };
    let canary = Duration::from_millis(config.realtime_limits.canary_ms.into());
    let realtime = RealtimeThread::start(&place, realtime, canary)?;
    if let Some(guarded) = &mut guarded {
        guarded.watch_thread(realtime.tid);
    }

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
        engine,
        monitor,
        caps,
        queue,
        receiver,
        guarded,
        realtime: Some(realtime),
        keys,
        degraded,
    };
    let outcome = runtime.block_on(local.run_until(daemon.run()));
    drop(lock);
    outcome
}

fn load_config(path: Option<&Path>) -> Result<Config> {
    let Some(path) = path else { return Ok(Config::default()) };
    let text = fs::read_to_string(path).map_err(|e| {
        Usage(format!(
            "cannot read the configuration {}: {e}; nothing was changed",
            path.display()
        ))
    })?;
    Ok(Config::parse(&text).map_err(|e| Usage(format!("{}: {e}; nothing was changed", path.display())))?)
}

fn realtime_rules(config: &Config, dry_run: bool) -> Result<Realtime> {
    let user = |name: &str| {
        name.parse()
            .ok()
            .or_else(|| Some(User::from_name(name).ok()??.uid.as_raw()))
    };
    let group = |name: &str| {
        name.parse()
            .ok()
            .or_else(|| Some(Group::from_name(name).ok()??.gid.as_raw()))
    };
    let names = Names {
        user: &user,
        group: &group,
    };
    let cpus = u32::try_from(crate::kernel::online_cpus())?;
    Ok(Realtime::from_config(config, cpus, &names, dry_run).map_err(|e| Usage(format!("{e}; nothing was changed")))?)
}

fn choose_interface(config: &Config) -> Result<Choice> {
    let Some(name) = &config.interface else {
        return Ok(Choice::DefaultRoute);
    };
    if name == "lo" {
        return Err(Usage("`lo` is never managed: there is nobody to give way to on the loopback".to_owned()).into());
    }
    if nix::net::if_::if_nametoindex(name.as_str()).is_err() {
        bail!(
            "there is no interface `{name}` in this network namespace; nothing was changed. `ip link` lists them; \
             without --interface the default route's is taken, and waited for"
        );
    }
    Ok(Choice::Named(name.clone()))
}

/// Without caps the daemon still watches and tells; the reason goes into the status.
fn open_caps(place: &Place, dry_run: bool) -> (Option<CapActuator>, Vec<String>) {
    if dry_run {
        return (None, Vec::new());
    }
    match CapActuator::open(place.netns_inum()) {
        Ok(caps) => {
            let degraded = [caps.new_connections_missing(), caps.ease_missing()]
                .into_iter()
                .flatten()
                .collect();
            (Some(caps), degraded)
        }
        Err(error) => {
            let line = format!("nothing can be capped: {error:#}; watching and reporting go on");
            (None, vec![line])
        }
    }
}
