// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is written what terminal, page and Markdown have in common?

use debox_output::chart::Figure;
use debox_output::{Utc, wrapped};

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
    let utc = Utc::of_seconds(seconds as i64);
    format!("{} {:02}:{:02} UTC", utc.date(), utc.hour, utc.minute)
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
