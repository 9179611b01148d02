// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a label mean for somebody who wants less waiting?

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::rules::{Rule, Rules};

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
    /// Of the labels that come with DeBox.
    pub fn builtin() -> &'static Meanings {
        static BUILTIN: OnceLock<Meanings> = OnceLock::new();
        BUILTIN.get_or_init(|| Rules::builtin().meanings().clone())
    }

    pub fn get(&self, label: &str) -> Option<&Meaning> {
        self.0.get(label)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Meaning)> {
        self.0
            .iter()
            .map(|(label, meaning)| (label.as_str(), meaning))
    }

    /// What this rule says of its label, if it does; the first that says
    /// something is believed.
    pub(crate) fn add(&mut self, rule: &Rule, advice: &BTreeMap<String, String>) {
        let (Some(what), false) = (&rule.what, self.0.contains_key(&rule.label)) else {
            return;
        };
        let written = rule.advice.clone().unwrap_or_default();
        let meaning = Meaning {
            group: rule.group.clone().unwrap_or_else(|| rule.label.clone()),
            kind: rule.kind.unwrap_or_default(),
            what: what.clone(),
            advice: advice.get(&written).cloned().unwrap_or(written),
        };
        self.0.insert(rule.label.clone(), meaning);
    }
}

impl FromIterator<(String, Meaning)> for Meanings {
    fn from_iter<T: IntoIterator<Item = (String, Meaning)>>(list: T) -> Self {
        Meanings(list.into_iter().collect())
    }
}
