// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is in the environment of the command: debox's own, a few variables set.

use crate::error::Error;
use std::ffi::{CStr, CString};
use std::path::Path;

pub struct Environment {
    pub(crate) strings: Vec<CString>,
}

unsafe extern "C" {
    static environ: *const *const libc::c_char;
}

impl Environment {
    /// Takes debox's environment as it is, entries without `=` included.
    pub fn inherited() -> Self {
        let mut strings = Vec::new();
        // SAFETY: a NULL-terminated array of strings; no thread of debox
        // changes the environment.
        unsafe {
            let mut entry = environ;
            while !entry.is_null() && !(*entry).is_null() {
                strings.push(CStr::from_ptr(*entry).to_owned());
                entry = entry.add(1);
            }
        }
        Self { strings }
    }

    fn prefix(name: &str) -> Vec<u8> {
        format!("{name}=").into_bytes()
    }

    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let prefix = Self::prefix(name);
        let found = self
            .strings
            .iter()
            .find(|s| s.as_bytes().starts_with(&prefix))?;
        Some(&found.as_bytes()[prefix.len()..])
    }

    pub fn remove(&mut self, name: &str) {
        let prefix = Self::prefix(name);
        self.strings.retain(|s| !s.as_bytes().starts_with(&prefix));
    }

    pub fn set(&mut self, name: &str, value: &[u8]) -> Result<(), Error> {
        let mut entry = Self::prefix(name);
        entry.extend_from_slice(value);
        let entry = CString::new(entry).map_err(|_| Error::Nul {
            what: format!("the value of {name}"),
        })?;
        self.remove(name);
        self.strings.push(entry);
        Ok(())
    }

    /// Preloads a library, before or behind what is preloaded already.
    pub fn preload(&mut self, library: &Path, before: bool) -> Result<(), Error> {
        let own = library.as_os_str().as_encoded_bytes();
        let list = match self.get("LD_PRELOAD") {
            Some(others) if !others.is_empty() && before => [own, others].join(&b':'),
            Some(others) if !others.is_empty() => [others, own].join(&b':'),
            _ => own.to_vec(),
        };
        self.set("LD_PRELOAD", &list)
    }
}
