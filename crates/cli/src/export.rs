// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which other forms does `debox report` write, each to a file of its own?

use crate::error::Error;
use crate::output::{print, write_file};
use clap::Args;
use debox_report::{Report, render_html};
use std::path::{Path, PathBuf};

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Other forms (- is standard output)")]
pub struct ExportArgs {
    /// Write one self-contained page for browsers
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write blocked time as folded stacks, for flamegraph.pl and speedscope
    #[arg(long, value_name = "FILE")]
    pub folded: Option<PathBuf>,
    /// Write the slow calls as a Chrome trace, for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// Write a profile for `go tool pprof`
    #[arg(long, value_name = "FILE")]
    pub pprof: Option<PathBuf>,
    /// Write tables for DuckDB, ClickHouse and pandas: DIR/calls.parquet ...
    #[arg(long, value_name = "DIR")]
    pub parquet: Option<PathBuf>,
}

impl ExportArgs {
    /// Whether any is asked for; the text is then left out.
    pub fn any(&self) -> bool {
        [
            &self.html,
            &self.folded,
            &self.perfetto,
            &self.pprof,
            &self.parquet,
        ]
        .iter()
        .any(|f| f.is_some())
    }

    pub fn write(&self, report: &Report) -> Result<(), Error> {
        if let Some(path) = &self.html {
            write_form(path, render_html(report).as_bytes())?;
        }
        if let Some(path) = &self.folded {
            write_form(path, debox_export::folded(report).as_bytes())?;
        }
        if let Some(path) = &self.perfetto {
            write_form(path, debox_export::perfetto(report).as_bytes())?;
        }
        if let Some(path) = &self.pprof {
            write_form(path, &debox_export::pprof(report))?;
        }
        if let Some(directory) = &self.parquet {
            if directory.as_os_str() == "-" {
                return Err(Error::Usage(
                    "--parquet writes several tables, which standard output cannot take: name a directory".into(),
                ));
            }
            debox_export::parquet(report, directory)?;
        }
        Ok(())
    }
}

fn write_form(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    if path.as_os_str() == "-" {
        return print(bytes);
    }
    write_file(path, bytes)
}
