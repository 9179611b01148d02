// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does `bench self` find out?

use super::grid::{Grid, number};
use super::memory::Memory;
use serde::{Deserialize, Serialize};

/// Everything that `bench self` has found out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SelfCost {
    /// What it may cost at most, beside what it costs.
    #[serde(default)]
    pub goals: Vec<Goal>,
    /// One call by wrap capture, and what wrap capture consists of, ns.
    #[serde(default)]
    pub wrap: Option<Grid>,
    /// One call by boundary capture, and the kernel's floor, ns.
    #[serde(default)]
    pub boundary: Option<Grid>,
    /// A pipe round trip with a sleep, ns.
    #[serde(default)]
    pub sleeps: Option<Grid>,
    /// A switch between threads that nobody watches, ns.
    #[serde(default)]
    pub switches: Option<Grid>,
    /// A call in which a soft interrupt lands, ns.
    #[serde(default)]
    pub interrupts: Option<Grid>,
    /// One request of a web server, ns.
    #[serde(default)]
    pub nginx: Option<Grid>,
    #[serde(default)]
    pub memory: Option<Memory>,
    /// Single calls, ns.
    pub calls: Option<Grid>,
    /// Whole programs, ns.
    pub loads: Option<Grid>,
    /// Calls of a busy server, by its own stamps and by DeBox.
    pub server: Vec<ServerRow>,
    /// What was compared and run, in which version.
    #[serde(default)]
    pub versions: Vec<(String, String)>,
    /// Parts that nothing at all came of, and why.
    #[serde(default)]
    pub left_out: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// As long as without; 1.08 is 8 % more.
    Times,
    /// More than without.
    Percent,
    /// More than without, or than the floor.
    Ns,
    Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reached {
    Yes,
    No,
    /// The goal lies within the interval, or within what two runs of the same
    /// differ by.
    Untold,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Goal {
    pub id: String,
    pub title: String,
    pub unit: Unit,
    /// The most it may be.
    pub most: f64,
    pub found: Option<Found>,
    /// Why nothing was found.
    pub missing: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Median over the rounds of the difference within a round (or ratio), with
    /// an interval that holds the true median with 95 %.
    pub value: f64,
    #[serde(deserialize_with = "number")]
    pub low: f64,
    #[serde(deserialize_with = "number")]
    pub high: f64,
    /// The same of the least of all rounds, and of their medians.
    pub of_minima: f64,
    pub of_medians: f64,
    /// As far from nothing two runs of the same came.
    #[serde(deserialize_with = "number")]
    pub null: f64,
    pub reached: Reached,
}

/// ns of one call of a busy server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerRow {
    pub call: String,
    /// Stamped by the program itself, or DeBox's record.
    pub by: String,
    pub count: u64,
    pub min: f64,
    pub median: f64,
    pub mean: f64,
    pub p99: f64,
    pub max: f64,
}

impl SelfCost {
    /// In the order of the tables.
    pub fn grids(&self) -> impl Iterator<Item = &Grid> {
        [
            &self.wrap,
            &self.boundary,
            &self.sleeps,
            &self.switches,
            &self.interrupts,
            &self.nginx,
            &self.calls,
            &self.loads,
        ]
        .into_iter()
        .flatten()
    }

    /// (id, a value of each round): for comparisons.
    pub fn values(&self) -> Vec<(String, Vec<f64>)> {
        self.grids()
            .flat_map(|g| {
                g.cells.iter().map(|c| {
                    (
                        format!("{}/{}/{}", g.id, g.rows[c.row].id, g.ways[c.way].id),
                        c.values.clone(),
                    )
                })
            })
            .collect()
    }
}
