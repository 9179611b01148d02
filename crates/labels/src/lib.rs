// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a thread wait for, if its kernel stack looks so, and what does that
//! mean for somebody who wants less waiting?
//!
//! The answers are data: labels/linux.toml, and labels/idle.toml of places in
//! programs; their heads describe the form. A user's own files go before it.

mod meaning;
mod rules;
mod table;

pub use meaning::{Kind, Meaning, Meanings};
pub use rules::{LABEL_LEN_MAX, Place, Rule, Rules, RulesError, glob, plain, sleeper};
pub use table::{FunctionSet, LABEL_RULES_MAX, LabelTable, RuleSet, UNKNOWN_SET};
