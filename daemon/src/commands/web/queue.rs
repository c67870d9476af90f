// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What page and figures both say of a queue.

use giveway_engine::queue::QueueView;

pub fn rate(queue: &QueueView) -> Option<u64> {
    queue.installed.as_ref()?.tuning.rate_bytes_per_s
}

/// Of all that waits in the queue, to its end. None without a rate.
pub fn delay_s(queue: &QueueView) -> Option<f64> {
    let rate = rate(queue).filter(|rate| *rate > 0)?;
    let bands = queue.counters.as_ref()?.bands.in_order();
    let waiting: u64 = bands
        .iter()
        .filter_map(|(_, band)| Some(band.served?.backlog_bytes))
        .sum();
    Some(waiting as f64 / rate as f64)
}
