// SPDX-License-Identifier: Apache-2.0 OR MIT
use super::*;
use crate::model::Class;

const ETH: u32 = 2;
const BRIDGE: u32 = 3;

fn limit(number: LimitNumber) -> RateLimit {
    RateLimit {
        number,
        bytes_per_s: 312_500,
        class: Class::Standard,
    }
}

fn arrival(ifindex: u32, name: &str) -> Arrival {
    Arrival {
        ifindex,
        name: name.to_owned(),
        ..Arrival::default()
    }
}

fn plan(links: &[(u32, &str)], numbers: &[LimitNumber]) -> Option<DetourPlan> {
    Some(DetourPlan {
        mtu_bytes: 0,
        links: links
            .iter()
            .map(|(ifindex, name)| (*ifindex, (*name).to_owned()))
            .collect(),
        limits: numbers.iter().map(|number| limit(*number)).collect(),
        orders: BTreeMap::new(),
    })
}

/// One limit is active on eth0.
fn limiting() -> Downlink {
    let mut downlink = Downlink::default();
    assert_eq!(downlink.follow(vec![limit(1)]), None);
    assert!(downlink.misses_arrivals());
    assert_eq!(
        downlink.observe(Duration::ZERO, vec![arrival(ETH, "eth0")]),
        Some(plan(&[(ETH, "eth0")], &[1]))
    );
    let (changes, next) = downlink.conclude(Duration::ZERO, Ok(LeftOut::new()));
    assert_eq!((changes.len(), next), (1, None));
    downlink
}

#[test]
fn nothing_is_installed_without_a_limit_and_the_last_one_removes_it() {
    let mut downlink = Downlink::default();
    assert_eq!(downlink.observe(Duration::ZERO, vec![arrival(ETH, "eth0")]), None);
    assert!(!downlink.is_wanted());
    let mut downlink = limiting();
    assert_eq!(downlink.serves(ETH), Some(Ok("eth0".to_owned())));
    assert_eq!(downlink.serves(9), None);
    assert_eq!(
        downlink.follow(vec![limit(1), limit(2)]),
        Some(plan(&[(ETH, "eth0")], &[1, 2]))
    );
    assert!(
        downlink.conclude(Duration::ZERO, Ok(LeftOut::new())).0.is_empty(),
        "the link is what it was"
    );
    assert_eq!(downlink.follow(Vec::new()), Some(None));
    let (changes, _) = downlink.conclude(Duration::ZERO, Ok(LeftOut::new()));
    assert_eq!(changes[0].reason, "no limit is set any more");
    assert!(!downlink.is_wanted() && downlink.limiting().next().is_none());
}

#[test]
fn a_filter_that_would_be_bypassed_is_reported_and_nothing_installed() {
    let mut downlink = limiting();
    let filtered = Arrival {
        hindrance: Some("a filter of tc's stands there".to_owned()),
        ..arrival(ETH, "eth0")
    };
    assert_eq!(
        downlink.observe(Duration::ZERO, vec![filtered]),
        Some(None),
        "also when it comes later"
    );
    downlink.conclude(Duration::ZERO, Ok(LeftOut::new()));
    let reason = "downloads on eth0 are not limited: a filter of tc's stands there";
    assert_eq!(downlink.serves(ETH), Some(Err(reason.to_owned())));
    assert_eq!(downlink.shortfalls(), [reason]);
}

#[test]
fn the_throughput_of_a_limit_is_known_from_its_first_second() {
    let mut downlink = limiting();
    let mut shown_mbit = |ms, passed_bytes| {
        let passed = Passed {
            passed_bytes,
            ..Passed::default()
        };
        let limits = BTreeMap::from([(limit(1).number, passed)]);
        let counted = Counted {
            limits,
            orders: BTreeMap::new(),
        };
        downlink.count(Duration::from_millis(ms), counted);
        downlink.view().limits[0].passing.throughput_mbit
    };
    assert_eq!(shown_mbit(1_000, 125_000), 1.0);
    assert_eq!(shown_mbit(1_100, 500_000), 1.0, "too soon after");
    assert_eq!(shown_mbit(2_000, 375_000), 2.0);
    assert_eq!(shown_mbit(3_000, 0), 0.0, "by another queue");
    assert_eq!(shown_mbit(4_000, 125_000), 1.0);
}

#[test]
fn a_port_of_a_managed_bridge_is_left_out() {
    let mut downlink = Downlink::default();
    downlink.follow(vec![limit(1)]);
    let port = Arrival {
        bridge: Some(BRIDGE),
        ..arrival(ETH, "eth0")
    };
    let both = vec![port.clone(), arrival(BRIDGE, "br0")];
    assert_eq!(
        downlink.observe(Duration::ZERO, both),
        Some(plan(&[(BRIDGE, "br0")], &[1]))
    );
    downlink.conclude(Duration::ZERO, Ok(LeftOut::new()));
    assert_eq!(downlink.serves(ETH), Some(Ok("br0".to_owned())));
    assert_eq!(
        downlink.observe(Duration::ZERO, vec![port]),
        Some(plan(&[(ETH, "eth0")], &[1]))
    );
}

#[test]
fn failures_and_removals_are_reported_and_retried() {
    let mut downlink = limiting();
    let changes = downlink.lost(Duration::ZERO, "somebody has deleted it".to_owned());
    assert_eq!(
        (changes.len(), changes[0].reason.as_str()),
        (1, "somebody has deleted it")
    );
    assert!(downlink.lost(Duration::ZERO, "again".to_owned()).is_empty(), "once");
    assert_eq!(downlink.observe(Duration::ZERO, vec![arrival(ETH, "eth0")]), None);
    let second = Duration::from_secs(1);
    assert_eq!(downlink.next_try(), Some(second));
    assert_eq!(downlink.try_again(second), Some(plan(&[(ETH, "eth0")], &[1])));
    assert!(downlink.conclude(second, Err("no ifb".to_owned())).0.is_empty());
    assert_eq!(
        downlink.serves(ETH).unwrap().unwrap_err(),
        "downloads on eth0 are not limited: no ifb"
    );
    assert_eq!(downlink.next_try(), Some(second * 3));
    assert_eq!(downlink.follow(Vec::new()), None, "nothing is there");
    assert_eq!(downlink.next_try(), None);
}

#[test]
fn a_refusing_link_backs_off_alone() {
    let mut downlink = Downlink::default();
    downlink.follow(vec![limit(1)]);
    let at = Duration::from_secs;
    let refuses = || Ok(LeftOut::from([(9, "no room".to_owned())]));
    let look = |downlink: &mut Downlink, now| downlink.observe(now, vec![arrival(ETH, "eth0"), arrival(9, "wlan0")]);
    let both = plan(&[(ETH, "eth0"), (9, "wlan0")], &[1]);
    for (tried, too_early) in [(0, 0), (1, 2), (3, 6)] {
        assert_eq!(look(&mut downlink, at(tried)), Some(both.clone()));
        assert_eq!(downlink.conclude(at(tried), refuses()).1, None);
        assert_eq!(look(&mut downlink, at(too_early)), None);
        assert_eq!(downlink.serves(ETH), Some(Ok("eth0".to_owned())));
        let why_not = downlink.serves(9).unwrap().unwrap_err();
        assert_eq!(why_not, "downloads on wlan0 are not limited: no room");
    }
    assert_eq!(look(&mut downlink, at(7)), Some(both.clone()));
    downlink.conclude(at(7), Ok(LeftOut::new()));
    assert_eq!(downlink.serves(9), Some(Ok("wlan0".to_owned())));
    downlink.lost(at(100), "gone".to_owned());
    assert_eq!(downlink.try_again(at(101)), Some(both.clone()));
    downlink.conclude(at(101), refuses());
    assert_eq!(look(&mut downlink, at(102)), Some(both), "it has held meanwhile");
}

#[test]
fn a_pause_removes_it_and_a_dry_run_installs_nothing() {
    let mut downlink = limiting();
    let reason = "try".to_owned();
    assert_eq!(downlink.pause(Some(&reason)), Some(None));
    downlink.conclude(Duration::ZERO, Ok(LeftOut::new()));
    assert_eq!(downlink.pause(None), Some(plan(&[(ETH, "eth0")], &[1])));
    let mut dry = Downlink::new(Way::Received, true);
    dry.follow(vec![limit(1)]);
    assert_eq!(dry.observe(Duration::ZERO, vec![arrival(ETH, "eth0")]), None);
}

const RATE: DownloadRate = DownloadRate {
    ifindex: ETH,
    mbit: 20.0,
    configured_in: "[link]",
};

fn ordering(links: &[(u32, &str)], numbers: &[LimitNumber]) -> Option<DetourPlan> {
    let orders = BTreeMap::from([(ETH, RATE.most())]);
    plan(links, numbers).map(|plan| DetourPlan { orders, ..plan })
}

#[test]
fn only_links_with_a_known_rate_are_ordered() {
    let mut downlink = Downlink::default();
    assert_eq!(downlink.follow_rates(vec![RATE]), None);
    assert!(downlink.misses_arrivals());
    let arrivals = || vec![arrival(ETH, "eth0"), arrival(9, "wlan0")];
    let asked = downlink.observe(Duration::ZERO, arrivals());
    assert_eq!(asked, Some(ordering(&[(ETH, "eth0")], &[])));
    let (changes, next) = downlink.conclude(Duration::ZERO, Ok(LeftOut::new()));
    assert_eq!((changes.len(), next), (1, None));
    assert_eq!(changes[0].setting, Setting::DownloadOrder);
    assert!(
        changes[0].reason.contains("80% of the 20 Mbit/s that [link] says"),
        "{}",
        changes[0].reason
    );
    assert_eq!(downlink.orders(ETH).map(|(link, _)| link), Some("eth0"));
    assert_eq!((downlink.orders(9).is_none(), downlink.limiting().count()), (true, 0));
    // Limits apply on all of them, and orders continue.
    let arrived = |passed_bytes| {
        let arrived = Arrived {
            passed_bytes,
            ordered_bytes: 0,
        };
        BTreeMap::from([(ETH, arrived)])
    };
    assert!(downlink.balance(Duration::ZERO, &arrived(0)).is_empty());
    let available = downlink.balance(Duration::from_secs(1), &arrived(1_250_000));
    assert_eq!(available, BTreeMap::from([(ETH, RATE.most() - 1_250_000)]));
    let both = [(ETH, "eth0"), (9, "wlan0")];
    assert_eq!(downlink.follow(vec![limit(1)]), Some(ordering(&both, &[1])));
    let (changes, _) = downlink.conclude(Duration::ZERO, Ok(LeftOut::new()));
    assert!(
        changes.iter().all(|change| change.setting == Setting::DownloadLimit),
        "{changes:?}"
    );
    assert!((downlink.view().orders[0].available_mbit - 6.0).abs() < 0.01);
    assert_eq!(downlink.follow_rates(Vec::new()), Some(plan(&both, &[1])));
    let (changes, _) = downlink.conclude(Duration::ZERO, Ok(LeftOut::new()));
    assert!(
        changes.len() == 1 && changes[0].new == Value::from("not shaped"),
        "{changes:?}"
    );
    assert!(downlink.orders(ETH).is_none());
}

#[test]
fn a_failed_order_is_reported_and_retried() {
    let mut downlink = Downlink::default();
    downlink.follow_rates(vec![RATE]);
    assert!(downlink.observe(Duration::ZERO, vec![arrival(ETH, "eth0")]).is_some());
    let (changes, next) = downlink.conclude(Duration::ZERO, Err("no ifb".to_owned()));
    assert_eq!((changes.len(), next), (0, None));
    assert_eq!(downlink.view().reasons, ["downloads on eth0 are not ordered: no ifb"]);
    let at = downlink.next_try().unwrap();
    assert_eq!(downlink.try_again(at), Some(ordering(&[(ETH, "eth0")], &[])));
    downlink.conclude(at, Ok(LeftOut::new()));
    assert!(downlink.view().reasons.is_empty());
    downlink.lost(at, "it is gone".to_owned());
    assert!(downlink.orders(ETH).is_none() && downlink.balance(at, &BTreeMap::new()).is_empty());
}

fn wanting_a_limit() -> Downlink {
    let mut downlink = Downlink::default();
    assert_eq!(downlink.follow(vec![limit(1)]), None);
    downlink
}

#[test]
fn the_mtu_belongs_to_the_plan() {
    let mut downlink = wanting_a_limit();
    let with_mtu = |mtu_bytes| Arrival {
        mtu_bytes,
        ..arrival(2, "eth0")
    };
    let asked = downlink
        .observe(Duration::ZERO, vec![with_mtu(1_500)])
        .flatten()
        .unwrap();
    assert_eq!(asked.mtu_bytes, 1_500);
    downlink.conclude(Duration::ZERO, Ok(LeftOut::new()));
    assert_eq!(downlink.observe(Duration::ZERO, vec![with_mtu(1_500)]), None);
    let anew = downlink
        .observe(Duration::ZERO, vec![with_mtu(9_000)])
        .flatten()
        .unwrap();
    assert_eq!(anew.mtu_bytes, 9_000);
}

#[test]
fn an_installation_that_lasted_a_minute_is_restored_at_once() {
    let mut downlink = wanting_a_limit();
    downlink.observe(Duration::ZERO, vec![arrival(2, "eth0")]).unwrap();
    let mut now = Duration::ZERO;
    for _ in 0..10 {
        downlink.conclude(now, Ok(LeftOut::new()));
        now += STANDS;
        downlink.lost(now, "somebody has switched it off".to_owned());
        now += Duration::from_secs(1);
        downlink.try_again(now).unwrap();
    }
    // One that does not last backs off.
    downlink.conclude(now, Ok(LeftOut::new()));
    downlink.lost(now, "somebody has switched it off".to_owned());
    now += Duration::from_secs(1);
    assert_eq!(downlink.try_again(now), None);
}
