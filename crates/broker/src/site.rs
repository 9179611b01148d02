// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a new stack become the text of a site, and which sites are one?

use crate::shared::{Shared, SharedError};
use crate::shared_file::SharedFile;
use debox_abi::{
    DEBOX_FILE_LEN, DEBOX_LABEL_LEN, DEBOX_SITE_FLAG_GRACE_PERIOD, DEBOX_SITE_FLAG_UNLABELLED,
    DEBOX_SITES_MAX, debox_site,
};
use debox_labels::LabelTable;
use debox_symbol::Site;
use rustix::io::Errno;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::OwnedFd;

/// Turns kernel return addresses into text.
pub trait SiteResolver {
    fn resolve(&mut self, frames: &[u64]) -> Site;
    /// The function that begins there.
    fn function(&mut self, address: u64) -> Option<String>;
    /// What the kernel side needs to give labels itself; None: it cannot.
    fn label_table(&mut self) -> Option<LabelTable>;
    /// Rises when the table would be another one.
    fn symbols_serial(&self) -> u64;
    /// Reads symbols and rules anew (a module was loaded, a rule was edited).
    fn reload(&mut self) -> Result<(), String>;
}

type Place = (String, String, String, u32);

/// Which place was published first under which number.
pub(crate) struct SiteBook {
    first: HashMap<Place, u32>,
    published: HashSet<u32>,
    /// Of those that have one: the group of its label.
    groups: HashMap<u32, String>,
    refused: u64,
    /// Functions of a site, innermost first. Chains that were merged into one
    /// site keep what they have in common.
    frames: BTreeMap<u32, Vec<String>>,
    stacks: SharedFile,
}

impl SiteBook {
    pub fn new() -> Result<Self, SharedError> {
        Ok(Self {
            first: HashMap::new(),
            published: HashSet::new(),
            groups: HashMap::new(),
            refused: 0,
            frames: BTreeMap::new(),
            stacks: SharedFile::new("debox-stacks").map_err(|source| SharedError::Memory {
                step: "create a file in",
                source,
            })?,
        })
    }

    /// Publishes a site; returns the number under which its place was published
    /// first, None if the number cannot be published.
    pub fn publish(&mut self, shared: &Shared, id: u32, text: Site) -> Option<u32> {
        if id as usize >= DEBOX_SITES_MAX || !self.published.insert(id) {
            // A published entry must never change under its readers.
            self.refused += 1;
            tracing::warn!(
                site = id,
                refused = self.refused,
                "the kernel side sent a site number that is out of range or already taken"
            );
            return None;
        }
        let text = Site {
            label: withhold_addresses(text.label),
            function: withhold_addresses(text.function),
            file: text.file,
            ..text
        };
        if !text.group.is_empty() {
            self.groups.insert(id, text.group.clone());
        }
        let place = (
            text.label.clone(),
            text.function.clone(),
            text.file.clone(),
            text.line,
        );
        let merged = *self.first.entry(place).or_insert(id);
        self.frames_note(merged, &text.frames);
        let mut entry = debox_site::new(
            head(&text.label, DEBOX_LABEL_LEN - 1),
            &text.function,
            tail(&text.file, DEBOX_FILE_LEN - 1),
            text.line,
            text.offset,
        );
        entry.merged = merged;
        if !text.labelled {
            entry.flags |= DEBOX_SITE_FLAG_UNLABELLED;
        }
        if text.grace_period {
            entry.flags |= DEBOX_SITE_FLAG_GRACE_PERIOD;
        }
        shared.site_publish(id, &entry);
        Some(merged)
    }

    /// Of the label of a site; None: it has no name yet, or no rule knows its kind.
    pub fn group(&self, id: u32) -> Option<&str> {
        self.groups.get(&id).map(String::as_str)
    }

    fn frames_note(&mut self, site: u32, frames: &[String]) {
        let frames = frames.iter().cloned().map(withhold_addresses);
        let changed = match self.frames.entry(site) {
            Entry::Vacant(place) => place.insert(frames.collect()),
            Entry::Occupied(place) => {
                let known = place.into_mut();
                let common = known
                    .iter()
                    .zip(frames)
                    .take_while(|(a, b)| *a == b)
                    .count();
                if common == known.len() {
                    return;
                }
                known.truncate(common);
                known
            }
        };
        let names: Vec<&str> = changed.iter().rev().map(String::as_str).collect();
        let line = format!("{site}\t{}\n", names.join(";"));
        if let Err(error) = self.stacks.append(line.as_bytes()) {
            tracing::warn!(%error, line, "the functions of a site are lost");
        }
    }

    /// `SITE TAB FUNCTION;FUNCTION;...`, outermost first; of several lines of a
    /// site the last holds.
    pub fn stacks(&self) -> Result<OwnedFd, Errno> {
        self.stacks.for_reading()
    }
}

/// A resolver that knows no name may fall back to the number. The layout of
/// the kernel's memory is a secret, so the number stays here.
pub(crate) fn withhold_addresses(text: String) -> String {
    let looks_like_address = text
        .split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| {
            let digits = word
                .strip_prefix("0x")
                .or_else(|| word.strip_prefix("0X"))
                .unwrap_or(word);
            digits.len() >= 12 && digits.bytes().all(|b| b.is_ascii_hexdigit())
        });
    if looks_like_address || text.is_empty() {
        "[unknown]".to_owned()
    } else {
        text
    }
}

fn head(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The end of a path says more than its beginning.
fn tail(text: &str, max: usize) -> &str {
    let mut start = text.len().saturating_sub(max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_withheld_and_names_are_not() {
        for bad in [
            "0xffffffff81234567",
            "ffffffff81234567",
            "unknown+0xffffffff81234567",
            "",
        ] {
            assert_eq!(withhold_addresses(bad.to_owned()), "[unknown]", "{bad:?}");
        }
        for good in [
            "pipe_read",
            "do_futex.isra.0",
            "__x64_sys_read",
            "ext4+0x1a2",
        ] {
            assert_eq!(withhold_addresses(good.to_owned()), good);
        }
    }

    #[test]
    fn a_long_path_keeps_its_end() {
        let path = format!("{}fs/pipe.c", "é/".repeat(200));
        let short = tail(&path, DEBOX_FILE_LEN - 1);
        assert!(short.len() < DEBOX_FILE_LEN && short.ends_with("fs/pipe.c"));
    }
}
