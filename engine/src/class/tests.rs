// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The class of a flow: rules in their order, then implicit classification.

use proptest::prelude::*;

use super::*;
use crate::matcher::Glob;
use crate::model::{ChosenLimit, Dscp, Idleness, Protocol, RateLimit, Treatment};

mod inheritance;

const UNPRIVILEGED: u32 = 1000;

fn uid(name: &str) -> Option<u32> {
    name.parse().ok().or((name == "robot").then_some(UNPRIVILEGED))
}

fn source(name: &str, text: &str) -> Source {
    Source {
        path: format!("/etc/{name}"),
        name: name.to_owned(),
        text: Ok(text.to_owned()),
    }
}

fn in_folders(folders: Vec<Vec<Source>>) -> Folders {
    Folders {
        folders,
        ..Folders::default()
    }
}

fn rules(text: &str) -> Rules {
    let folders = vec![vec![source("a.toml", text)]];
    let (rules, problems) = Rules::of(in_folders(folders), &uid);
    assert!(problems.is_empty(), "{problems:?}");
    rules
}

fn problem(text: &str) -> String {
    let folders = vec![vec![source("a.toml", text)]];
    let (rules, problems) = Rules::of(in_folders(folders), &uid);
    assert!(rules.is_empty(), "a file with a problem is refused as a whole");
    problems[0].to_string()
}

fn backup() -> Process {
    Process {
        exe: "/usr/bin/restic".to_owned(),
        executables: vec!["/usr/bin/restic".to_owned()],
        cmdline: "restic backup /home".to_owned(),
        uid: UNPRIVILEGED,
        euid: UNPRIVILEGED,
        cgroup: "/system.slice/backup.service".to_owned(),
        ..Process::default()
    }
}

fn seen(process: Option<&Process>) -> FlowFacts<'_> {
    FlowFacts {
        process,
        cgroup: process.map_or("/", |process| &process.cgroup),
        ends: Ends {
            protocol: Protocol::Tcp,
            local: "192.0.2.7:40000".parse().unwrap(),
            remote: "198.51.100.1:443".parse().unwrap(),
        },
        sends_anywhere: false,
        marks: Marks {
            dscp: Dscp::new(0),
            interface: Some("wlan0"),
        },
        priority: 0,
        named: None,
        by_hand: None,
    }
}

fn class_by(rules: &Rules, seen: &FlowFacts<'_>) -> (Class, String) {
    let verdict = judge(rules, seen);
    (verdict.class, verdict.rule)
}

#[test]
fn each_condition_matches_and_a_different_value_does_not() {
    let process = backup();
    let seen = seen(Some(&process));
    for (right, wrong) in [
        ("exe = \"/usr/bin/restic\"", "exe = \"/usr/bin/rsync\""),
        ("cmdline = \"restic backup*\"", "cmdline = \"restic restore*\""),
        ("user = \"robot\"", "user = \"0\""),
        ("unit = \"backup.service\"", "unit = \"web.service\""),
        ("cgroup = \"/system.slice/*\"", "cgroup = \"/user.slice/*\""),
        ("protocol = \"tcp\"", "protocol = \"tcp\"\nport = 80"),
        ("address = \"198.51.100.0/24\"", "address = \"192.0.2.0/24\""),
        ("port = 443", "port = 80"),
        ("local_port = 40000", "local_port = 443"),
        ("dscp = \"CS0\"", "dscp = \"CS1\""),
        ("interface = \"wlan0\"", "interface = \"lte0\""),
    ] {
        let rule = |condition: &str| rules(&format!("[[rule]]\n{condition}\nclass = \"bulk\"\n"));
        assert_eq!(judge(&rule(right), &seen).class, Class::Bulk, "{right}");
        assert_eq!(judge(&rule(wrong), &seen), Verdict::default(), "{wrong}");
    }
}

fn up(bytes_per_s: u64) -> Rates {
    Rates {
        up: Some(bytes_per_s),
        down: None,
    }
}

#[test]
fn a_chosen_class_precedes_rules_and_follows_a_named_flow() {
    let choice = Choice {
        class: Some(Class::Bulk),
        uid: UNPRIVILEGED,
        limit: None,
    };
    let process = Process {
        chosen: Some(choice),
        ..backup()
    };
    let rules = rules("[[rule]]\nport = 443\nclass = \"background\"\n");
    let seen = seen(Some(&process));
    assert_eq!(
        (judge(&rules, &seen).class, judge(&rules, &seen).by),
        (Class::Bulk, By::Choice)
    );
    let named = FlowFacts {
        named: Some("[[background]]"),
        ..seen
    };
    assert_eq!(judge(&rules, &named).class, Class::Background);
}

#[test]
fn the_reason_names_a_rules_limit_even_without_its_class() {
    let rules = rules("[[rule]]\nport = 443\nclass = \"bulk\"\nupload_limit_mbit = 0.5\n");
    let process = backup();
    let of = |named| {
        let seen = FlowFacts {
            named,
            ..seen(Some(&process))
        };
        judge(&rules, &seen).reason
    };
    assert_eq!(of(None), "port 443; all its flows together send at most 0.5 Mbit/s");
    let named = of(Some("uid 1000"));
    assert!(
        named.ends_with("; the rate limit of /etc/a.toml:1 also applies"),
        "{named}"
    );
}

#[test]
fn the_smaller_limit_counts_if_root_chose_it_and_else_the_rules() {
    const COMMANDS: LimitNumber = 50;
    let rules = rules("[[rule]]\nport = 443\nclass = \"bulk\"\nupload_limit_mbit = 10.0\n");
    let of_rule = rules.limits()[0].number;
    for (uid, mbit, expected) in [
        (0, 2, COMMANDS),
        (0, 20, of_rule),
        (UNPRIVILEGED, 2, of_rule),
        (UNPRIVILEGED, 20, of_rule),
    ] {
        let limit = ChosenLimit {
            number: COMMANDS,
            rates: up(mbit * 125_000),
        };
        let choice = Choice {
            class: Some(Class::Bulk),
            uid,
            limit: Some(limit),
        };
        let process = Process {
            chosen: Some(choice),
            ..backup()
        };
        let verdict = judge(&rules, &seen(Some(&process)));
        assert_eq!(verdict.limits.up, Some(expected), "uid {uid}, {mbit} Mbit/s");
        assert_eq!(
            verdict.reason.ends_with("applies instead of the command's own"),
            expected == of_rule,
            "{}",
            verdict.reason
        );
    }
}

#[test]
fn a_directional_limit_precedes_the_one_for_both_directions() {
    let rates = |keys: &str| {
        let rules = rules(&format!("[[rule]]\nport = 443\nclass = \"bulk\"\n{keys}"));
        let verdict = judge(&rules, &seen(None));
        let rates = rules.limits().first().map(|limit| limit.rates).unwrap_or_default();
        assert_eq!(verdict.limits, rates.numbered(1), "{keys}");
        (rates.up, rates.down, verdict.reason)
    };
    let both = rates("rate_limit_mbit = 8");
    assert_eq!((both.0, both.1), (Some(1_000_000), Some(1_000_000)));
    let reason = "port 443; all its flows together send at most 8 Mbit/s and receive at most 8 Mbit/s";
    assert_eq!(both.2, reason);
    let apart = rates("rate_limit_mbit = 8\ndownload_limit_mbit = 0.8");
    assert_eq!((apart.0, apart.1), (Some(1_000_000), Some(100_000)));
    let down = rates("download_limit_mbit = 0.8");
    assert_eq!((down.0, down.1), (None, Some(100_000)));
    let up = rates("upload_limit_mbit = 0.8");
    assert_eq!((up.0, up.1), (Some(100_000), None));
    assert_eq!(rates("").0.or(rates("").1), None);
}

#[test]
fn a_rule_and_a_command_may_limit_different_directions() {
    const COMMANDS: LimitNumber = 50;
    let rules = rules("[[rule]]\nport = 443\nclass = \"bulk\"\nupload_limit_mbit = 8\n");
    let down = Rates {
        up: None,
        down: Some(1),
    };
    let chosen = |uid, rates| Process {
        chosen: Some(Choice {
            class: None,
            uid,
            limit: Some(ChosenLimit {
                number: COMMANDS,
                rates,
            }),
        }),
        ..backup()
    };
    for uid in [0, UNPRIVILEGED] {
        let verdict = judge(&rules, &seen(Some(&chosen(uid, down))));
        assert_eq!((verdict.limits.up, verdict.limits.down), (Some(1), Some(COMMANDS)));
        assert!(verdict.reason.contains("receive at most"), "{}", verdict.reason);
    }
    let roots = chosen(0, Rates { up: Some(1), ..down });
    assert_eq!(
        judge(&rules, &seen(Some(&roots))).limits,
        LimitNumbers {
            up: Some(COMMANDS),
            down: Some(COMMANDS),
        }
    );
    let users = chosen(UNPRIVILEGED, Rates { up: Some(1), ..down });
    assert_eq!(judge(&rules, &seen(Some(&users))).limits.up, Some(1));
}

#[test]
fn a_limit_alone_keeps_the_class_and_applies_before_anything_is_sent() {
    let process = Process {
        chosen: Some(Choice {
            class: None,
            uid: UNPRIVILEGED,
            limit: Some(ChosenLimit {
                number: 50,
                rates: up(1),
            }),
        }),
        ..Process::default()
    };
    let verdict = judge_process(&rules(""), &process, None).unwrap();
    assert_eq!(
        (verdict.class, verdict.by, verdict.limits.up),
        (Class::Standard, By::Nothing, Some(50))
    );
    let of_packets = rules("[[rule]]\nport = 443\nclass = \"standard\"\n");
    assert_eq!(judge_process(&of_packets, &process, None).unwrap().limits.up, Some(50));
    assert_eq!(judge_itself(&rules(""), &process, None), Itself::default());
}

#[test]
fn no_choice_of_a_user_escapes_a_rules_limit() {
    let rules = rules("[[rule]]\nuser = \"robot\"\nclass = \"background\"\nupload_limit_mbit = 5.0\n");
    let free = backup();
    let choice = Choice {
        class: Some(Class::Bulk),
        uid: UNPRIVILEGED,
        limit: None,
    };
    let chosen = Process {
        chosen: Some(choice),
        ..backup()
    };
    let named = FlowFacts {
        named: Some("uid 1000"),
        ..seen(Some(&free))
    };
    for (seen, class) in [
        (seen(Some(&free)), Class::Background),
        (seen(Some(&chosen)), Class::Bulk),
        (named, Class::Background),
    ] {
        let verdict = judge(&rules, &seen);
        assert_eq!((verdict.class, verdict.limits.up), (class, Some(1)), "{:?}", verdict.by);
    }
}

#[test]
fn a_command_has_its_limit_unless_a_rule_has_one() {
    let limit = ChosenLimit {
        number: 48,
        rates: up(62_500),
    };
    let choice = Choice {
        class: Some(Class::Bulk),
        uid: UNPRIVILEGED,
        limit: Some(limit),
    };
    let process = Process {
        chosen: Some(choice),
        ..backup()
    };
    let verdict = judge(&rules(""), &seen(Some(&process)));
    assert_eq!((verdict.class, verdict.limits.up), (Class::Bulk, Some(48)));
    assert!(
        verdict
            .reason
            .ends_with("; all its flows together send at most 0.5 Mbit/s"),
        "{}",
        verdict.reason
    );
    let rules = rules("[[rule]]\nuser = \"robot\"\nclass = \"background\"\nupload_limit_mbit = 5.0\n");
    assert_eq!(judge(&rules, &seen(Some(&process))).limits.up, Some(1));
}

#[test]
fn the_verdict_names_file_line_reason_and_conditions() {
    let text =
        "\n[[rule]]\nexe = \"/usr/bin/restic\"\nport = 443\nclass = \"background\"\nreason = \"backups can wait\"\n";
    let process = backup();
    let verdict = judge(&rules(text), &seen(Some(&process)));
    assert_eq!((verdict.class, verdict.by), (Class::Background, By::Rule));
    assert_eq!(verdict.rule, "/etc/a.toml:2");
    assert_eq!(verdict.reason, "backups can wait (exe /usr/bin/restic, port 443)");
}

#[test]
fn an_administrators_file_precedes_and_replaces_the_vendors() {
    let rule = |class: &str| format!("[[rule]]\nport = 443\nclass = \"{class}\"\n");
    let by = |main: Option<&str>, admin: &[(&str, &str)], vendor: &[(&str, &str)]| {
        let folder = |files: &[(&str, &str)]| files.iter().map(|(name, class)| source(name, &rule(class))).collect();
        let folders = Folders {
            main: main.map(|class| source("giveway.toml", &rule(class))),
            ..in_folders(vec![folder(admin), folder(vendor)])
        };
        let (rules, problems) = Rules::of(folders, &uid);
        assert!(problems.is_empty());
        (judge(&rules, &seen(None)).class, rules.len())
    };
    assert_eq!(by(None, &[("90", "bulk")], &[("10", "stream")]), (Class::Bulk, 2));
    assert_eq!(by(None, &[], &[("90", "bulk"), ("10", "stream")]), (Class::Stream, 2));
    assert_eq!(by(None, &[("10", "bulk")], &[("10", "stream")]), (Class::Bulk, 1));
    assert_eq!(by(Some("realtime"), &[("10", "bulk")], &[]), (Class::Realtime, 2));
}

#[test]
fn a_units_own_class_follows_the_administrators_rules() {
    let by = |admin: &str, units: &[(&str, &str)]| {
        let unit = |(unit, text): &(&str, &str)| UnitFile {
            unit: (*unit).to_owned(),
            source: source(unit, text),
        };
        let folders = Folders {
            units: units.iter().map(unit).collect(),
            ..in_folders(vec![vec![source("a.toml", admin)], vec![source("b.toml", VENDOR)]])
        };
        let (rules, problems) = Rules::of(folders, &uid);
        let verdict = judge(&rules, &seen(Some(&backup())));
        (
            verdict.class,
            verdict.rule,
            problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
        )
    };
    const VENDOR: &str = "[[rule]]\nunit = \"*\"\nclass = \"stream\"\n";
    let says = |class: &str| format!("[Service]\nX-GivewayClass = {class}\n");
    let own = "backup.service";
    assert_eq!(by("", &[(own, &says("bulk"))]).0, Class::Bulk);
    assert_eq!(by("", &[(own, &says("bulk"))]).1, "/etc/backup.service:2");
    let admin = "[[rule]]\nunit = \"backup.service\"\nclass = \"background\"\n";
    assert_eq!(by(admin, &[(own, &says("bulk"))]).0, Class::Background);
    assert_eq!(
        by("", &[(own, &says("bulk")), (own, &says("background"))]).0,
        Class::Background
    );
    assert_eq!(by("", &[(own, &says("bulk")), (own, &says(""))]).0, Class::Stream);
    assert_eq!(by("", &[("other.service", &says("bulk"))]).0, Class::Stream);
    let (class, _, problems) = by("", &[(own, &says("buld"))]);
    assert_eq!(class, Class::Stream);
    assert!(
        problems[0].starts_with("/etc/backup.service:2: `X-GivewayClass`: there is no class `buld`"),
        "{problems:?}"
    );
    let (class, _, problems) = by("", &[(own, "[Service]\nX-GivewayClas=bulk\n")]);
    assert_eq!(class, Class::Stream);
    assert!(
        problems[0].starts_with(
            "/etc/backup.service:2: `X-GivewayClas`: a unit may say `X-GivewayClass`, `X-GivewayUploadLimit`"
        ),
        "{problems:?}"
    );
}

#[test]
fn a_unit_may_set_its_limits_key_by_key() {
    let by = |texts: &[&str]| {
        let file = |text: &&str| UnitFile {
            unit: "backup.service".to_owned(),
            source: source("backup.service", text),
        };
        let folders = Folders {
            units: texts.iter().map(file).collect(),
            ..in_folders(vec![Vec::new()])
        };
        let (rules, problems) = Rules::of(folders, &uid);
        let limits = rules.limits();
        let mbit = |limit: Option<RateLimit>| limit.map(|limit| crate::rate::mbit(limit.bytes_per_s));
        let limits = limits.first().map(|limit| (mbit(limit.up()), mbit(limit.down())));
        let class = judge(&rules, &seen(Some(&backup()))).class;
        (class, limits, problems.first().map(ToString::to_string))
    };
    let down = "[Service]\nX-GivewayClass=stream\nX-GivewayDownloadLimit=2.5mbit\n";
    assert_eq!(by(&[down]), (Class::Stream, Some((None, Some(2.5))), None));
    let both = by(&[down, "X-GivewayClass=bulk\nX-GivewayUploadLimit=800kbit\n"]);
    assert_eq!(both, (Class::Bulk, Some((Some(0.8), Some(2.5))), None));
    assert_eq!(by(&[down, "X-GivewayDownloadLimit=\n"]), (Class::Stream, None, None));
    let (class, limits, problem) = by(&[down, "X-GivewayClass=\n"]);
    assert_eq!((class, limits), (Class::Standard, None));
    let problem = problem.unwrap();
    assert!(problem.contains("a limit needs a class beside it"), "{problem}");
    let (_, limits, problem) = by(&[down, "X-GivewayClass=bulk\nX-GivewayDownloadLimit=2\n"]);
    assert_eq!(
        limits,
        Some((None, Some(2.5))),
        "a file in which something is wrong says nothing"
    );
    let problem = problem.unwrap();
    assert!(
        problem.contains("backup.service:2: `X-GivewayDownloadLimit`: 2 has no unit"),
        "{problem}"
    );
}

#[test]
fn an_instance_precedes_its_template() {
    let unit = |unit: &str, class: &str| UnitFile {
        unit: unit.to_owned(),
        source: source(unit, &format!("X-GivewayClass={class}")),
    };
    let folders = Folders {
        units: vec![unit("push@.service", "background"), unit("push@logs.service", "bulk")],
        ..in_folders(vec![Vec::new()])
    };
    let (rules, _) = Rules::of(folders, &uid);
    let of = |cgroup: &str| {
        let process = Process {
            cgroup: cgroup.to_owned(),
            ..backup()
        };
        judge(&rules, &seen(Some(&process))).class
    };
    assert_eq!(of("/system.slice/push@logs.service"), Class::Bulk);
    assert_eq!(of("/system.slice/push@maps.service"), Class::Background);
    // A user's own names are the user's.
    assert_eq!(of("/user.slice/user@1000.service/push@maps.service"), Class::Standard);
}

#[test]
fn a_broken_file_loses_only_its_own_rules() {
    let good = "[[rule]]\nport = 443\nclass = \"bulk\"\n";
    let unreadable = Source {
        text: Err("permission denied".to_owned()),
        ..source("c", "")
    };
    let half = format!("{good}[[rule]]\nprt = 443\nclass = \"bulk\"\n");
    let folders = vec![vec![source("b", good), source("a", &half), unreadable]];
    let (rules, problems) = Rules::of(in_folders(folders), &uid);
    let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(rules.len(), 1);
    assert_eq!(class_by(&rules, &seen(None)), (Class::Bulk, "/etc/b:1".to_owned()));
    assert!(
        problems[0].starts_with("/etc/a:5: unknown key `rule.prt`"),
        "{problems:?}"
    );
    assert_eq!(problems[1], "/etc/c: permission denied");
}

/// Users come and go, and are unknown before a directory service is up.
#[test]
fn a_rule_for_an_unknown_user_matches_nothing() {
    let mut rules =
        rules("[[rule]]\nuser = \"nobody-here\"\nclass = \"background\"\n[[rule]]\nport = 443\nclass = \"bulk\"\n");
    assert_eq!(class_by(&rules, &seen(None)), (Class::Bulk, "/etc/a.toml:4".to_owned()));
    rules.note_idle(&|_| false);
    let reason = "never matches here: there is no user `nobody-here`".to_owned();
    assert_eq!(rules.remarks(), [("/etc/a.toml:1", reason)]);
}

#[test]
fn invalid_rules_are_refused_in_one_line_with_their_place() {
    let long = "a*".repeat(200);
    for (rule, refusal) in [
        ("class = \"bulk\"", "/etc/a.toml:2: `rule.class`: has no condition"),
        ("port = 1", "/etc/a.toml:1: `rule.class`: must be"),
        (
            "port = 1\nclass = \"slow\"",
            "/etc/a.toml:3: `rule.class`: must be \"realtime\"",
        ),
        (
            "protocol = \"udp\"\nexe = \"/usr/bin/restic\"\nclass = \"bulk\"",
            "/etc/a.toml:2: `rule.protocol`: can be \"udp\" only",
        ),
        (
            "dscp = \"AF99\"\nclass = \"bulk\"",
            "/etc/a.toml:2: `rule.dscp`: `AF99` is neither",
        ),
        (
            &format!("cmdline = \"{long}\"\nclass = \"bulk\""),
            "/etc/a.toml:2: `rule.cmdline`: must be at most 256",
        ),
    ] {
        let problem = problem(&format!("[[rule]]\n{rule}\n"));
        assert!(problem.starts_with(refusal), "{problem}");
        assert_eq!(problem.lines().count(), 1);
    }
}

#[test]
fn the_number_of_rules_over_all_files_is_bounded() {
    let rule = "[[rule]]\nport = 443\nclass = \"bulk\"\n";
    let folders = vec![vec![source("a", &rule.repeat(1000)), source("b", &rule.repeat(25))]];
    let (rules, problems) = Rules::of(in_folders(folders), &uid);
    assert_eq!(rules.len(), 1000);
    let told = "/etc/b:73: there are more than 1024 rules in all files together";
    assert_eq!(problems[0].to_string(), told);
}

#[test]
fn implicit_classification_only_demotes_and_names_its_kind() {
    let none = Rules::default();
    let process = |idleness| Process { idleness, ..backup() };
    let idle = Idleness::default();
    for (idleness, rule) in [
        (Idleness { nice_19: true, ..idle }, "nice 19"),
        (
            Idleness {
                sched_idle: true,
                ..idle
            },
            "SCHED_IDLE",
        ),
        (Idleness { io_idle: true, ..idle }, "idle I/O class"),
        (
            Idleness {
                group_idle: true,
                ..idle
            },
            "CPUWeight=idle",
        ),
    ] {
        let process = process(idleness);
        assert_eq!(
            class_by(&none, &seen(Some(&process))),
            (Class::Background, rule.to_owned())
        );
    }
    let marked = |priority, dscp| {
        let mut marked = seen(None);
        (marked.priority, marked.marks.dscp) = (priority, Dscp::new(dscp));
        class_by(&none, &marked)
    };
    assert_eq!(marked(1, 0), (Class::Background, "SO_PRIORITY 1".to_owned()));
    assert_eq!(marked(0, 1), (Class::Background, "DSCP LE".to_owned()));
    assert_eq!(
        marked(6, 46),
        (Class::Standard, "default".to_owned()),
        "an application's own mark does not raise"
    );
}

#[test]
fn unconnected_sockets_are_classified_by_rules_up_to_the_first_with_a_destination() {
    let process = backup();
    let mut udp = seen(Some(&process));
    (udp.ends.protocol, udp.sends_anywhere) = (Protocol::Udp, true);
    udp.ends.remote = "0.0.0.0:0".parse().unwrap();
    let of_program = "[[rule]]\nexe = \"/usr/bin/restic\"\nclass = \"background\"\n";
    let of_port = |condition| format!("[[rule]]\nport = 443\n{condition}\nclass = \"bulk\"\n");
    for (before, class, by) in [
        (String::new(), Class::Background, By::Rule),
        (of_port(""), Class::Standard, By::Nothing),
        (of_port("protocol = \"tcp\""), Class::Background, By::Rule),
        (of_port("exe = \"/usr/bin/rsync\""), Class::Background, By::Rule),
        (of_port("user = \"robot\""), Class::Standard, By::Nothing),
    ] {
        let verdict = judge(&rules(&(before.clone() + of_program)), &udp);
        assert_eq!((verdict.class, verdict.by), (class, by), "{before}");
    }
    let verdict = judge(&rules(&of_port("")), &udp);
    assert_eq!(verdict.reason, "decided per packet, by its destination (port 443)");
    assert_eq!(
        judge(&rules(&(of_program.to_owned() + &of_port(""))), &udp).class,
        Class::Background
    );
}

/// By who chose it: no user escapes a rule's limit.
#[test]
fn a_commands_class_applies_to_unconnected_sockets_unless_packet_rules_limit_them() {
    let of_port = |more: &str| format!("[[rule]]\nport = 53\nclass = \"stream\"\n{more}");
    for (uid, class, rule, expected) in [
        (UNPRIVILEGED, None, "", (Class::Standard, Some(2))),
        (UNPRIVILEGED, Some(Class::Bulk), "", (Class::Bulk, Some(2))),
        (
            UNPRIVILEGED,
            Some(Class::Bulk),
            "rate_limit_mbit = 1\n",
            (Class::Standard, None),
        ),
        (0, None, "rate_limit_mbit = 1\n", (Class::Standard, Some(2))),
    ] {
        let limit = ChosenLimit {
            number: 2,
            rates: Rates {
                up: None,
                down: Some(1_000_000),
            },
        };
        let process = Process {
            chosen: Some(Choice {
                class,
                uid,
                limit: Some(limit),
            }),
            ..backup()
        };
        let mut udp = seen(Some(&process));
        (udp.ends.protocol, udp.sends_anywhere) = (Protocol::Udp, true);
        let verdict = judge(&rules(&of_port(rule)), &udp);
        assert_eq!((verdict.class, verdict.limits.down), expected, "{uid} {class:?} {rule}");
    }
}

#[test]
fn ssh_is_one_class_whatever_its_port_and_mark() {
    // CS1, the old TOS for throughput, AF21 and EF: the marks of OpenSSH's versions.
    for dscp in [8, 2, 18, 46, 0] {
        for port in [22, 2222] {
            let mut ssh = seen(None);
            ssh.ends.remote.set_port(port);
            ssh.marks.dscp = Dscp::new(dscp);
            let found = class_by(&Rules::default(), &ssh);
            assert_eq!(
                found,
                (Class::Standard, "default".to_owned()),
                "port {port}, DSCP {dscp}"
            );
        }
    }
}

#[test]
fn only_the_exact_name_background_slice_is_background() {
    for (cgroup, class) in [
        (
            "/user.slice/user-1.slice/user@1.service/background.slice/sync.service",
            Class::Background,
        ),
        ("/background.slice", Class::Background),
        ("/not-background.slice", Class::Standard),
    ] {
        let seen = FlowFacts { cgroup, ..seen(None) };
        assert_eq!(judge(&Rules::default(), &seen).class, class, "{cgroup}");
    }
}

#[test]
fn rules_precede_implicit_classification_and_named_flows_precede_rules() {
    let rules = rules("[[rule]]\nport = 443\nclass = \"standard\"\n");
    let mut seen = seen(None);
    seen.priority = 1;
    assert_eq!(class_by(&rules, &seen), (Class::Standard, "/etc/a.toml:1".to_owned()));
    seen.named = Some("[[background]]");
    assert_eq!(
        class_by(&rules, &seen),
        (Class::Background, "[[background]]".to_owned())
    );
}

#[test]
fn without_a_known_process_only_the_cgroup_is_matched() {
    let by = |condition: &str| {
        let rules = rules(&format!("[[rule]]\n{condition}\nclass = \"bulk\"\n"));
        let seen = FlowFacts {
            cgroup: "/system.slice/backup.service",
            ..seen(None)
        };
        judge(&rules, &seen).class
    };
    assert_eq!(by("unit = \"backup.service\""), Class::Bulk);
    for unknown in ["cmdline = \"*\"", "user = \"0\"", "exe = \"/usr/bin/restic\""] {
        assert_eq!(by(unknown), Class::Standard, "{unknown}");
    }
}

#[test]
fn forwarded_traffic_has_its_cgroups_class_after_earlier_packet_rules() {
    let of = |text: &str, cgroup| {
        judge_forwarded(&rules(text), cgroup, None).map(|(verdict, before)| (verdict.class, verdict.by, before))
    };
    let by_cgroup = "[[rule]]\ncgroup = \"/docker/*\"\nclass = \"bulk\"\n";
    let by_packet = "[[rule]]\nport = 443\nclass = \"stream\"\n";
    assert_eq!(of(by_cgroup, "/docker/a"), Some((Class::Bulk, By::Rule, 0)));
    assert_eq!(of(by_cgroup, "/podman/a"), None);
    assert_eq!(
        of(&[by_packet, by_cgroup, by_packet].concat(), "/docker/a"),
        Some((Class::Bulk, By::Rule, 1))
    );
    let slice = "/background.slice/docker-a.scope";
    assert_eq!(of("", slice), Some((Class::Background, By::Evidence, 0)));
    assert_eq!(
        of(&by_packet.repeat(3), slice),
        Some((Class::Background, By::Evidence, 3))
    );
}

#[test]
fn a_rule_on_process_or_cgroup_with_packet_ignores_forwarded_traffic() {
    let class = |before: &str| {
        let by_cgroup = "[[rule]]\nunit = \"docker-a.scope\"\nclass = \"bulk\"\n";
        let before = format!("[[rule]]\n{before}\nclass = \"stream\"\n");
        let verdict = judge_forwarded(&rules(&(before + by_cgroup)), "/system.slice/docker-a.scope", None);
        verdict.map(|(verdict, _)| verdict.class)
    };
    for of_process in ["user = \"0\"", "exe = \"/usr/bin/restic\"", "cmdline = \"*\""] {
        assert_eq!(class(of_process), Some(Class::Bulk), "{of_process}");
    }
    assert_eq!(class("cgroup = \"/system.slice/*\"\nport = 443"), None);
    assert_eq!(class("cgroup = \"/other/*\"\nport = 443"), Some(Class::Bulk));
}

fn condition() -> impl Strategy<Value = String> {
    prop_oneof![
        (1u16..5).prop_map(|port| format!("port = {port}")),
        "[ab*?]{0,6}".prop_map(|pattern| format!("cmdline = \"{pattern}\"")),
        "[ab*?]{0,6}".prop_map(|pattern| format!("cgroup = \"{pattern}\"")),
    ]
}

proptest! {
    #[test]
    fn the_first_matching_rule_counts(
        conditions in prop::collection::vec(condition(), 0..8),
        port in 1u16..5,
        cmdline in "[ab]{0,6}",
        cgroup in "[ab]{0,6}",
    ) {
        let process = Process { cmdline, cgroup, ..Process::default() };
        let mut seen = seen(Some(&process));
        seen.ends.remote.set_port(port);
        let text = |conditions: &[String]| -> String {
            conditions.iter().map(|condition| format!("[[rule]]\n{condition}\nclass = \"bulk\"\n")).collect()
        };
        let alone = |condition: &String| judge(&rules(&text(std::slice::from_ref(condition))), &seen).by == By::Rule;
        let expected = conditions.iter().position(alone).map(|at| format!("/etc/a.toml:{}", 3 * at + 1));
        let found = judge(&rules(&text(&conditions)), &seen);
        prop_assert_eq!((found.by == By::Rule).then_some(found.rule), expected);
    }

    #[test]
    fn any_text_is_parsed_or_refused_without_leaving_a_rule(text: String) {
        let folders = vec![vec![source("a", &text)]];
        let (rules, problems) = Rules::of(in_folders(folders), &uid);
        prop_assert!(rules.is_empty() || problems.is_empty());
        prop_assert!(problems.iter().all(|problem| problem.to_string().lines().count() == 1));
    }
}

#[test]
fn a_hostile_pattern_takes_linear_time() {
    let pattern = format!("{}b", "*a".repeat(127));
    let rules = rules(&format!("[[rule]]\ncmdline = \"{pattern}\"\nclass = \"bulk\"\n").repeat(100));
    let hostile = Process {
        cmdline: "a".repeat(4096),
        ..Process::default()
    };
    assert!(rules.cost(Some(&hostile), None) < 500_000);
    assert_eq!(judge(&rules, &seen(Some(&hostile))).by, By::Nothing);
}

#[test]
fn limits_are_numbered_over_all_rules_packet_only_ones_included() {
    let text = "[[rule]]\nport = 1\nclass = \"bulk\"\nupload_limit_mbit = 0.5\n\
                [[rule]]\nexe = \"/usr/bin/restic\"\nclass = \"background\"\n\
                [[rule]]\nprotocol = \"udp\"\naddress = \"192.0.2.0/24\"\nclass = \"background\"\nupload_limit_mbit = 8\n";
    let rules = rules(text);
    let limits: Vec<(u64, Class)> = rules
        .limits()
        .iter()
        .map(|limit| (limit.rates.up.unwrap(), limit.class))
        .collect();
    assert_eq!(limits, [(62_500, Class::Bulk), (1_000_000, Class::Background)]);
    let treatments: Vec<Treatment> = rules.packet_rules().iter().map(|rule| rule.treatment).collect();
    let treatment = |class, up| Treatment {
        class,
        limits: LimitNumbers { up, down: None },
    };
    assert_eq!(
        treatments,
        [treatment(Class::Bulk, Some(1)), treatment(Class::Background, Some(2))]
    );
}

#[test]
fn a_udp_rule_cannot_match_a_process_and_limits_are_bounded() {
    let udp = |more: &str| problem(&format!("[[rule]]\nprotocol = \"udp\"\n{more}\nclass = \"bulk\"\n"));
    assert!(udp("user = \"0\"").contains("covers its UDP too"));
    assert!(udp("unit = \"a.service\"").contains("covers its UDP too"));
    let many = "[[rule]]\nport = 1\nclass = \"bulk\"\nupload_limit_mbit = 1\n".repeat(1001);
    assert_eq!(
        problem(&many),
        "/etc/a.toml:4001: there are more than 1000 rate limits in all files together"
    );
}

#[test]
fn an_idle_process_has_a_class_unless_its_packets_decide() {
    let of = |text: &str, process: &Process| judge_process(&rules(text), process, None).map(|verdict| verdict.class);
    let restic = backup();
    let by_exe = "[[rule]]\nexe = \"/usr/bin/restic\"\nclass = \"bulk\"\n";
    assert_eq!(of(by_exe, &restic), Some(Class::Bulk));
    assert_eq!(of(by_exe, &Process::default()), None);
    for what in [
        "port = 443",
        "local_port = 9",
        "protocol = \"tcp\"",
        "address = \"192.0.2.0/24\"",
        "dscp = \"CS1\"",
    ] {
        let by_what = format!("[[rule]]\n{what}\nclass = \"standard\"\n");
        assert_eq!(of(&format!("{by_what}{by_exe}"), &restic), None, "{what}");
        assert_eq!(of(&format!("{by_exe}{by_what}"), &restic), Some(Class::Bulk), "{what}");
    }
    let elsewhere = "[[rule]]\nuser = \"0\"\nexe = \"/bin/other\"\nport = 1\nclass = \"standard\"\n";
    assert_eq!(of(&format!("{elsewhere}{by_exe}"), &restic), Some(Class::Bulk));
    let idle = Process {
        idleness: Idleness {
            nice_19: true,
            ..Idleness::default()
        },
        ..Process::default()
    };
    assert_eq!(of(by_exe, &idle), Some(Class::Background));
    assert_eq!(of("[[rule]]\nport = 443\nclass = \"standard\"\n", &idle), None);
    let chosen = Process {
        chosen: Some(Choice {
            class: Some(Class::Bulk),
            uid: 0,
            limit: None,
        }),
        ..idle
    };
    assert_eq!(
        of("[[rule]]\nport = 443\nclass = \"standard\"\n", &chosen),
        Some(Class::Bulk)
    );
}

#[test]
fn a_rule_shadowed_by_an_earlier_one_is_reported_as_unreachable() {
    let of = |conditions: &[&str]| {
        let text = |conditions: &&str| format!("[[rule]]\n{conditions}\nclass = \"bulk\"\n");
        let rules = rules(&conditions.iter().map(text).collect::<String>());
        rules.never_reached().count()
    };
    assert_eq!(of(&["port = 873", "port = 873\nprotocol = \"tcp\""]), 1);
    assert_eq!(of(&["port = 873\nprotocol = \"tcp\"", "port = 873"]), 0);
    assert_eq!(of(&["port = 873", "port = 874", "port = 873"]), 1);
    assert_eq!(
        of(&["port = 873", "local_port = 873", "unit = \"a*\"", "unit = \"ab\""]),
        0
    );
}

#[test]
fn a_limit_that_does_not_apply_to_unconnected_sockets_is_reported() {
    let limited = "exe = \"/usr/bin/backup\"\nclass = \"bulk\"\nupload_limit_mbit = 2\n";
    let lifted = |earlier: &str, limited: &str| {
        let rules = rules(&format!("{earlier}[[rule]]\n{limited}"));
        let lifted = rules.lifted_limits().count();
        lifted == 1
    };
    let earlier = |conditions: &str| format!("[[rule]]\n{conditions}\nclass = \"bulk\"\n");
    assert!(lifted(&earlier("port = 5005"), limited));
    assert!(lifted(&earlier("address = \"192.0.2.0/24\"\nunit = \"*\""), limited));
    assert!(lifted("", &format!("port = 873\n{limited}")), "by itself");
    assert!(!lifted("", limited));
    assert!(!lifted(&earlier("local_port = 5005"), limited), "no destination");
    assert!(!lifted(&earlier("port = 5005\nprotocol = \"tcp\""), limited));
    assert!(!lifted(&earlier("port = 5005\nexe = \"/usr/bin/other\""), limited));
    assert!(!lifted(
        &earlier("port = 5005"),
        &format!("protocol = \"tcp\"\n{limited}")
    ));
    let of_packets = "local_port = 7\nclass = \"bulk\"\nupload_limit_mbit = 2\n";
    assert!(!lifted(&earlier("port = 5005"), of_packets), "each packet keeps it");
}

#[test]
fn a_cmdline_that_begins_with_a_script_is_reported_with_a_correction() {
    let told = |cmdline: &str| {
        let mut rules = rules(&format!("[[rule]]\ncmdline = \"{cmdline}\"\nclass = \"background\"\n"));
        rules.note_idle(&|path| path == "/srv/backup.sh");
        let remarks = rules.remarks().into_iter();
        remarks.map(|(_, reason)| reason).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(
        told("/srv/backup.sh"),
        "cmdline \"/srv/backup.sh\" never matches: it is a script, whose arguments begin with its interpreter; write \
         \"*/backup.sh*\""
    );
    for (cmdline, instead) in [
        ("/srv/backup.sh*", "*/backup.sh*"),
        ("/srv/backup.sh *", "*/backup.sh *"),
        ("/srv/backup.sh --all", "*/backup.sh --all"),
        ("./backup.sh", "*/backup.sh*"),
    ] {
        let told = told(cmdline);
        assert!(told.ends_with(&format!("; write \"{instead}\"")), "{cmdline}: {told}");
        assert!(
            Glob::new(instead).matches("/bin/bash /srv/backup.sh --all"),
            "{instead}"
        );
    }
    for right in [
        "*/backup.sh*",
        "/bin/bash /srv/backup.sh",
        "/srv/other",
        "/srv/*.sh",
        "/srv/backup.sh?",
    ] {
        assert_eq!(told(right), "", "{right}");
    }
}

#[test]
fn a_cmdline_that_is_a_bare_name_is_reported() {
    let told = |cmdline: &str| {
        let rules = rules(&format!("[[rule]]\ncmdline = \"{cmdline}\"\nclass = \"background\"\n"));
        let remarks = rules.remarks();
        remarks.iter().any(|(_, reason)| reason.contains("without arguments"))
    };
    assert!(told("rsync"));
    for whole in ["*rsync*", "rsync *", "rsync -a /home", "/usr/bin/daemon", "rsync?"] {
        assert!(!told(whole), "{whole}");
    }
}
