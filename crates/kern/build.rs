// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the BPF programs get into the crate? Compiled by clang from
//! `bpf/kern*.bpf.c`, as object files: crates/kern copies single programs out
//! of them, which a skeleton does not offer.

use std::env;
use std::path::PathBuf;

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../..");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let mut args = vec![
        "-I".to_owned(),
        root.join("include").display().to_string(),
        "-mcpu=v3".to_owned(),
        "-Wall".to_owned(),
        "-Werror".to_owned(),
    ];
    // <linux/bpf.h> includes <asm/types.h>, which Debian keeps per architecture.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap();
    let multiarch = format!("/usr/include/{arch}-linux-gnu");
    if PathBuf::from(&multiarch).is_dir() {
        args.push("-I".to_owned());
        args.push(multiarch);
    }
    let source = root.join("bpf/kern.bpf.c");
    libbpf_cargo::SkeletonBuilder::new()
        .source(&source)
        .obj(out.join("kern.bpf.o"))
        .clang_args(&args)
        .build()
        .unwrap_or_else(|e| {
            panic!(
                "clang (package clang) cannot compile {}: {e:#}",
                source.display()
            )
        });
    println!("cargo:rerun-if-changed={}", root.join("bpf").display());
    println!(
        "cargo:rerun-if-changed={}",
        root.join("include/debox").display()
    );
}
