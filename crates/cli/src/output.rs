// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does the report go, and how wide and colourful may it be there?

use crate::args::{Color, ReportArgs, ResultArgs};
use crate::error::Error;
use debox_report::{Report, TextOptions, render_json, render_text};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

pub enum Target {
    Stderr,
    Stdout,
    File { file: File, path: PathBuf },
}

pub struct Output {
    target: Target,
}

impl Output {
    /// Opened before the command runs: a report that cannot be written should
    /// be known before an hour of measuring.
    pub fn open(args: &ReportArgs) -> Result<Self, Error> {
        let target = match &args.output {
            None => Target::Stderr,
            Some(path) if path.as_os_str() == "-" => Target::Stdout,
            Some(path) => {
                let file = debox_output::create(path).map_err(|source| Error::Output {
                    path: path.clone(),
                    source,
                })?;
                Target::File {
                    file,
                    path: path.clone(),
                }
            }
        };
        Ok(Self { target })
    }

    /// The same for reports of what is over: these go to standard output.
    pub fn open_or_stdout(args: &ReportArgs) -> Result<Self, Error> {
        match &args.output {
            None => Ok(Self {
                target: Target::Stdout,
            }),
            Some(_) => Self::open(args),
        }
    }

    /// Standard error, whatever -o names: that is written by somebody else.
    pub fn stderr() -> Self {
        Self {
            target: Target::Stderr,
        }
    }

    pub fn uses_stdout(&self) -> bool {
        matches!(self.target, Target::Stdout)
    }

    fn terminal(&self) -> Option<i32> {
        let (is, fd) = match &self.target {
            Target::Stderr => (io::stderr().is_terminal(), 2),
            Target::Stdout => (io::stdout().is_terminal(), 1),
            Target::File { file, .. } => (file.is_terminal(), file.as_raw_fd()),
        };
        is.then_some(fd)
    }

    pub fn write(self, mut report: Report, args: &ReportArgs) -> Result<(), Error> {
        report.sort_calls(args.sort);
        let text = if args.json {
            render_json(&report)
        } else {
            if args.quiet {
                report.notes.clear();
            }
            let terminal = self.terminal();
            let options = TextOptions {
                width: terminal.map(columns),
                color: color(args.color, terminal.is_some()),
                ascii: ascii(),
                top: args.top,
            };
            render_text(&report, &options)
        };
        let (path, result) = match self.target {
            Target::Stderr => (
                "standard error".into(),
                write_all(&mut io::stderr().lock(), &text),
            ),
            Target::Stdout => (
                "standard output".into(),
                write_all(&mut io::stdout().lock(), &text),
            ),
            Target::File { mut file, path } => (path, write_all(&mut file, &text)),
        };
        result.map_err(|source| Error::Output { path, source })
    }
}

fn write_all(out: &mut dyn Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// To standard output.
pub fn print(bytes: &[u8]) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|source| Error::Output {
            path: "standard output".into(),
            source,
        })
}

impl ResultArgs {
    fn file(&self) -> Option<&Path> {
        self.output
            .as_deref()
            .filter(|path| path.as_os_str() != "-")
    }

    pub fn on_terminal(&self) -> bool {
        self.file().is_none() && io::stdout().is_terminal()
    }

    /// How long lines of text may be there.
    pub fn width(&self) -> Option<usize> {
        self.on_terminal().then(|| columns(1))
    }
}

pub fn deliver(to: &ResultArgs, text: &str) -> Result<(), Error> {
    match to.file() {
        Some(path) => write_file(path, text.as_bytes()),
        None => print(text.as_bytes()),
    }
}

pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    debox_output::write(path, bytes).map_err(|source| Error::Output {
        path: path.to_owned(),
        source,
    })
}

/// A document for programs, which a terminal may show all the same.
pub fn json(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string_pretty(value).expect("text, numbers and flags serialise");
    debox_output::json_printable(&text) + "\n"
}

pub fn color(when: Color, terminal: bool) -> bool {
    match when {
        Color::Always => true,
        Color::Never => false,
        // https://no-color.org: set and not empty.
        Color::Auto => terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
    }
}

/// The terminal's width; 80 when it does not know.
fn columns(fd: i32) -> usize {
    // SAFETY: fills a local.
    let columns = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        if libc::ioctl(fd, libc::TIOCGWINSZ, &mut size) == 0 {
            size.ws_col
        } else {
            0
        }
    };
    if columns == 0 { 80 } else { columns.into() }
}

/// Whether the locale knows no more than ASCII.
pub fn ascii() -> bool {
    let value = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|value| !value.is_empty())
        .unwrap_or_default()
        .to_ascii_lowercase();
    !(value.contains("utf-8") || value.contains("utf8"))
}
