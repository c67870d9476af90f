// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long something has lasted, and the time of day at which something happened, as a person reads them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp, Zoned};

use crate::kernel::now;

/// "42 s", "7 min", "3 h 05 min", "10 days".
pub fn duration(lasted: Duration) -> String {
    let seconds = lasted.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h {:02} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// The same of a number of seconds that another process has sent.
pub fn duration_s(seconds: f64) -> String {
    duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// The local time of day of a moment on the kernel's clock, and how long ago that was: "14:02:07, 12 s ago". The date stands
/// before it unless it is today's. Of a moment before the machine was last suspended the time of day is too late by that.
pub fn moment(t_ns: u64) -> String {
    let ago = now().saturating_sub(Duration::from_nanos(t_ns));
    let today = Timestamp::now().to_zoned(jiff::tz::TimeZone::system());
    format!("{}, {} ago", time_of_day(&today, ago), duration(ago))
}

fn time_of_day(today: &Zoned, ago: Duration) -> String {
    let ago = SignedDuration::try_from(ago).unwrap_or(SignedDuration::MAX);
    let Ok(at) = today.checked_sub(ago) else {
        return "at an unknown time".to_owned();
    };
    let format = match at.date() == today.date() {
        true => "%H:%M:%S",
        false => "%Y-%m-%d %H:%M:%S",
    };
    at.strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_the_units_of_its_size() {
        let shown = [0, 59, 60, 3_599, 3_600, 7_500, 172_800, 950_400].map(|s| duration(Duration::from_secs(s)));
        assert_eq!(
            shown,
            [
                "0 s",
                "59 s",
                "1 min",
                "59 min",
                "1 h 00 min",
                "2 h 05 min",
                "2 days",
                "11 days"
            ]
        );
    }

    #[test]
    fn the_date_is_shown_unless_it_is_todays() {
        let now: Zoned = "2026-12-01T14:02:19+00:00[UTC]".parse().unwrap();
        assert_eq!(time_of_day(&now, Duration::from_secs(12)), "14:02:07");
        assert_eq!(time_of_day(&now, Duration::from_secs(86_400)), "2026-11-30 14:02:19");
        assert_eq!(time_of_day(&now, Duration::MAX), "at an unknown time");
    }
}
