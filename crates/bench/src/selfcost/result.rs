// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does `bench self` find out?

use super::grid::Grid;
use serde::{Deserialize, Serialize};

/// Everything that `bench self` has found out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SelfCost {
    /// Single calls, ns.
    pub calls: Option<Grid>,
    /// Whole programs, ns.
    pub loads: Option<Grid>,
    /// Calls of a busy server, by its own stamps and by DeBox.
    pub server: Vec<ServerRow>,
    /// What was compared and run, in which version.
    #[serde(default)]
    pub versions: Vec<(String, String)>,
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
    /// (id, a value of each round): for comparisons.
    pub fn values(&self) -> Vec<(String, Vec<f64>)> {
        self.calls
            .iter()
            .chain(&self.loads)
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
