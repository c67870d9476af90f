// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several links: each has its own rate and its own failures; they come, go, and flap.

use super::*;
use crate::queue::{Backend, RootQdisc};

const NOW: Duration = Duration::from_secs(100);

fn after(ms: u64) -> Duration {
    NOW + Duration::from_millis(ms)
}

fn links(text: &str) -> Links {
    let backends = Backends {
        bpf: Ok(()),
        htb: Ok(()),
        marks: Err("not looked for".to_owned()),
        dry_run: false,
    };
    Links::new(&Config::parse(text).unwrap(), backends)
}

fn uplink(ifindex: u32, name: &str) -> Uplink {
    Uplink {
        ifindex,
        name: name.to_owned(),
        mtu_bytes: 1500,
        header_bytes: 14,
        wired: false,
        speed_mbit: None,
        root: RootQdisc {
            kind: "noqueue".to_owned(),
            ..RootQdisc::default()
        },
        up: true,
        carrier_losses: 0,
        chosen: true,
    }
}

fn wifi() -> Uplink {
    uplink(2, "wlan0")
}

fn lte() -> Uplink {
    uplink(3, "wwan0")
}

/// With giveway's queue at its root.
fn ours(uplink: Uplink) -> Uplink {
    let root = RootQdisc {
        kind: "gw".to_owned(),
        ours: true,
        ..RootQdisc::default()
    };
    Uplink { root, ..uplink }
}

fn left(uplink: Uplink) -> Uplink {
    Uplink {
        chosen: false,
        ..ours(uplink)
    }
}

/// By interface: the rate of the requested queue in kbit/s, 0 where unknown; None: giveway's is removed.
fn asked(actions: &[LinkRequest]) -> Vec<(u32, Option<u64>)> {
    let rate = |plan: &Plan| plan.tuning.rate_bytes_per_s.unwrap_or(0) / 125;
    let of = |asked: &LinkRequest| match &asked.request {
        QueueRequest::Set(plan) => (asked.ifindex, plan.as_ref().map(rate)),
        QueueRequest::Tune(tuning) => panic!("tuned to {tuning:?}"),
    };
    actions.iter().map(of).collect()
}

/// All requests succeed.
fn succeed(links: &mut Links, now: Duration, actions: &[LinkRequest]) {
    for (ifindex, _) in asked(actions) {
        assert_eq!(links.conclude(now, ifindex, Ok(())).1, None);
    }
}

/// Both links have their queues.
fn both(text: &str) -> Links {
    let mut links = links(text);
    let (_, actions) = links.observe(NOW, vec![wifi(), lte()], Some(2));
    succeed(&mut links, NOW, &actions);
    links
}

const RATES: &str =
    "[[uplink]]\ninterface = \"wlan0\"\nrate_mbit = 20\n[[uplink]]\ninterface = \"wwan0\"\nrate_mbit = 4";

#[test]
fn each_link_has_a_queue_with_its_own_rate() {
    let mut links = links(RATES);
    let (changes, actions) = links.observe(NOW, vec![wifi(), lte()], Some(2));
    assert_eq!(asked(&actions), [(2, Some(20_000)), (3, Some(4_000))]);
    assert!(changes.is_empty());
    let reason = &links.views(NOW)[1].queue.reason;
    assert!(reason.contains("(rate_mbit in [[uplink]])"), "{reason}");
}

#[test]
fn the_link_section_sets_the_preferred_links_rate_only() {
    let text = "[link]\nrate_mbit = 10";
    let (_, actions) = links(text).observe(NOW, vec![wifi(), lte()], Some(2));
    assert_eq!(asked(&actions), [(2, Some(10_000)), (3, Some(0))]);
    let (_, actions) = links(text).observe(NOW, vec![wifi(), lte()], Some(3));
    assert_eq!(asked(&actions), [(2, Some(0)), (3, Some(10_000))]);
}

#[test]
fn a_failure_is_retried_on_its_link_alone() {
    let mut links = links(RATES);
    links.observe(NOW, vec![wifi(), lte()], Some(2));
    links.conclude(NOW, 2, Ok(()));
    let mut next = links.conclude(NOW, 3, Err("no".to_owned())).1;
    while let Some(LinkRequest { ifindex, .. }) = next {
        next = links.conclude(NOW, ifindex, Err("no".to_owned())).1;
    }
    assert_eq!(links.next_try(), Some(after(1_000)));
    assert_eq!(asked(&links.try_again(after(1_000))), [(3, Some(4_000))]);
    assert_eq!(
        links.views(NOW)[0].queue.installed.as_ref().map(|plan| plan.backend),
        Some(Backend::Bpf)
    );
}

#[test]
fn a_link_that_lost_its_route_keeps_its_queue_for_ten_seconds() {
    let mut links = both(RATES);
    let moved = || vec![ours(lte()), left(wifi())];
    assert_eq!(links.observe(after(0), moved(), Some(3)).1, []);
    assert_eq!(links.next_try(), Some(after(10_000)));
    assert_eq!(links.try_again(after(9_999)), []);
    let back = vec![ours(wifi()), ours(lte())];
    assert_eq!(links.observe(after(9_999), back, Some(2)).1, [], "it is back in time");
    assert_eq!(links.next_try(), None);
    links.observe(after(20_000), moved(), Some(3));
    let gone = links.try_again(after(30_000));
    assert_eq!(asked(&gone), [(2, None)]);
    let change = links.conclude(after(30_000), 2, Ok(())).0.unwrap();
    assert!(
        change.reason.contains("wlan0 is no longer managed"),
        "{}",
        change.reason
    );
    assert_eq!(links.views(after(30_000)).len(), 1);
    assert_eq!(links.next_try(), None);
}

#[test]
fn a_removed_link_is_reported_and_the_other_is_unchanged() {
    let mut links = both(RATES);
    let (changes, actions) = links.observe(after(60_000), vec![ours(lte())], Some(3));
    assert_eq!(asked(&actions), [(2, None)]);
    assert_eq!(
        (changes[0].new.clone(), changes[0].made),
        ("removed with the link".into(), true)
    );
    assert_eq!(links.conclude(after(60_000), 2, Ok(())), (None, None));
    let again = uplink(9, "wlan0");
    let (_, actions) = links.observe(after(60_100), vec![again, ours(lte())], Some(9));
    assert_eq!(asked(&actions), [(9, Some(20_000))], "under the same name, at once");
}

#[test]
fn a_flapping_link_waits_longer_each_time() {
    let mut links = both(RATES);
    let mut now = after(60_000);
    for (ifindex, wait_ms) in [(10, 0), (11, 1_000), (12, 2_000), (13, 4_000)] {
        links.observe(now, vec![ours(lte())], Some(3));
        let (_, actions) = links.observe(now, vec![uplink(ifindex, "wlan0"), ours(lte())], Some(3));
        let mut asked_for = asked(&actions);
        if wait_ms > 0 {
            assert_eq!(asked_for, []);
            assert!(links.views(now)[0].queue.reason.contains("is flapping"));
            now += Duration::from_millis(wait_ms);
            assert_eq!(links.next_try(), Some(now));
            asked_for = asked(&links.try_again(now));
        }
        assert_eq!(asked_for, [(ifindex, Some(20_000))]);
        links.conclude(now, ifindex, Ok(()));
    }
}

#[test]
fn another_tools_qdisc_stays_even_after_the_link_left() {
    let mut links = both(RATES);
    let root = RootQdisc {
        handle: 0x7_0000,
        ..wifi().root
    };
    let theirs = |chosen| Uplink {
        chosen,
        root: root.clone(),
        ..wifi()
    };
    let (_, actions) = links.observe(NOW, vec![theirs(true), ours(lte())], Some(2));
    assert_eq!(asked(&actions).first(), Some(&(2, None)));
    links.conclude(NOW, 2, Ok(()));
    links.observe(NOW, vec![ours(lte()), theirs(false)], Some(3));
    links.try_again(after(10_000));
    assert_eq!(
        links.contested().collect::<Vec<_>>(),
        [2],
        "it is looked at all the same"
    );
    let (_, actions) = links.observe(after(11_000), vec![theirs(true), ours(lte())], Some(2));
    assert!(asked(&actions).iter().all(|(_, queue)| queue.is_none()), "{actions:?}");
    assert!(links.views(NOW)[0].queue.reason.contains("another tool"));
    let down = Uplink {
        up: false,
        ..theirs(false)
    };
    links.observe(after(12_000), vec![ours(lte()), down], Some(3));
    links.try_again(after(22_000));
    links.observe(after(22_000), vec![ours(lte()), theirs(false)], Some(3));
    let (_, actions) = links.observe(after(23_000), vec![theirs(true), ours(lte())], Some(2));
    assert!(asked(&actions).contains(&(2, Some(20_000))), "it was down: {actions:?}");
}

#[test]
fn at_most_eight_links_are_managed_and_a_removed_one_makes_room() {
    let mut links = links("");
    let all: Vec<Uplink> = (2..=10)
        .map(|ifindex| uplink(ifindex, &format!("veth{ifindex}")))
        .collect();
    let (_, actions) = links.observe(NOW, all[..8].to_vec(), Some(2));
    assert_eq!(actions.len(), MOST_LINKS);
    succeed(&mut links, NOW, &actions);
    let mut now_ours: Vec<Uplink> = all[..8].iter().cloned().map(ours).collect();
    now_ours.insert(0, all[8].clone());
    assert_eq!(links.observe(NOW, now_ours.clone(), Some(2)).1, [], "there is no room");
    now_ours[8].chosen = false;
    let (_, actions) = links.observe(NOW, now_ours, Some(2));
    assert_eq!(asked(&actions), [(9, None), (10, Some(0))], "at once");
}
