// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the processes have in common that an account watches, and which control groups
//! are meant?
//!
//! Patterns become the state machines of `bpf/whom.h`, which run there and here.

use crate::programs::Link;
use crate::{Error, NONE, Probe, skel};
use debox_abi::DEBOX_COMM_LEN;
use libbpf_rs::{MapCore, MapFlags};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Shared with `bpf/whom.h`.
const WHOM_COMM: u32 = 1 << 0;
const WHOM_CGROUP: u32 = 1 << 1;
const WHOM_UID: u32 = 1 << 2;
const WHOM_BYTES: usize = 128;
const WHOM_WORDS: usize = 4;

/// Whom an account watches. Of one kind one must fit, of all kinds that are given each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Whom {
    /// Effective user ids.
    pub uids: Vec<u32>,
    /// Of processes' names.
    pub comms: Vec<Pattern>,
    /// Of paths of control groups.
    pub cgroups: Vec<Pattern>,
    /// What comes later too.
    pub follow: bool,
    /// Which of several accounts has who fits several: 0 before others, then the lowest.
    pub rank: u32,
    /// With a rank: whoever may watch a process has it for as long as he asks.
    pub owners_first: bool,
    /// These processes not.
    pub except: [u32; 2],
}

/// What was bound at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bound {
    pub threads: u32,
    pub processes: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Element {
    /// It may be repeated, or be nothing.
    star: bool,
    /// Bit n: byte n fits. 0 stands for all above 127.
    bytes: u128,
}

/// `*`, `?` and `[...]`, as a shell has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Vec<Element>);

impl Pattern {
    /// Of a process's name. The kernel keeps 15 characters of those: a pattern for one name
    /// that is longer is cut as well.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn of_comm(text: &str) -> Result<Self, String> {
        let mut pattern = Self::parse(text, false)?;
        if pattern.0.iter().all(|element| !element.star) {
            pattern.0.truncate(DEBOX_COMM_LEN - 1);
        }
        Ok(pattern)
    }

    /// Of a path, where `*` and its like stop at a slash and `**` does not.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn of_path(text: &str) -> Result<Self, String> {
        Self::parse(text, true)
    }

    fn parse(text: &str, path: bool) -> Result<Self, String> {
        if text.is_empty() {
            return Err("an empty pattern fits nothing".into());
        }
        if !text.bytes().all(|b| (b' '..=b'~').contains(&b)) {
            return Err(format!(
                "{text:?}: a pattern is of plain ASCII; ? stands for one other byte"
            ));
        }
        let any = if path { !(1u128 << b'/') } else { u128::MAX };
        let mut elements: Vec<Element> = Vec::new();
        let mut bytes = text.bytes().peekable();
        while let Some(b) = bytes.next() {
            let (star, fits) = match b {
                b'*' if bytes.next_if_eq(&b'*').is_some() => (true, u128::MAX),
                b'*' => (true, any),
                b'?' => (false, any),
                b'[' => (false, class(text, &mut bytes)? & any),
                b'\\' => match bytes.next() {
                    Some(b) => (false, 1 << b),
                    None => return Err(format!("{text:?}: nothing follows the backslash")),
                },
                b => (false, 1 << b),
            };
            match elements.last_mut() {
                Some(last) if star && last.star => last.bytes |= fits,
                _ => elements.push(Element { star, bytes: fits }),
            }
        }
        Ok(Self(elements))
    }

    pub fn fits(&self, text: &[u8]) -> bool {
        // One pattern is never too long for so many words.
        let machine = Machine::<64>::of(std::slice::from_ref(self));
        machine.is_ok_and(|machine| machine.fits(text))
    }

    /// The same, or a path above it.
    pub fn fits_above(&self, path: &[u8]) -> bool {
        let machine = Machine::<64>::of(std::slice::from_ref(self));
        machine.is_ok_and(|machine| machine.fits_above(path))
    }
}

/// Behind a bracket.
fn class(text: &str, bytes: &mut std::iter::Peekable<std::str::Bytes<'_>>) -> Result<u128, String> {
    let open = || format!("{text:?}: the bracket is not closed");
    let negated = bytes.next_if(|b| matches!(b, b'!' | b'^')).is_some();
    let mut fits = 0u128;
    let mut first = true;
    loop {
        let mut from = bytes.next().ok_or_else(open)?;
        if from == b']' && !first {
            break;
        }
        first = false;
        if from == b'\\' {
            from = bytes.next().ok_or_else(open)?;
        }
        let mut to = from;
        let mut ahead = bytes.clone();
        if ahead.next() == Some(b'-') && ahead.next().is_some_and(|b| b != b']') {
            bytes.next();
            to = bytes.next().ok_or_else(open)?;
        }
        for b in from..=to {
            fits |= 1 << b;
        }
    }
    Ok(if negated { !fits } else { fits })
}

/// Several patterns as one machine; see `bpf/whom.h`.
#[derive(Clone)]
struct Machine<const W: usize> {
    begin: [u64; W],
    stars: [u64; W],
    end: [u64; W],
    accept: Box<[[u64; W]; WHOM_BYTES]>,
}

impl<const W: usize> Machine<W> {
    fn of(patterns: &[Pattern]) -> Result<Self, String> {
        let states: usize = patterns.iter().map(|p| p.0.len() + 1).sum();
        if states > W * 64 {
            return Err(format!(
                "the patterns are too long: {states} characters together, {} at most",
                W * 64
            ));
        }
        let mut machine = Self {
            begin: [0; W],
            stars: [0; W],
            end: [0; W],
            accept: Box::new([[0; W]; WHOM_BYTES]),
        };
        let mut at = 0;
        for pattern in patterns {
            machine.begin[at / 64] |= 1 << (at % 64);
            for element in &pattern.0 {
                let bit = 1 << (at % 64);
                if element.star {
                    machine.stars[at / 64] |= bit;
                }
                for (byte, accept) in machine.accept.iter_mut().enumerate() {
                    if element.bytes >> byte & 1 != 0 {
                        accept[at / 64] |= bit;
                    }
                }
                at += 1;
            }
            machine.end[at / 64] |= 1 << (at % 64);
            at += 1;
        }
        machine.begin = machine.skipped(machine.begin);
        Ok(machine)
    }

    /// With what lies behind stars that are nothing.
    fn skipped(&self, mut at: [u64; W]) -> [u64; W] {
        let mut carry = 0;
        for (word, stars) in at.iter_mut().zip(&self.stars) {
            *word |= carry;
            let skip = *word & stars;
            carry = skip >> 63;
            *word |= skip << 1;
        }
        at
    }

    fn step(&self, at: [u64; W], byte: u8) -> [u64; W] {
        let accept = &self.accept[if byte < 128 { usize::from(byte) } else { 0 }];
        let mut next = [0; W];
        let mut carry = 0;
        for (word, out) in next.iter_mut().enumerate() {
            let fits = at[word] & accept[word];
            let moved = fits & !self.stars[word];
            *out = moved << 1 | carry | (fits & self.stars[word]);
            carry = moved >> 63;
        }
        self.skipped(next)
    }

    fn ended(&self, at: &[u64; W]) -> bool {
        at.iter().zip(&self.end).any(|(at, end)| at & end != 0)
    }

    fn fits(&self, text: &[u8]) -> bool {
        self.ended(
            &text
                .iter()
                .fold(self.begin, |at, byte| self.step(at, *byte)),
        )
    }

    fn fits_above(&self, path: &[u8]) -> bool {
        let mut at = self.begin;
        for byte in path {
            if *byte == b'/' && self.ended(&at) {
                return true;
            }
            at = self.step(at, *byte);
        }
        self.ended(&at)
    }
}

/// Where the unified hierarchy is mounted, and which of its groups is seen there as the
/// root; from the text of /proc/self/mountinfo.
fn unified_of(mountinfo: &str) -> Option<(String, PathBuf)> {
    mountinfo.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        if kind.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        let root = fields.next()?.to_owned();
        // Space, tab, line end and backslash are written as octal numbers.
        let place = fields.next()?.replace("\\040", " ").replace("\\134", "\\");
        Some((root, place.into()))
    })
}

/// The unified hierarchy's mount; without it no process can be told by its group.
///
/// # Errors
/// What is missing, and the remedy.
pub fn unified() -> Result<(String, PathBuf), String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    unified_of(&mounts).ok_or_else(|| {
        "control groups are told apart by the unified hierarchy (cgroup v2), which is not mounted \
         here: mount -t cgroup2 none DIRECTORY, or boot with systemd.unified_cgroup_hierarchy=1"
            .to_owned()
    })
}

/// Paths and numbers of all groups of a hierarchy that is mounted at `place` and shows `root` there.
pub fn groups(root: &str, place: &Path) -> Vec<(String, u64)> {
    let root = root.trim_end_matches('/');
    let mut found = Vec::new();
    let mut next = vec![(root.to_owned(), place.to_owned())];
    while let Some((path, place)) = next.pop() {
        let Ok(meta) = std::fs::symlink_metadata(&place) else {
            continue; // removed meanwhile
        };
        for entry in std::fs::read_dir(&place).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let name = entry.file_name();
                next.push((format!("{path}/{}", name.to_string_lossy()), entry.path()));
            }
        }
        let path = if path.is_empty() { "/".into() } else { path };
        found.push((path, meta.ino()));
    }
    found
}

/// What hangs on the making of control groups, while somebody asks for some.
#[derive(Default)]
pub(crate) struct Hooks(Vec<Link>);

impl Probe {
    /// From now on; who fits already is for whoever calls this to bind.
    pub(crate) fn whom_set(&mut self, id: u32, flags: u32, asked: &Whom) -> Result<(), Error> {
        let invalid = |what| move |text: String| Error::Request { what, text };
        let names = Machine::<1>::of(&asked.comms).map_err(invalid("the names"))?;
        let paths = Machine::<WHOM_WORDS>::of(&asked.cgroups).map_err(invalid("the groups"))?;
        self.whom_clear(id);
        if !asked.cgroups.is_empty() {
            self.whom_groups(id, &paths)?;
        }
        let given = |given: bool, kind| if given { kind } else { 0 };
        let Some(bss) = self.skel.maps.bss_data.as_deref_mut() else {
            return Ok(());
        };
        let whom = &mut bss.whom[id as usize];
        whom.kinds = given(!asked.comms.is_empty(), WHOM_COMM)
            | given(!asked.cgroups.is_empty(), WHOM_CGROUP)
            | given(!asked.uids.is_empty(), WHOM_UID);
        whom.flags = flags;
        whom.except = asked.except;
        whom.rank = asked.rank;
        whom.owners_first = u32::from(asked.owners_first);
        self.whom_last += 1;
        whom.order = self.whom_last;
        whom.uid = [NONE; 16];
        for (to, uid) in whom.uid.iter_mut().zip(&asked.uids) {
            *to = *uid;
        }
        whom.uids = asked.uids.len() as u32;
        whom.names = skel::types::whom_names {
            begin: names.begin[0],
            stars: names.stars[0],
            end: names.end[0],
            accept: names.accept.map(|word| word[0]),
        };
        if asked.follow {
            // Release: whoever sees it finds the rest.
            std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
            bss.whom_asked |= 1 << id;
        }
        Ok(())
    }

    /// Behind all that anybody asks for.
    pub(crate) fn whom_yield(&mut self, id: u32) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.whom[id as usize].rank = NONE;
        }
    }

    /// First those that will be made, then those that are there: none is missed.
    fn whom_groups(&mut self, id: u32, paths: &Machine<WHOM_WORDS>) -> Result<(), Error> {
        let missing = |text| Error::Request {
            what: "the groups",
            text,
        };
        let (root, place) = unified().map_err(missing)?;
        let flat = |words: &[u64; WHOM_WORDS]| words.map(u64::to_ne_bytes).concat();
        let mut bytes = flat(&paths.begin);
        bytes.extend(flat(&paths.stars));
        bytes.extend(flat(&paths.end));
        bytes.extend(paths.accept.iter().flat_map(flat));
        self.skel
            .maps
            .whom_paths
            .update(&id.to_ne_bytes(), &bytes, MapFlags::ANY)
            .map_err(Error::bpf("telling which control groups are watched"))?;
        if self.whom_hooks.0.is_empty() {
            for program in [&self.skel.progs.cgroup_rmdir, &self.skel.progs.cgroup_mkdir] {
                let link = (self.programs)
                    .attach_trace(program, "attaching to the making of control groups")?;
                self.whom_hooks.0.push(link);
            }
        }
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
            bss.whom_asked_cgroups |= 1 << id;
        }
        for (path, number) in groups(&root, &place) {
            // The root has everybody below it.
            let below_root = paths.fits(b"/");
            if below_root || paths.fits_above(path.as_bytes()) {
                self.group_mark(number, |of| of | 1 << id)?;
            }
        }
        Ok(())
    }

    fn group_mark(&self, number: u64, change: impl Fn(u64) -> u64) -> Result<(), Error> {
        let (map, key) = (&self.skel.maps.whom_cgroups, number.to_ne_bytes());
        let was = map.lookup(&key, MapFlags::ANY).ok().flatten();
        let was = was.and_then(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?)));
        match change(was.unwrap_or(0)) {
            0 => {
                let _ = map.delete(&key);
                Ok(())
            }
            of => map
                .update(&key, &of.to_ne_bytes(), MapFlags::ANY)
                .map_err(Error::bpf("telling which control groups are watched")),
        }
    }

    /// Nobody comes to an account any more.
    pub(crate) fn whom_clear(&mut self, id: u32) {
        let Some(bss) = self.skel.maps.bss_data.as_deref_mut() else {
            return;
        };
        bss.whom_asked &= !(1 << id);
        if bss.whom_asked_cgroups >> id & 1 == 0 {
            return;
        }
        bss.whom_asked_cgroups &= !(1 << id);
        let none = bss.whom_asked_cgroups == 0;
        let numbers: Vec<u64> = (self.skel.maps.whom_cgroups.keys())
            .filter_map(|key| Some(u64::from_ne_bytes(key.try_into().ok()?)))
            .collect();
        for number in numbers {
            let _ = self.group_mark(number, |of| of & !(1 << id));
        }
        if none {
            self.whom_hooks.0.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comm(pattern: &str, name: &str) -> bool {
        Pattern::of_comm(pattern).unwrap().fits(name.as_bytes())
    }

    fn path(pattern: &str, path: &str) -> bool {
        let pattern = Pattern::of_path(pattern).unwrap();
        pattern.fits_above(path.as_bytes())
    }

    #[test]
    fn names() {
        for (pattern, fits, fits_not) in [
            (
                "nginx",
                &["nginx"][..],
                &["nginx2", "ngin", "", "xnginx"][..],
            ),
            (
                "ngin*",
                &["ngin", "nginx", "nginx: worker"],
                &["ngi", "xnginx"],
            ),
            ("*", &["", "a", "\u{fc}ber"], &[]),
            ("?", &["a"], &["", "ab"]),
            ("a*b*c", &["abc", "aXbYc", "abcbc"], &["ab", "acb"]),
            ("**a", &["a", "ba", "aa"], &["ab"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "x"]),
            ("[!a-c]x", &["dx", "-x"], &["ax"]),
            ("[]x]", &["]", "x"], &["a"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("\\*", &["*"], &["a"]),
            // The kernel cuts names, and so are patterns of one name.
            (
                "a-very-long-command",
                &["a-very-long-com"],
                &["a-very-long-co"],
            ),
        ] {
            for name in fits {
                assert!(comm(pattern, name), "{pattern} {name}");
            }
            for name in fits_not {
                assert!(!comm(pattern, name), "{pattern} {name}");
            }
        }
        for bad in ["", "[a", "a\\", "\u{fc}", "a\nb", "[", "[!"] {
            assert!(Pattern::of_comm(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn paths() {
        assert!(path("/system.slice", "/system.slice"));
        assert!(path("/system.slice", "/system.slice/a/b"));
        assert!(!path("/system.slice", "/system.slice2"));
        assert!(!path("/system.slice", "/user.slice/system.slice"));
        assert!(path("/user.slice/*/x", "/user.slice/a/x/y"));
        assert!(!path("/user.slice/*/x", "/user.slice/a/b/x"));
        assert!(path("/**/x.service", "/a/b/x.service/c"));
        assert!(path("/**/x.service", "/a/x.service"));
        assert!(!path("/**/x.service", "/a/x.service2"));
    }

    #[test]
    fn several_patterns_do_not_lead_into_each_other() {
        let patterns: Vec<_> = (0..20)
            .map(|n| Pattern::of_path(&format!("/a{n:02}*/*b{n:02}")).unwrap())
            .collect();
        let machine = Machine::<WHOM_WORDS>::of(&patterns).unwrap();
        for n in 0..20 {
            assert!(
                machine.fits(format!("/a{n:02}x/yb{n:02}").as_bytes()),
                "{n}"
            );
            assert!(machine.fits(format!("/a{n:02}/b{n:02}").as_bytes()), "{n}");
            let other = (n + 1) % 20;
            assert!(!machine.fits(format!("/a{n:02}x/yb{other:02}").as_bytes()));
            assert!(!machine.fits(format!("/a{n:02}x").as_bytes()));
        }
        assert!(Machine::<1>::of(&patterns).is_err());
    }

    #[test]
    fn a_mount_is_found() {
        let pure = "24 22 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(
            unified_of(pure),
            Some(("/".into(), "/sys/fs/cgroup".into()))
        );
        let hybrid = "25 24 0:23 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n\
                      26 25 0:24 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n\
                      27 25 0:25 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";
        let found = unified_of(hybrid);
        assert_eq!(found, Some(("/".into(), "/sys/fs/cgroup/unified".into())));
        let named = "27 25 0:25 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(unified_of(named), None);
    }
}
