// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a recording say, also one that was cut off?

use crate::format::*;
use crate::{gauge, history, limits};
use debox_output::printable;
use debox_report::*;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Larger files are not recordings: a writer keeps its file far below.
const FILE_MAX: u64 = 256 << 20;

/// A flush makes two, and rewriting takes the earlier ones away.
const BLOCKS_MAX: usize = 1 << 20;
/// Whole blocks whose text is not what it should be: none is ever written.
const SENSELESS_MAX: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read {}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: {what}", .path.display())]
    Not { path: PathBuf, what: String },
}

/// Whether a file begins as a recording does.
pub fn is_recording(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// The report of a recording, or of a file that `--json` wrote. `recording`
/// says how whole it is. Trends and findings are for the caller to make.
pub fn read(path: &Path) -> Result<Report, ReadError> {
    let failed = |source| ReadError::Io {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    let not = |what: String| ReadError::Not {
        path: path.to_owned(),
        what,
    };
    if bytes.len() as u64 > FILE_MAX {
        return Err(not(format!(
            "is larger than {} MiB, and so than anything that debox writes",
            FILE_MAX >> 20
        )));
    }
    read_bytes(&bytes).map_err(not)
}

/// The same from memory; the error is a sentence.
pub fn read_bytes(bytes: &[u8]) -> Result<Report, String> {
    if !is_recording(bytes) {
        return read_json(bytes);
    }
    if bytes.len() < HEADER_LEN {
        return Err("the recording was cut off in its first bytes: nothing to report".into());
    }
    let version = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    if version != VERSION {
        return Err(format!(
            "a recording of format version {version}; this debox reads version {VERSION}: use the \
             debox that wrote it, or a later one"
        ));
    }
    let header_len = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
    let from = header_len.max(HEADER_LEN);
    if from > bytes.len() {
        return Err("the recording was cut off in its first bytes: nothing to report".into());
    }
    let (mut blocks, mut why) = blocks(bytes, from)?;
    let mut left = UNPACKED_MAX.max(bytes.len().saturating_mul(UNPACKED_TIMES));
    for _ in 0..=SENSELESS_MAX {
        match Parts::of(&blocks, &mut left) {
            Ok(parts) => return parts.report(why),
            Err((_, Broken::Exceeds(what))) => return Err(what),
            // What stands before it is as good as it was.
            Err((index, _)) => {
                why = Some(format!("it is damaged at byte {}", blocks[index].at));
                blocks.truncate(index);
            }
        }
    }
    Err(format!(
        "holds more than {SENSELESS_MAX} blocks that are whole and make no sense: no debox wrote this"
    ))
}

/// The whole blocks, and why there are no more.
fn blocks(bytes: &[u8], from: usize) -> Result<(Vec<Block<'_>>, Option<String>), String> {
    let mut blocks = Vec::new();
    let mut at = from;
    let why = loop {
        match block_read(bytes, at) {
            Ok(None) => break None,
            Ok(Some(block)) => {
                at += block.len();
                blocks.push(block);
                if blocks.len() > BLOCKS_MAX {
                    return Err(exceeds(blocks.len(), "blocks", BLOCKS_MAX));
                }
            }
            Err(Broken::Short) => break Some("it ends in the middle of a flush".into()),
            Err(_) => break Some(format!("it is damaged at byte {at}")),
        }
    };
    Ok((blocks, why))
}

fn read_json(bytes: &[u8]) -> Result<Report, String> {
    let text = bytes.trim_ascii_start();
    if !text.starts_with(b"{") {
        return Err(if bytes.is_empty() {
            "is empty: neither a recording nor a JSON report".into()
        } else {
            "neither a recording (debox run -o FILE.debox) nor a JSON report (debox run --json)"
                .into()
        });
    }
    json_check(text)?;
    let report: Report =
        serde_json::from_slice(text).map_err(|e| format!("not a JSON report of debox: {e}"))?;
    checked(report)
}

fn checked(report: Report) -> Result<Report, String> {
    if report.schema != SCHEMA || report.schema_version != SCHEMA_VERSION {
        return Err(format!(
            "holds {} version {}, this debox reads {SCHEMA} version {SCHEMA_VERSION}",
            printable(&report.schema),
            report.schema_version
        ));
    }
    limits::check(&report)?;
    Ok(report)
}

#[derive(Default)]
struct Parts {
    start: Option<Start>,
    report: Option<Report>,
    history: Vec<CallHistory>,
    gauges: Vec<Gauge>,
    until_ns: u64,
    end: Option<End>,
    skipped: u64,
}

fn parsed<T: DeserializeOwned>(text: &[u8]) -> Result<T, Broken> {
    serde_json::from_slice(text).map_err(|_| Broken::Damaged)
}

impl Parts {
    /// What the blocks say. Those that a later one stands for are not even
    /// unpacked. `left`: bytes that may still be unpacked; the error has the
    /// block's index.
    fn of(blocks: &[Block<'_>], left: &mut usize) -> Result<Self, (usize, Broken)> {
        let last = |wanted: &dyn Fn(&Block<'_>) -> bool| blocks.iter().rposition(wanted);
        // Of the first there is one, and of reports and ends the last counts.
        let start = blocks.iter().position(|b| b.kind == BLOCK_START);
        let report = last(&|b| b.kind == BLOCK_REPORT);
        let end = last(&|b| b.kind == BLOCK_END);
        let history = last(&|b| b.kind == BLOCK_HISTORY && b.flags & FLAG_REPLACES != 0);
        let mut parts = Self::default();
        for (index, block) in blocks.iter().enumerate() {
            let at = Some(index);
            let counts = match block.kind {
                BLOCK_START => at == start,
                BLOCK_REPORT => at == report,
                BLOCK_HISTORY => at >= history,
                BLOCK_END => at == end,
                _ => false,
            };
            parts.skipped += u64::from(!block.is_known());
            if counts {
                parts.take(block, left).map_err(|why| (index, why))?;
            }
        }
        Ok(parts)
    }

    fn take(&mut self, block: &Block<'_>, left: &mut usize) -> Result<(), Broken> {
        *left = left.checked_sub(block.text_len).ok_or_else(|| {
            Broken::Exceeds(format!(
                "unpacks to more than {} MiB and {UNPACKED_TIMES} times its size, which no recording of debox \
                 does",
                UNPACKED_MAX >> 20
            ))
        })?;
        let text = block.unpack()?;
        match block.kind {
            BLOCK_START => self.start = parsed(&text).ok(),
            BLOCK_REPORT => {
                let report: Report = parsed(&text)?;
                self.until_ns = self.until_ns.max(report.run.wall_ns);
                self.report = Some(report);
            }
            BLOCK_HISTORY => {
                let more: HistoryBlock = parsed(&text)?;
                history::check(&more.history).map_err(Broken::Exceeds)?;
                self.until_ns = self.until_ns.max(more.until_ns);
                history::append(&mut self.history, more.history).map_err(Broken::Exceeds)?;
                gauge::append(&mut self.gauges, more.gauges);
            }
            _ => self.end = Some(parsed(&text)?),
        }
        Ok(())
    }

    fn report(self, why: Option<String>) -> Result<Report, String> {
        let mut report = match (self.report, &self.start) {
            (Some(report), _) => checked(report)?,
            (None, Some(start)) => empty(start),
            (None, None) => {
                return Err("the recording was cut off before anything was flushed".into());
            }
        };
        let complete = self.end.is_some() && why.is_none();
        let why = match (&self.end, why) {
            (_, Some(why)) => Some(why),
            (Some(end), None) => end.why.clone(),
            (None, None) => Some("it was not finished".into()),
        };
        report.history = self.history;
        report.gauges = self.gauges;
        if let Some(start) = self.start {
            report.run.started_unix_ns = Some(start.started_unix_ns);
            report.run.kernel = Some(start.kernel);
            report.run.hostname = Some(start.hostname);
        }
        report.recording = Some(RecordingState {
            complete,
            until_ns: self.until_ns,
            why,
        });
        if self.skipped > 0 {
            report.notes.push(Note::new(
                NoteKind::Other,
                self.skipped,
                "a later version of debox wrote this recording; it holds parts that this \
                 version does not know",
            ));
        }
        Ok(report)
    }
}

/// The report of a recording that was cut before its first flush.
fn empty(start: &Start) -> Report {
    Report {
        schema: SCHEMA.to_owned(),
        schema_version: SCHEMA_VERSION,
        debox_version: start.debox_version.clone(),
        run: Run {
            kind: start.kind,
            command: start.command.clone(),
            pids: start.pids.clone(),
            capture: start.capture,
            cpus: start.cpus,
            ..Run::default()
        },
        ..Report::default()
    }
}
