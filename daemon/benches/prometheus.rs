// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures in a real Prometheus (Debian's `prometheus`): each query of the dashboard and of the alert rules is asked
//! there, and one of them gives the goodput that iperf3 reports. On a quiet machine, as root.
//!
//!     cargo bench --bench prometheus
// It prints and makes files as it likes: `clippy.toml` is for the program.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods, clippy::unwrap_used)]

use std::fs;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tests::support::lab::{FAR_V4, Lab, run};
use tests::support::process::{Daemon, KillOnDrop, program};
use tests::support::scratch::Scratch;
use tests::support::wait::until;

#[path = "../tests"]
#[allow(dead_code, reason = "the tests use more of it")]
mod tests {
    pub mod support;
}

/// Of `giveway web`.
const AT: &str = "127.0.0.1:9871";

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/prometheus");
const SERVER: &str = "http://127.0.0.1:9990";
const SECONDS: usize = 50;
/// The part of it that is compared, which ends before its last seconds.
const WINDOW: usize = 30;
/// Only the BPF qdisc tells these, and only a daemon that is gone.
const MAY_BE_EMPTY: [&str; 2] = ["giveway_queue_sojourn_seconds", "absent("];

struct Prometheus {
    _process: KillOnDrop,
    _folder: TempDir,
}

impl Prometheus {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "global:\n  scrape_interval: 1s\nrule_files: [{PACKAGING}/giveway.rules.yml]\nscrape_configs:\n  \
             - job_name: giveway\n    static_configs:\n      - targets: ['{AT}']\n"
        );
        fs::write(&config, text).unwrap();
        run(&format!("promtool check config {}", config.display()));
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .args(["--web.listen-address=127.0.0.1:9990", "--log.level=error"])
            .stdout(Stdio::null());
        let server = Self {
            _process: KillOnDrop::spawn(&mut command),
            _folder: folder,
        };
        until("Prometheus scrapes", || {
            !ask("giveway_up == 1", None).unwrap_or_default().is_empty()
        });
        server
    }
}

/// The values of a query, now or at this time.
fn ask(query: &str, at: Option<f64>) -> Option<Vec<f64>> {
    let mut command = Command::new("promtool");
    command.args(["query", "instant", "--format=json"]);
    command.args(at.map(|at| format!("--time={at:.0}")));
    let output = command.args([SERVER, query]).output().unwrap();
    if !output.status.success() {
        return None;
    }
    let series: Value = serde_json::from_slice(&output.stdout).unwrap();
    let value = |one: &Value| one["value"][1].as_str().and_then(|value| value.parse().ok());
    Some(series.as_array().unwrap().iter().filter_map(value).collect())
}

/// What iperf3 tells of a transfer as bulk.
struct Transfer {
    /// Seconds since 1970.
    started: f64,
    told: Value,
}

impl Transfer {
    fn run(lab: &Lab) -> Self {
        let server = ["netns", "exec", &lab.far, "iperf3", "-s", "-1", "--json"];
        let _server = KillOnDrop::spawn(Command::new("ip").args(server).stdout(Stdio::null()));
        until("iperf3 serves", || {
            lab.far(|| run("ss -Htln sport = :5201")).contains("5201")
        });
        let seconds = SECONDS.to_string();
        let client = ["exec", "--class", "bulk", "--", "iperf3", "-c", FAR_V4, "-t", &seconds];
        let mut command = Command::new(program());
        let output = command
            .args(client)
            .args(["--json", "--get-server-output"])
            .output()
            .unwrap();
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let started = told["start"]["timestamp"]["timesecs"].as_f64().unwrap();
        Self { started, told }
    }

    /// By the server's own account of these seconds.
    fn mbit_received(&self, from: usize, to: usize) -> f64 {
        let intervals = self.told["server_output_json"]["intervals"].as_array().unwrap();
        let bytes = intervals[from..to]
            .iter()
            .map(|one| one["sum"]["bytes"].as_f64().unwrap());
        bytes.sum::<f64>() * 8e-6 / (to - from) as f64
    }
}

/// The queries of the dashboard as Grafana would ask them, and those of the rules without what they are compared to.
fn queries() -> Vec<String> {
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(format!("{PACKAGING}/dashboard.json")).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let of_dashboard = targets.map(|target| {
        let query = target["expr"].as_str().unwrap();
        query.replace("$instance", ".*").replace("$__rate_interval", "10s")
    });
    let rules = fs::read_to_string(format!("{PACKAGING}/giveway.rules.yml")).unwrap();
    let of_rules = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let compared = |query: &str| {
        query
            .rsplit_once(" > ")
            .or(query.rsplit_once(" == "))
            .unwrap()
            .0
            .to_owned()
    };
    of_dashboard.chain(of_rules.map(compared)).collect()
}

fn main() {
    let lab = Lab::enter();
    let config = Scratch::new(
        "web.toml",
        "[link]\nrate_mbit = 20.0\n[queue]\nbackend = \"htb\"\n[cap]\ncapacity_mbit = 19.0\nrtt_ms = 20\n",
    );
    let _daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    let mut web = Command::new(program());
    let _web = KillOnDrop::spawn(web.arg("web").stderr(Stdio::null()));
    until("it serves", || TcpStream::connect(AT).is_ok());
    let figures = Scratch::new("metrics", &run(&format!("curl -sSf http://{AT}/metrics")));
    let check = format!("promtool check metrics < {}", figures.path());
    let checked = Command::new("sh").args(["-c", &check]).output().unwrap();
    assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
    run(&format!("promtool check rules {PACKAGING}/giveway.rules.yml"));
    let _prometheus = Prometheus::start();

    let transfer = Transfer::run(&lab);
    let (from, to) = (SECONDS - 5 - WINDOW, SECONDS - 5);
    let received = transfer.mbit_received(from, to);
    let at = transfer.started + to as f64;
    let query = format!("8 * sum(rate(giveway_delivered_bytes_total{{class=\"bulk\"}}[{WINDOW}s]))");
    let found = ask(&query, Some(at)).unwrap()[0] / 1e6;
    let apart = 100.0 * (found / received - 1.0);
    println!(
        "{query} at {at:.0}: {found:.3} Mbit/s; iperf3 received {received:.3} in the same {WINDOW} s: {apart:+.2}% apart"
    );
    assert!(apart.abs() < 2.0, "{apart}%");

    let queries = queries();
    assert!(queries.len() > 30, "{queries:?}");
    for query in &queries {
        let values = ask(query, Some(at)).unwrap_or_else(|| panic!("not understood: {query}"));
        let may_be_empty = MAY_BE_EMPTY.iter().any(|part| query.contains(part));
        assert!(may_be_empty || !values.is_empty(), "nothing found: {query}");
        println!("{:>4} series: {query}", values.len());
    }
}
