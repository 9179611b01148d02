// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is what the generator says of a server true, where the server's ways are known?

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const DIRECTORIES: &str = "2";

/// What the server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Right,
    /// Of the body only, at so many bytes a second.
    Slow(u32),
    Chunked,
    UntilClose,
    CloseAtOnce,
    CloseInBody,
    Reset,
    WrongByte,
    ShortPage,
    TooLong,
    Status,
    Silence,
    StallInBody,
    NotHttp,
}

struct Server {
    address: SocketAddr,
    root: tempfile::TempDir,
    accepted: Arc<AtomicUsize>,
    /// Requests by what was done with them.
    done: Arc<Mutex<BTreeMap<Way, u64>>>,
}

fn load(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_load"));
    command.args(arguments).output().expect("it starts")
}

/// The page for a request, by the rules of the case study and the files that were made.
fn page(root: &Path, target: &str, form: &[u8]) -> Vec<u8> {
    if target == "/post" {
        return format!("<html><body>{} bytes taken</body></html>\n", form.len()).into_bytes();
    }
    let file = |path: &str| std::fs::read(root.join(path)).expect("a file of the set");
    let made = ["/dynamic/", "/cgi/"].into_iter();
    let Some(rest) = made.filter_map(|begin| target.strip_prefix(begin)).next() else {
        return file(&target[1..]);
    };
    let (path, ad) = rest.split_once("?ad=").expect("an ad");
    let mut page = b"<html><head><title>debox</title></head><body><p>ad ".to_vec();
    page.extend_from_slice(ad.as_bytes());
    page.extend_from_slice(b"</p><pre>\n");
    page.extend_from_slice(&file(path));
    page.extend_from_slice(b"\n</pre></body></html>\n");
    page
}

/// Serves one connection until one of both ends it.
fn serve(mut stream: TcpStream, root: &Path, way: &dyn Fn(&str) -> Way) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut slow_clear = Instant::now();
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let (mut length, mut close) = (0, false);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            close |= line == "connection: close";
            if let Some(text) = line.strip_prefix("content-length: ") {
                length = text.parse().expect("a length");
            }
        }
        let mut form = vec![0; length];
        reader.read_exact(&mut form)?;
        let target = first.split(' ').nth(1).expect("a target");
        let mut body = page(root, target, &form);
        let way = way(target);
        let head = |bytes: usize| format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
        let half = body.len() / 2;
        match way {
            Way::Right => stream.write_all(&[head(body.len()).as_bytes(), &body].concat())?,
            Way::Slow(bytes_per_second) => {
                stream.write_all(head(body.len()).as_bytes())?;
                for piece in body.chunks(1500) {
                    let time = piece.len() as f64 / f64::from(bytes_per_second);
                    let now = Instant::now();
                    // No credit for a rest.
                    slow_clear = slow_clear.max(now) + Duration::from_secs_f64(time);
                    std::thread::sleep(slow_clear - now);
                    stream.write_all(piece)?;
                }
            }
            Way::Chunked => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
                for piece in body.chunks(1000) {
                    stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes())?;
                    stream.write_all(&[piece, b"\r\n"].concat())?;
                }
                stream.write_all(b"0\r\n\r\n")?;
            }
            Way::UntilClose => {
                stream.write_all(&[b"HTTP/1.0 200 OK\r\n\r\n", body.as_slice()].concat())?;
                return Ok(());
            }
            Way::CloseAtOnce => return Ok(()),
            Way::CloseInBody => {
                return stream.write_all(&[head(body.len()).as_bytes(), &body[..half]].concat());
            }
            Way::Reset => {
                let hard = libc::linger {
                    l_onoff: 1,
                    l_linger: 0,
                };
                // SAFETY: the option is a local of its size.
                let result = unsafe {
                    libc::setsockopt(
                        stream.as_raw_fd(),
                        libc::SOL_SOCKET,
                        libc::SO_LINGER,
                        (&raw const hard).cast(),
                        size_of::<libc::linger>() as u32,
                    )
                };
                assert_eq!(result, 0);
                return Ok(());
            }
            Way::WrongByte => {
                *body.last_mut().expect("a body") ^= 1;
                stream.write_all(&[head(body.len()).as_bytes(), &body].concat())?;
            }
            Way::ShortPage => {
                stream.write_all(&[head(half).as_bytes(), &body[..half]].concat())?;
            }
            Way::TooLong => {
                stream.write_all(&[head(body.len()).as_bytes(), &body, b"more"].concat())?;
                return Ok(());
            }
            Way::Status => {
                stream.write_all(b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno")?;
            }
            Way::StallInBody | Way::Silence => {
                if way == Way::StallInBody {
                    stream.write_all(&[head(body.len()).as_bytes(), &body[..half]].concat())?;
                }
                // Until the client goes.
                reader.read_line(&mut String::new())?;
                return Ok(());
            }
            Way::NotHttp => return stream.write_all(b"220 mail.example ESMTP\r\n"),
        }
        if close {
            return Ok(());
        }
    }
}

impl Server {
    /// `way`: what is done with the n-th request of all, and its target.
    fn start(way: impl Fn(usize, &str) -> Way + Send + Sync + 'static) -> Self {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().to_owned();
        let made = load(&[
            "files",
            "--root",
            path.to_str().unwrap(),
            "--directories",
            DIRECTORIES,
        ]);
        assert!(made.status.success(), "{made:?}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            root,
            accepted: Arc::default(),
            done: Arc::default(),
        };
        let (accepted, done) = (server.accepted.clone(), server.done.clone());
        let count = AtomicUsize::new(0);
        let way = Arc::new(move |target: &str| {
            let way = way(count.fetch_add(1, Ordering::Relaxed), target);
            *done.lock().unwrap().entry(way).or_default() += 1;
            way
        });
        // Ends with the tests' process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                accepted.fetch_add(1, Ordering::Relaxed);
                let (way, path) = (way.clone(), path.clone());
                // A client that goes away is no error.
                std::thread::spawn(move || serve(stream, &path, &*way));
            }
        });
        server
    }

    fn done(&self, way: Way) -> u64 {
        *self.done.lock().unwrap().get(&way).unwrap_or(&0)
    }

    fn run(&self, options: &str) -> Value {
        let address = self.address.to_string();
        let mut arguments = vec!["run", "--server", &address];
        arguments.extend(["--directories", DIRECTORIES, "--json", "-"]);
        arguments.extend(options.split_whitespace());
        let output = load(&arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{output:?}"))
    }
}

fn number(document: &Value, path: &str) -> f64 {
    let found = document.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{path} in {document}"))
}

#[test]
fn a_known_delay_is_found() {
    let server = Server::start(|_, _| {
        std::thread::sleep(Duration::from_millis(20));
        Way::Right
    });
    let o = server.run("--connections 4 --kbit 0 --static-only --warm-up 0 --seconds 3");
    for what in ["first_byte", "whole", "waited"] {
        let p5 = number(&o, &format!("/groups/all/{what}/p5_us"));
        let p50 = number(&o, &format!("/groups/all/{what}/p50_us"));
        assert!(p5 >= 20_000.0, "{what} {p5}");
        assert!((20_000.0..40_000.0).contains(&p50), "{what} {p50}");
    }
    // Over slow lines the whole takes longer, what was waited for is the same.
    let o = server.run("--connections 8 --static-only --warm-up 0 --seconds 4");
    let waited = number(&o, "/groups/all/waited/p50_us");
    assert!((20_000.0..40_000.0).contains(&waited), "{waited}");
    // Class 2 has 10 to 92 kB: 200 ms of the line at least.
    assert!(number(&o, "/groups/class2/whole/p5_us") > 220_000.0);
    assert_eq!(o["errors"], serde_json::json!({}));
}

#[test]
fn an_open_loop_does_not_omit_the_requests_of_a_stall() {
    let until = Mutex::new(None::<Instant>);
    let server = Server::start(move |n, _| {
        let until = {
            let mut until = until.lock().unwrap();
            // In the middle, once.
            if n == 1000 {
                *until = Some(Instant::now() + Duration::from_millis(200));
            }
            *until
        };
        if let Some(until) = until {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        Way::Right
    });
    let o = server.run(
        "--connections 20 --kbit 0 --static-only --warm-up 0 --seconds 4 --rate 500 --verify 0",
    );
    // A twentieth of the requests should have begun in the stall, and waited for 100 ms on average;
    // only 20 of them could be sent. Those who count from sending say 20 of 2,000.
    let requests = number(&o, "/requests");
    assert!((1800.0..2200.0).contains(&requests), "{requests}");
    let p99 = number(&o, "/groups/all/first_byte/p99_us");
    assert!((100_000.0..400_000.0).contains(&p99), "{p99}");
    let cdf = o["groups"]["all"]["first_byte"]["cdf"].as_array().unwrap();
    let above: f64 = 1.0
        - (cdf
            .iter()
            .filter(|point| point[0].as_f64() < Some(50_000.0)))
        .map(|point| point[1].as_f64().unwrap())
        .fold(0.0, f64::max);
    assert!(above * requests > 60.0, "{above}");
    assert!(o["conforming"].is_null() && o["errors"] == serde_json::json!({}));
}

#[test]
fn the_rate_and_the_idle_connections_follow_a_file() {
    let server = Server::start(|_, _| Way::Right);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rates");
    std::fs::write(&file, "0 200 10\n1 0\n1.5 1000 40\n2 0 5\n2.5 0\n").unwrap();
    let options = format!(
        "--connections 50 --kbit 0 --new-connection-every 1 --rates {} --page /dir00000/class1_1 --page-bytes 1024",
        file.display()
    );
    let o = server.run(&options);
    assert!((number(&o, "/seconds") - 2.5).abs() < 0.1, "{o}");
    assert_eq!(o["errors"], serde_json::json!({}), "{o}");
    let count = |what: &str, from_s: f64, to_s: f64| -> f64 {
        let path = format!("/timeline/{what}");
        let list = o.pointer(&path).and_then(Value::as_array).expect("counts");
        let steps = (from_s * 1000.0) as usize..(to_s * 1000.0) as usize;
        let inside = list.iter().enumerate().filter(|(n, _)| steps.contains(n));
        inside.map(|(_, count)| count.as_f64().unwrap()).sum()
    };
    // Of independent arrivals; five times the deviation.
    assert!((count("asked", 0.0, 1.0) - 200.0).abs() < 71.0, "{o}");
    assert_eq!(count("asked", 1.001, 1.5), 0.0, "{o}");
    assert!((count("asked", 1.5, 2.0) - 500.0).abs() < 112.0, "{o}");
    assert_eq!(count("asked", 2.001, 9.0), 0.0, "{o}");
    assert_eq!(count("answered", 0.0, 9.0), count("asked", 0.0, 9.0));
    // Each request has a connection of its own, and idle ones rise from 10 to 40 and fall to 5.
    let accepted = server.accepted.load(Ordering::SeqCst) as f64;
    assert_eq!(accepted, number(&o, "/requests") + 40.0, "{o}");
    assert_eq!(o["idle_closed"], 0);

    // A common begin: the same file asks at the same times.
    let mut clock = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills a local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut clock) };
    let again = server.run(&format!("{options} --begin-at {}", clock.tv_sec + 2));
    assert_eq!(again["timeline"]["asked"], o["timeline"]["asked"]);
    let address = server.address.to_string();
    let arguments = format!("run --server {address} --directories 2 {options} --begin-at 0.5");
    let late = load(&arguments.split(' ').collect::<Vec<_>>());
    assert_eq!(late.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&late.stderr).contains("--begin-at was"));
    // A page of another length is a wrong answer.
    let o = server.run(&options.replace("1024", "1023"));
    assert_eq!(o["requests"], 0);
    assert!(number(&o, "/errors/length") > 400.0, "{o}");
}

#[test]
fn each_failure_is_counted_as_what_it_is() {
    const WAYS: [(Way, &str); 10] = [
        (Way::CloseAtOnce, "closed"),
        (Way::CloseInBody, "closed"),
        (Way::Reset, "reset"),
        (Way::WrongByte, "bytes"),
        (Way::ShortPage, "length"),
        (Way::TooLong, "length"),
        (Way::Status, "status"),
        (Way::Silence, "silent"),
        (Way::StallInBody, "stalled"),
        (Way::NotHttp, "not_http"),
    ];
    let server = Server::start(|n, _| match n % 3 {
        0 => WAYS[n / 3 % WAYS.len()].0,
        _ => Way::Right,
    });
    const CONNECTIONS: u64 = 10;
    for kbit in ["0", "4000"] {
        server.done.lock().unwrap().clear();
        let o = server.run(&format!(
            "--connections {CONNECTIONS} --kbit {kbit} --warm-up 0 --seconds 5 --silence 0.3 \
             --verify 100"
        ));
        let mut wanted = BTreeMap::from([("right", server.done(Way::Right))]);
        for (way, kind) in WAYS {
            *wanted.entry(kind).or_default() += server.done(way);
        }
        for (kind, wanted) in wanted {
            let got = match kind {
                "right" => number(&o, "/requests"),
                kind => number(&o, &format!("/errors/{kind}")),
            };
            // Each connection's last request may not be over.
            let missing = wanted as f64 - got;
            assert!(wanted > CONNECTIONS, "{kind} {wanted}");
            assert!(
                (0.0..=CONNECTIONS as f64).contains(&missing),
                "{kind}: {got} of {wanted} {o}"
            );
        }
        assert_eq!(o["errors"].as_object().unwrap().len(), 8, "{o}");
        assert_eq!(o["statuses"]["500"], o["errors"]["status"]);
        assert_eq!(number(&o, "/conforming/connections"), 0.0);
    }
}

#[test]
fn without_a_server_connections_fail_and_the_status_says_so() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let arguments = |idle: &'static str| {
        let begin = [
            "run",
            "--server",
            &address,
            "--directories",
            "1",
            "--seconds",
            "0.5",
        ];
        let end = [
            "--connections",
            "3",
            "--warm-up",
            "0",
            "--json",
            "-",
            "--idle",
            idle,
        ];
        load(&[&begin[..], &end].concat())
    };
    let output = arguments("0");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let o: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!((3.0..=18.0).contains(&number(&o, "/errors/connect")), "{o}");
    let output = arguments("1");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("takes no connection"));
}

#[test]
fn a_fast_server_is_read_at_the_speed_of_the_line() {
    let server = Server::start(|_, _| Way::Right);
    let o = server.run("--connections 12 --warm-up 1 --seconds 20 --static-only");
    // What this machine let the lines wait for is not the pace's.
    let waited = number(&o, "/groups/all/waited/mean_us") * number(&o, "/requests");
    let wanted = 400.0 * (1.0 - waited / 12.0 / 20e6);
    let kbit = number(&o, "/bytes_per_second") * 8e-3 / 12.0;
    assert!((kbit / wanted - 1.0).abs() < 0.02, "{kbit} of {wanted}");
    assert!(number(&o, "/conforming/most_kbit") < 408.0, "{o}");
    assert!(number(&o, "/conforming/median_kbit") > wanted * 0.98, "{o}");
    if wanted > 392.0 {
        assert_eq!(number(&o, "/conforming/connections"), 12.0);
        assert!(number(&o, "/conforming/least_kbit") > 380.0, "{o}");
    }
}

#[test]
fn a_slow_server_conforms_to_less() {
    let server = Server::start(|_, _| Way::Slow(300_000 / 8));
    let o = server.run("--connections 8 --warm-up 1 --seconds 8 --static-only");
    assert_eq!(number(&o, "/conforming/connections"), 0.0);
    let median = number(&o, "/conforming/median_kbit");
    assert!((200.0..310.0).contains(&median), "{median}");
    assert_eq!(o["errors"], serde_json::json!({}));
    let o = server.run("--connections 4 --warm-up 1 --seconds 4 --static-only --conforming 100");
    assert_eq!(number(&o, "/conforming/connections"), 4.0, "{o}");
}

#[test]
fn a_connection_with_one_wrong_answer_of_twenty_does_not_conform() {
    for (every, conforming) in [(20, 0.0), (usize::MAX, 4.0)] {
        let server = Server::start(move |n, _| match n % every {
            1 => Way::Status,
            _ => Way::Right,
        });
        let o = server.run("--connections 4 --kbit 0 --static-only --warm-up 0 --seconds 2");
        let requests = number(&o, "/requests");
        assert!(requests > 400.0, "{requests}");
        assert_eq!(number(&o, "/conforming/connections"), conforming, "{o}");
    }
}

#[test]
fn all_operations_are_asked_and_their_answers_known_however_they_end() {
    let server = Server::start(|n, _| match n % 3 {
        0 => Way::Right,
        1 => Way::Chunked,
        _ => Way::UntilClose,
    });
    let o = server.run("--connections 8 --kbit 0 --warm-up 0 --seconds 3 --cgi 5 --verify 100");
    assert_eq!(o["errors"], serde_json::json!({}), "{o}");
    let requests = number(&o, "/requests");
    assert_eq!(number(&o, "/verified"), requests);
    for (operation, share) in [
        ("static", 0.7),
        ("dynamic", 0.202),
        ("cgi", 0.05),
        ("post", 0.048),
    ] {
        let got = number(&o, &format!("/groups/{operation}/requests")) / requests;
        // Five standard deviations.
        let far = 5.0 * (share * (1.0 - share) / requests).sqrt();
        assert!((got - share).abs() < far, "{operation} {got}");
    }
    assert!(requests > 300.0, "{requests}");
}

#[test]
fn connections_are_as_many_and_as_long_as_wanted() {
    for (every, least, most) in [(0, 1e9, 1e9), (1, 1.0, 1.0), (10, 8.5, 11.5)] {
        let server = Server::start(|_, _| Way::Right);
        let o = server.run(&format!(
            "--connections 5 --idle 70 --kbit 0 --static-only --warm-up 0 --seconds 2 \
             --new-connection-every {every}"
        ));
        let hot = (server.accepted.load(Ordering::Relaxed) - 70) as f64;
        let requests = server.done(Way::Right) as f64;
        assert!(requests > 300.0, "{requests}");
        match every {
            0 => assert_eq!(hot, 5.0),
            // The last ones are not at their end.
            _ => assert!(
                (least..=most).contains(&(requests / (hot - 2.5))) || (requests - hot).abs() <= 5.0,
                "{requests} over {hot}"
            ),
        }
        assert_eq!(o["errors"], serde_json::json!({}), "{o}");
        assert_eq!(number(&o, "/idle_closed"), 0.0);
    }
}

#[test]
fn what_is_not_level_is_said_to_be_so() {
    let begin = Instant::now();
    let rising = Server::start(move |_, _| {
        Way::Slow((50_000.0 * (1.0 + begin.elapsed().as_secs_f64())) as u32)
    });
    let o = rising
        .run("--connections 6 --kbit 0 --static-only --warm-up auto --warm-up-most 20 --seconds 1");
    assert_eq!(o["warm_up"]["stationary"], Value::Bool(false), "{o}");
    assert!(number(&o, "/warm_up/trend_p") < 0.1);
    let warning = o["warnings"][0].as_str().unwrap();
    assert!(
        warning.starts_with("the throughput was not level after 20 s"),
        "{warning}"
    );

    let level = Server::start(|_, _| Way::Slow(100_000));
    let o = level.run("--connections 6 --kbit 0 --static-only --warm-up auto --seconds 1");
    assert_eq!(o["warm_up"]["stationary"], Value::Bool(true), "{o}");
    let seconds = number(&o, "/warm_up/seconds");
    // Two blocks of eight seconds, behind the one in which connections begin.
    assert!((16.9..61.0).contains(&seconds), "{seconds}");
    assert!(
        o["measured_level"].is_null() && o["warnings"] == serde_json::json!([]),
        "{o}"
    );
    // Too short to tell.
    let o = level.run("--connections 2 --kbit 0 --warm-up 1 --seconds 1");
    assert!(o["warm_up"]["stationary"].is_null());
}

#[test]
fn the_highest_number_is_found_and_told_as_json() {
    let server = Server::start(|_, _| Way::Right);
    let address = server.address.to_string();
    let arguments = [
        "find",
        "--server",
        &address,
        "--directories",
        DIRECTORIES,
        "--from",
        "2",
        "--to",
        "4",
    ];
    let fast = [
        "--static-only",
        "--warm-up",
        "0",
        "--seconds",
        "1",
        "--json",
        "-",
    ];
    let output = load(&[&arguments[..], &fast, &["--conforming", "10"]].concat());
    let o: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(o["highest"], 4, "{o}");
    assert_eq!(o["at_upper_end"], true);
    let steps = o["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 4);
    assert!(steps.iter().all(|step| step["settled"] == true), "{o}");
    let output = load(
        &[
            &arguments[..],
            &fast, // Faster than their lines.
            &["--conforming", "500"],
        ]
        .concat(),
    );
    assert_eq!(output.status.code(), Some(1));
    let o: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(o["highest"].is_null());
}

#[test]
fn a_changed_file_is_found() {
    let server = Server::start(|_, _| Way::Right);
    let root: PathBuf = server.root.path().to_owned();
    let check = || {
        let root = root.to_str().unwrap();
        load(&[
            "files",
            "--root",
            root,
            "--directories",
            DIRECTORIES,
            "--check",
        ])
    };
    assert!(check().status.success());
    let path = root.join("dir00001/class3_9");
    let mut bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 921_600);
    bytes[800_003] ^= 0x80;
    std::fs::write(&path, bytes).unwrap();
    let output = check();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("dir00001/class3_9: byte 800003 is another"),
        "{text}"
    );
}
