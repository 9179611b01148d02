// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does every check hold for every input of its corpus?
//!
//! Inputs that once broke something are kept there (docs/fuzzing.md).

use std::path::PathBuf;
use std::sync::Once;
use std::time::{Duration, Instant};

/// As libFuzzer's limits in run.sh. So little memory that whoever asks for 512 MiB
/// at once is refused, and ends with that.
const TIME: Duration = Duration::from_secs(20);
const ADDRESSES: u64 = 640 << 20;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn limit_memory() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let limit = libc::rlimit {
            rlim_cur: ADDRESSES,
            rlim_max: ADDRESSES,
        };
        // SAFETY: reads a local.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    });
}

fn run(target: &str, check: fn(&[u8])) {
    limit_memory();
    let mut inputs: Vec<PathBuf> = std::fs::read_dir(root().join("corpus").join(target))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "nothing is in the corpus of {target}");
    let mut failed = Vec::new();
    for input in &inputs {
        let data = std::fs::read(input).unwrap();
        let begin = Instant::now();
        let held = std::panic::catch_unwind(|| check(&data)).is_ok();
        let took = begin.elapsed();
        if !held || took > TIME {
            failed.push(format!("{} ({took:?})", input.display()));
        }
    }
    assert!(failed.is_empty(), "failed for {}", failed.join(", "));
    println!("{} inputs", inputs.len());
}

macro_rules! targets {
    ($($target:ident)*) => {
        const TARGETS: &[&str] = &[$(stringify!($target)),*];
        $(#[test]
        fn $target() {
            run(stringify!($target), debox_fuzz::$target::check);
        })*
    };
}

targets!(collected expression json labels module policy protocol recording sites symbols unwind wire);

/// Nothing else builds the targets before somebody wants to use them.
#[test]
fn each_check_is_a_target_of_the_fuzzer_as_well() {
    let manifest = std::fs::read_to_string(root().join("targets/Cargo.toml")).unwrap();
    let mut names: Vec<&str> = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("path = \"")?.strip_suffix(".rs\""))
        .collect();
    names.sort_unstable();
    assert_eq!(names, TARGETS);
    for name in names {
        let text = std::fs::read_to_string(root().join(format!("targets/{name}.rs"))).unwrap();
        assert!(
            text.contains(&format!("debox_fuzz::{name}::check(data)")),
            "{name}"
        );
    }
}
