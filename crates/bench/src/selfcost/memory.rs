// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much memory does DeBox share with a program of many threads, and how
//! much has its broker?

use super::calls::{Answer, Task};
use super::ways::Bench;
use crate::Error;
use crate::raw::os_error;
use crate::tidy::{self, Guarded};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

const THREADS: usize = 1000;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Memory {
    pub threads: usize,
    /// Of these, how many had their sleeps in their record.
    pub watched: f64,
    /// Mapped by the client: bytes of slots, and the maps that they are in, two
    /// a segment; bytes of the table of sites, which all clients share.
    pub slots: f64,
    pub maps: f64,
    pub sites: f64,
    /// The broker's resident memory with no client, and with this one.
    pub broker_before: f64,
    pub broker: f64,
    /// Private memory that a program has more when it is spliced; else why that is not known.
    #[serde(default)]
    pub spliced: Option<f64>,
    #[serde(default)]
    pub spliced_missing: Option<String>,
}

impl Memory {
    pub fn segments(&self) -> f64 {
        self.maps / 2.0
    }

    pub fn slot(&self) -> f64 {
        self.slots / self.segments() / debox_abi::DEBOX_SEGMENT_SLOTS as f64
    }
}

fn resident(pid: u32) -> Result<f64, Error> {
    let path = PathBuf::from(format!("/proc/{pid}/status"));
    let text = fs::read_to_string(&path).map_err(|e| Error::File {
        path: path.clone(),
        what: e.to_string(),
    })?;
    text.lines()
        .find_map(|l| {
            l.strip_prefix("VmRSS:")?
                .trim()
                .strip_suffix(" kB")?
                .parse::<f64>()
                .ok()
        })
        .map(|kib| kib * 1024.0)
        .ok_or_else(|| Error::Unavailable(format!("{} has no VmRSS", path.display())))
}

/// The measured process: a recorded call in each of `number` threads, and what
/// is mapped and resident while they all live.
pub(super) fn threads(number: usize, broker: u32) -> Result<Answer, Error> {
    let gate = Mutex::new(());
    std::thread::scope(|scope| {
        let open = gate.lock().expect("nobody has panicked");
        let (told, tell) = mpsc::channel();
        for _ in 0..number {
            let (told, gate) = (told.clone(), &gate);
            std::thread::Builder::new()
                .stack_size(64 << 10)
                .spawn_scoped(scope, move || {
                    // SAFETY: no arguments.
                    let call = || unsafe { libc::getpid() };
                    let (_, record) = debox::call_nr(libc::SYS_getpid as i32, call);
                    let _ = told.send(record.blocked().is_some());
                    drop(gate.lock());
                })
                .map_err(|_| os_error("starting a thread"))?;
        }
        let watched = tell.iter().take(number).filter(|watched| *watched).count();
        let (mut slots, mut maps, mut sites) = (0, 0, 0);
        let text = fs::read_to_string("/proc/self/maps").map_err(|_| os_error("reading maps"))?;
        for line in text.lines() {
            let range = line.split(' ').next().and_then(|r| r.split_once('-'));
            let Some((low, high)) = range else { continue };
            let number = |hex| u64::from_str_radix(hex, 16).unwrap_or(0);
            let bytes = number(high) - number(low);
            if line.contains("bpf-map") {
                slots += bytes;
                maps += 1;
            } else if line.contains("memfd:debox-shared") {
                sites += bytes;
            }
        }
        let answer = [
            ("slots", slots as f64),
            ("maps", f64::from(maps)),
            ("sites", sites as f64),
            ("watched", watched as f64),
            ("broker", resident(broker)?),
        ];
        drop(open);
        Ok(answer.map(|(name, v)| (name.to_owned(), vec![v])).into())
    })
}

/// Private memory of a program that sleeps, which is begun by these words.
fn private(prefix: &[&str], limit: Duration) -> Result<f64, Error> {
    let words = [prefix, &["sh", "-c", "echo $$; exec sleep infinity"]].concat();
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    tidy::bind(&mut command, None, None);
    let mut guarded = Guarded::spawn(&mut command)?;
    let mut said = String::new();
    if let Some(out) = guarded.child.stdout.take() {
        let _ = BufReader::new(out).read_line(&mut said);
    }
    let failed = || Error::Unavailable(format!("{} said no process id", words[0]));
    let pid: u32 = said.trim().parse().map_err(|_| failed())?;
    let begin = Instant::now();
    let is = |what: &str, value: &str| {
        fs::read_to_string(format!("/proc/{pid}/{what}")).is_ok_and(|text| text.contains(value))
    };
    while !(is("comm", "sleep") && is("status", "State:\tS")) {
        tidy::go_on()?;
        if begin.elapsed() > limit {
            return Err(Error::Unavailable(format!("process {pid} does not sleep")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    let text = text.map_err(|_| os_error("reading smaps_rollup"))?;
    // SAFETY: the program that was just begun, which nobody has waited for but who began it.
    unsafe { libc::kill(pid as i32, libc::SIGTERM) };
    let _ = guarded.wait(limit);
    // Clean pages of images all programs share, whether there is another one just now or not.
    let kib = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("Private_Dirty:")?;
        rest.trim().strip_suffix(" kB")?.parse::<f64>().ok()
    });
    Ok(kib.sum::<f64>() * 1024.0)
}

/// How much more of it there is when it is spliced.
fn spliced(bench: &Bench) -> Result<f64, Error> {
    let debox = bench.executable.display().to_string();
    let run = [
        debox.as_str(),
        "run",
        "--capture=splice",
        "-q",
        "-o",
        "/dev/null",
        "--",
    ];
    Ok(private(&run, bench.limit)? - private(&[], bench.limit)?)
}

/// Beside this debox (a build directory), or where `make install` puts it.
fn deboxd(bench: &Bench) -> Result<PathBuf, Error> {
    let directory = bench.executable.parent().unwrap_or(Path::new("/"));
    [directory.join("deboxd"), directory.join("../sbin/deboxd")]
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| {
            Error::Unavailable(format!(
                "deboxd lies neither beside debox in {} nor in sbin beside that: install DeBox",
                directory.display()
            ))
        })
}

/// A broker as the system has it, in a process of its own.
fn broker(bench: &mut Bench, socket: &Path) -> Result<Guarded, Error> {
    let errors = bench.out_file();
    let failed = |_| os_error("making a file");
    let file = fs::File::create(&errors).map_err(failed)?;
    let mut command = Command::new(deboxd(bench)?);
    command
        .args(["--everybody", "--socket"])
        .arg(socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(file));
    tidy::bind(&mut command, Some(bench.other_cpu), None);
    let mut guarded = Guarded::spawn(&mut command)?;
    let begin = Instant::now();
    loop {
        let mut status = Command::new(&bench.executable);
        status.args(["status", "--json", "--socket"]).arg(socket);
        if tidy::run(&mut status, None, None, bench.limit)?.0.success() {
            return Ok(guarded);
        }
        let ended = guarded.child.try_wait().ok().flatten().is_some();
        if ended || begin.elapsed() > Duration::from_secs(20) {
            let said = fs::read_to_string(&errors).unwrap_or_default();
            let last = said
                .lines()
                .rfind(|l| !l.trim().is_empty())
                .unwrap_or("it said nothing");
            return Err(Error::Unavailable(format!(
                "deboxd does not answer: {}",
                last.trim()
            )));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(super) fn measure(bench: &mut Bench) -> Result<Memory, Error> {
    let directory = bench.directory.join("broker");
    // deboxd is not root, and must reach its socket.
    for path in [&directory, &bench.directory.clone()] {
        fs::create_dir_all(path)
            .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
            .map_err(|_| os_error("making a directory"))?;
    }
    let socket = directory.join("socket");
    let mut guarded = broker(bench, &socket)?;
    let pid = guarded.child.id();
    let broker_before = resident(pid)?;
    let order = super::calls::Order {
        socket: Some(socket),
        ..bench.order(Task::Threads {
            number: THREADS,
            broker: pid,
        })
    };
    let answer = bench.program(&[], None, &order)?;
    guarded.signal(libc::SIGTERM);
    let _ = guarded.wait(Duration::from_secs(10));
    bench.hooks.off();
    let value = |name: &str| answer.get(name).map_or(f64::NAN, |v| v[0]);
    let (spliced, spliced_missing) = match spliced(bench) {
        Ok(bytes) => (Some(bytes), None),
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(why) => (None, Some(why.to_string())),
    };
    let memory = Memory {
        threads: THREADS,
        watched: value("watched"),
        slots: value("slots"),
        maps: value("maps"),
        sites: value("sites"),
        broker_before,
        broker: value("broker"),
        spliced,
        spliced_missing,
    };
    if memory.maps == 0.0 || memory.watched < 0.9 * THREADS as f64 {
        return Err(Error::Unavailable(format!(
            "of {THREADS} threads only {} were watched",
            memory.watched
        )));
    }
    Ok(memory)
}
