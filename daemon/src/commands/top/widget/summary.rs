// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is active, in a few lines above everything else, and whether the daemon answers.

use giveway_engine::status::Status;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::line;
use crate::commands::clock::{duration, duration_s};
use crate::commands::counted;
use crate::commands::status::{policy_line, priority_line, queue_lines};
use crate::commands::top::model::Model;
use crate::commands::top::text::told_bits_per_s;
use crate::commands::top::theme::Theme;

const TREND_COLUMNS: usize = 16;

pub fn draw(model: &Model, theme: &Theme, area: Rect, buffer: &mut Buffer) {
    let mut lines = vec![(title(model), theme.title())];
    if let Some(status) = &model.latest {
        lines.push((traffic(model, status, theme), Style::new()));
        lines.push((format!("caps   {}", policy_line(&status.network)), Style::new()));
        let queues = queue_lines(&status.network).into_iter();
        lines.extend(queues.map(|queue| (format!("queue  {queue}"), Style::new())).take(1));
    }
    for (y, (text, style)) in (area.y..area.bottom()).zip(lines) {
        line(&text, style, theme, Rect::new(area.x, y, area.width, 1), buffer);
    }
    state(model, theme, area, buffer);
}

fn title(model: &Model) -> String {
    let Some(status) = &model.latest else {
        return "giveway".to_owned();
    };
    let network = &status.network;
    let interface = network
        .interface
        .as_ref()
        .map_or("no interface", |interface| &interface.name);
    let by_hand = match network.by_hand.len() {
        0 => String::new(),
        set => format!("; {set} set by hand"),
    };
    let dry = if network.policy.dry_run { ", dry run" } else { "" };
    format!(
        "giveway {} on {interface}, up {}{dry}; {}{by_hand}",
        status.daemon.version,
        duration_s(status.daemon.uptime_s),
        counted(network.peers.len(), "peer"),
    )
}

fn traffic(model: &Model, status: &Status, theme: &Theme) -> String {
    let (out, arrived) = model.history.totals();
    let senders = status.network.flows.iter().filter(|view| view.sender).count();
    let warnings = match status.daemon.warnings.len() {
        0 => String::new(),
        parts => format!("; {} (d)", counted(parts, "warning")),
    };
    format!(
        "TCP    up {} {} down {}; {}, {}{warnings}; priority: {}",
        told_bits_per_s(out),
        theme.sparkline(&model.history.out, TREND_COLUMNS).trim_start(),
        told_bits_per_s(arrived),
        counted(status.network.flows.len(), "socket"),
        counted(senders, "sender"),
        priority_line(status.priority.as_ref()),
    )
}

/// At the right of the first line; a trouble takes the second line in whole.
fn state(model: &Model, theme: &Theme, area: Rect, buffer: &mut Buffer) {
    if area.height == 0 {
        return;
    }
    let said = match (&model.trouble, model.is_paused) {
        (Some(_), _) => " NO ANSWER ",
        (None, true) => " PAUSED ",
        (None, false) => return,
    };
    let width = (said.len() as u16).min(area.width);
    let place = Rect::new(area.right() - width, area.y, width, 1);
    line(said, theme.alarm(), theme, place, buffer);
    if let (Some(trouble), true) = (&model.trouble, area.height > 1) {
        let ago = duration(model.now.saturating_sub(trouble.since));
        let what = if model.latest.is_some() {
            "what is below is old"
        } else {
            "asking again each second"
        };
        let text = format!("for {ago}: {}; {what}", trouble.reason);
        let place = Rect::new(area.x, area.y + 1, area.width, 1);
        buffer.set_style(place, theme.alarm());
        line(
            &format!("{text:<width$}", width = usize::from(area.width)),
            theme.alarm(),
            theme,
            place,
            buffer,
        );
    }
}
