// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox fleet load`: how do files of Parquet get into a database?
//!
//! A server is sent each file, and its name as the mark by which ClickHouse knows an insert again: one that was cut off
//! adds nothing twice, to the sums neither. A database in a directory has its engine read them, a list of files of a
//! table's day at once, which stands in the table `begun` before: where a load is cut off, the next one does the same
//! list again first, with the same mark, and all before it stays. What came over OTLP is in the engine already, in the
//! tables of OpenTelemetry's exporter; which of it is taken at once stands in `begun` likewise, in a server, too.
//!
//! What is in the table `loaded` is left out. That knows a file for longer than any of its rows is kept; files of days
//! of which nothing is kept any more are not taken.

use crate::command::parquet_of;
use crate::engine::{Engine, Params, Place, Server, statements};
use crate::error::Error;
use crate::store::date_of;
use crate::when::now_ms;
use debox_cli::args::FleetLoadArgs;
use debox_cli::output;
use debox_output::count_text;
use rustix::fs::{FlockOperation, flock};
use serde_json::json;
use std::collections::{BTreeMap, HashSet};
use std::fs::{File, FileType};
use std::path::Path;

const SCHEMA: &str = include_str!("../sql/schema.sql");
const LOAD: &str = include_str!("../sql/load.sql");
/// Of what came over OTLP: what a mark begins with, and how that is taken.
const OTEL: [(&str, &str); 2] = [
    ("otel/", include_str!("../sql/otel_readings.sql")),
    ("otel-period/", include_str!("../sql/otel_periods.sql")),
];
const SEND: &str = "INSERT INTO {table:Identifier} FORMAT Parquet";
const SENT: &str = "INSERT INTO loaded (file) SELECT {file:String}";
/// Of the days from `first` to `last`; "0" comes next to "/".
const KNOWN: &str = "SELECT file FROM loaded WHERE \
    (file >= concat('waits/', {first:String}) AND file < concat('waits/', {last:String}, '0')) OR \
    (file >= concat('threads/', {first:String}) AND file < concat('threads/', {last:String}, '0')) OR \
    (file >= concat('calls/', {first:String}) AND file < concat('calls/', {last:String}, '0')) OR \
    (file >= concat('periods/', {first:String}) AND file < concat('periods/', {last:String}, '0'))";
const COUNT: &str = "SELECT count() AS files FROM loaded";
/// Lists of a load that was cut off. All of a list is loaded at once.
const BEGUN: &str = "SELECT mark, file FROM begun \
    WHERE file NOT IN (SELECT file FROM loaded WHERE file IN (SELECT file FROM begun)) ORDER BY mark, file";
/// Files of so many bytes are one block of rows, which is some hundred MB in memory.
const LIST_BYTES: u64 = 8 << 20;
/// Their names are one argument of a command, where a character may take two.
const LIST_NAMES_BYTES: usize = 32 << 10;
/// Stand between names of files, and in none.
const SLASHES: &str = "//";
/// In the folder of a database: who has its lock loads.
const LOCK: &str = ".debox-load";
/// Sums by hour are kept for so long, and nothing for longer.
const KEPT_DAYS: i64 = 400;
const DAY_MS: i64 = 86_400_000;
/// The one that tells of the others comes last.
pub const TABLES: [&str; 4] = ["waits", "threads", "calls", "periods"];

/// Names of files, by the number of their table and their day.
type Found = BTreeMap<(usize, String), Vec<String>>;

/// Below `root`: table/date=.../host=.../name.parquet, by table and day.
fn files(root: &Path) -> Result<Found, Error> {
    fn names(path: &Path, fits: fn(FileType) -> bool) -> Result<Vec<String>, Error> {
        let read = |source| Error::Read {
            path: path.to_owned(),
            source,
        };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path).map_err(read)? {
            let entry = entry.map_err(read)?;
            // What others laid there may lead elsewhere, or be waited for.
            if entry.file_type().is_ok_and(fits) {
                // Ours are always text.
                names.extend(entry.file_name().into_string());
            }
        }
        names.sort_unstable();
        Ok(names)
    }
    let mut found = Found::new();
    for (at, table) in TABLES.iter().enumerate() {
        let path = root.join(table);
        if !path.is_dir() {
            continue;
        }
        for day in names(&path, |kind| kind.is_dir())?
            .into_iter()
            .filter(|name| is_day(name))
        {
            for host in names(&path.join(&day), |kind| kind.is_dir())?
                .into_iter()
                .filter(|n| n.starts_with("host="))
            {
                let all = found.entry((at, day.clone())).or_default();
                let files = names(&path.join(&day).join(&host), |kind| kind.is_file())?;
                all.extend(
                    (files.iter())
                        .filter(|name| name.ends_with(".parquet") && !name.starts_with('.'))
                        .map(|name| format!("{table}/{day}/{host}/{name}")),
                );
            }
        }
    }
    Ok(found)
}

/// "date=2026-11-27": it goes into a pattern of names.
fn is_day(name: &str) -> bool {
    let is_date = |date: &str| date.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    name.strip_prefix("date=").is_some_and(is_date)
}

/// The files of these days that are loaded.
fn known(engine: &Engine, first: &str, last: &str) -> Result<HashSet<String>, Error> {
    let mut params = Params::new();
    params.insert("first", first.into());
    params.insert("last", last.into());
    let answer = engine.run(&[KNOWN], &params)?;
    let rows = answer.rows.iter();
    Ok(rows.map(|row| answer.text(row, "file")).collect())
}

fn count(engine: &Engine) -> Result<u64, Error> {
    let answer = engine.run(&[COUNT], &Params::new())?;
    let rows = answer.rows.first();
    Ok(rows.map_or(0, |row| answer.count(row, "files")))
}

/// Until the file is closed nobody else loads into this folder.
fn lock(path: &Path) -> Result<File, Error> {
    let path = path.join(LOCK);
    let read = |source| Error::Read {
        path: path.clone(),
        source,
    };
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(read)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Busy { path }),
        Err(error) => Err(read(error.into())),
    }
}

/// Those of a table's day, as they are loaded at once.
fn lists<'a>(root: &Path, files: &'a [String]) -> Vec<&'a [String]> {
    let mut lists = Vec::new();
    let (mut from, mut bytes, mut names_bytes) = (0, 0, 0);
    for (at, file) in files.iter().enumerate() {
        // One that is gone meanwhile adds nothing.
        let more = root.join(file).metadata().map_or(0, |data| data.len());
        let is_full = bytes + more > LIST_BYTES || names_bytes + file.len() > LIST_NAMES_BYTES;
        if at > from && is_full {
            lists.push(&files[from..at]);
            (from, bytes, names_bytes) = (at, 0, 0);
        }
        bytes += more;
        names_bytes += file.len() + SLASHES.len();
    }
    if from < files.len() {
        lists.push(&files[from..]);
    }
    lists
}

/// Into a database in a directory. The list's mark is a file of it: no other list has that. `files`: it is none that
/// was begun before.
fn load_here(engine: &Engine, mark: &str, files: Option<&[String]>) -> Result<(), Error> {
    let mut names = mark.split('/');
    let mut name = || names.next().unwrap_or_default();
    let (table, day) = (name(), name());
    let mut params = Params::new();
    params.insert("mark", mark.into());
    params.insert("table", table.into());
    params.insert("glob", format!("{table}/{day}/host=*/*.parquet"));
    if let Some(files) = files {
        params.insert("files", files.join(SLASHES));
    }
    let load: Vec<&str> = (statements(LOAD))
        .skip(usize::from(files.is_none()))
        .collect();
    engine.run(&load, &params).map(drop)
}

/// What a load that was cut off had begun, by marks.
fn begun(engine: &Engine) -> Result<BTreeMap<String, Vec<String>>, Error> {
    let answer = engine.run(&[BEGUN], &Params::new())?;
    let mut begun: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in &answer.rows {
        let files = begun.entry(answer.text(row, "mark")).or_default();
        files.push(answer.text(row, "file"));
    }
    Ok(begun)
}

/// Loads what was begun; which files that is. Lists of another directory's files wait for that.
fn go_on(engine: &Engine, root: &Path) -> Result<HashSet<String>, Error> {
    let mut begun = begun(engine)?;
    begun.retain(|_, files| files.iter().any(|file| root.join(file).is_file()));
    for mark in begun.keys() {
        load_here(engine, mark, None)?;
    }
    Ok(begun.into_values().flatten().collect())
}

/// To a server: one after the other.
fn load_there(
    engine: &Engine,
    server: &Server,
    root: &Path,
    table: &str,
    files: &[String],
) -> Result<(), Error> {
    let mut params = Params::new();
    params.insert("table", table.into());
    for file in files {
        engine.send(server, SEND, &params, &root.join(file), file)?;
        let mut params = Params::new();
        params.insert("file", file.clone());
        engine.run(&[SENT], &params)?;
    }
    Ok(())
}

/// How many files.
#[derive(Default)]
struct Loaded {
    new: u64,
    known: u64,
    /// Nothing is kept of their days.
    old: u64,
}

/// Those of days of which something is kept.
fn of_interest(mut found: Found, loaded: &mut Loaded) -> Found {
    let oldest = oldest();
    found.retain(|(_, day), files| {
        let old = *day < oldest;
        loaded.old += if old { files.len() as u64 } else { 0 };
        !old
    });
    found
}

/// Of days before that nothing is kept.
fn oldest() -> String {
    let since_ms = now_ms().saturating_sub(KEPT_DAYS * DAY_MS).max(0);
    format!("date={}", date_of(since_ms as u64 * 1_000_000))
}

/// What OpenTelemetry's exporter has put beside the tables.
fn load_otel(args: &FleetLoadArgs, otel: &str) -> Result<(), Error> {
    let place = match (&args.from.database, &args.from.url) {
        (Some(path), _) => Place::Database(path.clone()),
        (None, Some(url)) => Place::Server(Server::parse(url)?),
        (None, None) => {
            return Err(Error::Words(
                "where the exporter's tables are is missing: --url of a server, or --database DIR"
                    .into(),
            ));
        }
    };
    let _lock = match &place {
        Place::Database(path) => Some(lock(path)?),
        _ => None,
    };
    let engine = Engine::open(place)?;
    let schema: Vec<&str> = statements(SCHEMA).collect();
    engine.run(&schema, &Params::new())?;
    let before = count(&engine)?;
    let begun = begun(&engine)?;
    let mut params = Params::new();
    params.insert("otel", otel.into());
    for (kind, sql) in OTEL {
        let all: Vec<&str> = statements(sql).collect();
        let whose = format!("{kind}{otel}");
        // Another of the exporter's databases has other readings.
        let is_ours = |mark: &&String| mark.rsplit_once('/').is_some_and(|(of, _)| of == whose);
        let begun = begun.keys().filter(is_ours);
        let begun = begun.map(|mark| (mark.clone(), true));
        // No other load has that.
        let mark = format!("{whose}/{}-{}", now_ms(), std::process::id());
        for (mark, again) in begun.chain([(mark, false)]) {
            params.insert("mark", mark);
            params.insert("again", u8::from(again).to_string());
            engine.run(&all, &params)?;
        }
    }
    let new = count(&engine)?.saturating_sub(before);
    engine.close()?;
    let text = format!("{} readings and periods were loaded.\n", count_text(new));
    let value = json!({ "schema": "debox.fleet-load", "schema_version": 1, "readings": new });
    let text = match args.result.json {
        true => output::json(&value),
        false => text,
    };
    Ok(output::deliver(&args.result, &text)?)
}

pub fn load(args: &FleetLoadArgs) -> Result<(), Error> {
    if let Some(otel) = &args.otel {
        return load_otel(args, otel);
    }
    let root = parquet_of(&args.from);
    if root.starts_with("s3:") {
        return Err(Error::Words(format!(
            "load takes files of a directory: `debox fleet top --parquet {}` asks about those of a store where they are",
            root.display()
        )));
    }
    let root = root.canonicalize().map_err(|source| Error::Read {
        path: root.clone(),
        source,
    })?;
    if !root.join("periods").is_dir() {
        return Err(Error::NoTables { path: root });
    }
    let place = match (&args.from.database, &args.from.url) {
        (Some(path), _) => {
            debox_output::create_directory(path).map_err(|source| Error::Read {
                path: path.clone(),
                source,
            })?;
            Place::Database(path.clone())
        }
        (None, Some(url)) => Place::Server(Server::parse(url)?),
        (None, None) => {
            return Err(Error::Words(
                "where to load the files is missing: --url of a server, or --database DIR".into(),
            ));
        }
    };
    let _lock = match &place {
        Place::Database(path) => Some(lock(path)?),
        _ => None,
    };
    let engine = Engine::open_with(place, Some(&root))?;
    let schema: Vec<&str> = statements(SCHEMA).collect();
    engine.run(&schema, &Params::new())?;
    let mut loaded = Loaded::default();
    let found = of_interest(files(&root)?, &mut loaded);
    let days = found.keys().map(|(_, day)| day);
    let known = match (days.clone().min(), days.max()) {
        (Some(first), Some(last)) => known(&engine, first, last)?,
        _ => HashSet::new(),
    };
    let again = match engine.place() {
        Place::Server(_) => HashSet::new(),
        _ => go_on(&engine, &root)?,
    };
    for ((at, _), mut files) in found {
        let before = files.len();
        files.retain(|file| !known.contains(file));
        loaded.known += (before - files.len()) as u64;
        loaded.new += files.len() as u64;
        files.retain(|file| !again.contains(file));
        match engine.place() {
            Place::Server(server) => load_there(&engine, server, &root, TABLES[at], &files)?,
            _ => {
                for list in lists(&root, &files) {
                    load_here(&engine, &list[0], Some(list))?;
                }
            }
        }
    }
    engine.close()?;
    let Loaded { new, known, old } = loaded;
    let mut text = format!(
        "{} files were loaded, {} were there already.\n",
        count_text(new),
        count_text(known)
    );
    if old > 0 {
        text.push_str(&format!(
            "{} were left out: of days more than {KEPT_DAYS} ago nothing is kept.\n",
            count_text(old)
        ));
    }
    let value = json!({
        "schema": "debox.fleet-load", "schema_version": 1, "files": new, "files_known": known,
        "files_too_old": old,
    });
    let text = match args.result.json {
        true => output::json(&value),
        false => text,
    };
    Ok(output::deliver(&args.result, &text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_each_file_once_and_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let of = |bytes: &[u64]| {
            let files = bytes.iter().enumerate().map(|(at, bytes)| {
                let name = format!("{at:0>100}");
                let file = File::create(folder.path().join(&name)).unwrap();
                file.set_len(*bytes).unwrap();
                name
            });
            files.collect::<Vec<_>>()
        };
        let sizes = |files: &[String]| {
            let lists = lists(folder.path(), files);
            assert_eq!(lists.concat(), files);
            lists.iter().map(|list| list.len()).collect::<Vec<_>>()
        };
        let half = LIST_BYTES / 2;
        assert_eq!(sizes(&of(&[half, half, 1, 3 * half, 1, 1])), [2, 1, 1, 2]);
        // Names of 100 bytes, and what stands between.
        assert_eq!(sizes(&of(&[0; 700])), [321, 321, 58]);
        assert!(sizes(&[]).is_empty());
    }
}
