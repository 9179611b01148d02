// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do the pages of `debox serve` work in a real browser?
//!
//! Pictures of what was seen are left in target/tmp/serve-*.png.

#[allow(dead_code)] // What it can do beyond this is for the reports' tests.
#[path = "../../report/tests/support/browser.rs"]
mod browser;
#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;
#[path = "../../../tests/needs.rs"]
mod needs;
#[path = "../../report/tests/support/mod.rs"]
mod reports;
mod support;

use browser::Browser;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use support::{Server, sleeper, wait_until};

fn pictures(b: &mut Browser, name: &str) {
    for scheme in ["light", "dark"] {
        b.scheme(scheme);
        for width in [1280, 390] {
            b.size(width, 900);
            b.eval("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))");
            let wide = b.number("document.documentElement.scrollWidth");
            assert!(
                wide <= f64::from(width),
                "{name} is {wide} wide in a window of {width}"
            );
            let outside = b.eval(
                "Array.from(document.querySelectorAll('td, th, p, svg')).filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.outerHTML.slice(0, 80))",
            );
            assert_eq!(outside, serde_json::json!([]), "{name}, {width} wide");
            let file = format!("serve-{name}-{scheme}-{width}.png");
            b.picture(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(file));
        }
        let poor = b.poor_contrasts();
        assert_eq!(poor, serde_json::json!([]), "{name}, {scheme}");
    }
    b.scheme("light");
    b.size(1280, 900);
}

/// What the page complained about, and what it asked for elsewhere.
fn complaints(b: &mut Browser, server: &Server) -> Vec<String> {
    let own = format!("asked for \"http://{}/", server.place);
    let mut list = b.complaints();
    list.retain(|line| !line.starts_with(&own));
    list
}

struct Busy(Vec<Child>);

impl Busy {
    /// Some that compute, some that wait for a disk, some that sleep.
    fn start(folder: &Path) -> Self {
        let evil = sleeper(folder, "<b>\"evil\"");
        let file = folder.join("file");
        let mut busy = Self(Vec::new());
        let mut start = |command: &mut Command| busy.0.push(command.spawn().unwrap());
        for _ in 0..4 {
            start(Command::new("sh").args(["-c", "while :; do :; done"]));
        }
        let write =
            "while :; do dd if=/dev/zero of=\"$0\" bs=64k count=64 oflag=dsync 2>/dev/null; done";
        start(Command::new("sh").args(["-c", write]).arg(&file));
        start(Command::new(evil).arg("600"));
        busy
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One browser for all: starting it takes longer than the checks.
#[test]
fn pages_work_in_a_browser() {
    if !needs::bpf() {
        return;
    }
    let folder = tempfile::Builder::new()
        .prefix("debox-serve-")
        .tempdir_in("/var/tmp")
        .unwrap();
    let recordings = folder.path().join("recordings");
    std::fs::create_dir(&recordings).unwrap();
    let _busy = Busy::start(folder.path());
    let mut server = Server::start(&[
        "--capture",
        "boundary",
        "--recordings",
        recordings.to_str().unwrap(),
    ]);
    let mut b = Browser::start();
    b.size(1280, 900);
    without_token(&mut b, &server);
    live(&mut b, &server);
    another_port(&mut b);
    history(&mut b, &server, &recordings);
    recording(&mut b, &server);
    without_script(&mut b, &server);
    gone(&mut b, &mut server);
    nobody(&mut b, &recordings);
}

fn without_token(b: &mut Browser, server: &Server) {
    b.visit(&format!("http://{}/", server.place));
    let said = b.text("document.querySelector('.state').textContent");
    assert!(
        said.starts_with("Open the address that debox serve printed"),
        "{said}"
    );
    // It looks like a page of ours even so.
    let page = b.text("getComputedStyle(document.querySelector('.state')).borderLeftStyle");
    assert_eq!(page, "solid");
    pictures(b, "token");
}

/// A page by the address that has the token.
fn visit(b: &mut Browser, server: &Server, path: &str) {
    b.visit(&format!(
        "http://{}/{path}?token={}",
        server.place, server.token
    ));
}

/// What a server at another port, somebody else's perhaps, is sent by a browser that knows ours.
fn another_port(b: &mut Browser) {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = other.local_addr().unwrap();
    let asked = std::thread::spawn(move || {
        let mut heads = Vec::new();
        while !heads
            .iter()
            .any(|head: &String| head.starts_with("GET /end "))
        {
            let (mut socket, _) = other.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                match socket.read(&mut byte) {
                    Ok(1) => head.push(byte[0]),
                    _ => break,
                }
            }
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
            let _ = socket.write_all(answer.as_bytes());
            heads.push(String::from_utf8_lossy(&head).into_owned());
        }
        heads
    });
    for path in ["", "history", "recording/0.debox", "end"] {
        b.visit(&format!("http://{place}/{path}"));
    }
    let heads = asked.join().unwrap();
    assert!(heads.len() >= 4, "{heads:?}");
    for head in heads {
        assert!(!head.to_ascii_lowercase().contains("cookie"), "{head}");
    }
}

fn live(b: &mut Browser, server: &Server) {
    visit(b, server, "");
    let place = b.text("location.pathname + location.search");
    assert!(place.len() == 34 && place.ends_with('/'), "{place}");
    assert_eq!(b.text("document.cookie"), "");
    assert_eq!(b.text("document.documentElement.dataset.ready"), "1");
    assert_eq!(complaints(b, server), Vec::<String>::new());
    assert_eq!(
        b.text("document.querySelector('h1').textContent"),
        "The whole machine"
    );
    // It is renewed by itself.
    let state = "document.querySelector('.state').textContent";
    let first = b.text(state);
    assert!(first.starts_with("Live: the last "), "{first}");
    b.eval("document.querySelector('#part > div').dataset.first = '1'");
    wait_until("it is renewed", || {
        b.eval("document.querySelector('#part > div').dataset.first")
            .is_null()
    });
    wait_until("programs are told of", || {
        b.number("document.querySelectorAll('#programs ~ table tbody tr').length") > 3.0
    });
    assert!(
        b.text("document.getElementById('renewed').textContent")
            .starts_with("As of ")
    );
    // Bars have the sizes that their numbers have: widths are attributes, as the policy wants.
    let wide =
        b.number("document.querySelector('#programs ~ table rect').getBoundingClientRect().width");
    assert!(wide > 1.0, "{wide}");
    // What is open stays open, and the keyboard where it is.
    wait_until("somebody rests", || {
        b.eval("document.getElementById('idle') !== null") == true
    });
    b.click("#idle-summary");
    b.eval("document.getElementById('idle-summary').focus()");
    b.eval("document.querySelector('#part > div').dataset.first = '1'");
    wait_until("it is renewed", || {
        b.eval("document.querySelector('#part > div').dataset.first")
            .is_null()
    });
    assert_eq!(b.eval("document.getElementById('idle').open"), true);
    assert_eq!(b.text("document.activeElement.id"), "idle-summary");
    b.click("#idle-summary");
    // Paused, nothing moves.
    b.click("#pause");
    assert_eq!(
        b.text("document.getElementById('pause').textContent"),
        "Go on"
    );
    let before = b.text("document.getElementById('part').innerHTML");
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert_eq!(b.text("document.getElementById('part').innerHTML"), before);
    pictures(b, "live");
    b.click("#pause");
    // All of the time, and a name that would be an element.
    b.click(".controls a[href='./?of=all']");
    wait_until("the other page", || {
        b.text("location.search") == "?of=all" && b.text("document.readyState") == "complete"
    });
    assert!(b.text(state).contains("since the watch began"));
    assert_eq!(b.number("document.querySelectorAll('#part b').length"), 0.0);
    pictures(b, "all");
    assert_eq!(complaints(b, server), Vec::<String>::new());
    // Were a script smuggled in nevertheless, the policy would stop it.
    b.eval("(() => { const s = document.createElement('script'); s.textContent = 'window.smuggled = 1'; document.body.append(s); })()");
    b.eval("(() => { const d = document.createElement('div'); d.innerHTML = '<img src=x onerror=\"window.smuggled = 1\">'; document.body.append(d); })()");
    assert_eq!(b.text("typeof window.smuggled"), "undefined");
    assert!(
        complaints(b, server)
            .iter()
            .any(|line| line.contains("Content Security Policy"))
    );
}

fn history(b: &mut Browser, server: &Server, recordings: &Path) {
    visit(b, server, "history");
    assert!(
        b.text("document.getElementById('part').textContent")
            .contains("No recording is there yet.")
    );
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    for at in 0..9u64 {
        let mut report = reports::server(40);
        let started = now.as_secs() - at * 4 * 3600;
        report.run.started_unix_ns = Some(started * 1_000_000_000);
        report.verdict = vec![format!(
            "Of the time that requests took, {} % were waits for the disk: fsync in 3 workers, held up by the log of the file system.",
            20 + 7 * at
        )];
        roots(&mut report, at);
        let name = format!("{at}.debox");
        std::fs::write(recordings.join(name), debox_report::render_json(&report)).unwrap();
    }
    std::fs::write(recordings.join("<i>broken.debox"), "nonsense").unwrap();
    std::fs::write(
        recordings.join("hostile.debox"),
        debox_report::render_json(&reports::hostile()),
    )
    .unwrap();
    visit(b, server, "history");
    wait_until("all is read", || {
        let rows = b.number("document.querySelectorAll('.history > li').length");
        rows == 11.0
            && !b
                .text("document.getElementById('part').textContent")
                .contains("It is being read")
    });
    assert_eq!(complaints(b, server), Vec::<String>::new());
    assert_eq!(b.number("document.querySelectorAll('#part i').length"), 0.0);
    assert!(b.number("document.querySelectorAll('.what .bar rect').length") >= 9.0);
    pictures(b, "history");
}

/// Sleeps that ended in several things, some more of one and less of another.
fn roots(report: &mut debox_report::Report, at: u64) {
    let kinds = [
        ("disk", 2_000 + 900 * at),
        ("runq", 400 + 350 * (at % 4)),
        ("ran_user", 900 / (at + 1)),
        ("network", 150 * (at % 3)),
        ("unseen", 120),
    ];
    let mut document = serde_json::to_value(&*report).unwrap();
    let (mut links, mut chains) = (Vec::new(), Vec::new());
    for (kind, ms) in kinds {
        let first = links.len();
        let sleep = serde_json::json!({"kind": "sleep", "comm": "webserver", "parent": first + 1, "held": false});
        let mut root = sleep.clone();
        root["kind"] = kind.into();
        root["parent"] = serde_json::Value::Null;
        links.extend([sleep, root]);
        chains.push(serde_json::json!({"first": first, "count": 10, "total_ns": ms * 1_000_000, "max_ns": 1}));
    }
    document["chain_links"] = links.into();
    document["chains"] = chains.into();
    *report = serde_json::from_value(document).unwrap();
}

fn recording(b: &mut Browser, server: &Server) {
    visit(b, server, "recording/hostile.debox");
    assert_eq!(b.text("document.documentElement.dataset.ready"), "1");
    assert_eq!(complaints(b, server), Vec::<String>::new());
    assert_eq!(b.number("document.scripts.length"), 2.0);
    // A place of its own, that can ask this server nothing.
    assert_eq!(b.text("self.origin"), "null");
    let asked = "fetch('../api/live.json').then(a => a.text(), e => 'refused')";
    assert_eq!(b.text(asked), "refused");
    visit(b, server, "recording/0.debox");
    assert_eq!(b.text("document.documentElement.dataset.ready"), "1");
    b.click("#theme");
    assert_eq!(
        b.text("document.getElementById('theme').textContent"),
        "Colours: light"
    );
    b.click("#t-calls tbody tr:nth-child(3) th button");
    assert!(b.number("document.querySelectorAll('#histogram svg').length") > 0.0);
    assert_eq!(complaints(b, server), Vec::<String>::new());
    visit(b, server, "recording/none.debox");
    assert!(
        b.text("document.querySelector('.state').textContent")
            .contains("no recording of that name")
    );
    pictures(b, "missing");
}

fn without_script(b: &mut Browser, server: &Server) {
    b.ask(
        "Emulation.setScriptExecutionDisabled",
        serde_json::json!({"value": true}),
    );
    visit(b, server, "");
    let document = b.ask("DOM.getDocument", serde_json::json!({"depth": 0}));
    let root = &document["root"]["nodeId"];
    let found = b.ask(
        "DOM.querySelectorAll",
        serde_json::json!({"nodeId": root, "selector": "#programs ~ table tbody tr"}),
    );
    assert!(found["nodeIds"].as_array().unwrap().len() > 3);
    b.ask(
        "Emulation.setScriptExecutionDisabled",
        serde_json::json!({"value": false}),
    );
}

/// The server ends while somebody looks.
fn gone(b: &mut Browser, server: &mut Server) {
    visit(b, server, "");
    assert_eq!(b.text("document.documentElement.dataset.ready"), "1");
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    let renewed = "document.getElementById('renewed').textContent";
    wait_until("the page says so", || {
        b.text(renewed).starts_with("No answer since ")
    });
    assert_eq!(
        b.eval("document.getElementById('part').classList.contains('old')"),
        true
    );
}

fn nobody(b: &mut Browser, recordings: &Path) {
    let server = Server::of(recordings);
    visit(b, &server, "");
    assert!(
        b.text("document.querySelector('.state').textContent")
            .starts_with("Nobody is watched: ")
    );
    assert_eq!(complaints(b, &server), Vec::<String>::new());
    pictures(b, "nobody");
}
