// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the text of an expression say?
//!
//! ```text
//! expression = and { "||" and }
//! and        = unary { "&&" unary }
//! unary      = "!" unary | "(" expression ")" | test
//! test       = "errno" | field operator value | field "in" "{" value { "," value } "}"
//! ```

use crate::call_set::{self, CallSet};
use crate::error::{ExpressionError, Mistake};
use crate::field::{ERRNO_MAX, FIELDS, Field, Number, TextField};
use crate::glob;
use crate::lexer::{Kind, Lexer, Operator, Token};
use crate::suggest::nearest;
use crate::{DEPTH_MAX, EXPRESSION_MAX};
use debox_abi::DEBOX_COMM_LEN;
use debox_labels::LABEL_LEN_MAX;
use debox_output::errno_name;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

/// A parsed expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    text: String,
    root: Node,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    Test(Test),
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// Where it stands in the text.
    pub at: usize,
    pub length: usize,
    /// As it was written, for [`fmt::Display`].
    field: &'static str,
    operator: Option<&'static str>,
    values: Vec<String>,
    pub predicate: Predicate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Predicate {
    /// The number lies in one of these ranges, which are ordered, disjoint,
    /// not adjacent, and include both ends.
    Number(Number, Vec<(i64, i64)>),
    Call(CallSet),
    /// The text (for labels and functions: that of any of the sleeps) fits one
    /// of the patterns; `negated`: it fits none.
    Text {
        field: TextField,
        patterns: Vec<Pattern>,
        negated: bool,
    },
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
                glob::fits(&self.text, name)
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
        if text.len() > EXPRESSION_MAX {
            return Err(ExpressionError {
                at: EXPRESSION_MAX,
                length: 0,
                mistake: Mistake::TooLong,
            });
        }
        let mut parser = Parser {
            lexer: Lexer::new(text),
            depth: 0,
        };
        if parser.lexer.peek()?.kind == Kind::End {
            return Err(ExpressionError {
                at: 0,
                length: 0,
                mistake: Mistake::Empty,
            });
        }
        let root = parser.either()?;
        let rest = parser.lexer.next()?;
        match rest.kind {
            Kind::End => Ok(Self {
                text: text.to_owned(),
                root,
            }),
            Kind::Close => Err(error(rest, Mistake::CloseExtra)),
            _ => Err(error(rest, Mistake::ConnectiveExpected)),
        }
    }

    /// As it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn root(&self) -> &Node {
        &self.root
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

    /// Labels that are asked for by name but that no rule gives: where they
    /// stand, and what was perhaps meant. Not an error, as a place without a
    /// rule has its function for a label.
    pub fn labels_unknown<'a>(
        &self,
        known: impl IntoIterator<Item = &'a str> + Clone,
    ) -> Vec<(usize, usize, String, Option<String>)> {
        let mut found = Vec::new();
        for test in self.tests() {
            if let Predicate::Text {
                field: field @ TextField::Label,
                patterns,
                ..
            } = &test.predicate
            {
                for pattern in patterns {
                    if !known
                        .clone()
                        .into_iter()
                        .any(|label| pattern.fits(*field, label))
                    {
                        let near = nearest(&pattern.text, known.clone()).map(str::to_owned);
                        found.push((test.at, test.length, pattern.text.clone(), near));
                    }
                }
            }
        }
        found
    }
}

/// The same expression in a form that does not depend on how it was written.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.fmt(f)
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, nodes: &[Node], sign: &str| {
            for (i, node) in nodes.iter().enumerate() {
                if i > 0 {
                    write!(f, " {sign} ")?;
                }
                match node {
                    Node::Or(_) | Node::And(_) => write!(f, "({node})")?,
                    _ => node.fmt(f)?,
                }
            }
            Ok(())
        };
        match self {
            Node::And(nodes) => list(f, nodes, "&&"),
            Node::Or(nodes) => list(f, nodes, "||"),
            Node::Not(inner) => match &**inner {
                Node::Test(_) | Node::Not(_) => write!(f, "!{inner}"),
                _ => write!(f, "!({inner})"),
            },
            Node::Test(test) => test.fmt(f),
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field)?;
        let Some(operator) = self.operator else {
            return Ok(());
        };
        let quoted = matches!(self.predicate, Predicate::Text { .. });
        let shown = |value: &String| match (quoted, value.contains('"')) {
            (false, _) => value.clone(),
            (true, false) => format!("\"{value}\""),
            (true, true) => format!("'{value}'"),
        };
        let values: Vec<String> = self.values.iter().map(shown).collect();
        match operator {
            "in" => write!(f, " in {{{}}}", values.join(", ")),
            operator => write!(f, " {operator} {}", values.join(", ")),
        }
    }
}

fn error(token: Token<'_>, mistake: Mistake) -> ExpressionError {
    ExpressionError {
        at: token.at,
        length: token.length,
        mistake,
    }
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn either(&mut self) -> Result<Node, ExpressionError> {
        let mut nodes = vec![self.both()?];
        while self.lexer.peek()?.kind == Kind::Or {
            self.lexer.next()?;
            nodes.push(self.both()?);
        }
        Ok(match nodes.len() {
            1 => nodes.remove(0),
            _ => Node::Or(nodes),
        })
    }

    fn both(&mut self) -> Result<Node, ExpressionError> {
        let mut nodes = vec![self.unary()?];
        while self.lexer.peek()?.kind == Kind::And {
            self.lexer.next()?;
            nodes.push(self.unary()?);
        }
        Ok(match nodes.len() {
            1 => nodes.remove(0),
            _ => Node::And(nodes),
        })
    }

    fn deeper(&mut self, token: Token<'a>) -> Result<(), ExpressionError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(error(token, Mistake::TooDeep));
        }
        Ok(())
    }

    fn unary(&mut self) -> Result<Node, ExpressionError> {
        let token = self.lexer.next()?;
        match token.kind {
            Kind::Not => {
                self.deeper(token)?;
                let inner = self.unary()?;
                self.depth -= 1;
                Ok(Node::Not(Box::new(inner)))
            }
            Kind::Open => {
                self.deeper(token)?;
                let inner = self.either()?;
                self.depth -= 1;
                let close = self.lexer.next()?;
                match close.kind {
                    Kind::Close => Ok(inner),
                    Kind::End => Err(error(close, Mistake::CloseMissing { open: token.at })),
                    _ => Err(error(close, Mistake::ConnectiveExpected)),
                }
            }
            Kind::Word(word) => self.test(token, word),
            Kind::Quoted(_) => Err(error(token, Mistake::FieldFirst)),
            _ => Err(error(token, Mistake::TestExpected)),
        }
    }

    fn test(&mut self, token: Token<'a>, word: &'a str) -> Result<Node, ExpressionError> {
        let Some((name, field, example)) = FIELDS.iter().copied().find(|(name, ..)| *name == word)
        else {
            let number = word.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+');
            return Err(error(
                token,
                if number {
                    Mistake::FieldFirst
                } else {
                    Mistake::UnknownField {
                        name: word.to_owned(),
                        near: nearest(word, FIELDS.iter().map(|(name, ..)| *name)),
                    }
                },
            ));
        };
        let sign = self.lexer.peek()?;
        let Kind::Operator(operator) = sign.kind else {
            if field == Field::Number(Number::Errno) {
                return Ok(Node::Test(Test {
                    at: token.at,
                    length: token.length,
                    field: name,
                    operator: None,
                    values: Vec::new(),
                    predicate: Predicate::Number(Number::Errno, vec![(1, ERRNO_MAX)]),
                }));
            }
            return Err(error(
                sign,
                Mistake::NoOperator {
                    field: name,
                    example,
                },
            ));
        };
        self.lexer.next()?;
        let ordered = matches!(field, Field::Number(_));
        let applies = match operator {
            Operator::Equal | Operator::NotEqual | Operator::In => true,
            Operator::Like | Operator::NotLike => !ordered,
            _ => ordered,
        };
        if !applies {
            return Err(error(
                sign,
                Mistake::WrongOperator {
                    operator: operator.text(),
                    field: name,
                    ordered,
                },
            ));
        }
        let mut values: Vec<(Token<'a>, &'a str)> = Vec::new();
        let mut end;
        if operator == Operator::In {
            let open = self.lexer.next()?;
            if open.kind != Kind::BraceOpen {
                return Err(error(open, Mistake::BraceExpected));
            }
            let mut predicate: Option<Predicate> = None;
            loop {
                let (at, value) = self.value(example)?;
                values.push((at, value));
                // Judged at once, so that the first mistake in the text is told.
                let one = predicate_of(field, operator, at, value, example)?;
                predicate = Some(match predicate {
                    None => one,
                    Some(all) => united(all, one),
                });
                let next = self.lexer.next()?;
                end = next.at + next.length;
                match next.kind {
                    Kind::Comma => {}
                    Kind::BraceClose => break,
                    _ => return Err(error(next, Mistake::CommaExpected)),
                }
            }
            // At least one value was read.
            let predicate = predicate.unwrap_or(Predicate::Call(CallSet::default()));
            return Ok(Node::Test(Test {
                at: token.at,
                length: end - token.at,
                field: name,
                operator: Some(operator.text()),
                values: values.iter().map(|(_, value)| (*value).into()).collect(),
                predicate,
            }));
        }
        let (at, value) = self.value(example)?;
        end = at.at + at.length;
        Ok(Node::Test(Test {
            at: token.at,
            length: end - token.at,
            field: name,
            operator: Some(operator.text()),
            values: vec![value.into()],
            predicate: predicate_of(field, operator, at, value, example)?,
        }))
    }

    fn value(&mut self, example: &'static str) -> Result<(Token<'a>, &'a str), ExpressionError> {
        let token = self.lexer.next()?;
        match token.kind {
            Kind::Word(text) | Kind::Quoted(text) => Ok((token, text)),
            // A command may be called so.
            Kind::Operator(Operator::In) => Ok((token, "in")),
            _ => Err(error(token, Mistake::ValueExpected { example })),
        }
    }
}

/// What `field operator value` says; of `in` that for one value of the list.
fn predicate_of(
    field: Field,
    operator: Operator,
    token: Token<'_>,
    value: &str,
    example: &'static str,
) -> Result<Predicate, ExpressionError> {
    let wrong = |mistake| error(token, mistake);
    match field {
        Field::Number(number) => {
            let value = if number.is_time() {
                time(value).map_err(wrong)?
            } else if number == Number::Errno {
                errno(value).map_err(wrong)?
            } else {
                whole(value, example).map_err(wrong)?
            };
            Ok(Predicate::Number(number, ranges(number, operator, value)))
        }
        _ if value.is_empty() => Err(wrong(Mistake::EmptyName)),
        Field::Call => {
            let set = match operator {
                Operator::Like | Operator::NotLike => {
                    let set = call_set::like(value);
                    if set.is_empty() {
                        return Err(wrong(Mistake::NoCallLike {
                            pattern: value.into(),
                        }));
                    }
                    set
                }
                _ => call_named(value).map_err(wrong)?,
            };
            Ok(Predicate::Call(match operator {
                Operator::NotEqual | Operator::NotLike => set.complement(),
                _ => set,
            }))
        }
        Field::Text(text) => {
            let glob = matches!(operator, Operator::Like | Operator::NotLike);
            if !glob {
                text_check(text, value).map_err(wrong)?;
            }
            Ok(Predicate::Text {
                field: text,
                patterns: vec![Pattern {
                    text: value.into(),
                    glob,
                }],
                negated: matches!(operator, Operator::NotEqual | Operator::NotLike),
            })
        }
    }
}

/// Of two values of one `in`.
fn united(all: Predicate, one: Predicate) -> Predicate {
    match (all, one) {
        (Predicate::Number(number, mut ranges), Predicate::Number(_, more)) => {
            ranges.extend(more);
            Predicate::Number(number, ranges_merged(ranges))
        }
        (Predicate::Call(all), Predicate::Call(one)) => Predicate::Call(all.union(&one)),
        (
            Predicate::Text {
                field,
                mut patterns,
                negated,
            },
            Predicate::Text { patterns: more, .. },
        ) => {
            patterns.extend(more);
            patterns.sort();
            patterns.dedup();
            Predicate::Text {
                field,
                patterns,
                negated,
            }
        }
        // Values of one field are of one kind.
        (all, _) => all,
    }
}

/// Ordered, disjoint and not adjacent.
pub(crate) fn ranges_merged(mut ranges: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    ranges.sort_unstable();
    let mut merged: Vec<(i64, i64)> = Vec::new();
    for (from, to) in ranges {
        match merged.last_mut() {
            Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

fn ranges(number: Number, operator: Operator, value: i64) -> Vec<(i64, i64)> {
    let (low, high) = number.domain();
    let below = |value: i64| value.checked_sub(1).map(|top| (low, top));
    let above = |value: i64| value.checked_add(1).map(|bottom| (bottom, high));
    let ranges: Vec<(i64, i64)> = match operator {
        Operator::NotEqual => below(value).into_iter().chain(above(value)).collect(),
        Operator::Less => below(value).into_iter().collect(),
        Operator::LessEqual => vec![(low, value)],
        Operator::More => above(value).into_iter().collect(),
        Operator::MoreEqual => vec![(value, high)],
        _ => vec![(value, value)],
    };
    ranges
        .into_iter()
        .map(|(from, to)| (from.max(low), to.min(high)))
        .filter(|(from, to)| from <= to)
        .collect()
}

/// "1.5ms" in nanoseconds.
fn time(text: &str) -> Result<i64, Mistake> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let end = text
        .bytes()
        .position(|b| !(b.is_ascii_digit() || b == b'.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (before, after) = number.split_once('.').unwrap_or((number, ""));
    if !digits(before) || number.contains('.') && !digits(after) {
        return Err(Mistake::NotATime { text: text.into() });
    }
    let scale: i64 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "" if before.bytes().chain(after.bytes()).all(|b| b == b'0') => return Ok(0),
        "" => return Err(Mistake::UnitMissing { text: text.into() }),
        unit => return Err(Mistake::UnknownUnit { unit: unit.into() }),
    };
    let mut value: i64 = before
        .bytes()
        .try_fold(0i64, |value, digit| {
            value.checked_mul(10)?.checked_add(i64::from(digit - b'0'))
        })
        .and_then(|whole| whole.checked_mul(scale))
        .ok_or(Mistake::TooLarge)?;
    let mut place = scale;
    for digit in after.bytes().map(|b| i64::from(b - b'0')) {
        if place % 10 != 0 {
            if digit != 0 {
                return Err(Mistake::TimeTooFine);
            }
            continue;
        }
        place /= 10;
        value = value.checked_add(digit * place).ok_or(Mistake::TooLarge)?;
    }
    Ok(value)
}

fn whole(text: &str, example: &'static str) -> Result<i64, Mistake> {
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match digits.strip_prefix("0x") {
        Some(digits) => (16, digits),
        None => (10, digits),
    };
    let valid = |b: u8| char::from(b).is_digit(radix);
    if digits.is_empty() || !digits.bytes().all(valid) {
        return Err(Mistake::NotANumber {
            text: text.into(),
            example,
        });
    }
    let value = u64::from_str_radix(digits, radix).map_err(|_| Mistake::TooLarge)?;
    let signed = if negative {
        0i64.checked_sub_unsigned(value)
    } else {
        i64::try_from(value).ok()
    };
    signed.ok_or(Mistake::TooLarge)
}

static ERRNOS: LazyLock<BTreeMap<String, i64>> = LazyLock::new(|| {
    let mut names: BTreeMap<String, i64> = (1..=ERRNO_MAX)
        .map(|number| (errno_name(number as i32).into_owned(), number))
        .filter(|(name, _)| name.starts_with('E'))
        .collect();
    // Second names of the same numbers.
    for (name, number) in [
        ("EWOULDBLOCK", libc_errno("EAGAIN", &names)),
        ("EDEADLOCK", libc_errno("EDEADLK", &names)),
        ("ENOTSUP", libc_errno("EOPNOTSUPP", &names)),
    ] {
        if let Some(number) = number {
            names.insert(name.into(), number);
        }
    }
    names
});

fn libc_errno(name: &str, names: &BTreeMap<String, i64>) -> Option<i64> {
    names.get(name).copied()
}

fn errno(text: &str) -> Result<i64, Mistake> {
    if let Some(number) = ERRNOS.get(text) {
        return Ok(*number);
    }
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return whole(text, "errno == EAGAIN");
    }
    Err(Mistake::UnknownErrno {
        name: text.into(),
        near: nearest(text, ERRNOS.keys().map(String::as_str)).map(str::to_owned),
    })
}

fn has_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

fn call_named(name: &str) -> Result<CallSet, Mistake> {
    if let Some(set) = call_set::named(name) {
        return Ok(set);
    }
    let near = call_set::suggestion(name);
    Err(if has_pattern(name) {
        Mistake::PatternWithoutMatch
    } else if name.starts_with('%') {
        Mistake::UnknownGroup {
            name: name.into(),
            near,
            groups: call_set::group_names(),
        }
    } else {
        Mistake::UnknownCall {
            name: name.into(),
            near,
        }
    })
}

fn text_check(field: TextField, value: &str) -> Result<(), Mistake> {
    match field {
        TextField::Label | TextField::Function if has_pattern(value) => {
            Err(Mistake::PatternWithoutMatch)
        }
        TextField::Label if value.len() > LABEL_LEN_MAX => Err(Mistake::LabelTooLong),
        TextField::Comm if value.len() >= DEBOX_COMM_LEN => {
            let mut end = DEBOX_COMM_LEN - 1;
            while !value.is_char_boundary(end) {
                end -= 1;
            }
            Err(Mistake::CommTooLong {
                cut: value[..end].into(),
            })
        }
        _ => Ok(()),
    }
}
