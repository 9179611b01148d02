// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the agent's file say?
//!
//! Every setting has a default, and what is not known is refused, with its line: a name that
//! is written wrongly would do nothing, and nobody would notice.

use crate::Error;
use serde::Deserialize;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Where figures are to be had if nothing is said: by this machine alone.
const LISTEN: &str = "127.0.0.1:9464";
const BLOCKING_ROWS: u64 = 2_000;
const PROGRAMS: u64 = 500;
/// More than this is a mistake: each row is a series for whoever collects.
const ROWS_MOST: u64 = 100_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    #[default]
    Sleeps,
    Boundary,
}

/// `[watch]`: whom, and how. Of several names of one kind one must fit, of different kinds each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WatchConfig {
    pub comm: Vec<String>,
    pub cgroup: Vec<String>,
    pub unit: Vec<String>,
    pub uid: Vec<String>,
    pub container: Vec<String>,
    pub capture: Way,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Address(SocketAddr),
    /// Of a socket that users of its owner's group may use.
    Path(PathBuf),
}

/// `[metrics]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsConfig {
    pub listen: Listen,
    /// So many waits (label, call) are told apart; further ones are "other".
    pub blocking_rows: usize,
    /// The same of programs (name, unit).
    pub programs: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub watch: WatchConfig,
    pub metrics: MetricsConfig,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MetricsFile {
    listen: Option<Spanned<String>>,
    blocking_rows: Option<Spanned<u64>>,
    programs: Option<Spanned<u64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    watch: WatchConfig,
    metrics: MetricsFile,
}

/// "line 3, column 10" of a byte.
fn place(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .map_or(0, |rest| rest.chars().count());
    format!("line {line}, column {}", column + 1)
}

fn listen_of(text: &str) -> Result<Listen, String> {
    if text.starts_with('/') {
        return Ok(Listen::Path(text.into()));
    }
    let found = text.to_socket_addrs().ok().and_then(|mut all| all.next());
    found.map(Listen::Address).ok_or_else(|| {
        format!(
            "listen is HOST:PORT or a path that begins with /, and {text:?} is neither; the default is \
             {LISTEN:?}"
        )
    })
}

fn rows_of(
    name: &str,
    value: Option<Spanned<u64>>,
    default: u64,
) -> Result<usize, (String, Range<usize>)> {
    let Some(value) = value else {
        return Ok(default as usize);
    };
    let span = value.span();
    match value.into_inner() {
        rows @ 1..=ROWS_MOST => Ok(rows as usize),
        rows => Err((
            format!("{name} is {rows}; it can be 1 to {ROWS_MOST}, the default is {default}"),
            span,
        )),
    }
}

impl Config {
    /// # Errors
    /// What is wrong, where, and what could stand there.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| {
            let at = error.span().map(|span| place(text, span.start));
            match at {
                Some(at) => format!("{at}: {}", error.message()),
                None => error.message().to_owned(),
            }
        })?;
        let at =
            |(what, span): (String, Range<usize>)| format!("{}: {what}", place(text, span.start));
        let MetricsFile {
            listen,
            blocking_rows,
            programs,
        } = file.metrics;
        let listen = match listen {
            None => listen_of(LISTEN)?,
            Some(listen) => listen_of(listen.as_ref()).map_err(|what| at((what, listen.span())))?,
        };
        Ok(Self {
            watch: file.watch,
            metrics: MetricsConfig {
                listen,
                blocking_rows: rows_of("blocking_rows", blocking_rows, BLOCKING_ROWS)
                    .map_err(at)?,
                programs: rows_of("programs", programs, PROGRAMS).map_err(at)?,
            },
        })
    }

    /// `must`: somebody has named the file. Else one that is not there says nothing.
    ///
    /// # Errors
    /// It cannot be read, or says something that is not understood.
    pub fn read(path: &Path, must: bool) -> Result<Self, Error> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound && !must => String::new(),
            Err(source) => {
                let path = path.to_owned();
                return Err(Error::Read { path, source });
            }
        };
        Self::parse(&text).map_err(|what| Error::Config {
            path: path.to_owned(),
            what,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default() {
        let config = Config::parse("").unwrap();
        assert_eq!(config.watch, WatchConfig::default());
        assert_eq!(
            config.metrics.listen,
            Listen::Address("127.0.0.1:9464".parse().unwrap())
        );
        assert_eq!(
            (config.metrics.blocking_rows, config.metrics.programs),
            (2_000, 500)
        );
    }

    #[test]
    fn all_settings_are_taken() {
        let config = Config::parse(
            "[watch]\nunit = [\"nginx.service\"]\nuid = [\"www-data\"]\ncapture = \"boundary\"\n\
             [metrics]\nlisten = \"/run/debox/metrics.sock\"\nblocking_rows = 10\nprograms = 7\n",
        )
        .unwrap();
        assert_eq!(config.watch.unit, ["nginx.service"]);
        assert_eq!(config.watch.uid, ["www-data"]);
        assert_eq!(config.watch.capture, Way::Boundary);
        assert_eq!(
            config.metrics.listen,
            Listen::Path("/run/debox/metrics.sock".into())
        );
        assert_eq!(
            (config.metrics.blocking_rows, config.metrics.programs),
            (10, 7)
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, place, what) in [
            ("[watch]\nunits = []\n", "line 2, column 1", "units"),
            ("\n[metric]\n", "line 2, column 2", "metric"),
            (
                "[metrics]\nlisten = \"nowhere\"\n",
                "line 2, column 10",
                "HOST:PORT",
            ),
            (
                "[metrics]\n\nprograms = 0\n",
                "line 3, column 12",
                "1 to 100000",
            ),
            ("[metrics]\nprograms = -1\n", "line 2, column 12", "-1"),
            (
                "[watch]\ncapture = \"wrap\"\n",
                "line 2, column 11",
                "sleeps",
            ),
            (
                "[watch]\ncomm = \"nginx\"\n",
                "line 2, column 8",
                "sequence",
            ),
            ("[watch\n", "line 1", ""),
        ] {
            let said = Config::parse(text).unwrap_err();
            assert!(
                said.starts_with(place) && said.contains(what),
                "{text:?}: {said}"
            );
        }
    }
}
