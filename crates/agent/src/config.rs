// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the agent's file say?
//!
//! Every setting has a default, and what is not known is refused, with its line: a name that
//! is written wrongly would do nothing, and nobody would notice.

use crate::Error;
use crate::otlp::{OtlpConfig, OtlpFile, otlp_of};
use debox_abi::DEBOX_CONDITIONS_MAX;
use debox_cli::whom::{Whom, WhomArgs};
use debox_condition::{Expression, Number, Predicate, Test, compile};
use debox_http::Listen;
use serde::Deserialize;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// Where figures are to be had if nothing is said: by this machine alone.
const LISTEN: &str = "127.0.0.1:9464";
const BLOCKING_ROWS: u64 = 2_000;
const PROGRAMS: u64 = 500;
const DURATIONS: u64 = 100;
/// More than this is a mistake: each row is a series for whoever collects.
const ROWS_MOST: u64 = 100_000;
const FLIGHT: &str = "/var/lib/debox/flight";
/// What watches everybody where no policy is named.
const MACHINE: &str = "machine";
const POLICIES_MOST: usize = 16;
const NAME_MOST: usize = 32;
const PERIOD_USUAL: Duration = Duration::from_secs(60);
/// Shorter ones would be felt, longer ones fill the tables of an account.
const PERIOD: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(3600));
/// Nobody writes more.
const FILE_MOST: u64 = 1 << 20;
const DAY: Duration = Duration::from_secs(86_400);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    #[default]
    Sleeps,
    Boundary,
}

/// `[[policy]]`: whom, and how. A process is the first policy's that it fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Of recordings and series; a part of a file's name.
    pub name: String,
    /// Nothing in it: the whole machine.
    pub whom: WhomArgs,
    /// Whoever may watch a process of it, its owner say, takes it over for as long as he asks.
    pub owners_first: bool,
    pub capture: Way,
    /// Boundary capture ends so long after it began, and the policy goes on by sleeps.
    pub capture_for: Option<Duration>,
    /// Of each period there is one report.
    pub period: Duration,
    pub when: Vec<PolicyWhen>,
    /// Of its own: calls that met one of these.
    pub events_per_s: Option<u64>,
}

/// `[[policy.when]]`: what is done about a single call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyWhen {
    /// As of --on.
    pub condition: String,
    /// A line in what the agent says.
    pub log: bool,
    /// The same with the program's stack.
    pub stack: bool,
    /// What was recorded last is kept.
    pub keep: bool,
}

/// `[budget]`: what watching may cost; None: it is not looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetConfig {
    /// Of one CPU: DeBox's programs in the kernel, the agent and the broker.
    pub cpu: Option<f64>,
    pub memory_bytes: Option<u64>,
    /// Calls that met a condition.
    pub events_per_s: Option<u64>,
    pub every: Duration,
}

impl Policy {
    /// Where the file names none.
    fn machine() -> Self {
        Self {
            name: MACHINE.into(),
            whom: WhomArgs::whole_machine(),
            owners_first: false,
            capture: Way::Sleeps,
            capture_for: None,
            period: PERIOD_USUAL,
            when: Vec::new(),
            events_per_s: None,
        }
    }
}

/// What a wait ends in, or what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Root(String),
    Label(String),
}

/// `[[flight.when]]`: more than that in one period, and what was before it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct When {
    pub what: What,
    pub above: Duration,
}

/// `[flight]`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlightConfig {
    pub directory: PathBuf,
    /// So far back the ring goes,
    pub keep: Duration,
    /// if it is not larger than that.
    pub bytes_most: u64,
    /// What is kept begins so long before.
    pub before: Duration,
    /// So many times something is kept; then somebody has to take it away.
    pub kept_most: usize,
    pub when: Vec<When>,
}

/// `[metrics]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsConfig {
    pub listen: Listen,
    /// So many waits (label, call) are told apart; further ones are "other".
    pub blocking_rows: usize,
    /// The same of programs (name, unit).
    pub programs: usize,
    /// The same of what has a distribution (label, class): two dozen series each.
    pub durations: usize,
}

/// `[fleet]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetConfig {
    /// A folder or an object store.
    pub to: String,
    pub host: Option<String>,
    pub release: String,
    /// So much of the periods shares a file.
    pub every: Duration,
    pub keep_days: Option<u32>,
}

/// Where in the file it stands whom a policy means: what of that there is on the machine is another question.
#[derive(Clone, Debug, Default, PartialEq)]
struct WhomPlace {
    /// Each part alone, with line and column.
    each: Vec<(WhomArgs, String)>,
    /// All of it together.
    all: WhomArgs,
    place: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// At least one, the first before the others.
    pub policies: Vec<Policy>,
    places: Vec<WhomPlace>,
    pub budget: BudgetConfig,
    pub metrics: MetricsConfig,
    pub flight: Option<FlightConfig>,
    pub fleet: Option<FleetConfig>,
    pub otlp: Option<OtlpConfig>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FleetFile {
    to: Option<Spanned<String>>,
    host: Option<String>,
    release: String,
    every: Option<Spanned<String>>,
    keep_days: Option<Spanned<u64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PolicyFile {
    name: Option<Spanned<String>>,
    comm: Vec<Spanned<String>>,
    cgroup: Vec<Spanned<String>>,
    unit: Vec<Spanned<String>>,
    uid: Vec<Spanned<String>>,
    container: Vec<Spanned<String>>,
    owners_first: bool,
    capture: Option<Spanned<String>>,
    r#for: Option<Spanned<String>>,
    period: Option<Spanned<String>>,
    when: Vec<PolicyWhenFile>,
    budget: PolicyBudgetFile,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PolicyBudgetFile {
    events_per_s: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyWhenFile {
    condition: Spanned<String>,
    r#do: Option<Vec<Spanned<String>>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct BudgetFile {
    cpu: Option<Spanned<String>>,
    memory: Option<Spanned<String>>,
    events_per_s: Option<Spanned<u64>>,
    every: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WhenFile {
    root: Option<Spanned<String>>,
    label: Option<Spanned<String>>,
    above: Spanned<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FlightFile {
    directory: Option<Spanned<String>>,
    keep: Option<Spanned<String>>,
    size_mb: Option<Spanned<u64>>,
    before: Option<Spanned<String>>,
    kept_most: Option<Spanned<u64>>,
    when: Vec<WhenFile>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MetricsFile {
    listen: Option<Spanned<String>>,
    blocking_rows: Option<Spanned<u64>>,
    programs: Option<Spanned<u64>>,
    durations: Option<Spanned<u64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    /// As it was called once.
    watch: Option<Spanned<toml::Value>>,
    policy: Vec<Spanned<PolicyFile>>,
    budget: BudgetFile,
    metrics: MetricsFile,
    flight: FlightFile,
    fleet: FleetFile,
    otlp: OtlpFile,
}

/// "line 3, column 10" of a byte.
fn place(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .map_or(0, |rest| rest.chars().count());
    format!("line {line}, column {}", column + 1)
}

fn listen_of(text: &str) -> Result<Listen, String> {
    Listen::parse(text).ok_or_else(|| {
        format!(
            "listen is HOST:PORT or a path that begins with /, and {text:?} is neither; the default is \
             {LISTEN:?}"
        )
    })
}

/// What is wrong, and where.
pub type Wrong = (String, Range<usize>);

pub fn number_of(
    name: &str,
    value: Option<Spanned<u64>>,
    most: u64,
    default: u64,
) -> Result<u64, Wrong> {
    let Some(value) = value else {
        return Ok(default);
    };
    let span = value.span();
    match value.into_inner() {
        number if (1..=most).contains(&number) => Ok(number),
        number => Err((
            format!("{name} is {number}; it can be 1 to {most}, the default is {default}"),
            span,
        )),
    }
}

pub fn time_of(
    name: &str,
    value: Option<Spanned<String>>,
    (least, most): (Duration, Duration),
    default: Duration,
) -> Result<Duration, Wrong> {
    let Some(value) = value else {
        return Ok(default);
    };
    let span = value.span();
    let text = value.into_inner();
    match debox_command::duration(&text) {
        Ok(time) if time >= least && time <= most => Ok(time),
        _ => Err((
            format!(
                "{name} is {text:?}; it can be {} s to {} s, as \"90s\", \"10m\" or \"2h\", the default is \"{}s\"",
                least.as_secs(),
                most.as_secs(),
                default.as_secs()
            ),
            span,
        )),
    }
}

/// Whether it can be a part of a file's name, and a label's value.
pub fn is_policy_name(name: &str) -> bool {
    let letter = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'_';
    (1..=NAME_MOST).contains(&name.len()) && name != "part" && name.bytes().all(letter)
}

/// Each of it may be done for a call that met the condition. `room`: so many of the kernel side's conditions are left
/// to the policy.
fn policy_when_of(
    file: PolicyWhenFile,
    capture: Way,
    room: &mut usize,
) -> Result<PolicyWhen, Wrong> {
    let span = file.condition.span();
    let condition = file.condition.into_inner();
    let expression = match Expression::parse(&condition) {
        Ok(expression) => expression,
        Err(error) => {
            // In one line, as all that is said of this file.
            let before = condition.get(..error.at).unwrap_or(&condition);
            let help = match error.help.as_str() {
                "" => String::new(),
                help => format!("; {help}"),
            };
            let at = before.chars().count() + 1;
            let what = format!("condition, at its character {at}: {error}{help}");
            return Err((what, span));
        }
    };
    if let (Way::Sleeps, Some(test)) = (capture, expression.not_of_sleeps()) {
        let what = format!(
            "condition: '{}' is of a whole call, whose end capture = \"sleeps\" does not see: say capture = \"boundary\" in \
             this policy (for = \"10m\", if it is to be for a time), or leave it out; of a sleep wall, blocked, runq, call, \
             label, function, holder, root, chain, waiters, pid, tid and comm are known",
            (condition.get(test.at..test.at + test.length)).unwrap_or("it")
        );
        return Err((what, span));
    }
    let irq = |test: &&Test| matches!(test.predicate, Predicate::Number(Number::Irq, _));
    if let Some(test) = expression.tests().into_iter().find(irq) {
        let what = format!(
            "condition: the agent does not measure interrupts; leave '{}' out",
            (condition.get(test.at..test.at + test.length)).unwrap_or("irq")
        );
        return Err((what, span));
    }
    let parts = match compile(&expression, DEBOX_CONDITIONS_MAX) {
        Ok(compiled) => compiled.parts.len(),
        Err(error) => return Err((format!("condition: {error}"), span)),
    };
    *room = match room.checked_sub(parts) {
        Some(left) => left,
        None => {
            let what = format!(
                "condition: it takes {parts} of the {DEBOX_CONDITIONS_MAX} conditions that a policy can have in the kernel, and \
                 {room} are left: use fewer '||' and '!=', or put some into another policy"
            );
            return Err((what, span));
        }
    };
    let mut when = PolicyWhen {
        condition,
        log: file.r#do.is_none(),
        stack: false,
        keep: false,
    };
    for word in file.r#do.into_iter().flatten() {
        match word.as_ref().as_str() {
            "log" => when.log = true,
            "stack" => when.stack = true,
            "keep" => when.keep = true,
            other => {
                let what = format!(
                    "do has {other:?}; an agent does \"log\", \"stack\" and \"keep\" (signals and commands: debox attach \
                     --on)"
                );
                return Err((what, word.span()));
            }
        }
    }
    if !(when.log || when.stack || when.keep) {
        return Err((
            "do is empty: say \"log\", \"stack\" or \"keep\"".into(),
            span,
        ));
    }
    Ok(when)
}

fn way_of(capture: Option<Spanned<String>>) -> Result<Way, Wrong> {
    let Some(capture) = capture else {
        return Ok(Way::default());
    };
    let what = match capture.as_ref().as_str() {
        "sleeps" => return Ok(Way::Sleeps),
        "boundary" => return Ok(Way::Boundary),
        "wrap" => {
            "capture = \"wrap\" is a library that is preloaded as a program starts (debox run --capture=wrap), and a policy \
             watches programs that others started: say capture = \"boundary\" in its place, which has all calls (for = \"10m\", if \
             it is to be for a time)"
                .to_owned()
        }
        other => format!(
            "capture is {other:?}; it can be \"sleeps\" or \"boundary\", the default is \"sleeps\""
        ),
    };
    Err((what, capture.span()))
}

/// `1%`, `0.5%`: of one CPU.
fn share_of(text: &str) -> Option<f64> {
    let number: f64 = text.strip_suffix('%')?.trim().parse().ok()?;
    (number > 0.0 && number <= 100_000.0).then_some(number / 100.0)
}

/// `100MB`, `1GB`.
fn bytes_of(text: &str) -> Option<u64> {
    let (number, unit) = [("GB", 1u64 << 30), ("MB", 1 << 20), ("kB", 1 << 10)]
        .into_iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let bytes = number.trim().parse::<u64>().ok()?.checked_mul(unit)?;
    (bytes > 0).then_some(bytes)
}

fn events_of(events: Option<Spanned<u64>>) -> Result<Option<u64>, Wrong> {
    (events.is_some())
        .then(|| number_of("events_per_s", events, 1_000_000, 1_000))
        .transpose()
}

fn budget_of(file: BudgetFile) -> Result<BudgetConfig, Wrong> {
    let cpu = match file.cpu {
        None => None,
        Some(text) => Some(share_of(text.as_ref()).ok_or_else(|| {
            let what = format!(
                "cpu is {:?}; it is a share of one CPU, as \"1%\" or \"0.5%\"",
                text.as_ref()
            );
            (what, text.span())
        })?),
    };
    let memory_bytes = match file.memory {
        None => None,
        Some(text) => Some(bytes_of(text.as_ref()).ok_or_else(|| {
            let what = format!(
                "memory is {:?}; it is a number of kB, MB or GB, as \"100MB\"",
                text.as_ref()
            );
            (what, text.span())
        })?),
    };
    let events_per_s = events_of(file.events_per_s)?;
    let second = Duration::from_secs(1);
    let every = time_of("every", file.every, (second, 3600 * second), 10 * second)?;
    Ok(BudgetConfig {
        cpu,
        memory_bytes,
        events_per_s,
        every,
    })
}

/// Whom these parts mean, each alone with where it stands.
fn whom_of(
    each: &mut Vec<(WhomArgs, Range<usize>)>,
    texts: Vec<Spanned<String>>,
    of: impl Fn(Vec<String>) -> WhomArgs,
) -> Vec<String> {
    let mut all = Vec::new();
    for text in texts {
        let span = text.span();
        let text = text.into_inner();
        each.push((of(vec![text.clone()]), span));
        all.push(text);
    }
    all
}

/// A policy, and where the parts of whom it means stand.
type Placed = (Policy, Vec<(WhomArgs, Range<usize>)>);

fn policy_of(file: Spanned<PolicyFile>) -> Result<Placed, Wrong> {
    let whole = file.span();
    let file = file.into_inner();
    let Some(name) = file.name else {
        let what = "a policy has a name, of which its recordings and series are: name = \"web\""
            .to_owned();
        return Err((what, whole));
    };
    if !is_policy_name(name.as_ref()) {
        let what = format!(
            "name is {:?}; it can be of 1 to {NAME_MOST} of the letters a to z, 0 to 9, - and _, and not \"part\"",
            name.as_ref()
        );
        return Err((what, name.span()));
    }
    let mut each = Vec::new();
    macro_rules! whom_of {
        ($part:ident) => {
            whom_of(&mut each, file.$part, |$part| WhomArgs {
                $part,
                ..WhomArgs::default()
            })
        };
    }
    let whom = WhomArgs {
        comm: whom_of!(comm),
        cgroup: whom_of!(cgroup),
        unit: whom_of!(unit),
        uid: whom_of!(uid),
        container: whom_of!(container),
        all: false,
    };
    let whom = match whom.any() {
        true => whom,
        false => WhomArgs::whole_machine(),
    };
    let capture = way_of(file.capture)?;
    let capture_for = match file.r#for {
        None => None,
        Some(time) if capture != Way::Boundary => {
            let what = "for is how long capture = \"boundary\" lasts, which is not what stands here: say that, or \
                        leave for out"
                .to_owned();
            return Err((what, time.span()));
        }
        time => Some(time_of(
            "for",
            time,
            (PERIOD.0, 30 * DAY),
            PERIOD_USUAL * 10,
        )?),
    };
    let mut room = DEBOX_CONDITIONS_MAX;
    let when: Result<Vec<_>, Wrong> = (file.when.into_iter())
        .map(|when| policy_when_of(when, capture, &mut room))
        .collect();
    let when = when?;
    if let (Some(events), true) = (&file.budget.events_per_s, when.is_empty()) {
        let what = "events_per_s is about calls that meet conditions of this policy, which has none: say which by \
                    [[policy.when]], or leave it out"
            .to_owned();
        return Err((what, events.span()));
    }
    let policy = Policy {
        name: name.into_inner(),
        when,
        events_per_s: events_of(file.budget.events_per_s)?,
        whom,
        owners_first: file.owners_first,
        capture,
        capture_for,
        period: time_of("period", file.period, PERIOD, PERIOD_USUAL)?,
    };
    Ok((policy, each))
}

fn policies_of(
    text: &str,
    files: Vec<Spanned<PolicyFile>>,
) -> Result<(Vec<Policy>, Vec<WhomPlace>), Wrong> {
    let mut policies: Vec<Policy> = Vec::new();
    let mut places = Vec::new();
    for file in files {
        let span = file
            .as_ref()
            .name
            .as_ref()
            .map_or(file.span(), Spanned::span);
        let (policy, each) = policy_of(file)?;
        if policies.len() == POLICIES_MOST {
            let what = format!("there are more than {POLICIES_MOST} policies: put some together");
            return Err((what, span));
        }
        if policies.iter().any(|other| other.name == policy.name) {
            let what = format!(
                "there is a policy {:?} before this one: name it otherwise",
                policy.name
            );
            return Err((what, span));
        }
        let each = each.into_iter();
        places.push(WhomPlace {
            each: each
                .map(|(whom, span)| (whom, place(text, span.start)))
                .collect(),
            all: policy.whom.clone(),
            place: place(text, span.start),
        });
        policies.push(policy);
    }
    if policies.is_empty() {
        policies.push(Policy::machine());
    }
    Ok((policies, places))
}

fn when_of(when: WhenFile) -> Result<When, Wrong> {
    let span = when.above.span();
    let what = match (when.root, when.label) {
        (Some(root), None) if crate::metrics::is_root(root.as_ref()) => {
            What::Root(root.into_inner())
        }
        (Some(root), None) => {
            let known = crate::metrics::roots().join(", ");
            let what = format!("root is {:?}; known are {known}", root.as_ref());
            return Err((what, root.span()));
        }
        (None, Some(label)) => What::Label(label.into_inner()),
        _ => {
            let what = "[[flight.when]] is about one root or one label".to_owned();
            return Err((what, span));
        }
    };
    let least = (Duration::from_millis(1), DAY);
    let above = time_of("above", Some(when.above), least, Duration::from_secs(10))?;
    Ok(When { what, above })
}

fn flight_of(file: FlightFile) -> Result<Option<FlightConfig>, Wrong> {
    let directory = match file.directory {
        None => PathBuf::from(FLIGHT),
        Some(text) if text.as_ref().is_empty() => return Ok(None),
        Some(text) if text.as_ref().starts_with('/') => text.into_inner().into(),
        Some(text) => {
            let what = format!(
                "directory is a path that begins with /, or \"\" for no recordings, and {:?} is neither",
                text.as_ref()
            );
            return Err((what, text.span()));
        }
    };
    let second = Duration::from_secs(1);
    let hour = Duration::from_secs(3600);
    let minutes = Duration::from_secs(600);
    let when: Result<Vec<When>, Wrong> = file.when.into_iter().map(when_of).collect();
    Ok(Some(FlightConfig {
        directory,
        keep: time_of("keep", file.keep, (second, 30 * DAY), hour)?,
        bytes_most: number_of("size_mb", file.size_mb, 1 << 20, 256)? << 20,
        before: time_of("before", file.before, (second, 30 * DAY), minutes)?,
        kept_most: number_of("kept_most", file.kept_most, 10_000, 20)? as usize,
        when: when?,
    }))
}

fn fleet_of(file: FleetFile) -> Result<Option<FleetConfig>, Wrong> {
    let Some(to) = file.to.filter(|to| !to.as_ref().is_empty()) else {
        return Ok(None);
    };
    let span = to.span();
    let to = to.into_inner();
    if !(to.starts_with('/') || to.starts_with("file:///") || to.starts_with("s3://")) {
        let what = format!(
            "to is a path that begins with /, or s3://BUCKET/PREFIX, or \"\" for nothing, and {to:?} is none of these"
        );
        return Err((what, span));
    }
    let minutes = Duration::from_secs(600);
    let keep_days = match file.keep_days {
        None => None,
        days => Some(number_of("keep_days", days, 36_500, 30)? as u32),
    };
    Ok(Some(FleetConfig {
        to,
        host: file.host,
        release: file.release,
        every: time_of("every", file.every, (Duration::from_secs(1), DAY), minutes)?,
        keep_days,
    }))
}

impl Config {
    /// # Errors
    /// What is wrong, where, and what could stand there.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| {
            let at = error.span().map(|span| place(text, span.start));
            match at {
                Some(at) => format!("{at}: {}", error.message()),
                None => error.message().to_owned(),
            }
        })?;
        let at =
            |(what, span): (String, Range<usize>)| format!("{}: {what}", place(text, span.start));
        let MetricsFile {
            listen,
            blocking_rows,
            programs,
            durations,
        } = file.metrics;
        let listen = match listen {
            None => listen_of(LISTEN)?,
            Some(listen) => listen_of(listen.as_ref()).map_err(|what| at((what, listen.span())))?,
        };
        if let Some(watch) = file.watch {
            let what = "[watch] is [[policy]]: write that in its place, and name = \"...\" below it, as there may be \
                        several";
            return Err(at((what.to_owned(), watch.span())));
        }
        let rows = |name, value, default| {
            number_of(name, value, ROWS_MOST, default).map(|rows| rows as usize)
        };
        let (policies, places) = policies_of(text, file.policy).map_err(at)?;
        Ok(Self {
            policies,
            places,
            budget: budget_of(file.budget).map_err(at)?,
            metrics: MetricsConfig {
                listen,
                blocking_rows: rows("blocking_rows", blocking_rows, BLOCKING_ROWS).map_err(at)?,
                programs: rows("programs", programs, PROGRAMS).map_err(at)?,
                durations: rows("durations", durations, DURATIONS).map_err(at)?,
            },
            flight: flight_of(file.flight).map_err(at)?,
            fleet: fleet_of(file.fleet).map_err(at)?,
            otlp: otlp_of(file.otlp).map_err(at)?,
        })
    }

    /// `must`: somebody has named the file. Else one that is not there says nothing.
    ///
    /// # Errors
    /// It cannot be read, or says something that is not understood.
    pub fn read(path: &Path, must: bool) -> Result<Self, Error> {
        let text = match text_of(path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound && !must => String::new(),
            Err(source) => {
                let path = path.to_owned();
                return Err(Error::Read { path, source });
            }
        };
        let config = Self::parse(&text).and_then(|config| config.on_machine().map(|()| config));
        config.map_err(|what| Error::Config {
            path: path.to_owned(),
            what,
        })
    }

    /// Whether what the policies name is here: users, and a hierarchy of control groups.
    fn on_machine(&self) -> Result<(), String> {
        for of in &self.places {
            let all = std::iter::once((&of.all, &of.place));
            let each = of.each.iter().map(|(whom, place)| (whom, place));
            for (whom, place) in each.chain(all) {
                let request = Whom::of(whom).and_then(|whom| whom.request(true));
                request.map_err(|error| format!("{place}: {error}"))?;
            }
        }
        Ok(())
    }
}

/// Of a plain file that somebody wrote: who is to end, or to answer, waits for no pipe.
fn text_of(path: &Path) -> io::Result<String> {
    let mut file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no plain file"));
    }
    let mut text = String::new();
    (&mut file).take(FILE_MOST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_MOST {
        return Err(io::Error::other(format!(
            "it is larger than {} MiB",
            FILE_MOST >> 20
        )));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_plain_file_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        let said = || Config::read(&path, true).unwrap_err().to_string();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the name is a string of its own.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(said().contains("no plain file"), "{}", said());
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(said().contains("no plain file"), "{}", said());
        std::fs::remove_file(&path).unwrap();
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        assert!(said().contains("larger than 1 MiB"), "{}", said());
    }

    #[test]
    fn an_empty_file_is_the_default() {
        let config = Config::parse("").unwrap();
        assert_eq!(config.policies, [Policy::machine()]);
        let flight = config.flight.unwrap();
        assert_eq!(flight.directory, Path::new(FLIGHT));
        assert_eq!((flight.bytes_most, flight.kept_most), (256 << 20, 20));
        assert_eq!(
            config.metrics.listen,
            Listen::Address("127.0.0.1:9464".parse().unwrap())
        );
        assert_eq!(
            (config.metrics.blocking_rows, config.metrics.programs),
            (2_000, 500)
        );
        assert_eq!(config.metrics.durations, 100);
    }

    #[test]
    fn all_settings_are_taken() {
        let config = Config::parse(
            "[[policy]]\nname = \"web-1\"\nunit = [\"nginx.service\"]\nuid = [\"www-data\"]\n\
             owners_first = true\ncapture = \"boundary\"\nfor = \"10m\"\nperiod = \"30s\"\n\
             [[policy.when]]\ncondition = \"blocked > 20ms && call == fsync\"\ndo = [\"log\", \"keep\"]\n\
             [policy.budget]\nevents_per_s = 5\n[[policy]]\nname = \"rest\"\n[budget]\ncpu = \"0.5%\"\nmemory = \"100MB\"\nevents_per_s = 50\n[flight]\ndirectory = \"/tmp/f\"\nkeep = \"2h\"\nsize_mb = 3\n\
             before = \"90s\"\nkept_most = 4\n[[flight.when]]\nroot = \"disk\"\nabove = \"10s\"\n\
             [[flight.when]]\nlabel = \"futex\"\nabove = \"1m\"\n\
             [metrics]\nlisten = \"/run/debox/metrics.sock\"\nblocking_rows = 10\nprograms = 7\ndurations = 5\n",
        )
        .unwrap();
        let web = Policy {
            name: "web-1".into(),
            whom: WhomArgs {
                unit: vec!["nginx.service".into()],
                uid: vec!["www-data".into()],
                ..WhomArgs::default()
            },
            owners_first: true,
            capture: Way::Boundary,
            capture_for: Some(Duration::from_secs(600)),
            period: Duration::from_secs(30),
            when: vec![PolicyWhen {
                condition: "blocked > 20ms && call == fsync".into(),
                log: true,
                stack: false,
                keep: true,
            }],
            events_per_s: Some(5),
        };
        let rest = Policy {
            name: "rest".into(),
            ..Policy::machine()
        };
        assert_eq!(config.policies, [web, rest]);
        let budget = BudgetConfig {
            cpu: Some(0.005),
            memory_bytes: Some(100 << 20),
            events_per_s: Some(50),
            every: Duration::from_secs(10),
        };
        assert_eq!(config.budget, budget);
        let when = |what, seconds| When {
            what,
            above: Duration::from_secs(seconds),
        };
        let flight = FlightConfig {
            directory: "/tmp/f".into(),
            keep: Duration::from_secs(7200),
            bytes_most: 3 << 20,
            before: Duration::from_secs(90),
            kept_most: 4,
            when: vec![
                when(What::Root("disk".into()), 10),
                when(What::Label("futex".into()), 60),
            ],
        };
        assert_eq!(config.flight, Some(flight));
        assert_eq!(config.fleet, None);
        let text = "[fleet]\nto = \"s3://b/p\"\nhost = \"h\"\nrelease = \"v1\"\nevery = \"5m\"\nkeep_days = 3\n";
        let fleet = FleetConfig {
            to: "s3://b/p".into(),
            host: Some("h".into()),
            release: "v1".into(),
            every: Duration::from_secs(300),
            keep_days: Some(3),
        };
        assert_eq!(Config::parse(text).unwrap().fleet, Some(fleet));
        let none = Config::parse("[flight]\ndirectory = \"\"\n").unwrap();
        assert_eq!(none.flight, None);
        assert_eq!(
            config.metrics.listen,
            Listen::Path("/run/debox/metrics.sock".into())
        );
        assert_eq!(
            (config.metrics.blocking_rows, config.metrics.programs),
            (10, 7)
        );
        assert_eq!(config.metrics.durations, 5);
    }

    #[test]
    fn what_is_not_on_the_machine_is_told_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        let said = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Config::read(&path, true).map_or_else(|error| error.to_string(), |_| String::new())
        };
        let many: Vec<String> = (0..40).map(|number| format!("{number:08}-name")).collect();
        for (text, place, what) in [
            (
                "[[policy]]\nname = \"a\"\nuid = [\"root\",\n  \"no such user\"]\n".to_owned(),
                "line 4, column 3",
                "there is no user \"no such user\" here: name another one",
            ),
            (
                "[[policy]]\nname = \"a\"\n\n[[policy]]\nname = \"b\"\ncomm = [\"a*\", \"[\"]\n"
                    .to_owned(),
                "line 6, column 15",
                "the bracket is not closed",
            ),
            (
                "[[policy]]\nname = \"a\"\ncontainer = [\"web\"]\n".to_owned(),
                "line 3, column 14",
                "inspect",
            ),
            (
                "[[policy]]\nname = \"a\"\ncontainer = [\"4f0a*\"]\n".to_owned(),
                "line 3, column 14",
                "* alone",
            ),
            // Each of it would be fine.
            (
                format!("[[policy]]\nname = \"a\"\ncomm = {many:?}\n"),
                "line 2, column 8",
                "too much is asked for",
            ),
        ] {
            let said = said(&text);
            let begin = format!("{}: {place}: ", path.display());
            assert!(
                said.starts_with(&begin) && said.contains(what),
                "{text:?}: {said}"
            );
            assert!(!said.contains("--") && !said.contains('\n'), "{said}");
        }
        let fine = "[[policy]]\nname = \"a\"\nuid = [\"root\", \"7\"]\ncomm = [\"a*\"]\n";
        assert_eq!(said(fine), "");
        // With room for a unit beside it.
        let fine = "[[policy]]\nname = \"a\"\ncontainer = [\"*\"]\n[[policy]]\nname = \"b\"\nunit = [\"php*-fpm.service\"]\n\
                    container = [\"*\"]\n";
        assert_eq!(said(fine), "");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, place, what) in [
            (
                "[[policy]]\nname = \"a\"\ncapture = \"boundary\"\n[[policy.when]]\ncondition = \"blokked > 2ms\"\n",
                "line 5, column 13",
                "condition, at its character 1: there is no field 'blokked'; did you mean blocked?",
            ),
            ("[watch]\nunit = []\n", "line 1, column 1", "[[policy]]"),
            ("[[policy]]\nunits = []\n", "line 2, column 1", "units"),
            ("[[policy]]\nunit = []\n", "line 1, column 1", "name = "),
            ("[[policy]]\nname = \"a.b\"\n", "line 2, column 8", "a to z"),
            (
                "[[policy]]\nname = \"a\"\n[[policy]]\nname = \"a\"\n",
                "line 4, column 8",
                "before this one",
            ),
            (
                "[[policy]]\nname = \"a\"\nfor = \"1m\"\n",
                "line 3, column 7",
                "capture = \"boundary\"",
            ),
            ("\n[metric]\n", "line 2, column 2", "metric"),
            (
                "[metrics]\nlisten = \"nowhere\"\n",
                "line 2, column 10",
                "HOST:PORT",
            ),
            (
                "[metrics]\n\nprograms = 0\n",
                "line 3, column 12",
                "1 to 100000",
            ),
            ("[metrics]\nprograms = -1\n", "line 2, column 12", "-1"),
            (
                "[[policy]]\nname = \"a\"\ncapture = \"all\"\n",
                "line 3, column 11",
                "\"sleeps\" or \"boundary\"",
            ),
            // It may not be had of who runs already.
            (
                "[[policy]]\nname = \"a\"\ncapture = \"wrap\"\n",
                "line 3, column 11",
                "preloaded as a program starts (debox run --capture=wrap), and a policy watches programs that others \
                 started: say capture = \"boundary\"",
            ),
            (
                "[[policy]]\ncomm = \"nginx\"\n",
                "line 2, column 8",
                "sequence",
            ),
            (
                "[[policy]]\nname = \"a\"\nperiod = \"1s\"\n",
                "line 3, column 10",
                "2 s to 3600 s",
            ),
            (
                "[flight]\nkeep = \"1 year\"\n",
                "line 2, column 8",
                "\"10m\"",
            ),
            (
                "[flight]\ndirectory = \"here\"\n",
                "line 2, column 13",
                "begins with /",
            ),
            (
                "[[flight.when]]\nroot = \"disc\"\nabove = \"1s\"\n",
                "line 2, column 8",
                "known are",
            ),
            (
                "[[flight.when]]\nabove = \"1s\"\n",
                "line 2, column 9",
                "one root or one label",
            ),
            (
                "[[flight.when]]\nroot = \"disk\"\n",
                "line 1, column 1",
                "above",
            ),
            (
                "[fleet]\nto = \"ftp://x\"\n",
                "line 2, column 6",
                "s3://BUCKET",
            ),
            (
                "[[policy]]\nname = \"a\"\n[[policy.when]]\ncondition = \"wall > 1s && errno == EIO\"\n",
                "line 4, column 13",
                "'errno == EIO' is of a whole call, whose end capture = \"sleeps\" does not see: say capture = \"boundary\"",
            ),
            (
                "[[policy]]\nname = \"a\"\ncapture = \"boundary\"\n[[policy.when]]\ncondition = \"wall > 1\"\n",
                "line 5, column 13",
                "did you mean",
            ),
            (
                "[[policy]]\nname = \"a\"\ncapture = \"boundary\"\n[[policy.when]]\ncondition = \"wall > 1s\"\n\
                 do = [\"core\"]\n",
                "line 6, column 7",
                "debox attach",
            ),
            ("[budget]\ncpu = \"1\"\n", "line 2, column 7", "\"1%\""),
            (
                "[[policy]]\nname = \"a\"\n[policy.budget]\nevents_per_s = 5\n",
                "line 4, column 16",
                "[[policy.when]]",
            ),
            (
                "[[policy]]\nname = \"a\"\n[policy.budget]\ncpu = \"1%\"\n",
                "line 4, column 1",
                "events_per_s",
            ),
            (
                "[budget]\nmemory = \"1 TB\"\n",
                "line 2, column 10",
                "\"100MB\"",
            ),
            (
                "[[policy]]\nname = \"a\"\ncapture = \"boundary\"\n[[policy.when]]\ncondition = \"wall > 1s && wall < 1ms\"\n",
                "line 5, column 13",
                "condition: ",
            ),
            (
                "[[policy]]\nname = \"a\"\n[[policy.when]]\ncondition = \"comm in {a, b, c, d, e}\"\n[[policy.when]]\n\
                 condition = \"comm in {f, g, h, i}\"\n",
                "line 6, column 13",
                "it takes 4 of the 8 conditions that a policy can have in the kernel, and 3 are left",
            ),
            ("[flight\n", "line 1", ""),
        ] {
            let said = Config::parse(text).unwrap_err();
            assert!(
                said.starts_with(place) && said.contains(what),
                "{text:?}: {said}"
            );
        }
    }
}
