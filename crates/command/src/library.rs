// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where is what is put into commands?

use crate::error::Error;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub struct Library {
    pub name: &'static str,
    /// Names the file, when it is elsewhere.
    pub variable: &'static str,
}

impl Library {
    /// What splice capture puts beside a program.
    pub const SPLICE: Self = Self {
        name: "debox-splice.bin",
        variable: "DEBOX_SPLICE_RUNTIME",
    };
    /// What `run --capture=wrap` puts between a program and libc.
    pub const WRAP: Self = Self {
        name: "libdebox-wrap.so",
        variable: "DEBOX_WRAP_LIBRARY",
    };

    /// Named in the environment; beside this executable (a build directory); in
    /// the library directory beside its bin directory (an installation).
    fn candidates(&self) -> Vec<PathBuf> {
        if let Some(path) = std::env::var_os(self.variable).filter(|p| !p.is_empty()) {
            return vec![path.into()];
        }
        let mut list = Vec::new();
        if let Some(directory) = std::env::current_exe()
            .ok()
            .as_deref()
            .and_then(Path::parent)
        {
            list.push(directory.join(self.name));
            if let Some(prefix) = directory.parent() {
                for lib in [
                    "lib/debox",
                    "lib64/debox",
                    "lib/x86_64-linux-gnu/debox",
                    "lib",
                    "lib64",
                    "lib/x86_64-linux-gnu",
                ] {
                    list.push(prefix.join(lib).join(self.name));
                }
            }
        }
        list
    }

    pub fn find(&self) -> Result<PathBuf, Error> {
        let list = self.candidates();
        let Some(found) = list.iter().find(|path| path.is_file()) else {
            let places: Vec<String> = list.iter().map(|p| p.display().to_string()).collect();
            return Err(Error::NoLibrary {
                name: self.name,
                variable: self.variable,
                places: places.join(", "),
            });
        };
        let path = std::fs::canonicalize(found).map_err(Error::system("finding a library"))?;
        // The loader splits LD_PRELOAD at both, and there is no quoting.
        let bytes = path.as_os_str().as_bytes();
        if bytes.iter().any(|b| matches!(b, b':' | b' ')) {
            return Err(Error::Unpreloadable {
                path,
                variable: self.variable,
            });
        }
        Ok(path)
    }
}
