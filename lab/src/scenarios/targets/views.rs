// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What giveway shows of a limit that is the only one: `status`, `top` and the page a rate, in Mbit/s, the metrics a counter.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::giveway::{answers, binary};
use crate::interrupt::wait_until;
use crate::namespace::Namespace;
use crate::process::{Process, run};
use crate::role::{Role, answer_each};
use crate::traffic::Direction;

/// Where they are shown; metrics are named after these.
pub const VIEWS: [&str; 3] = ["status_of_received", "top_of_received", "page_of_received"];
const WEB_PORT: u16 = 9_871;
const SERVES_WITHIN: Duration = Duration::from_secs(20);
const METRIC: &str = "giveway_limit_passed_bytes_total";

/// `giveway web`, and who looks at it.
pub struct Web {
    looker: Role,
    _process: Process,
}

impl Web {
    pub fn start(at: &Namespace) -> Result<Self> {
        let mut command = at.command(binary()?)?;
        command.arg("web").stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process::spawn(command)?;
        let looker = Role::start(at, "targets-looker", &())?;
        let mut web = Self {
            looker,
            _process: process,
        };
        wait_until("the page to be served", SERVES_WITHIN, || {
            Ok(web.get("/state")?.contains("limits"))
        })?;
        Ok(web)
    }

    /// Empty where nobody answers.
    fn get(&mut self, path: &str) -> Result<String> {
        self.looker.ask(path)
    }
}

/// In each of the views but the metrics now; none where it shows no such limit.
pub fn shown_mbit(at: &Namespace, web: &mut Web, way: Direction) -> Result<[Option<f64>; 3]> {
    Ok([of_status(at, way)?, of_top(at, way)?, of_page(&web.get("/state")?, way)])
}

/// By the metrics, so far.
pub fn passed_bytes(web: &mut Web, way: Direction) -> Result<Option<f64>> {
    Ok(of_metrics(&web.get("/metrics")?, way))
}

fn direction(way: Direction) -> &'static str {
    match way {
        Direction::Up => "upload",
        Direction::Down => "download",
    }
}

fn of_status(at: &Namespace, way: Direction) -> Result<Option<f64>> {
    let limits = answers::status(at)?.network.limits;
    let mut ways = limits.iter().flat_map(|limit| limit.ways());
    let shown = ways.find(|(of, _)| *of == direction(way));
    Ok(shown.and_then(|(_, shown)| Some(shown.queue?.throughput_mbit)))
}

/// Its rate is the second number behind the direction.
fn of_top(at: &Namespace, way: Direction) -> Result<Option<f64>> {
    let mut command = at.command(binary()?)?;
    command
        .args(["top", "--once", "--view", "limits"])
        .env("COLUMNS", "160");
    let screen = run(command)?.stdout;
    let screen = String::from_utf8_lossy(&screen);
    let of_line = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != direction(way));
        words.nth(2).and_then(mbit_of)
    };
    Ok(screen.lines().find_map(of_line))
}

/// `950k`, `5.7M`.
fn mbit_of(shown: &str) -> Option<f64> {
    let number = shown.trim_end_matches(char::is_alphabetic);
    let unit = match &shown[number.len()..] {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * unit / 1e6)
}

fn of_page(state: &str, way: Direction) -> Option<f64> {
    let state: Value = serde_json::from_str(state).ok()?;
    let mut limits = state["limits"].as_array()?.iter();
    limits.find(|limit| limit["direction"] == direction(way))?["queue"]["throughput_mbit"].as_f64()
}

fn of_metrics(text: &str, way: Direction) -> Option<f64> {
    let label = format!("direction=\"{}\"", direction(way));
    let mut lines = text.lines();
    let line = lines.find(|line| line.starts_with(METRIC) && line.contains(&label))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// The role `targets-looker`: each line is a path, answered with what is served there.
pub fn run_looker(_description: &str) -> Result<()> {
    println!("ready");
    answer_each(|path| Ok(get(path).unwrap_or_default()))
}

fn get(path: &str) -> Result<String> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, WEB_PORT))?;
    write!(
        connection,
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{WEB_PORT}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.contains(" 200 "), "{head}");
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_view_is_read_as_it_is_shown() {
        let shown = ["950", "950k", "5.7M", "1.2G", "-", "x"].map(mbit_of);
        let mbit = [Some(0.00095), Some(0.95), Some(5.7), Some(1200.0), None, None];
        assert_eq!(shown, mbit);
        let page = r#"{"limits":[{"of":"x","direction":"upload","limit_mbit":6.0,"queue":{"throughput_mbit":5.5}}]}"#;
        assert_eq!(
            [Direction::Up, Direction::Down].map(|way| of_page(page, way)),
            [Some(5.5), None]
        );
        let metrics = format!("# {METRIC}\n{METRIC}{{of=\"by hand\",direction=\"download\"}} 125000\n");
        assert_eq!(of_metrics(&metrics, Direction::Down), Some(125_000.0));
    }
}
