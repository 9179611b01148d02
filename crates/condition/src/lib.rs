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
//! The text is read by libdebox's own parser, which is compiled into this crate:
//! one language, in programs and on the command line.
#![deny(unsafe_code)]

mod call_set;
mod compile;
mod core;
mod error;
mod expression;
mod facts;
mod field;
#[allow(dead_code, non_camel_case_types, unsafe_code)]
mod generated;
mod kernel;

pub use call_set::CallSet;
pub use compile::{CompileError, Compiled, Part, compile};
pub use error::{ExpressionError, underline};
pub use expression::{Expression, Node, Pattern, Predicate, Test};
pub use facts::{Answer, CallFacts, SiteFacts};
pub use field::{Number, TextField};
pub use kernel::{KernelAnswer, kernel_judge};

/// Longest expression, in bytes.
pub const EXPRESSION_MAX: usize = generated::EXPRESSION_MAX as usize;
