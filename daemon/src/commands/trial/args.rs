// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user can ask of `giveway try`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::commands::args::duration;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

#[derive(Args)]
pub struct TryArgs {
    /// Fill the link to and from `giveway try --serve` there; else this machine's own traffic is what is measured
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub peer: Option<SocketAddr>,
    /// Be the peer of another machine's test, until Ctrl-C: listen on this address, and take and send what fills the link.
    /// Whoever reaches it may do so
    #[arg(long, value_name = "ADDRESS:PORT", exclusive = true)]
    pub serve: Option<SocketAddr>,
    /// The transfers say that they are background (DSCP LE), with giveway and without it
    #[arg(long, requires = "peer")]
    pub background: bool,
    /// Transfers to the peer, and as many from it
    #[arg(long, value_name = "NUMBER", default_value_t = 2, requires = "peer", value_parser = clap::value_parser!(u16).range(1..=16))]
    pub streams: u16,
    /// Messages to the peer that are answered later than this count as late
    #[arg(long, value_name = "TIME", default_value = "100ms", requires = "peer", value_parser = duration("ms", MS..=10 * S))]
    pub deadline: Duration,
    /// How long is measured each time
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration("s", MS..=100 * S))]
    pub interval: Duration,
    /// How long is not, after each change
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = duration("s", MS..=30 * S))]
    pub settle: Duration,
    /// The change that is to be found with 95%, if it is there
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = percent)]
    pub effect: f64,
    /// At most, the dry run included
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = duration("m", S..=600_000 * S))]
    pub max_time: Duration,
    /// So many pairs, without a dry run that sizes the test
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

impl TryArgs {
    /// Of each, with what is not measured.
    pub fn interval_s(&self) -> f64 {
        (self.interval + self.settle).as_secs_f64()
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let is_within = |number: &f64| *number > 0.0 && *number <= 1000.0;
    let number: Option<f64> = text.parse().ok().filter(is_within);
    number.ok_or_else(|| "it is a number of percent above 0, 1000 at most".to_owned())
}
