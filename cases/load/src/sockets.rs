// SPDX-License-Identifier: MIT OR Apache-2.0
//! What has one run left in the kernel's sockets that could decide the next one?
//!
//! Connections that are closed with bytes under way live on without a process (orphans), and these
//! bytes, which may be pages of the server's files, stay in memory until they are given up.
//! TIME_WAIT holds no bytes and lasts a minute whatever is done: it is not waited for.

use std::io;
use std::time::{Duration, Instant};

const FILE: &str = "/proc/net/sockstat";
/// Others on the machine have sockets as well, and each CPU keeps some memory for its next ones.
const NEAR_ORPHANS: u64 = 8;
const NEAR_PAGES: u64 = 1024;
/// So long is waited for it.
const MOST: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    orphans: u64,
    /// Of memory, of all TCP sockets.
    pages: u64,
}

impl Held {
    pub fn now() -> io::Result<Self> {
        let text = std::fs::read_to_string(FILE)?;
        let wrong = || io::Error::other(format!("{FILE} has no line of TCP with orphan and mem"));
        Self::of(&text).ok_or_else(wrong)
    }

    fn of(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("TCP: "))?;
        let words: Vec<&str> = line.split(' ').collect();
        let number = |name: &str| -> Option<u64> {
            let at = words.iter().position(|word| *word == name)?;
            words.get(at + 1)?.parse().ok()
        };
        Some(Self {
            orphans: number("orphan")?,
            pages: number("mem")?,
        })
    }

    fn is_near(self, before: Self) -> bool {
        self.orphans <= before.orphans + NEAR_ORPHANS && self.pages <= before.pages + NEAR_PAGES
    }
}

/// Waits until little more is held than before the first run, but not for long; whether it is so.
pub fn settle(before: Held) -> io::Result<bool> {
    let until = Instant::now() + MOST;
    loop {
        if Held::now()?.is_near(before) {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_read_and_compared() {
        let text =
            "sockets: used 15\nTCP: inuse 1 orphan 2 tw 9000 alloc 1 mem 128\nUDP: inuse 0 mem 7\n";
        let before = Held::of(text).unwrap();
        assert_eq!((before.orphans, before.pages), (2, 128));
        assert_eq!(Held::of("UDP: inuse 0 mem 0\n"), None);
        assert!(before.is_near(before));
        for (orphans, pages) in [(2 + NEAR_ORPHANS + 1, 128), (2, 128 + NEAR_PAGES + 1)] {
            assert!(!Held { orphans, pages }.is_near(before));
        }
        assert!(Held::now().is_ok());
    }
}
