// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a label mean for somebody who wants less waiting?

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What kind of wait it is, which decides how it is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// There is nothing to do, or the program asked to sleep: no loss.
    Idle,
    /// Waits for input from another thread or program. Long waits are no
    /// loss (there was nothing to do), short ones may be.
    Input,
    /// Somebody else is in the way or too slow.
    #[default]
    Loss,
    /// Somebody who measures is in the way: it would not be there without, and is set aside.
    Tool,
}

/// What the rules say of a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meaning {
    /// Labels of one group have one cause and make one finding.
    pub group: String,
    pub kind: Kind,
    /// Completes "openat waiting for ...".
    pub what: String,
    /// What can be done; may be empty.
    #[serde(default)]
    pub advice: String,
}

/// The meanings of labels, by label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meanings(BTreeMap<String, Meaning>);

impl Meanings {
    pub fn get(&self, label: &str) -> Option<&Meaning> {
        self.0.get(label)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Meaning)> {
        self.0
            .iter()
            .map(|(label, meaning)| (label.as_str(), meaning))
    }

    /// The first that says something of a label is believed.
    pub(crate) fn add(&mut self, label: &str, meaning: impl FnOnce() -> Meaning) {
        if !self.0.contains_key(label) {
            self.0.insert(label.to_owned(), meaning());
        }
    }
}

impl FromIterator<(String, Meaning)> for Meanings {
    fn from_iter<T: IntoIterator<Item = (String, Meaning)>>(list: T) -> Self {
        Meanings(list.into_iter().collect())
    }
}
