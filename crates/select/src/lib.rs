// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a program get a scalable select and poll without being changed?
//!
//! `debox select -- CMD` runs CMD with libdebox-select.so preloaded (the
//! library itself is C, in select/), says so when that cannot work, shows what
//! the library did, and compares runs with and without it. `debox bench select`
//! measures it with web servers.

#[cfg(test)]
#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;

mod agent;
pub mod answer;
pub mod bench;
mod compare;
pub mod connections;
pub mod load;
pub mod measure;
pub mod pace;
mod program;
pub mod serve;
pub mod servers;
mod socket;
pub mod stat;
pub mod statistics;

use debox_command::{
    Child, Ended, Environment, Inherited, Library, Program, Signals, Start, Streams, stop,
};
use debox_output::say;
use program::Obstacle;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LIBRARY: Library = Library {
    name: "libdebox-select.so",
    variable: "DEBOX_SELECT_LIBRARY",
};
const OPTIONS_ENV: &str = "DEBOX_SELECT";

/// Run a command with a scalable select() and poll()
///
/// The command's select, pselect, poll and ppoll answer as before, but what
/// they cost follows the number of descriptors that changed, not the number
/// that are open. The program is not changed; it must be dynamically linked
/// with the GNU C library.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  debox select -- lighttpd -D -f lighttpd.conf
  debox select --stats -- ./server
  debox select --compare -- ./load-test.sh
  debox select --compare -d 10s -- ./server

Environment of the command:
  DEBOX_SELECT   options, separated by commas: stats (print what the library did
                 when a process ends), off, threshold=N, recheck=MILLISECONDS
Environment of debox:
  DEBOX_SELECT_LIBRARY   libdebox-select.so, if it is elsewhere")]
pub struct Args {
    /// When the command has ended, print what the library did in each process
    #[arg(long, conflicts_with = "compare")]
    pub stats: bool,
    /// Run the command without and with the library (twice each, where its calls can be watched) and
    /// show both side by side
    #[arg(long)]
    pub compare: bool,
    /// With --compare: end each run after so long (SIGTERM), for commands that do not end
    #[arg(short, long, value_name = "TIME", value_parser = debox_command::duration, requires = "compare")]
    pub duration: Option<Duration>,
    /// Leave sets with fewer descriptors to the kernel [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub threshold: Option<u32>,
    /// Look at a whole set at least so often [default: 100ms, or longer where that is dear]
    #[arg(long, value_name = "TIME", value_parser = recheck)]
    pub recheck: Option<Duration>,
    /// The command and its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true, required = true)]
    pub command: Vec<OsString>,
}

/// The library counts in milliseconds, up to an hour.
fn recheck(text: &str) -> Result<Duration, String> {
    let time = debox_command::duration(text)?;
    if (Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&time) {
        Ok(time)
    } else {
        Err("from 1ms to 1h".into())
    }
}

/// Measure web servers with idle connections, without and with libdebox-select, and draw the figures
#[derive(clap::Args, Debug)]
pub struct BenchArgs {
    /// Fewer and shorter turns
    #[arg(long)]
    pub quick: bool,
    /// As root: servers and clients run before everything else, a quarter of the time; for machines
    /// that are busy with other things
    #[arg(long)]
    pub realtime: bool,
    /// Measure only the rows of the table with TEXT in their name, and no figures
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Turns of 25 ms for each server of a row; more make it more certain [default: 144]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub turns: Option<u32>,
    /// Write the figures (SVG) into this directory [default: the current one]
    #[arg(long, value_name = "DIR", conflicts_with = "only")]
    pub figures: Option<PathBuf>,
    /// Write the result to FILE (- is standard output)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// The plain server of the measurements.
#[derive(clap::Args, Debug)]
pub struct ServeArgs {
    pub backend: serve::Backend,
    /// Of 127.0.0.1
    #[arg(long)]
    pub port: u16,
}

/// Asks a server, as the measurements do.
#[derive(clap::Args, Debug)]
pub struct LoadArgs {
    /// Connections that do nothing
    #[arg(long)]
    pub idle: usize,
    /// Connections that ask
    #[arg(long)]
    pub hot: usize,
    /// For so long; without it, serve the process that measures
    #[arg(short, long, value_parser = debox_command::duration)]
    pub duration: Option<Duration>,
    /// Of 127.0.0.1
    #[arg(long)]
    pub port: u16,
    /// The page
    #[arg(long, default_value = "/1259")]
    pub path: String,
    /// Requests per second
    #[arg(long)]
    pub rate: Option<f64>,
    /// A new connection for each request
    #[arg(long)]
    pub close: bool,
    /// Connections misbehave
    #[arg(long)]
    pub churn: bool,
}

fn status_of(result: Result<i32, Error>) -> i32 {
    result.unwrap_or_else(|error| {
        say(&error.to_string());
        error.exit_status()
    })
}

/// `debox bench select`; the exit status. Ended by a signal, it ends by that signal when its
/// servers and clients are gone.
pub fn bench_run(args: &BenchArgs) -> i32 {
    stop::note_signals();
    let result = bench::run(args);
    match stop::asked_by() {
        // Ctrl-C reaches the clients, too, and then one that has ended is the error.
        Some(signal) if result.is_err() => Ended::Signal(signal).end_as(),
        _ => status_of(result),
    }
}

/// The server; the exit status.
pub fn serve_run(args: &ServeArgs) -> i32 {
    status_of(serve(args))
}

/// Its clients; the exit status.
pub fn load_run(args: &LoadArgs) -> i32 {
    status_of(load_print(args))
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Command(#[from] debox_command::Error),
    #[error("--only {0}: no row of the table has that in its name (docs/select.md lists them)")]
    NoSuchRow(String),
    #[error("{action}: {source}")]
    System {
        action: &'static str,
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { action, source }
    }

    fn exit_status(&self) -> i32 {
        match self {
            Error::Command(error) => error.exit_status(),
            _ => debox_command::FAILED,
        }
    }
}

pub fn library_find() -> Result<PathBuf, Error> {
    Ok(LIBRARY.find()?)
}

/// The command's environment, with the library or as without it.
fn environment(args: &Args, library: Option<&Path>, more: &str) -> Result<Environment, Error> {
    let mut environment = Environment::inherited();
    let Some(library) = library else {
        environment.remove(OPTIONS_ENV);
        return Ok(environment);
    };
    environment.preload(library, true)?;
    let mut options: Vec<String> = Vec::new();
    if let Some(given) = std::env::var(OPTIONS_ENV).ok().filter(|v| !v.is_empty()) {
        options.push(given);
    }
    if let Some(n) = args.threshold {
        options.push(format!("threshold={n}"));
    }
    if let Some(time) = args.recheck {
        options.push(format!("recheck={}", time.as_millis()));
    }
    if !more.is_empty() {
        options.push(more.to_owned());
    }
    environment.set(OPTIONS_ENV, options.join(",").as_bytes())?;
    Ok(environment)
}

/// Says it if the library will not get into the command, or not see all of its
/// waits. The command runs anyway, as it would without.
fn warn(command: &OsStr) -> Option<Obstacle> {
    let path = debox_command::find(command).ok()?;
    let program = program::running(&path)?;
    let Some(obstacle) = program::obstacle(&program) else {
        for text in program::own_calls(&program).texts() {
            say(&format!("{} {text}", program.display()));
        }
        return None;
    };
    say(&format!(
        "{} {}. Its select and poll stay the kernel's; it runs as it would without",
        program.display(),
        obstacle.text()
    ));
    Some(obstacle)
}

/// A command that asked to be ended gets this long, before SIGKILL.
const END_WAIT: Duration = Duration::from_secs(5);

/// Starts the command and waits for it, but no longer than `limit`; passes on
/// what is sent to debox.
fn run_to_end(
    words: &[OsString],
    environment: &Environment,
    inherited: &Inherited,
    streams: Streams<'_>,
    limit: Option<Duration>,
) -> Result<Ended, Error> {
    let signals = Signals::open()?;
    let program = Program::resolve(words)?;
    let start = Start {
        streams,
        ..Start::new(&program, environment, inherited)
    };
    let mut child: Child = start.start()?;
    let mut until = limit.map(|limit| Instant::now() + limit);
    loop {
        if let Some(ended) = child.wait(&signals, false, until)? {
            return Ok(ended);
        }
        child.end(&[(libc::SIGTERM, END_WAIT), (libc::SIGKILL, END_WAIT)]);
        until = None;
    }
}

/// Does what the command line says; the exit status. `inherited`: what the
/// command is to find.
pub fn run(args: &Args, inherited: &Inherited) -> i32 {
    status_of(if args.compare {
        compare::run(args, inherited).map(Ended::end_as)
    } else if args.stats {
        run_with_stats(args, inherited).map(Ended::end_as)
    } else {
        Err(run_as(args, inherited))
    })
}

/// Becomes the command, or says why not.
fn run_as(args: &Args, inherited: &Inherited) -> Error {
    let become_it = || -> Result<Error, Error> {
        let environment = environment(args, Some(&library_find()?), "")?;
        warn(&args.command[0]);
        let program = Program::resolve(&args.command)?;
        Ok(Start::new(&program, &environment, inherited)
            .become_it()
            .into())
    };
    become_it().unwrap_or_else(|error| error)
}

/// Where the library counts.
fn counts_make() -> Result<tempfile::NamedTempFile, Error> {
    let failed = Error::system("making a file to count in");
    let make = || {
        let file = tempfile::NamedTempFile::new()?;
        statistics::create(file.path())?;
        // Processes that give up their rights count, too.
        std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o666))?;
        Ok(file)
    };
    make().map_err(failed)
}

fn run_with_stats(args: &Args, inherited: &Inherited) -> Result<Ended, Error> {
    let library = library_find()?;
    warn(&args.command[0]);
    let file = counts_make()?;
    let option = format!("file={}", file.path().display());
    let environment = environment(args, Some(&library), &option)?;
    let ended = run_to_end(&args.command, &environment, inherited, [None; 3], None)?;
    let (list, lost) =
        statistics::read(file.path()).map_err(Error::system("reading the counts"))?;
    let mut out = io::stderr().lock();
    let _ = writeln!(out, "\ndebox select: what the library did");
    if list.is_empty() {
        let _ = writeln!(out, "  nothing: it is in none of the command's processes");
    }
    let _ = statistics::print(&list, lost, out);
    Ok(ended)
}

fn serve(args: &ServeArgs) -> Result<i32, Error> {
    servers::descriptors_allow(20_000);
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).map_err(Error::system("listening"))?;
    serve::serve(&listener, args.backend).map_err(Error::system("serving"))?;
    Ok(0)
}

fn load_print(args: &LoadArgs) -> Result<i32, Error> {
    servers::descriptors_allow(20_000);
    let load = load::Load {
        server: std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, args.port),
        path: args.path.clone(),
        idle: args.idle,
        hot: args.hot,
        keep_alive: !args.close,
        rate: args.rate,
        churn: args.churn,
        deadline: Duration::from_secs(5),
        seed: std::process::id().into(),
    };
    let failed = Error::system("asking the server");
    let Some(duration) = args.duration else {
        return agent::serve(load).map(|()| 0).map_err(failed);
    };
    let o = load::Client::new(load)
        .and_then(|mut client| client.run(duration))
        .map_err(failed)?;
    // A reader that has gone away (head) is no failure.
    let _ = writeln!(
        io::stdout().lock(),
        "{} requests, {:.0} per second, p50 {} us, p99 {} us, longest {} us; {} wrong, {} stalled, {} dropped",
        o.requests,
        o.rate(),
        o.latency_us(0.5),
        o.latency_us(0.99),
        o.latency_us(1.0),
        o.wrong,
        o.stalled,
        o.dropped
    );
    Ok(i32::from(o.wrong + o.stalled > 0 || o.requests == 0))
}
