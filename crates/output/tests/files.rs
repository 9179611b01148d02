// SPDX-License-Identifier: MIT OR Apache-2.0
//! Are the files that DeBox writes for their owner only, and where they were
//! asked for?

#[path = "../../../tests/needs.rs"]
mod needs;

use debox_output::{create, create_directory, write};
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

const NOBODY: u32 = 65534;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn new_files_are_for_their_owner_whatever_the_umask() {
    let dir = tempfile::tempdir().unwrap();
    for (i, mask) in [0o000, 0o022, 0o077, 0o777].into_iter().enumerate() {
        let path = dir.path().join(format!("file-{i}"));
        let below = dir.path().join(format!("a-{i}/b"));
        // In a child: the mask is the whole process's, with its other tests.
        // SAFETY: the child makes files and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no memory involved.
            unsafe { libc::umask(mask) };
            let done =
                write(&path, b"x").is_ok() && (mask == 0o777 || create_directory(&below).is_ok());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!done)) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0, "umask {mask:o}");
        assert_eq!(mode(&path), 0o600, "umask {mask:o}");
        if mask != 0o777 {
            assert_eq!(mode(&below), 0o700);
            assert_eq!(mode(below.parent().unwrap()), 0o700);
        }
    }
}

#[test]
fn an_existing_file_is_replaced_and_not_written_into() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report");
    fs::write(&path, "before").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    fs::hard_link(&path, dir.path().join("other")).unwrap();
    let mut held = File::open(&path).unwrap();
    write(&path, b"secret").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"secret");
    assert_eq!(mode(&path), 0o600);
    let mut text = String::new();
    held.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before");
    assert_eq!(fs::read(dir.path().join("other")).unwrap(), b"before");
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        2,
        "nothing is left over"
    );
}

#[test]
fn own_links_are_followed_and_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (link, target) = (dir.path().join("link"), dir.path().join("target"));
    symlink("target", &link).unwrap();
    // To nothing yet, then to a file.
    for text in ["one", "two"] {
        write(&link, text.as_bytes()).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), text);
        assert_eq!(mode(&target), 0o600);
    }
    let circle = dir.path().join("circle");
    symlink("circle", &circle).unwrap();
    assert_eq!(
        create(&circle).unwrap_err().raw_os_error(),
        Some(libc::ELOOP)
    );
    assert_eq!(
        create(dir.path()).unwrap_err().raw_os_error(),
        Some(libc::EISDIR)
    );
}

#[test]
fn links_and_pipes_of_other_users_are_refused() {
    if !needs::root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let link = dir.path().join("link");
    symlink(&victim, &link).unwrap();
    lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
    let error = create(&link).unwrap_err().to_string();
    assert!(
        error.contains("symbolic link of another user (uid 65534)"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");

    let pipe = dir.path().join("pipe");
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: a NUL-terminated path.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
    lchown(&pipe, Some(NOBODY), Some(NOBODY)).unwrap();
    let error = create(&pipe).unwrap_err().to_string();
    assert!(error.contains("pipe of another user"), "{error}");

    // His file gives way to ours.
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    lchown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
    write(&file, b"secret").unwrap();
    let found = fs::metadata(&file).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o600));
}

#[test]
fn what_is_no_file_is_written_as_it_is() {
    create(Path::new("/dev/null"))
        .unwrap()
        .write_all(b"x")
        .unwrap();
    assert!(
        fs::metadata("/dev/null")
            .unwrap()
            .file_type()
            .is_char_device()
    );

    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: a NUL-terminated path.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap()
    });
    write(&pipe, b"through").unwrap();
    assert_eq!(reader.join().unwrap(), b"through");

    // By a descriptor's name, as a shell's >(cmd) and /dev/stdout are.
    let (mut from, to) = std::io::pipe().unwrap();
    use std::os::fd::AsRawFd;
    write(
        Path::new(&format!("/proc/self/fd/{}", to.as_raw_fd())),
        b"open",
    )
    .unwrap();
    write(Path::new(&format!("/dev/fd/{}", to.as_raw_fd())), b"ed").unwrap();
    drop(to);
    let mut text = String::new();
    from.read_to_string(&mut text).unwrap();
    assert_eq!(text, "opened");
}

#[test]
fn in_a_directory_that_takes_no_files_ones_own_is_emptied() {
    // As an ordinary user: nothing keeps root from making files.
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let path = inner.join("mine");
    fs::write(&path, "before").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    if needs::is_root() {
        lchown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(&inner, Permissions::from_mode(0o555)).unwrap();
    // SAFETY: the child changes its user, writes a file and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no memory involved.
        unsafe {
            if libc::geteuid() == 0 {
                libc::setgroups(0, std::ptr::null());
                libc::setresgid(NOBODY, NOBODY, NOBODY);
                libc::setresuid(NOBODY, NOBODY, NOBODY);
            }
            let done = write(&path, b"after").is_ok();
            libc::_exit(i32::from(!done));
        }
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(fs::read(&path).unwrap(), b"after");
    assert_eq!(mode(&path), 0o600);
}
