// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does the listening socket come from, and is it the only one there?

use crate::error::BrokerError;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Connections that may wait in the queue; net.core.somaxconn bounds it.
const BACKLOG: i32 = 4096;
/// The first descriptor of systemd's socket activation.
const ACTIVATION_FD: i32 = 3;
const PRIVATE_PREFIX: &str = "debox-";
const PRIVATE_SOCKET: &str = "broker";
const SWEEP_AGE: Duration = Duration::from_secs(60);

/// Who may connect to a socket file. What one may do then is decided for each
/// message by the sender's credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Mode 0666.
    Everybody,
    /// Mode 0660: the members of the group with this id.
    Group(u32),
}

impl Access {
    fn mode(self) -> Mode {
        Mode::from_raw_mode(match self {
            Access::Everybody => 0o666,
            Access::Group(_) => 0o660,
        })
    }
}

fn failed(
    path: &Path,
    step: &'static str,
    remedy: &'static str,
) -> impl FnOnce(rustix::io::Errno) -> BrokerError {
    move |source| BrokerError::Listen {
        path: path.to_owned(),
        step,
        source,
        remedy,
    }
}

/// A listening socket with its file and the lock that keeps others away.
#[derive(Debug)]
pub struct Listener {
    fd: Option<OwnedFd>,
    path: PathBuf,
    file: (u64, u64),
    /// Held, by flock, as long as the broker lives; the kernel lets it go when
    /// the process dies.
    _lock: Option<OwnedFd>,
}

impl Listener {
    /// Binds `path` for those whom `access` names. A socket file that nobody
    /// listens on any more is replaced.
    ///
    /// # Errors
    /// [`BrokerError::InUse`] when somebody does listen.
    pub fn bind(path: &Path, access: Access) -> Result<Self, BrokerError> {
        let failed = |step, remedy| failed(path, step, remedy);
        let address = SocketAddrUnix::new(path).map_err(failed(
            "address",
            "a socket's path has at most 107 bytes; choose a shorter one",
        ))?;
        directory_made(path)?;
        let lock = lock(path)?;
        let fd = socket(path)?;
        match rustix::net::bind(&fd, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => {
                replace_stale(path, &address)?;
                rustix::net::bind(&fd, &address).map_err(failed(
                    "bind",
                    "somebody else made it in this moment; is another broker starting?",
                ))?;
            }
            Err(source) => {
                return Err(failed(
                    "bind",
                    "run as root, or choose a --socket in a directory that the broker's user can \
                     reach and write",
                )(source));
            }
        }
        let late = "the file system must allow sockets; choose another --socket";
        let stat = give(path, access)?;
        rustix::net::listen(&fd, BACKLOG).map_err(failed("listen", late))?;
        Ok(Self {
            fd: Some(fd),
            path: path.to_owned(),
            file: (stat.st_dev, stat.st_ino),
            _lock: Some(lock),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor, for the broker; the file is still removed on drop.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fd.take()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Only our own file: somebody may have put another in its place.
        let ours =
            rustix::fs::stat(&self.path).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.file);
        if !ours {
            return;
        }
        match rustix::fs::unlink(&self.path) {
            Ok(()) => {}
            // deboxd that was started as root, in a directory of root's.
            Err(Errno::ACCESS | Errno::PERM) => tracing::info!(
                path = %self.path.display(),
                "the socket file stays, since its directory is another user's; nobody listens on it, \
                 and the next broker replaces it"
            ),
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the socket file could not be removed");
            }
        }
    }
}

/// Mode and group of the socket file that was bound a moment ago, and what it
/// is. The file is held while they change: its name could be a link by now
/// where others may write the directory.
fn give(path: &Path, access: Access) -> Result<rustix::fs::Stat, BrokerError> {
    let failed = |step, remedy| failed(path, step, remedy);
    let late = "the file system must allow sockets; choose another --socket";
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = rustix::fs::open(path, flags, Mode::empty()).map_err(failed("open", late))?;
    let stat = rustix::fs::fstat(&held).map_err(failed("fstat", late))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(BrokerError::NotASocket {
            path: path.to_owned(),
        });
    }
    let file = format!("/proc/self/fd/{}", held.as_raw_fd());
    if let Access::Group(group) = access {
        let group = rustix::fs::Gid::from_raw(group);
        rustix::fs::chown(file.as_str(), None, Some(group)).map_err(failed(
            "chown",
            "run as root, as a member of the group, or with --everybody",
        ))?;
    }
    rustix::fs::chmod(file.as_str(), access.mode()).map_err(failed("chmod", late))?;
    Ok(stat)
}

fn directory(socket: &Path) -> Option<&Path> {
    socket.parent().filter(|p| !p.as_os_str().is_empty())
}

/// Makes the directory of `socket` if only it is missing; the descriptor is
/// there when it was made.
fn directory_made(socket: &Path) -> Result<Option<OwnedFd>, BrokerError> {
    let Some(parent) = directory(socket).filter(|parent| !parent.exists()) else {
        return Ok(None);
    };
    let failed = |step| {
        move |source| BrokerError::Listen {
            path: socket.to_owned(),
            step,
            source,
            remedy: "run as root, or choose a --socket in a directory that you can write",
        }
    };
    let mode = Mode::from_raw_mode(0o755);
    rustix::fs::mkdir(parent, mode).map_err(failed("mkdir"))?;
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::open(parent, flags, Mode::empty()).map_err(failed("open"))?;
    // The umask may have taken more away than the clients can bear.
    rustix::fs::fchmod(&made, mode).map_err(failed("fchmod"))?;
    Ok(Some(made))
}

/// Makes the directory of `socket`, for that user and group, if only it is
/// missing.
///
/// # Errors
/// When it cannot be made.
pub fn directory_make(socket: &Path, uid: u32, gid: u32) -> Result<(), BrokerError> {
    let Some(made) = directory_made(socket)? else {
        return Ok(());
    };
    let (uid, gid) = (
        rustix::fs::Uid::from_raw(uid),
        rustix::fs::Gid::from_raw(gid),
    );
    rustix::fs::fchown(&made, Some(uid), Some(gid)).map_err(|source| BrokerError::Listen {
        path: socket.to_owned(),
        step: "fchown",
        source,
        remedy: "run as root with CAP_CHOWN, or make the directory beforehand",
    })
}

/// Whose the directory of `socket` is, if there is one.
pub fn directory_owner(socket: &Path) -> Option<u32> {
    let directory = directory(socket).unwrap_or(Path::new("."));
    fs::metadata(directory).ok().map(|meta| meta.uid())
}

/// Listens (again). The kernel shows clients the credentials of who did so
/// last: for a socket that systemd opened, or that was opened by root, these
/// are not yet the broker's.
///
/// # Errors
/// When the kernel refuses.
pub fn listen(socket: &OwnedFd) -> Result<(), BrokerError> {
    rustix::net::listen(socket, BACKLOG).map_err(|source| BrokerError::Socket {
        step: "listen",
        source,
    })
}

fn socket(path: &Path) -> Result<OwnedFd, BrokerError> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|source| BrokerError::Listen {
        path: path.to_owned(),
        step: "socket",
        source,
        remedy: "AF_UNIX sockets must be allowed (RestrictAddressFamilies, seccomp)",
    })
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut name: OsString = socket.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// The lock beside the socket; two brokers that start at once cannot both take
/// a stale socket for theirs. The file stays: removing it would let a third one
/// lock a file that nobody sees.
fn lock(path: &Path) -> Result<OwnedFd, BrokerError> {
    let lock_path = lock_path(path);
    let failed = |step| {
        let path = lock_path.clone();
        move |source| BrokerError::Listen {
            path,
            step,
            source,
            remedy: "run as root, or choose a --socket in a directory that you can write",
        }
    };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd =
        rustix::fs::open(&lock_path, flags, Mode::from_raw_mode(0o600)).map_err(failed("open"))?;
    match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let pid = fs::read_to_string(&lock_path)
                .ok()
                .and_then(|text| text.trim().parse().ok());
            return Err(BrokerError::InUse {
                path: path.to_owned(),
                pid,
            });
        }
        Err(source) => return Err(failed("flock")(source)),
    }
    // For people, and for the message above.
    rustix::fs::ftruncate(&fd, 0).map_err(failed("ftruncate"))?;
    rustix::io::write(&fd, format!("{}\n", std::process::id()).as_bytes())
        .map_err(failed("write"))?;
    Ok(fd)
}

/// Removes the socket file at `path` if nobody listens on it.
fn replace_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), BrokerError> {
    let failed = |step| {
        move |source| BrokerError::Listen {
            path: path.to_owned(),
            step,
            source,
            remedy: "remove the file if no broker is running, or choose another --socket",
        }
    };
    let stat = rustix::fs::lstat(path).map_err(failed("lstat"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(BrokerError::NotASocket {
            path: path.to_owned(),
        });
    }
    let probe = socket(path)?;
    match rustix::net::connect(&probe, address) {
        // EAGAIN: the queue is full, so there is one.
        Ok(()) | Err(Errno::AGAIN) => {
            let pid = crate::socket::peer(probe.as_fd())
                .ok()
                .map(|peer| peer.pid)
                .filter(|&pid| pid != 0);
            Err(BrokerError::InUse {
                path: path.to_owned(),
                pid,
            })
        }
        // EPROTOTYPE: a socket of another type is bound there.
        Err(Errno::PROTOTYPE) => Err(BrokerError::InUse {
            path: path.to_owned(),
            pid: None,
        }),
        Err(Errno::CONNREFUSED) => {
            tracing::info!(path = %path.display(), "replacing a socket that nobody listens on");
            rustix::fs::unlink(path).map_err(failed("unlink"))
        }
        Err(source) => Err(failed("connect")(source)),
    }
}

/// The socket that systemd opened for us, if it did. To be called once, at the
/// start of main, before anything else opens a descriptor.
///
/// # Errors
/// When something was passed that is not a listening SOCK_SEQPACKET socket.
pub fn activated() -> Result<Option<OwnedFd>, BrokerError> {
    activated_by(|name| std::env::var(name).ok())
}

fn activated_by(variable: impl Fn(&str) -> Option<String>) -> Result<Option<OwnedFd>, BrokerError> {
    let (Some(pid), Some(count)) = (variable("LISTEN_PID"), variable("LISTEN_FDS")) else {
        return Ok(None);
    };
    if pid.parse() != Ok(std::process::id()) {
        return Ok(None); // meant for a parent of ours
    }
    match count.parse::<u32>() {
        Ok(0) => return Ok(None),
        Ok(1) => {}
        _ => {
            return Err(BrokerError::Activation(format!(
                "LISTEN_FDS is {count:?}, the broker takes one socket"
            )));
        }
    }
    // SAFETY: systemd's protocol gives descriptor 3 to the process named in
    // LISTEN_PID; nothing in this process owns it yet (called first in main).
    // fcntl fails below if it is not open, and then it must not be closed.
    let fd = unsafe { OwnedFd::from_raw_fd(ACTIVATION_FD) };
    if let Err(source) = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC) {
        std::mem::forget(fd);
        return Err(BrokerError::Activation(format!(
            "descriptor {ACTIVATION_FD} is not open: {source}"
        )));
    }
    use rustix::net::sockopt;
    if sockopt::socket_domain(&fd) != Ok(AddressFamily::UNIX)
        || sockopt::socket_type(&fd) != Ok(SocketType::SEQPACKET)
        || sockopt::socket_acceptconn(&fd) != Ok(true)
    {
        return Err(BrokerError::Activation(
            "the socket passed is not a listening AF_UNIX SOCK_SEQPACKET socket; use \
             ListenSequentialPacket="
                .to_owned(),
        ));
    }
    if sockopt::socket_passcred(&fd) != Ok(true) {
        tracing::warn!(
            "the socket passed has no PassCredentials=yes: clients that asked before the broker was up are refused"
        );
    }
    Ok(Some(fd))
}

/// A listening socket in a new directory of its own that others can pass
/// through but not list.
pub(crate) fn private() -> Result<(tempfile::TempDir, Listener), BrokerError> {
    let mut parent = std::env::temp_dir();
    // "/debox-0123456789abcdef/broker.lock" must fit into the 107 bytes of an
    // address, and a TMPDIR that other users cannot enter is of no use.
    if parent.as_os_str().len() > 64 || !others_may_pass(&parent) {
        parent = PathBuf::from("/tmp");
    }
    sweep(&parent);
    let directory = tempfile::Builder::new()
        .prefix(PRIVATE_PREFIX)
        .rand_bytes(16)
        .permissions(fs::Permissions::from_mode(0o711))
        .tempdir_in(&parent)
        .and_then(|directory| {
            // Again, since mkdir's mode went through the umask.
            fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711))?;
            Ok(directory)
        })
        .map_err(|source| BrokerError::Directory { parent, source })?;
    let listener = Listener::bind(&directory.path().join(PRIVATE_SOCKET), Access::Everybody)?;
    Ok((directory, listener))
}

/// Removes what private brokers left behind that were killed: directories of
/// ours whose lock nobody holds. A young one may be about to be locked.
fn sweep(parent: &Path) {
    let own_uid = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let ours = entry
            .file_name()
            .to_string_lossy()
            .starts_with(PRIVATE_PREFIX)
            && entry.metadata().is_ok_and(|meta| {
                // Not through a symbolic link: DirEntry::metadata is an lstat.
                meta.is_dir()
                    && meta.uid() == own_uid
                    && meta
                        .modified()
                        .is_ok_and(|time| time.elapsed().is_ok_and(|age| age > SWEEP_AGE))
            });
        let socket = path.join(PRIVATE_SOCKET);
        // Without the lock file it is no broker's directory.
        if ours
            && fs::symlink_metadata(lock_path(&socket)).is_ok_and(|meta| meta.is_file())
            && let Ok(_lock) = lock(&socket)
        {
            tracing::info!(path = %path.display(), "removing what a killed private broker left");
            let _ = fs::remove_file(&socket);
            let _ = fs::remove_file(lock_path(&socket));
            let _ = fs::remove_dir(&path);
        }
    }
}

/// Whether a process of another user can reach what is in `directory`.
fn others_may_pass(directory: &Path) -> bool {
    directory
        .ancestors()
        .all(|dir| fs::metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.mode() & 0o001 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activation_is_for_the_process_that_is_named() {
        let other = |_: &str| Some("1".to_owned());
        assert!(activated_by(other).unwrap().is_none());
        assert!(activated_by(|_| None).unwrap().is_none());
        let many = |name: &str| {
            Some(if name == "LISTEN_PID" {
                std::process::id().to_string()
            } else {
                "2".to_owned()
            })
        };
        assert!(matches!(
            activated_by(many),
            Err(BrokerError::Activation(_))
        ));
    }

    #[test]
    fn second_broker_is_refused_and_a_stale_socket_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let first = Listener::bind(&path, Access::Everybody).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o666);
        match Listener::bind(&path, Access::Everybody).unwrap_err() {
            BrokerError::InUse { pid, .. } => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other}"),
        }
        // A crash leaves the file behind without a listener.
        std::mem::drop({
            let mut first = first;
            first.file = (0, 0); // so that drop does not remove it
            first
        });
        assert!(path.exists());
        let again = Listener::bind(&path, Access::Everybody).unwrap();
        drop(again);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_for_a_group_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        // A group that whoever runs this is in.
        let group = rustix::process::getegid().as_raw();
        let _listener = Listener::bind(&path, Access::Group(group)).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.gid()), (0o660, group));
    }

    #[test]
    fn a_directory_is_made_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("run/sock");
        assert_eq!(directory_owner(&socket), None);
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        directory_make(&socket, uid.as_raw(), gid.as_raw()).unwrap();
        assert_eq!(directory_owner(&socket), Some(uid.as_raw()));
        let meta = fs::metadata(dir.path().join("run")).unwrap();
        assert_eq!(meta.mode() & 0o7777, 0o755);
        // One that is there already stays whose it is.
        directory_make(&socket, uid.as_raw() + 1, gid.as_raw()).unwrap();
        assert_eq!(directory_owner(&socket), Some(uid.as_raw()));
    }

    #[test]
    fn a_live_socket_without_a_lock_is_respected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let fd = socket(&path).unwrap();
        rustix::net::bind(&fd, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&fd, 1).unwrap();
        match Listener::bind(&path, Access::Everybody).unwrap_err() {
            BrokerError::InUse { pid, .. } => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other}"),
        }
        assert!(path.exists());
    }

    #[test]
    fn a_file_in_the_way_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(
            Listener::bind(&path, Access::Everybody),
            Err(BrokerError::NotASocket { .. })
        ));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_path_that_is_too_long_is_refused_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x".repeat(120));
        let text = Listener::bind(&path, Access::Everybody)
            .unwrap_err()
            .to_string();
        assert!(text.contains("107 bytes"), "{text}");
    }

    #[test]
    fn what_a_killed_private_broker_left_is_swept() {
        let parent = tempfile::tempdir().unwrap();
        let old = std::time::SystemTime::now() - 2 * SWEEP_AGE;
        let make = |name: &str, age: Option<std::time::SystemTime>| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            let listener = Listener::bind(&path.join(PRIVATE_SOCKET), Access::Everybody).unwrap();
            if let Some(age) = age {
                fs::File::open(&path).unwrap().set_modified(age).unwrap();
            }
            (path, listener)
        };
        let leave = |(path, mut listener): (PathBuf, Listener)| {
            listener.file = (0, 0); // as if killed
            drop(listener);
            path
        };
        let dead = leave(make("debox-dead", Some(old)));
        let young = leave(make("debox-young", None));
        let other = leave(make("other-dead", Some(old)));
        let (living, _listener) = make("debox-living", Some(old));
        let strange = parent.path().join("debox-strange");
        fs::create_dir(&strange).unwrap();
        fs::File::open(&strange).unwrap().set_modified(old).unwrap();
        sweep(parent.path());
        assert!(!dead.exists());
        for path in [young, other, living, strange] {
            assert!(path.exists(), "{}", path.display());
        }
    }

    #[test]
    fn the_private_directory_lets_others_through() {
        let (directory, listener) = private().unwrap();
        let mode = fs::metadata(directory.path()).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o711);
        let socket = listener.path().to_owned();
        assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o7777, 0o666);
        drop(listener);
        drop(directory);
        assert!(!socket.parent().unwrap().exists());
    }
}
