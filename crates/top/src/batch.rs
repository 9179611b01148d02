// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the view look like where there is no terminal: in a file, a pipe?

use crate::Host;
use crate::app::{App, Settings};
use crate::frame::Frame;
use crate::table::{Row, fit};
use crate::views::View;
use debox_output::{Pen, count_text, duration_text, printable, wrapped};
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Rows of one table.
const ROWS: usize = 40;
/// What a frame says when it is the last one.
const OVER: &str = "the time is over";

/// Prints `frames` frames, one each interval, with the given views; ends early
/// when what is watched has ended or the time is over, after a last frame, or when a signal asks
/// for it (which is returned).
pub fn batch(
    host: &mut dyn Host,
    settings: Settings,
    views: &[View],
    frames: u64,
    width: usize,
    out: &mut dyn Write,
) -> io::Result<Option<i32>> {
    let start = Instant::now();
    let mut app = App::new(settings);
    app.take(Frame::new(host.sample(), Duration::ZERO));
    let mut next = start;
    for _ in 0..frames {
        next += app.interval();
        let ended = loop {
            let woken = host.wait(false, next);
            if let Some(signal) = woken.stop {
                return Ok(Some(signal));
            }
            if let Some(how) = host.ended() {
                break Some(how);
            }
            if woken.over {
                break Some(OVER.into());
            }
            if Instant::now() >= next {
                break None;
            }
        };
        app.take(Frame::new(host.sample(), start.elapsed()));
        app.ended = ended;
        out.write_all(frame_text(&mut app, views, width).as_bytes())?;
        out.flush()?;
        if app.ended.is_some() {
            break;
        }
    }
    Ok(None)
}

pub(crate) fn frame_text(app: &mut App, views: &[View], width: usize) -> String {
    let ascii = app.settings.ascii;
    let mut text = format!(
        "debox top  {}  after {:.1} s{}\n",
        printable(&app.settings.title),
        app.age().as_secs_f64(),
        app.ended
            .as_ref()
            .map_or(String::new(), |how| format!("  {}", printable(how)))
    );
    let style = app.style();
    let between = app.between();
    if between.as_ref().is_some_and(|b| !b.now.measured.calls) {
        text.push_str("  calls not counted\n");
    } else if let Some(between) = between {
        let (now, before) = (&between.now.totals, between.before.map(|r| &r.totals));
        let per = if style.totals { "" } else { "/s" };
        let calls = between.per_second(now.calls, before.map_or(0, |t| t.calls));
        text.push_str(&format!(
            "  {} calls{per}",
            count_text(calls.round() as u64)
        ));
        for (name, now, then) in [
            ("on CPU", now.cpu_ns, before.map(|t| t.cpu_ns)),
            ("blocked", now.blocked_ns, before.map(|t| t.blocked_ns)),
            ("run queue", now.runq_ns, before.map(|t| t.runq_ns)),
            ("interrupts", now.irq_ns, before.map(|t| t.irq_ns)),
        ] {
            if name == "interrupts" && now.is_none() {
                continue;
            }
            let value = between.some_per_second(now, then.flatten());
            let shown = match value.map(|v| v.round() as u64) {
                None => "?".into(),
                Some(0) => "-".into(),
                Some(ns) => duration_text(ns, ascii),
            };
            text.push_str(&format!(", {name} {shown}{per}"));
        }
        text.push('\n');
    }
    let pen = Pen {
        color: false,
        ascii,
    };
    for sentence in app.verdict() {
        text.push_str(&pen.plain(&wrapped(sentence, width, "  ", "    ")));
        text.push('\n');
    }
    for view in views {
        app.settings.view = *view;
        let table = app.table();
        let indent = "  ";
        text.push_str(&format!("\n{indent}{}\n", view.title()));
        if table.rows.is_empty() {
            text.push_str(&format!("{indent}  {}\n", table.nothing));
            continue;
        }
        let layout = table.layout(width.saturating_sub(4));
        let mut line = |cells: Vec<&str>| {
            let mut row = String::from("    ");
            for ((index, wide), cell) in layout.iter().zip(cells) {
                row.push_str(&fit(cell, *wide, !table.columns[*index].text, ascii));
                row.push(' ');
            }
            text.push_str(row.trim_end());
            text.push('\n');
        };
        line(
            layout
                .iter()
                .map(|(i, _)| table.columns[*i].title)
                .collect(),
        );
        // Threads that sleep all the time say where.
        let shown = |row: &&Row| !row.idle || *view == View::Threads;
        for row in table.rows.iter().filter(shown).take(ROWS) {
            line(layout.iter().map(|(i, _)| row.cells[*i].text()).collect());
        }
        let rest = table.rows.iter().filter(shown).count();
        if rest > ROWS {
            text.push_str(&format!("    ({} more)\n", rest - ROWS));
        }
    }
    text.push('\n');
    text
}
