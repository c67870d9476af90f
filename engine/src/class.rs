// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The class of a flow, with its reason. Input: rules, and the properties of the flow and its process. Output: one of
//! the five classes, with the rule (file and line) or the implicit classification behind it: [`judge`] decides, once.
//! When to classify again: [`flows`], [`processes`] and [`forwarded`]. The consequences: [`crate::background`], and the
//! queue.
//!
//! The focus ([`Active`]) then demotes bulk outside of it to background.
//!
//! Precedence: set by hand at run time (`giveway class set`, `giveway limit set`); a flow named as background; chosen
//! for its process (`giveway exec --class`); the first rule that matches; a rule inherited from a parent process;
//! implicit classification ([`evidence`]); else standard.

use crate::matcher::{Ends, Marks};
use crate::model::{Choice, ChosenLimit, Class, LimitNumber, LimitNumbers, Process, ROOT, Rates, RuleId};

mod action;
mod active;
pub mod by_hand;
mod commands;
mod evidence;
pub mod flow_table;
pub mod flows;
pub mod forwarded;
pub mod hand;
mod marks;
mod packets;
pub mod processes;
pub(crate) mod rules;
mod sessions;
mod source;
#[cfg(test)]
mod tests;
mod units;

pub use action::{Action, Input};
pub(crate) use active::Meant;
pub use active::{Active, Activity};
pub use commands::CommandLimits;
pub use marks::{ClassMark, LinkMarks};
pub use packets::{FAIREST_LIMITS, MOST_COMMAND_LIMITS, MOST_LIMITS, MOST_PACKET_RULES, PacketRule};
pub use rules::{Folders, Rules};
use rules::{Rule, Undecided};
pub use sessions::{LoginSession, active_session, is_seat};
pub use source::Source;
pub use units::{KEY as UNIT_KEY, UnitFile};

/// The properties of a flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowFacts<'a> {
    /// None: unknown.
    pub process: Option<&'a Process>,
    /// The process's, or if that is unknown, the socket's.
    pub cgroup: &'a str,
    pub ends: Ends,
    /// Unconnected: each packet has its own destination.
    pub sends_anywhere: bool,
    pub marks: Marks<'a>,
    /// SO_PRIORITY.
    pub priority: u32,
    /// Who named this flow as background.
    pub named: Option<&'a str>,
    pub by_hand: Option<&'a ByHand>,
}

/// A class with its reason.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Verdict {
    pub class: Class,
    pub by: By,
    /// A rule's file and line, or the kind of implicit classification.
    pub rule: String,
    pub reason: String,
    pub limits: LimitNumbers,
}

/// Set by hand for a flow, its process, or a group that contains them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ByHand {
    pub class: Option<(Class, Word)>,
    /// For what it sends.
    pub up: Option<(ChosenLimit, Word)>,
    /// For what it receives.
    pub down: Option<(ChosenLimit, Word)>,
}

/// The source of a setting by hand.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Word {
    pub uid: u32,
    /// The command.
    pub rule: String,
    pub reason: String,
}

/// The source of a verdict.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum By {
    /// Set by hand at run time.
    Hand,
    Name,
    Choice,
    Rule,
    /// A rule inherited from a parent process.
    Inheritance,
    Evidence,
    /// Implicit, by a mark on each packet.
    Mark,
    #[default]
    Nothing,
}

impl Default for Verdict {
    fn default() -> Self {
        Self {
            class: Class::Standard,
            by: By::Nothing,
            rule: "default".to_owned(),
            reason: "no rule matches, and nothing marks it as background".to_owned(),
            limits: LimitNumbers::NONE,
        }
    }
}

/// The limits of a rule and of a command, for each direction. A user cannot escape a rule's limit, which all its flows
/// share, with one of their own, however small: a command's limit counts beside a rule's only if root chose it and it
/// is smaller.
fn limits_of(rules: &Rules, of_rule: LimitNumbers, choice: Option<Choice>) -> LimitNumbers {
    let Some((uid, chosen)) = choice.and_then(|choice| Some((choice.uid, choice.limit?))) else {
        return of_rule;
    };
    let of_command = chosen.rates.numbered(chosen.number);
    let either = |of_rule: Option<LimitNumber>, of_command, rate: fn(&Rates) -> Option<u64>| {
        let (Some(rule), Some(_)) = (of_rule, of_command) else {
            return of_rule.or(of_command);
        };
        let is_smaller = rate(&rules.rates_of(rule)).is_none_or(|of_rule| rate(&chosen.rates) < Some(of_rule));
        if uid == ROOT && is_smaller { of_command } else { of_rule }
    };
    LimitNumbers {
        up: either(of_rule.up, of_command.up, |rates| rates.up),
        down: either(of_rule.down, of_command.down, |rates| rates.down),
    }
}

/// The same with those set by hand. Root's come first; a user cannot escape a rule's limit by their own, nor one that
/// root has set.
fn limits_with(
    before: LimitNumbers,
    of_rule: LimitNumbers,
    choice: Option<Choice>,
    hand: Option<&ByHand>,
) -> LimitNumbers {
    let Some(hand) = hand else { return before };
    let roots = choice
        .filter(|choice| choice.uid == ROOT)
        .and_then(|choice| choice.limit);
    let roots = roots.map(|limit| limit.rates).unwrap_or_default();
    let either = |set: &Option<(ChosenLimit, Word)>, before, is_bound: bool| match set {
        Some((own, word)) if word.uid == ROOT || !is_bound => Some(own.number),
        _ => before,
    };
    LimitNumbers {
        up: either(&hand.up, before.up, of_rule.up.is_some() || roots.up.is_some()),
        down: either(&hand.down, before.down, of_rule.down.is_some() || roots.down.is_some()),
    }
}

/// Classifies a flow. A user may choose a class and a rate limit, but not escape a rule's rate limit by it.
pub fn judge(rules: &Rules, seen: &FlowFacts<'_>) -> Verdict {
    let hand = seen.by_hand;
    let choice = seen.process.and_then(|process| process.chosen);
    let by_rule = match rules.judge(seen) {
        Ok(own) => own.or_else(|| rules.inherited(seen.process?)),
        Err(undecided) => return undecided_by_rules(rules, seen, undecided, choice, hand),
    };
    let of_rule = by_rule.as_ref().map(|verdict| verdict.limits).unwrap_or_default();
    let before = limits_of(rules, of_rule, choice);
    let limits = limits_with(before, of_rule, choice, hand);
    let is_rules = |number: &LimitNumber| limits.iter().any(|limit| limit == *number);
    let limited_by = by_rule
        .as_ref()
        .filter(|_| of_rule.iter().any(|number| is_rules(&number)))
        .map(|verdict| verdict.rule.clone());
    let mut verdict = set_by_hand(hand)
        .or_else(|| named(seen))
        .or_else(|| chosen(seen))
        .or(by_rule)
        .or_else(|| evidence::judge(seen))
        .unwrap_or_default();
    let chosen = choice.and_then(|choice| choice.limit);
    if let Some(rule) = limited_by.filter(|_| ![By::Rule, By::Inheritance].contains(&verdict.by)) {
        verdict.reason += &match chosen {
            Some(_) => format!("; the rate limit of {rule} applies instead of the command's own"),
            None => format!("; the rate limit of {rule} also applies"),
        };
    }
    let verdict = with_limit_of_command(verdict, limits, choice);
    with_limits_by_hand(verdict, limits, hand)
}

/// An unconnected socket, for which rules decide per packet. What was set or chosen for it comes first, but a user
/// cannot escape their limits by that.
fn undecided_by_rules(
    rules: &Rules,
    seen: &FlowFacts<'_>,
    Undecided { verdict, is_limited }: Undecided,
    choice: Option<Choice>,
    hand: Option<&ByHand>,
) -> Verdict {
    let counts = |uid: u32| uid == ROOT || !is_limited;
    let choice = choice.filter(|choice| counts(choice.uid));
    let hand = hand.map(|hand| hand.of(counts));
    let hand = hand.as_ref();
    let before = limits_of(rules, LimitNumbers::NONE, choice);
    let limits = limits_with(before, LimitNumbers::NONE, choice, hand);
    let first = set_by_hand(hand)
        .or_else(|| named(seen))
        .or_else(|| choice.and_then(of_choice));
    let verdict = with_limit_of_command(first.unwrap_or(verdict), limits, choice);
    with_limits_by_hand(verdict, limits, hand)
}

/// Adds the command's limit to the reason, if its class does not imply it.
fn with_limit_of_command(mut verdict: Verdict, limits: LimitNumbers, choice: Option<Choice>) -> Verdict {
    let chosen = choice.and_then(|choice| choice.limit);
    let holds = chosen.filter(|chosen| limits.iter().any(|limit| limit == chosen.number));
    if let Some(chosen) = holds.filter(|_| verdict.by != By::Choice) {
        let shown = chosen.rates.shown();
        verdict.reason += &format!("; its command and child processes together {shown} (giveway exec)");
    }
    verdict
}

impl ByHand {
    /// The users that count.
    fn of(&self, counts: impl Fn(u32) -> bool) -> Self {
        let limit = |set: &Option<(ChosenLimit, Word)>| set.clone().filter(|(_, word)| counts(word.uid));
        Self {
            class: self.class.clone().filter(|(_, word)| counts(word.uid)),
            up: limit(&self.up),
            down: limit(&self.down),
        }
    }
}

/// With these limits, and the reason for those set by hand.
fn with_limits_by_hand(mut verdict: Verdict, limits: LimitNumbers, hand: Option<&ByHand>) -> Verdict {
    let set = hand
        .iter()
        .flat_map(|hand| [(limits.up, &hand.up), (limits.down, &hand.down)]);
    let installed = set.filter_map(|(number, set)| {
        let (own, word) = set.as_ref()?;
        (number == Some(own.number)).then_some(word)
    });
    let mut said: Option<&Word> = None;
    for word in installed {
        if said != Some(word) {
            verdict.reason += &format!("; {} ({})", word.reason, word.rule);
        }
        said = Some(word);
    }
    Verdict { limits, ..verdict }
}

/// A process that has sent nothing yet; None where nothing applies, or its packets will decide.
pub fn judge_process(rules: &Rules, process: &Process, hand: Option<&ByHand>) -> Option<Verdict> {
    let own = rules.judge_process(process);
    let by_rule = own.map(|own| own.or_else(|| rules.inherited(process)));
    let own = by_rule.as_ref().ok().and_then(Option::as_ref);
    let of_rule = own.map(|verdict| verdict.limits).unwrap_or_default();
    let before = limits_of(rules, of_rule, process.chosen);
    let limits = limits_with(before, of_rule, process.chosen, hand);
    let first = set_by_hand(hand).or_else(|| process.chosen.and_then(of_choice));
    let verdict = match (first, by_rule) {
        (Some(first), _) => first,
        (None, by_rule) => {
            // Only a limit was chosen; its flows have any class.
            let limited = || (!limits.is_none()).then(Verdict::default);
            let of_sender = || evidence::judge_sender(Some(process), &process.cgroup);
            let decided = by_rule.ok().and_then(|own| own.or_else(of_sender));
            decided.or_else(limited)?
        }
    };
    Some(Verdict { limits, ..verdict })
}

/// A process, whatever it sends.
#[derive(Debug, Default, PartialEq)]
pub struct Itself {
    /// By a choice, a rule, or its parent.
    pub verdict: Option<Verdict>,
    /// The rule whose class its child processes inherit. None: the inherited one.
    pub hands_on: Option<RuleId>,
}

pub fn judge_itself(rules: &Rules, process: &Process, hand: Option<&ByHand>) -> Itself {
    let own = rules.judge_itself(process);
    let chosen = set_by_hand(hand).or_else(|| process.chosen.and_then(of_choice));
    let by_rule = || match &own {
        Ok(Some(rule)) => Some(rule.verdict()),
        Ok(None) => rules.inherited(process),
        Err(()) => None,
    };
    Itself {
        verdict: chosen.or_else(by_rule),
        hands_on: own.ok().flatten().and_then(Rule::inherited_as),
    }
}

/// Forwarded traffic of a cgroup, such as a container's, whose sockets are not visible here; with the number of packet
/// rules before it, one of which may match a packet. None: nothing applies.
pub fn judge_forwarded(rules: &Rules, cgroup: &str, hand: Option<&ByHand>) -> Option<(Verdict, usize)> {
    let by_rules = || {
        let (by_rule, before) = rules.judge_forwarded(cgroup)?;
        let verdict = by_rule.or_else(|| evidence::judge_sender(None, cgroup))?;
        Some((verdict, before))
    };
    // Settings by hand precede all packet rules.
    let set = hand.map(|hand| {
        let of_rules = || by_rules().map_or_else(Verdict::default, |(verdict, _)| verdict);
        let verdict = set_by_hand(Some(hand)).unwrap_or_else(of_rules);
        let limits = limits_with(verdict.limits, LimitNumbers::NONE, None, Some(hand));
        (with_limits_by_hand(verdict, limits, Some(hand)), 0)
    });
    set.or_else(by_rules)
}

fn set_by_hand(hand: Option<&ByHand>) -> Option<Verdict> {
    let (class, word) = hand?.class.clone()?;
    Some(Verdict {
        class,
        by: By::Hand,
        rule: word.rule,
        reason: word.reason,
        limits: LimitNumbers::NONE,
    })
}

fn named(seen: &FlowFacts<'_>) -> Option<Verdict> {
    Some(Verdict {
        class: Class::Background,
        by: By::Name,
        rule: seen.named?.to_owned(),
        reason: "the flow was named as background".to_owned(),
        limits: LimitNumbers::NONE,
    })
}

fn chosen(seen: &FlowFacts<'_>) -> Option<Verdict> {
    seen.process?.chosen.and_then(of_choice)
}

/// The class chosen for a process; None if only a limit was.
pub fn of_choice(Choice { class, uid, limit }: Choice) -> Option<Verdict> {
    let limited = limit.map(|limit| format!("; all its flows together {}", limit.rates.shown()));
    Some(Verdict {
        class: class?,
        by: By::Choice,
        rule: "giveway exec".to_owned(),
        reason: format!("chosen by uid {uid} for this process or a parent of it") + &limited.unwrap_or_default(),
        limits: LimitNumbers::NONE,
    })
}
