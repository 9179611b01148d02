// SPDX-License-Identifier: MIT OR Apache-2.0
//! Will `--do core` leave a core, and where?

use crate::error::Error;
use std::path::{Path, PathBuf};

enum Cores {
    /// To a program.
    Piped(String),
    /// To files of this pattern.
    Files(String),
    Nowhere,
}

fn pattern() -> Cores {
    let text = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let text = text.trim_end();
    match text.strip_prefix('|') {
        Some(program) => Cores::Piped(program.trim().to_owned()),
        None if text.is_empty() => Cores::Nowhere,
        None => Cores::Files(text.to_owned()),
    }
}

fn piped_note(program: &str) {
    let name = program.split_whitespace().next().unwrap_or(program);
    let found = if name.ends_with("systemd-coredump") {
        "coredumpctl gdb shows them".to_owned()
    } else {
        format!(
            "look there for them, or name a file instead: sysctl kernel.core_pattern=core.%p (now |{program})"
        )
    };
    crate::say(&format!("note: cores go to the program {name}: {found}"));
}

/// Whether it is a matter of files: no program takes the cores, which is told.
fn are_files() -> Result<bool, Error> {
    match pattern() {
        Cores::Piped(program) => {
            piped_note(&program);
            Ok(false)
        }
        Cores::Nowhere => Err(Error::Usage(
            "--do core would end the program and leave nothing: the kernel's core_pattern is empty. \
             Set one: sysctl kernel.core_pattern=core.%p"
                .into(),
        )),
        Cores::Files(_) => Ok(true),
    }
}

/// Before a command starts: sees to it that it may leave a core, or says why
/// it cannot.
pub fn cores_check_run() -> Result<(), Error> {
    if !are_files()? {
        return Ok(());
    }
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills a local.
    let got = unsafe { libc::getrlimit64(libc::RLIMIT_CORE, &mut limit) };
    if got != 0 || limit.rlim_cur != 0 {
        return Ok(());
    }
    if limit.rlim_max == 0 {
        return Err(Error::Usage(
            "--do core would end the program and leave nothing: the limit on core files is 0, and so is its \
             hard limit (ulimit -Hc). Start debox from a shell with a higher one (as root: ulimit -c unlimited)"
                .into(),
        ));
    }
    limit.rlim_cur = limit.rlim_max;
    // The command inherits it; debox itself leaves no core (see end_as).
    // SAFETY: reads a local.
    if unsafe { libc::setrlimit64(libc::RLIMIT_CORE, &limit) } == 0 {
        crate::say("note: core files were off (ulimit -c is 0); they are on for this command");
    }
    Ok(())
}

/// Before running processes are watched.
pub fn cores_check_attached(pids: &[i32]) -> Result<(), Error> {
    if !are_files()? {
        return Ok(());
    }
    for pid in pids {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
        let soft = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max core file size"))
            .and_then(|rest| rest.split_whitespace().next().map(str::to_owned));
        if soft.as_deref() == Some("0") {
            return Err(Error::Usage(format!(
                "--do core would end process {pid} and leave nothing: its limit on core files is 0. Raise it \
                 first: prlimit --pid {pid} --core=unlimited"
            )));
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let has = |field: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(field))
                .and_then(|hex| u64::from_str_radix(hex.trim_start_matches(':').trim(), 16).ok())
                .is_some_and(|set| set >> (libc::SIGABRT - 1) & 1 != 0)
        };
        if has("SigCgt") {
            crate::say(&format!(
                "note: process {pid} catches SIGABRT: its handler runs first, and decides whether there is a core"
            ));
        } else if has("SigIgn") || has("SigBlk") {
            crate::say(&format!(
                "note: process {pid} ignores or blocks SIGABRT: there may be no core"
            ));
        }
    }
    Ok(())
}

/// What the kernel makes of a pattern; None: it holds what cannot be known
/// afterwards.
fn expand(pattern: &str, pid: i32, tid: i32, comm: &str, uses_pid: bool) -> Option<String> {
    let mut name = String::new();
    let mut has_pid = false;
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            name.push(c);
            continue;
        }
        match chars.next() {
            Some('%') => name.push('%'),
            Some('p' | 'P') => {
                has_pid = true;
                name.push_str(&pid.to_string());
            }
            Some('i' | 'I') => name.push_str(&tid.to_string()),
            Some('s') => name.push_str(&libc::SIGABRT.to_string()),
            // A slash would lead elsewhere.
            Some('e') => name.push_str(&comm.replace('/', "!")),
            None => {}
            Some(_) => return None,
        }
    }
    if uses_pid && !has_pid {
        name.push_str(&format!(".{pid}"));
    }
    Some(name)
}

/// After a process was told to dump core: where it is, as far as that can be
/// known. `directory` was its working directory; that of a process that ended
/// before it was asked is taken to be ours, where its command started.
pub fn core_found(pid: i32, tid: i32, comm: &str, directory: Option<&Path>) -> Option<PathBuf> {
    let Cores::Files(pattern) = pattern() else {
        return None;
    };
    let uses_pid = std::fs::read_to_string("/proc/sys/kernel/core_uses_pid")
        .is_ok_and(|text| text.trim() == "1");
    let name = expand(&pattern, pid, tid, comm, uses_pid)?;
    let path = match directory {
        Some(directory) => directory.join(name),
        None => std::path::absolute(name).ok()?,
    };
    path.is_file().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn patterns_are_expanded_as_the_kernel_does() {
        let expand = |pattern, uses| expand(pattern, 12, 13, "my app", uses);
        assert_eq!(expand("core", false).as_deref(), Some("core"));
        assert_eq!(expand("core", true).as_deref(), Some("core.12"));
        assert_eq!(
            expand("/c/%e.%p.%i%%", true).as_deref(),
            Some("/c/my app.12.13%")
        );
        assert_eq!(
            super::expand("%e", 1, 1, "../x", false).as_deref(),
            Some("..!x")
        );
        assert_eq!(expand("core.%t", false), None);
        assert_eq!(expand("core%", false).as_deref(), Some("core"));
    }
}
