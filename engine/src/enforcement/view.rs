// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The link that enforces the limits and the order of one flow, or why none does; for `status` and `why`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Asked, Enforcement, Overview, PASSES_BY};
use crate::class::Verdict;
use crate::downlink::Way;
use crate::model::LimitNumbers;
use crate::rate::mbit;
use crate::sockets::flows::Tracked;

/// A flow's limits, in each direction.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, JsonSchema)]
pub struct LimitsView {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload: Option<LimitView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<LimitView>,
}

/// One of them.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct LimitView {
    /// In total over all flows that share it.
    pub mbit: f64,
    #[serde(flatten)]
    pub enforcement: Enforcement,
}

impl LimitsView {
    /// Why they are not enforced.
    pub fn reasons(self) -> impl Iterator<Item = String> {
        let ways = [self.upload, self.download].into_iter().flatten();
        ways.filter_map(|way| way.enforcement.reason)
    }

    /// For people.
    pub fn shown(&self) -> impl Iterator<Item = String> {
        let upload = self.upload.as_ref().map(|limit| limit.shown("upload"));
        let download = self.download.as_ref().map(|limit| limit.shown("download"));
        upload.into_iter().chain(download)
    }
}

impl LimitView {
    fn shown(&self, direction: &str) -> String {
        let mbit = self.mbit;
        match &self.enforcement {
            Enforcement {
                enforced_by: Some(link),
                ..
            } => format!("its {direction} limit of {mbit} Mbit/s is enforced by {link}"),
            Enforcement { reason, .. } => format!(
                "its {direction} limit of {mbit} Mbit/s is not enforced: {}",
                reason.as_deref().unwrap_or("reason unknown")
            ),
        }
    }
}

/// How a flow's downloads yield.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, JsonSchema)]
pub struct DownloadOrder {
    pub interface: String,
    /// The most for all bulk and background there, while there is no other traffic.
    pub most_mbit: f64,
    pub reason: String,
    /// Its downloads bypass the queue of its class.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passes_by: bool,
    /// The rate exceeds the link's, so no queue forms here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rate_too_high: bool,
}

impl DownloadOrder {
    pub fn shown(&self) -> String {
        let Self {
            interface,
            most_mbit,
            reason,
            passes_by,
            rate_too_high,
        } = self;
        if *passes_by {
            return format!("its downloads do not yield: {PASSES_BY}");
        }
        if *rate_too_high {
            return format!(
                "its downloads on {interface} are not ordered: packets queue before the link, which carries less than {reason}"
            );
        }
        format!("its downloads on {interface} yield to all classes above bulk, within {most_mbit} Mbit/s: {reason}")
    }
}

impl Overview<'_> {
    pub fn limits_view(&self, tracked: &Tracked) -> Option<LimitsView> {
        let limits = tracked.judged.verdict.limits;
        let rates = |number| self.classes.limit(number).map(|limit| limit.rates);
        let view = |rate: u64, asked, way: Way| LimitView {
            mbit: mbit(rate),
            enforcement: self.enforcement(asked, tracked, way),
        };
        let upload = limits.up.and_then(rates).and_then(|rates| rates.up);
        let download = limits.down.and_then(rates).and_then(|rates| rates.down);
        (upload.is_some() || download.is_some()).then(|| LimitsView {
            upload: limits
                .up
                .zip(upload)
                .map(|(number, rate)| view(rate, Asked::Upload(number), Way::Sent)),
            download: limits
                .down
                .zip(download)
                .map(|(number, rate)| view(rate, Asked::Download(number), Way::Received)),
        })
    }

    /// For a requested class that is an order of packets.
    pub fn order_view(&self, tracked: &Tracked) -> Option<Enforcement> {
        let verdict = Verdict {
            limits: LimitNumbers::NONE,
            ..tracked.judged.verdict.clone()
        };
        Asked::of(&verdict).map(|asked| self.enforcement(asked, tracked, Way::Sent))
    }

    /// For bulk and background.
    pub fn download_order(&self, tracked: &Tracked) -> Option<DownloadOrder> {
        let (interface, order) = self.ordered_by(tracked)?;
        let rate = order.rate();
        Some(DownloadOrder {
            interface: interface.to_owned(),
            most_mbit: mbit(rate.most()),
            reason: rate.shown(),
            passes_by: tracked.trace.passes_by(),
            rate_too_high: order.is_too_high(),
        })
    }
}
