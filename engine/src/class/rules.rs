// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules of all files, in their order. Input: texts. Output: rules, and what is wrong with which file. A file with
//! any error is refused as a whole.

use std::collections::{BTreeMap, BTreeSet};

use super::packets::{MOST_PACKET_RULES, PacketRule};
use super::source::{RuleLines, Source};
use super::units::{self, UnitFile};
use super::{By, FlowFacts, MOST_LIMITS, Verdict};
use crate::config::together::CLASS_RULES;
use crate::config::{ClassRule, Located, read, read_rules};
use crate::matcher::{Glob, Matcher};
use crate::model::{Class, Limit, LimitNumber, Process, Protocol, Rates, RuleId, Treatment};
use crate::rate::bytes_per_s;

/// The cost of a rule in bytes, besides its patterns.
const LEAST_COST: usize = 32;

/// A rule for an unknown user: its place, and the user's name.
type ForNobody = (String, String);

/// The sources of rules.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    /// giveway.toml, whose rules come first.
    pub main: Option<Source>,
    /// Files of an earlier folder come first, and replace those of the same name in later ones.
    pub folders: Vec<Vec<Source>>,
    /// Files of systemd units: for each unit its own file, then its drop-ins. Their rules follow those of the first
    /// folder.
    pub units: Vec<UnitFile>,
}

#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub matcher: Matcher,
    pub class: Class,
    /// The limits of all its flows in total, which have this number.
    pub rates: Rates,
    pub number: LimitNumber,
    pub id: RuleId,
    /// It applies to child processes, too.
    pub children: bool,
    pub place: String,
    pub reason: String,
}

/// Decided per packet, by its destination.
#[derive(Debug)]
pub(super) struct Undecided {
    pub verdict: Verdict,
    /// A packet-only rule limits them.
    pub is_limited: bool,
}

/// Rules; the first match counts.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub(crate) rules: Vec<Rule>,
    /// Rules that never match on this machine: the place of each, and the reason.
    idle_here: Vec<(String, String)>,
    for_nobody: Vec<ForNobody>,
}

impl Rules {
    /// The rules of all valid files, and the problems of the others. `uid`: looks up a user name.
    pub fn of(folders: Folders, uid: &dyn Fn(&str) -> Option<u32>) -> (Self, Vec<Located>) {
        let (mut all, mut problems) = (Self::default(), Vec::new());
        for written in folders.written() {
            match written.and_then(|(path, written)| all.with(&path, written, uid)) {
                Ok((with, of_nobody)) => {
                    all.rules.extend(with);
                    all.for_nobody.extend(of_nobody);
                }
                Err(problem) => problems.push(problem),
            }
        }
        (all, problems)
    }

    /// The rules of a file; and those for users unknown to this machine.
    fn with(
        &self,
        path: &str,
        written: Vec<(usize, ClassRule)>,
        uid: &dyn Fn(&str) -> Option<u32>,
    ) -> Result<(Vec<Rule>, Vec<ForNobody>), Located> {
        let refused = |line, problem: String| Located {
            file: path.to_owned(),
            line,
            problem,
        };
        let room = CLASS_RULES - self.rules.len();
        if let Some((line, _)) = written.get(room) {
            let problem = format!("there are more than {CLASS_RULES} rules in all files together");
            return Err(refused(Some(*line), problem));
        }
        let mut limits = self.rules.iter().filter(|rule| !rule.rates.is_none()).count();
        let (mut made, mut of_nobody) = (Vec::new(), Vec::new());
        for (line, rule) in written {
            let place = format!("{path}:{line}");
            let user = rule.conditions.user.as_deref();
            let uid = user.and_then(uid);
            if let (Some(user), None) = (user, uid) {
                of_nobody.push((place, user.to_owned()));
                continue;
            }
            limits += usize::from(!rates_of(&rule).is_none());
            if limits > MOST_LIMITS {
                let problem = format!("there are more than {MOST_LIMITS} rate limits in all files together");
                return Err(refused(Some(line), problem));
            }
            let rule = Rule::new(place, &rule, limits as LimitNumber, uid);
            made.push(rule.map_err(|problem| refused(Some(line), problem))?);
        }
        Ok((made, of_nobody))
    }

    /// The rules for users unknown to this machine: the place of each, and the reason.
    pub fn for_nobody(&self) -> impl Iterator<Item = (&str, String)> {
        let reason = |user: &str| format!("never matches here: there is no user `{user}`");
        self.for_nobody.iter().map(move |(rule, user)| (&**rule, reason(user)))
    }

    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// The rates of the limit with this number.
    pub fn rates_of(&self, limit: LimitNumber) -> Rates {
        self.with_limit(limit).map(|rule| rule.rates).unwrap_or_default()
    }

    /// File and line of the limit's rule.
    pub fn place_of_limit(&self, limit: LimitNumber) -> Option<&str> {
        self.with_limit(limit).map(|rule| rule.place.as_str())
    }

    fn with_limit(&self, limit: LimitNumber) -> Option<&Rule> {
        let mut rules = self.rules.iter();
        rules.find(|rule| rule.number == limit && !rule.rates.is_none())
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The paths of executables to look up.
    pub fn executables(&self) -> BTreeSet<&str> {
        self.by_executable().map(|(_, exe)| exe).collect()
    }

    /// The rules with an executable: the place of each, and the path.
    pub fn by_executable(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rules
            .iter()
            .filter_map(|rule| Some((&*rule.place, rule.matcher.exe.as_deref()?)))
    }

    /// Those of them that match a program by the executable alone.
    pub fn by_executable_alone(&self) -> impl Iterator<Item = (&str, &str)> {
        let is_alone = |rule: &&Rule| {
            let Matcher {
                cmdline, unit, cgroup, ..
            } = &rule.matcher;
            [cmdline, unit, cgroup].into_iter().all(Option::is_none)
        };
        self.rules
            .iter()
            .filter(is_alone)
            .filter_map(|rule| Some((&*rule.place, rule.matcher.exe.as_deref()?)))
    }

    /// The rules whose pattern no cgroup or unit can have: the place of each, and the reason.
    pub fn without_a_match(&self) -> impl Iterator<Item = (&str, String)> {
        self.rules.iter().filter_map(|rule| {
            let [cgroup, unit] = [&rule.matcher.cgroup, &rule.matcher.unit];
            let is_no_path = |cgroup: &&Glob| !cgroup.to_string().starts_with(['/', '*', '?']);
            let is_no_unit = |unit: &&Glob| !unit.to_string().contains('.') && !unit.to_string().ends_with(['*', '?']);
            let reason = if let Some(cgroup) = cgroup.as_ref().filter(is_no_path) {
                format!("a cgroup path begins with /: \"/{cgroup}\" or \"*{cgroup}\"")
            } else {
                let unit = unit.as_ref().filter(is_no_unit)?;
                format!("a unit name has a suffix: \"{unit}.service\" or \"{unit}.*\"")
            };
            Some((&*rule.place, reason))
        })
    }

    /// The rules with an interface: the place of each, and the name.
    pub fn by_interface(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rules
            .iter()
            .filter_map(|rule| Some((&*rule.place, rule.matcher.interface.as_deref()?)))
    }

    /// The unreachable rules, with the earlier rule that shadows each: their places.
    pub fn never_reached(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rules.iter().enumerate().filter_map(|(n, rule)| {
            let mut earlier = self.rules[..n].iter();
            let first = earlier.find(|earlier| earlier.matcher.covers(&rule.matcher))?;
            Some((&*rule.place, &*first.place))
        })
    }

    /// The rules whose cmdline is a bare name, which matches only without arguments: the place of each, and the name.
    pub fn by_bare_name(&self) -> impl Iterator<Item = (&str, String)> {
        self.rules.iter().filter_map(|rule| {
            let cmdline = rule.matcher.cmdline.as_ref().filter(|cmdline| cmdline.is_bare_name())?;
            Some((&*rule.place, cmdline.to_string()))
        })
    }

    /// The rules whose cmdline begins with the path of a script, which no command line does: the place of each, and the
    /// reason. `is_script`: whether the file of this path is one.
    pub fn by_script(&self, is_script: &dyn Fn(&str) -> bool) -> Vec<(&str, String)> {
        let reason = |rule: &Rule| {
            let cmdline = rule.matcher.cmdline.as_ref()?;
            let program = cmdline.program()?;
            let name = program.rsplit('/').next()?;
            let instead = match cmdline.to_string().split_once(char::is_whitespace) {
                Some((_, arguments)) => format!("*/{name} {arguments}"),
                None => format!("*/{name}*"),
            };
            if !program.starts_with('/') {
                let is = "matches only a program started by this relative path, never a script";
                return Some(format!("cmdline \"{cmdline}\" {is}; write \"{instead}\""));
            }
            is_script(program).then(|| {
                format!(
                    "cmdline \"{cmdline}\" never matches: it is a script, whose arguments begin with its interpreter; \
                     write \"{instead}\""
                )
            })
        };
        let rules = self.rules.iter();
        rules.filter_map(|rule| Some((&*rule.place, reason(rule)?))).collect()
    }

    /// Adds the findings of [`Self::by_script`] and [`Self::for_nobody`] to the remarks.
    pub fn note_idle(&mut self, is_script: &dyn Fn(&str) -> bool) {
        let found = self.by_script(is_script).into_iter().chain(self.for_nobody());
        self.idle_here = found.map(|(rule, reason)| (rule.to_owned(), reason)).collect();
    }

    /// The rules with an exact unit name: the place of each, and the name.
    pub fn by_unit(&self) -> impl Iterator<Item = (&str, String)> {
        self.rules.iter().filter_map(|rule| {
            let unit = rule.matcher.unit.as_ref().filter(|unit| unit.is_exact())?;
            Some((&*rule.place, unit.to_string()))
        })
    }

    /// The rules whose limit does not apply to unconnected UDP sockets, with the rule that is the cause: that rule or
    /// an earlier one matches a destination, and then only packet-only rules apply to what such a socket sends.
    pub fn lifted_limits(&self) -> impl Iterator<Item = (&str, &str)> {
        let is_tcp = |rule: &Rule| rule.matcher.protocol == Some(Protocol::Tcp);
        self.rules.iter().enumerate().filter_map(move |(n, rule)| {
            if rule.rates.is_none() || rule.matcher.asks_only_packet() || is_tcp(rule) {
                return None;
            }
            let lifts = |earlier: &&Rule| {
                earlier.matcher.wherever_it_goes().is_some()
                    && !is_tcp(earlier)
                    && !earlier.matcher.excludes(&rule.matcher)
            };
            let because = self.rules[..=n].iter().find(lifts)?;
            Some((&*rule.place, &*because.place))
        })
    }

    /// The rules with no effect, or less than they say, on any machine or as noted: the place of each, and the reason.
    pub fn remarks(&self) -> Vec<(&str, String)> {
        let unreached = self.never_reached().map(|(rule, earlier)| {
            let reason = format!("unreachable: shadowed by the rule at {earlier}");
            (rule, reason)
        });
        let without = self
            .without_a_match()
            .map(|(rule, reason)| (rule, format!("never matches: {reason}")));
        let bare = self.by_bare_name().map(|(rule, name)| {
            let reason = format!(
                "matches only `{name}` without arguments: `cmdline` is compared with the whole command line (write \
                 \"{name} *\" or \"*{name}*\")"
            );
            (rule, reason)
        });
        let lifted = self.lifted_limits().map(|(rule, because)| {
            let by = match rule == because {
                true => "it matches a destination".to_owned(),
                false => format!("the rule at {because} before it matches a destination"),
            };
            let reason = format!(
                "its rate limit does not apply to unconnected UDP sockets: {by}, so packet-only rules decide for each packet \
                 (set `protocol = \"tcp\"` there, or put the limit's rule first, without a destination)"
            );
            (rule, reason)
        });
        let noted = self.idle_here.iter().map(|(rule, reason)| (&**rule, reason.clone()));
        unreached
            .chain(without)
            .chain(bare)
            .chain(noted)
            .chain(lifted)
            .collect()
    }

    /// The rules that make a process background, whatever it sends: the place of each, and its conditions.
    pub fn background_processes(&self) -> impl Iterator<Item = (&str, &str)> {
        let is_background =
            |rule: &&Rule| rule.class == Class::Background && rule.matcher.whatever_it_sends().is_none();
        self.rules
            .iter()
            .filter(is_background)
            .map(|rule| (&*rule.place, &*rule.reason))
    }

    /// Whether any rule is inherited by child processes.
    pub fn are_inherited(&self) -> bool {
        self.rules.iter().any(Rule::is_inherited)
    }

    /// The rules that are inherited by the executable alone, which the kernel can decide at once.
    pub fn inherited_by_executable(&self) -> BTreeMap<&str, RuleId> {
        let mut first = BTreeMap::new();
        for rule in &self.rules {
            if let Some(exe) = rule.matcher.only_executable() {
                first.entry(exe).or_insert(rule);
            }
        }
        let inherited = first.into_iter().filter(|(_, rule)| rule.is_inherited());
        inherited.map(|(exe, rule)| (exe, rule.id)).collect()
    }

    /// A process's verdict by its parent's rule. A promotion ends at a change of user.
    pub(super) fn inherited(&self, process: &Process) -> Option<Verdict> {
        let inherited = process.inherited.as_ref()?;
        let mut rules = self.rules.iter().filter(|rule| rule.is_inherited());
        let rule = rules.find(|rule| rule.id == inherited.rule)?;
        let raises = matches!(rule.class, Class::Realtime | Class::Stream);
        if raises && [process.uid, process.euid] != [inherited.uid; 2] {
            return None;
        }
        Some(Verdict {
            by: By::Inheritance,
            reason: format!(
                "inherited from {} ({}): {}",
                inherited.name, inherited.from.pid, rule.reason
            ),
            ..rule.verdict()
        })
    }

    /// Whether any rule needs the arguments of processes.
    pub fn need_arguments(&self) -> bool {
        self.rules.iter().any(|rule| rule.matcher.cmdline.is_some())
    }

    pub fn need_interfaces(&self) -> bool {
        self.rules.iter().any(|rule| rule.matcher.interface.is_some())
    }

    /// The bytes to look at, at most, to classify a flow of this process, or of this cgroup if the process is unknown.
    pub fn cost(&self, process: Option<&Process>, cgroup: Option<&str>) -> usize {
        let of_process = |process: &Process| process.cmdline.len() + process.cgroup.len();
        let text = process.map_or(cgroup.map_or(0, str::len), of_process);
        let of_rule = |rule: &Rule| LEAST_COST + rule.matcher.patterns() * text;
        self.rules.iter().map(of_rule).sum()
    }

    /// The verdict of the first match. Err: it depends on the destination, so each packet is classified by packet-only
    /// rules.
    pub(super) fn judge(&self, seen: &FlowFacts<'_>) -> Result<Option<Verdict>, Undecided> {
        let cgroup = if seen.process.is_none() { seen.cgroup } else { "" };
        let unnamed = Process {
            cgroup: cgroup.to_owned(),
            ..Process::default()
        };
        let matches = |matcher: &Matcher| {
            match seen.process {
                Some(process) => matcher.holds_for_flow(Some(process), Some(&seen.ends), Some(&seen.marks)),
                // Only the socket's cgroup is known.
                None => {
                    !matcher.asks_who() && matcher.holds_for_flow(Some(&unnamed), Some(&seen.ends), Some(&seen.marks))
                }
            }
        };
        for (at, rule) in self.rules.iter().enumerate() {
            if seen.sends_anywhere
                && let Some(wherever) = rule.matcher.wherever_it_goes()
                && matches(&wherever)
            {
                let verdict = Verdict {
                    rule: rule.place.clone(),
                    reason: format!("decided per packet, by its destination ({})", rule.reason),
                    ..Verdict::default()
                };
                let may_match =
                    |rule: &Rule| matches(rule.matcher.wherever_it_goes().as_ref().unwrap_or(&rule.matcher));
                let of_packets = self.rules[at..].iter().filter(|rule| rule.matcher.asks_only_packet());
                let mut limited = of_packets.filter(|rule| !rule.rates.is_none());
                return Err(Undecided {
                    verdict,
                    is_limited: limited.any(may_match),
                });
            }
            if matches(&rule.matcher) {
                return Ok(Some(rule.verdict()));
            }
        }
        Ok(None)
    }
}

impl Rules {
    /// For a process that has sent nothing yet. Err: its packets will decide.
    pub(super) fn judge_process(&self, process: &Process) -> Result<Option<Verdict>, ()> {
        Ok(first(self.rules.iter(), process)?.map(Rule::verdict))
    }

    /// For the process itself, whatever packet rules say. Err: its packets decide.
    pub(super) fn judge_itself(&self, process: &Process) -> Result<Option<&Rule>, ()> {
        let asks_more = |matcher: &Matcher| !matcher.asks_only_packet() || matcher.whatever_it_sends().is_none();
        let rules = self.rules.iter().filter(|rule| asks_more(&rule.matcher));
        first(rules, process)
    }

    /// For forwarded traffic of a cgroup, with the number of packet rules before it. None: the packets decide.
    pub(super) fn judge_forwarded(&self, cgroup: &str) -> Option<(Option<Verdict>, usize)> {
        let unnamed = Process {
            cgroup: cgroup.to_owned(),
            ..Process::default()
        };
        let mut before = 0;
        for rule in &self.rules {
            let relaxed = rule.matcher.whatever_it_sends();
            if rule.matcher.asks_only_packet() {
                before += 1;
            } else if !rule.matcher.asks_who() && relaxed.as_ref().unwrap_or(&rule.matcher).matches(&unnamed) {
                return relaxed.is_none().then(|| (Some(rule.verdict()), before));
            }
        }
        Some((None, before))
    }
}

/// For a process that has sent nothing yet. Err: its packets will decide.
fn first<'a>(rules: impl Iterator<Item = &'a Rule>, process: &Process) -> Result<Option<&'a Rule>, ()> {
    for rule in rules {
        let relaxed = rule.matcher.whatever_it_sends();
        if !relaxed.as_ref().unwrap_or(&rule.matcher).holds(Some(process), None) {
            continue;
        }
        return if relaxed.is_some() { Err(()) } else { Ok(Some(rule)) };
    }
    Ok(None)
}

impl Rule {
    pub(super) fn limit(&self) -> Option<Limit> {
        let limit = Limit {
            number: self.number,
            rates: self.rates,
            class: self.class,
        };
        (!self.rates.is_none()).then_some(limit)
    }

    /// `number`: of its rate limit, if it has one.
    fn new(place: String, rule: &ClassRule, number: LimitNumber, uid: Option<u32>) -> Result<Self, String> {
        let matcher = Matcher::new(&rule.conditions, uid);
        let rates = rates_of(rule);
        let limited = (!rates.is_none()).then(|| format!("; all its flows together {}", rates.shown()));
        let reason = match &rule.reason {
            Some(reason) => format!("{reason} ({})", matcher.shown()),
            None => matcher.shown(),
        } + &limited.unwrap_or_default();
        let class = rule.class.ok_or("`rule.class`: must be given")?;
        let made = Self {
            rates,
            number,
            id: id_of(class, &reason),
            children: rule.children,
            class,
            matcher,
            place,
            reason,
        };
        if !made.children && !made.names_process() {
            return Err(
                "`rule.children`: only a rule with process conditions alone applies to child processes; leave it \
                 out"
                .to_owned(),
            );
        }
        Ok(made)
    }

    /// It has process conditions only.
    fn names_process(&self) -> bool {
        !self.matcher.asks_only_packet() && self.matcher.whatever_it_sends().is_none()
    }

    pub(super) fn inherited_as(&self) -> Option<RuleId> {
        self.is_inherited().then_some(self.id)
    }

    fn is_inherited(&self) -> bool {
        self.children && self.names_process()
    }
}

/// A directional key precedes the one for both.
fn rates_of(rule: &ClassRule) -> Rates {
    let rate = |own: Option<f64>| own.or(rule.rate_limit_mbit).and_then(|mbit| bytes_per_s(mbit).ok());
    Rates {
        up: rate(rule.upload_limit_mbit),
        down: rate(rule.download_limit_mbit),
    }
}

/// FNV-1a.
fn id_of(class: Class, reason: &str) -> RuleId {
    let bytes = class.name().bytes().chain([0]).chain(reason.bytes());
    let id = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    id.max(1)
}

impl Rule {
    pub(super) fn verdict(&self) -> Verdict {
        Verdict {
            class: self.class,
            by: By::Rule,
            rule: self.place.clone(),
            reason: self.reason.clone(),
            limits: self.treatment().limits,
        }
    }

    pub fn treatment(&self) -> Treatment {
        Treatment {
            class: self.class,
            limits: self.rates.numbered(self.number),
        }
    }
}

impl Folders {
    /// The rules of each file as written, in their precedence.
    fn written(self) -> Vec<Result<RuleLines, Located>> {
        let main = self.main.iter().map(|source| {
            let (config, lines) = read(&source.path, source.text()?)?;
            Ok((source.path.clone(), lines.into_iter().zip(config.rule).collect()))
        });
        let mut all: Vec<_> = main.collect();
        let mut units = Some(self.units);
        let mut taken = BTreeSet::new();
        for mut folder in self.folders {
            folder.sort_by(|a, b| a.name.cmp(&b.name));
            folder.retain(|source| taken.insert(source.name.clone()));
            all.extend(
                folder
                    .iter()
                    .map(|source| Ok((source.path.clone(), read_rules(&source.path, source.text()?)?))),
            );
            all.extend(units.take().into_iter().flat_map(units::rules));
        }
        all
    }
}

impl Rules {
    pub fn limits(&self) -> Vec<Limit> {
        self.rules.iter().filter_map(Rule::limit).collect()
    }

    /// Of this number.
    pub fn limit(&self, number: LimitNumber) -> Option<Limit> {
        let mut limits = self.rules.iter().filter_map(Rule::limit);
        limits.find(|limit| limit.number == number)
    }

    /// The leading packet-only rules.
    pub fn packet_rules(&self) -> Vec<PacketRule> {
        let all = self.rules.iter().filter(|rule| rule.matcher.asks_only_packet());
        all.map(|rule| PacketRule::new(&rule.matcher, rule.treatment()))
            .take(MOST_PACKET_RULES)
            .collect()
    }
}
