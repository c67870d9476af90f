// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules of all files, in their order. Input: texts. Output: rules, and what is wrong with which file. A file with
//! anything wrong in it is refused as a whole.

use std::collections::BTreeSet;

use super::{By, Class, LimitNumber, MOST_LIMITS, Seen, Treatment, Verdict};
use crate::config::together::CLASS_RULES;
use crate::config::{ClassRule, Located, read, read_rules};
use crate::matcher::{Matcher, Process};

/// Bytes that are looked at for a rule besides those of its patterns.
const LEAST_COST: usize = 32;

/// A file, as it was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Source {
    /// By which a problem is told.
    pub path: String,
    /// Its name in its folder, by which files are in order.
    pub name: String,
    /// Or why it could not be read.
    pub text: Result<String, String>,
}

/// Where rules come from.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    /// giveway.toml, whose rules come first.
    pub main: Option<Source>,
    /// The earlier folder's files come first, and stand in for those of the same name in later ones.
    pub folders: Vec<Vec<Source>>,
}

#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub matcher: Matcher,
    pub class: Class,
    /// Its number, and bytes a second.
    pub limit: Option<(LimitNumber, u64)>,
    place: String,
    why: String,
}

/// Rules; the first that matches counts.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub(super) rules: Vec<Rule>,
}

impl Rules {
    /// The rules of all files that are right, and what is wrong with the others. `uid`: of a user's name.
    pub fn of(folders: Folders, uid: &dyn Fn(&str) -> Option<u32>) -> (Self, Vec<Located>) {
        let (mut all, mut problems) = (Self::default(), Vec::new());
        let is_main = folders.main.is_some();
        for (at, source) in folders.in_order().into_iter().enumerate() {
            match all.with(&source, is_main && at == 0, uid) {
                Ok(with) => all.rules.extend(with),
                Err(problem) => problems.push(problem),
            }
        }
        (all, problems)
    }

    fn with(&self, source: &Source, is_main: bool, uid: &dyn Fn(&str) -> Option<u32>) -> Result<Vec<Rule>, Located> {
        let refused = |line, problem: String| Located {
            file: source.path.clone(),
            line,
            problem,
        };
        let text = source.text.as_ref().map_err(|why| refused(None, why.clone()))?;
        let written = if is_main {
            let (config, lines) = read(&source.path, text)?;
            lines.into_iter().zip(config.rule).collect()
        } else {
            read_rules(&source.path, text)?
        };
        let room = CLASS_RULES - self.rules.len();
        if let Some((line, _)) = written.get(room) {
            let problem = format!("there are more than {CLASS_RULES} rules in all files together");
            return Err(refused(Some(*line), problem));
        }
        let mut limits = self.rules.iter().filter(|rule| rule.limit.is_some()).count();
        let made = |(line, rule): (usize, ClassRule)| {
            let place = format!("{}:{line}", source.path);
            let refused = |problem| refused(Some(line), problem);
            limits += usize::from(rule.rate_limit_mbit.is_some());
            if limits > MOST_LIMITS {
                return Err(refused(format!(
                    "there are more than {MOST_LIMITS} rate limits in all files together"
                )));
            }
            Rule::new(place, &rule, limits as LimitNumber, uid).map_err(refused)
        };
        written.into_iter().map(made).collect()
    }

    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The paths of executables that have to be looked up.
    pub fn executables(&self) -> BTreeSet<&str> {
        self.rules
            .iter()
            .filter_map(|rule| rule.matcher.exe.as_deref())
            .collect()
    }

    /// Whether any rule asks for the arguments of processes.
    pub fn need_arguments(&self) -> bool {
        self.rules.iter().any(|rule| rule.matcher.cmdline.is_some())
    }

    pub fn need_interfaces(&self) -> bool {
        self.rules.iter().any(|rule| rule.matcher.interface.is_some())
    }

    /// Bytes that are looked at, at most, to judge a flow of this process.
    pub fn cost(&self, process: Option<&Process>) -> usize {
        let text = process.map_or(0, |process| process.cmdline.len() + process.cgroup.len());
        let of_rule = |rule: &Rule| LEAST_COST + rule.matcher.patterns() * text;
        self.rules.iter().map(of_rule).sum()
    }

    pub(super) fn judge(&self, seen: &Seen<'_>) -> Option<Verdict> {
        let unnamed = || Process {
            cgroup: seen.cgroup.to_owned(),
            ..Process::default()
        };
        let matches = |rule: &&Rule| {
            let matcher = &rule.matcher;
            match seen.process {
                Some(process) => matcher.holds_for_flow(Some(process), Some(&seen.ends), Some(&seen.marks)),
                // Only the cgroup is known, by the socket.
                None => {
                    !matcher.asks_who() && matcher.holds_for_flow(Some(&unnamed()), Some(&seen.ends), Some(&seen.marks))
                }
            }
        };
        let rule = self.rules.iter().find(matches)?;
        Some(Verdict {
            class: rule.class,
            by: By::Rule,
            rule: rule.place.clone(),
            why: rule.why.clone(),
            limit: rule.treatment().limit,
        })
    }
}

impl Rule {
    /// `number`: of its rate limit, where it has one.
    fn new(
        place: String,
        rule: &ClassRule,
        number: LimitNumber,
        uid: &dyn Fn(&str) -> Option<u32>,
    ) -> Result<Self, String> {
        let user = rule.conditions.user.as_deref();
        let known = |name| uid(name).ok_or_else(|| format!("`rule.user`: there is no user `{name}`"));
        let matcher = Matcher::new(&rule.conditions, user.map(known).transpose()?);
        let why = match &rule.reason {
            Some(reason) => format!("{reason} ({})", matcher.shown()),
            None => matcher.shown(),
        };
        let bytes_per_s = |mbit: f64| (mbit * 125_000.0).round().max(1.0) as u64;
        Ok(Self {
            limit: rule.rate_limit_mbit.map(|mbit| (number, bytes_per_s(mbit))),
            class: rule.class.ok_or("`rule.class`: must be given")?,
            matcher,
            place,
            why,
        })
    }
}

impl Rule {
    pub fn treatment(&self) -> Treatment {
        Treatment {
            class: self.class,
            limit: self.limit.map(|(number, _)| number),
        }
    }
}

impl Folders {
    /// The main file, then the earliest file of each name, by their names.
    fn in_order(self) -> Vec<Source> {
        let mut taken = BTreeSet::new();
        let mut ordered: Vec<Source> = self.main.into_iter().collect();
        for mut folder in self.folders {
            folder.sort_by(|a, b| a.name.cmp(&b.name));
            folder.retain(|source| !taken.contains(&source.name));
            taken.extend(folder.iter().map(|source| source.name.clone()));
            ordered.extend(folder);
        }
        ordered
    }
}
