// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does a test go on that needs root, or root and BPF?
//!
//! Where they are missing it fails: nobody shall take for tested what did not
//! run. DEBOX_TEST_NO_BPF=1 asks for such tests to be left out, and each says so
//! past the harness, which shows nothing of tests that pass. (As root it leaves
//! out only what loads programs into the kernel.)
#![allow(dead_code)] // Who names this file as a module needs one or the other.

/// Says what is left out, past the harness.
pub fn not_run(why: &str) {
    let line = format!("NOT RUN: {why}\n");
    let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
}

fn left_out(needs: &str) -> bool {
    if std::env::var_os("DEBOX_TEST_NO_BPF").is_none_or(|value| value != "1") {
        return false;
    }
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    not_run(&format!(
        "{test} needs {needs}, and DEBOX_TEST_NO_BPF=1 is set"
    ));
    true
}

pub fn is_root() -> bool {
    // SAFETY: no arguments, and no memory is touched.
    unsafe { libc::geteuid() == 0 }
}

/// To become other users, to give files away.
pub fn root() -> bool {
    if is_root() {
        return true;
    }
    assert!(
        left_out("root"),
        "this test needs root (DEBOX_TEST_NO_BPF=1 leaves it out)"
    );
    false
}

/// To load programs into the kernel.
pub fn bpf() -> bool {
    if left_out("root and BPF") {
        return false;
    }
    assert!(
        is_root(),
        "this test needs root to load BPF programs (DEBOX_TEST_NO_BPF=1 leaves it out)"
    );
    true
}

/// A Python that has chDB, ClickHouse's engine: the system's, or the one of `make setup-all`.
pub fn chdb() -> Option<std::path::PathBuf> {
    static FOUND: std::sync::OnceLock<Option<std::path::PathBuf>> = std::sync::OnceLock::new();
    let found = FOUND.get_or_init(chdb_of_this_machine).clone();
    if found.is_none() {
        not_run("no chDB is installed: make setup-all has it in target/fleet-python");
    }
    found
}

fn chdb_of_this_machine() -> Option<std::path::PathBuf> {
    let has = |python: &std::path::Path| {
        std::process::Command::new(python)
            .args(["-c", "from chdb import session"])
            .stderr(std::process::Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    // Of the package that is tested.
    let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = package.join("../../target/fleet-python/bin/python3");
    ["python3".into(), own]
        .into_iter()
        .find(|python| has(python))
}
