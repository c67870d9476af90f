// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is accepted, and what is refused with which message; each declared key by itself.

use crate::model::Protocol;
use std::collections::BTreeSet;

use proptest::prelude::*;

use super::key::{Absent, ConfigKey};
use super::section::Section;
use super::*;

fn error(text: &str) -> String {
    Config::parse(text).unwrap_err().to_string()
}

#[test]
fn an_empty_file_and_the_default_file_are_the_default() {
    assert_eq!(Config::parse("").unwrap(), Config::default());
    assert_eq!(Config::parse(&Config::default_file()).unwrap(), Config::default());
}

#[test]
fn differing_sections_are_found_without_rules() {
    let before = "interface = \"a\"\n[cap]\ncapacity_mbit = 20.0\n[queue]\nbackend = \"htb\"\n";
    let now =
        "# The same.\n[[rule]]\nport = 1\nclass = \"bulk\"\n[queue]\nbackend = 'htb'\n[cap]\ncapacity_mbit = 30.0\n";
    assert_eq!(differing_sections(before, now), ["cap", "interface"]);
    assert_eq!(differing_sections(before, before), [""; 0]);
    assert_eq!(differing_sections("", "no toml"), [""; 0]);
}

#[test]
fn the_default_file_shows_the_real_defaults() {
    // Keys without a default show an example; uncommenting any line must at least be valid.
    let uncommented: String = Config::default_file()
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if !rest.starts_with(' ') => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let mut config = Config::parse(&uncommented).unwrap();
    assert_eq!(config.interface.take().as_deref(), Some("wlan0"));
    assert_eq!(config.cap.capacity_mbit.take(), Some(20.0));
    assert_eq!(config.cap.rtt_ms.take(), Some(256));
    assert_eq!(config.cap.fixed_segments.take(), Some(30));
    assert_eq!(config.group.key_file.take().as_deref(), Some("/etc/giveway/group.key"));
    assert_eq!(
        config.link,
        LinkSection {
            rate_mbit: Some(RateMbit::Fixed(20.0)),
            download_rate_mbit: Some(50.0),
            overhead_bytes: Some(24),
            driver_bytes: Some(1514),
            local: LocalTraffic::Limited,
        }
    );
    assert_eq!(
        (config.queue.guard_us.take(), config.queue.sojourn_target_ms.take()),
        (Some(100), Some(5.0))
    );
    assert_eq!(
        (
            config.queue.user_percent.take(),
            config.queue.background_min_kbit.take()
        ),
        (Some(25), Some(10))
    );
    assert_eq!(
        (config.deadline[0].conditions.port(), config.deadline[0].deadline_ms),
        (5005, 0.0)
    );
    assert_eq!(
        (
            config.background[0].conditions.port(),
            config.background[0].conditions.local_port
        ),
        (5005, Some(5006))
    );
    assert_eq!(config.priority[0].conditions.user.as_deref(), Some("robot"));
    assert_eq!(config.grant[0].max_priority, 10);
    assert_eq!(
        (config.chain[0].conditions.local_port(), config.chain[0].budget_ms),
        (5006, 5.0)
    );
    let rest = Config {
        link: LinkSection::default(),
        uplink: Vec::new(),
        deadline: Vec::new(),
        background: Vec::new(),
        priority: Vec::new(),
        grant: Vec::new(),
        chain: Vec::new(),
        rule: Vec::new(),
        ..config
    };
    assert_eq!(rest, Config::default());
}

#[test]
fn the_policy_depends_on_a_number_and_then_on_the_groups_key() {
    const KEY: &str = "[group]\nkey_file = \"/etc/giveway/group.key\"\n";
    for (text, policy) in [
        (String::new(), CapPolicyName::None),
        (KEY.to_owned(), CapPolicyName::Estimated),
        (format!("[cap]\ncapacity_mbit = 20\n{KEY}"), CapPolicyName::Fixed),
        (format!("[cap]\nfixed_segments = 30\n{KEY}"), CapPolicyName::Fixed),
        ("[cap]\ncapacity_mbit = 20\n".to_owned(), CapPolicyName::Fixed),
        (format!("[cap]\npolicy = \"none\"\n{KEY}"), CapPolicyName::None),
    ] {
        assert_eq!(Config::parse(&text).unwrap().cap_policy(), policy, "{text}");
    }
}

#[test]
fn several_interfaces_are_listed_once_each_with_its_rate() {
    let both = "interfaces = [\"wlan0\", \"wwan0\"]\n";
    let own = "[[uplink]]\ninterface = \"wwan0\"\nrate_mbit = 8\n";
    let config = Config::parse(&format!("{both}{own}")).unwrap();
    assert_eq!(
        (config.interfaces.len(), config.uplink[0].rate_mbit),
        (2, Some(RateMbit::Fixed(8.0)))
    );
    let nine = (0..9).map(|n| format!("\"veth{n}\",")).collect::<String>();
    for (wrong, reason) in [
        (format!("interface = \"wlan0\"\n{both}"), "beside `interface`"),
        (format!("interfaces = [{nine}]"), "at most 8 interfaces"),
        ("interfaces = [\"wlan0\", \"wlan0\"]".to_owned(), "only once"),
        (format!("{both}[link]\nrate_mbit = 8"), "the rate of one link"),
        ("[[uplink]]\nrate_mbit = 8".to_owned(), "must be given"),
        (format!("{own}{own}"), "by one [[uplink]] only"),
        (
            format!("interface = \"wlan0\"\n{own}"),
            "not among the managed interfaces",
        ),
        (
            format!("interfaces = [\"wlan0\", \"eth0\"]\n{own}"),
            "not among the managed interfaces",
        ),
    ] {
        assert!(error(&wrong).contains(reason), "{}", error(&wrong));
    }
    // `--interface` names fewer than the file.
    let fewer = Config {
        interfaces: vec!["wlan0".to_owned()],
        ..config
    };
    assert_eq!(fewer.check(), Ok(()));
}

#[test]
fn a_port_is_listed_once_for_each_protocol() {
    let entry = |kind: &str, protocol: &str| match kind {
        "chain" => format!("[[chain]]\nlocal_port = 5\nbudget_ms = 5\nprotocol = \"{protocol}\"\n"),
        _ => format!("[[deadline]]\nport = 5\nprotocol = \"{protocol}\"\n"),
    };
    for (kind, reason) in [
        (
            "deadline",
            "`deadline.port`: must be named by one [[deadline]] of its protocol only",
        ),
        (
            "chain",
            "`chain.local_port`: must be named by one [[chain]] of its protocol only",
        ),
    ] {
        assert!(Config::parse(&(entry(kind, "udp") + &entry(kind, "tcp"))).is_ok());
        assert_eq!(error(&(entry(kind, "udp") + &entry(kind, "udp"))), reason);
    }
}

#[test]
fn a_wrong_value_is_refused_with_a_suggestion() {
    for (text, ends) in [
        (
            "[[rule]]\nport = 1\nclass = \"backgroud\"",
            "; did you mean \"background\"?",
        ),
        ("[[rule]]\nport = 1\nclass = \"Bulk\"", "; did you mean \"bulk\"?"),
        ("[[rule]]\nport = 1\nprotocol = \"upd\"", "; did you mean \"udp\"?"),
        ("[queue]\nbackend = \"fq\"", " or \"none\""),
        ("[[rule]]\nclass = \"bulk\"\ndscp = 46", "; write \"46\""),
        ("[[rule]]\nclass = \"bulk\"\ndscp = 64", "expected a string"),
    ] {
        assert!(error(text).ends_with(ends), "{}", error(text));
    }
}

#[test]
fn refusals_say_what_to_write() {
    let prefers = "`cap.prefer`: must be \"balanced\", \"delay\" or \"throughput\"";
    for (text, told) in [
        ("[cap]\nprefer = 1.1", prefers),
        ("[cap]\nprefer = \"latency\"", prefers),
        (
            "[classes]\nreceive_window = \"true\"",
            "`classes.receive_window`: must be true or false; write true without quotes",
        ),
        (
            "[classes]\nreceive_window = 1",
            "`classes.receive_window`: must be true or false",
        ),
        (
            "[cap]\ncapacity_mbit = \"20\"",
            "`cap.capacity_mbit`: invalid type: string \"20\", expected a number; the unit is in the key's name; \
             write 20 without quotes",
        ),
        (
            "interface = [\"wlan0\"]",
            "`interface`: is one name: for several write interfaces = [\"wlan0\"]",
        ),
        (
            "interfaces = \"wlan0\"",
            "`interfaces`: invalid type: string \"wlan0\", expected a sequence; write [\"wlan0\"]",
        ),
        (
            "[cap]\nrate_mbit = 5",
            "unknown key `cap.rate_mbit`; a key of this name belongs below [link] or [[uplink]]",
        ),
        ("[[cap]]\n", "`cap`: is a section that is given once: write [cap]"),
    ] {
        assert_eq!(error(text), told);
    }
}

#[test]
fn toml_errors_say_what_to_write() {
    for (text, ends) in [
        (
            "[cap]\npolicy=fixed # it",
            "not TOML: text needs quotes: write policy = \"fixed\"",
        ),
        (
            "interface = wlan0\n",
            "not TOML: text needs quotes: write interface = \"wlan0\"",
        ),
        (
            "[cap]\nrtt_ms = 5\n[queue]\n[cap] # again\nmargin_bytes = 0",
            "not TOML: [cap] is given twice: put its keys together, below the first",
        ),
        ("[cap]\nrtt_ms = 5\nrtt_ms = 6", ": it is given twice: keep one"),
    ] {
        let error = error(text);
        assert!(error.starts_with("not TOML: ") && error.ends_with(ends), "{error}");
    }
}

#[test]
fn each_value_of_a_list_is_checked() {
    let config = Config::parse("[[deadline]]\nport = 5005\ndeadline_ms = 10\n[[deadline]]\nport = 5006\n").unwrap();
    let ports: Vec<u16> = config.deadline.iter().map(|rule| rule.conditions.port()).collect();
    assert_eq!(ports, [5005, 5006]);
    let misspelt = error("[[deadline]]\nport = 5005\n[[deadline]]\nprot = 5006\n");
    assert!(
        misspelt.contains("unknown key `deadline.prot`; did you mean `protocol`?"),
        "{misspelt}"
    );
    assert_eq!(
        error("[deadline]\nport = 5005\n"),
        "`deadline`: is a section that can be given several times, and so has two brackets: write [[deadline]]"
    );
    assert_eq!(
        error("[[background]]\nport = 1\n"),
        "`background.address`: must be given"
    );
    let wrong = error("[[deadline]]\nport = 5005\n[[deadline]]\nport = 70000\n");
    assert!(wrong.starts_with("`deadline.port`: "), "{wrong}");
}

#[test]
fn a_wrong_unit_is_refused_with_the_right_key() {
    let error = error("[cap]\ncapacity_kbit = 20000");
    assert!(
        error.contains("unknown key `cap.capacity_kbit`; did you mean `capacity_mbit`?"),
        "{error}"
    );
}

#[test]
fn an_unknown_section_is_refused_by_name() {
    let error = Config::parse("[monitr]\n").unwrap_err().to_string();
    assert!(
        error.contains("unknown section `monitr`; did you mean `monitor`?"),
        "{error}"
    );
}

#[test]
fn a_value_with_a_unit_is_refused_with_the_key() {
    let error = Config::parse("[cap]\ncapacity_mbit = \"20 Mbit/s\"")
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "`cap.capacity_mbit`: invalid type: string \"20 Mbit/s\", expected a number; the unit is in the key's name"
    );
}

#[test]
fn a_range_of_ports_is_refused() {
    for ports in ["\"5000-5010\"", "[5000, 5010]"] {
        let error = Config::parse(&format!("[[rule]]\nport = {ports}\nclass = \"bulk\""));
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with("expected one port number, no range"), "{error}");
    }
}

#[test]
fn a_value_out_of_range_names_the_range() {
    let error = Config::parse("[monitor]\npolls_per_second = 0")
        .unwrap_err()
        .to_string();
    assert_eq!(error, "`monitor.polls_per_second`: must be from 1 to 100");
}

#[test]
fn a_fixed_policy_needs_a_capacity() {
    assert!(Config::parse("[cap]\npolicy = \"fixed\"").is_err());
    assert!(Config::parse("[cap]\npolicy = \"fixed\"\ncapacity_mbit = 20.0").is_ok());
}

#[test]
fn an_integer_capacity_is_accepted() {
    assert_eq!(
        Config::parse("[cap]\ncapacity_mbit = 20").unwrap().cap.capacity_mbit,
        Some(20.0)
    );
}

/// A section's text with all required keys, and this value of this key.
fn with(section: &Section, key: &ConfigKey, value: &str) -> String {
    let keys = section.keys();
    let needs = |other: &ConfigKey, absent: &Absent| {
        matches!(absent, Absent::Refused)
            || ["user", "class"].contains(&other.name)
            || (section.name, other.name) == ("uplink", "interface")
    };
    let mut text = if section.repeated {
        format!("[[{}]]\n", section.name)
    } else {
        format!("[{}]\n", section.name)
    };
    for (other, absent) in keys
        .iter()
        .filter(|(other, absent)| other.name != key.name && needs(other, absent))
    {
        let mut lines = String::new();
        other.render(absent, &mut lines);
        let line = lines.lines().last().unwrap();
        text += &format!("{}\n", line.trim_start_matches('#'));
    }
    text + &format!("{} = {value}\n", key.name)
}

fn every_key() -> impl Iterator<Item = (&'static Section, &'static ConfigKey)> {
    let keys = |section: &'static Section| section.keys().into_iter().map(move |(key, _)| (section, key));
    SECTIONS.iter().flat_map(keys)
}

fn takes(key: &ConfigKey, text: &str) -> bool {
    let table: toml::Table = format!("x = {text}").parse().unwrap();
    (key.read)(&table["x"]).is_ok()
}

#[test]
fn every_numeric_key_has_a_range() {
    let without = every_key().filter(|(_, key)| (takes(key, "1") || takes(key, "[1]")) && key.range.is_empty());
    let names: Vec<_> = without
        .map(|(section, key)| format!("{}.{}", section.name, key.name))
        .collect();
    assert_eq!(names, [] as [&str; 0]);
    assert!(every_key().filter(|(_, key)| !key.range.is_empty()).count() > 40);
}

#[test]
fn numeric_keys_are_accepted_just_inside_their_range_only() {
    for (section, key) in every_key() {
        let Some(range) = key.range.first() else { continue };
        let (least, most) = (*range.start(), *range.end());
        let (is_list, is_float) = (takes(key, "[1]"), takes(key, "1.5"));
        let shown = |value: f64| match (is_list, is_float) {
            (true, _) => format!("[{}, {value}]", least),
            (false, true) => format!("{value:?}").to_lowercase(),
            (false, false) => format!("{value}"),
        };
        let step = |from: f64| if is_float { from * 0.01 } else { 1.0 };
        for inside in [least, most, least + step(least)] {
            let text = with(section, key, &shown(inside));
            assert_eq!(Config::parse(&text).map(drop), Ok(()), "{text}");
        }
        let below = least - step(least).max(0.000_1);
        let outside = [below, most + step(most), f64::INFINITY, f64::NAN];
        let given = outside.iter().filter(|value| is_float || value.is_finite());
        for outside in given {
            let text = with(section, key, &shown(*outside));
            let expected = format!("`{}.{}`: must be from {least} to {most}", section.name, key.name);
            assert_eq!(Config::parse(&text).map_err(|e| e.to_string()), Err(expected), "{text}");
        }
    }
}

#[test]
fn declared_sections_and_the_configuration_agree() {
    let written = toml::Table::try_from(Config {
        interface: Some("wlan0".to_owned()),
        ..Config::default()
    });
    let written: BTreeSet<_> = written.unwrap().into_iter().map(|(name, _)| name).collect();
    let sections = SECTIONS.iter().map(|section| section.name.to_owned());
    let declared: BTreeSet<_> = sections.chain(TOP_KEYS.iter().map(|key| key.name.to_owned())).collect();
    assert_eq!(written, declared);
}

#[test]
fn no_line_of_the_default_file_is_wider_than_100_columns() {
    for line in Config::default_file().lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    assert!(Config::default_file().contains("From 1 to 100.\n#polls_per_second = 10\n"));
}

#[test]
fn configurations_not_from_text_are_checked_as_strictly() {
    assert_eq!(Config::default().check(), Ok(()));
    let rule = |change: fn(&mut PrioritySection)| {
        let mut rule = PrioritySection {
            conditions: Conditions {
                user: Some("robot".to_owned()),
                ..Conditions::default()
            },
            ..PrioritySection::default()
        };
        change(&mut rule);
        let config = Config {
            priority: vec![rule],
            ..Config::default()
        };
        config.check().map_err(|error| error.to_string())
    };
    assert_eq!(rule(|_| ()), Ok(()));
    let too_many = rule(|rule| rule.max_tasks = 4097).unwrap_err();
    assert_eq!(too_many, "`priority.max_tasks`: must be from 1 to 4096");
    assert!(
        rule(|rule| rule.conditions.user = None)
            .unwrap_err()
            .contains("priority.exe")
    );
    let control = rule(|rule| rule.name = Some("\x1b[2J".to_owned())).unwrap_err();
    assert_eq!(control, "`priority.name`: must not contain control characters");
    let port = rule(|rule| rule.conditions.port = Some(443)).unwrap_err();
    assert!(port.starts_with("`[[priority]]` cannot match `port`"), "{port}");
}

#[test]
fn a_rule_survives_the_control_socket() {
    let sent = r#"{"name":"camera","exe":"/usr/bin/camera","user":null,"policy":"rr","priority":7}"#;
    let rule: PrioritySection = serde_json::from_str(sent).unwrap();
    assert_eq!(rule.conditions.exe.as_deref(), Some("/usr/bin/camera"));
    assert_eq!((rule.priority, rule.max_tasks), (7, 32));
    let text = serde_json::to_string(&rule).unwrap();
    assert_eq!(serde_json::from_str::<PrioritySection>(&text).unwrap(), rule);
}

#[test]
fn each_table_refuses_conditions_that_it_cannot_enforce() {
    assert_eq!(
        error("[[background]]\naddress = \"192.0.2.1\"\nport = 1\nunit = \"rsync.service\""),
        "`[[background]]` cannot match `unit`: background flows are identified by address and port only; run the \
         program at nice 19 (`Nice=19` in its unit), and its sockets are background"
    );
    let conditions = names_of::<Conditions>();
    for section in SECTIONS.iter().filter(|section| section.matching.is_some()) {
        let accepts = section.matching.unwrap().accepts;
        for condition in &conditions {
            let refused = !accepts.iter().any(|(name, _)| name == condition);
            let text = format!("[[{}]]\n{condition} = \"\"", section.name);
            let expected = format!("`[[{}]]` cannot match `{condition}`: ", section.name);
            let shown = Config::parse(&text).map_or_else(|error| error.to_string(), |_| String::new());
            assert_eq!(shown.starts_with(&expected), refused, "{text}: {shown}");
        }
    }
}

fn names_of<T: super::key::Declared>() -> Vec<&'static str> {
    T::KEYS.iter().map(|key| key.name).collect()
}

#[test]
fn a_prefix_is_refused_where_only_one_address_can_be_enforced() {
    let refused = error("[[background]]\nport = 1\naddress = \"192.0.2.0/24\"");
    assert!(
        refused.starts_with("`background.address`: must be one address: "),
        "{refused}"
    );
    assert_eq!(
        error("[[background]]\nport = 1\naddress = \"host\""),
        "`background.address`: `host` is neither an IPv4 or IPv6 address nor a prefix such as 192.0.2.0/24"
    );
}

#[test]
fn a_renamed_key_is_refused_with_its_new_name_and_only_in_its_table() {
    let renamed = [("cap", "most_segments", "fixed_segments"), ("", "device", "interface")];
    let error = |section, typed| {
        let known = ["fixed_segments", "segment_bytes", "interface"];
        names::unknown("key", section, typed, &renamed, known.into_iter()).to_string()
    };
    assert_eq!(
        error("cap", "most_segments"),
        "`cap.most_segments` is called `cap.fixed_segments`"
    );
    assert_eq!(error("", "device"), "`device` is called `interface`");
    assert!(error("link", "most_segments").starts_with("unknown key `link.most_segments`"));
}

#[test]
fn another_name_of_a_condition_is_refused_with_its_name() {
    assert_eq!(
        error("[[deadline]]\nremote_port = 5005"),
        "`deadline.remote_port` is called `deadline.port`"
    );
}

#[test]
fn chains_together_leave_a_fifth_of_a_cpu() {
    let chain = |port: u16| format!("[[chain]]\nlocal_port = {port}\nbudget_ms = 5\n");
    assert!(Config::parse(&[1, 2].map(chain).concat()).is_ok());
    assert!(error(&[1, 2, 3].map(chain).concat()).contains("80 percent of a CPU"));
    let above = "[priority_limits]\nmax_priority = 30\n".to_owned() + &chain(1);
    assert_eq!(
        error(&above),
        "`chain.priority`: must be from 1 to priority_limits.max_priority"
    );
}

/// Texts that resemble a configuration: declared and misspelt names, values of every type and beyond every range.
fn lines() -> impl Strategy<Value = String> {
    let names: Vec<_> = every_key().map(|(_, key)| key.name).collect();
    let sections: Vec<_> = SECTIONS.iter().map(|section| section.name).collect();
    let value = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| format!("{number:?}")),
        any::<String>().prop_map(|text| toml::Value::from(text).to_string()),
        Just("[1, \"x\"]".to_owned()),
        Just("{ a = 1 }".to_owned()),
        Just("\"\"\"a\nb\"\"\"".to_owned()),
        any::<String>(),
    ];
    let name = prop_oneof![
        4 => prop::sample::select(names).prop_map(str::to_owned),
        1 => any::<String>().prop_map(|name| toml::Value::from(name).to_string()),
    ];
    let header = prop::sample::select(sections).prop_flat_map(|name| {
        prop::sample::select(vec![
            format!("[{name}]\n"),
            format!("[[{name}]]\n"),
            format!("{name} = "),
        ])
    });
    let line = prop_oneof![
        3 => (name, value).prop_map(|(name, value)| format!("{name} = {value}\n")),
        1 => header,
    ];
    prop::collection::vec(line, 0..8).prop_map(|lines| lines.concat())
}

fn is_accepted_or_refused_in_one_line(text: &str) -> Result<(), TestCaseError> {
    match Config::parse(text) {
        Ok(config) => prop_assert_eq!(config.check(), Ok(())),
        Err(error) => {
            let error = error.to_string();
            prop_assert!(!error.chars().any(char::is_control), "{error:?}");
            prop_assert!(error.chars().count() < 1000, "{error}");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_text_is_accepted_or_refused_in_one_line(text: String) {
        is_accepted_or_refused_in_one_line(&text)?;
    }

    #[test]
    fn text_like_a_configuration_is_accepted_or_refused_in_one_line(text in lines()) {
        is_accepted_or_refused_in_one_line(&text)?;
    }
}

#[test]
fn a_rule_has_the_default_conditions() {
    let config = Config::parse("[[chain]]\nlocal_port = 1\nbudget_ms = 5\n[[deadline]]\nport = 2").unwrap();
    let chain = &config.chain[0];
    assert_eq!((chain.conditions.protocol, chain.user()), (Some(Protocol::Udp), "root"));
    assert_eq!(config.deadline[0].conditions.protocol, Some(Protocol::Udp));
}

#[test]
fn a_rate_is_a_number_or_auto() {
    let rate = |text: &str| Config::parse(&format!("[link]\nrate_mbit = {text}")).map(|config| config.link.rate_mbit);
    assert_eq!(rate("8").unwrap(), Some(RateMbit::Fixed(8.0)));
    assert_eq!(rate("\"auto\"").unwrap(), Some(RateMbit::Estimated));
    for wrong in ["\"fast\"", "true", "0.001"] {
        assert!(rate(wrong).is_err(), "{wrong}");
    }
}
