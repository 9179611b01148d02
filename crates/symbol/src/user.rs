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
//! The files may belong to anybody. Here they are found and opened, with care;
//! what is in them is read by the symboliser, a process that can do nothing
//! else. A file in which that process ends costs its own names, which are
//! counted, and no others. A file that is not the one that ran (its build id
//! differs) is not used, with a note.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use debox_symboliser::foreign::{self, OpenError};
use debox_symboliser::{Loaded, Lost, Part, Symboliser, Unusable, clean};

/// As many places are kept; then all are forgotten.
const CACHE_MAX: usize = 1 << 17;
/// Files kept open at the same time.
const FILES_MAX: usize = 256;
/// Sentences about what has no names.
const NOTES_MAX: usize = 64;
/// A file is handed in so often for one place.
const LOADS_MAX: u32 = 8;

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

/// What kept places from being named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserNote {
    pub text: String,
    /// Places; 0 if they were not counted.
    pub count: u64,
}

/// Below which directory a path was found.
#[derive(Clone)]
enum Root {
    Here,
    /// That of a process.
    Of(PathBuf),
}

impl Root {
    fn open(&self, path: &Path) -> Result<File, OpenError> {
        match self {
            Root::Here => foreign::open(path),
            Root::Of(root) => foreign::open_below(root, path, true),
        }
    }
}

/// How much of a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    Full,
    /// No debug information: the symboliser ended in it.
    Symbols,
    Nothing,
}

/// A file that can be asked.
struct Known {
    /// Handed in again whenever the symboliser was started anew.
    open: File,
    /// The symboliser's name for it.
    number: u32,
    /// The symboliser's life in which it was handed in.
    life: u32,
    path: PathBuf,
    root: Root,
    depth: Depth,
    /// Ends of the symboliser at this depth.
    ends: u32,
    why: Option<Lost>,
}

/// In which form a just-in-time compiler tells of its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Told {
    /// A perf map.
    Map,
    /// A jitdump.
    Dump,
}

impl Told {
    const ALL: [Told; 2] = [Told::Map, Told::Dump];
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Told::Map => "perf map",
            Told::Dump => "jitdump",
        })
    }
}

/// The jitdump that a living process has mapped, as it sees it.
fn mapped_dump(pid: u32, inside: u32) -> Option<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let name = format!("/jit-{inside}.dump");
    maps.lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .find(|path| path.ends_with(&name))
        .map(str::to_owned)
}

struct PerfMap {
    number: u32,
    life: u32,
    /// What the file was when it was read.
    stamp: (u64, Option<SystemTime>),
}

/// Turns places into frames, by a symboliser of its own.
pub struct UserSymbols {
    options: UserOptions,
    symboliser: Symboliser,
    files: HashMap<CodeFile, Option<Known>>,
    maps: HashMap<(u32, Told), PerfMap>,
    numbers: u32,
    frames: HashMap<(UserCode, u64), Vec<UserFrame>>,
    notes: BTreeMap<String, u64>,
    /// Notes beyond [`NOTES_MAX`], and the places in them.
    notes_more: u64,
}

impl Default for UserSymbols {
    fn default() -> Self {
        UserSymbols::new(UserOptions::default())
    }
}

impl UserSymbols {
    /// Starts nothing yet.
    pub fn new(options: UserOptions) -> UserSymbols {
        UserSymbols {
            options,
            symboliser: Symboliser::new(),
            files: HashMap::new(),
            maps: HashMap::new(),
            numbers: 0,
            frames: HashMap::new(),
            notes: BTreeMap::new(),
            notes_more: 0,
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
    pub fn notes(&self) -> impl Iterator<Item = UserNote> {
        let more = (self.notes_more > 0).then(|| UserNote {
            text: format!("{} more places have no names", self.notes_more),
            count: self.notes_more,
        });
        self.notes
            .iter()
            .map(|(text, &count)| UserNote {
                text: match count {
                    0 => text.clone(),
                    1 => format!("1 place {text}"),
                    _ => format!("{count} places {text}"),
                },
                count,
            })
            .chain(more)
    }

    /// The process that reads files now, for those who want to look at it.
    pub fn symboliser(&self) -> &Symboliser {
        &self.symboliser
    }

    /// A sentence of its own.
    fn note(&mut self, text: String) {
        if self.notes.len() < NOTES_MAX || self.notes.contains_key(&text) {
            self.notes.insert(text, 0);
        }
    }

    /// One more place of which this holds.
    fn count(&mut self, text: String) {
        if self.notes.len() < NOTES_MAX || self.notes.contains_key(&text) {
            *self.notes.entry(text).or_default() += 1;
        } else {
            self.notes_more += 1;
        }
    }

    fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    fn in_file(&mut self, file: &CodeFile, place: u64) -> Vec<UserFrame> {
        let unknown = UserFrame {
            module: module_name(&file.path),
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
        let Some(Some(mut known)) = self.files.remove(file) else {
            self.files.insert(file.clone(), None);
            return vec![unknown];
        };
        let named = self.name(&mut known, place);
        let module = module_name(&known.path);
        self.files.insert(file.clone(), Some(known));
        if named.is_empty() {
            return vec![UserFrame { module, ..unknown }];
        }
        named
            .into_iter()
            .map(|frame| UserFrame {
                // Without a name the place itself, or what stands for it.
                offset: match frame.function.is_empty() && frame.offset == 0 {
                    true => place,
                    false => frame.offset,
                },
                function: frame.function,
                module: module.clone(),
                file: frame.file,
                line: frame.line,
                inlined: frame.inlined,
            })
            .collect()
    }

    /// Asks until there is an answer, or the file has cost too much.
    fn name(&mut self, known: &mut Known, place: u64) -> Vec<debox_symboliser::Frame> {
        for _ in 0..LOADS_MAX {
            if known.depth == Depth::Nothing {
                break;
            }
            let lines = self.options.lines && known.depth == Depth::Full;
            let answer = self
                .load(known)
                .and_then(|()| self.symboliser.name(known.number, place, lines));
            let module = &module_name(&known.path);
            match answer {
                Ok(named) => {
                    if let Some(why) = named.incomplete {
                        self.count(format!("in {module} may have no file and line: {why}"));
                    } else if self.options.lines && !lines {
                        self.count(lost_text(module, "file and line", known.why.as_ref()));
                    }
                    return named.frames;
                }
                Err(Unusable::Forgotten) => known.life = 0,
                Err(Unusable::Refused(why)) => {
                    self.count(format!("in {module} have no names: {why}"));
                    return Vec::new();
                }
                Err(Unusable::Lost(lost)) => {
                    if !known.struck(lost) {
                        break;
                    }
                }
            }
        }
        let module = module_name(&known.path);
        self.count(lost_text(&module, "name", known.why.as_ref()));
        Vec::new()
    }

    /// Hands the file in, with those that go with it, if it is not there.
    fn load(&mut self, known: &mut Known) -> Result<(), Unusable> {
        if known.life == self.symboliser.life() && known.life != 0 {
            return Ok(());
        }
        let loaded = self
            .symboliser
            .load(known.number, Part::Main, &known.open)?;
        known.life = self.symboliser.life();
        known.copy_of(&loaded);
        if self.options.lines && known.depth == Depth::Full {
            self.load_parts(known, loaded)?;
        }
        Ok(())
    }

    /// Debug information that lies in other files.
    fn load_parts(&mut self, known: &Known, mut loaded: Loaded) -> Result<(), Unusable> {
        if !loaded.debug_info {
            let mut candidates = Vec::new();
            if let Some(path) = loaded
                .build_id
                .as_deref()
                .and_then(|id| self.debug_file(id))
            {
                candidates.push((Part::BuildId, Root::Here, path));
            }
            if let Some(name) = loaded.link.as_deref().and_then(file_name) {
                candidates.extend(
                    self.beside(known, name)
                        .into_iter()
                        .map(|(root, path)| (Part::Link, root, path)),
                );
            }
            for (part, root, path) in candidates {
                if let Some(found) = self.load_part(known, part, &root, &path)? {
                    loaded = found;
                    break;
                }
            }
        }
        if let Some(alt) = &loaded.alt {
            for path in self.alternatives(known, alt) {
                if let Some(found) = self.load_part(known, Part::Alt, &Root::Here, &path)? {
                    loaded = found;
                    break;
                }
            }
        }
        if loaded.split {
            let mut name = known.path.clone().into_os_string();
            name.push(".dwp");
            self.load_part(known, Part::Package, &known.root, Path::new(&name))?;
        }
        Ok(())
    }

    /// None if it is not there, or not the one that is meant.
    fn load_part(
        &mut self,
        known: &Known,
        part: Part,
        root: &Root,
        path: &Path,
    ) -> Result<Option<Loaded>, Unusable> {
        let Ok(open) = root.open(path) else {
            return Ok(None);
        };
        // A link to itself.
        if same_file(&open, &known.open) {
            return Ok(None);
        }
        match self.symboliser.load(known.number, part, &open) {
            Ok(loaded) => Ok(Some(loaded)),
            Err(Unusable::Refused(_)) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Where a file that a debug link names may be: beside the file, or at its
    /// place below the debug directories. Nowhere else: the name is the
    /// file's own.
    fn beside(&self, known: &Known, name: &Path) -> Vec<(Root, PathBuf)> {
        let dir = known.path.parent().unwrap_or(Path::new("/"));
        let inside = dir.strip_prefix("/").unwrap_or(dir);
        let mut found = Vec::new();
        for debug in &self.options.debug_dirs {
            found.push((Root::Here, debug.join(inside).join(name)));
            found.push((Root::Here, debug.join(name)));
        }
        found.push((known.root.clone(), dir.join(".debug").join(name)));
        found.push((known.root.clone(), dir.join(name)));
        found
    }

    /// Where the file of shared debug information is that a file names by its
    /// path: below the debug directories only.
    fn alternatives(&self, known: &Known, alt: &[u8]) -> Vec<PathBuf> {
        let path = Path::new(std::ffi::OsStr::from_bytes(alt));
        let plain = |path: &Path| {
            path.components()
                .all(|part| matches!(part, Component::Normal(_) | Component::RootDir))
        };
        let dir = known.path.parent().unwrap_or(Path::new("/"));
        let inside = dir.strip_prefix("/").unwrap_or(dir);
        let mut found = Vec::new();
        for debug in &self.options.debug_dirs {
            if path.is_absolute() {
                if plain(path) && path.starts_with(debug) {
                    found.push(path.to_owned());
                }
                continue;
            }
            // Relative to the debug file: `../../.dwz/name`, which is in the
            // debug directory whatever lies between.
            let mut rest = path.components();
            while rest.clone().next() == Some(Component::ParentDir) {
                rest.next();
            }
            let rest = rest.as_path();
            if plain(rest) {
                found.push(debug.join(rest));
                found.push(debug.join(inside).join(rest));
            }
        }
        found
    }

    /// The file, if it is there and still the one that ran.
    fn open(&mut self, file: &CodeFile) -> Option<Known> {
        let text = file.path.to_string_lossy();
        let shown = clean(&text);
        // The vDSO and the like are not files.
        if !text.starts_with('/') || text.starts_with("//") {
            return None;
        }
        // What splicing puts beside programs: plain code, and DeBox's own.
        if text.ends_with("/debox-splice.bin") {
            return None;
        }
        let (path, deleted) = match text.strip_suffix(" (deleted)") {
            Some(path) => (PathBuf::from(path), true),
            None => (file.path.clone(), false),
        };
        let below_root = file
            .pid
            .map(|pid| Root::Of(PathBuf::from(format!("/proc/{pid}/root"))));
        let mut other_id = None;
        let mut reason = None;
        for root in below_root.into_iter().chain([Root::Here]) {
            let opened = match root.open(&path) {
                Ok(opened) => opened,
                Err(error) => {
                    reason = Some(error.to_string());
                    continue;
                }
            };
            let mut known = Known {
                open: opened,
                number: self.number(),
                life: 0,
                path: path.clone(),
                root,
                depth: Depth::Full,
                ends: 0,
                why: None,
            };
            let id = match self.identify(&mut known) {
                Ok(id) => id,
                Err(Unusable::Lost(_)) => return Some(known),
                Err(error) => {
                    reason = Some(error.to_string());
                    continue;
                }
            };
            let same = match &file.build_id {
                Some(wanted) => id.as_ref() == Some(wanted),
                None => !deleted,
            };
            if same {
                return Some(known);
            }
            other_id = Some(id);
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
        self.note(note);
        None
    }

    /// Its build id, by the first look at it. Lost: it has cost all it may.
    fn identify(&mut self, known: &mut Known) -> Result<Option<Vec<u8>>, Unusable> {
        loop {
            // Only itself: what goes with it is of use once it is the right one.
            match self.symboliser.load(known.number, Part::Main, &known.open) {
                Ok(loaded) => {
                    let id = loaded.build_id.clone();
                    known.life = self.symboliser.life();
                    known.copy_of(&loaded);
                    if self.options.lines && known.depth == Depth::Full {
                        // Its end in one of these counts as any other.
                        match self.load_parts(known, loaded) {
                            Err(Unusable::Lost(lost)) => {
                                known.struck(lost);
                            }
                            Err(_) => known.life = 0,
                            Ok(()) => {}
                        }
                    }
                    return Ok(id);
                }
                Err(Unusable::Lost(lost)) => {
                    if !known.struck(lost.clone()) {
                        return Err(lost.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
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
        let found = (Told::ALL.into_iter()).find_map(|told| self.in_map(pid, told, inside));
        match found {
            Some((start, name)) => UserFrame {
                function: name,
                module: "[jit]".into(),
                offset: address.saturating_sub(start),
                ..UserFrame::default()
            },
            None => {
                self.note(format!(
                    "process {pid} ran code that no file has, from a just-in-time compiler, and \
                     neither /tmp/perf-{pid}.map nor a jit-{pid}.dump names it. Switch the \
                     compiler's on: for Node.js --perf-basic-prof, for Java \
                     -XX:+UnlockDiagnosticVMOptions \
                     -XX:+DumpPerfMapAtExit (17 and later) or an agent for perf, for .NET \
                     DOTNET_PerfMapEnabled=1, for Python 3.12 and later -X perf"
                ));
                unknown
            }
        }
    }

    /// From what a process's compiler tells, which grows while the program runs.
    fn in_map(&mut self, pid: u32, told: Told, inside: u64) -> Option<(u64, String)> {
        let (open, stamp) = self.told_by(pid, told)?;
        for _ in 0..2 {
            let fresh = self
                .maps
                .get(&(pid, told))
                .filter(|map| map.stamp == stamp && map.life == self.symboliser.life())
                .map(|map| map.number);
            let number = fresh.unwrap_or_else(|| self.number());
            let loaded = match fresh {
                Some(_) => Ok(()),
                None => self.symboliser.map(number, &open),
            };
            let answer = loaded.and_then(|()| self.symboliser.map_name(number, inside));
            match answer {
                Ok(found) => {
                    let life = self.symboliser.life();
                    let map = PerfMap {
                        number,
                        life,
                        stamp,
                    };
                    self.maps.insert((pid, told), map);
                    return found;
                }
                Err(Unusable::Forgotten) => {
                    self.maps.remove(&(pid, told));
                }
                Err(Unusable::Refused(why)) => {
                    self.note(format!("the {told} of process {pid}: {why}"));
                    return None;
                }
                Err(Unusable::Lost(lost)) => {
                    self.count(lost_text(
                        &format!("the {told} of process {pid}"),
                        "name",
                        Some(&lost),
                    ));
                    return None;
                }
            }
        }
        None
    }

    /// What the compiler of a process tells: below the process's own root directory and
    /// under the number that it has in its own PID namespace, or here. Anybody can put a
    /// file there, so only one is believed that the process's user or root has written.
    fn told_by(&mut self, pid: u32, told: Told) -> Option<(File, (u64, Option<SystemTime>))> {
        let process = Process::of(pid);
        let root = || Root::Of(PathBuf::from(format!("/proc/{pid}/root")));
        let inside = process.inside;
        let mut candidates = Vec::new();
        match told {
            Told::Map => {
                candidates.push((root(), format!("/tmp/perf-{inside}.map")));
                candidates.push((Root::Here, format!("/tmp/perf-{pid}.map")));
            }
            Told::Dump => {
                // Whoever writes one maps its beginning, so that perf finds it.
                let mapped = mapped_dump(pid, inside);
                candidates.extend(mapped.map(|path| (root(), path)));
                candidates.push((root(), format!("/tmp/jit-{inside}.dump")));
                candidates.push((Root::Here, format!("/tmp/jit-{pid}.dump")));
                candidates.push((Root::Here, format!("jit-{pid}.dump")));
            }
        }
        for (root, path) in candidates {
            let opened = match &root {
                Root::Here => foreign::open_no_link(Path::new(&path)),
                Root::Of(root) => foreign::open_below(root, Path::new(&path), false),
            };
            let open = match opened {
                Ok(open) => open,
                Err(OpenError::Io(_)) => continue,
                Err(error) => {
                    self.note(format!("{path} is not read: {error}"));
                    continue;
                }
            };
            let Ok(metadata) = open.metadata() else {
                continue;
            };
            if let Some(why) = process.disbelieves(metadata.uid(), metadata.nlink()) {
                self.note(format!("{path} is not believed: {why}"));
                continue;
            }
            return Some((open, (metadata.len(), metadata.modified().ok())));
        }
        None
    }
}

impl Known {
    /// A copy is called as what it is a copy of, and what goes with that goes with it.
    fn copy_of(&mut self, loaded: &Loaded) {
        if let Some(path) = &loaded.copy_of {
            self.path = PathBuf::from(OsStr::from_bytes(path));
        }
    }

    /// The symboliser ended in it: how deep may it be looked into now? False
    /// if not at all.
    fn struck(&mut self, lost: Lost) -> bool {
        let again = lost.again();
        let no_use = matches!(lost, Lost::GivenUp | Lost::TimeOver | Lost::Start(_));
        self.why = Some(lost);
        self.life = 0;
        if no_use {
            return false;
        }
        self.ends += 1;
        // It may have been another file's fault, or nobody's: once more.
        if !again || self.ends > 1 {
            self.ends = 0;
            self.depth = match self.depth {
                Depth::Full => Depth::Symbols,
                Depth::Symbols | Depth::Nothing => Depth::Nothing,
            };
        }
        self.depth != Depth::Nothing
    }
}

/// What must be known of a process to believe a file about it.
struct Process {
    /// Its number in its own PID namespace.
    inside: u32,
    /// Its effective user, while it lives.
    user: Option<u32>,
}

impl Process {
    fn of(pid: u32) -> Process {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let words = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().split_whitespace()
        };
        let number = |word: Option<&str>| word.and_then(|word| word.parse::<u32>().ok());
        Process {
            inside: number(words("NSpid:").next_back()).unwrap_or(pid),
            // Real, effective, saved, file system's.
            user: number(words("Uid:").nth(1)),
        }
    }

    /// Why a file with this owner says nothing about it.
    fn disbelieves(&self, owner: u32, links: u64) -> Option<String> {
        // SAFETY: no memory, and never fails.
        let own = unsafe { libc::geteuid() };
        if links != 1 {
            return Some(format!("it has {links} names"));
        }
        match self.user {
            _ if owner == 0 => None,
            Some(user) if owner == user => None,
            Some(user) => Some(format!(
                "it belongs to user {owner}, and the process to user {user}"
            )),
            None if owner == own => None,
            None => Some(format!(
                "it belongs to user {owner}, and whether the process did cannot be told after its \
                 end"
            )),
        }
    }
}

fn lost_text(place: &str, missing: &str, why: Option<&Lost>) -> String {
    match why {
        Some(why @ (Lost::Start(_) | Lost::GivenUp | Lost::TimeOver)) => {
            format!("in {place} have no {missing}: no process to read it with ({why})")
        }
        Some(why) => {
            format!("in {place} have no {missing}: the symboliser ended while reading it ({why})")
        }
        None => format!("in {place} have no {missing}: it cannot be held in memory with others"),
    }
}

/// The name of a file without any directory.
fn file_name(name: &[u8]) -> Option<&Path> {
    let path = Path::new(std::ffi::OsStr::from_bytes(name));
    let mut parts = path.components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(_)), None) if !name.contains(&b'/') => Some(path),
        _ => None,
    }
}

fn same_file(one: &File, other: &File) -> bool {
    let of = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (one.metadata(), other.metadata()) {
        (Ok(one), Ok(other)) => of(one) == of(other),
        _ => false,
    }
}

fn module_name(path: &Path) -> String {
    let text = path.to_string_lossy();
    let text = text.strip_suffix(" (deleted)").unwrap_or(&text);
    match text.rsplit('/').next() {
        Some("") | None => "[memory]".into(),
        Some(name) => clean(name),
    }
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
    fn modules_have_names() {
        assert_eq!(module_name(Path::new("/a/b (deleted)")), "b");
        assert_eq!(module_name(Path::new("")), "[memory]");
        assert_eq!(module_name(Path::new("[vdso]")), "[vdso]");
    }

    #[test]
    fn a_debug_link_names_no_directory() {
        assert_eq!(file_name(b"prog.debug"), Some(Path::new("prog.debug")));
        for name in [
            &b"/etc/passwd"[..],
            b"../x",
            b"a/b",
            b"..",
            b".",
            b"",
            b"a/",
        ] {
            assert_eq!(file_name(name), None, "{name:?}");
        }
    }

    #[test]
    fn whose_perf_map_is_believed() {
        let process = |user| Process { inside: 1, user };
        // SAFETY: no memory, and never fails.
        let own = unsafe { libc::geteuid() };
        let stranger = own + 7;
        assert_eq!(process(Some(1000)).disbelieves(1000, 1), None);
        assert_eq!(process(Some(1000)).disbelieves(0, 1), None);
        assert!(process(Some(1000)).disbelieves(1001, 1).is_some());
        assert!(process(Some(0)).disbelieves(stranger, 1).is_some());
        assert!(process(Some(1000)).disbelieves(1000, 2).is_some());
        assert_eq!(process(None).disbelieves(own, 1), None);
        assert!(process(None).disbelieves(stranger, 1).is_some());
    }
}
