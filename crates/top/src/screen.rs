// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is the terminal taken and, whatever happens, given back?

use crossterm::cursor::{Hide, Show};
use crossterm::execute;
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use std::io::{self, IsTerminal, Stdout};
use std::panic;
use std::sync::Once;

/// Whether keys can be read and frames drawn.
pub fn is_terminal() -> bool {
    let named = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    io::stdin().is_terminal() && io::stdout().is_terminal() && named
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, Hide).inspect_err(|_| {
        let _ = disable_raw_mode();
    })
}

/// Also called when nothing was taken: all of it is then without effect.
fn give_back() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// The terminal while it is ours.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    pub fn open() -> io::Result<Self> {
        // A panic's message would be lost on the other screen.
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                give_back();
                before(info);
            }));
        });
        take()?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout())).inspect_err(|_| {
            give_back();
        })?;
        Ok(Self { terminal })
    }

    /// Only what changed is sent; a new size of the terminal is seen here.
    pub fn draw(&mut self, paint: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(paint)?;
        Ok(())
    }

    /// Somebody else wrote on the terminal: the next picture is sent whole.
    pub fn clear(&mut self) -> io::Result<()> {
        // `Terminal::clear` asks the terminal where its cursor is (ESC [6n), waits
        // two seconds and fails where none answers. A new size, be it the old one,
        // clears as well.
        let size = self.terminal.size()?;
        self.terminal.resize(size.into())
    }

    /// Ctrl-Z: the shell gets its terminal, until somebody says fg.
    pub fn suspend(&mut self) -> io::Result<()> {
        give_back();
        // SAFETY: stops this process group, as the terminal would; no memory is
        // involved.
        unsafe { libc::kill(0, libc::SIGSTOP) };
        take()?;
        self.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}
