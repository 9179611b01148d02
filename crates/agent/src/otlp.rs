// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the agent's figures, and what it says of moments, come to who collects with OpenTelemetry's protocol?
//!
//! [`series`] are the sums that Prometheus is offered, [`logs`] the records of periods and of what was kept. They
//! become requests ([`message`]) as they are read, wait in memory ([`queue`]), and are sent by a thread of
//! their own ([`send`]), over HTTP or gRPC ([`line`]).

mod answer;
mod config;
mod line;
mod logs;
mod message;
mod queue;
mod send;
mod series;

#[cfg(test)]
#[path = "../tests/collector/mod.rs"]
mod collector;
#[cfg(test)]
mod sending;

pub use config::{OtlpConfig, OtlpFile, Signal, otlp_of};
use logs::Kept;
pub use queue::{Figures, Reason};

use crate::fleet::now_ns;
use crate::metrics::Metrics;
use debox_fleet::Period;
use debox_report::Report;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::resource::v1::Resource;
use send::Sender;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Who ends the agent waits so long for what is not sent yet.
const LAST: Duration = Duration::from_secs(3);

struct On {
    config: OtlpConfig,
    resource: Resource,
    sender: Sender,
    /// When the figures are sent next.
    next: Instant,
}

/// Whether something is sent or not.
pub struct Otlp {
    on: Option<On>,
    /// That are to send nothing more, and have a little time yet.
    ending: Vec<Sender>,
    /// Of those that are over.
    before: Figures,
    /// What was ever sent, whether anything is now or not.
    signals: Vec<Signal>,
    /// Since when the sums are.
    begin_ns: u64,
    /// The last period that is over, and its recording.
    last: Period,
    recording: Option<PathBuf>,
}

impl Otlp {
    pub fn new(config: Option<&OtlpConfig>) -> Self {
        let mut is = Self {
            on: None,
            ending: Vec::new(),
            before: Figures::default(),
            signals: Vec::new(),
            begin_ns: now_ns(),
            last: Period::default(),
            recording: None,
        };
        is.take(config);
        is
    }

    /// What the file says now. What waits to be sent is sent where it says.
    pub fn take(&mut self, config: Option<&OtlpConfig>) {
        for signal in config.iter().flat_map(|config| &config.signals) {
            if !self.signals.contains(signal) {
                self.signals.push(*signal);
            }
        }
        match (&mut self.on, config) {
            (Some(on), Some(config)) => {
                if on.config == *config {
                    return;
                }
                on.sender.take(config);
                on.resource = message::resource(&config.attributes);
                on.next = on.next.min(Instant::now() + config.every);
                on.config = config.clone();
            }
            (Some(on), None) => {
                // Nobody waits for it.
                on.sender.end(LAST);
                self.ending.extend(self.on.take().map(|on| on.sender));
            }
            (None, Some(config)) => match Sender::start(config) {
                Ok(sender) => {
                    self.on = Some(On {
                        config: config.clone(),
                        resource: message::resource(&config.attributes),
                        sender,
                        next: Instant::now() + config.every,
                    });
                }
                Err(error) => debox_cli::say(&format!(
                    "OTLP: there can be no thread that sends: {error}; nothing is sent"
                )),
            },
            (None, None) => {}
        }
    }

    pub fn due(&self) -> Option<Instant> {
        let on = self.on.as_ref()?;
        on.config
            .signals
            .contains(&Signal::Metrics)
            .then_some(on.next)
    }

    /// What has been read just now, if it is time.
    pub fn read(&mut self, metrics: &mut Metrics) {
        self.count(metrics);
        let Some(on) = &mut self.on else {
            return;
        };
        for news in on.sender.news() {
            debox_cli::say(&news);
        }
        let now = Instant::now();
        if now >= on.next {
            on.next = (on.next + on.config.every).max(now);
            self.send(metrics);
        }
    }

    fn send(&self, metrics: &Metrics) {
        let Some(on) = &self.on else {
            return;
        };
        if !on.config.signals.contains(&Signal::Metrics) {
            return;
        }
        let span = series::Span {
            begin_ns: self.begin_ns,
            // A clock that was set back does not make sums end before they began.
            now_ns: now_ns().max(self.begin_ns),
        };
        let series = series::of(&metrics.families(), span);
        on.sender.push(message::metrics(&on.resource, series));
    }

    fn log(&self, record: impl FnOnce() -> LogRecord) {
        if let Some(on) = &self.on
            && on.config.signals.contains(&Signal::Logs)
        {
            on.sender.push(message::logs(&on.resource, vec![record()]));
        }
    }

    /// It is over, and its recording there.
    pub fn period_end(
        &mut self,
        policy: &str,
        begin_ns: u64,
        report: &Report,
        recording: Option<PathBuf>,
    ) {
        self.last = Period {
            policy: policy.to_owned(),
            begin_ns,
            end_ns: begin_ns + report.run.wall_ns,
            ..Period::default()
        };
        self.recording = recording;
        let recording = self.recording.as_deref();
        self.log(|| logs::period(report, &self.last, recording, now_ns()));
    }

    /// Of the period that is over: something stays, or was to stay.
    pub fn kept(&self, kept: Kept<'_>, why: &str, asked: bool) {
        let recording = self.recording.as_deref();
        self.log(|| logs::kept(kept, why, asked, &self.last, recording, now_ns()));
    }

    fn count(&mut self, metrics: &mut Metrics) {
        for over in self.ending.extract_if(.., |sender| sender.is_over()) {
            self.before = self.before.plus(&over.figures());
        }
        let on = self.on.as_ref();
        metrics.otlp_waiting(on.into_iter().flat_map(|on| {
            let signals = on.config.signals.iter();
            signals.map(move |signal| (*signal, on.sender.waiting(*signal)))
        }));
        let senders = self.ending.iter().chain(on.map(|on| &on.sender));
        let figures = senders.fold(self.before, |sum, is| sum.plus(&is.figures()));
        metrics.otlp(&figures, &self.signals);
    }

    /// The last figures go as well; it has three seconds.
    pub fn close(self, metrics: &Metrics) {
        self.send(metrics);
        let Some(on) = self.on else {
            return;
        };
        on.sender.end(LAST);
        let (left, why) = on.sender.wait();
        if left > 0 {
            let why = why.unwrap_or_else(|| "no time".to_owned());
            debox_cli::say(&format!(
                "OTLP: {left} items are not sent to {}: {why}",
                on.config.endpoint
            ));
        }
    }
}
