// SPDX-License-Identifier: MIT OR Apache-2.0
//! What would a fleet of such hosts tell?
//!
//!     simulate REPORT URL HOSTS HOURS THREADS PROGRAMS FILE_MINUTES [UNTIL_UNIX_S]
//!
//! REPORT is the JSON of a real host's period (`debox attach --all --capture=sleeps -d 60s
//! --json`). Each simulated host runs what it ran, in so many units that it has PROGRAMS different
//! programs (name and unit), with as many threads each as make THREADS together; it is busier or
//! less busy by a factor of its own. A row's sleeps come by chance (Poisson) around the real one's
//! number, each as long as the real ones' mean, times a factor by chance. The tables go to URL as
//! an agent writes them, FILE_MINUTES of a host in a file.

use debox_fleet::{Bounds, Options, Partitions, Period, Rows, rows};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const PERIOD_NS: u64 = 60_000_000_000;
const DAY_S: u64 = 86_400;

/// xorshift64*: the same numbers in each run.
struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// 0 to 1, neither of both.
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        (bits as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let (u, v) = (self.unit(), self.unit());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    fn factor(&mut self, spread: f64) -> f64 {
        (self.normal() * spread).exp()
    }

    fn poisson(&mut self, mean: f64) -> u64 {
        if mean > 30.0 {
            return (mean + mean.sqrt() * self.normal()).round().max(0.0) as u64;
        }
        let (mut left, mut n) = ((-mean).exp(), 0);
        let u = self.unit();
        let mut sum = left;
        while u > sum && n < 1_000 {
            n += 1;
            left *= mean / n as f64;
            sum += left;
        }
        n
    }
}

/// What a host tells of one period.
fn told(real: &Rows, copies: u64, busy: f64, chance: &mut Chance, period: Period) -> Rows {
    let copy_name = |unit: &str, copy: u64| match copy {
        0 => unit.to_owned(),
        copy => format!("{copy}-{unit}"),
    };
    let mut told = Rows {
        facts: real.facts.clone(),
        ..Rows::default()
    };
    told.facts.period = period;
    for copy in 0..copies {
        for (wait, sum) in &real.waits {
            let sleeps = chance.poisson(sum.sleeps as f64 * busy);
            if sleeps == 0 || sum.sleeps == 0 {
                continue;
            }
            let each = sum.blocked_ns as f64 / sum.sleeps as f64;
            let blocked = each * sleeps as f64 * chance.factor(0.3);
            let mut wait = wait.clone();
            let mut sum = *sum;
            wait.unit = copy_name(&wait.unit, copy);
            sum.sleeps = sleeps;
            sum.blocked_ns = blocked as u64;
            sum.longest_ns = (sum.longest_ns as f64 * chance.factor(0.3)).min(blocked) as u64;
            told.waits.push((wait, sum));
        }
        for (program, sum) in &real.threads {
            let mut program = program.clone();
            let mut sum = *sum;
            program.unit = copy_name(&program.unit, copy);
            let time = &mut sum.time;
            for ns in [
                &mut time.own_ns,
                &mut time.calls_ns,
                &mut time.exit_ns,
                &mut time.outside_ns,
                &mut time.runq_ns,
                &mut time.minor_faults,
                &mut time.major_faults,
            ] {
                *ns = (*ns as f64 * busy * chance.factor(0.3)) as u64;
            }
            told.threads.push((program, sum));
        }
    }
    told
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [
        report,
        url,
        hosts,
        hours,
        threads,
        programs,
        minutes,
        rest @ ..,
    ] = &words[..]
    else {
        eprintln!(
            "usage: simulate REPORT URL HOSTS HOURS THREADS PROGRAMS FILE_MINUTES [UNTIL_UNIX_S]"
        );
        std::process::exit(2);
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let text = std::fs::read_to_string(report).expect("a report");
    let real_report = debox_report::parse_json(&text).expect("a report");
    let length_ns = real_report.run.wall_ns.max(1);
    let real = rows(
        &real_report,
        &Period {
            end_ns: length_ns,
            ..Period::default()
        },
        &Bounds::default(),
    );
    // So many were there at once.
    let life_ns: u64 = real.threads.iter().map(|(_, sum)| sum.time.life_ns).sum();
    let real_threads = (life_ns as f64 / length_ns as f64).max(1.0);
    let copies = (number(programs) as f64 / real.threads.len().max(1) as f64)
        .round()
        .max(1.0) as u64;
    let more = number(threads) as f64 / (real_threads * copies as f64);
    let now_s = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |t| t.as_secs());
    let until_s = rest.first().map_or(now_s - now_s % DAY_S, number);
    let periods = number(hours) * 60;
    let begin_ns = until_s * 1_000_000_000 - periods * PERIOD_NS;
    let scale = PERIOD_NS as f64 / length_ns as f64;
    let options = Options {
        every: Duration::from_secs(number(minutes) * 60),
        queue_bytes: usize::MAX,
        ..Options::default()
    };
    let began = Instant::now();
    let partitions = Partitions::open(url, &options).expect("a place");
    let mut all = 0;
    for host in 0..number(hosts) {
        let mut chance = Chance::new(host + 1);
        let busy = scale * more * chance.factor(0.5);
        // One in ten has the next release, on which disks are twice as slow.
        let next = host % 10 == 9;
        for at in 0..periods {
            let period = Period {
                host: format!("host-{host:04}"),
                boot: format!("{host:032x}"),
                begin_ns: begin_ns + at * PERIOD_NS,
                end_ns: begin_ns + (at + 1) * PERIOD_NS,
                release: if next { "v2" } else { "v1" }.into(),
                policy: "machine".into(),
            };
            let mut rows = told(&real, copies, busy, &mut chance, period);
            for (_, sum) in rows
                .waits
                .iter_mut()
                .filter(|(w, _)| next && w.root == "disk")
            {
                sum.blocked_ns *= 2;
            }
            all += rows.count();
            partitions.add(rows);
        }
    }
    let figures = partitions.close(Duration::from_secs(3_600));
    let seconds = began.elapsed().as_secs_f64();
    let host_days = number(hosts) as f64 * periods as f64 / 1_440.0;
    println!(
        "{} hosts with {} threads and {} programs each (a real one: {real_threads:.0} and {}), {periods} periods: {all} \
         rows in {seconds:.1} s ({:.0} rows/s), {:.0} rows a period, {} files, {} bytes: {:.2} MB a host and day; {} periods \
         dropped",
        number(hosts),
        number(threads),
        copies * real.threads.len() as u64,
        real.threads.len(),
        all as f64 / seconds,
        all as f64 / (number(hosts) * periods) as f64,
        figures.files,
        figures.bytes,
        figures.bytes as f64 / 1e6 / host_days,
        figures.periods_dropped
    );
}
