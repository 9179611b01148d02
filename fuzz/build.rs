// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does libdebox's parser of conditions come into the fuzzer? Built from
//! its source with the same measure of coverage as the Rust crates; undefined
//! behaviour traps.

use std::path::Path;
use std::process::Command;

fn main() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let tables = Path::new(&out).join("c");
    let names = ["call_names", "call_sets", "errnos"]
        .map(|name| tables.join(format!("libdebox/{name}.inc")));
    let made = Command::new("make")
        .args(["-s", "-f", "libdebox/build.mk"])
        .arg(format!("C_OBJ={}", tables.display()))
        .args(&names)
        .current_dir(&top)
        .env_remove("MAKEFLAGS")
        .status();
    assert!(
        made.is_ok_and(|status| status.success()),
        "make could not write the tables of libdebox/expression.c"
    );
    let sources = [
        top.join("libdebox/expression.c"),
        Path::new("c/names.c").to_owned(),
    ];
    let mut build = cc::Build::new();
    build
        .compiler("clang")
        .files(&sources)
        .include(top.join("include"))
        .include(top.join("libdebox"))
        .include(tables.join("libdebox"))
        .define("_GNU_SOURCE", None)
        .flag("-std=gnu11")
        .flag("-fsanitize=undefined")
        .flag("-fsanitize-trap=undefined")
        .flag("-Wno-unused-parameter");
    if std::env::var_os("CARGO_CFG_FUZZING").is_some() {
        build.flag("-fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp");
    }
    build.compile("debox_expression");
    for source in &sources {
        println!("cargo:rerun-if-changed={}", source.display());
    }
    for other in ["libdebox/expression.h", "crates/condition/data/calls.tsv"] {
        println!("cargo:rerun-if-changed={}", top.join(other).display());
    }
}
