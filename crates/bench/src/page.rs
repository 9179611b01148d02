// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the page of a run look like? One file with everything in it.

use crate::model::{Document, Kind, Row};
use crate::os::reads::{SIZES, WAYS};
use crate::os::switches;
use crate::shown::{Figures, date};
use crate::stat::{Difference, Summary, Verdict};
use crate::text::{self, levels_of, mean_text, mib_per_second};
use crate::titles::{explanation, title};
use debox_output::chart::{self, Axis, Bar, Figure, Scale, Series};
use debox_output::{
    Page, Section, digits_text, escape, html_table, mark_text, measured_text, signed_text,
    size_text,
};
use std::fmt::Write;

const STYLE: &str = include_str!("../assets/bench.css");

fn axis<'a>(scale: Scale, mark: &'a dyn Fn(f64) -> String, name: &'a str) -> Axis<'a> {
    Axis { scale, mark, name }
}

fn paragraph(text: &str) -> String {
    format!("<p>{}</p>\n", escape(text))
}

fn paragraphs(texts: &[String]) -> String {
    texts.iter().map(|t| paragraph(t)).collect()
}

fn interval(s: &Summary) -> Option<(f64, f64)> {
    Some(match s.verdict {
        Verdict::Stable => (s.mean_low, s.mean_high),
        Verdict::Unstable => s.range(),
    })
}

fn bar(row: &Row, s: &Summary) -> Bar {
    Bar {
        name: title(&row.id),
        parts: vec![(s.typical(), 0)],
        interval: interval(s),
        text: mean_text(s),
    }
}

fn account_rows<'a>(
    rows: impl Iterator<Item = &'a Row>,
    name: &dyn Fn(&Row) -> String,
) -> Vec<Bar> {
    rows.filter_map(|row| {
        let a = row.account.as_ref()?;
        let (cpu, blocked, runq) = (a.cpu_ns?, a.blocked_ns?, a.runq_ns?);
        let all = (cpu + blocked + runq).max(0.001);
        let share = |v: f64| 100.0 * v / all;
        Some(Bar {
            name: name(row),
            parts: vec![(share(cpu), 0), (share(blocked), 1), (share(runq), 2)],
            interval: None,
            text: format!("{:.0} % on CPU", share(cpu)),
        })
    })
    .collect()
}

fn accounts(caption: &str, bars: &[Bar], figures: &mut Figures) -> String {
    figures.drawn(chart::bars(
        caption,
        bars,
        Scale::Linear,
        &["on a CPU", "blocked", "waiting for a CPU"],
        &|v| format!("{v:.0} %"),
    ))
}

fn number_cells(s: &Summary) -> Vec<String> {
    vec![
        mean_text(s),
        text::half_text(s),
        measured_text(s.min),
        measured_text(s.p50),
        measured_text(s.p90),
        measured_text(s.p99),
        measured_text(s.max),
        signed_text(s.operations as i64),
        signed_text(s.outliers as i64),
        signed_text(s.outliers_preempted as i64),
        measured_text(s.mean_without),
    ]
}

const NUMBERS: [&str; 11] = [
    "mean",
    "95 %",
    "min",
    "p50",
    "p90",
    "p99",
    "max",
    "operations",
    "outliers",
    "of these preempted",
    "mean without",
];
const ACCOUNT: [&str; 6] = [
    "on CPU",
    "blocked",
    "run queue",
    "faults",
    "switches",
    "blocked in",
];

fn account_cells(row: &Row) -> Vec<String> {
    let Some(a) = &row.account else {
        return vec![String::from("not measured")];
    };
    let part = |v: Option<f64>| v.map_or_else(|| "not measured".into(), measured_text);
    let sleeps: Vec<String> = a
        .sleeps
        .iter()
        .filter(|s| s.count >= 0.005)
        .map(|s| {
            format!(
                "{} {}× {} ({})",
                s.label,
                digits_text(s.count),
                measured_text(s.blocked_ns),
                s.place
            )
        })
        .collect();
    vec![
        part(a.cpu_ns),
        part(a.blocked_ns),
        part(a.runq_ns),
        digits_text(a.minor_faults + a.major_faults),
        digits_text(a.voluntary_switches + a.involuntary_switches),
        sleeps.join("; "),
    ]
}

/// Every number of the rows, folded away.
fn everything(d: &Document, prefix: &str) -> String {
    let mut head = vec!["case"];
    head.extend(NUMBERS);
    let accounts = d.rows_of(prefix).any(|r| r.account.is_some());
    if accounts {
        head.extend(ACCOUNT);
    }
    let rows: Vec<Vec<String>> = d
        .rows_of(prefix)
        .filter_map(|row| {
            let s = row.summary.as_ref()?;
            let mut cells = vec![row.id.clone()];
            cells.extend(number_cells(s));
            if accounts {
                cells.extend(account_cells(row));
            }
            Some(cells)
        })
        .collect();
    let missing: Vec<Vec<String>> = d
        .rows_of(prefix)
        .filter_map(|r| Some(vec![r.id.clone(), r.missing.clone()?]))
        .collect();
    let words = if accounts {
        vec![0, head.len() - 1]
    } else {
        vec![0]
    };
    let mut out = format!(
        "<details><summary>All numbers</summary>{}</details>\n",
        html_table(&head, &rows, &words)
    );
    if !missing.is_empty() {
        let _ = writeln!(
            out,
            "<details><summary>Not measured: {}</summary>{}</details>",
            missing.len(),
            html_table(&["case", "why"], &missing, &[0, 1])
        );
    }
    out
}

fn clocks(d: &Document, figures: &mut Figures) -> String {
    let Some(survey) = &d.clocks else {
        return String::new();
    };
    let bars: Vec<Bar> = survey
        .sources
        .iter()
        .filter_map(|s| {
            let cost = s.cost_ns?;
            Some(Bar {
                name: s.name.clone(),
                parts: vec![(
                    cost,
                    if s.reached == "vDSO" || s.reached == "instruction" {
                        0
                    } else {
                        1
                    },
                )],
                interval: None,
                text: measured_text(cost),
            })
        })
        .collect();
    let mut out = figures.drawn(chart::bars(
        "One reading of each clock",
        &bars,
        Scale::Log,
        &["without the kernel", "by a system call"],
        &mark_text,
    ));
    let or = |v: Option<f64>| v.map_or_else(|| "–".into(), measured_text);
    let rows: Vec<Vec<String>> = survey
        .sources
        .iter()
        .map(|s| {
            vec![
                s.name.clone(),
                s.reached.clone(),
                or(s.cost_ns),
                or(s.step_ns),
                or(s.resolution_ns),
                if s.missing.is_some() {
                    "–".into()
                } else {
                    format!("{} of {}", s.backwards, signed_text(s.readings as i64))
                },
                match (s.exchanges, s.missing.as_ref()) {
                    (_, Some(why)) => why.clone(),
                    (0, None) => "–".into(),
                    (n, None) if s.exchanges_backwards == 0 => {
                        format!("in order, {} exchanges", signed_text(n as i64))
                    }
                    (n, None) => format!(
                        "back {} of {}, by up to {}",
                        signed_text(s.exchanges_backwards as i64),
                        signed_text(n as i64),
                        measured_text(s.worst_backwards_ns)
                    ),
                },
            ]
        })
        .collect();
    out += &html_table(
        &[
            "source",
            "reached by",
            "cost",
            "smallest step",
            "resolution",
            "went back",
            "between CPUs",
        ],
        &rows,
        &[0, 1, 6],
    );
    out += &paragraph(&format!(
        "Chosen: {}: {}. An empty interval reads {}; that is taken off everything below.",
        survey.choice.kind.name(),
        survey.why,
        measured_text(survey.choice.empty_ns)
    ));
    out
}

fn trivial(d: &Document, figures: &mut Figures) -> String {
    let bars: Vec<Bar> = d
        .rows_of("trivial/")
        .filter_map(|r| r.summary.as_ref().map(|s| bar(r, s)))
        .collect();
    if d.rows_of("trivial/").next().is_none() {
        return String::new();
    }
    figures.drawn(chart::bars(
        "One call, with the 95 % interval",
        &bars,
        Scale::Linear,
        &["time"],
        &mark_text,
    )) + &everything(d, "trivial/")
}

fn switches_section(d: &Document, figures: &mut Figures) -> String {
    if d.rows_of("switch/").next().is_none() {
        return String::new();
    }
    let mut out = String::from("<div class=\"figures\">");
    for (place, caption) in [
        ("same", "Round trip, both ends on one CPU"),
        ("other", "Round trip, the other end on another CPU"),
    ] {
        let bars: Vec<Bar> = switches::MEANS
            .iter()
            .filter_map(|means| {
                let row = d.row(&format!("switch/{means}/{place}"))?;
                let s = row.summary.as_ref()?;
                let calls = d
                    .summary(&format!("switch-calls/{}", switches::calls_of(means)))
                    .map_or(0.0, |c| 2.0 * c.typical())
                    .min(s.typical());
                Some(Bar {
                    name: title(&row.id),
                    parts: vec![(calls, 0), (s.typical() - calls, 1)],
                    interval: interval(s),
                    text: mean_text(s),
                })
            })
            .collect();
        out += &figures.drawn(chart::bars(
            caption,
            &bars,
            Scale::Linear,
            &["the calls themselves", "two switches"],
            &mark_text,
        ));
    }
    for (place, caption) in [
        ("same", "DeBox's account of one end, both on one CPU"),
        (
            "other",
            "DeBox's account of one end, the other on another CPU",
        ),
    ] {
        let rows = switches::MEANS
            .iter()
            .filter_map(|m| d.row(&format!("switch/{m}/{place}")));
        out += &accounts(caption, &account_rows(rows, &|r| title(&r.id)), figures);
    }
    out += "</div>";
    let rows: Vec<Vec<String>> = d
        .derived
        .iter()
        .map(|x| {
            let mut words = x.id.split('/').skip(1);
            let means = words.next().unwrap_or("");
            let place = if words.next() == Some("same") {
                "one CPU"
            } else {
                "two CPUs"
            };
            vec![
                title(&format!("switch/{means}")),
                place.into(),
                if x.verdict == Verdict::Stable {
                    measured_text(x.ns)
                } else {
                    "hidden by its spread".into()
                },
                format!("{} to {}", measured_text(x.low), measured_text(x.high)),
            ]
        })
        .collect();
    out += "<h3>One switch, estimated</h3>";
    out += &paragraph(
        "Half of what is left of a round trip without the calls of both ends, which are measured by one thread \
         that never has to wait.",
    );
    out += &html_table(
        &["means", "place", "one switch", "95 % interval"],
        &rows,
        &[0, 1],
    );
    out += &paragraphs(&text::conclusions_switches(d));
    out + &everything(d, "switch")
}

fn faults(d: &Document, figures: &mut Figures) -> String {
    if d.rows_of("fault/").next().is_none() {
        return String::new();
    }
    let rows: Vec<&Row> = d
        .rows_of("fault/")
        .filter(|r| r.summary.is_some())
        .collect();
    let latency: Vec<Bar> = rows
        .iter()
        .filter_map(|r| r.summary.as_ref().map(|s| bar(r, s)))
        .collect();
    let bandwidth: Vec<Bar> = rows
        .iter()
        .filter_map(|r| {
            let s = r.summary.as_ref()?;
            let rate = mib_per_second(text::fault_bytes(&r.id) as f64, s.typical());
            Some(Bar {
                name: title(&r.id),
                parts: vec![(rate, 0)],
                interval: None,
                text: format!("{} MiB/s", digits_text(rate)),
            })
        })
        .collect();
    let mut out = String::from("<div class=\"figures\">");
    out += &figures.drawn(chart::bars(
        "First touch of one page",
        &latency,
        Scale::Log,
        &["time"],
        &mark_text,
    ));
    out += &figures.drawn(chart::bars(
        "Memory made usable, MiB a second",
        &bandwidth,
        Scale::Log,
        &["rate"],
        &digits_text,
    ));
    out += "</div>";
    let what: Vec<Vec<String>> = rows
        .iter()
        .map(|r| {
            let a = r.account.as_ref();
            vec![
                title(&r.id),
                explanation(&r.id).into(),
                a.map_or_else(
                    || "–".into(),
                    |a| digits_text(a.minor_faults + a.major_faults),
                ),
            ]
        })
        .collect();
    out += &html_table(&["page", "what it is", "faults for each"], &what, &[0, 1]);
    out += &paragraphs(&text::conclusions_faults(d));
    out + &everything(d, "fault/")
}

/// Time to read 1 MiB, by way, over the request sizes in range.
fn read_series(d: &Document, state: &str, from: usize, to: usize) -> Vec<Series> {
    WAYS.iter()
        .filter_map(|way| {
            let points: Vec<(f64, f64)> = SIZES
                .iter()
                .filter(|s| (from..=to).contains(*s))
                .filter_map(|size| {
                    let s = d.summary(&format!("read/{state}/{way}/{size}"))?;
                    Some((*size as f64, s.typical() * (1 << 20) as f64 / *size as f64))
                })
                .collect();
            (points.len() > 1).then(|| Series {
                name: (*way).to_owned(),
                points,
                dashed: false,
            })
        })
        .collect()
}

fn reads(d: &Document, figures: &mut Figures) -> String {
    if d.rows_of("read/").next().is_none() {
        return String::new();
    }
    let mut out = String::from("<div class=\"figures\">");
    for (state, name) in [
        ("warm", "in the page cache"),
        ("cold", "page cache dropped"),
    ] {
        for (from, to, scale, which) in [
            (512, 1 << 20, Scale::Linear, "larger requests"),
            (8, 4096, Scale::Log, "small requests"),
        ] {
            out += &figures.drawn(chart::lines(
                &format!("1 MiB of a file, {name}: {which}"),
                &read_series(d, state, from, to),
                &axis(Scale::Log, &|x| size_text(x as u64), ""),
                &axis(scale, &mark_text, "time for 1 MiB"),
            ));
        }
    }
    for (state, name) in [
        ("warm", "in the page cache"),
        ("cold", "page cache dropped"),
    ] {
        let rows = WAYS
            .iter()
            .filter_map(|w| d.row(&format!("read/{state}/{w}/65536")));
        out += &accounts(
            &format!("DeBox's account of a 64 KiB request, {name}"),
            &account_rows(rows, &|r| r.id.split('/').nth(2).unwrap_or("").to_owned()),
            figures,
        );
    }
    out += "</div>";
    if let Some(c) = &d.cold {
        out += &paragraph(&text::cold_text(c));
    }
    out += &paragraphs(&text::conclusions_reads(d));
    out + &everything(d, "read/")
}

fn descriptors(d: &Document, figures: &mut Figures) -> String {
    if d.rows_of("descriptor/")
        .chain(d.rows_of("wait/"))
        .next()
        .is_none()
    {
        return String::new();
    }
    let series = |prefix: &str, kinds: &[&str]| -> Vec<Series> {
        kinds
            .iter()
            .map(|kind| Series {
                name: title(&format!("{prefix}{kind}")),
                points: levels_of(d, prefix)
                    .into_iter()
                    .filter_map(|l| {
                        Some((
                            l as f64,
                            d.summary(&format!("{prefix}{kind}/{l}"))?.typical(),
                        ))
                    })
                    .collect(),
                dashed: false,
            })
            .filter(|s| !s.points.is_empty())
            .collect()
    };
    let count = |x: f64| signed_text(x as i64);
    let mut out = String::from("<div class=\"figures\">");
    out += &figures.drawn(chart::lines(
        "A new descriptor, by the number that are open",
        &series(
            "descriptor/",
            &["open", "dup", "dup-search", "socket", "accept"],
        ),
        &axis(Scale::Log, &count, ""),
        &axis(Scale::Log, &mark_text, "one call"),
    ));
    out += &figures.drawn(chart::lines(
        "Waiting for one that is ready, by the number of idle ones",
        &series("wait/", &["select", "poll", "epoll"]),
        &axis(Scale::Log, &count, ""),
        &axis(Scale::Log, &mark_text, "one call"),
    ));
    out += "</div>";
    out += &paragraphs(&text::conclusions_descriptors(d));
    out + &everything(d, "descriptor/") + &everything(d, "wait/")
}

fn comparison(d: &Document, figures: &mut Figures) -> String {
    let Some(c) = &d.comparison else {
        return String::new();
    };
    let mut out = paragraph(&format!("With {}: {}", c.with, c.machine_there));
    let rows: Vec<Vec<String>> = c
        .machine_differences
        .iter()
        .map(|(what, here, there)| vec![what.clone(), here.clone(), there.clone()])
        .collect();
    out += &html_table(&["", "here", "there"], &rows, &[0, 1, 2]);
    let mut different: Vec<(String, f64, f64, f64)> = c
        .rows
        .iter()
        .filter(|r| r.comparison.difference != Difference::NotDistinguishable)
        .map(|r| {
            let x = &r.comparison;
            (
                text::compared_title(&r.id),
                x.ratio,
                x.ratio_low,
                x.ratio_high,
            )
        })
        .collect();
    different.sort_by(|a, b| b.1.ln().abs().total_cmp(&a.1.ln().abs()));
    different.truncate(60);
    out += &figures.drawn(chart::ratios(
        "Time here / time there, with the 99 % interval",
        &different,
    ));
    out += &paragraph(&format!(
        "{} of {} cases are not distinguishable. A difference is shown when the ranks of the processes' medians \
         (Mann-Whitney, p < 0.01) and the 99 % interval of the ratio both say so.",
        c.rows
            .iter()
            .filter(|r| r.comparison.difference == Difference::NotDistinguishable)
            .count(),
        c.rows.len()
    ));
    out += &paragraphs(&c.notes);
    let rows: Vec<Vec<String>> = c
        .rows
        .iter()
        .map(|r| {
            let x = &r.comparison;
            vec![
                text::compared_title(&r.id),
                measured_text(x.here_ns),
                measured_text(x.there_ns),
                format!("{:.3}", x.ratio),
                format!("{:.3} to {:.3}", x.ratio_low, x.ratio_high),
                format!("{:.4}", x.p),
                match x.difference {
                    Difference::Faster => "faster",
                    Difference::Slower => "slower",
                    Difference::NotDistinguishable => "not distinguishable",
                }
                .into(),
            ]
        })
        .collect();
    out += &format!(
        "<details><summary>All cases</summary>{}</details>",
        html_table(
            &[
                "case",
                "here",
                "there",
                "ratio",
                "99 % interval",
                "p",
                "here is"
            ],
            &rows,
            &[0, 6]
        )
    );
    out
}

fn machine(d: &Document) -> String {
    let list = |m: &std::collections::BTreeMap<String, String>| {
        let items: String = m
            .iter()
            .map(|(k, v)| format!("<dt>{}</dt><dd>{}</dd>", escape(k), escape(v)))
            .collect();
        format!("<dl>{items}</dl>")
    };
    let mut out = list(&d.machine.facts);
    if !d.machine.mitigations.is_empty() {
        out += "<h3>The processor's weaknesses, and what the kernel does about them</h3>";
        out += &list(&d.machine.mitigations);
    }
    out + &paragraph(&d.noise.line())
}

/// The whole page, and its pictures.
pub fn render(d: &Document) -> (String, Vec<Figure>) {
    let name = d.kind.name();
    let mut figures = Figures::default();
    let section = |(id, title, body)| Section { id, title, body };
    let mut sections = vec![section((
        "comparison",
        "Comparison",
        comparison(d, &mut figures),
    ))];
    match d.kind {
        Kind::Os => sections.extend(
            [
                ("clocks", "Clocks", clocks(d, &mut figures)),
                ("trivial", "Trivial kernel calls", trivial(d, &mut figures)),
                (
                    "switches",
                    "Context switches",
                    switches_section(d, &mut figures),
                ),
                ("faults", "Page faults", faults(d, &mut figures)),
                ("reads", "File reads", reads(d, &mut figures)),
                (
                    "descriptors",
                    "Descriptors and waiting",
                    descriptors(d, &mut figures),
                ),
            ]
            .map(section),
        ),
        Kind::SelfCost => {
            if let Some(own) = &d.self_cost {
                sections.extend(crate::selfcost::show::sections(own, &mut figures));
            }
        }
    }
    let notes: String = d
        .notes
        .iter()
        .map(|n| format!("<li>{}</li>", escape(n)))
        .collect();
    if !notes.is_empty() {
        sections.push(section(("notes", "Notes", format!("<ul>{notes}</ul>"))));
    }
    sections.push(section(("machine", "Machine", machine(d))));
    let heading = match &d.label {
        Some(label) => format!("debox bench {name}: {label}"),
        None => format!("debox bench {name}"),
    };
    let page = Page {
        title: &heading,
        version: &d.debox_version,
        style: STYLE,
        header: header(d, &heading),
        sections,
        footer: "Bars show the middle of the processes' medians; whiskers the 95 % interval of the mean, \
                 or the range of the medians where the spread hides the mean.",
        script: None,
    };
    (page.html(), figures.0)
}

fn header(d: &Document, heading: &str) -> String {
    let mut out = format!(
        "<div class=\"top\"><p class=\"brand\">DeBox <span>{}</span></p></div>\n<h1>{}</h1>\n\
         <ul class=\"facts\"><li>{}</li><li>{}</li><li>{}{:.0} s</li></ul>\n",
        match d.kind {
            Kind::Os => "what the operating system charges",
            Kind::SelfCost => "what DeBox costs, and others",
        },
        escape(heading),
        escape(&d.machine.line()),
        date(d.started),
        if d.quick { "quick, " } else { "" },
        d.seconds
    );
    if !d.noise.quiet() {
        let _ = writeln!(
            out,
            "<p class=\"warn\">A noisy machine: {}.</p>",
            escape(&d.noise.reasons.join("; "))
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_style_stays_in_its_element() {
        assert!(!STYLE.contains("</"));
        assert!(!STYLE.contains("url("));
        assert!(!STYLE.contains("@import"));
    }
}
