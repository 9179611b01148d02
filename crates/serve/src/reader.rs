// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who reads a recording, in which somebody may have written anything?
//!
//! A process of its own for each, that can do nothing else: it is handed the open file, gives up
//! everything but to read it and to answer ([`debox_symboliser::confine`]), and is ended when it
//! takes too long or says too much. Nothing that it does takes the server down.

use debox_report::{Report, find_findings, find_trends};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// By this name it knows what it is.
const PROGRAM: &str = "debox-reader";
const WALL_MAX: Duration = Duration::from_secs(20);
/// How often it is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(5);
/// Larger files are not recordings: a writer keeps its file far below.
pub const FILE_MAX: u64 = 256 << 20;
const PAGE_MAX: u64 = 64 << 20;
const SUMMARY_MAX: u64 = 1 << 20;
/// Of a summary.
const SENTENCES_CHARS: usize = 600;
const REFUSED: i32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A page for browsers.
    Page,
    /// A line of the history.
    Summary,
}

impl Wanted {
    fn word(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Summary => "summary",
        }
    }

    fn most(self) -> u64 {
        match self {
            Self::Page => PAGE_MAX,
            Self::Summary => SUMMARY_MAX,
        }
    }
}

/// A recording in one line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Nanoseconds since 1970, where it says so.
    pub started_unix_ns: Option<u64>,
    pub span_ns: u64,
    /// Whom or what it watched.
    pub subject: String,
    /// The first sentences of its verdict.
    pub verdict: String,
    /// Its end is missing.
    pub cut_off: bool,
    /// What the waiting of those ended in who were held up, in a word; largest first.
    pub roots: Vec<(String, u64)>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    #[error("{0}")]
    Refused(String),
    #[error("reading it took more than {} s", WALL_MAX.as_secs())]
    Time,
    #[error("what it says is more than {} MiB", .0 >> 20)]
    Size(u64),
    /// What it holds led its reader to something that ended it.
    #[error("it ended the process that reads it ({0})")]
    Ended(String),
    #[error("the process that reads it cannot be started: {0}")]
    Start(String),
}

fn summary(report: &Report) -> Summary {
    let mut roots: Vec<(String, u64)> = Vec::new();
    // Of sleeps that were not over nobody knows what they ended in.
    let known = crate::live::roots(report).into_iter();
    for root in known.filter(|root| root.root != "not_over") {
        match roots.iter_mut().find(|(name, _)| name == root.root) {
            Some((_, sum)) => *sum = sum.saturating_add(root.total_ns),
            None => roots.push((root.root.to_owned(), root.total_ns)),
        }
    }
    roots.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let words = |words: &str| debox_output::printable_within(words, SENTENCES_CHARS);
    let verdict = match report.verdict.first() {
        Some(sentence) => sentence.clone(),
        None => (report.findings.first()).map_or_else(String::new, |found| found.title.clone()),
    };
    Summary {
        started_unix_ns: report.run.started_unix_ns,
        span_ns: report.run.wall_ns,
        subject: words(&report.run.command.join(" ")),
        verdict: words(&verdict),
        cut_off: report
            .recording
            .as_ref()
            .is_some_and(|state| !state.complete),
        roots,
    }
}

fn answer(wanted: &str, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut report = debox_record::read_bytes(bytes)?;
    if wanted == Wanted::Summary.word() {
        return serde_json::to_vec(&summary(&report)).map_err(|error| error.to_string());
    }
    report.trends = find_trends(&report.history, &report.gauges);
    report.findings = find_findings(&report);
    Ok(debox_report::render_html(&report).into_bytes())
}

fn read(wanted: &str) -> Result<Vec<u8>, String> {
    debox_symboliser::confine(&[1, 2]).map_err(|refusal| match refusal {
        debox_symboliser::Refusal::Again => "its capabilities cannot be given up here".to_owned(),
        debox_symboliser::Refusal::Told(why) => format!("it cannot be confined here: {why}"),
    })?;
    let mut bytes = Vec::new();
    std::io::stdin()
        .take(FILE_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(format!(
            "it is larger than {} MiB, and so than anything that debox writes",
            FILE_MAX >> 20
        ));
    }
    answer(wanted, &bytes)
}

/// The status to end with, if this process is to read a recording: its standard input.
pub fn read_if_asked() -> Option<i32> {
    let mut words = std::env::args_os();
    if words.next()? != PROGRAM {
        return None;
    }
    let wanted = words.next()?.into_string().ok()?;
    let (status, said) = match read(&wanted) {
        Ok(bytes) => (0, bytes),
        Err(why) => (REFUSED, why.into_bytes()),
    };
    // SAFETY: descriptor 1 is this process's own, and nobody uses it any more.
    let mut out = File::from(unsafe { OwnedFd::from_raw_fd(1) });
    Some(match out.write_all(&said) {
        Ok(()) => status,
        Err(_) => 1,
    })
}

/// Ended at the latest when nobody waits for it any more.
struct Reading(Child);

impl Drop for Reading {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What this file says. Blocks for up to 20 s.
pub fn ask(file: File, wanted: Wanted) -> Result<Vec<u8>, Lost> {
    let started = |error: std::io::Error| Lost::Start(error.to_string());
    let child = Command::new("/proc/self/exe")
        .arg0(PROGRAM)
        .arg(wanted.word())
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(file))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(started)?;
    let mut reading = Reading(child);
    let stdout = reading.0.stdout.take();
    let stdout = stdout.ok_or_else(|| Lost::Start("it has no output".into()))?;
    // Ends when the process does, which is seen to below.
    let most = wanted.most();
    let said = std::thread::spawn(move || {
        let mut said = Vec::new();
        let got = stdout.take(most + 1).read_to_end(&mut said);
        got.map(|_| said)
    });
    let until = Instant::now() + WALL_MAX;
    let status = loop {
        if said.is_finished() {
            // All has been said, or too much.
            break None;
        }
        match reading.0.try_wait().map_err(started)? {
            Some(status) => break Some(status),
            None if Instant::now() >= until => return Err(Lost::Time),
            None => std::thread::sleep(LOOK),
        }
    };
    let said = said.join().ok().and_then(Result::ok).unwrap_or_default();
    if said.len() as u64 > most {
        return Err(Lost::Size(most));
    }
    let status = match status {
        Some(status) => status,
        None => reading.0.wait().map_err(started)?,
    };
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(said),
        (Some(REFUSED), _) => {
            let words = String::from_utf8_lossy(&said);
            let words = debox_output::printable_within(&words, SENTENCES_CHARS);
            Err(Lost::Refused(words))
        }
        (_, Some(signal)) => Err(Lost::Ended(debox_command::signal_name(signal))),
        (code, None) => Err(Lost::Ended(format!("status {}", code.unwrap_or(-1)))),
    }
}
