// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which other forms does `debox report` write, each to a file of its own?

use crate::args::ExportArgs;
use crate::error::Error;
use crate::output::{print, write_file};
use debox_report::{Report, render_html};
use std::path::Path;

impl ExportArgs {
    pub fn write(&self, report: &Report) -> Result<(), Error> {
        if let Some(path) = &self.html {
            write_form(path, render_html(report).as_bytes())?;
        }
        if let Some(path) = &self.folded {
            write_form(path, debox_export::folded(report).as_bytes())?;
        }
        if let Some(path) = &self.folded_cpu {
            write_form(path, debox_export::folded_cpu(report).as_bytes())?;
        }
        if let Some(path) = &self.folded_all {
            write_form(path, debox_export::folded_all(report).as_bytes())?;
        }
        if let Some(path) = &self.perfetto {
            write_form(path, debox_export::perfetto(report).as_bytes())?;
        }
        if let Some(path) = &self.pprof {
            write_form(path, &debox_export::pprof(report))?;
        }
        if let Some(directory) = &self.parquet {
            if directory.as_os_str() == "-" {
                return Err(Error::Arguments(
                    "--parquet writes several tables, which standard output cannot take: name a directory".into(),
                ));
            }
            debox_export::parquet(report, directory)?;
        }
        Ok(())
    }
}

pub fn write_form(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    if path.as_os_str() == "-" {
        return print(bytes);
    }
    write_file(path, bytes)
}
