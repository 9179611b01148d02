// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox fleet load`: how do files of Parquet get into a database?
//!
//! A server is sent each file. A database in a directory has its engine read them, a day of a
//! table at once. What came over OTLP is in the engine already, in the tables of OpenTelemetry's exporter. What is in the table `loaded` is left out; as a file's name is also the mark
//! by which ClickHouse knows an insert again, one that was cut off adds nothing twice.

use crate::command::parquet_of;
use crate::engine::{Engine, Params, Place, Server, statements};
use crate::error::Error;
use debox_cli::args::FleetLoadArgs;
use debox_cli::output;
use debox_output::count_text;
use serde_json::json;
use std::collections::{BTreeMap, HashSet};
use std::fs::FileType;
use std::path::Path;

const SCHEMA: &str = include_str!("../sql/schema.sql");
const LOAD: &str = include_str!("../sql/load.sql");
const OTEL: &str = include_str!("../sql/otel.sql");
const SEND: &str = "INSERT INTO {table:Identifier} FORMAT Parquet";
const SENT: &str = "INSERT INTO loaded (file) SELECT {file:String}";
/// The one that tells of the others comes last.
pub const TABLES: [&str; 4] = ["waits", "threads", "calls", "periods"];

/// Below `root`: table/date=.../host=.../name.parquet, by table and day.
fn files(root: &Path) -> Result<BTreeMap<(usize, String), Vec<String>>, Error> {
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
    let mut found: BTreeMap<(usize, String), Vec<String>> = BTreeMap::new();
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

fn known(engine: &Engine) -> Result<HashSet<String>, Error> {
    let answer = engine.run(&["SELECT file FROM loaded"], &Params::new())?;
    let rows = answer.rows.iter();
    Ok(rows.map(|row| answer.text(row, "file")).collect())
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
    let engine = Engine::open(place)?;
    let schema: Vec<&str> = statements(SCHEMA).collect();
    engine.run(&schema, &Params::new())?;
    let before = known(&engine)?.len();
    let mut params = Params::new();
    params.insert("otel", otel.into());
    let all: Vec<&str> = statements(OTEL).collect();
    engine.run(&all, &params)?;
    let new = known(&engine)?.len().saturating_sub(before) as u64;
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
    let engine = Engine::open_with(place, Some(&root))?;
    let schema: Vec<&str> = statements(SCHEMA).collect();
    engine.run(&schema, &Params::new())?;
    let known = known(&engine)?;
    let load: Vec<&str> = statements(LOAD).collect();
    let (mut new, mut old) = (0u64, 0u64);
    for ((at, day), files) in files(&root)? {
        let before = files.len();
        let files: Vec<String> = files.into_iter().filter(|f| !known.contains(f)).collect();
        old += (before - files.len()) as u64;
        new += files.len() as u64;
        if files.is_empty() {
            continue;
        }
        let mut params = Params::new();
        params.insert("table", TABLES[at].into());
        match engine.place() {
            Place::Server(server) => {
                for file in files {
                    engine.send(server, SEND, &params, &root.join(&file), &file)?;
                    let mut params = Params::new();
                    params.insert("file", file);
                    engine.run(&[SENT], &params)?;
                }
            }
            _ => {
                let glob = format!("{}/{day}/host=*/*.parquet", TABLES[at]);
                params.insert("glob", glob);
                engine.run(&load, &params)?;
            }
        }
    }
    let text = format!(
        "{} files were loaded, {} were there already.\n",
        count_text(new),
        count_text(old)
    );
    let value = json!({
        "schema": "debox.fleet-load", "schema_version": 1, "files": new, "files_known": old,
    });
    let text = match args.result.json {
        true => output::json(&value),
        false => text,
    };
    Ok(output::deliver(&args.result, &text)?)
}
