// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does wrap capture add to one call, where nothing else differs?
//!
//! One process with the interposer runs all variants (kernels/wrap.c) in turn,
//! in short batches; a batch's shortest of many turns is a value, and a fresh
//! process gives the next one. Once as a client of the broker, once under
//! `debox run --capture=wrap --call-site`, where the interposer counts.

use super::calls::{Answer, Order, Task};
use super::grid::{Grid, RowHead, WayHead, WayKind};
use super::ways::{Bench, How, Way};
use crate::Error;
use crate::clock::gettime_ns;
use debox_command::Library;
use std::ffi::{CStr, c_char};
use std::os::fd::{AsRawFd, OwnedFd};

#[repr(C)]
struct Variant {
    row: *const c_char,
    way: *const c_char,
    run: Option<extern "C" fn(i32)>,
}

unsafe extern "C" {
    static debox_bench_wraps: [Variant; 0];
    fn debox_bench_wrap_prepare(fd: i32) -> i32;
}

/// Calls of a batch: half a millisecond of getpid.
const BATCH: i32 = 2000;

/// In the measured process: each variant's shortest batch, ns for one call, by
/// `row/way`.
pub(super) fn turns(block: &OwnedFd, turns: usize) -> Result<Answer, Error> {
    // SAFETY: a descriptor that is open as long as the loops run.
    if unsafe { debox_bench_wrap_prepare(block.as_raw_fd()) } == 0 {
        return Err(Error::Unavailable(
            "libdebox-wrap.so does not stand between this program and libc".into(),
        ));
    }
    let mut variants = Vec::new();
    // SAFETY: the C table ends with a row without a name; names are constants.
    unsafe {
        let mut at = (&raw const debox_bench_wraps).cast::<Variant>();
        while !(*at).row.is_null() {
            let name = |text| CStr::from_ptr(text).to_string_lossy();
            let id = format!("{}/{}", name((*at).row), name((*at).way));
            variants.push((id, (*at).run.expect("every row has a loop")));
            at = at.add(1);
        }
    }
    let mut shortest = vec![f64::MAX; variants.len()];
    for turn in 0..=turns {
        for k in 0..variants.len() {
            let n = (k + turn) % variants.len();
            let from = gettime_ns(libc::CLOCK_MONOTONIC);
            variants[n].1(BATCH);
            let took = (gettime_ns(libc::CLOCK_MONOTONIC) - from) as f64 / f64::from(BATCH);
            // The first turn warms caches.
            if turn > 0 {
                shortest[n] = shortest[n].min(took);
            }
        }
    }
    let ids = variants.into_iter().map(|(id, _)| id);
    Ok(ids.zip(shortest.into_iter().map(|v| vec![v])).collect())
}

const ROWS: [(&str, &str); 4] = [
    ("getpid", "getpid"),
    ("instruction", "getpid, the bare instruction"),
    ("pread-4096", "pread 4096 B"),
    ("turns", "getpid and getuid in turn"),
];
/// What the interposer counts.
const COUNTED: [(&str, &str, &str); 3] = [
    ("getpid", "counted-getpid", "counted: getpid"),
    ("pread-4096", "counted-pread-4096", "counted: pread 4096 B"),
    ("turns", "counted-turns", "counted: getpid and getuid"),
];
const WAYS: [(&str, &str, WayKind); 7] = [
    ("bare", "nothing", WayKind::Nothing),
    ("again", "nothing, again", WayKind::Nothing),
    ("bracket", "DEBOX_CALL", WayKind::Debox),
    ("interposed", "interposed", WayKind::Debox),
    ("between", "an empty function between", WayKind::Nothing),
    ("last", "DEBOX_CALL, debox_last", WayKind::Debox),
    ("stamps", "two time stamps", WayKind::Nothing),
];

pub(super) fn grid() -> Grid {
    let rows = ROWS.iter().map(RowHead::from);
    let counted = COUNTED
        .iter()
        .map(|(_, id, title)| RowHead::from(&(*id, *title)));
    let ways = WAYS.iter().map(|(id, title, kind)| WayHead {
        id: (*id).into(),
        title: (*title).into(),
        kind: *kind,
        missing: None,
    });
    Grid::new(
        "wrap",
        "Wrap capture, one call",
        rows.chain(counted).collect(),
        ways,
    )
}

/// A round: a process of either kind; what fails costs its rows.
pub(super) fn round(bench: &mut Bench, grid: &mut Grid, turns: usize) -> Result<(), Error> {
    for counted in [false, true] {
        let rows: Vec<(&str, &str)> = if counted {
            COUNTED.iter().map(|(row, id, _)| (*row, *id)).collect()
        } else {
            ROWS.iter().map(|(id, _)| (*id, *id)).collect()
        };
        let first = grid.row(rows[0].1).expect("its own rows");
        if grid.rows[first].missing.is_some() {
            continue;
        }
        match process(bench, counted, turns) {
            Ok(answer) => {
                for (row, id) in rows {
                    for (w, (way, ..)) in WAYS.iter().enumerate() {
                        if let Some(values) = answer.get(&format!("{row}/{way}")) {
                            grid.add(w, &[(id.to_owned(), values[0])]);
                        }
                    }
                }
            }
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => {
                for r in first..first + rows.len() {
                    grid.drop_cell(r, 0, error.to_string());
                }
            }
        }
    }
    Ok(())
}

fn process(bench: &mut Bench, counted: bool, turns: usize) -> Result<Answer, Error> {
    let order = bench.order(Task::Wrap { turns });
    if counted {
        let way = Way {
            how: How::Debox("run --capture=wrap --call-site -o /dev/null --"),
            ..Way::default()
        };
        return bench.under(&way, |bench, prefix| bench.program(&prefix, None, &order));
    }
    let library = Library::WRAP
        .find()
        .map_err(|e| Error::Unavailable(e.to_string()))?;
    let order = Order {
        socket: Some(bench.broker()?),
        ..order
    };
    bench.program(&[], Some(&library), &order)
}
