// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox fleet`: which questions are there, and what do their answers look like?
//!
//! Each is a file of SQL; here are only its parameters, and how rows are shown.

use crate::engine::{Answer, Engine, Objects, Params, Place, Server};
use crate::error::Error;
use crate::load::load;
use crate::when::{now_ms, text_of, when};
use debox_cli::args::{
    FleetArgs, FleetDiffArgs, FleetFrom, FleetRows, FleetSqlArgs, FleetTopArgs, FleetVerb,
    FleetWhyArgs, ResultArgs,
};
use debox_cli::output;
use debox_output::{Column, Pen, Table, count_text, duration_text, printable, printable_lines};
use debox_report::{DiffOptions, Points, diff_points};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

const TOP_WAITS: &str = include_str!("../sql/top_waits.sql");
const TOP_THREADS: &str = include_str!("../sql/top_threads.sql");
const WHY_PERIOD: &str = include_str!("../sql/why_period.sql");
const WHY_WAITS: &str = include_str!("../sql/why_waits.sql");
const DIFF_POINTS: &str = include_str!("../sql/diff_points.sql");
const DIFF_WAITS: &str = include_str!("../sql/diff_waits.sql");
const DIFF_THREADS: &str = include_str!("../sql/diff_threads.sql");

const PARQUET: &str = "/var/lib/debox/fleet";
const MINUTE_MS: i64 = 60_000;
const TEN_MINUTES_MS: i64 = 10 * MINUTE_MS;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;
/// From so long on sums by hour answer, if they can,
const SUMS_FROM_MS: i64 = 6 * HOUR_MS;
/// and those of waits by ten minutes.
const TENS_FROM_MS: i64 = HOUR_MS;
/// Fewer hosts on a side of a comparison are told apart by stretches of their time as well.
const HOSTS_LEAST: u64 = 8;
const WHY_ROWS: usize = 12;
/// With several policies.
const WHY_ROWS_EACH: usize = 6;
const BYS: [&str; 4] = ["by1", "by2", "by3", "by4"];
const COLUMNS: [&str; 4] = ["column1", "column2", "column3", "column4"];
const KEYS: [&str; 4] = ["k1", "k2", "k3", "k4"];
const CLASSES: [&str; 6] = ["loss", "unknown", "input", "idle", "rest", "tool"];
/// What sums by hour and ten minutes have, and those of minutes over all hosts.
const BY_HOUR: [&str; 8] = [
    "host", "release", "unit", "program", "label", "class", "root", "state",
];
const BY_MINUTE: [&str; 5] = ["release", "unit", "label", "class", "root"];
const THREADS_BY_MINUTE: [&str; 4] = ["release", "unit", "program", "state"];
/// So long those of minutes are kept,
const MINUTES_KEPT_MS: i64 = 30 * DAY_MS;
/// and rows, and sums by ten minutes.
const ROWS_KEPT_MS: i64 = 7 * DAY_MS;
const OF_THREADS: [&str; 8] = [
    "host",
    "release",
    "policy",
    "unit",
    "container",
    "pod",
    "program",
    "state",
];

pub fn ask(args: FleetArgs) -> Result<i32, debox_cli::error::Error> {
    let done = match args.verb {
        FleetVerb::Top(args) => top(&args),
        FleetVerb::Why(args) => why(&args),
        FleetVerb::Diff(args) => diff(&args),
        FleetVerb::Sql(args) => sql(&args),
        FleetVerb::Load(args) => load(&args),
    };
    done.map(|()| 0).map_err(Into::into)
}

pub fn parquet_of(from: &FleetFrom) -> PathBuf {
    from.parquet.clone().unwrap_or_else(|| PARQUET.into())
}

fn engine(from: &FleetFrom) -> Result<Engine, Error> {
    let named = [
        from.parquet.is_some(),
        from.database.is_some(),
        from.url.is_some(),
    ];
    if named.into_iter().filter(|named| *named).count() > 1 {
        return Err(Error::Words(
            "a question goes to one place: --parquet, --database or --url".into(),
        ));
    }
    Engine::open(match (&from.database, &from.url) {
        (Some(path), _) if path.is_dir() => Place::Database(path.clone()),
        (Some(path), _) => return Err(Error::NoTables { path: path.clone() }),
        (None, Some(url)) => Place::Server(Server::parse(url)?),
        (None, None) => {
            let path = parquet_of(from);
            match path.to_str().and_then(Objects::parse) {
                Some(objects) => Place::Objects(objects?),
                None => Place::Parquet(path),
            }
        }
    })
}

/// What stands in a result's text.
struct Sheet {
    pen: Pen,
    text: String,
    width: Option<usize>,
}

impl Sheet {
    fn new(result: &ResultArgs) -> Self {
        let pen = Pen {
            color: false,
            ascii: output::ascii(),
        };
        Self {
            pen,
            text: String::new(),
            width: result.width(),
        }
    }

    fn line(&mut self, text: &str) {
        self.text += &self.pen.plain(&printable_lines(text));
        self.text.push('\n');
    }

    fn table(&mut self, columns: Vec<Column>) {
        self.text += &Table::from(columns).text(&self.pen, self.width);
    }
}

fn deliver(result: &ResultArgs, value: &Value, sheet: Sheet) -> Result<(), Error> {
    let text = match result.json {
        true => output::json(value),
        false => sheet.text,
    };
    Ok(output::deliver(result, &text)?)
}

/// Whether these columns are told of threads' time, and not of waits.
fn of_threads(by: &[String]) -> Result<bool, Error> {
    if by.len() > BYS.len() {
        return Err(Error::Words(
            "--by takes four columns at most, as more rows than that say little".into(),
        ));
    }
    let state = by.iter().any(|column| column == "state");
    match (by.iter()).find(|column| state && !OF_THREADS.contains(&column.as_str())) {
        Some(column) => Err(Error::Words(format!(
            "--by state is of threads' time, which is told apart by {}, and not by {column}",
            OF_THREADS.join(", ")
        ))),
        None => Ok(state),
    }
}

fn classes_of(rows: &FleetRows) -> Result<String, Error> {
    if rows.class.iter().any(|class| class == "all") {
        return Ok(String::new());
    }
    match rows
        .class
        .iter()
        .find(|class| !CLASSES.contains(&class.as_str()))
    {
        Some(class) => Err(Error::Words(format!(
            "--class takes {} or all, and {class:?} is none",
            CLASSES.join(", ")
        ))),
        None => Ok(rows.class.join(",")),
    }
}

/// "loss,unknown" as ClickHouse takes an array: names of [`CLASSES`], in which there is nothing to escape.
/// Whether a row's class is in it is asked once for each class, and not for each row, as of a text that is
/// split.
fn array_of(classes: &str) -> String {
    let quoted = classes.split(',').filter(|class| !class.is_empty());
    let quoted: Vec<String> = quoted.map(|class| format!("'{class}'")).collect();
    format!("[{}]", quoted.join(","))
}

/// The parameters of what is summed up by which columns.
fn by_params(by: &[String], threads: bool) -> Params {
    let mut params = Params::new();
    for at in 0..BYS.len() {
        let column = by.get(at).map_or("none", String::as_str);
        params.insert(BYS[at], column.into());
        if threads {
            let column = if column == "state" { "none" } else { column };
            params.insert(COLUMNS[at], column.into());
        }
    }
    params
}

fn keys(answer: &Answer, row: &[Value], by: &[String]) -> Vec<String> {
    (by.iter().zip(KEYS))
        .map(|(_, key)| answer.text(row, key))
        .collect()
}

/// What is not known is a dash.
fn key_columns(by: &[String], rows: &[Vec<String>], rank: u8) -> Vec<Column> {
    (by.iter().enumerate())
        .map(|(at, name)| {
            let cells = rows.iter().map(|row| match row[at].as_str() {
                "" => "-".into(),
                text => text.to_owned(),
            });
            Column::new(&name.to_uppercase(), rank, cells.collect()).left()
        })
        .collect()
}

fn share_cell(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Hours and minutes, where it is so long.
fn length_text(ms: i64) -> String {
    let minutes = ms.max(0) as f64 / 60_000.0;
    let hours = minutes / 60.0;
    match minutes {
        _ if hours >= 10.0 || hours >= 2.0 && hours.fract() < 0.05 => format!("{hours:.0} h"),
        _ if hours >= 2.0 => format!("{hours:.1} h"),
        _ if minutes >= 2.0 => format!("{minutes:.0} min"),
        _ => duration_text(ms.max(0) as u64 * 1_000_000, false),
    }
}

fn span_text(since_ms: i64, until_ms: i64) -> String {
    let length = length_text(until_ms - since_ms);
    format!(
        "{} to {} UTC ({length})",
        text_of(since_ms),
        text_of(until_ms)
    )
}

/// Which sums answer, and what they are of: of what is asked for they have all columns. `host`: of one, of which rows
/// are found at once.
fn source(
    has_sums: bool,
    threads: bool,
    by: &[String],
    host: bool,
    length_ms: i64,
    age_ms: i64,
) -> (&'static str, i64) {
    let within = |known: &[&str]| by.iter().all(|column| known.contains(&column.as_str()));
    let old = age_ms > ROWS_KEPT_MS;
    let hours = has_sums && (length_ms >= SUMS_FROM_MS || old) && within(&BY_HOUR);
    let tens = has_sums && !host && length_ms >= TENS_FROM_MS && within(&BY_HOUR);
    let minutes = has_sums && !host && age_ms <= MINUTES_KEPT_MS;
    match threads {
        true if minutes && within(&THREADS_BY_MINUTE) => ("threads_1m", MINUTE_MS),
        true if hours => ("threads_1h", HOUR_MS),
        true => ("threads", 1),
        false if minutes && within(&BY_MINUTE) => ("waits_1m", MINUTE_MS),
        false if hours => ("waits_1h", HOUR_MS),
        false if tens => ("waits_10m", TEN_MINUTES_MS),
        false => ("waits", 1),
    }
}

/// Sums begin and end with their minute or hour: of which time they are. What is to come is in none.
fn span_of(since_ms: i64, until_ms: i64, step: i64, now: i64) -> (i64, i64) {
    let ends = until_ms + (-until_ms).rem_euclid(step);
    let ends = ends.min(now.max(until_ms));
    (since_ms - since_ms.rem_euclid(step), ends)
}

fn top(args: &FleetTopArgs) -> Result<(), Error> {
    let default = ["unit", "label", "root"].map(str::to_owned).to_vec();
    let by = match args.rows.by.is_empty() {
        true => &default,
        false => &args.rows.by,
    };
    let threads = of_threads(by)?;
    let classes = classes_of(&args.rows)?;
    let now = now_ms();
    let until_ms = args
        .until
        .as_deref()
        .map_or(Ok(now), |until| when(until, now))?;
    let engine = engine(&args.from)?;
    let since_ms = until_ms - args.since.as_millis() as i64;
    let (mut source, mut step) = source(
        engine.has_sums(),
        threads,
        by,
        args.rows.host.is_some(),
        until_ms - since_ms,
        now - since_ms,
    );
    if source == "waits_10m" && !engine.has_tens()? {
        (source, step) = ("waits", 1);
    }
    let (since_ms, until_ms) = span_of(since_ms, until_ms, step, now);
    let has_hosts = !["waits_1m", "threads_1m"].contains(&source);
    let mut params = by_params(by, threads);
    params.insert("source", source.into());
    params.insert("since_ms", since_ms.to_string());
    params.insert("until_ms", until_ms.to_string());
    params.insert("host", args.rows.host.clone().unwrap_or_default());
    params.insert("limit", args.rows.top.to_string());
    params.insert("hosts", if has_hosts { "host" } else { "none" }.into());
    let sql = if threads {
        TOP_THREADS
    } else {
        params.insert("classes", array_of(&classes));
        TOP_WAITS
    };
    let answer = engine.ask(sql, &params, (since_ms, until_ms))?;
    let rows = &answer.rows;
    let names: Vec<Vec<String>> = rows.iter().map(|row| keys(&answer, row, by)).collect();
    let mut sheet = Sheet::new(&args.result);
    let what = match (threads, classes.as_str()) {
        (true, _) => "Where threads' time went".into(),
        (false, "") => "Waits of all classes".into(),
        (false, classes) => format!("Waits of the classes {}", classes.replace(',', ", ")),
    };
    sheet.line(&format!("{what}, {}", span_text(since_ms, until_ms)));
    if rows.is_empty() {
        sheet.line("  Nothing was told of that time.");
    } else {
        let cells = |of: &dyn Fn(&[Value]) -> String| rows.iter().map(|row| of(row)).collect();
        let time = |name: &'static str| {
            let answer = &answer;
            move |row: &[Value]| duration_text(answer.count(row, name), false)
        };
        let main = if threads { "ns" } else { "blocked_ns" };
        let title = if threads { "TIME" } else { "BLOCKED" };
        let mut columns = key_columns(by, &names, 0);
        columns.push(Column::new(title, 0, cells(&time(main))));
        let share = |row: &[Value]| share_cell(answer.number(row, "share"));
        columns.push(Column::new("SHARE", 3, cells(&share)));
        if !threads {
            let sleeps = |row: &[Value]| count_text(answer.count(row, "sleeps"));
            columns.push(Column::new("SLEEPS", 2, cells(&sleeps)));
            columns.push(Column::new("LONGEST", 4, cells(&time("longest_ns"))));
        }
        if has_hosts {
            let hosts = |row: &[Value]| count_text(answer.count(row, "hosts"));
            columns.push(Column::new("HOSTS", 5, cells(&hosts)));
        }
        sheet.table(columns);
    }
    let told: Vec<Value> = (rows.iter().zip(&names))
        .map(|(row, names)| {
            let mut value = serde_json::Map::new();
            for (column, name) in by.iter().zip(names) {
                value.insert(column.clone(), name.clone().into());
            }
            let numbers: &[&str] = match threads {
                true => &["ns"],
                false => &["sleeps", "blocked_ns", "longest_ns"],
            };
            for name in numbers {
                value.insert((*name).into(), answer.count(row, name).into());
            }
            value.insert("share".into(), answer.number(row, "share").into());
            if has_hosts {
                value.insert("hosts".into(), answer.count(row, "hosts").into());
            }
            value.into()
        })
        .collect();
    let value = json!({
        "schema": "debox.fleet-top", "schema_version": 1, "since_unix_ms": since_ms,
        "until_unix_ms": until_ms, "source": source, "by": by, "rows": told,
    });
    deliver(&args.result, &value, sheet)
}

/// A period of a policy, as [`WHY_PERIOD`] has it.
struct Told {
    policy: String,
    begin_ms: i64,
    end_ms: i64,
    verdict: String,
    incomplete: String,
    release: String,
    kernel: String,
    debox_version: String,
    capture: String,
}

impl Told {
    fn read(answer: &Answer, row: &[Value]) -> Self {
        let text = |name| answer.text(row, name);
        let number = |name| answer.number(row, name) as i64;
        Self {
            policy: text("policy"),
            begin_ms: number("begin_ms"),
            end_ms: number("end_ms"),
            verdict: text("verdict"),
            incomplete: text("incomplete"),
            release: text("release"),
            kernel: text("kernel"),
            debox_version: text("debox_version"),
            capture: text("capture"),
        }
    }

    fn json(&self) -> Value {
        json!({
            "policy": self.policy, "begin_unix_ms": self.begin_ms, "end_unix_ms": self.end_ms,
            "release": self.release, "kernel": self.kernel, "debox_version": self.debox_version,
            "capture": self.capture, "verdict": self.verdict.lines().collect::<Vec<_>>(),
            "incomplete": self.incomplete,
        })
    }

    fn show(&self, host: &str, at_ms: i64, sheet: &mut Sheet) {
        let of = match self.policy.as_str() {
            "" => String::new(),
            policy => format!(", policy {}", printable(policy)),
        };
        sheet.line(&format!(
            "{}, {}{of}",
            printable(host),
            span_text(self.begin_ms, self.end_ms)
        ));
        if self.end_ms <= at_ms {
            sheet.line("  (the last that was told before that moment)");
        } else if self.begin_ms > at_ms {
            sheet.line("  (the first that was told after that moment)");
        }
        match self.verdict.as_str() {
            "" => sheet.line("  Nothing stands out."),
            text => text.lines().for_each(|line| sheet.line(line)),
        }
        if !self.incomplete.is_empty() {
            sheet.line(&format!(
                "  What is lacking: {}",
                printable(&self.incomplete)
            ));
        }
    }
}

/// The periods whose waits are asked for: which policy's, in whose lengths, from when, until when. What came over OTLP
/// has no policy, and is asked for as long as the first one is.
fn why_params(told: &[Told], params: &mut Params) {
    let first = told.first();
    let all = || {
        let none = first.filter(|_| told.iter().all(|is| !is.policy.is_empty()));
        let none = none.map(|first| ("", first));
        told.iter().map(|is| (is.policy.as_str(), is)).chain(none)
    };
    let list = |of: &dyn Fn((&str, &Told)) -> String| {
        let cells: Vec<String> = all().map(of).collect();
        format!("[{}]", cells.join(","))
    };
    params.insert("policies", list(&|(policy, _)| hex(policy)));
    params.insert("whose", list(&|(_, is)| hex(&is.policy)));
    params.insert("begins_ms", list(&|(_, is)| is.begin_ms.to_string()));
    params.insert("ends_ms", list(&|(_, is)| is.end_ms.to_string()));
}

/// Any text within an array of texts: in hexadecimal there is nothing to escape, twice over.
fn hex(text: &str) -> String {
    let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("'{digits}'")
}

fn why(args: &FleetWhyArgs) -> Result<(), Error> {
    let now = now_ms();
    let at_ms = args.at.as_deref().map_or(Ok(now), |at| when(at, now))?;
    let engine = engine(&args.from)?;
    let mut params = Params::new();
    params.insert("host", args.host.clone());
    params.insert("policy", args.policy.clone().unwrap_or_default());
    params.insert("at_ms", at_ms.to_string());
    let answer = engine.ask(WHY_PERIOD, &params, (at_ms - DAY_MS, at_ms + HOUR_MS + 1))?;
    let told: Vec<Told> = (answer.rows.iter())
        .map(|row| Told::read(&answer, row))
        .collect();
    let (Some(since_ms), Some(until_ms)) = (
        told.iter().map(|is| is.begin_ms).min(),
        told.iter().map(|is| is.end_ms).max(),
    ) else {
        let policy = match &args.policy {
            Some(policy) => format!("the policy {policy:?} of "),
            None => String::new(),
        };
        return Err(Error::Nothing(format!(
            "of {policy}the host {:?} nothing was told in the day before {} UTC, nor in the hour behind: `debox fleet top --by \
             host,policy --class all` says of which ones something was",
            args.host,
            text_of(at_ms)
        )));
    };
    let since_ms = since_ms - DAY_MS;
    let several = told.len() > 1;
    let limit = if several { WHY_ROWS_EACH } else { WHY_ROWS };
    let mut params = Params::new();
    params.insert("host", args.host.clone());
    params.insert("since_ms", since_ms.to_string());
    params.insert("until_ms", until_ms.to_string());
    params.insert("classes", array_of("loss,unknown"));
    params.insert("limit", limit.to_string());
    why_params(&told, &mut params);
    let waits = engine.ask(WHY_WAITS, &params, (since_ms, until_ms))?;

    let mut sheet = Sheet::new(&args.result);
    for is in &told {
        is.show(&args.host, at_ms, &mut sheet);
    }
    let rows = &waits.rows;
    if !rows.is_empty() {
        sheet.line("");
        let text = |name: &str| -> Vec<String> {
            let cells = rows.iter().map(|row| waits.text(row, name));
            cells
                .map(|cell| if cell.is_empty() { "-".into() } else { cell })
                .collect()
        };
        let time = |row: &[Value], name| duration_text(waits.count(row, name), false);
        let usually = |row: &Vec<Value>| match waits.is_null(row, "usually_ns") {
            true => "?".into(),
            false => time(row, "usually_ns"),
        };
        let cells = |of: &dyn Fn(&[Value]) -> String| rows.iter().map(|row| of(row)).collect();
        let mut columns = vec![
            Column::new("BLOCKED", 0, cells(&|row| time(row, "blocked_ns"))),
            Column::new("USUALLY", 1, rows.iter().map(usually).collect()),
            Column::new(
                "SLEEPS",
                4,
                cells(&|row| count_text(waits.count(row, "sleeps"))),
            ),
            Column::new("LONGEST", 5, cells(&|row| time(row, "longest_ns"))),
            Column::new("LABEL", 0, text("label")).left(),
            Column::new("ROOT", 0, text("root")).left(),
            Column::new("CALL", 3, text("call")).left(),
            Column::new("PROGRAM", 0, text("program")).left(),
            Column::new("UNIT", 2, text("unit")).left(),
        ];
        if several {
            columns.push(Column::new("POLICY", 0, text("policy")).left());
        }
        sheet.table(columns);
    }
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            let usually = match waits.is_null(row, "usually_ns") {
                true => Value::Null,
                false => waits.count(row, "usually_ns").into(),
            };
            json!({
                "policy": waits.text(row, "policy"),
                "unit": waits.text(row, "unit"), "program": waits.text(row, "program"),
                "call": waits.text(row, "call"), "label": waits.text(row, "label"),
                "root": waits.text(row, "root"), "sleeps": waits.count(row, "sleeps"),
                "blocked_ns": waits.count(row, "blocked_ns"),
                "longest_ns": waits.count(row, "longest_ns"), "usually_ns": usually,
            })
        })
        .collect();
    let value = json!({
        "schema": "debox.fleet-why", "schema_version": 1, "host": args.host,
        "policies": told.iter().map(Told::json).collect::<Vec<_>>(), "waits": rows,
    });
    deliver(&args.result, &value, sheet)
}

/// One side of a comparison: a release, or FROM..TO.
struct Which {
    release: String,
    since_ms: i64,
    until_ms: i64,
}

fn which(text: &str, length_ms: i64, now: i64) -> Result<Which, Error> {
    Ok(match text.split_once("..") {
        Some((from, to)) => Which {
            release: String::new(),
            since_ms: when(from, now)?,
            until_ms: when(to, now)?,
        },
        None if text.is_empty() => {
            return Err(Error::Words(
                "--before and --after take a release's name, or FROM..TO".into(),
            ));
        }
        None => Which {
            release: text.into(),
            since_ms: now - length_ms,
            until_ms: now,
        },
    })
}

/// Points by side.
type Sides = [BTreeMap<String, f64>; 2];

fn side_of(answer: &Answer, row: &[Value]) -> usize {
    usize::from(answer.text(row, "side") == "b")
}

fn diff(args: &FleetDiffArgs) -> Result<(), Error> {
    if args.confidence < 0.5 {
        return Err(Error::Words(
            "--confidence below 50 % would call noise a change: use 90, 95 or 99".into(),
        ));
    }
    let default = ["label", "root"].map(str::to_owned).to_vec();
    let by = match args.rows.by.is_empty() {
        true => &default,
        false => &args.rows.by,
    };
    let threads = of_threads(by)?;
    let classes = classes_of(&args.rows)?;
    let now = now_ms();
    let length_ms = args.since.as_millis() as i64;
    let sides = [
        which(&args.before, length_ms, now)?,
        which(&args.after, length_ms, now)?,
    ];
    let engine = engine(&args.from)?;
    let mut common = Params::new();
    let names = [
        ["a_release", "a_since_ms", "a_until_ms"],
        ["b_release", "b_since_ms", "b_until_ms"],
    ];
    for (side, [release, since, until]) in sides.iter().zip(names) {
        common.insert(release, side.release.clone());
        common.insert(since, side.since_ms.to_string());
        common.insert(until, side.until_ms.to_string());
    }
    common.insert("host", args.rows.host.clone().unwrap_or_default());
    let span = (
        sides[0].since_ms.min(sides[1].since_ms),
        sides[0].until_ms.max(sides[1].until_ms),
    );
    let points = |by_time: bool| -> Result<(Sides, [u64; 2]), Error> {
        let mut params = common.clone();
        params.insert("by_time", u8::from(by_time).to_string());
        let answer = engine.ask(DIFF_POINTS, &params, span)?;
        let (mut seconds, mut hosts) = (Sides::default(), [0; 2]);
        for row in &answer.rows {
            let side = side_of(&answer, row);
            seconds[side].insert(answer.text(row, "point"), answer.number(row, "seconds"));
            hosts[side] += answer.count(row, "hosts");
        }
        Ok((seconds, hosts))
    };
    let (mut seconds, hosts) = points(false)?;
    for (side, which) in [(0, &args.before), (1, &args.after)] {
        if seconds[side].is_empty() {
            return Err(Error::Nothing(format!(
                "nothing was told of {which:?}: `debox fleet top --by release,host --class all` says of what something was"
            )));
        }
    }
    let by_time = hosts[0].min(hosts[1]) < HOSTS_LEAST;
    if by_time {
        seconds = points(true)?.0;
    }
    let mut params = common.clone();
    params.extend(by_params(by, threads));
    params.insert("by_time", u8::from(by_time).to_string());
    params.insert("source", if threads { "threads" } else { "waits" }.into());
    let sql = if threads {
        DIFF_THREADS
    } else {
        params.insert("classes", array_of(&classes));
        DIFF_WAITS
    };
    let answer = engine.ask(sql, &params, span)?;
    let mut found: BTreeMap<Vec<String>, Sides> = BTreeMap::new();
    for row in &answer.rows {
        let sums = found.entry(keys(&answer, row, by)).or_default();
        let sum = sums[side_of(&answer, row)]
            .entry(answer.text(row, "point"))
            .or_default();
        *sum += answer.number(row, "ns");
    }
    // Who did not wait for something has waited for 0 ns.
    let series: Vec<Points> = found
        .into_iter()
        .map(|(name, sums)| {
            let of = |side: usize| {
                let points = seconds[side].iter();
                points
                    .map(|(point, seconds)| {
                        (sums[side].get(point).copied().unwrap_or(0.0), *seconds)
                    })
                    .collect()
            };
            Points {
                name,
                a: of(0),
                b: of(1),
            }
        })
        .collect();
    let options = DiffOptions {
        confidence: args.confidence,
        ..DiffOptions::default()
    };
    let changes = diff_points(&series, &options).ok_or_else(|| {
        Error::Nothing(format!(
            "too little was told to say how sure a change is: {} points of hosts and ten minutes before, {} after, and \
             eight are needed of each",
            seconds[0].len(),
            seconds[1].len()
        ))
    })?;

    let mut sheet = Sheet::new(&args.result);
    for (title, side) in [("before", 0), ("after", 1)] {
        let of = &sides[side];
        let which = match of.release.as_str() {
            "" => String::new(),
            release => format!("{}, ", printable(release)),
        };
        let watched: f64 = seconds[side].values().sum();
        sheet.line(&format!(
            "{title}: {which}{}, {} hosts, watched for {} in all",
            span_text(of.since_ms, of.until_ms),
            count_text(hosts[side]),
            length_text((watched * 1e3) as i64)
        ));
    }
    let sure: Vec<_> = changes.iter().filter(|c| c.significant).collect();
    match sure.is_empty() {
        true => sheet.line(&format!(
            "\nNo significant difference in {} comparisons.",
            changes.len()
        )),
        false => sheet.line("\nWhat changed, in a second of a host, largest first"),
    }
    for change in sure.iter().take(args.rows.top) {
        let name: Vec<String> = change.name.iter().map(|part| shown(part)).collect();
        sheet.line(&format!("  {}: {}", name.join(", "), change.text));
    }
    if sure.len() > args.rows.top {
        sheet.line(&format!("  ({} more)", sure.len() - args.rows.top));
    }
    let unsure: Vec<_> = changes.iter().filter(|c| !c.significant).collect();
    if !unsure.is_empty() {
        sheet.line("\nNot sure, or too small to matter");
        for change in unsure.iter().take(args.rows.top.min(8)) {
            let name: Vec<String> = change.name.iter().map(|part| shown(part)).collect();
            sheet.line(&format!("  {}: {}", name.join(", "), change.text));
        }
    }
    sheet.line(&format!(
        "\nnote: Were the sides alike, one of these {} comparisons would be called a change in {:.0} % of cases. What \
         differs from {} is in the intervals; what else was changed between the sides is not.",
        changes.len(),
        (1.0 - args.confidence) * 100.0,
        if by_time { "one ten minutes to the next" } else { "host to host" }
    ));
    let side = |at: usize| {
        json!({
            "release": sides[at].release, "since_unix_ms": sides[at].since_ms,
            "until_unix_ms": sides[at].until_ms, "hosts": hosts[at],
            "points": seconds[at].len(), "seconds": seconds[at].values().sum::<f64>(),
        })
    };
    let value = json!({
        "schema": "debox.fleet-diff", "schema_version": 1, "before": side(0), "after": side(1),
        "by": by, "by_time": by_time, "confidence": args.confidence, "changes": changes,
    });
    deliver(&args.result, &value, sheet)
}

fn shown(part: &str) -> String {
    match part {
        "" => "-".into(),
        part => printable(part),
    }
}

fn sql(args: &FleetSqlArgs) -> Result<(), Error> {
    let engine = engine(&args.from)?;
    let mut text = args.sql.clone();
    if text == "-" {
        text.clear();
        let read = std::io::stdin().lock().read_to_string(&mut text);
        read.map_err(|source| Error::Read {
            path: "standard input".into(),
            source,
        })?;
    }
    let answer = engine.ask(
        text.trim().trim_end_matches(';'),
        &Params::new(),
        (0, i64::MAX / 2_000_000),
    )?;
    let mut sheet = Sheet::new(&args.result);
    let cell = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    };
    let columns = (answer.names.iter().zip(&answer.types).enumerate())
        .map(|(at, (name, kind))| {
            let cells = answer
                .rows
                .iter()
                .map(|row| row.get(at).map_or(String::new(), cell));
            let column = Column::new(name, 0, cells.collect());
            let is_number = ["Int", "UInt", "Float", "Decimal"]
                .iter()
                .any(|number| kind.trim_start_matches("Nullable(").starts_with(number));
            if is_number { column } else { column.left() }
        })
        .collect();
    sheet.table(columns);
    let rows: Vec<Value> = (answer.rows.iter())
        .map(|row| {
            let pairs = answer.names.iter().cloned().zip(row.iter().cloned());
            Value::Object(pairs.collect())
        })
        .collect();
    deliver(&args.result, &rows.into(), sheet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_answers_has_what_is_asked_for_of_that_time() {
        let of = |by: &[&str], host, hours: i64, age_hours: i64| {
            let by: Vec<String> = by.iter().map(|column| (*column).to_owned()).collect();
            let threads = by.iter().any(|column| column == "state");
            let (length_ms, age_ms) = (hours * HOUR_MS, age_hours * HOUR_MS);
            let (source, step) = source(true, threads, &by, host, length_ms, age_ms);
            let rows = super::source(false, threads, &by, host, length_ms, age_ms);
            assert_eq!(rows, (if threads { "threads" } else { "waits" }, 1));
            (source, step / MINUTE_MS)
        };
        let (wide, whose) = (&["unit", "root"][..], &["host", "program", "root"][..]);
        for age in [1, 7 * 24, 30 * 24] {
            assert_eq!(of(wide, false, 1, age), ("waits_1m", 1));
        }
        // What is older than the rows is in sums by hour, however short it is.
        assert_eq!(of(wide, false, 1, 31 * 24), ("waits_1h", 60));
        assert_eq!(of(whose, false, 1, 8 * 24), ("waits_1h", 60));
        assert_eq!(of(&["host", "state"], false, 1, 8 * 24), ("threads_1h", 60));
        assert_eq!(of(whose, false, 6, 6), ("waits_1h", 60));
        assert_eq!(of(whose, false, 5, 7 * 24), ("waits_10m", 10));
        assert_eq!(of(whose, false, 1, 1), ("waits_10m", 10));
        // Of one host, of less time, and by what sums have not.
        assert_eq!(of(whose, true, 1, 1), ("waits", 0));
        assert_eq!(of(whose, false, 0, 1), ("waits", 0));
        assert_eq!(of(&["host", "call"], false, 24, 24), ("waits", 0));
        assert_eq!(of(&["host", "state"], false, 1, 1), ("threads", 0));
    }

    #[test]
    fn a_span_is_that_of_what_it_is_summed_up_from() {
        let at = |hours: i64, minutes: i64| hours * HOUR_MS + minutes * MINUTE_MS;
        let now = at(100, 40);
        for (since, until, step, is) in [
            (at(90, 30), at(99, 30), HOUR_MS, (at(90, 0), at(100, 0))),
            (at(90, 0), at(99, 0), HOUR_MS, (at(90, 0), at(99, 0))),
            (at(90, 30), now, HOUR_MS, (at(90, 0), now)),
            (at(90, 30), at(100, 30), HOUR_MS, (at(90, 0), now)),
            (at(90, 30) + 1, now - 1, MINUTE_MS, (at(90, 30), now)),
            (at(99, 35), at(100, 35), TEN_MINUTES_MS, (at(99, 30), now)),
            (at(90, 30) + 1, now - 1, 1, (at(90, 30) + 1, now - 1)),
            (at(99, 0), at(101, 30), HOUR_MS, (at(99, 0), at(101, 30))),
        ] {
            assert_eq!(
                span_of(since, until, step, now),
                is,
                "{since} {until} {step}"
            );
        }
    }
}
