// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A scenario: its parameters, and a plan of variants, their bounds, and their figures. `runner` runs the plan; nothing
//! here runs anything.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::access_point::AccessPoint;
use crate::cell::Cell;
use crate::experiment::Run;
use crate::guest::Guest;
use crate::outcome::Outcome;
pub use crate::outcome::Trace;
use crate::parameters::{Parameter, ParameterKind, Parameters};

pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    /// Defaults of the parameters that every scenario has.
    pub seconds: u64,
    pub warmup_s: u64,
    /// Parameters of its own.
    pub parameters: &'static [Parameter],
    pub plan: &'static dyn Plans,
}

/// The source of the plan: a row of a table, or a function for a scenario that is none.
pub trait Plans: Sync {
    fn at(&self, parameters: &Parameters) -> Result<Plan>;
}

impl<F: Fn(&Parameters) -> Result<Plan> + Sync> Plans for F {
    fn at(&self, parameters: &Parameters) -> Result<Plan> {
        self(parameters)
    }
}

/// A scenario at given parameters.
pub struct Plan {
    pub variants: Vec<Variant>,
    pub checks: Vec<Check>,
    pub plots: Vec<Plot>,
    /// Metrics shown in the table for people, in this order, with spaces between.
    pub columns: &'static str,
}

type Act = dyn Fn(&Run) -> Result<Outcome>;

pub struct Variant {
    pub name: String,
    /// The guest that it needs; None: this machine.
    pub guest: Option<Guest>,
    /// Roughly how long one run takes, for the progress line and for a guest's limit.
    pub estimated_s: f64,
    /// A multiple of the others' rounds.
    pub times: f64,
    /// Programs that the guest has for it besides the lab's own.
    pub programs: &'static [&'static str],
    /// The access point that it runs on.
    pub access_point: Option<AccessPoint>,
    /// One run, in a testbed of its own that is removed afterwards. It judges nothing.
    pub run: Box<Act>,
    /// Its bounds, until they are the plan's.
    pub checks: Vec<Check>,
}

/// A number that the project promises (`Bound`) or strives for (`Goal`).
pub struct Check {
    pub name: String,
    pub kind: CheckKind,
    pub of: Quantity,
    pub holds: Relation,
    pub at: At,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckKind {
    Bound,
    Goal,
}

pub enum Quantity {
    Metric {
        variant: String,
        metric: &'static str,
    },
    /// The metric of one variant over that of another.
    Ratio {
        variant: String,
        over: String,
        metric: &'static str,
    },
    /// The lower 95% confidence limit of the ratio of two means, by their standard errors.
    RatioAtLeast {
        variant: String,
        over: String,
        metric: &'static str,
        error: &'static str,
    },
    /// The metric of one variant less that of another.
    Difference {
        variant: String,
        over: String,
        metric: &'static str,
    },
    /// The metric over the largest of several allowances.
    OfAllowed {
        variant: String,
        metric: &'static str,
        most: Vec<Allowance>,
    },
    /// Sum of one metric over the sum of another, over several variants.
    Pooled {
        variants: Vec<String>,
        metric: &'static str,
        over: &'static str,
    },
}

/// This part of a variant's metric.
pub struct Allowance {
    pub part: f64,
    pub of: String,
    pub metric: &'static str,
}

#[derive(Clone, Copy)]
pub enum Relation {
    Exactly(f64),
    Within { of: f64, tolerance: f64 },
    Between(f64, f64),
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

/// The parameters that a bound holds for.
#[derive(Clone, Copy, PartialEq)]
pub enum At {
    /// Any.
    Anything,
    /// The scenario's own stations, RTT and events, and at least its length.
    Defaults,
}

pub enum Plot {
    /// A metric over the number at the end of the variants' names; `levels` are drawn across.
    Sweep {
        file: String,
        title: String,
        x: &'static str,
        /// The metric, and the label of its axis.
        y: (&'static str, &'static str),
        lines: Vec<(&'static str, String)>,
        levels: Vec<(&'static str, &'static str)>,
    },
    /// Each station's goodput, one group of bars a variant.
    Stations {
        file: String,
        title: String,
        variants: Vec<String>,
    },
    /// Something of every station over time, one chart a variant.
    Timeline { of: Trace, variants: Vec<String> },
    /// How many wake-ups were so late or later, on axes in powers of ten.
    Tail {
        file: String,
        title: String,
        points: Vec<String>,
    },
    /// The share of events that were over within the time on the axis; `axes` are named by their metric.
    Distribution {
        file: String,
        title: String,
        axes: (&'static str, &'static str),
        points: Vec<String>,
    },
}

impl Scenario {
    pub fn all_parameters(&self) -> Vec<Parameter> {
        let mut parameters = vec![
            Parameter::range("seconds", self.seconds, 1, 86_400, "measured time of a variant"),
            Parameter::range(
                "warmup_s",
                self.warmup_s,
                0,
                3_600,
                "time before it that is not measured",
            ),
            Parameter::range("repeats", 1, 1, 100, "rounds; a metric is the mean over them"),
            Parameter::range(
                "seed",
                1,
                0,
                u32::MAX.into(),
                "of the medium and of every random choice",
            ),
            Parameter::list("variants", "", "only these, or those below them"),
        ];
        // A scenario may override the default of a common parameter.
        parameters.retain(|parameter| self.parameters.iter().all(|own| own.name != parameter.name));
        parameters.extend(self.parameters);
        parameters
    }

    /// Whether the scenario's bounds were stated for this run.
    pub fn is_at_defaults(&self, parameters: &Parameters) -> bool {
        let own = |p: &Parameter| match (p.name, p.kind) {
            ("seconds", ParameterKind::Count { default, .. }) => parameters.count("seconds") >= default,
            ("warmup_s", ParameterKind::Count { default, .. }) => parameters.count("warmup_s") >= default,
            ("seed" | "repeats" | "medium" | "variants", _) => true,
            (name, ParameterKind::Count { default, .. }) => parameters.count(name) == default,
            _ => true,
        };
        self.all_parameters().iter().all(own)
    }
}

impl Check {
    /// A bound on one metric of one variant or point, named after both.
    pub fn metric(variant: &str, metric: &'static str, holds: Relation) -> Self {
        let of = Quantity::Metric {
            variant: variant.into(),
            metric,
        };
        Self::of(format!("{variant} {metric}"), of, holds)
    }

    /// A bound at the scenario's defaults.
    pub fn of(name: String, of: Quantity, holds: Relation) -> Self {
        Self {
            name,
            kind: CheckKind::Bound,
            of,
            holds,
            at: At::Defaults,
        }
    }

    pub fn goal(self) -> Self {
        let kind = CheckKind::Goal;
        Self { kind, ..self }
    }

    /// Holds at any parameters.
    pub fn always(self) -> Self {
        let at = At::Anything;
        Self { at, ..self }
    }

    /// A bound on the metric of one variant over that of another.
    pub fn ratio(name: String, variant: &str, over: &str, metric: &'static str, holds: Relation) -> Self {
        let (variant, over) = (variant.into(), over.into());
        Self::of(name, Quantity::Ratio { variant, over, metric }, holds)
    }

    /// A bound on the metric of one variant over that of another, named after all three.
    pub fn over(variant: &str, over: &str, metric: &'static str, holds: Relation) -> Self {
        Self::ratio(format!("{variant} over {over}, {metric}"), variant, over, metric, holds)
    }

    /// A bound on the metric of one variant less that of another.
    pub fn difference(name: String, variant: &str, over: &str, metric: &'static str, holds: Relation) -> Self {
        let (variant, over) = (variant.into(), over.into());
        Self::of(name, Quantity::Difference { variant, over, metric }, holds)
    }
}

impl Plot {
    pub fn timeline(of: Trace, variants: &[String]) -> Self {
        let variants = variants.to_vec();
        Self::Timeline { of, variants }
    }

    /// Without levels.
    pub fn sweep(
        file: &str,
        title: &str,
        x: &'static str,
        y: (&'static str, &'static str),
        lines: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Self {
        Self::Sweep {
            file: file.into(),
            title: title.into(),
            x,
            y,
            lines: lines.into_iter().collect(),
            levels: Vec::new(),
        }
    }

    pub fn distribution(
        file: &str,
        title: &str,
        axes: (&'static str, &'static str),
        points: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self::Distribution {
            file: file.into(),
            title: title.into(),
            axes,
            points: points.into_iter().map(Into::into).collect(),
        }
    }
}

impl Variant {
    pub fn new(
        name: impl Into<String>,
        guest: Option<Guest>,
        estimated_s: f64,
        run: impl Fn(&Run) -> Result<Outcome> + 'static,
    ) -> Self {
        const RAISE_AND_REPORT_S: f64 = 6.0;
        Self {
            name: name.into(),
            guest,
            estimated_s: RAISE_AND_REPORT_S + estimated_s,
            times: 1.0,
            programs: &[],
            access_point: None,
            run: Box::new(run),
            checks: Vec::new(),
        }
    }

    pub fn expect(mut self, checks: impl IntoIterator<Item = Check>) -> Self {
        self.checks.extend(checks);
        self
    }

    /// One if the others have one: side by side, each lab is asked for a single round.
    pub fn rounds(&self, of_others: u64) -> u64 {
        if of_others == 1 {
            1
        } else {
            (of_others as f64 * self.times) as u64
        }
    }

    /// With these programs in its guest.
    pub fn with(self, programs: &'static [&'static str]) -> Self {
        Self { programs, ..self }
    }

    /// On a running access point.
    pub fn on(
        access_point: AccessPoint,
        name: impl Into<String>,
        estimated_s: f64,
        act: impl Fn(&mut Cell, &Run) -> Result<Outcome> + 'static,
    ) -> Self {
        let run = move |run: &Run| Cell::with(&access_point, run, |cell| act(cell, run));
        Self {
            access_point: Some(access_point),
            ..Self::new(name, None, estimated_s, run)
        }
    }
}
