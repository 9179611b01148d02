// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be said on debox's command line?

use crate::acting::ActArgs;
use crate::whom::WhomArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use debox_command::duration;
use debox_report::SortKey;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Where did the time of a program's system calls go?
///
/// debox accounts for every system call of a program: time on CPU, time
/// blocked and where, time spent waiting for a CPU, page faults, errors. The
/// program is neither changed nor stopped.
#[derive(Parser, Debug)]
#[command(
    name = "debox",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  debox run -- tar czf /tmp/x.tar.gz /usr/include
  debox run --json -o report.json -- make
  debox run -o make.debox -- make && debox report make.debox
  debox attach -p $(pidof -s nginx) -d 10s
  debox why postgres
  debox doctor

Environment:
  DEBOX_SOCKET         the broker to use (default: a private one as root, else
                       /run/debox/debox.sock)
  DEBOX_WRAP_LIBRARY   libdebox-wrap.so for `run --capture=wrap`, if it is elsewhere
  DEBOX_SPLICE_RUNTIME debox-splice.bin for `--capture=splice`, if it is elsewhere
  NO_COLOR             no colours on a terminal"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Verb,
}

#[derive(Subcommand, Debug)]
pub enum Verb {
    Run(RunArgs),
    Attach(AttachArgs),
    Report(ShowArgs),
    Top(TopArgs),
    Why(WhyArgs),
    Agent(AgentArgs),
    Snapshot(SnapshotArgs),
    Serve(Box<ServeArgs>),
    Fleet(FleetArgs),
    Diff(DiffArgs),
    Kern(Box<debox_kern::Args>),
    Select(Box<debox_select::Args>),
    Doctor(DoctorArgs),
    Status(StatusArgs),
    Bench(debox_bench::Args),
    Completions(CompletionsArgs),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    Always,
    Never,
}

fn sort_key() -> impl TypedValueParser<Value = SortKey> {
    // Every listed name parses, so the default is never taken.
    PossibleValuesParser::new(SortKey::NAMES).map(|name| SortKey::parse(&name).unwrap_or_default())
}

fn rows(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("a number of rows, 1 or more".into()),
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < Duration::from_millis(50) {
        return Err("50ms is the shortest".into());
    }
    Ok(interval)
}

fn one_in() -> impl TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(2..=1024)
}

fn view() -> impl TypedValueParser<Value = debox_top::View> {
    // Every listed name parses, so the default is never taken.
    PossibleValuesParser::new(debox_top::View::NAMES)
        .map(|name| debox_top::View::parse(&name).unwrap_or(debox_top::View::Calls))
}

/// How the report looks and where it goes.
#[derive(Args, Debug, Default)]
pub struct ReportArgs {
    /// Write the report to FILE (- is standard output)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write the report as JSON
    #[arg(long)]
    pub json: bool,
    /// Sort the calls by this column, largest first
    #[arg(long, value_name = "COLUMN", default_value = "total", value_parser = sort_key())]
    pub sort: SortKey,
    /// Print only the first N rows of each table (JSON always has all)
    #[arg(long, value_name = "N", value_parser = rows)]
    pub top: Option<usize>,
    /// When to use colours
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        hide_short_help = true
    )]
    pub color: Color,
    /// Leave the notes below the tables out (JSON always has them); -o /dev/null leaves the report out
    #[arg(short, long, hide_short_help = true)]
    pub quiet: bool,
}

/// Where a result goes that is not a report, and in which form.
#[derive(Args, Debug, Default)]
pub struct ResultArgs {
    /// Write the result to FILE (- is standard output, as without this option)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Whether the run is recorded.
#[derive(Args, Debug, Default)]
pub struct RecordArgs {
    /// Write a recording to the FILE of -o, for `debox report`; without this
    /// option when FILE ends in .debox
    #[arg(long, hide_short_help = true, requires = "output")]
    pub record: bool,
}

/// What is told beside the sums.
#[derive(Args, Debug, Default)]
pub struct DetailArgs {
    /// Account by the place in the program that called, too
    #[arg(long)]
    pub call_site: bool,
    /// The same with all callers of that place; blocked time by call path
    #[arg(long, hide_short_help = true)]
    pub stacks: bool,
}

/// Which broker to use.
#[derive(Args, Debug, Default, Clone)]
pub struct BrokerArgs {
    /// Use the broker at this socket
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    pub socket: Option<PathBuf>,
    /// Name blocking places by the rules in FILE first (private broker only)
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub labels: Option<PathBuf>,
    /// Take files and lines from this vmlinux with debug information (private broker only)
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub vmlinux: Option<PathBuf>,
}

impl BrokerArgs {
    /// One that is asked for, and not one that happens to be there.
    pub fn is_named(&self) -> bool {
        self.socket.is_some() || self.labels.is_some() || self.vmlinux.is_some()
    }
}

/// What `run` and `attach` have in common.
#[derive(Args, Debug, Default)]
pub struct CaptureArgs {
    #[command(flatten)]
    pub report: ReportArgs,
    #[command(flatten)]
    pub record: RecordArgs,
    /// For so long at most, such as 10s or 500ms (a command is then ended: SIGTERM, and SIGKILL
    /// after 5 s)
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Do not follow children that are started from now on (threads are always watched)
    #[arg(long, hide_short_help = true)]
    pub no_follow: bool,
    /// Measure interrupts that land in its calls and take them out of the time on CPU (costs
    /// every interrupt of the machine a little)
    #[arg(long, hide_short_help = true)]
    pub irq: bool,
    /// How the ends of calls are known (run: splice, boundary for what is only there; else boundary)
    #[arg(long = "capture", value_name = "WAY", value_enum)]
    pub capture_way: Option<Way>,
    /// With --capture=splice: look in the kernel, too, whether each call was counted, and tell (all
    /// processes pay for it)
    #[arg(long, hide_short_help = true)]
    pub audit: bool,
    /// With --capture=splice: of calls that take less than 1 us stamp about one in N, and estimate the time of the
    /// others (counts stay exact)
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = one_in())]
    pub sample: Option<u32>,
    /// Look N times a second, on each CPU, what its threads do there; 0: do not look
    #[arg(
        long,
        value_name = "N",
        default_value_t = HZ,
        hide_short_help = true,
        value_parser = clap::value_parser!(u32).range(0..=i64::from(debox_abi::DEBOX_ON_CPU_HZ_MAX))
    )]
    pub hz: u32,
    #[command(flatten)]
    pub details: DetailArgs,
    #[command(flatten)]
    pub act: ActArgs,
    #[command(flatten)]
    pub trace: crate::trace::TraceArgs,
    #[command(flatten)]
    pub broker: BrokerArgs,
}

/// How often a clock of CPU time strikes, if nothing is said.
pub const HZ: u32 = 99;

/// How the ends of calls are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Way {
    /// In the kernel, all calls, with what they waited for
    #[default]
    Boundary,
    /// In user space, by preloading libdebox-wrap.so: cheaper, but calls that libc makes
    /// internally and static programs are not counted
    Wrap,
    /// In the program's own code, all calls, by jumps in place of them, at no cost for others:
    /// counts, errors and wall times without privileges; where there are some, or a broker, also
    /// what calls waited for
    Splice,
    /// Not at all: only what waits is seen, and calls are not counted; at the least cost
    Sleeps,
}

impl Way {
    /// Of processes that run already, or that are looked at live.
    pub fn check_live(self, named: bool) -> Result<(), crate::error::Error> {
        let why = match self {
            Self::Boundary | Self::Sleeps => return Ok(()),
            Self::Splice if named => return Ok(()),
            Self::Splice => {
                "--capture=splice goes into the code of each process: name them (-p). By what processes have in \
                 common there are boundary and sleeps"
            }
            Self::Wrap if named => {
                "--capture=wrap begins with a program, and ends in one report: use debox run. Here there are \
                 boundary, splice and sleeps"
            }
            Self::Wrap => {
                "--capture=wrap begins with a program, and ends in one report: use debox run. By what processes have \
                 in common there are boundary and sleeps"
            }
        };
        Err(crate::error::Error::Arguments(why.into()))
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Boundary => "boundary",
            Self::Wrap => "wrap",
            Self::Splice => "splice",
            Self::Sleeps => "sleeps",
        }
    }
}

/// Run a command and account for its system calls
///
/// CMD keeps debox's standard streams, signals, limits and open files, and
/// debox ends as CMD ends: with the same status, or by the same signal. The
/// report goes to standard error. 127: CMD not found; 126: CMD cannot be
/// executed; 125: debox itself cannot work.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  debox run -- tar czf /tmp/x.tar.gz /usr/include
  debox run --sort blocked --top 10 -- git status
  debox run --json -o report.json -- make -j2
  debox run --capture=wrap --call-site -- ./server
  debox run --trace 'vfs_*,ext4_*' --call openat,unlink -- ./server

The columns: COUNT calls that returned, ERRORS of those, TOTAL/MEAN/P50/P99/MAX
wall time, ON-CPU + BLOCKED + RUNQ = TOTAL (RUNQ: runnable, but no CPU was
free), MINFLT/MAJFLT page faults inside of calls, VCSW/ICSW voluntary and
involuntary context switches, RESTART interrupted by a signal, UNFIN never
returned, or not yet. - is zero, ? is not measured.")]
pub struct RunArgs {
    #[command(flatten)]
    pub capture: CaptureArgs,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// Account for the system calls of running processes
///
/// Until the time is over, the processes have ended, or Ctrl-C. Threads that
/// are inside a call at the end are listed. Named processes are watched with their
/// descendants; of those that are told by what they have in common, those that come later are
/// watched from their first instruction on. Needs CAP_PERFMON or CAP_SYS_ADMIN, as root has;
/// without, nobody is named, and of those that fit only those are watched that ptrace would
/// let you read.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  debox attach -p 1234
  debox attach -p 1234,1240 -d 10s --json -o report.json
  debox attach --unit nginx -d 10s
  debox attach --comm 'php-fpm*' --uid www-data -o php.debox
  debox attach --all -d 5s")]
pub struct AttachArgs {
    /// Process ids
    #[arg(short, long = "pid", value_name = "PID", required_unless_present = "WhomArgs",
          conflicts_with = "WhomArgs", value_delimiter = ',', value_parser = clap::value_parser!(i32).range(1..))]
    pub pids: Vec<i32>,
    #[command(flatten)]
    pub whom: WhomArgs,
    #[command(flatten)]
    pub capture: CaptureArgs,
}

/// Show a recording
///
/// FILE is what `debox run -o FILE.debox` or `debox attach -o FILE.debox` wrote,
/// complete or cut off, or what their --json wrote. The report goes to standard
/// output.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  debox report run.debox
  debox report --sort blocked --top 10 run.debox
  debox report --json run.debox | jq '.trends[].text'
  debox report --html run.html run.debox")]
pub struct ShowArgs {
    /// A recording, or a JSON report
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub report: ReportArgs,
    #[command(flatten)]
    pub export: ExportArgs,
}

/// Other forms of a report, each to a file of its own.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Other forms (- is standard output)")]
pub struct ExportArgs {
    /// Write one self-contained page for browsers
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write blocked time as folded stacks, for flamegraph.pl and speedscope
    #[arg(long, value_name = "FILE")]
    pub folded: Option<PathBuf>,
    /// Write what ran on the CPU as folded stacks, a count of samples each
    #[arg(long, value_name = "FILE")]
    pub folded_cpu: Option<PathBuf>,
    /// Write all of the threads' time as folded stacks: on a CPU, asleep with what was
    /// waited for, waiting for a CPU
    #[arg(long, value_name = "FILE")]
    pub folded_all: Option<PathBuf>,
    /// Write the slow calls as a Chrome trace, for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// Write a profile for `go tool pprof`
    #[arg(long, value_name = "FILE")]
    pub pprof: Option<PathBuf>,
    /// Write tables for DuckDB, ClickHouse and pandas: DIR/calls.parquet ...
    #[arg(long, value_name = "DIR")]
    pub parquet: Option<PathBuf>,
}

impl ExportArgs {
    /// Whether any is asked for; the text is then left out.
    pub fn any(&self) -> bool {
        [
            &self.html,
            &self.folded,
            &self.folded_cpu,
            &self.folded_all,
            &self.perfetto,
            &self.pprof,
            &self.parquet,
        ]
        .iter()
        .any(|f| f.is_some())
    }
}

/// Say what changed between two runs, and how sure that is
///
/// A and B are recordings (`debox run -o FILE.debox`) or JSON reports
/// (--json); A is the run before. Every change comes with an interval, from
/// the histories of the recordings where there are any. Runs that cannot be
/// compared are refused.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  debox run -o before.debox -- ./server-bench
  debox run -o after.debox -- ./server-bench
  debox diff before.debox after.debox
  debox diff --json a.debox b.debox | jq '.changes[].text'
  debox diff --html change.html before.debox after.debox

The exit status is 0 whether or not something changed; 125 when the runs cannot
be compared.")]
pub struct DiffArgs {
    /// The run before
    #[arg(value_name = "A")]
    pub a: PathBuf,
    /// The run after
    #[arg(value_name = "B")]
    pub b: PathBuf,
    #[command(flatten)]
    pub result: ResultArgs,
    /// Write one self-contained page for browsers
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write only the first N lines of each part
    #[arg(long, value_name = "N", value_parser = rows)]
    pub top: Option<usize>,
    /// Confidence of the intervals and of all verdicts together, in percent
    #[arg(long, value_name = "PERCENT", default_value = "95", value_parser = percent)]
    pub confidence: f64,
    /// Pass over changes smaller than this, in percent
    #[arg(long, value_name = "PERCENT", default_value = "2", value_parser = percent)]
    pub min_change: f64,
    /// Pass over changes that make up less of the time of all calls, in percent
    #[arg(long, value_name = "PERCENT", default_value = "0.1", value_parser = percent)]
    pub min_effect: f64,
    /// Compare runs that were not taken in the same way
    #[arg(long)]
    pub force: bool,
    /// Seed of the random numbers that the intervals are drawn with
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim_end().parse::<f64>() {
        Ok(n) if (0.0..100.0).contains(&n) => Ok(n / 100.0),
        _ => Err("a number of percent, from 0 to below 100".into()),
    }
}

/// Watch live where a program's time goes
///
/// A table of its system calls, renewed every second, beside views of where
/// they block, of call sites, threads, of those who keep them waiting, and of
/// processes. Without any of -p, CMD and what stands for processes: the whole machine.
/// ? shows the keys. Needs CAP_PERFMON or CAP_SYS_ADMIN, as root has.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  debox top
  debox top -p $(pidof -s nginx)
  debox top --unit nginx
  debox top -- make -j4
  debox top -p 1234 --batch 3 --view blocking,threads > frames.txt")]
pub struct TopArgs {
    /// Process ids
    #[arg(short, long = "pid", value_name = "PID",
          conflicts_with_all = ["command", "WhomArgs"], value_delimiter = ',', value_parser = clap::value_parser!(i32).range(1..))]
    pub pids: Vec<i32>,
    #[command(flatten)]
    pub whom: WhomArgs,
    /// Renew so often
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// For so long, then end as by q (a command is then ended)
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Begin with this view: calls, blocking, sites, threads, culprits or processes (with
    /// --batch: these views)
    #[arg(long, value_name = "VIEW", value_delimiter = ',', value_parser = view())]
    pub view: Vec<debox_top::View>,
    /// Begin with sums since the start instead of figures per second
    #[arg(long)]
    pub totals: bool,
    /// Print N frames of plain text instead, and end
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub batch: Option<u64>,
    /// Where CMD's output goes (default: nowhere)
    #[arg(long, value_name = "FILE", requires = "command")]
    pub command_output: Option<PathBuf>,
    /// Measure interrupts that land in its calls and take them out of the time on CPU (costs
    /// every interrupt of the machine a little)
    #[arg(long, hide_short_help = true)]
    pub irq: bool,
    /// How the ends of calls are known: boundary (if nothing is said), splice or sleeps
    #[arg(
        long = "capture",
        value_name = "WAY",
        value_enum,
        hide_short_help = true
    )]
    pub capture_way: Option<Way>,
    /// With --capture=splice: of calls that take less than 1 us stamp about one in N, and estimate the time of the
    /// others (counts stay exact)
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = one_in())]
    pub sample: Option<u32>,
    /// Do not follow children
    #[arg(long)]
    pub no_follow: bool,
    /// When to use colours
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        hide_short_help = true
    )]
    pub color: Color,
    #[command(flatten)]
    pub broker: BrokerArgs,
    /// The command and its arguments; its input is empty
    #[arg(
        value_name = "CMD",
        trailing_var_arg = true,
        conflicts_with = "WhomArgs"
    )]
    pub command: Vec<OsString>,
}

/// Say what a process is waiting for right now, and who keeps it waiting
///
/// For each thread: since when, in which call and on what, behind whom, and what that
/// one waits for, to the end of the chain; threads that wait for each other are named as
/// a deadlock. Nothing is stopped or changed, and processes that hang already are seen as
/// well as others. As an ordinary user: one's own processes, as far as /proc tells.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  debox why 4711
  debox why postgres
  debox why --unit nginx
  debox why --json 4711 | jq -r '.sentences[]'")]
pub struct WhyArgs {
    /// Processes or threads: numbers, or names as ps shows them
    #[arg(
        value_name = "PID|TID|NAME",
        required_unless_present = "WhomArgs",
        conflicts_with = "WhomArgs"
    )]
    pub targets: Vec<String>,
    #[command(flatten)]
    pub whom: WhomArgs,
    #[command(flatten)]
    pub result: ResultArgs,
    /// Show the calls and stacks of idle threads as well (JSON always has them)
    #[arg(short = 'a', long)]
    pub idle: bool,
    /// Name waits by the rules in FILE first
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub labels: Option<PathBuf>,
}

/// Say what works on this machine, what does not, why, and what to do about it
///
/// Features are really tried, not guessed from versions. The exit status is 0
/// when `run` and `attach` work, else 1.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub result: ResultArgs,
    /// Look for the permanent broker at this socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// When to use colours
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub color: Color,
}

/// Watch for as long as the machine runs: figures for Prometheus, and the last recordings
///
/// Whom, how and where is in a file; without one the whole machine is watched by its sleeps alone, and the figures are at
/// http://127.0.0.1:9464/metrics. SIGHUP has the file read again.
#[derive(Args, Debug)]
pub struct AgentArgs {
    /// Whom, how and where is in this file (default: /etc/debox/agent.toml, if it is there)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Say what is wrong with the file, and end
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub broker: BrokerArgs,
}

/// Have the agent keep its recordings of the last minutes
///
/// The period that is under way ends now, and what was recorded in the last minutes (the setting before of
/// /etc/debox/agent.toml) stays in a folder of its own, which is printed: each file in it is for debox report.
#[derive(Args, Debug)]
pub struct SnapshotArgs {
    /// The folder of the agent's flight recorder
    #[arg(long, value_name = "DIR", default_value = "/var/lib/debox/flight")]
    pub directory: PathBuf,
}

/// Show in a browser what the machine waits for, and recordings of what it waited for
///
/// A page on this machine alone: what `debox top` shows, renewed, and the recordings of a
/// directory over time, to be opened. Whoever has the address that is printed, with its token,
/// may look; nothing can be changed. Watching needs what `debox top` needs; without it there are
/// the recordings.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  debox serve
  debox serve --unit nginx --listen 127.0.0.1:8642
  debox serve --listen /run/user/1000/debox.sock
  debox serve --no-watch --recordings .")]
pub struct ServeArgs {
    /// Where: HOST:PORT of this machine alone (port 0: a free one), or the path of a Unix socket,
    /// which is for this user and root
    #[arg(long, value_name = "PLACE", default_value = "127.0.0.1:0")]
    pub listen: String,
    /// Show the recordings of this directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/debox/flight")]
    pub recordings: PathBuf,
    /// Watch nobody: recordings only
    #[arg(long, conflicts_with_all = ["pids", "WhomArgs", "capture_way", "BrokerArgs"])]
    pub no_watch: bool,
    /// Take the token from FILE, which nobody else can read, instead of making one
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub token: Option<PathBuf>,
    /// Answer to this name as well: it leads to this machine
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub host: Vec<String>,
    /// Let --listen name an address that other machines reach. What is shown, and the token, goes
    /// unencrypted
    #[arg(long, hide_short_help = true, requires = "token")]
    pub anywhere: bool,
    /// Process ids
    #[arg(short, long = "pid", value_name = "PID", conflicts_with = "WhomArgs", value_delimiter = ',',
          value_parser = clap::value_parser!(i32).range(1..))]
    pub pids: Vec<i32>,
    #[command(flatten)]
    pub whom: WhomArgs,
    /// How the ends of calls are known: sleeps (if nothing is said: at the least cost), boundary or
    /// splice
    #[arg(
        long = "capture",
        value_name = "WAY",
        value_enum,
        hide_short_help = true
    )]
    pub capture_way: Option<Way>,
    /// Do not follow children
    #[arg(long, hide_short_help = true)]
    pub no_follow: bool,
    #[command(flatten)]
    pub broker: BrokerArgs,
}

/// Ask what the agents of many hosts tell
///
/// In ClickHouse's SQL, over the Parquet files that agents write (with the command clickhouse or
/// the Python package chdb), a database that these were loaded into, or a server.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  debox fleet top --since 1h --by unit,root
  debox fleet why --host web-1 --at 2026-11-27T10:00
  debox fleet diff --before v1.4 --after v1.5
  debox fleet sql \"SELECT count() FROM periods\"
  debox fleet load --url clickhouse://db.example")]
pub struct FleetArgs {
    #[command(subcommand)]
    pub verb: FleetVerb,
}

#[derive(Subcommand, Debug)]
pub enum FleetVerb {
    Top(FleetTopArgs),
    Why(FleetWhyArgs),
    Diff(FleetDiffArgs),
    Sql(FleetSqlArgs),
    Load(FleetLoadArgs),
}

/// Columns that waits are told apart by.
pub const FLEET_COLUMNS: [&str; 12] = [
    "host",
    "release",
    "policy",
    "unit",
    "container",
    "pod",
    "program",
    "call",
    "label",
    "class",
    "root",
    "state",
];

/// Where the tables are.
#[derive(Args, Debug, Default)]
pub struct FleetFrom {
    /// Parquet files as agents write them: a directory or s3://BUCKET/PREFIX (default: /var/lib/debox/fleet)
    #[arg(long, value_name = "DIR")]
    pub parquet: Option<PathBuf>,
    /// A database of chDB or clickhouse local, as `debox fleet load` makes
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    pub database: Option<PathBuf>,
    /// A server: http://HOST:8123, https://HOST:8443 or clickhouse://HOST
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
}

/// Of which rows.
#[derive(Args, Debug, Default)]
pub struct FleetRows {
    /// Sum up by these columns, four at most; state is of threads' time, and goes with the first five
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', value_parser = PossibleValuesParser::new(FLEET_COLUMNS))]
    pub by: Vec<String>,
    /// Waits of these classes: loss, unknown, input, idle, rest, tool, or all
    #[arg(
        long,
        value_name = "CLASS",
        value_delimiter = ',',
        default_value = "loss,unknown"
    )]
    pub class: Vec<String>,
    /// This host alone
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// The first N rows
    #[arg(long, value_name = "N", default_value = "20", value_parser = rows)]
    pub top: usize,
}

/// Say what hosts wait for most, or where the time of their threads goes
#[derive(Args, Debug)]
pub struct FleetTopArgs {
    #[command(flatten)]
    pub rows: FleetRows,
    /// Of so long, up to --until
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    pub since: Duration,
    /// Until then: 2026-11-27T10:00 (UTC), or 2h for two hours ago (default: now)
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
    #[command(flatten)]
    pub from: FleetFrom,
    #[command(flatten)]
    pub result: ResultArgs,
}

/// Say why a host was slow at a moment
#[derive(Args, Debug)]
pub struct FleetWhyArgs {
    /// Of this host
    #[arg(long, value_name = "HOST")]
    pub host: String,
    /// At that moment: 2026-11-27T10:00 (UTC), or 2h for two hours ago (default: now)
    #[arg(long, value_name = "WHEN")]
    pub at: Option<String>,
    /// What this policy of the agent watches alone (default: each one's last period)
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    #[command(flatten)]
    pub from: FleetFrom,
    #[command(flatten)]
    pub result: ResultArgs,
}

/// Say what changed between two releases or two times, and how sure that is
#[derive(Args, Debug)]
pub struct FleetDiffArgs {
    /// A release, or FROM..TO
    #[arg(long, value_name = "WHICH")]
    pub before: String,
    /// A release, or FROM..TO
    #[arg(long, value_name = "WHICH")]
    pub after: String,
    #[command(flatten)]
    pub rows: FleetRows,
    /// Of a release: of so long, up to now
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    pub since: Duration,
    /// Confidence of the intervals and of all verdicts together, in percent
    #[arg(long, value_name = "PERCENT", default_value = "95", value_parser = percent)]
    pub confidence: f64,
    #[command(flatten)]
    pub from: FleetFrom,
    #[command(flatten)]
    pub result: ResultArgs,
}

/// Ask in SQL: tables periods, waits, threads, calls
#[derive(Args, Debug)]
pub struct FleetSqlArgs {
    /// In ClickHouse's dialect; - is standard input
    #[arg(value_name = "SQL")]
    pub sql: String,
    #[command(flatten)]
    pub from: FleetFrom,
    #[command(flatten)]
    pub result: ResultArgs,
}

/// Load Parquet files, or what came over OTLP, into a server or a database of one's own
///
/// What was loaded before is left out. Tables that are missing are made.
#[derive(Args, Debug)]
pub struct FleetLoadArgs {
    #[command(flatten)]
    pub from: FleetFrom,
    /// Load from the tables of OpenTelemetry's ClickHouse exporter there, in this database, instead
    #[arg(long, value_name = "NAME", conflicts_with = "parquet")]
    pub otel: Option<String>,
    #[command(flatten)]
    pub result: ResultArgs,
}

/// Ask a permanent broker how it is doing
#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    pub result: ResultArgs,
    /// The broker's socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Print completions for a shell
#[derive(Args, Debug)]
#[command(after_help = "Example: debox completions bash > /etc/bash_completion.d/debox")]
pub struct CompletionsArgs {
    pub shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_follows_the_command_is_the_commands() {
        let cli = Cli::try_parse_from(["debox", "run", "--json", "ls", "--json", "-o"]).unwrap();
        let Verb::Run(run) = cli.command else {
            panic!()
        };
        assert_eq!(run.command, ["ls", "--json", "-o"]);
        assert!(run.capture.report.output.is_none());
        let cli = Cli::try_parse_from(["debox", "run", "--", "-weird", "--"]).unwrap();
        let Verb::Run(run) = cli.command else {
            panic!()
        };
        assert_eq!(run.command, ["-weird", "--"]);
    }

    #[test]
    fn numbers_are_checked() {
        for bad in [
            &["debox", "attach", "-p", "0"][..],
            &["debox", "attach", "-p", "-4"],
            &["debox", "attach"],
            &["debox", "attach", "-p", "1", "-d", "0"],
            &["debox", "attach", "-p", "1", "-d", "nan"],
            &["debox", "run", "--top", "0", "ls"],
            &["debox", "run", "--sort", "size", "ls"],
            &["debox", "run", "--record", "ls"],
            &["debox", "run", "--call", "openat", "ls"],
            &["debox", "run", "--trace-max", "9", "ls"],
            &["debox", "run", "--way", "multi", "ls"],
            &["debox", "select", "--no-such-option", "--", "ls"],
            &["debox", "top", "-p", "1", "-d", "0"],
            &["debox", "run"],
            &["debox", "attach", "--all", "--comm", "x"],
            &["debox", "attach", "--all", "-p", "1"],
            &["debox", "top", "--uid", "0", "ls"],
            &["debox", "top", "-p", "1", "--unit", "x"],
            &["debox", "why", "--all", "1"],
            &["debox", "why"],
            &["debox", "serve", "-p", "1", "--unit", "x"],
            &["debox", "serve", "--no-watch", "--all"],
            &["debox", "serve", "--anywhere"],
        ] {
            assert!(Cli::try_parse_from(bad).is_err(), "{bad:?}");
        }
        let cli =
            Cli::try_parse_from(["debox", "attach", "-p", "3,4", "-p", "5", "-d", "0.5s"]).unwrap();
        let Verb::Attach(attach) = cli.command else {
            panic!()
        };
        assert!(!attach.whom.any());
        for good in [
            &["debox", "attach", "--all"][..],
            &["debox", "top"],
            &["debox", "top", "--comm", "a*", "--comm", "b", "--uid", "0"],
            &["debox", "why", "--all", "-a"],
            &["debox", "serve", "--no-watch", "--recordings", "."],
            &[
                "debox",
                "serve",
                "--anywhere",
                "--token",
                "t",
                "--listen",
                "[::]:80",
            ],
        ] {
            Cli::try_parse_from(good).unwrap();
        }
        assert_eq!(attach.pids, [3, 4, 5]);
        assert_eq!(attach.capture.duration, Some(Duration::from_millis(500)));
    }
}
