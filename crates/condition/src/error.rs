// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is wrong with an expression, where, and what would be right?
//!
//! The texts stand in tests/condition/table.txt and are libdebox's, too.

use crate::{DEPTH_MAX, EXPRESSION_MAX};
use unicode_width::UnicodeWidthStr;

/// A mistake and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{mistake}")]
pub struct ExpressionError {
    /// Byte offset in the expression; its length for what is missing at the end.
    pub at: usize,
    /// Bytes; 0 for what is missing.
    pub length: usize,
    #[source]
    pub mistake: Mistake,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    #[error("the expression is empty")]
    Empty,
    #[error("the expression is longer than {EXPRESSION_MAX} bytes")]
    TooLong,
    #[error("'{0}' has no meaning here")]
    Character(char),
    #[error("'{found}' alone means nothing")]
    Half {
        found: &'static str,
        meant: &'static str,
    },
    #[error("this string has no end")]
    OpenString,
    #[error("a test is expected here")]
    TestExpected,
    #[error("a test begins with a field")]
    FieldFirst,
    #[error("there is no field '{name}'")]
    UnknownField {
        name: String,
        near: Option<&'static str>,
    },
    #[error("say what to compare '{field}' with")]
    NoOperator {
        field: &'static str,
        example: &'static str,
    },
    #[error("'{operator}' does not apply to '{field}'")]
    WrongOperator {
        operator: &'static str,
        field: &'static str,
        ordered: bool,
    },
    #[error("'in' takes a list in braces")]
    BraceExpected,
    #[error("',' or '}}' is expected here")]
    CommaExpected,
    #[error("a value is expected here")]
    ValueExpected { example: &'static str },
    #[error("'&&' or '||' is expected here")]
    ConnectiveExpected,
    #[error("a ')' is missing")]
    CloseMissing { open: usize },
    #[error("this ')' closes nothing")]
    CloseExtra,
    #[error("more than {DEPTH_MAX} parentheses and '!' inside each other")]
    TooDeep,
    #[error("'{text}' is no time")]
    NotATime { text: String },
    #[error("a time needs a unit")]
    UnitMissing { text: String },
    #[error("there is no unit '{unit}'")]
    UnknownUnit { unit: String },
    #[error("a time is a whole number of nanoseconds")]
    TimeTooFine,
    #[error("this number is too large")]
    TooLarge,
    #[error("'{text}' is no number")]
    NotANumber { text: String, example: &'static str },
    #[error("there is no system call '{name}'")]
    UnknownCall { name: String, near: Option<String> },
    #[error("there is no group of calls '{name}'")]
    UnknownGroup {
        name: String,
        near: Option<String>,
        groups: String,
    },
    #[error("no system call's name is like '{pattern}'")]
    NoCallLike { pattern: String },
    #[error("there is no error '{name}'")]
    UnknownErrno { name: String, near: Option<String> },
    #[error("'*' and '?' stand for other characters only after =~")]
    PatternWithoutMatch,
    #[error("a command name has at most 15 bytes")]
    CommTooLong { cut: String },
    #[error("a label has at most 23 bytes")]
    LabelTooLong,
    #[error("an empty name fits nothing")]
    EmptyName,
}

fn meant(near: Option<&str>) -> Option<String> {
    near.map(|near| format!("did you mean {near}?"))
}

impl Mistake {
    /// What to write instead, where that can be said.
    pub fn help(&self) -> Option<String> {
        let text = match self {
            Mistake::Empty | Mistake::TestExpected => "a test is, for example, wall > 1ms",
            Mistake::Half { meant, .. } => return Some(format!("write {meant}")),
            Mistake::OpenString => "close it with the quote that it begins with",
            Mistake::FieldFirst => "write wall > 1ms, not 1ms < wall",
            Mistake::UnknownField { near: None, .. } => {
                "there are wall, cpu, blocked, runq, call, label, function, errno, retval, faults, \
                 minflt, majflt, sleeps, preemptions, waiters, pid, tid, comm, caller"
            }
            Mistake::UnknownField { near, .. } => return meant(*near),
            Mistake::NoOperator { example, .. }
            | Mistake::ValueExpected { example }
            | Mistake::NotANumber { example, .. } => {
                return Some(format!("for example {example}"));
            }
            Mistake::WrongOperator { ordered: true, .. } => "it takes ==, !=, <, <=, >, >= and in",
            Mistake::WrongOperator { ordered: false, .. } => "it takes ==, !=, =~, !~ and in",
            Mistake::BraceExpected => "for example call in {read, write}",
            Mistake::CloseMissing { open } => {
                return Some(format!("for the '(' in column {}", open + 1));
            }
            Mistake::NotATime { .. } => "for example 5ms, 200us or 1.5s",
            Mistake::UnitMissing { text } => return Some(format!("did you mean {text}ms?")),
            Mistake::UnknownUnit { .. } => "there are ns, us, ms and s",
            Mistake::UnknownGroup {
                near: None, groups, ..
            } => return Some(format!("there are {groups}")),
            Mistake::UnknownCall { near, .. }
            | Mistake::UnknownGroup { near, .. }
            | Mistake::UnknownErrno { near, .. } => return meant(near.as_deref()),
            Mistake::PatternWithoutMatch => "write =~ instead of == and in, !~ instead of !=",
            Mistake::CommTooLong { cut } => {
                return Some(format!("the kernel cuts it to {cut}"));
            }
            _ => return None,
        };
        Some(text.to_owned())
    }
}

impl ExpressionError {
    /// For people, in three or four lines: the mistake, the expression, a caret
    /// under the mistake, and the help.
    pub fn render(&self, expression: &str) -> String {
        let mut text = format!("{self}\n{}", underline(expression, self.at, self.length));
        if let Some(help) = self.mistake.help() {
            text.push(' ');
            text.push_str(&help);
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
