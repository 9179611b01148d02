// SPDX-License-Identifier: MIT OR Apache-2.0
//! Under which numbers do clients and the kernel side speak of labels, and who
//! waits for them?

use crate::shared_file::SharedFile;
use debox_abi::DEBOX_LABEL_NONE;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;

#[derive(Default)]
pub(crate) struct LabelBook {
    /// Label n + 1.
    names: Vec<String>,
    numbers: HashMap<String, u8>,
    /// A line each.
    file: Option<SharedFile>,
    /// Labels that the kernel side and the names did not agree about.
    pub mismatches: u64,
    /// The kernel side gives labels.
    pub installed: bool,
    /// Connections that asked before it did.
    pub waiting: Vec<u64>,
}

impl LabelBook {
    /// The number of each of these labels; 0 for those that find none.
    ///
    /// # Errors
    /// When their names cannot be shown to clients.
    pub fn number(&mut self, labels: &[String]) -> Result<Vec<u8>, Errno> {
        let before = self.names.len();
        for label in labels {
            let next = self.names.len() + 1;
            if next < DEBOX_LABEL_NONE as usize && !self.numbers.contains_key(label) {
                self.numbers.insert(label.clone(), next as u8);
                self.names.push(label.clone());
            }
        }
        let lines: String = (self.names[before..].iter())
            .map(|name| format!("{name}\n"))
            .collect();
        if self.file.is_none() {
            self.file = Some(SharedFile::new("debox-labels")?);
        }
        let file = self.file.as_mut().ok_or(Errno::NOENT)?;
        file.append(lines.as_bytes())?;
        let number = |label| self.numbers.get(label).copied().unwrap_or_default();
        Ok(labels.iter().map(number).collect())
    }

    /// For a client to read.
    pub fn file(&self) -> Result<OwnedFd, Errno> {
        self.file.as_ref().ok_or(Errno::NOENT)?.for_reading()
    }

    /// The kernel side has given this number to a place that is now named; `label`
    /// None: no rule fits.
    pub fn compare(&mut self, number: u8, label: Option<&str>) {
        if number == 0 {
            return;
        }
        let given = match u32::from(number) {
            DEBOX_LABEL_NONE => None,
            _ => self.names.get(usize::from(number) - 1).map(String::as_str),
        };
        if given != label {
            self.mismatches += 1;
            tracing::warn!(given, label, "the kernel side gave a place another label");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_their_numbers() {
        let labels = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        let mut book = LabelBook::default();
        assert_eq!(book.number(&labels("a b a c")).unwrap(), [1, 2, 1, 3]);
        assert_eq!(book.number(&labels("c d")).unwrap(), [3, 4]);
        book.compare(4, Some("d"));
        book.compare(255, None);
        book.compare(0, Some("anything"));
        assert_eq!(book.mismatches, 0);
        book.compare(4, Some("a"));
        book.compare(255, Some("a"));
        book.compare(1, None);
        assert_eq!(book.mismatches, 3);
        let many: Vec<String> = (0..400).map(|n| format!("x{n}")).collect();
        let numbers = book.number(&many).unwrap();
        assert!(numbers.iter().all(|n| u32::from(*n) != DEBOX_LABEL_NONE));
        assert_eq!(numbers[399], 0);
    }
}
