// SPDX-License-Identifier: Apache-2.0 OR MIT
use super::*;
use crate::class::Class;

const ETH: u32 = 2;
const BRIDGE: u32 = 3;

fn limit(number: u8) -> RateLimit {
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

fn plan(links: &[(u32, &str)], numbers: &[u8]) -> Option<Plan> {
    Some(Plan {
        links: links
            .iter()
            .map(|(ifindex, name)| (*ifindex, (*name).to_owned()))
            .collect(),
        limits: numbers.iter().map(|number| limit(*number)).collect(),
    })
}

/// One limit holds on eth0.
fn limiting() -> Downlink {
    let mut downlink = Downlink::default();
    assert_eq!(downlink.follow(vec![limit(1)]), None);
    assert!(downlink.misses_arrivals());
    assert_eq!(
        downlink.observe(vec![arrival(ETH, "eth0")]),
        Some(plan(&[(ETH, "eth0")], &[1]))
    );
    let (changes, next) = downlink.conclude(Duration::ZERO, Ok(()));
    assert_eq!((changes.len(), next), (1, None));
    downlink
}

#[test]
fn nothing_is_put_up_without_a_limit_and_all_of_it_goes_with_the_last_one() {
    let mut downlink = Downlink::default();
    assert_eq!(downlink.observe(vec![arrival(ETH, "eth0")]), None);
    assert!(!downlink.is_wanted());
    let mut downlink = limiting();
    assert_eq!(downlink.serves(ETH), Some(Ok("eth0".to_owned())));
    assert_eq!(downlink.serves(9), None);
    assert_eq!(
        downlink.follow(vec![limit(1), limit(2)]),
        Some(plan(&[(ETH, "eth0")], &[1, 2]))
    );
    assert!(
        downlink.conclude(Duration::ZERO, Ok(())).0.is_empty(),
        "the link is what it was"
    );
    assert_eq!(downlink.follow(Vec::new()), Some(None));
    let (changes, _) = downlink.conclude(Duration::ZERO, Ok(()));
    assert_eq!(changes[0].why, "no limit is wanted any more");
    assert!(!downlink.is_wanted() && downlink.limiting().next().is_none());
}

#[test]
fn what_would_be_bypassed_keeps_the_link_as_it_is_and_is_told_of() {
    let mut downlink = limiting();
    let filtered = Arrival {
        hindrance: Some("a filter of tc's stands there".to_owned()),
        ..arrival(ETH, "eth0")
    };
    assert_eq!(downlink.observe(vec![filtered]), Some(None), "also when it comes later");
    downlink.conclude(Duration::ZERO, Ok(()));
    let why = "what arrives by eth0 is not limited: a filter of tc's stands there";
    assert_eq!(downlink.serves(ETH), Some(Err(why.to_owned())));
    assert_eq!(downlink.shortfalls(), [why]);
}

#[test]
fn of_a_bridge_and_its_port_the_bridge_alone_is_taken() {
    let mut downlink = Downlink::default();
    downlink.follow(vec![limit(1)]);
    let port = Arrival {
        bridge: Some(BRIDGE),
        ..arrival(ETH, "eth0")
    };
    let both = vec![port.clone(), arrival(BRIDGE, "br0")];
    assert_eq!(downlink.observe(both), Some(plan(&[(BRIDGE, "br0")], &[1])));
    downlink.conclude(Duration::ZERO, Ok(()));
    assert_eq!(downlink.serves(ETH), Some(Ok("br0".to_owned())));
    assert_eq!(downlink.observe(vec![port]), Some(plan(&[(ETH, "eth0")], &[1])));
}

#[test]
fn what_fails_or_is_taken_away_is_told_of_and_tried_again_later() {
    let mut downlink = limiting();
    let changes = downlink.lost(Duration::ZERO, "somebody has deleted it".to_owned());
    assert_eq!((changes.len(), changes[0].why.as_str()), (1, "somebody has deleted it"));
    assert!(downlink.lost(Duration::ZERO, "again".to_owned()).is_empty(), "once");
    assert_eq!(downlink.observe(vec![arrival(ETH, "eth0")]), None);
    let second = Duration::from_secs(1);
    assert_eq!(downlink.next_try(), Some(second));
    assert_eq!(downlink.try_again(second), Some(plan(&[(ETH, "eth0")], &[1])));
    assert!(downlink.conclude(second, Err("no ifb".to_owned())).0.is_empty());
    assert_eq!(
        downlink.serves(ETH).unwrap().unwrap_err(),
        "what arrives by eth0 is not limited: no ifb"
    );
    assert_eq!(downlink.next_try(), Some(second * 3));
    assert_eq!(downlink.follow(Vec::new()), None, "nothing is there");
    assert_eq!(downlink.next_try(), None);
}

#[test]
fn a_pause_takes_it_down_and_a_dry_run_puts_nothing_up() {
    let mut downlink = limiting();
    let why = "try".to_owned();
    assert_eq!(downlink.pause(Some(&why)), Some(None));
    downlink.conclude(Duration::ZERO, Ok(()));
    assert_eq!(downlink.pause(None), Some(plan(&[(ETH, "eth0")], &[1])));
    let mut dry = Downlink::new(Way::Received, true);
    dry.follow(vec![limit(1)]);
    assert_eq!(dry.observe(vec![arrival(ETH, "eth0")]), None);
}
