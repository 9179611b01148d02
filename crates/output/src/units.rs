// SPDX-License-Identifier: MIT OR Apache-2.0
//! How are durations, counts, shares and sizes written for people?

/// Three significant digits and the unit that fits: `312 ns`, `4.31 µs`,
/// `1.52 s`; whole seconds with separators from 1000 s on. `ascii` writes `us`.
pub fn duration_text(ns: u64, ascii: bool) -> String {
    let micro = if ascii { "us" } else { "µs" };
    for (unit, size) in [
        ("ns", 1u64),
        (micro, 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
    ] {
        if size == 1 {
            if ns < 1000 {
                return format!("{ns} ns");
            }
            continue;
        }
        // Hundredths, tenths or ones of the unit, rounded half up. A value
        // that rounds up to 1000 belongs to the next unit: 999.6 µs = 1.00 ms.
        for (decimals, step) in [(2, size / 100), (1, size / 10), (0, size)] {
            let scaled = (u128::from(ns) + u128::from(step) / 2) / u128::from(step);
            if scaled < 1000 {
                let scaled = scaled as u64;
                return match decimals {
                    2 => format!("{}.{:02} {unit}", scaled / 100, scaled % 100),
                    1 => format!("{}.{} {unit}", scaled / 10, scaled % 10),
                    _ => format!("{scaled} {unit}"),
                };
            }
        }
    }
    let seconds = (u128::from(ns) + 500_000_000) / 1_000_000_000;
    format!("{} s", count_text(seconds as u64))
}

/// Thousands apart by commas: `4,312`.
pub fn count_text(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `part` of `whole` with one decimal; 100 % and 0 % stay exact.
pub fn share_text(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    let tenths = (u128::from(part) * 1000 + u128::from(whole) / 2) / u128::from(whole);
    format!("{}.{}%", tenths / 10, tenths % 10)
}

/// The unit that fits a measured duration, and its nanoseconds.
fn measured_unit(ns: f64) -> (f64, &'static str) {
    match ns.abs() {
        a if a < 999.5 => (1.0, "ns"),
        a if a < 999.5e3 => (1e3, "µs"),
        a if a < 999.5e6 => (1e6, "ms"),
        _ => (1e9, "s"),
    }
}

/// A measured duration, which has fractions and a sign: `0.50 ns`, `-23.4 ns`,
/// `12.3 µs`; three significant digits.
pub fn measured_text(ns: f64) -> String {
    if !ns.is_finite() {
        return "?".into();
    }
    let (size, unit) = measured_unit(ns);
    format!("{} {unit}", digits_text(ns / size))
}

/// At the axis of a picture: no zeros that say nothing, `1.2 µs`.
pub fn mark_text(ns: f64) -> String {
    let (size, unit) = measured_unit(ns);
    let number = digits_text(ns / size);
    let number = match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => &number,
    };
    format!("{number} {unit}")
}

/// Where a measured duration lies, in one unit: `144…146 ns`, `0.98…1.31 µs`; `~1.00 µs`
/// where the digits do not tell the ends apart.
pub fn range_text(low_ns: f64, high_ns: f64) -> String {
    let high = measured_text(high_ns);
    if measured_text(low_ns) == high {
        return format!("~{high}");
    }
    let (size, _) = measured_unit(high_ns);
    format!("{}…{high}", digits_text(low_ns / size))
}

/// A difference and how far its interval reaches, in one unit: `+354 ±12 ns`; NaN: not known.
pub fn difference_text(ns: f64, far_ns: f64) -> String {
    let sign = if ns >= 0.0 { "+" } else { "" };
    if !ns.is_finite() || !far_ns.is_finite() {
        return format!("{sign}{}", measured_text(ns));
    }
    let (size, unit) = measured_unit(ns);
    let (number, far) = (digits_text(ns / size), two_digits_text(far_ns / size));
    format!("{sign}{number} ±{far} {unit}")
}

/// Two significant digits, of what is not negative: how far an interval reaches.
pub fn two_digits_text(value: f64) -> String {
    match value {
        v if v < 0.995 => format!("{v:.2}"),
        v if v < 9.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// Three significant digits.
pub fn digits_text(value: f64) -> String {
    match value.abs() {
        a if a < 0.005 => "0".into(),
        a if a < 9.995 => format!("{value:.2}"),
        a if a < 99.95 => format!("{value:.1}"),
        _ => signed_text(value.round() as i64),
    }
}

/// Thousands apart by commas, below zero too.
pub fn signed_text(n: i64) -> String {
    let sign = if n < 0 { "-" } else { "" };
    format!("{sign}{}", count_text(n.unsigned_abs()))
}

/// A size in memory or on disk: `312 bytes`, `4.0 KiB`, `41 MiB`.
pub fn bytes_text(bytes: u64) -> String {
    for (unit, size) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= size {
            let value = bytes as f64 / size as f64;
            return if value < 9.95 {
                format!("{value:.1} {unit}")
            } else {
                format!("{value:.0} {unit}")
            };
        }
    }
    format!("{bytes} {}", if bytes == 1 { "byte" } else { "bytes" })
}

/// A size that was chosen: `8 B`, `4 KiB`, `1 MiB`.
pub fn size_text(bytes: u64) -> String {
    match bytes {
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits_and_a_unit() {
        for (ns, text) in [
            (0.5, "0.50 ns"),
            (9.996, "10.0 ns"),
            (99.96, "100 ns"),
            (999.4, "999 ns"),
            (999.6, "1.00 µs"),
            (12_345.0, "12.3 µs"),
            (999.6e6, "1.00 s"),
            (-23.4, "-23.4 ns"),
        ] {
            assert_eq!(measured_text(ns), text);
        }
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (999_600, "1.00 ms"),
            (4_310, "4.31 us"),
            (1_000_000_000_000, "1,000 s"),
        ] {
            assert_eq!(duration_text(ns, true), text);
        }
        assert_eq!(signed_text(-1_234_567), "-1,234,567");
    }

    #[test]
    fn two_numbers_have_one_unit() {
        assert_eq!(difference_text(354.0, 14.0), "+354 ±14 ns");
        assert_eq!(difference_text(1150.0, 50.0), "+1.15 ±0.05 µs");
        assert_eq!(difference_text(-20.0, 9.0), "-20.0 ±9.0 ns");
        assert_eq!(difference_text(354.0, f64::NAN), "+354 ns");
        assert_eq!(range_text(980.0, 1310.0), "0.98…1.31 µs");
        assert_eq!(range_text(1001.0, 1002.0), "~1.00 µs");
        assert_eq!(
            (mark_text(1200.0), mark_text(40.0)),
            ("1.2 µs".into(), "40 ns".into())
        );
    }

    #[test]
    fn sizes_have_two_digits_and_a_unit() {
        for (bytes, text) in [
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1024, "1.0 KiB"),
            (10_188, "9.9 KiB"),
            (10_240, "10 KiB"),
            (41 << 20, "41 MiB"),
            (3 << 30, "3.0 GiB"),
        ] {
            assert_eq!(bytes_text(bytes), text);
        }
    }
}
