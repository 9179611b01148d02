// SPDX-License-Identifier: MIT OR Apache-2.0
//! To which user does a subordinate user id belong?
//!
//! newuidmap(1) lets a user run processes under the ids that /etc/subuid gives
//! him, 65536 as a rule. For limits they are all the same user; else everybody
//! could multiply himself.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// More of a file than this is not looked at.
const FILE_BYTES_MAX: u64 = 1 << 20;
const RANGES_MAX: usize = 10_000;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Subordinates(Vec<Range>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u32,
    last: u32,
    owner: u32,
}

impl Subordinates {
    /// What the files say; a file that is not there says nothing.
    pub fn read(subuid: &Path, passwd: &Path) -> Self {
        let (Some(subuid), passwd) = (text(subuid), text(passwd).unwrap_or_default()) else {
            return Self::default();
        };
        parse(&subuid, &passwd)
    }

    /// Who pays for what this user id has. Of several owners the first in the
    /// file.
    pub fn payer(&self, uid: u32) -> u32 {
        self.0
            .iter()
            .find(|range| (range.first..=range.last).contains(&uid))
            // Root hands its ranges to containers of others: not root, but
            // one user each.
            .map_or(uid, |range| match range.owner {
                0 => range.first,
                owner => owner,
            })
    }
}

fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => {
            tracing::debug!(path = %path.display(), %error, "not read");
            return None;
        }
    };
    if let Err(error) = file.take(FILE_BYTES_MAX).read_to_end(&mut bytes) {
        tracing::warn!(path = %path.display(), %error, "not read");
        return None;
    }
    if bytes.len() as u64 == FILE_BYTES_MAX {
        tracing::warn!(path = %path.display(), "only its first {FILE_BYTES_MAX} bytes are looked at");
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// `NAME:FIRST:COUNT`, the owner's name or number; see subuid(5).
fn parse(subuid: &str, passwd: &str) -> Subordinates {
    let number = |name: &str| {
        name.parse().ok().or_else(|| {
            passwd.lines().find_map(|line| {
                let mut fields = line.split(':');
                (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
            })
        })
    };
    let range = |line: &str| {
        let mut fields = line.split(':');
        let (name, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        let (first, count): (u32, u32) = (first.trim().parse().ok()?, count.trim().parse().ok()?);
        let owner = number(name)?;
        // 0 is nobody's subordinate.
        let first = first.max(1);
        let last = first.checked_add(count.checked_sub(1)?)?;
        Some(Range { first, last, owner })
    };
    let lines = subuid
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut ranges = Vec::new();
    for line in lines {
        match range(line) {
            Some(_) if ranges.len() == RANGES_MAX => {
                tracing::warn!("only the first {RANGES_MAX} ranges of subordinate ids count");
                break;
            }
            Some(range) => ranges.push(range),
            None => tracing::debug!(line, "no range of subordinate ids"),
        }
    }
    Subordinates(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:/bin/sh\n\
                          bob:x:1001:1001::/:/bin/sh\nbroken\n";

    #[test]
    fn a_range_counts_for_its_first_owner() {
        let parsed = parse(
            "ann:100000:65536\n# bob:1:1\nbob:165536:65536\n\n1002:300000:10\nbob:100000:99999\n\
             root:500000:1000\n",
            PASSWD,
        );
        for (uid, payer) in [
            (0, 0),
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 1001),
            (199_998, 1001),
            (300_009, 1002),
            (300_010, 300_010),
            (500_000, 500_000),
            (500_999, 500_000),
        ] {
            assert_eq!(parsed.payer(uid), payer, "uid {uid}");
        }
    }

    #[test]
    fn nonsense_counts_for_nobody() {
        let parsed = parse(
            "nobody-knows:1:1000\nann:x:1\nann:5:0\nann:4294967295:2\nann:1\n:::\n-1:7:7\n\
             ann:99999999999:1\n\u{fffd}\0\n",
            PASSWD,
        );
        assert_eq!(parsed, Subordinates::default());
        // Root stays root, whatever a file says.
        assert_eq!(parse("ann:0:1000\n", PASSWD).payer(0), 0);
        assert_eq!(parse("ann:0:1000\n", PASSWD).payer(1), 1000);
    }

    #[test]
    fn a_file_is_read_as_far_as_it_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("subuid");
        let mut text = "ann:100000:10\n".to_owned();
        text.push_str(&"1:2:3\n".repeat(400_000));
        std::fs::write(&path, text).unwrap();
        let read = Subordinates::read(&path, Path::new("/nonexistent"));
        assert!(read.0.len() <= RANGES_MAX);
        // Without names there is no ann.
        assert_eq!(read.payer(100_001), 100_001);
        assert_eq!(
            Subordinates::read(Path::new("/nonexistent"), &path),
            Subordinates::default()
        );
    }
}
