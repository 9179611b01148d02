// SPDX-License-Identifier: MIT OR Apache-2.0
//! What of a command's beginning was the launcher's?
//!
//! Whoever starts a command forks, waits at a gate until the process is watched, and calls
//! execve. The gate is no part of the run; the execve is the command's beginning, whatever the
//! process was called until then.

use crate::model::{CriticalKind, CriticalPart, CriticalPath, LifeRow};

/// What the process was called until its execve, and then.
fn names(lives: &[LifeRow], pid: u32) -> Option<(String, String)> {
    let of_process = || lives.iter().filter(|row| row.pid == pid);
    let launcher = of_process().find(|row| row.execs == 0 && row.processes > 0)?;
    let executed = of_process().filter(|row| row.execs > 0);
    let command = executed.min_by_key(|row| row.first_ns)?;
    Some((launcher.comm.clone(), command.comm.clone()))
}

/// The same, if nobody else is called as it was.
pub(super) fn renamed(lives: &[LifeRow], pid: u32) -> Option<(String, String)> {
    let names = names(lives, pid)?;
    let called = lives.iter().filter(|row| row.comm == names.0).count();
    (called == 1).then_some(names)
}

/// `held_ns`: from when it was watched until the gate was opened.
pub(super) fn leave(lives: &mut Vec<LifeRow>, path: &mut CriticalPath, held_ns: u64) {
    let Some((was, is)) = names(lives, path.pid) else {
        return;
    };
    let at = |lives: &[LifeRow], comm: &str| {
        lives
            .iter()
            .position(|row| row.pid == path.pid && row.comm == comm)
    };
    let Some(from) = at(lives, &was) else { return };
    let mut time = lives.remove(from).time;
    let (own_ns, runq_ns) = split(held_ns, time.own_ns, time.runq_ns);
    time.own_ns -= own_ns;
    time.runq_ns -= runq_ns;
    time.life_ns = time.life_ns.saturating_sub(own_ns + runq_ns);
    if let Some(to) = at(lives, &is) {
        lives[to].time.add(&time);
        lives[to].first_ns = 0;
    }

    let spent = |kind: CriticalKind| {
        let of =
            |part: &&CriticalPart| part.kind == kind && part.comm.as_deref() == Some(was.as_str());
        path.parts.iter().find(of).map_or(0, |part| part.total_ns)
    };
    let (own_ns, runq_ns) = split(held_ns, spent(CriticalKind::Own), spent(CriticalKind::Runq));
    path.total_ns = path.total_ns.saturating_sub(own_ns + runq_ns);
    for mut part in std::mem::take(&mut path.parts) {
        if part.comm.as_deref() == Some(was.as_str()) {
            part.comm = Some(is.clone());
            part.total_ns -= match part.kind {
                CriticalKind::Own => own_ns,
                CriticalKind::Runq => runq_ns,
                _ => 0,
            };
        }
        let same = (path.parts.iter_mut()).find(|other| {
            (other.kind, other.chain, &other.comm) == (part.kind, part.chain, &part.comm)
        });
        match same {
            Some(same) => same.total_ns += part.total_ns,
            None if part.total_ns > 0 => path.parts.push(part),
            None => {}
        }
    }
    path.parts
        .sort_by_key(|part| std::cmp::Reverse(part.total_ns));
}

/// At the gate it ran, and was kept from running.
fn split(held_ns: u64, own_ns: u64, runq_ns: u64) -> (u64, u64) {
    let own = held_ns.min(own_ns);
    (own, (held_ns - own).min(runq_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LifeTime;

    #[test]
    fn the_gate_is_left_out_and_the_execve_is_the_commands() {
        let row = |comm: &str, execs, processes, own_ns, calls_ns, runq_ns| LifeRow {
            pid: 7,
            comm: comm.into(),
            execs,
            processes,
            time: LifeTime {
                life_ns: own_ns + calls_ns + runq_ns,
                own_ns,
                calls_ns,
                runq_ns,
                ..LifeTime::default()
            },
            ..LifeRow::default()
        };
        let mut lives = vec![
            row("true", 1, 0, 300, 200, 0),
            row("debox", 0, 1, 40, 50, 20),
            row("debox", 0, 1, 1, 1, 1),
        ];
        lives[2].pid = 8;
        let part = |comm: &str, kind, total_ns| CriticalPart {
            comm: Some(comm.into()),
            kind,
            chain: None,
            total_ns,
        };
        let mut path = CriticalPath {
            pid: 7,
            total_ns: 610,
            parts: vec![
                part("true", CriticalKind::Own, 300),
                part("true", CriticalKind::Calls, 200),
                part("debox", CriticalKind::Calls, 50),
                part("debox", CriticalKind::Own, 40),
                part("debox", CriticalKind::Runq, 20),
            ],
        };
        let names = Some(("debox".to_owned(), "true".to_owned()));
        assert_eq!(renamed(&lives[..2], 7), names);
        // Another process is called so as well.
        assert_eq!(renamed(&lives, 7), None);
        leave(&mut lives, &mut path, 45);
        assert_eq!(lives.len(), 2);
        let time = lives[0].time;
        assert_eq!((time.own_ns, time.calls_ns, time.runq_ns), (300, 250, 15));
        assert_eq!(time.life_ns, 565);
        assert_eq!(path.total_ns, 565);
        let parts: Vec<_> = (path.parts.iter()).map(|p| (p.kind, p.total_ns)).collect();
        use CriticalKind::{Calls, Own, Runq};
        assert_eq!(parts, [(Own, 300), (Calls, 250), (Runq, 15)]);
        assert!(path.parts.iter().all(|p| p.comm.as_deref() == Some("true")));
        // Of a command that is called as the launcher nothing can be told apart.
        let mut alone = vec![row("debox", 1, 1, 300, 200, 0)];
        leave(&mut alone, &mut path, 45);
        assert_eq!(alone[0].time.own_ns, 300);
    }
}
