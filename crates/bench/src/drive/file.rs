// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which file is read and mapped by the benchmark?

use crate::machine::file_system;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file for reads and mapped faults: without a name from its birth.
pub(super) struct TestFile {
    pub(super) file: File,
    pub(super) bytes: u64,
    pub(super) device: u64,
    directory: PathBuf,
}

impl TestFile {
    pub(super) fn create(
        wanted: Option<&Path>,
        bytes: u64,
        notes: &mut Vec<String>,
    ) -> Option<Self> {
        let candidates = match wanted {
            Some(dir) => vec![dir.to_owned()],
            None => vec![std::env::temp_dir(), "/var/tmp".into(), ".".into()],
        };
        let mut refused = Vec::new();
        let mut in_memory = None;
        for dir in candidates {
            match create_in(&dir, bytes) {
                Ok(found) => {
                    let kind = file_system(found.device).map(|f| f.0).unwrap_or_default();
                    if kind != "tmpfs" && kind != "ramfs" {
                        return Some(found);
                    }
                    // Better than nothing, but nothing can be cold there.
                    in_memory.get_or_insert((found, kind));
                }
                Err(e) => refused.push(format!("{}: {e}", dir.display())),
            }
        }
        if let Some((found, kind)) = in_memory {
            notes.push(format!(
            "{} is a {kind}: it is always in memory, so cold reads are left out; name a directory \
             on a disk with --dir",
            found.directory.display()
        ));
            return Some(found);
        }
        notes.push(format!(
            "no file could be made for the reads ({})",
            refused.join("; ")
        ));
        None
    }
}

fn create_in(dir: &Path, bytes: u64) -> std::io::Result<TestFile> {
    let mut file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .mode(0o600)
        .open(dir)?;
    // Not zeros: some file systems and disks store those as nothing.
    let mut rng = fastrand::Rng::with_seed(1);
    let mut block = vec![0u8; 1 << 20];
    for _ in 0..bytes / block.len() as u64 {
        rng.fill(&mut block);
        file.write_all(&block)?;
    }
    file.sync_all()?;
    let device = file.metadata()?.dev();
    Ok(TestFile {
        file,
        bytes,
        device,
        directory: dir.to_owned(),
    })
}
