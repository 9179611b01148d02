// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which source file and line does a kernel address belong to?
//!
//! Answered from a vmlinux with DWARF through blazesym. Its symbolizer cannot
//! move between threads, and the broker must be free to move its symbols, so a
//! thread of its own holds the symbolizer and answers questions.

use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use blazesym::inspect::{self, Inspector};
use blazesym::symbolize::{self, Input, Symbolized, Symbolizer};

/// Functions that every kernel has and that no compiler inlines or splits
/// away: their two addresses tell by how much this boot moved the kernel.
/// Three of them, since one agreeing pair could be chance.
pub(crate) const ANCHORS: [&str; 3] = ["schedule", "vfs_read", "do_exit"];

/// Where `schedule` is defined: what stands before it in its path is the build
/// machine's source directory.
const SCHEDULE_FILE: &str = "kernel/sched/core.c";

/// A kernel's debug information takes 120 MB while it is in use and 0.4 s to
/// take up again. New sites come in bursts, so it is let go in between.
const IDLE: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub file: String,
    pub line: u32,
}

struct Question {
    address: u64,
    answer: Sender<Option<Location>>,
}

#[derive(Debug)]
pub(crate) struct Lines {
    ask: Sender<Question>,
    /// Address in memory minus address in the file.
    offset: u64,
}

#[derive(Debug)]
pub(crate) enum LinesError {
    /// The file is no readable ELF, or the thread could not be had.
    Unreadable(String),
    /// It has none of the anchors, or they moved by different amounts.
    OtherKernel,
    /// Symbols only.
    NoLines,
}

impl Lines {
    /// `address_of` tells where an anchor is in the running kernel.
    pub fn open(
        vmlinux: &Path,
        address_of: impl Fn(&str) -> Option<u64>,
    ) -> Result<Lines, LinesError> {
        let in_file = anchors_in_file(vmlinux)?;
        let mut offset = None;
        let mut known_address = 0;
        for (name, in_file) in ANCHORS.iter().zip(in_file) {
            let (Some(in_file), Some(in_memory)) = (in_file, address_of(name)) else {
                continue;
            };
            let moved = in_memory.wrapping_sub(in_file);
            if offset.is_some_and(|offset| offset != moved) {
                return Err(LinesError::OtherKernel);
            }
            offset = Some(moved);
            known_address = in_memory;
        }
        let Some(offset) = offset else {
            return Err(LinesError::OtherKernel);
        };

        let (ask, questions) = channel();
        let path = vmlinux.to_owned();
        std::thread::Builder::new()
            .name("debox-lines".into())
            .spawn(move || answer_all(&path, &questions))
            .map_err(|error| LinesError::Unreadable(format!("no thread for it: {error}")))?;
        let lines = Lines { ask, offset };
        if lines.location(known_address).is_none() {
            return Err(LinesError::NoLines);
        }
        Ok(lines)
    }

    /// The place of an address inside an instruction, so of a call: one less
    /// than the return address.
    pub fn location(&self, address: u64) -> Option<Location> {
        let (answer, answered) = channel();
        let address = address.wrapping_sub(self.offset);
        self.ask.send(Question { address, answer }).ok()?;
        answered.recv().ok().flatten()
    }
}

fn anchors_in_file(vmlinux: &Path) -> Result<Vec<Option<u64>>, LinesError> {
    let mut elf = inspect::source::Elf::new(vmlinux);
    elf.debug_syms = false;
    let inspector = Inspector::new();
    let found = inspector
        .lookup(&inspect::source::Source::Elf(elf), &ANCHORS)
        .map_err(|error| LinesError::Unreadable(format!("{error:#}")))?;
    Ok(found
        .iter()
        .map(|symbols| symbols.first().map(|symbol| symbol.addr))
        .collect())
}

/// Runs until the owner of the questions' other end is dropped.
fn answer_all(vmlinux: &Path, questions: &Receiver<Question>) {
    let mut finder: Option<Finder> = None;
    let mut root: Option<String> = None;
    loop {
        let question = match questions.recv_timeout(IDLE) {
            Ok(question) => question,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                if finder.take().is_some() {
                    release_memory();
                }
                match questions.recv() {
                    Ok(question) => question,
                    Err(_) => return,
                }
            }
        };
        let finder = finder.get_or_insert_with(|| Finder::new(vmlinux));
        let root = root.get_or_insert_with(|| source_root(vmlinux, finder).unwrap_or_default());
        let location = finder.find(question.address).map(|(path, line)| {
            let path = path.to_string_lossy();
            let file = path.strip_prefix(root.as_str()).unwrap_or(&path);
            Location {
                file: file.to_owned(),
                line,
            }
        });
        // The asker may have gone; then nobody misses the answer.
        let _ = question.answer.send(location);
    }
}

struct Finder {
    symbolizer: Symbolizer,
    source: symbolize::source::Source<'static>,
}

impl Finder {
    fn new(vmlinux: &Path) -> Finder {
        let symbolizer = Symbolizer::builder()
            .enable_auto_reload(false)
            .enable_code_info(true)
            // With inlined functions on, the place given for the function
            // itself is the place in it, not one in what was inlined there.
            .enable_inlined_fns(true)
            .build();
        let source = symbolize::source::Source::Elf(symbolize::source::Elf::new(vmlinux));
        Finder { symbolizer, source }
    }

    fn find(&self, address: u64) -> Option<(PathBuf, u32)> {
        let found = self
            .symbolizer
            .symbolize_single(&self.source, Input::VirtOffset(address))
            .ok()?;
        let Symbolized::Sym(symbol) = found else {
            return None;
        };
        let place = symbol.code_info?;
        Some((
            lexical(&place.to_path()),
            place.line.filter(|&line| line != 0)?,
        ))
    }
}

/// The build machine's source directory, with the slash at its end.
fn source_root(vmlinux: &Path, finder: &Finder) -> Option<String> {
    let schedule = (*anchors_in_file(vmlinux).ok()?.first()?)?;
    let (path, _) = finder.find(schedule)?;
    Some(path.to_str()?.strip_suffix(SCHEDULE_FILE)?.to_owned())
}

/// glibc keeps what was freed; give it back to the kernel.
fn release_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes no pointer and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Takes `.` and `..` out of a path by its text: the build machine's
/// directories do not exist here.
fn lexical(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir
                if matches!(clean.components().next_back(), Some(Component::Normal(_))) =>
            {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_their_detours() {
        for (path, clean) in [
            (
                "/build/linux/debian/build/../../kernel/sched/core.c",
                "/build/linux/kernel/sched/core.c",
            ),
            ("./fs/./pipe.c", "fs/pipe.c"),
            ("../fs/pipe.c", "../fs/pipe.c"),
            ("/../fs/pipe.c", "/../fs/pipe.c"),
        ] {
            assert_eq!(lexical(Path::new(path)), Path::new(clean));
        }
    }
}
