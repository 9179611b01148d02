// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where is libdebox-wrap.so?

use crate::error::Error;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub const NAME: &str = "libdebox-wrap.so";
pub const ENV: &str = "DEBOX_WRAP_LIBRARY";

/// Named in the environment; beside this executable (a build directory); in
/// the library directory beside its bin directory (an installation).
pub fn candidates() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os(ENV).filter(|p| !p.is_empty()) {
        return vec![path.into()];
    }
    let mut list = Vec::new();
    if let Some(directory) = std::env::current_exe()
        .ok()
        .as_deref()
        .and_then(Path::parent)
    {
        list.push(directory.join(NAME));
        if let Some(prefix) = directory.parent() {
            for lib in [
                "lib/debox",
                "lib64/debox",
                "lib/x86_64-linux-gnu/debox",
                "lib",
                "lib64",
                "lib/x86_64-linux-gnu",
            ] {
                list.push(prefix.join(lib).join(NAME));
            }
        }
    }
    list
}

pub fn find() -> Result<PathBuf, Error> {
    let list = candidates();
    let Some(found) = list.iter().find(|path| path.is_file()) else {
        let places: Vec<String> = list.iter().map(|p| p.display().to_string()).collect();
        return Err(Error::Usage(format!(
            "--wrap needs {NAME}, which is in none of: {}. Install it, or name it in ${ENV}",
            places.join(", ")
        )));
    };
    let path = std::fs::canonicalize(found).map_err(Error::system("finding libdebox-wrap.so"))?;
    // The loader splits LD_PRELOAD at both, and there is no quoting.
    if path
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|b| matches!(b, b':' | b' '))
    {
        return Err(Error::Usage(format!(
            "{} cannot be preloaded: its path holds a colon or a space. Copy it elsewhere and name it in ${ENV}",
            path.display()
        )));
    }
    Ok(path)
}
