// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is set by hand while it runs (`giveway class set`, `giveway limit set`): who may set what, how much, and when it ends.
//! Whose a process is, and in which cgroup, the kernel says; which tasks a setting is for stands in their records
//! ([`crate::kernel::inherit`]), all else in a file of the state folder, so that the next daemon of this boot finds it. The
//! engine says what follows for flows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use giveway_engine::class;
use giveway_engine::class::by_hand::{MOST_PROCESSES, SetByHand, Target};
use giveway_engine::config::Config;
use giveway_engine::model::{ChosenLimit, Class, Limit, Process, ProcessId, ROOT, Rates, Treatment};
use giveway_engine::network::action::Input;
use giveway_engine::queue;
use giveway_engine::queue::BackgroundFlow;
use giveway_engine::queue::links::LinkRates;
use giveway_engine::rate;
use serde::{Deserialize, Serialize};

use super::Running;
use crate::actuate::queue::admission::number_of;
use crate::control::server::Asker;
use crate::control::{ByHandNow, Request, SettingKind, TargetId};
use crate::kernel::libbpf_log::one_line;
use crate::kernel::now;
use crate::kernel::tasks::shown;

/// Of what a task connects.
const NOTHING_SAID: u32 = 0;
/// Targets, of each user, of all users but root, and in all. Each is looked at once a second, and for each flow that is
/// judged.
const OF_A_USER: usize = 16;
const OF_USERS: usize = 96;
const MOST: usize = 256;
/// Of the numbers for processes, what users leave to root.
const PROCESSES_OF_USERS: usize = MOST_PROCESSES as usize - 16;
/// Processes that are read at once; the others are within a second.
const READ_AT_ONCE: usize = 256;
/// A flow that is not there yet is waited for so long: one that is silent is seen by the next scan over all sockets.
const AWAITED: Duration = Duration::from_secs(60);
/// Of the file.
const VERSION: u32 = 2;

#[derive(Default)]
pub(super) struct ByHand {
    all: Vec<SetByHand>,
    /// Of flows that none has been seen of yet: until when one may come.
    awaited: Vec<(SetByHand, Duration)>,
    /// The number that was given to a process last.
    last: u8,
    /// Rates of links, by their names.
    links: BTreeMap<String, LinkRates>,
    /// Why the next daemon would find what is over.
    pub problem: Option<String>,
}

/// As it is written down.
#[derive(Deserialize, Serialize)]
struct SettingsFile {
    version: u32,
    set: Vec<SetByHand>,
    #[serde(default)]
    links: BTreeMap<String, LinkRates>,
}

/// What is asked for.
#[derive(Clone, Copy)]
struct RequestedSettings {
    class: Option<Class>,
    rates: Rates,
}

/// A target that was found, and what is known of it.
struct ResolvedTarget {
    target: Target,
    process: Option<Process>,
    cgroup: String,
    elsewhere: Option<String>,
}

impl ByHand {
    fn position(&self, target: &Target, uid: u32) -> Option<usize> {
        let is_it = |set: &SetByHand| set.uid == uid && set.target.is_same(target);
        self.all.iter().position(is_it)
    }

    /// Settings of root's that hold for it, its own and those of what it belongs to.
    fn roots(&self, found: &ResolvedTarget) -> impl Iterator<Item = &SetByHand> {
        let is_in = |path: &str| {
            let below = found.cgroup.strip_prefix(path.trim_end_matches('/'));
            !found.cgroup.is_empty() && below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
        };
        let holds = move |set: &&SetByHand| match &set.target {
            Target::Process { number, .. } => found.process.as_ref().is_some_and(|of| of.by_hand >> number & 1 == 1),
            Target::Cgroup { path, .. } => is_in(path),
            Target::Flow { .. } => set.target.is_same(&found.target),
        };
        self.all.iter().filter(|set| set.uid == ROOT).filter(holds)
    }

    /// A user does not lift what root has set.
    fn check(&self, found: &ResolvedTarget, asked: RequestedSettings) -> Result<()> {
        for set in self.roots(found) {
            let lowers = |own: Class| set.class.is_none_or(|class| own >= class);
            ensure!(
                asked.class.is_none_or(lowers),
                "root has made {} {}: users can only lower that",
                set.target.shown(),
                set.class.map_or("", Class::name)
            );
            ensure!(
                !bounds(asked.rates, set.limit),
                "root has set a limit for {}, which only root changes",
                set.target.shown()
            );
        }
        let chosen = found.process.as_ref().and_then(|process| process.chosen);
        let roots = chosen
            .filter(|choice| choice.uid == ROOT)
            .and_then(|choice| choice.limit);
        ensure!(
            !bounds(asked.rates, roots),
            "root has chosen a rate limit for it with `giveway exec`, which only root lifts"
        );
        Ok(())
    }

    fn has_room(&self, uid: u32) -> Result<()> {
        let own = self.all.iter().filter(|set| set.uid == uid).count();
        let of_users = self.all.iter().filter(|set| set.uid != ROOT).count();
        ensure!(
            uid == ROOT || own < OF_A_USER,
            "uid {uid} has set something by hand for {own} targets, which is the most; clear one of them first"
        );
        ensure!(
            self.all.len() < MOST && (uid == ROOT || of_users < OF_USERS),
            "something is set by hand for {} targets, {of_users} of them by users, which is the most",
            self.all.len()
        );
        Ok(())
    }

    /// A number for a process; the one that was given last comes again last.
    fn number(&self, uid: u32, in_use: u64) -> Result<u8> {
        let numbers = self.all.iter().filter_map(|set| match set.target {
            Target::Process { number, .. } => Some((set.uid, number)),
            _ => None,
        });
        let of_users = numbers.clone().filter(|(uid, _)| *uid != ROOT).count();
        let taken = numbers.fold(in_use, |taken, (_, number)| taken | 1 << number);
        let after = self.last.saturating_add(1);
        let free = (after..MOST_PROCESSES).chain(0..after.min(MOST_PROCESSES));
        let number = free.into_iter().find(|number| taken >> number & 1 == 0);
        number
            .filter(|_| uid == ROOT || of_users < PROCESSES_OF_USERS)
            .ok_or_else(|| anyhow!("something is set by hand for as many processes as can be; clear one of them first"))
    }

    fn kept(&self) -> Result<String> {
        let kept = SettingsFile {
            version: VERSION,
            set: self.all.clone(),
            links: self.links.clone(),
        };
        Ok(serde_json::to_string(&kept)?)
    }
}

/// Whether a limit is asked for in a direction that this one is for.
fn bounds(asked: Rates, limit: Option<ChosenLimit>) -> bool {
    let rates = limit.map(|limit| limit.rates).unwrap_or_default();
    (asked.up.is_some() && rates.up.is_some()) || (asked.down.is_some() && rates.down.is_some())
}

impl Running {
    pub(super) fn answer_by_hand(&mut self, request: &Request, asker: Asker) -> Result<Result<ByHandNow, String>> {
        let done = match request {
            Request::Set {
                target,
                class,
                upload_limit_mbit,
                download_limit_mbit,
            } => {
                let rate = |mbit: &Option<f64>| mbit.map(rate::bytes_per_s).transpose();
                let rates = rate(upload_limit_mbit).and_then(|up| {
                    let down = rate(download_limit_mbit)?;
                    Ok(Rates { up, down })
                });
                match rates {
                    Ok(rates) => self.set(target, RequestedSettings { class: *class, rates }, asker),
                    Err(reason) => return Ok(Err(reason)),
                }
            }
            Request::Clear { target, what } => self.clear(target, *what, asker),
            _ => Ok(self.by_hand_now(asker)),
        };
        Ok(done.map_err(|error| one_line(&error)))
    }

    fn by_hand_now(&self, asker: Asker) -> ByHandNow {
        let may_see = |set: &SetByHand| asker.is_reader || set.uid == asker.uid;
        ByHandNow {
            by_hand: self.daemon.engine.overview().by_hand_views(may_see),
            target: None,
            changed: false,
            comes_back: None,
            not_enforced: Vec::new(),
        }
    }

    fn set(&mut self, named: &TargetId, asked: RequestedSettings, asker: Asker) -> Result<ByHandNow> {
        let uid = asker.uid;
        ensure!(
            asked.class.is_some() || !asked.rates.is_none(),
            "neither a class nor a limit is given"
        );
        if let Some(reason) = self.daemon.engine.paused().filter(|_| !asked.rates.is_none()) {
            bail!("giveway is paused ({reason}): no limit is installed before `giveway resume`");
        }
        let mut found = self.find(named, asker)?;
        if uid != ROOT {
            self.by_hand.check(&found, asked)?;
        }
        let at = self.by_hand.position(&found.target, uid);
        let mut set = match at {
            Some(at) => self.by_hand.all[at].clone(),
            None => {
                self.by_hand.has_room(uid)?;
                self.give_number(&mut found.target, uid)?;
                SetByHand {
                    target: found.target.clone(),
                    uid,
                    class: None,
                    limit: None,
                }
            }
        };
        let before = set.clone();
        set.class = asked.class.or(set.class);
        let rates = set.limit.map(|limit| limit.rates).unwrap_or_default();
        let rates = Rates {
            up: asked.rates.up.or(rates.up),
            down: asked.rates.down.or(rates.down),
        };
        // Its queue stands in the band of the class.
        if !rates.is_none() {
            set.limit = Some(self.limit_by_hand(&set, rates)?);
        }
        let changed = set != before;
        // The one that was set last counts first.
        if let Some(at) = at {
            self.by_hand.all.remove(at);
        } else if let Target::Flow { flow } = &set.target
            && self.daemon.engine.overview().flows_to(flow, uid) == 0
        {
            self.by_hand.awaited.push((set.clone(), now() + AWAITED));
        }
        let marked = self.keep_set(&set, before, at.is_some())?;
        self.feed_by_hand(&format!("uid {uid} has asked for it"), marked)?;
        let mut answer = self.by_hand_now(asker);
        answer.not_enforced = self.daemon.engine.overview().shortfalls_of(set.class, rates);
        answer.not_enforced.extend(found.elsewhere);
        let own = answer.by_hand.iter().find(|view| view.set.target == set.target);
        let lacks = own.map(|view| view.not_enforced.clone()).unwrap_or_default();
        answer.not_enforced.extend(lacks);
        (answer.target, answer.changed) = (Some(set.target.shown()), changed);
        Ok(answer)
    }

    /// Where that fails, all is as it was before.
    fn keep_set(&mut self, set: &SetByHand, before: SetByHand, was_set: bool) -> Result<BTreeSet<ProcessId>> {
        self.by_hand.all.push(set.clone());
        let outcome = self.keep_by_hand().and_then(|()| self.mark(set));
        if outcome.is_err() {
            self.by_hand.all.pop();
            if let Some(limit) = before.limit {
                let _ = self.limit_by_hand(&before, limit.rates);
            }
            self.by_hand.all.extend(was_set.then_some(before));
            let _ = self.keep_by_hand();
        }
        outcome
    }

    fn clear(&mut self, named: &TargetId, what: SettingKind, asker: Asker) -> Result<ByHandNow> {
        let found = self.find(named, asker)?;
        let has = |set: &SetByHand| match what {
            SettingKind::Class => set.class.is_some(),
            SettingKind::Limit => set.limit.is_some(),
        };
        let of_others = |set: &&SetByHand| set.uid != asker.uid && has(set) && set.target.is_same(&found.target);
        let other = self.by_hand.all.iter().find(of_others).map(|set| set.uid);
        let mut changed = false;
        let (mut ended, mut left) = (Vec::new(), Vec::new());
        // Root's word is the last on anybody's.
        let is_meant = |set: &SetByHand| asker.uid == ROOT || set.uid == asker.uid;
        for set in &mut self.by_hand.all {
            if !set.target.is_same(&found.target) || !is_meant(set) || !has(set) {
                continue;
            }
            match what {
                SettingKind::Class => set.class = None,
                SettingKind::Limit => set.limit = None,
            }
            changed = true;
            if set.class.is_none() && set.limit.is_none() {
                ended.push(set.clone());
            } else {
                left.push(set.clone());
            }
        }
        ensure!(
            changed || other.is_none(),
            "uid {} has set it for {}; only that user and root clear it",
            other.unwrap_or_default(),
            found.target.shown()
        );
        let cleared = format!("uid {} has cleared it", asker.uid);
        for set in &left {
            self.forget_marks(set)?;
        }
        if changed {
            self.end_by_hand(&ended, &cleared)?;
        }
        let mut answer = self.by_hand_now(asker);
        (answer.target, answer.changed) = (Some(found.target.shown()), changed);
        let problem = self.by_hand.problem.iter().filter(|_| changed);
        answer.comes_back = problem
            .map(|reason| format!("it is active again once giveway is restarted: {reason}"))
            .next();
        Ok(answer)
    }

    /// Of what `all` has, these are over.
    fn end_by_hand(&mut self, ended: &[SetByHand], reason: &str) -> Result<()> {
        self.by_hand.all.retain(|set| !ended.contains(set));
        let numbers = ended.iter().filter_map(|set| match set.target {
            Target::Process { number, .. } => Some(number),
            _ => None,
        });
        let mut changed = BTreeSet::new();
        for number in numbers {
            changed.extend(self.daemon.owners.clear_by_hand(number)?);
        }
        // What others have set for the same tasks was forgotten with it.
        for set in self.by_hand.all.clone() {
            changed.extend(self.mark(&set)?);
        }
        let kept = self.keep_by_hand();
        self.by_hand.problem = kept.err().map(|error| one_line(&error));
        if let Some(problem) = &self.by_hand.problem {
            tracing::warn!("{problem}");
        }
        self.feed_by_hand(reason, changed)
    }

    /// The engine, with the processes for which something is new as they are now.
    fn feed_by_hand(&mut self, reason: &str, changed: BTreeSet<ProcessId>) -> Result<()> {
        self.step(Input::Class(class::Input::ByHand {
            all: self.by_hand.all.clone(),
            reason: reason.to_owned(),
        }))?;
        if changed.is_empty() {
            return Ok(());
        }
        let owners = &mut self.daemon.owners;
        let processes = changed.into_iter().take(READ_AT_ONCE);
        let processes = processes.map(|id| (id, owners.process(id))).collect();
        self.step(Input::Identified {
            processes,
            cgroups: Vec::new(),
        })
    }

    /// The tasks that it is for.
    fn mark(&mut self, set: &SetByHand) -> Result<BTreeSet<ProcessId>> {
        let Target::Process { id, number, .. } = &set.target else {
            return Ok(BTreeSet::new());
        };
        let only = (set.uid != ROOT).then_some(set.uid);
        let limits = set.limit.map(|limit| limit.rates.numbered(limit.number));
        let treatment = Treatment {
            class: self.daemon.engine.overview().class_by_hand(set),
            limits: limits.unwrap_or_default(),
        };
        let treatment = number_of(treatment);
        self.daemon.owners.set_by_hand(*id, *number, only, treatment)
    }

    /// They keep what it is for, and nothing is said of what they connect.
    fn forget_marks(&mut self, set: &SetByHand) -> Result<()> {
        let Target::Process { id, number, .. } = &set.target else {
            return Ok(());
        };
        let only = (set.uid != ROOT).then_some(set.uid);
        self.daemon
            .owners
            .set_by_hand(*id, *number, only, NOTHING_SAID)
            .map(drop)
    }

    fn give_number(&mut self, target: &mut Target, uid: u32) -> Result<()> {
        if let Target::Process { number, .. } = target {
            let in_use = self.daemon.owners.set_by_hand_in_use()?;
            *number = self.by_hand.number(uid, in_use)?;
            self.by_hand.last = *number;
        }
        Ok(())
    }

    fn limit_by_hand(&mut self, set: &SetByHand, rates: Rates) -> Result<ChosenLimit> {
        if rates.down.is_some() {
            self.check_detours()?;
        }
        let class = self.daemon.engine.overview().class_by_hand(set);
        let Some(ChosenLimit { number, .. }) = set.limit else {
            return self.limit_command(set.uid, Some(class), rates);
        };
        let owners = &mut self.daemon.owners;
        owners.change_limit(Limit { number, rates, class });
        let all = owners.command_limits();
        self.step(Input::Class(class::Input::CommandLimits(all)))?;
        Ok(ChosenLimit { number, rates })
    }

    /// What is named, where this user may set anything for it.
    fn find(&self, named: &TargetId, asker: Asker) -> Result<ResolvedTarget> {
        match named {
            TargetId::Process(id) => self.find_process(*id, asker),
            TargetId::Cgroup(id) => self.find_cgroup(*id, asker),
            TargetId::Flow(flow) => self.find_flow(*flow, asker),
        }
    }

    fn find_process(&self, id: ProcessId, asker: Asker) -> Result<ResolvedTarget> {
        ensure!(id.pid != 1, "process 1 has started everything: name a unit or a cgroup");
        let (_held, facts) = self.daemon.owners.hold(id)?;
        ensure!(
            asker.uid == ROOT || facts.uid == asker.uid,
            "process {} belongs to uid {}: users set this for processes of their own",
            id.pid,
            facts.uid
        );
        let command = facts.exe.rsplit('/').next().unwrap_or_default();
        let elsewhere = (facts.netns_inum != self.daemon.place.netns_inum()).then(|| {
            format!(
                "process {} is in another network namespace, whose links this giveway does not manage",
                id.pid
            )
        });
        let target = Target::Process {
            id,
            number: 0,
            command: shown(command),
        };
        let process = Process {
            uid: facts.uid,
            chosen: facts.chosen,
            by_hand: facts.by_hand,
            ..Process::default()
        };
        Ok(ResolvedTarget {
            // One that has a number keeps it.
            target: self.known(target, asker.uid),
            process: Some(process),
            cgroup: facts.cgroup,
            elsewhere,
        })
    }

    fn known(&self, target: Target, uid: u32) -> Target {
        let at = self.by_hand.position(&target, uid);
        at.map_or(target, |at| self.by_hand.all[at].target.clone())
    }

    fn find_cgroup(&self, id: u64, asker: Asker) -> Result<ResolvedTarget> {
        ensure!(id > 0, "no cgroup has the number 0");
        let owners = &self.daemon.owners;
        let found = owners
            .tasks()
            .cgroup(id)
            .context("there is no such cgroup (any more)")?;
        let path = shown(&found.path);
        ensure!(!found.path.ends_with("/..."), "{path}: it is nested too deep");
        let is_in = |pid| owners.is_in(pid, asker.uid, &found.path);
        ensure!(
            asker.uid == ROOT || found.uid == asker.uid || asker.pid.is_some_and(is_in),
            "{path} belongs to uid {}: users name cgroups of their own, or those that they are in",
            found.uid
        );
        Ok(ResolvedTarget {
            target: Target::Cgroup {
                cgroup_id: id,
                path: found.path.clone(),
            },
            process: None,
            cgroup: found.path,
            elsewhere: None,
        })
    }

    fn find_flow(&self, flow: BackgroundFlow, asker: Asker) -> Result<ResolvedTarget> {
        let flow = flow.canonical();
        ensure!(
            !flow.address.is_unspecified() && flow.port > 0 && flow.local_port != Some(0),
            "no flow has this end"
        );
        let target = Target::Flow { flow };
        let flows = self.daemon.engine.overview().flows_to(&flow, asker.uid);
        let elsewhere = (flows == 0).then(|| {
            format!(
                "no such flow of yours is known now; one that is silent is found within {} s, after which this is over",
                AWAITED.as_secs()
            )
        });
        Ok(ResolvedTarget {
            target,
            process: None,
            cgroup: String::new(),
            elsewhere,
        })
    }

    /// Targets end.
    pub(super) fn expire_by_hand(&mut self) -> Result<()> {
        if self.by_hand.all.is_empty() {
            return Ok(());
        }
        let is_process = |set: &SetByHand| matches!(set.target, Target::Process { .. });
        let in_use = match self.by_hand.all.iter().any(is_process) {
            true => {
                let in_use = self.daemon.owners.set_by_hand_in_use();
                self.tolerate(in_use)?
            }
            false => Some(0),
        };
        let (engine, owners) = (&self.daemon.engine, &self.daemon.owners);
        let is_awaited = |set: &SetByHand| {
            let mut awaited = self.by_hand.awaited.iter();
            awaited.any(|(of, until)| of.uid == set.uid && of.target.is_same(&set.target) && *until > now())
        };
        let flows: BTreeMap<usize, bool> = (self.by_hand.all.iter().enumerate())
            .filter_map(|(at, set)| match &set.target {
                Target::Flow { flow } => Some((at, engine.overview().flows_to(flow, set.uid) > 0)),
                _ => None,
            })
            .collect();
        let has_ended = |at: usize, set: &SetByHand| match &set.target {
            Target::Process { number, .. } => in_use.is_some_and(|in_use| in_use >> number & 1 == 0),
            Target::Cgroup { cgroup_id, path } => owners.cgroup(*cgroup_id).as_deref() != Some(path),
            Target::Flow { .. } => !flows.get(&at).copied().unwrap_or_default() && !is_awaited(set),
        };
        let all = self.by_hand.all.iter().enumerate();
        let ended: Vec<SetByHand> = all
            .filter(|(at, set)| has_ended(*at, set))
            .map(|(_, set)| set.clone())
            .collect();
        let seen = |of: &SetByHand| {
            let at = self.by_hand.position(&of.target, of.uid);
            at.is_none_or(|at| flows.get(&at).copied().unwrap_or_default())
        };
        let awaited = self
            .by_hand
            .awaited
            .iter()
            .filter(|(of, until)| !seen(of) && *until > now());
        self.by_hand.awaited = awaited.cloned().collect();
        if ended.is_empty() {
            return Ok(());
        }
        self.end_by_hand(&ended, "its target has ended")
    }

    fn keep_by_hand(&mut self) -> Result<()> {
        // A dry run leaves nothing behind.
        if self.daemon.guarded.is_none() {
            return Ok(());
        }
        match self.by_hand.all.is_empty() && self.by_hand.links.is_empty() {
            true => self.daemon.place.forget_by_hand(),
            false => self.daemon.place.keep_by_hand(&self.by_hand.kept()?),
        }
    }

    /// The rates of this link from now on; None: as it is configured. Whether that is news.
    pub(super) fn set_link_rates(&mut self, name: String, rates: Option<LinkRates>) -> Result<Result<bool, String>> {
        if let Some(Err(reason)) = rates.map(LinkRates::check) {
            return Ok(Err(reason));
        }
        let is_known = self.found.links.iter().any(|(_, known)| *known == name);
        if rates.is_some() && !is_known {
            let links: Vec<&str> = self.found.links.iter().map(|(_, name)| name.as_str()).collect();
            let links = if links.is_empty() {
                "none is".to_owned()
            } else {
                links.join(", ")
            };
            return Ok(Err(format!(
                "`{name}` is no link that giveway manages now ({links}): it has to be up, and named in `interfaces` or have a \
                 default route"
            )));
        }
        let links = &mut self.by_hand.links;
        let before = links.remove(&name);
        let known = before.unwrap_or_default();
        let rates = rates.map(|rates| LinkRates {
            up: rates.up.or(known.up),
            down: rates.down.or(known.down),
        });
        links.extend(rates.map(|rates| (name.clone(), rates)));
        let links = links.clone();
        if before == rates {
            return Ok(Ok(false));
        }
        if let Err(error) = self.keep_by_hand() {
            let links = &mut self.by_hand.links;
            match before {
                Some(before) => _ = links.insert(name, before),
                None => _ = links.remove(&name),
            }
            return Ok(Err(one_line(&error)));
        }
        self.step(Input::Queue(queue::Input::Rates(links)))?;
        Ok(Ok(true))
    }

    /// What is used, with what was set of links at run time.
    pub(super) fn effective_config(&self) -> Config {
        self.daemon.config.with_link_rates(&self.by_hand.links)
    }

    /// What was set under the daemon before, as far as it is there still.
    pub(super) fn restore_by_hand(&mut self) -> Result<()> {
        let kept = (self.daemon.guarded.is_some())
            .then(|| self.daemon.place.kept_by_hand())
            .flatten();
        let Some(kept) = kept else { return Ok(()) };
        let kept = serde_json::from_str::<SettingsFile>(&kept).map_err(|error| error.to_string());
        let kept = kept.and_then(|kept| match kept.version {
            VERSION => Ok((kept.set, kept.links)),
            other => Err(format!("it has version {other}, and this giveway reads {VERSION}")),
        });
        let (mut all, links) = match kept {
            Ok(all) => all,
            Err(reason) => {
                tracing::warn!("what was set by hand under the daemon before is forgotten: {reason}");
                return Ok(());
            }
        };
        self.by_hand.links.clone_from(&links);
        self.step(Input::Queue(queue::Input::Rates(links)))?;
        all.retain(|set| !matches!(set.target, Target::Process { number, .. } if number >= MOST_PROCESSES));
        all.truncate(MOST);
        let limits = all.iter().filter_map(|set| {
            let ChosenLimit { number, rates } = set.limit?;
            let class = set.class.unwrap_or_default();
            let limit = Limit { number, rates, class };
            Some((set.uid, limit))
        });
        self.daemon.owners.restore_limits(limits);
        let flows = all.iter().filter(|set| matches!(set.target, Target::Flow { .. }));
        self.by_hand.awaited = flows.map(|set| (set.clone(), now() + AWAITED)).collect();
        let numbers = all.iter().filter_map(|set| match set.target {
            Target::Process { number, .. } => Some(number),
            _ => None,
        });
        self.by_hand.last = numbers.max().unwrap_or_default();
        self.by_hand.all = all;
        // What was started meanwhile.
        let mut marked = BTreeSet::new();
        for set in self.by_hand.all.clone() {
            let more = self.mark(&set);
            marked.extend(self.tolerate(more)?.unwrap_or_default());
        }
        self.feed_by_hand("it was set under the daemon before", marked)?;
        self.expire_by_hand()
    }
}
