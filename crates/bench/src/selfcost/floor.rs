// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do a call, a sleep and a switch cost, by what hangs on the kernel?
//!
//! One process does the same thing all the time (obey.rs); between two rounds
//! of it nothing hangs on the kernel, or programs that do nothing (the floor:
//! no program can go below it), or ours, with this process watched or another.

use super::calls::Task;
use super::grid::{Grid, RowHead, WayHead, WayKind};
use super::hooks::{Capture, Hang};
use super::obey::{Loop, Worker};
use super::rounds::{Plan, rounds};
use super::ways::{Bench, Way};
use crate::Error;
use crate::noise::Watch;
use crate::tidy::Guarded;
use debox_probe::{Counters, Floor};
use std::time::Duration;

/// One kind of row: a grid of its own.
pub(super) struct Case {
    id: &'static str,
    title: &'static str,
    row: (&'static str, &'static str),
    what: Loop,
    /// Operations of a batch, a third of them with --quick; the shortest of
    /// `TIMES` batches is a round's value.
    n: i64,
    /// Beside nothing, and nothing again. What hangs on the kernel is in the
    /// name: the floor, or this process watched, or another.
    ways: &'static [(&'static str, &'static str)],
}

const TIMES: usize = 8;

pub(super) const BOUNDARY: Case = Case {
    id: "boundary",
    title: "Boundary capture, one call",
    row: ("getpid", "getpid"),
    what: Loop::Getpid,
    n: 10_000,
    ways: &[
        ("floor", "floor: empty programs on entry and exit"),
        ("floor-again", "floor, again"),
        ("floor-clock", "floor and 2 clock readings"),
        ("watched-boundary", "watched, boundary capture"),
        ("other-boundary", "another process watched, boundary"),
        ("other-wrap", "another process watched, wrap"),
    ],
};

pub(super) const SLEEPS: Case = Case {
    id: "sleeps",
    title: "A sleep",
    row: ("trip", "pipe round trip on one CPU"),
    what: Loop::Trip,
    n: 1000,
    ways: &[
        ("floor", "floor: an empty program on sched_switch"),
        ("other-wrap", "two others switch, wrap"),
        ("other-nowakers", "two others, no hook on sched_waking"),
        ("watched-wrap", "one sleep watched, account of wrap"),
        ("watched-nowakers", "one sleep, no hook on sched_waking"),
        ("other-boundary", "two others switch, boundary"),
        ("watched-boundary", "one sleep and 2 calls, boundary"),
        ("watched-details", "the same with objects and chains"),
        ("second", "nothing, a second program"),
        ("record", "one sleep watched, libdebox's record"),
    ],
};

pub(super) const SWITCHES: Case = Case {
    id: "switches",
    title: "A switch that nobody watches",
    row: ("yield", "sched_yield and its switch"),
    what: Loop::Yield,
    n: 1000,
    ways: &[
        ("floor", "floor: an empty program on sched_switch"),
        ("other-wrap", "two others switch, wrap"),
    ],
};

pub(super) const INTERRUPTS: Case = Case {
    id: "interrupts",
    title: "A call with a soft interrupt",
    row: ("datagram", "write of a packet to itself"),
    what: Loop::Datagram,
    n: 5000,
    ways: &[
        ("other-wrap", "another process watched, wrap"),
        ("other-wrapirq", "the same with --irq"),
        ("watched-boundary", "watched, boundary capture"),
        ("watched-boundaryirq", "the same with --irq"),
    ],
};

fn hang(way: &str, what: Loop, own: u32, other: u32) -> Hang {
    let capture = |name| match name {
        "wrap" => Capture::Wrap,
        "boundary" => Capture::Boundary,
        "details" => Capture::Details,
        "wrapirq" => Capture::WrapIrq,
        "boundaryirq" => Capture::BoundaryIrq,
        _ => Capture::NoWakers,
    };
    match (way.split_once('-').unwrap_or((way, "")), what) {
        (("floor", "clock"), _) => Hang::Floor(Floor::SyscallClock),
        (("floor", _), Loop::Getpid) => Hang::Floor(Floor::SyscallEmpty),
        (("floor", _), _) => Hang::Floor(Floor::SwitchEmpty),
        (("watched", name), _) => Hang::Watch(capture(name), own),
        (("other", name), _) => Hang::Watch(capture(name), other),
        _ => Hang::Nothing,
    }
}

/// The processes that take part.
pub(super) struct Cast {
    worker: Worker,
    second: Worker,
    idler: Guarded,
    /// Of the last watched sleeps.
    pub counters: Option<Counters>,
}

impl Cast {
    pub fn start(bench: &mut Bench) -> Result<Self, Error> {
        let order = bench.order(Task::Obey);
        Ok(Self {
            worker: Worker::start(bench, &order)?,
            second: Worker::start(bench, &order)?,
            idler: bench.idler()?,
            counters: None,
        })
    }

    /// ns for one, in the shortest batch.
    fn value(&mut self, bench: &mut Bench, way: &str, what: Loop, n: i64) -> Result<f64, Error> {
        let (own, other) = (self.worker.pid(), self.idler.child.id());
        bench.hooks.put(hang(way, what, own, other))?;
        match (way, what) {
            ("second", _) => self.second.run(what, n, TIMES),
            ("record", _) => {
                self.second.open(bench.broker()?)?;
                let value = self.recorded(n);
                self.second.close()?;
                value
            }
            (_, Loop::Trip) if way.starts_with("watched") => {
                // The places where it sleeps get known, as by a broker.
                for _ in 0..3 {
                    self.worker.run(what, 300, 1)?;
                    bench.hooks.learn();
                }
                let value = self.worker.run(what, n, TIMES)?;
                self.counters = bench.hooks.learn();
                Ok(value)
            }
            _ => self.worker.run(what, n, TIMES),
        }
    }

    fn recorded(&mut self, n: i64) -> Result<f64, Error> {
        self.second.run(Loop::TripBracketed, 1000, 1)?;
        std::thread::sleep(Duration::from_millis(20));
        self.second.run(Loop::TripBracketed, n, TIMES)
    }

    pub fn grid(
        &mut self,
        bench: &mut Bench,
        case: &Case,
        plan: &Plan,
        quick: bool,
        watch: &mut Watch,
    ) -> Result<Grid, Error> {
        let all = [("bare", "nothing"), ("again", "nothing, again")];
        let ways: Vec<Way> = (all.iter().chain(case.ways))
            .map(|(id, title)| Way {
                id,
                title,
                kind: match hang(id, case.what, 0, 0) {
                    Hang::Watch(..) => WayKind::Debox,
                    _ if *id == "record" => WayKind::Debox,
                    _ => WayKind::Nothing,
                },
                ..Way::default()
            })
            .collect();
        let rows = vec![RowHead::from(&case.row)];
        let grid = Grid::new(case.id, case.title, rows, ways.iter().map(WayHead::from));
        let n = if quick { case.n / 3 } else { case.n };
        rounds(grid, &ways, &[vec![0]], plan, watch, &mut |_, way| {
            let value = self.value(bench, way.id, case.what, n)?;
            Ok(vec![(case.row.0.to_owned(), value)])
        })
    }
}
