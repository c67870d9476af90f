// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway link`: shows the managed links, and sets their rates while giveway runs.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use giveway_engine::config::RateMbit;
use giveway_engine::queue::Plan;
use giveway_engine::queue::links::{LinkRates, LinkView};
use giveway_engine::rate;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::args::{ASKS, REMOVES};
use crate::commands::args::{Json, after};
use crate::commands::print_output;
use crate::control::{Request, client};
use crate::place::Place;
use crate::say::note;

/// Until a rate is active.
const TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

#[derive(Subcommand)]
pub enum LinkCommand {
    /// Show each managed link with its rate, who says it, and its queue
    #[command(after_help = after(ASKS, &["giveway link show", "giveway link show --json"]))]
    Show(Json),
    /// Set a link's rate
    #[command(after_help = after(
        ASKS,
        &["sudo giveway link set wwan0 --up 8mbit --down 40mbit", "sudo giveway link set wwan0 --up auto"],
    ))]
    Set {
        /// The interface's name
        name: String,
        #[command(flatten)]
        rates: LinkRateArgs,
        #[command(flatten)]
        output: Json,
    },
    /// Go back to what the configuration says
    #[command(after_help = after(REMOVES, &["sudo giveway link clear wwan0"]))]
    Clear {
        /// The interface's name
        name: String,
        #[command(flatten)]
        output: Json,
    },
}

#[derive(Args, Clone, Copy)]
#[group(required = true, multiple = true)]
pub struct LinkRateArgs {
    /// What it can send, with a unit (9.5mbit), or `auto`: estimated
    #[arg(long, value_name = "RATE|auto", value_parser = link_rate)]
    pub up: Option<RateMbit>,
    /// What arrives by it at most, with a unit (50mbit): bulk and background downloads yield within it
    #[arg(long, value_name = "RATE", value_parser = download_rate)]
    pub down: Option<f64>,
}

pub fn run(command: &LinkCommand) -> Result<()> {
    match command {
        LinkCommand::Show(output) => show(output.json),
        LinkCommand::Set { name, rates, output } => {
            let LinkRateArgs { up, down } = *rates;
            set(name, Some(LinkRates { up, down }), output.json)
        }
        LinkCommand::Clear { name, output } => set(name, None, output.json),
    }
}

/// The answer to a change.
#[derive(Debug, JsonSchema, Serialize)]
pub struct LinkChange<'a> {
    interface: &'a str,
    /// As they were asked for; None: as configured.
    rates: Option<LinkRates>,
    changed: bool,
}

/// What is shown.
#[derive(Debug, JsonSchema, Serialize)]
pub struct LinkList<'a> {
    links: &'a [LinkView],
}

fn set(name: &str, rates: Option<LinkRates>, is_json: bool) -> Result<()> {
    let request = Request::LinkRate {
        name: name.to_owned(),
        rates,
    };
    let changed: bool = client::ask(&Place::here()?, request)?.first()?;
    let shown = match rates {
        Some(LinkRates { up, down }) => {
            let shown = up.map(shown_up).into_iter().chain(down.map(shown_down));
            format!("rate {} from now on", shown.collect::<Vec<_>>().join(", "))
        }
        None => "rate as configured".to_owned(),
    };
    let news = if changed { "" } else { "; unchanged" };
    let change = LinkChange {
        interface: name,
        rates,
        changed,
    };
    let is_clear = rates.is_none();
    if is_json || changed || !is_clear {
        print_output(is_json, &change, || format!("{name}: {shown}{news}\n"))?;
    }
    ensure!(changed || !is_clear, "{name}: no run-time rate is set");
    match rates {
        Some(LinkRates { down: Some(_), .. }) => say_why_not_ordered(name),
        _ => Ok(()),
    }
}

/// If what arrives is not ordered within some time.
fn say_why_not_ordered(name: &str) -> Result<()> {
    let place = Place::here()?;
    for _ in 0..TRIES {
        let downloads = client::status(&place)?.network.downloads;
        if downloads.orders.iter().any(|order| order.interface == name) {
            return Ok(());
        }
        let is_of_it = |reason: &&String| reason.split([' ', ':']).any(|word| word == name);
        if let Some(reason) = downloads.reasons.iter().find(is_of_it) {
            note(format_args!("warning: {reason}"));
            return Ok(());
        }
        sleep(BETWEEN_TRIES);
    }
    note(format_args!(
        "warning: downloads on {name} are not shaped; `giveway status` says why"
    ));
    Ok(())
}

fn shown_up(rate: RateMbit) -> String {
    match rate {
        RateMbit::Fixed(mbit) => format!("{mbit} Mbit/s up"),
        RateMbit::Estimated => "auto (estimated) up".to_owned(),
    }
}

fn shown_down(mbit: f64) -> String {
    format!("{mbit} Mbit/s down")
}

fn show(is_json: bool) -> Result<()> {
    let status = client::status(&Place::here()?)?;
    let links = &status.network.links;
    print_output(is_json, &LinkList { links }, || match links.is_empty() {
        true => "no link is managed\n".to_owned(),
        false => links.iter().map(|link| line(link) + "\n").collect(),
    })
}

fn line(link: &LinkView) -> String {
    let up = link.rate_mbit.map(shown_up).zip(link.rate_configured_in.as_ref());
    let down = link.download_rate_mbit.map(shown_down);
    let down = down.zip(link.download_rate_configured_in.as_ref());
    let said = up.into_iter().chain(down);
    let said: Vec<String> = said
        .map(|(rate, configured_in)| format!("{rate} ({configured_in})"))
        .collect();
    let rate = match said.is_empty() {
        true => "no rate is set".to_owned(),
        false => said.join(", "),
    };
    let queue = link
        .queue
        .installed
        .as_ref()
        .map_or("as it was".to_owned(), Plan::shown);
    format!("{}: {rate}; queue: {queue}: {}", link.interface, link.queue.reason)
}

fn link_rate(text: &str) -> Result<RateMbit, String> {
    match text {
        "auto" => Ok(RateMbit::Estimated),
        _ => rate::parse(text).map(|bytes_per_s| RateMbit::Fixed(rate::mbit(bytes_per_s))),
    }
}

fn download_rate(text: &str) -> Result<f64, String> {
    rate::parse(text).map(rate::mbit)
}
