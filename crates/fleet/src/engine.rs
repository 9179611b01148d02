// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who answers SQL about a fleet?
//!
//! ClickHouse, in one of three forms: a server, by HTTP; the command `clickhouse`, or its engine
//! as a Python package (chDB), which read files of Parquet or a database in a directory and
//! need no server. The SQL is the same; values go beside it, as parameters.
//!
//! Both take instructions from the directory in which they are started (config.xml, and what
//! Python imports), and the tables' one is somebody else's: they run in a new one, from which
//! links lead to the tables and to nothing else.

use crate::error::Error;
use crate::load::TABLES;
use crate::session::{Escaped, Session, clickhouse_local};
use crate::store::date_of;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

pub const FORMAT: &str = "JSONCompactEachRowWithNamesAndTypes";
const SPAN: &str = include_str!("../sql/span.sql");
const PARQUET: &str = include_str!("../sql/parquet.sql");
/// Sums by hour come from those by ten minutes since there are these: where they do, both are of all rows.
const TENS: &str = "SELECT count() AS views FROM system.tables WHERE database = currentDatabase() \
    AND name = 'waits_to_1h' AND position(create_table_query, 'waits_10m') > 0";
const CONNECT: Duration = Duration::from_secs(10);
const QUERY: Duration = Duration::from_secs(600);
const DAY_MS: i64 = 86_400_000;
/// More days than that are not named one by one.
const DAYS_MOST: i64 = 62;
/// Of a server's complaint so much is told.
const COMPLAINT_MOST: u64 = 4_096;

/// What stands for {name:Type} in SQL.
pub type Params = BTreeMap<&'static str, String>;

/// Rows as ClickHouse gives them.
#[derive(Debug, Default, PartialEq)]
pub struct Answer {
    pub names: Vec<String>,
    pub types: Vec<String>,
    pub rows: Vec<Vec<Value>>,
}

impl Answer {
    pub fn read(from: impl Read) -> Result<Self, String> {
        let mut answer = Self::default();
        for (at, line) in BufReader::new(from).lines().enumerate() {
            let line = line.map_err(|error| error.to_string())?;
            let wrong = |error| format!("its answer is not understood: {error}: {line}");
            match at {
                0 => answer.names = serde_json::from_str(&line).map_err(wrong)?,
                1 => answer.types = serde_json::from_str(&line).map_err(wrong)?,
                _ => answer
                    .rows
                    .push(serde_json::from_str(&line).map_err(wrong)?),
            }
        }
        Ok(answer)
    }

    fn at(&self, row: &[Value], name: &str) -> Value {
        let at = self.names.iter().position(|is| is == name);
        at.and_then(|at| row.get(at))
            .cloned()
            .unwrap_or(Value::Null)
    }

    pub fn text(&self, row: &[Value], name: &str) -> String {
        match self.at(row, name) {
            Value::String(text) => text,
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }

    /// 64-bit numbers may come in quotes.
    pub fn number(&self, row: &[Value], name: &str) -> f64 {
        match self.at(row, name) {
            Value::String(text) => text.parse().unwrap_or(0.0),
            value => value.as_f64().unwrap_or(0.0),
        }
    }

    pub fn count(&self, row: &[Value], name: &str) -> u64 {
        match self.at(row, name) {
            Value::String(text) => text.parse().unwrap_or(0),
            value => value.as_u64().unwrap_or(0),
        }
    }

    pub fn is_null(&self, row: &[Value], name: &str) -> bool {
        self.at(row, name).is_null()
    }
}

/// Where the fleet's tables are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Files as agents write them.
    Parquet(PathBuf),
    /// The same in an object store.
    Objects(Objects),
    /// A database of chDB's, or of `clickhouse local`.
    Database(PathBuf),
    Server(Server),
}

/// s3://BUCKET/PREFIX, by the address that ClickHouse asks. The keys are none of ours: it takes them
/// from the environment itself, or from the machine's role, so that no command line has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objects {
    base: String,
}

impl Objects {
    /// None: it is another kind of place.
    pub fn parse(text: &str) -> Option<Result<Self, Error>> {
        let rest = text.strip_prefix("s3://")?;
        let from = |names: &[&str]| {
            let mut values = names.iter().filter_map(|name| std::env::var(name).ok());
            values.find(|value| !value.is_empty())
        };
        let endpoint = from(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]);
        let region = from(&["AWS_REGION", "AWS_DEFAULT_REGION"]);
        Some(Self::of(text, rest, endpoint, region))
    }

    fn of(
        text: &str,
        rest: &str,
        endpoint: Option<String>,
        region: Option<String>,
    ) -> Result<Self, Error> {
        let region = region.unwrap_or_else(|| "us-east-1".into());
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        // It becomes a part of a pattern, and of a statement.
        let is_plain = |text: &str, more: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
            !text.is_empty() && text.chars().all(plain)
        };
        let address = endpoint.strip_prefix("https://");
        let address = address.or_else(|| endpoint.strip_prefix("http://"));
        if !address.is_some_and(|address| is_plain(address, "-._:[]/")) {
            return Err(Error::Words(format!(
                "AWS_ENDPOINT_URL is http://HOST:PORT or https://HOST, and {endpoint:?} is neither"
            )));
        }
        let rest = rest.trim_end_matches('/');
        if rest.starts_with('/') || rest.contains("//") || !is_plain(rest, "-._/=") {
            return Err(Error::Words(format!(
                "--parquet takes s3://BUCKET/PREFIX, of letters, digits and - . _ = /, and {text:?} is none: ClickHouse takes others for \
                 patterns of names"
            )));
        }
        Ok(Self {
            base: format!("{}/{rest}", endpoint.trim_end_matches('/')),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// http://host:8123 and the like, without a user.
    pub url: String,
    pub database: Option<String>,
    pub user: Option<String>,
    pub password: Option<String>,
}

impl Server {
    /// "clickhouse://user:password@host:8123/database", or http:// or https:// for clickhouse://.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::Words(format!(
                "--url takes http://HOST:8123, https://HOST:8443 or clickhouse://HOST, with USER:PASSWORD@ before the host \
                 and /DATABASE after it if need be (or CLICKHOUSE_USER and CLICKHOUSE_PASSWORD); {:?} is none",
                hidden(text)
            ))
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let (http, port) = match scheme {
            "clickhouse" | "http" => ("http", 8123),
            "https" => ("https", 8443),
            _ => return Err(wrong()),
        };
        let (who, rest) = match rest.rsplit_once('@') {
            Some((who, rest)) => (Some(who), rest),
            None => (None, rest),
        };
        let (address, database) = rest.split_once('/').unwrap_or((rest, ""));
        let is_word = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        if address.is_empty() || !address.chars().all(is_word) || database.contains(['/', '?', '#'])
        {
            return Err(wrong());
        }
        let has_port = address
            .rsplit(']')
            .next()
            .is_some_and(|rest| rest.contains(':'));
        let address = match has_port {
            true => address.to_owned(),
            false => format!("{address}:{port}"),
        };
        let plain = |text: &str| {
            let text = percent_encoding::percent_decode_str(text).decode_utf8();
            text.map(|text| text.into_owned()).map_err(|_| wrong())
        };
        let from = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let (user, password) = match who.map(|who| who.split_once(':').unwrap_or((who, ""))) {
            Some((user, password)) => (Some(plain(user)?), Some(plain(password)?)),
            None => (None, None),
        };
        Ok(Self {
            url: format!("{http}://{address}"),
            database: Some(plain(database)?).filter(|database| !database.is_empty()),
            user: user.or_else(|| from("CLICKHOUSE_USER")),
            password: (password.filter(|password| !password.is_empty()))
                .or_else(|| from("CLICKHOUSE_PASSWORD")),
        })
    }
}

/// Without its password.
fn hidden(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://...@{rest}"),
        _ => url.to_owned(),
    }
}

enum Local {
    Clickhouse(PathBuf),
    Chdb(PathBuf),
}

pub struct Engine {
    place: Place,
    /// chDB's, when it was asked something. It ends before its room does.
    session: RefCell<Option<Session>>,
    /// An engine of this machine, and where it is run: names of files are relative to that.
    local: Option<(Local, TempDir)>,
    agent: ureq::Agent,
}

/// Which of the programs on PATH that is, also from elsewhere.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .filter_map(|folder| std::path::absolute(folder.join(name)).ok())
        .find(|path| path.is_file())
}

/// A directory that has what is asked about, and nothing that an engine obeys.
fn room(tables: Option<&Path>) -> io::Result<TempDir> {
    let room = tempfile::Builder::new().prefix("debox-fleet-").tempdir()?;
    let Some(tables) = tables else {
        return Ok(room);
    };
    for table in TABLES {
        let path = std::path::absolute(tables.join(table))?;
        if path.is_dir() {
            std::os::unix::fs::symlink(path, room.path().join(table))?;
        }
    }
    Ok(room)
}

fn local() -> Result<Local, Error> {
    if let Some(python) = std::env::var_os("DEBOX_PYTHON").filter(|python| !python.is_empty()) {
        let python = PathBuf::from(python);
        return Ok(Local::Chdb(match python.components().count() {
            1 => on_path(&python.to_string_lossy()).unwrap_or(python),
            _ => std::path::absolute(&python).unwrap_or(python),
        }));
    }
    if let Some(clickhouse) = on_path("clickhouse") {
        return Ok(Local::Clickhouse(clickhouse));
    }
    let python = on_path("python3").ok_or(Error::NoEngine)?;
    let look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('chdb') is None)";
    let has = Command::new(&python)
        .args(["-c", look])
        // It looks around where it is.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match has.is_ok_and(|status| status.success()) {
        true => Ok(Local::Chdb(python)),
        false => Err(Error::NoEngine),
    }
}

impl Engine {
    pub fn open(place: Place) -> Result<Self, Error> {
        let tables = match &place {
            Place::Parquet(path) => Some(path.clone()),
            _ => None,
        };
        Self::open_with(place, tables.as_deref())
    }

    /// The same; it can read the files of these tables.
    pub fn open_with(place: Place, tables: Option<&Path>) -> Result<Self, Error> {
        if let Place::Parquet(path) = &place
            && !path.join("periods").is_dir()
        {
            return Err(Error::NoTables { path: path.clone() });
        }
        let place = match place {
            // It is run elsewhere.
            Place::Database(path) => {
                Place::Database(path.canonicalize().map_err(|source| Error::Read {
                    path: path.clone(),
                    source,
                })?)
            }
            place => place,
        };
        let local = match place {
            Place::Server(_) => None,
            _ => Some((local()?, room(tables).map_err(Error::Room)?)),
        };
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(QUERY))
            .max_redirects(0)
            .user_agent(concat!("debox/", env!("CARGO_PKG_VERSION")));
        Ok(Self {
            place,
            session: RefCell::default(),
            local,
            agent: config.build().into(),
        })
    }

    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Whether there are sums by minute and hour.
    pub fn has_sums(&self) -> bool {
        !matches!(self.place, Place::Parquet(_) | Place::Objects(_))
    }

    /// Whether those by ten minutes are of all rows. A database from before there were any has none, or those of what
    /// was loaded later.
    pub fn has_tens(&self) -> Result<bool, Error> {
        let answer = self.run(&[TENS], &Params::new())?;
        let mut rows = answer.rows.iter();
        Ok(rows.any(|row| answer.count(row, "views") > 0))
    }

    /// The rows of one question about what was from `since_ms` to `until_ms`.
    pub fn ask(&self, sql: &str, params: &Params, span_ms: (i64, i64)) -> Result<Answer, Error> {
        let answer = match &self.place {
            Place::Parquet(_) | Place::Objects(_) => {
                let mut params = params.clone();
                params.insert(
                    "span_since_ns",
                    span_ms.0.saturating_mul(1_000_000).to_string(),
                );
                params.insert(
                    "span_until_ns",
                    span_ms.1.saturating_mul(1_000_000).to_string(),
                );
                let views = self.views(span_ms);
                let mut all: Vec<&str> = statements(SPAN).chain(statements(&views)).collect();
                all.push(sql);
                self.ask_local(&all, &params)
            }
            _ => self.run(&[sql], params),
        }?;
        // Whoever looks at the rows may take his time, and the next question of files has other views.
        self.close()?;
        Ok(answer)
    }

    /// Ends what has a database open, which others can have then.
    pub fn close(&self) -> Result<(), Error> {
        match self.session.take() {
            Some(session) => session.end(),
            None => Ok(()),
        }
    }

    /// The tables as they lie in files, of the days that a question is about alone: others are not even
    /// listed. A store lists by what stands before the first star or brace, so there each day is asked
    /// for by itself.
    fn views(&self, span_ms: (i64, i64)) -> String {
        let days = days(span_ms);
        let of = |view: &str, day: &str| view.replace("/date=*/", &format!("/date={day}/"));
        let Place::Objects(objects) = &self.place else {
            return match days.as_slice() {
                [day] => of(PARQUET, day),
                days => of(PARQUET, &format!("{{{}}}", days.join(","))),
            };
        };
        let views = PARQUET.replace("file(\n    '", &format!("s3(\n    '{}/", objects.base));
        let views = statements(&views).map(|view| {
            let (head, rows) = view.split_once(" AS\n").unwrap_or(("", view));
            let rows: Vec<String> = days.iter().map(|day| of(rows, day)).collect();
            format!("{head} AS\n{}", rows.join("\nUNION ALL\n"))
        });
        views.collect::<Vec<_>>().join(";\n")
    }

    /// Statements one after the other, as they are; the rows of the last.
    pub fn run(&self, all: &[&str], params: &Params) -> Result<Answer, Error> {
        let Place::Server(server) = &self.place else {
            return self.ask_local(all, params);
        };
        let mut answer = Answer::default();
        for sql in all {
            answer = self.ask_server(server, sql, params, None)?;
        }
        Ok(answer)
    }

    /// Statements that each take the file: a server's. `mark`: by which it knows an insert again.
    pub fn send(
        &self,
        server: &Server,
        sql: &str,
        params: &Params,
        file: &Path,
        mark: &str,
    ) -> Result<(), Error> {
        self.ask_server(server, sql, params, Some((file, mark)))
            .map(drop)
    }

    fn ask_server(
        &self,
        server: &Server,
        sql: &str,
        params: &Params,
        file: Option<(&Path, &str)>,
    ) -> Result<Answer, Error> {
        let wrong = |why: String| Error::Answer {
            who: server.url.clone(),
            why,
        };
        let mut request = self
            .agent
            .post(&server.url)
            .query("default_format", FORMAT)
            .query("output_format_json_quote_64bit_integers", "0");
        if let Some(database) = &server.database {
            request = request.query("database", database);
        }
        if let Some(user) = &server.user {
            request = request.header("X-ClickHouse-User", user);
        }
        if let Some(password) = &server.password {
            request = request.header("X-ClickHouse-Key", password);
        }
        for (name, value) in params {
            request = request.query(format!("param_{name}"), escaped(value));
        }
        let answer = match file {
            None => request.send(sql),
            Some((path, mark)) => {
                let read = |source| Error::Read {
                    path: path.to_owned(),
                    source,
                };
                let file = std::fs::File::open(path).map_err(read)?;
                request
                    .query("query", sql)
                    .query("insert_deduplication_token", mark)
                    .query("deduplicate_blocks_in_dependent_materialized_views", "1")
                    .send(file)
            }
        };
        let mut answer = answer.map_err(|error| wrong(error.to_string()))?;
        if answer.status().as_u16() != 200 {
            let body = answer
                .body_mut()
                .with_config()
                .limit(COMPLAINT_MOST)
                .reader();
            let mut said = Vec::new();
            // What cannot be read is not told.
            let _ = body.take(COMPLAINT_MOST - 1).read_to_end(&mut said);
            let said = String::from_utf8_lossy(&said);
            return Err(wrong(format!("{} ({})", said.trim(), answer.status())));
        }
        Answer::read(answer.body_mut().with_config().limit(u64::MAX).reader()).map_err(wrong)
    }

    fn ask_local(&self, all: &[&str], params: &Params) -> Result<Answer, Error> {
        let Some((local, room)) = &self.local else {
            return Err(Error::NoEngine);
        };
        let path = match &self.place {
            Place::Database(path) => Some(path),
            _ => None,
        };
        let params: Escaped = (params.iter())
            .map(|(name, value)| (*name, escaped(value)))
            .collect();
        let (room, path) = (room.path(), path.map(PathBuf::as_path));
        match local {
            Local::Clickhouse(program) => clickhouse_local(program, room, path, all, &params),
            Local::Chdb(python) => {
                let mut session = match self.session.take() {
                    Some(begun) => begun,
                    None => Session::begin(python, room)?,
                };
                let answer = session.ask(path, all, &params)?;
                self.session.replace(Some(session));
                Ok(answer)
            }
        }
    }
}

/// The days of a span, or a star. A file lies at the day of its begin, and may be as long as a day.
fn days((since_ms, until_ms): (i64, i64)) -> Vec<String> {
    let day_of = |ms: i64| ms.div_euclid(DAY_MS);
    let (first, last) = (day_of(since_ms) - 1, day_of(until_ms));
    if first < 0 || last - first >= DAYS_MOST {
        return vec!["*".into()];
    }
    let days = (first..=last).map(|day| date_of(day as u64 * (DAY_MS as u64 * 1_000_000)));
    days.collect()
}

/// A parameter's value as HTTP and the command line take it: as in tab-separated text.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('\t', "\\t")
        .replace('\n', "\\n")
        .replace('\r', "\\r")
}

/// Of a file: each ends with a semicolon at the end of a line.
pub fn statements(file: &str) -> impl Iterator<Item = &str> {
    file.split(";\n").map(str::trim).filter(|statement| {
        let mut lines = statement.lines();
        lines.any(|line| !line.is_empty() && !line.starts_with("--"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_apart() {
        let server = Server::parse("clickhouse://ann:s%40:x@db.example/fleet").unwrap();
        assert_eq!(server.url, "http://db.example:8123");
        assert_eq!(server.database.as_deref(), Some("fleet"));
        assert_eq!(server.user.as_deref(), Some("ann"));
        assert_eq!(server.password.as_deref(), Some("s@:x"));
        let url = |text| Server::parse(text).unwrap().url;
        assert_eq!(url("http://[::1]:8124"), "http://[::1]:8124");
        assert_eq!(url("https://[::1]/"), "https://[::1]:8443");
        for bad in ["db", "ftp://db", "http://", "http://a b", "http://a/b/c"] {
            assert!(Server::parse(bad).is_err(), "{bad}");
        }
        let said = Server::parse("tcp://ann:secret@db")
            .unwrap_err()
            .to_string();
        assert!(!said.contains("secret"), "{said}");
    }

    #[test]
    fn a_store_is_named_by_its_bucket() {
        let of = |text: &str, endpoint: Option<&str>, region: Option<&str>| {
            let rest = text.strip_prefix("s3://").unwrap();
            let found = Objects::of(text, rest, endpoint.map(Into::into), region.map(Into::into));
            found
                .map(|objects| objects.base)
                .map_err(|error| error.to_string())
        };
        assert_eq!(
            of("s3://fleet/a/b/", Some("http://127.0.0.1:9000/"), None).unwrap(),
            "http://127.0.0.1:9000/fleet/a/b"
        );
        assert_eq!(
            of("s3://fleet.x", None, Some("eu-central-1")).unwrap(),
            "https://s3.eu-central-1.amazonaws.com/fleet.x"
        );
        for bad in [
            "s3://",
            "s3:///x",
            "s3://a//b",
            "s3://a/*",
            "s3://a/{b}",
            "s3://a/b'c",
            "s3://a b",
        ] {
            assert!(
                of(bad, None, None)
                    .unwrap_err()
                    .contains("s3://BUCKET/PREFIX"),
                "{bad}"
            );
        }
        for bad in ["ftp://x", "http://", "http://a'b", "x"] {
            let said = of("s3://a", Some(bad), None).unwrap_err();
            assert!(said.contains("AWS_ENDPOINT_URL"), "{said}");
        }
        assert!(Objects::parse("/srv/fleet").is_none());
    }

    #[test]
    fn days_of_a_span_are_named() {
        let at = |text: &str| crate::when::when(text, 0).unwrap();
        let day = at("2026-11-27T10:00");
        // What was written until then may have begun a day before.
        assert_eq!(days((day, day + 1)), ["2026-11-26", "2026-11-27"]);
        let next = at("2026-12-01");
        assert_eq!(
            days((next - 1, next)),
            ["2026-11-29", "2026-11-30", "2026-12-01"]
        );
        assert_eq!(days((0, i64::MAX / 2_000_000)), ["*"]);
        assert_eq!(days((0, 5)), ["*"]);
    }

    #[test]
    fn statements_are_found_and_comments_are_none() {
        let found: Vec<_> = statements("-- a; b\nSELECT 1;\n\n-- c\nSELECT\n2;\n-- d\n").collect();
        assert_eq!(found, ["-- a; b\nSELECT 1", "-- c\nSELECT\n2"]);
    }

    #[test]
    fn a_value_stays_one() {
        assert_eq!(escaped("a\tb\\'\n"), "a\\tb\\\\'\\n");
    }
}
