// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which file does a command name stand for?
//!
//! Resolved before anything else, as a shell does it, so that the command's
//! account holds one execve and not one for each directory in PATH.

use crate::error::Error;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A command made ready for execve.
pub struct Program {
    pub(crate) path: CString,
    pub(crate) argv: Vec<CString>,
}

impl Program {
    pub fn resolve(words: &[OsString]) -> Result<Self, Error> {
        let name = words.first().ok_or_else(|| Error::NotFound {
            command: "''".into(),
        })?;
        let path = find(name)?;
        let c_string = |bytes: &[u8]| {
            CString::new(bytes).map_err(|_| Error::Nul {
                what: "an argument".into(),
            })
        };
        Ok(Self {
            path: c_string(path.as_os_str().as_bytes())?,
            argv: words
                .iter()
                .map(|w| c_string(w.as_bytes()))
                .collect::<Result<_, _>>()?,
        })
    }

    /// The file that is executed.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.path.to_bytes()))
    }

    /// As the user wrote it.
    pub fn name(&self) -> String {
        self.argv[0].to_string_lossy().into_owned()
    }

    /// What execve said about it.
    pub(crate) fn not_executable(&self, source: io::Error) -> Error {
        Error::NotExecutable {
            command: self.name(),
            source: match source.raw_os_error() {
                // The file itself was found.
                Some(libc::ENOENT) => io::Error::other("its interpreter does not exist"),
                _ => source,
            },
        }
    }
}

fn executable(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path)?.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    let c = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a NUL-terminated path.
    if unsafe { libc::faccessat(libc::AT_FDCWD, c.as_ptr(), libc::X_OK, libc::AT_EACCESS) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The file behind a command name.
pub fn find(name: &OsStr) -> Result<PathBuf, Error> {
    let shown = name.to_string_lossy().into_owned();
    let failed = |source: io::Error| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => Error::NotFound {
            command: shown.clone(),
        },
        _ => Error::NotExecutable {
            command: shown.clone(),
            source,
        },
    };
    if name.is_empty() {
        return Err(Error::NotFound {
            command: "''".into(),
        });
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return executable(&path).map(|()| path).map_err(failed);
    }
    // Without PATH, what execvp takes.
    let path =
        std::env::var_os("PATH").unwrap_or_else(|| OsString::from_vec(b"/bin:/usr/bin".to_vec()));
    let mut refused = None;
    for directory in std::env::split_paths(&path) {
        let directory = if directory.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            directory
        };
        let candidate = directory.join(name);
        match executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(e) if e.raw_os_error() == Some(libc::EACCES) => refused = Some(e),
            Err(_) => {}
        }
    }
    Err(match refused {
        Some(source) => failed(source),
        None => Error::NotFound { command: shown },
    })
}

/// What `#!` at the head of a script names, and its argument.
pub fn interpreter(head: &[u8]) -> Option<(PathBuf, Option<&OsStr>)> {
    let line = head.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let mut words = line
        .split(|b| b.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    Some((words.next()?.into(), words.next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(name: &str) -> i32 {
        match Program::resolve(&[name.into()]) {
            Ok(_) => 0,
            Err(e) => e.exit_status(),
        }
    }

    #[test]
    fn names_resolve_as_a_shell_does() {
        assert_eq!(status("sh"), 0);
        assert_eq!(status("/bin/sh"), 0);
        assert_eq!(status("no-such-command-here"), 127);
        assert_eq!(status("/no/such/file"), 127);
        assert_eq!(status("/etc/passwd/x"), 127);
        assert_eq!(status("/etc/passwd"), 126);
        assert_eq!(status("/etc"), 126);
        assert_eq!(status(""), 127);
    }

    #[test]
    fn interpreters() {
        let named = |head: &'static [u8]| {
            interpreter(head).map(|(path, word)| (path, word.map(OsStr::len)))
        };
        assert_eq!(
            named(b"#! /bin/sh -e\nx"),
            Some(("/bin/sh".into(), Some(2)))
        );
        assert_eq!(named(b"#!/bin/sh\n"), Some(("/bin/sh".into(), None)));
        assert_eq!(named(b"\x7fELF"), None);
    }
}
