// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many requests should begin each second as time goes on, and how many idle connections are
//! there meanwhile?
//!
//! When the next one begins follows from a number of requests: it is the time in which so many
//! should have begun. Drawn as of a constant rate, that number makes the same requests come faster
//! or slower.

use std::io;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    at_s: f64,
    /// From here to the next point.
    rate: f64,
}

/// In the order of time, the first at 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    points: Vec<Point>,
    /// None: it never ends.
    end: Option<f64>,
    /// Idle connections, at some of the points.
    idle: Vec<(f64, usize)>,
}

impl Rates {
    pub fn constant(rate: f64) -> Self {
        Self {
            points: vec![Point { at_s: 0.0, rate }],
            end: None,
            idle: Vec::new(),
        }
    }

    pub fn read(file: &Path) -> io::Result<Self> {
        let wrong = |why: String| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{}: {why}", file.display()),
            )
        };
        let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        Self::parse(&text).map_err(wrong)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut points: Vec<Point> = Vec::new();
        let mut idle = Vec::new();
        for (n, line) in text.lines().enumerate() {
            let words: Vec<&str> = line
                .split('#')
                .next()
                .unwrap_or("")
                .split_whitespace()
                .collect();
            if words.is_empty() {
                continue;
            }
            let wrong = |what: &str| format!("line {}: {what}", n + 1);
            let number = |word: &str| {
                word.parse()
                    .ok()
                    .filter(|n: &f64| n.is_finite() && *n >= 0.0)
            };
            let (at_s, rate) = match words[..] {
                [at, rate] | [at, rate, _] => (number(at), number(rate)),
                _ => (None, None),
            };
            let (Some(at_s), Some(rate)) = (at_s, rate) else {
                return Err(wrong("SECONDS RATE [IDLE], numbers from 0 on"));
            };
            if points.last().map_or(at_s != 0.0, |last| at_s < last.at_s) {
                return Err(wrong(
                    "the first point is at 0, and none before the one above it",
                ));
            }
            if let Some(word) = words.get(2) {
                let count = word.parse().ok().filter(|n| *n <= IDLE_MOST);
                idle.push((
                    at_s,
                    count.ok_or_else(|| wrong("IDLE is a number of connections"))?,
                ));
            }
            points.push(Point { at_s, rate });
        }
        let end = points.last().map_or(0.0, |last| last.at_s);
        if end == 0.0 {
            return Err("a begin and an end are two points at least".into());
        }
        Ok(Self {
            points,
            end: Some(end),
            idle,
        })
    }

    pub fn end(&self) -> Option<f64> {
        self.end
    }

    /// The rate that never changes.
    pub fn always(&self) -> Option<f64> {
        self.end.is_none().then(|| self.points[0].rate)
    }

    pub fn most_idle(&self) -> Option<usize> {
        self.idle.iter().map(|(_, count)| *count).max()
    }

    /// When so many more requests should have begun than at `at_s`; None: there are not as many.
    pub fn after(&self, at_s: f64, requests: f64) -> Option<f64> {
        let (mut at, mut left) = (at_s, requests);
        let first = self.points.partition_point(|point| point.at_s <= at_s);
        for n in first.saturating_sub(1)..self.points.len() {
            let rate = self.points[n].rate;
            let next = match self.points.get(n + 1) {
                Some(point) => point.at_s,
                None => self.end.unwrap_or(f64::INFINITY),
            };
            if rate * (next - at) > left {
                return Some(at + left / rate);
            }
            left -= rate * (next - at);
            at = next;
        }
        None
    }

    /// How many idle connections there are then; None: the file says nothing of them.
    pub fn idle(&self, at_s: f64) -> Option<usize> {
        let next = self.idle.partition_point(|(at, _)| *at <= at_s);
        let (from_s, from) = *self.idle.get(next.saturating_sub(1))?;
        let Some((to_s, to)) = self.idle.get(next) else {
            return Some(from);
        };
        let part = ((at_s - from_s) / (to_s - from_s)).max(0.0);
        Some((from as f64 + part * (*to as f64 - from as f64)).round() as usize)
    }
}

const IDLE_MOST: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_request_is_where_so_many_have_begun() {
        let day = Rates::parse("0 10  # quiet\n\n2 0\n3 100 5\n3.5 0 7\n4 0\n").unwrap();
        assert_eq!((day.end(), day.always()), (Some(4.0), None));
        assert_eq!(day.after(0.0, 1.0), Some(0.1));
        assert_eq!(day.after(1.5, 4.0), Some(1.9));
        // 5 until 2 s, none until 3 s, the rest at 100 a second.
        assert_eq!(day.after(1.5, 15.0), Some(3.1));
        assert_eq!(day.after(2.5, 1.0), Some(3.01));
        assert_eq!(day.after(3.4, 11.0), None);
        assert_eq!(day.after(3.6, 0.1), None);
        let always = Rates::constant(50.0);
        assert_eq!((always.end(), always.always()), (None, Some(50.0)));
        assert_eq!(always.after(7.0, 100.0), Some(9.0));
    }

    #[test]
    fn idle_connections_go_evenly_from_one_number_to_the_next() {
        let day = Rates::parse("0 1 100\n1 1\n2 1 200\n3 1 0\n4 1").unwrap();
        assert_eq!(day.most_idle(), Some(200));
        for (at_s, count) in [
            (0.0, 100),
            (0.5, 125),
            (1.5, 175),
            (2.0, 200),
            (2.25, 150),
            (3.0, 0),
            (3.9, 0),
        ] {
            assert_eq!(day.idle(at_s), Some(count), "at {at_s}");
        }
        let plain = Rates::parse("0 1\n1 1").unwrap();
        assert_eq!((plain.idle(0.5), plain.most_idle()), (None, None));
    }

    #[test]
    fn what_is_no_file_of_points_says_where() {
        for (text, why) in [
            ("", "two points"),
            ("0 5", "two points"),
            ("1 5\n2 5", "line 1: the first point is at 0"),
            ("0 5\n2 5\n1 5", "line 3:"),
            ("0 5\n1", "line 2: SECONDS RATE"),
            ("0 5\n1 2 3 4", "line 2: SECONDS RATE"),
            ("0 -5\n1 2", "line 1: SECONDS RATE"),
            ("0 inf\n1 2", "line 1: SECONDS RATE"),
            ("0 5 many\n1 2", "line 1: IDLE"),
            ("0 5 999999\n1 2", "line 1: IDLE"),
        ] {
            let said = Rates::parse(text).unwrap_err();
            assert!(said.contains(why), "{text:?}: {said}");
        }
    }
}
