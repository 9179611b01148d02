// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does what hosts told come to where it was to go, and is it found there by ClickHouse's own
//! engine, whatever hosts and programs are called?

use debox_fleet::{Bounds, Options, Partitions, Period, rows};
use debox_report::{ChainKind, ChainLink, ChainRow, LifeRow, LifeTime, Report, parse_json};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;
#[path = "../../../tests/needs.rs"]
mod needs;

const MINUTE: u64 = 60_000_000_000;
const SECOND: u64 = 1_000_000_000;
const PATIENCE: Duration = Duration::from_secs(60);
/// What no path and no SQL may be led astray by.
const HOSTILE: &str = "../a b'; DROP TABLE waits; --\\{x:y}*\"\t\u{1b}[2J\u{e9}";

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_nanos() as u64 / MINUTE * MINUTE
}

fn period(host: &str, begin_ns: u64, release: &str) -> Period {
    Period {
        host: host.into(),
        boot: "12345678-9abc-def0-1234-56789abcdef0".into(),
        begin_ns,
        end_ns: begin_ns + MINUTE,
        release: release.into(),
        ..Period::default()
    }
}

/// A program waits so long for a disk, 10 times, and a while for a timer.
fn report(program: &str, unit: &str, disk_ns: u64) -> Report {
    let sleep = |label: usize, parent: usize| ChainLink {
        comm: program.into(),
        call: Some("fsync".into()),
        site: Some(label),
        parent: Some(parent),
        ..ChainLink::of(ChainKind::Sleep)
    };
    let site = |label: &str| {
        serde_json::from_value(serde_json::json!({
            "label": label, "unlabelled": false, "function": null, "offset": null,
            "file": null, "line": null, "frames": []
        }))
        .unwrap()
    };
    let row = |first, count, total_ns| ChainRow {
        first,
        count,
        total_ns,
        max_ns: total_ns / 2,
    };
    Report {
        debox_version: "0.1.0".into(),
        sites: vec![site("device-flush"), site("nanosleep")],
        chain_links: vec![
            ChainLink::of(ChainKind::Disk),
            ChainLink::of(ChainKind::Timer),
            sleep(0, 0),
            sleep(1, 1),
        ],
        chains: vec![row(2, 10, disk_ns), row(3, 1, 30 * SECOND)],
        lives: vec![LifeRow {
            comm: program.into(),
            unit: Some(unit.into()),
            threads: 2,
            time: LifeTime {
                life_ns: 2 * MINUTE,
                own_ns: MINUTE,
                runq_ns: MINUTE,
                ..LifeTime::default()
            },
            ..LifeRow::default()
        }],
        verdict: vec![format!("It waited for {disk_ns} ns.")],
        ..Report::default()
    }
}

fn options() -> Options {
    Options {
        every: Duration::from_secs(60),
        bounds: Bounds {
            least_ns: 0,
            ..Bounds::default()
        },
        ..Options::default()
    }
}

fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        for entry in std::fs::read_dir(&path).into_iter().flatten().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => left.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    let names = found.iter().map(|path| path.strip_prefix(root).unwrap());
    let mut names: Vec<String> = names.map(|path| path.display().to_string()).collect();
    names.sort();
    names
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what} never came");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What these periods leave in a directory.
fn told(root: &Path, all: &[(Report, Period)]) {
    let partitions = Partitions::open(root.to_str().unwrap(), &options()).unwrap();
    for (report, period) in all {
        partitions.write(report, period);
    }
    let figures = partitions.close(PATIENCE);
    assert_eq!(figures.periods_written, all.len() as u64, "{figures:?}");
    assert_eq!(figures.last_error, None);
}

/// A statement that works.
fn done(python: &Path, sql: &str, place: &[&str]) {
    let output = fleet(python, &[&["sql", sql], place].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{sql}: {said}");
}

fn fleet(python: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_debox-fleet"))
        .arg("fleet")
        .args(words)
        .env("DEBOX_PYTHON", python)
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn answer(python: &Path, words: &[&str]) -> Value {
    let output = fleet(python, &[words, &["--json"]].concat());
    assert!(
        output.status.success(),
        "{words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(python: &Path, words: &[&str]) -> String {
    let output = fleet(python, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Files of one run, and the same loaded into a database: questions have the same answers.
struct Places {
    _folder: tempfile::TempDir,
    parquet: String,
    database: String,
}

impl Places {
    fn new(python: &Path, all: &[(Report, Period)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (parquet, database) = (path("parquet"), path("database"));
        told(Path::new(&parquet), all);
        let loaded = |parquet: &str| {
            let words = ["load", "--parquet", parquet, "--database", &database];
            let value = answer(python, &words);
            (value["files"].as_u64(), value["files_known"].as_u64())
        };
        let count = files(Path::new(&parquet)).len() as u64;
        assert_eq!(loaded(&parquet), (Some(count), Some(0)));
        // A second time nothing is new.
        assert_eq!(loaded(&parquet), (Some(0), Some(count)));
        Self {
            _folder: folder,
            parquet,
            database,
        }
    }

    fn each(&self) -> [[&str; 2]; 2] {
        [["--parquet", &self.parquet], ["--database", &self.database]]
    }
}

#[test]
fn files_are_whole_and_where_they_belong() {
    let folder = tempfile::tempdir().unwrap();
    // 2026-11-27 23:59: the next period is another day's.
    let begin = 1_795_823_940 * SECOND;
    let all = [0, 1].map(|at| {
        let period = period(HOSTILE, begin + at * MINUTE, "v1");
        (report("sh", "a.service", SECOND), period)
    });
    told(folder.path(), &all);
    let host =
        "host=..%2Fa%20b%27%3B%20DROP%20TABLE%20waits%3B%20--%5C%7Bx%3Ay%7D%2A%22%5B2J%C3%A9";
    let boot = "123456789abcdef0123456789abcdef0";
    let mut expected = Vec::new();
    for table in ["periods", "threads", "waits"] {
        for (date, begin) in [("2026-11-27", begin), ("2026-11-28", begin + MINUTE)] {
            let name = format!("{boot}-{begin}-{}.parquet", begin + MINUTE);
            expected.push(format!("{table}/date={date}/{host}/{name}"));
        }
    }
    expected.sort();
    assert_eq!(files(folder.path()), expected);
    // Names of programs are for the owner alone.
    let mode = |path: &Path| {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).unwrap().mode() & 0o777
    };
    assert_eq!(mode(&folder.path().join(&expected[0])), 0o600);
    assert_eq!(mode(&folder.path().join("waits")), 0o700);
}

/// For ten minutes.
fn collecting(folder: &Path) -> Partitions {
    let options = Options {
        every: Duration::from_secs(600),
        ..options()
    };
    Partitions::open(folder.to_str().unwrap(), &options).unwrap()
}

#[test]
fn what_is_collected_is_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let partitions = collecting(folder.path());
    let begin = 1_795_788_000 * SECOND;
    for at in 0..15 {
        let period = period("h", begin + at * MINUTE, "");
        partitions.write(&report("sh", "a.service", SECOND), &period);
    }
    until("the first file", || {
        partitions.figures().periods_written == 10
    });
    assert_eq!(partitions.figures().periods_queued, 5);
    assert_eq!(files(folder.path()).len(), 3);
    let figures = partitions.close(PATIENCE);
    assert_eq!((figures.periods_written, figures.files), (15, 6));
    assert_eq!(files(folder.path()).len(), 6);
    let bytes: u64 = files(folder.path())
        .iter()
        .map(|file| std::fs::metadata(folder.path().join(file)).unwrap().len())
        .sum();
    assert_eq!(figures.bytes, bytes);
}

/// Who looks for a time finds it by the names of files.
#[test]
fn a_file_is_named_by_the_times_in_it_when_the_clock_was_set_back() {
    let folder = tempfile::tempdir().unwrap();
    let partitions = collecting(folder.path());
    let begin = 1_795_788_000 * SECOND;
    for minute in [5, 6, 2, 3] {
        let period = period("h", begin + minute * MINUTE, "");
        partitions.write(&report("sh", "a.service", SECOND), &period);
    }
    assert_eq!(partitions.close(PATIENCE).files, 3);
    let span = format!("-{}-{}.parquet", begin + 2 * MINUTE, begin + 7 * MINUTE);
    let names = files(folder.path());
    assert!(names.iter().all(|name| name.ends_with(&span)), "{names:?}");
}

#[test]
fn a_place_that_fails_is_tried_again_and_what_has_no_room_is_told() {
    let folder = tempfile::tempdir().unwrap();
    // A file is where the directory should be.
    let root = folder.path().join("fleet");
    std::fs::write(&root, "").unwrap();
    let begin = 1_795_788_000 * SECOND;
    let write = |partitions: &Partitions, at| {
        let period = period("h", begin + at * MINUTE, "");
        partitions.write(&report("sh", "a.service", SECOND), &period);
    };
    let probe = tempfile::tempdir().unwrap();
    told(
        probe.path(),
        &[(report("sh", "a.service", SECOND), period("h", begin, ""))],
    );
    let one: u64 = files(probe.path())
        .iter()
        .map(|file| std::fs::metadata(probe.path().join(file)).unwrap().len())
        .sum();
    let options = Options {
        queue_bytes: 3 * one as usize + 100,
        ..options()
    };
    let partitions = Partitions::open(root.to_str().unwrap(), &options).unwrap();
    write(&partitions, 0);
    until("the failure", || partitions.figures().last_error.is_some());
    let news = partitions.news().unwrap();
    assert!(news.contains("are tried again"), "{news}");
    assert_eq!(partitions.news(), None);
    for at in 1..=6 {
        write(&partitions, at);
    }
    let figures = partitions.figures();
    // One is in the writer's hands, three wait.
    assert_eq!((figures.periods_queued, figures.periods_dropped), (4, 3));
    let news = partitions.news().unwrap();
    assert!(news.starts_with("3 periods"), "{news}");
    std::fs::remove_file(&root).unwrap();
    until("what waited", || partitions.figures().periods_queued == 0);
    let figures = partitions.figures();
    assert_eq!((figures.periods_written, figures.last_error), (4, None));
    assert!(partitions.news().unwrap().contains("written again"));
    assert_eq!(files(&root).len(), 12);
    // Who ends while nothing can be written does not wait for it.
    drop(partitions);
    std::fs::rename(&root, folder.path().join("kept")).unwrap();
    std::fs::write(&root, "").unwrap();
    let partitions = Partitions::open(root.to_str().unwrap(), &options).unwrap();
    write(&partitions, 9);
    let end = Instant::now();
    let figures = partitions.close(Duration::from_millis(500));
    assert!(end.elapsed() < Duration::from_secs(10));
    assert_eq!((figures.periods_written, figures.periods_dropped), (0, 1));
}

#[test]
fn a_full_disk_leaves_no_half_of_a_file() {
    if !needs::root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("small");
    std::fs::create_dir(&root).unwrap();
    let mount = |words: &[&str]| {
        let done = Command::new("mount").args(words).arg(&root).status();
        assert!(done.unwrap().success(), "{words:?}");
    };
    mount(&["-t", "tmpfs", "-o", "size=8k", "none"]);
    struct Unmount<'a>(&'a Path);
    impl Drop for Unmount<'_> {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(self.0).status();
        }
    }
    let _unmount = Unmount(&root);
    let partitions = Partitions::open(root.to_str().unwrap(), &options()).unwrap();
    let begin = 1_795_788_000 * SECOND;
    partitions.write(&report("sh", "a.service", SECOND), &period("h", begin, ""));
    until("the failure", || partitions.figures().last_error.is_some());
    let error = partitions.figures().last_error.unwrap();
    assert!(error.contains("No space left"), "{error}");
    let left = files(&root);
    assert!(
        left.len() < 3 && left.iter().all(|f| f.ends_with(".parquet")),
        "{left:?}"
    );
    mount(&["-o", "remount,size=1m"]);
    until("the file", || partitions.figures().periods_written == 1);
    assert_eq!(files(&root).len(), 3);
}

const DAY: u64 = 86_400 * SECOND;

/// The days of this host that are left after it has written these, one after the other.
fn days_left(folder: &Path, keep_days: u32, days: &[u64]) -> Vec<u64> {
    let options = Options {
        keep_days: Some(keep_days),
        ..options()
    };
    for day in days {
        let partitions = Partitions::open(folder.to_str().unwrap(), &options).unwrap();
        partitions.write(&report("sh", "a", SECOND), &period("h", day * DAY, ""));
        let figures = partitions.close(PATIENCE);
        assert_eq!(figures.periods_written, 1, "{figures:?}");
    }
    let waits = folder.join("waits");
    let date = |day: &u64| {
        waits
            .join(format!("date={}/host=h", date_of(day * DAY)))
            .is_dir()
    };
    (0..30_000).filter(date).collect()
}

fn date_of(ns: u64) -> String {
    let seconds = i64::try_from(ns / SECOND).unwrap();
    debox_output::Utc::of_seconds(seconds).date()
}

/// A clock that was wrong for a day, by however much, takes away nothing of what another says is younger.
#[test]
fn a_clock_that_is_ahead_does_not_empty_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let today = 20_784;
    let month: Vec<u64> = (today - 30..today).collect();
    let is: Vec<u64> = (today - 5..today).collect();
    assert_eq!(days_left(folder.path(), 4, &month), is);
    let with = |more: &[u64]| [&is[..], more].concat();
    // A year, and ten.
    let ahead = [today + 365, today + 3_650];
    assert_eq!(days_left(folder.path(), 4, &ahead[..1]), with(&ahead[..1]));
    assert_eq!(days_left(folder.path(), 4, &ahead[1..]), with(&ahead));
    // It goes on where it was, and what was wrong stays until its time.
    let next = days_left(folder.path(), 4, &[today, today + 1]);
    let is: Vec<u64> = (today - 3..=today + 1).collect();
    assert_eq!(next, [&is[..], &ahead].concat());
    // Behind, it takes away nothing.
    let behind = days_left(folder.path(), 4, &[1]);
    assert_eq!(behind, [&[1], &is[..], &ahead].concat());
    assert_eq!(
        days_left(folder.path(), 4, &[today + 2])[..2],
        [today - 2, today - 1]
    );
    // A host that is seldom on, but within a week.
    let seldom = tempfile::tempdir().unwrap();
    let days = [0, 6, 12, 18, 24, 30].map(|day| today + day);
    assert_eq!(
        days_left(seldom.path(), 10, &days),
        [today + 24, today + 30]
    );
}

#[test]
fn old_days_of_this_host_are_taken_away_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let day = DAY;
    let begin = 1_795_788_000 * SECOND;
    let of = |host: &str, days: u64| {
        (
            report("sh", "a", SECOND),
            period(host, begin - days * day, ""),
        )
    };
    told(
        folder.path(),
        &[of("h", 9), of("h", 3), of("h", 2), of("other", 9)],
    );
    let odd = folder.path().join("waits/date=old");
    std::fs::create_dir(&odd).unwrap();
    let options = Options {
        keep_days: Some(3),
        ..options()
    };
    let partitions = Partitions::open(folder.path().to_str().unwrap(), &options).unwrap();
    let (report, period) = of("h", 0);
    partitions.write(&report, &period);
    partitions.close(PATIENCE);
    let left: Vec<String> = files(&folder.path().join("waits"))
        .iter()
        .map(|file| file.rsplit_once('/').unwrap().0.to_owned())
        .collect();
    assert_eq!(
        left,
        [
            "date=2026-11-18/host=other",
            "date=2026-11-24/host=h",
            "date=2026-11-25/host=h",
            "date=2026-11-27/host=h"
        ]
    );
    assert!(odd.is_dir());
}

#[test]
fn questions_have_the_same_answers_from_files_and_from_a_database() {
    let Some(python) = needs::chdb() else { return };
    let begin = now_ns() - 30 * MINUTE;
    let mut all = Vec::new();
    for at in 0..20 {
        for (host, program, unit, ns) in [
            ("one", "db", "db.service", 3 * SECOND),
            (HOSTILE, HOSTILE, "web.service", SECOND),
        ] {
            // In the last one there is something unusual.
            let ns = if at == 19 && host == "one" {
                10 * ns
            } else {
                ns
            };
            all.push((
                report(program, unit, ns),
                period(host, begin + at * MINUTE, "v1"),
            ));
        }
    }
    let places = Places::new(&python, &all);
    let shown: String = HOSTILE.chars().filter(|c| !c.is_control()).collect();
    for place in places.each() {
        let with = |words: &[&str]| answer(&python, &[words, &place].concat());
        let top = with(&["top", "--since", "1h", "--by", "unit,root"]);
        let rows = top["rows"].as_array().unwrap();
        let of = |row: &Value| {
            let text = |name: &str| row[name].as_str().unwrap().to_owned();
            (
                text("unit"),
                text("root"),
                row["blocked_ns"].as_u64().unwrap(),
                row["sleeps"].as_u64().unwrap(),
            )
        };
        assert_eq!(
            rows.iter().map(of).collect::<Vec<_>>(),
            [
                ("db.service".into(), "disk".into(), 87 * SECOND, 200),
                ("web.service".into(), "disk".into(), 20 * SECOND, 200),
            ],
            "{place:?}"
        );
        // Who is idle is not a loss, but there.
        let top = with(&["top", "--class", "idle", "--by", "host,program,label"]);
        let rows = top["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 2, "{top}");
        let hosts: Vec<&str> = rows
            .iter()
            .map(|row| row["host"].as_str().unwrap())
            .collect();
        assert!(hosts.contains(&shown.as_str()), "{hosts:?}");
        assert!(
            rows.iter()
                .all(|row| row["label"] == "nanosleep" && row["hosts"] == 1)
        );
        let top = with(&["top", "--by", "host", "--host", &shown]);
        assert_eq!(top["rows"][0]["blocked_ns"], 20 * SECOND, "{top}");
        assert_eq!(top["rows"].as_array().unwrap().len(), 1);
        // Threads' time, each part once.
        let top = with(&["top", "--by", "state,unit"]);
        let rows = top["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 4, "{top}");
        // Sums by minute are of all hosts.
        let sums = place[0] == "--database";
        assert_eq!(top["source"], if sums { "threads_1m" } else { "threads" });
        let hosts = if sums { Value::Null } else { 1.into() };
        assert!(
            rows.iter()
                .all(|row| row["ns"] == 20 * MINUTE && row["hosts"] == hosts),
            "{top}"
        );
        let one = with(&["top", "--by", "state,unit", "--host", "one"]);
        assert_eq!(one["source"], "threads", "{one}");
        assert_eq!(one["rows"].as_array().unwrap().len(), 2, "{one}");
        // Nothing was told of yesterday.
        let top = with(&["top", "--until", "24h"]);
        assert_eq!(top["rows"].as_array().unwrap().len(), 0);

        let why = with(&["why", "--host", "one"]);
        let policy = &why["policies"][0];
        assert_eq!(
            policy["verdict"][0],
            format!("It waited for {} ns.", 30 * SECOND)
        );
        assert_eq!(policy["begin_unix_ms"], (begin + 19 * MINUTE) / 1_000_000);
        assert_eq!(why["policies"].as_array().unwrap().len(), 1);
        assert_eq!(why["waits"][0]["blocked_ns"], 30 * SECOND);
        assert_eq!(why["waits"][0]["usually_ns"], 3 * SECOND);
        assert_eq!(why["waits"].as_array().unwrap().len(), 1);
        // Before its first one: that one, which is said.
        let early = ["why", "--host", "one", "--at", "50m", place[0], place[1]];
        assert!(text(&python, &early).contains("the first that was told after that moment"));
        let said = text(&python, &["why", "--host", &shown, place[0], place[1]]);
        assert!(
            said.contains("It waited for 1000000000 ns.") && !said.contains('\u{1b}'),
            "{said}"
        );
        let nobody = fleet(&python, &["why", "--host", "nobody", place[0], place[1]]);
        assert_eq!(nobody.status.code(), Some(125), "{nobody:?}");

        let rows = with(&[
            "sql",
            "SELECT count() AS n, uniqExact(host) AS hosts, max(time) AS t FROM periods;",
        ]);
        assert_eq!((&rows[0]["n"], &rows[0]["hosts"]), (&40.into(), &2.into()));
        let wrong = fleet(
            &python,
            &["sql", "SELECT nothing FROM waits", place[0], place[1]],
        );
        let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert_eq!(wrong.status.code(), Some(125), "{said}");
        assert!(
            said.contains("nothing") && !said.contains("Traceback"),
            "{said}"
        );
    }
    // Sums by minute and by hour are those of the rows.
    let sums = |table: &str| {
        let sql = format!(
            "SELECT sum(sleeps) AS s, sum(blocked_ns) AS b, max(longest_ns) AS l FROM {table}"
        );
        answer(&python, &["sql", &sql, "--database", &places.database])
    };
    assert_eq!(sums("waits"), sums("waits_1m"));
    assert_eq!(sums("waits"), sums("waits_10m"));
    assert_eq!(sums("waits"), sums("waits_1h"));
    let top = |since: &str| {
        let words = [
            "top",
            "--since",
            since,
            "--by",
            "program",
            "--database",
            &places.database,
        ];
        answer(&python, &words)
    };
    let all = ["59m", "1h", "24h"].map(top);
    let sources = ["waits", "waits_10m", "waits_1h"];
    for (at, source) in sources.into_iter().enumerate() {
        assert_eq!(all[at]["source"], source);
        assert_eq!(all[at]["rows"], all[0]["rows"], "{source}");
    }
    let sql = "SELECT sum(own_code_ns) AS o, sum(run_queue_ns) AS r FROM";
    let of = |table: &str| {
        let sql = format!("{sql} {table}");
        answer(&python, &["sql", &sql, "--database", &places.database])
    };
    assert_eq!(of("threads"), of("threads_1h"));
    assert_eq!(of("threads"), of("threads_1m"));
    // Further back than minutes are kept.
    let old = [
        "top",
        "--since",
        "744h",
        "--by",
        "unit,root",
        "--database",
        &places.database,
    ];
    assert_eq!(answer(&python, &old)["source"], "waits_1h");
}

/// A process in chDB's place that says this of each question, and then what it does.
fn engine_that(folder: &Path, says: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("engine");
    std::fs::write(&path, format!("#!/bin/sh\nread -r question\n{says}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Nobody waits for it for ever, is ended with it, or takes half of an answer for one.
#[test]
fn an_engine_that_ends_early_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let parquet = folder.path().join("parquet");
    let all = [(
        report("db", "db.service", SECOND),
        period("h", now_ns(), "v1"),
    )];
    told(&parquet, &all);
    let database = folder.path().join("database");
    let words = [
        "load",
        "--parquet",
        parquet.to_str().unwrap(),
        "--database",
        database.to_str().unwrap(),
    ];
    for (says, why) in [
        ("exit 3", "exit status: 3"),
        ("echo it is tired >&2; exit 1", "it is tired"),
        // It answers the first of several questions.
        ("printf '{\"bytes\":0}\\n'; exit 0", "exit status: 0"),
        (
            "printf '{\"bytes\":100}\\n[\"a\"]\\n[\"b\"]\\n'; kill -9 $$",
            "signal: 9",
        ),
        ("echo what", "not understood"),
    ] {
        let output = fleet(&engine_that(folder.path(), says), &words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{says}: {output:?}");
        assert!(said.contains(why), "{says}: {said}");
    }
    let Some(python) = needs::chdb() else { return };
    assert!(fleet(&python, &words).status.success());
    // More than a pipe holds, and none of it is what was asked for.
    let place = ["--database", database.to_str().unwrap()];
    let sql = ["sql", "SELECT number FROM numbers(100000) FORMAT TSV"];
    let output = fleet(&python, &[sql, place].concat());
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("not understood"));
    let count = answer(
        &python,
        &[["sql", "SELECT count() AS n FROM periods"], place].concat(),
    );
    assert_eq!(count[0]["n"], 1);
}

/// One whose sums by hour were made before there were those by ten minutes, as it is and after the next load.
#[test]
fn an_older_database_answers_from_its_rows() {
    let Some(python) = needs::chdb() else { return };
    let begin = now_ns() - 30 * MINUTE;
    let of = |at: u64| {
        let period = period("h", begin + at * MINUTE, "v1");
        (report("db", "db.service", SECOND), period)
    };
    let places = Places::new(&python, &[of(0)]);
    let place = ["--database", places.database.as_str()];
    for sql in [
        "DROP VIEW waits_to_1h",
        "DROP VIEW waits_to_10m",
        "DROP TABLE waits_10m",
        "CREATE MATERIALIZED VIEW waits_to_1h TO waits_1h AS SELECT toStartOfHour(toDateTime(w.time, 'UTC')) AS time, \
         host, release, unit, program, label, class, root, sum(w.sleeps) AS sleeps, sum(w.blocked_ns) AS blocked_ns, \
         max(w.longest_ns) AS longest_ns FROM waits AS w GROUP BY time, host, release, unit, program, label, class, root",
    ] {
        let output = fleet(&python, &[&["sql", sql], &place[..]].concat());
        assert!(output.status.success(), "{sql}: {output:?}");
    }
    let top = || {
        let words = ["top", "--since", "2h", "--by", "program"];
        let top = answer(&python, &[&words[..], &place].concat());
        (top["source"].clone(), top["rows"][0]["blocked_ns"].as_u64())
    };
    assert_eq!(top(), ("waits".into(), Some(SECOND)));
    told(Path::new(&places.parquet), &[of(10)]);
    let load = ["load", "--parquet", &places.parquet];
    assert_eq!(answer(&python, &[&load[..], &place].concat())["files"], 3);
    assert_eq!(top(), ("waits".into(), Some(2 * SECOND)));
    let sql =
        "SELECT (SELECT sum(sleeps) FROM waits) AS a, (SELECT sum(sleeps) FROM waits_1h) AS b";
    let sums = answer(&python, &[&["sql", sql], &place[..]].concat());
    assert_eq!(sums[0]["a"], sums[0]["b"]);
}

/// A load into a directory that was cut off after each of its statements, and between a table and its sums; more files
/// came before the next one.
#[test]
fn a_load_that_was_cut_off_adds_nothing_twice() {
    let Some(python) = needs::chdb() else { return };
    let begin = now_ns() - 30 * MINUTE;
    let told_at = |root: &str, at: u64| {
        let period = period("h", begin + at * MINUTE, "v1");
        told(
            Path::new(root),
            &[(report("db", "db.service", SECOND), period)],
        );
    };
    let first = (report("db", "db.service", SECOND), period("h", begin, "v1"));
    let places = Places::new(&python, &[first]);
    let place = ["--database", places.database.as_str()];
    let sql = |sql: &str| {
        let output = fleet(&python, &[&["sql", sql], &place[..]].concat());
        assert!(output.status.success(), "{sql}: {output:?}");
    };
    let sleeps = || {
        let sql = "SELECT (SELECT sum(sleeps) FROM waits) AS a, (SELECT sum(sleeps) FROM waits_1m) AS b, \
            (SELECT sum(sleeps) FROM waits_1h) AS c, (SELECT count() FROM begun) AS begun";
        let rows = answer(&python, &[&["sql", sql], &place[..]].concat());
        ["a", "b", "c", "begun"].map(|name| rows[0][name].as_u64().unwrap())
    };
    let load = |parquet: &str| {
        let words = ["load", "--parquet", parquet];
        answer(&python, &[&words[..], &place].concat())["files"].clone()
    };
    let waits = |root: &str| {
        let found = files(Path::new(root)).into_iter();
        found
            .filter(|name| name.starts_with("waits/"))
            .collect::<Vec<_>>()
    };
    let quoted = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    // What a load does with these files, of which one is new.
    let cut_off = |before: &[String], statements: std::ops::Range<usize>| {
        let all = waits(&places.parquet);
        let new: Vec<_> = all.iter().filter(|name| !before.contains(name)).collect();
        assert_eq!(new.len(), 1);
        let glob = format!("{}/waits/date=*/host=*/*.parquet", places.parquet);
        let load = include_str!("../sql/load.sql").lines();
        let load: Vec<&str> = load.filter(|line| !line.starts_with("--")).collect();
        let load = load.join("\n").replace("{table:Identifier}", "waits");
        let load = load.replace("{glob:String}", &quoted(&glob));
        let load = load.replace("{files:String}", &quoted(new[0]));
        let load = load.replace("{mark:String}", &quoted(new[0]));
        let load: Vec<&str> = load.trim().trim_end_matches(';').split(";\n").collect();
        assert_eq!(load.len(), 4);
        load[statements].iter().for_each(|statement| sql(statement));
    };
    assert_eq!(sleeps(), [11, 11, 11, 0]);
    let mut told_so_far = 1;
    for done in 1..4 {
        let before = waits(&places.parquet);
        told_at(&places.parquet, 2 * told_so_far);
        cut_off(&before, 0..done);
        told_at(&places.parquet, 2 * told_so_far + 2);
        told_so_far += 2;
        // What is in `loaded` is not counted again.
        assert_eq!(load(&places.parquet), if done == 3 { 5 } else { 6 });
        let sum = told_so_far * 11;
        let left = u64::from(done == 3);
        assert_eq!(sleeps(), [sum, sum, sum, left], "after {done}");
    }
    let before = waits(&places.parquet);
    told_at(&places.parquet, 2 * told_so_far);
    // The next load makes it again.
    sql("DROP VIEW waits_to_1h");
    cut_off(&before, 0..2);
    let sum = told_so_far * 11;
    assert_eq!(sleeps(), [sum + 11, sum + 11, sum, 2]);
    // Files of another directory are loaded meanwhile.
    let other = tempfile::tempdir().unwrap();
    let other = other.path().to_str().unwrap();
    told_at(other, 25);
    assert_eq!(load(other), 3);
    assert_eq!(sleeps(), [sum + 22, sum + 22, sum + 11, 2]);
    assert_eq!(load(&places.parquet), 3);
    assert_eq!(sleeps(), [sum + 22, sum + 22, sum + 22, 1]);
}

/// The loader's clock was behind, or a host's is ahead; other files are forgotten.
#[test]
fn files_are_known_for_longer_than_their_rows() {
    let Some(python) = needs::chdb() else { return };
    let places = Places::new(
        &python,
        &[(
            report("db", "db.service", SECOND),
            period("h", now_ns(), ""),
        )],
    );
    let place = ["--database", places.database.as_str()];
    for sql in [
        "INSERT INTO loaded SELECT concat('waits/date=', toString(toDate(now() + arrayJoin([-500, 0, 3000]) * 86400)), \
            '/host=a/x.parquet'), now() - INTERVAL 500 DAY",
        "INSERT INTO loaded VALUES ('waits/date=2999-01-01/host=a/x.parquet', now())",
        "OPTIMIZE TABLE loaded FINAL",
    ] {
        let output = fleet(&python, &[&["sql", sql], &place[..]].concat());
        assert!(output.status.success(), "{sql}: {output:?}");
    }
    let sql = "SELECT count() AS files FROM loaded WHERE file LIKE '%/host=a/%'";
    let rows = answer(&python, &[&["sql", sql], &place[..]].concat());
    assert_eq!(rows[0]["files"], 3);
}

/// Of days of which nothing is kept any more.
#[test]
fn files_that_are_too_old_are_not_loaded() {
    let Some(python) = needs::chdb() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (parquet, database) = (path("parquet"), path("database"));
    let all = [402, 390].map(|days| {
        let period = period("h", now_ns() - days * DAY, "v1");
        (report("db", "db.service", SECOND), period)
    });
    told(Path::new(&parquet), &all);
    let words = ["load", "--parquet", &parquet, "--database", &database];
    let value = answer(&python, &words);
    assert_eq!(
        (&value["files"], &value["files_too_old"]),
        (&3.into(), &3.into())
    );
    let said = text(&python, &words);
    assert!(
        said.contains("3 were left out: of days more than 400 ago"),
        "{said}"
    );
}

/// A host's policies have periods of their own lengths, and one is no longer there.
#[test]
fn why_tells_of_each_policy() {
    let Some(python) = needs::chdb() else { return };
    let begin = now_ns() - 60 * MINUTE;
    let mut all = Vec::new();
    let mut add = |policy: &str, at: u64, minutes: u64, seconds: u64| {
        let mut period = period("h", begin + at * MINUTE, "v1");
        period.policy = policy.into();
        // No two begin at once.
        period.begin_ns += policy.len() as u64 * 1_000_000;
        period.end_ns = period.begin_ns + minutes * MINUTE;
        let unit = format!("{policy}.service");
        all.push((report(policy, &unit, seconds * SECOND), period));
    };
    for at in 0..30 {
        add("often", at, 1, 1 + at);
    }
    for at in 0..3 {
        add("seldom", at * 10, 10, 7);
    }
    for at in 0..20 {
        add("gone", at, 1, 50);
    }
    // What no text within an array may be led astray by.
    add(HOSTILE, 29, 1, 3);
    let places = Places::new(&python, &all);
    let at = debox_output::Utc::of_seconds((begin / SECOND) as i64 + 29 * 60 + 30);
    let at = format!("{}T{:02}:{:02}:30", at.date(), at.hour, at.minute);
    let shown: String = HOSTILE.chars().filter(|c| !c.is_control()).collect();
    for place in places.each() {
        let why = |more: &[&str]| {
            let words = ["why", "--host", "h", "--at", &at];
            answer(&python, &[&words[..], more, &place].concat())
        };
        let told = why(&[]);
        let policies: Vec<(&str, u64)> = (told["policies"].as_array().unwrap().iter())
            .map(|is| {
                let length =
                    is["end_unix_ms"].as_u64().unwrap() - is["begin_unix_ms"].as_u64().unwrap();
                (is["policy"].as_str().unwrap(), length / 60_000)
            })
            .collect();
        assert_eq!(policies, [(HOSTILE, 1), ("often", 1), ("seldom", 10)]);
        let waits: Vec<(&str, &str, u64, &Value)> = (told["waits"].as_array().unwrap().iter())
            .map(|is| {
                let text = |name: &str| is[name].as_str().unwrap();
                let seconds = is["blocked_ns"].as_u64().unwrap() / SECOND;
                (text("policy"), text("program"), seconds, &is["usually_ns"])
            })
            .collect();
        // 1 to 29 s in the 29 minutes before; 7 s in each ten.
        assert_eq!(
            waits,
            [
                ("often", "often", 30, &(15 * SECOND).into()),
                ("seldom", "seldom", 7, &(7 * SECOND).into()),
                (HOSTILE, &shown, 3, &Value::Null),
            ]
        );
        let said = text(
            &python,
            &["why", "--host", "h", "--at", &at, place[0], place[1]],
        );
        assert!(
            said.contains(", policy often")
                && said.contains(", policy seldom")
                && said.contains("POLICY"),
            "{said}"
        );
        let told = why(&["--policy", "seldom"]);
        assert_eq!(told["policies"].as_array().unwrap().len(), 1);
        assert_eq!(told["waits"].as_array().unwrap().len(), 1);
        assert_eq!(told["waits"][0]["policy"], "seldom");
        // Of one that is gone what was told last.
        let told = why(&["--policy", "gone"]);
        assert_eq!(told["waits"][0]["blocked_ns"], 50 * SECOND);
        let words = ["why", "--host", "h", "--policy", "none", place[0], place[1]];
        let none = fleet(&python, &words);
        let said = String::from_utf8_lossy(&none.stderr).into_owned();
        assert_eq!(none.status.code(), Some(125), "{said}");
        assert!(said.contains("policy \"none\""), "{said}");
    }
}

#[test]
fn names_of_columns_are_text() {
    let Some(python) = needs::chdb() else { return };
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    told(
        folder.path(),
        &[(Report::default(), period("h", now_ns(), ""))],
    );
    let sql = "SELECT 'a\u{1b}[2J' AS `b\u{1b}]0;c\u{7}`";
    let said = text(&python, &["sql", sql, "--parquet", root]);
    assert!(!said.contains(['\u{1b}', '\u{7}']), "{said:?}");
    assert!(said.contains("b\\u{1b}]0;c\\u{7}"), "{said:?}");
}

#[test]
fn a_directory_of_tables_is_read_and_not_obeyed() {
    let Some(python) = needs::chdb() else { return };
    let folder = tempfile::tempdir().unwrap();
    let now = now_ns();
    let period = period("web-1", now - 2 * MINUTE, "v1");
    let root = folder.path().join("parquet");
    told(&root, &[(report("sh", "a.service", SECOND), period)]);
    // Who writes tables may write anything beside them: what Python imports, and ClickHouse's
    // own settings.
    let obeyed = folder.path().join("obeyed");
    let module = format!("open({:?}, 'w')\n", obeyed.to_str().unwrap());
    for name in ["json.py", "chdb.py", "importlib.py"] {
        std::fs::write(root.join(name), &module).unwrap();
    }
    let log = format!(
        "<clickhouse><logger><level>trace</level><log>{}</log></logger></clickhouse>",
        obeyed.display()
    );
    std::fs::write(root.join("config.xml"), log).unwrap();
    // Neither does it matter where somebody is.
    let ask = |words: &[&str], python: &Path| {
        Command::new(env!("CARGO_BIN_EXE_debox-fleet"))
            .arg("fleet")
            .args(words)
            .env("DEBOX_PYTHON", python)
            .current_dir(&root)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let python = match python.components().count() {
        1 => python,
        // Not through its links: what it has is found by where it lies.
        _ => std::path::absolute(&python).unwrap(),
    };
    for words in [
        &["load", "--parquet", ".", "--database", "../database"][..],
        &["top", "--parquet", ".", "--json"],
        &["top", "--database", "../database", "--json"],
    ] {
        let output = ask(words, &python);
        assert!(output.status.success(), "{words:?}: {output:?}");
        assert!(!obeyed.exists(), "{words:?}");
        if words[0] == "top" {
            let value: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(value["rows"][0]["blocked_ns"], SECOND, "{words:?}");
        }
    }
    // A link to a file of somebody else, and a pipe, are no tables.
    let day = std::fs::read_dir(root.join("waits"))
        .unwrap()
        .next()
        .unwrap();
    let host = day.unwrap().path().join("host=web-1");
    std::os::unix::fs::symlink("/etc/passwd", host.join("a.parquet")).unwrap();
    let pipe = std::ffi::CString::new(host.join("b.parquet").to_str().unwrap()).unwrap();
    // SAFETY: the name is a string of its own.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    let output = ask(
        &[
            "load",
            "--parquet",
            ".",
            "--database",
            "../database",
            "--json",
        ],
        &python,
    );
    assert!(output.status.success(), "{output:?}");
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["files"], 0, "{value}");
}

#[test]
fn a_release_that_waits_longer_is_found_and_one_that_does_not_is_not() {
    let Some(python) = needs::chdb() else { return };
    let begin = now_ns() - 60 * MINUTE;
    let mut all = Vec::new();
    for host in 0..24u64 {
        for at in 0..4 {
            // Hosts differ, and of every two one has the new release.
            let ns = SECOND * (90 + host * 7 % 20) / 100;
            let (release, factor) = if host % 2 == 0 {
                ("v1", 10)
            } else {
                ("v2", 16)
            };
            let period = period(&format!("h{host}"), begin + at * MINUTE, release);
            all.push((report("db", "db.service", ns * factor / 10), period));
        }
    }
    let places = Places::new(&python, &all);
    for place in places.each() {
        let words = ["diff", "--before", "v1", "--after", "v2", "--class", "all"];
        let diff = answer(&python, &[&words[..], &place].concat());
        assert_eq!(
            (&diff["before"]["hosts"], &diff["after"]["hosts"]),
            (&12.into(), &12.into())
        );
        let changes = diff["changes"].as_array().unwrap();
        assert_eq!(changes.len(), 2, "{diff}");
        let of = |root: &str| changes.iter().find(|c| c["name"][1] == root).unwrap();
        let disk = of("disk");
        assert_eq!(disk["significant"], true, "{disk}");
        let (low, high) = (
            disk["low"].as_f64().unwrap(),
            disk["high"].as_f64().unwrap(),
        );
        assert!(low > 0.4 && low < 0.6 && high > 0.6 && high < 0.8, "{disk}");
        assert_eq!(of("timer")["significant"], false);
        let said = text(&python, &[&words[..], &place].concat());
        assert!(
            said.contains("What changed") && said.contains("device-flush, disk: "),
            "{said}"
        );
        let none = fleet(
            &python,
            &[&["diff", "--before", "v1", "--after", "v9"], &place[..]].concat(),
        );
        assert_eq!(none.status.code(), Some(125));
        let said = String::from_utf8_lossy(&none.stderr).into_owned();
        assert!(said.contains("\"v9\""), "{said}");
    }
}

/// However many policies watched it: one is replaced by another half way, and one is there all the time.
#[test]
fn a_host_is_watched_for_as_long_as_any_policy_does() {
    let Some(python) = needs::chdb() else { return };
    let begin = now_ns() - 60 * MINUTE;
    let mut all = Vec::new();
    for host in 0..8 {
        for minute in 0..20 {
            let policies = [("web", 0, 10), ("db", 10, 20), ("rest", 0, 20)];
            for (at, (policy, from, until)) in policies.into_iter().enumerate() {
                if (from..until).contains(&minute) {
                    let release = if minute < 10 { "v1" } else { "v2" };
                    // Not in the same moment, as policies do.
                    let begin_ns = begin + minute * MINUTE + at as u64 * 1_000_000;
                    let period = period(&format!("h{host}"), begin_ns, release);
                    let policy = policy.to_owned();
                    all.push((report("db", "a", SECOND), Period { policy, ..period }));
                }
            }
        }
        // Nobody, for ten minutes; and then one.
        for minute in 30..40 {
            let period = period(&format!("h{host}"), begin + minute * MINUTE, "v2");
            all.push((report("db", "a", SECOND), period));
        }
    }
    let places = Places::new(&python, &all);
    for place in places.each() {
        let words = ["diff", "--before", "v1", "--after", "v2", "--class", "all"];
        let diff = answer(&python, &[&words[..], &place].concat());
        let seconds = |side: &str| diff[side]["seconds"].as_f64().unwrap();
        let before = seconds("before") - 8.0 * 600.0;
        let after = seconds("after") - 8.0 * 1_200.0;
        assert!(before.abs() < 0.1 && after.abs() < 0.1, "{diff}");
        // Of a second, whoever told of it: in v1 two policies a second each minute, in v2 half the time.
        let changes = diff["changes"].as_array().unwrap();
        let disk = changes.iter().find(|c| c["name"][1] == "disk").unwrap();
        let share = disk["a"].as_f64().unwrap() / disk["b"].as_f64().unwrap();
        let is = (20.0 / 600.0) / (30.0 / 1_200.0);
        assert!((share - is).abs() < 0.001, "{disk}");
    }
}

#[test]
fn what_cannot_be_asked_says_what_can() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    for (words, status, said) in [
        (&["top", "--parquet", path][..], 125, "--parquet"),
        (&["top", "--database", "/nowhere"], 125, "--database"),
        (&["top", "--url", "nowhere"], 2, "clickhouse://HOST"),
        (
            &["top", "--url", "http://x", "--parquet", path],
            2,
            "one place",
        ),
        (&["top", "--by", "unit,state,label"], 2, ""),
        (&["load", "--parquet", path], 125, ""),
        (
            &[
                "diff",
                "--before",
                "",
                "--after",
                "x",
                "--url",
                "http://127.0.0.1:1",
            ],
            2,
            "FROM..TO",
        ),
        (
            &[
                "why",
                "--host",
                "h",
                "--at",
                "10",
                "--url",
                "http://127.0.0.1:1",
            ],
            2,
            "2026-11-27T10:00",
        ),
        (
            &["top", "--url", "http://127.0.0.1:1"],
            125,
            "http://127.0.0.1:1",
        ),
    ] {
        let output = fleet(Path::new("/nowhere/python"), words);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{words:?}: {stderr}");
        assert!(stderr.contains(said), "{words:?}: {stderr}");
    }
    // Tables, but nothing that reads them.
    told(
        folder.path(),
        &[(report("sh", "a", SECOND), period("h", now_ns(), ""))],
    );
    let output = Command::new(env!("CARGO_BIN_EXE_debox-fleet"))
        .args(["fleet", "top", "--parquet", path])
        .env_remove("DEBOX_PYTHON")
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("pip install chdb"), "{stderr}");
}

#[test]
fn rows_of_a_report_that_was_read_are_those_of_the_one_that_was_made() {
    let made = Report {
        schema: debox_report::SCHEMA.into(),
        schema_version: debox_report::SCHEMA_VERSION,
        ..report("sh", "a.service", SECOND)
    };
    let read = parse_json(&debox_report::render_json(&made)).unwrap();
    let of = |report: &Report| rows(report, &period("h", 0, ""), &Bounds::default());
    assert_eq!(of(&made), of(&read));
}

struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_server_is_asked_and_loaded_as_a_directory_is() {
    use std::io::BufRead;
    let Some(python) = needs::chdb() else { return };
    let folder = tempfile::tempdir().unwrap();
    let parquet = folder.path().join("parquet");
    let begin = now_ns() - 10 * MINUTE;
    let all: Vec<_> = (0..3)
        .map(|at| {
            let period = period(HOSTILE, begin + at * MINUTE, "v1");
            (report(HOSTILE, "web.service", SECOND), period)
        })
        .collect();
    told(&parquet, &all);
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server.py");
    let mut server = Command::new(&python)
        .arg(server)
        .arg(folder.path().join("database"))
        .args(["ann", "s:@ /"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut port = String::new();
    let stdout = server.stdout.take().unwrap();
    let _server = Ended(server);
    std::io::BufReader::new(stdout)
        .read_line(&mut port)
        .unwrap();
    let port = port.trim();
    let url = format!("clickhouse://ann:s%3A%40%20%2F@127.0.0.1:{port}/default");
    let parquet = parquet.to_str().unwrap();
    let load = || answer(&python, &["load", "--parquet", parquet, "--url", &url]);
    assert_eq!(load()["files"], 9);
    assert_eq!(
        (&load()["files"], &load()["files_known"]),
        (&0.into(), &9.into())
    );
    let of = |place: [&str; 2]| {
        let words = ["top", "--class", "all", "--by", "host,program,root"];
        answer(&python, &[&words[..], &place].concat())
    };
    let (by_server, by_files) = (of(["--url", &url]), of(["--parquet", parquet]));
    assert_eq!(by_server["rows"], by_files["rows"]);
    assert_eq!(
        by_server["rows"][1]["blocked_ns"],
        3 * SECOND,
        "{by_server}"
    );
    // By minute, over all hosts.
    let top = answer(&python, &["top", "--by", "unit,root", "--url", &url]);
    assert_eq!(top["source"], "waits_1m");
    assert_eq!(top["rows"][0]["blocked_ns"], 3 * SECOND, "{top}");
    // A load that was cut off before it could say what it had sent.
    let asked = |sql: &str| answer(&python, &["sql", sql, "--url", &url]);
    let output = fleet(&python, &["sql", "TRUNCATE TABLE loaded", "--url", &url]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(load()["files"], 9);
    let sums = "SELECT sum(blocked_ns) AS ns, sum(sleeps) AS sleeps FROM";
    let rows = asked(&format!("{sums} waits"));
    assert_eq!(rows[0]["sleeps"], 33, "{rows}");
    for table in ["waits_1m", "waits_10m", "waits_1h"] {
        assert_eq!(asked(&format!("{sums} {table}")), rows, "{table}");
    }
    let refused = format!("http://ann:wrong@127.0.0.1:{port}");
    let output = fleet(&python, &["top", "--url", &refused]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125));
    assert!(
        said.contains("Authentication failed") && !said.contains("wrong"),
        "{said}"
    );
    // What the environment says is used where the address says nothing.
    let output = Command::new(env!("CARGO_BIN_EXE_debox-fleet"))
        .args(["fleet", "sql", "SELECT 1 AS one", "--json", "--url"])
        .arg(format!("http://127.0.0.1:{port}"))
        .env("CLICKHOUSE_USER", "ann")
        .env("CLICKHOUSE_PASSWORD", "s:@ /")
        .output()
        .unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value[0]["one"], 1);
}

/// The columns of the exporter's tables that are asked about.
fn otel_tables(sql: &dyn Fn(&str)) {
    sql("CREATE DATABASE otel");
    sql(
        "CREATE TABLE otel.otel_metrics_sum (ResourceAttributes Map(LowCardinality(String), String), \
         ServiceName LowCardinality(String), MetricName LowCardinality(String), \
         Attributes Map(LowCardinality(String), String), StartTimeUnix DateTime, TimeUnix DateTime, \
         Value Float64) ENGINE = MergeTree ORDER BY (ServiceName, MetricName, TimeUnix)",
    );
    sql(
        "CREATE TABLE otel.otel_logs (Timestamp DateTime64(9), ServiceName LowCardinality(String), Body String, \
         ResourceAttributes Map(LowCardinality(String), String), LogAttributes Map(LowCardinality(String), String)) \
         ENGINE = MergeTree ORDER BY Timestamp",
    );
}

/// Sums that agents send over OTLP, as OpenTelemetry's exporter keeps them: what was added from one reading to
/// the next, once, also of an agent that began anew.
#[test]
fn what_came_over_otlp_is_loaded() {
    let Some(python) = needs::chdb() else { return };
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().to_str().unwrap();
    let place = ["--database", database];
    let sql = |sql: &str| done(&python, sql, &place);
    otel_tables(&sql);
    let begin_s = now_ns() / SECOND - 1_000;
    let moment = |seconds: u64| {
        let is = debox_output::Utc::of_seconds(seconds as i64);
        format!(
            "{}T{:02}:{:02}:{:02}Z",
            is.date(),
            is.hour,
            is.minute,
            is.second
        )
    };
    let wait = "{'label':'disk-read','call':'read','class':'loss'}";
    let new = "{'label':'late','call':'write','class':'loss'}";
    let thread = "{'program':'db','unit':'db.service','state':'run_queue'}";
    let row = |at_s: u64, start_s: u64, name: &str, labels: &str, value: &str| {
        format!(
            "({{'host.name':'web-1','debox.release':'v2'}}, 'debox-agent', '{name}', {labels}, {}, {}, {value})",
            begin_s + start_s,
            begin_s + at_s
        )
    };
    let rows = |rows: &[String]| {
        sql(&format!(
            "INSERT INTO otel.otel_metrics_sum VALUES {}",
            rows.join(", ")
        ));
    };
    rows(&[
        row(60, 0, "debox.blocked", wait, "1"),
        row(60, 0, "debox.sleeps", wait, "10"),
        row(60, 0, "debox.thread", thread, "0.5"),
        row(120, 0, "debox.blocked", wait, "3"),
        row(120, 0, "debox.sleeps", wait, "15"),
        row(120, 0, "debox.thread", thread, "0.5"),
        row(120, 0, "debox.blocked", new, "2.5"),
    ]);
    sql(&format!(
        "INSERT INTO otel.otel_logs VALUES ({0}, 'debox-agent', 'First.', {{'host.name':'web-1','debox.boot.id':'b'}}, \
         {{'debox.period.begin':'{1}','debox.policy':'all', \
         'debox.verdict':'First.\\nSecond.','debox.incomplete':'sites_dropped=3'}}), \
         ({0}, 'debox-agent', 'Kept.', {{}}, {{'debox.period.begin':'2026','debox.kept.why':'asked for'}})",
        begin_s + 60,
        moment(begin_s)
    ));
    let load =
        || answer(&python, &[&["load", "--otel", "otel"], &place[..]].concat())["readings"].clone();
    assert_eq!(load(), 3);
    assert_eq!(load(), 0);
    // One more, of which the last one is known, and another agent's first.
    rows(&[
        row(180, 0, "debox.blocked", wait, "8"),
        row(180, 0, "debox.sleeps", wait, "16"),
        row(310, 300, "debox.blocked", wait, "0.25"),
        row(310, 300, "debox.sleeps", wait, "1"),
    ]);
    assert_eq!(load(), 2);
    let read = |question: &str| answer(&python, &[&["sql", question], &place[..]].concat());
    let waits = read(&format!(
        "SELECT toUnixTimestamp(time) - {begin_s} AS at, label, sleeps, blocked_ns, release, root FROM waits ORDER BY at, label"
    ));
    let of = |at: u64, label: &str, sleeps: u64, ns: u64| serde_json::json!({"at": at, "label": label, "sleeps": sleeps, "blocked_ns": ns, "release": "v2", "root": "unknown"});
    assert_eq!(
        waits,
        Value::Array(vec![
            of(0, "disk-read", 10, SECOND),
            of(60, "disk-read", 5, 2 * SECOND),
            of(60, "late", 0, 5 * SECOND / 2),
            of(120, "disk-read", 1, 5 * SECOND),
            of(300, "disk-read", 1, SECOND / 4),
        ])
    );
    let threads = read("SELECT host, unit, program, run_queue_ns FROM threads");
    assert_eq!(
        threads,
        serde_json::json!([{"host": "web-1", "unit": "db.service", "program": "db", "run_queue_ns": SECOND / 2}])
    );
    let periods = read(
        "SELECT host, boot, verdict, incomplete, toUnixTimestamp(until) - toUnixTimestamp(time) AS s FROM periods",
    );
    assert_eq!(
        periods,
        serde_json::json!([{"host": "web-1", "boot": "b", "verdict": "First.\nSecond.", "incomplete": "sites_dropped=3", "s": 60}])
    );
    let top = answer(
        &python,
        &[&["top", "--by", "host,label"], &place[..]].concat(),
    );
    assert_eq!(top["rows"][0]["blocked_ns"], 33 * SECOND / 4, "{top}");
    // Agents that began on more days than ClickHouse takes at once, unless it is told to.
    let began = |days: u64| {
        let row = row(240, 0, "debox.sleeps", wait, "1");
        row.replace("web-1", &format!("old-{days}")).replace(
            &format!(", {begin_s}, "),
            &format!(", {}, ", begin_s - days * 86_400),
        )
    };
    rows(&(1..=101).map(began).collect::<Vec<_>>());
    assert_eq!(load(), 101);
    let old = read(
        "SELECT sum(sleeps) AS sleeps, uniqExact(host) AS hosts FROM waits_1h WHERE host LIKE 'old-%'",
    );
    assert_eq!(old, serde_json::json!([{"sleeps": 101, "hosts": 101}]));
    // Readings begin where periods do not, and are of no policy.
    let words = ["why", "--host", "web-1", "--at", "1h"];
    let why = answer(&python, &[&words[..], &place[..]].concat());
    assert_eq!(why["policies"][0]["policy"], "all", "{why}");
    assert_eq!(
        (&why["waits"][0]["label"], &why["waits"][0]["blocked_ns"]),
        (&"disk-read".into(), &SECOND.into()),
        "{why}"
    );
}

/// A load of what came over OTLP that was cut off after statements of it, and between a table and its sums; another
/// reading and another period came before the next one.
#[test]
fn a_load_of_otlp_that_was_cut_off_adds_nothing_twice() {
    let Some(python) = needs::chdb() else { return };
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().to_str().unwrap();
    let place = ["--database", database];
    let sql = |sql: &str| done(&python, sql, &place);
    otel_tables(&sql);
    let begin_s = now_ns() / SECOND - 6_000;
    // In each another second was waited for and had no CPU, and one call was made.
    let reading = |number: u64| {
        let row = |name: &str, labels: &str| {
            format!(
                "({{'host.name':'h'}}, 'debox-agent', '{name}', {labels}, {begin_s}, {}, {number})",
                begin_s + 60 * number
            )
        };
        let wait = "{'label':'disk-read','call':'read','class':'loss'}";
        let thread = "{'program':'db','unit':'db.service','state':'run_queue'}";
        let rows = [
            row("debox.blocked", wait),
            row("debox.sleeps", wait),
            row("debox.thread", thread),
            row("debox.calls", "{'call':'read'}"),
        ];
        // The exporter may have it twice.
        let period = format!(
            "({}, 'debox-agent', 'First.', {{'host.name':'h'}}, {{'debox.period.begin':'{begin_s}'}})",
            begin_s + 60 * number
        );
        [
            format!(
                "INSERT INTO otel.otel_metrics_sum VALUES {}",
                rows.join(", ")
            ),
            format!("INSERT INTO otel.otel_logs VALUES {period}, {period}"),
        ]
    };
    let run = |statements: &[String], mark: &str| {
        let ask = serde_json::json!({
            "path": database, "statements": statements,
            "params": {"otel": "otel", "mark": mark, "again": "0"},
        });
        let mut engine = Command::new(&python)
            .args(["-c", include_str!("../src/engine.py")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdin = engine.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, ask.to_string().as_bytes()).unwrap();
        drop(stdin);
        assert!(engine.wait().unwrap().success(), "{statements:?}");
    };
    // A reading, and a load that ends behind so many of its statements.
    let cut_off = |number: u64, load: &str, mark: &str, most: usize| {
        let is_more = |line: &str| !line.is_empty() && !line.starts_with("--");
        let all = load.split(";\n").map(str::trim);
        let all = all.filter(|statement| statement.lines().any(is_more));
        let load: Vec<String> = all.take(most).map(str::to_owned).collect();
        assert!(load.last().unwrap().contains("INSERT INTO "));
        run(&[&reading(number)[..], &load].concat(), mark);
    };
    let load = || answer(&python, &[&["load", "--otel", "otel"], &place[..]].concat());
    let sums = || {
        let sql = "SELECT (SELECT sum(sleeps) FROM waits) AS a, (SELECT sum(sleeps) FROM waits_1m) AS b, \
            (SELECT sum(sleeps) FROM waits_1h) AS c, (SELECT sum(run_queue_ns) / 1e9 FROM threads) AS d, \
            (SELECT sum(run_queue_ns) / 1e9 FROM threads_1m) AS e, (SELECT sum(calls) FROM calls) AS f, \
            (SELECT count() FROM periods) AS g, (SELECT count() FROM loaded) / 2 AS h";
        let rows = answer(&python, &[&["sql", sql], &place[..]].concat());
        ["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| rows[0][name].as_f64().unwrap() as u64)
    };
    let readings = include_str!("../sql/otel_readings.sql");
    let periods = include_str!("../sql/otel_periods.sql");
    // It makes the tables.
    load();
    let mut told = 0;
    // Behind what is begun, `waits`, `calls` and `loaded`.
    for most in [2, 5, 7, 8] {
        cut_off(told + 1, readings, &format!("otel/otel/{told}"), most);
        run(&reading(told + 2), "");
        told += 2;
        load();
        assert_eq!(sums(), [told; 8], "{most}");
    }
    for most in [2, 3] {
        cut_off(told + 1, periods, &format!("otel-period/otel/{told}"), most);
        told += 1;
        load();
        assert_eq!(sums(), [told; 8], "{most}");
    }
    // The next load makes it again.
    sql("DROP VIEW waits_to_1h");
    cut_off(told + 1, readings, "otel/otel/view", 5);
    told += 1;
    load();
    assert_eq!(sums(), [told; 8]);
    // One that was begun in time and is taken again when it is older than what is begun; what was begun of another of the
    // exporter's databases waits for that.
    let late_s = now_ns() / SECOND - 7 * 86_400 - 3_600;
    sql(&format!(
        "INSERT INTO otel.otel_metrics_sum VALUES ({{'host.name':'late'}}, 'debox-agent', 'debox.sleeps', \
         {{'label':'disk-read','call':'read','class':'loss'}}, {}, {late_s}, 5)",
        late_s - 60
    ));
    sql(
        "INSERT INTO begun (file, mark) SELECT concat('otel/late/', toString(toUnixTimestamp(StartTimeUnix)), '/', \
         toString(TimeUnix)), 'otel/otel/late' FROM otel.otel_metrics_sum WHERE ResourceAttributes['host.name'] = 'late'",
    );
    sql("INSERT INTO begun (file, mark) VALUES ('otel/there/1/x', 'otel/other/1')");
    load();
    let left = "SELECT (SELECT sum(sleeps) FROM waits_1h WHERE host = 'late') AS late, \
        (SELECT groupArray(mark) FROM begun WHERE mark IN ('otel/otel/late', 'otel/other/1')) AS begun";
    assert_eq!(
        answer(&python, &[&["sql", left], &place[..]].concat()),
        serde_json::json!([{"late": 5, "begun": ["otel/other/1"]}])
    );
}

/// The example that writes a fleet's tables.
fn simulate(url: &str, report: &Path, environment: &[(&str, String)]) -> Output {
    let test = std::env::current_exe().unwrap();
    let examples = test.parent().unwrap().join("../examples");
    Command::new(examples.join("simulate"))
        .arg(report)
        .args([url, "2", "1", "100", "4", "60", "1795788000"])
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .output()
        .unwrap()
}

/// Its own store is the judge.
#[test]
fn a_store_that_speaks_s3_has_what_a_directory_has() {
    let Some(python) = needs::chdb() else { return };
    let moto = Command::new(&python)
        .args(["-c", "import boto3, moto.server"])
        .stderr(Stdio::null())
        .status();
    if !moto.unwrap().success() {
        needs::not_run(
            "no server that speaks S3 is installed: make setup-all has moto in target/fleet-python",
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let report = Report {
        schema: debox_report::SCHEMA.into(),
        schema_version: debox_report::SCHEMA_VERSION,
        run: debox_report::Run {
            wall_ns: MINUTE,
            ..debox_report::Run::default()
        },
        ..report("db", "db.service", SECOND)
    };
    std::fs::write(&file, debox_report::render_json(&report)).unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let server = Command::new(&python)
        .args([
            "-m",
            "moto.server",
            "-H",
            "127.0.0.1",
            "-p",
            &port.to_string(),
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _server = Ended(server);
    until("the store", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let endpoint = format!("http://127.0.0.1:{port}");
    let script = |text: &str| {
        let head = "import boto3, hashlib, json, sys\n\
                    s3 = boto3.client('s3', endpoint_url=sys.argv[1], region_name='eu-central-1', \
                    aws_access_key_id='a', aws_secret_access_key='b')\n";
        let output = Command::new(&python)
            .args(["-c", &format!("{head}{text}"), &endpoint])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let environment = [
        ("AWS_ENDPOINT_URL", endpoint.clone()),
        ("AWS_REGION", "eu-central-1".into()),
        ("AWS_ACCESS_KEY_ID", "a".into()),
        ("AWS_SECRET_ACCESS_KEY", "b".into()),
        // This machine is reached without one.
        ("NO_PROXY", "127.0.0.1".into()),
    ];
    script(
        "s3.create_bucket(Bucket='fleet', CreateBucketConfiguration={'LocationConstraint': 'eu-central-1'})",
    );
    let output = simulate("s3://fleet/some/where", &file, &environment);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && said.contains("; 0 periods dropped"),
        "{output:?}"
    );
    let root = folder.path().join("directory");
    assert!(
        simulate(root.to_str().unwrap(), &file, &[])
            .status
            .success()
    );
    let listed = script(
        "for one in s3.list_objects_v2(Bucket='fleet')['Contents']:\n    \
         print(one['Key'], one['Size'])\n",
    );
    let expected: Vec<String> = files(&root)
        .iter()
        .map(|name| {
            let len = std::fs::metadata(root.join(name)).unwrap().len();
            format!("some/where/{name} {len}")
        })
        .collect();
    assert_eq!(expected.len(), 6);
    assert_eq!(listed.lines().collect::<Vec<_>>(), expected);
    // And a question to either is the same.
    let asked = |place: &str, words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_debox-fleet"))
            .args([&["fleet"], words, &["--parquet", place, "--json"]].concat())
            .env("DEBOX_PYTHON", &python)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{place} {words:?}: {said}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let until = ["--until", "2026-11-27T20:00"];
    for (words, least) in [
        (
            &[
                "top",
                "--since",
                "12h",
                "--by",
                "host,label",
                until[0],
                until[1],
            ][..],
            2,
        ),
        (
            &["top", "--since", "12h", "--by", "state", until[0], until[1]],
            1,
        ),
        // Of that day nothing was told.
        (&["top", "--since", "1h", "--until", "2026-11-29T20:00"], 0),
        (
            &[
                "sql",
                "SELECT host, count() AS n FROM periods GROUP BY host ORDER BY host",
            ],
            2,
        ),
    ] {
        let there = asked("s3://fleet/some/where", words);
        let rows = there.get("rows").unwrap_or(&there).as_array().unwrap();
        assert!(rows.len() >= least, "{words:?}: {there}");
        assert!(least > 0 || rows.is_empty(), "{words:?}: {there}");
        assert_eq!(there, asked(root.to_str().unwrap(), words), "{words:?}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_debox-fleet"))
        .args([
            "fleet",
            "load",
            "--parquet",
            "s3://fleet/some/where",
            "--database",
        ])
        .arg(folder.path().join("database"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("where they are"),
        "{said}"
    );
}
