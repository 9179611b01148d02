// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which files are served, what is in them, and are they there?
//!
//! Each directory has four classes of nine files, from 102 bytes to 900 kB, as SPECweb99's. Each
//! byte is known from its place: an answer can be checked without the files.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

pub const CLASSES: u32 = 4;
/// Of each class and directory.
pub const FILES: u32 = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    pub directory: u32,
    /// From 0.
    pub class: u32,
    /// From 1.
    pub number: u32,
}

fn splitmix64(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl File {
    pub fn all(directories: u32) -> impl Iterator<Item = Self> {
        (0..directories).flat_map(|directory| {
            (0..CLASSES).flat_map(move |class| {
                (1..=FILES).map(move |number| Self {
                    directory,
                    class,
                    number,
                })
            })
        })
    }

    /// Under the root of the server.
    pub fn path(&self) -> String {
        let Self {
            directory,
            class,
            number,
        } = self;
        format!("dir{directory:05}/class{class}_{number}")
    }

    pub fn bytes(&self) -> u64 {
        const STEP: [u64; CLASSES as usize] = [102, 1024, 10_240, 102_400];
        u64::from(self.number) * STEP[self.class as usize]
    }

    fn word(&self, at: u64) -> [u8; 8] {
        let file = (u64::from(self.directory) * 4 + u64::from(self.class)) * 16;
        splitmix64((file + u64::from(self.number)) << 32 | at).to_le_bytes()
    }

    /// Where the bytes, which begin at this offset, first differ from the file's.
    pub fn difference(&self, offset: u64, bytes: &[u8]) -> Option<u64> {
        // From a word's begin on, whole words are compared.
        let head = bytes.len().min((offset.wrapping_neg() % 8) as usize);
        let single = |from: usize, to: usize| {
            (from..to).find(|i| {
                let at = offset + *i as u64;
                bytes[*i] != self.word(at / 8)[(at % 8) as usize]
            })
        };
        let words = bytes[head..].chunks_exact(8);
        let first = (offset + head as u64) / 8;
        let tail = bytes.len() - words.remainder().len();
        single(0, head)
            .or_else(|| {
                let mut words = words.enumerate();
                let (i, _) = words.find(|(i, word)| **word != self.word(first + *i as u64))?;
                single(head + i * 8, head + i * 8 + 8)
            })
            .or_else(|| single(tail, bytes.len()))
            .map(|i| offset + i as u64)
    }

    /// All of it, by pieces, into the buffer.
    fn write(&self, path: &Path, buffer: &mut Vec<u8>) -> io::Result<()> {
        let bytes = self.bytes() as usize;
        buffer.clear();
        for at in 0..bytes.div_ceil(8) {
            buffer.extend_from_slice(&self.word(at as u64));
        }
        fs::File::create(path)?.write_all(&buffer[..bytes])
    }
}

fn of(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Makes what is missing or has another size; how many files that were, and how many bytes.
pub fn make(root: &Path, directories: u32) -> io::Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    let mut buffer = Vec::new();
    for file in File::all(directories) {
        let path = root.join(file.path());
        if fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() == file.bytes()) {
            continue;
        }
        let parent = path.parent().expect("a file in a directory");
        fs::create_dir_all(parent).map_err(of(parent))?;
        file.write(&path, &mut buffer).map_err(of(&path))?;
        files += 1;
        bytes += file.bytes();
    }
    Ok((files, bytes))
}

/// Reads all files; what is wrong, a line for each.
pub fn check(root: &Path, directories: u32) -> io::Result<Vec<String>> {
    let mut wrong = Vec::new();
    let mut content = Vec::new();
    for file in File::all(directories) {
        let path = root.join(file.path());
        content.clear();
        let read = fs::File::open(&path).and_then(|mut f| f.read_to_end(&mut content));
        let (is, wanted) = (content.len() as u64, file.bytes());
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                wrong.push(format!("{}: missing", path.display()));
            }
            Err(error) => return Err(of(&path)(error)),
            Ok(_) if is != wanted => {
                wrong.push(format!("{}: {is} bytes, not {wanted}", path.display()));
            }
            Ok(_) => {
                let at = file.difference(0, &content);
                wrong.extend(at.map(|at| format!("{}: byte {at} is another", path.display())));
            }
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: File = File {
        directory: 3,
        class: 1,
        number: 2,
    };

    /// By the definition, byte by byte.
    fn content(file: &File) -> Vec<u8> {
        let number = (file.directory * 4 + file.class) * 16 + file.number;
        (0..file.bytes())
            .map(|i| (splitmix64(u64::from(number) << 32 | (i / 8)) >> (i % 8 * 8)) as u8)
            .collect()
    }

    #[test]
    fn the_mix_is_the_published_one() {
        // The first numbers of splitmix64 with seed 0.
        assert_eq!(splitmix64(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(splitmix64(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn a_difference_is_found_wherever_it_lies_and_however_the_bytes_are_cut() {
        let whole = content(&ONE);
        assert_eq!(whole.len(), 2048);
        for from in 0..20 {
            for to in from..40 {
                assert_eq!(ONE.difference(from as u64, &whole[from..to]), None);
                for changed in from..to {
                    let mut other = whole[from..to].to_vec();
                    other[changed - from] ^= 0x10;
                    let found = ONE.difference(from as u64, &other);
                    assert_eq!(found, Some(changed as u64), "{from}..{to}");
                }
            }
        }
    }

    #[test]
    fn files_are_made_once_and_a_changed_byte_is_found() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let (files, bytes) = make(root, 2).unwrap();
        assert_eq!(
            (files, bytes),
            (72, 2 * 45 * (102 + 1024 + 10_240 + 102_400))
        );
        assert_eq!(fs::read(root.join("dir00001/class0_7")).unwrap().len(), 714);
        let path = root.join("dir00001/class2_9");
        let file = File {
            directory: 1,
            class: 2,
            number: 9,
        };
        assert_eq!(fs::read(&path).unwrap(), content(&file));
        assert_eq!(make(root, 2).unwrap(), (0, 0));
        assert_eq!(check(root, 2).unwrap(), Vec::<String>::new());

        let mut changed = content(&file);
        changed[70_001] ^= 1;
        fs::write(&path, &changed).unwrap();
        fs::write(root.join("dir00000/class0_1"), "short").unwrap();
        fs::remove_file(root.join("dir00000/class3_1")).unwrap();
        let wrong = check(root, 2).unwrap();
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert!(wrong[0].ends_with("dir00000/class0_1: 5 bytes, not 102"));
        assert!(wrong[1].ends_with("dir00000/class3_1: missing"));
        assert!(wrong[2].ends_with("dir00001/class2_9: byte 70001 is another"));
        // What has the right size is left alone: --check is for that.
        assert_eq!(make(root, 2).unwrap(), (2, 102 + 102_400));
    }
}
