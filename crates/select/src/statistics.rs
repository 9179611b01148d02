// SPDX-License-Identifier: MIT OR Apache-2.0
//! What did the library do in each process of a command?
//!
//! Processes count in a file that all of them map, so that one that is killed
//! has counted as well. select/statistics.c is the other side; names, texts and
//! order of the counters are read from the library's own header.

use debox_output::{Column, Pen, Table, count_text, printable};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: u64 = 0x3173_7461_7473_6264;
const HEAD_BYTES: u64 = 4096;
const BLOCK_BYTES: u64 = 1024;
pub const BLOCKS: u32 = 256;
const COUNTERS_AT: usize = 32;
/// Below each other for all processes.
const VALUE_WIDTH: usize = 20;

/// Name and explanation of each counter, in the order of `struct statistics`.
pub fn counters() -> Vec<(&'static str, &'static str)> {
    include_str!("../libdebox-select/internal.h")
        .lines()
        .filter_map(|line| {
            let rest = line.trim_start().strip_prefix("X(")?;
            let (name, rest) = rest.split_once(',')?;
            let text = rest.split('"').nth(1)?;
            Some((name, text))
        })
        .collect()
}

#[derive(Clone, Debug)]
pub struct Process {
    pub pid: i32,
    pub command: String,
    /// Why the library was off there.
    pub off: Option<&'static str>,
    pub values: Vec<u64>,
}

impl Process {
    /// A counter by its name; 0 for a name that does not exist would hide a
    /// mistake, so that panics.
    pub fn value(&self, name: &str) -> u64 {
        let at = counters()
            .iter()
            .position(|(n, _)| *n == name)
            .expect("a counter of select/internal.h");
        self.values[at]
    }
}

fn off_text(off: u32) -> Option<&'static str> {
    Some(match off {
        0 => return None,
        1 => "DEBOX_SELECT=off",
        2 => "epoll cannot be used there (a seccomp filter forbids it?)",
        3 => "the program restricted its system calls (seccomp)",
        4 => "the program shares memory or descriptors between processes",
        5 => "no memory, or a kernel before Linux 4.14",
        _ => "unknown",
    })
}

/// Makes an empty file for the processes to count in.
pub fn create(path: &Path) -> io::Result<()> {
    let file = std::fs::File::create(path)?;
    file.set_len(HEAD_BYTES + u64::from(BLOCKS) * BLOCK_BYTES)?;
    let mut head = MAGIC.to_ne_bytes().to_vec();
    head.extend(BLOCKS.to_ne_bytes());
    file.write_all_at(&head, 0)
}

/// The processes that counted, and how many found no room.
pub fn read(path: &Path) -> io::Result<(Vec<Process>, u32)> {
    let mut data = std::fs::read(path)?;
    // Its processes may write it, and could have cut it.
    data.resize((HEAD_BYTES + u64::from(BLOCKS) * BLOCK_BYTES) as usize, 0);
    let word = |at: usize| u64::from_ne_bytes(data[at..at + 8].try_into().expect("8 bytes"));
    let half = |at: usize| u32::from_ne_bytes(data[at..at + 4].try_into().expect("4 bytes"));
    let taken = half(12);
    let mut list = Vec::new();
    for block in 0..taken.min(BLOCKS) as usize {
        let at = HEAD_BYTES as usize + block * BLOCK_BYTES as usize;
        if word(at) != MAGIC {
            continue;
        }
        let name = &data[at + 16..at + 32];
        let end = name.iter().position(|b| *b == 0).unwrap_or(16);
        list.push(Process {
            pid: half(at + 8) as i32,
            command: String::from_utf8_lossy(&name[..end]).into_owned(),
            off: off_text(half(at + 12)),
            values: (0..counters().len())
                .map(|i| word(at + COUNTERS_AT + i * 8))
                .collect(),
        });
    }
    Ok((list, taken.saturating_sub(BLOCKS)))
}

pub fn print(list: &[Process], lost: u32, mut to: impl io::Write) -> io::Result<()> {
    let counters = counters();
    // A shell starts many that never wait for anything.
    let idle = |p: &&Process| p.off.is_none() && p.values.iter().all(|v| *v == 0);
    for p in list.iter().filter(|p| !idle(p)) {
        writeln!(to, "  {} (process {})", printable(&p.command), p.pid)?;
        if let Some(off) = p.off {
            writeln!(to, "    switched off: {off}")?;
        }
        let counted = (p.values.iter().zip(&counters)).filter(|(value, _)| **value > 0);
        let (values, texts) = counted
            .map(|(value, (_, text))| (count_text(*value), (*text).to_owned()))
            .unzip();
        let table = Table::from(vec![
            Column::new("", 0, values).least(VALUE_WIDTH),
            Column::new("", 0, texts).left(),
        ]);
        write!(to, "{}", table.text(&Pen::default(), None))?;
    }
    match list.iter().filter(idle).count() {
        0 => {}
        n if n == list.len() => writeln!(to, "  no process called select or poll")?,
        1 => writeln!(to, "  and 1 process that called neither select nor poll")?,
        n => writeln!(
            to,
            "  and {n} processes that called neither select nor poll"
        )?,
    }
    if lost > 0 {
        writeln!(to, "  {lost} more processes found no room to count in")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_names_the_counters() {
        let counters = counters();
        assert_eq!(counters[0].0, "calls_straight");
        assert_eq!(counters.last().unwrap().0, "descriptors_most");
        assert!(
            counters.len() > 25 && counters.iter().all(|(n, t)| !n.is_empty() && !t.is_empty())
        );
        assert!(COUNTERS_AT + counters.len() * 8 <= BLOCK_BYTES as usize);
    }

    #[test]
    fn an_empty_file_has_no_processes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        create(file.path()).unwrap();
        let (list, lost) = read(file.path()).unwrap();
        assert!(list.is_empty());
        assert_eq!(lost, 0);
    }

    #[test]
    fn a_process_chooses_its_name_and_can_cut_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        create(file.path()).unwrap();
        let mut block = MAGIC.to_ne_bytes().to_vec();
        block.extend(7u32.to_ne_bytes());
        block.extend(1u32.to_ne_bytes());
        block.extend(b"a\x1b[31m\nb\0\0\0\0\0\0\0\0");
        file.as_file().write_all_at(&block, HEAD_BYTES).unwrap();
        file.as_file()
            .write_all_at(&9u32.to_ne_bytes(), 12)
            .unwrap();
        let (list, lost) = read(file.path()).unwrap();
        let mut text = Vec::new();
        print(&list, lost, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.starts_with("  a\\u{1b}[31m\\nb (process 7)\n"),
            "{text}"
        );
        file.as_file().set_len(HEAD_BYTES + 20).unwrap();
        assert!(read(file.path()).is_ok());
        file.as_file().set_len(3).unwrap();
        assert!(read(file.path()).unwrap().0.is_empty());
    }
}
