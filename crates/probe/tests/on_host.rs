// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does the kernel side decide rightly where it decides on plain numbers? Those
//! headers of `bpf/`, compiled for this machine.

use std::path::Path;
use std::process::Command;

/// Builds and runs a program that includes a header of `bpf/`.
#[track_caller]
fn passes(source: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let name = Path::new(source).file_stem().unwrap();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let compiled = Command::new("cc")
        .args([
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsanitize=undefined",
            "-I",
        ])
        .arg(root.join("bpf"))
        .arg("-I")
        .arg(root.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(root.join(source))
        .status()
        .unwrap();
    assert!(compiled.success());
    let output = Command::new(&program).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{said}");
}

#[test]
fn the_rules_of_ptrace() {
    passes("tests/trust/may_read.c");
}

#[test]
fn a_sleep_is_explained_by_what_its_waker_did() {
    passes("tests/chain/past.c");
}

#[test]
fn a_critical_path_is_what_a_walk_backwards_finds() {
    passes("tests/chain/critical.c");
}

#[test]
fn where_a_thread_rests() {
    passes("tests/chain/rest.c");
}
