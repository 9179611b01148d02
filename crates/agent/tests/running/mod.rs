// SPDX-License-Identifier: MIT OR Apache-2.0
//! An agent that runs, for a test: what it says, and what its figures are.
#![allow(dead_code)] // Who names this file as a module needs one part or the other.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub const READY: Duration = Duration::from_secs(60);

pub fn debox(options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_debox-agent"));
    command.args(options).output().unwrap()
}

pub struct Agent {
    pub process: Child,
    pub said: BufReader<ChildStderr>,
    pub place: String,
    pub folder: tempfile::TempDir,
}

impl Agent {
    pub fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    pub fn start_with(config: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("agent.toml");
        std::fs::write(
            &file,
            config.replace("FOLDER", folder.path().to_str().unwrap()),
        )
        .unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_debox-agent"))
            .args(["agent", "--config"])
            .arg(&file)
            .args(options)
            .env_remove("DEBOX_SOCKET")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self::of(process, folder)
    }

    /// Once it says where its figures are.
    pub fn of(mut process: Child, folder: tempfile::TempDir) -> Self {
        let mut agent = Self {
            said: BufReader::new(process.stderr.take().unwrap()),
            process,
            place: String::new(),
            folder,
        };
        let line = agent.says("figures at ");
        let (_, place) = line.split_once("figures at ").unwrap();
        agent.place = place.trim().to_owned();
        agent
    }

    /// Its next line with that.
    pub fn says(&mut self, what: &str) -> String {
        let until = Instant::now() + READY;
        while Instant::now() < until {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "it ended");
            if line.contains(what) {
                return line;
            }
        }
        panic!("it never said {what:?}");
    }

    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.process.id()).unwrap();
        // SAFETY: kill touches no memory; it is our own child.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    pub fn ask(&self, path: &str) -> (String, String) {
        self.ask_for(path, "*/*")
    }

    pub fn ask_for(&self, path: &str, accept: &str) -> (String, String) {
        let mut text = String::new();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        );
        if let Some(address) = self.place.strip_prefix("http://") {
            let (address, _) = address.split_once('/').unwrap();
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream.read_to_string(&mut text).unwrap();
        } else {
            let (socket, _) = self.place.split_once(' ').unwrap();
            let mut stream = UnixStream::connect(socket).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream.read_to_string(&mut text).unwrap();
        }
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    pub fn metrics(&self) -> String {
        // What was made less than a second ago is what is answered.
        std::thread::sleep(Duration::from_millis(1_100));
        let (head, body) = self.ask("/metrics");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        body
    }

    pub fn end(&mut self) -> Option<i32> {
        self.signal(libc::SIGTERM);
        self.process.wait().unwrap().code()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// By what stands before the value.
pub fn values(text: &str) -> HashMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| {
        // Behind that there is an exemplar.
        let line = line.split(" # ").next().unwrap();
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series, value.parse().unwrap())
    });
    pairs.collect()
}

pub fn run(program: &Path, seconds: &str) {
    assert!(
        Command::new(program)
            .arg(seconds)
            .status()
            .unwrap()
            .success()
    );
}

/// A program of that name that sleeps.
pub fn sleeper(folder: &Path, name: &str) -> std::path::PathBuf {
    let path = folder.join(name);
    std::fs::copy("/bin/sleep", &path).unwrap();
    path
}

/// Until it is there.
pub fn when_there<T>(look: impl Fn() -> Option<T>) -> T {
    let until = Instant::now() + READY;
    while Instant::now() < until {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("it is not there");
}
