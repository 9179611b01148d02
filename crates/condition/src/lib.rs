// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which finished calls does an expression such as
//! `call == fsync && blocked > 20ms && label == "journal-commit"` mean?
//!
//! [`Expression::parse`] reads the text and points at the first mistake in it;
//! [`Expression::judge`] says of one call whether it is meant; [`compile`]
//! turns an expression into the few conjunctions that the kernel side can
//! compare each call with ([`debox_abi::debox_condition`]). What the kernel side
//! cannot decide is left out there, so that it picks a superset, and is judged
//! when the call's event arrives.
//!
//! libdebox/expression.c reads the same language; both are held to
//! tests/condition/table.txt.
#![forbid(unsafe_code)]

mod call_set;
mod compile;
mod error;
mod evaluate;
mod field;
mod glob;
mod kernel;
mod lexer;
mod parse;
mod suggest;

pub use call_set::CallSet;
pub use compile::{CompileError, Compiled, Part, compile};
pub use error::{ExpressionError, Mistake, underline};
pub use evaluate::{Answer, CallFacts, SiteFacts};
pub use field::{Field, Number, TextField};
pub use kernel::{KernelAnswer, kernel_judge};
pub use parse::{Expression, Node, Pattern, Predicate, Test};

/// Longest expression, in bytes.
pub const EXPRESSION_MAX: usize = 4096;
/// Parentheses and `!` inside each other.
pub const DEPTH_MAX: usize = 64;
