// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the pages look like?
//!
//! All is written here as plain HTML and stands without JavaScript; the one script renews what is
//! shown with what is written here, too. Names of programs, units, files and calls are foreign:
//! all text goes through [`escape`], and nothing in a page is a style or a script of its own, so
//! that the policy ([`crate::web`]) admits none.

use crate::history::{Entry, Listing, SHOWN_MOST, policy};
use crate::live::{Interval, Live, Program, Root, State, Wait};
use crate::reader::Summary;
use debox_output::{Utc, bytes_text, count_text, duration_text, escape};
use std::fmt::Write;

pub const STYLE: &str = include_str!("../assets/serve.css");
pub const SCRIPT: &str = include_str!("../assets/serve.js");
pub const ICON: &str = include_str!("../assets/icon.svg");

/// Rows of a table; JSON has more.
const PROGRAMS: usize = 12;
const WAITS: usize = 12;
const ROOTS: usize = 10;
const CALLS: usize = 12;
/// So often a page of now is renewed,
const LIVE_EVERY_MS: u32 = 2_000;
/// one of recordings while some are read,
const GROWING_EVERY_MS: u32 = 1_000;
/// and otherwise.
const HISTORY_EVERY_MS: u32 = 30_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Here {
    Live,
    History,
    /// Something went wrong.
    Nowhere,
}

/// What a page of now is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Since the look before.
    Now,
    /// Since the watch began.
    All,
}

impl Span {
    pub fn parse(query: Option<&str>) -> Self {
        match query {
            Some("of=all") => Self::All,
            _ => Self::Now,
        }
    }

    fn query(self) -> &'static str {
        match self {
            Self::Now => "?of=now",
            Self::All => "?of=all",
        }
    }
}

fn time(ns: u64) -> String {
    match ns {
        0 => "–".into(),
        ns => duration_text(ns, false),
    }
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

/// A sum as it stands in a table: of all the time, or a second.
#[derive(Clone, Copy)]
struct Scale {
    span_ns: u64,
    totals: bool,
}

impl Scale {
    fn per_second(self, sum: u64) -> u64 {
        match self.totals {
            true => sum,
            false => (u128::from(sum) * 1_000_000_000 / u128::from(self.span_ns.max(1))) as u64,
        }
    }

    fn time(self, sum_ns: u64) -> String {
        time(self.per_second(sum_ns))
    }

    fn count(self, sum: u64) -> String {
        let per_second = sum as f64 * 1e9 / self.span_ns.max(1) as f64;
        match sum {
            0 => "–".into(),
            _ if self.totals || per_second >= 9.95 => count_text(self.per_second(sum).max(1)),
            _ => format!("{:.1}", per_second.max(0.1)),
        }
    }

    fn a_second(self) -> &'static str {
        match self.totals {
            true => "",
            false => " a second",
        }
    }
}

/// Pieces beside each other, each with its class, its name and its size; `whole` fills the width.
fn bar(pieces: &[(&str, &str, u64)], whole: u64) -> String {
    let mut label = Vec::new();
    let mut rects = String::new();
    let mut x = 0.0;
    for (class, name, ns) in pieces.iter().filter(|piece| piece.2 > 0) {
        let wide = share(*ns, whole);
        label.push(format!("{name} {}", time(*ns)));
        let _ = write!(
            rects,
            "<rect class=\"{class}\" x=\"{x:.2}%\" width=\"{wide:.2}%\" height=\"100%\"><title>{}: {}</title></rect>",
            escape(name),
            time(*ns)
        );
        x += wide;
    }
    format!(
        "<svg class=\"bar\" role=\"img\" aria-label=\"{}\">{rects}</svg>",
        escape(&label.join(", "))
    )
}

const STATES: [(&str, &str); 3] = [
    ("cpu", "on a CPU"),
    ("blocked", "asleep"),
    ("runq", "waiting for a CPU"),
];

fn program_bar(program: &Program, whole: u64) -> String {
    let [cpu, blocked, runq] = STATES;
    bar(
        &[
            (cpu.0, cpu.1, program.cpu_ns),
            (blocked.0, blocked.1, program.blocked_ns),
            (runq.0, runq.1, program.run_queue_ns),
        ],
        whole,
    )
}

/// What a chain ends in: its class, and what it is called.
fn family(root: &str) -> (&'static str, &'static str) {
    match root {
        "disk" => ("r-disk", "disk"),
        "network" => ("r-network", "network"),
        "run_queue" => ("runq", "waiting for a CPU"),
        "own_code" => ("r-code", "others' own code"),
        "system_call" | "running" => ("r-call", "others' system calls"),
        "timer" | "time_limit" => ("r-timer", "timers"),
        "device" | "interrupt" => ("r-device", "devices"),
        _ => ("r-unknown", "not known"),
    }
}

const FAMILIES: [&str; 8] = [
    "disk",
    "network",
    "run_queue",
    "own_code",
    "system_call",
    "timer",
    "device",
    "unknown",
];

fn legend(items: impl Iterator<Item = (&'static str, &'static str)>) -> String {
    let items: String = items
        .map(|(class, name)| {
            format!("<li><svg class=\"key\" aria-hidden=\"true\"><rect class=\"{class}\" width=\"100%\" height=\"100%\"/></svg>{name}</li>")
        })
        .collect();
    format!("<ul class=\"legend\">{items}</ul>\n")
}

fn section(id: &str, title: &str, body: &str) -> String {
    format!("<section aria-labelledby=\"{id}\">\n<h2 id=\"{id}\">{title}</h2>\n{body}</section>\n")
}

/// `head` has a class and a title for each column; rows are HTML, the first cell a name.
fn table(caption: &str, head: &[(&str, &str)], rows: &[Vec<String>]) -> String {
    let titles: String = head
        .iter()
        .map(|(class, title)| format!("<th scope=\"col\" class=\"{class}\">{title}</th>"))
        .collect();
    let mut out = format!(
        "<table class=\"now\"><caption class=\"sr\">{caption}</caption><thead><tr>{titles}</tr></thead><tbody>\n"
    );
    for row in rows {
        out += "<tr>";
        for (at, (cell, (class, title))) in row.iter().zip(head).enumerate() {
            // Where a row has no room beside its name, each cell says what it is.
            let _ = match at {
                0 => write!(out, "<th scope=\"row\">{cell}</th>"),
                _ => write!(
                    out,
                    "<td class=\"{class}\" data-name=\"{title}\">{cell}</td>"
                ),
            };
        }
        out += "</tr>\n";
    }
    out + "</tbody></table>\n"
}

fn left(count: usize, what: &str) -> String {
    match count {
        0 => String::new(),
        count => format!(
            "<p class=\"soft\">{} more {what}.</p>\n",
            count_text(count as u64)
        ),
    }
}

fn programs(interval: &Interval, scale: Scale) -> String {
    let busy = |p: &&Program| p.busy_ns() > 0;
    let rows: Vec<&Program> = interval.programs.iter().filter(busy).collect();
    if rows.is_empty() {
        return "<p>Nothing ran, and nothing was held up.</p>\n".into();
    }
    let shown = rows.len().min(PROGRAMS);
    let whole = rows[..shown].iter().map(|p| p.busy_ns()).max().unwrap_or(0);
    let cells: Vec<Vec<String>> = rows[..shown]
        .iter()
        .map(|program| {
            let unit = program.unit.as_deref().map_or_else(String::new, |unit| {
                format!("<small>{}</small>", escape(unit))
            });
            vec![
                escape(&program.name) + &unit,
                program_bar(program, whole),
                scale.time(program.cpu_ns),
                scale.time(program.run_queue_ns),
                scale.time(program.blocked_ns),
                scale.time(program.resting_ns),
            ]
        })
        .collect();
    let head = [
        ("", "Program"),
        ("d", "Where its time goes"),
        ("n", "CPU"),
        ("n", "Run queue"),
        ("n", "Asleep"),
        ("n", "At rest"),
    ];
    legend(STATES.into_iter())
        + &table("Programs by the time of their threads", &head, &cells)
        + &left(rows.len() - shown, "programs did less")
        + &format!(
            "<p class=\"soft\">Times are of all threads of a name together{}. At rest: where it is known to wait when there is nothing to do; asleep: all other sleep.</p>\n",
            match scale.totals {
                true => ", since the watch began",
                false => ", in each second",
            }
        )
}

fn waits_table(caption: &str, rows: &[&Wait], scale: Scale) -> String {
    let shown = rows.len().min(WAITS);
    let whole = rows.iter().map(|wait| wait.total_ns).max().unwrap_or(0);
    let cells: Vec<Vec<String>> = rows[..shown]
        .iter()
        .map(|wait| {
            let place = wait.place.as_deref().map_or_else(String::new, |place| {
                format!("<small>{}</small>", escape(place))
            });
            let (class, name) = wait_class(wait.class);
            let mean = wait.total_ns.checked_div(wait.count).unwrap_or(0);
            vec![
                escape(&wait.label) + &place,
                escape(wait.call.as_deref().unwrap_or("(no call)")),
                bar(&[(class, name, wait.total_ns)], whole),
                scale.time(wait.total_ns),
                scale.count(wait.count),
                time(mean),
                time(wait.longest_ns),
            ]
        })
        .collect();
    let head = [
        ("", "On what"),
        ("call", "In call"),
        ("d", ""),
        ("n", "Asleep"),
        ("n", "Sleeps"),
        ("n", "Mean"),
        ("n", "Longest"),
    ];
    table(caption, &head, &cells) + &left(rows.len() - shown, "took less")
}

fn wait_class(class: &str) -> (&'static str, &'static str) {
    match class {
        "loss" => ("blocked", "a loss"),
        "input" => ("r-network", "waits for others' data"),
        "idle" | "tool" => ("idle", "nothing to do"),
        _ => ("r-unknown", "not known whether that is a loss"),
    }
}

fn waits(interval: &Interval, scale: Scale) -> String {
    let of = |fits: fn(&str) -> bool| -> Vec<&Wait> {
        let rows = interval.waits.iter();
        rows.filter(|wait| fits(wait.class)).collect()
    };
    let held_up = of(|class| !matches!(class, "input" | "idle" | "tool"));
    let mut out = match held_up.is_empty() {
        true => "<p>Nobody waited for anything but data and work.</p>\n".into(),
        false => {
            legend(["loss", "unknown"].map(wait_class).into_iter())
                + &waits_table(
                    "Sleeps that may be a loss, by what they waited for, and in which call",
                    &held_up,
                    scale,
                )
        }
    };
    for (id, words, rows) in [
        (
            "input",
            "For others’ data, or the program’s own threads",
            of(|class| class == "input"),
        ),
        (
            "idle",
            "With nothing to do",
            of(|class| matches!(class, "idle" | "tool")),
        ),
    ] {
        if rows.is_empty() {
            continue;
        }
        let sum = rows
            .iter()
            .fold(0u64, |sum, w| sum.saturating_add(w.total_ns));
        let _ = write!(
            out,
            "<details id=\"{id}\"><summary id=\"{id}-summary\">{words}: {} of sleep{}</summary>\n{}</details>\n",
            scale.time(sum),
            scale.a_second(),
            waits_table(words, &rows, scale)
        );
    }
    out
}

fn roots(all: &[Root], scale: Scale) -> String {
    let (open, rows): (Vec<&Root>, Vec<&Root>) =
        all.iter().partition(|root| root.root == "not_over");
    let sum = |rows: &[&Root]| {
        rows.iter()
            .fold(0u64, |sum, root| sum.saturating_add(root.total_ns))
    };
    let still = match sum(&open) {
        0 => String::new(),
        ns => format!(
            "<p class=\"soft\">Not over yet, so that nobody knows what they end in: {} of sleep{}.</p>\n",
            scale.time(ns),
            scale.a_second()
        ),
    };
    if rows.is_empty() {
        return "<p>No wait that held something up has ended.</p>\n".to_owned() + &still;
    }
    let shown = rows.len().min(ROOTS);
    let whole = rows.iter().map(|root| root.total_ns).max().unwrap_or(0);
    let cells: Vec<Vec<String>> = rows[..shown]
        .iter()
        .map(|root| {
            let (class, name) = family(root.root);
            vec![
                escape(&root.text),
                bar(&[(class, name, root.total_ns)], whole),
                scale.time(root.total_ns),
                format!("{:.0} %", share(root.total_ns, sum(&rows))),
            ]
        })
        .collect();
    let head = [("", "Root cause"), ("d", ""), ("n", "Time"), ("n", "Share")];
    let seen: Vec<&str> = rows[..shown]
        .iter()
        .map(|root| family(root.root).0)
        .collect();
    let keys = FAMILIES.map(family).into_iter();
    legend(keys.filter(|(class, _)| seen.contains(class)))
        + &table("What waiting ended in", &head, &cells)
        + &left(rows.len() - shown, "have less")
        + &still
}

fn calls(interval: &Interval, scale: Scale) -> String {
    let shown = interval.calls.len().min(CALLS);
    let part = |ns: Option<u64>| ns.map_or_else(|| "?".into(), |ns| scale.time(ns));
    let cells: Vec<Vec<String>> = interval.calls[..shown]
        .iter()
        .map(|call| {
            vec![
                escape(&call.call),
                scale.count(call.count),
                scale.time(call.total_ns),
                part(call.blocked_ns),
                part(call.cpu_ns),
                scale.count(call.errors),
            ]
        })
        .collect();
    let head = [
        ("", "Call"),
        ("n", "Calls"),
        ("n", "Time"),
        ("n", "Blocked"),
        ("n", "On CPU"),
        ("n", "Errors"),
    ];
    table("System calls that returned", &head, &cells)
        + &left(interval.calls.len() - shown, "took less")
}

fn state(live: &Live, span: Span) -> String {
    let of = |interval: &Interval| duration_text(interval.span_ns, false);
    let (class, text) = match (&live.state, span) {
        (State::NotWatched(why), _) => ("none", format!("Nobody is watched: {}", escape(why))),
        (State::Over(why), _) => (
            "over",
            format!(
                "The watch is over: {}. These are its last figures.",
                escape(why)
            ),
        ),
        (State::Live, Span::Now) => ("on", format!("Live: the last {}", of(&live.now))),
        (State::Live, Span::All) => (
            "on",
            format!("Live: the {} since the watch began", of(&live.all)),
        ),
    };
    format!("<p class=\"state {class}\">{text}</p>\n")
}

/// What the script renews.
pub fn live_part(live: &Live, span: Span) -> String {
    let every = match live.state {
        State::Live => LIVE_EVERY_MS,
        _ => HISTORY_EVERY_MS,
    };
    let mut out = format!("<div data-every=\"{every}\">\n{}", state(live, span));
    if let State::NotWatched(_) = live.state {
        out += &section(
            "recordings",
            "What there is",
            "<p>Recordings can be opened all the same: <a href=\"history\">History</a>. What watching takes says <code>debox doctor</code>.</p>\n",
        );
        return out + "</div>\n";
    }
    let interval = match span {
        Span::Now => &live.now,
        Span::All => &live.all,
    };
    let scale = Scale {
        span_ns: interval.span_ns,
        totals: span == Span::All,
    };
    let verdict: String = match interval.verdict.is_empty() {
        true => "<p class=\"verdict\">Nothing to tell: too little went on.</p>\n".into(),
        false => (interval.verdict.iter())
            .map(|sentence| format!("<p class=\"verdict\">{}</p>\n", escape(sentence)))
            .collect(),
    };
    out += &section("verdict", "What decides how fast it goes", &verdict);
    out += &section(
        "programs",
        "Where the threads’ time goes",
        &programs(interval, scale),
    );
    out += &section("waits", "What they wait for", &waits(interval, scale));
    out += &section(
        "roots",
        "Where that waiting ends",
        &roots(&interval.roots, scale),
    );
    if !interval.calls.is_empty() {
        out += &section("calls", "System calls", &calls(interval, scale));
    }
    if !live.notes.is_empty() {
        let notes: String = (live.notes.iter())
            .map(|note| format!("<li>{}</li>\n", escape(note)))
            .collect();
        out += &section(
            "notes",
            "What the figures lack",
            &format!("<ul class=\"notes\">{notes}</ul>\n"),
        );
    }
    out + "</div>\n"
}

/// A whole page. `part`: what the script renews, and from where; `up`: to where the pages are
/// from this one, if that is known. Links are relative: what stands before them is the server's to say.
fn shell(
    here: Here,
    up: Option<&str>,
    heading: &str,
    controls: &str,
    part: &str,
    from: Option<&str>,
) -> String {
    let nav = up.map_or_else(String::new, |up| {
        let link = |to: Here, path: &str, name: &str| {
            let current = match here == to {
                true => " aria-current=\"page\"",
                false => "",
            };
            format!("<li><a href=\"{up}{path}\"{current}>{name}</a></li>")
        };
        format!(
            "<nav aria-label=\"Pages\"><ul>{}{}</ul></nav>\n",
            link(Here::Live, "./", "Live"),
            link(Here::History, "history", "History"),
        )
    });
    let renewed = from.map_or_else(String::new, |from| format!(" data-from=\"{from}\""));
    let without_script = match from {
        Some(_) => "<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>\n",
        None => "",
    };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>DeBox: {heading}</title>\n\
         <link rel=\"icon\" href=\"/icon.svg\">\n<link rel=\"stylesheet\" href=\"/style.css\">\n\
         <script src=\"/script.js\" defer></script>\n{without_script}</head>\n<body>\n\
         <a class=\"skip\" href=\"#part\">Skip to what is shown</a>\n\
         <header>\n<div class=\"top\"><p class=\"brand\">DeBox <span>why it blocked</span></p>\
         <button id=\"theme\" type=\"button\" hidden>Colours: automatic</button></div>\n\
         <h1>{heading}</h1>\n</header>\n\
         {nav}\
         <main>\n<div class=\"controls\">{controls}</div>\n<div id=\"part\"{renewed}>\n{part}</div>\n</main>\n\
         <footer>Made by DeBox {} on this machine. Nothing can be changed over this page.</footer>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
    )
}

const RENEWAL: &str = "<button id=\"pause\" class=\"b\" type=\"button\" hidden>Pause</button><span id=\"renewed\" class=\"status\" role=\"status\"></span>";

pub fn live(live: &Live, span: Span) -> String {
    let choice = |of: Span, path: &str, name: &str| {
        let current = match of == span {
            true => " aria-current=\"true\"",
            false => "",
        };
        format!("<a class=\"b\" href=\"{path}\"{current}>{name}</a>")
    };
    let controls = match live.state {
        State::NotWatched(_) => String::new(),
        _ => {
            choice(Span::Now, "./", "Last seconds")
                + &choice(Span::All, "./?of=all", "Since the start")
                + RENEWAL
        }
    };
    shell(
        Here::Live,
        Some(""),
        &escape(&live.title),
        &controls,
        &live_part(live, span),
        Some(&format!("part/live{}", span.query())),
    )
}

/// (2026-11-27, 13:15:00), in UTC.
fn date_time(unix_ns: i128) -> (String, String) {
    let utc = Utc::of_seconds(i64::try_from(unix_ns.div_euclid(1_000_000_000)).unwrap_or(0));
    let time = format!("{:02}:{:02}:{:02}", utc.hour, utc.minute, utc.second);
    (utc.date(), time)
}

/// For a path of an address.
fn encoded(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            byte => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

/// Blocked a second of the recording's time.
fn rate(summary: &Summary) -> u64 {
    let sum = (summary.roots.iter()).fold(0u64, |sum, root| sum.saturating_add(root.1));
    (u128::from(sum) * 1_000_000_000 / u128::from(summary.span_ns.max(1))) as u64
}

fn strip(summary: &Summary, most: u64) -> String {
    if rate(summary) == 0 {
        return "<p class=\"soft\">Nothing was held up.</p>".into();
    }
    let mut sums: Vec<(&str, &str, u64)> = Vec::new();
    for (root, ns) in &summary.roots {
        let (class, name) = family(root);
        match sums.iter_mut().find(|sum| sum.0 == class) {
            Some(sum) => sum.2 = sum.2.saturating_add(*ns),
            None => sums.push((class, name, *ns)),
        }
    }
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.2));
    let words: Vec<String> = sums
        .iter()
        .take(3)
        .map(|(_, name, ns)| format!("{name} {}", time(*ns)))
        .collect();
    // As wide as what it waited for in a second, against the one that waited most.
    let whole = u128::from(most.max(1)) * u128::from(summary.span_ns) / 1_000_000_000;
    format!(
        "{}<p class=\"soft\">{}</p>",
        bar(&sums, u64::try_from(whole).unwrap_or(u64::MAX)),
        words.join(", ")
    )
}

fn entry(entry: &Entry, most: u64) -> String {
    let known = entry.known();
    let (_, clock) = date_time(entry.when());
    let mut facts = Vec::new();
    if let Some(known) = known {
        facts.push(duration_text(known.span_ns, false));
    }
    facts.push(bytes_text(entry.bytes));
    if known.is_some_and(|known| known.cut_off) {
        facts.push("cut off, or being written".into());
    }
    let says = match &entry.summary {
        None => "<p class=\"soft\">It is being read.</p>".to_owned(),
        Some(Err(why)) => format!("<p class=\"bad\">It cannot be read: {}.</p>", escape(why)),
        Some(Ok(known)) => {
            let words = match known.verdict.is_empty() {
                true => "It has no sentence about where its time went.".to_owned(),
                false => escape(&known.verdict),
            };
            let subject = match known.subject.is_empty() {
                true => String::new(),
                false => format!("<p class=\"soft\">{}</p>", escape(&known.subject)),
            };
            format!("<p>{words}</p>{}{subject}", strip(known, most))
        }
    };
    let whose = match policy(&entry.name) {
        Some(policy) => format!("<b>{}</b>", escape(policy)),
        None => String::new(),
    };
    format!(
        "<li><div class=\"when\"><a href=\"recording/{0}\" target=\"_blank\" rel=\"noopener\" id=\"{0}\">{clock}</a>{whose}<span class=\"soft\">{1}</span><span class=\"soft name\">{2}</span></div><div class=\"what\">{says}</div></li>\n",
        encoded(&entry.name),
        escape(&facts.join(", ")),
        // Broken at its dots, where it is too long for a line.
        escape(&entry.name).replace('.', "<wbr>."),
    )
}

fn day(entry: &Entry) -> String {
    date_time(entry.when()).0
}

pub fn history_part(listing: &Result<Listing, String>) -> String {
    let listing = match listing {
        Ok(listing) => listing,
        Err(why) => {
            return format!(
                "<div data-every=\"{HISTORY_EVERY_MS}\">\n<p class=\"state none\">There are no recordings to open: {}. \
                 <code>debox run -o NAME.debox</code> and <code>debox attach -o NAME.debox</code> make some; \
                 <code>--recordings DIR</code> names where they are.</p>\n</div>\n",
                escape(why)
            );
        }
    };
    let every = match listing.is_growing() {
        true => GROWING_EVERY_MS,
        false => HISTORY_EVERY_MS,
    };
    let mut out = format!("<div data-every=\"{every}\">\n");
    if listing.entries.is_empty() {
        out += "<p class=\"state none\">No recording is there yet.</p>\n";
        return out + "</div>\n";
    }
    let known = || {
        let entries = listing.entries.iter();
        entries.filter_map(Entry::known)
    };
    let most = known().map(rate).max().unwrap_or(0);
    let shown: Vec<&str> = known()
        .flat_map(|summary| &summary.roots)
        .map(|(root, _)| family(root).0)
        .collect();
    let keys = FAMILIES.map(family).into_iter();
    out += &format!(
        "<section aria-label=\"How to read it\">\n<p>A strip is as long as the time for which threads were held up, in each second; the longest is {}. Its colours are what that waiting ended in.</p>\n{}</section>\n",
        time(most),
        legend(keys.filter(|(class, _)| shown.contains(class)))
    );
    let mut at = 0;
    while let Some(first) = listing.entries.get(at) {
        let date = day(first);
        let of_day = listing.entries[at..].iter().take_while(|e| day(e) == date);
        let rows: Vec<String> = of_day.map(|e| entry(e, most)).collect();
        at += rows.len();
        out += &section(
            &format!("day-{date}-{at}"),
            &format!("{date} (UTC)"),
            &format!("<ol class=\"history\">\n{}</ol>\n", rows.concat()),
        );
    }
    if listing.left_out > 0 {
        let _ = writeln!(
            out,
            "<p class=\"soft\">{} older ones are not shown: {SHOWN_MOST} are the most.</p>",
            count_text(listing.left_out as u64)
        );
    }
    out + "</div>\n"
}

pub fn history(folder: &str, listing: &Result<Listing, String>) -> String {
    let controls = format!(
        "<span class=\"soft\">Recordings in {}</span>{RENEWAL}",
        escape(folder)
    );
    shell(
        Here::History,
        Some(""),
        "What it waited for",
        &controls,
        &history_part(listing),
        Some("part/history"),
    )
}

/// Something cannot be shown, and why. `up`: as of `shell`.
pub fn sorry(heading: &str, why: &str, up: Option<&str>) -> String {
    let body = format!("<p class=\"state none\">{}</p>\n", escape(why));
    shell(Here::Nowhere, up, &escape(heading), "", &body, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Call;

    const EVIL: &str = "</script><img src=x onerror=alert(1)>\"'&\u{202e}\u{1b}[2J";

    fn hostile() -> Live {
        let interval = Interval {
            span_ns: 1_000_000_000,
            verdict: vec![EVIL.into()],
            programs: vec![Program {
                name: EVIL.into(),
                unit: Some(EVIL.into()),
                cpu_ns: 5,
                ..Program::default()
            }],
            waits: vec![Wait {
                label: EVIL.into(),
                call: Some(EVIL.into()),
                place: Some(EVIL.into()),
                class: "loss",
                count: 1,
                total_ns: 9,
                ..Wait::default()
            }],
            roots: vec![Root {
                root: "disk",
                text: EVIL.into(),
                total_ns: 3,
            }],
            calls: vec![Call {
                call: EVIL.into(),
                count: 1,
                ..Call::default()
            }],
        };
        Live {
            title: EVIL.into(),
            now: interval.clone(),
            all: interval,
            notes: vec![EVIL.into()],
            ..Live::default()
        }
    }

    fn harmless(page: &str) {
        assert!(
            !page.contains("<img") && !page.contains('\u{1b}') && !page.contains('\u{202e}'),
            "{page}"
        );
        assert!(page.contains("&lt;img src=x"));
        // No script but the file, and no style: the policy admits none.
        assert_eq!(
            page.matches("<script").count(),
            page.matches("<script src=\"/script.js\"").count()
        );
        assert!(
            !page.contains("style=") && !page.contains("<style") && !page.contains(" onclick"),
            "{page}"
        );
    }

    #[test]
    fn nothing_foreign_leaves_its_place() {
        for span in [Span::Now, Span::All] {
            harmless(&live(&hostile(), span));
        }
        for state in [State::Over(EVIL.into()), State::NotWatched(EVIL.into())] {
            harmless(&live(&Live { state, ..hostile() }, Span::Now));
        }
        let folder = tempfile::tempdir().unwrap();
        let name = "<img src=x onerror=alert(1)>\"'.debox";
        std::fs::write(folder.path().join(name), "").unwrap();
        let history = crate::history::History::new(folder.path().into());
        let mut listing = history.list().unwrap();
        for summary in [
            None,
            Some(Err(EVIL.to_owned())),
            Some(Ok(Summary {
                subject: EVIL.into(),
                verdict: EVIL.into(),
                roots: vec![(EVIL.into(), 5)],
                span_ns: 10,
                ..Summary::default()
            })),
        ] {
            listing.entries[0].summary = summary;
            harmless(&super::history(EVIL, &Ok(listing.clone())));
        }
        harmless(&super::history(EVIL, &Err(EVIL.into())));
        harmless(&sorry(EVIL, EVIL, Some("../")));
    }

    #[test]
    fn times_are_of_a_second_or_of_all() {
        let scale = |totals| Scale {
            span_ns: 2_000_000_000,
            totals,
        };
        assert_eq!(scale(false).time(3_000_000_000), "1.50 s");
        assert_eq!(scale(true).time(3_000_000_000), "3.00 s");
        assert_eq!(
            (scale(false).count(1), scale(true).count(1)),
            ("0.5".into(), "1".into())
        );
        assert_eq!(scale(false).count(4_000), "2,000");
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (text, days) in [
            ((1970, 1, 1), 0),
            ((2000, 2, 29), 11_016),
            ((2024, 12, 31), 20_088),
            ((2026, 11, 27), 20_784),
        ] {
            let utc = Utc {
                year: text.0,
                month: text.1,
                day: text.2,
                ..Utc::of_seconds(0)
            };
            assert_eq!(utc.seconds(), Some(days * 86_400));
            let (date, clock) =
                date_time(i128::from(days) * 86_400_000_000_000 + 3_661_000_000_000);
            assert_eq!(date, format!("{:04}-{:02}-{:02}", text.0, text.1, text.2));
            assert_eq!(clock, "01:01:01");
        }
        let none = Utc {
            month: 13,
            ..Utc::of_seconds(0)
        };
        assert_eq!(none.seconds(), None);
    }
}
