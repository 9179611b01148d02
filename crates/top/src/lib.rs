// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does a running program's time go, now?
//!
//! [`run`] shows it on a terminal until its user quits, [`batch`] prints frames
//! of plain text. Both are given a [`Host`], which knows where the numbers come
//! from and what to wait for; nothing here knows of brokers or processes.

mod app;
mod batch;
mod chains;
mod draw;
mod frame;
mod screen;
mod table;
mod views;

pub use app::{App, Done, Settings};
pub use batch::batch;
pub use draw::draw;
pub use frame::Frame;
pub use screen::{Screen, is_terminal};
pub use views::View;

use crossterm::event;
use debox_report::Report;
use std::io;
use std::time::{Duration, Instant};

/// What is watched, and how.
pub trait Host {
    /// The account so far: sums since the beginning.
    fn sample(&mut self) -> Report;
    /// How it ended ("ended with status 0"); None: it runs.
    fn ended(&mut self) -> Option<String>;
    /// Waits until a key was pressed (when `input`), something happened, or
    /// the time has come.
    fn wait(&mut self, input: bool, until: Instant) -> Woken;
    /// Whether quitting must say what happens to the command: it is our child
    /// and runs.
    fn owns_command(&self) -> bool;
    /// What a thread, or everything that is watched, waits for at this moment: lines.
    fn why(&mut self, thread: Option<u32>) -> String;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Woken {
    pub input: bool,
    /// The terminal has another size.
    pub resized: bool,
    /// A signal asks to end.
    pub stop: Option<i32>,
    /// What is watched has ended.
    pub ended: bool,
    /// The time that was given is over.
    pub over: bool,
}

/// How the view ended, beside errors of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By its user, or as the time was over; `end_command`: the command as well.
    Quit {
        end_command: bool,
    },
    Signal(i32),
}

/// Shows the view until its user quits. The terminal is put back in every
/// case, also when this panics.
pub fn run(host: &mut dyn Host, settings: Settings) -> io::Result<End> {
    let mut screen = Screen::open()?;
    let mut app = App::new(settings);
    let start = Instant::now();
    app.take(Frame::new(host.sample(), Duration::ZERO));
    let mut next = start + app.interval();
    loop {
        screen.draw(|frame| draw(&mut app, frame))?;
        let woken = host.wait(true, next);
        if let Some(signal) = woken.stop {
            return Ok(End::Signal(signal));
        }
        if woken.over {
            return Ok(End::Quit { end_command: true });
        }
        // The drawing asks for the size each time, so that is all.
        let _ = woken.resized;
        if woken.input {
            while event::poll(Duration::ZERO)? {
                match app.event(&event::read()?, host.owns_command()) {
                    None => {}
                    Some(Done::Quit { end_command }) => return Ok(End::Quit { end_command }),
                    Some(Done::Suspend) => screen.suspend()?,
                    Some(Done::Why { thread }) => app.why_show(host.why(thread)),
                    Some(Done::Redraw) => screen.clear()?,
                    // At once from now on.
                    Some(Done::Interval) => next = next.min(Instant::now() + app.interval()),
                }
            }
        }
        if app.ended.is_none()
            && let Some(how) = host.ended()
        {
            // The last sums, and then no more.
            app.take(Frame::new(host.sample(), start.elapsed()));
            app.ended = Some(how);
        }
        let now = Instant::now();
        if now >= next {
            if app.ended.is_none() {
                app.take(Frame::new(host.sample(), start.elapsed()));
            }
            next = now + app.interval();
        }
    }
}
