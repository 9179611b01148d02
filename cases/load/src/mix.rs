// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is asked next, and what is the right answer?
//!
//! The shares are SPECweb99's (see the paper, section 4). Directory n is asked for as often as
//! directory 0 divided by n + 1 (Zipf). All draws follow from the seed.

use crate::files::{CLASSES, FILES, File};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Static,
    Dynamic,
    Cgi,
    Post,
}

pub const OPERATIONS: [Operation; 4] = [
    Operation::Static,
    Operation::Dynamic,
    Operation::Cgi,
    Operation::Post,
];

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Dynamic => "dynamic",
            Self::Cgi => "cgi",
            Self::Post => "post",
        }
    }
}

const STATIC_PERCENT: f64 = 70.0;
const POST_PERCENT: f64 = 4.8;
/// What is left for dynamic GET and CGI.
pub const CGI_PERCENT_MOST: f64 = 100.0 - STATIC_PERCENT - POST_PERCENT;
const CLASS_PERCENT: [f64; CLASSES as usize] = [35.0, 50.0, 14.0, 1.0];
const FILE_PERCENT: [f64; FILES as usize] = [3.9, 5.9, 8.8, 17.7, 35.3, 11.8, 7.1, 5.0, 4.4];
/// As many as SPECweb99 rotates.
const ADS: u32 = 360;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub operation: Operation,
    /// Of a POST, it is only told.
    pub file: File,
    pub ad: u32,
}

impl Request {
    /// As it is sent. `close`: it is the connection's last.
    pub fn text(&self, close: bool) -> String {
        let (path, ad) = (self.file.path(), self.ad);
        let close = if close { "Connection: close\r\n" } else { "" };
        let head = |path: String| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{close}\r\n");
        match self.operation {
            Operation::Static => head(format!("/{path}")),
            Operation::Dynamic => head(format!("/dynamic/{path}?ad={ad}")),
            Operation::Cgi => head(format!("/cgi/{path}?ad={ad}")),
            Operation::Post => {
                let body = self.form();
                format!(
                    "POST /post HTTP/1.1\r\nHost: localhost\r\n{close}\
                     Content-Type: application/x-www-form-urlencoded\r\n\
                     Content-Length: {}\r\n\r\n{body}",
                    body.len()
                )
            }
        }
    }

    fn form(&self) -> String {
        let File {
            directory,
            class,
            number,
        } = self.file;
        format!(
            "directory={directory}&class={class}&file={number}&ad={}",
            self.ad
        )
    }

    pub fn right_answer(&self) -> RightAnswer {
        let (before, file, behind) = match self.operation {
            Operation::Static => (String::new(), Some(self.file), ""),
            Operation::Dynamic | Operation::Cgi => (
                format!(
                    "<html><head><title>debox</title></head><body><p>ad {}</p><pre>\n",
                    self.ad
                ),
                Some(self.file),
                "\n</pre></body></html>\n",
            ),
            Operation::Post => (
                format!(
                    "<html><body>{} bytes taken</body></html>\n",
                    self.form().len()
                ),
                None,
                "",
            ),
        };
        RightAnswer {
            before,
            body: file.map_or(Body::Any(0), Body::File),
            behind,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Body {
    File(File),
    /// So many bytes, whichever.
    Any(u64),
}

/// A file, and what stands around it.
#[derive(Clone, Debug)]
pub struct RightAnswer {
    before: String,
    body: Body,
    behind: &'static str,
}

impl RightAnswer {
    /// Of a page of which nothing else is known.
    pub fn of_length(bytes: u64) -> Self {
        Self {
            before: String::new(),
            body: Body::Any(bytes),
            behind: "",
        }
    }

    fn body_bytes(&self) -> u64 {
        match self.body {
            Body::File(file) => file.bytes(),
            Body::Any(bytes) => bytes,
        }
    }

    pub fn bytes(&self) -> u64 {
        (self.before.len() + self.behind.len()) as u64 + self.body_bytes()
    }

    /// Whether these are its bytes from this offset on.
    pub fn has(&self, offset: u64, mut bytes: &[u8]) -> bool {
        let mut at = offset;
        let before = self.before.len() as u64;
        let behind_at = before + self.body_bytes();
        while !bytes.is_empty() {
            // One of the three parts after the other.
            let end = if at < before {
                before
            } else if at < behind_at {
                behind_at
            } else {
                self.bytes()
            };
            let (part, rest) = bytes.split_at(bytes.len().min(end.saturating_sub(at) as usize));
            let text = |text: &str, from: u64| text.as_bytes()[from as usize..].starts_with(part);
            let right = match self.body {
                // More than it has.
                _ if part.is_empty() => false,
                _ if at < before => text(&self.before, at),
                Body::File(file) if at < behind_at => file.difference(at - before, part).is_none(),
                Body::Any(_) if at < behind_at => true,
                _ => text(self.behind, at - behind_at),
            };
            if !right {
                return false;
            }
            at += part.len() as u64;
            bytes = rest;
        }
        true
    }
}

/// Draws by shares: where a number from 0 to the last sum falls.
struct Shares(Vec<f64>);

impl Shares {
    fn new(shares: impl IntoIterator<Item = f64>) -> Self {
        let sums = shares.into_iter().scan(0.0, |sum, share| {
            *sum += share;
            Some(*sum)
        });
        Self(sums.collect())
    }

    fn draw(&self, random: &mut fastrand::Rng) -> usize {
        let last = self.0.len() - 1;
        let at = random.f64() * self.0[last];
        self.0.partition_point(|sum| *sum <= at).min(last)
    }
}

pub struct Mix {
    random: fastrand::Rng,
    /// For when requests begin: as often as the rest is drawn, the times stay.
    begins: fastrand::Rng,
    operations: Shares,
    classes: Shares,
    files: Shares,
    directories: Shares,
}

impl Mix {
    pub fn new(directories: u32, static_only: bool, cgi_percent: f64, seed: u64) -> Self {
        let operations = match static_only {
            true => vec![1.0],
            false => vec![
                STATIC_PERCENT,
                CGI_PERCENT_MOST - cgi_percent,
                cgi_percent,
                POST_PERCENT,
            ],
        };
        Self {
            random: fastrand::Rng::with_seed(seed),
            begins: fastrand::Rng::with_seed(!seed),
            operations: Shares::new(operations),
            classes: Shares::new(CLASS_PERCENT),
            files: Shares::new(FILE_PERCENT),
            directories: Shares::new((1..=directories).map(|rank| 1.0 / f64::from(rank))),
        }
    }

    pub fn draw(&mut self) -> Request {
        let random = &mut self.random;
        Request {
            operation: OPERATIONS[self.operations.draw(random)],
            file: File {
                directory: self.directories.draw(random) as u32,
                class: self.classes.draw(random) as u32,
                number: self.files.draw(random) as u32 + 1,
            },
            ad: random.u32(0..ADS),
        }
    }

    /// After how many requests a connection is made anew: with 10 on average, 5 to 15, each as
    /// likely.
    pub fn connection_length(&mut self, average: u32) -> u32 {
        let spread = average / 2;
        self.random.u32(average - spread..=average + spread)
    }

    /// How many requests, on average, begin until the next one of many that begin independently
    /// of each other.
    pub fn until_next(&mut self) -> f64 {
        -(1.0 - self.begins.f64()).ln()
    }

    pub fn chance(&mut self, percent: f64) -> bool {
        self.random.f64() * 100.0 < percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pearson's sum over what was counted and the shares wanted.
    fn chi_square(counts: &[u64], shares: &[f64]) -> f64 {
        assert_eq!(counts.len(), shares.len());
        let (all, sum): (u64, f64) = (counts.iter().sum(), shares.iter().sum());
        let term = |(count, share): (&u64, &f64)| {
            let wanted = all as f64 * share / sum;
            (*count as f64 - wanted).powi(2) / wanted
        };
        counts.iter().zip(shares).map(term).sum()
    }

    /// Limits: 1 in 1,000 is beyond by chance (tables), with one degree of freedom less than parts.
    #[test]
    fn the_draws_have_the_wanted_shares() {
        for (cgi, seed) in [(0.15, 1), (0.5, 2)] {
            let mut mix = Mix::new(20, false, cgi, seed);
            let mut operations = [0; 4];
            let mut classes = [0; 4];
            let mut files = [0; 9];
            let mut directories = [0; 20];
            for _ in 0..100_000 {
                let request = mix.draw();
                operations[request.operation as usize] += 1;
                classes[request.file.class as usize] += 1;
                files[request.file.number as usize - 1] += 1;
                directories[request.file.directory as usize] += 1;
            }
            let zipf: Vec<f64> = (1..=20).map(|rank| 1.0 / f64::from(rank)).collect();
            let dynamic = 25.2 - cgi;
            for (counts, shares, limit) in [
                (&operations[..], &[70.0, dynamic, cgi, 4.8][..], 16.27),
                (&classes, &[35.0, 50.0, 14.0, 1.0], 16.27),
                (&files, &FILE_PERCENT, 26.12),
                (&directories, &zipf, 43.82),
            ] {
                let chi = chi_square(counts, shares);
                assert!(chi < limit, "{counts:?}: {chi}");
                // A tenth more of one of them is seen.
                let mut other = shares.to_vec();
                other[0] *= 1.1;
                assert!(chi_square(counts, &other) > limit);
            }
        }
        let mut mix = Mix::new(20, true, 0.15, 3);
        assert!((0..1000).all(|_| mix.draw().operation == Operation::Static));
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let draw = |seed| {
            let mut mix = Mix::new(50, false, 0.15, seed);
            (0..100).map(|_| mix.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn a_connection_has_its_length_on_average() {
        let mut mix = Mix::new(1, true, 0.0, 4);
        let mut counts = [0; 11];
        for _ in 0..11_000 {
            counts[mix.connection_length(10) as usize - 5] += 1;
        }
        assert!(chi_square(&counts, &[1.0; 11]) < 29.59);
        assert!((0..100).all(|_| mix.connection_length(1) == 1));
    }

    #[test]
    fn requests_and_answers_are_those_of_the_page() {
        let mut request = Request {
            operation: Operation::Dynamic,
            file: File {
                directory: 12,
                class: 0,
                number: 3,
            },
            ad: 77,
        };
        assert_eq!(
            request.text(true),
            "GET /dynamic/dir00012/class0_3?ad=77 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        );
        let root = tempfile::tempdir().unwrap();
        crate::files::make(root.path(), 13).unwrap();
        let file = std::fs::read(root.path().join("dir00012/class0_3")).unwrap();
        let whole = [
            b"<html><head><title>debox</title></head><body><p>ad 77</p><pre>\n",
            file.as_slice(),
            b"\n</pre></body></html>\n",
        ]
        .concat();
        let right = request.right_answer();
        assert_eq!(right.bytes(), whole.len() as u64);
        for piece in [1, 7, 64, 1000] {
            let mut at = 0;
            for part in whole.chunks(piece) {
                assert!(right.has(at, part));
                let mut other = part.to_vec();
                *other.last_mut().unwrap() ^= 4;
                assert!(!right.has(at, &other));
                at += part.len() as u64;
            }
        }
        assert!(!right.has(0, &[&whole[..], b"x"].concat()));

        request.operation = Operation::Post;
        let text = request.text(false);
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, "directory=12&class=0&file=3&ad=77");
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
        let answer = b"<html><body>33 bytes taken</body></html>\n";
        assert!(request.right_answer().has(0, answer));
        assert_eq!(request.right_answer().bytes(), answer.len() as u64);
    }
}
