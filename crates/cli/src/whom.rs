// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whom does the command line mean that names no process: all, or those of a name, a control
//! group, a user?

use crate::cgroup;
use crate::error::Error;
use clap::Args;
use debox_abi::{DEBOX_REQ_NOFOLLOW, DEBOX_REQ_OWNERS_FIRST, debox_select};
use debox_broker::account::user_ids;
use debox_output::shell_word;
use debox_probe::Pattern;

const HEADING: &str = "Whom, without naming processes";

/// Of one of these options one must fit, of different ones each; but --cgroup, --unit and
/// --container are one.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct WhomArgs {
    /// All processes of the machine
    #[arg(long, help_heading = HEADING, conflicts_with_all = ["comm", "cgroup", "unit", "uid", "container"])]
    pub all: bool,
    /// Processes whose name (as ps -o comm shows it) fits GLOB
    #[arg(long, value_name = "GLOB", help_heading = HEADING)]
    pub comm: Vec<String>,
    /// Processes in the control groups that fit PATH (* within a name, ** over several), or
    /// below
    #[arg(long, value_name = "PATH", help_heading = HEADING)]
    pub cgroup: Vec<String>,
    /// Processes of systemd's unit NAME (.service, .scope or .slice)
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    pub unit: Vec<String>,
    /// Processes with the effective user USER, a name or a number
    #[arg(long, value_name = "USER", help_heading = HEADING)]
    pub uid: Vec<String>,
    /// Processes of the container with this id (of Docker, containerd, CRI-O, podman)
    #[arg(long, value_name = "ID", help_heading = HEADING)]
    pub container: Vec<String>,
}

/// Whom they mean.
#[derive(Clone, Debug)]
pub struct Whom {
    pub args: WhomArgs,
    /// Of several policies the place of this one; 0: it is none.
    pub rank: u32,
    /// Of a policy: whoever may watch a process has it for as long as he asks.
    pub owners_first: bool,
    uids: Vec<u32>,
    comms: Vec<String>,
    cgroups: Vec<String>,
    comm_patterns: Vec<Pattern>,
    cgroup_patterns: Vec<Pattern>,
}

fn user(text: &str) -> Result<u32, Error> {
    match text.parse() {
        Ok(uid) => Ok(uid),
        Err(_) => user_ids(text).map(|(uid, _)| uid).ok_or_else(|| {
            Error::Arguments(format!(
                "there is no user {text:?} here: name another one, or give his number"
            ))
        }),
    }
}

impl WhomArgs {
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    pub fn whole_machine() -> Self {
        Self {
            all: true,
            ..Self::default()
        }
    }

    /// As it was written.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.all {
            words.push("--all".to_owned());
        }
        for (option, values) in [
            ("--comm", &self.comm),
            ("--cgroup", &self.cgroup),
            ("--unit", &self.unit),
            ("--uid", &self.uid),
            ("--container", &self.container),
        ] {
            for value in values {
                words.extend([option.to_owned(), value.clone()]);
            }
        }
        words
    }
}

impl Whom {
    /// # Errors
    /// A user that does not exist, a pattern that is none, no unified hierarchy.
    pub fn of(args: &WhomArgs) -> Result<Self, Error> {
        let wrong = Error::Arguments;
        let uids = args
            .uid
            .iter()
            .map(|text| user(text))
            .collect::<Result<_, _>>()?;
        let mut cgroups = Vec::new();
        if !(args.cgroup.is_empty() && args.unit.is_empty() && args.container.is_empty()) {
            let (root, mount) = debox_probe::unified().map_err(Error::Usage)?;
            let mount = mount.to_string_lossy();
            for path in &args.cgroup {
                cgroups.push(cgroup::path_pattern(path, &root, &mount).map_err(wrong)?);
            }
            cgroups.extend(
                args.unit
                    .iter()
                    .flat_map(|name| cgroup::unit_patterns(name)),
            );
            for id in &args.container {
                cgroups.extend(cgroup::container_patterns(id).map_err(wrong)?);
            }
        }
        let patterns = |texts: &[String], of: fn(&str) -> Result<Pattern, String>| {
            let patterns = texts.iter().map(|text| of(text));
            patterns.collect::<Result<Vec<_>, _>>().map_err(wrong)
        };
        Ok(Self {
            comm_patterns: patterns(&args.comm, Pattern::of_comm)?,
            cgroup_patterns: patterns(&cgroups, Pattern::of_path)?,
            comms: args.comm.clone(),
            args: args.clone(),
            rank: 0,
            owners_first: false,
            cgroups,
            uids,
        })
    }

    /// As it was written, as a shell takes it.
    pub fn text(&self) -> String {
        let words = self.args.words();
        let words: Vec<String> = words
            .iter()
            .map(|word| shell_word(word.as_bytes()))
            .collect();
        words.join(" ")
    }

    pub fn request(&self, follow: bool) -> Result<debox_select, Error> {
        let flag = |on, flag| if on { flag } else { 0 };
        let flags =
            flag(!follow, DEBOX_REQ_NOFOLLOW) | flag(self.owners_first, DEBOX_REQ_OWNERS_FIRST);
        debox_select::new(flags, &self.uids, &self.comms, &self.cgroups, self.rank)
            .map_err(|what| Error::Arguments(format!("too much is asked for: {what}")))
    }

    fn fits(&self, pid: u32) -> Option<bool> {
        let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).ok();
        let stat = read("stat")?;
        let end = stat.windows(2).rposition(|pair| pair == b") ")?;
        let mut rest = std::str::from_utf8(&stat[end + 2..])
            .ok()?
            .split_ascii_whitespace();
        let state = rest.next()?;
        // Field 9 of stat; PF_KTHREAD.
        let flags: u64 = rest.nth(5)?.parse().ok()?;
        if flags & 0x0020_0000 != 0 || matches!(state, "Z" | "X") {
            return Some(false);
        }
        let begin = stat.iter().position(|b| *b == b'(')? + 1;
        if !self.comm_patterns.is_empty() {
            let comm = &stat[begin..end];
            if !self.comm_patterns.iter().any(|pattern| pattern.fits(comm)) {
                return Some(false);
            }
        }
        if !self.uids.is_empty() {
            let status = String::from_utf8_lossy(&read("status")?).into_owned();
            let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
            let euid: u32 = uids.split_ascii_whitespace().nth(1)?.parse().ok()?;
            if !self.uids.contains(&euid) {
                return Some(false);
            }
        }
        if !self.cgroup_patterns.is_empty() {
            let text = String::from_utf8_lossy(&read("cgroup")?).into_owned();
            let path = cgroup::unified_path(&text)?.as_bytes();
            let mut patterns = self.cgroup_patterns.iter();
            return Some(patterns.any(|p| p.fits_above(path) || p.fits(b"/")));
        }
        Some(true)
    }

    /// Those that fit now, debox left out.
    pub fn pids(&self) -> Vec<u32> {
        let own = std::process::id();
        let mut pids: Vec<u32> = std::fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| *pid != own && self.fits(*pid) == Some(true))
            .collect();
        pids.sort_unstable();
        pids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_found_and_debox_is_not() {
        let args = WhomArgs {
            comm: vec!["whom-*".into()],
            uid: vec!["0".into(), "65534".into()],
            ..WhomArgs::default()
        };
        assert!(args.any() && !WhomArgs::default().any());
        let whom = Whom::of(&args).unwrap();
        assert_eq!(whom.text(), "--comm 'whom-*' --uid 0 --uid 65534");
        let request = whom.request(true).unwrap();
        assert_eq!(request.comms().unwrap(), ["whom-*"]);
        assert_eq!(&request.uid[..2], [0, 65534]);
        assert!(request.cgroups().unwrap().is_empty());
        let all = Whom::of(&WhomArgs::whole_machine()).unwrap();
        assert!(!all.pids().contains(&std::process::id()));
        let bad = WhomArgs {
            uid: vec!["no-such-user".into()],
            ..WhomArgs::default()
        };
        assert!(
            Whom::of(&bad)
                .unwrap_err()
                .to_string()
                .contains("no-such-user")
        );
    }
}
