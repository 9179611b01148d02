// SPDX-License-Identifier: MIT OR Apache-2.0
//! What has a process mapped, by what the kernel says?

use crate::proc;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// `rwxp`.
    pub rights: [u8; 4],
    /// In the file.
    pub offset: u64,
    pub device: [u32; 2],
    pub inode: u64,
    /// As the kernel tells it, escapes undone; empty: it has none.
    pub path: PathBuf,
}

const DELETED: &[u8] = b" (deleted)";

/// # Errors
/// When it is gone, or is not for us to read.
pub fn of(pid: i32) -> io::Result<Vec<Mapping>> {
    let bytes = proc::read(pid, "maps")?;
    Ok(bytes
        .split(|byte| *byte == b'\n')
        .filter_map(line)
        .collect())
}

fn line(line: &[u8]) -> Option<Mapping> {
    let mut words = line.splitn(6, |byte| *byte == b' ');
    let mut next = || words.next().and_then(|word| std::str::from_utf8(word).ok());
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = next()?.split_once('-')?;
    let rights = next()?.as_bytes().try_into().ok()?;
    let offset = hex(next()?)?;
    let (major, minor) = next()?.split_once(':')?;
    let device = [major, minor].map(|n| u32::from_str_radix(n, 16).ok());
    let inode = next()?.parse().ok()?;
    let path = words.next().unwrap_or_default().trim_ascii_start();
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        rights,
        offset,
        device: [device[0]?, device[1]?],
        inode,
        path: PathBuf::from(OsStr::from_bytes(&unescaped(path))),
    })
}

/// `\012`, which stands for what would end the line.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            out.push(b'\n');
            rest = after;
            continue;
        }
        out.push(*first);
        rest = after;
    }
    out
}

impl Mapping {
    pub fn holds(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// What it takes; a stack grows downwards.
    pub fn room(&self) -> Range<u64> {
        const STACK: u64 = 64 << 20;
        let grows = if self.path.as_os_str() == "[stack]" {
            STACK
        } else {
            0
        };
        self.start.saturating_sub(grows)..self.end
    }

    /// Code of a file.
    pub fn is_code(&self) -> bool {
        self.rights[2] == b'x' && self.inode != 0 && self.path.is_absolute()
    }

    /// Memory of its own that it can write.
    pub fn is_own(&self) -> bool {
        self.rights[..2] == *b"rw" && self.rights[3] == b'p'
    }

    /// The file. None: another one lies there now.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(&self, pid: i32, root: &Path) -> io::Result<Option<File>> {
        // The very one, also when it lies nowhere any more; root only.
        let link = format!("/proc/{pid}/map_files/{:x}-{:x}", self.start, self.end);
        if let Ok(file) = File::open(link) {
            return Ok(Some(file));
        }
        let path = self.path.as_os_str().as_bytes();
        let path = Path::new(OsStr::from_bytes(
            path.strip_suffix(DELETED).unwrap_or(path),
        ));
        let inside = path.strip_prefix("/").unwrap_or(path);
        let file = File::open(root.join(inside))?;
        let about = file.metadata()?;
        let device = [libc::major(about.dev()), libc::minor(about.dev())];
        Ok((device == self.device && about.ino() == self.inode).then_some(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read() {
        let text = b"7f00a000-7f00c000 r-xp 00002000 fe:01 1234                       /lib/a b\\012c (deleted)";
        let mapping = line(text).unwrap();
        assert_eq!((mapping.start, mapping.end), (0x7f00_a000, 0x7f00_c000));
        assert_eq!((mapping.offset, mapping.inode), (0x2000, 1234));
        assert_eq!(mapping.device, [0xfe, 1]);
        assert_eq!(mapping.path, Path::new("/lib/a b\nc (deleted)"));
        assert!(mapping.is_code() && !mapping.is_own());
        let heap = line(b"55-56 rw-p 00000000 00:00 0                          [heap]").unwrap();
        assert!(heap.is_own() && !heap.is_code());
        assert_eq!(line(b"7f-80 rw"), None);
        assert_eq!(line(b""), None);
    }

    #[test]
    fn own_code_is_found_and_opened() {
        let pid = std::process::id() as i32;
        let all = of(pid).unwrap();
        let here = own_code_is_found_and_opened as *const () as u64;
        let code = all.iter().find(|mapping| mapping.holds(here)).unwrap();
        assert!(code.is_code());
        assert!(code.open(pid, Path::new("/")).unwrap().is_some());
        let another = Mapping {
            start: 0,
            inode: 1,
            ..code.clone()
        };
        assert!(another.open(pid, Path::new("/")).unwrap().is_none());
    }
}
