// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long, as users write it (`-d 10s`)?

use std::time::Duration;

/// "10s", "500ms", "2m", "1h"; a number alone is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "a time, such as 10s, 500ms or 2m".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].as_ref() {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let seconds = digits.trim_end().parse::<f64>().map_err(|_| wrong())? * factor;
    if seconds > 0.0 && seconds < 1e9 {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_known_and_nonsense_is_not() {
        for (text, ms) in [
            ("10", 10_000),
            ("0.5", 500),
            ("0.5s", 500),
            ("1500ms", 1500),
            ("3000us", 3),
            ("2m", 120_000),
            ("1 h", 3_600_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "0", "-1s", "nan", "inf", "1x", "10s10", "1e99"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
