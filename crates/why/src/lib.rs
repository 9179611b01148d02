// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a process wait for right now, who keeps it waiting, and what does that one
//! wait for?
//!
//! [`look`] takes one picture of all threads (`bpf/why.bpf.c`; without the privileges
//! for it, of /proc) and follows it from the threads that were asked about: nobody is
//! stopped, nothing is attached, and who blocked before DeBox was there is seen as well
//! as others. Where the kernel or a program keeps no record of who holds something,
//! nobody is named.

mod answer;
mod call;
mod file_lock;
pub mod futex;
mod graph;
mod kernel;
mod machine;
mod proc;
mod task;
mod text;
mod told;
mod user_stack;
mod wait;

pub use proc::may_read;
pub use text::{TextOptions, render};
pub use told::{Answer, Deadlock, Link, Neighbour, Thread};

use debox_labels::Rules;

use machine::Machine;
use wait::Asker;

/// Whom to ask about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A process, with all its threads; or one thread.
    Number(u32),
    /// Processes whose command or executable is called so.
    Name(String),
    /// A process that was there a moment ago: if it is gone, or another user's, it has no answer.
    Found(u32),
}

#[derive(Debug)]
pub struct Options {
    /// Whether the kernel may be asked (CAP_BPF and CAP_PERFMON).
    pub kernel: bool,
    pub rules: Rules,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("there is no process or thread {0}")]
    NoNumber(u32),
    #[error("no process is called \"{0}\". debox why takes the name that ps shows, or a number")]
    NoName(String),
    #[error(
        "process {pid} ({comm}) belongs to {owner}: what it waits for is for root and that user \
         to know. Ask as root: sudo debox why {pid}"
    )]
    NotYours {
        pid: u32,
        comm: String,
        owner: String,
    },
}

/// Follows the chains of all threads that are asked about.
pub fn look(targets: &[Target], options: Options) -> Result<Answer, Error> {
    let machine = Machine::look(options.kernel, options.rules);
    let mut asker = Asker::new(machine);
    let asked = asked_threads(&mut asker.machine, targets)?;
    Ok(answer::answer(asker, &asked))
}

/// The same for threads (with their processes) that were there a moment ago; those that
/// are gone, or may not be read, have no answer.
pub fn look_at(threads: &[(u32, u32)], options: Options) -> Answer {
    let mut machine = Machine::look(options.kernel, options.rules);
    let mut asked: Vec<u32> = threads
        .iter()
        .filter(|(pid, tid)| {
            machine.threads(*pid).contains(tid)
                && (machine.refused.is_none() || proc::may_read(*pid))
        })
        .map(|(_, tid)| *tid)
        .collect();
    asked.sort_unstable();
    asked.dedup();
    answer::answer(Asker::new(machine), &asked)
}

fn asked_threads(machine: &mut Machine, targets: &[Target]) -> Result<Vec<u32>, Error> {
    let own = std::process::id();
    let mut asked = Vec::new();
    for target in targets {
        let (pids, threads) = match target {
            Target::Number(number) => {
                let process = machine.leader(*number).map(|task| task.pid);
                match process.or_else(|| proc::process_of(*number)) {
                    Some(pid) if pid == *number => (vec![pid], None),
                    Some(pid) => (vec![pid], Some(*number)),
                    None => return Err(Error::NoNumber(*number)),
                }
            }
            Target::Found(pid) => (vec![*pid], None),
            Target::Name(name) => {
                let mut pids: Vec<u32> = machine
                    .tasks()
                    .iter()
                    .filter(|task| task.pid == task.tid && task.pid != own)
                    .filter(|task| task.comm == *name || proc::executable(task.pid) == *name)
                    .map(|task| task.pid)
                    .collect();
                pids.sort_unstable();
                if pids.is_empty() {
                    return Err(Error::NoName(name.clone()));
                }
                (pids, None)
            }
        };
        for pid in pids {
            // The kernel was asked: then it may be known, as far as it can be read.
            let found = matches!(target, Target::Found(_));
            if machine.refused.is_some() && !proc::may_read(pid) {
                if found {
                    continue;
                }
                let comm = machine.leader(pid).map(|task| task.comm.clone());
                return Err(Error::NotYours {
                    pid,
                    comm: debox_output::printable(&comm.unwrap_or_default()),
                    owner: proc::owner(pid).map_or("another user".into(), |uid| {
                        format!("the user with id {uid}")
                    }),
                });
            }
            let all = machine.threads(pid);
            match threads {
                Some(tid) if all.contains(&tid) => asked.push(tid),
                Some(tid) => return Err(Error::NoNumber(tid)),
                // Its main thread may have ended, or all of it.
                None if all.is_empty() && found => {}
                None if all.is_empty() => asked.push(pid),
                None => asked.extend(all),
            }
        }
    }
    asked.sort_unstable();
    asked.dedup();
    Ok(asked)
}
