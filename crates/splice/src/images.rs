// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where are images kept, and is one of a file there?
//!
//! A folder that belongs to whoever watches and that nobody else can write; an image has the name of
//! the very file that it is a copy of: device, inode, size, time of the last change, and of the
//! version of all this, since the runtime opens it by itself. (Not of its build id: that is what a file
//! says of itself, and two files may say the same.)
//! Written under another name and then renamed, so that what is there is whole. What nobody has made use of for
//! a month goes: of a file that was replaced, or of another version of all this.

use crate::callers;
use crate::image::{Kind, Part, Side};
use crate::maps::Mapping;
use crate::state::{IMAGE_MAGIC, IMAGE_PATH, PAGE, VERSION};
use crate::{Error, Image, JUMP_BYTES, Site, Table};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// What is known of a file.
pub struct Known {
    pub device: u64,
    pub inode: u64,
    pub image: PathBuf,
    /// Of its first instruction.
    entry: u64,
    /// Program headers: of the first one that is loaded, and of themselves.
    pub headers: Option<u64>,
    pub interpreter: Option<PathBuf>,
    /// Addresses in its pages of code that are nobody's.
    pub spare: Range<u64>,
    pub table: Table,
    /// What of the file the image replaces.
    parts: Vec<Part>,
    /// Address and bytes.
    pool: (u64, u64),
    samples: bool,
}

impl Known {
    /// How far the file was moved that begins at `ip`.
    pub fn bias_by_entry(&self, ip: u64) -> u64 {
        ip.wrapping_sub(self.entry)
    }

    /// Where its trampolines come to lie.
    pub fn pool(&self, bias: u64) -> Range<u64> {
        let start = bias.wrapping_add(self.pool.0);
        start..start.saturating_add(self.pool.1)
    }

    /// [`Self::spare`] in a process.
    pub fn spare_at(&self, bias: u64) -> Range<u64> {
        bias.wrapping_add(self.spare.start)..bias.wrapping_add(self.spare.end)
    }

    /// Whether it has to be mapped, or told that it has calls that are left.
    pub fn makes_calls(&self) -> bool {
        !self.parts.is_empty() || self.table.places_left() > 0
    }

    /// How far the file was moved of which this is mapped; None: nothing of it is replaced.
    pub fn bias(&self, address: u64, offset: u64, bytes: u64) -> Option<u64> {
        let inside = |part: &&Part| part.offset.checked_sub(offset).is_some_and(|at| at < bytes);
        let part = self.parts.iter().find(inside)?;
        Some(
            address
                .wrapping_add(part.offset - offset)
                .wrapping_sub(part.address),
        )
    }

    /// The same where a part of it is mapped: the kernel makes two mappings of what is not alike any more.
    pub fn bias_of_piece(&self, mapping: &Mapping) -> Option<u64> {
        let end = mapping.offset.saturating_add(mapping.bytes());
        let meets = |part: &&Part| part.offset < end && mapping.offset < part.offset + part.bytes;
        let part = self.parts.iter().find(meets)?;
        let before = part.offset.wrapping_sub(mapping.offset);
        Some((mapping.start.wrapping_add(before)).wrapping_sub(part.address))
    }

    /// Whether what the image replaces is mapped there, but not as a whole.
    pub fn is_in_pieces(&self, offset: u64, bytes: u64) -> bool {
        let pieces = |part: &Part| {
            let (end, part_end) = (offset + bytes, part.offset + part.bytes);
            let meets = part.offset < end && offset < part_end;
            meets && (part.offset < offset || part_end > end.next_multiple_of(PAGE))
        };
        self.parts.iter().any(pieces)
    }

    /// Where a thread goes on that stands in the window of a site, by address in the file; as
    /// [`crate::image::place`].
    ///
    /// # Errors
    /// When the image cannot be read.
    pub fn place(&self, site: &Site, ip: u64, call: Option<(u32, u64)>) -> io::Result<Option<u64>> {
        let Ok(window) = &site.window else {
            return Ok(None);
        };
        let at = self.parts.iter().find_map(|part| {
            let at = window.start.checked_sub(part.address)?;
            (at < part.bytes).then_some(part.offset + at)
        });
        let Some(at) = at else {
            return Ok(None);
        };
        let mut jump = [0; JUMP_BYTES];
        File::open(&self.image)?.read_exact_at(&mut jump, at)?;
        Ok(crate::image::place(site, jump, ip, call, self.samples))
    }
}

/// What is told of a file that a program has mapped.
pub struct About {
    pub path: PathBuf,
    /// Call instructions, and those without room for a jump from which calls may come.
    pub sites: usize,
    pub left: usize,
}

/// By device and inode; None: nothing is known of it.
type AboutAll = HashMap<(u64, u64), Option<Arc<About>>>;

/// Programs say themselves what they have mapped: more are not looked for.
const ABOUT_MOST: usize = 4096;

pub struct Images {
    /// Locked, shared, by each run: who has it alone removes what is of no use.
    _users: File,
    folder: PathBuf,
    known: Mutex<HashMap<String, Arc<Known>>>,
    about: Mutex<AboutAll>,
    /// What the walk to call sites needs lies beside them.
    with_callers: AtomicBool,
    /// Those that are made ask which calls are stamped.
    samples: AtomicBool,
    copied: AtomicU64,
    copied_bytes: AtomicU64,
    /// Whoever reads a large file does it alone.
    large: Mutex<()>,
}

/// Whether nobody else writes there.
fn is_ours(folder: &fs::Metadata) -> bool {
    // SAFETY: no arguments, cannot fail.
    let user = unsafe { libc::geteuid() };
    folder.is_dir() && folder.uid() == user && folder.mode() & 0o022 == 0
}

/// What was found out of a file for an image in that folder.
pub(crate) fn table_kept(folder: &Path, file: &File) -> Option<Table> {
    if !is_ours(&fs::symlink_metadata(folder).ok()?) {
        return None;
    }
    let name = name_of_file(&file.metadata().ok()?);
    Table::parse(&fs::read(folder.join(format!("{name}{SITES}"))).ok()?).ok()
}

/// The name of its image: as the runtime makes it.
fn name(file: &fs::Metadata, kind: Kind) -> String {
    format!("{}{}", name_of_file(file), suffix(kind))
}

fn suffix(kind: Kind) -> &'static str {
    match (kind.samples, kind.side) {
        (false, Side::Below) => "",
        (false, Side::Above) => "a",
        (true, Side::Below) => "s",
        (true, Side::Above) => "sa",
    }
}

const KINDS: [Kind; 4] = [
    kind(Side::Below, false),
    kind(Side::Above, false),
    kind(Side::Below, true),
    kind(Side::Above, true),
];

const fn kind(side: Side, samples: bool) -> Kind {
    Kind { side, samples }
}

/// Behind a name: what is known of the file itself.
const SITES: &str = ".sites";
/// ... and what the walk from its calls needs.
const CALLERS: &str = ".callers";
/// Of what is read whole, and from where on by one at a time.
const FILE_MOST: u64 = 4 << 30;
const FILE_LARGE: u64 = 256 << 20;

/// What is put beside a program, where it lies in this crate: as it is published (`setup/crates.py`). In the
/// source tree it is a file that lies beside `debox`.
#[cfg(runtime_within)]
pub const RUNTIME: Option<&[u8]> = Some(include_bytes!("../compiled/debox-splice.bin"));
#[cfg(not(runtime_within))]
pub const RUNTIME: Option<&[u8]> = None;

/// Behind a name: the runtime itself.
const RUNTIME_SUFFIX: &str = ".runtime";

/// [`RUNTIME`] as a file in the folder of images, from which programs map it. By its bytes, so that two versions do
/// not write each other's.
///
/// # Errors
/// As [`Images::new`], and when it cannot be written.
pub fn runtime_laid(folder: &Path, code: &[u8]) -> Result<PathBuf, Error> {
    // FNV-1a.
    let sum = code.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let name = format!("{VERSION:02x}{:046x}{sum:016x}", code.len());
    let images = Images::new(folder)?;
    let path = images.folder.join(format!("{name}{RUNTIME_SUFFIX}"));
    if fs::read(&path).is_ok_and(|there| there == code) {
        return Ok(path);
    }
    let failed = |error: io::Error| Error::Run(format!("{}: {error}", path.display()));
    let process = std::process::id();
    let before = images.folder.join(format!("{name}.{process}"));
    fs::write(&before, code).map_err(failed)?;
    fs::set_permissions(&before, fs::Permissions::from_mode(0o644)).map_err(failed)?;
    fs::rename(&before, &path).map_err(failed)?;
    Ok(path)
}

/// The file that an image is of, and which one of it, by its name.
fn told_by(image: &Path) -> Option<(u64, u64, Kind)> {
    let name = image.file_name()?.to_str()?;
    let hex = |at: usize| u64::from_str_radix(name.get(at..at + 16)?, 16).ok();
    let version = u32::from_str_radix(name.get(..2)?, 16).ok()?;
    let behind = name.get(NAME_BYTES..)?;
    let behind = behind.strip_suffix(" (deleted)").unwrap_or(behind);
    let kind = KINDS.into_iter().find(|kind| suffix(*kind) == behind)?;
    (version == VERSION).then_some((hex(2)?, hex(18)?, kind))
}

/// Without what is behind it.
const NAME_BYTES: usize = 2 + 16 + 16 + 14 + 16;

fn name_of_file(file: &fs::Metadata) -> String {
    // Who writes a file may set the time of its data as it was, and archives do.
    let changed = (file.ctime() as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(file.ctime_nsec() as u64);
    format!(
        "{VERSION:02x}{:016x}{:016x}{:014x}{changed:016x}",
        file.dev(),
        file.ino(),
        file.size()
    )
}

/// The runtime opens images by itself, which the time of the last access tells, to a day (relatime).
const UNUSED: Duration = Duration::from_secs(30 * 24 * 3600);

/// Whether the folder's file is named as one of ours.
fn is_named(name: &OsStr) -> bool {
    let hex = |byte: &u8| byte.is_ascii_hexdigit();
    (name.as_bytes().get(..NAME_BYTES)).is_some_and(|name| name.iter().all(hex))
}

/// Whether it is an image's name, and what lies there none that programs could map: after a loss of power it may be empty.
/// Programs open it by its name, and would not ask for another one.
fn damaged(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    let behind = name.as_bytes().get(NAME_BYTES..).unwrap_or_default();
    if !is_named(&name) || !KINDS.iter().any(|kind| suffix(*kind).as_bytes() == behind) {
        return false;
    }
    let whole = || {
        // Not of what a link leads to.
        let about = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        // SAFETY: no arguments, cannot fail.
        let ours = about.uid() == unsafe { libc::geteuid() } && about.mode() & 0o022 == 0;
        let mut magic = [0; 8];
        let last = about
            .len()
            .checked_sub(PAGE)
            .filter(|last| last % PAGE == 0)?;
        File::open(entry.path())
            .ok()?
            .read_exact_at(&mut magic, last)
            .ok()?;
        Some(ours && magic == IMAGE_MAGIC.to_le_bytes())
    };
    whole() != Some(true)
}

/// Whether it is one of ours that nobody has made use of lately.
fn unused(entry: &fs::DirEntry, now: SystemTime) -> bool {
    let ours = is_named(&entry.file_name());
    let Ok(about) = entry.metadata() else {
        return false;
    };
    let used = [about.accessed(), about.modified()];
    let last = used.into_iter().flatten().max();
    ours && about.is_file()
        && last.is_some_and(|last| now.duration_since(last).is_ok_and(|ago| ago > UNUSED))
}

/// Says in which boot of the machine the folder was looked through last, and by its time when.
const LOOKED: &str = "looked-through";
const LOOKED_FOR: Duration = Duration::from_secs(24 * 3600);

fn boot() -> Vec<u8> {
    fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Whether no power was lost since it was looked through, nor a day gone: a look opens each of hundreds of files.
fn looked_through(folder: &Path, now: SystemTime) -> bool {
    let path = folder.join(LOOKED);
    let recent = || {
        let then = fs::symlink_metadata(&path).ok()?.modified().ok()?;
        let ago = now.duration_since(then).ok()?;
        Some(ago < LOOKED_FOR)
    };
    let boot = boot();
    recent() == Some(true) && !boot.is_empty() && fs::read(&path).is_ok_and(|text| text == boot)
}

fn lock(file: &File, how: i32) -> io::Result<()> {
    // SAFETY: of a descriptor that is open.
    match unsafe { libc::flock(file.as_raw_fd(), how) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether code may be mapped out of files that lie there: not where the file system is mounted `noexec`, nor where a
/// security module (SELinux' execute permission) is against it. `Err`: a file cannot be made.
fn maps_code(folder: &Path) -> io::Result<Result<(), io::Error>> {
    let mut new = OpenOptions::new();
    new.read(true).write(true).mode(0o600);
    // Not every file system has files without a name.
    let unnamed = (new.clone().custom_flags(libc::O_TMPFILE)).open(folder);
    let file = unnamed.or_else(|_| {
        // As nobody else calls his.
        let about = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let moment = about.unwrap_or_default().as_nanos();
        let path = folder.join(format!("probe.{}.{moment}", std::process::id()));
        let file = new.create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        Ok::<_, io::Error>(file)
    })?;
    file.set_len(PAGE)?;
    let (length, code) = (PAGE as usize, libc::PROT_READ | libc::PROT_EXEC);
    let (kind, fd) = (libc::MAP_PRIVATE, file.as_raw_fd());
    // SAFETY: a new mapping of an open file, at no address of anybody's.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), length, code, kind, fd, 0) };
    if at == libc::MAP_FAILED {
        return Ok(Err(io::Error::last_os_error()));
    }
    // SAFETY: the mapping just made, which nobody else knows.
    unsafe { libc::munmap(at, length) };
    Ok(Ok(()))
}

/// Where the file lay that an image was made of, as it was made.
pub fn image_source(image: &Path) -> Option<PathBuf> {
    let image = File::open(image).ok()?;
    let last = image.metadata().ok()?.len().checked_sub(PAGE)?;
    let mut page = [0u8; PAGE as usize];
    image.read_exact_at(&mut page, last).ok()?;
    let path = (page.starts_with(&IMAGE_MAGIC.to_le_bytes()))
        .then(|| page[IMAGE_PATH..].split(|byte| *byte == 0).next())??;
    (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(path)))
}

/// Makes the folder, if it is not there, and looks whether images can be kept there.
///
/// # Errors
/// When it cannot be made, or is somebody else's, or others can write it, or code may not be mapped from there.
pub fn folder_check(folder: &Path) -> Result<(), Error> {
    let because = |why: String| Error::Images {
        folder: folder.to_owned(),
        why,
    };
    let failed = |error: io::Error| because(error.to_string());
    // A copy of what lies in a closed folder is no more open than that.
    (DirBuilder::new().recursive(true).mode(0o700))
        .create(folder)
        .map_err(failed)?;
    let is = fs::symlink_metadata(folder).map_err(failed)?;
    if !is_ours(&is) {
        // SAFETY: no arguments, cannot fail.
        let user = unsafe { libc::geteuid() };
        return Err(because(format!(
            "it must be a folder of user {user} that nobody else can write; it is of user {}, mode {:o}",
            is.uid(),
            is.mode() & 0o7777
        )));
    }
    maps_code(folder).map_err(failed)?.map_err(|error| {
        because(format!(
            "code may not be mapped from there, as on a file system that is mounted noexec ({error})"
        ))
    })
}

impl Images {
    /// The folder is made, if it is not there, and once a day and boot what is of no use any more removed.
    ///
    /// # Errors
    /// As of [`folder_check`].
    pub fn new(folder: &Path) -> Result<Self, Error> {
        let failed = |error: io::Error| Error::Images {
            folder: folder.to_owned(),
            why: error.to_string(),
        };
        folder_check(folder)?;
        let users = File::open(folder).map_err(failed)?;
        let now = SystemTime::now();
        if !looked_through(folder, now) && lock(&users, libc::LOCK_EX | libc::LOCK_NB).is_ok() {
            let all = fs::read_dir(folder).map_err(failed)?.flatten();
            for entry in all.filter(|entry| unused(entry, now) || damaged(entry)) {
                let _ = fs::remove_file(entry.path());
            }
            // Else the next one looks again.
            let _ = fs::write(folder.join(LOOKED), boot());
        }
        lock(&users, libc::LOCK_SH).map_err(failed)?;
        Ok(Self {
            _users: users,
            folder: folder.to_owned(),
            known: Mutex::default(),
            about: Mutex::default(),
            with_callers: AtomicBool::new(false),
            samples: AtomicBool::new(false),
            copied: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            large: Mutex::default(),
        })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// From now on, before any is made use of, what the walk to call sites needs is made as well.
    pub fn with_callers(&self) {
        self.with_callers.store(true, Ordering::Relaxed);
    }

    /// From now on, before any is made use of, they ask which calls are stamped.
    pub fn with_samples(&self) {
        self.samples.store(true, Ordering::Relaxed);
    }

    /// The one that programs are given.
    pub fn kind(&self, side: Side) -> Kind {
        kind(side, self.samples.load(Ordering::Relaxed))
    }

    /// Whether it is there, whole, and ours.
    fn callers_are_there(&self, path: &Path) -> bool {
        let open = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path);
        let read = |mut file: File| {
            let about = file.metadata().ok()?;
            // SAFETY: no arguments, cannot fail.
            let ours = about.uid() == unsafe { libc::geteuid() } && about.mode() & 0o022 == 0;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).ok()?;
            Some(about.is_file() && ours && callers::are_whole(&bytes))
        };
        open.ok().and_then(read).unwrap_or(false)
    }

    /// What is known of a file already.
    fn known(&self, device: u64, inode: u64) -> Option<Arc<Known>> {
        let all = self.known.lock().unwrap_or_else(|e| e.into_inner());
        let found = all
            .values()
            .find(|known| known.device == device && known.inode == inode);
        found.cloned()
    }

    /// Of which file, by device and inode, an image is that is mapped there; None: it is none of these images.
    pub fn told_by(&self, mapping: &Mapping) -> Option<(u64, u64, Kind)> {
        let told = told_by(&mapping.path).filter(|_| mapping.is_code())?;
        // Another mount namespace may have the folder elsewhere.
        let here = mapping.path.parent() == Some(&self.folder);
        let same = || {
            let path = self.folder.join(mapping.path.file_name()?);
            Some(fs::metadata(path).ok()?.ino() == mapping.inode)
        };
        (here || same() == Some(true)).then_some(told)
    }

    /// The same of one whose image was there before this run, by the path that the image tells; `root`: where
    /// the program that has it mapped finds its files.
    pub fn kept(&self, device: u64, inode: u64, root: &Path, kind: Kind) -> Option<Arc<Known>> {
        if let Some(known) = self.known(device, inode) {
            return Some(known);
        }
        (self.kept_file(device, inode, root, kind)).map(|(_, known)| known)
    }

    /// ... and the file itself.
    pub fn kept_file(
        &self,
        device: u64,
        inode: u64,
        root: &Path,
        kind: Kind,
    ) -> Option<(File, Arc<Known>)> {
        let (_, path) = self.image_of(device, inode)?;
        let inside = path.strip_prefix("/").ok()?;
        let file = File::open(root.join(inside)).ok()?;
        let about = file.metadata().ok()?;
        let same = about.dev() == device && about.ino() == inode;
        let again = file.try_clone().ok().filter(|_| same)?;
        self.of_kind(file, kind).ok().map(|known| (again, known))
    }

    /// The image of a file, and where that lay as it was made.
    fn image_of(&self, device: u64, inode: u64) -> Option<(PathBuf, PathBuf)> {
        let begin = format!("{VERSION:02x}{device:016x}{inode:016x}");
        let mut images = fs::read_dir(&self.folder).ok()?.flatten();
        images.find_map(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if !name.starts_with(&begin) || name.contains('.') {
                return None;
            }
            Some((entry.path(), image_source(&entry.path())?))
        })
    }

    pub fn about(&self, device: u64, inode: u64) -> Option<Arc<About>> {
        let mut all = self.about.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(about) = all.get(&(device, inode)) {
            return about.clone();
        }
        if all.len() >= ABOUT_MOST {
            return None;
        }
        let about = self.image_of(device, inode).and_then(|(image, path)| {
            let name = image.file_name()?.to_str()?.get(..NAME_BYTES)?;
            let sites = image.with_file_name(format!("{name}{SITES}"));
            let table = Table::parse(&fs::read(sites).ok()?).ok()?;
            Some(Arc::new(About {
                path,
                sites: table.sites.len(),
                left: table.places_left(),
            }))
        });
        all.insert((device, inode), about.clone());
        about
    }

    /// # Errors
    /// When the file cannot be read, is no ELF file of this machine's kind, or its image cannot be
    /// written.
    pub fn of(&self, file: File, side: Side) -> Result<Arc<Known>, Error> {
        self.of_kind(file, self.kind(side))
    }

    /// ... of the file that lies there, which is not opened if it is known.
    ///
    /// # Errors
    /// As [`Self::of`], and when it cannot be opened.
    pub fn of_path(
        &self,
        path: &Path,
        about: &fs::Metadata,
        side: Side,
    ) -> Result<Arc<Known>, Error> {
        let open = |error: io::Error| Error::Run(format!("{}: {error}", path.display()));
        match self.known_as(&name(about, self.kind(side))) {
            Some(known) => Ok(known),
            None => self.of(File::open(path).map_err(open)?, side),
        }
    }

    fn known_as(&self, name: &str) -> Option<Arc<Known>> {
        let known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        known.get(name).cloned()
    }

    fn of_kind(&self, mut file: File, kind: Kind) -> Result<Arc<Known>, Error> {
        let read = |error: io::Error| Error::Images {
            folder: self.folder.clone(),
            why: error.to_string(),
        };
        let about = file.metadata().map_err(read)?;
        let name = name(&about, kind);
        if let Some(known) = self.known_as(&name) {
            return Ok(known);
        }
        if !about.is_file() {
            return Err(Error::NotElf("it is no regular file".into()));
        }
        // Whatever a program has open, be it without an end.
        let mut magic = [0; 4];
        let is = file.read_at(&mut magic, 0).map_err(read)?;
        if is < 4 || magic != *b"\x7fELF" {
            return Err(Error::NotElf("it is no ELF file".into()));
        }
        if about.len() > FILE_MOST {
            return Err(Error::NotElf("it is too large".into()));
        }
        let large = about.len() > FILE_LARGE;
        let _one = large.then(|| self.large.lock().unwrap_or_else(|e| e.into_inner()));
        // Who waited finds it made.
        if let Some(known) = large.then(|| self.known_as(&name)).flatten() {
            return Ok(known);
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(read)?;
        // For people only: it may have been moved.
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let known = self.make(&about, &bytes, &path.unwrap_or_default(), kind)?;
        let known = Arc::new(known);
        // Changed while it was read: what was made of it is of neither.
        if self::name(&file.metadata().map_err(read)?, kind) != name {
            let _ = fs::remove_file(&known.image);
            return Err(Error::Damaged("it changed while it was read"));
        }
        let mut all = self.known.lock().unwrap_or_else(|e| e.into_inner());
        all.insert(name, Arc::clone(&known));
        Ok(known)
    }

    /// Where it lies by what it is known how to come from a call of a file to who wants it.
    pub fn callers_of(&self, about: &fs::Metadata) -> PathBuf {
        self.folder
            .join(format!("{}{CALLERS}", name_of_file(about)))
    }

    /// How much has been written.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    /// How many have been made.
    pub fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    fn make(
        &self,
        about: &fs::Metadata,
        bytes: &[u8],
        path: &Path,
        kind: Kind,
    ) -> Result<Known, Error> {
        let write = |error: io::Error| Error::Images {
            folder: self.folder.clone(),
            why: error.to_string(),
        };
        let kept = self.folder.join(format!("{}{SITES}", name_of_file(about)));
        // Ours: nobody else writes here. What another version wrote, or is of other code, is made anew.
        let kept_table = fs::read(&kept)
            .ok()
            .and_then(|bytes| Table::parse(&bytes).ok())
            .and_then(|table| Some((Image::of(bytes, &table, path, kind).ok()?, table)));
        let beside = self.callers_of(about);
        let (written, table) = match kept_table {
            Some(both) => both,
            None => {
                let _ = fs::remove_file(&beside);
                let table = Table::of(bytes)?;
                let written = Image::of(bytes, &table, path, kind)?;
                self.put(&kept, &table.to_bytes(), 0o600).map_err(write)?;
                (written, table)
            }
        };
        let image = self.folder.join(name(about, kind));
        let there = fs::read(&image).is_ok_and(|there| there == written.bytes);
        if !there {
            // The folder says who may come here at all.
            self.put(&image, &written.bytes, 0o444).map_err(write)?;
            self.copied.fetch_add(1, Ordering::Relaxed);
            let bytes = written.bytes.len() as u64;
            self.copied_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        if self.with_callers.load(Ordering::Relaxed) && !self.callers_are_there(&beside) {
            let all = callers::callers(bytes, &table, path)?;
            self.put(&beside, &all, 0o444).map_err(write)?;
        }
        let facts = crate::elf_file::facts(bytes)?;
        Ok(Known {
            device: about.dev(),
            inode: about.ino(),
            image,
            entry: facts.entry,
            headers: facts.headers,
            interpreter: facts.interpreter,
            spare: facts.spare,
            table,
            parts: written.parts,
            pool: written.pool,
            samples: kind.samples,
        })
    }

    fn put(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(format!(
            ".{}.{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let unfinished = PathBuf::from(unfinished);
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&unfinished)
            .and_then(|mut file| {
                file.write_all(bytes)?;
                file.set_permissions(fs::Permissions::from_mode(mode))
            })
            .and_then(|()| fs::rename(&unfinished, path));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_made_is_closed_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("made");
        Images::new(&made).unwrap();
        assert_eq!(fs::metadata(&made).unwrap().mode() & 0o7777, 0o700);
    }

    #[test]
    fn what_cannot_be_mapped_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = |c: &str, behind: &str| folder.path().join(c.repeat(NAME_BYTES) + behind);
        let whole = [vec![0; PAGE as usize], IMAGE_MAGIC.to_le_bytes().to_vec()].concat();
        let whole = [whole, vec![0; PAGE as usize - 8]].concat();
        let (kept, table) = (path("a", "sa"), path("b", SITES));
        fs::write(&kept, &whole).unwrap();
        fs::write(&table, "").unwrap();
        let (empty, cut, link) = (path("c", ""), path("d", "s"), path("e", "a"));
        fs::write(&empty, "").unwrap();
        fs::write(&cut, &whole[..PAGE as usize]).unwrap();
        std::os::unix::fs::symlink(&kept, &link).unwrap();
        let wrong = [empty, cut, link];
        let there = || {
            wrong
                .iter()
                .filter(|path| fs::symlink_metadata(path).is_ok())
        };
        // Looked through in this boot: no power was lost since.
        fs::write(folder.path().join(LOOKED), boot()).unwrap();
        Images::new(folder.path()).unwrap();
        assert_eq!(there().count(), 3);
        fs::write(folder.path().join(LOOKED), "another boot").unwrap();
        Images::new(folder.path()).unwrap();
        assert_eq!(there().count(), 0);
        assert!(kept.is_file() && table.is_file());
        assert_eq!(fs::read(folder.path().join(LOOKED)).unwrap(), boot());
    }

    #[test]
    fn a_day_later_it_is_looked_through_again() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        assert!(!looked_through(folder.path(), now));
        Images::new(folder.path()).unwrap();
        assert!(looked_through(folder.path(), now + Duration::from_secs(60)));
        assert!(!looked_through(
            folder.path(),
            now + Duration::from_secs(25 * 3600)
        ));
    }

    /// As where an older finder wrote it, under the same version.
    #[test]
    fn a_table_of_other_code_is_made_anew() {
        const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
        const OTHER: &str = "/lib/x86_64-linux-gnu/libc.so.6";
        let folder = tempfile::tempdir().unwrap();
        let images = Images::new(folder.path()).unwrap();
        let about = fs::metadata(LOADER).unwrap();
        let kept = format!("{}{SITES}", name_of_file(&about));
        let kept = folder.path().join(kept);
        let table = |path| Table::of(&fs::read(path).unwrap()).unwrap().to_bytes();
        fs::write(&kept, table(OTHER)).unwrap();
        let known = images.of(File::open(LOADER).unwrap(), Side::Below).unwrap();
        let own = table(LOADER);
        assert!(known.table.to_bytes() == own && fs::read(kept).unwrap() == own);
    }

    #[test]
    fn what_nobody_makes_use_of_goes() {
        let folder = tempfile::tempdir().unwrap();
        let new = |name: &str, days: u64| {
            let path = folder.path().join(name);
            let file = File::create(&path).unwrap();
            let then = SystemTime::now() - Duration::from_secs(days * 24 * 3600);
            let times = fs::FileTimes::new().set_accessed(then).set_modified(then);
            file.set_times(times).unwrap();
            path
        };
        let of = |c: &str| c.repeat(NAME_BYTES);
        let old = [new(&of("a"), 31), new(&format!("{}{SITES}", of("b")), 40)];
        let kept = [
            new(&format!("{}{SITES}", of("c")), 29),
            new("somebody's", 400),
        ];
        Images::new(folder.path()).unwrap();
        assert!(old.iter().all(|path| !path.exists()));
        assert!(kept.iter().all(|path| path.exists()));
    }
}
