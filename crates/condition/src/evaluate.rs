// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is a finished call one of those that an expression means?

use crate::field::{ERRNO_MAX, NUMBERS, Number, TextField};
use crate::parse::{Expression, Node, Pattern, Predicate};

/// `Unknown`: it depends on something that was not measured, or has no name
/// (yet).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Yes,
    No,
    Unknown,
}

impl Answer {
    fn of(yes: bool) -> Self {
        if yes { Answer::Yes } else { Answer::No }
    }

    fn not(self) -> Self {
        match self {
            Answer::Yes => Answer::No,
            Answer::No => Answer::Yes,
            Answer::Unknown => Answer::Unknown,
        }
    }
}

/// One place where the call slept; None: not known (yet).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteFacts<'a> {
    pub label: Option<&'a str>,
    pub function: Option<&'a str>,
}

/// What is known of one finished call.
#[derive(Clone, Debug)]
pub struct CallFacts<'a> {
    /// Account key of the system call; None: not known.
    pub key: Option<u32>,
    /// By `Number as usize`; None: not measured. `Faults` and `Errno` follow
    /// from the others and are not looked at.
    pub numbers: [Option<i64>; NUMBERS],
    pub comm: Option<&'a str>,
    pub caller: Option<&'a str>,
    pub sites: Vec<SiteFacts<'a>>,
    /// Whether `sites` names every sleep.
    pub sites_whole: bool,
}

impl Default for CallFacts<'_> {
    fn default() -> Self {
        Self {
            key: None,
            numbers: [None; NUMBERS],
            comm: None,
            caller: None,
            sites: Vec::new(),
            sites_whole: true,
        }
    }
}

impl CallFacts<'_> {
    pub fn set(&mut self, number: Number, value: u64) {
        self.numbers[number as usize] = Some(i64::try_from(value).unwrap_or(i64::MAX));
    }

    pub fn number(&self, number: Number) -> Option<i64> {
        let get = |number: Number| self.numbers[number as usize];
        match number {
            Number::Faults => Some(get(Number::Minflt)?.saturating_add(get(Number::Majflt)?)),
            Number::Errno => get(Number::Retval).map(|value| match value {
                value if (-ERRNO_MAX..0).contains(&value) => -value,
                _ => 0,
            }),
            number => get(number),
        }
    }

    fn text(&self, field: TextField, patterns: &[Pattern]) -> Answer {
        let fits = |name: &str| patterns.iter().any(|p| p.fits(field, name));
        let one = |name: Option<&str>| match name {
            Some(name) => Answer::of(fits(name)),
            None => Answer::Unknown,
        };
        let site = |site: &SiteFacts<'_>| {
            one(match field {
                TextField::Label => site.label,
                _ => site.function,
            })
        };
        match field {
            TextField::Comm => one(self.comm),
            TextField::Caller => one(self.caller),
            TextField::Label | TextField::Function => {
                let answers: Vec<Answer> = self.sites.iter().map(site).collect();
                if answers.contains(&Answer::Yes) {
                    Answer::Yes
                } else if answers.contains(&Answer::Unknown) || !self.sites_whole {
                    Answer::Unknown
                } else {
                    Answer::No
                }
            }
        }
    }

    fn predicate(&self, predicate: &Predicate) -> Answer {
        match predicate {
            Predicate::Number(number, ranges) => match self.number(*number) {
                None => Answer::Unknown,
                Some(value) => Answer::of(
                    ranges
                        .iter()
                        .any(|(from, to)| (*from..=*to).contains(&value)),
                ),
            },
            Predicate::Call(set) => match self.key {
                None => Answer::Unknown,
                Some(key) => Answer::of(set.has(key)),
            },
            Predicate::Text {
                field,
                patterns,
                negated,
            } => {
                let answer = self.text(*field, patterns);
                if *negated { answer.not() } else { answer }
            }
        }
    }

    fn node(&self, node: &Node) -> Answer {
        // `decisive` settles the whole list, whatever else is in it.
        let list = |nodes: &[Node], decisive: Answer| {
            let mut answer = decisive.not();
            for node in nodes {
                match self.node(node) {
                    found if found == decisive => return decisive,
                    Answer::Unknown => answer = Answer::Unknown,
                    _ => {}
                }
            }
            answer
        };
        match node {
            Node::And(nodes) => list(nodes, Answer::No),
            Node::Or(nodes) => list(nodes, Answer::Yes),
            Node::Not(inner) => self.node(inner).not(),
            Node::Test(test) => self.predicate(&test.predicate),
        }
    }
}

impl Expression {
    /// Whether the call is meant, as far as its facts are known.
    pub fn judge(&self, call: &CallFacts<'_>) -> Answer {
        call.node(self.root())
    }
}
