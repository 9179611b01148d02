// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do processes that are still there call themselves?
//!
//! The kernel side knows what a program was called with as it began, if it saw that. Of those that
//! were there before, and of those that write their arguments anew (PostgreSQL's), /proc tells.

use debox_abi::DEBOX_TITLE_LEN;
use debox_report::{LifeRow, title_text};
use std::collections::HashMap;

/// As of when they were first asked for since the last [`Titles::forget`]: process and when it came to its name.
#[derive(Default)]
pub struct Titles {
    of: HashMap<(u32, u64), Option<String>>,
}

impl Titles {
    /// From now on they are read again.
    pub fn forget(&mut self) {
        self.of.clear();
    }

    /// Names the rows of first threads whose process is there.
    pub fn name(&mut self, rows: &mut [LifeRow]) {
        for row in rows.iter_mut().filter(|row| row.pid != 0) {
            let known = self.of.entry((row.pid, row.first_ns));
            if let Some(title) = known.or_insert_with(|| read(row)) {
                row.command.clone_from(title);
            }
        }
    }
}

fn read(row: &LifeRow) -> Option<String> {
    let read = |file: &str| std::fs::read(format!("/proc/{}/{file}", row.pid)).ok();
    let (comm, title) = (read("comm")?, read("cmdline")?);
    let same = String::from_utf8_lossy(&comm).strip_suffix('\n') == Some(row.comm.as_str());
    (same && !title.is_empty()).then(|| text(&title))
}

/// As long as those of the kernel side, and told as they are.
fn text(title: &[u8]) -> String {
    let mut kept = [0; DEBOX_TITLE_LEN];
    let used = title.len().min(DEBOX_TITLE_LEN);
    kept[..used].copy_from_slice(&title[..used]);
    title_text(&kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_reads_as_a_command_or_as_what_it_was_made() {
        assert_eq!(text(b"sh\0-c\0a b\0"), "sh -c 'a b'");
        assert_eq!(
            text(b"postgres: walwriter \0\0\0\0"),
            "'postgres: walwriter '"
        );
        assert!(text(&[b'x'; 500]).ends_with("..."));
        let mut rows = [LifeRow {
            pid: std::process::id(),
            comm: "none has this".into(),
            ..LifeRow::default()
        }];
        let mut titles = Titles::default();
        titles.name(&mut rows);
        assert_eq!(rows[0].command, "");
        // It has its name by now, which is not looked for again.
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        rows[0].comm = comm.trim_end().to_owned();
        titles.name(&mut rows);
        assert_eq!(rows[0].command, "");
        titles.forget();
        titles.name(&mut rows);
        assert_ne!(rows[0].command, "");
    }
}
