// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the numbers with the scenario's bounds. Input: the checks of a plan and the measured metrics. Output: a
//! verdict for each check that belongs to this run. A missing number fails its check.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::outcome::Metrics;
use crate::scenario::{At, Check, CheckKind, Quantity, Relation};

#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct Verdict {
    pub name: String,
    pub kind: CheckKind,
    pub ok: bool,
    pub value: Option<f64>,
    pub bound: String,
}

type Points = BTreeMap<String, Metrics>;

/// Of the medium: beyond this lateness the emulated channel no longer follows the model.
const LATENESS_P99_US: f64 = 1_000.0;

/// The limits of the 95% interval, in standard errors from the mean.
const NORMAL_95: f64 = 1.96;

/// Share of time that a daemon may wait for a processor: beyond it the daemon reacts to old data, which does not happen
/// on a machine of its own.
const DAEMON_WAITED_PERCENT: f64 = 25.0;

/// Bounds for the machine, in every full-length run on an access point: it must be fast enough.
pub fn of_machine(points: &Points) -> Vec<Check> {
    let bounds = [
        ("lateness_p99_us", LATENESS_P99_US),
        ("daemon_waited_percent", DAEMON_WAITED_PERCENT),
    ];
    let of = |(metric, most): (&'static str, f64)| {
        let shared_channel = points.iter().filter(move |(_, metrics)| metrics.contains_key(metric));
        shared_channel.map(move |(point, _)| Check::metric(point, metric, Relation::AtMost(most)))
    };
    bounds.into_iter().flat_map(of).collect()
}

/// The same for a run whose bounds are not judged, as text: each point for which the machine was too slow.
pub fn too_busy(points: &Points) -> Vec<String> {
    let verdicts = of_machine(points).into_iter().map(|check| verdict(&check, points));
    let missed = verdicts.filter(|verdict| !verdict.ok);
    let told = missed.filter_map(|Verdict { name, value, bound, .. }| {
        Some(format!(
            "{name} was {:.0} (want {bound}): this machine was too busy, and the numbers are not those of the channel alone",
            value?
        ))
    });
    told.collect()
}

/// Judges the checks that belong to this run: `at_defaults` says whether its parameters are the
/// stated ones, `is_selected` whether a point was asked for at all.
pub fn judge(checks: &[Check], points: &Points, at_defaults: bool, is_selected: impl Fn(&str) -> bool) -> Vec<Verdict> {
    let belongs =
        |check: &&Check| (at_defaults || check.at == At::Anything) && check.of.variants().into_iter().all(&is_selected);
    checks
        .iter()
        .filter(belongs)
        .map(|check| verdict(check, points))
        .collect()
}

fn verdict(check: &Check, points: &Points) -> Verdict {
    let value = check.of.value(points).filter(|value| value.is_finite());
    Verdict {
        name: check.name.clone(),
        kind: check.kind,
        ok: value.is_some_and(|value| check.holds.for_value(value)),
        value,
        bound: check.holds.to_string(),
    }
}

impl Quantity {
    pub fn variants(&self) -> Vec<&str> {
        match self {
            Quantity::Metric { variant, .. } => vec![variant],
            Quantity::Ratio { variant, over, .. }
            | Quantity::RatioAtLeast { variant, over, .. }
            | Quantity::Difference { variant, over, .. } => vec![variant, over],
            Quantity::OfAllowed { variant, most, .. } => {
                let others = most.iter().map(|allowance| allowance.of.as_str());
                std::iter::once(variant.as_str()).chain(others).collect()
            }
            Quantity::Pooled { variants, .. } => variants.iter().map(String::as_str).collect(),
        }
    }

    fn value(&self, points: &Points) -> Option<f64> {
        let get = |variant: &str, metric: &str| points.get(variant)?.get(metric).copied();
        match self {
            Quantity::Metric { variant, metric } => get(variant, metric),
            Quantity::Ratio { variant, over, metric } => Some(get(variant, metric)? / get(over, metric)?),
            Quantity::RatioAtLeast {
                variant,
                over,
                metric,
                error,
            } => {
                let of = |name: &str| Some((get(name, metric)?, get(name, error)?));
                let ((ours, our_error), (theirs, their_error)) = (of(variant)?, of(over)?);
                let part = (our_error / ours).hypot(their_error / theirs);
                Some(ours / theirs * (1.0 - NORMAL_95 * part))
            }
            Quantity::Difference { variant, over, metric } => Some(get(variant, metric)? - get(over, metric)?),
            Quantity::OfAllowed { variant, metric, most } => {
                let allowed = most.iter().map(|a| Some(a.part * get(&a.of, a.metric)?));
                let allowed: Option<Vec<f64>> = allowed.collect();
                let measured = get(variant, metric)?;
                // Zero of an allowance of zero is fine.
                let ratio = measured / allowed?.into_iter().fold(0.0, f64::max);
                Some(if measured == 0.0 { 0.0 } else { ratio })
            }
            Quantity::Pooled { variants, metric, over } => {
                let sum = |metric| variants.iter().map(|variant| get(variant, metric)).sum();
                let (part, whole): (Option<f64>, Option<f64>) = (sum(metric), sum(over));
                Some(part? / whole?)
            }
        }
    }
}

impl Relation {
    fn for_value(&self, value: f64) -> bool {
        match *self {
            Relation::Exactly(wanted) => value == wanted,
            Relation::Within { of, tolerance } => (value - of).abs() <= tolerance,
            Relation::Between(least, most) => (least..=most).contains(&value),
            Relation::AtLeast(least) => value >= least,
            Relation::AtMost(most) => value <= most,
            Relation::Below(limit) => value < limit,
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Relation::Exactly(wanted) => write!(to, "= {wanted}"),
            Relation::Within { of, tolerance } => write!(to, "{of} ± {tolerance}"),
            Relation::Between(least, most) => write!(to, "{least} to {most}"),
            Relation::AtLeast(least) => write!(to, ">= {least}"),
            Relation::AtMost(most) => write!(to, "<= {most}"),
            Relation::Below(limit) => write!(to, "< {limit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(values: &[(&str, &str, f64)]) -> Points {
        let mut points = Points::new();
        for (point, metric, value) in values {
            points
                .entry((*point).into())
                .or_default()
                .insert((*metric).into(), *value);
        }
        points
    }

    fn check(of: Quantity, holds: Relation, at: At) -> Check {
        Check {
            name: "it".into(),
            kind: CheckKind::Bound,
            of,
            holds,
            at,
        }
    }

    fn metric(holds: Relation, at: At) -> Check {
        let of = Quantity::Metric {
            variant: "udp/2".into(),
            metric: "goodput_mbit",
        };
        check(of, holds, at)
    }

    #[test]
    fn busy_machine_is_reported_at_any_settings() {
        let points = points(&[
            ("plain", "lateness_p99_us", 1_500.0),
            ("plain", "daemon_waited_percent", 24.0),
            ("balanced", "lateness_p99_us", 90.0),
        ]);
        let told = too_busy(&points);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("plain lateness_p99_us was 1500 (want "), "{told:?}");
    }

    #[test]
    fn a_bound_holds_at_its_edges_and_not_beyond() {
        let within = Relation::Within {
            of: 25.0,
            tolerance: 0.5,
        };
        assert!(within.for_value(25.5) && !within.for_value(25.51));
        assert!(Relation::Between(20.0, 22.5).for_value(20.0));
        assert!(!Relation::Between(20.0, 22.5).for_value(19.9));
        assert!(Relation::AtMost(5.0).for_value(5.0) && !Relation::Below(5.0).for_value(5.0));
        assert!(!Relation::AtLeast(1.2).for_value(f64::NAN));
        assert!(!Relation::Exactly(43.0).for_value(43.5));
    }

    #[test]
    fn unmeasured_metric_fails_its_check() {
        let verdicts = judge(
            &[metric(Relation::AtMost(5.0), At::Anything)],
            &points(&[]),
            true,
            |_| true,
        );
        assert_eq!((verdicts[0].ok, verdicts[0].value), (false, None));
    }

    #[test]
    fn a_ratio_without_its_denominator_has_failed() {
        let ratio = || Quantity::Ratio {
            variant: "fixed-cap".into(),
            over: "plain".into(),
            metric: "goodput_mbit",
        };
        let judged = |values: &[_]| {
            let check = check(ratio(), Relation::AtLeast(1.2), At::Anything);
            judge(&[check], &points(values), true, |_| true).remove(0)
        };
        let fixed = ("fixed-cap", "goodput_mbit", 15.0);
        assert!(judged(&[fixed, ("plain", "goodput_mbit", 11.0)]).ok);
        assert!(!judged(&[fixed]).ok);
        assert_eq!(judged(&[fixed, ("plain", "goodput_mbit", 0.0)]).value, None);
    }

    #[test]
    fn ratio_bound_widens_with_spread_between_rounds() {
        let of = || Quantity::RatioAtLeast {
            variant: "ours".into(),
            over: "plain".into(),
            metric: "goodput_mbit",
            error: "goodput_mbit_se",
        };
        let limit = |error| {
            let values = [("ours", 2.0, error), ("plain", 2.0, 0.0)];
            let values = values.iter().flat_map(|(point, mean, error)| {
                [(*point, "goodput_mbit", *mean), (*point, "goodput_mbit_se", *error)]
            });
            of().value(&points(&values.collect::<Vec<_>>())).unwrap()
        };
        assert_eq!(limit(0.0), 1.0);
        assert!((limit(0.1) - 0.902).abs() < 1e-9);
    }

    #[test]
    fn pooled_rates_sum_before_they_divide() {
        let of = Quantity::Pooled {
            variants: vec!["a".into(), "b".into()],
            metric: "false_expiries",
            over: "observed_h",
        };
        let measured = points(&[
            ("a", "false_expiries", 1.0),
            ("a", "observed_h", 1.5),
            ("b", "false_expiries", 0.0),
            ("b", "observed_h", 0.5),
        ]);
        let verdicts = judge(
            &[check(of, Relation::Below(1.0), At::Anything)],
            &measured,
            true,
            |_| true,
        );
        assert_eq!((verdicts[0].ok, verdicts[0].value), (true, Some(0.5)));
    }

    #[test]
    fn a_bound_belongs_to_its_parameters_and_to_the_variants_that_run() {
        let checks = [
            metric(Relation::AtMost(5.0), At::Defaults),
            metric(Relation::AtMost(5.0), At::Anything),
        ];
        assert_eq!(judge(&checks, &points(&[]), true, |_| true).len(), 2);
        assert_eq!(judge(&checks, &points(&[]), false, |_| true).len(), 1);
        assert_eq!(judge(&checks, &points(&[]), true, |name| name != "udp/2").len(), 0);
    }
}
