// SPDX-License-Identifier: MIT OR Apache-2.0
//! How did a just-in-time compiler call its code? In a perf map, or a jitdump.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;

use crate::jit_dump;
use crate::memory::file_len;
use crate::wire::clean;

/// A perf map of a large Java or Node program has some ten megabytes.
pub const PERF_MAP_BYTES_MAX: u64 = 64 << 20;

pub struct PerfMap {
    /// Start, end, name; sorted by start.
    spans: Vec<(u64, u64, String)>,
}

impl PerfMap {
    /// As much of it as is bearable.
    pub fn open(file: &File) -> Result<PerfMap, String> {
        let len = file_len(file)?;
        let from = jit_dump::parse(len, &|at, into| file.read_exact_at(into, at).is_ok());
        if let Some(named) = from {
            return Ok(PerfMap::of(named));
        }
        let len = len.min(PERF_MAP_BYTES_MAX);
        let mut bytes = Vec::new();
        Start(file, 0)
            .take(len)
            .read_to_end(&mut bytes)
            .map_err(|error| format!("it cannot be read: {error}"))?;
        Ok(PerfMap::of_bytes(&bytes))
    }

    pub fn of_bytes(bytes: &[u8]) -> PerfMap {
        let from = jit_dump::parse(bytes.len() as u64, &|at, into| {
            let start = usize::try_from(at).unwrap_or(usize::MAX);
            let found = bytes.get(start..).and_then(|rest| rest.get(..into.len()));
            found.map(|found| into.copy_from_slice(found)).is_some()
        });
        PerfMap::of(from.unwrap_or_else(|| parse(&String::from_utf8_lossy(bytes))))
    }

    /// Start, end, name, in the order in which they were told: of code that moved, or was
    /// replaced, the later one counts.
    fn of(told: Vec<(u64, u64, String)>) -> PerfMap {
        let mut spans: Vec<(u64, usize, u64, String)> = (told.into_iter().enumerate())
            .map(|(number, (start, end, name))| (start, number, end, name))
            .collect();
        spans.sort_by_key(|(start, number, ..)| (*start, *number));
        // Of several at one start the last one stays; of others that overlap, the
        // one that starts nearest before an address counts.
        let mut last: Vec<(u64, u64, String)> = Vec::with_capacity(spans.len());
        for (start, _, end, name) in spans {
            if last.last().is_some_and(|before| before.0 == start) {
                last.pop();
            }
            last.push((start, end, name));
        }
        PerfMap { spans: last }
    }

    /// Start and name of the code around a byte.
    pub fn name(&self, inside: u64) -> Option<(u64, &str)> {
        let next = self.spans.partition_point(|(start, ..)| *start <= inside);
        let (start, end, name) = self.spans.get(next.checked_sub(1)?)?;
        (inside < *end).then_some((*start, name.as_str()))
    }

    pub(crate) fn held(&self) -> u64 {
        self.spans
            .iter()
            .map(|(_, _, name)| (size_of::<(u64, u64, String)>() + name.capacity()) as u64)
            .sum()
    }
}

/// Reads from the start, wherever the descriptor stands.
struct Start<'a>(&'a File, u64);

impl std::io::Read for Start<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let got = self.0.read_at(into, self.1)?;
        self.1 += got as u64;
        Ok(got)
    }
}

/// Lines of `START SIZE NAME`, both in hexadecimal. Code that moved is listed again.
fn parse(text: &str) -> Vec<(u64, u64, String)> {
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    text.lines()
        .filter_map(|line| {
            let mut words = line.splitn(3, ' ');
            let (start, len) = (hex(words.next()?)?, hex(words.next()?)?);
            let name = words.next()?.trim();
            let end = start.checked_add(len)?;
            (len > 0 && !name.is_empty()).then(|| (start, end, clean(name)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perf_maps() {
        let map = PerfMap::of_bytes(
            b"1000 20 old\n2000 10 b::c d\ngarbage\n1000 10 new\nffffffffffffffff 10 over\n3000 0 none\n",
        );
        assert_eq!(
            map.spans,
            [
                (0x1000, 0x1010, "new".into()),
                (0x2000, 0x2010, "b::c d".into())
            ]
        );
        assert_eq!(map.name(0x100f), Some((0x1000, "new")));
        assert_eq!(map.name(0x1010), None);
        assert_eq!(map.name(0xfff), None);
    }
}
