// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a new stack become the text of a site, and which sites are one?

use crate::kernel::NewStack;
use crate::shared::Shared;
use debox_abi::{
    DEBOX_FILE_LEN, DEBOX_LABEL_LEN, DEBOX_SITE_FLAG_UNLABELLED, DEBOX_SITES_MAX, debox_site,
};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

/// What a client may know about a site: names and lines, no addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SiteText {
    pub label: String,
    pub function: String,
    pub offset: u32,
    /// Empty, and line 0, without debug information.
    pub file: String,
    pub line: u32,
    /// A rule matched; otherwise the label is the function.
    pub labelled: bool,
    /// Functions, innermost first; may be empty.
    pub frames: Vec<String>,
}

/// Turns kernel return addresses into text.
pub trait SiteResolver {
    fn resolve(&mut self, frames: &[u64]) -> SiteText;
    /// Reads symbols and rules anew (a module was loaded, a rule was edited).
    fn reload(&mut self) -> Result<(), String>;
}

type Place = (String, String, String, u32);

/// Which place was published first under which number.
#[derive(Default)]
pub(crate) struct SiteBook {
    first: HashMap<Place, u32>,
    published: HashSet<u32>,
    refused: u64,
    /// Functions of a site, innermost first. Chains that were merged into one
    /// site keep what they have in common.
    frames: BTreeMap<u32, Vec<String>>,
}

impl SiteBook {
    /// Publishes the stacks in the order of their numbers and returns the
    /// (id, merged) pairs for the kernel side.
    pub fn publish(
        &mut self,
        shared: &Shared,
        resolver: &mut dyn SiteResolver,
        mut stacks: Vec<NewStack>,
    ) -> Vec<(u32, u32)> {
        // By number, so that within a batch the lowest becomes the canonical
        // one. A number that comes later than a higher one does not take over:
        // clients may have printed the other already.
        stacks.sort_by_key(|stack| stack.id);
        let mut merged_pairs = Vec::with_capacity(stacks.len());
        for stack in stacks {
            if stack.id as usize >= DEBOX_SITES_MAX || !self.published.insert(stack.id) {
                // A published entry must never change under its readers.
                self.refused += 1;
                tracing::warn!(
                    site = stack.id,
                    refused = self.refused,
                    "the kernel side sent a site number that is out of range or already taken"
                );
                continue;
            }
            let text = resolver.resolve(&stack.frames);
            let text = SiteText {
                label: withhold_addresses(text.label),
                function: withhold_addresses(text.function),
                file: text.file,
                ..text
            };
            let place = (
                text.label.clone(),
                text.function.clone(),
                text.file.clone(),
                text.line,
            );
            let merged = *self.first.entry(place).or_insert(stack.id);
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
            shared.site_publish(stack.id, &entry);
            merged_pairs.push((stack.id, merged));
        }
        merged_pairs
    }

    fn frames_note(&mut self, site: u32, frames: &[String]) {
        let frames = frames.iter().cloned().map(withhold_addresses);
        match self.frames.entry(site) {
            Entry::Vacant(place) => {
                place.insert(frames.collect());
            }
            Entry::Occupied(mut place) => {
                let common = place
                    .get()
                    .iter()
                    .zip(frames)
                    .take_while(|(a, b)| *a == b)
                    .count();
                place.get_mut().truncate(common);
            }
        }
    }

    /// `SITE TAB FUNCTION;FUNCTION;...` for each site, outermost first.
    pub fn stacks_text(&self) -> String {
        let mut out = String::new();
        for (site, frames) in &self.frames {
            let names: Vec<&str> = frames.iter().rev().map(String::as_str).collect();
            out.push_str(&format!("{site}\t{}\n", names.join(";")));
        }
        out
    }
}

/// A resolver that knows no name may fall back to the number. The layout of
/// the kernel's memory is a secret, so the number stays here.
fn withhold_addresses(text: String) -> String {
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
