// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which control group is a process in, which unit and which container is that, and which
//! groups are meant by a name?
//!
//! Of the unified hierarchy (cgroup v2). Pure, but for the two that read the mount and /proc.

use debox_report::LifeRow;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What systemd calls its groups.
const SUFFIXES: [&str; 3] = [".service", ".scope", ".slice"];
/// What stands before a container's id in the name of its group: Docker, containerd (also
/// nerdctl), CRI-O and podman with systemd's groups, and podman's and Kubernetes' others.
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

/// Patterns of groups that are the container with this id, or one that begins so.
///
/// # Errors
/// It is no id.
pub fn container_patterns(id: &str) -> Result<Vec<String>, String> {
    if id.len() < ID_LEAST
        || !id
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    {
        return Err(format!(
            "--container takes an id, {ID_LEAST} or more of its hexadecimal digits, and {id:?} is none: \
             names are the engine's to know (docker inspect -f '{{{{.Id}}}}' NAME, podman inspect likewise, \
             crictl ps)"
        ));
    }
    let id = &id[..id.len().min(ID_USED)];
    let engines = ENGINES.iter();
    Ok(engines.map(|engine| format!("**/{engine}{id}*")).collect())
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

fn walk(path: &str, place: &Path, to: &mut HashMap<u64, String>) {
    let Ok(meta) = std::fs::symlink_metadata(place) else {
        return;
    };
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let name = entry.file_name();
            walk(
                &format!("{path}/{}", name.to_string_lossy()),
                &entry.path(),
                to,
            );
        }
    }
    let path = if path.is_empty() { "/" } else { path };
    to.insert(meta.ino(), path.to_owned());
}

thread_local! {
    /// Paths by number, of those that were there at some time.
    static KNOWN: std::cell::RefCell<HashMap<u64, String>> = std::cell::RefCell::default();
}

/// Gives the rows' groups their names, as far as the groups are still there, or were when
/// somebody looked.
pub fn name(rows: &mut [LifeRow]) {
    KNOWN.with_borrow_mut(|known| {
        let unknown =
            |row: &LifeRow| row.cgroup_number != 0 && !known.contains_key(&row.cgroup_number);
        if rows.iter().any(unknown)
            && let Ok((root, mount)) = debox_probe::unified()
        {
            walk(root.trim_end_matches('/'), &mount, known);
        }
        for row in rows {
            let Some(path) = known.get(&row.cgroup_number) else {
                continue;
            };
            row.unit = unit_of(path).map(str::to_owned);
            row.cgroup = Some(path.clone());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use debox_probe::Pattern;

    const ID: &str = "4f0a1c2b3d4e5f60718293a4b5c6d7e8f9000112233445566778899aabbccdde";

    fn is_of(patterns: &[String], path: &str) -> bool {
        let fits = |pattern: &String| {
            Pattern::of_path(pattern)
                .unwrap()
                .fits_above(path.as_bytes())
        };
        patterns.iter().any(fits)
    }

    #[test]
    fn containers_by_the_paths_of_their_engines() {
        let paths = [
            format!("/system.slice/docker-{ID}.scope"),
            format!("/docker/{ID}"),
            format!("/docker/{ID}/init"),
            format!("/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{ID}.scope"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8d3c5a1e_0c5f_4f3b_9a53_0a5b7a1c2d3e.slice/cri-containerd-{ID}.scope"
            ),
            format!("/kubepods/besteffort/pod8d3c5a1e-0c5f-4f3b-9a53-0a5b7a1c2d3e/{ID}"),
            format!("/kubepods.slice/kubepods-pod8d3c5a1e_0c5f.slice/crio-{ID}.scope"),
            format!("/kubepods.slice/kubepods-pod8d3c5a1e_0c5f.slice/crio-{ID}.scope/container"),
            format!("/machine.slice/libpod-{ID}.scope"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/libpod_parent/libpod-{ID}"),
            format!(
                "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container"
            ),
            format!("/system.slice/nerdctl-{ID}.scope"),
        ];
        for id in [&ID[..12], ID, &ID[..8]] {
            let patterns = container_patterns(id).unwrap();
            for path in &paths {
                assert!(is_of(&patterns, path), "{id} {path}");
            }
            for other in [
                "/",
                "/system.slice/docker.service",
                &format!("/machine.slice/libpod-conmon-{ID}.scope"),
                &format!("/kubepods.slice/crio-conmon-{ID}.scope"),
                &format!("/docker/0{ID}"),
                &format!("/docker-{ID}x/y").replace(&ID[4..8], "0000"),
            ] {
                assert!(!is_of(&patterns, other), "{id} {other}");
            }
        }
        for bad in ["", "web", "4f0a", "4F0A1C2B3D4E", "4f0a1c2b3d4*"] {
            assert!(
                container_patterns(bad).unwrap_err().contains("inspect"),
                "{bad}"
            );
        }
    }

    #[test]
    fn units() {
        let nginx = unit_patterns("nginx");
        assert!(is_of(&nginx, "/system.slice/nginx.service"));
        assert!(is_of(&nginx, "/system.slice/nginx.service/worker"));
        assert!(is_of(&nginx, "/nginx.slice"));
        assert!(!is_of(&nginx, "/system.slice/nginx-cache.service"));
        assert!(!is_of(&nginx, "/system.slice"));
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
