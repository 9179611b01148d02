// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which tables does a report become, and which columns does each have?

use debox_output::error_name;
use debox_report::{ChainRow, CulpritRole, Frame, ObjectRow, Report, link_text, links_of};

use super::{Table, Values};
use crate::path::frame_name;

pub(super) const TABLES: [fn(&Report) -> Table; 17] = [
    run, calls, histogram, blocking, call_sites, culprits, chains, objects, interrupts, threads,
    paths, slow_calls, sleeps, history, gauges, trends, notes,
];

fn frame_text(frame: &Frame) -> String {
    match (&frame.file, frame.line) {
        (Some(file), Some(line)) => format!("{} ({file}:{line})", frame_name(frame)),
        _ => frame_name(frame),
    }
}

fn site_text(report: &Report, stack: Option<usize>) -> Option<String> {
    let stack = report.stacks.get(stack?)?;
    stack.frames.get(stack.site_frame).map(frame_text)
}

/// The frames from the outermost on, semicolons between.
fn stack_text(report: &Report, stack: Option<usize>) -> Option<String> {
    let stack = report.stacks.get(stack?)?;
    let frames: Vec<String> = stack.frames.iter().rev().map(frame_text).collect();
    Some(frames.join(";"))
}

fn run(r: &Report) -> Table {
    let mut run = Table::new("run");
    let one = [()];
    run.text("command", &one, |_| r.run.command.join(" "))
        .text("debox_version", &one, |_| r.debox_version.clone())
        .number("wall_ns", &one, |_| r.run.wall_ns)
        .number("cpus", &one, |_| u64::from(r.run.cpus))
        .number("calls", &one, |_| r.totals.calls)
        .number("errors", &one, |_| r.totals.errors)
        .number("calls_wall_ns", &one, |_| r.totals.wall_ns)
        .maybe("cpu_ns", &one, |_| r.totals.cpu_ns)
        .maybe("blocked_ns", &one, |_| r.totals.blocked_ns)
        .maybe("runq_ns", &one, |_| r.totals.runq_ns)
        .maybe("irq_ns", &one, |_| r.totals.irq_ns)
        .maybe("irq_outside_ns", &one, |_| r.totals.irq_outside_ns)
        .number("sleeps", &one, |_| r.totals.sleeps)
        .number("sleeps_ns", &one, |_| r.totals.sleeps_ns)
        .truth("complete", &one, |_| {
            r.recording.as_ref().is_none_or(|s| s.complete)
        });
    run
}

fn calls(r: &Report) -> Table {
    let mut calls = Table::new("calls");
    let c = &r.calls;
    calls
        .text("call", c, |c| c.name.clone())
        .maybe("nr", c, |c| c.nr.map(u64::from))
        .number("abi", c, |c| u64::from(c.abi))
        .number("count", c, |c| c.count)
        .number("errors", c, |c| c.errors)
        .number("restarted", c, |c| c.restarted)
        .number("unfinished", c, |c| c.unfinished)
        .maybe("wall_ns", c, |c| c.wall_ns)
        .maybe("mean_ns", c, |c| c.mean_ns)
        .maybe("p50_ns", c, |c| c.p50_ns)
        .maybe("p99_ns", c, |c| c.p99_ns)
        .maybe("max_ns", c, |c| c.max_ns)
        .maybe("cpu_ns", c, |c| c.cpu_ns)
        .maybe("blocked_ns", c, |c| c.blocked_ns)
        .maybe("runq_ns", c, |c| c.runq_ns)
        .maybe("irq_ns", c, |c| c.irq_ns)
        .maybe("minor_faults", c, |c| c.minor_faults)
        .maybe("major_faults", c, |c| c.major_faults)
        .maybe("nvcsw", c, |c| c.nvcsw)
        .maybe("nivcsw", c, |c| c.nivcsw);
    calls
}

fn histogram(r: &Report) -> Table {
    let mut histogram = Table::new("histogram");
    let rows: Vec<_> = r
        .calls
        .iter()
        .flat_map(|c| c.histogram.iter().map(move |b| (c, b)))
        .collect();
    histogram
        .text("call", &rows, |(c, _)| c.name.clone())
        .number("abi", &rows, |(c, _)| u64::from(c.abi))
        .number("from_ns", &rows, |(_, b)| b.from_ns)
        .maybe("to_ns", &rows, |(_, b)| b.to_ns)
        .number("count", &rows, |(_, b)| b.count);
    histogram
}

fn blocking(r: &Report) -> Table {
    let mut blocking = Table::new("blocking");
    let b = &r.blocking;
    blocking
        .text("label", b, |b| b.label.clone())
        .truth("unlabelled", b, |b| b.unlabelled)
        .maybe_text("call", b, |b| b.call.clone())
        .number("abi", b, |b| u64::from(b.abi))
        .maybe_text("function", b, |b| b.function.clone())
        .maybe("offset", b, |b| b.offset.map(u64::from))
        .maybe_text("file", b, |b| b.file.clone())
        .maybe("line", b, |b| b.line.map(u64::from))
        .number("count", b, |b| b.count)
        .number("total_ns", b, |b| b.total_ns)
        .number("mean_ns", b, |b| b.mean_ns)
        .number("max_ns", b, |b| b.max_ns)
        .real("share", b, |b| b.share)
        .maybe_real("waiters_mean", b, |b| b.waiters_mean)
        .maybe("waiters_max", b, |b| b.waiters_max)
        .number("waiters_known", b, |b| b.waiters_known);
    blocking
}

fn call_sites(r: &Report) -> Table {
    let mut call_sites = Table::new("call_sites");
    let s = &r.call_sites;
    call_sites
        .text("call", s, |s| s.call.clone())
        .text("place", s, |s| s.place.clone())
        .maybe_text("stack", s, |s| stack_text(r, s.stack))
        .number("count", s, |s| s.count)
        .number("errors", s, |s| s.errors)
        .maybe("wall_ns", s, |s| s.wall_ns)
        .maybe("mean_ns", s, |s| s.mean_ns)
        .maybe("max_ns", s, |s| s.max_ns)
        .maybe("cpu_ns", s, |s| s.cpu_ns)
        .maybe("blocked_ns", s, |s| s.blocked_ns)
        .maybe("runq_ns", s, |s| s.runq_ns)
        .maybe("irq_ns", s, |s| s.irq_ns);
    call_sites
}

fn culprits(r: &Report) -> Table {
    let mut culprits = Table::new("culprits");
    let c = &r.culprits;
    culprits
        .maybe_text("call", c, |c| c.call.clone())
        .number("abi", c, |c| u64::from(c.abi))
        .text("label", c, |c| c.label.clone())
        .maybe_text("function", c, |c| c.function.clone())
        .text("role", c, |c| {
            match c.role {
                CulpritRole::Holder => "holder",
                CulpritRole::Reader => "reader",
                CulpritRole::Waker => "waker",
            }
            .into()
        })
        .number("pid", c, |c| u64::from(c.pid))
        .number("tid", c, |c| u64::from(c.tid))
        .text("comm", c, |c| c.comm.clone())
        .maybe_text("culprit_call", c, |c| c.culprit_call.clone())
        .maybe_text("culprit_place", c, |c| site_text(r, c.stack))
        .number("count", c, |c| c.count)
        .number("total_ns", c, |c| c.total_ns)
        .number("max_ns", c, |c| c.max_ns);
    culprits
}

fn chains(r: &Report) -> Table {
    let mut chains = Table::new("chains");
    let h = &r.chains;
    let root = |row: &ChainRow| links_of(r, row.first).pop();
    chains
        .text("chain", h, |row| {
            let links = links_of(r, row.first);
            let texts: Vec<String> = links.iter().map(|link| link_text(link, r)).collect();
            texts.join(" ← ")
        })
        .number("links", h, |row| links_of(r, row.first).len() as u64)
        .maybe_text("root", h, |row| root(row).map(|link| link_text(link, r)))
        .number("root_known", h, |row| {
            root(row).is_some_and(|link| link.kind.known()).into()
        })
        .number("count", h, |row| row.count)
        .number("total_ns", h, |row| row.total_ns)
        .number("max_ns", h, |row| row.max_ns);
    chains
}

fn objects(r: &Report) -> Table {
    let mut objects = Table::new("objects");
    let o = &r.by_object;
    let object = |row: &ObjectRow| r.objects.get(row.object?);
    objects
        .maybe_text("call", o, |row| row.call.clone())
        .number("abi", o, |row| u64::from(row.abi))
        .maybe_text("object", o, |row| Some(object(row)?.text.clone()))
        .maybe_text("kind", o, |row| {
            let kind = serde_json::to_value(object(row)?.kind).unwrap_or_default();
            kind.as_str().map(str::to_owned)
        })
        .maybe_text("name", o, |row| object(row)?.name.clone())
        .maybe_text("device", o, |row| object(row)?.device.clone())
        .maybe("inode", o, |row| object(row)?.inode)
        .maybe_text("local", o, |row| object(row)?.local.clone())
        .maybe_text("peer", o, |row| object(row)?.peer.clone())
        .maybe("peer_pid", o, |row| object(row)?.peer_pid.map(u64::from))
        .number("count", o, |row| row.count)
        .number("total_ns", o, |row| row.total_ns)
        .number("max_ns", o, |row| row.max_ns);
    objects
}

fn interrupts(r: &Report) -> Table {
    let mut interrupts = Table::new("interrupts");
    let i = &r.interrupts;
    interrupts
        .text("kind", i, |i| i.kind.text().to_owned())
        .number("number", i, |i| u64::from(i.number))
        .text("name", i, |i| i.name.clone())
        .number("count", i, |i| i.count)
        .number("total_ns", i, |i| i.total_ns)
        .number("max_ns", i, |i| i.max_ns)
        .number("outside_count", i, |i| i.outside_count)
        .number("outside_ns", i, |i| i.outside_ns)
        .number("outside_max_ns", i, |i| i.outside_max_ns);
    interrupts
}

fn threads(r: &Report) -> Table {
    let mut threads = Table::new("threads");
    let t = &r.threads;
    threads
        .number("pid", t, |t| u64::from(t.pid))
        .number("tid", t, |t| u64::from(t.tid))
        .text("comm", t, |t| t.comm.clone())
        .number("count", t, |t| t.count)
        .number("errors", t, |t| t.errors)
        .number("wall_ns", t, |t| t.wall_ns)
        .number("cpu_ns", t, |t| t.cpu_ns)
        .number("blocked_ns", t, |t| t.blocked_ns)
        .number("runq_ns", t, |t| t.runq_ns)
        .maybe("irq_ns", t, |t| t.irq_ns)
        .maybe("irq_outside_ns", t, |t| t.irq_outside_ns)
        .number("minor_faults", t, |t| t.minor_faults)
        .number("major_faults", t, |t| t.major_faults)
        .number("first_ns", t, |t| t.first_ns)
        .maybe("ended_ns", t, |t| t.ended_ns);
    threads
}

fn paths(r: &Report) -> Table {
    let mut paths = Table::new("paths");
    let p = &r.paths;
    let site = |i: Option<usize>| i.and_then(|i| r.sites.get(i));
    paths
        .maybe_text("call", p, |p| p.call.clone())
        .number("abi", p, |p| u64::from(p.abi))
        .maybe_text("label", p, |p| site(p.site).map(|s| s.label.clone()))
        .maybe_text("function", p, |p| site(p.site)?.function.clone())
        .maybe_text("call_site", p, |p| site_text(r, p.stack))
        .maybe_text("stack", p, |p| stack_text(r, p.stack))
        .maybe_text("kernel_stack", p, |p| Some(site(p.site)?.frames.join(";")))
        .number("count", p, |p| p.count)
        .number("total_ns", p, |p| p.total_ns)
        .number("max_ns", p, |p| p.max_ns);
    paths
}

fn slow_calls(r: &Report) -> Table {
    let mut slow_calls = Table::new("slow_calls");
    let numbered: Vec<_> = r.slow_calls.iter().enumerate().collect();
    let s = &numbered;
    slow_calls
        .number("id", s, |(i, _)| *i as u64)
        .number("start_ns", s, |(_, s)| s.start_ns)
        .number("pid", s, |(_, s)| u64::from(s.pid))
        .number("tid", s, |(_, s)| u64::from(s.tid))
        .text("comm", s, |(_, s)| s.comm.clone())
        .text("call", s, |(_, s)| s.call.clone())
        .number("abi", s, |(_, s)| u64::from(s.abi))
        .number("one_sleep", s, |(_, s)| u64::from(s.one_sleep))
        .signed("retval", s, |(_, s)| s.retval)
        .maybe_text("error", s, |(_, s)| error_name(s.retval));
    for i in 0..6 {
        let values = s.iter().map(|(_, s)| Some(s.args[i] as i64)).collect();
        let column = (format!("arg{i}"), Values::Unsigned(values));
        slow_calls.columns.push(column);
    }
    slow_calls
        .text("arguments", s, |(_, s)| {
            let told = s.arguments.iter().map(|a| format!("{}={}", a.name, a.text));
            told.collect::<Vec<_>>().join(", ")
        })
        .maybe_text("path", s, |(_, s)| s.path.clone())
        .number("wall_ns", s, |(_, s)| s.wall_ns)
        .number("cpu_ns", s, |(_, s)| s.cpu_ns)
        .number("blocked_ns", s, |(_, s)| s.blocked_ns)
        .number("runq_ns", s, |(_, s)| s.runq_ns)
        .maybe("irq_ns", s, |(_, s)| s.irq_ns)
        .number("minor_faults", s, |(_, s)| u64::from(s.minor_faults))
        .number("major_faults", s, |(_, s)| u64::from(s.major_faults))
        .maybe_text("call_site", s, |(_, s)| site_text(r, s.stack))
        .maybe_text("stack", s, |(_, s)| stack_text(r, s.stack))
        .text("conditions", s, |(_, s)| s.conditions.join("; "))
        .number("sleeps_dropped", s, |(_, s)| u64::from(s.sleeps_dropped))
        .number("sleeps_dropped_ns", s, |(_, s)| s.sleeps_dropped_ns);
    slow_calls
}

fn sleeps(r: &Report) -> Table {
    let mut sleeps = Table::new("sleeps");
    let site = |i: Option<usize>| i.and_then(|i| r.sites.get(i));
    let rows: Vec<_> = r
        .slow_calls
        .iter()
        .enumerate()
        .flat_map(|(i, c)| c.sleeps.iter().map(move |s| (i, s)))
        .collect();
    sleeps
        .number("slow_call_id", &rows, |(i, _)| *i as u64)
        .number("start_ns", &rows, |(_, s)| s.start_ns)
        .number("blocked_ns", &rows, |(_, s)| s.blocked_ns)
        .number("runq_ns", &rows, |(_, s)| s.runq_ns)
        .maybe_text("label", &rows, |(_, s)| {
            site(s.site).map(|s| s.label.clone())
        })
        .maybe_text("function", &rows, |(_, s)| site(s.site)?.function.clone())
        .maybe("waiters_entry", &rows, |(_, s)| {
            Some(u64::from(s.waiters_entry?))
        })
        .maybe("waiters_exit", &rows, |(_, s)| {
            Some(u64::from(s.waiters_exit?))
        })
        .maybe("holder_tid", &rows, |(_, s)| {
            Some(u64::from(s.holder.as_ref()?.tid))
        })
        .maybe_text("holder_comm", &rows, |(_, s)| {
            Some(s.holder.as_ref()?.comm.clone())
        })
        .maybe_text("holder_call", &rows, |(_, s)| {
            s.holder.as_ref()?.call.clone()
        })
        .maybe("waker_tid", &rows, |(_, s)| {
            Some(u64::from(s.waker.as_ref()?.tid))
        })
        .maybe_text("waker_comm", &rows, |(_, s)| {
            Some(s.waker.as_ref()?.comm.clone())
        })
        .maybe_text("waker_call", &rows, |(_, s)| s.waker.as_ref()?.call.clone());
    sleeps
}

fn history(r: &Report) -> Table {
    let mut history = Table::new("history");
    let rows: Vec<_> = r
        .history
        .iter()
        .flat_map(|h| h.points.iter().map(move |p| (h, p)))
        .collect();
    history
        .text("call", &rows, |(h, _)| h.call.clone())
        .number("abi", &rows, |(h, _)| u64::from(h.abi))
        .number("time_ns", &rows, |(_, p)| p.time_ns)
        .number("first", &rows, |(_, p)| p.first)
        .number("count", &rows, |(_, p)| p.count)
        .number("wall_ns", &rows, |(_, p)| p.wall_ns)
        .number("blocked_ns", &rows, |(_, p)| p.blocked_ns)
        .number("runq_ns", &rows, |(_, p)| p.runq_ns)
        .number("p50_ns", &rows, |(_, p)| p.p50_ns)
        .number("p99_ns", &rows, |(_, p)| p.p99_ns)
        .number("max_ns", &rows, |(_, p)| p.max_ns);
    history
}

fn gauges(r: &Report) -> Table {
    let mut gauges = Table::new("gauges");
    let g = &r.gauges;
    gauges
        .number("time_ns", g, |g| g.time_ns)
        .number("processes", g, |g| g.processes)
        .number("threads", g, |g| g.threads)
        .maybe("descriptors", g, |g| g.descriptors)
        .maybe("mappings", g, |g| g.mappings)
        .maybe("resident_bytes", g, |g| g.resident_bytes);
    gauges
}

fn trends(r: &Report) -> Table {
    let mut trends = Table::new("trends");
    let t = &r.trends;
    trends
        .text("call", t, |t| t.call.clone())
        .number("abi", t, |t| u64::from(t.abi))
        .number("calls", t, |t| t.calls)
        .number("from_ns", t, |t| t.from_ns)
        .number("to_ns", t, |t| t.to_ns)
        .real("p_value", t, |t| t.p_value)
        .text("grows_with", t, |t| t.grows_with.join(", "))
        .text("text", t, |t| t.text.clone());
    trends
}

fn notes(r: &Report) -> Table {
    let mut notes = Table::new("notes");
    let n = &r.notes;
    notes
        .text("kind", n, |n| {
            let kind = serde_json::to_value(n.kind).unwrap_or_default();
            kind.as_str().unwrap_or("other").to_owned()
        })
        .number("count", n, |n| n.count)
        .maybe("time_ns", n, |n| n.time_ns)
        .text("text", n, |n| n.text.clone());
    notes
}
