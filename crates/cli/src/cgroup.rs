// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which control group is a process in, which unit and which container is that, and which
//! groups are meant by a name?
//!
//! Of the unified hierarchy (cgroup v2). Pure, but for those that look at the mount.

use debox_report::LifeRow;
use std::collections::HashMap;
use std::path::Path;

/// What systemd calls its groups.
const SUFFIXES: [&str; 3] = [".service", ".scope", ".slice"];
/// What stands before a container's id in the name of its group: Docker, containerd (also
/// nerdctl), CRI-O and podman with systemd's groups, and podman's and Kubernetes' others. What watches over a container
/// (conmon) has a group beside it, with more before the id: that is none.
const ENGINES: [&str; 6] = [
    "",
    "docker-",
    "cri-containerd-",
    "crio-",
    "libpod-",
    "nerdctl-",
];
/// So much of an id tells containers apart; the patterns of all engines must find room.
const ID_USED: usize = 24;
const ID_LEAST: usize = 8;
const ID_LETTERS: usize = 64;
/// In the place of an id.
const ANY: &str = "*";
/// So much of it engines show.
const ID_SHOWN: usize = 12;
/// In the name of a Kubernetes pod's group, which ends in the pod's uid.
const POD: &str = "pod";

/// The deepest service or scope of a path, else its deepest slice.
pub fn unit_of(path: &str) -> Option<&str> {
    let named = |suffix: &'static str| move |part: &&str| part.ends_with(suffix) && *part != suffix;
    let parts = || path.rsplit('/');
    let inner = parts().find(|part| named(".service")(part) || named(".scope")(part));
    inner.or_else(|| parts().find(named(".slice")))
}

/// Patterns of groups that are the unit of this name.
pub fn unit_patterns(name: &str) -> Vec<String> {
    if SUFFIXES.iter().any(|suffix| name.ends_with(suffix)) {
        return vec![format!("**/{name}")];
    }
    let kinds = SUFFIXES.iter();
    kinds.map(|suffix| format!("**/{name}{suffix}")).collect()
}

/// Patterns of groups that are the container with this id, or one that begins so; of `*` all containers.
///
/// # Errors
/// It is no id.
pub fn container_patterns(id: &str) -> Result<Vec<String>, String> {
    if id != ANY && (id.len() < ID_LEAST || !is_hex(id)) {
        return Err(format!(
            "a container is meant by its id, {ID_LEAST} or more of its hexadecimal digits, or by {ANY} alone, which is \
             any, and {id:?} is neither: names are the engine's to know (docker inspect -f '{{{{.Id}}}}' NAME, podman \
             inspect likewise, crictl ps)"
        ));
    }
    let id = match id {
        ANY => "[0-9a-f]".repeat(ID_USED),
        id => id[..id.len().min(ID_USED)].to_owned(),
    };
    let engines = ENGINES.iter();
    Ok(engines.map(|engine| format!("**/{engine}{id}*")).collect())
}

fn is_hex(text: &str) -> bool {
    text.bytes()
        .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// The container whose group that is, or is in: its id as engines show it. The innermost one, where one runs in another.
pub fn container(path: &str) -> Option<&str> {
    path.rsplit('/').find_map(|part| {
        // SLICE:ENGINE:ID, where systemd's names were asked for and nobody made groups of them.
        let part = part.rsplit(':').next().unwrap_or(part);
        let name = part.strip_suffix(".scope").unwrap_or(part);
        let mut ids = ENGINES
            .iter()
            .filter_map(|engine| name.strip_prefix(engine));
        let id = ids.find(|id| id.len() == ID_LETTERS && is_hex(id))?;
        Some(&id[..ID_SHOWN])
    })
}

/// The uid of the Kubernetes pod whose group that is, or is in, as Kubernetes writes it. (A static pod's is no uuid,
/// but a hash.)
pub fn pod(path: &str) -> Option<String> {
    path.rsplit('/').find_map(|part| {
        // SLICE:ENGINE:ID
        let part = part.split(':').next().unwrap_or(part);
        let name = match part.strip_suffix(".slice") {
            // kubepods-burstable-podUID: a slice's name has those above it before its own.
            Some(slice) => slice.rsplit('-').next()?,
            None => part,
        };
        let uid = name.strip_prefix(POD)?;
        // A slice's own name has no dashes.
        let uid = uid.replace('_', "-");
        let dashes = [8, 13, 18, 23];
        let mut letters = uid.bytes().enumerate();
        let is_uuid = uid.len() == 36
            && letters.all(|(at, b)| match dashes.contains(&at) {
                true => b == b'-',
                false => b.is_ascii_hexdigit(),
            });
        let is_hash = uid.len() == 32 && is_hex(&uid);
        (is_uuid || is_hash).then_some(uid)
    })
}

/// A pattern of groups as a user writes it: a path of the hierarchy, or of its files.
///
/// # Errors
/// It is a path of another hierarchy.
pub fn path_pattern(text: &str, root: &str, mount: &str) -> Result<String, String> {
    let trimmed = text.trim_end_matches('/');
    if let Some(below) = trimmed.strip_prefix(mount)
        && (below.is_empty() || below.starts_with('/'))
    {
        let path = format!("{}{below}", root.trim_end_matches('/'));
        return Ok(if path.is_empty() { "/".into() } else { path });
    }
    if trimmed.starts_with("/sys/fs/cgroup/") {
        return Err(format!(
            "{text:?} is in a hierarchy of its own (cgroup v1), and processes are told apart by the unified \
             one, which is mounted at {mount}: name a group below that"
        ));
    }
    Ok(match trimmed {
        "" => "/".into(),
        path if path.starts_with('/') => path.into(),
        path => format!("/{path}"),
    })
}

/// The group of the unified hierarchy, from the text of /proc/PID/cgroup.
pub fn unified_path(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Not more groups' names are kept: first go those that are gone, or that nobody asked for.
const KNOWN_MOST: usize = 20_000;

/// A group that was there, or that was not to be found: it was gone before anybody looked.
struct KnownGroup {
    path: Option<String>,
    used: u64,
}

/// Groups by number, which the kernel gives to no other group for as long as the machine runs. (It has 32 bits for it
/// and counts how often these are used up in the upper 32.)
#[derive(Default)]
struct Known {
    groups: HashMap<u64, KnownGroup>,
    /// Goes up, so that what was used later has more.
    now: u64,
}

impl Known {
    fn add(&mut self, number: u64, path: Option<String>) {
        let used = self.now;
        self.groups.insert(number, KnownGroup { path, used });
    }

    /// Looks which there are, of a hierarchy that is mounted at `place` and shows `root` there.
    fn look(&mut self, root: &str, place: &Path) {
        for (path, number) in debox_probe::groups(root, place) {
            self.add(number, Some(path));
        }
    }

    /// What was not used for longest goes, where there are too many.
    fn forget(&mut self, most: usize) {
        let mut left = self.groups.len().saturating_sub(most);
        if left == 0 {
            return;
        }
        let mut used: Vec<u64> = self.groups.values().map(|group| group.used).collect();
        let (_, last, _) = used.select_nth_unstable(left - 1);
        let last = *last;
        // First all that are older than the last one that goes.
        left -= self.groups.extract_if(|_, group| group.used < last).count();
        self.groups.retain(|_, group| {
            let goes = left > 0 && group.used == last;
            left -= usize::from(goes);
            !goes
        });
    }

    fn name(&mut self, rows: &mut [LifeRow], most: usize, look: impl FnOnce(&mut Self)) {
        let numbers = || {
            rows.iter()
                .map(|row| row.cgroup_number)
                .filter(|it| *it != 0)
        };
        self.now += 1;
        if numbers().any(|number| !self.groups.contains_key(&number)) {
            look(self);
            for number in numbers().collect::<Vec<_>>() {
                if !self.groups.contains_key(&number) {
                    self.add(number, None);
                }
            }
        }
        // What is asked for stays before what is there as well.
        self.now += 1;
        for row in rows {
            let Some(group) = self.groups.get_mut(&row.cgroup_number) else {
                continue;
            };
            group.used = self.now;
            let Some(path) = &group.path else {
                continue;
            };
            row.unit = unit_of(path).map(str::to_owned);
            row.cgroup = Some(path.clone());
        }
        self.forget(most);
    }
}

thread_local! {
    static KNOWN: std::cell::RefCell<Known> = std::cell::RefCell::default();
}

/// Gives the rows' groups their names, as far as the groups are still there, or were when
/// somebody looked.
pub fn name(rows: &mut [LifeRow]) {
    KNOWN.with_borrow_mut(|known| {
        known.name(rows, KNOWN_MOST, |known| {
            if let Ok((root, mount)) = debox_probe::unified() {
                known.look(&root, &mount);
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use debox_probe::Pattern;
    use std::os::unix::fs::MetadataExt;

    const OTHER_ID: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    const ID: &str = "4f0a1c2b3d4e5f60718293a4b5c6d7e8f9000112233445566778899aabbccdde";

    fn is_of(patterns: &[String], path: &str) -> bool {
        let fits = |pattern: &String| {
            Pattern::of_path(pattern)
                .unwrap()
                .fits_above(path.as_bytes())
        };
        patterns.iter().any(fits)
    }

    const UID: &str = "8d3c5a1e-0c5f-4f3b-9a53-0a5b7a1c2d3e";
    const STATIC: &str = "1b2c3d4e5f60718293a4b5c6d7e8f900";

    /// Groups as engines make them, and the pod that a container is of.
    fn containers() -> Vec<(String, Option<&'static str>)> {
        let slice = UID.replace('-', "_");
        let user = "/user.slice/user-1000.slice/user@1000.service/user.slice";
        let none = [
            // Docker, with systemd's groups, and with its own (cgroupfs).
            format!("/system.slice/docker-{ID}.scope"),
            format!("/docker/{ID}"),
            format!("/docker/{ID}/init"),
            format!("{user}/docker-{ID}.scope"),
            // Docker in a container of Docker.
            format!("/docker/{OTHER_ID}/docker/{ID}"),
            // podman: the container's processes are below the scope.
            format!("/machine.slice/libpod-{ID}.scope"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/libpod_parent/libpod-{ID}"),
            format!("{user}/libpod-{ID}.scope/container"),
            // nerdctl; containerd's own (ctr) have the names that are given them.
            format!("/system.slice/nerdctl-{ID}.scope"),
            format!("/default/{ID}"),
        ];
        let of_pod = [
            // containerd
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-{ID}.scope"
            ),
            format!("/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-{ID}.scope/init"),
            format!("/kubepods/besteffort/pod{UID}/{ID}"),
            format!("/kubepods/pod{UID}/{ID}"),
            format!("/system.slice/kubepods-besteffort-pod{slice}.slice:cri-containerd:{ID}"),
            // Of a node that is a container itself (kind).
            format!(
                "/docker/{OTHER_ID}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
                 kubelet-kubepods-besteffort-pod{slice}.slice/cri-containerd-{ID}.scope"
            ),
            // CRI-O
            format!("/kubepods.slice/kubepods-pod{slice}.slice/crio-{ID}.scope"),
            format!("/kubepods.slice/kubepods-pod{slice}.slice/crio-{ID}.scope/container"),
            format!("/kubepods/burstable/pod{UID}/crio-{ID}"),
        ];
        let of_static = format!("/kubepods/burstable/pod{STATIC}/{ID}");
        let all = none.into_iter().map(|path| (path, None));
        let all = all.chain(of_pod.into_iter().map(|path| (path, Some(UID))));
        all.chain([(of_static, Some(STATIC))]).collect()
    }

    /// Beside containers, and around them.
    fn no_containers() -> Vec<(String, Option<&'static str>)> {
        let slice = UID.replace('-', "_");
        let none = [
            "/".to_owned(),
            "/system.slice/docker.service".to_owned(),
            "/system.slice/nginx.service".to_owned(),
            "/user.slice/\u{e9}-\u{fc}".to_owned(),
            "/kubepods.slice/kubepods-burstable.slice".to_owned(),
            "/system.slice/podman.service".to_owned(),
            "/pod/poda/pod-1.slice".to_owned(),
            format!("/machine.slice/libpod-conmon-{ID}.scope"),
            "/libpod_parent/conmon".to_owned(),
            format!("/docker/0{ID}"),
            format!("/docker/{}", ID.to_uppercase()),
        ];
        let of_pod = [
            format!("/kubepods.slice/kubepods-pod{slice}.slice"),
            format!("/kubepods/besteffort/pod{UID}"),
            format!("/kubepods.slice/kubepods-pod{slice}.slice/crio-conmon-{ID}.scope"),
            format!("/kubepods/burstable/pod{UID}/crio-conmon-{ID}"),
        ];
        let all = none.into_iter().map(|path| (path, None));
        all.chain(of_pod.into_iter().map(|path| (path, Some(UID))))
            .collect()
    }

    #[test]
    fn containers_and_pods_by_the_paths_of_their_engines() {
        for (path, of) in containers() {
            assert_eq!(container(&path), Some(&ID[..12]), "{path}");
            assert_eq!(pod(&path).as_deref(), of, "{path}");
        }
        for (path, of) in no_containers() {
            assert_eq!(container(&path), None, "{path}");
            assert_eq!(pod(&path).as_deref(), of, "{path}");
        }
    }

    #[test]
    fn patterns_find_containers_by_the_paths_of_their_engines() {
        for id in [&ID[..12], ID, &ID[..8]] {
            let patterns = container_patterns(id).unwrap();
            for (path, _) in containers() {
                // What is no group of its own is found by nothing that asks for groups.
                assert_eq!(is_of(&patterns, &path), !path.contains(':'), "{id} {path}");
            }
            let other = format!("/docker-{ID}x/y").replace(&ID[4..8], "0000");
            for path in no_containers()
                .into_iter()
                .map(|(path, _)| path)
                .chain([other])
            {
                assert!(!is_of(&patterns, &path), "{id} {path}");
            }
        }
        let any = container_patterns("*").unwrap();
        for (path, _) in containers() {
            assert_eq!(is_of(&any, &path), !path.contains(':'), "{path}");
        }
        assert!(is_of(&any, &format!("/docker/{OTHER_ID}")));
        // A pattern does not count up to where an id ends.
        let longer = format!("/docker/0{ID}");
        for (path, _) in no_containers() {
            assert_eq!(is_of(&any, &path), path == longer, "{path}");
        }
        for path in ["/system.slice/20261127120000.service", "/deadbeef/a"] {
            assert!(!is_of(&any, path), "{path}");
        }
        for bad in ["", "web", "4f0a", "4F0A1C2B3D4E", "4f0a1c2b3d4*", "**"] {
            assert!(
                container_patterns(bad).unwrap_err().contains("inspect"),
                "{bad}"
            );
        }
    }

    fn rows(numbers: impl IntoIterator<Item = u64>) -> Vec<LifeRow> {
        let row = |cgroup_number| LifeRow {
            cgroup_number,
            ..LifeRow::default()
        };
        numbers.into_iter().map(row).collect()
    }

    /// As an agent sees them that runs for months: thousands come and go between two looks.
    #[test]
    fn groups_that_come_and_go_are_named_and_forgotten() {
        let mut known = Known::default();
        let path = |number: u64| format!("/system.slice/run-{number}.service");
        for look in 0..50u64 {
            let there = || look * 1_000 + 1..look * 1_000 + 1_001;
            // One lasts, and one was gone before anybody looked.
            let mut of = rows(there().chain([u64::MAX, 1 << 40 | look]));
            known.name(&mut of, 1_500, |known| {
                for number in there().chain([u64::MAX]) {
                    known.add(number, Some(path(number)));
                }
            });
            for row in &of {
                let gone = row.cgroup_number >> 40 == 1;
                let is = (!gone).then(|| path(row.cgroup_number));
                assert_eq!(row.cgroup, is);
                let unit = is.as_deref().and_then(unit_of);
                assert_eq!(row.unit.as_deref(), unit);
            }
            assert!(known.groups.len() <= 1_500, "{}", known.groups.len());
        }
        // More at once than are kept: what is asked for is named all the same, and stays.
        let mut of = rows(1..=10);
        known.name(&mut of, 10, |known| {
            for number in 1..=10_000 {
                known.add(number, Some(path(number)));
            }
        });
        assert!(
            of.iter()
                .all(|row| row.cgroup == Some(path(row.cgroup_number)))
        );
        let mut kept: Vec<u64> = known.groups.keys().copied().collect();
        kept.sort_unstable();
        assert_eq!(kept, (1..=10).collect::<Vec<_>>());
        // Nobody looks again for what was not there.
        known.name(&mut rows([77]), 10, |_| {});
        known.name(&mut rows([77]), 10, |_| panic!("it was looked for"));
    }

    /// A folder's number may be another's once it is gone, and a look finds what is there.
    #[test]
    fn a_number_has_the_name_of_who_has_it_now() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a.slice/b.service")).unwrap();
        let inode = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().ino();
        let (slice, service) = (inode("a.slice"), inode("a.slice/b.service"));
        let mut known = Known::default();
        known.add(service, Some("/old.service".into()));
        let mut of = rows([slice, service]);
        known.name(&mut of, 100, |known| known.look("/x/", folder.path()));
        assert_eq!(of[0].cgroup.as_deref(), Some("/x/a.slice"));
        assert_eq!(of[1].cgroup.as_deref(), Some("/x/a.slice/b.service"));
        assert_eq!(of[1].unit.as_deref(), Some("b.service"));
        let mut of = rows([inode(".")]);
        known.name(&mut of, 100, |_| panic!("it is known"));
        assert_eq!(of[0].cgroup.as_deref(), Some("/x"));
    }

    #[test]
    fn units() {
        let nginx = unit_patterns("nginx");
        assert!(is_of(&nginx, "/system.slice/nginx.service"));
        assert!(is_of(&nginx, "/system.slice/nginx.service/worker"));
        assert!(is_of(&nginx, "/nginx.slice"));
        assert!(!is_of(&nginx, "/system.slice/nginx-cache.service"));
        assert!(!is_of(&nginx, "/system.slice"));
        for (glob, fits, fits_not) in [
            (
                "php*-fpm",
                &["/system.slice/php8.2-fpm.service"][..],
                &["/system.slice/php8.2-fpm-x.service", "/php/a-fpm.service"][..],
            ),
            (
                "user@*.service",
                &["/user.slice/user-7.slice/user@7.service/app.slice/a.scope"],
                &["/user.slice/user-7.slice"],
            ),
            (
                "web[0-9].service",
                &["/system.slice/web1.service"],
                &["/system.slice/web10.service"],
            ),
            (
                "*.service",
                &["/system.slice/cron.service"],
                &["/user.slice/user-7.slice/session-3.scope"],
            ),
        ] {
            let patterns = unit_patterns(glob);
            for path in fits {
                assert!(is_of(&patterns, path), "{glob} {path}");
            }
            for path in fits_not {
                assert!(!is_of(&patterns, path), "{glob} {path}");
            }
        }
        let one = unit_patterns("user@1000.service");
        assert!(is_of(
            &one,
            "/user.slice/user-1000.slice/user@1000.service/app.slice/a.scope"
        ));
        assert!(!is_of(&one, "/user.slice/user-1000.slice"));
        for (path, unit) in [
            ("/system.slice/nginx.service", Some("nginx.service")),
            ("/system.slice/nginx.service/worker", Some("nginx.service")),
            (
                "/user.slice/user-1.slice/user@1.service/app.slice/a.scope",
                Some("a.scope"),
            ),
            ("/user.slice/user-1.slice", Some("user-1.slice")),
            (
                "/user.slice/user-1.slice/session-3.scope",
                Some("session-3.scope"),
            ),
            ("/docker/4f0a", None),
            ("/", None),
        ] {
            assert_eq!(unit_of(path), unit, "{path}");
        }
    }

    #[test]
    fn paths_as_users_write_them() {
        let hybrid = |text| path_pattern(text, "/", "/sys/fs/cgroup/unified");
        assert_eq!(hybrid("/a/b").unwrap(), "/a/b");
        assert_eq!(hybrid("a/b/").unwrap(), "/a/b");
        assert_eq!(hybrid("/sys/fs/cgroup/unified/a").unwrap(), "/a");
        assert_eq!(hybrid("/sys/fs/cgroup/unified/").unwrap(), "/");
        assert_eq!(hybrid("/").unwrap(), "/");
        assert!(
            hybrid("/sys/fs/cgroup/memory/a")
                .unwrap_err()
                .contains("cgroup v1")
        );
        let pure = |text| path_pattern(text, "/", "/sys/fs/cgroup");
        assert_eq!(pure("/sys/fs/cgroup/a/*").unwrap(), "/a/*");
        let inside = path_pattern("/sys/fs/cgroup/a", "/docker/1", "/sys/fs/cgroup");
        assert_eq!(inside.unwrap(), "/docker/1/a");
    }

    #[test]
    fn the_unified_line_of_proc() {
        let hybrid = "4:memory:/m\n1:name=systemd:/init.scope\n0::/init.scope\n";
        assert_eq!(unified_path(hybrid), Some("/init.scope"));
        assert_eq!(unified_path("1:name=systemd:/a\n"), None);
    }
}
