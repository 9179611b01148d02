// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the user's own rules say of the labels in a report?
//!
//! Rules that name places are the broker's matter; what its labels mean is
//! looked up here, in the files of whoever runs the command, and stands in the
//! report, so that it is known wherever that is read.

use debox_labels::{Rules, RulesError};
use debox_report::{LabelMeaning, Report};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

static OWN: OnceLock<Rules> = OnceLock::new();

/// Reads --labels, the user's and the system's file. `needed`: nothing can be done
/// without them, since a private broker reads the same.
pub fn read(extra: Option<&Path>, needed: bool) -> Result<(), RulesError> {
    let extra: Vec<_> = extra.map(Path::to_path_buf).into_iter().collect();
    let rules = match Rules::load(&extra) {
        Err(error) if needed => return Err(error),
        Err(error) => {
            crate::say(&format!("without the meaning of own labels: {error}"));
            Rules::builtin()
        }
        Ok(rules) => rules,
    };
    OWN.get_or_init(|| rules);
    Ok(())
}

/// What the files say of this report's labels, beyond the shipped rules.
pub fn of(report: &Report) -> Vec<LabelMeaning> {
    let labels: BTreeSet<&str> = report.blocking.iter().map(|b| b.label.as_str()).collect();
    labels
        .into_iter()
        .filter_map(|label| {
            let meaning = OWN.get()?.meanings().get(label)?;
            let own = Rules::builtin_meanings().get(label) != Some(meaning);
            own.then(|| LabelMeaning {
                label: label.to_owned(),
                meaning: meaning.clone(),
            })
        })
        .collect()
}

/// Places of programs that are known to be a rest, or none, are believed.
pub fn rests_refine(report: &mut Report) {
    if let Some(rules) = OWN.get() {
        debox_report::rests_refine(report, rules.places());
    }
}
