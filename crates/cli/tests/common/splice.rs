// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do tests of splice capture have in common?
#![allow(dead_code)] // Who names this file as a module needs one or the other.

#[path = "../../../../tests/needs.rs"]
pub mod needs;

use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

pub const NOBODY: u32 = 65534;

/// A library that makes its calls itself.
const RAW: &str = r#"
long raw(void)
{
	long r;

	__asm__ volatile("syscall" : "=a"(r) : "0"(110) : "rcx", "r11", "memory");
	return r;
}
"#;

/// None: root, with the kernel side.
pub type Who = Option<u32>;

/// Both, where it may be both.
pub fn users() -> Vec<Who> {
    let alone = !Path::new("/run/debox/debox.sock").exists();
    if !alone {
        eprintln!("NOT RUN: as somebody without rights, as a broker is there for everybody");
    }
    let root = (needs::is_root() && needs::bpf()).then_some(None);
    root.into_iter()
        .chain(alone.then_some(Some(NOBODY)))
        .collect()
}

/// A folder for patched code, reports and programs.
pub struct Place(pub tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// debox, which keeps what it makes here.
    pub fn debox(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_debox"));
        command
            .args(words)
            .env("XDG_CACHE_HOME", self.0.path())
            // Cargo's, of which each program's loader would ask.
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("DEBOX_SPLICE_RUNTIME");
        command
    }

    /// `debox run --capture=splice`, as root with the kernel side, or as somebody without rights and without it.
    pub fn spliced(&self, user: Who, options: &[&str], words: &[&str]) -> (Output, Value) {
        let file = self.0.path().join("report.json");
        let _ = std::fs::remove_file(&file);
        let mut debox = self.debox(&["run", "--capture=splice", "--json", "-o"]);
        debox.arg(&file).args(options).arg("--").args(words);
        if let Some(user) = user.filter(|_| needs::is_root()) {
            std::os::unix::fs::chown(self.0.path(), Some(user), Some(user)).unwrap();
            debox.uid(user).gid(user);
        }
        let output = debox.output().unwrap();
        let report = std::fs::read(&file).unwrap_or_else(|_| panic!("{output:?}"));
        (output, serde_json::from_slice(&report).unwrap())
    }

    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Other users may come in.
    pub fn open_to_others(&self) {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.0.path(), open).unwrap();
    }

    pub fn program(&self, name: &str, text: &str) -> String {
        let source = self.file("source.c", text);
        self.program_of(name, Path::new(&source))
    }

    /// One whose function `raw` is getppid.
    pub fn library(&self) -> String {
        self.library_of("raw", RAW)
    }

    pub fn library_of(&self, name: &str, text: &str) -> String {
        let source = self.file(&format!("{name}.c"), text);
        let library = self.0.path().join(format!("lib{name}.so"));
        let built = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .args([&library, Path::new(&source)])
            .status();
        assert!(built.unwrap().success());
        library.to_str().unwrap().to_owned()
    }

    pub fn program_of(&self, name: &str, source: &Path) -> String {
        let program = self.0.path().join(name);
        let built = Command::new("cc")
            .args(["-O1", "-g", "-pthread", "-o"])
            .args([&program, source])
            .status();
        assert!(built.unwrap().success());
        program.to_str().unwrap().to_owned()
    }
}

/// Of all rows of the call: for 32 bits, too.
pub fn sum(report: &Value, call: &str, key: &str) -> u64 {
    let rows = row(&report["calls"], "name", call).into_iter();
    rows.map(|row| row[key].as_u64().unwrap()).sum()
}

pub fn count(report: &Value, call: &str) -> u64 {
    sum(report, call, "count")
}

/// Texts of the notes of this kind.
pub fn notes(report: &Value, kind: &str) -> Vec<String> {
    let all = report["notes"].as_array().unwrap().iter();
    let of = all.filter(|note| note["kind"] == kind);
    of.map(|note| note["text"].as_str().unwrap().to_owned())
        .collect()
}

/// Of its memory what may be written and executed at once.
pub fn writable_code(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let both = |line: &&str| {
        let rights = line.split(' ').nth(1);
        rights.is_some_and(|rights| rights.get(1..3) == Some("wx"))
    };
    maps.lines().filter(both).map(str::to_owned).collect()
}

pub fn row<'a>(rows: &'a Value, key: &str, value: &str) -> Vec<&'a Value> {
    let rows = rows.as_array().unwrap().iter();
    rows.filter(|row| row[key] == value).collect()
}
