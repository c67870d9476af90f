// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arguments that several commands have.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use giveway_engine::config::SchedPolicyName;
use giveway_engine::model::{Class, Rates};
use giveway_engine::{rate, time};

/// What the exit codes mean to most commands.
pub const ASKS: &str = "0 done; 1 failed, as without a daemon or the right to ask it; 2 usage";
pub const REMOVES: &str = "0 done; 1 failed, or nothing to remove; 2 usage";

#[derive(Args)]
pub struct Json {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// The limits of a command, or of what runs already: all of it together has each.
#[derive(Args)]
pub struct RateArgs {
    /// Receive at most so much: 2.5mbit, 800kbit, 1gbit
    #[arg(long, value_name = "RATE", value_parser = rate::parse)]
    pub down: Option<u64>,
    /// Send at most so much
    #[arg(long, value_name = "RATE", value_parser = rate::parse)]
    pub up: Option<u64>,
    /// The same for both, each direction for itself; `--down` and `--up` override it
    #[arg(long, value_name = "RATE", value_parser = rate::parse)]
    pub rate_limit: Option<u64>,
}

impl RateArgs {
    pub fn rates(&self) -> Rates {
        Rates {
            up: self.up.or(self.rate_limit),
            down: self.down.or(self.rate_limit),
        }
    }
}

/// What `--help` ends with.
pub fn after(codes: &str, examples: &[&str]) -> String {
    let examples: String = examples.iter().map(|example| format!("  {example}\n")).collect();
    format!("Examples:\n{examples}\nExit codes: {codes}.")
}

/// A time with its unit. `likely`: the unit that is probably meant where none is given.
pub fn duration(
    likely: &'static str,
    bounds: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync {
    move |text| time::parse(text, likely, &bounds)
}

pub fn classes() -> impl TypedValueParser<Value = Class> {
    PossibleValuesParser::new(Class::ALL.map(Class::name)).map(|name| {
        let named = |class: &Class| class.name() == name;
        Class::ALL.into_iter().find(named).unwrap_or_default()
    })
}

/// The scheduling policies by their names in the configuration.
pub fn policies(names: &'static [&'static str]) -> impl TypedValueParser<Value = SchedPolicyName> {
    PossibleValuesParser::new(names).map(|name| match name.as_str() {
        "rr" => SchedPolicyName::Rr,
        "deadline" => SchedPolicyName::Deadline,
        _ => SchedPolicyName::Fifo,
    })
}
