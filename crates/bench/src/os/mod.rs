// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the operating system charge, suite by suite?

pub mod clocks;
pub mod descriptors;
pub mod faults;
pub mod reads;
mod ring;
pub mod switches;
pub mod trivial;

use crate::Error;
use crate::clock::Clock;
use crate::sampling::Case;
use serde::{Deserialize, Serialize};

/// What the cases of a suite need to know.
#[derive(Clone, Debug)]
pub struct Ctx {
    pub clock: Clock,
    /// Where the measured thread runs.
    pub cpu: usize,
    /// Another CPU, if this process may use one.
    pub other_cpu: Option<usize>,
    pub quick: bool,
    /// The file for the suites that need one: inherited, without a name.
    pub file: Option<i32>,
    pub file_bytes: u64,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Suite {
    Clocks,
    Trivial,
    Switches,
    Faults,
    Reads,
    Descriptors,
}

/// Cases that can be measured in turns; groups follow each other.
pub struct Group {
    pub cases: Vec<Case>,
    /// Part of the suite's time.
    pub share: f64,
}

type Make = Box<dyn FnOnce(&Ctx) -> Result<Group, Error>>;

/// The groups of a suite, each made when its time comes.
pub fn groups(suite: Suite, ctx: &Ctx) -> Vec<Make> {
    let one = |make: fn(&Ctx) -> Result<Vec<Case>, Error>| -> Vec<Make> {
        vec![Box::new(move |ctx: &Ctx| {
            Ok(Group {
                cases: make(ctx)?,
                share: 1.0,
            })
        })]
    };
    match suite {
        Suite::Clocks => Vec::new(),
        Suite::Trivial => one(trivial::cases),
        Suite::Switches => one(switches::cases),
        Suite::Faults => one(faults::cases),
        Suite::Reads => reads::groups(ctx),
        Suite::Descriptors => descriptors::groups(ctx),
    }
}

/// A case that cannot be had here: it says so when it is measured.
pub fn unavailable(id: String, error: &Error) -> Case {
    let text = match error {
        Error::Unavailable(text) => text.clone(),
        other => other.to_string(),
    };
    Case::new(id, move |_| Err(Error::Unavailable(text.clone())))
}
