// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox serve`: who may look, at what, and what can somebody do who wrote what is shown?

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;
#[path = "../../../tests/needs.rs"]
mod needs;
#[path = "../../report/tests/support/mod.rs"]
mod reports;
mod support;

use support::{READY, Server, debox, sleeper, wait_until};

const PATHS: [&str; 9] = [
    "/",
    "/?of=all",
    "/part/live",
    "/api/live.json",
    "/history",
    "/part/history",
    "/recording/a.debox",
    "/recording/..%2f..%2fetc%2fpasswd",
    "/nothing",
];

#[test]
fn nobody_looks_without_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of(folder.path());
    assert!(server.token.len() >= 43, "{}", server.token);
    let wrong = server
        .token
        .replace(|c: char| c.is_ascii_alphanumeric(), "a");
    for path in PATHS {
        let none = server.ask("GET", path, &["Host: localhost"]);
        assert_eq!(none.status, 401, "{path}");
        assert!(
            none.body
                .contains("Open the address that debox serve printed"),
            "{none:?}"
        );
        assert_eq!(none.line("WWW-Authenticate"), Some("Bearer"));
        for line in [
            format!("Cookie: debox-1={}", server.token),
            format!(
                "Cookie: debox-{}={wrong}",
                server.place.rsplit(':').next().unwrap()
            ),
            format!("Cookie: {}", server.token),
        ] {
            assert_eq!(
                server.ask("GET", path, &["Host: localhost", &line]).status,
                401,
                "{line}"
            );
        }
        let (short, long) = (&server.token[1..], format!("{}x", server.token));
        for given in ["x", &wrong, short, &long] {
            let line = format!("Authorization: Bearer {given}");
            let answer = server.ask("GET", path, &["Host: localhost", &line]);
            assert_eq!(answer.status, 403, "{given}");
        }
        for given in ["", "x", &wrong, short, &long] {
            let with = format!("{}?token={given}", path.split('?').next().unwrap());
            assert_eq!(
                server.ask("GET", &with, &["Host: localhost"]).status,
                403,
                "{given}"
            );
        }
    }
    // Nothing of what is shown is in what they are told.
    let told = server.ask("GET", "/history", &["Host: localhost"]).body;
    assert!(!told.contains(folder.path().to_str().unwrap()), "{told}");
}

#[test]
fn the_token_of_the_address_is_kept_in_a_cookie() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of(folder.path());
    let with = format!("/history?token={}", server.token);
    let answer = server.ask("GET", &with, &["Host: localhost"]);
    assert_eq!(answer.status, 303);
    let to = answer.line("Location").unwrap();
    let folder_of = to.strip_suffix("history").unwrap();
    // Cookies know no ports: a server of somebody else's would have to guess it to be sent this one.
    assert!(
        folder_of.len() == 34
            && folder_of
                .trim_matches('/')
                .bytes()
                .all(|b| b.is_ascii_hexdigit()),
        "{to}"
    );
    let elsewhere = format!("//evil.example/history?token={}", server.token);
    let kept = server.ask("GET", &elsewhere, &["Host: localhost"]);
    let inside = format!("{folder_of}evil.example/history");
    assert_eq!(kept.line("Location"), Some(&*inside));
    let cookie = answer.line("Set-Cookie").unwrap();
    assert!(
        cookie.ends_with(&format!("; Path={folder_of}; HttpOnly; SameSite=Strict")),
        "{cookie}"
    );
    let port = server.place.rsplit(':').next().unwrap();
    assert!(cookie.starts_with(&format!("debox-{port}=")), "{cookie}");
    let pair = format!("Cookie: {}", cookie.split(';').next().unwrap());
    for path in [to, folder_of, &format!("{folder_of}part/live"), "/history"] {
        let answer = server.ask("GET", path, &["Host: localhost", &pair]);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
    }
    // Of a page of another site, whose browser says so.
    let from = ["Host: localhost", &pair, "Sec-Fetch-Site: cross-site"];
    assert_eq!(server.ask("GET", "/history", &from).status, 403);
    // Each server has its own.
    let other = Server::of(folder.path());
    assert_ne!(other.token, server.token);
    assert_eq!(
        other
            .ask("GET", "/history", &["Host: localhost", &pair])
            .status,
        401
    );
}

#[test]
fn another_name_that_leads_here_is_not_answered() {
    let folder = tempfile::tempdir().unwrap();
    let options = [
        "--no-watch",
        "--host",
        "box.example",
        "--recordings",
        folder.path().to_str().unwrap(),
    ];
    let server = Server::start(&options);
    let bearer = format!("Authorization: Bearer {}", server.token);
    for (host, status) in [
        ("Host: evil.example", 421),
        ("Host: 127.0.0.1.evil.example:80", 421),
        ("Host: 10.0.0.1", 421),
        ("X: y", 421),
        ("Host: box.example:80", 200),
        ("Host: 127.0.0.1:1", 200),
        ("Host: [::1]:1", 200),
    ] {
        for path in ["/history", "/style.css"] {
            assert_eq!(
                server.ask("GET", path, &[host, &bearer]).status,
                status,
                "{host}"
            );
        }
        // The token in the address helps them as little.
        let with = format!("/?token={}", server.token);
        let expected = if status == 200 { 303 } else { status };
        assert_eq!(server.ask("GET", &with, &[host]).status, expected, "{host}");
    }
}

#[test]
fn every_answer_is_hardened_and_nothing_can_be_changed() {
    let folder = tempfile::tempdir().unwrap();
    let json = debox_report::render_json(&reports::server(20));
    std::fs::write(folder.path().join("a.debox"), json).unwrap();
    let server = Server::of(folder.path());
    let bearer = format!("Authorization: Bearer {}", server.token);
    let files = ["/style.css", "/script.js", "/icon.svg"];
    for path in PATHS.into_iter().chain(files) {
        for lines in [
            &["Host: localhost"][..],
            &["Host: localhost", &bearer],
            &["Host: evil"],
        ] {
            let answer = server.ask("GET", path, lines);
            for (name, value) in [
                ("X-Content-Type-Options", "nosniff"),
                ("Referrer-Policy", "no-referrer"),
                ("Cache-Control", "no-store"),
                ("X-Frame-Options", "DENY"),
                ("Cross-Origin-Opener-Policy", "same-origin"),
                ("Cross-Origin-Resource-Policy", "same-origin"),
            ] {
                assert_eq!(answer.line(name), Some(value), "{path}: {}", answer.head);
            }
            let policy = answer.line("Content-Security-Policy").unwrap();
            assert!(policy.starts_with("default-src 'none'; "), "{policy}");
            assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
            assert!(
                policy.contains("form-action 'none'") && policy.contains("base-uri 'none'"),
                "{policy}"
            );
            let script = policy
                .split("; ")
                .find(|part| part.starts_with("script-src "));
            let script = script.unwrap();
            assert!(
                !script.contains("unsafe") && !script.contains('*'),
                "{policy}"
            );
            // The page of a recording is a place of its own.
            let recording = answer.status == 200 && path.starts_with("/recording/");
            assert_eq!(
                policy.contains("sandbox allow-scripts"),
                recording,
                "{policy}"
            );
            assert_eq!(policy.contains("unsafe-inline"), recording, "{policy}");
        }
    }
    for method in [
        "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT",
    ] {
        let answer = server.ask(method, "/", &["Host: localhost", &bearer]);
        assert_eq!(answer.status, 405, "{method}");
        assert_eq!(answer.line("Allow"), Some("GET, HEAD"), "{method}");
    }
    let head = server.ask("HEAD", "/history", &["Host: localhost", &bearer]);
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[test]
fn a_socket_is_for_its_user_by_the_kernels_word() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("serve.sock");
    let name = path.to_str().unwrap();
    let mut server = Server::start(&["--no-watch", "--listen", name]);
    let said = server.lines.join("");
    assert!(said.contains("ssh -L 8080:"), "{said}");
    assert_eq!(server.token, "");
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let answer = server.ask("GET", "/history", &["Host: localhost:8080"]);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(
        server
            .ask("GET", "/history", &["Host: evil.example"])
            .status,
        421
    );
    let from = ["Host: localhost", "Sec-Fetch-Site: cross-site"];
    assert_eq!(server.ask("GET", "/history", &from).status, 403);
    // Another one does not take it away.
    let second = debox(&["serve", "--no-watch", "--listen", name]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        said.contains("cannot listen on") && said.contains("--listen"),
        "{said}"
    );
    assert_eq!(second.status.code(), Some(125), "{said}");
    if needs::root() {
        // Were the file's mode another one, the other end is asked for all the same.
        let open = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path(), open(0o755)).unwrap();
        std::fs::set_permissions(&path, open(0o666)).unwrap();
        let theirs = path.clone();
        let answer = std::thread::spawn(move || {
            // SAFETY: the plain call changes this thread alone, which ends here.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
            assert_eq!(changed, 0);
            let mut stream = UnixStream::connect(theirs).unwrap();
            stream
                .write_all(b"GET /history HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        });
        let answer = answer.join().unwrap();
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(
            answer.contains("for the user who runs debox serve"),
            "{answer}"
        );
    }
    assert!(server.process.try_wait().unwrap().is_none());
    assert_eq!(server.end(libc::SIGTERM).code(), Some(0));
    assert!(!path.exists());
}

#[test]
fn other_machines_are_let_in_on_purpose_only() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    let name = token.to_str().unwrap();
    let said = |options: &[&str]| {
        let output = debox(&[&["serve", "--no-watch"], options].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let (status, text) = said(&["--listen", "0.0.0.0:0"]);
    assert!(
        status == Some(2) && text.contains("--anywhere and --token"),
        "{text}"
    );
    let (status, text) = said(&["--listen", "[::]:0", "--token", name]);
    assert!(status == Some(2) && text.contains("--anywhere"), "{text}");
    let (status, text) = said(&["--listen", "0.0.0.0:0", "--anywhere"]);
    assert!(status == Some(2) && text.contains("--token"), "{text}");
    let (status, text) = said(&["--listen", "0.0.0.0:0", "--anywhere", "--token", name]);
    assert!(status == Some(125) && text.contains("umask 077"), "{text}");
    let (status, text) = said(&["--listen", "nowhere"]);
    assert!(status == Some(2) && text.contains("HOST:PORT"), "{text}");
    let secret = "0123456789abcdefghijklmnopqrstuv";
    std::fs::write(&token, secret).unwrap();
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).unwrap();
    let (status, text) = said(&["--token", name]);
    assert!(
        status == Some(125) && text.contains("others can read it"),
        "{text}"
    );
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    let server = Server::start(&[
        "--no-watch",
        "--listen",
        "0.0.0.0:0",
        "--anywhere",
        "--token",
        name,
    ]);
    // It is in a file, and not in what is printed, which logs keep.
    assert!(!server.lines.join("").contains(secret));
    let bearer = format!("Authorization: Bearer {secret}");
    let port = server.place.rsplit(':').next().unwrap().to_owned();
    let mut there = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    let request = format!("GET /history HTTP/1.1\r\nHost: 192.0.2.1:{port}\r\n{bearer}\r\n\r\n");
    there.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    there.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
}

#[test]
fn names_do_not_leave_the_directory() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    let json = debox_report::render_json(&reports::server(20));
    std::fs::write(folder.path().join("out.debox"), &json).unwrap();
    std::fs::write(inside.join("in.debox"), &json).unwrap();
    std::fs::write(inside.join("other.json"), &json).unwrap();
    std::fs::create_dir(inside.join("deep")).unwrap();
    std::fs::write(inside.join("deep/deep.debox"), &json).unwrap();
    std::os::unix::fs::symlink("../out.debox", inside.join("link.debox")).unwrap();
    std::os::unix::fs::symlink("/proc/self/environ", inside.join("proc.debox")).unwrap();
    let made = Command::new("mkfifo")
        .arg(inside.join("pipe.debox"))
        .status();
    assert!(made.unwrap().success());
    let server = Server::of(&inside);
    for path in [
        "../out.debox",
        "..%2fout.debox",
        "..%2Fout.debox",
        "%2e%2e%2fout.debox",
        "deep%2fdeep.debox",
        "in.debox%2f..%2f..%2fout.debox",
        "%2fetc%2fpasswd",
        "/etc/passwd",
        "in.debox%00.debox",
        "link.debox",
        "proc.debox",
        "pipe.debox",
        "other.json",
        ".",
        "..",
        "..%5cout.debox",
        "%ff.debox",
    ] {
        let answer = server.get(&format!("/recording/{path}"));
        assert!(
            (400..500).contains(&answer.status),
            "{path}: {}",
            answer.status
        );
        assert!(!answer.body.contains("webserver"), "{path}");
    }
    let answer = server.get("/recording/in.debox");
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains("webserver"), "{}", answer.body.len());
    let history = server.get("/history").body;
    assert!(history.contains("in.debox"));
    for name in [
        "out.debox",
        "link.debox",
        "proc.debox",
        "pipe.debox",
        "deep",
        "other.json",
    ] {
        assert!(!history.contains(name), "{name}");
    }
}

#[test]
fn hostile_recordings_take_nothing_down() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let good = debox_report::render_json(&reports::server(200));
    put("good.debox", good.as_bytes());
    put(
        "hostile.debox",
        debox_report::render_json(&reports::hostile()).as_bytes(),
    );
    put("empty.debox", b"");
    put("noise.debox", &[0x5a; 4096]);
    put("cut.debox", &good.as_bytes()[..good.len() / 2]);
    put(
        "deep.debox",
        format!("{{\"a\":{}", "[".repeat(1 << 20)).as_bytes(),
    );
    put("<img src=x onerror=alert(1)>\"'.debox", b"x");
    // Larger than any: nothing of it is read.
    let large = std::fs::File::create(folder.path().join("large.debox")).unwrap();
    large.set_len(1 << 40).unwrap();
    // What the fuzzers found worth keeping: the form of a recording, and little sense in it.
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/recording");
    let corpus = std::fs::read_dir(corpus).unwrap().take(20).enumerate();
    let mut found = Vec::new();
    for (at, file) in corpus {
        found.push(format!("corpus-{at}.debox"));
        put(&found[at], &std::fs::read(file.unwrap().path()).unwrap());
    }
    assert!(found.len() > 3, "{}", found.len());
    let mut server = Server::of(folder.path());
    for name in ["empty", "noise", "cut", "deep", "large"] {
        let answer = server.get(&format!("/recording/{name}.debox"));
        assert_eq!(answer.status, 422, "{name}: {answer:?}");
        assert!(
            answer
                .body
                .contains(&format!("{name}.debox cannot be shown: ")),
            "{answer:?}"
        );
        assert!(
            answer
                .line("Content-Security-Policy")
                .unwrap()
                .contains("script-src 'self'")
        );
    }
    for name in &found {
        let status = server.get(&format!("/recording/{name}")).status;
        assert!(status == 200 || status == 422, "{name}: {status}");
    }
    let evil = server.get("/recording/hostile.debox");
    assert_eq!(evil.status, 200);
    assert_eq!(evil.body.matches("<script").count(), 2);
    wait_until("all is read", || {
        !server
            .get("/part/history")
            .body
            .contains("It is being read")
    });
    let history = server.get("/history").body;
    for (name, says) in [
        ("empty", "is empty"),
        ("large", "is larger than 256 MiB"),
        ("noise", "neither a recording"),
    ] {
        let at = history.find(&format!("id=\"{name}.debox\"")).unwrap();
        let row = history[at..].split("</li>").next().unwrap();
        assert!(row.contains(says), "{name}: {row}");
    }
    assert!(
        !history.contains("<img") && history.contains("&lt;img src=x"),
        "{history}"
    );
    assert_eq!(history.matches("<script").count(), 1);
    assert_eq!(server.get("/recording/good.debox").status, 200);
    assert!(server.process.try_wait().unwrap().is_none());
    // Who read them is gone.
    let children = format!("/proc/{0}/task/{0}/children", server.process.id());
    assert_eq!(std::fs::read_to_string(children).unwrap_or_default(), "");
}

#[test]
fn who_reads_a_recording_can_do_nothing_else() {
    let mut reader = Command::new(env!("CARGO_BIN_EXE_debox-serve"))
        .arg0("debox-reader")
        .arg("page")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let folder = format!("/proc/{}", reader.id());
    // It waits for the recording, and has given everything up by then.
    let status = || std::fs::read_to_string(format!("{folder}/status")).unwrap();
    wait_until("it is confined", || status().contains("\nSeccomp:\t2\n"));
    let status = status();
    for line in [
        "NoNewPrivs:\t1",
        "CapEff:\t0000000000000000",
        "CapPrm:\t0000000000000000",
    ] {
        assert!(status.contains(line), "{status}");
    }
    if needs::is_root() {
        assert!(
            status.contains("Uid:\t65534\t65534\t65534\t65534"),
            "{status}"
        );
        let mut open: Vec<_> = std::fs::read_dir(format!("{folder}/fd"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        open.sort();
        assert_eq!(open, ["0", "1", "2"]);
    }
    drop(reader.stdin.take());
    let output = reader.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("is empty"), "{said}");
}

#[test]
fn the_history_says_what_each_recording_says() {
    let folder = tempfile::tempdir().unwrap();
    for (name, hour) in [("20261126T235900Z.debox", 0), ("20261127T131500Z.debox", 1)] {
        let mut report = reports::server(20);
        report.verdict = vec![format!("Sentence {hour} of the verdict.")];
        std::fs::write(folder.path().join(name), debox_report::render_json(&report)).unwrap();
    }
    let server = Server::of(folder.path());
    wait_until("all is read", || {
        !server
            .get("/part/history")
            .body
            .contains("It is being read")
    });
    let history = server.get("/history").body;
    let later = history.find("Sentence 1 of the verdict.").unwrap();
    assert!(
        later < history.find("Sentence 0 of the verdict.").unwrap(),
        "{history}"
    );
    assert!(
        history.contains("<svg class=\"bar\"") || history.contains("Nothing was held up."),
        "{history}"
    );
    // A file that became another one is read again, one that is gone is gone.
    std::fs::remove_file(folder.path().join("20261126T235900Z.debox")).unwrap();
    assert!(!server.get("/history").body.contains("Sentence 0"));
    let none = Server::of(&folder.path().join("nowhere"));
    let answer = none.get("/history");
    assert_eq!(answer.status, 200);
    assert!(
        answer.body.contains("There are no recordings to open"),
        "{}",
        answer.body
    );
}

#[test]
fn who_says_nothing_keeps_nobody_away() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of(folder.path());
    let address: std::net::SocketAddr = server.place.parse().unwrap();
    // More than are served at once, and some that go on after a word, or never end.
    let mut silent: Vec<TcpStream> = (0..200)
        .filter_map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok())
        .collect();
    assert!(silent.len() >= 64, "{}", silent.len());
    silent[0].write_all(b"GET /hist").unwrap();
    silent[1].write_all(&[b'x'; 4096]).unwrap();
    // A letter is no request, and gives nobody more time.
    for stream in &mut silent[2..] {
        let _ = stream.write_all(b"G");
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.process.id()))
        .unwrap()
        .count();
    assert!(open < 200, "{open}");
    let begin = Instant::now();
    assert_eq!(server.get("/history").status, 200);
    assert!(
        begin.elapsed() < Duration::from_secs(30),
        "{:?}",
        begin.elapsed()
    );
    // They have been closed, one after the other.
    let last = silent.last_mut().unwrap();
    last.set_read_timeout(Some(READY)).unwrap();
    assert_eq!(last.read(&mut [0; 1]).unwrap_or(0), 0);
    // A head without an end is no way to fill its memory.
    let mut flood = TcpStream::connect(address).unwrap();
    flood
        .set_write_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    flood
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        .unwrap();
    let mut sent = 0u64;
    while sent < (64 << 20) && flood.write_all(&[b'a'; 1 << 16]).is_ok() {
        sent += 1 << 16;
    }
    assert!(sent < (64 << 20), "{sent}");
    assert_eq!(server.get("/history").status, 200);
}

#[test]
fn without_a_broker_it_says_so_and_has_recordings() {
    let folder = tempfile::tempdir().unwrap();
    let options = [
        "--socket",
        "/nonexistent/debox.sock",
        "--recordings",
        folder.path().to_str().unwrap(),
    ];
    let server = Server::start(&options);
    assert!(
        server
            .lines
            .iter()
            .any(|line| line.contains("recordings only: ")),
        "{:?}",
        server.lines
    );
    let page = server.get("/").body;
    assert!(
        page.contains("Nobody is watched: ") && page.contains("/nonexistent/debox.sock"),
        "{page}"
    );
    let live: serde_json::Value = serde_json::from_str(&server.get("/api/live.json").body).unwrap();
    assert_eq!(live["state"], "not_watched");
    assert_eq!(server.get("/history").status, 200);
    assert_eq!(server.end(libc::SIGTERM).code(), Some(0));
    let output = debox(&["serve", "-p", "1", "--capture", "wrap"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn the_machine_is_shown_and_cannot_write_the_page() {
    if !needs::bpf() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let evil = sleeper(folder.path(), "<img src=x>&\"'");
    let server = Server::start(&[
        "--comm",
        "<img*",
        "--comm",
        "dsv-*",
        "--recordings",
        "/nonexistent",
    ]);
    let mut runs = Command::new(&evil).arg("30").spawn().unwrap();
    let done = Command::new(sleeper(folder.path(), "dsv-one"))
        .arg("0.4")
        .status();
    assert!(done.unwrap().success());
    let json = || -> serde_json::Value {
        std::thread::sleep(Duration::from_millis(1_100));
        serde_json::from_str(&server.get("/api/live.json").body).unwrap()
    };
    let named = |value: &serde_json::Value, name: &str| {
        let rows = value["all"]["programs"].as_array().unwrap();
        rows.iter().any(|row| row["name"] == name)
    };
    let mut value = json();
    wait_until("both are told of", || {
        value = json();
        named(&value, "dsv-one") && named(&value, "<img src=x>&\"'")
    });
    assert_eq!(value["state"], "live");
    let waits = value["all"]["waits"].as_array().unwrap();
    let slept = waits
        .iter()
        .find(|wait| wait["label"] == "nanosleep")
        .unwrap();
    assert_eq!(
        (&slept["call"], &slept["class"]),
        (&"clock_nanosleep".into(), &"idle".into())
    );
    assert!(slept["total_ns"].as_u64().unwrap() > 300_000_000, "{slept}");
    // The interval is what passed since the look before, a second at least, and not all of the time.
    let (now, all) = (&value["now"]["span_ns"], &value["all"]["span_ns"]);
    assert!(
        now.as_u64() >= Some(900_000_000) && now.as_u64() < all.as_u64(),
        "{now} {all}"
    );
    let page = server.get("/?of=all").body;
    assert!(page.contains("&lt;img src=x&gt;&amp;&quot;&#39;"), "{page}");
    assert!(!page.contains("<img"), "{page}");
    assert!(page.contains("Live: the "), "{page}");
    let part = server.get("/part/live?of=now").body;
    assert!(part.starts_with("<div data-every=\"2000\">"), "{part}");
    runs.kill().unwrap();
    runs.wait().unwrap();
    assert_eq!(server.end(libc::SIGTERM).code(), Some(0));
}

#[test]
fn processes_that_ended_are_the_end_of_the_watch() {
    if !needs::bpf() {
        return;
    }
    let mut runs = Command::new("sleep").arg("30").spawn().unwrap();
    let mut server = Server::start(&["-p", &runs.id().to_string(), "--recordings", "/nonexistent"]);
    assert!(server.get("/").body.contains("Live: "));
    runs.kill().unwrap();
    runs.wait().unwrap();
    server.says("the watch is over");
    wait_until("the page says so", || {
        server.get("/").body.contains("The watch is over: ")
    });
    // It still answers.
    assert_eq!(server.get("/history").status, 200);
}
