// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does `bench self` find out?

use super::goals::Goal;
use super::grid::Grid;
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
