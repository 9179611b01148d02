// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does the view look?
//!
//! Head (what, how fast), a bar (where the time went), the views, the table,
//! and a line of keys. Colours only underline what is also said in signs.

use crate::app::{App, Mode};
use crate::chains::lines;
use crate::frame::Between;
use crate::table::{Table, fit};
use crate::views::View;
use debox_output::{Pen, count_text, duration_text, printable, wrapped};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthStr;

/// Below this nothing sensible can be shown.
const LEAST: (u16, u16) = (30, 8);

struct Paint<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    color: bool,
}

impl Paint<'_> {
    fn style(&self, color: Color, modifier: Modifier) -> Style {
        let style = Style::default().add_modifier(modifier);
        if self.color { style.fg(color) } else { style }
    }

    /// From column x of row y on; returns the column after it.
    fn text(&mut self, x: usize, y: usize, text: &str, style: Style) -> usize {
        let (width, height) = (self.area.width as usize, self.area.height as usize);
        if x >= width || y >= height {
            return x;
        }
        let left = self.area.x + x as u16;
        let top = self.area.y + y as u16;
        let (end, _) = self.buffer.set_stringn(left, top, text, width - x, style);
        (end - self.area.x) as usize
    }
}

pub fn draw(app: &mut App, frame: &mut ratatui::Frame<'_>) {
    let area = frame.area();
    paint(app, area, frame.buffer_mut());
}

pub fn paint(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let mut paint = Paint {
        buffer,
        area,
        color: app.settings.color,
    };
    let plain = Style::default();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        paint.text(0, 0, "debox top needs", plain);
        paint.text(
            0,
            1,
            &format!("{} x {} characters", LEAST.0, LEAST.1),
            plain,
        );
        return;
    }
    let (width, height) = (area.width as usize, area.height as usize);
    head(app, &mut paint, width);
    let tall = verdict(app, &mut paint, 3);
    tabs(app, &mut paint, 3 + tall, width);
    let table = app.table();
    app.page = height - 6 - tall;
    rows(app, &table, &mut paint, 4 + tall, app.page);
    foot(app, &mut paint, height - 1, width);
    match app.mode {
        Mode::Help => panel(&mut paint, &help(app.settings.ascii)),
        Mode::Why => {
            let text = app.why.clone();
            text_panel(app, &mut paint, &text);
        }
        Mode::Verdict => {
            let text = match app.verdict() {
                [] => "nothing is known yet".to_owned(),
                sentences => sentences.join("\n\n"),
            };
            text_panel(app, &mut paint, &text);
        }
        Mode::Chains { pid } => {
            let style = app.style();
            let lines = app.between().map(|between| lines(&between, pid, style));
            text_panel(app, &mut paint, &lines.unwrap_or_default().join("\n"));
        }
        Mode::Quit => panel(
            &mut paint,
            &[
                "The command still runs. End it, too?".into(),
                String::new(),
                "  y  end it (SIGTERM)".into(),
                "  n  leave it running, unwatched".into(),
                "  any other key: back".into(),
            ],
        ),
        Mode::Table | Mode::Filter => {}
    }
}

fn seconds_text(ms: u128) -> String {
    if ms.is_multiple_of(1000) {
        format!("{} s", ms / 1000)
    } else {
        format!("{}.{} s", ms / 1000, ms % 1000 / 100)
    }
}

fn clock(seconds: u64) -> String {
    format!(
        "{}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

fn head(app: &App, paint: &mut Paint<'_>, width: usize) {
    let bold = Style::default().add_modifier(Modifier::BOLD);
    let right = match (&app.ended, app.paused) {
        (Some(how), _) => printable(how).to_uppercase(),
        (None, true) => "PAUSED".into(),
        (None, false) => format!("every {}", seconds_text(app.interval().as_millis())),
    };
    let right = format!("{}  {right}", clock(app.age().as_secs()));
    let room = width.saturating_sub(right.width() + 2);
    let title = printable(&app.settings.title);
    let left = fit(
        &format!("debox top  {title}"),
        room,
        false,
        app.settings.ascii,
    );
    paint.text(0, 0, &left, bold);
    let style = if app.ended.is_some() || app.paused {
        paint.style(Color::Yellow, Modifier::REVERSED)
    } else {
        Style::default()
    };
    paint.text(width - right.width().min(width), 0, &right, style);

    let Some(between) = app.between() else {
        return;
    };
    let (line, parts) = sums(app, &between);
    let end = paint.text(0, 1, &line, Style::default());
    curve(app, paint, end + 2, width);
    bar(app, paint, &parts, width);
}

/// The second line, and (name, sign, colour, time) of its parts.
type Part = (&'static str, &'static str, Color, f64);

fn sums(app: &App, between: &Between<'_>) -> (String, Vec<Part>) {
    if !between.now.measured.calls {
        return ("calls not counted".to_owned(), Vec::new());
    }
    let (now, before) = (&between.now.totals, between.before.map(|r| &r.totals));
    let calls = between.per_second(now.calls, before.map_or(0, |t| t.calls));
    let part =
        |now: Option<u64>, then: Option<Option<u64>>| between.some_per_second(now, then.flatten());
    let ascii = app.settings.ascii;
    let signs = if ascii {
        ["#", "=", ".", "!"]
    } else {
        ["█", "▒", "░", "▞"]
    };
    let parts: Vec<Part> = [
        (
            "on CPU",
            signs[0],
            Color::Green,
            part(now.cpu_ns, before.map(|t| t.cpu_ns)),
        ),
        (
            "blocked",
            signs[1],
            Color::Red,
            part(now.blocked_ns, before.map(|t| t.blocked_ns)),
        ),
        (
            "run queue",
            signs[2],
            Color::Yellow,
            part(now.runq_ns, before.map(|t| t.runq_ns)),
        ),
        (
            "interrupts",
            signs[3],
            Color::Magenta,
            part(now.irq_ns, before.map(|t| t.irq_ns)),
        ),
    ]
    .into_iter()
    .filter_map(|(name, sign, color, value)| Some((name, sign, color, value?)))
    .collect();
    let style = app.style();
    let per = if style.totals { "" } else { "/s" };
    let mut line = format!("{} calls{per}", count_text(calls.round() as u64));
    for (name, _, _, value) in &parts {
        let time = match value.round() as u64 {
            0 => "-".into(),
            ns => duration_text(ns, ascii),
        };
        line.push_str(&format!("  {name} {time}"));
    }
    (line, parts)
}

/// Calls per second over the last intervals, where there is room.
fn curve(app: &App, paint: &mut Paint<'_>, from: usize, width: usize) {
    const STEPS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
    let room = width.saturating_sub(from);
    if app.settings.ascii || room < 8 {
        return;
    }
    let skip = app.curve.len().saturating_sub(room);
    let top = app.curve.iter().skip(skip).fold(0.0f64, |a, b| a.max(*b));
    if top <= 0.0 {
        return;
    }
    let style = paint.style(Color::Cyan, Modifier::empty());
    let shown = app.curve.len() - skip;
    for (i, value) in app.curve.iter().skip(skip).enumerate() {
        let step = (value / top * 8.0).ceil() as usize;
        paint.text(width - shown + i, 1, STEPS[step.min(8)], style);
    }
}

/// The parts of all calls' time, as wide as the screen.
fn bar(app: &App, paint: &mut Paint<'_>, parts: &[Part], width: usize) {
    let whole: f64 = parts.iter().map(|(.., value)| value).sum();
    if whole <= 0.0 {
        let rest = if app.settings.ascii { "-" } else { "─" };
        paint.text(0, 2, &rest.repeat(width), Style::default());
        return;
    }
    let mut upto = 0.0;
    let mut x = 0;
    for (name, sign, color, value) in parts {
        upto += value;
        let end = (upto / whole * width as f64).round() as usize;
        let style = paint.style(*color, Modifier::empty());
        let wide = end.saturating_sub(x);
        let label = format!(" {name} {:.0}% ", value / whole * 100.0);
        let after = paint.text(x, 2, &sign.repeat(wide), style);
        if wide >= label.width() + 2 {
            paint.text(x + 1, 2, &label, Style::default());
        }
        x = after.max(end);
    }
}

/// Why it takes so long, as far as there is room beside the table; returns how many lines
/// are kept for it: the table stays in its place whatever is said.
fn verdict(app: &App, paint: &mut Paint<'_>, top: usize) -> usize {
    let (width, height) = (paint.area.width as usize, paint.area.height as usize);
    let measured = (app.between()).is_some_and(|between| !between.now.lives.is_empty());
    let tall = match height {
        _ if !measured => 0,
        0..14 => 0,
        14..20 => 1,
        20..28 => 3,
        _ => 4,
    };
    let pen = Pen {
        color: false,
        ascii: app.settings.ascii,
    };
    let text = pen.plain(&wrapped(&app.verdict().join(" "), width, "", "  "));
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if lines.len() > tall && tall > 0 {
        lines.truncate(tall);
        let dots = if app.settings.ascii { "..." } else { "…" };
        let last = fit(
            &lines[tall - 1],
            width.saturating_sub(dots.width() + 1),
            false,
            app.settings.ascii,
        );
        lines[tall - 1] = format!("{} {dots}", last.trim_end());
    }
    let style = paint.style(Color::Reset, Modifier::BOLD);
    for (at, line) in lines.iter().take(tall).enumerate() {
        paint.text(0, top + at, line, style);
    }
    tall
}

fn tabs(app: &App, paint: &mut Paint<'_>, y: usize, width: usize) {
    let mut x = 0;
    let whole: usize = View::ALL.iter().map(|view| view.title().len() + 4).sum();
    for (i, view) in View::ALL.iter().enumerate() {
        let selected = *view == app.settings.view;
        let style = if selected {
            paint.style(Color::Cyan, Modifier::REVERSED | Modifier::BOLD)
        } else {
            Style::default()
        };
        // The chosen one is told by brackets, too; of the others the number
        // must do where it is narrow.
        let text = match (selected, whole <= width) {
            (true, _) => format!("[{} {}]", i + 1, view.title()),
            (false, true) => format!(" {} {} ", i + 1, view.title()),
            (false, false) => format!(" {} ", i + 1),
        };
        x = paint.text(x, y, &text, style);
    }
    let mut right = String::new();
    if !app.filter.is_empty() {
        right = format!("filter: {}", printable(&app.filter));
    }
    if app.settings.totals {
        right = format!("totals  {right}");
    }
    let right = right.trim_end();
    let room = width.saturating_sub(x + 1);
    if !right.is_empty() && room >= 6 {
        let text = fit(right, right.width().min(room), false, app.settings.ascii);
        let style = paint.style(Color::Yellow, Modifier::BOLD);
        paint.text(width - text.width(), y, &text, style);
    }
}

fn rows(app: &mut App, table: &Table, paint: &mut Paint<'_>, top: usize, page: usize) {
    let width = paint.area.width as usize;
    let ascii = app.settings.ascii;
    let layout = table.layout(width);
    let state = app.state();
    state.scroll = state
        .scroll
        .min(state.selected)
        .max((state.selected + 1).saturating_sub(page))
        .min(table.rows.len().saturating_sub(page));
    let state = *state;
    let mut x = 0;
    for (index, wide) in &layout {
        let column = &table.columns[*index];
        let sorted = state.sort == *index;
        let mark = match (sorted, state.descending, ascii) {
            (false, ..) => "",
            (true, true, false) => "▼",
            (true, false, false) => "▲",
            (true, true, true) => "v",
            (true, false, true) => "^",
        };
        let title = format!("{}{mark}", column.title);
        let style = if sorted {
            paint.style(Color::Cyan, Modifier::BOLD | Modifier::UNDERLINED)
        } else {
            Style::default().add_modifier(Modifier::BOLD)
        };
        let text = fit(&title, *wide, !column.text, ascii);
        paint.text(x, top, &text, style);
        x += wide + 1;
    }
    if table.rows.is_empty() {
        paint.text(2, top + 2, &table.nothing, Style::default());
    }
    for (line, row) in table.rows.iter().skip(state.scroll).take(page).enumerate() {
        let selected = state.scroll + line == state.selected;
        let mut style = if row.idle {
            Style::default().add_modifier(Modifier::DIM)
        } else {
            Style::default()
        };
        if selected {
            style = style.add_modifier(Modifier::REVERSED);
        }
        let mut text = String::new();
        for (i, (index, wide)) in layout.iter().enumerate() {
            if i > 0 {
                text.push(' ');
            }
            let right = !table.columns[*index].text;
            text.push_str(&fit(row.cells[*index].text(), *wide, right, ascii));
        }
        paint.text(0, top + 1 + line, &fit(&text, width, false, ascii), style);
    }
}

fn foot(app: &App, paint: &mut Paint<'_>, y: usize, width: usize) {
    let style = Style::default().add_modifier(Modifier::DIM);
    if app.mode == Mode::Filter {
        let end = paint.text(
            0,
            y,
            &format!("/{}", printable(&app.filter)),
            Style::default(),
        );
        paint.text(
            end,
            y,
            "_",
            Style::default().add_modifier(Modifier::REVERSED),
        );
        let hint = "Enter: keep  Esc: back";
        if end + hint.len() + 4 < width {
            paint.text(width - hint.len(), y, hint, style);
        }
        return;
    }
    let arrows = if app.settings.ascii { "<>" } else { "←→" };
    let mut line = String::new();
    let sort = format!("{arrows} sort");
    let totals = if app.settings.totals {
        "t per second"
    } else {
        "t totals"
    };
    for part in [
        "q quit",
        "? help",
        "/ filter",
        &sort,
        totals,
        "p pause",
        "+- interval",
        "Tab view",
        "r reverse",
    ] {
        if line.width() + part.width() + 2 > width {
            break;
        }
        line.push_str(part);
        line.push_str("  ");
    }
    paint.text(0, y, line.trim_end(), style);
}

fn help(ascii: bool) -> Vec<String> {
    let arrows = if ascii { "< >     " } else { "← → < > " };
    let updown = if ascii { "k j     " } else { "↑ ↓ k j " };
    [
        "1 - 6    calls, blocking, sites, threads, culprits, processes (Tab: next)",
        &format!("{arrows} sort by another column       r  the other way round"),
        &format!("{updown} choose a row (also PgUp, PgDn, Home, End)"),
        "Enter    on a call: where it blocks",
        "v        all of what is said about why it takes so long",
        "w        what it waits for right now: the chosen thread, or all",
        "c        what its process, or all, waited for, and where that ends",
        "/        show only rows with these words    Esc  all rows",
        "t        per second, or totals since the start",
        "p        pause and go on              + -  interval",
        "Ctrl-L   draw anew                    Ctrl-Z  suspend",
        "q        quit",
        "",
        "A call counts when it returns: one that blocked for 10 s adds 10 s to",
        "the second in which it ended. TIME = ON-CPU + BLOCKED + RUNQ (runnable,",
        "but no CPU was free). P50, P99, MAX: of the interval, from a histogram",
        "with 12.5 % steps; LONGEST and WAITERS: since the start.",
        "~: estimated (--sample). NOW IN: a thread's call, for how long at least.",
    ]
    .iter()
    .map(|line| (*line).to_owned())
    .collect()
}

/// A text that may be longer than the screen.
fn text_panel(app: &mut App, paint: &mut Paint<'_>, text: &str) {
    let room = (paint.area.width as usize).saturating_sub(6);
    let pen = Pen {
        color: false,
        ascii: app.settings.ascii,
    };
    let text: Vec<String> = pen
        .plain(text)
        .lines()
        .flat_map(|line| {
            if line.width() <= room {
                return vec![line.to_owned()];
            }
            let indent: String = line.chars().take_while(|c| *c == ' ').collect();
            let next = format!("{indent}    ");
            let folded = wrapped(line, room, &indent, &next);
            folded.lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    app.line = app.line.min(text.len().saturating_sub(1));
    panel(paint, &text[app.line.min(text.len())..]);
}

/// A framed box in the middle.
fn panel(paint: &mut Paint<'_>, lines: &[String]) {
    let (width, height) = (paint.area.width as usize, paint.area.height as usize);
    let wide = lines
        .iter()
        .map(|line| line.width())
        .max()
        .unwrap_or(0)
        .min(width.saturating_sub(4));
    let tall = lines.len().min(height.saturating_sub(2));
    let x = (width - wide - 4) / 2;
    let y = (height - tall - 2) / 2;
    let edge = format!("+{}+", "-".repeat(wide + 2));
    let style = Style::default();
    paint.text(x, y, &edge, style);
    for (i, line) in lines.iter().take(tall).enumerate() {
        let line = format!("| {} |", fit(line, wide, false, true));
        paint.text(x, y + 1 + i, &line, style);
    }
    paint.text(x, y + 1 + tall, &edge, style);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::{Done, Settings};
    use crate::frame::Frame;
    use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
    use debox_report::{ChainKind, ChainRow, Report, parse_json};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;

    /// A report as `debox attach --json` writes it, with some threads and
    /// culprits; `n` times as much of everything that is summed up.
    fn report(n: u64) -> Report {
        let text = include_str!("../tests/report.json");
        let mut report = parse_json(text).unwrap();
        let times = |value: &mut u64| *value *= n;
        let some = |value: &mut Option<u64>| value.iter_mut().for_each(|v| *v *= n);
        times(&mut report.totals.calls);
        some(&mut report.totals.cpu_ns);
        some(&mut report.totals.blocked_ns);
        some(&mut report.totals.runq_ns);
        for row in &mut report.calls {
            times(&mut row.count);
            times(&mut row.errors);
            some(&mut row.wall_ns);
            some(&mut row.cpu_ns);
            some(&mut row.blocked_ns);
            some(&mut row.runq_ns);
            row.histogram.iter_mut().for_each(|b| b.count *= n);
        }
        for row in &mut report.blocking {
            times(&mut row.count);
            times(&mut row.total_ns);
        }
        for row in &mut report.call_sites {
            times(&mut row.count);
            some(&mut row.wall_ns);
            some(&mut row.cpu_ns);
            some(&mut row.blocked_ns);
        }
        for row in &mut report.threads {
            times(&mut row.count);
            times(&mut row.wall_ns);
            times(&mut row.cpu_ns);
            times(&mut row.blocked_ns);
        }
        for row in &mut report.culprits {
            times(&mut row.count);
            times(&mut row.total_ns);
        }
        report
    }

    fn app(ascii: bool) -> App {
        let mut app = App::new(Settings {
            title: "server --port 80 (pid 4711)".into(),
            interval: Duration::from_secs(1),
            view: View::Calls,
            totals: false,
            color: !ascii,
            ascii,
        });
        for i in 1..=3 {
            app.take(Frame::new(report(i), Duration::from_secs(i * 2)));
        }
        app
    }

    fn screen(app: &mut App, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(app, frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let mut text = String::new();
        for y in 0..height {
            let mut line = String::new();
            for x in 0..width {
                line.push_str(buffer[(x, y)].symbol());
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn press(app: &mut App, code: KeyCode) -> Option<Done> {
        app.event(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)), false)
    }

    fn keys(app: &mut App, text: &str) {
        for c in text.chars() {
            press(app, KeyCode::Char(c));
        }
    }

    /// Compares with a file; DEBOX_GOLDEN_WRITE=1 writes it anew.
    fn golden(name: &str, text: &str) {
        let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("DEBOX_GOLDEN_WRITE").is_some() {
            std::fs::write(&path, text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap();
        assert!(text == expected, "{name} is now:\n{text}");
    }

    #[test]
    fn every_view_looks_as_it_did() {
        let mut app = app(false);
        let mut all = String::new();
        for digit in '1'..='6' {
            press(&mut app, KeyCode::Char(digit));
            all.push_str(&screen(&mut app, 80, 16));
        }
        golden("views_80", &all);
        press(&mut app, KeyCode::Char('1'));
        golden("calls_120", &screen(&mut app, 120, 20));
        keys(&mut app, "t");
        app.ended = Some("ended, status 3".into());
        golden("totals_ended_44", &screen(&mut app, 44, 12));
        golden("help_80", &{
            press(&mut app, KeyCode::Char('?'));
            screen(&mut app, 80, 24)
        });
    }

    #[test]
    fn ascii_is_ascii_and_no_size_is_too_small() {
        let mut app = app(true);
        for view in View::ALL {
            app.settings.view = view;
            for (width, height) in [(80, 24), (200, 50), (30, 8), (29, 8), (3, 2), (1, 1)] {
                let text = screen(&mut app, width, height);
                assert!(text.is_ascii(), "{text}");
            }
        }
        press(&mut app, KeyCode::Char('?'));
        assert!(screen(&mut app, 80, 24).is_ascii());
        screen(&mut app, 30, 8);
    }

    #[test]
    fn keys_do_what_the_help_says() {
        let mut app = app(false);
        let first = |app: &mut App| {
            let text = screen(app, 100, 24);
            text.lines()
                .nth(5)
                .unwrap()
                .split_whitespace()
                .next()
                .unwrap_or("")
                .to_owned()
        };
        let by_time = first(&mut app);
        // CALL, from A to Z.
        press(&mut app, KeyCode::Left);
        press(&mut app, KeyCode::Left);
        let by_name = first(&mut app);
        let names: Vec<String> = {
            let table = app.table();
            table
                .rows
                .iter()
                .map(|r| r.cells[0].text().to_owned())
                .collect()
        };
        assert!(names.is_sorted(), "{names:?}");
        assert_eq!(by_name, names[0]);
        keys(&mut app, "r");
        assert_eq!(&first(&mut app), names.last().unwrap());
        // A filter narrows while it is typed; Esc brings the old one back.
        keys(&mut app, "/");
        keys(&mut app, &by_time);
        assert_eq!(first(&mut app), by_time);
        press(&mut app, KeyCode::Enter);
        assert_eq!(app.table().rows.len(), 1);
        keys(&mut app, "/zzz");
        assert_eq!(app.table().rows.len(), 0);
        assert!(screen(&mut app, 80, 24).contains("nothing fits"));
        press(&mut app, KeyCode::Esc);
        assert_eq!(app.table().rows.len(), 1);
        // Enter on a call leads to where it blocks.
        press(&mut app, KeyCode::Enter);
        assert_eq!(app.settings.view, View::Blocking);
        press(&mut app, KeyCode::Esc);
        assert!(app.filter.is_empty());
        // Views.
        press(&mut app, KeyCode::Tab);
        assert_eq!(app.settings.view, View::CallSites);
        press(&mut app, KeyCode::BackTab);
        press(&mut app, KeyCode::BackTab);
        assert_eq!(app.settings.view, View::Calls);
        // Pause holds the picture.
        keys(&mut app, "p");
        let before = screen(&mut app, 80, 24);
        app.take(Frame::new(report(9), Duration::from_secs(8)));
        let after = screen(&mut app, 80, 24);
        let table = |s: &str| s.lines().skip(4).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(table(&before), table(&after));
        assert!(after.contains("PAUSED"));
        keys(&mut app, "p");
        app.take(Frame::new(report(20), Duration::from_secs(10)));
        assert_ne!(table(&before), table(&screen(&mut app, 80, 24)));
        // Interval.
        assert_eq!(press(&mut app, KeyCode::Char('+')), Some(Done::Interval));
        assert_eq!(app.interval(), Duration::from_secs(2));
        keys(&mut app, "---------------------");
        assert_eq!(app.interval(), Duration::from_millis(100));
        // Up and down stay inside.
        press(&mut app, KeyCode::End);
        screen(&mut app, 80, 9);
        let last = app.table().rows.len() - 1;
        assert_eq!(app.state().selected, last);
        press(&mut app, KeyCode::Home);
        press(&mut app, KeyCode::Up);
        assert_eq!(app.state().selected, 0);
        // Quit; with a command that runs it asks.
        let quit = Some(Done::Quit { end_command: false });
        assert_eq!(press(&mut app, KeyCode::Char('q')), quit);
        let q = Event::Key(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE));
        let n = Event::Key(KeyEvent::new(KeyCode::Char('n'), KeyModifiers::NONE));
        assert_eq!(app.event(&q, true), None);
        assert!(screen(&mut app, 80, 24).contains("End it, too?"));
        assert_eq!(app.event(&n, true), quit);
        let c = Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        app.mode = Mode::Table;
        assert_eq!(app.event(&c, true), None);
        assert_eq!(app.event(&c, true), Some(Done::Quit { end_command: true }));
    }

    #[test]
    fn w_asks_what_the_chosen_thread_waits_for() {
        let mut app = app(true);
        let w = KeyCode::Char('w');
        assert_eq!(press(&mut app, w), Some(Done::Why { thread: None }));
        app.settings.view = View::Threads;
        let tid: u32 = app.table().rows[0].cells[1].text().parse().unwrap();
        let asked = Some(Done::Why { thread: Some(tid) });
        assert_eq!(press(&mut app, w), asked);
        let lines: Vec<String> = (0..40)
            .map(|n| format!("  line {n} \u{2190} \u{b5}s"))
            .collect();
        app.why_show(format!(
            "a long {}\n{}",
            "word ".repeat(40),
            lines.join("\n")
        ));
        let shown = screen(&mut app, 80, 24);
        assert!(
            shown.contains("a long word word") && shown.contains("line 3 <- us"),
            "{shown}"
        );
        assert!(shown.is_ascii(), "{shown}");
        for _ in 0..99 {
            press(&mut app, KeyCode::PageDown);
        }
        let shown = screen(&mut app, 80, 24);
        assert!(
            shown.contains("line 39") && !shown.contains("line 3 <-"),
            "{shown}"
        );
        screen(&mut app, 30, 8);
        // Asked again from there; any other key leads back.
        assert_eq!(press(&mut app, w), asked);
        assert_eq!(press(&mut app, KeyCode::Char('x')), None);
        assert_eq!(app.mode, Mode::Table);
    }

    /// A report in which the first thread's process, and another one, slept.
    fn chained(n: u64) -> Report {
        let mut report = report(n);
        let link = |kind, comm: &str, parent| debox_report::ChainLink {
            by_own: false,
            in_loop: false,
            rests: false,
            means: None,
            class: None,
            kind,
            comm: comm.into(),
            call: Some("read".into()),
            site: None,
            operation: None,
            parent,
            held: false,
            stack: None,
        };
        let own = report.threads[0].comm.clone();
        report.chain_links = vec![
            link(ChainKind::Timer, "", None),
            link(ChainKind::RanUser, "computer", None),
            link(ChainKind::Sleep, &own, Some(0)),
            link(ChainKind::Sleep, "somebody-else", Some(1)),
        ];
        let row = |first, total_ns| ChainRow {
            first,
            count: n,
            total_ns,
            max_ns: total_ns,
        };
        report.chains = vec![row(2, n * 3_000_000), row(3, n * 1_000_000)];
        report
    }

    #[test]
    fn c_shows_what_a_process_waited_for() {
        let mut app = app(true);
        let c = KeyCode::Char('c');
        press(&mut app, c);
        assert!(screen(&mut app, 80, 24).contains("no sleep has ended"));
        // Any other key leads back.
        press(&mut app, c);
        assert_eq!(app.mode, Mode::Table);
        app.take(Frame::new(chained(1), Duration::from_secs(20)));
        app.take(Frame::new(chained(3), Duration::from_secs(22)));
        press(&mut app, c);
        let shown = screen(&mut app, 80, 24);
        // 2 s apart: two times 3 ms and 1 ms.
        assert!(shown.contains("3.00 ms   75 %"), "{shown}");
        assert!(shown.contains("<- a timer"), "{shown}");
        assert!(
            shown.contains("1.00 ms   25 %  computer ran its own code"),
            "{shown}"
        );
        assert!(shown.contains("somebody-else in read"), "{shown}");
        assert!(shown.is_ascii(), "{shown}");
        // It goes on while it is shown, and can be of the whole time.
        app.take(Frame::new(chained(5), Duration::from_secs(23)));
        assert!(screen(&mut app, 80, 24).contains("6.00 ms   75 %"));
        press(&mut app, KeyCode::Char('t'));
        assert!(screen(&mut app, 80, 24).contains("15.0 ms   75 %"));
        press(&mut app, KeyCode::Char('t'));
        app.take(Frame::new(chained(5), Duration::from_secs(24)));
        assert!(screen(&mut app, 80, 24).contains("nothing in this interval"));
        press(&mut app, c);
        // Of the chosen thread's process.
        app.take(Frame::new(chained(6), Duration::from_secs(25)));
        app.settings.view = View::Threads;
        let own = chained(6).threads[0].clone();
        let rows = app.table().rows;
        let at = rows
            .iter()
            .position(|row| row.cells[1].text() == own.tid.to_string());
        app.state().selected = at.unwrap();
        press(&mut app, c);
        assert_eq!(app.mode, Mode::Chains { pid: Some(own.pid) });
        let shown = screen(&mut app, 80, 24);
        assert!(shown.contains("3.00 ms  100 %"), "{shown}");
        assert!(!shown.contains("somebody-else"), "{shown}");
        screen(&mut app, 30, 8);
    }

    /// Threads of which is known where their time went: they compute.
    fn lived(n: u64) -> Report {
        let mut report = report(n);
        report.run.wall_ns = n * 1_000_000_000;
        report.lives = vec![debox_report::LifeRow {
            pid: 4711,
            comm: "server".into(),
            threads: 1,
            time: debox_report::LifeTime {
                life_ns: n * 1_000_000_000,
                own_ns: n * 1_000_000_000,
                ..Default::default()
            },
            ..Default::default()
        }];
        report.verdict = vec!["of all of the time".into()];
        report
    }

    #[test]
    fn the_verdict_stands_above_the_table() {
        let mut app = app(true);
        for n in 4..=5 {
            app.take(Frame::new(lived(n), Duration::from_secs(2 * n)));
        }
        let said = "In 1.00 s, its thread had something to do for 1.00 s: 100 % (1.00 s) computing";
        let shown = screen(&mut app, 100, 24);
        let line = shown.lines().position(|line| line.starts_with(said));
        assert_eq!(line, Some(3), "{shown}");
        assert!(
            shown.lines().nth(6).unwrap().starts_with("[1 calls]"),
            "{shown}"
        );
        let frame = crate::batch::frame_text(&mut app, &[View::Calls], 100);
        assert!(frame.contains(&format!("\n  {said}")), "{frame}");
        // Since the start; all of it; and no room for it.
        keys(&mut app, "t");
        assert!(screen(&mut app, 100, 24).contains("of all of the time"));
        keys(&mut app, "tv");
        let shown = screen(&mut app, 40, 12);
        assert!(shown.contains("In 1.00 s, its thread"), "{shown}");
        keys(&mut app, "x");
        assert!(!screen(&mut app, 40, 12).contains("In 1.00 s"));
        app.settings.ascii = false;
        for (width, height) in [(30, 8), (30, 20), (60, 40), (200, 14)] {
            screen(&mut app, width, height);
        }
        // Its end is that of the whole time.
        app.ended = Some("ended, status 0".into());
        assert!(screen(&mut app, 100, 24).contains("of all of the time"));
    }

    #[test]
    fn rates_are_differences_per_second() {
        let mut app = app(false);
        // 2 s apart, one report's worth each.
        let one = report(1);
        let row = &one.calls[0];
        let table = app.table();
        let found = table
            .rows
            .iter()
            .find(|r| r.cells[0].text() == row.name)
            .unwrap();
        let crate::table::Cell::Number(_, rate) = &found.cells[1] else {
            panic!()
        };
        assert!((rate - row.count as f64 / 2.0).abs() < 1e-9);
        keys(&mut app, "t");
        let table = app.table();
        let found = table
            .rows
            .iter()
            .find(|r| r.cells[0].text() == row.name)
            .unwrap();
        assert_eq!(
            found.cells[1].text(),
            debox_output::count_text(3 * row.count)
        );
    }

    /// Of calls and of threads, last; a thread that has returned from none has none yet.
    #[test]
    fn interrupts_have_a_column_where_they_are_measured() {
        let mut app = app(true);
        let mut with = report(4);
        with.measured.irq = true;
        with.threads[0].irq_ns = Some(4_000_000);
        for row in &mut with.threads[1..] {
            row.irq_ns = Some(0);
        }
        let tid = with.threads[0].tid;
        for view in [View::Calls, View::Threads] {
            app.settings.view = view;
            let columns = app.table().columns;
            assert!(!columns.iter().any(|c| c.title == "IRQ"), "{view:?}");
        }
        app.take(Frame::new(with, Duration::from_secs(8)));
        for view in [View::Calls, View::Threads] {
            app.settings.view = view;
            let table = app.table();
            assert_eq!(table.columns.last().unwrap().title, "IRQ", "{view:?}");
            assert!(
                table
                    .rows
                    .iter()
                    .all(|row| row.cells.len() == table.columns.len())
            );
        }
        let table = app.table();
        let row = table
            .rows
            .iter()
            .find(|row| row.cells[1].text() == tid.to_string());
        // 4 ms in the 2 s since the look before.
        let crate::table::Cell::Number(_, rate) = row.unwrap().cells.last().unwrap() else {
            panic!()
        };
        assert!((rate - 2_000_000.0).abs() < 1.0, "{rate}");
    }

    #[test]
    fn frames_of_plain_text() {
        let mut app = app(true);
        golden(
            "batch",
            &crate::batch::frame_text(&mut app, &View::ALL, 100),
        );
    }
}
