// SPDX-License-Identifier: MIT OR Apache-2.0
//! Can a preloaded library answer the calls of this program, and if not, why?

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What keeps the library out, in words for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    Static,
    Go,
    SetId,
    Capabilities,
    Bits,
    Machine,
    Loader(String),
    Script,
}

impl Obstacle {
    /// The rest of a sentence that begins with the program's name.
    pub fn text(&self) -> String {
        match self {
            Self::Static => {
                "is statically linked: its calls do not go through a shared libc".into()
            }
            Self::Go => {
                "is a Go program: it makes its system calls itself (and waits with epoll)".into()
            }
            Self::SetId => {
                "is set-user-id or set-group-id: the loader preloads nothing into it".into()
            }
            Self::Capabilities => {
                "has file capabilities: the loader preloads nothing into it".into()
            }
            Self::Bits => "is a 32-bit program, and libdebox-select.so has 64".into(),
            Self::Machine => "is a program for another machine".into(),
            Self::Loader(name) => {
                format!("is loaded by {name}, not by the GNU C library's loader")
            }
            Self::Script => {
                "is neither an ELF program nor a script that names its interpreter".into()
            }
        }
    }
}

/// The program that really runs: a script's interpreter. None: the file cannot be read.
pub fn running(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_owned();
    // The kernel follows interpreters of interpreters up to five deep.
    for _ in 0..5 {
        let bytes = read_start(&path)?;
        let Some((interpreter, argument)) = debox_command::interpreter(&bytes) else {
            return Some(path);
        };
        // `#!/usr/bin/env python3`
        let is_env = interpreter.file_name() == Some("env".as_ref());
        path = match argument.filter(|word| is_env && !word.as_bytes().starts_with(b"-")) {
            Some(argument) => debox_command::find(argument).ok()?,
            None => interpreter,
        };
    }
    None
}

/// Places in a program's own code where it makes system calls that a preloaded
/// library cannot see. What is found is there; more may be, in its libraries or
/// where the number comes from elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnCalls {
    /// poll, ppoll, select, pselect6.
    pub waits: usize,
    /// io_uring_setup and io_uring_enter, or liburing.
    pub uring: bool,
}

impl OwnCalls {
    /// The rest of sentences that begin with the program's name.
    pub fn texts(self) -> Vec<String> {
        let mut texts = Vec::new();
        if self.waits > 0 {
            let places = if self.waits == 1 { "place" } else { "places" };
            texts.push(format!(
                "has {} {places} in its code that make poll or select system calls without libc: \
                 those stay the kernel's",
                self.waits
            ));
        }
        if self.uring {
            texts.push("uses io_uring: what it waits for there stays the kernel's".into());
        }
        texts
    }
}

/// Looks for them in the file of a dynamic x86-64 program.
pub fn own_calls(path: &Path) -> OwnCalls {
    let Ok(data) = std::fs::read(path) else {
        return OwnCalls::default();
    };
    own_calls_in(&data).unwrap_or_default()
}

fn own_calls_in(data: &[u8]) -> Option<OwnCalls> {
    let header = elf::FileHeader64::<object::Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    if header.e_machine(endian) != elf::EM_X86_64 {
        return None;
    }
    let mut found = OwnCalls::default();
    for segment in header.program_headers(endian, data).ok()? {
        if segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian) & elf::PF_X != 0 {
            for number in system_calls(segment.data(endian, data).ok()?) {
                match number {
                    7 | 23 | 270 | 271 => found.waits += 1,
                    425 | 426 => found.uring = true,
                    _ => {}
                }
            }
        }
    }
    let sections = header.sections(endian, data).ok()?;
    if let Some((dynamic, strings)) = sections.dynamic(endian, data).ok()? {
        let strings = sections.strings(endian, data, strings).ok()?;
        for entry in dynamic {
            if entry.d_tag.get(endian) == u64::from(elf::DT_NEEDED) {
                let name = strings.get(entry.d_val.get(endian) as u32).unwrap_or(b"");
                found.uring |= name.starts_with(b"liburing");
            }
        }
    }
    Some(found)
}

/// The numbers of the system calls in x86-64 code, where they are loaded within
/// the 32 bytes before: `mov eax, imm32` or `mov rax, imm32`, then `syscall`.
fn system_calls(code: &[u8]) -> impl Iterator<Item = u32> + '_ {
    memchr::memmem::find_iter(code, b"\x0f\x05").filter_map(|at| {
        let before = &code[at.saturating_sub(32)..at];
        (0..before.len().checked_sub(4)?).rev().find_map(|i| {
            let number = match before[i..] {
                [0xb8, a, b, c, d, ..] => [a, b, c, d],
                [0x48, 0xc7, 0xc0, a, b, c, d, ..] => [a, b, c, d],
                _ => return None,
            };
            let number = u32::from_le_bytes(number);
            // No instruction, but bytes that look like one.
            (number < 1024).then_some(number)
        })
    })
}

fn read_start(path: &Path) -> Option<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .ok()?
        .take(4096)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

/// What keeps the library out of a program. None: nothing does, or the file
/// cannot be read.
pub fn obstacle(path: &Path) -> Option<Obstacle> {
    let meta = std::fs::metadata(path).ok()?;
    // SAFETY: these only return numbers.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    if (meta.mode() & libc::S_ISUID != 0 && meta.uid() != uid)
        || (meta.mode() & libc::S_ISGID != 0 && meta.gid() != gid)
    {
        return Some(Obstacle::SetId);
    }
    if uid != 0 && has_capabilities(path) {
        return Some(Obstacle::Capabilities);
    }
    let data = std::fs::read(path).ok()?;
    if !data.starts_with(b"\x7fELF") {
        return Some(Obstacle::Script);
    }
    if data.get(4) == Some(&elf::ELFCLASS32) {
        return Some(Obstacle::Bits);
    }
    let data = &*data;
    let header = elf::FileHeader64::<object::Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    if header.e_machine(endian) != native_machine() {
        return Some(Obstacle::Machine);
    }
    if is_go(header, endian, data) {
        return Some(Obstacle::Go);
    }
    let loader = header
        .program_headers(endian, data)
        .ok()?
        .iter()
        .find_map(|p| p.interpreter(endian, data).ok().flatten());
    match loader {
        None => Some(Obstacle::Static),
        Some(name) => {
            let name = String::from_utf8_lossy(name).into_owned();
            let gnu = Path::new(&name)
                .file_name()
                .is_some_and(|n| n.as_bytes().starts_with(b"ld-linux"));
            (!gnu).then_some(Obstacle::Loader(name))
        }
    }
}

fn native_machine() -> u16 {
    if cfg!(target_arch = "aarch64") {
        elf::EM_AARCH64
    } else {
        elf::EM_X86_64
    }
}

fn is_go(
    header: &elf::FileHeader64<object::Endianness>,
    endian: object::Endianness,
    data: &[u8],
) -> bool {
    header.sections(endian, data).is_ok_and(|sections| {
        sections.section_by_name(endian, b".go.buildinfo").is_some()
            || sections
                .section_by_name(endian, b".note.go.buildid")
                .is_some()
    })
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: NUL-terminated names; a size of 0 asks for the size only.
    unsafe {
        libc::getxattr(
            path.as_ptr(),
            c"security.capability".as_ptr(),
            std::ptr::null_mut(),
            0,
        ) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_before_their_instruction() {
        let numbers = |code: &[u8]| system_calls(code).collect::<Vec<_>>();
        // mov eax, 7; xor edx, edx; syscall
        assert_eq!(numbers(&[0xb8, 7, 0, 0, 0, 0x31, 0xd2, 0x0f, 0x05]), [7]);
        // mov rax, 271; syscall
        assert_eq!(numbers(&[0x48, 0xc7, 0xc0, 15, 1, 0, 0, 0x0f, 0x05]), [271]);
        // The nearest before counts.
        assert_eq!(
            numbers(&[0xb8, 7, 0, 0, 0, 0xb8, 1, 0, 0, 0, 0x0f, 0x05]),
            [1]
        );
        // None, too far away, or no instruction at all.
        assert!(numbers(&[0x0f, 0x05]).is_empty());
        let mut far = vec![0xb8, 7, 0, 0, 0];
        far.resize(40, 0x90);
        far.extend([0x0f, 0x05]);
        assert!(numbers(&far).is_empty());
        assert!(numbers(&[0xb8, 7, 0, 0, 9, 0x0f, 0x05]).is_empty());
    }

    #[test]
    fn files_that_are_no_programs_have_none() {
        assert_eq!(own_calls_in(b""), None);
        assert_eq!(own_calls_in(b"\x7fELF"), None);
        assert_eq!(own_calls_in(&[0x7f; 4096]), None);
        assert_eq!(own_calls(Path::new("/nonexistent")), OwnCalls::default());
    }
}
