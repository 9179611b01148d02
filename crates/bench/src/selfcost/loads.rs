// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do whole programs take, watched and not? (The paper's Table 3, and
//! today's servers.)
//!
//! The time is taken inside of the tool: what a tool needs to start and to
//! print is not in it. Every load works on files and ports of its own and is
//! ended with its tool.

use super::calls::Task;
use super::grid::WayKind;
use super::ways::{Bench, Way, installed};
use crate::Error;
use crate::tidy::{self, Guarded};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

type Run = Box<dyn FnMut(&mut Bench, &Way) -> Result<f64, Error>>;

pub struct Load {
    pub id: &'static str,
    pub title: &'static str,
    pub run: Run,
}

/// libdebox's own sources: a real build that needs nothing but a C compiler.
const SOURCES: [(&str, &str); 13] = [
    ("runtime.c", include_str!("../../libdebox/runtime.c")),
    ("call.c", include_str!("../../libdebox/call.c")),
    ("clock.c", include_str!("../../libdebox/clock.c")),
    ("record.c", include_str!("../../libdebox/record.c")),
    ("compat.c", include_str!("../../libdebox/compat.c")),
    ("internal.h", include_str!("../../libdebox/internal.h")),
    ("own_call.h", include_str!("../../libdebox/own_call.h")),
    ("sys.h", include_str!("../../libdebox/sys.h")),
    ("debox.h", include_str!("../../include/debox.h")),
    (
        "debox_compat.h",
        include_str!("../../include/debox_compat.h"),
    ),
    ("debox/abi.h", include_str!("../../include/debox/abi.h")),
    (
        "debox/protocol.h",
        include_str!("../../include/debox/protocol.h"),
    ),
    ("debox/trace.h", include_str!("../../include/debox/trace.h")),
];

/// Writes them, and gives the command that builds them.
fn build(dir: &Path) -> Result<String, Error> {
    std::fs::create_dir_all(dir.join("debox")).map_err(failed("making a directory"))?;
    for (name, text) in SOURCES {
        std::fs::write(dir.join(name), text).map_err(failed("writing sources"))?;
    }
    Ok(format!(
        "cd '{}' && for f in *.c; do cc -D_GNU_SOURCE -std=gnu11 -O0 -I. -c $f || exit 1; done",
        dir.display()
    ))
}

pub(super) fn failed(what: &str) -> impl FnOnce(std::io::Error) -> Error + '_ {
    move |source| Error::System {
        what: what.into(),
        source,
    }
}

/// A directory of `bytes` in files of 20 KB: text that compresses as text does.
fn tree(at: &Path, bytes: usize) -> Result<(), Error> {
    const WORDS: [&str; 16] = [
        "call", "record", "sleep", "site", "label", "span", "trace", "slot", "broker", "kernel",
        "the", "of", "a", "is", "and", "1999",
    ];
    let mut rng = fastrand::Rng::with_seed(bytes as u64);
    std::fs::create_dir_all(at).map_err(failed("making a directory"))?;
    for n in 0..bytes.div_ceil(20_000) {
        let mut text = String::with_capacity(20_100);
        while text.len() < 20_000 {
            text += WORDS[rng.usize(..WORDS.len())];
            text.push(if rng.u8(..) < 20 { '\n' } else { ' ' });
            if rng.u8(..) < 40 {
                text += &rng.u32(..).to_string();
            }
        }
        std::fs::write(at.join(format!("file-{n}")), text).map_err(failed("writing a file"))?;
    }
    Ok(())
}

/// A command that is timed inside of the tool.
fn timed(words: Vec<String>) -> Run {
    Box::new(move |bench, way| {
        let answer = bench.run(way, &Task::Command(words.clone()))?;
        elapsed(&answer)
    })
}

fn elapsed(answer: &super::calls::Answer) -> Result<f64, Error> {
    answer
        .get("elapsed")
        .and_then(|v| v.first().copied())
        .ok_or_else(|| Error::Unavailable("the program gave no time".into()))
}

/// A command that does nothing, with the tool's own start and end.
fn start(bench: &mut Bench, way: &Way) -> Result<f64, Error> {
    bench.under(way, |bench, prefix| {
        let words = [prefix.as_slice(), &["/bin/true".to_owned()]].concat();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("TMPDIR", &bench.directory);
        let begin = Instant::now();
        // The tool has the verifier check its programs on all CPUs.
        let cpus = [bench.cpu, bench.other_cpu];
        let (status, _, errors) = tidy::run(&mut command, cpus, None, bench.limit)?;
        let took = begin.elapsed().as_nanos() as f64;
        match status.success() {
            true => Ok(took),
            false => Err(Error::Unavailable(super::ways::refusal(
                &prefix, status, &errors,
            ))),
        }
    })
}

fn shell(text: String) -> Vec<String> {
    vec!["sh".into(), "-c".into(), text]
}

const IDS: [&str; 7] = ["tar-1", "tar-10", "build", "storm", "start", "redis", "fio"];

/// # Errors
/// [`Error::Usage`] when one is named that there is not.
pub fn check(only: &[String]) -> Result<(), Error> {
    match only.iter().find(|id| !IDS.contains(&id.as_str())) {
        Some(unknown) => Err(Error::Usage(format!(
            "--programs {unknown}: there is no such program; there are {}",
            IDS.join(", ")
        ))),
        None => Ok(()),
    }
}

/// What takes a tool long need not be done often: a result is for one anyway.
fn times(way: &Way, alone: u64, by_others: u64) -> u64 {
    if way.kind == WayKind::Other {
        by_others
    } else {
        alone
    }
}

/// Everything (or `only` these) that can be run here; what cannot is in the notes.
pub fn prepare(
    bench: &Bench,
    only: &[String],
    notes: &mut Vec<String>,
) -> Result<Vec<Load>, Error> {
    let at = |name: &str| bench.directory.join(name);
    let wanted = |id: &str| only.is_empty() || only.iter().any(|o| o == id);
    let mut found = Vec::new();
    let mut lacking = |what: &str, program: &str, package: &str| {
        let there = installed(program);
        if !there {
            notes.push(format!(
                "{what} is left out: {program} is not installed (Debian: {package})"
            ));
        }
        there
    };
    let trees = [
        ("tar-1", "tar-gz 1 MB", 1_000_000),
        ("tar-10", "tar-gz 10 MB", 10_000_000),
    ];
    if trees.iter().any(|(id, ..)| wanted(id))
        && lacking("tar-gz", "tar", "tar")
        && lacking("tar-gz", "gzip", "gzip")
    {
        for (id, title, bytes) in trees {
            if !wanted(id) {
                continue;
            }
            let dir = at(id);
            tree(&dir, bytes)?;
            let to = at("archive.tar.gz");
            found.push(Load {
                id,
                title,
                run: timed(vec![
                    "tar".into(),
                    "-c".into(),
                    // Half the time of the default, so that there are more rounds.
                    "--use-compress-program=gzip -1".into(),
                    "-f".into(),
                    to.display().to_string(),
                    "-C".into(),
                    dir.display().to_string(),
                    ".".into(),
                ]),
            });
        }
    }
    if wanted("build") && lacking("the build", "cc", "gcc") {
        found.push(Load {
            id: "build",
            title: "build",
            run: timed(shell(build(&at("build"))?)),
        });
    }
    if wanted("storm") {
        found.push(Load {
            id: "storm",
            title: "fork+exec",
            run: Box::new(|bench, way| {
                elapsed(&bench.run(way, &Task::Storm(times(way, 100, 20)))?)
            }),
        });
    }
    if wanted("start") {
        found.push(Load {
            id: "start",
            title: "start",
            run: Box::new(start),
        });
    }
    if wanted("redis")
        && lacking("redis", "redis-server", "redis-server")
        && lacking("redis", "redis-benchmark", "redis-tools")
    {
        found.push(Load {
            id: "redis",
            title: "redis",
            run: Box::new(redis),
        });
    }
    if wanted("fio") && lacking("fio", "fio", "fio") {
        let file = at("fio-file");
        let mut f = std::fs::File::create(&file).map_err(failed("making a file"))?;
        let mut block = vec![0u8; 1 << 20];
        let mut rng = fastrand::Rng::with_seed(2);
        for _ in 0..32 {
            rng.fill(&mut block);
            f.write_all(&block).map_err(failed("writing a file"))?;
        }
        f.sync_all().map_err(failed("writing a file"))?;
        let words = [
            "fio",
            "--name=random",
            "--rw=randread",
            "--bs=4k",
            "--size=32m",
            "--ioengine=psync",
            "--number_ios=1500",
            "--randseed=7",
            "--invalidate=1",
            "--thread",
            "--output-format=terse",
        ];
        found.push(Load {
            id: "fio",
            title: "fio",
            run: timed(
                words
                    .iter()
                    .map(|w| (*w).to_owned())
                    .chain([format!("--filename={}", file.display())])
                    .collect(),
            ),
        });
    }
    Ok(found)
}

pub(super) fn port_free() -> Result<u16, Error> {
    let listener =
        TcpListener::bind(("127.0.0.1", 0)).map_err(failed("looking for a free port"))?;
    Ok(listener
        .local_addr()
        .map_err(failed("looking for a free port"))?
        .port())
}

/// A server, by itself or under a tool; ends with this.
pub(super) struct Server {
    pub guarded: Guarded,
    errors: PathBuf,
}

impl Server {
    pub fn start(
        bench: &mut Bench,
        prefix: &[String],
        words: &[String],
        port: u16,
    ) -> Result<Self, Error> {
        let errors = bench.out_file();
        let file = std::fs::File::create(&errors).map_err(failed("making a file"))?;
        let all: Vec<&String> = prefix.iter().chain(words).collect();
        let mut command = Command::new(all[0]);
        command
            .args(&all[1..])
            .env("TMPDIR", &bench.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(file));
        tidy::bind(&mut command, Some(bench.cpu), None);
        let mut server = Self {
            guarded: Guarded::spawn(&mut command)?,
            errors,
        };
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            tidy::go_on()?;
            let ended = server.guarded.child.try_wait().ok().flatten();
            if ended.is_some() || begin.elapsed() > bench.limit {
                let said = std::fs::read_to_string(&server.errors).unwrap_or_default();
                let last = said
                    .lines()
                    .rfind(|l| !l.trim().is_empty())
                    .unwrap_or("nothing")
                    .to_owned();
                return Err(Error::Unavailable(format!(
                    "{} does not start: {last}",
                    all[0]
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Ends the server as its users do, so that the tool ends in its own way.
    pub fn stop(mut self, pid: Option<i32>) {
        match pid {
            // SAFETY: the server that we started and that said this number itself.
            Some(pid) => unsafe {
                libc::kill(pid, libc::SIGTERM);
            },
            None => self.guarded.signal(libc::SIGTERM),
        }
        let _ = self.guarded.wait(Duration::from_secs(10));
        let _ = std::fs::remove_file(&self.errors);
    }
}

/// Runs the other end, on another CPU.
fn client(bench: &Bench, words: &[String]) -> Result<String, Error> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let (status, out, err) = tidy::run(&mut command, Some(bench.other_cpu), None, bench.limit)?;
    if status.success() {
        Ok(out)
    } else {
        Err(Error::Unavailable(format!(
            "{} ended with {status}: {}",
            words[0],
            err.trim()
        )))
    }
}

fn redis(bench: &mut Bench, way: &Way) -> Result<f64, Error> {
    bench.under(way, |bench, prefix| {
        let port = port_free()?;
        let dir = bench.directory.display().to_string();
        let words: Vec<String> = [
            "redis-server",
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            &dir,
            "--daemonize",
            "no",
            "--loglevel",
            "warning",
            "--pidfile",
            &format!("{dir}/redis.pid"),
        ]
        .map(String::from)
        .into();
        let server = Server::start(bench, &prefix, &words, port)?;
        let pid = std::fs::read_to_string(format!("{dir}/redis.pid"))
            .ok()
            .and_then(|t| t.trim().parse().ok());
        let said = client(
            bench,
            &[
                "redis-benchmark",
                "-p",
                &port.to_string(),
                "-t",
                "get",
                "-n",
                &times(way, 8000, 2000).to_string(),
                "-c",
                "16",
                "--csv",
            ]
            .map(String::from),
        );
        server.stop(pid);
        let said = said?;
        // "test","rps",... and then "GET","12345.67",...
        said.lines()
            .find(|l| l.starts_with("\"GET\""))
            .and_then(|l| l.split(',').nth(1)?.trim_matches('"').parse::<f64>().ok())
            .filter(|rate| *rate > 0.0)
            .map(|rate| 1e9 / rate)
            .ok_or_else(|| Error::Unavailable(format!("redis-benchmark: {}", said.trim())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_are_all_there() {
        let dir = tempfile::tempdir().unwrap();
        let out = Command::new("sh")
            .args(["-c", &build(dir.path()).unwrap()])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{errors}");
        assert!(dir.path().join("runtime.o").exists());
    }

    #[test]
    fn the_tree_has_its_size_and_compresses_like_text() {
        let dir = tempfile::tempdir().unwrap();
        tree(&dir.path().join("t"), 100_000).unwrap();
        let sum: u64 = std::fs::read_dir(dir.path().join("t"))
            .unwrap()
            .map(|e| e.unwrap().metadata().unwrap().len())
            .sum();
        assert!((100_000..102_000).contains(&sum), "{sum}");
        // gzip is an independent judge: between a half and a tenth.
        let out = Command::new("sh")
            .args([
                "-c",
                &format!("cat '{}'/* | gzip | wc -c", dir.path().join("t").display()),
            ])
            .output()
            .unwrap();
        let packed: u64 = String::from_utf8(out.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        assert!(packed * 10 > sum && packed * 2 < sum, "{packed} of {sum}");
    }
}
