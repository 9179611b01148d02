// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does `debox kern --json` write? Every time in nanoseconds, every share
//! between 0 and 1 unless its name says otherwise.

use serde::Serialize;

use crate::args::Metric;
use crate::auto::Path;
use crate::session::{Point, Session, Totals, hist_of};

pub const SCHEMA: &str = "debox.kern";
/// Grows when a field changes its meaning; new fields may appear anyhow.
pub const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
pub struct Document<'a> {
    pub schema: &'static str,
    pub schema_version: u32,
    pub debox_version: &'static str,
    pub kernel: String,
    pub seconds: f64,
    pub metric: Metric,
    pub resources: Vec<ResourceRow<'a>>,
    /// With --auto: how the time was explained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<&'a Path>,
    pub notes: Vec<String>,
}

#[derive(Serialize)]
pub struct ResourceRow<'a> {
    pub name: &'a str,
    pub module: Option<&'a str>,
    pub kind: &'static str,
    pub way: Option<&'static str>,
    pub timed: bool,
    pub restricted_to: &'a str,
    pub removed: Option<&'a str>,
    pub totals: &'a Totals,
    /// from_ns (inclusive), to_ns (exclusive), count
    pub histogram: Vec<(u64, u64, u64)>,
    pub series: &'a [Point],
}

pub fn kernel_release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

pub fn document<'a>(session: &'a Session, metric: Metric, path: Option<&'a Path>) -> Document<'a> {
    Document {
        schema: SCHEMA,
        schema_version: SCHEMA_VERSION,
        debox_version: env!("CARGO_PKG_VERSION"),
        kernel: kernel_release(),
        seconds: session.seconds(),
        metric,
        resources: session
            .watches
            .iter()
            .map(|w| ResourceRow {
                name: &w.name,
                module: w.resource.module(),
                kind: w.resource.kind(),
                way: w.way.map(crate::way::Way::name),
                timed: w.timed,
                restricted_to: &w.restricted,
                removed: w.removed.as_deref(),
                totals: &w.totals,
                histogram: hist_of(&w.histogram).used().collect(),
                series: &w.series,
            })
            .collect(),
        path,
        notes: session
            .notes
            .iter()
            .cloned()
            .chain(session.losses())
            .collect(),
    }
}
