// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does the HTML report work in a real browser?
//!
//! Pictures of what was seen are left in target/tmp/report-*.png.

#[path = "support/browser.rs"]
mod browser;
mod support;

use std::path::PathBuf;

use browser::Browser;
use debox_report::*;

fn dir() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

fn page(name: &str, report: &Report) -> PathBuf {
    let file = dir().join(format!("report-{name}.html"));
    std::fs::write(&file, render_html(report)).expect("writes the page");
    file
}

fn pictures(b: &mut Browser, name: &str) {
    for scheme in ["light", "dark"] {
        b.scheme(scheme);
        for width in [1920, 1280, 800, 400] {
            b.size(width, 900);
            b.eval("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))");
            let wide = b.number("document.documentElement.scrollWidth");
            assert!(
                wide <= f64::from(width),
                "{name} is {wide} wide in a window of {width}"
            );
            no_column_is_hidden(b, &format!("{name}, {width} wide"));
            b.eval("window.scrollTo(0, 0)");
            b.picture(&dir().join(format!("report-{name}-{scheme}-{width}.png")));
        }
    }
    b.size(1280, 900);
}

/// Of all rows, not only of those on the first pages: nothing to be scrolled to, and each
/// heading has its cells below it, or beside them.
fn no_column_is_hidden(b: &mut Browser, what: &str) {
    b.eval("window.dispatchEvent(new Event('beforeprint'))");
    let hidden = b.eval(
        "Array.from(document.querySelectorAll('.scroll')).filter(e => e.scrollWidth > e.clientWidth + 1).map(e => `${e.getAttribute('aria-label')}: ${e.scrollWidth} in ${e.clientWidth}`)",
    );
    assert_eq!(hidden, serde_json::json!([]), "{what}");
    let outside = b.eval(
        "Array.from(document.querySelectorAll('table.data td, table.matrix td')).filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).length",
    );
    assert_eq!(outside, serde_json::json!(0), "{what}");
    b.eval("window.dispatchEvent(new Event('afterprint'))");
}

/// One browser for all: starting it takes longer than the checks.
#[test]
fn report_works_in_a_browser() {
    let mut b = Browser::start();
    b.size(1280, 900);
    full_report(&mut b);
    pictures(&mut b, "server");
    colours(&mut b);
    paper(&mut b);
    hostile_texts(&mut b);
    without_script(&mut b);
    nothing_in_it(&mut b);
    comparison(&mut b);
}

fn full_report(b: &mut Browser) {
    b.open(&page("server", &support::server(500)));
    assert_eq!(b.text("document.documentElement.dataset.ready"), "1");
    assert_eq!(b.complaints(), Vec::<String>::new());

    // The first keys lead to the summary, and one sees where one is.
    b.key("Tab");
    assert_eq!(
        b.text("document.activeElement.textContent"),
        "Skip to: Summary"
    );
    b.key("Tab");
    assert_eq!(b.text("document.activeElement.id"), "theme");
    let outline = b.text("getComputedStyle(document.activeElement).outlineStyle + getComputedStyle(document.activeElement).outlineWidth");
    assert_eq!(outline, "solid3px");

    // Summary first.
    assert_eq!(
        b.text("document.querySelector('main section').id"),
        "summary"
    );
    assert_eq!(
        b.number("document.querySelectorAll('.findings > li').length"),
        3.0
    );
    assert!(
        b.text("document.querySelector('.findings h3').textContent")
            .contains("held by find (pid 4812) in getdents64")
    );
    assert!(
        b.text("document.querySelector('.warn').textContent")
            .contains("not complete")
    );

    // 500 call sites: a page of 25, in order, sorted by any column. What did not find room
    // is counted.
    let left = b.text("document.querySelector('#sites .left').textContent");
    let left: usize = left.split(' ').next().unwrap().parse().expect("a number");
    assert!(left < 250, "{left}");
    let rows = "document.querySelectorAll('#t-sites tbody tr').length";
    let first = "document.querySelector('#t-sites tbody tr th').textContent";
    let counts = "Array.from(document.querySelectorAll('#t-sites tbody tr td:nth-child(3)'), c => Number(c.textContent.replace(/,/g, '')))";
    assert_eq!(b.number(rows), 25.0);
    b.click("#t-sites thead th:nth-child(3) button");
    assert_eq!(
        b.text(
            "document.querySelector('#t-sites thead th:nth-child(3)').getAttribute('aria-sort')"
        ),
        "descending"
    );
    let down: Vec<f64> = serde_json::from_value(b.eval(counts)).unwrap();
    assert!(down.is_sorted_by(|x, y| x >= y), "{down:?}");
    // The same with the keyboard.
    b.eval("document.querySelector('#t-sites thead th:nth-child(3) button').focus()");
    b.key("Enter");
    let up: Vec<f64> = serde_json::from_value(b.eval(counts)).unwrap();
    assert!(up.is_sorted() && up != down, "{up:?}");

    // Pages, and a filter of several words.
    let before = b.text(first);
    b.click("[aria-label^='Next rows: Calls by the place']");
    assert_ne!(b.text(first), before);
    b.eval("document.getElementById('t-sites-filter').focus()");
    for key in "handler_4 read".chars() {
        b.key(&key.to_string());
    }
    let found = "Array.from(document.querySelectorAll('#t-sites tbody tr'), r => r.textContent)";
    let found: Vec<String> = serde_json::from_value(b.eval(found)).unwrap();
    assert!(!found.is_empty() && found.len() < 25, "{found:?}");
    assert!(
        found
            .iter()
            .all(|t| t.contains("handler_4") && t.contains("read")),
        "{found:?}"
    );
    let status = "document.querySelector('#sites .status').textContent";
    assert!(
        b.text(status)
            .ends_with(&format!("rows that match, of {}", 500 - left)),
        "{}",
        b.text(status)
    );

    // A call's histogram, by its button.
    b.click("#t-calls tbody tr:nth-child(3) th button");
    let name = b.text("document.querySelector('#t-calls tbody tr.chosen th').textContent");
    assert!(
        b.text("document.querySelector('#histogram h3').textContent")
            .contains(&name)
    );
    b.eval("document.querySelector('#histogram svg').focus()");
    b.key("ArrowRight");
    let readout = b.text("document.querySelector('#histogram .readout').textContent");
    assert!(
        readout.contains(" calls (") && readout.contains("took no longer"),
        "{readout}"
    );

    // Matrix: times, then counts.
    let cell = "document.querySelector('#t-matrix tbody td.heat').innerText";
    let times = b.text(cell);
    b.click("#matrix-by");
    assert_ne!(b.text(cell), times);
    b.click("#matrix-by");
    assert_eq!(b.text(cell), times);

    flame(b);
    timeline(b);

    // Charts: the one with a trend first, with its words.
    assert!(b.number("document.querySelectorAll('#trend-charts svg').length") >= 4.0);
    assert!(
        b.text("document.querySelector('#trend-charts h3').textContent")
            .starts_with("clone: 300 µs → 12.0 ms")
    );
    // One slow point does not press the others flat, and is told of.
    assert_eq!(
        b.text("Array.from(document.querySelectorAll('#trend-charts .card')).find(c => c.querySelector('h3').textContent.startsWith('fsync')).querySelector('.above').textContent.replace(/up to .*/, '')"),
        "1 point higher, "
    );
    b.eval("document.querySelector('#trend-charts svg').focus()");
    b.key("ArrowRight");
    let readout = b.text("document.querySelector('#trend-charts .readout').textContent");
    assert!(readout.starts_with("Calls 1 to 2,"), "{readout}");

    // Whatever can be focused can be seen to be, and has a name.
    let nameless = b.eval(
        "Array.from(document.querySelectorAll('button, input, select, a, [tabindex=\"0\"]')).filter(e => !(e.textContent.trim() || e.getAttribute('aria-label'))).map(e => e.outerHTML)",
    );
    assert_eq!(nameless, serde_json::json!([]));
    assert_eq!(b.complaints(), Vec::<String>::new());
}

fn flame(b: &mut Browser) {
    let stands = "document.getElementById('flame-stands').textContent";
    let text = b.text(stands);
    assert!(
        text.starts_with("The whole width is ") && text.contains(" of the run time of "),
        "{text}"
    );
    assert!(text.contains("of waiting for work is left out"), "{text}");
    let names = "Array.from(document.querySelectorAll('#flame-graph [role=treeitem]'), e => e.getAttribute('aria-label'))";
    let all: Vec<String> = serde_json::from_value(b.eval(names)).unwrap();
    assert!(
        all.iter()
            .any(|n| n.starts_with("cache_open (cache.c:77, webserver): 9.11 s in 3,752 sleeps")),
        "{all:#?}"
    );
    assert!(
        all.iter()
            .any(|n| n.starts_with("open_last_lookups (fs/namei.c:3517): 6.21 s")),
        "{all:#?}"
    );
    // Waiting for work is left out until asked for.
    assert!(!all.iter().any(|n| n.starts_with("ep_poll")), "{all:#?}");
    b.click("#flame-idle");
    let with: Vec<String> = serde_json::from_value(b.eval(names)).unwrap();
    assert!(with.iter().any(|n| n.starts_with("ep_poll")), "{with:#?}");
    b.click("#flame-idle");

    // Zoom with the mouse, back with a button.
    b.click("#flame-graph [aria-label^='cache_open']");
    let width = |b: &mut Browser, name: &str| {
        b.number(&format!(
            "document.querySelector(\"#flame-graph [aria-label^='{name}']\").getBoundingClientRect().width / document.getElementById('flame-graph').clientWidth"
        ))
    };
    assert!(width(b, "cache_open") > 0.98);
    b.click("#flame-reset");
    let part = width(b, "cache_open");
    assert!(part > 0.5 && part < 0.9, "{part}");

    // And with keys: down twice, zoom, out.
    b.eval("document.querySelector('#flame-graph [tabindex=\"0\"]').focus()");
    b.key("ArrowDown");
    b.key("ArrowDown");
    let at = b.text("document.activeElement.getAttribute('aria-label')");
    assert!(at.starts_with("serve_request"), "{at}");
    b.key("ArrowDown");
    b.key("ArrowRight");
    let at = b.text("document.activeElement.getAttribute('aria-label')");
    assert!(at.starts_with("read_body"), "{at}");
    b.key("Enter");
    assert!(width(b, "read_body") > 0.98);
    b.key("Escape");
    assert!(width(b, "read_body") < 0.5);

    // Search.
    b.eval("document.getElementById('flame-search').focus()");
    for key in "jbd2".chars() {
        b.key(&key.to_string());
    }
    assert!(b.number("document.querySelectorAll('#flame-graph .hit').length") >= 1.0);
    let status = b.text("document.querySelector('#flame .status').textContent");
    assert!(status.ends_with("in frames that match"), "{status}");
    b.eval("(() => { const s = document.getElementById('flame-search'); s.value = ''; s.dispatchEvent(new Event('input')); })()");
}

fn timeline(b: &mut Browser) {
    let sleeps = "document.querySelectorAll('#timeline-chart .sleep').length";
    let status = "document.querySelector('#timeline .status').textContent";
    assert_eq!(b.text(status), "120 calls");
    // From the table, with the keyboard, and the details follow.
    b.eval("document.querySelector('#t-slow tbody tr th button').focus()");
    b.key("Enter");
    assert!(b.number(sleeps) >= 2.0);
    assert!(b.text(status).contains(" to "));
    let detail = b.text("document.getElementById('timeline-detail').innerText");
    assert!(
        detail.contains("inode-lock") && detail.contains("find 4812 in getdents64"),
        "{detail}"
    );
    b.eval("document.getElementById('timeline-chart').focus()");
    b.key("n");
    let after = b.text("document.getElementById('timeline-detail').innerText");
    assert_ne!(after, detail);
    let zoomed = b.text(status);
    b.key("-");
    assert_ne!(b.text(status), zoomed);
    b.key("0");
    assert_eq!(b.text(status), "120 calls");
    // With the mouse: a stretch is marked and shown.
    let (x, y) = b.middle("#timeline-chart");
    b.drag((x - 100.0, y), (x + 100.0, y));
    let marked = b.text(status);
    assert!(marked.contains(" to "), "{marked}");
    b.click("#timeline-all");
    assert_eq!(b.text(status), "120 calls");
}

fn colours(b: &mut Browser) {
    let back = "getComputedStyle(document.body).backgroundColor";
    b.scheme("light");
    let light = b.text(back);
    b.scheme("dark");
    let dark = b.text(back);
    assert_ne!(light, dark);
    // The button overrules the system, in a circle of three.
    b.eval("window.scrollTo(0, 0)");
    b.click("#theme");
    assert_eq!(b.text(back), light);
    b.click("#theme");
    b.scheme("light");
    assert_eq!(b.text(back), dark);
    b.click("#theme");
    assert_eq!(b.text(back), light);
    assert_eq!(
        b.text("document.getElementById('theme').textContent"),
        "Colours: automatic"
    );
    // Text stays readable on its ground (WCAG AA asks for 4.5).
    for scheme in ["light", "dark"] {
        b.scheme(scheme);
        let poor = b.poor_contrasts();
        assert_eq!(poor, serde_json::json!([]), "{scheme}");
    }
    b.scheme("light");
}

fn paper(b: &mut Browser) {
    let file = dir().join("report-server.pdf");
    b.pdf(&file);
    let bytes = std::fs::read(&file).expect("the PDF");
    assert!(bytes.starts_with(b"%PDF-") && bytes.len() > 20_000);
    // On paper the tables are not cut to a page of the screen; afterwards they are.
    b.eval("window.dispatchEvent(new Event('beforeprint'))");
    assert_eq!(
        b.number("document.querySelectorAll('#t-slow tbody tr').length"),
        120.0
    );
    b.eval("window.dispatchEvent(new Event('afterprint'))");
    assert_eq!(
        b.number("document.querySelectorAll('#t-slow tbody tr').length"),
        15.0
    );
}

fn hostile_texts(b: &mut Browser) {
    b.open(&page("hostile", &support::hostile()));
    assert_eq!(b.text("document.documentElement.dataset.ready"), "1");
    assert_eq!(b.complaints(), Vec::<String>::new());
    // Nothing of theirs became an element: one data block, one script, ours.
    assert_eq!(b.number("document.scripts.length"), 2.0);
    assert_eq!(
        b.number("document.querySelectorAll('img, iframe, object, link, script[src]').length"),
        0.0
    );
    let title = b.text("document.title");
    assert!(
        title.contains("</script><script>alert(1)</script>"),
        "{title}"
    );
    let comm = b.text("document.querySelector('#t-threads tbody th').textContent");
    assert!(
        comm.starts_with("</script><script>alert(1)</script><!-- '\"&lt;"),
        "{comm}"
    );
    // The flame graph and the details show them as text.
    let flame = b.text("document.getElementById('flame-graph').textContent");
    assert!(flame.contains("</script>"), "{flame}");
    let detail = b.text("document.getElementById('timeline-detail').textContent");
    assert!(detail.contains("</script>"), "{detail}");
    // Were a script smuggled in nevertheless, the policy would stop it.
    b.eval("(() => { const s = document.createElement('script'); s.textContent = 'window.smuggled = 1'; document.body.append(s); })()");
    assert_eq!(
        b.eval("typeof window.smuggled"),
        serde_json::json!("undefined")
    );
    assert!(
        b.complaints()
            .iter()
            .any(|c| c.contains("Content Security Policy"))
    );
}

fn without_script(b: &mut Browser) {
    b.ask(
        "Emulation.setScriptExecutionDisabled",
        serde_json::json!({"value": true}),
    );
    b.open(&page("server", &support::server(500)));
    let document = b.ask("DOM.getDocument", serde_json::json!({"depth": 0}));
    let count = |b: &mut Browser, selector: &str| {
        let found = b.ask(
            "DOM.querySelectorAll",
            serde_json::json!({"nodeId": document["root"]["nodeId"], "selector": selector}),
        );
        found["nodeIds"].as_array().expect("nodes").len()
    };
    assert_eq!(count(b, ".findings > li"), 3);
    assert!(count(b, "#t-sites tbody tr") > 250);
    assert_eq!(count(b, "#sites .left"), 1);
    assert_eq!(count(b, "#t-calls tbody tr"), 20);
    assert_eq!(count(b, "#t-calls .spark path"), 20);
    assert_eq!(count(b, "#t-slow tbody tr"), 120);
    assert!(count(b, "#t-time .bar span") > 20);
    assert!(count(b, "#t-matrix td.heat") >= 10);
    b.picture(&dir().join("report-noscript.png"));
    b.ask(
        "Emulation.setScriptExecutionDisabled",
        serde_json::json!({"value": false}),
    );
}

fn nothing_in_it(b: &mut Browser) {
    b.open(&page("empty", &support::empty()));
    assert_eq!(b.text("document.documentElement.dataset.ready"), "1");
    assert_eq!(b.complaints(), Vec::<String>::new());
    assert_eq!(
        b.text("document.querySelector('.none').textContent"),
        "No calls were counted, so there is nothing to find."
    );
}

fn comparison(b: &mut Browser) {
    let before = support::server(40);
    let mut after = support::server(40);
    after.run.wall_ns /= 2;
    for call in after.calls.iter_mut().filter(|c| c.name == "fsync") {
        for bucket in &mut call.histogram {
            bucket.from_ns /= 4;
            bucket.to_ns = bucket.to_ns.map(|ns| ns / 4);
        }
        call.mean_ns = call.mean_ns.map(|ns| ns / 4);
        call.wall_ns = call.wall_ns.map(|ns| ns / 4);
    }
    after.history.retain(|h| h.call != "fsync");
    let open = |b: &mut Browser, name: &str, a: &Report, z: &Report| {
        let options = DiffOptions {
            force: true,
            ..Default::default()
        };
        let found = diff(a, z, &options).expect("forced");
        let file = dir().join(format!("diff-{name}.html"));
        std::fs::write(&file, render_diff_html(&found)).expect("writes the page");
        b.open(&file);
        assert_eq!(b.complaints(), Vec::<String>::new());
        found
    };
    let found = open(b, "server", &before, &after);
    assert!(!found.changes.is_empty());
    assert_eq!(
        b.number("document.querySelectorAll('#t-changes tbody tr').length"),
        found.changes.len() as f64
    );
    pictures(b, "diff");
    // Names of theirs stay text.
    let mut evil = support::hostile();
    for call in &mut evil.calls {
        call.count = call.count.max(100);
    }
    open(b, "hostile", &before, &evil);
    assert_eq!(b.number("document.scripts.length"), 2.0);
    assert_eq!(
        b.number("document.querySelectorAll('img, iframe, object, link, script[src]').length"),
        0.0
    );
    let text = b.text("document.body.textContent");
    assert!(text.contains("</script><script>alert(1)</script>"));
    assert_eq!(
        b.eval("typeof window.smuggled"),
        serde_json::json!("undefined")
    );
}
