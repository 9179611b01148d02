// SPDX-License-Identifier: MIT OR Apache-2.0
//! Was the machine quiet while it was measured?

use crate::clock::Clock;
use crate::os::clocks::frequency_ghz;
use crate::sampling::pin;
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::Instant;

/// What disturbed a run, beside its numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Noise {
    pub load_before: f64,
    pub load_after: f64,
    /// Of the usable CPUs' time during the run: taken by the hypervisor for
    /// others, and used by other processes here. 0 to 1.
    pub steal: f64,
    pub others: f64,
    /// Lowest and highest effective frequency seen, GHz.
    pub frequency_low: f64,
    pub frequency_high: f64,
    /// Batches that saw a preemption, of all; `None`: not counted.
    pub preempted: Option<f64>,
    /// Tracing BPF programs of others that were attached; `None`: not allowed to ask.
    pub foreign_bpf: Option<u32>,
    /// What makes this run a noisy one, in sentences; empty: quiet.
    pub reasons: Vec<String>,
}

#[derive(Clone, Copy, Default)]
struct CpuTimes {
    all: u64,
    busy: u64,
    steal: u64,
}

/// Ticks of the given CPUs so far.
fn cpu_times(cpus: &[usize]) -> CpuTimes {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let mut sum = CpuTimes::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(cpu) = words
            .next()
            .and_then(|w| w.strip_prefix("cpu")?.parse::<usize>().ok())
        else {
            continue;
        };
        if !cpus.contains(&cpu) {
            continue;
        }
        let v: Vec<u64> = words.filter_map(|w| w.parse().ok()).collect();
        if v.len() < 8 {
            continue;
        }
        // user nice system idle iowait irq softirq steal; guest is part of user.
        sum.all += v[..8].iter().sum::<u64>();
        sum.busy += v[0] + v[1] + v[2] + v[5] + v[6];
        sum.steal += v[7];
    }
    sum
}

/// CPU time of this process and the children it has waited for, seconds.
fn own_seconds() -> f64 {
    let one = |who| {
        // SAFETY: zeroed is valid, getrusage fills it.
        let u = unsafe {
            let mut u: libc::rusage = std::mem::zeroed();
            libc::getrusage(who, &mut u);
            u
        };
        let s = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        s(u.ru_utime) + s(u.ru_stime)
    };
    one(libc::RUSAGE_SELF) + one(libc::RUSAGE_CHILDREN)
}

fn load() -> f64 {
    fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|t| t.split(' ').next()?.parse().ok())
        .unwrap_or(0.0)
}

/// How many raw tracepoint and tracing links exist, by whomever.
pub fn bpf_links() -> Option<u32> {
    const NEXT_ID: usize = 31;
    const FD_BY_ID: usize = 30;
    const INFO_BY_FD: usize = 15;
    let (mut id, mut found) = (0u32, 0);
    loop {
        let mut attr = [0u32; 32];
        attr[0] = id;
        // SAFETY: 128 bytes, more than these commands read or write.
        let result = unsafe { libc::syscall(libc::SYS_bpf, NEXT_ID, attr.as_mut_ptr(), 128) };
        if result != 0 {
            let error = std::io::Error::last_os_error().raw_os_error();
            return (error == Some(libc::ENOENT)).then_some(found);
        }
        id = attr[1];
        let mut attr = [0u32; 32];
        attr[0] = id;
        // SAFETY: as above.
        let fd = unsafe { libc::syscall(libc::SYS_bpf, FD_BY_ID, attr.as_mut_ptr(), 128) };
        if fd < 0 {
            continue;
        }
        let mut info = [0u32; 64];
        let mut attr = [0u64; 16];
        attr[0] = fd as u64 | 256 << 32;
        attr[1] = info.as_mut_ptr() as u64;
        // SAFETY: 128 bytes of attributes, 256 of information; the descriptor
        // is ours and closed here.
        unsafe {
            let result = libc::syscall(libc::SYS_bpf, INFO_BY_FD, attr.as_mut_ptr(), 128);
            // 1 raw tracepoint, 2 tracing.
            found += u32::from(result == 0 && (info[0] == 1 || info[0] == 2));
            libc::close(fd as i32);
        }
    }
}

/// Watches a run from its beginning.
pub struct Watch {
    cpus: Vec<usize>,
    clock: Clock,
    begin: Instant,
    before: CpuTimes,
    own: f64,
    load: f64,
    frequency: (f64, f64),
    foreign_bpf: Option<u32>,
    measured: usize,
}

/// On the CPU where things are measured: this thread may be kept off it.
fn frequency_of(cpu: usize, clock: Clock) -> f64 {
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                // Pinned elsewhere or not at all, it is still a frequency seen.
                let _ = pin(cpu);
                frequency_ghz(&clock)
            })
            .join()
            .expect("registers only")
    })
}

impl Watch {
    /// `cpus`: whose time is looked at; `measured`: whose frequency.
    pub fn begin(cpus: &[usize], measured: usize, clock: Clock) -> Self {
        let f = frequency_of(measured, clock);
        Self {
            cpus: cpus.to_vec(),
            measured,
            clock,
            begin: Instant::now(),
            before: cpu_times(cpus),
            own: own_seconds(),
            load: load(),
            frequency: (f, f),
            foreign_bpf: bpf_links(),
        }
    }

    /// Between two measurements: the frequency again.
    pub fn look(&mut self) {
        let f = frequency_of(self.measured, self.clock);
        self.frequency = (self.frequency.0.min(f), self.frequency.1.max(f));
    }

    /// The same, while nothing of ours is attached: others' BPF programs as well.
    pub fn look_all(&mut self) {
        self.look();
        self.foreign_bpf = self.foreign_bpf.max(bpf_links());
    }

    /// `preempted`: share of batches that saw a preemption, where that was counted.
    pub fn end(mut self, preempted: Option<f64>) -> Noise {
        self.look();
        let now = cpu_times(&self.cpus);
        let ticks = (now.all - self.before.all).max(1) as f64;
        let wall = self.begin.elapsed().as_secs_f64() * self.cpus.len() as f64;
        let busy = (now.busy - self.before.busy) as f64 / ticks;
        let own = (own_seconds() - self.own) / wall;
        let mut noise = Noise {
            load_before: self.load,
            load_after: load(),
            steal: (now.steal - self.before.steal) as f64 / ticks,
            others: (busy - own).max(0.0),
            frequency_low: self.frequency.0,
            frequency_high: self.frequency.1,
            preempted,
            foreign_bpf: self.foreign_bpf,
            reasons: Vec::new(),
        };
        noise.judge();
        noise
    }
}

impl Noise {
    fn judge(&mut self) {
        let percent = |v: f64| format!("{:.1} %", v * 100.0);
        if self.steal > 0.01 {
            self.reasons.push(format!(
                "the hypervisor gave {} of the CPUs' time to others (steal)",
                percent(self.steal)
            ));
        }
        if self.others > 0.05 {
            self.reasons.push(format!(
                "other processes used {} of the CPUs' time (load average {:.2} before, {:.2} after)",
                percent(self.others),
                self.load_before,
                self.load_after
            ));
        }
        if let Some(preempted) = self.preempted.filter(|p| *p > 0.02) {
            self.reasons.push(format!(
                "{} of all batches were interrupted by another thread",
                percent(preempted)
            ));
        }
        if self.frequency_high > 1.05 * self.frequency_low {
            self.reasons.push(format!(
                "the processor ran at {:.2} to {:.2} GHz",
                self.frequency_low, self.frequency_high
            ));
        }
        if let Some(n) = self.foreign_bpf.filter(|n| *n > 0) {
            self.reasons.push(format!(
                "{n} BPF programs of others hang on the kernel: their cost is in the numbers"
            ));
        }
    }

    pub fn quiet(&self) -> bool {
        self.reasons.is_empty()
    }

    /// The measured values in one line, noisy or not.
    pub fn line(&self) -> String {
        format!(
            "steal {:.1} %, other processes {:.1} % of the CPUs, load {:.2} to {:.2}, {:.2} to {:.2} GHz{}{}",
            self.steal * 100.0,
            self.others * 100.0,
            self.load_before,
            self.load_after,
            self.frequency_low,
            self.frequency_high,
            self.preempted.map_or_else(String::new, |p| format!(
                ", {:.1} % of batches preempted",
                p * 100.0
            )),
            match self.foreign_bpf {
                Some(0) => String::new(),
                Some(n) => format!(", {n} BPF programs of others attached"),
                None => ", BPF programs of others: not allowed to ask".into(),
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Kind, choice};

    #[test]
    fn work_of_others_is_seen() {
        // Our own waited-for child is not others; a child that still runs is.
        let clock = Clock::new(&choice(Kind::Monotonic, 1.0));
        let cpus = crate::machine::cpus_allowed();
        let mut busy = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let watch = Watch::begin(&cpus, cpus[0], clock);
        std::thread::sleep(std::time::Duration::from_millis(600));
        let noise = watch.end(None);
        busy.kill().unwrap();
        busy.wait().unwrap();
        // One busy loop gets a fair part of one CPU at least.
        let least = 0.1 / cpus.len() as f64;
        assert!(noise.others > least, "{noise:?}");
    }

    #[test]
    fn reasons_are_given_beyond_the_thresholds_only() {
        let mut quiet = Noise {
            frequency_low: 3.0,
            frequency_high: 3.1,
            ..Noise::default()
        };
        quiet.judge();
        assert!(quiet.quiet());
        let mut loud = Noise {
            steal: 0.02,
            others: 0.3,
            preempted: Some(0.1),
            frequency_low: 2.0,
            frequency_high: 3.0,
            foreign_bpf: Some(2),
            ..Noise::default()
        };
        loud.judge();
        assert_eq!(loud.reasons.len(), 5);
        assert!(loud.line().contains("10.0 % of batches preempted"));
        // What nobody counted is not said.
        quiet.preempted = None;
        assert!(!quiet.line().contains("preempted"), "{}", quiet.line());
    }
}
