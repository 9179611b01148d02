// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does the view work on a terminal that answers no question? (Where is your
//! cursor, ESC [6n: serial lines, recorders and tests' terminals say nothing.)

use debox_report::{Report, parse_json};
use debox_top::{End, Host, Settings, View, Woken};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Tells this program that it is the one on the terminal.
const SHOWN: &str = "DEBOX_TEST_SHOWN";
const TITLE: &str = "server-4711";
/// The terminal is asked this by what must not ask.
const WHERE_IS_THE_CURSOR: &[u8] = b"\x1b[6n";
const CLEAR: &[u8] = b"\x1b[2J";
/// A machine that does much else draws within this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether there is something to read, within a time.
fn readable(fd: &impl AsRawFd, within: Duration) -> bool {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, which lives as long as the call.
    unsafe { libc::poll(&mut entry, 1, within.as_millis() as i32) > 0 }
}

/// A program that runs and of which nothing new is heard.
struct Still;

impl Host for Still {
    fn sample(&mut self) -> Report {
        parse_json(include_str!("report.json")).unwrap()
    }

    fn ended(&mut self) -> Option<String> {
        None
    }

    fn wait(&mut self, _: bool, until: Instant) -> Woken {
        let within = until.saturating_duration_since(Instant::now());
        Woken {
            input: readable(&std::io::stdin(), within),
            ..Woken::default()
        }
    }

    fn owns_command(&self) -> bool {
        false
    }

    fn why(&mut self, _: Option<u32>) -> String {
        "it waits for a test".into()
    }
}

fn view() {
    let end = debox_top::run(
        &mut Still,
        Settings {
            title: TITLE.into(),
            // Nothing is drawn but for keys.
            interval: Duration::from_secs(3600),
            view: View::Calls,
            totals: false,
            color: false,
            ascii: true,
        },
    )
    .unwrap();
    assert_eq!(end, End::Quit { end_command: false });
}

/// The other side of the terminal, where somebody looks and types.
struct Terminal {
    side: File,
    program: Child,
    /// All that came since the last key.
    shown: Vec<u8>,
}

fn contains(text: &[u8], words: &[u8]) -> bool {
    text.windows(words.len()).any(|w| w == words)
}

impl Terminal {
    fn open(test: &str) -> Self {
        let (mut side, mut there) = (-1, -1);
        let size = libc::winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: two places for descriptors, no name, no settings, and a size;
        // all of them live as long as the call.
        let rc = unsafe {
            libc::openpty(
                &mut side,
                &mut there,
                std::ptr::null_mut(),
                std::ptr::null(),
                &size,
            )
        };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: both were opened just now and belong to nobody else.
        let (side, there) = unsafe { (File::from_raw_fd(side), OwnedFd::from_raw_fd(there)) };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", test])
            .env(SHOWN, "")
            .env("TERM", "xterm")
            .stdin(there.try_clone().unwrap())
            .stdout(there.try_clone().unwrap())
            .stderr(there);
        // SAFETY: setsid is safe between fork and exec. Without another terminal,
        // and a process group of its own: Ctrl-Z stops all of it.
        unsafe {
            command.pre_exec(|| match libc::setsid() {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            })
        };
        Self {
            side,
            program: command.spawn().unwrap(),
            shown: Vec::new(),
        }
    }

    fn press(&mut self, key: &[u8]) {
        self.shown.clear();
        self.side.write_all(key).unwrap();
    }

    fn until(&mut self, what: &str, done: impl Fn(&[u8]) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(&self.shown) {
            let left = end.saturating_duration_since(Instant::now());
            let mut piece = [0; 4096];
            // The program's end is an error here: nobody holds the terminal.
            let n = match readable(&self.side, left) {
                true => self.side.read(&mut piece).unwrap_or(0),
                false => 0,
            };
            let shown = String::from_utf8_lossy(&self.shown);
            assert!(n > 0, "{what}: only this was shown: {shown:?}");
            self.shown.extend_from_slice(&piece[..n]);
            assert!(
                !contains(&self.shown, WHERE_IS_THE_CURSOR),
                "{what}: the terminal was asked where its cursor is"
            );
        }
    }

    fn until_drawn_anew(&mut self, what: &str) {
        self.until(what, |shown| {
            let mut pieces = shown.windows(CLEAR.len());
            let cleared = pieces.position(|w| w == CLEAR);
            cleared.is_some_and(|at| contains(&shown[at..], TITLE.as_bytes()))
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended already, unless the test failed.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

#[test]
fn a_terminal_that_says_nothing_is_drawn_anew() {
    if std::env::var_os(SHOWN).is_some() {
        return view();
    }
    let mut terminal = Terminal::open("a_terminal_that_says_nothing_is_drawn_anew");
    terminal.until("the first picture", |s| contains(s, TITLE.as_bytes()));

    terminal.press(b"\x0c");
    terminal.until_drawn_anew("Ctrl-L");

    terminal.press(b"\x1a");
    let pid = terminal.program.id() as i32;
    let mut status = 0;
    // SAFETY: our own child, and a place for its status.
    let stopped = unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) };
    assert!(stopped == pid && libc::WIFSTOPPED(status), "{status:#x}");
    // SAFETY: our own child, which leads its process group.
    assert_eq!(unsafe { libc::kill(-pid, libc::SIGCONT) }, 0);
    terminal.until_drawn_anew("fg after Ctrl-Z");

    // And it goes on.
    terminal.press(b"p");
    terminal.until("p", |shown| contains(shown, b"PAUSED"));
    terminal.press(b"q");
    terminal.until("q", |shown| contains(shown, b"1 passed"));
    assert!(terminal.program.wait().unwrap().success());
}
