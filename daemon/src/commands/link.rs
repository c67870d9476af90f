// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway link`: shows the managed links, and sets their rates while giveway runs.

use anyhow::{Context as _, Result, ensure};
use giveway_engine::config::RateMbit;
use giveway_engine::network::queue::Plan;
use giveway_engine::network::queue::links::LinkView;
use serde_json::json;

use crate::cli::{LinkCommand, LinkRates};
use crate::commands::{print, print_json};
use crate::control::{Request, client};
use crate::place::Place;
use crate::say::print_line;

const SCHEMA: u32 = 1;

pub fn run(command: &LinkCommand) -> Result<()> {
    match command {
        LinkCommand::Show(output) => show(output.json),
        LinkCommand::Set { name, rates } => set(name, Some(upwards(rates)?)),
        LinkCommand::Clear { name } => set(name, None),
    }
}

fn upwards(rates: &LinkRates) -> Result<RateMbit> {
    ensure!(rates.down.is_none(), "--down: this version cannot order what arrives");
    rates.up.context("no rate is given: --up 9.5mbit")
}

fn set(name: &str, rate: Option<RateMbit>) -> Result<()> {
    let request = Request::LinkRate {
        name: name.to_owned(),
        rate,
    };
    let changed: bool = client::ask(&Place::here()?, request)?.first()?;
    let rate = match rate {
        Some(rate) => format!("its rate is {} from now on", shown(rate)),
        None => "its rate is what the configuration says".to_owned(),
    };
    let news = if changed { "" } else { "; nothing has changed" };
    print_line(format_args!("{name}: {rate}{news}"))
}

fn shown(rate: RateMbit) -> String {
    match rate {
        RateMbit::Fixed(mbit) => format!("{mbit} Mbit/s up"),
        RateMbit::Found => "auto (estimated) up".to_owned(),
    }
}

fn show(is_json: bool) -> Result<()> {
    let status = client::status(&Place::here()?)?;
    let links = &status.network.links;
    if is_json {
        return print_json(&json!({ "schema": SCHEMA, "links": links }));
    }
    if links.is_empty() {
        return print("no link is managed now\n");
    }
    print(&links.iter().map(|link| line(link) + "\n").collect::<String>())
}

fn line(link: &LinkView) -> String {
    let rate = match (link.rate_mbit, &link.rate_said_in) {
        (Some(rate), Some(said_in)) => format!("{} ({said_in})", shown(rate)),
        _ => "no rate is set".to_owned(),
    };
    let queue = link.queue.in_force.as_ref().map_or("as it was".to_owned(), Plan::shown);
    format!("{}: {rate}; queue: {queue}: {}", link.interface, link.queue.why)
}
