// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--trace`: which kernel functions do the calls run through?
//!
//! The trace belongs to the connection's account, so it works the same in
//! boundary and in wrap capture: its calls are those that the kernel sees.

use crate::error::Error;
use crate::learn::{Learned, Learner};
use crate::session;
use clap::Args;
use debox_abi::*;
use debox_client::{Connection, Mapping};
use debox_report::{TraceEntry, TraceFunction, TraceReport, TracedCall, call_of_key};
use std::io;
use std::time::{Duration, Instant};

/// Attaching pairs of probes takes some seconds, in a busy machine many.
const ATTACH_PATIENCE: Duration = Duration::from_secs(120);

/// Trace the kernel functions that calls run through.
#[derive(Args, Debug, Default, Clone)]
pub struct TraceArgs {
    /// Trace the kernel functions that calls run through: patterns with * and ?,
    /// separated by commas ('vfs_*,ext4_*'), "default", or "learn": all that the
    /// calls are seen to pass in their first two seconds ("learn:PATTERNS": of these)
    #[arg(long, value_name = "FUNCTIONS")]
    pub trace: Option<String>,
    /// Trace only inside of these system calls
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        requires = "trace",
        hide_short_help = true
    )]
    pub call: Vec<String>,
    /// Keep at most N entries of one call
    #[arg(long, value_name = "N", default_value_t = DEBOX_TRACE_DEFAULT, requires = "trace", hide_short_help = true,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(DEBOX_TRACE_MAX)))]
    pub trace_max: u32,
    /// How to trace: session, multi, fentry or tracepoints (default: the best that works)
    #[arg(long, value_name = "WAY", requires = "trace", hide_short_help = true,
          value_parser = ["session", "multi", "fentry", "tracepoints"])]
    pub way: Option<String>,
}

impl TraceArgs {
    pub fn wanted(&self) -> bool {
        self.trace.is_some()
    }

    /// When the functions are to be found first, by watching what the calls
    /// pass: the patterns of those that are looked at, none for all.
    fn learns(&self) -> Option<&str> {
        match self.trace.as_deref()? {
            "learn" => Some(""),
            text => text.strip_prefix("learn:"),
        }
    }

    /// What does not go together.
    pub fn check(&self) -> Result<(), Error> {
        if self.learns().is_some() && self.way.as_deref() == Some("tracepoints") {
            return Err(Error::Arguments(
                "--trace learn finds functions, and --way tracepoints traces none: leave out --way"
                    .into(),
            ));
        }
        Ok(())
    }

    pub fn learner(&self) -> Result<Option<Learner>, Error> {
        let Some(among) = self.learns() else {
            return Ok(None);
        };
        Learner::prepare(self.call_numbers()?, among).map(Some)
    }

    fn call_numbers(&self) -> Result<Vec<u32>, Error> {
        self.call
            .iter()
            .map(|name| {
                debox_symbol::syscall_number(name)
                    .map(|nr| nr as u32)
                    .ok_or_else(|| {
                        Error::Arguments(format!("--call: there is no system call {name:?}"))
                    })
            })
            .collect()
    }

    fn request(&self, learned: Option<&str>) -> Result<debox_trace_request, Error> {
        let mut request = debox_trace_request::new(DEBOX_REQ_TRACE_ACCOUNT);
        request.capacity = self.trace_max;
        request.way = match self.way.as_deref() {
            Some("session") => DEBOX_TRACE_WAY_SESSION,
            Some("multi") => DEBOX_TRACE_WAY_MULTI,
            Some("fentry") => DEBOX_TRACE_WAY_FENTRY,
            Some("tracepoints") => DEBOX_TRACE_WAY_TRACEPOINT,
            _ => DEBOX_TRACE_WAY_NONE,
        };
        let patterns = match (learned, self.trace.as_deref()) {
            (Some(learned), _) => learned,
            (None, None | Some("default")) => "",
            (None, Some(patterns)) => patterns,
        };
        if patterns.len() >= DEBOX_TRACE_PATTERNS_LEN {
            return Err(Error::Arguments(format!(
                "--trace is {} characters long, the limit is {}: use patterns",
                patterns.len(),
                DEBOX_TRACE_PATTERNS_LEN - 1
            )));
        }
        request.patterns[..patterns.len()].copy_from_slice(patterns.as_bytes());
        if self.call.len() > DEBOX_TRACE_CALLS_MAX {
            return Err(Error::Arguments(format!(
                "--call takes at most {DEBOX_TRACE_CALLS_MAX} calls"
            )));
        }
        for (key, number) in request.calls.iter_mut().zip(self.call_numbers()?) {
            *key = number;
        }
        request.calls_count = self.call.len() as u32;
        Ok(request)
    }
}

/// Why a command that was over while its functions were learned has no trace.
pub fn learned_too_late(learned: &Learned) -> String {
    let (some, taken) = learned.patterns(600);
    format!(
        "no call trace: the command ended while its functions were learned. In {} calls it passed {} functions; \
         trace them in the next run: --trace '{some}{}'",
        learned.calls,
        learned.functions.len(),
        if taken < learned.functions.len() {
            ",..."
        } else {
            ""
        },
    )
}

/// A trace as the broker shares it.
pub struct TraceView {
    buffers: Mapping,
    sums: Mapping,
    table: Mapping,
    count: usize,
    capacity: usize,
    stride: usize,
    /// How the functions were found.
    learned: String,
}

impl TraceView {
    /// Opens the trace of the connection's account and waits until it is on.
    pub fn open(connection: &Connection, args: &TraceArgs) -> Result<Self, Error> {
        Self::open_patterns(connection, args, None)
    }

    /// Opens it for functions that were learned.
    pub fn open_learned(
        connection: &Connection,
        args: &TraceArgs,
        learned: &Learned,
    ) -> Result<Self, Error> {
        let calls = learned.calls;
        if learned.functions.is_empty() {
            return Err(Error::CannotWatch {
                why: format!(
                    "no call trace: {} while the functions were to be learned",
                    if calls == 0 {
                        "no such call was made"
                    } else {
                        "no function was seen"
                    }
                ),
            });
        }
        let (patterns, taken) = learned.patterns(DEBOX_TRACE_PATTERNS_LEN - 1);
        let mut view = Self::open_patterns(connection, args, Some(&patterns))?;
        view.learned = format!(
            "{} functions were learned from {calls} call{}",
            learned.functions.len(),
            if calls == 1 { "" } else { "s" },
        );
        if taken < learned.functions.len() {
            view.learned.push_str(&format!(
                ", of which the {taken} that most calls pass, and the least often, are traced"
            ));
        }
        Ok(view)
    }

    fn open_patterns(
        connection: &Connection,
        args: &TraceArgs,
        patterns: Option<&str>,
    ) -> Result<Self, Error> {
        let (_, fds) = connection.ask_bytes(DEBOX_MSG_TRACE, args.request(patterns)?.as_bytes())?;
        let broken = |what: String| Error::Broker(connection.broken(what));
        let [buffers, sums, table] = &fds[..] else {
            return Err(broken(format!(
                "a trace comes with 3 descriptors, not {}",
                fds.len()
            )));
        };
        let map = |fd, length, what: &str| {
            Mapping::new(fd, length).map_err(|e: io::Error| broken(format!("mapping {what}: {e}")))
        };
        let table = map(table, DEBOX_TRACE_TABLE_SIZE, "a trace's table")?;
        let head = head_of(&table);
        let stride = head.stride as usize;
        let (count, capacity) = (head.buffers as usize, head.capacity as usize);
        if head.magic != DEBOX_TRACE_MAGIC
            || count == 0
            || count > 1 << 20
            || stride != size_of::<debox_trace>() + capacity * size_of::<debox_trace_entry>()
        {
            return Err(broken(
                "its trace is of another version: install the same release of both".into(),
            ));
        }
        let view = Self {
            buffers: map(buffers, count * stride, "a trace's buffers")?,
            sums: map(sums, size_of::<debox_trace_sums>(), "a trace's sums")?,
            table,
            count,
            capacity,
            stride,
            learned: String::new(),
        };
        let begin = Instant::now();
        loop {
            let head = head_of(&view.table);
            match head.state {
                DEBOX_TRACE_STATE_STARTING if begin.elapsed() < ATTACH_PATIENCE => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                DEBOX_TRACE_STATE_STARTING => {
                    return Err(Error::CannotWatch {
                        why: format!(
                            "no call trace: attaching took more than {} s; name fewer functions",
                            ATTACH_PATIENCE.as_secs()
                        ),
                    });
                }
                DEBOX_TRACE_STATE_FAILED => {
                    return Err(Error::CannotWatch {
                        why: format!("no call trace: {}", head.text()),
                    });
                }
                _ => return Ok(view),
            }
        }
    }

    /// Ends tracing and takes everything out.
    pub fn finish(&self, connection: &Connection) -> Result<TraceReport, Error> {
        let stop = debox_trace_request::new(DEBOX_REQ_TRACE_STOP);
        connection.ask_bytes(DEBOX_MSG_TRACE, stop.as_bytes())?;
        Ok(self.report(true))
    }

    /// What is known while tracing goes on: the functions, no single calls,
    /// since these are written meanwhile.
    pub fn sums_so_far(&self) -> TraceReport {
        self.report(false)
    }

    fn report(&self, single_calls: bool) -> TraceReport {
        let head = head_of(&self.table);
        let mut sums = debox_trace_sums::zeroed_box();
        self.sums.copy_words(0, sums.as_bytes_mut());
        let functions = (head.functions as usize).min(DEBOX_TRACE_FUNCTIONS_MAX);
        let name = |function: u32| {
            if function as usize >= functions {
                return "?".to_owned();
            }
            let mut text = debox_trace_function::zeroed();
            let at = DEBOX_PAGE_SIZE + function as usize * size_of::<debox_trace_function>();
            self.table.copy_words(at, text.as_bytes_mut());
            debox_output::printable(text.name())
        };
        let mut report = TraceReport {
            way: match head.way {
                DEBOX_TRACE_WAY_SESSION => "kprobe.session",
                DEBOX_TRACE_WAY_MULTI => "kprobe.multi",
                DEBOX_TRACE_WAY_FENTRY => "fentry/fexit",
                _ => "tracepoints",
            }
            .to_owned(),
            coarse: head.way == DEBOX_TRACE_WAY_TRACEPOINT,
            functions_traced: head.functions,
            functions_refused: head.refused,
            text: [self.learned.as_str(), &debox_output::printable(head.text())]
                .into_iter()
                .filter(|text| !text.is_empty())
                .collect::<Vec<_>>()
                .join("; "),
            calls: sums.calls,
            entries_dropped: sums.entries_dropped,
            threads_untraced: sums.threads_untraced,
            missed: head.missed,
            unmatched: sums.unmatched,
            slowest: vec![],
            functions: vec![],
        };
        let slowest = sums.slowest.iter().enumerate();
        for (key, &word) in slowest.filter(|_| single_calls) {
            let Some(index) = debox_trace_slowest_buffer(word).filter(|&i| i < self.count) else {
                continue;
            };
            let (call, abi) = call_of_key(key as u32, &session::call_name)
                .unwrap_or_else(|| ("(unknown)".to_owned(), 64));
            report.slowest.push(self.call(index, call, abi, &name));
        }
        report
            .slowest
            .sort_by_key(|call| std::cmp::Reverse(call.wall_ns));
        for (i, sum) in sums.functions[..functions].iter().enumerate() {
            if sum.calls > 0 {
                report.functions.push(TraceFunction {
                    function: name(i as u32),
                    calls: sum.calls,
                    total_ns: sum.total_ns,
                    self_ns: sum.self_ns,
                    max_ns: sum.max_ns,
                });
            }
        }
        report
            .functions
            .sort_by_key(|f| (std::cmp::Reverse((f.self_ns, f.calls)), f.function.clone()));
        report
    }

    fn call(
        &self,
        index: usize,
        call: String,
        abi: u32,
        name: &dyn Fn(u32) -> String,
    ) -> TracedCall {
        let at = index * self.stride;
        let mut head = debox_trace::zeroed();
        self.buffers.copy_words(at, head.as_bytes_mut());
        let entries = (0..(head.count as usize).min(self.capacity))
            .map(|i| {
                let mut e = debox_trace_entry::zeroed();
                let at = at + size_of::<debox_trace>() + i * size_of::<debox_trace_entry>();
                self.buffers.copy_words(at, e.as_bytes_mut());
                let timed = u32::from(e.flags) & (DEBOX_TRACE_OPEN | DEBOX_TRACE_POINT) == 0;
                TraceEntry {
                    function: name(e.function),
                    depth: u32::from(e.depth),
                    start_ns: e.start_ns,
                    total_ns: timed.then_some(e.total_ns),
                    self_ns: timed.then_some(e.self_ns),
                }
            })
            .collect();
        TracedCall {
            call,
            abi,
            pid: head.pid,
            tid: head.tid,
            wall_ns: head.wall_ns,
            retval: head.retval,
            error: debox_output::error_name(head.retval),
            unfinished: head.flags & DEBOX_TRACE_FLAG_UNFINISHED != 0,
            dropped: head.dropped,
            entries,
        }
    }
}

fn head_of(table: &Mapping) -> debox_trace_table {
    // `state` is read with acquire order: what the broker wrote before it is
    // there.
    let offset = std::mem::offset_of!(debox_trace_table, state);
    let state = table.load_acquire(offset);
    let mut head = debox_trace_table::zeroed();
    table.copy_words(0, head.as_bytes_mut());
    head.state = state;
    head
}
