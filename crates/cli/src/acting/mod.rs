// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens at once when a call meets a condition (`--on EXPR --do
//! ACTION`)?
//!
//! [`plan`] reads the expressions and actions before anything starts, and makes
//! the kernel side's conditions of them. [`actor`] gets the events of calls
//! that met one: signals have been sent by then, at the return of the call
//! itself; everything else is done here. What the kernel side could not decide
//! is judged here, too, and its actions come late and are marked so.

mod action;
mod actor;
mod args;
mod core_file;
mod ends;
mod plan;
mod show;

pub use actor::{Actor, Sum, pause};
pub use args::{ActArgs, ActionArgs, RuleArgs};
pub use core_file::{cores_check_attached, cores_check_run};
pub use plan::Plan;
pub use show::short;
