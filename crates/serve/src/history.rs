// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which recordings are there, and what does each say in a line?
//!
//! A directory in which others write: a name is a plain file's of this directory or nothing's,
//! and links are not followed. What a recording says is read once ([`crate::reader`]), one at a
//! time, in the background, until the file is another one.

use crate::reader::{self, Lost, Summary, Wanted};
use debox_output::Utc;
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

const ENDING: &str = ".debox";
const NAME_MOST: usize = 255;
/// More names of a directory are not looked at.
const NAMES_MOST: usize = 10_000;
/// The newest of them.
pub const SHOWN_MOST: usize = 200;
/// Of a file that changes all the time, such as one that is being written.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// What tells whether a file is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    changed_ns: i128,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub name: String,
    pub bytes: u64,
    /// Nanoseconds since 1970.
    pub changed_unix_ns: i128,
    /// None: it has not been read yet.
    pub summary: Option<Result<Summary, String>>,
    stamp: Stamp,
}

struct Known {
    stamp: Stamp,
    when: Instant,
    summary: Result<Summary, String>,
}

impl Entry {
    pub fn known(&self) -> Option<&Summary> {
        self.summary.as_ref()?.as_ref().ok()
    }

    /// When it began: by what it says, or its name (those of a ring are times), or else when it
    /// was written. Nanoseconds since 1970.
    pub fn when(&self) -> i128 {
        let says = self.known().and_then(|known| known.started_unix_ns);
        says.map(i128::from)
            .or_else(|| started(&self.name))
            .unwrap_or(self.changed_unix_ns)
    }
}

/// What the directory has.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Newest first.
    pub entries: Vec<Entry>,
    /// Older ones, which are not shown.
    pub left_out: usize,
}

impl Listing {
    /// Some are being read.
    pub fn is_growing(&self) -> bool {
        self.entries.iter().any(|entry| entry.summary.is_none())
    }
}

pub struct History {
    pub folder: PathBuf,
    known: Mutex<HashMap<String, Known>>,
    /// Recordings are read one at a time, whoever asks;
    reading: Semaphore,
    /// and the history by one only.
    catching_up: Semaphore,
}

/// A file of the directory, and of no other.
pub fn is_name(name: &str) -> bool {
    name.len() <= NAME_MOST
        && name.len() > ENDING.len()
        && name.ends_with(ENDING)
        && !name.starts_with('.')
        && !name.contains(['/', '\0'])
}

#[derive(Debug, thiserror::Error)]
pub enum NotRead {
    #[error("there is no recording of that name")]
    NotThere,
    #[error("{0}")]
    System(io::Error),
    #[error("{0}")]
    Lost(#[from] Lost),
}

impl History {
    pub fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            known: Mutex::default(),
            reading: Semaphore::new(1),
            catching_up: Semaphore::new(1),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        // Nothing in it is half done.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is there now, with what is known of it.
    pub fn list(&self) -> io::Result<Listing> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&self.folder)?.take(NAMES_MOST) {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
                continue;
            };
            // It may be gone by now.
            let Ok(meta) = entry.metadata() else { continue };
            if !is_name(&name) || !meta.is_file() {
                continue;
            }
            let stamp = stamp(&meta);
            entries.push(Entry {
                name,
                bytes: meta.len(),
                changed_unix_ns: stamp.changed_ns,
                summary: None,
                stamp,
            });
        }
        newest_first(&mut entries);
        let left_out = entries.len().saturating_sub(SHOWN_MOST);
        entries.truncate(SHOWN_MOST);
        let mut known = self.known();
        known.retain(|name, _| entries.iter().any(|entry| entry.name == *name));
        for entry in &mut entries {
            entry.summary = known
                .get(&entry.name)
                .filter(|known| known.stamp == entry.stamp || known.when.elapsed() < AGAIN_AFTER)
                .map(|known| known.summary.clone());
        }
        drop(known);
        // What they say may be another time than their names and dates.
        newest_first(&mut entries);
        Ok(Listing { entries, left_out })
    }

    /// Only a regular file of the directory itself, with how it was as it was opened.
    fn open(&self, name: &str) -> Result<(File, Stamp), NotRead> {
        if !is_name(name) {
            return Err(NotRead::NotThere);
        }
        let folder = File::open(&self.folder).map_err(NotRead::System)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&folder, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP) => {
                return Err(NotRead::NotThere);
            }
            Err(error) => return Err(NotRead::System(error.into())),
        };
        let meta = file.metadata().map_err(NotRead::System)?;
        if !meta.is_file() {
            return Err(NotRead::NotThere);
        }
        if meta.len() > reader::FILE_MAX {
            return Err(NotRead::Lost(Lost::Refused(format!(
                "it is larger than {} MiB, and so than anything that debox writes",
                reader::FILE_MAX >> 20
            ))));
        }
        let stamp = stamp(&meta);
        Ok((file, stamp))
    }

    async fn read(
        self: &Arc<Self>,
        name: &str,
        wanted: Wanted,
    ) -> Result<(Vec<u8>, Stamp), NotRead> {
        // It is never closed.
        let _one = self.reading.acquire().await;
        let (history, name) = (Arc::clone(self), name.to_owned());
        let read = tokio::task::spawn_blocking(move || {
            let (file, stamp) = history.open(&name)?;
            Ok((reader::ask(file, wanted)?, stamp))
        });
        // The task does not panic; if it did, that is the recording's doing.
        read.await
            .unwrap_or_else(|error| Err(NotRead::Lost(Lost::Ended(error.to_string()))))
    }

    /// The report of a recording, as a page.
    pub async fn page(self: &Arc<Self>, name: &str) -> Result<Vec<u8>, NotRead> {
        let (page, _) = self.read(name, Wanted::Page).await?;
        Ok(page)
    }

    /// Reads, in the background, what is not known of these yet.
    pub fn catch_up(self: &Arc<Self>, listing: &Listing) {
        let wanted: Vec<String> = (listing.entries.iter())
            .filter(|entry| entry.summary.is_none())
            .map(|entry| entry.name.clone())
            .collect();
        if wanted.is_empty() {
            return;
        }
        let history = Arc::clone(self);
        tokio::spawn(async move {
            let Ok(_only) = history.catching_up.try_acquire() else {
                return;
            };
            for name in wanted {
                let (stamp, summary) = match history.read(&name, Wanted::Summary).await {
                    Ok((bytes, stamp)) => (
                        stamp,
                        serde_json::from_slice(&bytes)
                            .map_err(|_| "its reader made no sense".to_owned()),
                    ),
                    Err(NotRead::NotThere) => continue,
                    Err(error) => {
                        let Ok(meta) = std::fs::symlink_metadata(history.folder.join(&name)) else {
                            continue;
                        };
                        (stamp(&meta), Err(error.to_string()))
                    }
                };
                let when = Instant::now();
                let known = Known {
                    stamp,
                    when,
                    summary,
                };
                history.known().insert(name, known);
            }
        });
    }
}

fn newest_first(entries: &mut [Entry]) {
    entries.sort_by(|a, b| b.when().cmp(&a.when()).then_with(|| b.name.cmp(&a.name)));
}

fn stamp(meta: &std::fs::Metadata) -> Stamp {
    Stamp {
        device: meta.dev(),
        inode: meta.ino(),
        bytes: meta.len(),
        changed_ns: i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
    }
}

/// Whose a recording of the ring is: "web" of 20261127T131500Z.web.debox.
pub fn policy(name: &str) -> Option<&str> {
    started(name)?;
    let text = name.strip_suffix(ENDING)?;
    let text = text.strip_suffix(".part").unwrap_or(text);
    text.split_once('.').map(|(_, policy)| policy)
}

/// Nanoseconds since 1970 of a name such as 20261127T131500Z.web.debox.
fn started(name: &str) -> Option<i128> {
    let text = name.strip_suffix(ENDING)?;
    // The one of a ring that is being written.
    let text = text.strip_suffix(".part").unwrap_or(text);
    // Behind the time is the policy.
    let text = text.split_once('.').map_or(text, |(time, _)| time);
    let text = text.strip_suffix('Z')?;
    let (date, time) = text.split_once('T')?;
    let number = |text: &str, from: usize, to: usize| -> Option<i64> {
        let part = text.get(from..to)?;
        part.bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| part.parse().ok())?
    };
    if date.len() != 8 || time.len() != 6 {
        return None;
    }
    let (year, month, day) = (
        number(date, 0, 4)?,
        number(date, 4, 6)?,
        number(date, 6, 8)?,
    );
    let (hour, minute, second) = (
        number(time, 0, 2)?,
        number(time, 2, 4)?,
        number(time, 4, 6)?,
    );
    let utc = Utc {
        year,
        month,
        day,
        hour,
        minute,
        second,
    };
    let seconds = utc.seconds()?;
    Some(i128::from(seconds) * 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_directory() {
        for name in ["20261127T131500Z.debox", "a.debox", "ü \".debox"] {
            assert!(is_name(name), "{name}");
        }
        let long = format!("{}.debox", "a".repeat(300));
        for name in [
            "",
            ".debox",
            "..",
            "../a.debox",
            "/etc/a.debox",
            "a/../b.debox",
            "a.json",
            ".a.debox",
            "a\0.debox",
            &long,
        ] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn a_name_of_a_ring_is_a_time() {
        assert_eq!(
            started("20261127T131500Z.debox"),
            Some(1_795_785_300_000_000_000)
        );
        for name in [
            "20261127T131500Z.part.debox",
            "20261127T131500Z.web.debox",
            "20261127T131500Z.web.part.debox",
        ] {
            assert_eq!(started(name), started("20261127T131500Z.debox"), "{name}");
            let whose = name.contains("web").then_some("web");
            assert_eq!(policy(name), whose, "{name}");
        }
        assert_eq!(policy("run.web.debox"), None);
        for name in [
            "20261327T131500Z.debox",
            "2026T13Z.debox",
            "20261127T1315+0Z.debox",
            "a.debox",
        ] {
            assert_eq!(started(name), None, "{name}");
        }
    }

    #[test]
    fn links_and_pipes_are_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let history = History::new(folder.path().into());
        std::fs::write(folder.path().join("a.debox"), "x").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("l.debox")).unwrap();
        std::fs::create_dir(folder.path().join("d.debox")).unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(folder.path().join("p.debox"))
            .status();
        assert!(made.unwrap().success());
        assert!(history.open("a.debox").is_ok());
        for name in ["l.debox", "d.debox", "p.debox", "no.debox", "../a.debox"] {
            assert!(
                matches!(history.open(name), Err(NotRead::NotThere)),
                "{name}"
            );
        }
        let names: Vec<_> = history
            .list()
            .unwrap()
            .entries
            .into_iter()
            .map(|e| e.name)
            .collect();
        assert_eq!(names, ["a.debox"]);
    }
}
