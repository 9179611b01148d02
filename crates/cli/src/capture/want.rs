// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is to be captured, and which options exclude each other?
//!
//! Made once from the arguments. What does not go together is said here, in one
//! text each (clap refuses the pairs that need no reason).

use crate::acting::Plan;

use crate::args::{BrokerArgs, CaptureArgs, HZ, ReportArgs, TopArgs, Way};
use crate::doctor;
use crate::error::Error;
use crate::output::Output;
use crate::trace::TraceArgs;
use debox_abi::{
    DEBOX_DETAIL_CALL_SITES, DEBOX_DETAIL_EVENT_STACKS, DEBOX_DETAIL_EVENTS, DEBOX_DETAIL_SLEEPS,
    DEBOX_DETAIL_STACKS, DEBOX_DETAIL_THREADS, DEBOX_REQ_AUDIT, DEBOX_REQ_BOUNDARY,
    DEBOX_REQ_DETAILS, DEBOX_REQ_IRQ, DEBOX_REQ_SPLICE, DEBOX_REQ_USER_STACKS,
};
use debox_output::printable_bytes;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The slowest single sleeps.
const SLOW_SLEEPS: u32 = DEBOX_DETAIL_EVENTS | DEBOX_DETAIL_SLEEPS;

/// What names a recording among the files that -o can write.
const EXTENSION: &str = "debox";

pub struct Want {
    pub broker: BrokerArgs,
    /// Children, too.
    pub follow: bool,
    /// How the ends of calls are known.
    pub way: Way,
    /// Nobody said how.
    pub is_default: bool,
    /// By place in the program, in wrap capture.
    pub call_sites: bool,
    /// DEBOX_REQ_* of the account.
    pub request: u32,
    /// How often a clock of CPU time strikes; 0: there is none.
    pub hz: u32,
    /// DEBOX_DETAIL_*, to switch on before the first process joins.
    pub details: u32,
    pub recording: Option<PathBuf>,
    /// Single slow calls, or sleeps, are kept, so that a report of any moment has them.
    pub keeps_slow: bool,
    pub plan: Option<Plan>,
    pub trace: TraceArgs,
    /// Interrupts.
    pub irq: bool,
    /// Of calls that take little, one in so many is stamped.
    pub sample: Option<u32>,
}

impl Want {
    /// Of `run`. If nothing is said, calls are counted where nobody else pays for it, but for what is only at the
    /// kernel's boundary, or costs less there.
    pub fn of_command(args: &CaptureArgs) -> Result<Self, Error> {
        Self::with_default(args, |plan| {
            let walks = args.details.call_site || args.details.stacks;
            match walks || args.trace.wanted() || plan.is_some_and(Plan::dumps_core) {
                false if doctor::spliceable(true).is_ok() => Way::Splice,
                _ => Way::Boundary,
            }
        })
    }

    /// Of `attach`: a process that runs is not changed unasked.
    pub fn new(args: &CaptureArgs) -> Result<Self, Error> {
        Self::with_default(args, |_| Way::Boundary)
    }

    fn with_default(
        args: &CaptureArgs,
        default: impl FnOnce(Option<&Plan>) -> Way,
    ) -> Result<Self, Error> {
        let mut plan = Plan::new(&args.act, args.irq, args.broker.labels.as_deref())?;
        let way = (args.capture_way).unwrap_or_else(|| default(plan.as_ref()));
        way_allows(args, way)?;
        if way == Way::Sleeps {
            plan = plan.map(Plan::of_sleeps).transpose()?;
        }
        if way == Way::Splice && plan.as_ref().is_some_and(Plan::dumps_core) {
            return Err(Error::Arguments(
                "--capture=splice has no --do core: a debugger does not find its way through the code that makes \
                 spliced calls. Use --do stack, or --capture=boundary"
                    .into(),
            ));
        }
        for (is_asked, what) in [
            (args.audit, "--audit looks after --capture=splice"),
            (
                args.sample.is_some(),
                "--sample leaves stamps out, which are there with --capture=splice alone",
            ),
        ] {
            if is_asked && way != Way::Splice {
                if args.capture_way.is_none() {
                    doctor::spliceable(true).map_err(|(why, remedy)| {
                        Error::Usage(format!(
                            "{what}, and nothing can be spliced: {why}. Remedy: {remedy}"
                        ))
                    })?;
                }
                return Err(Error::Arguments(format!(
                    "{what}: give that as well, or leave it out"
                )));
            }
        }
        if args.sample.is_some() && (args.details.call_site || args.details.stacks) {
            return Err(Error::Arguments(
                "--call-site and --stacks look at the end of each call, so each is stamped: leave out --sample, or these"
                    .into(),
            ));
        }
        args.trace.check()?;
        let recording = recording(&args.report, args.record.record)?;
        let mut details = 0;
        if args.details.call_site || args.details.stacks {
            details |= DEBOX_DETAIL_CALL_SITES;
        }
        if args.details.stacks {
            details |= DEBOX_DETAIL_STACKS;
        }
        if recording.is_some() {
            details |= DEBOX_DETAIL_EVENTS | DEBOX_DETAIL_EVENT_STACKS;
            details |= DEBOX_DETAIL_THREADS;
        }
        let walks = DEBOX_DETAIL_CALL_SITES | DEBOX_DETAIL_STACKS | DEBOX_DETAIL_EVENT_STACKS;
        let mut request = DEBOX_REQ_BOUNDARY | DEBOX_REQ_DETAILS;
        if details & walks != 0 || plan.as_ref().is_some_and(Plan::wants_stacks) {
            request |= DEBOX_REQ_USER_STACKS;
        }
        let audit = if args.audit { DEBOX_REQ_AUDIT } else { 0 };
        let irq = if args.irq { DEBOX_REQ_IRQ } else { 0 };
        Ok(Self {
            broker: args.broker.clone(),
            follow: !args.no_follow,
            way,
            is_default: args.capture_way.is_none(),
            call_sites: args.details.call_site,
            request: match way {
                Way::Boundary => irq | request,
                Way::Wrap => irq,
                Way::Splice => request & !DEBOX_REQ_BOUNDARY | DEBOX_REQ_SPLICE | audit | irq,
                Way::Sleeps => DEBOX_REQ_DETAILS,
            },
            hz: if way == Way::Wrap { 0 } else { args.hz },
            details: match way {
                Way::Wrap => 0,
                Way::Sleeps if recording.is_some() => SLOW_SLEEPS,
                Way::Sleeps => 0,
                Way::Boundary | Way::Splice => details,
            },
            recording,
            keeps_slow: false,
            plan,
            trace: args.trace.clone(),
            irq: args.irq,
            sample: args.sample,
        })
    }

    /// The slowest single calls, where calls are counted at the kernel's boundary; by sleeps the slowest of these.
    pub fn slow_keep(&mut self) {
        let details = match self.way {
            Way::Boundary => DEBOX_DETAIL_EVENTS,
            Way::Sleeps => SLOW_SLEEPS,
            Way::Wrap | Way::Splice => return,
        };
        self.keeps_slow = true;
        self.details |= details;
    }

    /// Nothing can be spliced, and nobody said that it has to be.
    pub fn at_boundary(&mut self) {
        self.way = Way::Boundary;
        self.request = self.request & !DEBOX_REQ_SPLICE | DEBOX_REQ_BOUNDARY;
    }

    /// Whether there is something in it that only the kernel side tells; where the calls of a command come from
    /// its own code tells as well.
    pub fn asks_kernel(&self, command: bool) -> bool {
        let own = match command {
            true => DEBOX_DETAIL_CALL_SITES,
            false => 0,
        };
        self.details & !own != 0
            || self.plan.is_some()
            || self.audits()
            || self.irq
            || self.trace.wanted()
    }

    /// Whether spliced calls are looked after.
    pub fn audits(&self) -> bool {
        self.request & DEBOX_REQ_AUDIT != 0
    }

    /// Of `top`.
    pub fn live(args: &TopArgs) -> Result<Self, Error> {
        let common = CaptureArgs {
            broker: args.broker.clone(),
            no_follow: args.no_follow,
            irq: args.irq,
            capture_way: args.capture_way,
            sample: args.sample,
            ..CaptureArgs::default()
        };
        let mut want = Self::new(&common)?;
        if want.way == Way::Boundary {
            want.request |= DEBOX_REQ_USER_STACKS;
            want.details = DEBOX_DETAIL_THREADS | DEBOX_DETAIL_CALL_SITES;
        }
        Ok(want)
    }

    /// Where the report goes. A recording is written by the capture.
    pub fn output(&self, args: &ReportArgs) -> Result<Output, Error> {
        match self.recording {
            Some(_) => Ok(Output::stderr()),
            None => Output::open(args),
        }
    }
}

/// What is counted in user space, or not at all, has none of these.
fn way_allows(args: &CaptureArgs, way: Way) -> Result<(), Error> {
    let asked = [
        (args.details.call_site, "--call-site", &[Way::Sleeps][..]),
        (args.details.stacks, "--stacks", &[Way::Wrap, Way::Sleeps]),
        (!args.act.rules.is_empty(), "--on", &[Way::Wrap]),
        (args.hz != HZ, "--hz", &[Way::Wrap]),
        (args.irq, "--irq", &[Way::Sleeps]),
        (args.trace.wanted(), "--trace", &[Way::Sleeps]),
    ];
    for (is_asked, option, without) in asked {
        if is_asked && without.contains(&way) {
            return Err(Error::Arguments(format!(
                "--capture={} has no {option}: leave out one of both",
                way.name()
            )));
        }
    }
    Ok(())
}

/// The recording that the command line asks for.
fn recording(report: &ReportArgs, asked: bool) -> Result<Option<PathBuf>, Error> {
    let named = |path: &PathBuf| path.extension() == Some(OsStr::new(EXTENSION));
    let Some(path) = report.output.as_ref().filter(|path| asked || named(path)) else {
        return Ok(None);
    };
    if path.as_os_str() == "-" {
        return Err(Error::Arguments(
            "a recording is rewritten as the run goes on, so it cannot go to standard output: name a file"
                .into(),
        ));
    }
    if report.json {
        return Err(Error::Arguments(format!(
            "--json writes JSON, and {} is to be a recording: leave out --json (debox report --json makes \
             JSON of a recording), or name the file otherwise",
            printable_bytes(path.as_os_str().as_bytes())
        )));
    }
    Ok(Some(path.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acting::{ActArgs, ActionArgs, RuleArgs};

    fn want(output: Option<&str>, asked: bool, json: bool) -> Result<Option<PathBuf>, String> {
        let report = ReportArgs {
            output: output.map(PathBuf::from),
            json,
            ..ReportArgs::default()
        };
        recording(&report, asked).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_counted_in_user_space_has_less() {
        let with = |change: fn(&mut CaptureArgs), way| {
            let mut args = CaptureArgs {
                hz: HZ,
                capture_way: Some(way),
                ..CaptureArgs::default()
            };
            change(&mut args);
            Want::new(&args).err().map(|error| error.to_string())
        };
        let says = |change, way, option: &str| {
            let why = with(change, way).unwrap_or_default();
            assert!(why.contains(option) && why.contains(way.name()), "{why}");
        };
        says(|args| args.details.stacks = true, Way::Wrap, "--stacks");
        says(|args| args.hz = 499, Way::Wrap, "--hz");
        assert_eq!(with(|args| args.no_follow = true, Way::Splice), None);
        for way in [Way::Wrap, Way::Splice] {
            assert_eq!(with(|args| args.details.call_site = true, way), None);
            assert_eq!(with(|args| args.irq = true, way), None);
        }
        says(
            |args| args.details.call_site = true,
            Way::Sleeps,
            "--call-site",
        );
        says(|args| args.irq = true, Way::Sleeps, "--irq");
        assert_eq!(with(|args| args.no_follow = true, Way::Sleeps), None);
        assert_eq!(with(|_| {}, Way::Splice), None);
    }

    #[test]
    fn of_a_sleep_it_is_asked_what_a_sleep_tells() {
        let said = |on: &str, action: &str| {
            let action = ActionArgs {
                text: action.into(),
                ..ActionArgs::default()
            };
            let rule = RuleArgs {
                on: on.into(),
                actions: vec![action],
            };
            let args = CaptureArgs {
                capture_way: Some(Way::Sleeps),
                act: ActArgs::lasting(vec![rule]),
                ..CaptureArgs::default()
            };
            Want::new(&args).err().map(|error| error.to_string())
        };
        assert_eq!(said("blocked > 1s && label == nanosleep", "stack"), None);
        assert_eq!(said("call == fsync && comm == db", "exec true"), None);
        for (on, action, what) in [
            ("blocked > 1s && errno == EIO", "print", "errno == EIO"),
            ("caller == main", "print", "--capture=boundary"),
            ("sleeps > 3 || wall > 1s", "print", "are known"),
            ("blocked > 1s", "stop", "--do stop"),
            ("blocked > 1s", "signal USR1", "--capture=boundary"),
        ] {
            let said = said(on, action).unwrap_or_default();
            assert!(said.contains(what), "{on}, {action}: {said}");
        }
    }

    #[test]
    fn a_recording_is_asked_for_or_named() {
        assert_eq!(want(None, false, false), Ok(None));
        assert_eq!(want(Some("x.json"), false, true), Ok(None));
        assert_eq!(want(Some("-"), false, false), Ok(None));
        let named = Ok(Some(PathBuf::from("x.debox")));
        assert_eq!(want(Some("x.debox"), false, false), named);
        assert_eq!(want(Some("x"), true, false), Ok(Some("x".into())));
        for (output, asked, json, says) in [
            (Some("-"), true, false, "standard output"),
            (Some("x.debox"), false, true, "--json"),
        ] {
            let why = want(output, asked, json).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }
}
