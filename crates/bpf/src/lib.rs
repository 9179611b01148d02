// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the BPF programs of `bpf/` get into the crates that load them?
//!
//! Compiled by clang, from those crates' build scripts. An object belongs to one
//! crate, and that is built anew when a file changes that the object includes: to
//! touch `kern.bpf.c` costs nothing that watches.
//!
//! As this crate is published the objects lie in it, where `setup/crates.py` has put them:
//! who installs DeBox from the registry needs no clang, and loads the bytes that were tested.

use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::btf::{Btf, BtfKind, BtfType, TypeId};
use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};

/// Leaves `NAME.skel.rs`, a typed skeleton with the object in it, and the object
/// itself, `NAME.bpf.o`, in OUT_DIR.
///
/// # Panics
/// As a build script fails: when clang is not there, or refuses the source.
pub fn skeleton(name: &str) {
    object(name);
    let mut builder = SkeletonBuilder::new();
    builder.obj(out().join(format!("{name}.bpf.o")));
    if let Err(error) = builder.generate(out().join(format!("{name}.skel.rs"))) {
        panic!("no skeleton can be made of {name}.bpf.o: {error:#}");
    }
}

/// Leaves `NAME.types`, the names of the types that an object in OUT_DIR knows, a line each, beside it.
///
/// # Panics
/// As [`skeleton`] does.
pub fn types(name: &str) {
    let object = out().join(format!("{name}.bpf.o"));
    let types =
        Btf::from_path(&object).unwrap_or_else(|error| panic!("{}: {error:#}", object.display()));
    let names: BTreeSet<String> = (1..types.len() as u32)
        .filter_map(|number| types.type_by_id::<BtfType<'_>>(TypeId::from(number)))
        .filter(|of| {
            matches!(
                of.kind(),
                BtfKind::Struct
                    | BtfKind::Union
                    | BtfKind::Enum
                    | BtfKind::Enum64
                    | BtfKind::Typedef
            )
        })
        .filter_map(|of| Some(of.name()?.to_string_lossy().into_owned() + "\n"))
        .collect();
    let file = out().join(format!("{name}.types"));
    std::fs::write(&file, names.into_iter().collect::<String>())
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// Leaves `NAME.bpf.o` in OUT_DIR.
///
/// # Panics
/// As [`skeleton`] does.
pub fn object(name: &str) {
    let object = out().join(format!("{name}.bpf.o"));
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("compiled/{name}.bpf.o"));
    if compiled.is_file() {
        std::fs::copy(&compiled, &object)
            .unwrap_or_else(|error| panic!("{}: {error}", compiled.display()));
    } else {
        compile(name, &object);
    }
}

fn out() -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"))
}

fn compile(name: &str, object: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = root.join(format!("bpf/{name}.bpf.c"));
    let included = out().join(format!("{name}.d"));
    let mut args = vec![
        "-I".to_owned(),
        root.join("include").display().to_string(),
        "-mcpu=v3".to_owned(),
        "-Wall".to_owned(),
        "-Werror".to_owned(),
        // Not the system's headers.
        "-MMD".to_owned(),
        "-MF".to_owned(),
        included.display().to_string(),
    ];
    // <linux/bpf.h> includes <asm/types.h>, which Debian keeps per architecture.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo");
    let multiarch = format!("/usr/include/{arch}-linux-gnu");
    if Path::new(&multiarch).is_dir() {
        args.extend(["-I".to_owned(), multiarch]);
    }
    let mut builder = SkeletonBuilder::new();
    builder.source(&source).obj(object).clang_args(&args);
    if let Err(error) = builder.build() {
        panic!(
            "clang (package clang) cannot compile {}: {error:#}",
            source.display()
        );
    }
    // `object: file file \`, lines.
    let files = std::fs::read_to_string(&included)
        .unwrap_or_else(|error| panic!("clang wrote no {}: {error}", included.display()));
    let mut any = false;
    for file in files.split_ascii_whitespace().skip(1) {
        // libbpf's own are somewhere temporary.
        if Path::new(file).starts_with(root) {
            println!("cargo:rerun-if-changed={file}");
            any = true;
        }
    }
    assert!(any, "{} names no file: {files}", included.display());
}
