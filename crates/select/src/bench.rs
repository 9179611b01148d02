// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the library gain on this machine: the goals, and the paper's
//! Figures 1, 3 and 9?

use crate::measure::{Measured, Plan, Ratio, Variant, run as measure};
use crate::serve::Backend;
use crate::servers::{self, Program};
use crate::stat::median;
use crate::{BenchArgs, Error, library_find};
use debox_output::chart::{self, Axis, Scale, Series};
use debox_output::{Column, Pen, Table, measured_text, signed_text};
use serde::Serialize;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

const LIGHTTPD_POLL: Program = Program::Lighttpd("poll");
const LIGHTTPD_EPOLL: Program = Program::Lighttpd("linux-sysepoll");

/// What `--json` writes; docs/json.md says what each field means.
#[derive(Serialize)]
struct Document {
    schema: &'static str,
    schema_version: u32,
    debox_version: &'static str,
    turns: usize,
    quick: bool,
    realtime: bool,
    rows: Vec<Row>,
    lowest_free: Option<LowestFree>,
    figures: Vec<FigureOf>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    goal: String,
    rate: Ratio,
    cpu: Ratio,
    cpu_us: f64,
    native: Option<Native>,
}

#[derive(Serialize)]
struct Native {
    rate: Ratio,
    cpu: Ratio,
}

#[derive(Serialize)]
struct LowestFree {
    take_ns: f64,
    give_and_take_ns: f64,
    table_ns: f64,
}

#[derive(Serialize)]
struct FigureOf {
    file: &'static str,
    caption: String,
    x: String,
    y: String,
    lines: Vec<LineOf>,
}

#[derive(Serialize)]
struct LineOf {
    name: String,
    points: Vec<(f64, f64)>,
}

struct Bench<'a> {
    library: &'a Path,
    /// Connections that one process may have.
    most: usize,
    /// Rows with this in their name only; there was one.
    only: Option<&'a str>,
    met: bool,
    text: String,
    document: Document,
}

fn variant(name: &str, program: Program, library: bool, idle: usize) -> Variant {
    Variant {
        name: name.into(),
        program,
        library,
        idle,
    }
}

/// A line of a table whose rows are told one by one, as they are measured.
fn line(widths: &[usize], cells: impl IntoIterator<Item = String>) -> Table {
    let columns = (cells.into_iter().zip(widths))
        .map(|(cell, width)| Column::new("", 0, vec![cell]).least(*width));
    columns.collect::<Vec<_>>().into()
}

/// Of the longest names, goals, rates, ...
const GOALS_WIDTHS: [usize; 6] = [58, 8, 15, 18, 7, 14];

impl Bench<'_> {
    fn say(&mut self, line: &str) {
        let _ = writeln!(io::stderr(), "{line}");
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn tell(&mut self, table: Table) {
        self.say(table.text(&Pen::default(), None).trim_end());
    }

    fn plan(&self, hot: usize) -> Plan {
        Plan {
            hot,
            keep_alive: true,
            bytes: 1259,
            rate: None,
            realtime: self.document.realtime,
            turns: self.document.turns,
            // Short, so that what the host does meanwhile meets all variants alike.
            turn: Duration::from_millis(25),
        }
    }

    fn measure(&mut self, variants: &[Variant], plan: &Plan) -> Result<Vec<Measured>, Error> {
        let measured =
            measure(variants, plan, self.library).map_err(Error::system("measuring servers"))?;
        for (variant, m) in variants.iter().zip(&measured) {
            // The next numbers are of something else, then. (Some servers close a
            // connection after so many requests.)
            if m.wrong + m.stalled > 0 || m.dropped * 1000 > m.requests {
                self.say(&format!(
                    "  {}: {} wrong and {} late answers, {} kept connections closed by the server",
                    variant.name, m.wrong, m.stalled, m.dropped
                ));
            }
        }
        Ok(measured)
    }

    /// For the figures: fewer and longer turns, as answering times want them.
    fn plan_of_figures(&self, hot: usize) -> Plan {
        Plan {
            turns: if self.document.quick { 3 } else { 9 },
            turn: Duration::from_millis(if self.document.quick { 150 } else { 400 }),
            ..self.plan(hot)
        }
    }

    fn wanted(&self, name: &str) -> bool {
        self.only.is_none_or(|only| name.contains(only))
    }

    /// One row: `a` as a part of `b`, by requests per second and by CPU time
    /// per request.
    fn row(
        &mut self,
        name: &str,
        goal: &str,
        a: &Measured,
        b: &Measured,
        native: Option<&Measured>,
    ) {
        let rate = Ratio::of(&a.per_second, &b.per_second);
        let cpu = Ratio::of(&a.cpu_us, &b.cpu_us);
        let cpu_us = median(&a.cpu_us);
        let native = native.map(|n| Native {
            rate: Ratio::of(&n.per_second, &b.per_second),
            cpu: Ratio::of(&n.cpu_us, &b.cpu_us),
        });
        // Of a single turn there is no range.
        let range = |r: &Ratio, text: fn(f64) -> String| match r.low.is_nan() {
            true => "(?)".into(),
            false => format!("({}-{})", text(r.low), text(r.high)),
        };
        let percent = |v: f64| format!("{:.0}", 100.0 * v);
        let line = line(
            &GOALS_WIDTHS,
            [
                name.into(),
                goal.into(),
                format!("{} % {}", percent(rate.median), range(&rate, percent)),
                format!("x {:.2} {}", cpu.median, range(&cpu, |v| format!("{v:.2}"))),
                measured_text(1e3 * cpu_us),
                native.as_ref().map_or("-".into(), |n| {
                    format!("{} %, x {:.2}", percent(n.rate.median), n.cpu.median)
                }),
            ],
        );
        self.met = true;
        self.document.rows.push(Row {
            name: name.into(),
            goal: goal.into(),
            rate,
            cpu,
            cpu_us,
            native,
        });
        self.tell(line.left(0));
    }

    /// One row of three variants: the first as a part of the second, and what
    /// the third, without the library, makes of it.
    fn compare(
        &mut self,
        name: &str,
        goal: &str,
        variants: &[Variant; 3],
        plan: &Plan,
    ) -> Result<(), Error> {
        if !self.wanted(name) {
            return Ok(());
        }
        let m = self.measure(variants, plan)?;
        self.row(name, goal, &m[0], &m[1], Some(&m[2]));
        Ok(())
    }

    fn goals(&mut self) -> Result<(), Error> {
        self.say(&format!(
            "\nServers, CPU 0; clients, CPU 1. RATE and CPU/REQ are ratios within one turn, so the\n\
             machine's speed cancels out: the median of {} turns, and in what range it lies at 95 %.\n",
            self.document.turns
        ));
        let head = ["", "GOAL", "RATE", "CPU/REQ", "CPU", "NATIVE"];
        self.tell(line(&GOALS_WIDTHS, head.map(String::from)).left(0));
        let lighttpd = servers::installed(LIGHTTPD_POLL);
        let (poll, epoll, name) = if lighttpd {
            (LIGHTTPD_POLL, LIGHTTPD_EPOLL, "lighttpd")
        } else {
            (
                Program::Plain(Backend::Poll),
                Program::Plain(Backend::Epoll),
                "plain poll server",
            )
        };
        let select = Program::Plain(Backend::Select);

        // With 10 and 50 the library passes the calls through; 200 are served.
        for (what, program, hot) in [
            (name, poll, 10),
            (name, poll, 200),
            ("plain select server", select, 50),
            ("plain select server", select, 200),
        ] {
            let row = format!("{what}, no idle, {hot} hot, of the same without");
            if !self.wanted(&row) {
                continue;
            }
            let m = self.measure(
                &[
                    variant("with", program, true, 0),
                    variant("without", program, false, 0),
                ],
                &self.plan(hot),
            )?;
            self.row(&row, "CPU 1.03", &m[0], &m[1], None);
        }
        self.compare(
            "plain select server, 950 idle, of its own at 0 idle",
            "92 %",
            &[
                variant("950 idle, with", select, true, 950),
                variant("0 idle", select, false, 0),
                variant("950 idle", select, false, 950),
            ],
            &self.plan(10),
        )?;
        // Not in every distribution.
        for (what, program, goal) in [
            ("darkhttpd (select)", Program::Darkhttpd, "92 %"),
            ("webfs (select)", Program::Webfs, "-"),
        ] {
            if servers::installed(program) {
                self.compare(
                    &format!("{what}, 950 idle, of its own at 0 idle"),
                    goal,
                    &[
                        variant("950 idle, with", program, true, 950),
                        variant("0 idle", program, false, 0),
                        variant("950 idle", program, false, 950),
                    ],
                    &self.plan(10),
                )?;
            }
        }
        for (idle, hot, goal) in [
            (2000, 10, "97 %"),
            (5000, 10, "90 %"),
            (9900, 10, "80 %"),
            (9900, 50, "98 %"),
        ] {
            let row = format!("{name}, {idle} idle, {hot} hot, of native epoll");
            if self.wanted(&row) && idle + 100 > self.most {
                self.say(&format!(
                    "  {name}, {idle} idle: not measured, a process may have {} descriptors here",
                    self.most
                ));
                continue;
            }
            // The library's full looks come by the clock, also while others have
            // their turns; in short ones the dear ones would weigh too much.
            let mut plan = self.plan(hot);
            if idle >= 5000 {
                plan.turn *= 8;
                plan.turns = plan.turns.div_ceil(4);
            }
            self.compare(
                &row,
                goal,
                &[
                    variant("poll, with", poll, true, idle),
                    variant("epoll", epoll, false, idle),
                    variant("poll", poll, false, idle),
                ],
                &plan,
            )?;
        }
        if servers::installed(Program::Haproxy(&[])) {
            self.compare(
                "haproxy (noepoll), 2000 idle, 10 hot, of native epoll",
                "-",
                &[
                    variant("haproxy poll, with", Program::Haproxy(&["-de"]), true, 2000),
                    variant("haproxy epoll", Program::Haproxy(&[]), false, 2000),
                    variant("haproxy poll", Program::Haproxy(&["-de"]), false, 2000),
                ],
                &self.plan(10),
            )?;
        }
        // Its select wants no more descriptors than FD_SETSIZE, of which it
        // reckons two for a connection.
        const HAPROXY_SELECT: Program = Program::Haproxy(&["-de", "-dp"]);
        if servers::installed(HAPROXY_SELECT) {
            self.compare(
                "haproxy (nopoll: select), 400 idle, 10 hot, of its epoll",
                "-",
                &[
                    variant("haproxy select, with", HAPROXY_SELECT, true, 400),
                    variant("haproxy epoll", Program::Haproxy(&[]), false, 400),
                    variant("haproxy select", HAPROXY_SELECT, false, 400),
                ],
                &self.plan(10),
            )?;
        }
        let mut plan = self.plan(10);
        plan.keep_alive = false;
        self.compare(
            &format!("{name}, 2000 idle, a connection per request, of epoll"),
            "CPU 1.15",
            &[
                variant("poll, with", poll, true, 2000),
                variant("epoll", epoll, false, 2000),
                variant("poll", poll, false, 2000),
            ],
            &plan,
        )?;
        // The paper's other page.
        let plan = Plan {
            bytes: 8192,
            ..self.plan(10)
        };
        self.compare(
            "plain select server, 950 idle, 8,192 bytes, of 0 idle",
            "92 %",
            &[
                variant("950 idle, with", select, true, 950),
                variant("0 idle", select, false, 0),
                variant("950 idle", select, false, 950),
            ],
            &plan,
        )?;
        self.compare(
            &format!("{name}, 2000 idle, 10 hot, 8,192 bytes, of epoll"),
            "97 %",
            &[
                variant("poll, with", poll, true, 2000),
                variant("epoll", epoll, false, 2000),
                variant("poll", poll, false, 2000),
            ],
            &plan,
        )?;
        if self.wanted("lowest free") {
            self.met = true;
            self.allocation()?;
        }
        Ok(())
    }

    /// The lowest free of a million numbers, by the library's own tree.
    fn allocation(&mut self) -> Result<(), Error> {
        type Measure = unsafe extern "C" fn(u32, *mut f64) -> i32;
        // Its C library would not be the one that the library brings.
        if cfg!(target_feature = "crt-static") {
            self.say("\n  lowest free of 1,048,576 numbers: not measured: this debox is linked statically and can load no library");
            return Ok(());
        }
        let path =
            std::ffi::CString::new(self.library.as_os_str().as_bytes()).expect("a path has no NUL");
        let mut ns = [0.0; 3];
        // SAFETY: the library's constructor reads its options and looks up libc's
        // functions, no more; the function has this type in select/measure.c and
        // writes three numbers.
        let result = unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if library.is_null() {
                None
            } else {
                let found = libc::dlsym(library, c"debox_select_measure".as_ptr());
                (!found.is_null()).then(|| {
                    std::mem::transmute::<*mut libc::c_void, Measure>(found)(
                        1 << 20,
                        ns.as_mut_ptr(),
                    )
                })
            }
        };
        match result {
            Some(0) => {
                let [take_ns, give_and_take_ns, table_ns] = ns;
                self.document.lowest_free = Some(LowestFree {
                    take_ns,
                    give_and_take_ns,
                    table_ns,
                });
                self.say(&format!(
                    "\n  lowest free of 1,048,576 numbers: {} (goal 15 ns); given back and taken {}; through a \
                     table {}",
                    measured_text(take_ns),
                    measured_text(give_and_take_ns),
                    measured_text(table_ns)
                ));
            }
            Some(error) => self.say(&format!(
                "\n  lowest free of 1,048,576 numbers: not measured: {}",
                std::io::Error::from_raw_os_error(-error)
            )),
            None => self.say("\n  lowest free of 1,048,576 numbers: not measured: another version of the library"),
        }
        Ok(())
    }

    fn figure(
        &mut self,
        to: &Path,
        file: &'static str,
        caption: &str,
        (x, y): (&str, &str),
        curves: &[Series],
    ) -> Result<(), Error> {
        self.document.figures.push(FigureOf {
            file,
            caption: caption.into(),
            x: x.into(),
            y: y.into(),
            lines: curves
                .iter()
                .map(|curve| LineOf {
                    name: curve.name.clone(),
                    points: curve.points.clone(),
                })
                .collect(),
        });
        let axis = |name| Axis {
            scale: Scale::Linear,
            mark: &|v| signed_text(v as i64),
            name,
        };
        let Some(figure) = chart::lines(caption, curves, &axis(x), &axis(y)) else {
            return Ok(());
        };
        debox_output::write(&to.join(file), figure.file().as_bytes())
            .map_err(Error::system("writing a figure"))
    }

    /// Figures 9 and 1: throughput, and the part of the CPU that waiting takes,
    /// against the number of idle connections.
    fn figures_idle(&mut self, to: &Path) -> Result<(), Error> {
        let (poll, epoll) = if servers::installed(LIGHTTPD_POLL) {
            (LIGHTTPD_POLL, LIGHTTPD_EPOLL)
        } else {
            (
                Program::Plain(Backend::Poll),
                Program::Plain(Backend::Epoll),
            )
        };
        let idles: Vec<usize> = [0, 250, 500, 1000, 2000, 5000, 9900]
            .into_iter()
            .filter(|idle| idle + 100 <= self.most)
            .collect();
        let names = ["poll, the kernel's", "poll, with DeBox", "epoll"];
        let mut rates: [Vec<(f64, f64)>; 3] = Default::default();
        let mut parts: [Vec<(f64, f64)>; 6] = Default::default();
        self.say("\nThroughput and CPU per request against idle connections (Figures 9 and 1)\n");
        const WIDTHS: [usize; 8] = [5, 3, 18, 7, 18, 7, 12, 7];
        let [kernels, ours, epolls] = names;
        let head = ["IDLE", "HOT", kernels, "CPU", ours, "CPU", epolls, "CPU"];
        self.tell(line(&WIDTHS, head.map(String::from)));
        for (h, hot) in [10, 50].into_iter().enumerate() {
            let mut base = [f64::NAN; 3];
            for &idle in &idles {
                let m = self.measure(
                    &[
                        variant(names[0], poll, false, idle),
                        variant(names[1], poll, true, idle),
                        variant(names[2], epoll, false, idle),
                    ],
                    &self.plan_of_figures(hot),
                )?;
                let mut cells = vec![idle.to_string(), hot.to_string()];
                for v in 0..3 {
                    let (rate, cpu) = (median(&m[v].per_second), median(&m[v].cpu_us));
                    cells.push(format!("{} /s", signed_text(rate.round() as i64)));
                    cells.push(measured_text(1e3 * cpu));
                    if h == 0 {
                        rates[v].push((idle as f64, rate));
                    }
                    if idle == 0 {
                        base[v] = cpu;
                    }
                    let part = (100.0 * (1.0 - base[2] / cpu)).max(0.0);
                    if idle == 0 && v < 2 {
                        continue;
                    }
                    parts[v * 2 + h].push((idle as f64, part));
                }
                // epoll's base is known only after its own turn.
                if idle == 0 {
                    for v in 0..2 {
                        let part = (100.0 * (1.0 - base[2] / base[v])).max(0.0);
                        parts[v * 2 + h].push((0.0, part));
                    }
                }
                self.tell(line(&WIDTHS, cells));
            }
        }
        let curves: Vec<Series> = rates
            .into_iter()
            .zip(names)
            .map(|(points, name)| Series {
                name: name.into(),
                points,
                dashed: false,
            })
            .collect();
        self.figure(
            to,
            "figure9.svg",
            "Throughput against idle connections, 10 hot (Figure 9)",
            ("idle connections", "requests per second"),
            &curves,
        )?;
        let curves: Vec<Series> = parts
            .into_iter()
            .enumerate()
            .map(|(i, points)| Series {
                name: format!("{}, {} hot", names[i / 2], [10, 50][i % 2]),
                points,
                dashed: i % 2 == 1,
            })
            .collect();
        self.figure(
            to,
            "figure1.svg",
            "CPU time that idle connections cost (Figure 1)",
            ("idle connections", "% of the server's CPU time"),
            &curves,
        )
    }

    /// Figure 3: answering time against the rate of requests, with and without
    /// idle connections.
    fn figure_rate(&mut self, to: &Path) -> Result<(), Error> {
        let (poll, epoll) = if servers::installed(LIGHTTPD_POLL) {
            (LIGHTTPD_POLL, LIGHTTPD_EPOLL)
        } else {
            (
                Program::Plain(Backend::Poll),
                Program::Plain(Backend::Epoll),
            )
        };
        let idle = 2000.min(self.most.saturating_sub(200));
        let variants = [
            variant(&format!("poll, {idle} idle"), poll, false, idle),
            variant(&format!("poll with DeBox, {idle} idle"), poll, true, idle),
            variant(&format!("epoll, {idle} idle"), epoll, false, idle),
            variant("poll, no idle", poll, false, 0),
        ];
        let mut curves: Vec<Series> = variants
            .iter()
            .map(|v| Series {
                name: v.name.clone(),
                points: Vec::new(),
                dashed: false,
            })
            .collect();
        self.say(
            "\nMedian answering time against the rate asked for (Figure 3); - beyond what it does\n",
        );
        let head = ["RATE"]
            .into_iter()
            .chain(variants.iter().map(|v| &*v.name));
        let head: Vec<String> = head.map(String::from).collect();
        let widths: Vec<usize> = head.iter().map(|name| name.len().max(7)).collect();
        self.tell(line(&widths, head));
        for rate in [
            1000.0, 2000.0, 4000.0, 6000.0, 8000.0, 12000.0, 16000.0, 24000.0, 32000.0, 40000.0,
        ] {
            let mut plan = self.plan_of_figures(50);
            plan.rate = Some(rate);
            let m = self.measure(&variants, &plan)?;
            let mut cells = vec![signed_text(rate as i64)];
            for (curve, m) in curves.iter_mut().zip(&m) {
                let done = median(&m.per_second);
                let latency = median(&m.median_latency_us);
                if done >= 0.95 * rate {
                    curve.points.push((rate, latency));
                    cells.push(measured_text(1e3 * latency));
                } else {
                    cells.push("-".into());
                }
            }
            self.tell(line(&widths, cells));
        }
        self.figure(
            to,
            "figure3.svg",
            "Answering time against the rate of requests (Figure 3)",
            ("requests per second", "median answering time, us"),
            &curves,
        )
    }
}

/// Measures, tells on standard error what comes out, draws `figure1.svg`,
/// `figure3.svg` and `figure9.svg`, and writes the result where it is wanted;
/// with `only` rows of the table alone.
pub fn run(how: &BenchArgs) -> Result<i32, Error> {
    let library = library_find()?;
    let most = servers::descriptors_allow(20_000);
    let only = how.only.as_deref();
    let turns = if how.quick { 24 } else { 144 };
    let mut bench = Bench {
        library: &library,
        // lighttpd wants two descriptors for each connection.
        most: most / 2,
        only,
        met: false,
        text: String::new(),
        document: Document {
            schema: "debox.bench-select",
            schema_version: 1,
            debox_version: env!("CARGO_PKG_VERSION"),
            turns: how.turns.map_or(turns, |turns| turns as usize),
            quick: how.quick,
            realtime: how.realtime,
            rows: Vec::new(),
            lowest_free: None,
            figures: Vec::new(),
        },
    };
    let figures = how.figures.as_deref().unwrap_or(Path::new("."));
    if only.is_none() {
        debox_output::create_directory(figures).map_err(Error::system("making the directory"))?;
    }
    bench.goals()?;
    match only {
        Some(only) if !bench.met => return Err(Error::NoSuchRow(only.to_owned())),
        Some(_) => {}
        None => {
            bench.figures_idle(figures)?;
            bench.figure_rate(figures)?;
            let _ = writeln!(
                io::stderr(),
                "\nFigures 1, 3 and 9: {}",
                debox_output::printable(&figures.to_string_lossy())
            );
        }
    }
    let result = match how.json {
        true => serde_json::to_string_pretty(&bench.document).expect("names and numbers") + "\n",
        false => bench.text,
    };
    match &how.output {
        Some(file) if file.as_os_str() != "-" => debox_output::write(file, result.as_bytes()),
        None if !how.json => Ok(()),
        _ => io::stdout().write_all(result.as_bytes()),
    }
    .map_err(Error::system("writing the result"))?;
    Ok(0)
}
