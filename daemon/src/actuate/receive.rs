// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The receiving side: how packets come in on the managed interface, and which threads have the priority of a request
//! with a deadline. In come `[receive]` and `[[chain]]`, out go changes that [`undo`] takes back, in this process or
//! after its death. What cannot be done is told by [`Receiver::missing`], and everything else goes on.

use anyhow::{Context as _, Result};
use giveway_engine::config::{Chain, Config, ReceiveSection};
use libbpf_rs::MapHandle;
use nix::unistd::User;

use crate::interface::Interface;
use crate::kernel::arrival::{Arrival, Rule};
use crate::kernel::napi;
use crate::place::Place;

mod intake;
mod journal;
mod settings;
mod thread;
mod view;
mod wake;

use intake::Intake;
use journal::Journal;
pub use journal::undo;
pub use view::ReceiveView;
use wake::Waker;

pub struct Receiver {
    place: Place,
    section: ReceiveSection,
    managed: Option<Interface>,
    intake: Option<Intake>,
    chains: Option<Result<Chains>>,
    done: Vec<String>,
    missing: Vec<String>,
}

struct Chains {
    // Ends before the programs go.
    waker: Waker,
    arrival: Arrival,
}

impl Receiver {
    /// Loads what chains need. Nothing is changed yet.
    pub fn open(place: &Place, config: &Config, dry_run: bool) -> Self {
        let chains = (!config.chain.is_empty() && !dry_run).then(|| Chains::start(place, &config.chain));
        if let Some(Err(error)) = &chains {
            tracing::warn!("requests of [[chain]] get no priority: {error:#}");
        }
        Self {
            place: place.clone(),
            section: if dry_run {
                ReceiveSection::default()
            } else {
                config.receive.clone()
            },
            managed: None,
            intake: None,
            chains,
            done: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// What admission needs for the answers' deadlines.
    pub fn requests(&self) -> Option<&MapHandle> {
        let chains = self.chains.as_ref()?.as_ref().ok()?;
        Some(&chains.arrival.requests)
    }

    /// From now on it is about this interface.
    pub fn manage(&mut self, interface: Option<&Interface>) {
        if self.managed.as_ref() == interface {
            return;
        }
        self.managed = interface.cloned();
        self.intake = None;
        (self.done, self.missing) = Default::default();
        if let Some(Ok(chains)) = &mut self.chains
            && let Err(error) = chains.arrival.attach(interface.map(|interface| interface.index))
        {
            self.missing.push(format!("requests are not seen: {error:#}"));
        }
        let Some(interface) = interface.filter(|_| self.section != ReceiveSection::default()) else {
            return;
        };
        if let Err(error) = self.set_up(interface) {
            self.missing.push(format!("receiving on {}: {error:#}", interface.name));
        }
        for line in &self.done {
            tracing::info!("receiving on {}: {line}: [receive]", interface.name);
        }
        for line in &self.missing {
            tracing::warn!("{line}");
        }
    }

    fn set_up(&mut self, interface: &Interface) -> Result<()> {
        let path = self.place.receive_journal();
        let (done, missing) = settings::apply(&self.section, interface, &mut Journal::open(&path)?);
        self.done.extend(done);
        self.missing.extend(missing);
        let priority = self.section.napi_priority;
        let threads = if self.section.threaded_napi {
            napi::threads(interface.index)?
        } else {
            Vec::new()
        };
        if priority > 0 && !threads.is_empty() {
            self.done
                .push(format!("{} NAPI threads: FIFO {priority}", threads.len()));
            self.intake = Some(Intake::start(threads, priority, Journal::open(&path)?)?);
        }
        Ok(())
    }

    /// What does not work, and why.
    pub fn missing(&self) -> impl Iterator<Item = String> {
        let chains = self.chains.as_ref().and_then(|chains| chains.as_ref().err());
        let chains = chains.map(|error| format!("requests of [[chain]] get no priority: {error:#}"));
        self.missing.iter().cloned().chain(chains)
    }

    pub fn view(&self) -> ReceiveView {
        let waker = self.chains.as_ref().and_then(|chains| chains.as_ref().ok());
        ReceiveView {
            settings: self.done.clone(),
            handlers: waker.map(|chains| chains.waker.view()).unwrap_or_default(),
        }
    }

    /// Takes everything back.
    pub fn close(&mut self) -> Result<Vec<String>> {
        self.intake = None;
        self.chains = None;
        undo(&self.place.receive_journal(), false)
    }
}

impl Chains {
    fn start(place: &Place, chains: &[Chain]) -> Result<Self> {
        let rules = chains.iter().map(rule_of).collect::<Result<Vec<_>>>()?;
        let arrival = Arrival::load(place.netns_inum(), &rules)?;
        let journal = Journal::open(&place.receive_journal())?;
        let waker = Waker::start(arrival.handlers()?, &rules, journal)?;
        Ok(Self { waker, arrival })
    }
}

fn rule_of(chain: &Chain) -> Result<Rule> {
    let found = match chain.user.parse() {
        Ok(uid) => Some(uid),
        Err(_) => User::from_name(&chain.user)?.map(|user| user.uid.as_raw()),
    };
    let uid = found.with_context(|| format!("there is no user {}", chain.user))?;
    Ok(Rule {
        chain: chain.clone(),
        uid,
    })
}
