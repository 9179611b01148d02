// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a web server of the case study loaded, and how many connections can it serve well?

mod files;
mod find;
mod mix;
mod outcome;
mod rates;
mod run;
mod sockets;

use clap::{Args, Parser, Subcommand};
use debox_output::{count_text, printable};
use find::{Search, Step};
use rates::Rates;
use run::{Page, Plan, WarmUp};
use sockets::Held;
use std::io::{self, Write};
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The case study's clients: SPECweb99's mix of requests over slow lines
#[derive(Parser)]
#[command(
    version,
    after_help = "\
Examples:
  load files --root /srv/site --directories 100
  load run --server 127.0.0.1:8080 --directories 100 --connections 400
  load run --server 127.0.0.1:8080 --directories 100 --connections 50 --kbit 0 --rate 2000
  load run --server 127.0.0.1:8080 --directories 100 --connections 500 --kbit 0 --rates day
  load find --server 127.0.0.1:8080 --directories 100 --from 50 --to 4000

FILE of --rates: a line for each point of time,
  SECONDS RATE [IDLE]
From then on (since the begin) requests begin at that rate, in each second, until the next point;
the last one is the end. With IDLE, there are so many idle connections then, and they come and go
evenly to the next number. Text behind # does not count.

Exit status: 0 measured; 1 no right answer at all, or no number found, or wrong
files; 2 it could not be done."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make the files that are served; those that are there with the right size stay
    Files {
        #[arg(long, value_name = "DIR")]
        root: PathBuf,
        /// Of 5 MB each
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
        directories: u32,
        /// Read them and compare each byte instead
        #[arg(long)]
        check: bool,
    },
    /// Load a server and say how it did
    Run {
        /// That ask, at the same time
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
        connections: u32,
        /// Requests each second, begun by a schedule (open loop) [default: as lines are clear]
        #[arg(long, value_name = "R", value_parser = above_zero)]
        rate: Option<f64>,
        /// A rate that changes, and idle connections with it: as the file says (below), from its
        /// first to its last point, with no warm-up
        #[arg(long, value_name = "FILE",
              conflicts_with_all = ["rate", "seconds", "warm_up", "warm_up_most", "idle"])]
        rates: Option<PathBuf>,
        /// The file's time 0, in seconds of the monotonic clock, so that several programs have one
        /// begin [default: when the idle connections are open]
        #[arg(long, value_name = "S", requires = "rates", value_parser = not_below_zero)]
        begin_at: Option<f64>,
        #[command(flatten)]
        options: Options,
    },
    /// Find the highest number of connections of which enough conform
    Find {
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
        from: u32,
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
        to: u32,
        /// Percent of the connections
        #[arg(long, value_name = "PERCENT", default_value_t = 95.0, value_parser = percent)]
        least: f64,
        /// How near the result is to be, in percent
        #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = percent)]
        within: f64,
        #[command(flatten)]
        options: Options,
    },
}

#[derive(Args)]
struct Options {
    /// IPv4 address and port
    #[arg(long, value_name = "ADDRESS:PORT")]
    server: SocketAddrV4,
    /// That the server has (`load files`)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    directories: u32,
    /// Speed of each connection's line, in kbit/s; 0: no limit
    #[arg(long, value_name = "SPEED", default_value_t = 400.0, value_parser = not_below_zero)]
    kbit: f64,
    /// A connection conforms that gets so much on average, in kbit/s, with less than 1 % errors
    #[arg(long, value_name = "SPEED", default_value_t = 320.0, value_parser = not_below_zero)]
    conforming: f64,
    /// Files only: no dynamic pages, CGI or POST
    #[arg(long)]
    static_only: bool,
    /// Ask for this page alone
    #[arg(long, value_name = "/PATH", requires = "page_bytes", conflicts_with = "cgi", value_parser = page)]
    page: Option<String>,
    /// That it has; which ones is not looked at
    #[arg(long, value_name = "N", requires = "page")]
    page_bytes: Option<u64>,
    /// CGI's part of all requests, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.15, value_parser = cgi_percent)]
    cgi: f64,
    /// Requests of a connection on average, from half of that to half more, each as likely; 0: it
    /// is never made anew
    #[arg(long, value_name = "N", default_value_t = 10)]
    new_connection_every: u32,
    /// Measure for so long
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = above_zero)]
    seconds: f64,
    /// Before that: until the throughput is level, or so many seconds
    #[arg(long, value_name = "auto|S", default_value = "auto", value_parser = warm_up)]
    warm_up: AutoOr,
    /// The longest wait for a level throughput
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = above_zero)]
    warm_up_most: f64,
    /// Of all draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Answers that are compared byte by byte; status and length are looked at always
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = percent)]
    verify: f64,
    /// More connections, which say nothing
    #[arg(long, value_name = "N", default_value_t = 0)]
    idle: u32,
    /// An answer that does not go on for so long has failed
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = above_zero)]
    silence: f64,
    /// Write the result there as JSON (- is standard output, and then nothing else is)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy)]
enum AutoOr {
    Auto,
    Seconds(f64),
}

/// Beside what it was asked for.
fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "load: {}", printable(text));
}

fn number(text: &str, fits: impl Fn(f64) -> bool, what: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|n: &f64| n.is_finite() && fits(*n));
    number.ok_or_else(|| what.to_owned())
}

/// More than any speed or time here.
const MOST: f64 = 1e9;

fn not_below_zero(text: &str) -> Result<f64, String> {
    number(text, |n| (0.0..=MOST).contains(&n), "a number from 0 on")
}

fn above_zero(text: &str) -> Result<f64, String> {
    number(
        text,
        |n| (1e-3..=MOST).contains(&n),
        "a number from 0.001 on",
    )
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, |n| (0.0..=100.0).contains(&n), "from 0 to 100")
}

fn cgi_percent(text: &str) -> Result<f64, String> {
    let most = mix::CGI_PERCENT_MOST;
    number(
        text,
        |n| (0.0..=most).contains(&n),
        &format!("from 0 to {most:.1}"),
    )
}

fn page(text: &str) -> Result<String, String> {
    let plain = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic());
    plain
        .then(|| text.to_owned())
        .ok_or_else(|| "a path, as /1259".into())
}

fn warm_up(text: &str) -> Result<AutoOr, String> {
    match text {
        "auto" => Ok(AutoOr::Auto),
        _ => not_below_zero(text)
            .map(AutoOr::Seconds)
            .map_err(|_| "auto, or a number of seconds".into()),
    }
}

impl Options {
    fn plan(&self, connections: usize, rates: Option<Rates>, begin_at: Option<f64>) -> Plan {
        let end = rates.as_ref().and_then(Rates::end);
        Plan {
            server: self.server,
            directories: self.directories,
            connections,
            idle: rates
                .as_ref()
                .and_then(Rates::most_idle)
                .unwrap_or(self.idle as usize),
            line_kbit: self.kbit,
            conforming_kbit: self.conforming,
            static_only: self.static_only,
            cgi_percent: self.cgi,
            rates,
            begin_at,
            page: self.page.clone().map(|path| Page {
                path,
                bytes: self.page_bytes.unwrap_or_default(),
            }),
            new_connection_every: self.new_connection_every,
            measured: Duration::from_secs_f64(end.unwrap_or(self.seconds)),
            warm_up: match self.warm_up {
                _ if end.is_some() => WarmUp::Fixed(Duration::ZERO),
                AutoOr::Auto => WarmUp::Level(Duration::from_secs_f64(self.warm_up_most)),
                AutoOr::Seconds(s) => WarmUp::Fixed(Duration::from_secs_f64(s)),
            },
            seed: self.seed,
            verify_percent: self.verify,
            silence: Duration::from_secs_f64(self.silence),
        }
    }

    /// Text for people, or JSON where that is wanted.
    fn tell(&self, text: &str, json: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match &self.json {
            Some(path) if path.as_os_str() == "-" => writeln!(out, "{json}"),
            Some(path) => {
                debox_output::write(path, json.as_bytes())?;
                out.write_all(text.as_bytes())
            }
            None => out.write_all(text.as_bytes()),
        }
    }
}

fn run_once(options: &Options, plan: &Plan) -> io::Result<bool> {
    let outcome = run::run(plan)?;
    options.tell(&outcome.text(), &outcome.json())?;
    for warning in outcome.warnings() {
        say(&warning);
    }
    Ok(outcome.answers() > 0)
}

fn search(options: &Options, search: &Search, least: f64) -> io::Result<bool> {
    let before = Held::now()?;
    let mut step = |connections: usize| -> io::Result<Step> {
        let settled = sockets::settle(before)?;
        let outcome = run::run(&options.plan(connections, None, None))?;
        let percent = outcome.conforming().expect("a closed loop").percent;
        let step = Step {
            connections,
            conforming_percent: percent,
            requests_per_second: outcome.requests_per_second(),
            errors: outcome.error_count(),
            stationary: outcome.warm_up.stationary,
            settled,
            generator_is_bottleneck: outcome.generator_is_bottleneck(),
            passed: percent >= least,
        };
        say(&format!(
            "{} connections: {percent:.1} % conform, {:.1} requests/s, {} errors",
            count_text(connections as u64),
            step.requests_per_second,
            step.errors
        ));
        if !settled {
            say("sockets of the run before still held its bytes as this one began");
        }
        for warning in outcome.warnings() {
            say(&warning);
        }
        Ok(step)
    };
    let found = find::find(search, least, &mut step)?;
    let mut text = match found.highest {
        Some(n) => format!(
            "{} connections: the highest number of which {least} % conform\n",
            count_text(n as u64)
        ),
        None => format!(
            "not even of {} connections do {least} % conform\n",
            search.from
        ),
    };
    if found.at_upper_end {
        text += "  --to is reached: the server may do more\n";
    }
    if !found.monotone {
        text += "  a number failed that is not above all that passed: runs differ\n";
    }
    if found.limited_by_generator {
        text += "  the generator had no more time: the server may do more\n";
    }
    let json = serde_json::to_string(&found).expect("numbers");
    options.tell(&text, &json)?;
    Ok(found.highest.is_some())
}

fn execute(cli: Cli) -> io::Result<bool> {
    match cli.command {
        Command::Files {
            root,
            directories,
            check: true,
        } => {
            let wrong = files::check(&root, directories)?;
            for line in &wrong {
                say(line);
            }
            Ok(wrong.is_empty())
        }
        Command::Files {
            root, directories, ..
        } => {
            let (files, bytes) = files::make(&root, directories)?;
            let all = directories * files::CLASSES * files::FILES;
            println!(
                "{} of {} files made, {}",
                count_text(files),
                count_text(all.into()),
                debox_output::bytes_text(bytes)
            );
            Ok(true)
        }
        Command::Run {
            connections,
            rate,
            rates,
            begin_at,
            options,
        } => {
            let rates = match rates {
                Some(file) => Some(Rates::read(&file)?),
                None => rate.map(Rates::constant),
            };
            let plan = options.plan(connections as usize, rates, begin_at);
            run_once(&options, &plan)
        }
        Command::Find { from, to, .. } if from > to => Err(io::Error::other(format!(
            "--from {from} is above --to {to}"
        ))),
        Command::Find {
            from,
            to,
            least,
            within,
            options,
        } => {
            let range = Search {
                from: from as usize,
                to: to as usize,
                within: within / 100.0,
            };
            search(&options, &range, least)
        }
    }
}

fn main() -> ExitCode {
    match execute(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            say(&error.to_string());
            ExitCode::from(2)
        }
    }
}
