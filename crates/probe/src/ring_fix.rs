// SPDX-License-Identifier: MIT OR Apache-2.0
//! May a program without privileges have a BPF ring buffer on this kernel?
//!
//! Its reader writes the position that it has read to, and kernels before
//! 6.10 believed any position: the kernel side could then be made to write over
//! records that it still had open (CVE-2024-41009). Mended in 6.9.8, 6.6.37 and
//! 6.1.97; the series in between were given up before.

use std::fmt;

/// A kernel's version, as far as it can be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelVersion {
    /// As uname(1) shows it.
    release: String,
    /// Of the sources it was built from: Debian's release says 6.1.0 for all.
    source: Option<(u32, u32, u32)>,
}

/// The last version of each series that has the defect's mending.
const MENDED: [(u32, u32, u32); 3] = [(6, 1, 97), (6, 6, 37), (6, 9, 8)];
const MENDED_IN: (u32, u32, u32) = (6, 10, 0);

impl KernelVersion {
    pub fn running() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self::parse(&read("/proc/sys/kernel/osrelease"), &read("/proc/version"))
    }

    /// From `uname -r` and /proc/version.
    pub fn parse(release: &str, version: &str) -> Self {
        let release = release.trim().to_owned();
        // "... #1 SMP PREEMPT_DYNAMIC Debian 6.1.99-1 (2024-07-15)"
        let debian = version
            .split_once(" Debian ")
            .and_then(|(_, rest)| numbers(rest));
        Self {
            source: debian.or_else(|| numbers(&release)),
            release,
        }
    }

    /// Why rings are for the privileged only here, and what helps; None when
    /// they may be given to all.
    pub fn rings_refused(&self) -> Option<String> {
        if self.source.is_some_and(mended) {
            return None;
        }
        Some(format!(
            "kernel {self} lets the reader of a BPF ring buffer corrupt it (CVE-2024-41009), so \
             details need CAP_PERFMON here; update to 6.1.97, 6.6.37, 6.9.8, 6.10 or later."
        ))
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let release: String = self.release.chars().take(64).collect();
        match self.source {
            Some((a, b, c)) if !release.starts_with(&format!("{a}.{b}.{c}")) => {
                write!(f, "{release} ({a}.{b}.{c})")
            }
            _ => f.write_str(&release),
        }
    }
}

/// Three numbers at the start: "6.1.99-1", "6.10-rc3", "6.12.6+bpo-amd64".
fn numbers(text: &str) -> Option<(u32, u32, u32)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let mut parts = text[..end].split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?.parse().ok()?;
    let patch = parts.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    Some((major, minor, patch))
}

fn mended(version: (u32, u32, u32)) -> bool {
    version >= MENDED_IN
        || MENDED
            .iter()
            .any(|first| (first.0, first.1) == (version.0, version.1) && version.2 >= first.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_real_kernels() {
        let debian = |version| {
            format!(
                "Linux version 6.1.0-x-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian \
                 12.2.0-14) 12.2.0, GNU ld (GNU Binutils for Debian) 2.40) #1 SMP PREEMPT_DYNAMIC \
                 Debian {version} (2024-07-15)"
            )
        };
        let ubuntu = "Linux version 6.8.0-31-generic (buildd@lcy02-amd64-080) (x86_64-linux-gnu-gcc-13 \
                      (Ubuntu 13.2.0-23ubuntu4) 13.2.0) #31-Ubuntu SMP PREEMPT_DYNAMIC Sat Apr 20 00:40:06 UTC 2024";
        for (release, version, refused) in [
            ("6.1.0-23-amd64\n", debian("6.1.99-1"), false),
            ("6.1.0-22-amd64", debian("6.1.94-1"), true),
            ("6.1.0-10-amd64", debian("6.1.37-1"), true),
            ("6.12.6-amd64", debian("6.12.6-1"), false),
            ("6.9.7-amd64", debian("6.9.7-1"), true),
            ("6.9.10-1-amd64", debian("6.9.10-1~bpo12+1"), false),
            ("6.8.0-31-generic", ubuntu.to_owned(), true),
            ("6.11.0-9-generic", ubuntu.to_owned(), false),
            ("6.1.96", String::new(), true),
            ("6.1.97", String::new(), false),
            ("6.1.97-gentoo-x86_64", String::new(), false),
            ("6.5.13", String::new(), true),
            ("6.6.36-1-lts", String::new(), true),
            ("6.6.37-1-lts", String::new(), false),
            ("6.7.12-200.fc39.x86_64", String::new(), true),
            ("6.9.8-arch1-1", String::new(), false),
            ("6.10.0-rc7+", String::new(), false),
            ("6.18.44-vm", String::new(), false),
            ("7.0.1", String::new(), false),
            ("unknown", String::new(), true),
            ("", String::new(), true),
        ] {
            let kernel = KernelVersion::parse(release, &version);
            let told = kernel.rings_refused();
            assert_eq!(told.is_some(), refused, "{release} {version}");
            if let Some(text) = told {
                assert!(
                    text.contains("CVE-2024-41009") && text.contains("6.6.37"),
                    "{text}"
                );
                assert!(text.contains(release.trim()) && text.len() < 250, "{text}");
            }
        }
        let kernel = KernelVersion::parse("6.1.0-22-amd64", &debian("6.1.94-1"));
        assert_eq!(kernel.to_string(), "6.1.0-22-amd64 (6.1.94)");
        assert!(KernelVersion::running().source.is_some());
    }
}
