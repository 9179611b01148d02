// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the agent's periods come into the fleet's tables?

use crate::config::FleetConfig;
use debox_fleet::{Figures, Options, Partitions, Period};
use debox_report::Report;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Who ends the agent waits so long for what is not written yet.
const LAST: Duration = Duration::from_secs(5);

pub struct Fleet {
    partitions: Partitions,
    /// What all periods have in common.
    period: Period,
}

pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// What a file of one line says; nothing if it is not there.
pub fn line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}

impl Fleet {
    /// # Errors
    /// In words.
    pub fn open(config: &FleetConfig) -> Result<Self, String> {
        let options = Options {
            every: config.every,
            keep_days: config.keep_days,
            ..Options::default()
        };
        let partitions =
            Partitions::open(&config.to, &options).map_err(|error| error.to_string())?;
        let host = config.host.clone();
        Ok(Self {
            partitions,
            period: Period {
                host: host.unwrap_or_else(|| line("/proc/sys/kernel/hostname")),
                boot: line("/proc/sys/kernel/random/boot_id"),
                begin_ns: now_ns(),
                end_ns: 0,
                release: config.release.clone(),
                policy: String::new(),
            },
        })
    }

    /// The period of a policy is over.
    pub fn end(&mut self, policy: &str, begin_ns: u64, report: &Report) {
        let period = Period {
            policy: policy.to_owned(),
            begin_ns,
            // A clock that was set back meanwhile does not make a period of no length.
            end_ns: begin_ns + report.run.wall_ns,
            ..self.period.clone()
        };
        self.partitions.write(report, &period);
    }

    pub fn figures(&self) -> Figures {
        self.partitions.figures()
    }

    pub fn tell(&self) {
        if let Some(news) = self.partitions.news() {
            debox_cli::say(&news);
        }
    }

    /// What became of all of them.
    pub fn close(self) -> Figures {
        self.tell();
        let before = self.figures().periods_dropped;
        let figures = self.partitions.close(LAST);
        let lost = figures.periods_dropped.saturating_sub(before);
        if lost > 0 {
            let error = figures.last_error.as_deref().unwrap_or("no time");
            debox_cli::say(&format!(
                "{lost} periods are not in the fleet's tables: {error}"
            ));
        }
        figures
    }
}
