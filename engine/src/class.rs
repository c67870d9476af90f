// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The class of a flow, and why it has it. Input: rules, and what is known of the flow and its process. Output: one of
//! the five classes, with the rule (file and line) or the evidence: [`judge`] decides, once. When to judge anew: [`flows`],
//! [`processes`] and [`forwarded`]. What follows from the class: [`crate::background`], and the queue.
//!
//! What is active ([`Active`]) then makes background of bulk that is elsewhere.
//!
//! In this order: what was set by hand while it runs (`giveway class set`, `giveway limit set`); a flow that was named as
//! background; what was chosen for its process (`giveway exec --class`); the first
//! rule that matches; the rule by which what started its process has its class; what Linux already knows ([`evidence`]);
//! else it is standard.

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

/// What is known of a flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowFacts<'a> {
    /// None where its process is not known.
    pub process: Option<&'a Process>,
    /// Of the process, or where that is not known, of the socket.
    pub cgroup: &'a str,
    pub ends: Ends,
    /// The remote end is each packet's own.
    pub sends_anywhere: bool,
    pub marks: Marks<'a>,
    /// SO_PRIORITY.
    pub priority: u32,
    /// Who has named this very flow as background.
    pub named: Option<&'a str>,
    pub by_hand: Option<&'a ByHand>,
}

/// A class, and why.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Verdict {
    pub class: Class,
    pub by: By,
    /// A rule's file and line, or the kind of evidence.
    pub rule: String,
    pub reason: String,
    pub limits: LimitNumbers,
}

/// What was set by hand for a flow or a process, or for what that belongs to.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ByHand {
    pub class: Option<(Class, Word)>,
    /// Of what is sent.
    pub up: Option<(ChosenLimit, Word)>,
    /// Of what arrives.
    pub down: Option<(ChosenLimit, Word)>,
}

/// Whose word it is.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Word {
    pub uid: u32,
    /// The command.
    pub rule: String,
    pub reason: String,
}

/// What decided.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum By {
    /// It was set while it ran.
    Hand,
    Name,
    Choice,
    Rule,
    /// The rule of what started its process.
    Inheritance,
    Evidence,
    /// Evidence that each packet carries.
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

/// Of a rule and of a command, in each direction. A user does not get out of a rule's limit, which all its flows share, by
/// one of their own, however small: the command's counts beside a rule's only if root chose it, and it is the smaller one.
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

/// The same with what was set by hand. Root's comes before all others; a user does not get out of a rule's limit by their
/// own, nor out of one that root has chosen.
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

/// Decides. A user may choose a class and a rate limit, but not get out of a rule's rate limit by it.
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

/// Of what sends to anyone, of which rules say something packet by packet. What was set or chosen for it comes before them; but a
/// user does not get out of their limits by that.
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

/// Says that the command's limit holds, where its class does not say so.
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
    /// Of the users that count.
    fn of(&self, counts: impl Fn(u32) -> bool) -> Self {
        let limit = |set: &Option<(ChosenLimit, Word)>| set.clone().filter(|(_, word)| counts(word.uid));
        Self {
            class: self.class.clone().filter(|(_, word)| counts(word.uid)),
            up: limit(&self.up),
            down: limit(&self.down),
        }
    }
}

/// With these limits, and what is said where they were set by hand.
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

/// Of a process that has sent nothing yet; None where nothing is known, or what it will send decides.
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
            // What was chosen for it is a limit alone, whatever class its flows will have.
            let limited = || (!limits.is_none()).then(Verdict::default);
            let of_sender = || evidence::judge_sender(Some(process), &process.cgroup);
            let decided = by_rule.ok().and_then(|own| own.or_else(of_sender));
            decided.or_else(limited)?
        }
    };
    Some(Verdict { limits, ..verdict })
}

/// Of a process, whatever it sends.
#[derive(Debug, Default, PartialEq)]
pub struct Itself {
    /// What a choice, a rule or what started it says of it.
    pub verdict: Option<Verdict>,
    /// The rule by which it hands its class on to what it starts. None: it hands on what it has inherited itself.
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

/// Of what is forwarded for a cgroup, as a container's, whose sockets are not to be seen here; and how many of the rules for
/// packets come before that, one of which may match a packet. None: nothing is said of it.
pub fn judge_forwarded(rules: &Rules, cgroup: &str, hand: Option<&ByHand>) -> Option<(Verdict, usize)> {
    let by_rules = || {
        let (by_rule, before) = rules.judge_forwarded(cgroup)?;
        let verdict = by_rule.or_else(|| evidence::judge_sender(None, cgroup))?;
        Some((verdict, before))
    };
    // What is set by hand comes before all rules for packets.
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

/// What was chosen for a process decides; None where that is a limit without a class.
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
