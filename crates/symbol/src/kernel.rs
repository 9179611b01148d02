// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which function, file and line of the running kernel is an address?

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::debuginfod::Debuginfod;
use crate::functions::{Functions, SharedFunctions};
use crate::lines::{Lines, LinesError};

/// CAP_SYSLOG's bit, from linux/capability.h.
const CAP_SYSLOG: u32 = 34;

/// What [`KernelSymbols::open`] should do.
#[derive(Clone, Debug, Default)]
pub struct SymbolOptions {
    /// A vmlinux with debug information to use; without it the usual places
    /// are searched.
    pub vmlinux: Option<PathBuf>,
    /// Whom to ask if there is none in the usual places.
    pub debuginfod: Option<Debuginfod>,
    /// Is told, in sentences, what takes long.
    pub progress: Option<fn(&str)>,
    /// The running kernel's, which somebody else reads as well; without them they are read.
    pub functions: Option<SharedFunctions>,
}

/// The files that symbols come from. The default is the running kernel's own;
/// a test, or somebody with another machine's files, names others.
#[derive(Clone, Debug)]
pub struct SymbolSources {
    pub kallsyms: PathBuf,
    /// ELF notes of the kernel, with its build id.
    pub notes: PathBuf,
    pub kptr_restrict: PathBuf,
    pub status: PathBuf,
    /// Where to look for a vmlinux if none was asked for.
    pub vmlinux_search: Vec<PathBuf>,
}

impl Default for SymbolSources {
    fn default() -> Self {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let release = release.trim();
        let vmlinux_search = if release.is_empty() {
            Vec::new()
        } else {
            vec![
                format!("/usr/lib/debug/boot/vmlinux-{release}").into(),
                format!("/boot/vmlinux-{release}").into(),
                format!("/usr/lib/debug/lib/modules/{release}/vmlinux").into(),
                format!("/lib/modules/{release}/build/vmlinux").into(),
                format!("/lib/modules/{release}/vmlinux").into(),
            ]
        };
        SymbolSources {
            kallsyms: "/proc/kallsyms".into(),
            notes: "/sys/kernel/notes".into(),
            kptr_restrict: "/proc/sys/kernel/kptr_restrict".into(),
            status: "/proc/self/status".into(),
            vmlinux_search,
        }
    }
}

/// Why the kernel's symbols cannot be had. Each text tells what is so now and
/// what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SymbolError {
    #[error(
        "{path}: {source}. The names of kernel functions come from this file: \
         it needs a kernel with CONFIG_KALLSYMS=y and a mounted /proc"
    )]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{path} shows the address 0 for every kernel function: kernel.kptr_restrict is \
         {kptr_restrict} and this process {}. {}",
        syslog_text(*.has_syslog),
        hidden_remedy(.kptr_restrict, *.has_syslog)
    )]
    Hidden {
        path: PathBuf,
        kptr_restrict: String,
        has_syslog: Option<bool>,
    },
    #[error(
        "{path} lists no kernel function at all: this kernel was built without \
         CONFIG_KALLSYMS=y, or the file is hidden by a container. Use a kernel with it, \
         and run where the host's /proc is mounted"
    )]
    Empty { path: PathBuf },
    #[error("vmlinux {path} cannot be used: {reason}. Name a readable ELF file, or none")]
    VmlinuxUnreadable { path: PathBuf, reason: String },
    #[error(
        "vmlinux {path} belongs to another kernel: {reason}. Install the debug information \
         of the running kernel ({release})"
    )]
    VmlinuxMismatch {
        path: PathBuf,
        reason: String,
        release: String,
    },
    #[error(
        "vmlinux {path} has no line numbers: it was built without debug information or \
         stripped. Install the debug package of the running kernel, or build it with \
         CONFIG_DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT=y"
    )]
    VmlinuxWithoutLines { path: PathBuf },
}

fn syslog_text(has: Option<bool>) -> &'static str {
    match has {
        Some(true) => "has CAP_SYSLOG",
        Some(false) => "does not have CAP_SYSLOG",
        None => "has unknown capabilities",
    }
}

/// kptr_restrict 2 hides addresses from everybody, 0 and 1 from whoever lacks
/// CAP_SYSLOG (kallsyms_show_value in kernel/ksyms_common.c, 4.15 and later).
fn hidden_remedy(kptr_restrict: &str, has_syslog: Option<bool>) -> &'static str {
    match (kptr_restrict, has_syslog) {
        ("0" | "1", Some(true)) => {
            "Neither of the two hides it, so a security module or the kernel's lockdown does: \
             see /sys/kernel/security/lockdown and /sys/kernel/security/lsm"
        }
        ("0" | "1", _) => {
            "Run as root, or give it the capability: setcap cap_syslog+ep on the program"
        }
        (_, Some(true)) => "Run: sysctl -w kernel.kptr_restrict=1",
        _ => "Run: sysctl -w kernel.kptr_restrict=1, and run as root (or with CAP_SYSLOG)",
    }
}

/// One frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The function, with the compiler's suffix (`.isra.0`, `.cold`) if any.
    pub function: String,
    /// The return address' distance from the function's start.
    pub offset: u32,
}

/// Symbols, and lines if there are any, of the running kernel.
#[derive(Debug)]
pub struct KernelSymbols {
    sources: SymbolSources,
    table: Arc<Functions>,
    lines: Option<(PathBuf, Lines)>,
    notes: Vec<String>,
}

impl KernelSymbols {
    /// Reads the running kernel's symbols. Fails if there are none, or if the
    /// vmlinux that was asked for cannot be used; a vmlinux that was merely
    /// found is passed over, and [`KernelSymbols::notes`] says why.
    pub fn open(options: SymbolOptions) -> Result<KernelSymbols, SymbolError> {
        Self::open_from(SymbolSources::default(), options)
    }

    pub fn open_from(
        sources: SymbolSources,
        options: SymbolOptions,
    ) -> Result<KernelSymbols, SymbolError> {
        let table = match &options.functions {
            Some(functions) => table_checked(functions.get(), &sources)?,
            None => read_table(&sources)?,
        };
        let mut symbols = KernelSymbols {
            sources,
            table,
            lines: None,
            notes: Vec::new(),
        };
        if let Some(path) = options.vmlinux {
            let lines = symbols.open_lines(&path)?;
            symbols.lines = Some((path, lines));
            return Ok(symbols);
        }
        for path in symbols.sources.vmlinux_search.clone() {
            if !path.exists() {
                continue;
            }
            match symbols.open_lines(&path) {
                Ok(lines) => {
                    symbols.lines = Some((path, lines));
                    return Ok(symbols);
                }
                Err(error) => symbols.notes.push(error.to_string()),
            }
        }
        if let Some(server) = &options.debuginfod {
            let progress = options.progress.unwrap_or(|_| {});
            match symbols.lines_from(server, progress) {
                Ok(lines) => {
                    symbols.lines = Some(lines);
                    return Ok(symbols);
                }
                Err(note) => symbols.notes.push(note),
            }
        }
        let searched: Vec<_> = symbols
            .sources
            .vmlinux_search
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        symbols.notes.push(format!(
            "places are shown as function+offset, without file and line: no vmlinux with debug \
             information for this kernel in {}. Install the kernel's debug package (on Debian \
             linux-image-{}-dbg), {}",
            searched.join(", "),
            release(),
            if Debuginfod::from_env().is_some() {
                "or name a vmlinux (--vmlinux); the servers in DEBUGINFOD_URLS are asked when a \
                 run starts"
            } else {
                "name a vmlinux (--vmlinux), or set DEBUGINFOD_URLS"
            },
        ));
        Ok(symbols)
    }

    /// Lines of the running kernel from a debuginfod server, or a sentence.
    fn lines_from(
        &self,
        server: &Debuginfod,
        progress: fn(&str),
    ) -> Result<(PathBuf, Lines), String> {
        let id = fs::read(&self.sources.notes)
            .ok()
            .and_then(|notes| build_id(&notes))
            .ok_or_else(|| {
                format!(
                    "debuginfod was not asked: {} does not tell the kernel's build id",
                    self.sources.notes.display()
                )
            })?;
        let path = server
            .debuginfo(&id, &mut |text| progress(text))
            .map_err(|error| error.to_string())?;
        let lines = self.open_lines(&path).map_err(|error| error.to_string())?;
        Ok((path, lines))
    }

    fn open_lines(&self, path: &Path) -> Result<Lines, SymbolError> {
        let path_buf = || path.to_owned();
        let unreadable = |reason| SymbolError::VmlinuxUnreadable {
            path: path_buf(),
            reason,
        };
        let mismatch = |reason| SymbolError::VmlinuxMismatch {
            path: path_buf(),
            reason,
            release: release(),
        };
        // blazesym's own message for a missing file does not name the file.
        File::open(path).map_err(|error| unreadable(error.to_string()))?;
        let file_id = blazesym::helper::read_elf_build_id(&path)
            .map_err(|error| unreadable(format!("{error:#}")))?;
        let kernel_id = fs::read(&self.sources.notes)
            .ok()
            .and_then(|notes| build_id(&notes));
        if let (Some(file_id), Some(kernel_id)) = (&file_id, &kernel_id)
            && file_id[..] != kernel_id[..]
        {
            return Err(mismatch(format!(
                "its build id is {}, the running kernel's {}",
                hex(file_id),
                hex(kernel_id)
            )));
        }
        Lines::open(path, |name| self.table.address(name)).map_err(|error| match error {
            LinesError::Unreadable(reason) => unreadable(reason),
            LinesError::OtherKernel => mismatch(
                "the distances between its functions are not those of the running kernel".into(),
            ),
            LinesError::NoLines => SymbolError::VmlinuxWithoutLines { path: path_buf() },
        })
    }

    /// Reads the symbols again: BPF programs, trampolines and modules come and
    /// go. On failure the old ones stay.
    pub fn reload(&mut self) -> Result<(), SymbolError> {
        self.table = read_table(&self.sources)?;
        Ok(())
    }

    /// The function that a call returns to. The lookup is of the byte before,
    /// which is inside the call instruction: a call that never returns can be
    /// a function's last instruction, and its return address is then the next
    /// function's first.
    pub fn frame(&self, return_address: u64) -> Option<Frame> {
        let (name, start) = self.table.name_around(return_address.checked_sub(1)?)?;
        Some(Frame {
            function: name.to_owned(),
            offset: (return_address - start) as u32,
        })
    }

    /// Where each function begins, by address; None: what lies there is not known.
    pub fn starts(&self) -> impl Iterator<Item = (u64, Option<&str>)> {
        self.table.starts()
    }

    /// File, relative to the kernel's source directory, and line of the call
    /// that returns to this address. Only the kernel image itself is covered,
    /// not its modules.
    pub fn location(&self, return_address: u64) -> Option<(String, u32)> {
        let (_, lines) = self.lines.as_ref()?;
        let address = return_address.checked_sub(1)?;
        if !self.table.is_core(address) {
            return None;
        }
        lines
            .location(address)
            .map(|place| (place.file, place.line))
    }

    /// The vmlinux that lines come from.
    pub fn vmlinux(&self) -> Option<&Path> {
        self.lines.as_ref().map(|(path, _)| path.as_path())
    }

    /// What is missing and how to get it, in whole sentences. Empty when
    /// files and lines are there.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// How many functions are known.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn read_table(sources: &SymbolSources) -> Result<Arc<Functions>, SymbolError> {
    let table = File::open(&sources.kallsyms)
        .and_then(|file| Functions::read(BufReader::with_capacity(1 << 16, file)));
    table_checked(table.map(Arc::new), sources)
}

fn table_checked(
    table: io::Result<Arc<Functions>>,
    sources: &SymbolSources,
) -> Result<Arc<Functions>, SymbolError> {
    let path = || sources.kallsyms.clone();
    let table = table.map_err(|source| SymbolError::Unreadable {
        path: path(),
        source,
    })?;
    if table.is_hidden() {
        let kptr_restrict = match fs::read_to_string(&sources.kptr_restrict) {
            Ok(text) => text.trim().to_owned(),
            Err(error) => format!("unknown ({error})"),
        };
        let has_syslog = fs::read_to_string(&sources.status)
            .ok()
            .and_then(|text| has_cap_syslog(&text));
        return Err(SymbolError::Hidden {
            path: path(),
            kptr_restrict,
            has_syslog,
        });
    }
    if table.is_empty() {
        return Err(SymbolError::Empty { path: path() });
    }
    Ok(table)
}

/// Whether a /proc/PID/status shows CAP_SYSLOG as effective.
fn has_cap_syslog(status: &str) -> Option<bool> {
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    Some(u64::from_str_radix(set.trim(), 16).ok()? >> CAP_SYSLOG & 1 == 1)
}

/// The build id in a sequence of ELF notes: three words (name size, content
/// size, type 3), then name and content, each padded to 4 bytes.
fn build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
    let word = |bytes: &[u8], at: usize| -> Option<usize> {
        Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
    };
    loop {
        let (name_len, len, kind) = (word(notes, 0)?, word(notes, 4)?, word(notes, 8)?);
        let name_end = 12usize.checked_add(name_len)?;
        let start = name_end.checked_next_multiple_of(4)?;
        let end = start.checked_add(len)?;
        if kind == 3 && notes.get(12..name_end)? == b"GNU\0" {
            return Some(notes.get(start..end)?.to_vec());
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_bit() {
        assert_eq!(
            has_cap_syslog("Name:\tx\nCapEff:\t000001ffffffffff\n"),
            Some(true)
        );
        assert_eq!(has_cap_syslog("CapEff:\t0000000000000000\n"), Some(false));
        assert_eq!(has_cap_syslog("CapEff:\t0000000400000000\n"), Some(true));
        assert_eq!(has_cap_syslog("CapEff:\t0000000800000000\n"), Some(false));
        assert_eq!(has_cap_syslog("nothing"), None);
    }

    #[test]
    fn build_id_among_notes() {
        let mut notes = Vec::new();
        for (name, kind, content) in [
            (&b"Linux\0"[..], 257u32, &b"\x01\0\0"[..]),
            (b"GNU\0", 3, b"\xab\xcd\xef\x01\x23"),
        ] {
            notes.extend((name.len() as u32).to_ne_bytes());
            notes.extend((content.len() as u32).to_ne_bytes());
            notes.extend(kind.to_ne_bytes());
            notes.extend(name);
            notes.resize(notes.len().next_multiple_of(4), 0);
            notes.extend(content);
            notes.resize(notes.len().next_multiple_of(4), 0);
        }
        assert_eq!(
            build_id(&notes).as_deref(),
            Some(&b"\xab\xcd\xef\x01\x23"[..])
        );
        // Cut anywhere, it is not found, and nothing is read beyond the end.
        for len in 0..notes.len() - 3 {
            assert_eq!(build_id(&notes[..len]), None);
        }
        assert_eq!(build_id(&[0xff; 64]), None);
    }
}
