// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does a spliced program do what it does otherwise, and is each call counted as strace counts it?

use debox_command::{Environment, Hold, Inherited, Program, Start};
use debox_splice::{Counted, Run};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// target/release, where the tests lie one folder deeper.
fn built() -> PathBuf {
    let me = std::env::current_exe().unwrap();
    me.parent().and_then(Path::parent).unwrap().to_owned()
}

fn images() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Its exit status, and what was counted.
fn spliced(folder: &Path, words: &[&str]) -> (i32, Counted) {
    let run = Run::new(folder, &built().join("debox-splice.bin"), 1 << 31).unwrap();
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    let program = Program::resolve(&words).unwrap();
    let environment = Environment::inherited();
    let inherited = Inherited::take();
    let start = Start::new(&program, &environment, &inherited);
    let held = start.hold(Hold::Asleep, || Ok(())).unwrap();
    let following = run.follow(held.pid()).unwrap();
    let mut child = held.start().unwrap();
    following.begun();
    let ended = loop {
        if let Some(ended) = child.ended() {
            break ended;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    (ended.status(), run.counted().unwrap())
}

#[test]
fn try_it() {
    let Ok(command) = std::env::var("DEBOX_SPLICE_TRY") else {
        return;
    };
    let folder = images();
    let words: Vec<&str> = command.split(' ').collect();
    let at = std::time::Instant::now();
    let (status, counted) = spliced(folder.path(), &words);
    eprintln!("first: {:?}", at.elapsed());
    let at = std::time::Instant::now();
    let (_, _) = spliced(folder.path(), &words);
    eprintln!("second: {:?}", at.elapsed());
    for (nr, sums) in counted.calls.iter().enumerate().filter(|(_, sums)| sums.count > 0) {
        eprintln!("{nr} {} {} {}", sums.count, sums.errors, sums.wall_ns);
    }
    let calls = Vec::new();
    eprintln!("status {status}: {:?}", Counted { calls, ..counted });
    let _: BTreeMap<u32, u32> = BTreeMap::new();
}
