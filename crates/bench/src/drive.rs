// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a run of `debox bench os` go?
//!
//! Invocation after invocation of every suite, each in a fresh process, until
//! the intervals are narrow or the time is over; then one more round with
//! DeBox watching, for the accounts.

use crate::args::OsArgs;
use crate::clock::Clock;
use crate::machine::{Machine, cpus_choose, file_system};
use crate::model::{Derived, Document, Kind, Row, SCHEMA, SCHEMA_VERSION};
use crate::noise::Watch;
use crate::os::clocks::Survey;
use crate::os::reads::Cold;
use crate::os::{Suite, switches};
use crate::output::progress;
use crate::sampling::alone_on_its_cpu;
use crate::stat::{self, Confidence, Invocation, Summary, Verdict};
use crate::tidy;
use crate::worker::{Answer, Order};
use crate::{Error, output};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

/// A worker that takes this much longer than its budget hangs.
const PATIENCE: Duration = Duration::from_secs(180);

/// The hidden subcommand: one invocation.
pub fn worker(order: &str) -> Result<i32, Error> {
    let order: Order = serde_json::from_str(order)
        .map_err(|e| Error::Usage(format!("this subcommand is for debox itself: {e}")))?;
    let answer = crate::worker::work(&order)?;
    println!("{}", serde_json::to_string(&answer).expect("plain data"));
    Ok(0)
}

/// Suites whose cases take this long in each invocation, ms: (quick, full).
fn budget_ms(suite: Suite, quick: bool) -> u64 {
    let (short, long) = match suite {
        Suite::Clocks => (0, 0),
        Suite::Trivial => (250, 4_000),
        Suite::Switches => (450, 6_000),
        Suite::Faults => (300, 4_000),
        Suite::Reads => (500, 16_000),
        Suite::Descriptors => (300, 5_000),
    };
    if quick { short } else { long }
}

/// No account of a suite is begun after that, ms.
fn account_ms(suite: Suite, quick: bool) -> u64 {
    let (short, long) = match suite {
        Suite::Clocks => (0, 0),
        Suite::Trivial => (300, 2_000),
        Suite::Switches => (500, 4_000),
        Suite::Faults => (500, 4_000),
        Suite::Reads => (1_500, 60_000),
        Suite::Descriptors => (700, 15_000),
    };
    if quick { short } else { long }
}

const ALL: [Suite; 5] = [
    Suite::Trivial,
    Suite::Switches,
    Suite::Faults,
    Suite::Reads,
    Suite::Descriptors,
];

struct Plan {
    invocations: usize,
    /// No further invocation begins after that.
    limit: Duration,
    target: f64,
    file_bytes: u64,
}

fn plan(quick: bool) -> Plan {
    if quick {
        Plan {
            invocations: 5,
            limit: Duration::from_secs(13),
            target: 0.03,
            file_bytes: 16 << 20,
        }
    } else {
        Plan {
            invocations: 10,
            limit: Duration::from_secs(450),
            target: 0.01,
            file_bytes: 128 << 20,
        }
    }
}

/// The file for reads and mapped faults: without a name from its birth.
struct TestFile {
    file: File,
    bytes: u64,
    device: u64,
    directory: PathBuf,
}

fn test_file(wanted: Option<&Path>, bytes: u64, notes: &mut Vec<String>) -> Option<TestFile> {
    let candidates = match wanted {
        Some(dir) => vec![dir.to_owned()],
        None => vec![std::env::temp_dir(), "/var/tmp".into(), ".".into()],
    };
    let mut refused = Vec::new();
    let mut in_memory = None;
    for dir in candidates {
        match test_file_in(&dir, bytes) {
            Ok(found) => {
                let kind = file_system(found.device).map(|f| f.0).unwrap_or_default();
                if kind != "tmpfs" && kind != "ramfs" {
                    return Some(found);
                }
                // Better than nothing, but nothing can be cold there.
                in_memory.get_or_insert((found, kind));
            }
            Err(e) => refused.push(format!("{}: {e}", dir.display())),
        }
    }
    if let Some((found, kind)) = in_memory {
        notes.push(format!(
            "{} is a {kind}: it is always in memory, so cold reads are left out; name a directory \
             on a disk with --dir",
            found.directory.display()
        ));
        return Some(found);
    }
    notes.push(format!(
        "no file could be made for the reads ({})",
        refused.join("; ")
    ));
    None
}

fn test_file_in(dir: &Path, bytes: u64) -> std::io::Result<TestFile> {
    let mut file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .mode(0o600)
        .open(dir)?;
    // Not zeros: some file systems and disks store those as nothing.
    let mut rng = fastrand::Rng::with_seed(1);
    let mut block = vec![0u8; 1 << 20];
    for _ in 0..bytes / block.len() as u64 {
        rng.fill(&mut block);
        file.write_all(&block)?;
    }
    file.sync_all()?;
    let device = file.metadata()?.dev();
    Ok(TestFile {
        file,
        bytes,
        device,
        directory: dir.to_owned(),
    })
}

/// Everything that invocations have said about one suite.
#[derive(Default)]
struct Gathered {
    /// In the order of the first answer.
    order: Vec<String>,
    invocations: BTreeMap<String, Vec<Invocation>>,
    missing: BTreeMap<String, String>,
    accounts: BTreeMap<String, crate::account::Account>,
    cold: Cold,
}

impl Gathered {
    fn add(&mut self, answer: Answer) {
        for row in answer.rows {
            if !self.order.contains(&row.id) {
                self.order.push(row.id.clone());
            }
            if let Some(i) = row.invocation.filter(|i| !i.samples.is_empty()) {
                self.invocations.entry(row.id.clone()).or_default().push(i);
            }
            if let Some(why) = row.missing {
                self.missing.insert(row.id.clone(), why);
            }
            if let Some(account) = row.account {
                self.accounts.insert(row.id, account);
            }
        }
        if let Some(c) = answer.cold {
            self.cold.method = c.method;
            self.cold.passes += c.passes;
            self.cold.pages += c.pages;
            self.cold.resident += c.resident;
            self.cold.nowait_tried += c.nowait_tried;
            self.cold.nowait_again += c.nowait_again;
            self.cold.bytes += c.bytes;
            self.cold.storage_bytes += c.storage_bytes;
        }
    }

    /// Is every mean known to within the target?
    fn settled(&self, target: f64) -> bool {
        self.invocations.values().all(|i| {
            Summary::of(i).is_some_and(|s| s.mean_high - s.mean <= 2.0 * target * s.mean.abs())
        })
    }
}

struct Runner<'a> {
    order: Order,
    executable: PathBuf,
    file: Option<&'a TestFile>,
}

impl Runner<'_> {
    fn ask(&self, order: &Order) -> Result<Answer, Error> {
        let mut command = Command::new(&self.executable);
        command
            .args(["bench", "worker"])
            .arg(serde_json::to_string(order).expect("plain data"))
            .env_remove("LD_PRELOAD");
        let limit = Duration::from_millis(order.budget_ms) + PATIENCE;
        let inherit = self.file.map(|f| f.file.as_raw_fd());
        let (status, out, err) = tidy::run(&mut command, None, inherit, limit)?;
        if !status.success() {
            return Err(Error::Unavailable(format!(
                "the {:?} suite's process ended with {status}: {}",
                order.suite,
                err.trim().strip_prefix("debox: ").unwrap_or(err.trim())
            )));
        }
        serde_json::from_str(&out).map_err(|e| {
            Error::Unavailable(format!(
                "the {:?} suite's answer cannot be read: {e}",
                order.suite
            ))
        })
    }
}

/// A broker for the accounts: the one that is named, else a private one.
enum Broker {
    Named(PathBuf),
    Private(debox_broker::Private),
}

impl Broker {
    fn open(named: Option<PathBuf>) -> Result<Self, Error> {
        let named = named.or_else(|| {
            std::env::var_os("DEBOX_SOCKET")
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        });
        if let Some(path) = named {
            return Ok(Self::Named(path));
        }
        match debox_broker::Private::start(debox_broker::PrivateOptions::default()) {
            Ok(private) => Ok(Self::Private(private)),
            Err(error) => {
                let usual = Path::new(debox::abi::DEBOX_SOCKET_PATH);
                if usual.exists() {
                    Ok(Self::Named(usual.to_owned()))
                } else {
                    Err(Error::Unavailable(format!(
                        "{error}; and no deboxd listens at {}",
                        usual.display()
                    )))
                }
            }
        }
    }

    fn socket(&self) -> &Path {
        match self {
            Self::Named(path) => path,
            Self::Private(private) => private.socket_path(),
        }
    }
}

/// `debox bench os`.
pub fn os(args: OsArgs) -> Result<i32, Error> {
    if let Some(path) = &args.output.load {
        let document = output::load(path)?;
        return output::deliver(document, &args.output, None);
    }
    output::check(&args.output, Kind::Os)?;
    tidy::watch_signals()?;
    let begin = Instant::now();
    let started = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let quick = args.output.quick;
    let quiet = args.output.quiet;
    let (cpu, other_cpu, cpus) = cpus_choose(args.cpu)?;
    let mut notes = Vec::new();
    if other_cpu.is_none() {
        notes.push(
            "this process may use one CPU only: what needs two is left out, and the measuring \
             shares the CPU with the measured"
                .into(),
        );
    }
    let mut suites: Vec<Suite> = ALL
        .into_iter()
        .filter(|s| args.only.is_empty() || args.only.contains(s))
        .collect();
    let mut plan = plan(quick);
    if let Some(rounds) = args.output.rounds {
        plan.invocations = rounds as usize;
        plan.limit = Duration::MAX;
    }
    let needs_file = suites
        .iter()
        .any(|s| matches!(s, Suite::Faults | Suite::Reads));
    let file = if needs_file {
        progress(quiet, "making a file to read");
        test_file(args.dir.as_deref(), plan.file_bytes, &mut notes)
    } else {
        None
    };
    let mut runner = Runner {
        order: Order {
            suite: Suite::Clocks,
            cpu,
            other_cpu,
            quick,
            budget_ms: 0,
            target: plan.target,
            first: 0,
            clock: None,
            file: file.as_ref().map(|f| f.file.as_raw_fd()),
            file_bytes: file.as_ref().map_or(0, |f| f.bytes),
            account: None,
            account_ms: 0,
        },
        executable: std::env::current_exe().map_err(|source| Error::System {
            what: "finding this program".into(),
            source,
        })?,
        file: file.as_ref(),
    };

    // This program keeps off the measured CPU, if there is another.
    if let Some(other) = other_cpu {
        crate::sampling::pin(other)?;
    }
    progress(quiet, "choosing the clock");
    let clocks_only_choice = !args.only.is_empty() && !args.only.contains(&Suite::Clocks);
    let mut order = runner.order.clone();
    order.quick = quick || clocks_only_choice;
    let survey: Survey = runner
        .ask(&order)?
        .survey
        .ok_or_else(|| Error::Unavailable("the clocks' process gave no survey".into()))?;
    runner.order.clock = Some(survey.choice.clone());
    let mut watch = Watch::begin(&cpus, cpu, Clock::new(&survey.choice));

    let mut gathered: BTreeMap<usize, Gathered> = BTreeMap::new();
    let at = |s: Suite| {
        ALL.iter()
            .position(|x| *x == s)
            .expect("ALL has every suite but clocks")
    };
    let mut rounds = 0;
    let mut active = suites.clone();
    let begin_rounds = Instant::now();
    while !active.is_empty() {
        active.rotate_left(rounds.min(1));
        for (n, &suite) in active.iter().enumerate() {
            progress(
                quiet,
                &format!(
                    "round {} of {}, suite {} of {}, {:.0} s",
                    rounds + 1,
                    plan.invocations,
                    n + 1,
                    active.len(),
                    begin.elapsed().as_secs_f64()
                ),
            );
            let order = Order {
                suite,
                budget_ms: budget_ms(suite, quick),
                first: rounds,
                ..runner.order.clone()
            };
            match runner.ask(&order) {
                Ok(answer) => gathered.entry(at(suite)).or_default().add(answer),
                Err(Error::Unavailable(text)) => {
                    notes.push(text);
                    suites.retain(|s| *s != suite);
                }
                Err(other) => return Err(other),
            }
            tidy::go_on()?;
        }
        watch.look_all();
        rounds += 1;
        active.retain(|s| suites.contains(s));
        // What has settled after half of the rounds may rest, so that others
        // get their rounds within the time.
        if rounds >= plan.invocations.div_ceil(2).max(5) {
            active.retain(|s| !gathered.get(&at(*s)).is_none_or(|g| g.settled(plan.target)));
        }
        let per_round = begin_rounds.elapsed() / rounds as u32;
        if rounds >= plan.invocations
            || begin_rounds.elapsed().saturating_add(per_round) > plan.limit
        {
            if rounds < plan.invocations && !active.is_empty() {
                notes.push(format!(
                    "the time was over after {rounds} of {} rounds: intervals are wider than they could be",
                    plan.invocations
                ));
            }
            break;
        }
    }

    // Before DeBox hooks anything.
    let noise = watch.end(preempted(gathered.values().map(|g| &g.invocations)));

    if !args.no_account {
        accounts(&args, &runner, &suites, &mut gathered, &at, &mut notes)?;
    }
    progress(quiet, "");

    let mut results = Vec::new();
    let mut cold = Cold::default();
    for (_, mut g) in gathered {
        for id in &g.order {
            let summary = g.invocations.get(id).and_then(|i| Summary::of(i));
            let missing = match &summary {
                Some(_) => None,
                None => Some(
                    g.missing
                        .get(id)
                        .cloned()
                        .unwrap_or_else(|| "no sample".into()),
                ),
            };
            results.push(Row {
                id: id.clone(),
                summary,
                account: g.accounts.remove(id),
                missing,
            });
        }
        if g.cold.passes > 0 {
            cold = g.cold;
        }
    }
    let derived = derive(&results);
    let document = Document {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        debox_version: env!("CARGO_PKG_VERSION").into(),
        kind: Kind::Os,
        label: args.output.label.clone(),
        quick,
        started,
        seconds: begin.elapsed().as_secs_f64(),
        machine: Machine::look(&cpus, file.as_ref().map(|f| f.device)),
        noise,
        clocks: Some(survey),
        results,
        derived,
        cold: (cold.passes > 0).then_some(cold),
        self_cost: None,
        notes,
        comparison: None,
    };
    output::deliver(document, &args.output, Some(&args.only))
}

fn accounts(
    args: &OsArgs,
    runner: &Runner,
    suites: &[Suite],
    gathered: &mut BTreeMap<usize, Gathered>,
    at: &dyn Fn(Suite) -> usize,
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    progress(args.output.quiet, "loading DeBox for the accounts");
    let broker = match Broker::open(args.socket.clone()) {
        Ok(broker) => broker,
        Err(error) => {
            notes.push(format!("no accounts by DeBox: {error}"));
            return Ok(());
        }
    };
    let mut refused = BTreeSet::new();
    let mut missing: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for &suite in suites {
        progress(args.output.quiet, &format!("accounts by DeBox: {suite:?}"));
        let order = Order {
            suite,
            account: Some(broker.socket().to_owned()),
            account_ms: account_ms(suite, args.output.quick),
            ..runner.order.clone()
        };
        match runner.ask(&order) {
            Ok(mut answer) => {
                // Its passes were watched: they prove nothing about the others.
                answer.cold = None;
                if let Some(g) = gathered.get_mut(&at(suite)) {
                    for row in answer.rows {
                        if let Some(account) = row.account {
                            g.accounts.insert(row.id, account);
                        } else if let Some(why) = row.missing
                            // What could not be measured is told elsewhere.
                            && g.invocations.contains_key(&row.id)
                        {
                            missing.entry(why).or_default().push(row.id);
                        }
                    }
                }
            }
            Err(Error::Unavailable(text)) => {
                refused.insert(text);
            }
            Err(other) => return Err(other),
        }
        tidy::go_on()?;
    }
    for text in refused {
        notes.push(format!("no accounts by DeBox: {text}"));
    }
    for (why, ids) in missing {
        notes.push(format!(
            "no account by DeBox of {}{}: {why}",
            ids[..ids.len().min(4)].join(", "),
            match ids.len() {
                0..=4 => String::new(),
                n => format!(" and {} more", n - 4),
            }
        ));
    }
    Ok(())
}

/// The share of batches that saw a preemption, of those that should see none.
fn preempted<'a>(
    suites: impl Iterator<Item = &'a BTreeMap<String, Vec<Invocation>>>,
) -> Option<f64> {
    let (batches, preempted) = suites
        .flatten()
        .filter(|(id, _)| alone_on_its_cpu(id))
        .flat_map(|(_, invocations)| invocations)
        .fold((0, 0), |(b, p), i| {
            (b + i.samples.len(), p + i.preempted.len())
        });
    (batches > 0).then(|| preempted as f64 / batches as f64)
}

/// Half a round trip without the calls that it makes: one switch.
pub fn derive(results: &[Row]) -> Vec<Derived> {
    let medians = |id: &str| {
        results
            .iter()
            .find(|r| r.id == id)?
            .summary
            .as_ref()
            .map(|s| s.medians.clone())
    };
    let mut found = Vec::new();
    for place in ["same", "other"] {
        for means in switches::MEANS {
            let id = format!("switch/{means}/{place}");
            let calls_id = format!("switch-calls/{}", switches::calls_of(means));
            let (Some(trips), Some(calls)) = (medians(&id), medians(&calls_id)) else {
                continue;
            };
            // Both ends make the calls once each. Round by round.
            let values: Vec<f64> = trips
                .iter()
                .zip(&calls)
                .map(|(t, c)| (t - 2.0 * c) / 2.0)
                .collect();
            if values.len() < 2 {
                continue;
            }
            let ns = stat::mean(&values);
            let half = stat::half_width(&values, Confidence::P95);
            let stable = half <= stat::STABLE_WITHIN * ns.abs() && ns > 0.0;
            found.push(Derived {
                id: format!("one-switch/{means}/{place}"),
                formula: format!("({id} - 2 x {calls_id}) / 2"),
                ns,
                low: ns - half,
                high: ns + half,
                verdict: if stable {
                    Verdict::Stable
                } else {
                    Verdict::Unstable
                },
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, values: &[f64]) -> Row {
        let invocations: Vec<Invocation> = values
            .iter()
            .map(|v| Invocation {
                samples: vec![*v; 20],
                batch: 1,
                ..Invocation::default()
            })
            .collect();
        Row {
            id: id.into(),
            summary: Summary::of(&invocations),
            account: None,
            missing: None,
        }
    }

    #[test]
    fn a_switch_is_half_a_round_trip_less_its_calls() {
        let rows = [
            row("switch/pipe/same", &[3000.0, 3020.0, 2980.0]),
            row("switch-calls/pipe", &[500.0; 3]),
        ];
        let found = derive(&rows);
        assert_eq!(found.len(), 1);
        assert!((found[0].ns - 1000.0).abs() < 1e-9);
        assert_eq!(found[0].verdict, Verdict::Stable);
    }

    #[test]
    fn a_switch_that_the_calls_hide_is_not_a_number() {
        let rows = [
            row("switch/futex/other", &[900.0, 1300.0, 1000.0]),
            row("switch-calls/futex", &[500.0, 520.0, 490.0]),
        ];
        assert_eq!(derive(&rows)[0].verdict, Verdict::Unstable);
    }

    #[test]
    fn an_interval_wider_than_a_tenth_is_no_number() {
        // (trip - 1000) / 2: 1000 ± 18 %, and 1000 ± 4 %.
        for (trips, verdict) in [
            ([2800.0, 3000.0, 3200.0, 2850.0, 3150.0], Verdict::Unstable),
            ([2960.0, 3000.0, 3040.0, 2970.0, 3030.0], Verdict::Stable),
        ] {
            let rows = [
                row("switch/pipe/same", &trips),
                row("switch-calls/pipe", &[500.0; 5]),
            ];
            assert_eq!(derive(&rows)[0].verdict, verdict);
        }
    }

    #[test]
    fn a_partner_on_the_same_cpu_is_no_disturbance() {
        let invocation = |preempted: Vec<u32>| Invocation {
            samples: vec![1.0; 10],
            preempted,
            ..Invocation::default()
        };
        let rows = BTreeMap::from([
            (
                "switch/pipe/same".to_owned(),
                vec![invocation(vec![1, 2, 3])],
            ),
            (
                "fault/prefaulted-beside".to_owned(),
                vec![invocation(vec![1])],
            ),
            ("switch/pipe/other".to_owned(), vec![invocation(vec![4])]),
            ("trivial/getpid".to_owned(), vec![invocation(vec![])]),
        ]);
        assert_eq!(preempted([&rows].into_iter()), Some(0.05));
        assert_eq!(preempted([&BTreeMap::new()].into_iter()), None);
    }

    /// Each part ends by its own limit: together they keep what is promised,
    /// with room for the clocks, the file, DeBox's start and one more round.
    #[test]
    fn the_parts_fit_into_the_time_that_is_promised() {
        for (quick, promised, room) in [(true, 20, 3), (false, 600, 60)] {
            let accounts: u64 = ALL.iter().map(|s| account_ms(*s, quick)).sum();
            let all = plan(quick).limit + Duration::from_millis(accounts);
            assert!(
                all + Duration::from_secs(room) <= Duration::from_secs(promised),
                "{all:?}"
            );
            // And the rounds that are planned fit into their part.
            let round: u64 = ALL.iter().map(|s| budget_ms(*s, quick)).sum();
            let rounds = Duration::from_millis(round * plan(quick).invocations as u64);
            assert!(rounds <= plan(quick).limit, "{rounds:?}");
        }
    }
}
