// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which function, file and line of a program is a place in its code?
//!
//! A place is a file and an offset in it, which stay what they are from one
//! run to the next and after the process is gone, or an address in memory that
//! no file backs: code that a just-in-time compiler made and described in a
//! perf map. In this order a name comes from: debug information (in the file,
//! or separate, by debug link or build id), the symbol table, Go's function
//! table. Without any, the place is `module+0x1234`.
//!
//! The files may belong to anybody: names are freed of control characters
//! before a terminal sees them, and a file that is not the one that ran (its
//! build id differs) is not used, with a note.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer, source};
use debox_unwind::Program;

/// As many places are kept; then all are forgotten.
const CACHE_MAX: usize = 1 << 17;
/// Files kept open (mapped) at the same time.
const FILES_MAX: usize = 512;
/// A perf map of a large Java or Node program has some ten megabytes.
const PERF_MAP_BYTES_MAX: u64 = 64 << 20;
/// C++ names can be longer than any screen.
const NAME_CHARS_MAX: usize = 512;

/// A file that code was mapped from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CodeFile {
    /// As the process saw it (the last column of /proc/PID/maps).
    pub path: PathBuf,
    /// A process that had it mapped: while that one lives, the file is looked
    /// for under its root directory first, so that containers work.
    pub pid: Option<u32>,
    /// Its GNU build id when it was mapped, if it was noted then.
    pub build_id: Option<Vec<u8>>,
}

/// What a place is relative to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UserCode {
    /// Places are offsets in a file.
    File(CodeFile),
    /// Places are addresses in the memory of a process.
    Memory { pid: u32 },
}

/// One function at a place. A place has several when functions were inlined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserFrame {
    /// Demangled; empty if not known.
    pub function: String,
    /// The file's name without its directory; `[jit]` for code in memory.
    pub module: String,
    /// Bytes from the function's start to the return address; from the file's
    /// start (for memory: the address) if the function is not known; 0 if
    /// inlined.
    pub offset: u64,
    /// Source file as the debug information has it; empty if not known.
    pub file: String,
    /// 0 if not known.
    pub line: u32,
    /// Inlined into the next frame.
    pub inlined: bool,
}

impl fmt::Display for UserFrame {
    /// `function (file.c:12)`, `function+0x1c (module)`, `module+0x1234`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.rsplit('/').next().unwrap_or_default();
        if self.function.is_empty() {
            write!(f, "{}+{:#x}", self.module, self.offset)
        } else if self.line != 0 {
            write!(f, "{} ({file}:{})", self.function, self.line)
        } else if !file.is_empty() {
            write!(f, "{} ({file})", self.function)
        } else {
            write!(f, "{}+{:#x} ({})", self.function, self.offset, self.module)
        }
    }
}

/// What [`UserSymbols::new`] should do.
#[derive(Clone, Debug)]
pub struct UserOptions {
    /// Where separate debug information is installed.
    pub debug_dirs: Vec<PathBuf>,
    /// Whether debug information is read: without, functions only.
    pub lines: bool,
}

impl Default for UserOptions {
    fn default() -> Self {
        UserOptions {
            debug_dirs: vec!["/usr/lib/debug".into(), "/lib/debug".into()],
            lines: true,
        }
    }
}

/// A file that can be asked.
struct Known {
    /// Stays valid when the process that was asked for has ended.
    path: PathBuf,
    /// What `path` names by its number, for a file of another mount namespace.
    _open: Option<File>,
    program: Option<Program>,
    /// Separate debug information, found by the build id.
    debug: Option<PathBuf>,
}

struct PerfMap {
    /// Start, end, name; sorted by start.
    spans: Vec<(u64, u64, String)>,
    /// What the file was when it was read.
    stamp: (u64, Option<std::time::SystemTime>),
}

/// Turns places into frames. Stays on its thread, as its symbolizer does.
pub struct UserSymbols {
    options: UserOptions,
    symbolizer: Symbolizer,
    files: HashMap<CodeFile, Option<Known>>,
    maps: HashMap<u32, PerfMap>,
    frames: HashMap<(UserCode, u64), Vec<UserFrame>>,
    notes: BTreeSet<String>,
}

impl Default for UserSymbols {
    fn default() -> Self {
        UserSymbols::new(UserOptions::default())
    }
}

impl UserSymbols {
    pub fn new(options: UserOptions) -> UserSymbols {
        let symbolizer = Symbolizer::builder()
            // The build id was compared; a file that is replaced meanwhile
            // stays the one that was opened.
            .enable_auto_reload(false)
            .enable_code_info(options.lines)
            .enable_inlined_fns(options.lines)
            .enable_demangling(true)
            .set_debug_dirs(Some(options.debug_dirs.clone()))
            .build();
        UserSymbols {
            options,
            symbolizer,
            files: HashMap::new(),
            maps: HashMap::new(),
            frames: HashMap::new(),
            notes: BTreeSet::new(),
        }
    }

    /// Names places that calls return to: `places[i]` becomes `[i]` of the
    /// result, innermost function first, the one that was not inlined last,
    /// and never empty. The look-up is of the byte before, which is in the
    /// call instruction.
    pub fn resolve(&mut self, places: &[(UserCode, u64)]) -> Vec<Vec<UserFrame>> {
        places
            .iter()
            .map(|(code, place)| self.resolve_one(code, *place))
            .collect()
    }

    /// The same for one place.
    pub fn resolve_one(&mut self, code: &UserCode, place: u64) -> Vec<UserFrame> {
        let key = (code.clone(), place);
        if let Some(frames) = self.frames.get(&key) {
            return frames.clone();
        }
        let frames = match code {
            UserCode::File(file) => self.in_file(file, place),
            UserCode::Memory { pid } => vec![self.in_memory(*pid, place)],
        };
        // A compiler may still describe what it made.
        let may_change = matches!(code, UserCode::Memory { .. }) && frames[0].function.is_empty();
        if !may_change {
            if self.frames.len() >= CACHE_MAX {
                self.frames.clear();
            }
            self.frames.insert(key, frames.clone());
        }
        frames
    }

    /// What kept places from being named, in sentences; grows with use.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.notes.iter().map(String::as_str)
    }

    fn in_file(&mut self, file: &CodeFile, place: u64) -> Vec<UserFrame> {
        let module = module_name(&file.path);
        let unknown = UserFrame {
            module: module.clone(),
            offset: place,
            ..UserFrame::default()
        };
        if !self.files.contains_key(file) {
            if self.files.len() >= FILES_MAX {
                self.files.clear();
            }
            let known = self.open(file);
            self.files.insert(file.clone(), known);
        }
        let Some(Some(known)) = self.files.get(file) else {
            return vec![unknown];
        };
        let Some(offset) = place.checked_sub(1) else {
            return vec![unknown];
        };
        let address = known
            .program
            .as_ref()
            .and_then(|program| program.address(offset));
        let lines = self.options.lines;
        let mut found = symbol(
            &self.symbolizer,
            &known.path,
            Input::FileOffset(offset),
            lines,
        );
        let has_line = |symbol: &Sym<'_>| symbol.code_info.is_some();
        // Debug information by build id: its addresses are the file's, its
        // offsets are not.
        if self.options.lines
            && !found.as_ref().is_some_and(has_line)
            && let (Some(debug), Some(address)) = (&known.debug, address)
            && let Some(better) = symbol(&self.symbolizer, debug, Input::VirtOffset(address), lines)
            && (found.is_none() || has_line(&better))
        {
            found = Some(better);
        }
        let go = known
            .program
            .as_ref()
            .zip(address)
            .and_then(|(program, address)| program.go_place(address));
        match (found, go) {
            (Some(symbol), None) => frames_of(&symbol, &module),
            // A stripped Go program still has dynamic symbols if C is in it,
            // and the nearest one before is not the function.
            (Some(symbol), Some(_)) if symbol.code_info.is_some() => frames_of(&symbol, &module),
            (_, Some(go)) => vec![UserFrame {
                function: clean(&go.function),
                module,
                offset: address.map_or(0, |address| address + 1 - go.start),
                file: if self.options.lines {
                    clean(&go.file)
                } else {
                    String::new()
                },
                line: if self.options.lines { go.line } else { 0 },
                inlined: false,
            }],
            (None, None) => vec![unknown],
        }
    }

    /// The file, if it is there and still the one that ran.
    fn open(&mut self, file: &CodeFile) -> Option<Known> {
        let text = file.path.to_string_lossy();
        let shown = clean(&text);
        // The vDSO and the like are not files.
        if !text.starts_with('/') || text.starts_with("//") {
            return None;
        }
        let (path, deleted) = match text.strip_suffix(" (deleted)") {
            Some(path) => (PathBuf::from(path), true),
            None => (file.path.clone(), false),
        };
        let below_root = file.pid.map(|pid| {
            let relative = path.strip_prefix("/").unwrap_or(&path);
            Path::new("/proc")
                .join(pid.to_string())
                .join("root")
                .join(relative)
        });
        let mut other_id = None;
        let mut reason = None;
        for candidate in below_root.into_iter().chain([path.clone()]) {
            let opened = File::options()
                .read(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
                .open(&candidate);
            let opened = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    reason = Some(error.to_string());
                    continue;
                }
            };
            let options = debox_unwind::Options::default();
            let program = match Program::open(&opened, &options) {
                Ok(program) => Some(program),
                // Symbols can be had of 32-bit programs, and of those that
                // are larger than what unwinding needs.
                Err(
                    debox_unwind::Error::Elf32
                    | debox_unwind::Error::Limit { .. }
                    | debox_unwind::Error::Time { .. },
                ) => None,
                Err(error) => {
                    reason = Some(error.to_string());
                    continue;
                }
            };
            let id = match &program {
                Some(program) => program.build_id().map(<[u8]>::to_vec),
                None => blazesym::helper::read_elf_build_id(&candidate)
                    .ok()
                    .flatten()
                    .map(|id| id.into_owned()),
            };
            let same = match &file.build_id {
                Some(wanted) => id.as_ref() == Some(wanted),
                None => !deleted,
            };
            if !same {
                other_id = Some(id);
                continue;
            }
            let debug = id.as_deref().and_then(|id| self.debug_file(id));
            // What lies below /proc/PID is gone with the process, and a short
            // command may end between this line and the first name.
            let (path, open) = match same_file(&opened, &path) {
                true => (path, None),
                false => (
                    PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd())),
                    Some(opened),
                ),
            };
            return Some(Known {
                path,
                _open: open,
                program,
                debug,
            });
        }
        let note = match (other_id, &file.build_id) {
            (Some(Some(now)), Some(then)) => format!(
                "{shown} has changed since it ran (build id {} then, {} now), so places in it \
                 are shown as module+offset. Put the old file back to see its functions",
                hex(then),
                hex(&now)
            ),
            (Some(_), _) => format!(
                "{shown} was replaced or deleted while it ran, so places in it are shown as \
                 module+offset. Run the program again to see its functions"
            ),
            (None, _) => format!(
                "{shown} cannot be read now ({}), so places in it are shown as module+offset",
                reason.as_deref().unwrap_or("it is gone")
            ),
        };
        self.notes.insert(note);
        None
    }

    /// `/usr/lib/debug/.build-id/ab/cdef….debug`
    fn debug_file(&self, id: &[u8]) -> Option<PathBuf> {
        let text = hex(id);
        // The first byte is a directory's name.
        let (first, rest) = text
            .split_at_checked(2)
            .filter(|(_, rest)| !rest.is_empty())?;
        self.options
            .debug_dirs
            .iter()
            .map(|dir| {
                dir.join(".build-id")
                    .join(first)
                    .join(format!("{rest}.debug"))
            })
            .find(|path| path.exists())
    }

    fn in_memory(&mut self, pid: u32, address: u64) -> UserFrame {
        let unknown = UserFrame {
            module: "[jit]".into(),
            offset: address,
            ..UserFrame::default()
        };
        let Some(inside) = address.checked_sub(1) else {
            return unknown;
        };
        // The map grows while the program runs.
        let found = perf_map(pid).and_then(|(path, stamp)| {
            if self.maps.get(&pid).is_none_or(|map| map.stamp != stamp) {
                match read_perf_map(&path) {
                    Ok(spans) => {
                        self.maps.insert(pid, PerfMap { spans, stamp });
                    }
                    Err(error) => {
                        self.notes.insert(format!("{}: {error}", path.display()));
                    }
                }
            }
            let spans = &self.maps.get(&pid)?.spans;
            let next = spans.partition_point(|(start, ..)| *start <= inside);
            let (start, end, name) = spans.get(next.checked_sub(1)?)?;
            (inside < *end).then(|| (*start, name.clone()))
        });
        match found {
            Some((start, name)) => UserFrame {
                function: name,
                module: "[jit]".into(),
                offset: address - start,
                ..UserFrame::default()
            },
            None => {
                self.notes.insert(format!(
                    "process {pid} ran code that no file has, from a just-in-time compiler, and \
                     /tmp/perf-{pid}.map does not name it. Switch its perf map on: for Node.js \
                     --perf-basic-prof, for Java -XX:+DumpPerfMapAtExit, for Python 3.12 and \
                     later -X perf"
                ));
                unknown
            }
        }
    }
}

fn same_file(open: &File, path: &Path) -> bool {
    let of = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (open.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(path)) => of(open) == of(path),
        _ => false,
    }
}

fn symbol<'a>(
    symbolizer: &'a Symbolizer,
    path: &Path,
    input: Input<u64>,
    lines: bool,
) -> Option<Sym<'a>> {
    let mut elf = source::Elf::new(path);
    elf.debug_syms = lines;
    let found = symbolizer.symbolize_single(&source::Source::Elf(elf.clone()), input);
    let found = match found {
        Ok(found) => found,
        Err(_) => {
            // Damaged debug information, or one that belongs to another build:
            // the symbols may still do.
            elf.debug_syms = false;
            symbolizer
                .symbolize_single(&source::Source::Elf(elf), input)
                .ok()?
        }
    };
    match found {
        Symbolized::Sym(symbol) => Some(symbol),
        Symbolized::Unknown(_) => None,
    }
}

fn frames_of(symbol: &Sym<'_>, module: &str) -> Vec<UserFrame> {
    let place = |code: Option<&CodeInfo<'_>>| {
        code.map_or((String::new(), 0), |code| {
            (
                clean(&code.to_path().to_string_lossy()),
                code.line.unwrap_or(0),
            )
        })
    };
    // Blazesym has the outermost of the inlined functions first, and with each
    // the place in it.
    let mut frames: Vec<UserFrame> = symbol
        .inlined
        .iter()
        .rev()
        .map(|inlined| {
            let (file, line) = place(inlined.code_info.as_ref());
            UserFrame {
                function: clean(&inlined.name),
                module: module.to_owned(),
                offset: 0,
                file,
                line,
                inlined: true,
            }
        })
        .collect();
    let (file, line) = place(symbol.code_info.as_deref());
    frames.push(UserFrame {
        function: clean(&symbol.name),
        module: module.to_owned(),
        offset: symbol.offset as u64 + 1,
        file,
        line,
        inlined: false,
    });
    frames
}

fn module_name(path: &Path) -> String {
    let text = path.to_string_lossy();
    let text = text.strip_suffix(" (deleted)").unwrap_or(&text);
    match text.rsplit('/').next() {
        Some("") | None => "[memory]".into(),
        Some(name) => clean(name),
    }
}

/// A name that a terminal can be shown: no control characters, no more than
/// [`NAME_CHARS_MAX`].
fn clean(name: &str) -> String {
    let mut chars = name.chars().map(|c| {
        let invisible = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || invisible { '?' } else { c }
    });
    let mut text: String = chars.by_ref().take(NAME_CHARS_MAX).collect();
    if chars.next().is_some() {
        text.push('…');
    }
    text
}

/// The perf map of a process: below its own root directory and under the
/// number that it has in its own PID namespace, or here.
fn perf_map(pid: u32) -> Option<(PathBuf, (u64, Option<std::time::SystemTime>))> {
    let inside = fs::read_to_string(format!("/proc/{pid}/status"))
        .ok()
        .and_then(|status| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("NSpid:"))?;
            line.split_whitespace().next_back()?.parse::<u32>().ok()
        })
        .unwrap_or(pid);
    [
        format!("/proc/{pid}/root/tmp/perf-{inside}.map"),
        format!("/tmp/perf-{pid}.map"),
    ]
    .into_iter()
    .find_map(|path| {
        let path = PathBuf::from(path);
        let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        Some((path, (metadata.len(), metadata.modified().ok())))
    })
}

/// Lines of `START SIZE NAME`, both in hexadecimal. Code that moved is listed
/// again, and the later line counts.
fn read_perf_map(path: &Path) -> std::io::Result<Vec<(u64, u64, String)>> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    let mut bytes = Vec::new();
    file.take(PERF_MAP_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(parse_perf_map(&String::from_utf8_lossy(&bytes)))
}

fn parse_perf_map(text: &str) -> Vec<(u64, u64, String)> {
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let mut spans: Vec<(u64, usize, u64, String)> = text
        .lines()
        .enumerate()
        .filter_map(|(number, line)| {
            let mut words = line.splitn(3, ' ');
            let (start, len) = (hex(words.next()?)?, hex(words.next()?)?);
            let name = words.next()?.trim();
            let end = start.checked_add(len)?;
            (len > 0 && !name.is_empty()).then(|| (start, number, end, clean(name)))
        })
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
    last
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_as_text() {
        let mut frame = UserFrame {
            module: "prog".into(),
            offset: 0x1c,
            ..UserFrame::default()
        };
        assert_eq!(frame.to_string(), "prog+0x1c");
        frame.function = "serve".into();
        assert_eq!(frame.to_string(), "serve+0x1c (prog)");
        frame.file = "/src/a/serve.c".into();
        assert_eq!(frame.to_string(), "serve (serve.c)");
        frame.line = 7;
        assert_eq!(frame.to_string(), "serve (serve.c:7)");
    }

    #[test]
    fn names_are_harmless() {
        assert_eq!(clean("a\x1b[31mb\u{202e}c"), "a?[31mb?c");
        let long = "x".repeat(NAME_CHARS_MAX + 1);
        assert_eq!(clean(&long).chars().count(), NAME_CHARS_MAX + 1);
        assert!(clean(&long).ends_with('…'));
        assert_eq!(module_name(Path::new("/a/b (deleted)")), "b");
        assert_eq!(module_name(Path::new("")), "[memory]");
        assert_eq!(module_name(Path::new("[vdso]")), "[vdso]");
    }

    #[test]
    fn perf_maps() {
        let spans = parse_perf_map(
            "1000 20 old\n2000 10 b::c d\ngarbage\n1000 10 new\nffffffffffffffff 10 over\n3000 0 none\n",
        );
        assert_eq!(
            spans,
            [
                (0x1000, 0x1010, "new".into()),
                (0x2000, 0x2010, "b::c d".into())
            ]
        );
    }
}
