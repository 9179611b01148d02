// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does a finished run go: terminal, JSON, page?

use crate::args::OutputArgs;
use crate::model::{self, Document, Kind, SCHEMA, SCHEMA_VERSION};
use crate::os::Suite;
use crate::{Error, page, text};
use debox_output::chart::Figure;
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// As of a debox that cannot work.
const NOTHING_MEASURED: i32 = 125;

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |e| Error::File {
        path: path.to_owned(),
        what: e.to_string(),
    }
}

/// Reads an earlier result.
///
/// # Errors
/// [`Error::File`] when it cannot be read, or is not one of ours.
pub fn load(path: &Path) -> Result<Document, Error> {
    let text = std::fs::read_to_string(path).map_err(failed(path))?;
    parse(&text).map_err(|what| Error::File {
        path: path.to_owned(),
        what,
    })
}

/// Reads the text of an earlier result.
///
/// # Errors
/// A sentence, when it is not one of ours.
pub fn parse(text: &str) -> Result<Document, String> {
    let head: serde_json::Value =
        serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))?;
    if head["schema"] != SCHEMA {
        return Err(format!(
            "not a result of debox bench (its schema is {}; expected {SCHEMA}, as --json writes it)",
            head["schema"]
        ));
    }
    if head["schema_version"] != SCHEMA_VERSION {
        return Err(format!(
            "schema version {} (this debox knows version {SCHEMA_VERSION}): use the debox that wrote it",
            head["schema_version"]
        ));
    }
    serde_json::from_value(head).map_err(|e| format!("incomplete: {e}"))
}

/// The other run, if it is one of the same kind.
fn load_other(path: &Path, kind: Kind) -> Result<Document, Error> {
    let there = load(path)?;
    if there.kind == kind {
        return Ok(there);
    }
    Err(Error::Usage(format!(
        "{} is a result of the other kind of benchmark: compare os with os, self with self",
        path.display()
    )))
}

/// Could this file be written? Changes nothing.
fn writable(path: &Path) -> Result<(), Error> {
    if path == Path::new("-") {
        return Ok(());
    }
    match OpenOptions::new().write(true).open(path) {
        Ok(_) => return Ok(()),
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(path)(e)),
        Err(_) => {}
    }
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let name = CString::new(parent.as_os_str().as_bytes())
        .map_err(|e| failed(path)(std::io::Error::other(e)))?;
    // SAFETY: a string that ends with a zero.
    if unsafe { libc::access(name.as_ptr(), libc::W_OK) } == 0 && parent.is_dir() {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(failed(path)(std::io::Error::other(format!(
        "cannot be made in {}: {error}",
        parent.display()
    ))))
}

/// Asked before minutes are spent on measuring: can the result go where it is
/// wanted, and is there something to compare it with?
///
/// # Errors
/// What [`deliver`] would say at the end.
pub fn check(args: &OutputArgs, kind: Kind) -> Result<(), Error> {
    if let Some(path) = &args.compare {
        load_other(path, kind)?;
    }
    for path in [&args.output, &args.html].into_iter().flatten() {
        writable(path)?;
    }
    Ok(())
}

/// The result as JSON, or as tables, which may be shown on a terminal.
fn shown(document: &Document, args: &OutputArgs, only: Option<&[Suite]>, terminal: bool) -> String {
    if args.json {
        let mut text = serde_json::to_string(document).expect("plain data");
        text.push('\n');
        return debox_output::json_printable(&text);
    }
    // Those who wanted only some suites need not be shown the clocks.
    let mut shown = document.clone();
    if only.is_some_and(|o| !o.is_empty() && !o.contains(&Suite::Clocks)) {
        // The one in use stays: it says what the numbers are worth.
        if let Some(c) = &mut shown.clocks {
            c.sources = c.chosen().cloned().into_iter().collect();
        }
    }
    let terminal = terminal && std::io::stdout().is_terminal();
    let color = match args.color.as_str() {
        "always" => true,
        "never" => false,
        _ => terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
    };
    text::render(&shown, color)
}

/// To standard output. A reader of tables that has gone away (head) is no
/// failure.
fn print(text: &str, json: bool) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Err(error) if json => Err(failed(Path::new("standard output"))(error)),
        _ => Ok(()),
    }
}

/// Numbered, so that their names have the page's order.
fn figures_write(directory: &Path, kind: Kind, figures: &[Figure]) -> std::io::Result<()> {
    debox_output::create_directory(directory)?;
    for (number, figure) in (1..).zip(figures) {
        let name = format!("{}-{number:02}-{}.svg", kind.name(), figure.slug());
        debox_output::write(&directory.join(name), figure.file().as_bytes())?;
    }
    Ok(())
}

/// A text where the result is wanted.
///
/// # Errors
/// When it cannot be written.
pub fn write(args: &OutputArgs, text: &str) -> Result<(), Error> {
    match &args.output {
        Some(path) if path != Path::new("-") => {
            debox_output::write(path, text.as_bytes()).map_err(failed(path))
        }
        _ => print(text, args.json),
    }
}

/// Compares, prints and writes as asked. `only`: `None` for a loaded result.
///
/// What can be written is written, also when something else fails.
///
/// # Errors
/// The first of what could not be read or written.
pub fn deliver(
    mut document: Document,
    args: &OutputArgs,
    only: Option<&[Suite]>,
) -> Result<i32, Error> {
    let mut outcome = Ok(());
    if let Some(path) = &args.compare {
        match load_other(path, document.kind) {
            Ok(there) => {
                let name = path
                    .file_name()
                    .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
                document.comparison = Some(model::compare(&document, &there, &name));
            }
            Err(error) => outcome = Err(error),
        }
    }
    let to = args
        .output
        .as_deref()
        .filter(|path| *path != Path::new("-"));
    let written = match to {
        Some(path) => debox_output::write(path, shown(&document, args, only, false).as_bytes())
            .map_err(failed(path)),
        None => print(&shown(&document, args, only, true), args.json),
    };
    if written.is_err() && to.is_some() {
        // Minutes of measuring are not lost to a full disk.
        let _ = print(&shown(&document, args, only, true), args.json);
    }
    outcome = outcome.and(written);
    if args.html.is_some() || args.figures.is_some() {
        let (page, figures) = page::render(&document);
        if let Some(path) = &args.html {
            let written = debox_output::write(path, page.as_bytes());
            outcome = outcome.and(written.map_err(failed(path)));
        }
        if let Some(path) = &args.figures {
            let written = figures_write(path, document.kind, &figures);
            outcome = outcome.and(written.map_err(failed(path)));
        }
    }
    outcome?;
    let measured = match document.kind {
        Kind::Os => {
            document.results.is_empty() || document.results.iter().any(|r| r.summary.is_some())
        }
        Kind::SelfCost => document.self_cost.is_some(),
    };
    Ok(if measured { 0 } else { NOTHING_MEASURED })
}

/// What is being done, on a line of its own while somebody looks.
pub fn progress(quiet: bool, text: &str) {
    let mut err = std::io::stderr().lock();
    if quiet {
        return;
    }
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{text}");
    }
    let _ = err.flush();
}
