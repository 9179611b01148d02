// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which words, signs and strings is an expression made of?

use crate::error::{ExpressionError, Mistake};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    More,
    MoreEqual,
    Like,
    NotLike,
    In,
}

impl Operator {
    pub fn text(self) -> &'static str {
        match self {
            Operator::Equal => "==",
            Operator::NotEqual => "!=",
            Operator::Less => "<",
            Operator::LessEqual => "<=",
            Operator::More => ">",
            Operator::MoreEqual => ">=",
            Operator::Like => "=~",
            Operator::NotLike => "!~",
            Operator::In => "in",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A name, number or time.
    Word(&'a str),
    /// What stands between quotes.
    Quoted(&'a str),
    Operator(Operator),
    And,
    Or,
    Not,
    Open,
    Close,
    BraceOpen,
    BraceClose,
    Comma,
    End,
}

#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    pub kind: Kind<'a>,
    pub at: usize,
    pub length: usize,
}

/// Letters, digits, all of UTF-8 beyond ASCII, and the signs of names,
/// patterns and numbers.
fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte >= 0x80 || b"_%.*?+-:/@".contains(&byte)
}

pub struct Lexer<'a> {
    text: &'a str,
    at: usize,
    peeked: Option<Token<'a>>,
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            peeked: None,
        }
    }

    pub fn peek(&mut self) -> Result<Token<'a>, ExpressionError> {
        let token = self.next()?;
        self.peeked = Some(token);
        Ok(token)
    }

    pub fn next(&mut self) -> Result<Token<'a>, ExpressionError> {
        if let Some(token) = self.peeked.take() {
            return Ok(token);
        }
        let bytes = self.text.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        let at = self.at;
        let Some(&first) = bytes.get(at) else {
            return Ok(Token {
                kind: Kind::End,
                at,
                length: 0,
            });
        };
        let second = bytes.get(at + 1).copied().unwrap_or(0);
        let half = |found, meant| {
            Err(ExpressionError {
                at,
                length: 1,
                mistake: Mistake::Half { found, meant },
            })
        };
        use Operator::*;
        let (kind, length) = match (first, second) {
            (b'=', b'=') => (Kind::Operator(Equal), 2),
            (b'=', b'~') => (Kind::Operator(Like), 2),
            (b'!', b'=') => (Kind::Operator(NotEqual), 2),
            (b'!', b'~') => (Kind::Operator(NotLike), 2),
            (b'<', b'=') => (Kind::Operator(LessEqual), 2),
            (b'>', b'=') => (Kind::Operator(MoreEqual), 2),
            (b'<', _) => (Kind::Operator(Less), 1),
            (b'>', _) => (Kind::Operator(More), 1),
            (b'&', b'&') => (Kind::And, 2),
            (b'|', b'|') => (Kind::Or, 2),
            (b'!', _) => (Kind::Not, 1),
            (b'(', _) => (Kind::Open, 1),
            (b')', _) => (Kind::Close, 1),
            (b'{', _) => (Kind::BraceOpen, 1),
            (b'}', _) => (Kind::BraceClose, 1),
            (b',', _) => (Kind::Comma, 1),
            (b'=', _) => return half("=", "=="),
            (b'&', _) => return half("&", "&&"),
            (b'|', _) => return half("|", "||"),
            (quote @ (b'"' | b'\''), _) => {
                let Some(inside) = bytes[at + 1..].iter().position(|byte| *byte == quote) else {
                    return Err(ExpressionError {
                        at,
                        length: bytes.len() - at,
                        mistake: Mistake::OpenString,
                    });
                };
                // Between two ASCII quotes, so at character boundaries.
                (
                    Kind::Quoted(&self.text[at + 1..at + 1 + inside]),
                    inside + 2,
                )
            }
            (byte, _) if in_word(byte) => {
                let length = bytes[at..]
                    .iter()
                    .position(|byte| !in_word(*byte))
                    .unwrap_or(bytes.len() - at);
                let word = &self.text[at..at + length];
                match word {
                    "in" => (Kind::Operator(In), 2),
                    word => (Kind::Word(word), length),
                }
            }
            // ASCII, as everything else is part of a word.
            (byte, _) => {
                return Err(ExpressionError {
                    at,
                    length: 1,
                    mistake: Mistake::Character(if byte.is_ascii_control() {
                        ' '
                    } else {
                        char::from(byte)
                    }),
                });
            }
        };
        self.at = at + length;
        Ok(Token { kind, at, length })
    }
}
