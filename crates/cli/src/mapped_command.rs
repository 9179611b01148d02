// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does the broker know the command's program before it runs?
//!
//! It makes unwind tables of what its client has mapped executable
//! (DEBOX_REQ_USER_STACKS). So the client maps the program, and for a script
//! its interpreter, while it asks; otherwise the first calls of a short run
//! would come from a file that the kernel side knows nothing of.

use debox_command::interpreter;
use debox_symboliser::foreign;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;

pub struct MappedCommand {
    memory: Vec<(*mut libc::c_void, usize)>,
}

/// `#!` may name a script in its turn; the kernel allows four.
const INTERPRETERS_MAX: usize = 5;

impl MappedCommand {
    /// What cannot be mapped is left out: its first calls may then have no
    /// call site.
    pub fn map(program: &Path) -> Self {
        let mut mapped = Self { memory: Vec::new() };
        let mut next = Some(program.to_owned());
        for _ in 0..INTERPRETERS_MAX {
            let Some(path) = next.take() else { break };
            // A FIFO would be waited for.
            let Ok(mut file) = foreign::open(&path) else {
                break;
            };
            let mut head = [0u8; 256];
            let length = file.read(&mut head).unwrap_or(0);
            next = interpreter(&head[..length]).map(|(path, _)| path);
            if next.is_none() {
                mapped.add(&file);
            }
        }
        mapped
    }

    /// Another file that it will map.
    pub fn and(mut self, path: &Path) -> Self {
        if let Ok(file) = foreign::open(path) {
            self.add(&file);
        }
        self
    }

    fn add(&mut self, file: &File) {
        let Ok(length) = file.metadata().map(|m| m.len() as usize) else {
            return;
        };
        if length == 0 {
            return;
        }
        // SAFETY: a fresh private mapping, which is never touched.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        if memory != libc::MAP_FAILED {
            self.memory.push((memory, length));
        }
    }
}

impl Drop for MappedCommand {
    fn drop(&mut self) {
        for (memory, length) in &self.memory {
            // SAFETY: mapped above with this length, and never handed out.
            unsafe { libc::munmap(*memory, *length) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_mapped_while_the_value_lives() {
        let mapped = || {
            std::fs::read_to_string("/proc/self/maps")
                .unwrap()
                .lines()
                .any(|l| l.contains("r-xp") && l.ends_with("/true"))
        };
        let held = MappedCommand::map(&std::fs::canonicalize("/bin/true").unwrap());
        assert!(mapped());
        drop(held);
        assert!(!mapped());
    }
}
