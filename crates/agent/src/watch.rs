// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox agent`: who is watched as long as the machine runs, and who asks for the figures?

use crate::config::{self, Config, WatchConfig};
use crate::endpoint::Endpoint;
use crate::metrics::Metrics;
use debox_cli::ahead::Ahead;
use debox_cli::args::{AgentArgs, CaptureArgs, Way};
use debox_cli::capture::{Capture, Target, Want};
use debox_cli::error::Error;
use debox_cli::whom::WhomArgs;
use debox_command::{Ended, Inherited};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const CONFIG: &str = "/etc/debox/agent.toml";
/// What is read so often stays known when its program ends, also if nobody asks.
const READ_EVERY: Duration = Duration::from_secs(60);

fn whom_of(watch: &WatchConfig) -> WhomArgs {
    let whom = WhomArgs {
        comm: watch.comm.clone(),
        cgroup: watch.cgroup.clone(),
        unit: watch.unit.clone(),
        uid: watch.uid.clone(),
        container: watch.container.clone(),
        all: false,
    };
    match whom.any() {
        true => whom,
        false => WhomArgs::whole_machine(),
    }
}

fn way_of(watch: &WatchConfig) -> Way {
    match watch.capture {
        config::Way::Sleeps => Way::Sleeps,
        config::Way::Boundary => Way::Boundary,
    }
}

struct File {
    path: PathBuf,
    /// Somebody has named it.
    named: bool,
}

impl File {
    fn read(&self) -> Result<Config, Error> {
        Ok(Config::read(&self.path, self.named)?)
    }
}

struct Agent {
    file: File,
    config: Config,
    capture: Capture,
    endpoint: Endpoint,
    metrics: Metrics,
    next: Instant,
}

impl Agent {
    fn read(&mut self) {
        let begin = Instant::now();
        let report = self.capture.report(true);
        self.metrics.update(&report, begin.elapsed());
        self.next = Instant::now() + READ_EVERY;
    }

    /// The file has changed, or may have.
    fn reload(&mut self) {
        let config = match self.file.read() {
            Ok(config) => config,
            Err(error) => {
                debox_cli::say(&format!("{error}; what was read before stays"));
                return;
            }
        };
        if config.watch != self.config.watch || config.metrics.listen != self.config.metrics.listen
        {
            debox_cli::say(&format!(
                "{}: [watch] and [metrics] listen are taken at the start only; start the agent again for these",
                self.file.path.display()
            ));
        }
        self.metrics.limit(&config.metrics);
        debox_cli::say(&format!("{}: read again", self.file.path.display()));
    }

    /// Until somebody ends it: by which signal. None: there is nothing to be watched any more.
    fn stay(&mut self) -> Option<i32> {
        loop {
            let tick = (self.capture).tick(Some(self.endpoint.as_fd()), Some(self.next));
            match tick.stop {
                Some(libc::SIGHUP) => self.reload(),
                Some(signal) => return Some(signal),
                None => {}
            }
            if let Some(why) = self.capture.ended() {
                debox_cli::say(&format!("the watch is over: {why}"));
                return None;
            }
            let asked = self.endpoint.asked();
            if asked.is_some() || Instant::now() >= self.next {
                self.read();
            }
            let mut next = asked;
            while let Some(asked) = next {
                asked.answer(self.metrics.text());
                next = self.endpoint.asked();
            }
        }
    }
}

fn check(file: &File) -> Result<i32, Error> {
    let config = file.read()?;
    Target::whom(&whom_of(&config.watch))?;
    let text = match Path::exists(&file.path) {
        true => format!("{}: nothing is wrong\n", file.path.display()),
        false => format!("{} is not there: the defaults\n", file.path.display()),
    };
    debox_cli::output::print(text.as_bytes()).map(|()| 0)
}

pub fn watch(args: AgentArgs, inherited: Inherited) -> Result<i32, Error> {
    let file = File {
        named: args.config.is_some(),
        path: args.config.unwrap_or_else(|| CONFIG.into()),
    };
    if args.check {
        return check(&file);
    }
    let config = file.read()?;
    let whom = whom_of(&config.watch);
    let words = match whom.all {
        true => "the whole machine".into(),
        false => whom.words().join(" "),
    };
    let target = Target::whom(&whom)?;
    let want = Want::new(&CaptureArgs {
        broker: args.broker,
        capture_way: Some(way_of(&config.watch)),
        ..CaptureArgs::default()
    })?;
    // Before the long part: who else has the address is to be told at once.
    let endpoint = Endpoint::open(&config.metrics.listen)?;
    let ahead = Ahead::begin();
    let capture = Capture::open(want, &target)?.start(target, &inherited)?;
    drop(ahead);
    debox_cli::say(&format!(
        "watching {words}; figures at {}",
        endpoint.place()
    ));
    let mut agent = Agent {
        metrics: Metrics::new(&config.metrics),
        file,
        config,
        capture,
        endpoint,
        next: Instant::now(),
    };
    Ok(match agent.stay() {
        Some(libc::SIGTERM) => 0,
        Some(signal) => Ended::Signal(signal).end_as(),
        None => 1,
    })
}
