// SPDX-License-Identifier: MIT OR Apache-2.0
//! How are metrics inserted, watched and removed by hand, in a terminal?

use debox_output::printable;
use std::io::{self, stdout};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::{cursor, execute};
use ratatui::layout::{Constraint, Layout};
use ratatui::prelude::{Line, Span};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::widgets::{
    Axis, Block, Borders, Cell, Chart, Clear, Dataset, GraphType, Paragraph, Row, Table,
    TableState, Wrap,
};
use ratatui::{Frame, layout::Rect};

use crate::args::{Args, Metric};
use crate::auto::{Descent, Options, Path};
use crate::code::Code;
use crate::engine::{Insertion, MetricId, Resource, Restriction};
use crate::error::Error;
use crate::html::{value, value_text};
use crate::session::{Session, Watch};
use crate::text::{path_text, rate_text, threads_text};
use debox_command::{Child, stop};
use debox_output::chart::round_up;

const COLOURS: [Color; 7] = [
    Color::Cyan,
    Color::Yellow,
    Color::Green,
    Color::Magenta,
    Color::LightRed,
    Color::LightBlue,
    Color::White,
];
/// Curves that can be told apart.
const CURVES_MAX: usize = 7;

enum Mode {
    Watching,
    /// What is being typed, and why it was refused.
    Adding {
        text: String,
        refused: Option<String>,
        /// The metric in whose place it comes.
        replaces: Option<MetricId>,
    },
    /// What is about to be attached, and what that takes: Enter, or Esc.
    Confirming {
        what: String,
        action: Action,
    },
    /// Words to read; any key leaves.
    Reading {
        title: String,
        text: String,
        from: u16,
    },
}

#[derive(Clone)]
enum Action {
    Add {
        text: String,
        replaces: Option<MetricId>,
    },
    /// Insert these callees of a metric's function.
    Below {
        name: String,
        insertions: Vec<Insertion>,
    },
    /// Refine to the end.
    Down { resource: Resource },
}

struct Screen<'a> {
    args: &'a Args,
    /// Somebody else wrote on the terminal.
    redraw: bool,
    metric: Metric,
    selected: TableState,
    mode: Mode,
    paused: bool,
    message: String,
    path: Option<Path>,
}

/// Until q, the end of the time, or of the command.
pub fn show(
    args: &Args,
    session: &mut Session,
    child: &mut Option<Child>,
) -> Result<Option<Path>, Error> {
    let mut terminal = debox_top::Screen::open().map_err(Error::system("the terminal"))?;
    let mut screen = Screen {
        args,
        redraw: false,
        metric: args.metric,
        selected: TableState::default().with_selected(Some(0)),
        mode: Mode::Watching,
        paused: false,
        message: String::new(),
        path: None,
    };
    let end = args.duration.map(|d| Instant::now() + d);
    let mut next = Instant::now() + args.interval;
    loop {
        if std::mem::take(&mut screen.redraw) {
            terminal.clear().map_err(Error::system("the terminal"))?;
        }
        terminal
            .draw(|frame| screen.draw(frame, session))
            .map_err(Error::system("drawing"))?;
        if stop::asked() || end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
        if let Some(child) = child
            && child.ended().is_some()
        {
            session.tick()?;
            break;
        }
        let wait = next
            .saturating_duration_since(Instant::now())
            .min(Duration::from_millis(200));
        match event::poll(wait) {
            Ok(true) => match event::read() {
                Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                    if key.modifiers.contains(KeyModifiers::CONTROL)
                        && key.code == KeyCode::Char('c')
                    {
                        break;
                    }
                    if screen.key(key.code, session, child)? {
                        break;
                    }
                }
                // The terminal is gone.
                Err(_) => break,
                _ => {}
            },
            Ok(false) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        if Instant::now() >= next {
            if !screen.paused {
                session.tick()?;
            }
            next = Instant::now() + args.interval;
        }
    }
    Ok(screen.path)
}

impl Screen<'_> {
    fn live(session: &Session) -> Vec<usize> {
        (0..session.watches.len())
            .filter(|i| session.watches[*i].removed.is_none())
            .collect()
    }

    fn chosen(&self, session: &Session) -> Option<usize> {
        Self::live(session)
            .get(self.selected.selected().unwrap_or(0))
            .copied()
    }

    /// Whether to leave.
    fn key(
        &mut self,
        key: KeyCode,
        session: &mut Session,
        child: &mut Option<Child>,
    ) -> Result<bool, Error> {
        match &mut self.mode {
            Mode::Adding {
                text,
                refused,
                replaces,
            } => {
                match key {
                    KeyCode::Esc => self.mode = Mode::Watching,
                    KeyCode::Backspace => {
                        text.pop();
                        *refused = None;
                    }
                    KeyCode::Char(c) => {
                        text.push(c);
                        *refused = None;
                    }
                    KeyCode::Enter => {
                        let (text, replaces) = (text.clone(), *replaces);
                        self.price(text, replaces, session);
                    }
                    _ => {}
                }
                return Ok(false);
            }
            Mode::Confirming { action, .. } => {
                match key {
                    KeyCode::Enter | KeyCode::Char('y') => {
                        let action = action.clone();
                        self.mode = Mode::Watching;
                        match action {
                            Action::Add { text, replaces } => self.add(&text, replaces, session),
                            Action::Below { name, insertions } => {
                                self.insert_below(&name, &insertions, session);
                            }
                            Action::Down { resource } => {
                                self.refine_all(&resource, session, child)?;
                            }
                        }
                    }
                    KeyCode::Esc | KeyCode::Char('n' | 'q') => self.mode = Mode::Watching,
                    _ => {}
                }
                return Ok(false);
            }
            Mode::Reading { from, .. } => {
                match key {
                    KeyCode::Down | KeyCode::Char('j') => *from = from.saturating_add(1),
                    KeyCode::Up | KeyCode::Char('k') => *from = from.saturating_sub(1),
                    _ => self.mode = Mode::Watching,
                }
                return Ok(false);
            }
            Mode::Watching => {}
        }
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Ok(true),
            KeyCode::Down | KeyCode::Char('j') => self.selected.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.selected.select_previous(),
            KeyCode::Char('m') => self.metric = self.metric.next(),
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('a') => {
                self.mode = Mode::Adding {
                    text: String::new(),
                    refused: None,
                    replaces: None,
                }
            }
            KeyCode::Char('c') => {
                if let Some(place) = self.chosen(session) {
                    let watch = &session.watches[place];
                    match &watch.written {
                        Some(text) => {
                            self.mode = Mode::Adding {
                                text: text.clone(),
                                refused: None,
                                replaces: Some(watch.id),
                            }
                        }
                        None => {
                            self.message = format!(
                                "{} counts {}: add it by its name (a) to restrict it otherwise",
                                watch.name, watch.restricted
                            );
                        }
                    }
                }
            }
            KeyCode::Char('d') | KeyCode::Delete => {
                if let Some(place) = self.chosen(session) {
                    let name = session.watches[place].name.clone();
                    let took = session.remove(place, "removed by hand");
                    self.message = format!("{name} removed, {:.1} s", took.as_secs_f64());
                }
            }
            KeyCode::Enter => self.price_callees(session),
            KeyCode::Char('A') => self.price_way(session),
            KeyCode::Char('n') => {
                let mut text = session.notes.join("\n\n");
                for loss in session.losses() {
                    text.push_str(&format!("\n\n{loss}"));
                }
                self.mode = Mode::Reading {
                    title: "Notes".into(),
                    text: if text.is_empty() { "none".into() } else { text },
                    from: 0,
                };
            }
            KeyCode::Char('w') => {
                let path = self
                    .args
                    .html
                    .clone()
                    .unwrap_or_else(|| "debox-kern.html".into());
                let page = crate::html::page(session, self.metric, self.path.as_ref());
                self.message = match debox_output::write(&path, page.as_bytes()) {
                    Ok(()) => format!("written: {}", path.display()),
                    Err(e) => format!("{}: {e}", path.display()),
                };
            }
            _ => {}
        }
        Ok(false)
    }

    /// What is inserted is timed, except while calls are plotted.
    fn timed(&self) -> bool {
        self.metric != Metric::Calls
    }

    fn price(&mut self, text: String, replaces: Option<MetricId>, session: &Session) {
        self.mode = match session.cost_of(&text, self.timed()) {
            Ok(cost) => Mode::Confirming {
                what: format!("{text}: {}", cost.text()),
                action: Action::Add { text, replaces },
            },
            Err(error) => Mode::Adding {
                text,
                refused: Some(error.to_string()),
                replaces,
            },
        };
    }

    fn add(&mut self, text: &str, replaces: Option<MetricId>, session: &mut Session) {
        match session.add(text, self.timed(), |_| {}) {
            Ok(places) => {
                self.message = format!("{text} inserted, {}", functions_text(places.len()));
                if let Some(old) = replaces
                    && let Some(place) = session.watches.iter().position(|w| w.id == old)
                {
                    session.remove(place, "changed");
                    self.message = format!("changed to {text}");
                }
            }
            Err(error) => {
                self.mode = Mode::Adding {
                    text: text.to_owned(),
                    refused: Some(error.to_string()),
                    replaces,
                }
            }
        }
    }

    /// The callees of the chosen function, when it calls them.
    fn price_callees(&mut self, session: &Session) {
        let Some(place) = self.chosen(session) else {
            return;
        };
        let watch = &session.watches[place];
        let above = watch.id;
        let name = watch.name.clone();
        let callees = match &watch.resource {
            Resource::Function(function) => match Code::open() {
                Ok(code) => match code.callees(&session.functions, function) {
                    Ok(callees) => callees
                        .direct
                        .into_iter()
                        .filter(|f| !code.is_trivial(f))
                        .collect(),
                    Err(e) => {
                        self.message = format!("the code of {name}: {e}");
                        return;
                    }
                },
                Err(e) => {
                    self.message = format!("/proc/kcore, to see what {name} calls: {e}");
                    return;
                }
            },
            Resource::Call { name, .. } => crate::resource::call_entry(&session.functions, name)
                .into_iter()
                .collect::<Vec<_>>(),
            Resource::Instruction { .. } => {
                self.message = "an instruction calls nobody: choose its function".into();
                return;
            }
        };
        let insertions: Vec<Insertion> = callees
            .into_iter()
            .map(|f| Insertion {
                resource: Resource::Function(f),
                timed: true,
                restriction: Restriction {
                    under: Some(above),
                    ..Restriction::default()
                },
            })
            .collect();
        let room = (session.max_functions as usize).saturating_sub(Self::live(session).len());
        if insertions.len() > room {
            self.message = format!(
                "{name} calls {} functions, and there is room for {room} (--max-functions)",
                insertions.len()
            );
            return;
        }
        let resources: Vec<Resource> = insertions.iter().map(|i| i.resource.clone()).collect();
        let cost = session.cost(&resources, true);
        if cost.functions == 0 {
            self.message = match cost.refused.first() {
                Some(why) => why.clone(),
                None => format!("{name} calls nobody that would be worth measuring"),
            };
            return;
        }
        self.mode = Mode::Confirming {
            what: format!(
                "{} that {name} calls: {}",
                functions_text(cost.functions),
                cost.text()
            ),
            action: Action::Below { name, insertions },
        };
    }

    fn insert_below(&mut self, name: &str, insertions: &[Insertion], session: &mut Session) {
        match session.engine.insert(insertions) {
            Ok((done, skipped)) => {
                self.message = format!("{} callees of {name} inserted", done.len());
                for skip in skipped {
                    session.notes.push(format!("not measured: {}", skip.why));
                }
                for (id, place) in done {
                    session.watch(id, &insertions[place], &format!("below {name}"));
                }
            }
            Err(error) => self.message = error.to_string(),
        }
    }

    fn price_way(&mut self, session: &Session) {
        let Some(place) = self.chosen(session) else {
            return;
        };
        let resource = session.watches[place].resource.clone();
        let name = resource.name();
        let callees: Vec<Resource> = match (&resource, Code::open()) {
            (Resource::Function(function), Ok(code)) => code
                .callees(&session.functions, function)
                .map(|c| {
                    c.direct
                        .into_iter()
                        .filter(|f| !code.is_trivial(f))
                        .map(Resource::Function)
                        .collect()
                })
                .unwrap_or_default(),
            _ => Vec::new(),
        };
        let itself = session.cost(std::slice::from_ref(&resource), true);
        let below = session.cost(&callees, true);
        let mut what = format!(
            "All that is measured now is removed, then step by step: {name}: {}",
            itself.text()
        );
        if below.functions > 0 {
            what.push_str(&format!(
                "; {} that it calls: {}",
                functions_text(below.functions),
                below.text()
            ));
        }
        what.push_str("; and so on below.");
        self.mode = Mode::Confirming {
            what,
            action: Action::Down { resource },
        };
    }

    /// All the way down from the chosen function.
    fn refine_all(
        &mut self,
        root: &Resource,
        session: &mut Session,
        child: &mut Option<Child>,
    ) -> Result<(), Error> {
        let code = match Code::open() {
            Ok(code) => code,
            Err(e) => {
                self.message =
                    format!("/proc/kcore: {e}; `debox kern --auto --sampled` needs it not");
                return Ok(());
            }
        };
        let options = Options {
            interval: self.args.interval,
            end: None,
            share: self.args.share / 100.0,
            depth: self.args.depth,
            branches: self.args.branches.max(1),
        };
        let line = |text: &str| {
            let _ = execute!(
                stdout(),
                cursor::MoveTo(0, 0),
                ratatui::crossterm::terminal::Clear(
                    ratatui::crossterm::terminal::ClearType::CurrentLine
                ),
                ratatui::crossterm::style::Print(format!("refining: {}", text.trim_start()))
            );
        };
        self.redraw = true;
        // The watched metrics would lie on the way, and be found above.
        let others: Vec<usize> = Self::live(session);
        for other in others {
            session.remove(other, "removed to refine");
        }
        match Descent::new(session, &code, &options, child.as_mut(), &line).run(root) {
            Ok(path) => {
                self.mode = Mode::Reading {
                    title: format!("Where the time of {} goes", root.name()),
                    text: path_text(&path, session),
                    from: 0,
                };
                self.path = Some(path);
            }
            Err(error) => self.message = error.to_string(),
        }
        if let Err(error) = session.add(&root.name(), self.timed(), |_| {}) {
            self.message = error.to_string();
        }
        Ok(())
    }

    fn draw(&mut self, frame: &mut Frame, session: &Session) {
        let live = Self::live(session);
        let rows = (live.len() as u16 + 2).min(frame.area().height.saturating_sub(8) / 2 + 2);
        let [plot, table, message, keys] = Layout::vertical([
            Constraint::Min(6),
            Constraint::Length(rows.max(3)),
            Constraint::Length(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_plot(frame, plot, session, &live);
        self.draw_table(frame, table, session, &live);
        let notes = session.notes.len();
        let mut words = self.message.clone();
        if notes > 0 {
            words.push_str(&format!("  ({notes} notes: n)"));
        }
        frame.render_widget(
            Paragraph::new(words).style(Style::new().fg(Color::Yellow)),
            message,
        );
        frame.render_widget(
            Paragraph::new(
                " a add  c change  d remove  m metric  Enter callees  A refine to the end  p pause  n notes  w HTML  q quit",
            )
            .style(Style::new().add_modifier(Modifier::DIM)),
            keys,
        );
        match &self.mode {
            Mode::Watching => {}
            Mode::Confirming { what, .. } => {
                let area = middle(frame.area(), 76, 8);
                frame.render_widget(Clear, area);
                frame.render_widget(
                    Paragraph::new(what.as_str())
                        .wrap(Wrap { trim: false })
                        .block(
                            Block::new()
                                .borders(Borders::ALL)
                                .title(" Attach? (Enter, Esc) "),
                        ),
                    area,
                );
            }
            Mode::Adding { text, refused, .. } => {
                let area = middle(frame.area(), 76, if refused.is_some() { 9 } else { 4 });
                let mut lines = vec![Line::from(vec![
                    Span::raw("> "),
                    Span::raw(text.clone()),
                    Span::styled("_", Style::new().add_modifier(Modifier::SLOW_BLINK)),
                ])];
                match refused {
                    Some(why) => lines.extend(
                        why.lines()
                            .map(|l| Line::styled(l.to_owned(), Style::new().fg(Color::LightRed))),
                    ),
                    None => lines.push(Line::styled(
                        "function, 'pattern*', function+0x1f, call(); @pid=1,call=read",
                        Style::new().add_modifier(Modifier::DIM),
                    )),
                }
                frame.render_widget(Clear, area);
                frame.render_widget(
                    Paragraph::new(lines).wrap(Wrap { trim: false }).block(
                        Block::new()
                            .borders(Borders::ALL)
                            .title(" Measure (Enter, Esc) "),
                    ),
                    area,
                );
            }
            Mode::Reading { title, text, from } => {
                let area = frame.area();
                frame.render_widget(Clear, area);
                frame.render_widget(
                    Paragraph::new(text.as_str()).scroll((*from, 0)).block(
                        Block::new()
                            .borders(Borders::ALL)
                            .title(format!(" {title} (any key) ")),
                    ),
                    area,
                );
            }
        }
    }

    fn draw_plot(&self, frame: &mut Frame, area: Rect, session: &Session, live: &[usize]) {
        let mut shown: Vec<usize> = live.to_vec();
        shown.sort_by_key(|i| std::cmp::Reverse(session.watches[*i].totals.inside_ns));
        shown.truncate(CURVES_MAX);
        shown.sort_unstable();
        // As many points as the area has columns of dots.
        let keep = usize::from(area.width) * 2;
        let data: Vec<(usize, Vec<(f64, f64)>)> = shown
            .iter()
            .map(|i| {
                let series = &session.watches[*i].series;
                let from = series.len().saturating_sub(keep);
                (
                    *i,
                    series[from..]
                        .iter()
                        .filter_map(|p| Some((p.seconds, value(p, self.metric)?)))
                        .collect(),
                )
            })
            .collect();
        let largest = data
            .iter()
            .flat_map(|(_, d)| d.iter().map(|p| p.1))
            .fold(0.0, f64::max);
        let first = data
            .iter()
            .filter_map(|(_, d)| d.first().map(|p| p.0))
            .fold(f64::INFINITY, f64::min);
        let last = data
            .iter()
            .filter_map(|(_, d)| d.last().map(|p| p.0))
            .fold(0.0, f64::max);
        let first = if first.is_finite() {
            first.min(last)
        } else {
            0.0
        };
        let last = last.max(first + 1.0);
        let top = round_up(largest);
        let sets: Vec<Dataset> = data
            .iter()
            .map(|(i, points)| {
                Dataset::default()
                    .name(session.watches[*i].name.clone())
                    .marker(Marker::Braille)
                    .graph_type(GraphType::Line)
                    .style(Style::new().fg(colour(live, *i)))
                    .data(points)
            })
            .collect();
        let title = format!(
            " {}{} ",
            self.metric.title(),
            if self.paused { " (paused)" } else { "" }
        );
        frame.render_widget(
            Chart::new(sets)
                .block(Block::new().borders(Borders::TOP).title(title))
                .legend_position(None)
                .x_axis(
                    Axis::default()
                        .bounds([first, last])
                        .labels([format!("{first:.0} s"), format!("{last:.0} s")]),
                )
                .y_axis(Axis::default().bounds([0.0, top]).labels([
                    "0".to_owned(),
                    value_text(top / 2.0, self.metric),
                    value_text(top, self.metric),
                ])),
            area,
        );
    }

    fn draw_table(&mut self, frame: &mut Frame, area: Rect, session: &Session, live: &[usize]) {
        let time =
            |ns: Option<u64>| ns.map_or("-".into(), |n| debox_output::duration_text(n, false));
        let rows: Vec<Row> = live
            .iter()
            .map(|i| {
                let w: &Watch = &session.watches[*i];
                let p = w.series.last().cloned().unwrap_or_default();
                let mut name = printable(&w.name);
                if !w.restricted.is_empty() {
                    name.push_str(&format!(" [{}]", printable(&w.restricted)));
                }
                Row::new(vec![
                    Cell::from(Line::from(vec![
                        Span::styled("■ ", Style::new().fg(colour(live, *i))),
                        Span::raw(name),
                    ])),
                    Cell::from(rate_text(p.calls_per_second)),
                    Cell::from(threads_text(p.concurrency)),
                    Cell::from(threads_text(p.self_concurrency)),
                    Cell::from(threads_text(p.off_cpu_concurrency)),
                    Cell::from(time(p.p50_ns)),
                    Cell::from(time(p.p99_ns)),
                    Cell::from(time(Some(w.totals.max_ns).filter(|n| *n > 0))),
                ])
            })
            .collect();
        let widths = [
            Constraint::Min(24),
            Constraint::Length(9),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Length(8),
        ];
        let table = Table::new(rows, widths)
            .header(
                Row::new([
                    "FUNCTION", "CALLS/S", "INSIDE", "SELF", "OFF-CPU", "P50", "P99", "MAX",
                ])
                .style(Style::new().add_modifier(Modifier::BOLD)),
            )
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        if !live.is_empty() {
            let at = self.selected.selected().unwrap_or(0).min(live.len() - 1);
            self.selected.select(Some(at));
        }
        frame.render_stateful_widget(table, area, &mut self.selected);
    }
}

fn functions_text(n: usize) -> String {
    match n {
        1 => "1 function".into(),
        n => format!("{n} functions"),
    }
}

fn colour(live: &[usize], place: usize) -> Color {
    let at = live.iter().position(|l| *l == place).unwrap_or(0);
    COLOURS[at % COLOURS.len()]
}

fn middle(area: Rect, width: u16, height: u16) -> Rect {
    let width = width.min(area.width);
    let height = height.min(area.height);
    Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    }
}
