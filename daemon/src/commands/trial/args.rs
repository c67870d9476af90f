// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user can ask of `giveway try`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub struct TryArgs {
    /// Fill the link to and from `giveway peer` there; else this machine's own traffic is what is measured
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub peer: Option<SocketAddr>,
    /// The transfers say that they are background (DSCP LE), with giveway and without it
    #[arg(long, requires = "peer")]
    pub background: bool,
    /// Transfers to the peer, and as many from it
    #[arg(long, value_name = "NUMBER", default_value_t = 2, requires = "peer", value_parser = clap::value_parser!(u16).range(1..=16))]
    pub streams: u16,
    /// Messages to the peer that are answered later than this count as late
    #[arg(long, value_name = "MS", default_value_t = 100, requires = "peer", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub deadline_ms: u64,
    /// What is measured each time
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = within::<0, 100>)]
    pub interval: f64,
    /// What is not, after each change
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = within::<0, 30>)]
    pub settle: f64,
    /// The change that is to be found with 95%, if it is there
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = within::<0, 1000>)]
    pub effect: f64,
    /// At most, the dry run included
    #[arg(long, default_value_t = 30.0, value_parser = within::<0, 10_000>)]
    pub minutes: f64,
    /// So many pairs, without a dry run that sizes the trial
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(20..))]
    pub pairs: Option<u16>,
    /// By which orders are drawn; another one each time if absent
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Draw a picture
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print one JSON object with every interval instead of text
    #[arg(long)]
    pub json: bool,
}

/// Above the one and no more than the other.
fn within<const ABOVE: i32, const MOST: i32>(text: &str) -> Result<f64, String> {
    let is_within = |number: &f64| *number > f64::from(ABOVE) && *number <= f64::from(MOST);
    let number: Option<f64> = text.parse().ok().filter(is_within);
    number.ok_or_else(|| format!("it is a number above {ABOVE}, {MOST} at most"))
}
