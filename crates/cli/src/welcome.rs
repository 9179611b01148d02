// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does somebody need to know who has only typed `debox`, or lacks the privileges?
//!
//! Nothing is loaded here: what capabilities, the kernel's files and a connection to the
//! broker tell is enough for a first answer, and comes at once. `debox doctor` tries.

use crate::doctor;
use crate::source::may_load;
use crate::status::socket_of;
use debox_client::Connection;
use debox_output::shell_word;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Nothing was asked for: the status of wrong arguments, so that a script notices.
const NOTHING_ASKED: i32 = 2;
/// Where sudo(8) finds programs in most systems.
const SUDO_FINDS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

fn is_root() -> bool {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// How sudo finds this program.
fn program() -> String {
    let typed = std::env::args_os().next().unwrap_or_default();
    if typed.as_bytes().contains(&b'/') {
        return shell_word(typed.as_bytes());
    }
    let Ok(path) = std::env::current_exe() else {
        return "debox".into();
    };
    let found = (path.parent()).is_some_and(|dir| SUDO_FINDS.iter().any(|d| dir == Path::new(d)));
    match found {
        true => "debox".into(),
        false => shell_word(path.as_os_str().as_bytes()),
    }
}

/// What a user without privileges may type instead: the same with sudo(8).
fn with_sudo(program: &str, words: impl Iterator<Item = OsString>) -> String {
    let mut line = format!("sudo {program}");
    for word in words {
        line.push(' ');
        line.push_str(&shell_word(word.as_bytes()));
    }
    line
}

/// The same of this command line; None where sudo would not help: root has tried.
pub fn again_with_sudo() -> Option<String> {
    (!is_root()).then(|| with_sudo(&program(), std::env::args_os().skip(1)))
}

/// Whether it can work here, in one line.
fn verdict() -> String {
    if let Some(missing) = doctor::missing_for_certain() {
        return format!("Nothing can be watched here: {missing} (`debox doctor` says more)");
    }
    if may_load() {
        return "Privileges and kernel are as `run` and `attach` need them (`debox doctor` tries all of it)"
            .into();
    }
    let socket = socket_of(None);
    match Connection::open(&socket) {
        Ok(_) => format!(
            "No privileges, but a broker at {} that watches for you (`debox doctor` says more)",
            socket.display()
        ),
        Err(_) if is_root() => {
            "Nothing can be watched here: this root lacks CAP_BPF and CAP_PERFMON, and no broker lets it in \
             (`debox doctor` says more)"
                .into()
        }
        Err(_) if doctor::spliceable(false).is_err() => format!(
            "Without privileges and without a broker nothing can be watched: put sudo before it, or start a \
             broker (`{} doctor` says more)",
            program()
        ),
        Err(_) => format!(
            "Without privileges and without a broker `run` counts calls and their times only: put sudo before it, \
             or start a broker (`{} doctor` says more)",
            program()
        ),
    }
}

fn text() -> String {
    format!(
        "debox says why a program takes as long as it does. To begin with:

  debox run -- COMMAND     run a command, and say where its time went
  debox attach -p PID      the same of a process that runs already (Ctrl-C ends it)
  debox top -p PID         watch it live

{}.
`debox --help` names the other commands.
",
        verdict()
    )
}

pub fn welcome() -> i32 {
    let text = debox_output::printable_lines(&text());
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
    NOTHING_ASKED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_command_with_sudo_can_be_pasted() {
        let words = ["run", "--", "sh", "-c", "echo 'a b' $HOME"].map(OsString::from);
        assert_eq!(
            with_sudo("debox", words.into_iter()),
            r"sudo debox run -- sh -c 'echo '\''a b'\'' $HOME'"
        );
    }

    #[test]
    fn three_commands_and_a_line() {
        let text = text();
        let shown = text.lines().filter(|line| line.starts_with("  debox "));
        assert_eq!(shown.count(), 3, "{text}");
    }
}
