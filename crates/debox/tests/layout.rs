// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do C, C++ and Rust agree on every byte of what they share?

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// What tests/abi/layout.c says when compiled with `compiler`.
fn printed_by(compiler: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("layout-{}", compiler[0]));
    let status = Command::new(compiler[0])
        .args(&compiler[1..])
        .arg("-I")
        .arg(root.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(root.join("tests/abi/layout.c"))
        .status()
        .unwrap_or_else(|e| panic!("{}: {e}", compiler[0]));
    assert!(status.success());
    let output = Command::new(&program).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn printed_by_rust() -> String {
    let mut text = String::new();
    for layout in debox::abi::LAYOUTS {
        writeln!(text, "{} - {} {}", layout.name, layout.size, layout.align).unwrap();
        for field in layout.fields {
            // A keyword of Rust.
            let name = if field.name == "kind" {
                "type"
            } else {
                field.name
            };
            writeln!(
                text,
                "{} {} {} {}",
                layout.name, name, field.offset, field.size
            )
            .unwrap();
        }
    }
    text
}

/// The lines of structs that Rust has, sorted. (That it has all of them is asked by
/// crates/abi/tests/generated.rs.)
fn shared(text: &str) -> Vec<&str> {
    let known = |name: &str| debox::abi::LAYOUTS.iter().any(|layout| layout.name == name);
    let mut lines: Vec<&str> = text
        .lines()
        .filter(|line| line.split(' ').next().is_some_and(known))
        .collect();
    lines.sort();
    lines
}

#[test]
fn c_and_cxx_and_rust_agree() {
    let c = printed_by(&["cc", "-std=gnu11"]);
    let cxx = printed_by(&["c++", "-x", "c++", "-std=c++11"]);
    assert_eq!(c, cxx);
    assert!(c.lines().count() > 150);
    let rust = printed_by_rust();
    let (c, rust) = (shared(&c), shared(&rust));
    let differ = |a: &[&str], b: &[&str]| {
        a.iter()
            .filter(|line| !b.contains(line))
            .map(|line| line.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (differ(&c, &rust), differ(&rust, &c)),
        (vec![], vec![]),
        "only in C, only in Rust"
    );
}
