// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may label rules, and the names in a stack, do? Rules, a NUL, a stack
//! with one function a line.

use debox_labels::{LABEL_LEN_MAX, Rules};

pub fn check(data: &[u8]) {
    let mut parts = data.splitn(2, |b| *b == 0);
    let (rules, stack) = (parts.next().unwrap_or(&[]), parts.next().unwrap_or(&[]));
    let stack = String::from_utf8_lossy(stack);
    let stack: Vec<&str> = stack.lines().collect();
    if let Ok(text) = std::str::from_utf8(rules) {
        match Rules::parse("f.toml", text) {
            Ok(rules) => stack_check(&rules, &stack),
            Err(error) => assert!(error.to_string().contains("f.toml")),
        }
    }
    thread_local! {
        static BUILTIN: Rules = Rules::builtin();
    }
    BUILTIN.with(|rules| stack_check(rules, &stack));
}

fn stack_check(rules: &Rules, stack: &[&str]) {
    if let Some(frame) = rules.site_frame(stack) {
        assert!(frame < stack.len());
    }
    if let Some(rule) = rules.label(stack) {
        assert!(!rule.label.is_empty() && rule.label.len() <= LABEL_LEN_MAX);
    }
}
