// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the unwind table of a file look like?
//!
//! `cargo run -p debox-unwind --example rows FILE` prints it, one row a line.

use std::io::Write as _;
use std::process::ExitCode;

use debox_unwind::{END, FRAME_POINTER, Options, PLT, RBP, RDI, REALIGNED, RSP, SIGNAL};

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: rows FILE");
        return ExitCode::from(2);
    };
    let table = match debox_unwind::table_of_path(path.as_ref(), &Options::default()) {
        Ok(table) => table,
        Err(error) => {
            eprintln!("{}: {error}", std::path::Path::new(&path).display());
            return ExitCode::FAILURE;
        }
    };
    let mut out = std::io::stdout().lock();
    let build_id: Option<String> = table
        .build_id
        .map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect());
    let _ = writeln!(
        out,
        "{} rows, build id {}, soname {}, go {}, static {}, wrappers known {}",
        table.rows.len(),
        build_id.as_deref().unwrap_or("none"),
        table.soname.as_deref().unwrap_or("none"),
        table.go,
        table.static_binary,
        table.wrapper_known,
    );
    for row in &table.rows {
        let kind = match row.kind() {
            END => "end",
            RSP => "rsp",
            RBP => "rbp",
            FRAME_POINTER => "frame-pointer",
            PLT => "plt",
            SIGNAL => "signal",
            REALIGNED => "realigned",
            RDI => "rdi",
            _ => unreachable!("three bits"),
        };
        let wrapper = if row.is_wrapper() { " wrapper" } else { "" };
        let line = writeln!(
            out,
            "{:#010x} {kind} +{} rbp {}{wrapper}",
            row.pc, row.cfa_words, row.rbp_words
        );
        if line.is_err() {
            break; // the reader went away
        }
    }
    ExitCode::SUCCESS
}
