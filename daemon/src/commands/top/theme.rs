// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a terminal can show. Colours only underline what words say as well, and each brings its own background, so that it is read
//! on a light terminal as on a dark one.

use giveway_engine::model::Class;
use std::collections::VecDeque;
use std::env;

use ratatui::style::{Color, Modifier, Style};

/// Levels of a sparkline, for terminals with Unicode and without.
const BLOCKS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const LETTERS: [&str; 9] = [" ", ".", ".", ":", "-", "=", "+", "*", "#"];

#[derive(Clone, Copy, Debug)]
pub struct Theme {
    pub colour: bool,
    pub unicode: bool,
}

impl Theme {
    /// By NO_COLOR (no-color.org) and the locale.
    pub fn of_environment() -> Self {
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .into_iter()
            .find_map(set)
            .unwrap_or_default();
        let locale = locale.to_ascii_lowercase();
        Self {
            colour: set("NO_COLOR").is_none(),
            unicode: locale.contains("utf-8") || locale.contains("utf8"),
        }
    }

    fn coloured(self, foreground: Color, background: Color) -> Style {
        match self.colour {
            true => Style::new().fg(foreground).bg(background),
            false => Style::new(),
        }
    }

    pub fn class(self, class: Class) -> Style {
        match class {
            Class::Realtime => self.coloured(Color::White, Color::Magenta),
            Class::Stream => self.coloured(Color::Black, Color::Cyan),
            Class::Standard => Style::new(),
            Class::Bulk => self.coloured(Color::White, Color::Blue),
            Class::Background => self.coloured(Color::Black, Color::Gray),
        }
    }

    /// Something does not work.
    pub fn alarm(self) -> Style {
        match self.colour {
            true => self.coloured(Color::White, Color::Red).add_modifier(Modifier::BOLD),
            false => Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED),
        }
    }

    pub fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Of a table.
    pub fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)
    }

    pub fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub fn ellipsis(self) -> &'static str {
        if self.unicode { "…" } else { "~" }
    }

    pub fn dash(self) -> &'static str {
        if self.unicode { "─" } else { "-" }
    }

    /// The latest samples, one a column, the newest at the right; relative to the largest of them.
    pub fn sparkline(self, samples: &VecDeque<f32>, columns: usize) -> String {
        let shown = samples.iter().skip(samples.len().saturating_sub(columns));
        let largest = shown.clone().fold(0.0_f32, |a, b| a.max(*b));
        let levels = if self.unicode { BLOCKS } else { LETTERS };
        let level = |sample: &f32| match largest > 0.0 && *sample > 0.0 {
            true => ((sample / largest * 8.0).ceil() as usize).clamp(1, 8),
            false => 0,
        };
        let bars: String = shown.map(|sample| levels[level(sample)]).collect();
        let missing = columns.saturating_sub(samples.len());
        " ".repeat(missing) + &bars
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_ends_with_the_newest_and_never_hides_what_is_not_zero() {
        let samples = VecDeque::from([9.0, 0.0, 0.001, 4.0, 8.0]);
        let unicode = Theme {
            colour: false,
            unicode: true,
        };
        assert_eq!(unicode.sparkline(&samples, 4), " ▁▄█");
        assert_eq!(unicode.sparkline(&samples, 7).chars().count(), 7);
        let ascii = Theme {
            colour: false,
            unicode: false,
        };
        assert_eq!(ascii.sparkline(&samples, 4), " .-#");
        assert_eq!(ascii.sparkline(&VecDeque::new(), 3), "   ");
    }

    #[test]
    fn without_colour_nothing_has_one() {
        let theme = Theme {
            colour: false,
            unicode: true,
        };
        for style in Class::ALL
            .map(|class| theme.class(class))
            .into_iter()
            .chain([theme.alarm(), theme.chosen()])
        {
            assert_eq!((style.fg, style.bg), (None, None));
        }
    }
}
