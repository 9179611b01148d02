// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do tests start `debox serve`, and ask it?
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub const READY: Duration = Duration::from_secs(60);

pub fn debox(options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_debox-serve"))
        .args(options)
        .env_remove("DEBOX_SOCKET")
        .output()
        .unwrap()
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn line(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1);
        let mut pairs = lines.filter_map(|line| line.split_once(": "));
        let found = pairs.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }
}

fn exchange(mut stream: impl Read + Write, request: &str) -> Answer {
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").expect(&text);
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer {
        status,
        head: head.to_owned(),
        body: body.to_owned(),
    }
}

pub struct Server {
    pub process: Child,
    said: BufReader<ChildStderr>,
    /// HOST:PORT, or the path of its socket.
    pub place: String,
    pub token: String,
    pub lines: Vec<String>,
}

impl Server {
    pub fn start(options: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_debox-serve"))
            .arg("serve")
            .args(options)
            .env_remove("DEBOX_SOCKET")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(process.stderr.take().unwrap());
        let mut server = Self {
            process,
            said,
            place: String::new(),
            token: String::new(),
            lines: Vec::new(),
        };
        let line = server.says("the page is at ");
        let (_, place) = line.split_once("the page is at ").unwrap();
        match place.strip_prefix("http://") {
            Some(address) => {
                let (place, token) = address.split_once("/?token=").unwrap();
                (server.place, server.token) = (place.into(), token.trim().into());
            }
            None => server.place = place.split_once(" (").unwrap().0.into(),
        }
        server
    }

    /// Recordings of this directory alone.
    pub fn of(folder: &Path) -> Self {
        Self::start(&["--no-watch", "--recordings", folder.to_str().unwrap()])
    }

    /// Its next line with that.
    pub fn says(&mut self, what: &str) -> String {
        let until = Instant::now() + READY;
        while Instant::now() < until {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "it ended");
            self.lines.push(line.clone());
            if line.contains(what) {
                return line;
            }
        }
        panic!("it never said {what:?}");
    }

    pub fn raw(&self, request: &str) -> Answer {
        match self.place.starts_with('/') {
            true => exchange(UnixStream::connect(&self.place).unwrap(), request),
            false => exchange(TcpStream::connect(&self.place).unwrap(), request),
        }
    }

    /// With these lines and no others.
    pub fn ask(&self, method: &str, path: &str, lines: &[&str]) -> Answer {
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        self.raw(&format!("{method} {path} HTTP/1.1\r\n{lines}\r\n"))
    }

    /// As who has the token.
    pub fn get(&self, path: &str) -> Answer {
        let bearer = format!("Authorization: Bearer {}", self.token);
        self.ask("GET", path, &["Host: localhost", &bearer])
    }

    pub fn end(mut self, signal: i32) -> std::process::ExitStatus {
        let pid = i32::try_from(self.process.id()).unwrap();
        // SAFETY: kill touches no memory; it is our own child.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        self.process.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Until it is so.
pub fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + READY;
    while !is() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A program of that name that sleeps.
pub fn sleeper(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::copy("/bin/sleep", &path).unwrap();
    path
}
