// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a parsed expression say?

use crate::call_set::CallSet;
use crate::core::{Parsed, glob_fits, nearest};
use crate::error::ExpressionError;
use crate::facts::{Answer, CallFacts};
use crate::field::{Number, TextField};
use crate::generated::{NODE_AND, NODE_CALL, NODE_NOT, NODE_NUMBER, NODE_OR};
use std::sync::Arc;

/// A parsed expression.
#[derive(Clone, Debug)]
pub struct Expression {
    text: String,
    parsed: Arc<Parsed>,
    root: Node,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    Test(Test),
}

/// One comparison; of `in` that with one value of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// Where it stands in the text.
    pub at: usize,
    pub length: usize,
    pub predicate: Predicate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Predicate {
    /// The number lies between these, both included; None: there is no such.
    Number(Number, Option<(i64, i64)>),
    Call(CallSet),
    /// The text (for labels and functions: that of any of the sleeps) fits.
    Text(TextField, Pattern),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    pub text: String,
    /// `*` and `?` stand for other characters.
    pub glob: bool,
}

impl Pattern {
    pub fn fits(&self, field: TextField, name: &str) -> bool {
        let fits = |name: &str| {
            if self.glob {
                glob_fits(&self.text, name)
            } else {
                self.text == name
            }
        };
        // Compilers add suffixes such as .isra.0 to the names of functions.
        fits(name)
            || field == TextField::Function
                && name.split_once('.').is_some_and(|(plain, _)| fits(plain))
    }
}

impl Expression {
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        let parsed = Parsed::parse(text)?;
        Ok(Self {
            root: node(&parsed, text, parsed.root()),
            text: text.to_owned(),
            parsed: Arc::new(parsed),
        })
    }

    /// As it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Whether the call is meant, as far as its facts are known.
    pub fn judge(&self, call: &CallFacts<'_>) -> Answer {
        self.parsed.judge(call)
    }

    pub fn tests(&self) -> Vec<&Test> {
        fn walk<'a>(node: &'a Node, into: &mut Vec<&'a Test>) {
            match node {
                Node::And(list) | Node::Or(list) => list.iter().for_each(|n| walk(n, into)),
                Node::Not(inner) => walk(inner, into),
                Node::Test(test) => into.push(test),
            }
        }
        let mut tests = Vec::new();
        walk(&self.root, &mut tests);
        tests
    }

    /// What only the end of a call tells, and a sleep of it does not.
    pub fn not_of_sleeps(&self) -> Option<&Test> {
        let told = |test: &&Test| match test.predicate {
            Predicate::Number(number, _) => matches!(
                number,
                Number::Wall
                    | Number::Blocked
                    | Number::Runq
                    | Number::Pid
                    | Number::Tid
                    | Number::Waiters
            ),
            Predicate::Text(field, _) => field != TextField::Caller,
            Predicate::Call(_) => true,
        };
        self.tests().into_iter().find(|test| !told(test))
    }

    /// Labels that are asked for by name but that no rule gives: where they
    /// stand, and what was perhaps meant. Not an error, as a place without a
    /// rule has its function for a label.
    pub fn words_unknown<'a>(
        &self,
        field: TextField,
        known: impl IntoIterator<Item = &'a str> + Clone,
    ) -> Vec<(usize, usize, String, Option<String>)> {
        let mut found = Vec::new();
        for test in self.tests() {
            if let Predicate::Text(of, pattern) = &test.predicate
                && *of == field
                && !(known.clone().into_iter()).any(|word| pattern.fits(field, word))
            {
                let near = nearest(&pattern.text, known.clone());
                found.push((test.at, test.length, pattern.text.clone(), near));
            }
        }
        found
    }
}

/// The parser joins two at a time, from the left; a list of many is one node here.
fn list(parsed: &Parsed, text: &str, kind: u32, at: u32) -> Vec<Node> {
    let mut last_first = Vec::new();
    let mut at = at;
    loop {
        let raw = &parsed.nodes()[at as usize];
        if raw.kind != kind {
            last_first.push(node(parsed, text, at));
            break;
        }
        last_first.push(node(parsed, text, raw.right));
        at = raw.left;
    }
    last_first.reverse();
    last_first
}

fn node(parsed: &Parsed, text: &str, at: u32) -> Node {
    let raw = &parsed.nodes()[at as usize];
    let predicate = match raw.kind {
        NODE_AND => return Node::And(list(parsed, text, NODE_AND, at)),
        NODE_OR => return Node::Or(list(parsed, text, NODE_OR, at)),
        NODE_NOT => return Node::Not(Box::new(node(parsed, text, raw.left))),
        NODE_NUMBER => {
            let number = Number::ALL[raw.which as usize];
            let (low, high) = number.domain();
            let (low, high) = (raw.low.max(low), raw.high.min(high));
            Predicate::Number(number, (low <= high).then_some((low, high)))
        }
        NODE_CALL => Predicate::Call(CallSet(raw.calls)),
        _ => Predicate::Text(
            TextField::ALL[raw.which as usize],
            Pattern {
                text: text[raw.text as usize..(raw.text + raw.length) as usize].to_owned(),
                glob: raw.glob != 0,
            },
        ),
    };
    Node::Test(Test {
        at: raw.at as usize,
        length: raw.extent as usize,
        predicate,
    })
}
