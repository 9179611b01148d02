// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the benchmarks change what hangs on the kernel, between two rounds?
//!
//! One command a line on standard input, one answer a line on standard output:
//!
//! ```text
//! off                          nothing attached
//! floor empty|clock|switch     programs that do nothing (bpf/floor.bpf.c)
//! watch wrap|boundary PID      an account of PID, as `debox run` has it
//! watch nowakers PID           wrap without the hook on sched_waking
//! learn                        takes waiting stacks; answers with the counters
//! ```
//!
//! Ends with its standard input; what it attached goes with it.

use debox_probe::{Floor, FloorGuard, Kernel, Options, Probe, floor_attach};
use std::error::Error;
use std::io::{BufRead, Write};
use std::time::Duration;

#[derive(Default)]
struct Hooks {
    floor: Option<FloorGuard>,
    /// With wakers, without.
    probes: [Option<Probe>; 2],
    /// Probe and account that are in use.
    watching: Option<(usize, u32)>,
}

impl Hooks {
    fn off(&mut self) {
        self.floor = None;
        if let Some((probe, account)) = self.watching.take()
            && let Some(probe) = &mut self.probes[probe]
        {
            probe.account_release(account);
        }
    }

    fn watch(&mut self, how: &str, pid: u32) -> Result<(), Box<dyn Error>> {
        self.off();
        let index = usize::from(how == "nowakers");
        if self.probes[index].is_none() {
            self.probes[index] = Some(Probe::load(Options {
                no_wakers: index == 1,
                ..Options::default()
            })?);
        }
        let probe = self.probes[index].as_mut().ok_or("no probe")?;
        let account = probe.account_create(
            debox_probe::Watcher::root(),
            debox_probe::AccountOptions {
                boundary: how == "boundary",
                ..debox_probe::AccountOptions::default()
            },
        )?;
        self.watching = Some((index, account.id));
        probe.account_join(account.id, pid, false)?;
        Ok(())
    }

    fn command(&mut self, line: &str) -> Result<String, Box<dyn Error>> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["off"] => self.off(),
            ["floor", which] => {
                self.off();
                self.floor = Some(floor_attach(match which {
                    "empty" => Floor::SyscallEmpty,
                    "clock" => Floor::SyscallClock,
                    "switch" => Floor::SwitchEmpty,
                    _ => return Err("no such floor".into()),
                })?);
            }
            ["watch", how @ ("wrap" | "boundary" | "nowakers"), pid] => {
                self.watch(how, pid.parse()?)?
            }
            ["learn"] => {
                let Some((index, _)) = self.watching else {
                    return Ok("nobody is watched".into());
                };
                let probe = self.probes[index].as_mut().ok_or("no probe")?;
                while probe.wait(Duration::ZERO) && !probe.new_stacks().is_empty() {}
                probe.new_stacks();
                return Ok(format!("{:?}", probe.counters()));
            }
            _ => return Err("no such command".into()),
        }
        Ok(String::new())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut hooks = Hooks::default();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        match hooks.command(&line?) {
            Ok(text) => writeln!(out, "ok {text}")?,
            Err(error) => writeln!(out, "error {}", error.to_string().replace('\n', " "))?,
        }
        out.flush()?;
    }
    Ok(())
}
