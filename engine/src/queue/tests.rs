// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The requested queue, by link, kernel, configuration and other tools.

use super::traffic::Served;
use super::*;
use crate::config::Config;
use crate::model::Cookie;

const NOW: Duration = Duration::from_secs(100);

fn root(kind: &str) -> RootQdisc {
    RootQdisc {
        kind: kind.to_owned(),
        ..RootQdisc::default()
    }
}

fn cable() -> Uplink {
    Uplink {
        ifindex: 2,
        name: "eth0".to_owned(),
        mtu_bytes: 1500,
        header_bytes: 14,
        wired: true,
        speed_mbit: Some(100),
        root: root("pfifo_fast"),
        up: true,
        carrier_losses: 0,
        chosen: true,
    }
}

fn wifi() -> Uplink {
    Uplink {
        wired: false,
        speed_mbit: None,
        root: root("noqueue"),
        ..cable()
    }
}

fn queue(text: &str, with_qdisc: bool) -> Queue {
    let backends = Backends {
        bpf: with_qdisc.then_some(()).ok_or("too old a kernel".to_owned()),
        htb: Ok(()),
        marks: Err("not looked for".to_owned()),
        dry_run: false,
    };
    let config = Config::parse(text).unwrap();
    let mut queue = Queue::new(&config, backends);
    queue.rate.mbit = config.link.rate_mbit;
    queue
}

/// On a kernel without the BPF qdisc that can mark packets.
fn marking(text: &str) -> Queue {
    let mut queue = queue(text, false);
    queue.backends.marks = Ok(());
    queue
}

/// The requested queue; None: giveway's is removed.
fn install(request: QueueRequest) -> Option<Plan> {
    match request {
        QueueRequest::Set(plan) => plan,
        other => panic!("no queue is installed by {other:?}"),
    }
}

/// Takes in the link with the rate `rate`.
fn see(queue: &mut Queue, uplink: Option<Uplink>) -> Option<QueueRequest> {
    let rate = queue.rate.clone();
    queue.observe(NOW, uplink, rate)
}

/// The first request on this link.
fn first(text: &str, with_qdisc: bool, uplink: Uplink) -> (Option<Plan>, String) {
    let mut queue = queue(text, with_qdisc);
    let plan = see(&mut queue, Some(uplink)).and_then(install);
    (plan, queue.view.reason)
}

fn installed(text: &str) -> Queue {
    let mut queue = queue(text, false);
    see(&mut queue, Some(cable())).unwrap();
    assert!(queue.conclude(NOW, Ok(())).0.unwrap().made);
    queue
}

fn ours(uplink: Uplink) -> Uplink {
    let root = RootQdisc {
        ours: true,
        ..root("htb")
    };
    Uplink { root, ..uplink }
}

#[test]
fn wired_links_have_a_device_rate_and_radios_none() {
    let (plan, _) = first("", true, cable());
    let plan = plan.unwrap();
    assert_eq!(
        (plan.backend, plan.tuning.rate_bytes_per_s),
        (Backend::Bpf, Some(12_500_000))
    );
    assert_eq!(
        (
            plan.tuning.overhead_bytes,
            plan.tuning.max_packet_bytes,
            plan.tuning.driver_bytes
        ),
        (24, 1514, 1514)
    );
    let (plan, reason) = first("", true, wifi());
    assert_eq!(plan.unwrap().tuning.rate_bytes_per_s, None);
    assert!(
        reason.contains("not shaping, and no deadline is guaranteed"),
        "{reason}"
    );
}

#[test]
fn background_minimum_is_half_a_percent_of_the_rate_up_to_100_kbit_unless_configured() {
    let minimum_rate = |text, uplink| first(text, true, uplink).0.unwrap().tuning.background_min_bytes_per_s * 8;
    assert_eq!(minimum_rate("[link]\nrate_mbit = 1", wifi()), 5_000);
    assert_eq!(minimum_rate("", cable()), 100_000);
    assert_eq!(minimum_rate("", wifi()), 10_000);
    assert_eq!(minimum_rate("[queue]\nbackground_min_kbit = 0", cable()), 0);
    assert_eq!(minimum_rate("[queue]\nbackground_min_kbit = 7", wifi()), 7_000);
}

#[test]
fn background_has_short_segments_on_slow_links() {
    let mss = |text: &str, uplink: Uplink| first(text, true, uplink).0.unwrap().tuning.short_mss;
    let payload = |mbit: f64| mss(&format!("[link]\nrate_mbit = {mbit}"), wifi()).map(|mss| mss - 12);
    assert_eq!(payload(1.0), Some(642));
    assert_eq!(payload(0.1), Some(524), "no shorter than any path carries");
    assert_eq!(payload(4.0), Some(1_284));
    assert_eq!(payload(6.0), None);
    assert_eq!(mss("", wifi()), None);
    assert_eq!(
        mss("[link]\nrate_mbit = 1\n[queue]\nshort_segments = false", wifi()),
        None
    );
}

#[test]
fn an_unknown_rate_neither_shapes_nor_guarantees_until_estimated() {
    let (plan, reason) = first("[link]\nrate_mbit = \"auto\"", true, wifi());
    let plan = plan.unwrap();
    assert_eq!((plan.tuning.rate_bytes_per_s, plan.tuning.admission), (None, false));
    assert!(
        plan.single_segments && reason.contains("once connections fill it"),
        "{reason}"
    );
}

/// The queue has sent this much best effort.
fn best_effort(sent_bytes: u64) -> QueueCounters {
    let mut counters = QueueCounters::default();
    counters.bands.best_effort.served = Some(Served {
        sent_bytes,
        ..Served::default()
    });
    counters
}

#[test]
fn tcp_counters_are_summed_and_missing_ones_count_all_as_tcp() {
    let mut counters = best_effort(1_000);
    counters.bands.stream.served = Some(Served {
        sent_bytes: 500,
        backlog_bytes: 50,
        more: Some(ByQdisc {
            tcp_sent_bytes: 200,
            tcp_backlog_bytes: 20,
            ..ByQdisc::default()
        }),
        ..Served::default()
    });
    let LinkCounters {
        sent_bytes,
        backlog_bytes,
        tcp_sent_bytes,
        tcp_backlog_bytes,
    } = passed(&counters);
    assert_eq!((sent_bytes, backlog_bytes), (1_500, 50));
    assert_eq!((tcp_sent_bytes, tcp_backlog_bytes), (1_200, 20));
}

/// All of it belongs to one upload with this many bytes in flight.
fn uploading(sent_bytes: u64, in_flight: u64) -> Socket {
    Socket {
        cookie: Cookie(1),
        delivered_segments: (sent_bytes / 1514) as u32,
        acked_bytes: sent_bytes / 1514 * 1448,
        latest_rtt: None,
        in_flight_bytes: 1448 * in_flight,
        segment_bytes: 1448,
        min_rtt: Some(Duration::from_millis(20)),
        smoothed_rtt: Duration::from_millis(220),
    }
}

#[test]
fn an_estimated_rate_is_tuned_once_without_a_change_record() {
    let mut queue = queue("[link]\nrate_mbit = \"auto\"", true);
    see(&mut queue, Some(wifi())).unwrap();
    queue.conclude(NOW, Ok(()));
    let mut sent = 0;
    let mut pass = |queue: &mut Queue, at: u64, segments: u32| {
        let now = NOW + Duration::from_millis(100 * at);
        sent += u64::from(segments) * 1514;
        queue.count(now, Some(best_effort(sent)));
        let sockets = [uploading(sent, 200)];
        queue.measure(now, if segments > 0 { &sockets } else { &[] })
    };
    let mut tunings = 0;
    for at in 0..20 {
        if let Some(request) = pass(&mut queue, at, 83) {
            assert!(matches!(request, QueueRequest::Tune(_)), "{request:?}");
            assert_eq!(queue.conclude(NOW, Ok(())), (None, None), "nothing to explain");
            tunings += 1;
        }
    }
    assert!(tunings > 0);
    let tuning = queue.view(NOW).installed.unwrap().tuning;
    assert_eq!(tuning.rate_source, Some(RateSource::Measured));
    for at in 20..60 {
        assert_eq!(pass(&mut queue, at, 0), None, "nobody sends");
        let root = RootQdisc {
            ours: true,
            ..root("bpf")
        };
        assert_eq!(see(&mut queue, Some(Uplink { root, ..wifi() })), None);
    }
}

#[test]
fn deadlines_are_guaranteed_by_the_lower_bound_of_the_rate_and_the_bottleneck_delay() {
    let mut queue = queue("[link]\nrate_mbit = \"auto\"", true);
    see(&mut queue, Some(wifi())).unwrap();
    queue.conclude(NOW, Ok(()));
    let mut sent = 0;
    for at in 0..400_u64 {
        // Every tenth of two seconds the link has half its rate.
        let segments = if at % 20 < 3 { 40 } else { 80 };
        sent += segments * 1514;
        let now = NOW + Duration::from_millis(100 * at);
        queue.count(now, Some(best_effort(sent)));
        // An RTT, and a short queue at the bottleneck.
        if queue.measure(now, &[uploading(sent, segments * 3 / 10)]).is_some() {
            queue.conclude(NOW, Ok(()));
        }
        let tuning = queue.view(NOW).installed.unwrap().tuning;
        assert!(at > 100 || (!tuning.admission && !tuning.drop_late), "not before 10 s");
    }
    let view = queue.view(NOW);
    let (tuning, measured) = (view.installed.unwrap().tuning, view.estimate.unwrap());
    assert!(tuning.admission && tuning.drop_late);
    let promised = tuning.rate_bytes_per_s.unwrap() * u64::from(tuning.realtime_percent) / 100;
    let held = measured.held_bytes_per_s.unwrap() * 80 / 100;
    assert!(promised <= held && promised > held * 9 / 10, "{promised} of {held}");
    assert!(held < measured.rate_bytes_per_s.unwrap() * 80 / 100);
    assert!(tuning.below_us >= 1_000 && u64::from(tuning.below_us) >= measured.held_below_us);
}

#[test]
fn without_the_bpf_qdisc_htb_serves_known_rates_only() {
    assert_eq!(first("", false, cable()).0.unwrap().backend, Backend::Htb);
    let (plan, reason) = first("", false, wifi());
    assert!(plan.is_none() && reason.contains("htb needs a rate"), "{reason}");
    let (plan, _) = first("[link]\nrate_mbit = 5", false, wifi());
    assert_eq!(plan.unwrap().tuning.rate_bytes_per_s, Some(625_000));
}

#[test]
fn links_above_1_gbit_get_a_queue_only_on_request() {
    let fast = || Uplink {
        speed_mbit: Some(10_000),
        ..cable()
    };
    assert!(first("", true, fast()).0.is_none());
    assert!(first("[queue]\nbackend = \"htb\"", true, fast()).0.is_some());
    assert!(first("[link]\nrate_mbit = 10000", true, fast()).0.is_some());
}

#[test]
fn a_qdisc_of_an_administrator_is_not_replaced() {
    for kind in ["htb", "tbf", "netem", "cake", "prio", "bpf_something"] {
        let (plan, reason) = first(
            "",
            true,
            Uplink {
                root: root(kind),
                ..cable()
            },
        );
        assert!(
            plan.is_none() && reason.contains(kind) && reason.contains("not replaced"),
            "{reason}"
        );
    }
    let mut filtered = root("fq_codel");
    filtered.entangled = Some("has filters".to_owned());
    assert!(
        first(
            "",
            true,
            Uplink {
                root: filtered,
                ..cable()
            }
        )
        .0
        .is_none()
    );
}

#[test]
fn an_installed_queue_is_not_requested_again() {
    let mut queue = installed("");
    assert_eq!(see(&mut queue, Some(ours(cable()))), None);
    assert_eq!(see(&mut queue, None), None, "the link is down");
    assert_eq!(see(&mut queue, Some(ours(cable()))), None, "and comes back");
}

#[test]
fn a_new_rate_or_mtu_is_tuned_without_a_change_record() {
    let mut queue = installed("");
    let slower = Uplink {
        speed_mbit: Some(10),
        mtu_bytes: 9000,
        ..ours(cable())
    };
    let Some(QueueRequest::Tune(tuning)) = see(&mut queue, Some(slower.clone())) else {
        panic!("not a tuning");
    };
    assert_eq!(
        (tuning.rate_bytes_per_s, tuning.max_packet_bytes),
        (Some(1_250_000), 9014)
    );
    assert_eq!(tuning.sojourn_target_us, 10_845, "1.5 packets' time");
    assert_eq!(
        queue.conclude(NOW, Ok(())),
        (None, None),
        "nothing is installed, so nothing to explain"
    );
    assert_eq!(queue.view(NOW).installed.unwrap().tuning, tuning);
    assert_eq!(see(&mut queue, Some(slower)), None);
}

#[test]
fn single_segments_need_a_new_installation_not_a_tuning() {
    let mut queue = installed("");
    let faster = Uplink {
        speed_mbit: Some(1000),
        ..ours(cable())
    };
    let plan = install(see(&mut queue, Some(faster)).unwrap()).unwrap();
    assert!(!plan.single_segments);
    let change = queue.conclude(NOW, Ok(())).0.unwrap();
    assert_eq!(change.new, "htb at 1000000 kbit/s".into());
}

#[test]
fn a_failed_tuning_removes_the_queue_and_is_reported() {
    let mut queue = installed("[queue]\nbackend = \"htb\"");
    let slower = Uplink {
        speed_mbit: Some(10),
        ..ours(cable())
    };
    see(&mut queue, Some(slower)).unwrap();
    let (change, next) = queue.conclude(NOW, Err("no such class".to_owned()));
    let change = change.unwrap();
    assert_eq!((change.new, change.made), ("pfifo_fast (not giveway's)".into(), true));
    assert_eq!((next, queue.view(NOW).installed), (None, None));
    assert!(queue.next_try().is_some(), "it is tried again");
}

/// The cable with another tool's qdisc at its root.
fn theirs() -> Uplink {
    let root = RootQdisc {
        handle: 0x7_0000,
        ..root("fq")
    };
    Uplink { root, ..cable() }
}

/// The same link, a moment later.
fn see_at(queue: &mut Queue, now: Duration, uplink: Uplink) -> Option<QueueRequest> {
    let rate = queue.rate.clone();
    queue.observe(now, Some(uplink), rate)
}

/// Another tool has deleted the queue. Returns the reason in `status`.
fn take_off(queue: &mut Queue, now: Duration) -> String {
    assert_eq!(see_at(queue, now, cable()), Some(QueueRequest::Set(None)));
    let (change, next) = queue.conclude(now, Ok(()));
    assert_eq!(next, None);
    change.unwrap().reason
}

/// Nothing is requested before this time; then the queue is installed.
fn comes_back(queue: &mut Queue, at: Duration) {
    assert_eq!(queue.next_try(), Some(at));
    assert_eq!(queue.try_again(at - Duration::from_millis(1)), None);
    let plan = queue.try_again(at).and_then(install).unwrap();
    assert!(plan.only_if_free, "what is configured there by then stays");
    queue.conclude(at, Ok(()));
    assert_eq!(see_at(queue, at, ours(cable())), None);
}

#[test]
fn a_qdisc_that_another_tool_configured_stays_until_removed() {
    let mut queue = installed("");
    assert_eq!(see(&mut queue, Some(theirs())), Some(QueueRequest::Set(None)));
    let (change, next) = queue.conclude(NOW, Ok(()));
    assert!(change.unwrap().reason.contains("another tool has put the qdisc fq"));
    assert_eq!((next, see(&mut queue, Some(theirs()))), (None, None));
    assert_eq!(queue.next_try(), None);
    let hour = Duration::from_secs(3_600);
    assert_eq!(
        see_at(&mut queue, NOW + hour, cable()),
        None,
        "it is gone, and may be replaced yet"
    );
    assert_eq!(see_at(&mut queue, NOW + hour, theirs()), None);
    assert_eq!(queue.next_try(), None, "it was");
    assert_eq!(see_at(&mut queue, NOW + 2 * hour, cable()), None);
    comes_back(&mut queue, NOW + 2 * hour + Duration::from_secs(3));
}

#[test]
fn a_removed_queue_is_restored_three_times_in_ten_minutes() {
    let (mut queue, mut now) = (installed(""), NOW);
    for (time, wait_s) in [(1, 3), (2, 6), (3, 12)] {
        let reason = take_off(&mut queue, now);
        assert!(
            reason.contains(&format!("restored soon ({time} of 3 times in ten minutes)")),
            "{reason}"
        );
        comes_back(&mut queue, now + Duration::from_secs(wait_s));
        now += Duration::from_secs(60);
    }
    let reason = take_off(&mut queue, now);
    assert!(
        reason.contains("it is not restored until giveway is restarted or the link was down"),
        "{reason}"
    );
    let tomorrow = now + Duration::from_secs(86_400);
    assert_eq!((see_at(&mut queue, tomorrow, cable()), queue.next_try()), (None, None));
    let came_up = Uplink {
        carrier_losses: 1,
        ..cable()
    };
    let asked = see_at(&mut queue, tomorrow, came_up);
    assert!(asked.and_then(install).is_some(), "the link was down");
}

#[test]
fn a_queue_removed_once_an_hour_is_always_restored() {
    let mut queue = installed("");
    for hour in 0..24 {
        let now = NOW + Duration::from_secs(3_600 * hour);
        take_off(&mut queue, now);
        comes_back(&mut queue, now + Duration::from_secs(3));
    }
}

/// A queue whose installation failed on the cable.
fn refused(text: &str, with_qdisc: bool) -> Queue {
    let mut queue = queue(text, with_qdisc);
    let mut next = see(&mut queue, Some(cable()));
    while next.is_some() {
        next = queue.conclude(NOW, Err("the kernel refused it".to_owned())).1;
    }
    queue
}

#[test]
fn a_failed_backend_is_replaced_by_the_other() {
    let mut queue = queue("", true);
    see(&mut queue, Some(cable())).unwrap();
    let (_, next) = queue.conclude(NOW, Err("the verifier refused it".to_owned()));
    assert_eq!(install(next.unwrap()).unwrap().backend, Backend::Htb);
    assert!(queue.view.reason.contains("the verifier refused it"));
    assert_eq!(queue.conclude(NOW, Ok(())).1, None);
    let mtu_bytes = 9000;
    let changed = Uplink {
        mtu_bytes,
        ..ours(cable())
    };
    assert!(
        matches!(see(&mut queue, Some(changed)), Some(QueueRequest::Tune(_))),
        "which stays"
    );
    assert_eq!((queue.next_try(), queue.conclude(NOW, Ok(())).1), (None, None));
}

#[test]
fn failed_installations_are_retried_with_back_off() {
    let mut queue = refused("", true);
    let mut now = NOW;
    for wait_s in [1, 2, 4, 8, 16, 32, 60, 60] {
        let wait = Duration::from_secs(wait_s);
        let reason = queue.view(now).reason;
        assert!(
            reason.starts_with(&format!("tried again in {wait_s} s: no BPF qdisc: ")),
            "{reason}"
        );
        assert_eq!(see(&mut queue, Some(cable())), None, "nothing has changed");
        assert_eq!(queue.try_again(now), None);
        assert_eq!(queue.next_try(), Some(now + wait));
        now += wait;
        let plan = install(queue.try_again(now).unwrap()).unwrap();
        assert_eq!(plan.backend, Backend::Bpf, "first, as at the first time");
        assert!(queue.conclude(now, Err("not yet".to_owned())).1.is_some());
        assert!(queue.conclude(now, Err("not yet".to_owned())).1.is_none());
    }
    now += Duration::from_secs(60);
    queue.try_again(now).unwrap();
    assert!(queue.conclude(now, Ok(())).0.unwrap().made);
    assert_eq!((queue.next_try(), queue.view(now).reason), (None, queue.view.reason));
}

#[test]
fn a_changed_link_is_retried_at_once() {
    let faster = Uplink {
        speed_mbit: Some(1000),
        ..cable()
    };
    let larger = Uplink {
        mtu_bytes: 9000,
        ..cable()
    };
    for changed in [faster, larger] {
        let mut queue = refused("", false);
        let later = NOW + Duration::from_secs(1);
        queue.try_again(later).unwrap();
        queue.conclude(later, Err("not yet".to_owned()));
        assert!(see(&mut queue, Some(changed)).and_then(install).is_some());
        queue.conclude(later, Err("not yet".to_owned()));
        assert_eq!(
            queue.next_try(),
            Some(later + Duration::from_secs(1)),
            "the waits begin anew"
        );
    }
    let mut queue = refused("", false);
    assert_eq!(see(&mut queue, None), None);
    assert_eq!(queue.try_again(NOW + Duration::from_secs(1)), None, "there is no link");
    assert!(see(&mut queue, Some(cable())).and_then(install).is_some(), "it is back");
}

#[test]
fn the_remains_of_an_own_attempt_are_no_change_of_the_link() {
    let mut queue = refused("", false);
    let root = root("noqueue");
    assert_eq!(see(&mut queue, Some(Uplink { root, ..cable() })), None);
    assert!(queue.next_try().is_some());
}

#[test]
fn packets_are_marked_without_a_queue() {
    let cake = Uplink {
        root: root("cake"),
        ..cable()
    };
    for (text, uplink) in [("", wifi()), ("[queue]\nbackend = \"none\"", cable()), ("", cake)] {
        let mut queue = marking(text);
        let plan = see(&mut queue, Some(uplink.clone())).and_then(install).unwrap();
        assert_eq!((plan.backend, plan.single_segments), (Backend::None, false));
        queue.conclude(NOW, Ok(()));
        assert_eq!(queue.mark(Class::Background), Some(Dscp::LE));
        assert_eq!(queue.mark(Class::Bulk), None);
        assert_eq!(
            (see(&mut queue, Some(uplink)), queue.next_try()),
            (None, None),
            "it is left at that"
        );
    }
}

#[test]
fn packets_are_not_inspected_without_marks_or_on_fast_links() {
    let fast = Uplink {
        speed_mbit: Some(10_000),
        ..cable()
    };
    assert_eq!(see(&mut marking(""), Some(fast)), None);
    assert_eq!(see(&mut marking("[marks]\nbackground = \"keep\""), Some(wifi())), None);
}

#[test]
fn a_failed_queue_is_retried_while_packets_are_only_marked() {
    let mut queue = marking("");
    see(&mut queue, Some(cable())).unwrap();
    let (_, next) = queue.conclude(NOW, Err("not yet".to_owned()));
    assert_eq!(install(next.unwrap()).unwrap().backend, Backend::None);
    assert_eq!(queue.conclude(NOW, Ok(())).1, None);
    let later = NOW + Duration::from_secs(1);
    assert_eq!(queue.next_try(), Some(later));
    assert_eq!(install(queue.try_again(later).unwrap()).unwrap().backend, Backend::Htb);
    queue.conclude(later, Ok(()));
    assert_eq!((queue.next_try(), see(&mut queue, Some(ours(cable())))), (None, None));
}

#[test]
fn htb_on_possible_wifi_marks_background_as_cs1() {
    let mark = |uplink: Uplink| {
        let mut queue = queue("[link]\nrate_mbit = 5", false);
        see(&mut queue, Some(uplink)).unwrap();
        queue.conclude(NOW, Ok(()));
        queue.mark(Class::Background)
    };
    assert_eq!((mark(wifi()), mark(cable())), (Some(Dscp::CS1), Some(Dscp::LE)));
}

#[test]
fn segments_are_single_where_64_kb_take_over_a_millisecond() {
    let single = |mbit: u32| {
        let text = format!("[link]\nrate_mbit = {mbit}");
        first(&text, true, cable()).0.unwrap().single_segments
    };
    assert!(single(500) && !single(600));
}

/// With marks and the BPF qdisc.
fn waiting(text: &str) -> Queue {
    let mut queue = queue(text, true);
    queue.backends.marks = Ok(());
    queue
}

fn seen(background: u64) -> Option<QueueCounters> {
    let mut counters = QueueCounters::default();
    counters.bands.background.classified = background;
    counters.bands.best_effort.classified = 1_000;
    Some(counters)
}

#[test]
fn no_queue_is_installed_until_traffic_needs_one() {
    let mut queue = waiting("");
    let plan = see(&mut queue, Some(wifi())).and_then(install).unwrap();
    assert_eq!(plan.backend, Backend::None);
    queue.conclude(NOW, Ok(()));
    let view = queue.view(NOW);
    assert!(view.waits && view.installed.is_none());
    assert!(
        view.reason.contains("no traffic needs a queue: noqueue stays until"),
        "{}",
        view.reason
    );

    let plan = install(queue.demand(NOW, 0).unwrap()).unwrap();
    assert_eq!((plan.backend, plan.tuning.rate_bytes_per_s), (Backend::Bpf, None));
    assert_eq!(queue.demand(NOW, 0), None, "it is being put up");
    assert!(queue.conclude(NOW, Ok(())).0.unwrap().made);
    assert!(!queue.view(NOW).waits);
    assert_eq!(see(&mut queue, Some(ours(wifi()))), None);

    let later = |s| NOW + Duration::from_secs(s);
    assert_eq!(queue.count(later(1), seen(7)), None);
    assert_eq!(queue.count(later(60), seen(7)), None);
    let plan = install(queue.count(later(61), seen(7)).unwrap()).unwrap();
    assert_eq!(plan.backend, Backend::None);
    queue.conclude(later(61), Ok(()));
    assert!(queue.view(later(61)).waits);
}

#[test]
fn features_that_need_the_queue_get_it_at_once() {
    let backend = |text: &str, uplink: Uplink| {
        let plan = see(&mut waiting(text), Some(uplink)).and_then(install);
        plan.unwrap().backend
    };
    for text in [
        "[link]\nrate_mbit = 5",
        "[link]\nrate_mbit = \"auto\"",
        "[queue]\nbackend = \"bpf\"",
        "[[deadline]]\nport = 5005\ndeadline_ms = 10.0",
    ] {
        assert_eq!(backend(text, wifi()), Backend::Bpf, "{text}");
    }
    assert_eq!(backend("", cable()), Backend::Bpf);
    assert_eq!(backend("[marks]\nbackground = \"keep\"", wifi()), Backend::None);
}

#[test]
fn without_a_queue_only_limited_flows_are_inspected() {
    let fast = Uplink {
        speed_mbit: Some(10_000),
        ..cable()
    };
    for (text, uplink) in [
        ("[marks]\nbackground = \"keep\"\n[queue]\nbackend = \"none\"", cable()),
        ("", fast),
    ] {
        let mut queue = marking(text);
        assert_eq!(see(&mut queue, Some(uplink)), None, "{text}");
        let request = queue.follow(true, Vec::new()).unwrap();
        assert_eq!(install(request).unwrap().backend, Backend::None, "{text}");
        queue.conclude(NOW, Ok(()));
        assert_eq!(queue.follow(false, Vec::new()), Some(QueueRequest::Set(None)), "{text}");
    }
}

#[test]
fn the_backlog_is_kept_when_the_rate_becomes_unknown() {
    let mut queue = waiting("");
    let plan = see(&mut queue, Some(cable())).and_then(install).unwrap();
    assert_eq!(plan.backend, Backend::Bpf);
    queue.conclude(NOW, Ok(()));
    assert_eq!(queue.count(NOW, seen(0)), None);
    // As during negotiation.
    let unknown = Uplink {
        speed_mbit: None,
        ..ours(cable())
    };
    let asked = see(&mut queue, Some(unknown));
    let takes_down = |request: &QueueRequest| matches!(request, QueueRequest::Set(plan) if plan.as_ref().is_none_or(|plan| plan.backend != Backend::Bpf));
    assert!(!asked.as_ref().is_some_and(takes_down), "{asked:?}");
    queue.conclude(NOW, Ok(()));
    let later = |s| NOW + Duration::from_secs(s);
    assert_eq!(queue.count(later(59), seen(0)), None);
    let plan = install(queue.count(later(60), seen(0)).unwrap()).unwrap();
    assert_eq!(plan.backend, Backend::None);
}

#[test]
fn without_admission_the_queue_is_installed_at_once() {
    let (plan, _) = first("", true, wifi());
    assert_eq!(plan.unwrap().backend, Backend::Bpf);
}

#[test]
fn a_failed_installation_on_demand_is_retried() {
    let mut queue = waiting("");
    see(&mut queue, Some(wifi())).unwrap();
    queue.conclude(NOW, Ok(()));
    queue.demand(NOW, 0).unwrap();
    let (_, next) = queue.conclude(NOW, Err("not yet".to_owned()));
    assert_eq!(install(next.unwrap()).unwrap().backend, Backend::None);
    queue.conclude(NOW, Ok(()));
    assert_eq!(queue.demand(NOW, 0), None, "not sooner");
    let later = queue.next_try().unwrap();
    assert_eq!(install(queue.try_again(later).unwrap()).unwrap().backend, Backend::Bpf);
}

#[test]
fn guaranteed_band_rates_fit_the_link() {
    for (rate_mbit, percent) in [("8", 50), ("8", 95), ("1000", 1)] {
        let text = format!("[link]\nrate_mbit = {rate_mbit}\n[queue]\nrealtime_percent = {percent}");
        let tuning = first(&text, false, wifi()).0.unwrap().tuning;
        let rates = tuning.band_rates().unwrap();
        let bands = [rates.realtime, rates.stream, rates.best_effort, rates.background];
        assert_eq!(bands.iter().map(|band| band.assured).sum::<u64>(), rates.rate, "{text}");
        assert_eq!(rates.realtime.most, rates.rate * percent / 100);
        assert!(rates.best_effort.assured <= rates.stream.assured && rates.best_effort.most == rates.rate);
    }
}
