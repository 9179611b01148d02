// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where in a process can a little code of ours lie, that nobody executes but whom we make to?
//!
//! Behind the code of one of its files, up to the end of the page; else behind that of the kernel's own
//! page. So it stays in nobody's way should we end before it is taken away.

use crate::proc;
use crate::state::PAGE;
use std::io;
use std::ops::Range;
use std::path::Path;

/// `ranges`: [`crate::images::Known::spare`] in the process.
///
/// # Errors
/// When there is no room, or it is gone.
pub fn place(pid: i32, bytes: u64, ranges: impl Iterator<Item = Range<u64>>) -> io::Result<u64> {
    let behind = |range: Range<u64>| {
        let at = range.start.checked_next_multiple_of(16)?;
        (at.checked_add(bytes)? <= range.end).then_some(at)
    };
    let mut ranges = ranges.chain(std::iter::once_with(|| of_vdso(pid)).flatten());
    ranges.find_map(behind).ok_or_else(|| {
        let text = "behind none of its code is there room";
        io::Error::new(io::ErrorKind::StorageFull, text)
    })
}

/// The zeros at the end of the kernel's own code.
fn of_vdso(pid: i32) -> Option<Range<u64>> {
    let all = crate::maps::of(pid).ok()?;
    let page = all.iter().find(|one| one.path == Path::new("[vdso]"))?;
    let mut bytes = [0; PAGE as usize];
    proc::memory_read(pid, page.end - PAGE, &mut bytes).ok()?;
    let zeros = bytes.iter().rev().take_while(|byte| **byte == 0).count() as u64;
    // The first ones may be of the last thing that is there.
    Some(page.end - zeros.saturating_sub(16)..page.end)
}
