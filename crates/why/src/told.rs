// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which parts does an answer have?

use serde::Serialize;

use crate::task::State;

/// The whole answer.
#[derive(Debug, Serialize)]
pub struct Answer {
    pub schema: &'static str,
    pub schema_version: u32,
    pub debox_version: &'static str,
    /// Seconds since 1970.
    pub taken: u64,
    /// `kernel`: all is known that can be; `proc`: what /proc tells this user.
    pub source: &'static str,
    /// One for each stuck thing, deadlocks first.
    pub sentences: Vec<String>,
    pub deadlocks: Vec<Deadlock>,
    /// The threads that were asked about.
    pub threads: Vec<Thread>,
    /// What is missing, and the remedy.
    pub notes: Vec<String>,
}

/// Threads that wait for each other and for nobody else.
#[derive(Debug, Serialize)]
pub struct Deadlock {
    pub threads: Vec<u32>,
    /// It ends by itself when a time is over.
    pub until_a_time: bool,
    pub text: String,
}

/// A thread or process that a wait leads to.
#[derive(Clone, Debug, Serialize)]
pub struct Neighbour {
    /// `holder`, `reader`, `writer`, `peer`, `child`, `thread`, `server`, `tracer`.
    pub relation: &'static str,
    pub pid: u32,
    /// 0: any thread of it.
    pub tid: u32,
    pub comm: String,
    pub state: Option<State>,
}

/// One link of the chain.
#[derive(Clone, Debug, Serialize)]
pub struct Link {
    pub pid: u32,
    pub tid: u32,
    pub comm: String,
    pub state: State,
    pub asleep_ns: Option<u64>,
    pub label: Option<String>,
    pub text: String,
    /// It was in this chain before: a circle.
    pub again: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Means {
    pub why: String,
    pub rests: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct Thread {
    pub pid: u32,
    pub tid: u32,
    pub comm: String,
    pub state: State,
    pub cpu: Option<u32>,
    /// Since it is off its CPU; None if not known.
    pub asleep_ns: Option<u64>,
    /// It may be longer.
    pub asleep_at_least: bool,
    pub call: Option<String>,
    pub call_text: Option<String>,
    pub object: Option<String>,
    /// At the most, if nothing else ends it.
    pub left_ns: Option<u64>,
    pub label: Option<String>,
    pub label_text: Option<String>,
    /// What the rules call a wait without a loss.
    pub idle: bool,
    /// Innermost first.
    pub kernel_stack: Vec<String>,
    pub user_stack: Vec<String>,
    /// What the program means by the wait, where labels/idle.toml knows one of its functions; and
    /// whether that is a rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub means: Option<Means>,
    /// `waits for ...`
    pub text: String,
    pub sentence: String,
    pub waits_for: Vec<Neighbour>,
    /// Nobody else can end the wait.
    pub only_they: bool,
    /// The first of those it waits for, the first of theirs, and so on.
    pub chain: Vec<Link>,
    /// In a circle, or behind one.
    pub deadlocked: bool,
    pub notes: Vec<String>,
    /// Alike for threads that can be told in one line.
    #[serde(skip)]
    pub alike: String,
}
