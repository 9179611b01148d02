// SPDX-License-Identifier: MIT OR Apache-2.0
//! How are durations and counts written for people?

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
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `part` of `whole` with one decimal; 100 % and 0 % stay exact.
pub(crate) fn share_text(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    let tenths = (u128::from(part) * 1000 + u128::from(whole) / 2) / u128::from(whole);
    format!("{}.{}%", tenths / 10, tenths % 10)
}
