// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the one parser of conditions, which libdebox has, too: C, since it must
//! run in signal handlers of other people's programs.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// `{ "name", VALUE },` for each line that gives them.
fn include_write(name: &str, source: &Path, line: impl Fn(&str) -> Option<String>) {
    println!("cargo:rerun-if-changed={}", source.display());
    let text = fs::read_to_string(source).expect("part of the source tree");
    let lines: String = text.lines().filter_map(line).collect();
    assert!(!lines.is_empty(), "{}", source.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    fs::write(out.join(name), lines).expect("cargo's own directory");
}

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    include_write("call_sets.inc", &root.join("data/calls.tsv"), |line| {
        let (_, rest) = line
            .split_once('\t')
            .filter(|l| l.0 == "also" || l.0 == "group")?;
        let (name, calls) = rest.split_once('\t')?;
        Some(format!("{{ \"{name}\", \"{calls}\" }},\n"))
    });
    include_write("errnos.inc", &root.join("data/errno.tsv"), |line| {
        let (number, name) = line.split_once('\t')?;
        let number: u32 = number.parse().ok()?;
        name.starts_with('E')
            .then(|| format!("{{ \"{name}\", {number} }},\n"))
    });
    for file in ["expression.c", "expression.h", "internal.h", "sys.h"] {
        println!(
            "cargo:rerun-if-changed={}",
            root.join("libdebox").join(file).display()
        );
    }
    let mut build = cc::Build::new();
    // Names of its own: a Rust program may be linked with libdebox as well.
    for name in [
        "parse",
        "free",
        "judge",
        "wall_ns",
        "eventful",
        "asks_comm",
        "asks_sites",
    ] {
        build.define(
            &format!("debox_expression_{name}_"),
            Some(format!("debox_condition_{name}_").as_str()),
        );
    }
    for name in ["glob_fits", "nearest", "errno_name"] {
        build.define(
            &format!("debox_{name}_"),
            Some(format!("debox_condition_{name}_").as_str()),
        );
    }
    // The fuzzer's: the same measure of coverage as in Rust, and a trap for what is
    // undefined (docs/fuzzing.md).
    println!("cargo:rerun-if-env-changed=CARGO_CFG_FUZZING");
    if env::var_os("CARGO_CFG_FUZZING").is_some() {
        build
            .compiler("clang")
            .flag("-fsanitize=undefined")
            .flag("-fsanitize-trap=undefined")
            .flag("-fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp");
    }
    build
        .file(root.join("libdebox/expression.c"))
        .include(root.join("include"))
        .include(env::var_os("OUT_DIR").expect("set by cargo"))
        .define("_GNU_SOURCE", None)
        .std("gnu11")
        .warnings(false)
        .compile("debox_condition_core");
}
