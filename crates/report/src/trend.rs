// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which calls became slower (or faster) as the run went on, and with what?
//!
//! For each call and each part of its time, the means of up to 40 equal shares
//! of its invocations are tested against "no trend" by Mann and Kendall's test,
//! which asks only for order, not for a distribution. Its variance is corrected
//! for ties, and for autocorrelation as Yue and Wang (2004) propose, with the
//! correlation taken after the trend is taken out and set right for its bias in
//! short series: times of neighbouring calls are not independent, and the plain
//! test would see trends everywhere. P values are then corrected for how many
//! tests there were (Holm). What passes must also be large enough to matter,
//! and rise in each quarter of the run: a program that does other work in its
//! second half has changed, but nothing in it grows.

use crate::model::*;
use debox_output::{bytes_text, count_text, duration_text};

/// Shares of the invocations that are compared.
const BLOCKS_MAX: usize = 40;
/// Fewer say nothing.
const BLOCKS_MIN: usize = 8;
const CALLS_MIN: u64 = 20;
/// Chance of any false trend in a report, if the model holds.
const P_MAX: f64 = 0.01;
/// Kendall's tau.
const TAU_MIN: f64 = 0.4;
/// From the first to the last part of the run.
const RATIO_MIN: f64 = 1.3;
/// Of one call.
const CHANGE_MIN_NS: f64 = 200.0;
/// Of all calls together, against all of them as fast as at the faster end.
const LOSS_MIN_NS: f64 = 1_000_000.0;
/// Of the whole change, in each quarter.
const QUARTER_MIN: f64 = 0.04;
/// A gauge goes along if its ranks and its values do.
const RANK_CORRELATION_MIN: f64 = 0.8;
const CORRELATION_MIN: f64 = 0.8;
const GAUGE_RATIO_MIN: f64 = 1.3;

struct Block {
    /// Middle of its invocation numbers.
    x: f64,
    time_ns: u64,
    count: u64,
    blocked_ns: f64,
    cpu_ns: f64,
}

/// Neighbouring points put together until each block holds its share of calls.
fn blocks_of(points: &[HistoryPoint]) -> Vec<Block> {
    let calls: u64 = points.iter().map(|p| p.count).sum();
    let share = calls.div_ceil(BLOCKS_MAX as u64).max(1);
    let mut blocks = Vec::new();
    let mut sum = HistoryPoint::default();
    for point in points {
        if sum.count == 0 {
            sum.first = point.first;
        }
        sum.time_ns = point.time_ns;
        sum.count = sum.count.saturating_add(point.count);
        sum.wall_ns = sum.wall_ns.saturating_add(point.wall_ns);
        sum.blocked_ns = sum.blocked_ns.saturating_add(point.blocked_ns);
        sum.runq_ns = sum.runq_ns.saturating_add(point.runq_ns);
        sum.irq_ns = sum.irq_ns.saturating_add(point.irq_ns);
        if sum.count >= share {
            blocks.push(block_of(&sum));
            sum = HistoryPoint::default();
        }
    }
    // A rest much smaller than the others would be noisier than they are.
    if sum.count > 0 && sum.count >= share / 2 {
        blocks.push(block_of(&sum));
    }
    blocks
}

fn block_of(sum: &HistoryPoint) -> Block {
    let count = sum.count as f64;
    let off_ns = (sum.blocked_ns.saturating_add(sum.runq_ns)).saturating_add(sum.irq_ns);
    Block {
        x: sum.first as f64 + (count - 1.0) / 2.0,
        time_ns: sum.time_ns,
        count: sum.count,
        blocked_ns: sum.blocked_ns as f64 / count,
        cpu_ns: sum.wall_ns.saturating_sub(off_ns) as f64 / count,
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    }
}

/// The median of the slopes between all pairs.
fn theil_sen(x: &[f64], y: &[f64]) -> f64 {
    let mut slopes = Vec::with_capacity(x.len() * x.len() / 2);
    for i in 0..x.len() {
        for j in i + 1..x.len() {
            if x[j] > x[i] {
                slopes.push((y[j] - y[i]) / (x[j] - x[i]));
            }
        }
    }
    median(slopes)
}

/// Ranks from 1, equal values share theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut from = 0;
    while from < order.len() {
        let mut to = from;
        while to + 1 < order.len() && values[order[to + 1]] == values[order[from]] {
            to += 1;
        }
        for index in &order[from..=to] {
            ranks[*index] = (from + to) as f64 / 2.0 + 1.0;
        }
        from = to + 1;
    }
    ranks
}

fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let n = a.len() as f64;
    let (mean_a, mean_b) = (a.iter().sum::<f64>() / n, b.iter().sum::<f64>() / n);
    let mut products = [0.0; 3];
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (a - mean_a, b - mean_b);
        products[0] += a * b;
        products[1] += a * a;
        products[2] += b * b;
    }
    let norm = (products[1] * products[2]).sqrt();
    if norm > 0.0 { products[0] / norm } else { 0.0 }
}

/// The rising (or falling) curve that is closest to `y`, by pooling neighbours
/// that are in the wrong order.
fn monotone(y: &[f64], rising: bool) -> Vec<f64> {
    let sign = if rising { 1.0 } else { -1.0 };
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for value in y {
        let mut pool = (sign * value, 1);
        while let Some(before) = pools.last().filter(|before| before.0 > pool.0) {
            let n = before.1 + pool.1;
            let sum = before.0 * before.1 as f64 + pool.0 * pool.1 as f64;
            pool = (sum / n as f64, n);
            pools.pop();
        }
        pools.push(pool);
    }
    let level = |(mean, n): (f64, usize)| std::iter::repeat_n(sign * mean, n);
    pools.into_iter().flat_map(level).collect()
}

/// Correlation of neighbours in a series of ranks without trend. The trend may
/// be any curve: what a line leaves of a curve would pass for correlation.
fn autocorrelation(y: &[f64], rising: bool) -> f64 {
    let curve = monotone(y, rising);
    let rest: Vec<f64> = y.iter().zip(&curve).map(|(y, curve)| y - curve).collect();
    let ranks = ranks(&rest);
    let n = ranks.len() as f64;
    let mean = ranks.iter().sum::<f64>() / n;
    let spread: f64 = ranks.iter().map(|r| (r - mean).powi(2)).sum();
    if spread == 0.0 {
        return 0.0;
    }
    let pairs = ranks.windows(2);
    let found = pairs.map(|p| (p[0] - mean) * (p[1] - mean)).sum::<f64>() / spread;
    // Short series show too little of it, by (1 + 4 rho) / n, and a curve that
    // bends to the noise takes more of it away, the more levels it has.
    let levels = curve.chunk_by(|a, b| a == b).count() as f64;
    ((n * found + 1.0 + levels / 2.0) / (n - 4.0)).clamp(-0.99, 0.99)
}

struct Tested {
    p: f64,
    tau: f64,
}

fn mann_kendall(y: &[f64]) -> Tested {
    let n = y.len();
    let mut s = 0i64;
    for i in 0..n {
        for j in i + 1..n {
            s += match y[j].total_cmp(&y[i]) {
                std::cmp::Ordering::Greater => 1,
                std::cmp::Ordering::Less => -1,
                std::cmp::Ordering::Equal => 0,
            };
        }
    }
    let of = |n: f64| n * (n - 1.0) * (2.0 * n + 5.0) / 18.0;
    let mut sorted = y.to_vec();
    sorted.sort_by(f64::total_cmp);
    let tied: f64 = sorted
        .chunk_by(|a, b| a == b)
        .map(|ties| of(ties.len() as f64))
        .sum();
    let pairs = (n * (n - 1) / 2) as f64;
    let tau = s as f64 / pairs;
    let rho = autocorrelation(y, s > 0).max(0.0);
    let mut inflation = 1.0;
    let mut power = 1.0;
    for lag in 1..n {
        power *= rho;
        inflation += 2.0 * (1.0 - lag as f64 / n as f64) * power;
    }
    let variance = (of(n as f64) - tied) * inflation;
    if variance <= 0.0 {
        return Tested { p: 1.0, tau };
    }
    let z = (s.abs() as f64 - 1.0).max(0.0) / variance.sqrt();
    Tested {
        p: libm::erfc(z / std::f64::consts::SQRT_2),
        tau,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    Cpu,
    Blocked,
}

impl Part {
    fn of(self, block: &Block) -> f64 {
        match self {
            Part::Whole => block.cpu_ns + block.blocked_ns,
            Part::Cpu => block.cpu_ns,
            Part::Blocked => block.blocked_ns,
        }
    }
}

struct Candidate<'a> {
    history: &'a CallHistory,
    blocks: std::rc::Rc<Vec<Block>>,
    part: Part,
    tested: Tested,
    y: Vec<f64>,
}

/// Medians of the quarters of the run.
fn quarters(y: &[f64]) -> [f64; 4] {
    std::array::from_fn(|q| {
        let (from, to) = (y.len() * q / 4, y.len() * (q + 1) / 4);
        median(y[from..to].to_vec())
    })
}

/// Medians of the first and the last sixth: a line would miss the ends of a
/// curve, and a single block is noise.
fn ends(y: &[f64]) -> (f64, f64) {
    let n = (y.len() / 6).max(2);
    (median(y[..n].to_vec()), median(y[y.len() - n..].to_vec()))
}

impl Candidate<'_> {
    fn matters(&self) -> bool {
        let (from, to) = ends(&self.y);
        let (low, high) = if from < to { (from, to) } else { (to, from) };
        let all_ns = |block: &Block| block.count as f64 * (self.part.of(block) - low);
        let loss_ns: f64 = self.blocks.iter().map(all_ns).sum();
        let quarters = quarters(&self.y);
        let whole = quarters[3] - quarters[0];
        let steady = quarters
            .windows(2)
            .all(|pair| (pair[1] - pair[0]) / whole >= QUARTER_MIN);
        self.tested.tau.abs() >= TAU_MIN
            && (self.tested.tau > 0.0) == (to > from)
            && high >= low * RATIO_MIN
            && high - low >= CHANGE_MIN_NS
            && loss_ns >= LOSS_MIN_NS
            && whole != 0.0
            && steady
    }
}

/// The value of a gauge when a block ended: the last one before.
fn at(series: &[(u64, f64)], time_ns: u64) -> Option<f64> {
    let after = series.partition_point(|(t, _)| *t <= time_ns);
    Some(series.get(after.saturating_sub(1))?.1)
}

struct Along {
    name: &'static str,
    correlation: f64,
    text: String,
}

/// Gauges that grew together with the call's time, best first.
fn grows_with(candidate: &Candidate<'_>, gauges: &[Gauge]) -> Vec<Along> {
    type Read = fn(&Gauge) -> Option<u64>;
    let kinds: [(&'static str, Read, f64); 5] = [
        ("open descriptors", |g| g.descriptors, 8.0),
        ("mappings", |g| g.mappings, 16.0),
        ("resident memory", |g| g.resident_bytes, (4u32 << 20).into()),
        ("threads", |g| Some(g.threads), 4.0),
        ("processes", |g| Some(g.processes), 4.0),
    ];
    let (from, to) = ends(&candidate.y);
    let mut list = Vec::new();
    if to <= from {
        return list;
    }
    for (name, read, least) in kinds {
        let series: Vec<(u64, f64)> = gauges
            .iter()
            .filter_map(|g| Some((g.time_ns, read(g)? as f64)))
            .collect();
        let (mut values, mut times) = (Vec::new(), Vec::new());
        for (block, y) in candidate.blocks.iter().zip(&candidate.y) {
            if let Some(value) = at(&series, block.time_ns) {
                values.push(value);
                times.push(*y);
            }
        }
        if values.len() < BLOCKS_MIN {
            continue;
        }
        let (first, last) = ends(&values);
        if last - first < least || last < first * GAUGE_RATIO_MIN {
            continue;
        }
        let by_rank = correlation(&ranks(&values), &ranks(&times));
        let by_value = correlation(&values, &times);
        if by_rank < RANK_CORRELATION_MIN || by_value < CORRELATION_MIN {
            continue;
        }
        let number = |n: f64| match name {
            "resident memory" => bytes_text(n as u64),
            _ => count_text(n.round() as u64),
        };
        list.push(Along {
            name,
            correlation: by_value,
            text: format!("{name} ({} → {})", number(first), number(last)),
        });
    }
    list.sort_by(|a, b| b.correlation.total_cmp(&a.correlation));
    list
}

fn listed(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn trend(candidate: &Candidate<'_>, p_value: f64, gauges: &[Gauge]) -> Trend {
    let history = candidate.history;
    let (from, to) = ends(&candidate.y);
    let (from_ns, to_ns) = (from.round() as u64, to.round() as u64);
    let x: Vec<f64> = candidate.blocks.iter().map(|b| b.x).collect();
    let calls = history.points.iter().map(|p| p.count).sum();
    let along = grows_with(candidate, gauges);
    let part = match candidate.part {
        Part::Whole => "",
        Part::Cpu => " on CPU",
        Part::Blocked => " blocked",
    };
    let name = match history.abi {
        32 => format!("{} (32-bit)", history.call),
        _ => history.call.clone(),
    };
    let mut text = format!(
        "{name}: {} → {}{part} over {} calls",
        duration_text(from_ns, false),
        duration_text(to_ns, false),
        count_text(calls)
    );
    if !along.is_empty() {
        let names: Vec<String> = along.iter().map(|a| a.text.clone()).collect();
        text.push_str(&format!(", grows with {}", listed(&names)));
    }
    Trend {
        call: history.call.clone(),
        abi: history.abi,
        calls,
        part: match candidate.part {
            Part::Whole => TrendPart::Whole,
            Part::Cpu => TrendPart::Cpu,
            Part::Blocked => TrendPart::Blocked,
        },
        from_ns,
        to_ns,
        per_call_ns: theil_sen(&x, &candidate.y),
        p_value,
        grows_with: along.iter().map(|a| a.name.to_owned()).collect(),
        text,
    }
}

/// Calls whose time changed with their invocation number, largest change of
/// the whole run first.
pub fn find(history: &[CallHistory], gauges: &[Gauge]) -> Vec<Trend> {
    let mut candidates: Vec<Candidate<'_>> = Vec::new();
    for history in history {
        let calls: u64 = history.points.iter().map(|p| p.count).sum();
        let blocks = std::rc::Rc::new(blocks_of(&history.points));
        if calls < CALLS_MIN || blocks.len() < BLOCKS_MIN {
            continue;
        }
        for part in [Part::Whole, Part::Cpu, Part::Blocked] {
            let y: Vec<f64> = blocks.iter().map(|b| part.of(b)).collect();
            candidates.push(Candidate {
                tested: mann_kendall(&y),
                history,
                blocks: blocks.clone(),
                part,
                y,
            });
        }
    }
    // Holm: the smallest p value is one of as many as there were tests, the
    // next one of one less, and what follows a failure fails.
    let tests = candidates.len();
    candidates.sort_by(|a, b| a.tested.p.total_cmp(&b.tested.p));
    let mut largest = 0.0f64;
    let mut passed: Vec<(f64, Candidate<'_>)> = Vec::new();
    for (i, candidate) in candidates.into_iter().enumerate() {
        largest = largest.max(candidate.tested.p * (tests - i) as f64);
        if largest > P_MAX {
            break;
        }
        passed.push((largest, candidate));
    }
    // The whole says more than its parts.
    passed.retain(|(_, c)| c.matters());
    let whole: Vec<(String, u32)> = passed
        .iter()
        .filter(|(_, c)| c.part == Part::Whole)
        .map(|(_, c)| (c.history.call.clone(), c.history.abi))
        .collect();
    passed.retain(|(_, c)| {
        c.part == Part::Whole || !whole.contains(&(c.history.call.clone(), c.history.abi))
    });
    let mut trends: Vec<Trend> = passed
        .iter()
        .map(|(p, candidate)| trend(candidate, *p, gauges))
        .collect();
    trends.sort_by_key(|t| {
        let change = t.to_ns.abs_diff(t.from_ns);
        std::cmp::Reverse(change.saturating_mul(t.calls))
    });
    trends
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same numbers at each run.
    struct Dice(u64);

    impl Dice {
        fn unit(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        }
        fn normal(&mut self) -> f64 {
            let r = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
            r * (std::f64::consts::TAU * self.unit()).cos()
        }
    }

    /// 200 points of 20 calls; `level` of each, in ns, all on CPU.
    fn history(level: impl FnMut(usize) -> f64) -> CallHistory {
        let mut time = 0;
        let points = (0..200)
            .map(level)
            .enumerate()
            .map(|(i, level)| {
                time += 10_000_000;
                HistoryPoint {
                    time_ns: time,
                    first: i as u64 * 20,
                    count: 20,
                    wall_ns: (level.max(0.0) * 20.0) as u64,
                    ..HistoryPoint::default()
                }
            })
            .collect();
        CallHistory {
            call: "fork".into(),
            abi: 64,
            points,
        }
    }

    /// Times without trend: how often does the test alone say p < 0.01, and
    /// how often is a trend reported?
    fn false_rates(mut series: impl FnMut(&mut Dice) -> CallHistory) -> (f64, f64) {
        const RUNS: usize = 1_000;
        let (mut tested, mut reported) = (0, 0);
        for run in 0..RUNS {
            let history = series(&mut Dice(run as u64 * 7_919 + 1));
            let blocks = blocks_of(&history.points);
            let y: Vec<f64> = blocks.iter().map(|b| b.cpu_ns).collect();
            tested += usize::from(mann_kendall(&y).p < 0.01);
            reported += find(&[history], &[]).len();
        }
        (tested as f64 / RUNS as f64, reported as f64 / RUNS as f64)
    }

    #[test]
    fn noise_is_no_trend() {
        let mut found = Vec::new();
        // Independent, with a tail to the right.
        found.push((
            "independent",
            false_rates(|d| history(|_| 300_000.0 * (0.8 * d.normal()).exp())),
        ));
        // Few different values: many ties.
        found.push((
            "ties",
            false_rates(|d| history(|_| 300_000.0 + 100_000.0 * (d.unit() * 3.0).floor())),
        ));
        // Correlated at the level of blocks (5 points each), weakly to strongly.
        for phi in [0.7f64, 0.9, 0.95, 0.98] {
            let rates = false_rates(|d| {
                let mut state = d.normal() / (1.0 - phi * phi).sqrt();
                history(|_| {
                    state = phi * state + d.normal();
                    let size = (1.0 - phi * phi).sqrt();
                    300_000.0 * (0.5 * state * size).exp()
                })
            });
            found.push(("correlated", rates));
        }
        println!("{found:?}");
        for (what, (tested, reported)) in &found[..3] {
            assert!(*tested <= 0.02, "{what}: {tested} of tests");
            assert!(*reported <= 0.01, "{what}: {reported} of reports");
        }
        // Wandering series are told from growth only so far: neighbouring blocks
        // of the last one are correlated by 0.9.
        for ((what, (_, reported)), limit) in found[3..].iter().zip([0.01, 0.025, 0.05]) {
            assert!(*reported <= limit, "{what}: {reported} of reports");
        }
    }

    #[test]
    fn many_calls_do_not_make_trends() {
        // 60 calls in each report: without the correction every report would
        // hold a false one.
        let mut reports = 0;
        for run in 0..100 {
            let mut dice = Dice(run);
            let calls: Vec<CallHistory> = (0..60)
                .map(|_| history(|_| 300_000.0 * (0.8 * dice.normal()).exp()))
                .collect();
            reports += usize::from(!find(&calls, &[]).is_empty());
        }
        assert!(reports <= 2, "{reports} of 100 reports");
    }

    #[test]
    fn changes_that_do_not_grow_are_no_trend() {
        let mut dice = Dice(5);
        let mut noise = move || 1.0 + 0.1 * dice.normal();
        // Another phase of the program, a slow start, one stall, waves.
        assert!(
            find(
                &[history(|i| noise() * if i < 100 { 3e5 } else { 9e5 })],
                &[]
            )
            .is_empty()
        );
        assert!(find(&[history(|i| noise() * if i < 8 { 9e6 } else { 3e5 })], &[]).is_empty());
        assert!(
            find(
                &[history(|i| noise() * if i == 150 { 9e8 } else { 3e5 })],
                &[]
            )
            .is_empty()
        );
        assert!(
            find(
                &[history(|i| noise() * (3e5 + 2e5 * (i as f64 / 5.0).sin()))],
                &[]
            )
            .is_empty()
        );
        // Sound, but too small to matter.
        assert!(find(&[history(|i| noise() * (3e5 + 100.0 * i as f64))], &[]).is_empty());
        assert!(find(&[history(|i| 50.0 + i as f64)], &[]).is_empty());
        assert!(find(&[], &[]).is_empty());
        let mut short = history(|i| 1e5 * (i + 1) as f64);
        short.points.truncate(7);
        assert!(find(&[short], &[]).is_empty());
    }

    fn gauges() -> Vec<Gauge> {
        let at = |i: u64| Gauge {
            time_ns: i * 10_000_000,
            processes: 1,
            threads: 1,
            descriptors: Some(5 + i * 20),
            mappings: Some(20),
            resident_bytes: Some((8 << 20) + (i % 2) * 4096),
        };
        (1..=200).map(at).collect()
    }

    #[test]
    fn growth_is_found_and_named() {
        let mut dice = Dice(9);
        let grown = history(|i| {
            let level = 300_000.0 + 11_700_000.0 * i as f64 / 200.0;
            level * (0.3 * dice.normal()).exp()
        });
        let trends = find(&[history(|_| 5e5), grown], &gauges());
        assert_eq!(trends.len(), 1);
        let trend = &trends[0];
        assert_eq!((trend.calls, trend.abi), (4_000, 64));
        assert!(trend.p_value < 1e-6);
        assert!((600_000..1_600_000).contains(&trend.from_ns), "{trend:?}");
        assert!((10_000_000..12_500_000).contains(&trend.to_ns), "{trend:?}");
        // 11.7 ms over 4,000 calls.
        assert!((2_400.0..3_500.0).contains(&trend.per_call_ns), "{trend:?}");
        assert_eq!(trend.grows_with, ["open descriptors"]);
        assert!(trend.text.starts_with("fork: "), "{}", trend.text);
        assert!(
            trend
                .text
                .contains("over 4,000 calls, grows with open descriptors ("),
            "{}",
            trend.text
        );
    }

    #[test]
    fn curves_falls_and_parts_are_found() {
        let mut dice = Dice(11);
        let mut noise = move || (0.2 * dice.normal()).exp();
        let curve = history(|i| 2e5 * noise() + 300.0 * (i * i) as f64);
        assert_eq!(find(&[curve], &[]).len(), 1);
        // Without any noise: a curve must not pass for correlated noise.
        assert_eq!(
            find(&[history(|i| 2e5 + 300.0 * (i * i) as f64)], &[]).len(),
            1
        );
        assert_eq!(
            find(&[history(|i| 2e5 * (i as f64 / 50.0).exp())], &[]).len(),
            1
        );
        assert_eq!(
            find(&[history(|i| 2e5 * (i as f64 + 1.0).sqrt())], &[]).len(),
            1
        );
        let fall = history(|i| noise() * (8e6 - 3.5e4 * i as f64));
        let trends = find(&[fall], &gauges());
        assert!(trends[0].from_ns > 4 * trends[0].to_ns);
        assert!(trends[0].per_call_ns < 0.0 && trends[0].grows_with.is_empty());
        // Time on CPU grows under blocked time that is much longer and wild.
        let mut dice = Dice(12);
        let mut under = history(|i| 1e5 + 3e3 * i as f64);
        for point in &mut under.points {
            let blocked = (20.0 * 5e6 * (1.5 * dice.normal()).exp()) as u64;
            point.wall_ns += blocked;
            point.blocked_ns = blocked;
        }
        let trends = find(&[under], &[]);
        assert_eq!(trends.len(), 1);
        assert_eq!(trends[0].part, TrendPart::Cpu);
        assert!(trends[0].text.contains("on CPU"), "{}", trends[0].text);
    }

    #[test]
    fn ranks_share_ties() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
        assert_eq!(median(vec![4.0, 1.0, 3.0]), 3.0);
        assert!((theil_sen(&[0.0, 1.0, 2.0, 3.0], &[1.0, 3.0, 5.0, 99.0]) - 2.0).abs() < 31.0);
    }
}
