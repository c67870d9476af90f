// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A short form of every scenario, as root, with the real medium, kernel and giveway: what must hold
//! however short the run is. The statistical bounds are for runs of full length.

use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde_json::Value;

fn lab(words: &[&str]) -> Output {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_giveway-lab"));
    lab.args(words).output().expect("giveway-lab starts")
}

/// They measure by this machine's clock.
static CLOCK: RwLock<()> = RwLock::new(());

/// Those that wait most of the time, and take a tenth of a processor, as a few stations on the air do: beside each other.
/// `None` without root.
fn turn_on_channel() -> Option<RwLockReadGuard<'static, ()>> {
    is_root().then(|| CLOCK.read().unwrap_or_else(PoisonError::into_inner))
}

/// One at a time. `None` without root.
fn turn() -> Option<RwLockWriteGuard<'static, ()>> {
    is_root().then(|| CLOCK.write().unwrap_or_else(PoisonError::into_inner))
}

/// CI does not accept less.
fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    assert!(
        is_root || std::env::var_os("CI").is_none(),
        "CI has to run the lab's scenarios as root"
    );
    if !is_root {
        eprintln!("skipped: the lab needs root");
    }
    is_root
}

/// Where the scenario boots a guest, which has a clock of its own: beside each other.
fn turn_in_guest() -> Option<RwLockReadGuard<'static, ()>> {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI has to boot the guest: packaging/need"
        );
        eprintln!("skipped: qemu-system-x86_64 is missing (packaging/need installs it)");
        return None;
    }
    is_root().then(|| CLOCK.read().unwrap_or_else(PoisonError::into_inner))
}

/// Runs a scenario whose bounds hold and that draws, in a folder of its own, and gives back its JSON.
fn run(scenario: &str, settings: &[&str]) -> Value {
    let (result, figures) = run_and_count_figures(scenario, settings);
    assert!(figures > 0, "{scenario} drew no figure");
    result
}

fn run_and_count_figures(scenario: &str, settings: &[&str]) -> (Value, usize) {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let out = std::env::temp_dir().join(format!("giveway-lab-test-{}-{run}-{scenario}", std::process::id()));
    let out_text = out.to_str().expect("a path in plain text");
    let mut words = vec!["run", scenario, "--json", "--out", out_text];
    for setting in settings {
        words.extend(["--set", setting]);
    }
    let done = lab(&words);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(
        done.status.code(),
        Some(0),
        "{said}\n{}",
        String::from_utf8_lossy(&done.stdout)
    );
    let result: Value = serde_json::from_slice(&done.stdout).expect("one JSON object on stdout");
    assert_eq!(result["scenario"], scenario);
    let figures = std::fs::read_dir(&out).expect("the folder for figures");
    let is_figure = |name: String| name.ends_with(".svg");
    let drawn = figures
        .flatten()
        .filter(|file| is_figure(file.file_name().to_string_lossy().into()))
        .count();
    std::fs::remove_dir_all(&out).expect("the folder can go");
    (result, drawn)
}

fn metric(result: &Value, variant: &str, metric: &str) -> f64 {
    let value = &result["variants"][variant][metric];
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{variant} has no {metric}: {result}"))
}

fn assert_usage_error(words: &[&str], wanted: &str) {
    let done = lab(words);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains(wanted), "{said}");
    assert!(done.stdout.is_empty());
}

#[test]
fn contention_shows_udp_above_tcp_and_fair_shares() {
    let Some(_turn) = turn_on_channel() else { return };
    let result = run("contention", &["stations=2", "seconds=5", "warmup_s=3"]);
    let [udp, tcp] = ["udp/2", "tcp/2"].map(|variant| metric(&result, variant, "goodput_mbit"));
    assert!(
        (20.0..30.0).contains(&udp) && (10.0..udp).contains(&tcp),
        "UDP {udp}, TCP {tcp} Mbit/s"
    );
    assert!(metric(&result, "udp/2", "jain") > 0.99);
    assert!(metric(&result, "tcp/2", "rtt_p50_ms") >= 256.0);
}

#[test]
fn cooperative_stations_hold_the_papers_cap() {
    let Some(_turn) = turn_on_channel() else { return };
    let result = run(
        "cooperative",
        &[
            "stations=3",
            "seconds=5",
            "warmup_s=5",
            "repeats=1",
            "medium=fixed54",
            "variants=plain,fixed-cap,balanced",
        ],
    );
    assert_eq!(metric(&result, "fixed-cap", "cap_segments"), 115.0);
    assert!(metric(&result, "fixed-cap", "jain") > 0.99);
    let [fixed, plain] = ["fixed-cap", "plain"].map(|variant| metric(&result, variant, "goodput_mbit"));
    assert!(fixed > 8.0 && plain > 8.0, "fixed-cap {fixed}, plain {plain} Mbit/s");
    assert!(metric(&result, "fixed-cap", "report_airtime_percent") > 0.0);
    // Nobody configured its capacity.
    assert!(metric(&result, "balanced", "goodput_mbit") > 8.0);
}

#[test]
fn stations_with_and_without_giveway_share_an_access_point() {
    let Some(_turn) = turn_on_channel() else { return };
    let settings = [
        "variants=beside-7",
        "medium=fixed54",
        "repeats=1",
        "seconds=2",
        "warmup_s=3",
    ];
    let result = run("mixed", &settings);
    // In the first seconds on an unknown air ours is not limited.
    let [theirs, ours] = ["first-7", "last-1"].map(|who| metric(&result, &format!("beside-7/{who}"), "goodput_mbit"));
    assert!(theirs > 7.0 && ours > 0.0, "{theirs}, ours {ours}");
}

#[test]
fn stations_at_different_distances_send_beside_each_other() {
    let Some(_turn) = turn_on_channel() else { return };
    let settings = [
        "stations=4",
        "variants=balanced",
        "repeats=1",
        "seconds=2",
        "warmup_s=8",
    ];
    let result = run("rtt-mix", &settings);
    assert!(metric(&result, "balanced", "goodput_mbit") > 3.0);
    // On an unknown air limits begin after 7.5 s.
    assert!(metric(&result, "balanced", "cap_segments") > 0.0);
    // The one 300 ms away is as far.
    let worst_ms = metric(&result, "balanced", "rtt_p99_ms");
    assert!((300.0..900.0).contains(&worst_ms), "{worst_ms} ms");
}

#[test]
fn a_key_is_all_that_stations_need_to_share() {
    let Some(_turn) = turn_on_channel() else { return };
    let settings = [
        "stations=3",
        "medium=fixed54",
        "variants=key,no-key",
        "repeats=1",
        "seconds=2",
        "warmup_s=8",
    ];
    let result = run("no-numbers", &settings);
    // On an unknown air limits begin after 7.5 s.
    for (variant, peers, is_limited) in [("key", 2.0, true), ("no-key", 0.0, false)] {
        assert_eq!(metric(&result, variant, "peers"), peers, "{variant}");
        assert_eq!(metric(&result, variant, "cap_segments") > 0.0, is_limited, "{variant}");
    }
}

#[test]
fn a_station_that_wants_little_gets_that_and_no_more() {
    let Some(_turn) = turn_on_channel() else { return };
    let settings = [
        "stations=2",
        "rtt_ms=20",
        "variants=balanced",
        "repeats=1",
        "seconds=6",
        "warmup_s=3",
    ];
    let result = run("demand", &settings);
    let light = metric(&result, "balanced", "light_mbit");
    assert!((0.4..0.6).contains(&light), "{light} Mbit/s");
    assert!(metric(&result, "balanced", "little_mbit") > 8.0);
}

#[test]
fn slower_radio_carries_less() {
    let Some(_turn) = turn_on_channel() else { return };
    let settings = [
        "stations=2",
        "rtt_ms=20",
        "variants=plain",
        "repeats=1",
        "seconds=4",
        "warmup_s=4",
    ];
    let result = run("step-rate", &settings);
    let [fast, slow] = ["fast_mbit", "slow_mbit"].map(|what| metric(&result, "plain", what));
    assert!(fast > 10.0 && (1.0..6.0).contains(&slow), "{fast}, then {slow} Mbit/s");
}

#[test]
fn lying_member_silences_nobody() {
    let Some(_turn) = turn_on_channel() else { return };
    let settings = [
        "stations=3",
        "variants=everything",
        "repeats=1",
        "seconds=3",
        "warmup_s=4",
    ];
    let result = run("liar", &settings);
    assert_eq!(metric(&result, "everything", "peers"), 2.0);
    assert!(metric(&result, "everything/honest", "least_mbit") > 0.1);
}

#[test]
fn cells_side_by_side_are_those_of_one_table() {
    let Some(_turn) = turn_on_channel() else { return };
    let out = std::env::temp_dir().join(format!("giveway-lab-test-{}-jobs", std::process::id()));
    let mut words = vec!["run", "cooperative", "--jobs", "3", "--json", "--out"];
    words.push(out.to_str().expect("a path in plain text"));
    for setting in [
        "stations=1,2",
        "medium=fixed54",
        "variants=plain",
        "repeats=2",
        "seconds=2",
        "warmup_s=2",
    ] {
        words.extend(["--set", setting]);
    }
    let done = lab(&words);
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    let result: Value = serde_json::from_slice(&done.stdout).expect("one JSON object on stdout");
    for cell in ["plain/1", "plain/2"] {
        let [least, most] = [0, 1].map(|end| {
            result["spread"][cell]["goodput_mbit"][end]
                .as_f64()
                .expect("two rounds")
        });
        let mean = metric(&result, cell, "goodput_mbit");
        assert!(
            5.0 < least && least < most && (mean - (least + most) / 2.0).abs() < 1e-9,
            "{result}"
        );
    }
    assert!(out.join("labs/plain-2-2/raw").is_dir(), "what each measured is kept");
    std::fs::remove_dir_all(&out).expect("the folder can go");
}

#[test]
fn a_variant_that_fails_beside_others_says_why() {
    let Some(_turn) = turn_on_channel() else { return };
    let out = std::env::temp_dir().join(format!("giveway-lab-test-{}-fails", std::process::id()));
    let words = [
        "run",
        "cooperative",
        "--jobs",
        "2",
        "--set",
        "stations=1",
        "--set",
        "medium=fixed54",
        "--set",
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_giveway-lab"));
    command
        .args(words)
        .args(["variants=plain,fixed-cap", "--set", "repeats=1", "--set", "seconds=2"])
        .args(["--set", "warmup_s=1", "--out"])
        .arg(&out);
    // A daemon that ends at once.
    let done = command
        .env("GIVEWAY", "/bin/false")
        .output()
        .expect("giveway-lab starts");
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("variant fixed-cap: ") && said.contains("/log"), "{said}");
    let _ = std::fs::remove_dir_all(&out);
}

#[test]
fn background_leaves_stations_without_giveway_nearly_all() {
    let Some(_turn) = turn_on_channel() else { return };
    let settings = [
        "variants=background/both",
        "medium=fixed54-edca",
        "repeats=1",
        "seconds=2",
        "warmup_s=1",
    ];
    let result = run("coexistence", &settings);
    let [theirs, ours] =
        ["without", "with"].map(|who| metric(&result, &format!("background/both/{who}"), "goodput_mbit"));
    assert!(
        // Beside one that does neither, ours is half of theirs; the mark alone leaves a seventh.
        theirs > 6.0 && (0.01..theirs / 4.0).contains(&ours),
        "{theirs}, ours {ours}"
    );
}

#[test]
fn a_stream_and_three_transfers_share_an_access_point() {
    let Some(_turn) = turn_on_channel() else { return };
    let settings = [
        "variants=stream-capped-20",
        "medium=fixed54-edca",
        "repeats=1",
        "file_kb=1500",
    ];
    let result = run("app-mix", &settings);
    let last_s = metric(&result, "stream-capped-20", "completion_s");
    let each_s = [1, 2, 3].map(|n| metric(&result, &format!("stream-capped-20/transfer-{n}"), "completion_s"));
    assert!(
        each_s.iter().all(|each_s| *each_s > 0.5) && each_s.contains(&last_s),
        "{each_s:?}, last {last_s}"
    );
    // A frame each 40 ms for as long as the transfers last.
    let frames = metric(&result, "stream-capped-20/stream", "frames");
    assert!(
        frames > 20.0 && (frames - last_s * 25.0).abs() < 50.0,
        "{frames} in {last_s} s"
    );
    assert!(metric(&result, "stream-capped-20/stream", "delay_p50_ms") > 40.0);
}

#[test]
fn a_cap_holds_a_single_station_to_its_rate() {
    let Some(_turn) = turn_on_channel() else { return };
    let result = run("single-cap", &["caps=20", "seconds=5", "warmup_s=5"]);
    // 20 segments of 1448 bytes each 256 ms (and the air's own milliseconds).
    let capped = metric(&result, "cap/20", "goodput_mbit");
    assert!((0.8..0.92).contains(&capped), "{capped} Mbit/s");
    assert!(metric(&result, "plain", "goodput_mbit") > 2.0 * capped);
}

#[test]
fn caps_follow_senders_that_join_start_stop_and_die() {
    let Some(_turn) = turn_on_channel() else { return };
    let settings = [
        "stations=3",
        "seconds=5",
        "events=1",
        "medium=arf-lossy",
        "variants=join/fixed-cap,converge/start,converge/stop,converge/death",
    ];
    let result = run("join-leave", &settings);
    assert!(metric(&result, "join/fixed-cap/arf-lossy/1", "goodput_mbit") > 0.1);
    for kind in ["start", "stop", "death"] {
        let point = format!("converge/{kind}");
        assert_eq!(metric(&result, &point, "events"), 1.0);
        assert_eq!(metric(&result, &point, "unconverged"), 0.0, "{kind}");
    }
}

#[test]
fn nothing_is_left_of_a_daemon_that_was_killed() {
    let Some(_turn) = turn_on_channel() else { return };
    let settings = ["kills=2", "others=1", "variants=daemon,both,stopped"];
    let result = run("fails-open", &settings);
    assert_eq!(metric(&result, "daemon", "kills"), 2.0);
    assert_eq!(metric(&result, "both", "failures"), 0.0);
}

/// Of the watchdog's undo: what fails once is tried again.
#[test]
fn undo_survives_a_failed_system_call() {
    let Some(_turn) = turn_on_channel() else { return };
    let settings = ["variants=watchdog/end", "calls=netns-N/queue,socket("];
    let (result, _) = run_and_count_figures("faults", &settings);
    assert!(metric(&result, "watchdog/end", "failed_calls") >= 2.0);
    assert_eq!(metric(&result, "watchdog/end", "left_until_revert"), 0.0);
}

#[test]
fn abusive_user_costs_others_no_deadlines() {
    let Some(_turn) = turn() else { return };
    let settings = ["kernel=host", "seconds=3", "variants=user/giveway"];
    let (result, _) = run_and_count_figures("abuse", &settings);
    assert!(metric(&result, "user/giveway", "abuses") > 100.0);
    assert_eq!(metric(&result, "user/giveway", "authenticated_at_end"), 1.0);
    // Without shares it is all of them; under htb such near deadlines are not all safe.
    assert!(metric(&result, "user/giveway", "refused_percent") < 90.0);
}

#[test]
fn watching_is_cheaper_than_asking_ss() {
    let Some(_turn) = turn() else { return };
    let settings = ["sockets=500", "active=20", "seconds=5", "warmup_s=2"];
    let result = run("monitor-cost", &settings);
    let [daemon, programs, pass] =
        ["cpu_percent_daemon", "cpu_percent_bpf", "poll_us"].map(|name| metric(&result, "open/500", name));
    assert!(daemon > 0.0 && programs > 0.0 && pass > 0.0);
    // Far from the goals: a machine that runs tests is busy.
    assert!(metric(&result, "open/500", "ss_over_poll") > 2.0);
    assert!(metric(&result, "open/500", "rss_mb") < 40.0);
    assert_eq!(metric(&result, "idle/alone", "peers"), 0.0);
    assert_eq!(metric(&result, "idle/peer", "peers"), 1.0);
}

#[test]
fn a_rate_limit_is_reached_and_not_passed() {
    let Some(_turn) = turn() else { return };
    // Bounds are on every window.
    let settings = ["variants=htb/tcp-1/5,htb/udp-20/5", "seconds=2", "warmup_s=1"];
    let result = run("rate-limit", &settings);
    assert!(metric(&result, "htb/udp-20/5", "goodput_of_limit") > 0.95);
}

#[test]
fn download_limit_holds_with_one_connection_and_with_many() {
    let Some(_turn) = turn() else { return };
    // Bounds are on every window, and on the first second.
    let settings = ["variants=host/1/2.5,host/4/20", "seconds=12", "warmup_s=3"];
    let result = run("download-limit", &settings);
    assert!(metric(&result, "host/4/20", "passed_of_limit") > 0.95);
}

#[test]
fn limits_cost_unlimited_traffic_nothing_and_all_of_many_hold() {
    let Some(_turn) = turn() else { return };
    let settings = [
        "variants=host/down/gro/1,host/up/no-gro/16,thousand-limits",
        "rounds=1",
        "limits=40",
        "active=4",
        "seconds=10",
        "warmup_s=5",
    ];
    let (result, _) = run_and_count_figures("limit-cost", &settings);
    for (cell, program) in [
        ("host/down/gro/1", "gw_redirect_ns"),
        ("host/up/no-gro/16", "gw_admit_ns"),
    ] {
        assert!(metric(&result, cell, "ratio_p50") > 0.3, "{result}");
        assert!(
            metric(&result, &format!("{cell}/one-limit"), program) > 0.0,
            "{cell}: {result}"
        );
    }
}

#[test]
fn a_cleared_connection_grows_past_its_cap() {
    let Some(_turn) = turn_on_channel() else { return };
    let result = run("clear", &["clears=1", "warmup_s=3", "medium=fixed54"]);
    let [before, after] = ["goodput_before_mbit", "goodput_mbit"].map(|name| metric(&result, "cleared/fixed54", name));
    assert!(
        (1.0..2.1).contains(&before) && after > before,
        "{before}, then {after} Mbit/s"
    );
    assert!(metric(&result, "cleared/fixed54", "cwnd_segments") > 43.0);
    assert!(metric(&result, "control/fixed54/beside", "goodput_mbit") > 2.1);
}

#[test]
fn unknown_name_suggests_the_nearest() {
    assert_usage_error(&["run", "contension"], "did you mean `contention`?");
    assert_usage_error(
        &["run", "cooperative", "--set", "station=3"],
        "did you mean `stations`?",
    );
    assert_usage_error(
        &["run", "cooperative", "--set", "medium=fixd54"],
        "did you mean `fixed54`?",
    );
    assert_usage_error(&["run", "cooperative", "--set", "stations=0"], "from 1 to 16");
    assert_usage_error(&["run", "cooperative", "--set", "stations="], "none is given");
    assert_usage_error(&["run", "rtt-mix", "--set", "rtt_ms=30"], "is always 20");
    assert_usage_error(&["list", "contension"], "did you mean `contention`?");
    assert_usage_error(&["run", "cooperative", "--jobs", "0"], "1..=16");
    assert_usage_error(
        &["run", "contention", "--set", "variants=udp/22"],
        "did you mean `udp/2`?",
    );
    assert_usage_error(&["run"], "SCENARIO");
}

/// In virtual time, or without a bound on any time: however busy this machine is, they say the same. `packaging/check` runs
/// them beside the others.
mod in_guest {
    use super::{metric, run, run_and_count_figures, turn_in_guest};

    #[test]
    pub fn nothing_leaks_and_nothing_breaks_in_turmoil() {
        let Some(_turn) = turn_in_guest() else { return };
        let (result, _) = run_and_count_figures("turmoil", &["seconds=20"]);
        assert_eq!(metric(&result, "guest", "leaked_packets"), 0.0);
        assert_eq!(metric(&result, "guest", "kernel_warnings"), 0.0);
    }

    #[test]
    pub fn frames_of_each_class_leave_in_the_access_category_that_the_table_says() {
        let Some(_turn) = turn_in_guest() else { return };
        let (result, _) = run_and_count_figures("marking", &["variants=default"]);
        let priority = |traffic: &str, which| metric(&result, &format!("default/{traffic}"), which);
        assert_eq!(priority("background", "user_priority_min"), 1.0);
        assert_eq!(priority("standard", "user_priority_max"), 0.0);
    }

    #[test]
    pub fn requests_beside_an_upload_take_hardly_longer_than_without() {
        let Some(_turn) = turn_in_guest() else { return };
        let settings = [
            "variants=none/get,giveway/get",
            "sizes_kb=10,100",
            "requests=2",
            "warmup_s=5",
        ];
        let result = run("foreground", &settings);
        for request in ["get/100", "post/100"] {
            let [alone, beside] = ["none", "giveway"]
                .map(|variant| metric(&result, &format!("{variant}/{request}"), "completion_mean_s"));
            // Two of each prove no percentage; without an order it would be 1.4 and 1.9 times as long.
            assert!(beside < 1.15 * alone, "{request}: {beside} s, alone {alone} s");
        }
        assert!(metric(&result, "giveway", "background_percent_of_left") > 80.0);
        assert!(metric(&result, "giveway", "yield_max_s") < 0.1);
    }

    #[test]
    pub fn pages_and_a_call_beside_downloads_hardly_wait_where_the_rate_is_known() {
        let Some(_turn) = turn_in_guest() else { return };
        let settings = [
            "variants=20ms/fifo-100/alone/known,20ms/fifo-100/bulk-8/known",
            "sizes_kb=100",
            "requests=3",
            "seconds=5",
            "warmup_s=6",
        ];
        let (result, _) = run_and_count_figures("foreground-down", &settings);
        let of = |name| metric(&result, "20ms/fifo-100/bulk-8/known", name);
        // Without an order each waits up to 100 ms.
        assert!(of("call_waits_p95_ms") < 30.0, "{result}");
        assert!(of("load_percent_of_left") > 60.0, "{result}");
    }

    #[test]
    pub fn a_rate_limit_is_reached_and_not_passed_in_the_bpf_qdisc() {
        let Some(_turn) = turn_in_guest() else { return };
        // Bounds are on every window.
        let settings = [
            "variants=qdisc-unpaced/udp-20/5,qdisc/tcp-1/5",
            "seconds=3",
            "warmup_s=1",
        ];
        let result = run("rate-limit", &settings);
        assert!(metric(&result, "qdisc-unpaced/udp-20/5", "goodput_of_limit") > 0.95);
    }

    #[test]
    pub fn limit_on_wireguard_holds_or_is_reported() {
        let Some(_turn) = turn_in_guest() else { return };
        let settings = ["variants=wireguard,kernel-socket", "seconds=2", "warmup_s=1"];
        let (result, _) = run_and_count_figures("reach", &settings);
        assert_eq!(metric(&result, "kernel-socket", "holds"), 1.0);
    }

    #[test]
    pub fn starved_background_survives_and_recovers() {
        let Some(_turn) = turn_in_guest() else { return };
        let settings = ["variants=free/giveway", "seconds=30", "warmup_s=5"];
        let (result, _) = run_and_count_figures("starve", &settings);
        let of = |name| metric(&result, "free/giveway", name);
        assert!(of("lost_connections") == 0.0 && of("return_s") <= 1.0, "{result}");
        // Half a percent of 1 Mbit/s; what is on its way when the foreground begins takes more of so short a time.
        assert!((1.0..30.0).contains(&of("background_kbit")), "{result}");
        assert!(of("foreground_mbit") > 0.9, "{result}");
    }

    #[test]
    pub fn a_background_transfer_yields_to_another_device() {
        let Some(_turn) = turn_in_guest() else { return };
        let settings = [
            "variants=fifo-100/giveway,codel/download",
            "seconds=3",
            "warmup_s=10",
            "requests=1",
        ];
        let result = run("yield", &settings);
        for cell in ["fifo-100/giveway", "codel/download"] {
            let of = |name| metric(&result, cell, name);
            assert!(of("steady_mbit") > 15.0 && of("added_p95_ms") < 60.0, "{result}");
            // CUBIC in its place has half of the link, and never goes below a twentieth.
            assert!(of("yield_s") < 1.0 && of("background_percent") < 20.0, "{result}");
        }
        assert!(
            metric(&result, "fifo-100/giveway", "foreground_mbit") > 14.0,
            "{result}"
        );
    }

    #[test]
    pub fn modem_rate_is_estimated_and_idle_link_is_left_unchanged() {
        let Some(_turn) = turn_in_guest() else { return };
        let settings = ["variants=auto/10,auto/idle", "seconds=3", "warmup_s=3"];
        let result = run("auto-rate", &settings);
        let of = |name| metric(&result, "auto/10", name);
        assert!((9.0..11.0).contains(&of("estimated_mbit")), "{result}");
        // A thousand packets, the modem's queue, are 1,200 ms.
        assert!(of("goodput_mbit") > 8.0 && of("probe_p50_ms") < 20.0, "{result}");
        assert!(of("known_as_tcp_percent") > 90.0, "{result}");
    }

    #[test]
    pub fn admitted_deadlines_are_kept_and_refusals_are_reported() {
        let Some(_turn) = turn_in_guest() else { return };
        let result = run("deadline", &["variants=giveway/tight", "packets=3000"]);
        let told = metric(&result, "giveway/tight", "refused_notified");
        assert!(told > 500.0, "{told}");
        assert_eq!(metric(&result, "giveway/tight", "refused"), told);
        assert_eq!(metric(&result, "giveway/tight", "late"), 0.0);
        assert!(metric(&result, "giveway/tight/B", "overtook_percent") > 90.0);
    }

    #[test]
    pub fn requests_are_answered_in_time_under_load() {
        let Some(_turn) = turn_in_guest() else { return };
        let result = run("chain", &["variants=all", "requests=60"]);
        assert_eq!(metric(&result, "all", "late"), 0.0);
        assert!(metric(&result, "all", "admitted") >= 54.0);
        // It is raised at the first and keeps its priority.
        assert!(metric(&result, "all", "raises") < 15.0);
    }

    #[test]
    pub fn an_upload_waits_for_a_program_that_computes() {
        let Some(_turn) = turn_in_guest() else { return };
        // Each run is as long as in full, since 2 ms of what the gate costs come once in each: 0.4% of a run of 0.45 s.
        let settings = ["variants=alone,plain,giveway", "steps_m=100", "runs=1"];
        let (result, _) = run_and_count_figures("cpu-gate", &settings);
        let run_time_s = |variant| metric(&result, variant, "run_time_mean_s");
        assert!(run_time_s("giveway") < 1.01 * run_time_s("alone"));
        assert!(run_time_s("plain") > 1.05 * run_time_s("alone"));
    }

    #[test]
    pub fn a_rule_makes_timers_wake_up_sooner_in_virtual_time() {
        let Some(_turn) = turn_in_guest() else { return };
        let result = run("wakeup", &["variants=full", "seconds=6", "repeats=1"]);
        let [normal, rule] = ["normal", "rule"].map(|name| metric(&result, &format!("full/{name}"), "wakeup_max_us"));
        assert!(rule < normal, "{rule} us, without a rule {normal}");
        assert!(rule <= 1_000.0, "{rule} us");
    }

    #[test]
    pub fn a_packet_with_a_deadline_costs_at_most_2500_instructions_however_many_wait() {
        let Some(_turn) = turn_in_guest() else { return };
        let (result, _) = run_and_count_figures("admission-cost", &["variants=enqueue", "packets=10"]);
        for queued in [10, 100, 1_000, 4_000] {
            let instructions = metric(&result, &format!("enqueue/{queued}"), "instructions");
            assert!((500.0..=2_500.0).contains(&instructions), "{queued}: {instructions}");
        }
    }

    #[test]
    pub fn each_queue_costs_a_packet_something() {
        let Some(_turn) = turn_in_guest() else { return };
        let queues = ["fq_codel/paced", "giveway/paced", "giveway/unpaced"];
        let settings = [&format!("variants={}", queues.join(",")), "bursts=10"];
        let (result, _) = run_and_count_figures("qdisc-cost", &settings);
        for queue in queues {
            let cost = metric(&result, queue, "instructions_per_packet");
            assert!((10.0..20_000.0).contains(&cost), "{queue}: {cost} instructions");
        }
        assert!(metric(&result, "giveway/paced", "gw_enqueue_runs") >= 0.9);
        assert_eq!(metric(&result, "giveway/unpaced", "gw_enqueue_runs"), 0.0);
    }

    #[test]
    pub fn queue_is_installed_with_the_first_background_flow() {
        let Some(_turn) = turn_in_guest() else { return };
        let settings = ["variants=comes,noqueue/1,giveway/1", "seconds=1", "warmup_s=2"];
        let (result, _) = run_and_count_figures("line-rate", &settings);
        assert_eq!(metric(&result, "comes", "stays"), 1.0);
        for queue in ["noqueue/1", "giveway/1"] {
            assert!(metric(&result, queue, "mbit") > 10.0, "{queue}");
        }
    }

    #[test]
    pub fn a_thread_costs_more_than_a_softirq() {
        let Some(_turn) = turn_in_guest() else { return };
        let settings = ["variants=softirq,napi-thread", "packets=1000", "warmup_s=2"];
        let (result, _) = run_and_count_figures("switch-cost", &settings);
        let [softirq, thread] = ["softirq", "napi-thread"].map(|name| metric(&result, name, "switch_instructions"));
        assert!(0.0 < softirq && softirq < thread, "softirq {softirq}, thread {thread}");
    }
}

/// How a scenario is tried here.
enum ShortForm {
    Tests(&'static [fn()]),
    /// None, for this reason.
    #[allow(dead_code, reason = "every scenario has one today")]
    Without(&'static str),
}

use ShortForm::Tests;

/// Every scenario of `giveway-lab list`: a new one has to be entered here.
const SHORT_FORMS: &[(&str, ShortForm)] = &[
    ("abuse", Tests(&[abusive_user_costs_others_no_deadlines])),
    (
        "admission-cost",
        Tests(&[
            admission_agrees_with_the_exact_scan,
            in_guest::a_packet_with_a_deadline_costs_at_most_2500_instructions_however_many_wait,
        ]),
    ),
    ("app-mix", Tests(&[a_stream_and_three_transfers_share_an_access_point])),
    (
        "auto-rate",
        Tests(&[in_guest::modem_rate_is_estimated_and_idle_link_is_left_unchanged]),
    ),
    ("chain", Tests(&[in_guest::requests_are_answered_in_time_under_load])),
    ("contention", Tests(&[contention_shows_udp_above_tcp_and_fair_shares])),
    (
        "cooperative",
        Tests(&[
            cooperative_stations_hold_the_papers_cap,
            cells_side_by_side_are_those_of_one_table,
            a_variant_that_fails_beside_others_says_why,
        ]),
    ),
    (
        "deadline",
        Tests(&[
            a_fifo_makes_every_packet_with_a_near_deadline_late,
            in_guest::admitted_deadlines_are_kept_and_refusals_are_reported,
        ]),
    ),
    ("demand", Tests(&[a_station_that_wants_little_gets_that_and_no_more])),
    (
        "download-limit",
        Tests(&[download_limit_holds_with_one_connection_and_with_many]),
    ),
    ("fails-open", Tests(&[nothing_is_left_of_a_daemon_that_was_killed])),
    ("faults", Tests(&[undo_survives_a_failed_system_call])),
    (
        "foreground",
        Tests(&[in_guest::requests_beside_an_upload_take_hardly_longer_than_without]),
    ),
    (
        "foreground-down",
        Tests(&[in_guest::pages_and_a_call_beside_downloads_hardly_wait_where_the_rate_is_known]),
    ),
    (
        "cpu-gate",
        Tests(&[in_guest::an_upload_waits_for_a_program_that_computes]),
    ),
    ("join-leave", Tests(&[caps_follow_senders_that_join_start_stop_and_die])),
    ("liar", Tests(&[lying_member_silences_nobody])),
    ("clear", Tests(&[a_cleared_connection_grows_past_its_cap])),
    (
        "limit-cost",
        Tests(&[limits_cost_unlimited_traffic_nothing_and_all_of_many_hold]),
    ),
    (
        "links",
        Tests(&[each_uplink_keeps_its_rate_and_a_removed_queue_is_reinstalled]),
    ),
    (
        "line-rate",
        Tests(&[in_guest::queue_is_installed_with_the_first_background_flow]),
    ),
    (
        "marking",
        Tests(&[in_guest::frames_of_each_class_leave_in_the_access_category_that_the_table_says]),
    ),
    (
        "mixed",
        Tests(&[stations_with_and_without_giveway_share_an_access_point]),
    ),
    ("monitor-cost", Tests(&[watching_is_cheaper_than_asking_ss])),
    ("no-numbers", Tests(&[a_key_is_all_that_stations_need_to_share])),
    ("qdisc-cost", Tests(&[in_guest::each_queue_costs_a_packet_something])),
    (
        "rate-limit",
        Tests(&[
            a_rate_limit_is_reached_and_not_passed,
            in_guest::a_rate_limit_is_reached_and_not_passed_in_the_bpf_qdisc,
        ]),
    ),
    (
        "reach",
        Tests(&[
            ineffective_limit_is_reported,
            in_guest::limit_on_wireguard_holds_or_is_reported,
        ]),
    ),
    ("readme", Tests(&[readme_recipes_work_on_this_kernel])),
    ("rules-cost", Tests(&[each_process_that_connects_has_its_class])),
    (
        "rtt-mix",
        Tests(&[stations_at_different_distances_send_beside_each_other]),
    ),
    (
        "runaway",
        Tests(&[
            runaway_program_loses_its_priority,
            endless_handler_loses_its_priority_and_no_rule_does,
        ]),
    ),
    ("shares", Tests(&[shares_run_in_model_time])),
    ("single-cap", Tests(&[a_cap_holds_a_single_station_to_its_rate])),
    ("soak", Tests(&[a_daemon_neither_grows_nor_leaves_anything])),
    ("starts", Tests(&[every_start_of_a_matching_process_is_noticed])),
    ("starve", Tests(&[in_guest::starved_background_survives_and_recovers])),
    ("step-rate", Tests(&[slower_radio_carries_less])),
    (
        "coexistence",
        Tests(&[background_leaves_stations_without_giveway_nearly_all]),
    ),
    ("switch-cost", Tests(&[in_guest::a_thread_costs_more_than_a_softirq])),
    (
        "targets",
        Tests(&[limit_holds_for_its_target_and_status_agrees_with_the_receiver]),
    ),
    (
        "turmoil",
        Tests(&[in_guest::nothing_leaks_and_nothing_breaks_in_turmoil]),
    ),
    (
        "wakeup",
        Tests(&[
            a_rule_makes_timers_wake_up_as_soon_as_the_reference,
            in_guest::a_rule_makes_timers_wake_up_sooner_in_virtual_time,
        ]),
    ),
    ("work", Tests(&[children_of_a_backup_yield_like_the_backup])),
    (
        "yield",
        Tests(&[in_guest::a_background_transfer_yields_to_another_device]),
    ),
];

#[test]
fn every_listed_scenario_has_a_short_form_or_a_reason_for_none() {
    let said = String::from_utf8(lab(&["list"]).stdout).unwrap();
    let names = said
        .lines()
        .skip(1)
        .filter(|line| !line.is_empty() && !line.starts_with(' '));
    let listed: BTreeSet<_> = names.collect();
    let tried: BTreeSet<_> = SHORT_FORMS.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed, tried);
    for (name, form) in SHORT_FORMS {
        match form {
            Tests(tests) => assert!(!tests.is_empty(), "{name}"),
            ShortForm::Without(reason) => assert!(reason.len() > 20, "{name} without a short form: why?"),
        }
    }
}

#[test]
fn list_gives_each_parameter_with_its_default_and_limits() {
    let said = String::from_utf8(lab(&["list"]).stdout).unwrap();
    let of = |scenario: &str| {
        let after = said.split_once(&format!("\n{scenario}\n")).unwrap().1;
        after.split("\n\n").next().unwrap().to_owned()
    };
    assert!(of("fails-open").contains("others          20 (1 to 10000)"), "{said}");
    assert!(of("wakeup").contains("warmup_s"), "{said}");
    assert!(!of("wakeup").contains("rtt_ms"), "{said}");
    // It has one value there.
    assert!(!of("rtt-mix").contains("rtt_ms"), "{said}");
    let one = String::from_utf8(lab(&["list", "wakeup"]).stdout).unwrap();
    assert!(one.contains("\nwakeup\n") && !one.contains("\nfails-open\n"), "{one}");
}

#[test]
fn a_fifo_makes_every_packet_with_a_near_deadline_late() {
    let Some(_turn) = turn() else { return };
    let result = run(
        "deadline",
        &["variants=pfifo_fast/tight", "packets_others=450", "kernel=host"],
    );
    let b = "pfifo_fast/tight/B";
    assert_eq!(metric(&result, b, "sent"), 360.0);
    // The flood before it is 100 ms of work, the deadline 10 ms away.
    assert_eq!(metric(&result, b, "missed"), 360.0);
    assert!(metric(&result, b, "queue_mean_us") > 20_000.0);
    assert_eq!(metric(&result, b, "overtook_percent"), 0.0);
    assert!(metric(&result, "pfifo_fast/tight", "best_effort_goodput_mbit") > 20.0);
}

#[test]
fn shares_run_in_model_time() {
    let Some(_turn) = turn() else { return };
    let (result, _) = run_and_count_figures(
        "shares",
        &[
            "stations=2",
            "variants=fixed54/2/plain,fixed54/2/fixed-cap",
            "seconds=10",
        ],
    );
    // The engines have heard each other, and hold the paper's cap.
    let capped = metric(&result, "fixed54/2/fixed-cap", "goodput_mbit");
    assert!((15.0..16.0).contains(&capped), "{capped}");
    assert!(metric(&result, "fixed54/2/plain", "goodput_mbit") > 18.0);
}

#[test]
fn each_process_that_connects_has_its_class() {
    let Some(_turn) = turn() else { return };
    let result = run("rules-cost", &["seconds=5", "variants=rules"]);
    assert!(metric(&result, "rules", "class_max_ms") < 1_000.0, "{result}");
}

#[test]
fn children_of_a_backup_yield_like_the_backup() {
    let Some(_turn) = turn() else { return };
    let settings = [
        "variants=upload,packaged/restic,exec/git-2222",
        "seconds=2",
        "warmup_s=1",
    ];
    let (result, _) = run_and_count_figures("work", &settings);
    // restic and its ssh; git, its shell, its ssh and its packer.
    for (variant, least) in [("packaged/restic", 2.0), ("exec/git-2222", 3.0)] {
        assert!(metric(&result, variant, "processes_background") >= least, "{result}");
    }
}

#[test]
fn ineffective_limit_is_reported() {
    let Some(_turn) = turn() else { return };
    // The daemon knows a program that sends by a raw socket within two seconds of its start.
    let settings = [
        "variants=tcp,udp-not-connected,raw-socket,packet-socket,tun,no-daemon",
        "seconds=1",
        "warmup_s=3",
    ];
    let (result, _) = run_and_count_figures("reach", &settings);
    assert_eq!(metric(&result, "no-daemon", "holds"), 0.0);
    assert!(metric(&result, "no-daemon", "said") >= 1.0);
}

#[test]
fn limit_holds_for_its_target_and_status_agrees_with_the_receiver() {
    let Some(_turn) = turn() else { return };
    let settings = ["variants=host/pid/up/during,host/cgroup/down/before"];
    let (result, _) = run_and_count_figures("targets", &settings);
    assert_eq!(metric(&result, "host/pid/up/during", "ends"), 1.0);
}

#[test]
fn each_uplink_keeps_its_rate_and_a_removed_queue_is_reinstalled() {
    let Some(_turn) = turn() else { return };
    let settings = [
        "variants=policy-routing,nexthop-objects-hidden,ipv6-alone,reset-once,local-unlimited,moved",
        "seconds=2",
        "warmup_s=1",
    ];
    let (result, _) = run_and_count_figures("links", &settings);
    // Else nobody would have had to wait.
    assert!(metric(&result, "reset-once", "first_holds_s") > 0.5, "{result}");
}

#[test]
fn readme_recipes_work_on_this_kernel() {
    let Some(_turn) = turn_on_channel() else { return };
    let settings = ["variants=host", "seconds=2", "warmup_s=2"];
    let (result, _) = run_and_count_figures("readme", &settings);
    assert_eq!(metric(&result, "host/laptop", "photos_arrived"), 1.0);
}

#[test]
fn a_rule_makes_timers_wake_up_as_soon_as_the_reference() {
    let Some(_turn) = turn() else { return };
    let settings = ["variants=host", "seconds=6", "repeats=1"];
    let result = run("wakeup", &settings);
    let of = |name: &str, percentile| metric(&result, &format!("host/{name}"), percentile);
    assert_eq!(of("rule", "wakeups"), 200.0);
    // Of 200 wake-ups on a machine that runs tests; the bounds are for 10,000.
    assert!(of("rule", "wakeup_p99_us") < of("normal", "wakeup_p99_us"), "{result}");
    assert!(
        of("rule", "wakeup_p50_us") < 10.0 * of("reference", "wakeup_p50_us"),
        "{result}"
    );
}

#[test]
fn a_daemon_neither_grows_nor_leaves_anything() {
    let Some(_turn) = turn() else { return };
    let settings = ["seconds=12", "warmup_s=2", "every_s=3", "per_s=100"];
    run_and_count_figures("soak", &settings);
}

#[test]
fn every_start_of_a_matching_process_is_noticed() {
    let Some(_turn) = turn() else { return };
    let result = run("starts", &["variants=idle", "seconds=4"]);
    assert_eq!(metric(&result, "idle", "matched"), 200.0);
    assert!(metric(&result, "idle", "priority_p99_ms") < 50.0);
}

#[test]
fn runaway_program_loses_its_priority() {
    let Some(_turn) = turn() else { return };
    let settings = [
        "variants=spinner/one,fork-bomb",
        "times=1",
        "seconds=3",
        "processes=100",
    ];
    let (result, _) = run_and_count_figures("runaway", &settings);
    let [never_raised, demoted_ms, demoted] =
        ["never_raised", "demoted_ms", "demoted"].map(|name| metric(&result, "spinner/one", name));
    // Whoever is never demoted is counted with the whole 3 s, and whoever is never raised with nothing.
    assert_eq!(never_raised, 0.0);
    assert!(0.0 < demoted_ms && demoted_ms < 2_000.0, "{demoted_ms} ms");
    assert!(demoted >= 1.0, "the daemon counts {demoted}");
    // Some of its processes had priority, and not all of them at once.
    let with_priority = metric(&result, "fork-bomb/rule", "priority_tasks_max");
    assert!((1.0..100.0).contains(&with_priority), "{with_priority} processes");
    assert_eq!(metric(&result, "fork-bomb/plain", "priority_tasks_max"), 0.0);
}

#[test]
fn endless_handler_loses_its_priority_and_no_rule_does() {
    let Some(_turn) = turn() else { return };
    let (result, _) = run_and_count_figures("runaway", &["variants=chain", "times=1", "seconds=3"]);
    let [never_raised, demoted_ms, innocent_demoted, parts_lowered] =
        ["never_raised", "demoted_ms", "innocent_demoted", "parts_lowered"].map(|name| metric(&result, "chain", name));
    assert_eq!((never_raised, innocent_demoted), (0.0, 0.0));
    assert!(0.0 < demoted_ms && demoted_ms < 2_000.0, "{demoted_ms} ms");
    assert!(parts_lowered >= 1.0, "the daemon counts {parts_lowered}");
}

#[test]
fn admission_agrees_with_the_exact_scan() {
    let Some(_turn) = turn() else { return };
    let (result, _) = run_and_count_figures("admission-cost", &["variants=random-cases", "cases=20000"]);
    assert_eq!(metric(&result, "random-cases", "cases"), 20_000.0);
    assert_eq!(metric(&result, "random-cases", "admitted_wrongly"), 0.0);
    // Else nothing was decided.
    let admitted = metric(&result, "random-cases", "admitted");
    assert!((1_000.0..19_000.0).contains(&admitted), "{admitted} admitted");
}
