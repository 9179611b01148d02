// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a recording written so that whatever happens to its writer, what was
//! flushed can be read?
//!
//! Blocks are only ever appended, each in one write; a write that fails is cut
//! off again, so the file always ends with a whole block or with the part of
//! one that a kill left, which the reader ignores. Rewriting (a file that has
//! grown, or the final one) goes to a new file that replaces the old one in one
//! step. No fdatasync while the command runs: it would flush the device under
//! the program that is being measured.

use crate::format::*;
use crate::observe::strip;
use debox_report::{CallHistory, Gauge, Report};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A file that grew beyond this and several times its contents is rewritten.
const GROWN_BYTES: u64 = 16 << 20;
const GROWN_TIMES: u64 = 8;
/// At the end, what was superseded may stay if it is less than this.
const LEFT_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("{}: is a {what}; a recording needs a file of its own", .path.display())]
    NotAFile { path: PathBuf, what: &'static str },
    #[error("cannot write the recording {}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "the recording {} ends at {}: {source}. {remedy}",
        .path.display(), debox_output::duration_text(*.until_ns, false)
    )]
    Cut {
        path: PathBuf,
        /// Since the start of the run, of the last flush that went well.
        until_ns: u64,
        source: io::Error,
        remedy: &'static str,
    },
}

/// What a recording holds at one moment.
pub struct Contents<'a> {
    /// The sums: without history, gauges, trends and findings.
    pub report: &'a Report,
    pub history: Vec<CallHistory>,
    pub gauges: Vec<Gauge>,
    /// history and gauges are all there is, not what came since the last flush.
    pub whole: bool,
    /// Since the start of the run.
    pub until_ns: u64,
}

fn sums_of(report: &Report) -> Report {
    let mut sums = report.clone();
    strip(&mut sums);
    sums
}

fn alone(sums: &Report) -> Contents<'_> {
    Contents {
        report: sums,
        history: Vec::new(),
        gauges: Vec::new(),
        whole: true,
        until_ns: sums.run.wall_ns,
    }
}

pub struct Writer {
    path: PathBuf,
    file: File,
    start: Vec<u8>,
    /// Bytes that are whole blocks.
    good: u64,
    /// What the contents of the last flush would take alone.
    compact: u64,
    until_ns: u64,
    /// History of earlier flushes is missing in the file.
    gap: bool,
    trouble: Option<io::Error>,
}

fn json<T: serde::Serialize>(value: &T) -> io::Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(io::Error::other)
}

fn framed(kind: u32, flags: u32, text: &[u8]) -> io::Result<Vec<u8>> {
    block(kind, flags, text).ok_or_else(|| {
        io::Error::other(format!(
            "{} bytes are more than one block can hold",
            text.len()
        ))
    })
}

fn blocks(contents: &Contents<'_>) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    if contents.whole || !contents.history.is_empty() || !contents.gauges.is_empty() {
        let history = json(&HistoryBlock {
            until_ns: contents.until_ns,
            history: contents.history.clone(),
            gauges: contents.gauges.clone(),
        })?;
        let flags = if contents.whole { FLAG_REPLACES } else { 0 };
        out.extend(framed(BLOCK_HISTORY, flags, &history)?);
    }
    let report = framed(BLOCK_REPORT, FLAG_REPLACES, &json(contents.report)?)?;
    out.extend(report);
    Ok(out)
}

fn end_block(until_ns: u64, why: Option<String>) -> io::Result<Vec<u8>> {
    framed(BLOCK_END, 0, &json(&End { until_ns, why })?)
}

/// Everything, and the mark that it is.
fn last(contents: &Contents<'_>) -> io::Result<Vec<u8>> {
    let mut bytes = blocks(contents)?;
    bytes.extend(end_block(contents.until_ns, None)?);
    Ok(bytes)
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => {
            "What was written before can be read; free space there, or name a file elsewhere"
        }
        Some(libc::EFBIG) => {
            "What was written before can be read; raise the limit of file sizes (ulimit -f)"
        }
        _ => "What was written before can be read",
    }
}

impl Writer {
    /// Creates the file, in the place of one that is there.
    pub fn create(path: &Path, start: &Start) -> Result<Self, WriteError> {
        let block = json(start).and_then(|text| framed(BLOCK_START, 0, &text));
        let block = block.map_err(|source| WriteError::Io {
            path: path.to_owned(),
            source,
        })?;
        Self::begun(path, [header().as_slice(), &block].concat())
    }

    fn begun(path: &Path, start: Vec<u8>) -> Result<Self, WriteError> {
        let failed = |source| WriteError::Io {
            path: path.to_owned(),
            source,
        };
        if let Ok(metadata) = std::fs::metadata(path) {
            let kind = metadata.file_type();
            let what = match () {
                () if kind.is_file() => None,
                () if kind.is_dir() => Some("directory"),
                () if kind.is_fifo() => Some("pipe"),
                () if kind.is_socket() => Some("socket"),
                () => Some("device"),
            };
            if let Some(what) = what {
                return Err(WriteError::NotAFile {
                    path: path.to_owned(),
                    what,
                });
            }
        }
        let file = debox_output::create(path).map_err(failed)?;
        let mut writer = Self {
            // A link stays a link when the file behind it is replaced, and a
            // later change of directory does not matter.
            path: std::fs::canonicalize(path).map_err(failed)?,
            file,
            start,
            good: 0,
            compact: 0,
            until_ns: 0,
            gap: false,
            trouble: None,
        };
        let first = writer.start.clone();
        writer.append(&first).map_err(failed)?;
        Ok(writer)
    }

    /// Puts bytes behind the last whole block, or leaves everything as it was.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let result = self
            .file
            .seek(SeekFrom::Start(self.good))
            .and_then(|_| self.file.write_all(bytes));
        match result {
            Ok(()) => {
                self.good += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                // If this fails too, the reader ignores the half block.
                let _ = self.file.set_len(self.good);
                Err(error)
            }
        }
    }

    /// Writes all anew and replaces the file in one step.
    fn replace(&mut self, bytes: &[u8], durable: bool) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let old = self.file.metadata()?;
        if old.nlink() != 1 {
            return Err(io::Error::other("the file has further names"));
        }
        let mut new = tempfile::Builder::new()
            .prefix(".debox-")
            .suffix(".part")
            .tempfile_in(directory)?;
        // What its owner made of the file meanwhile stays.
        new.as_file()
            .set_permissions(std::fs::Permissions::from_mode(old.mode() & 0o7777))?;
        let me = new.as_file().metadata()?;
        if (me.uid(), me.gid()) != (old.uid(), old.gid()) {
            std::os::unix::fs::fchown(new.as_file(), Some(old.uid()), Some(old.gid()))?;
        }
        new.write_all(bytes)?;
        if durable {
            new.as_file().sync_data()?;
        }
        self.file = new.persist(&self.path).map_err(|e| e.error)?;
        self.good = bytes.len() as u64;
        Ok(())
    }

    /// Whether the next flush must bring everything: earlier ones failed, or
    /// the file is about to be rewritten.
    pub fn wants_whole(&self) -> bool {
        self.gap || self.good > GROWN_BYTES.max(GROWN_TIMES * self.compact)
    }

    /// Adds what is new. An error does not end the recording: the next flush
    /// tries again, and `finish` tells.
    pub fn flush(&mut self, contents: &Contents<'_>) {
        let grown = self.good > GROWN_BYTES.max(GROWN_TIMES * self.compact);
        let result = blocks(contents).and_then(|bytes| {
            if contents.whole {
                self.compact = (self.start.len() + bytes.len()) as u64;
                let all = [self.start.as_slice(), &bytes].concat();
                if grown && self.replace(&all, false).is_ok() {
                    return Ok(());
                }
            } else {
                self.compact = self.compact.max(bytes.len() as u64);
            }
            self.append(&bytes)
        });
        match result {
            Ok(()) => {
                self.until_ns = contents.until_ns;
                self.gap &= !contents.whole;
                self.trouble = None;
            }
            Err(error) => {
                self.gap = true;
                self.trouble = Some(error);
            }
        }
    }

    /// The last flush and the mark that it was the last one. `contents.whole`
    /// must be set.
    pub fn finish(mut self, contents: &Contents<'_>) -> Result<PathBuf, WriteError> {
        let result = last(contents).and_then(|bytes| {
            let alone = (self.start.len() + bytes.len()) as u64;
            let left = (self.good + bytes.len() as u64).saturating_sub(alone);
            if left > LEFT_BYTES.max(alone) {
                let all = [self.start.as_slice(), &bytes].concat();
                if self.replace(&all, true).is_ok() {
                    return Ok(());
                }
            }
            self.append(&bytes)?;
            self.file.sync_data()
        });
        match result {
            Ok(()) => Ok(self.path),
            Err(source) => Err(self.cut(source)),
        }
    }

    fn cut(&self, source: io::Error) -> WriteError {
        WriteError::Cut {
            path: self.path.clone(),
            until_ns: self.until_ns,
            remedy: remedy(&source),
            source,
        }
    }

    /// The sums so far, of who has no observer.
    pub fn report_flush(&mut self, report: &Report) {
        let sums = sums_of(report);
        self.flush(&alone(&sums));
    }

    /// A recording of the same run in a file of its own, with its last sums alone and the mark
    /// that they were the last ones. Who has the time for it brings the file to the disk.
    pub fn report_alone(&self, path: &Path, report: &Report) -> Result<File, WriteError> {
        let sums = sums_of(report);
        let mut writer = Self::begun(path, self.start.clone())?;
        match last(&alone(&sums)).and_then(|bytes| writer.append(&bytes)) {
            Ok(()) => Ok(writer.file),
            Err(source) => Err(writer.cut(source)),
        }
    }

    /// Why the last flush is not in the file.
    pub fn trouble(&self) -> Option<&io::Error> {
        self.trouble.as_ref()
    }

    /// Bytes in the file.
    pub fn bytes(&self) -> u64 {
        self.good
    }
}
