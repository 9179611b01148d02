// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which moment does somebody mean?

use crate::error::Error;
use debox_command::duration;
use debox_output::Utc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}

/// "2026-11-27", with "T10:00" or " 10:00:30" and "Z" behind it if need be: always UTC.
fn moment(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "0:0"));
    let numbers = |text: &str, by| -> Option<Vec<i64>> {
        let parts = text.split(by);
        parts
            .map(|part| part.parse().ok().filter(|n| *n >= 0))
            .collect()
    };
    let [year, month, day] = numbers(date, '-')?[..] else {
        return None;
    };
    let (hour, minute, second) = match numbers(time, ':')?[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    let utc = Utc {
        year,
        month,
        day,
        hour,
        minute,
        second,
    };
    // What is behind that no column of times holds.
    utc.seconds()
        .filter(|_| year <= 2261)
        .map(|seconds| seconds * 1_000)
}

/// A moment, or "2h": so long before `now_ms`.
pub fn when(text: &str, now_ms: i64) -> Result<i64, Error> {
    let text = text.trim();
    if let Some(ms) = moment(text) {
        return Ok(ms);
    }
    // A number alone would be a year to some and seconds to others.
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    match duration(text) {
        Ok(ago) if has_unit => Ok(now_ms - ago.as_millis() as i64),
        _ if text == "now" => Ok(now_ms),
        _ => Err(Error::Words(format!(
            "{text:?} is no moment: 2026-11-27T10:00 (UTC), or 2h for two hours ago"
        ))),
    }
}

/// "2026-11-27 10:00", with seconds where there are some.
pub fn text_of(ms: i64) -> String {
    let utc = Utc::of_seconds(ms.max(0) / 1_000);
    let text = format!("{} {:02}:{:02}", utc.date(), utc.hour, utc.minute);
    match utc.second {
        0 => text,
        second => format!("{text}:{second:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_utc_and_read_back() {
        const NOW: i64 = 1_795_780_800_000;
        for (text, ms) in [
            ("2026-11-27", 1_795_737_600_000),
            ("2026-11-27T10:00", 1_795_773_600_000),
            ("2026-11-27 10:00:30Z", 1_795_773_630_000),
            ("1970-01-01", 0),
            ("2000-02-29T23:59", 951_868_740_000),
            ("2h", NOW - 7_200_000),
            ("now", NOW),
        ] {
            assert_eq!(when(text, NOW).unwrap(), ms, "{text}");
        }
        for bad in [
            "",
            "10",
            "2026",
            "2026-13-01",
            "2026-11-27T24:00",
            "x",
            "2026-11-27T10",
            "-2h",
        ] {
            assert!(when(bad, NOW).is_err(), "{bad}");
        }
        for text in ["2026-11-27 10:00", "2026-11-27 10:00:30"] {
            assert_eq!(text_of(when(text, NOW).unwrap()), text);
        }
    }
}
