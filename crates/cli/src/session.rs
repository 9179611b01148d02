// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `run` and `attach` have in common: from an account to a report.

use crate::own_end;
use crate::own_labels;
use crate::spliced;
use crate::title::Titles;
use debox_abi::debox_event_call;
use debox_client::{AccountView, Connection, DetailsView, Snapshot};
use debox_output::printable;
use debox_report::{
    CallArgument, CodePlace, Details, Frame, Input, Note, NoteKind, Report, RunFacts, RunKind,
    WrapCounts, assemble, verdict_of,
};
use debox_symbol::{CodeFile, UserCode, UserFrame, UserSymbols};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// New places are named within milliseconds; a broker that is busy reading
/// debug information gets this long.
const SITES_WAIT: Duration = Duration::from_millis(200);

/// The snapshot at the end of a run, with the kernel's call paths if `stacks`. Waits until every place has its
/// name, or the time is over.
pub fn snapshot_last(account: &AccountView, connection: &Connection, stacks: bool) -> Snapshot {
    let until = Instant::now() + SITES_WAIT;
    while !account.sites_resolved() && Instant::now() < until && !account.stale() {
        std::thread::sleep(Duration::from_millis(2));
    }
    let (mut snapshot, chained) = snapshot(account, connection);
    if let Err(error) = chained {
        crate::say(&format!("without what was waited for: {error}"));
    }
    if stacks && account.details.is_some() && !snapshot.stale {
        match connection.site_stacks() {
            Ok(stacks) => snapshot.site_stacks = stacks,
            // The report is worth having without them.
            Err(error) => crate::say(&format!("without the kernel's call paths: {error}")),
        }
    }
    // To look through a table of megabytes takes the broker 10 ms.
    let samples = snapshot.on_cpu.as_deref();
    let in_kernel = samples.is_some_and(|table| table.kernel_functions().next().is_some());
    if in_kernel && !snapshot.stale {
        match connection.kernel_functions() {
            Ok(names) => snapshot.kernel_functions = names,
            Err(error) => crate::say(&format!("without names of the kernel's functions: {error}")),
        }
    }
    if let Err(error) = away_add(&mut snapshot, account, connection) {
        crate::say(&format!("without calls that are still open: {error}"));
    }
    snapshot
}

/// What has not ended yet, so far: of how many threads.
pub fn away_add(
    snapshot: &mut Snapshot,
    account: &AccountView,
    connection: &Connection,
) -> Result<usize, debox_client::Error> {
    if snapshot.stale {
        return Ok(0);
    }
    let away = connection.away_threads()?;
    snapshot.away_add(account, &away);
    Ok(away.len())
}

/// With what the sleeps waited for, unless that failed. A sleep goes into the sums by chain, and then into the
/// account: the sums are copied first, or they would have what the account lacks. The links come last, so that every
/// number has one.
pub fn snapshot(
    account: &AccountView,
    connection: &Connection,
) -> (Snapshot, Result<(), debox_client::Error>) {
    let sums = account.details.as_ref().map(DetailsView::chain_sums);
    let mut snapshot = account.snapshot();
    let chained = match sums.filter(|_| !snapshot.stale) {
        Some(sums) => (connection.chains()).map(|links| snapshot.chains_set(account, sums, links)),
        None => Ok(()),
    };
    (snapshot, chained)
}

pub fn not_followed(follow: bool) -> Option<Note> {
    let text = "children of the command are not included (--no-follow)";
    (!follow).then(|| Note::new(NoteKind::Other, 0, text))
}

pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub fn call_name(nr: u32, compat: bool) -> Option<String> {
    let nr = i32::try_from(nr).ok()?;
    Some(debox_symbol::syscall_name(nr, compat).into_owned())
}

/// The arguments of a call by name.
pub fn call_arguments(nr: u32, compat: bool, args: &[u64; 6]) -> Vec<CallArgument> {
    let told = debox_symbol::arguments(nr as i32, compat, args).unwrap_or_default();
    told.into_iter()
        .map(|argument| CallArgument {
            name: argument.name.into(),
            address: argument.is_address(),
            text: argument.text,
        })
        .collect()
}

/// Threads of a command that have not ended. The account counts those that
/// began under watch, so the command's first one is added; a thread that left
/// the watch went out of sight without an end.
pub fn threads_running(snapshot: &Snapshot) -> u64 {
    let account = &snapshot.account;
    (1 + account.threads_started)
        .saturating_sub(account.threads_ended)
        .saturating_sub(account.threads_left())
}

/// What goes into a report beside the snapshot.
pub struct Extra<'a> {
    /// Single calls, longest first.
    pub slow: &'a [&'a debox_event_call],
    /// CLOCK_MONOTONIC at the start of the run.
    pub start_ns: u64,
    /// Texts of the conditions, by number.
    pub conditions: &'a [String],
    /// Whether places in the program are looked up in its files; else they
    /// stay `module+0x1234`, which costs nothing.
    pub symbols: bool,
    /// What processes call themselves, where that is read seldom; None: it is read for this report.
    pub titles: Option<&'a RefCell<Titles>>,
}

impl Extra<'_> {
    /// Of a run that nobody observed.
    pub fn new(start_ns: u64) -> Self {
        Self {
            slow: &[],
            start_ns,
            conditions: &[],
            symbols: true,
            titles: None,
        }
    }
}

thread_local! {
    /// Places in programs, each looked up once.
    static SYMBOLS: RefCell<UserSymbols> = RefCell::default();
}

/// The functions around a place in a program, innermost first.
pub fn names_of(code: &UserCode, place: u64) -> Vec<UserFrame> {
    SYMBOLS.with_borrow_mut(|symbols| symbols.resolve_one(code, place))
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Names a place in a program.
fn frames(place: CodePlace<'_>, symbols: bool) -> Vec<Frame> {
    let (code, at) = match place {
        CodePlace::Vdso { offset } => {
            return vec![Frame {
                module: Some("[vdso]".into()),
                offset,
                ..Frame::default()
            }];
        }
        CodePlace::File { path, pid, offset } => {
            let file = CodeFile {
                path: path.into(),
                pid: (pid != 0).then_some(pid),
                build_id: None,
            };
            (UserCode::File(file), offset)
        }
        CodePlace::Memory { pid, address } => (UserCode::Memory { pid }, address),
    };
    let found = match (symbols, &code) {
        (true, UserCode::File(file)) if file.path.as_os_str().is_empty() => Vec::new(),
        (true, _) => names_of(&code, at),
        (false, _) => Vec::new(),
    };
    if found.is_empty() {
        let module = match &code {
            UserCode::File(file) => file
                .path
                .file_name()
                .map(|n| n.to_string_lossy().into_owned()),
            UserCode::Memory { .. } => Some("[jit]".into()),
        };
        return vec![Frame {
            module,
            offset: at,
            ..Frame::default()
        }];
    }
    found
        .into_iter()
        .map(|frame| Frame {
            function: some(frame.function),
            module: some(frame.module),
            offset: frame.offset,
            file: some(frame.file),
            line: (frame.line != 0).then_some(frame.line),
            inlined: frame.inlined,
        })
        .collect()
}

pub fn report(
    snapshot: &Snapshot,
    wrap: Option<&WrapCounts>,
    mut facts: RunFacts,
    call_site_names: Option<&dyn Fn(usize, u64) -> String>,
    extra: &Extra<'_>,
) -> Report {
    facts.features = snapshot.features;
    facts.stale = snapshot.stale;
    let events: Vec<&debox_event_call> = extra.slow.to_vec();
    let name = |place: CodePlace<'_>| frames(place, extra.symbols);
    let details = snapshot.details.as_ref().map(|details| Details {
        details,
        site_stacks: &snapshot.site_stacks,
        chain_sums: &snapshot.chain_sums,
        chain_links: &snapshot.chains,
        events: &events,
        call_arguments: &call_arguments,
        objects: snapshot.objects.as_deref(),
        on_cpu: snapshot.on_cpu.as_deref(),
        kernel_functions: &snapshot.kernel_functions,
        lives: snapshot.lives.as_deref(),
        frames: &name,
        start_ns: extra.start_ns,
        conditions: extra.conditions,
    });
    let ended_early = facts.ended_early;
    let mut report = assemble(Input {
        account: &snapshot.account,
        cpus: &snapshot.cpus,
        sites: &snapshot.sites,
        wrap,
        facts,
        call_names: &call_name,
        call_site_names,
        details: details.as_ref(),
    });
    crate::cgroup::name(&mut report.lives);
    if report.run.kind == RunKind::Attach {
        match extra.titles {
            Some(titles) => titles.borrow_mut().name(&mut report.lives),
            None => Titles::default().name(&mut report.lives),
        }
    }
    report.labels = own_labels::of(&report);
    spliced::own_part_tell(&mut report);
    spliced::images_name(&mut report);
    if ended_early {
        own_end::tell(&mut report);
    }
    own_labels::rests_refine(&mut report);
    report.verdict = verdict_of(&report);
    let told = SYMBOLS.with_borrow(|symbols| symbols.notes().collect::<Vec<_>>());
    report.notes.extend(
        told.into_iter()
            .map(|note| Note::new(NoteKind::NotMeasured, note.count, printable(&note.text))),
    );
    report
}

/// What a broker calls a place whose name it may not read.
const UNNAMED: &str = "unnamed";

/// Without names the blocking table is of little use, so the reason is told;
/// that only files and lines are missing, is not told with every report, unless
/// a debuginfod server was to give them and did not.
pub fn names_explain(report: &mut Report, notes: Vec<String>) {
    let unnamed = report.blocking.iter().any(|row| row.label == UNNAMED);
    let told = notes
        .into_iter()
        .filter(|text| unnamed || text.contains("debuginfod"));
    report
        .notes
        .extend(told.map(|text| Note::new(NoteKind::NotMeasured, 0, text)));
}
