// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is no longer said, as patterns, and what to say. In: a text. Out: what it has of that. Each pattern matches a sentence
//! of the kind that it is about, and none matches ordinary English.

use std::fmt::{self, Display, Formatter};
use std::sync::LazyLock;

use regex::Regex;

struct Banned {
    pattern: &'static str,
    say: &'static str,
    /// A text that it matches.
    sample: &'static str,
}

const fn banned(pattern: &'static str, say: &'static str, sample: &'static str) -> Banned {
    Banned { pattern, say, sample }
}

/// Terms of the field, and the product's own tag line: left out of a text before it is judged.
const TERMS: &str = r"(?i)\bgives? way on its own\b|\bair ?time\b|\bneighbou?r (discovery|entry|entries|table|solicitation|cache)\b|\b(static|resolved) neighbou?rs?\b|\bip neigh(bour)?\b";

const BANNED: &[Banned] = &[
    // Estimation.
    banned(
        r"(?i)\b(capacity|rate|share)( of (a|the) link)?,? (that|which) (is|was) found\b",
        "estimated",
        "a capacity that is found",
    ),
    banned(
        r#"(?i)"found"|\bfound: shared by\b"#,
        "estimated",
        r#"policy = "found""#,
    ),
    banned(
        r"(?i)\brate\b.{0,40}\bis found (from|by)\b",
        "is estimated from",
        "the rate of the link is found from what connections deliver",
    ),
    // Yielding.
    banned(
        r"(?i)\bgives way\b|\b(gave|giving|given) way\b",
        "yields; scavenger congestion control",
        "TCP gives way to others on its whole path",
    ),
    banned(
        r"\blbe\b|\bLBE band\b",
        "scavenger; the background band",
        "giveway lbe 4711",
    ),
    banned(
        r"(?i)\bto (all|everything|whatever) that is no (bulk|background)\b",
        "to traffic that is neither bulk nor background",
        "yields to all that is no bulk or background",
    ),
    // States of a change.
    banned(
        r"(?i)\bin force\b",
        "active, installed",
        "nothing of giveway's is in force",
    ),
    banned(
        r"(?i)\bput(s|ting)? up\b",
        "install, installed",
        "a queue that cannot be put up",
    ),
    banned(
        r"(?i)\bput(s|ting)? (it |them |this |everything |all )?back\b",
        "restore, restored",
        "everything is put back at the end",
    ),
    banned(
        r"(?i)\b(take|takes|taken|taking|took) (it |them |this |everything |all of it )?back\b",
        "revoke, undo, restore",
        "a priority is taken back",
    ),
    // Knowledge.
    banned(
        r"(?i)\b(is|are|was|were|been|be) told of\b|\bdaemon tells\b|\bhas told (its|the) rate\b",
        "knows, is notified of, is configured",
        "16,384 flows that the queue is told of",
    ),
    banned(
        r"(?i)\bnothing has told\b|\bnobody has told\b|\bcannot be told\b",
        "unknown, not configured",
        "nothing has told its rate yet, and nothing is paced",
    ),
    // Reading sockets.
    banned(
        r"(?i)\b(each|every|next|latest|in a|first) pass\b|\bpasses (a|per) second\b|\bpasses_per_second\b",
        "poll; polls_per_second",
        "the next pass shows the socket",
    ),
    banned(
        r"(?i)\bfull walks?\b|\bwalks? over (all )?(sockets|the sockets)\b|\bfull_walk_s\b",
        "full scan; full_scan_s",
        "an idle connection waits for the next walk over all sockets",
    ),
    // CPU.
    banned(
        r"(?i)\b(make|makes|made|making) (it |them |nobody )?nice\b|\bniced\b",
        "renice, reniced",
        "processes that giveway has made nice",
    ),
    banned(
        r"(?i)\bcanar(y|ies)\b",
        "starvation detector; starvation_ms",
        "budgets and a canary",
    ),
    banned(
        r"(?i)\bthe gate (is|was|closes|opens)\b|\b(an?|the) (closed|open) gate\b|\bgate_closed\b.{0,3}\btimes\b",
        "CPU gate",
        "while the gate is closed, the qdisc retries",
    ),
    banned(
        r"(?i)\bpriority (that )?(is |was )?lent\b|\blent priority\b|\blends? (its|their|a) priority\b|\b(lender|borrower)s?\b",
        "priority inheritance; donor, recipient",
        "priority that is lent counts as if the lender had computed",
    ),
    // Failing open.
    banned(
        r"(?i)\bguardians?\b",
        "watchdog process",
        "the guardian undoes it within a second",
    ),
    banned(
        r"(?i)\bsigns? of life\b",
        "heartbeat",
        "the signs of life of every thread",
    ),
    // Peers.
    banned(
        r"(?i)\bunbelieved\b|\bbelieved (device|session|neighbour|peer|sender)s?\b|\b(session|device|neighbour|peer|one)s? (is|are|was|were) (not yet )?believed\b|\bbelieves? (each other|it|them)\b",
        "authenticated",
        "a session is believed once it has answered",
    ),
    banned(
        r"(?i)\bas a doubt\b|\b(its|of|among the) doubts\b|\bdoubts that follow\b",
        "challenge, challenged",
        "our reports name it as a doubt",
    ),
    banned(
        r"(?i)\bowe[sd]?\b.{0,30}\bechoe?s?\b|\becho of (a|the|its) challenge\b|\bechoes that follow\b",
        "response",
        "we owe it two echoes",
    ),
    banned(
        r"(?i)\bneighbou?rs?\b",
        "peers (devices of the group)",
        "the neighbours that are sending",
    ),
    banned(
        r"(?i)\b(an?|the|with|beside|of|by|from|two|other|all|whatever) strangers?\b",
        "stations without giveway; another host",
        "beside two strangers",
    ),
    banned(
        r"(?i)\b(on|over|of|share|in|into) the air\b",
        "the channel, the medium",
        "devices that share the air",
    ),
    // Controllers.
    banned(
        r"(?i)\baims? (is|of|at) (a queue of )?\d|\*too long\*",
        "target queueing delay; upper threshold",
        "it aims at 16 ms",
    ),
    banned(
        r"(?i)\bcliffs?\b",
        "congestion collapse, collapse point",
        "the share stays below the cliff",
    ),
    banned(
        r"(?i)\btrial of (a|the|its) share\b|\bin (its|their) trials?\b|\btrial \(nothing is limited\b",
        "baseline measurement",
        "most in their trial of 7.5 s",
    ),
    banned(r"(?i)\bwithdrawn\b", "suspended", "`withdrawn` has two meanings"),
    banned(
        r"(?i)\bphases?\b.{0,60}`(search|hold|empty)`",
        "probe, steady, drain",
        "`phase`: `start`, `search` (a queue has gone)",
    ),
    banned(
        r"(?i)\beased lifts?\b|\blift(s|ed|ing)? (a|the|its|their) (cap|clamp)s?\b|\b(cap|clamp)s? (is|are|was|were) lifted\b|\blifted caps?\b",
        "clear the clamp; without slow-start restart",
        "a lifted cap restarts slow start",
    ),
    banned(
        r"(?i)\b(an?|the|another|as|of) witness(es)?\b",
        "RTT cross-check",
        "another socket is the witness",
    ),
    banned(
        r"(?i)\bsuspicions?\b",
        "tentative back-off",
        "on suspicion it slows down",
    ),
    banned(
        r"(?i)\bof our (own )?kind\b",
        "another LEDBAT++ flow",
        "another one of our kind",
    ),
    banned(r"(?i)\bfar ends?\b", "remote host", "the far end acknowledges late"),
    // Classes.
    banned(
        r"(?i)\bby evidence\b|\bis (no|the) evidence\b|\bon what evidence\b|\bevidence of (a|the) class\b",
        "implicit classification, signal",
        "DSCP CS1 is no evidence",
    ),
    banned(
        r"(?i)\brule,? (or )?choice\b|\bbackground by choice\b|\ba choice comes before\b",
        "explicit classification",
        "background by rule or choice",
    ),
    banned(
        r"(?i)\bmarks? (of|on) (a|the|each) sockets?\b|\bmap of (marks|notes)\b|\bnotes? (of|on) (a|the|each) (thread|task)s?\b",
        "saved state",
        "the journal names the map of marks",
    ),
    banned(
        r"(?i)\b(class|band) (real time|real-time|strict)\b|\b(real time|strict|deadline) (class|band)\b",
        "realtime (class and band)",
        "what nothing bounds is the deadline band",
    ),
    banned(
        r"(?i)\bstep(s|ped)? back\b|\b(leaves|left) (a|that|the) setting alone\b",
        "conflict: not overridden",
        "giveway has stepped back",
    ),
    banned(
        r"(?i)\bdegraded\b|\bdegradations\b",
        "warnings",
        "`degraded` says what does not work",
    ),
    // Names of the interface.
    banned(
        r#"(?i)"qdisc"|\bQUEUE_BACKEND=qdisc\b"#,
        r#"backend = "bpf""#,
        r#"with backend = "qdisc" the queue stays"#,
    ),
    banned(
        r"\bgiveway (active|realtime|peer)\b",
        "giveway focus, priority, try --serve",
        "giveway peer --listen 192.0.2.7:9872",
    ),
    banned(
        r"\[\[realtime\]\]|\[realtime_limits\]|\bcanary_ms\b",
        "[[priority]], [priority_limits], starvation_ms",
        "a [[realtime]] rule",
    ),
    banned(
        r"(?i)\b(the|a|its) trickle\b|\btrickle_(kbit|bytes)",
        "minimum rate; background_min_kbit",
        "leaves last, but for a trickle",
    ),
    banned(
        r"--(realtime|minutes|deadline-ms|period-us|duration-s)\b",
        "--priority, --max-time 30m, --deadline 100ms, --period 30ms, --duration 60s",
        "giveway exec --realtime 20 -- camera",
    ),
];

/// A page says what is: of docs alone.
const DIARY: &[Banned] = &[
    banned(
        r"(?i)\b(by reading|read, not tried|was not kept|not kept\b|raw data (is|was|were) not)",
        "nothing: it is left out",
        "by reading, not measured",
    ),
    banned(
        r"(?i)\bin an earlier (version|run|build)\b|\bearlier versions\b",
        "what is",
        "earlier versions refused it",
    ),
    banned(
        r"\b\d{1,2} (January|February|March|April|May|June|July|August|September|October|November|December)\b|\b20\d\d-\d\d-\d\d\b",
        "no date: the result has it",
        "measured on 27 November",
    ),
];

const ENGLISH: &[&str] = &[
    "no such file: the unit was not found",
    "the key is found in /etc/giveway",
    "hold the lock, and hold q to quit",
    "pass the option to the command, which passes it on",
    "a packet passes the filter; the test passes",
    "walk the tree, a walk up the tree",
    "an equal share for everyone; share this link",
    "mark packets with a DSCP; packets are marked LE",
    "an ICMP echo request; echo 1 > cpu.idle",
    "the link is up, and the queue is empty",
    "what users may choose; a choice of three policies",
    "told apart by their ports",
    "send it back; the way back; back off",
    "neighbour discovery comes first, as a static neighbour does not",
    "1% of the air time",
    "a limit lifts no other limit",
    "makes a Linux endpoint give way on its own",
    "the aim is to keep the queue short",
    "nice 19 is a weight of 15",
    "I believe that it works; it is believed to be safe",
    "no doubt; without doubt",
    "the search for a route; an empty file",
    "real-time priority by rule; a real-time kernel",
    "the qdisc at the root; a tcx program at the gate of the host",
    "withdraw money; a drawn order",
    "the trial ends as soon as its pairs are enough; the A/B test",
    "put the key into the file, and back it up",
    "takes a while; takes 5 s; took it to the end",
    "a tool that sets the same setting; it steps in",
    "how a rate is found out",
    "of 1,000 at most 10 may claim anything",
];

/// What a text says that it should not.
pub struct Finding {
    matched: String,
    say: &'static str,
}

impl Display for Finding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\": say {}", self.matched, self.say)
    }
}

struct Compiled {
    terms: Regex,
    banned: Vec<(Regex, &'static str)>,
    diary: Vec<(Regex, &'static str)>,
}

static COMPILED: LazyLock<Compiled> = LazyLock::new(|| {
    let regex = |pattern: &str| Regex::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
    let all = |banned: &[Banned]| banned.iter().map(|one| (regex(one.pattern), one.say)).collect();
    Compiled {
        terms: regex(TERMS),
        banned: all(BANNED),
        diary: all(DIARY),
    }
});

/// Of any text that people read, in one line.
pub fn findings(text: &str) -> Vec<Finding> {
    found_by(&COMPILED.banned, text)
}

/// Of a page.
pub fn findings_in_page(text: &str) -> Vec<Finding> {
    let mut findings = findings(text);
    findings.extend(found_by(&COMPILED.diary, text));
    findings
}

fn found_by(patterns: &[(Regex, &'static str)], text: &str) -> Vec<Finding> {
    let text = COMPILED.terms.replace_all(text, "…");
    let finding = |(pattern, say): &(Regex, &'static str)| {
        let matched = pattern.find(&text)?.as_str().to_owned();
        Some(Finding { matched, say })
    };
    patterns.iter().filter_map(finding).collect()
}

#[test]
fn each_pattern_matches_a_sentence_of_its_kind() {
    for one in BANNED.iter().chain(DIARY) {
        let pattern = Regex::new(one.pattern).unwrap_or_else(|error| panic!("{}: {error}", one.pattern));
        let text = COMPILED.terms.replace_all(one.sample, "…");
        assert!(
            pattern.is_match(&text),
            "`{}` does not match \"{}\"",
            one.pattern,
            one.sample
        );
    }
}

#[test]
fn no_pattern_matches_ordinary_english() {
    for sentence in ENGLISH {
        let findings = findings_in_page(sentence);
        let all: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(all.is_empty(), "\"{sentence}\": {}", all.join("; "));
    }
}

#[test]
fn what_to_say_is_itself_allowed() {
    for one in BANNED.iter().chain(DIARY) {
        let findings = findings(one.say);
        let all: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(all.is_empty(), "\"{}\": {}", one.say, all.join("; "));
    }
}
