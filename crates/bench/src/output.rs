// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does a finished run go: terminal, JSON, page?

use crate::args::OutputArgs;
use crate::model::{self, Document, Kind, SCHEMA, SCHEMA_VERSION};
use crate::os::Suite;
use crate::{Error, page, text};
use std::io::{IsTerminal, Write};
use std::path::Path;

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
    let wrong = |what: String| Error::File {
        path: path.to_owned(),
        what,
    };
    let head: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| wrong(format!("not JSON: {e}")))?;
    if head["schema"] != SCHEMA {
        return Err(wrong(format!(
            "not a result of debox bench (its schema is {}; expected {SCHEMA}, as --json writes it)",
            head["schema"]
        )));
    }
    if head["schema_version"] != SCHEMA_VERSION {
        return Err(wrong(format!(
            "schema version {} (this debox knows version {SCHEMA_VERSION}): use the debox that wrote it",
            head["schema_version"]
        )));
    }
    serde_json::from_value(head).map_err(|e| wrong(format!("incomplete: {e}")))
}

/// Compares, prints and writes as asked. `only`: `None` for a loaded result.
///
/// # Errors
/// When a file cannot be read or written.
pub fn deliver(
    mut document: Document,
    args: &OutputArgs,
    only: Option<&[Suite]>,
) -> Result<i32, Error> {
    if let Some(path) = &args.compare {
        let there = load(path)?;
        if there.kind != document.kind {
            return Err(Error::Usage(format!(
                "{} is a result of the other kind of benchmark: compare os with os, self with self",
                path.display()
            )));
        }
        let name = path
            .file_name()
            .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        document.comparison = Some(model::compare(&document, &there, &name));
    }
    // Those who wanted only some suites need not be shown the clocks.
    let mut shown = document.clone();
    if only.is_some_and(|o| !o.is_empty() && !o.contains(&Suite::Clocks)) {
        shown.clocks = None;
    }
    let json = || {
        let mut text = serde_json::to_string(&document).expect("plain data");
        text.push('\n');
        text
    };
    let stdout_taken = args.json.as_deref() == Some(Path::new("-"));
    match args.json.as_deref() {
        Some(path) if stdout_taken => {
            let _ = path;
            std::io::stdout()
                .lock()
                .write_all(json().as_bytes())
                .map_err(failed(Path::new("standard output")))?;
        }
        Some(path) => std::fs::write(path, json()).map_err(failed(path))?,
        None => {}
    }
    if let Some(path) = &args.html {
        std::fs::write(path, page::render(&document)).map_err(failed(path))?;
    }
    if !stdout_taken {
        let mut out = std::io::stdout().lock();
        let color = match args.color.as_str() {
            "always" => true,
            "never" => false,
            _ => out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        };
        // A reader that has gone away (head) is no failure.
        let _ = out.write_all(text::render(&shown, color).as_bytes());
    }
    let measured = match document.kind {
        Kind::Os => {
            document.results.is_empty() || document.results.iter().any(|r| r.summary.is_some())
        }
        Kind::SelfCost => document.self_cost.is_some(),
    };
    Ok(if measured { 0 } else { 1 })
}
