// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is wrong with an expression, where, and what would be right?

use unicode_width::UnicodeWidthStr;

/// A mistake and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ExpressionError {
    /// Byte offset in the expression; its length for what is missing at the end.
    pub at: usize,
    /// Bytes; 0 for what is missing.
    pub length: usize,
    pub text: String,
    /// What to write instead, where that can be said; else empty.
    pub help: String,
}

impl ExpressionError {
    /// For people, in three or four lines: the mistake, the expression, a caret
    /// under the mistake, and the help.
    pub fn render(&self, expression: &str) -> String {
        let mut text = format!("{self}\n{}", underline(expression, self.at, self.length));
        if !self.help.is_empty() {
            text.push(' ');
            text.push_str(&self.help);
        }
        text
    }
}

/// How much of a long expression is shown before and after the mistake.
const CONTEXT: usize = 60;

/// The expression, and below it a caret at byte `at` and a line for `length`
/// bytes; both indented by two. Long expressions are cut around it.
pub fn underline(expression: &str, at: usize, length: usize) -> String {
    let whole = |mut at: usize| {
        at = at.min(expression.len());
        while !expression.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let at = whole(at);
    let end = whole(at + length).max(at);
    let from = whole(at.saturating_sub(CONTEXT));
    let to = whole((end.max(at) + CONTEXT).min(expression.len()));
    let end = end.min(to);
    // One column for each character that a terminal would make something of.
    let shown = |text: &str| -> String {
        text.chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect()
    };
    let before = format!(
        "{}{}",
        if from > 0 { "..." } else { "" },
        shown(&expression[from..at])
    );
    let marked = shown(&expression[at..end]);
    let after = format!(
        "{}{}",
        shown(&expression[end..to]),
        if to < expression.len() { "..." } else { "" }
    );
    let tail = marked.width().saturating_sub(1);
    format!(
        "  {before}{marked}{after}\n  {}^{}",
        " ".repeat(before.width()),
        "~".repeat(tail)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caret_stands_under_the_mistake() {
        assert_eq!(underline("call == x", 8, 1), "  call == x\n          ^");
        assert_eq!(underline("wall >", 6, 0), "  wall >\n        ^");
        assert_eq!(underline("blokced", 0, 7), "  blokced\n  ^~~~~~~");
        assert_eq!(
            underline("comm == '日本' x", 17, 1),
            "  comm == '日本' x\n                 ^"
        );
        assert_eq!(underline("a\n\tb", 3, 1), "  a  b\n     ^");
        // Offsets that fit no character do no harm.
        underline("日", 1, 1);
        underline("", 7, 9);
        let long = "wall > 1ms && ".repeat(40);
        let shown = underline(&long, 300, 4);
        assert!(shown.lines().all(|line| line.width() < 140), "{shown}");
        let mut lines = shown.lines();
        let column = lines.next_back().unwrap().find('^').unwrap();
        let first = lines.next().unwrap();
        assert_eq!(&first[column..column + 4], &long[300..304]);
    }
}
