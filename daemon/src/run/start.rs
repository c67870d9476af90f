// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the command line to a running daemon: every way in which a start can fail is found here, before
//! anything is changed, and gets its one clear line.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use giveway_engine::config::Config;
use giveway_engine::wire::Keyring;
use giveway_engine::{Engine, Setup};

use super::daemon::Daemon;
use crate::actuate::cap::{CapActuator, rtt_resolution};
use crate::cli::RunArgs;
use crate::exit::Usage;
use crate::guardian::Guarded;
use crate::interface::Choice;
use crate::kernel::FlowMonitor;
use crate::place::Place;
use crate::revert;

/// A key file is a few lines.
const LONGEST_KEY_FILE: u64 = 4096;

pub fn run(args: &RunArgs) -> Result<()> {
    let mut config = load_config(args.config.as_deref())?;
    if let Some(interface) = &args.interface {
        config.interface = Some(interface.clone());
    }
    let choice = choose_interface(&config)?;
    let keys = config.group.key_file.as_deref().map(load_keys).transpose()?;
    if !nix::unistd::geteuid().is_root() {
        bail!("giveway needs root (or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON) to watch and cap sockets; nothing was changed. Start it with sudo or as a system service");
    }
    let place = Place::here()?;
    let lock = place.lock()?;
    let left_over = revert::lift(&place)?;
    if left_over > 0 {
        tracing::info!("an earlier daemon died and left {left_over} caps behind; they are lifted");
    }
    let monitor = FlowMonitor::open(place.netns_inum())
        .context("cannot watch this kernel's sockets, so giveway cannot run here; `giveway doctor` says what is missing")?;
    let (caps, degraded) = open_caps(&place, args.dry_run);
    let mut seed = [0; 32];
    fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut seed)).context("no randomness from /dev/urandom")?;
    let setup = Setup { seed, keys, rtt_resolution: rtt_resolution(), dry_run: args.dry_run || caps.is_none() };
    let engine = Engine::new(&config, setup);
    let guarded = if caps.is_some() { Some(Guarded::start()?) } else { None };

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the event loop")?;
    let local = tokio::task::LocalSet::new();
    let daemon = Daemon { config, choice, place, engine, monitor, caps, guarded, degraded };
    let outcome = runtime.block_on(local.run_until(daemon.run()));
    drop(lock);
    outcome
}

fn load_config(path: Option<&Path>) -> Result<Config> {
    let Some(path) = path else { return Ok(Config::default()) };
    let text = fs::read_to_string(path)
        .map_err(|e| Usage(format!("cannot read the configuration {}: {e}; nothing was changed", path.display())))?;
    Ok(Config::parse(&text).map_err(|e| Usage(format!("{}: {e}; nothing was changed", path.display())))?)
}

fn choose_interface(config: &Config) -> Result<Choice> {
    let Some(name) = &config.interface else { return Ok(Choice::DefaultRoute) };
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

/// Reads the group's keys from a file that only its owner can read.
fn load_keys(path: &str) -> Result<Keyring> {
    let refused = |why: String| Usage(format!("the group's key {path} is refused: {why}; nothing was changed"));
    // A FIFO put there must not hold the start up.
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(|e| refused(format!("{e}; make one with `giveway key new`")))?;
    let about = file.metadata().map_err(|e| refused(e.to_string()))?;
    if !about.is_file() {
        return Err(refused("it is not a regular file".to_owned()).into());
    }
    if about.mode() & 0o077 != 0 {
        return Err(refused(format!("others may read it (mode {:04o}); `chmod 600 {path}`", about.mode() & 0o7777)).into());
    }
    let mut text = String::new();
    file.take(LONGEST_KEY_FILE).read_to_string(&mut text).map_err(|e| refused(e.to_string()))?;
    Ok(Keyring::parse(&text).map_err(|e| refused(e.to_string()))?)
}

/// Without caps the daemon still watches and tells; the reason goes into the status.
fn open_caps(place: &Place, dry_run: bool) -> (Option<CapActuator>, Vec<String>) {
    if dry_run {
        return (None, Vec::new());
    }
    match CapActuator::open(place.netns_inum()) {
        Ok(caps) => (Some(caps), Vec::new()),
        Err(error) => {
            let line = format!("nothing can be capped: {error:#}; watching and reporting go on");
            tracing::warn!("{line}");
            (None, vec![line])
        }
    }
}
