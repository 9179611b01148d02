// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where is patched code kept from one run to the next?
//!
//! In the user's cache. A service's user often has no home, and a home may be mounted `noexec`: then where temporary
//! files are, in a folder that is the user's alone.

use crate::error::Error;
use std::fs::Permissions;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// In the name of each of the folders that it may be.
pub const FOLDER: &str = "splice";
/// The user and group that `make install` makes for `deboxd`.
const BROKER: &str = "debox";

fn user() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() }
}

/// The first one that will do; `make`: it is there then, else nothing new is made.
pub fn folder(make: bool) -> Result<PathBuf, Error> {
    let mut failed: Option<(PathBuf, String)> = None;
    for folder in candidates(make) {
        let why = match (make || folder.exists()).then(|| debox_splice::folder_check(&folder)) {
            None => could_be_made(&folder).map_err(|error| error.to_string()),
            Some(Ok(())) => Ok(()),
            Some(Err(debox_splice::Error::Images { why, .. })) => Err(why),
            Some(Err(error)) => Err(error.to_string()),
        };
        match (why, &mut failed) {
            (Ok(()), _) => return Ok(folder),
            (Err(why), None) => failed = Some((folder, why)),
            (Err(why), Some((_, before))) => {
                *before = format!("{before}; {}: {why}", folder.display());
            }
        }
    }
    Err(match failed {
        Some((folder, why)) => debox_splice::Error::Images { folder, why }.into(),
        None => Error::Usage(
            "there is no place for patched code: set XDG_CACHE_HOME, or HOME, to a path".into(),
        ),
    })
}

fn candidates(make: bool) -> Vec<PathBuf> {
    let set = |name: &str| {
        (std::env::var_os(name).filter(|path| path.as_bytes().starts_with(b"/"))).map(PathBuf::from)
    };
    let within = |base: PathBuf| base.join("debox").join(FOLDER);
    // Who names one wants that one.
    if let Some(named) = set("XDG_CACHE_HOME") {
        return vec![within(named)];
    }
    let home = set("HOME").map(|home| home.join(".cache"));
    let bases = of_root(make).into_iter().chain(home);
    bases.map(within).chain(temporary()).collect()
}

/// Directly in a folder in which nobody can rename what is another one's.
fn temporary() -> Option<PathBuf> {
    let base = std::env::temp_dir();
    let is = std::fs::metadata(&base).ok()?;
    let kept = is.mode() & 0o022 == 0 || is.mode() & libc::S_ISVTX != 0;
    let trusted = is.uid() == 0 || is.uid() == user();
    (kept && trusted && base.is_absolute()).then(|| base.join(format!("debox-{FOLDER}-{}", user())))
}

/// Whether there is a folder above in which it can be made, on a file system that code may be mapped from.
fn could_be_made(folder: &Path) -> io::Result<()> {
    let above = folder.ancestors().find(|path| path.exists());
    let above = std::ffi::CString::new(above.unwrap_or(folder).as_os_str().as_bytes())?;
    // SAFETY: a path that ends with 0; effective ids.
    if unsafe { libc::faccessat(libc::AT_FDCWD, above.as_ptr(), libc::W_OK, libc::AT_EACCESS) } != 0
    {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zero is a statvfs, which the call fills.
    let mut about: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a path that ends with 0, and room for the answer.
    if unsafe { libc::statvfs(above.as_ptr(), &mut about) } != 0 {
        return Err(io::Error::last_os_error());
    }
    match about.f_flag & libc::ST_NOEXEC {
        0 => Ok(()),
        _ => Err(io::Error::other("its file system is mounted noexec")),
    }
}

/// Root's home is closed to the broker's user, who names the places in these copies: they get a folder that its
/// group may read, and nobody else. None: that group is not there, or nothing can be made there.
fn of_root(make: bool) -> Option<PathBuf> {
    let group = debox_broker::account::group_id(BROKER).filter(|_| user() == 0)?;
    let base = PathBuf::from("/var/cache");
    let ours = base.join("debox");
    if !make {
        return Some(base);
    }
    for (folder, mode) in [(ours.clone(), 0o755), (ours.join(FOLDER), 0o750)] {
        match std::fs::create_dir(&folder) {
            // With whatever umask.
            Ok(()) => {
                std::os::unix::fs::chown(&folder, None, Some(group)).ok()?;
                std::fs::set_permissions(&folder, Permissions::from_mode(mode)).ok()?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(_) => return None,
        }
    }
    Some(base)
}
