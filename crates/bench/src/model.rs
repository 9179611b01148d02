// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a finished run say? This is the JSON document (docs/bench.md):
//! fields may be added within a schema version, never renamed or removed.

use crate::account::Account;
use crate::machine::Machine;
use crate::noise::Noise;
use crate::os::clocks::Survey;
use crate::os::reads::Cold;
use crate::selfcost::result::SelfCost;
use crate::stat::{Comparison, Summary, Verdict};
use serde::{Deserialize, Serialize};

pub const SCHEMA: &str = "debox.bench";
pub const SCHEMA_VERSION: u32 = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Document {
    pub schema: String,
    pub schema_version: u32,
    pub debox_version: String,
    pub kind: Kind,
    /// What the user calls this run.
    pub label: Option<String>,
    pub quick: bool,
    /// Seconds since 1970 at the beginning, and how long it took.
    pub started: u64,
    pub seconds: f64,
    pub machine: Machine,
    pub noise: Noise,
    /// `bench os`: every time source. `bench self`: `None`.
    pub clocks: Option<Survey>,
    /// `bench os`: one row for each case, in the order of the tables.
    pub results: Vec<Row>,
    /// Worked out from results: estimated switches.
    pub derived: Vec<Derived>,
    /// How it is known that cold reads were cold.
    pub cold: Option<Cold>,
    /// `bench self`.
    pub self_cost: Option<SelfCost>,
    /// What was left out or must be known, in sentences.
    pub notes: Vec<String>,
    /// With --compare.
    pub comparison: Option<Compared>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Os,
    #[serde(rename = "self")]
    SelfCost,
}

impl Kind {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Os => "os",
            Kind::SelfCost => "self",
        }
    }
}

/// One case. ns per operation everywhere.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// `suite/...`: the key for comparisons.
    pub id: String,
    pub summary: Option<Summary>,
    pub account: Option<Account>,
    /// Why there is no summary.
    pub missing: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Derived {
    pub id: String,
    /// How it was worked out.
    pub formula: String,
    pub ns: f64,
    /// 95 % confidence interval.
    #[serde(deserialize_with = "crate::stat::open_below")]
    pub low: f64,
    #[serde(deserialize_with = "crate::stat::open_above")]
    pub high: f64,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Compared {
    /// What the other run is called: its label, or the file's name.
    pub with: String,
    pub machine_there: String,
    /// (what, here, there)
    pub machine_differences: Vec<(String, String, String)>,
    pub rows: Vec<ComparedRow>,
    /// Cases that only one of the two has.
    pub only_here: Vec<String>,
    pub only_there: Vec<String>,
    /// What keeps the comparison from saying more, in sentences.
    #[serde(default)]
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ComparedRow {
    pub id: String,
    pub comparison: Comparison,
}

impl Document {
    pub fn row(&self, id: &str) -> Option<&Row> {
        self.results.iter().find(|r| r.id == id)
    }

    /// The summary of a case whose number may be used.
    pub fn summary(&self, id: &str) -> Option<&Summary> {
        self.row(id)?.summary.as_ref()
    }

    /// Cases whose ids begin so.
    pub fn rows_of<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Row> {
        self.results
            .iter()
            .filter(move |r| r.id.starts_with(prefix))
    }
}

/// Rounds of each run below which no difference can have p < 0.01: the two most
/// extreme arrangements of 4 and 4 medians have 2 / C(8, 4) = 0.029, of 5 and 5 0.008.
const ROUNDS_TO_TELL: usize = 5;

/// Compares two runs, case by case.
pub fn compare(here: &Document, there: &Document, name: &str) -> Compared {
    let values = |d: &Document| -> Vec<(String, Vec<f64>)> {
        let rows = d
            .results
            .iter()
            .filter_map(|r| Some((r.id.clone(), r.summary.as_ref()?.medians.clone())));
        let cells = d.self_cost.iter().flat_map(SelfCost::values);
        rows.chain(cells).collect()
    };
    // A --quick run reads a smaller file, in shorter passes: other work under
    // the same name.
    let other_work = |id: &str| here.quick != there.quick && id.starts_with("read/");
    let (a, b) = (values(here), values(there));
    let mut rows = Vec::new();
    let mut only_here = Vec::new();
    let (mut not_alike, mut not_positive, mut few) = (0, Vec::new(), 0);
    for (id, mine) in &a {
        let Some((_, theirs)) = b.iter().find(|(other, _)| other == id) else {
            only_here.push(id.clone());
            continue;
        };
        if other_work(id) {
            not_alike += 1;
            continue;
        }
        few += usize::from(mine.len().min(theirs.len()) < ROUNDS_TO_TELL);
        match crate::stat::compare(mine, theirs) {
            Some(comparison) => rows.push(ComparedRow {
                id: id.clone(),
                comparison,
            }),
            None => not_positive.push(id.clone()),
        }
    }
    let only_there = b
        .iter()
        .filter(|(id, _)| !a.iter().any(|(other, _)| other == id))
        .map(|(id, _)| id.clone());
    let mut notes = Vec::new();
    if not_alike > 0 {
        notes.push(format!(
            "{not_alike} cases of file reads are not compared: one of the runs is --quick, which reads a \
             smaller file in shorter passes"
        ));
    }
    if let Some(first) = not_positive.first() {
        notes.push(format!(
            "{} cases are not compared, since one run has a single round of them, or a time that is not above \
             the clock's step: {first} …",
            not_positive.len()
        ));
    }
    if few > 0 {
        notes.push(format!(
            "{few} cases have fewer than {ROUNDS_TO_TELL} rounds in one of the runs: no difference of these can be \
             told (p < 0.01 is out of reach). Let it run longer, or with --rounds 10"
        ));
    }
    if !there.noise.reasons.is_empty() {
        notes.push(format!(
            "the other run was taken on a noisy machine: {}",
            there.noise.reasons.join("; ")
        ));
    }
    if let (Some(a), Some(b)) = (&here.clocks, &there.clocks)
        && a.choice.kind != b.choice.kind
    {
        notes.push(format!(
            "timed with different clocks: here {}; there {}",
            a.why, b.why
        ));
    }
    Compared {
        with: there.label.clone().unwrap_or_else(|| name.to_owned()),
        machine_there: there.machine.line(),
        machine_differences: here.machine.differences(&there.machine),
        rows,
        only_here,
        only_there: only_there.collect(),
        notes,
    }
}
