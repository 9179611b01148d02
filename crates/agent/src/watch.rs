// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox agent`: who is watched as long as the machine runs, and who asks for the figures?

use crate::config::{self, Config, WatchConfig, What};
use crate::endpoint::Endpoint;
use crate::fleet::Fleet;
use crate::flight::Flight;
use crate::metrics::{Metrics, waited};
use debox_cli::ahead::Ahead;
use debox_cli::args::{AgentArgs, BrokerArgs, CaptureArgs, Way};
use debox_cli::capture::{Capture, Target, Want};
use debox_cli::error::Error;
use debox_cli::whom::WhomArgs;
use debox_command::{Ended, Inherited};
use debox_report::Report;
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

struct Agent<'a> {
    file: File,
    config: Config,
    broker: &'a BrokerArgs,
    inherited: &'a Inherited,
    capture: Capture,
    endpoint: Endpoint,
    metrics: Metrics,
    flight: Option<Flight>,
    /// Why there is none, although one is asked for; it is said once.
    no_flight: Option<String>,
    /// The present period was to be recorded.
    recorded: bool,
    fleet: Option<Fleet>,
    /// When the figures are read, whether somebody asks or not.
    next: Instant,
    /// When the present period ends.
    period_ends: Instant,
    /// What was kept last, unasked.
    kept: Option<Instant>,
    /// Why a period could not begin; it is said once.
    trouble: Option<String>,
}

fn want_of(broker: &BrokerArgs, watch: &WatchConfig) -> Result<Want, Error> {
    Want::new(&CaptureArgs {
        broker: broker.clone(),
        capture_way: Some(way_of(watch)),
        ..CaptureArgs::default()
    })
}

impl Agent<'_> {
    fn read(&mut self) {
        let begin = Instant::now();
        let report = self.capture.report(true);
        self.metrics.update(&report, begin.elapsed());
        self.next = Instant::now() + READ_EVERY;
        if let Some(flight) = &mut self.flight {
            flight.checkpoint(&report);
            self.metrics.lost(flight.lost());
        }
        if let Some(fleet) = &self.fleet {
            self.metrics.fleet(&fleet.figures());
            fleet.tell();
        }
    }

    fn period_begin(&mut self) {
        // By the clock, and not by when it was noticed; but never twice at once.
        let now = Instant::now();
        let due = self.period_ends + self.config.watch.period;
        self.period_ends = match due > now {
            true => due.min(now + self.config.watch.period),
            false => now + self.config.watch.period,
        };
        self.recorded = self.config.flight.is_some();
        if let Some(flight) = &mut self.flight {
            flight.begin(|path| self.capture.writer(path));
        }
        if let Some(fleet) = &mut self.fleet {
            fleet.begin(self.capture.since.elapsed());
        }
    }

    /// A period is over, and the next one begins: with an account of its own, so that none is
    /// ever full, which takes the threads over in the middle of what they do.
    fn turn(&mut self) {
        let begun = Target::whom(&whom_of(&self.config.watch)).and_then(|target| {
            let want = want_of(self.broker, &self.config.watch)?;
            self.capture.again(want, target, self.inherited)
        });
        let next = match begun {
            Ok(next) => next,
            Err(error) => {
                let what = error.to_string();
                if self.trouble.as_ref() != Some(&what) {
                    debox_cli::say(&format!("{what}; the period goes on"));
                    self.trouble = Some(what);
                }
                self.period_ends = Instant::now() + self.config.watch.period;
                return;
            }
        };
        self.trouble = None;
        let finished = std::mem::replace(&mut self.capture, next).finish();
        self.period_end(finished.report());
        self.flight_take();
        self.period_begin();
    }

    /// Between two periods: the recorder that the file asks for, also if its folder could not be had
    /// until now.
    fn flight_take(&mut self) {
        let asked = self.config.flight.as_ref();
        let has = self.flight.as_ref().map(Flight::directory);
        if has == asked.map(|config| config.directory.as_path()) {
            return;
        }
        // Its lock goes first: to close a file again ends all locks that the process has on it.
        if let Some(mut flight) = self.flight.take() {
            self.metrics.lost(flight.lost());
        }
        self.flight = flight_open(&self.config, &mut self.no_flight);
    }

    fn period_end(&mut self, report: &Report) {
        self.metrics.close(report);
        if let Some(fleet) = &mut self.fleet {
            fleet.end(report);
        }
        let Some(flight) = &mut self.flight else {
            // Its folder could not be had.
            self.metrics.lost(u64::from(self.recorded));
            return;
        };
        flight.end(report);
        self.metrics.lost(flight.lost());
        let Some(config) = &self.config.flight else {
            return;
        };
        // What goes on would be kept again and again.
        if self.kept.is_some_and(|kept| kept.elapsed() < config.before) {
            return;
        }
        for when in &config.when {
            let waited = waited(report, &when.what);
            if waited > when.above {
                let (kind, name) = match &when.what {
                    What::Root(name) => ("root", name),
                    What::Label(name) => ("label", name),
                };
                let why = format!(
                    "{kind} {name}: {:.3} s in one period, more than {:.3} s",
                    waited.as_secs_f64(),
                    when.above.as_secs_f64()
                );
                self.kept = Some(Instant::now());
                keep(flight, &why);
                return;
            }
        }
    }

    /// `debox snapshot`
    fn snapshot(&mut self) {
        self.turn();
        match &mut self.flight {
            Some(flight) => keep(flight, "asked for"),
            None => debox_cli::say("nothing is kept: [flight] directory is \"\""),
        }
    }

    /// The file has changed, or may have.
    fn reload(&mut self) {
        let read = self.file.read().and_then(|config| {
            Target::whom(&whom_of(&config.watch))?;
            Ok(config)
        });
        let config = match read {
            Ok(config) => config,
            Err(error) => {
                debox_cli::say(&format!("{error}; what was read before stays"));
                return;
            }
        };
        let path = self.file.path.display();
        if config.metrics.listen != self.config.metrics.listen {
            debox_cli::say(&format!(
                "{path}: [metrics] listen is taken at the start only; start the agent again for it"
            ));
        }
        debox_cli::say(&format!("{path}: read again"));
        self.metrics.limit(&config.metrics);
        let flight = (self.config.flight.as_ref(), config.flight.as_ref());
        let moved = flight.0.map(|f| &f.directory) != flight.1.map(|f| &f.directory);
        if let (Some(flight), Some(config)) = (&mut self.flight, &config.flight)
            && !moved
        {
            flight.limit(config);
        }
        let anew = moved || config.watch != self.config.watch;
        if config.fleet != self.config.fleet {
            if let Some(fleet) = self.fleet.take() {
                fleet.close();
            }
            self.fleet = fleet_open(&config);
        }
        self.config = config;
        if anew {
            // The present period ends as it began.
            self.turn();
        }
    }

    /// When the figures are wanted, whether somebody asks or not.
    fn due(&self) -> Instant {
        let due = self.flight.as_ref().and_then(Flight::due);
        due.map_or(self.next, |due| due.min(self.next))
    }

    /// Until somebody ends it: by which signal. None: there is nothing to be watched any more.
    fn stay(&mut self) -> Option<i32> {
        loop {
            let next = self.due().min(self.period_ends);
            let tick = (self.capture).tick(Some(self.endpoint.as_fd()), Some(next));
            match tick.stop {
                Some(libc::SIGHUP) => self.reload(),
                Some(signal) => return Some(signal),
                None => {}
            }
            if tick.asked {
                self.snapshot();
            }
            if let Some(why) = self.capture.ended() {
                debox_cli::say(&format!("the watch is over: {why}"));
                return None;
            }
            if Instant::now() >= self.period_ends {
                self.turn();
            }
            let asked = self.endpoint.asked();
            if asked.is_some() || Instant::now() >= self.due() {
                self.read();
            }
            let mut next = asked;
            while let Some(asked) = next {
                asked.answer(self.metrics.text());
                next = self.endpoint.asked();
            }
        }
    }

    /// What there is of the present period is written.
    fn end(mut self) {
        let finished = self.capture.finish();
        if let Some(flight) = &mut self.flight {
            flight.end(finished.report());
        }
        if let Some(mut fleet) = self.fleet {
            fleet.end(finished.report());
            fleet.close();
        }
    }
}

fn keep(flight: &mut Flight, why: &str) {
    match flight.keep(why) {
        Ok(path) => debox_cli::say(&format!("kept in {}: {why}", path.display())),
        Err(error) => debox_cli::say(&format!("nothing is kept ({why}): {error}")),
    }
}

/// Without it the agent goes on. `why`: what was said of there being none.
fn flight_open(config: &Config, why: &mut Option<String>) -> Option<Flight> {
    let opened = Flight::open(config.flight.as_ref()?);
    let before = why.take();
    match opened {
        Ok(flight) => {
            if before.is_some() {
                let directory = flight.directory().display();
                debox_cli::say(&format!("flight recorder: goes on, in {directory}"));
            }
            Some(flight)
        }
        Err(error) => {
            let error = error.to_string();
            if before.as_ref() != Some(&error) {
                debox_cli::say(&format!("{error}; nothing is recorded"));
            }
            *why = Some(error);
            None
        }
    }
}

/// The same.
fn fleet_open(config: &Config) -> Option<Fleet> {
    match Fleet::open(config.fleet.as_ref()?) {
        Ok(fleet) => Some(fleet),
        Err(error) => {
            debox_cli::say(&format!(
                "{error}. Name another place in [fleet] to, or \"\" for none; nothing goes to the fleet's tables"
            ));
            None
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
    let want = want_of(&args.broker, &config.watch)?;
    // Before the long part: who else has the address is to be told at once.
    let endpoint = Endpoint::open(&config.metrics.listen)?;
    let mut no_flight = None;
    let flight = flight_open(&config, &mut no_flight);
    let fleet = fleet_open(&config);
    let ahead = Ahead::begin();
    let capture = Capture::open(want, &target)?.start(target, &inherited)?;
    drop(ahead);
    let recorded = match &flight {
        Some(flight) => format!("; recordings in {}", flight.directory().display()),
        None => String::new(),
    };
    debox_cli::say(&format!(
        "watching {words}{recorded}; figures at {}",
        endpoint.place()
    ));
    let mut agent = Agent {
        metrics: Metrics::new(&config.metrics),
        file,
        config,
        broker: &args.broker,
        inherited: &inherited,
        capture,
        endpoint,
        flight,
        no_flight,
        recorded: false,
        fleet,
        next: Instant::now(),
        period_ends: Instant::now(),
        kept: None,
        trouble: None,
    };
    agent.period_begin();
    let ended = agent.stay();
    agent.end();
    Ok(match ended {
        Some(libc::SIGTERM) => 0,
        Some(signal) => Ended::Signal(signal).end_as(),
        None => 1,
    })
}
