// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scenarios of stations on one access point, as rows: media, variants, bounds, figures. Input: a row and the user's
//! parameters. Output: its plan. The rows are in `papers` and `sharing`; an experiment that is no steady transfer has a
//! file of its own.

mod app_mix;
mod clear;
mod demand;
mod join_leave;
mod oracle;
pub mod papers;
pub mod sharing;
mod step_rate;

use std::ops::Range;

use anyhow::Result;

use crate::access_point::{self, AccessPoint, Cap, MEDIA, Managed};
use crate::cell::Cell;
use crate::experiment::Run;
use crate::outcome::Outcome;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plans, Plot, Relation, Trace, Variant};
use crate::testbed::probe::transfers::Transfers;
use crate::testbed::{Load, Testbed, Topology};
use crate::traffic::iperf3::{Protocol, Span};

/// A row.
pub struct SharedChannel {
    pub media: Media,
    /// The numbers of stations: on each medium one cell of each number.
    pub stations: fn(&Parameters) -> Result<Vec<usize>>,
    /// A variant each, in each cell; and how it differs from a steady upload of every station.
    pub policies: &'static [NamedCap],
    pub each: fn(&Conditions, Case) -> Case,
    /// Further variants of each cell.
    pub variants: fn(&Conditions) -> Result<Vec<Case>>,
    /// Bounds of each cell, besides those of single variants.
    pub bounds: fn(&Conditions) -> Vec<Check>,
    /// Variants outside the cells, given those of all cells.
    pub besides: fn(&[Conditions], &[Variant]) -> Besides,
    /// Of all cells, and of the names of all variants.
    pub plots: fn(&[Conditions], &[String]) -> Vec<Plot>,
    pub columns: &'static str,
}

pub type Besides = (Vec<Variant>, Vec<Check>);

pub enum Media {
    Only(&'static str),
    /// Unless the user chooses another.
    Usually(&'static str),
    /// Each of these, and variants are named by it; or the one that the user chooses, without a name.
    Each(&'static [&'static str]),
    /// Variants are always named by it.
    Named(&'static [&'static str]),
}

/// Stations on one medium, without variants.
pub struct Conditions<'a> {
    pub parameters: &'a Parameters,
    pub medium: &'static str,
    pub stations: usize,
    pub rtt_ms: u64,
    pub is_first: bool,
    /// Of the names of its variants.
    suffix: String,
}

type Act = dyn Fn(&mut Cell, &Run) -> Result<Outcome>;

/// A variant: each station uploads for as long as the user set, by default.
pub struct Case {
    name: String,
    place: AccessPoint,
    transfers: Transfers,
    loads: Vec<Load>,
    act: Option<(f64, Box<Act>)>,
    /// A multiple of the others' rounds.
    times: f64,
    checks: Vec<Check>,
}

/// The daemons' policy, by the variant's name.
pub type NamedCap = (&'static str, Option<Cap>);
pub const PLAIN: NamedCap = ("plain", None);
pub const BALANCED: NamedCap = ("balanced", Some(Cap::Estimated("balanced")));
pub const DELAY: NamedCap = ("delay", Some(Cap::Estimated("delay")));
pub const THROUGHPUT: NamedCap = ("throughput", Some(Cap::Estimated("throughput")));

/// Parameters of many rows.
pub const MEDIUM: Parameter = Parameter::choice("medium", MEDIA, "instead of the scenario's own");
pub const fn stations(default: u64, least: u64, most: u64, about: &'static str) -> Parameter {
    Parameter::range("stations", default, least, most, about)
}
pub const fn rtt_ms(default: u64) -> Parameter {
    Parameter::range("rtt_ms", default, 2, 2_000, "round trip behind the access point")
}
pub const fn rounds(default: u64) -> Parameter {
    Parameter::range("repeats", default, 1, 100, "rounds; a metric is the mean over them")
}

impl SharedChannel {
    /// Defaults of a row.
    pub const ROW: Self = Self {
        media: Media::Only(access_point::FIXED54),
        stations: |parameters| Ok(vec![parameters.count("stations") as usize]),
        policies: &[],
        each: |_, case| case,
        variants: |_| Ok(Vec::new()),
        bounds: |_| Vec::new(),
        besides: |_, _| (Vec::new(), Vec::new()),
        plots: |_, names| bars(&[Trace::Goodput], names),
        columns: "goodput_mbit spread:goodput_mbit jain retransmits rtt_p50_ms rtt_p99_ms lateness_p99_us",
    };
}

impl Plans for SharedChannel {
    fn at(&self, parameters: &Parameters) -> Result<Plan> {
        let all = self.all(parameters)?;
        let (mut variants, mut checks) = (Vec::new(), Vec::new());
        for conditions in &all {
            let of_policies = conditions.cases(self.policies).into_iter();
            let mut cases: Vec<_> = of_policies.map(|case| (self.each)(conditions, case)).collect();
            cases.extend((self.variants)(conditions)?);
            for case in cases {
                let mut variant = case.variant();
                checks.append(&mut variant.checks);
                variants.push(variant);
            }
            checks.extend((self.bounds)(conditions));
        }
        let (besides, of_besides) = (self.besides)(&all, &variants);
        variants.extend(besides);
        checks.extend(of_besides);
        let names: Vec<_> = variants.iter().map(|variant| variant.name.clone()).collect();
        Ok(Plan {
            plots: (self.plots)(&all, &names),
            variants,
            checks,
            columns: self.columns,
        })
    }
}

impl SharedChannel {
    fn all<'a>(&self, parameters: &'a Parameters) -> Result<Vec<Conditions<'a>>> {
        let cells = (self.stations)(parameters)?;
        let (media, is_named) = match self.media {
            Media::Only(medium) => (vec![medium], false),
            Media::Usually(medium) => (access_point::media(parameters, &[medium]), false),
            Media::Each(own) => (
                access_point::media(parameters, own),
                parameters.choice("medium").is_none(),
            ),
            Media::Named(own) => (access_point::media(parameters, own), true),
        };
        let mut all = Vec::new();
        for medium in media {
            for &stations in &cells {
                let mut suffix = String::new();
                if is_named {
                    suffix += &format!("/{medium}");
                }
                if cells.len() > 1 {
                    suffix += &format!("/{stations}");
                }
                all.push(Conditions {
                    parameters,
                    medium,
                    stations,
                    rtt_ms: parameters.count("rtt_ms"),
                    is_first: all.is_empty(),
                    suffix,
                });
            }
        }
        Ok(all)
    }
}

impl Conditions<'_> {
    /// `plain/fixed54/8`, without parts that the user chose.
    pub fn name(&self, what: &str) -> String {
        format!("{what}{}", self.suffix)
    }

    pub fn names<const N: usize>(&self, what: [&str; N]) -> [String; N] {
        what.map(|what| self.name(what))
    }

    pub fn case(&self, (what, giveway): (&str, Option<Cap>)) -> Case {
        let transfers = Transfers::steady(self.parameters, Protocol::Tcp, self.stations);
        Case {
            name: self.name(what),
            place: AccessPoint::of(self.parameters, self.medium, self.stations, giveway),
            transfers: Transfers {
                per_station: true,
                ..transfers
            },
            loads: Vec::new(),
            act: None,
            times: 1.0,
            checks: Vec::new(),
        }
    }

    /// One of each policy.
    pub fn cases(&self, policies: &[NamedCap]) -> Vec<Case> {
        policies.iter().map(|policy| self.case(*policy)).collect()
    }

    pub fn seconds(&self, name: &str) -> f64 {
        self.parameters.count(name) as f64
    }
}

impl Case {
    pub fn on(mut self, change: impl FnOnce(&mut AccessPoint)) -> Self {
        change(&mut self.place);
        self
    }

    pub fn managed(self, managed: Managed) -> Self {
        self.on(|place| place.managed = managed)
    }

    pub fn transfers(self, change: impl FnOnce(Transfers) -> Transfers) -> Self {
        Self {
            transfers: change(self.transfers),
            ..self
        }
    }

    pub fn each(mut self, change: impl FnMut(&mut Span)) -> Self {
        self.transfers.senders.iter_mut().for_each(change);
        self
    }

    /// These stations together are a point of this name below the variant's.
    pub fn group(mut self, name: &'static str, stations: Range<usize>) -> Self {
        self.transfers.groups.push((name, stations));
        self
    }

    pub fn beside(mut self, load: Option<Load>) -> Self {
        self.loads.extend(load);
        self
    }

    /// A bound on it, by its name.
    pub fn check(mut self, check: impl FnOnce(&str) -> Check) -> Self {
        self.checks.push(check(&self.name));
        self
    }

    /// Its cap is this.
    pub fn holds_cap(self, segments: u64) -> Self {
        let holds = Relation::Exactly(segments as f64);
        self.check(|name| Check::metric(name, "cap_segments", holds).always())
    }

    /// Replaces the transfers.
    pub fn act(self, estimated_s: f64, act: impl Fn(&mut Cell, &Run) -> Result<Outcome> + 'static) -> Self {
        let act = Some((estimated_s, Box::new(act) as Box<Act>));
        Self { act, ..self }
    }

    pub fn variant(self) -> Variant {
        let variant = match self.act {
            Some((estimated_s, act)) => Variant::on(self.place, self.name, estimated_s, act),
            None => {
                let testbed = Testbed {
                    topology: Topology::AccessPoint(self.place),
                    loads: self.loads,
                    warmup_s: 0.0,
                    probes: vec![Box::new(self.transfers)],
                };
                testbed.variant(self.name, None)
            }
        };
        Variant {
            times: self.times,
            checks: self.checks,
            ..variant
        }
    }
}

/// Bars of each station's goodput, and these over time.
pub fn bars(traces: &[Trace], variants: &[String]) -> Vec<Plot> {
    let mut plots = vec![Plot::Stations {
        file: "goodput-stations".into(),
        title: "Goodput of each station".into(),
        variants: variants.to_vec(),
    }];
    plots.extend(traces.iter().map(|of| Plot::timeline(*of, variants)));
    plots
}
