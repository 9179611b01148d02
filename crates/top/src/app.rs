// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a key do?

use crate::frame::{Between, Frame};
use crate::table::Table;
use crate::views::{Style, View, table};
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use debox_report::since;
use std::collections::VecDeque;
use std::time::Duration;

/// What can be chosen with + and -.
const INTERVALS_MS: [u64; 9] = [100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];
/// Intervals in the curve of the head line.
pub const CURVE: usize = 120;

/// What the command line says.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is watched, for the head line.
    pub title: String,
    pub interval: Duration,
    pub view: View,
    pub totals: bool,
    pub color: bool,
    pub ascii: bool,
}

/// What the loop must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Quit {
        end_command: bool,
    },
    Suspend,
    Redraw,
    Interval,
    /// Ask what this thread, or everything, waits for.
    Why {
        thread: Option<u32>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Table,
    Filter,
    Help,
    /// What somebody waits for.
    Why,
    /// Why it takes so long, where there is no room for all of it.
    Verdict,
    /// What the sleeps of a process, or of all, waited for.
    Chains {
        pid: Option<u32>,
    },
    /// The command runs: end it, too?
    Quit,
}

#[derive(Clone, Copy, Debug)]
pub struct ViewState {
    pub sort: usize,
    pub descending: bool,
    pub selected: usize,
    pub scroll: usize,
}

/// Everything that is shown.
pub struct App {
    pub settings: Settings,
    pub mode: Mode,
    pub views: [ViewState; View::ALL.len()],
    pub filter: String,
    filter_before: String,
    pub paused: bool,
    pub ended: Option<String>,
    shown: Option<(Frame, Option<Frame>)>,
    latest: Option<Frame>,
    /// Of what is shown, between its two looks.
    verdict_since: Vec<String>,
    /// Calls per second, newest last.
    pub curve: VecDeque<f64>,
    /// Rows on the screen, set by the drawing.
    pub page: usize,
    /// What was answered last.
    pub why: String,
    /// From which line on it, or another text, is shown.
    pub line: usize,
}

impl App {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            mode: Mode::Table,
            views: View::ALL.map(|view| ViewState {
                sort: view.sorted_by(),
                descending: true,
                selected: 0,
                scroll: 0,
            }),
            filter: String::new(),
            filter_before: String::new(),
            paused: false,
            ended: None,
            shown: None,
            latest: None,
            verdict_since: Vec::new(),
            curve: VecDeque::new(),
            page: 10,
            why: String::new(),
            line: 0,
        }
    }

    pub fn interval(&self) -> Duration {
        self.settings.interval
    }

    /// The next look at the account.
    pub fn take(&mut self, frame: Frame) {
        let before = self.latest.replace(frame.clone());
        if let Some(before) = &before {
            let between = Between::interval(&frame, before);
            let calls = |f: &Frame| f.report.totals.calls;
            self.curve
                .push_back(between.per_second(calls(&frame), calls(before)));
            while self.curve.len() > CURVE {
                self.curve.pop_front();
            }
        }
        if !self.paused {
            self.verdict_since = match &before {
                Some(before) => since(&frame.report, &before.report).verdict,
                None => Vec::new(),
            };
            self.shown = Some((frame, before));
        }
    }

    /// What the tables and the head line are about.
    pub fn between(&self) -> Option<Between<'_>> {
        let (now, before) = self.shown.as_ref()?;
        Some(match before {
            Some(before) if !self.settings.totals => Between::interval(now, before),
            _ => Between::totals(now),
        })
    }

    /// Why it takes so long: in the interval that is shown, or in all of the time.
    pub fn verdict(&self) -> &[String] {
        match &self.shown {
            Some((now, _)) if self.style().totals || self.ended.is_some() => &now.report.verdict,
            _ => &self.verdict_since,
        }
    }

    /// Of the frame that is shown.
    pub fn age(&self) -> Duration {
        self.shown
            .as_ref()
            .map_or(Duration::ZERO, |(now, _)| now.at)
    }

    pub fn style(&self) -> Style {
        Style {
            totals: self.settings.totals || !matches!(&self.shown, Some((_, Some(_)))),
            ascii: self.settings.ascii,
        }
    }

    pub fn state(&mut self) -> &mut ViewState {
        &mut self.views[self.settings.view as usize]
    }

    /// The current view's table, filtered and sorted.
    pub fn table(&mut self) -> Table {
        let Some(between) = self.between() else {
            return Table::default();
        };
        let mut table = table(self.settings.view, &between, self.style());
        if !table.rows.is_empty() && !self.filter.is_empty() {
            table.filter(&self.filter);
            if table.rows.is_empty() {
                table.nothing = format!("nothing fits \"{}\"", self.filter);
            }
        }
        let state = self.views[self.settings.view as usize];
        table.sort(state.sort.min(table.columns.len() - 1), state.descending);
        let last = table.rows.len().saturating_sub(1);
        let state = self.state();
        state.selected = state.selected.min(last);
        table
    }

    pub fn event(&mut self, event: &Event, owns_command: bool) -> Option<Done> {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.key(*key, owns_command),
            _ => None,
        }
    }

    fn key(&mut self, key: KeyEvent, owns_command: bool) -> Option<Done> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return self.quit(owns_command),
            KeyCode::Char('z') if control => return Some(Done::Suspend),
            KeyCode::Char('l') if control => return Some(Done::Redraw),
            _ => {}
        }
        match self.mode {
            Mode::Table => self.table_key(key, owns_command),
            Mode::Filter => {
                match key.code {
                    KeyCode::Enter => self.mode = Mode::Table,
                    KeyCode::Esc => {
                        self.filter = self.filter_before.clone();
                        self.mode = Mode::Table;
                    }
                    KeyCode::Backspace if self.filter.is_empty() => self.mode = Mode::Table,
                    KeyCode::Backspace => {
                        self.filter.pop();
                    }
                    KeyCode::Char('u') if control => self.filter.clear(),
                    KeyCode::Char(c) if !control => self.filter.push(c),
                    _ => {}
                }
                None
            }
            Mode::Help => {
                self.mode = Mode::Table;
                None
            }
            Mode::Why | Mode::Verdict | Mode::Chains { .. } => {
                let page = self.page.max(1);
                let line = &mut self.line;
                // The drawing keeps it within the text.
                match key.code {
                    KeyCode::Down | KeyCode::Char('j') => *line += 1,
                    KeyCode::Up | KeyCode::Char('k') => *line = line.saturating_sub(1),
                    KeyCode::PageDown | KeyCode::Char(' ') => *line += page,
                    KeyCode::PageUp => *line = line.saturating_sub(page),
                    KeyCode::Char('w') => return self.why_ask(),
                    KeyCode::Char('t') if self.mode != Mode::Why => {
                        self.settings.totals = !self.settings.totals;
                    }
                    KeyCode::Char('p') if self.mode != Mode::Why => self.paused = !self.paused,
                    _ => self.mode = Mode::Table,
                }
                None
            }
            Mode::Quit => match key.code {
                KeyCode::Char('y' | 'Y') => Some(Done::Quit { end_command: true }),
                KeyCode::Char('n' | 'N') => Some(Done::Quit { end_command: false }),
                _ => {
                    self.mode = Mode::Table;
                    None
                }
            },
        }
    }

    /// A number of the chosen row, where threads are shown.
    fn chosen(&mut self, column: usize) -> Option<u32> {
        if self.settings.view != View::Threads {
            return None;
        }
        let table = self.table();
        let row = table.rows.get(self.state().selected)?;
        row.cells.get(column)?.text().parse().ok()
    }

    /// Of the chosen thread, where threads are shown; else of all.
    fn why_ask(&mut self) -> Option<Done> {
        let thread = self.chosen(1);
        Some(Done::Why { thread })
    }

    pub fn why_show(&mut self, text: String) {
        self.why = text;
        self.line = 0;
        self.mode = Mode::Why;
    }

    fn quit(&mut self, owns_command: bool) -> Option<Done> {
        if owns_command && self.ended.is_none() && self.mode != Mode::Quit {
            self.mode = Mode::Quit;
            return None;
        }
        // Asked twice, or nothing to ask.
        Some(Done::Quit {
            end_command: owns_command && self.ended.is_none(),
        })
    }

    fn table_key(&mut self, key: KeyEvent, owns_command: bool) -> Option<Done> {
        let view = self.settings.view as usize;
        let columns = self.table().columns.len();
        let page = self.page.max(1);
        let turn = |by: usize| View::ALL[(view + by) % View::ALL.len()];
        match key.code {
            KeyCode::Char('q') => return self.quit(owns_command),
            KeyCode::Char(digit @ '1'..='6') => {
                self.settings.view = View::ALL[digit as usize - '1' as usize];
            }
            KeyCode::Tab => self.settings.view = turn(1),
            KeyCode::BackTab => self.settings.view = turn(View::ALL.len() - 1),
            KeyCode::Left | KeyCode::Char('<') if columns > 0 => {
                let state = self.state();
                state.sort = (state.sort + columns - 1) % columns;
                self.sort_changed();
            }
            KeyCode::Right | KeyCode::Char('>') if columns > 0 => {
                let state = self.state();
                state.sort = (state.sort + 1) % columns;
                self.sort_changed();
            }
            KeyCode::Char('r') => {
                let state = self.state();
                state.descending = !state.descending;
            }
            KeyCode::Up | KeyCode::Char('k') => {
                let state = self.state();
                state.selected = state.selected.saturating_sub(1);
            }
            // The drawing keeps it within the table.
            KeyCode::Down | KeyCode::Char('j') => self.state().selected += 1,
            KeyCode::PageUp => {
                let state = self.state();
                state.selected = state.selected.saturating_sub(page);
            }
            KeyCode::PageDown => self.state().selected += page,
            KeyCode::Home | KeyCode::Char('g') => self.state().selected = 0,
            KeyCode::End | KeyCode::Char('G') => self.state().selected = usize::MAX / 2,
            KeyCode::Char('/') => {
                self.filter_before = self.filter.clone();
                self.mode = Mode::Filter;
            }
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
            }
            KeyCode::Char('w') => return self.why_ask(),
            KeyCode::Char('v') => {
                self.line = 0;
                self.mode = Mode::Verdict;
            }
            KeyCode::Char('c') => {
                self.line = 0;
                self.mode = Mode::Chains {
                    pid: self.chosen(2),
                };
            }
            KeyCode::Char('t') => self.settings.totals = !self.settings.totals,
            KeyCode::Char('+' | '=') => return self.interval_change(true),
            KeyCode::Char('-') => return self.interval_change(false),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Enter if self.settings.view == View::Calls => {
                // Where does this call block?
                let table = self.table();
                let selected = self.state().selected;
                if let Some(row) = table.rows.get(selected) {
                    self.filter = row.cells[0].text().to_owned();
                    self.settings.view = View::Blocking;
                }
            }
            _ => {}
        }
        None
    }

    /// Names from A to Z, numbers from the largest.
    fn sort_changed(&mut self) {
        let sort = self.state().sort;
        let text = self.table().columns.get(sort).is_some_and(|c| c.text);
        self.state().descending = !text;
    }

    fn interval_change(&mut self, longer: bool) -> Option<Done> {
        let now = self.settings.interval.as_millis() as u64;
        let next = if longer {
            INTERVALS_MS.iter().find(|ms| **ms > now)
        } else {
            INTERVALS_MS.iter().rev().find(|ms| **ms < now)
        };
        self.settings.interval = Duration::from_millis(*next?);
        Some(Done::Interval)
    }
}
