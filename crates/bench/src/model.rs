// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a finished run say? This is the JSON document (docs/bench.md):
//! fields may be added within a schema version, never renamed or removed.

use crate::account::Account;
use crate::machine::Machine;
use crate::noise::Noise;
use crate::os::clocks::Survey;
use crate::os::reads::Cold;
use crate::selfcost::SelfCost;
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
    pub low: f64,
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
    let (a, b) = (values(here), values(there));
    let mut rows = Vec::new();
    let mut only_here = Vec::new();
    for (id, mine) in &a {
        match b.iter().find(|(other, _)| other == id) {
            Some((_, theirs)) => rows.extend(crate::stat::compare(mine, theirs).map(
                |comparison| ComparedRow {
                    id: id.clone(),
                    comparison,
                },
            )),
            None => only_here.push(id.clone()),
        }
    }
    let only_there = b
        .iter()
        .filter(|(id, _)| !a.iter().any(|(other, _)| other == id))
        .map(|(id, _)| id.clone());
    Compared {
        with: there.label.clone().unwrap_or_else(|| name.to_owned()),
        machine_there: there.machine.line(),
        machine_differences: here.machine.differences(&there.machine),
        rows,
        only_here,
        only_there: only_there.collect(),
    }
}
