// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happened in the last hour, when somebody wants to know afterwards?
//!
//! A ring of ordinary recordings, one for each period of each policy, in a folder:
//! `20261127T115000Z.web.debox` is the policy web's period that began then. The present ones are written every
//! few seconds to files of their own (`.part.debox`), so that a kill of the agent takes no more than these. The oldest go when there
//! are too many, or they are too large together. What is to stay is linked to `kept/`. A period that is over is brought
//! to the disk by a thread of its own: who watches does not wait for a disk.
//!
//! The folder is the agent's alone, by a lock whose holder the kernel names: so `debox snapshot`
//! finds the agent, and nobody can name another process in its place. It is not one that another
//! user could write to: whoever can, could lead the agent to files elsewhere.

use crate::Error;
use crate::config::{FlightConfig, is_policy_name};
use debox_output::Utc;
use debox_record::Writer;
use debox_report::Report;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Of the present period no more than this is lost with the agent.
pub const CHECKPOINT_EVERY: Duration = Duration::from_secs(10);
/// The same where reading is to cost less.
const CHECKPOINT_SELDOM: Duration = Duration::from_secs(60);
/// Files that wait for the disk, at most: others are brought there by the kernel when it gets to it.
const SETTLING_MOST: usize = 64;
/// Who ends the agent waits so long for the disk.
const LAST: Duration = Duration::from_secs(5);
const LOCK: &str = ".agent.lock";
const KEPT: &str = "kept";
/// What is not kept yet.
const NEW: &str = ".new-";
const END: &str = ".debox";
const PART: &str = ".part.debox";

/// `20261127T115000Z`, from the clock of the day.
fn stamp(at: SystemTime) -> String {
    let seconds = at
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let utc = Utc::of_seconds(i64::try_from(seconds).unwrap_or(0));
    format!(
        "{:04}{:02}{:02}T{:02}{:02}{:02}Z",
        utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second
    )
}

/// Whether a file is one of the ring's: nothing else is ever removed.
fn is_period(name: &str) -> bool {
    let stem = name.strip_suffix(PART).or_else(|| name.strip_suffix(END));
    let parts = stem.and_then(|stem| stem.split_once('.'));
    parts.is_some_and(|(stem, policy)| {
        let (stem, number) = stem.split_once('-').unwrap_or((stem, "0"));
        let form = |(at, c): (usize, char)| match at {
            8 => c == 'T',
            15 => c == 'Z',
            _ => c.is_ascii_digit(),
        };
        is_policy_name(policy)
            && stem.len() == 16
            && stem.chars().enumerate().all(form)
            && !number.is_empty()
            && number.bytes().all(|c| c.is_ascii_digit())
    })
}

fn folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(path)
}

fn lock_of(kind: libc::c_int) -> libc::flock {
    // SAFETY: all-zero is a valid flock: the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock
}

/// Who has the folder, and whose its lock is; None: nobody.
pub fn holder(directory: &Path) -> io::Result<Option<(i32, u32)>> {
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(directory.join(LOCK))?;
    let mut lock = lock_of(libc::F_WRLCK);
    // SAFETY: the descriptor is open, the struct a valid local.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut lock) } {
        0 if i32::from(lock.l_type) == libc::F_UNLCK => Ok(None),
        0 => Ok(Some((lock.l_pid, file.metadata()?.uid()))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A real directory of this user or of root, to which not everybody writes.
fn own_folder(path: &Path) -> io::Result<()> {
    let euid = rustix::process::geteuid().as_raw();
    let found = fs::symlink_metadata(path)?;
    let mode = found.mode();
    let what = match () {
        () if !found.is_dir() => "it is no directory".to_owned(),
        () if found.uid() != euid && found.uid() != 0 => {
            format!("it belongs to another user, {}", found.uid())
        }
        () if mode & 0o002 != 0 && mode & 0o1000 == 0 => "everybody may write to it".to_owned(),
        () => return Ok(()),
    };
    Err(io::Error::other(format!("{}: {what}", path.display())))
}

fn lock(directory: &Path) -> io::Result<File> {
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o640)
        // Nobody waits for a pipe.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(directory.join(LOCK))?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!(
            "{LOCK} in it is no file of this user, but of user {}",
            meta.uid()
        )));
    }
    let lock = lock_of(libc::F_WRLCK);
    // SAFETY: the descriptor is open, the struct a valid local.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

/// One that is over.
struct Period {
    /// Its files' names but for their ends.
    stem: String,
    /// It is there to its end; else what was written so far is.
    whole: bool,
    /// Of what is there to its end, if the disk has not refused it.
    whole_bytes: u64,
    /// Of what was written so far, until the whole is on the disk.
    part_bytes: u64,
    until: Instant,
}

impl Period {
    fn name(&self) -> String {
        let end = if self.whole { END } else { PART };
        format!("{}{end}", self.stem)
    }

    fn bytes(&self) -> u64 {
        self.whole_bytes + self.part_bytes
    }
}

/// A period's files, as an agent before has left them.
#[derive(Default)]
struct Found {
    whole_bytes: Option<u64>,
    part_bytes: Option<u64>,
    written: Option<SystemTime>,
}

/// Of what was found at a start, by stems. Each is as much older than the last one as it was written before
/// that: so the ring does not grow with each start, and what was before a long time without an
/// agent stays for as long as anything does.
fn found_ring(found: BTreeMap<String, Found>, directory: &Path) -> VecDeque<Period> {
    let now = Instant::now();
    let written = |found: &Found| found.written.unwrap_or(UNIX_EPOCH);
    let last = found.values().map(written).max().unwrap_or(UNIX_EPOCH);
    let mut found: Vec<(String, Found)> = found.into_iter().collect();
    found.sort_by_key(|(_, found)| written(found));
    let period = |(stem, found): (String, Found)| {
        let older = last.duration_since(written(&found)).unwrap_or_default();
        let whole = match (found.whole_bytes, found.part_bytes) {
            // The agent ended before the disk had the whole, or the machine did.
            (Some(_), Some(_)) => is_whole(&directory.join(format!("{stem}{END}"))),
            (whole, _) => whole.is_some(),
        };
        Period {
            stem,
            whole,
            whole_bytes: found.whole_bytes.unwrap_or(0),
            part_bytes: found.part_bytes.unwrap_or(0),
            // Before this machine started: as old as can be told.
            until: now.checked_sub(older).unwrap_or(now),
        }
    };
    found.into_iter().map(period).collect()
}

fn is_whole(path: &Path) -> bool {
    let read = debox_record::read(path).ok();
    let recording = read.and_then(|report| report.recording);
    recording.is_some_and(|recording| recording.complete)
}

/// A period that is over: its file, and the one that was written so far, which goes when that is on the disk.
struct Settling {
    file: File,
    stem: String,
    path: PathBuf,
    part: PathBuf,
}

/// Which one is done, and what was wrong.
type Settled = (String, Result<(), String>);

/// The disk has refused the whole: the part is there in its place, also where that was kept meanwhile.
fn part_instead(whole: &Path, part: &Path) {
    let (Some(directory), Some(whole_name), Some(part_name)) =
        (whole.parent(), whole.file_name(), part.file_name())
    else {
        return;
    };
    for kept in kept(directory).unwrap_or_default() {
        let whole = kept.join(whole_name);
        if fs::symlink_metadata(&whole).is_ok() && fs::hard_link(part, kept.join(part_name)).is_ok()
        {
            let _ = fs::remove_file(whole);
        }
    }
    let _ = fs::remove_file(whole);
}

/// Who brings them there.
struct Settler {
    files: SyncSender<Settling>,
    settled: Receiver<Settled>,
    waiting: usize,
}

impl Settler {
    fn start() -> io::Result<Self> {
        let (files, next) = sync_channel::<Settling>(SETTLING_MOST);
        let (told, settled) = channel();
        let settle = move || {
            for is in next {
                let result = is.file.sync_data();
                match &result {
                    Ok(()) => {
                        let _ = fs::remove_file(&is.part);
                    }
                    Err(_) => part_instead(&is.path, &is.part),
                }
                let result = result.map_err(|error| format!("{}: {error}", is.path.display()));
                // Who ends does not wait for ever.
                let _ = told.send((is.stem, result));
            }
        };
        std::thread::Builder::new()
            .name("debox-flight".into())
            .spawn(settle)?;
        Ok(Self {
            files,
            settled,
            waiting: 0,
        })
    }

    fn settle(&mut self, is: Settling) {
        // Where there is no room, both files stay until they are too old.
        self.waiting += usize::from(self.files.try_send(is).is_ok());
    }

    /// The next one that is done; waits so long for one. None: none is done by then.
    fn next(&mut self, patience: Duration) -> Option<Settled> {
        if self.waiting == 0 {
            return None;
        }
        let done = self.settled.recv_timeout(patience).ok()?;
        self.waiting -= 1;
        Some(done)
    }
}

/// A policy's period that is recorded.
pub struct Present {
    policy: String,
    /// The file's name but for its end.
    stem: String,
    writer: Option<Writer>,
    due: Instant,
}

pub struct Flight {
    directory: PathBuf,
    keep: Duration,
    bytes_most: u64,
    before: Duration,
    kept_most: usize,
    checkpoint_every: Duration,
    /// From the oldest on: by when they were found or written, not by their names, as clocks are
    /// set back.
    ring: VecDeque<Period>,
    /// One of each policy.
    present: Vec<Present>,
    /// Periods that are not there, or not to their end, and that nobody was told of yet.
    lost: u64,
    /// What has gone wrong since it was last well; each is said once.
    troubles: HashSet<String>,
    settler: Settler,
    _lock: File,
}

/// What an agent that was killed was about to keep.
fn new_remove(kept: &Path) {
    for entry in fs::read_dir(kept).into_iter().flatten().flatten() {
        if entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(NEW.as_bytes())
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Flight {
    /// # Errors
    /// The folder cannot be made or is another agent's.
    pub fn open(config: &FlightConfig) -> Result<Self, Error> {
        let directory = config.directory.clone();
        let failed = |source| Error::Flight {
            directory: directory.clone(),
            source,
        };
        folder(&directory).map_err(failed)?;
        // A link to the folder may be there, of whoever could make it another one anyway.
        let real = directory.canonicalize().map_err(failed)?;
        own_folder(&real).map_err(failed)?;
        folder(&directory.join(KEPT)).map_err(failed)?;
        own_folder(&directory.join(KEPT)).map_err(failed)?;
        let lock =
            lock(&directory).map_err(|error| match (error.raw_os_error(), holder(&directory)) {
                (Some(libc::EAGAIN | libc::EACCES), Ok(Some((pid, _)))) => Error::FlightTaken {
                    directory: directory.clone(),
                    pid,
                },
                _ => failed(error),
            })?;
        new_remove(&directory.join(KEPT));
        let mut found: BTreeMap<String, Found> = BTreeMap::new();
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
                continue;
            };
            if is_period(&name) && entry.file_type().is_ok_and(|kind| kind.is_file()) {
                let (bytes, written) = (entry.metadata())
                    .and_then(|meta| Ok((meta.len(), meta.modified()?)))
                    .unwrap_or((0, UNIX_EPOCH));
                let (stem, part) = match name.strip_suffix(PART) {
                    Some(stem) => (stem, true),
                    None => (name.strip_suffix(END).unwrap_or(&name), false),
                };
                let is = found.entry(stem.to_owned()).or_default();
                is.written = is.written.max(Some(written));
                let of = if part {
                    &mut is.part_bytes
                } else {
                    &mut is.whole_bytes
                };
                *of = Some(bytes);
            }
        }
        Ok(Self {
            ring: found_ring(found, &directory),
            settler: Settler::start().map_err(failed)?,
            directory,
            keep: config.keep,
            bytes_most: config.bytes_most,
            before: config.before,
            kept_most: config.kept_most,
            checkpoint_every: CHECKPOINT_EVERY,
            present: Vec::new(),
            lost: 0,
            troubles: HashSet::new(),
            _lock: lock,
        })
    }

    /// These may be taken while it runs.
    pub fn limit(&mut self, config: &FlightConfig) {
        self.keep = config.keep;
        self.bytes_most = config.bytes_most;
        self.before = config.before;
        self.kept_most = config.kept_most;
    }

    /// Whether the present periods are written less often.
    pub fn seldom(&mut self, seldom: bool) {
        self.checkpoint_every = if seldom {
            CHECKPOINT_SELDOM
        } else {
            CHECKPOINT_EVERY
        };
    }

    /// Since this was asked last: periods that are not recorded, or not to their end.
    pub fn lost(&mut self) -> u64 {
        self.settle(Duration::ZERO);
        std::mem::take(&mut self.lost)
    }

    /// The last of it: waits for the disk, though not for ever. How many periods were lost since that was asked.
    pub fn close(mut self) -> u64 {
        self.settle(LAST);
        self.lost
    }

    /// Hears what became of files that are over, for so long at most.
    fn settle(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        while let Some((stem, done)) =
            (self.settler).next(until.saturating_duration_since(Instant::now()))
        {
            let period = self.ring.iter_mut().rfind(|period| period.stem == stem);
            match done {
                Ok(()) => {
                    if let Some(period) = period {
                        period.part_bytes = 0;
                    }
                    self.well();
                }
                Err(error) => {
                    if let Some(period) = period {
                        (period.whole, period.whole_bytes) = (false, 0);
                    }
                    self.lost += 1;
                    self.say(error);
                }
            }
        }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Once, although each period has a file of another name.
    fn say(&mut self, what: String) {
        let alike: String = what.chars().filter(|c| !c.is_ascii_digit()).collect();
        if self.troubles.insert(alike) {
            debox_cli::say(&format!("flight recorder: {what}"));
        }
    }

    /// The disk has taken a period.
    fn well(&mut self) {
        if !std::mem::take(&mut self.troubles).is_empty() {
            debox_cli::say("flight recorder: goes on");
        }
    }

    /// Whether no period is under way.
    pub fn idle(&self) -> bool {
        self.present.is_empty()
    }

    /// A period of a policy begins; `open` makes its file.
    pub fn begin(
        &mut self,
        policy: &str,
        open: impl FnOnce(&Path) -> Result<Writer, debox_cli::error::Error>,
    ) {
        // An agent that never comes to the end of a period, and one without room for one, as well.
        self.prune();
        let at = stamp(SystemTime::now());
        let taken = |stem: &str| {
            [END, PART].iter().any(|end| {
                fs::symlink_metadata(self.directory.join(format!("{stem}{end}"))).is_ok()
            })
        };
        let mut stem = format!("{at}.{policy}");
        let mut number = 1;
        // The clock was set back, or two in one second.
        while taken(&stem) && number < 1_000 {
            stem = format!("{at}-{number}.{policy}");
            number += 1;
        }
        let path = self.directory.join(format!("{stem}{PART}"));
        let writer = match open(&path) {
            Ok(writer) => Some(writer),
            Err(error) => {
                // What there was no room for is there, and empty.
                let _ = fs::remove_file(&path);
                self.lost += 1;
                self.say(error.to_string());
                None
            }
        };
        self.present.push(Present {
            policy: policy.to_owned(),
            stem,
            writer,
            due: Instant::now() + self.checkpoint_every,
        });
    }

    /// What the file of a policy's present period is named, but for its end; None: it has none.
    pub fn recording(&self, policy: &str) -> Option<&str> {
        let mut present = self.present.iter();
        let present = present.find(|present| present.policy == policy)?;
        present.writer.as_ref().map(|_| present.stem.as_str())
    }

    /// When the next report of the present period is wanted.
    pub fn due(&self) -> Option<Instant> {
        let written = self.present.iter().filter(|p| p.writer.is_some());
        written.map(|present| present.due).min()
    }

    pub fn is_due(&self, policy: &str) -> bool {
        let mut present = self.present.iter();
        let due = |present: &Present| present.policy == policy && present.due <= Instant::now();
        present.any(due)
    }

    /// So far.
    pub fn checkpoint(&mut self, policy: &str, report: &Report) {
        let mut present = self.present.iter_mut();
        let Some(present) = present.find(|present| present.policy == policy) else {
            return;
        };
        present.due = Instant::now() + self.checkpoint_every;
        let Some(writer) = &mut present.writer else {
            return;
        };
        writer.report_flush(report);
        if let Some(trouble) = writer.trouble().map(ToString::to_string) {
            self.say(trouble);
        }
    }

    /// Where a policy's last period that is over is recorded.
    pub fn last(&self, policy: &str) -> Option<PathBuf> {
        let end = format!(".{policy}");
        let mut ring = self.ring.iter();
        let last = ring.rfind(|period| period.whole && period.stem.ends_with(&end))?;
        Some(self.directory.join(last.name()))
    }

    /// A policy's present period is over: its report is to come.
    pub fn over(&mut self, policy: &str) -> Option<Present> {
        let mut present = self.present.iter();
        // The first one: of a policy that is replaced by one of the same name, the one before.
        let at = present.position(|present| present.policy == policy)?;
        Some(self.present.remove(at))
    }

    /// The report of one that is over. It gets a file of its own, and the one that was written so far goes when that is
    /// on the disk.
    pub fn end(&mut self, over: Present, report: &Report) {
        let Present { stem, writer, .. } = over;
        // There was no room as it began, and it was said.
        let Some(writer) = writer else {
            return;
        };
        let path = self.directory.join(format!("{stem}{END}"));
        let part = self.directory.join(format!("{stem}{PART}"));
        let bytes = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
        let mut period = Period {
            stem: stem.clone(),
            whole: true,
            whole_bytes: 0,
            part_bytes: bytes(&part),
            until: Instant::now(),
        };
        match writer.report_alone(&path, report) {
            Ok(file) => {
                period.whole_bytes = bytes(&path);
                self.settler.settle(Settling {
                    file,
                    stem,
                    path,
                    part,
                });
            }
            Err(error) => {
                period.whole = false;
                let _ = fs::remove_file(&path);
                self.lost += 1;
                self.say(error.to_string());
            }
        }
        self.ring.push_back(period);
        self.prune();
    }

    fn prune(&mut self) {
        let mut bytes: u64 = self.ring.iter().map(Period::bytes).sum();
        while let Some(oldest) = self.ring.front() {
            if oldest.until.elapsed() < self.keep && bytes <= self.bytes_most {
                return;
            }
            bytes -= oldest.bytes();
            let files = [END, PART].map(|end| format!("{}{end}", oldest.stem));
            self.ring.pop_front();
            for file in files {
                let path = self.directory.join(file);
                if let Err(error) = fs::remove_file(&path)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    self.say(format!("{}: {error}", path.display()));
                }
            }
        }
    }

    /// What is of the last minutes stays, whatever becomes of the ring: where.
    ///
    /// # Errors
    /// In words, with what to do.
    pub fn keep(&mut self, why: &str) -> Result<PathBuf, String> {
        self.settle(Duration::ZERO);
        let kept = self.directory.join(KEPT);
        let failed = |error: io::Error| format!("{}: {error}", kept.display());
        let there = self::kept(&self.directory).map_err(failed)?.len();
        if there >= self.kept_most {
            return Err(format!(
                "{} has {there} folders, and [flight] kept_most is {}: take away what is not needed any more",
                kept.display(),
                self.kept_most
            ));
        }
        let periods: Vec<&Period> = (self.ring.iter())
            .filter(|period| period.until.elapsed() <= self.before)
            .collect();
        if periods.is_empty() {
            return Err("no recording is there yet".into());
        }
        let stamp = stamp(SystemTime::now());
        let new = kept.join(format!("{NEW}{stamp}"));
        let _ = fs::remove_dir_all(&new);
        let mut path = kept.join(&stamp);
        let mut number = 1;
        while fs::symlink_metadata(&path).is_ok() {
            path = kept.join(format!("{stamp}-{number}"));
            number += 1;
        }
        let filled = self
            .fill(&new, &periods, why)
            .and_then(|()| fs::rename(&new, &path));
        filled.map_err(|error| {
            let _ = fs::remove_dir_all(&new);
            failed(error)
        })?;
        Ok(path)
    }

    /// A folder with these, and why.
    fn fill(&self, new: &Path, periods: &[&Period], why: &str) -> io::Result<()> {
        folder(new)?;
        for period in periods {
            // Gone by somebody else's hand: the others stay.
            let name = period.name();
            match fs::hard_link(self.directory.join(&name), new.join(&name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let why: String = why.chars().filter(|c| !c.is_control()).collect();
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o640)
            .open(new.join("why"))?;
        file.write_all(format!("{why}\n").as_bytes())
    }
}

/// Folders that were kept, in the order of their names.
pub fn kept(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory.join(KEPT))? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            all.push(entry.path());
        }
    }
    all.sort();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(directory: &Path) -> FlightConfig {
        FlightConfig {
            directory: directory.to_owned(),
            keep: Duration::from_secs(3600),
            bytes_most: 1 << 20,
            before: Duration::from_secs(600),
            kept_most: 2,
            ..FlightConfig::default()
        }
    }

    fn writer(path: &Path) -> Result<Writer, debox_cli::error::Error> {
        let start = debox_record::start_here(debox_record::Start {
            debox_version: "0".into(),
            kind: debox_report::RunKind::Attach,
            capture: debox_report::Capture::Sleeps,
            command: vec![],
            pids: vec![],
            cpus: 0,
            started_unix_ns: 0,
            kernel: String::new(),
            hostname: String::new(),
        });
        Ok(Writer::create(path, &start)?)
    }

    /// A report that a recording is read by.
    fn readable() -> Report {
        Report {
            schema: "debox.report".into(),
            schema_version: 1,
            ..Report::default()
        }
    }

    /// The policy's period is over.
    fn over(flight: &mut Flight, report: &Report) {
        let over = flight.over("web").unwrap();
        flight.end(over, report);
    }

    /// And on the disk.
    fn end(flight: &mut Flight, report: &Report) {
        over(flight, report);
        flight.settle(Duration::from_secs(60));
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(END))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn only_periods_are_the_rings() {
        for name in [
            "20261127T115000Z.web.debox",
            "20261127T115000Z-12.web-1.debox",
            "20261127T115000Z.web.part.debox",
        ] {
            assert!(is_period(name), "{name}");
        }
        for name in [
            "run.debox",
            "20261127T115000Z",
            "20261127T115000Z.debox",
            "20261127T115000Z.part.debox",
            "20261127T115000Z.Web.debox",
            "20261127T115000Z.web.debox.bak",
            "2026112 T115000Z.web.debox",
            "20261127T115000Z-.web.debox",
            "20261127T115000Z-x.web.debox",
            "aaaaaaaaTaaaaaaZ.web.debox",
            ".debox",
        ] {
            assert!(!is_period(name), "{name}");
        }
        assert_eq!(
            stamp(UNIX_EPOCH + Duration::from_secs(86_400)),
            "19700102T000000Z"
        );
    }

    #[test]
    fn a_ring_has_its_bounds_and_touches_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("mine.debox"), "of somebody").unwrap();
        let mut flight = Flight::open(&config(folder.path())).unwrap();
        let report = Report::default();
        for _ in 0..5 {
            flight.begin("web", writer);
            flight.checkpoint("web", &report);
            end(&mut flight, &report);
        }
        // Also five in one second.
        assert_eq!(names(folder.path()).len(), 6);
        let one = flight.ring[0].bytes();
        assert!(one > 0);
        // And what was written of the last one so far, until the disk has the whole.
        flight.bytes_most = 4 * one - 1;
        flight.begin("web", writer);
        end(&mut flight, &report);
        let left = names(folder.path());
        assert_eq!(left.len(), 4, "{left:?}");
        assert!(left.contains(&"mine.debox".to_owned()));
        flight.keep = Duration::ZERO;
        flight.begin("web", writer);
        end(&mut flight, &report);
        assert_eq!(names(folder.path()), ["mine.debox"]);
    }

    #[test]
    fn what_a_kill_left_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        {
            let mut flight = Flight::open(&config(folder.path())).unwrap();
            flight.begin("web", writer);
            let report = readable();
            flight.checkpoint("web", &report);
        }
        let left = names(folder.path());
        assert!(left.len() == 1 && left[0].ends_with(PART), "{left:?}");
        let read = debox_record::read(&folder.path().join(&left[0])).unwrap();
        assert!(read.recording.is_some());
        let flight = Flight::open(&config(folder.path())).unwrap();
        assert_eq!(flight.ring.len(), 1);
    }

    /// As old as its last word, before the last of all.
    #[test]
    fn what_is_found_is_not_new() {
        let folder = tempfile::tempdir().unwrap();
        let day = SystemTime::now() - Duration::from_secs(86_400);
        for (name, older_s) in [
            ("20261127T115200Z.web.debox", 0),
            ("20261127T115100Z.web.debox", 60),
            ("20261127T115000Z.web.debox", 600),
        ] {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(day - Duration::from_secs(older_s))
                .unwrap();
        }
        let mut config = config(folder.path());
        config.keep = Duration::from_secs(300);
        let mut flight = Flight::open(&config).unwrap();
        flight.begin("web", writer);
        let mut left = names(folder.path());
        left.retain(|name| !name.ends_with(PART));
        assert_eq!(
            left,
            ["20261127T115100Z.web.debox", "20261127T115200Z.web.debox"]
        );
    }

    #[test]
    fn who_never_comes_to_an_end_fills_no_disk() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(folder.path());
        config.bytes_most = 1;
        for _ in 0..5 {
            let mut flight = Flight::open(&config).unwrap();
            flight.begin("web", writer);
        }
        assert_eq!(names(folder.path()).len(), 1);
    }

    #[test]
    fn a_folder_that_others_could_write_to_is_none() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flight");
        let said = || match Flight::open(&config(&path)) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(said(), "");
        mode(0o777);
        assert!(said().contains("everybody may write to it"), "{}", said());
        mode(0o1777);
        assert_eq!(said(), "");
        mode(0o750);
        // What is kept would go elsewhere.
        let elsewhere = tempfile::tempdir().unwrap();
        fs::remove_dir(path.join(KEPT)).unwrap();
        symlink(elsewhere.path(), path.join(KEPT)).unwrap();
        assert!(said().contains("it is no directory"), "{}", said());
        fs::remove_file(path.join(KEPT)).unwrap();
        // A lock that leads elsewhere, or is waited for.
        let lock = path.join(LOCK);
        fs::remove_file(&lock).unwrap();
        symlink(elsewhere.path().join("file"), &lock).unwrap();
        assert_ne!(said(), "");
        assert!(!elsewhere.path().join("file").exists());
        fs::remove_file(&lock).unwrap();
        let pipe = std::ffi::CString::new(lock.to_str().unwrap()).unwrap();
        // SAFETY: the name is a string of its own.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        assert_ne!(said(), "");
        fs::remove_file(&lock).unwrap();
        assert_eq!(said(), "");
        // Only root can give files to others.
        if chown(&lock, Some(65_534), None).is_ok() {
            assert!(said().contains("no file of this user"), "{}", said());
            chown(&lock, Some(0), None).unwrap();
            chown(&path, Some(65_534), None).unwrap();
            assert!(said().contains("another user, 65534"), "{}", said());
        }
    }

    #[test]
    fn what_is_kept_stays() {
        let folder = tempfile::tempdir().unwrap();
        let mut flight = Flight::open(&config(folder.path())).unwrap();
        assert!(flight.keep("too early").is_err());
        flight.begin("web", writer);
        end(&mut flight, &Report::default());
        let first = flight.keep("asked\nfor").unwrap();
        assert_eq!(fs::read_to_string(first.join("why")).unwrap(), "askedfor\n");
        flight.keep = Duration::ZERO;
        flight.begin("web", writer);
        end(&mut flight, &Report::default());
        assert!(names(folder.path()).is_empty());
        assert_eq!(names(&first).len(), 1);
        flight.keep = Duration::from_secs(60);
        flight.begin("web", writer);
        end(&mut flight, &Report::default());
        flight.keep("again").unwrap();
        let said = flight.keep("too often").unwrap_err();
        assert!(said.contains("kept_most is 2"), "{said}");
        assert_eq!(kept(folder.path()).unwrap().len(), 2);
    }

    #[test]
    fn what_could_not_be_kept_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(KEPT).join(".new-20261127T115000Z");
        fs::create_dir_all(&left).unwrap();
        fs::write(left.join("why"), "").unwrap();
        let mut flight = Flight::open(&config(folder.path())).unwrap();
        let kept = || fs::read_dir(folder.path().join(KEPT)).unwrap().count();
        assert_eq!(kept(), 0);
        flight.begin("web", writer);
        end(&mut flight, &Report::default());
        // What has no further names.
        let whole = folder.path().join(flight.ring[0].name());
        fs::remove_file(&whole).unwrap();
        fs::create_dir(&whole).unwrap();
        assert!(flight.keep("in vain").is_err());
        assert_eq!(kept(), 0);
    }

    #[test]
    fn a_period_is_its_part_until_it_is_on_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let mut flight = Flight::open(&config(folder.path())).unwrap();
        // A disk that takes nothing.
        let (files, _next) = sync_channel(1);
        let (_told, settled) = channel();
        flight.settler = Settler {
            files,
            settled,
            waiting: 0,
        };
        flight.begin("web", writer);
        flight.checkpoint("web", &Report::default());
        let begin = Instant::now();
        over(&mut flight, &Report::default());
        assert_eq!(flight.lost(), 0);
        assert!(begin.elapsed() < Duration::from_secs(5));
        let left = names(folder.path());
        assert_eq!(left.len(), 2, "{left:?}");
        // What waits for longer than there is room stays as it is.
        flight.begin("web", writer);
        over(&mut flight, &Report::default());
        assert_eq!(names(folder.path()).len(), 4);
        flight.keep = Duration::ZERO;
        flight.prune();
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn what_the_disk_refuses_is_its_part_and_said_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut flight = Flight::open(&config(folder.path())).unwrap();
        // A disk whose answers are told here.
        let (files, next) = sync_channel(SETTLING_MOST);
        let (told, settled) = channel();
        flight.settler = Settler {
            files,
            settled,
            waiting: 0,
        };
        let mut kept = None;
        for _ in 0..2 {
            flight.begin("web", writer);
            flight.checkpoint("web", &Report::default());
            over(&mut flight, &Report::default());
            if kept.is_none() {
                kept = Some(flight.keep("before it is known").unwrap());
            }
            let is: Settling = next.recv().unwrap();
            part_instead(&is.path, &is.part);
            told.send((is.stem, Err("refused".into()))).unwrap();
            assert_eq!(flight.lost(), 1);
            assert!(!flight.troubles.is_empty());
        }
        let parts = names(folder.path());
        assert_eq!(parts.len(), 2, "{parts:?}");
        assert!(parts.iter().all(|name| name.ends_with(PART)), "{parts:?}");
        assert_eq!(names(&kept.unwrap()), [flight.ring[0].name()]);
        assert_eq!(names(&flight.keep("afterwards").unwrap()), parts);
        // What has no whole counts for what there is of it.
        let bytes = |name: &String| fs::metadata(folder.path().join(name)).unwrap().len();
        let all: u64 = flight.ring.iter().map(Period::bytes).sum();
        assert_eq!(all, parts.iter().map(bytes).sum::<u64>());
        // A checkpoint that was written says nothing of the disk, and a period that it took does.
        flight.begin("web", writer);
        flight.checkpoint("web", &Report::default());
        over(&mut flight, &Report::default());
        assert!(!flight.troubles.is_empty());
        told.send((next.recv().unwrap().stem, Ok(()))).unwrap();
        assert_eq!(flight.lost(), 0);
        assert!(flight.troubles.is_empty());
    }

    /// What a period's calls wait for may be known when the next one has ended, too.
    #[test]
    fn a_report_that_comes_late_is_its_own_periods() {
        let folder = tempfile::tempdir().unwrap();
        let mut flight = Flight::open(&config(folder.path())).unwrap();
        let reports = ["first", "second"].map(|line| Report {
            verdict: vec![line.into()],
            ..readable()
        });
        let periods: Vec<Present> = (reports.iter())
            .map(|report| {
                flight.begin("web", writer);
                flight.checkpoint("web", report);
                flight.over("web").unwrap()
            })
            .collect();
        assert!(flight.idle() && flight.over("web").is_none());
        flight.begin("web", writer);
        for (over, report) in periods.into_iter().zip(&reports) {
            // The next one's is not touched.
            assert!(
                flight
                    .recording("web")
                    .is_some_and(|stem| stem != over.stem)
            );
            flight.end(over, report);
        }
        flight.settle(Duration::from_secs(60));
        let whole = |stem: &str| folder.path().join(format!("{stem}{END}"));
        let verdicts: Vec<_> = (flight.ring.iter())
            .map(|period| debox_record::read(&whole(&period.stem)).unwrap().verdict)
            .collect();
        assert_eq!(verdicts, [["first"], ["second"]]);
        assert!(!flight.idle());
    }

    /// The agent was killed before the disk had the whole.
    #[test]
    fn what_is_found_twice_is_one_period() {
        let folder = tempfile::tempdir().unwrap();
        let stem = {
            let mut flight = Flight::open(&config(folder.path())).unwrap();
            flight.begin("web", writer);
            let report = readable();
            flight.checkpoint("web", &report);
            let stem = flight.present[0].stem.clone();
            let part = folder.path().join(format!("{stem}{PART}"));
            fs::copy(&part, folder.path().join("copy")).unwrap();
            end(&mut flight, &report);
            fs::rename(folder.path().join("copy"), part).unwrap();
            stem
        };
        let found = || {
            let flight = Flight::open(&config(folder.path())).unwrap();
            assert_eq!(flight.ring.len(), 1);
            flight.ring[0].name()
        };
        assert_eq!(found(), format!("{stem}{END}"));
        let whole = fs::OpenOptions::new()
            .write(true)
            .open(folder.path().join(format!("{stem}{END}")));
        whole.unwrap().set_len(0).unwrap();
        assert_eq!(found(), format!("{stem}{PART}"));
    }
}
