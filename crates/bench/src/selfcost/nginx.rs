// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a request cost a web server that is watched?
//!
//! nginx with one worker, a fresh one each time, and wrk on another CPU. Two
//! values a run: the worker's CPU time for one request, in the calmest tenth of
//! a second (what else the machine does comes in bursts), by the server's own
//! count; and the time for one by wrk's. The two counts must agree.

use super::loads::{Server, failed, port_free};
use super::ways::{Bench, Way};
use crate::Error;
use crate::clock::gettime_ns;
use crate::tidy::{self, Guarded};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

pub(super) const ROWS: [(&str, &str); 2] = [("cpu", "server's CPU time"), ("time", "time by wrk")];

const WARM_UP: Duration = Duration::from_millis(400);
const SLICE: Duration = Duration::from_millis(100);
const SLICES: usize = 6;
const CONNECTIONS: u64 = 64;

/// Writes what nginx needs, and gives its command.
fn site(dir: &Path, port: u16) -> Result<Vec<String>, Error> {
    std::fs::create_dir_all(dir.join("www")).map_err(failed("making a directory"))?;
    std::fs::write(dir.join("www/index.html"), vec![b'x'; 1024])
        .map_err(failed("writing a file"))?;
    let d = dir.display();
    let configuration = format!(
        "user nobody nogroup; worker_processes 1; daemon off; pid {d}/nginx.pid; error_log {d}/error.log;\n\
         events {{ worker_connections 512; }}\n\
         http {{ access_log off; keepalive_requests 100000000;\n\
         client_body_temp_path {d}/body; proxy_temp_path {d}/proxy; fastcgi_temp_path {d}/fastcgi;\n\
         uwsgi_temp_path {d}/uwsgi; scgi_temp_path {d}/scgi;\n\
         server {{ listen 127.0.0.1:{port}; root {d}/www; location = /status {{ stub_status; }} }} }}\n"
    );
    let file = dir.join("nginx.conf");
    std::fs::write(&file, configuration).map_err(failed("writing a file"))?;
    let _ = std::fs::remove_file(dir.join("nginx.pid"));
    Ok([
        "nginx",
        "-c",
        &file.display().to_string(),
        "-p",
        &d.to_string(),
    ]
    .map(String::from)
    .into())
}

/// How many requests it has served; asking is one more.
fn served(port: u16) -> Result<u64, Error> {
    let mut text = String::new();
    TcpStream::connect(("127.0.0.1", port))
        .and_then(|mut s| {
            s.set_read_timeout(Some(Duration::from_secs(5)))?;
            s.write_all(b"GET /status HTTP/1.0\r\n\r\n")?;
            s.read_to_string(&mut text)
        })
        .map_err(failed("asking nginx for its count"))?;
    // "server accepts handled requests", and below it the three numbers.
    text.lines()
        .skip_while(|l| !l.contains("handled requests"))
        .nth(1)
        .and_then(|l| l.split_whitespace().nth(2)?.parse().ok())
        .ok_or_else(|| Error::Unavailable(format!("nginx's status: {}", text.replace('\n', " "))))
}

/// The master's first child, once it is there.
fn worker(master: i32) -> Result<i32, Error> {
    for _ in 0..200 {
        let path = format!("/proc/{master}/task/{master}/children");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if let Some(pid) = text.split(' ').next().and_then(|w| w.parse().ok()) {
            return Ok(pid);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(Error::Unavailable("nginx has no worker".into()))
}

/// One server's life: the calmest slice's CPU time for a request, and wrk's time.
fn load(bench: &Bench, port: u16, worker: i32) -> Result<(f64, f64), Error> {
    // The clock of another process (clock_getcpuclockid): exact, where
    // /proc/PID/schedstat ends with the last tick.
    let cpu_clock = (!worker << 3) | 2;
    let first = served(port)?;
    let mut command = Command::new("wrk");
    command
        .args(["-t1", &format!("-c{CONNECTIONS}"), "-d600s"])
        .arg(format!("http://127.0.0.1:{port}/index.html"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    tidy::bind(&mut command, Some(bench.other_cpu), None);
    let mut wrk = Guarded::spawn(&mut command)?;
    std::thread::sleep(WARM_UP);
    let mut least = f64::MAX;
    let (mut cpu, mut count) = (gettime_ns(cpu_clock), served(port)?);
    for _ in 0..SLICES {
        std::thread::sleep(SLICE);
        let (cpu_now, count_now) = (gettime_ns(cpu_clock), served(port)?);
        let requests = count_now.saturating_sub(count + 1) as f64;
        if requests > 0.0 {
            least = least.min(cpu_now.saturating_sub(cpu) as f64 / requests);
        }
        (cpu, count) = (cpu_now, count_now);
    }
    // -d knows whole seconds only; Ctrl-C ends it with its report as well.
    wrk.signal(libc::SIGINT);
    wrk.wait(bench.limit)?;
    let mut said = String::new();
    if let Some(out) = &mut wrk.child.stdout {
        let _ = out.read_to_string(&mut said);
    }
    let wrong = |what: &str| Error::Unavailable(format!("{what}: {}", said.replace('\n', " ")));
    let number = |before: &str, after: &str| {
        said.lines().find_map(|l| {
            l.trim()
                .strip_prefix(before)?
                .trim()
                .split(after)
                .next()?
                .parse::<f64>()
                .ok()
        })
    };
    let total = said
        .lines()
        .find(|l| l.contains(" requests in "))
        .and_then(|l| l.split_whitespace().next()?.parse::<i64>().ok());
    let (Some(total), Some(rate)) = (total, number("Requests/sec:", " ")) else {
        return Err(wrong("wrk gave no result"));
    };
    if rate <= 0.0
        || least == 0.0
        || least == f64::MAX
        || said.contains("Non-2xx")
        || said.contains("Socket errors")
    {
        return Err(wrong("wrk was not served"));
    }
    // What was asked for when wrk was stopped is in the server's count only.
    let asked = SLICES as i64 + 2;
    let more = (served(port)? - first) as i64 - total - asked;
    if !(-2..=2 * CONNECTIONS as i64 + 2).contains(&more) {
        return Err(wrong(&format!(
            "nginx counted {more} requests more than wrk"
        )));
    }
    Ok((least, 1e9 / rate))
}

pub(super) fn measure(bench: &mut Bench, way: &Way) -> Result<Vec<(String, f64)>, Error> {
    bench.under(way, |bench, prefix| {
        let port = port_free()?;
        let dir = bench.directory.join("nginx");
        let words = site(&dir, port)?;
        // The worker runs as nobody and must reach its files.
        std::fs::set_permissions(&bench.directory, std::fs::Permissions::from_mode(0o755))
            .map_err(failed("opening the temporary directory to nginx's worker"))?;
        let server = Server::start(bench, &prefix, &words, port)?;
        let master: Option<i32> = std::fs::read_to_string(dir.join("nginx.pid"))
            .ok()
            .and_then(|t| t.trim().parse().ok());
        let found = master
            .ok_or_else(|| Error::Unavailable("nginx wrote no process id".into()))
            .and_then(worker)
            .and_then(|worker| load(bench, port, worker));
        server.stop(master);
        let (cpu, time) = found?;
        Ok(vec![("cpu".into(), cpu), ("time".into(), time)])
    })
}
