// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which labels do recorded stacks get?
//!
//! Reads what labels/record/record prints (standard input) and writes it again
//! as a fixture for the tests: each stack with the label that the rules give
//! it, one for each way from the scheduler to a site. Where the recorder knew
//! the label, a different one is an error. Somebody has to read the result
//! before it becomes a fixture.
//!
//!     record | cargo run -p debox-labels --example label [RULES.toml…] > linux-X.Y.txt

use std::collections::HashSet;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use debox_labels::Rules;

fn main() -> ExitCode {
    let extra: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let rules = match Rules::load(&extra) {
        Ok(rules) => rules,
        Err(error) => {
            eprintln!("label: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut text = String::new();
    if let Err(error) = std::io::stdin().read_to_string(&mut text) {
        eprintln!("label: standard input: {error}. Give it the output of record");
        return ExitCode::FAILURE;
    }
    let mut out = std::io::stdout().lock();
    let mut seen = HashSet::new();
    let mut wrong = 0;
    for block in text.split("\n\n") {
        let mut lines = block.trim().lines();
        let Some(header) = lines.next() else { continue };
        let Some((expected, case)) = header.strip_prefix('[').and_then(|h| h.split_once("] "))
        else {
            let _ = writeln!(out, "{}\n", block.trim());
            continue;
        };
        let functions: Vec<&str> = lines.collect();
        let label = rules
            .label(&functions)
            .map_or("-", |rule| rule.label.as_str());
        if expected != "?" && expected != label {
            eprintln!(
                "label: {case}: {label} instead of {expected}:\n    {}",
                functions.join(" ")
            );
            wrong += 1;
        }
        let site = rules.site_frame(&functions).unwrap_or(functions.len() - 1);
        if seen.insert((label.to_owned(), functions[..=site].join(" "))) {
            let _ = writeln!(out, "[{label}] {case}\n{}\n", functions.join("\n"));
        }
    }
    if wrong > 0 {
        eprintln!("label: {wrong} stacks got another label than the recorder expected");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
