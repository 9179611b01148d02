// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does this crate come by libdebox?
//!
//! In DeBox's source tree, and as it is published, it compiles the C sources in it into itself, so that
//! nothing has to be installed; the table of call names is made from the compiler's
//! own headers. Where `make install` has put it there are none: it links the
//! installed libdebox.a.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let library = root.join("libdebox");
    println!("cargo:rerun-if-changed=build.rs");
    if !library.is_dir() {
        return installed_link();
    }
    let include = root.join("include");
    call_names_write(&out);
    condition_names_write(&root, &out);

    let mut build = cc::Build::new();
    build
        .include(&include)
        .include(&out)
        .define("_GNU_SOURCE", None)
        .std("gnu11")
        .flag("-fvisibility=hidden")
        .flag("-fexceptions")
        .opt_level(2)
        .warnings(true)
        .flag("-Wno-unused-parameter");
    for source in sources(&library) {
        build.file(source);
    }
    build.compile("debox");
    let data = [root.join(CALL_SETS), root.join(ERRNOS)];
    for folder in [library, include].iter().chain(&data) {
        println!("cargo:rerun-if-changed={}", folder.display());
    }
}

/// The directory of the installed libdebox.a, in a file beside this one.
const LIBDIR: &str = "libdir";
/// Names another directory: for a prefix that is not where it will be.
const LIBDIR_ENV: &str = "DEBOX_LIBDIR";

fn installed_link() {
    println!("cargo:rerun-if-env-changed={LIBDIR_ENV}");
    println!("cargo:rerun-if-changed={LIBDIR}");
    let directory = env::var(LIBDIR_ENV).unwrap_or_else(|_| {
        let text = fs::read_to_string(LIBDIR).unwrap_or_else(|error| {
            panic!("neither DeBox's sources nor an installed DeBox are around this crate: {LIBDIR}: {error}")
        });
        text.trim_end().to_owned()
    });
    assert!(
        Path::new(&directory).join("libdebox.a").is_file(),
        "there is no libdebox.a in {directory}: install DeBox again, or name its directory in {LIBDIR_ENV}"
    );
    println!("cargo:rustc-link-search=native={directory}");
    println!("cargo:rustc-link-lib=static=debox");
}

/// All of libdebox, whatever files it has.
fn sources(library: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(library)
        .expect("libdebox/ is a folder")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "c"))
        .collect();
    files.sort();
    files
}

/// `{ number, "name" },` for every system call, in ascending order.
fn call_names_write(out: &Path) {
    let source = out.join("unistd.c");
    fs::write(&source, "#include <asm/unistd.h>\n").expect("OUT_DIR is writable");
    let expanded = cc::Build::new().file(&source).flag("-dM").expand();
    let mut names: Vec<(u32, String)> = String::from_utf8_lossy(&expanded)
        .lines()
        .filter_map(|line| {
            let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
            Some((number.trim().parse().ok()?, name.to_owned()))
        })
        .collect();
    names.sort();
    assert!(
        !names.is_empty(),
        "the C compiler's <asm/unistd.h> defines no system call; install linux-libc-dev"
    );
    let text: String = names
        .iter()
        .map(|(number, name)| format!("{{ {number}, \"{name}\" }},\n"))
        .collect();
    fs::write(out.join("call_names.inc"), text).expect("OUT_DIR is writable");
}

const CALL_SETS: &str = "data/calls.tsv";
const ERRNOS: &str = "data/errno.tsv";

/// What names in conditions stand for, as libdebox/build.mk makes it.
fn condition_names_write(root: &Path, out: &Path) {
    let read = |name: &str| {
        fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let mut sets = String::new();
    for line in read(CALL_SETS).lines() {
        let mut cells = line.split('\t');
        if let (Some("also" | "group"), Some(name), Some(calls)) =
            (cells.next(), cells.next(), cells.next())
        {
            sets.push_str(&format!("{{ \"{name}\", \"{calls}\" }},\n"));
        }
    }
    let mut errnos = String::new();
    for line in read(ERRNOS).lines() {
        if let Some((number, name)) = line.split_once('\t')
            && name.starts_with('E')
        {
            errnos.push_str(&format!("{{ \"{name}\", {number} }},\n"));
        }
    }
    fs::write(out.join("call_sets.inc"), sets).expect("OUT_DIR is writable");
    fs::write(out.join("errnos.inc"), errnos).expect("OUT_DIR is writable");
}
