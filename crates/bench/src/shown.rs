// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is written what terminal, page and Markdown have in common?

use debox_output::chart::Figure;
use debox_output::wrapped;

/// The pictures of a page, in their order.
#[derive(Default)]
pub struct Figures(pub Vec<Figure>);

impl Figures {
    /// For its place in the page, if there is anything to see.
    pub fn drawn(&mut self, figure: Option<Figure>) -> String {
        let html = figure.as_ref().map_or_else(String::new, Figure::html);
        self.0.extend(figure);
        html
    }
}

/// A sentence or more, in lines of its own.
pub fn paragraph(text: &str) -> String {
    wrapped(text, 100, "  ", "  ") + "\n"
}

/// Seconds since 1970 as a date and time (UTC).
pub fn date(seconds: u64) -> String {
    let days = (seconds / 86_400) as i64;
    // Days to a civil date: eras of 400 years, years that begin in March.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (
        doy - (153 * mp + 2) / 5 + 1,
        if mp < 10 { mp + 3 } else { mp - 9 },
    );
    let year = yoe + era * 400 + i64::from(month <= 2);
    let rest = seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02} UTC",
        rest / 3600,
        rest % 3600 / 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_date() {
        for seconds in [0u64, 951_782_400, 1_709_164_800, 1_795_245_632] {
            let out = std::process::Command::new("date")
                .args(["-u", "-d", &format!("@{seconds}"), "+%Y-%m-%d %H:%M UTC"])
                .output()
                .unwrap();
            assert_eq!(date(seconds), String::from_utf8(out.stdout).unwrap().trim());
        }
    }
}
