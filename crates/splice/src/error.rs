// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why has a file no table?

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no ELF file of this machine's kind: {0}")]
    NotElf(String),
    #[error("it has more than {most} bytes of code")]
    TooLarge { most: usize },
    #[error("it has tables of jumps with more than {most} entries")]
    Tables { most: usize },
    #[error(
        "{}, where patched code is to be kept: {why}. Set XDG_CACHE_HOME to a folder that is yours, and not mounted \
         noexec",
        folder.display()
    )]
    Images {
        folder: std::path::PathBuf,
        why: String,
    },
    #[error("the process has ended")]
    Ended,
    #[error("{0}")]
    Run(String),
    #[error("the table is damaged: {0}")]
    Damaged(&'static str),
}
