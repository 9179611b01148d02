// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does the kernel side's test of who may see whom say what ptrace's read
//! access would? `bpf/may_read.h`, compiled for this machine.

use std::path::Path;
use std::process::Command;

#[test]
fn the_rules_of_ptrace() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("may_read");
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root.join("bpf"))
        .arg("-o")
        .arg(&program)
        .arg(root.join("tests/trust/may_read.c"))
        .status()
        .unwrap();
    assert!(compiled.success());
    let output = Command::new(&program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert_eq!(text, "ok\n");
}
