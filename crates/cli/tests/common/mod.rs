// SPDX-License-Identifier: MIT OR Apache-2.0
//! A broker for tests that needs no privileges: it speaks the protocol and
//! hands out an account with known numbers, but watches nobody.
#![allow(dead_code)]

#[path = "../../../../tests/fresh_start.rs"]
mod fresh_start;
#[path = "../../../../tests/needs.rs"]
pub mod needs;

use debox_abi::*;
use debox_client::packet;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, OnceLock};

pub struct FakeBroker {
    directory: tempfile::TempDir,
    socket: PathBuf,
    pub seen: Arc<Mutex<Vec<(u32, i32, u32)>>>,
}

#[derive(Clone, Default)]
pub struct Behaviour {
    /// Refuses requests of this kind.
    pub refuse: Option<u32>,
    /// Claims this protocol version.
    pub version: Option<u32>,
    /// Cuts the descriptors off an account.
    pub no_fds: bool,
    /// Looks dead in shared memory.
    pub dead: bool,
    /// Which of an account's memory files is not sealed, and becomes empty
    /// once the client has them.
    pub shrinks: Option<usize>,
    /// Which of them is a page shorter than it must be.
    pub short: Option<usize>,
}

fn memfd(bytes: usize) -> File {
    // SAFETY: a fresh descriptor, owned at once.
    let file = unsafe {
        File::from_raw_fd(libc::memfd_create(
            c"fake".as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
        ))
    };
    file.set_len(bytes.next_multiple_of(DEBOX_PAGE_SIZE) as u64)
        .unwrap();
    file
}

const CPUS: usize = 2;

fn account_files(dead: bool) -> [File; 3] {
    let mut account = debox_account::zeroed_box();
    account.rows_used = 2;
    account.cpus = CPUS as u32;
    account.processes_started = 1;
    account.threads_started = 4;
    account.threads_ended = 4;
    account.row_of[0] = 1;
    account.row_of[59] = 2;
    account.sites[0].key = debox_site_row::key_of(0, 3);
    account.sites[0].hist[debox_abi::sleep_bucket(1_500_000)] = 2;
    account.sites[0].total_ns = 3_000_000;
    account.sites[0].max_ns = 2_000_000;
    let mut cpu = debox_account_cpu::zeroed_box();
    let row = &mut cpu.rows[1];
    row.count = 10;
    row.errors = 1;
    row.wall_ns = 4_000_000;
    row.max_ns = 2_500_000;
    row.blocked_ns = 1_500_000;
    row.runq_ns = 500_000;
    row.hist[hist_bucket(2_000)] = 9;
    row.hist[hist_bucket(2_500_000)] = 1;
    let row = &mut cpu.rows[2];
    row.count = 1;
    row.wall_ns = 300_000;
    row.max_ns = 300_000;
    row.hist[hist_bucket(300_000)] = 1;
    let cpus = memfd(CPUS * DEBOX_ACCOUNT_CPU_STRIDE);
    for index in 0..CPUS {
        cpus.write_all_at(cpu.as_bytes(), (index * DEBOX_ACCOUNT_CPU_STRIDE) as u64)
            .unwrap();
        // Only the first CPU ran the second call.
        cpu.rows[2] = debox_row::default();
    }
    let account_file = memfd(size_of::<debox_account>());
    account_file.write_all_at(account.as_bytes(), 0).unwrap();
    let shared = memfd(DEBOX_SHARED_SIZE);
    let mut header = debox_shared {
        magic: DEBOX_SHARED_MAGIC,
        abi_version: DEBOX_ABI_VERSION,
        alive_offset: core::mem::offset_of!(debox_shared, mutex) as u32,
        site_count: 4,
        site_entry_size: size_of::<debox_site>() as u32,
        features: FEATURES,
        ..Default::default()
    };
    header.mutex[..4].copy_from_slice(&if dead { 0x4000_0000u32 } else { 1 }.to_ne_bytes());
    shared.write_all_at(header.as_bytes(), 0).unwrap();
    let mut site = debox_site::new("pipe-read", "pipe_read", "fs/pipe.c", 321, 0x44);
    site.merged = 3;
    shared
        .write_all_at(
            site.as_bytes(),
            (DEBOX_PAGE_SIZE + 3 * size_of::<debox_site>()) as u64,
        )
        .unwrap();
    [account_file, cpus, shared]
}

const FEATURES: u64 = DEBOX_FEATURE_SLEEPS
    | DEBOX_FEATURE_FAULTS
    | DEBOX_FEATURE_MAJOR_FAULTS
    | DEBOX_FEATURE_RUNQ
    | DEBOX_FEATURE_SITES;

fn answer(socket: &OwnedFd, behaviour: &Behaviour, seen: &Mutex<Vec<(u32, i32, u32)>>) -> bool {
    let mut request = debox_request::default();
    match packet::receive(socket.as_raw_fd(), request.as_bytes_mut()) {
        Ok(got) if got.length == size_of::<debox_request>() => {}
        _ => return false,
    }
    seen.lock()
        .unwrap()
        .push((request.kind, request.pid, request.flags));
    let mut files = Vec::new();
    let mut reply = debox_reply::new(request.kind);
    reply.features = FEATURES;
    match request.kind {
        DEBOX_MSG_ACCOUNT => {
            reply.cpus = CPUS as u32;
            reply.cpu_stride = DEBOX_ACCOUNT_CPU_STRIDE as u64;
            if !behaviour.no_fds {
                files.extend(account_files(behaviour.dead));
                for (index, file) in files.iter().enumerate() {
                    if behaviour.short == Some(index) {
                        let size = file.metadata().unwrap().len();
                        file.set_len(size - DEBOX_PAGE_SIZE as u64).unwrap();
                    }
                    if behaviour.shrinks != Some(index) {
                        // SAFETY: no memory involved.
                        let sealed = unsafe {
                            libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK)
                        };
                        assert_eq!(sealed, 0);
                    }
                }
            }
        }
        DEBOX_MSG_STATUS => {
            reply.slots_used = 1234;
            reply.accounts_used = 2;
            reply.site_hits = 1_000_000;
            reply.site_walks = 77;
        }
        _ => reply.threads = 3,
    }
    reply.fds = files.len() as u32;
    if behaviour.refuse == Some(request.kind) {
        files.clear();
        reply = debox_reply::refusal(
            request.kind,
            libc::EPERM,
            "this is forbidden here: ask the owner",
        );
    }
    if let Some(version) = behaviour.version {
        reply.version = version;
    }
    let sent: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    let sent = packet::send(socket.as_raw_fd(), reply.as_bytes(), &sent).is_ok();
    if let (DEBOX_MSG_ACCOUNT, Some(file)) = (request.kind, behaviour.shrinks) {
        files[file].set_len(0).unwrap();
    }
    sent
}

impl FakeBroker {
    pub fn start(behaviour: Behaviour) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("sock");
        Self::at(directory, socket, behaviour)
    }

    /// Under a name without a file.
    pub fn start_named(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::at(directory, name.into(), Behaviour::default())
    }

    fn at(directory: tempfile::TempDir, socket: PathBuf, behaviour: Behaviour) -> Self {
        let listener = packet::bind(&socket, true).unwrap();
        packet::listen(&listener, 64).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        std::thread::spawn(move || {
            while let Ok(socket) = packet::accept(&listener, true) {
                let (behaviour, log) = (behaviour.clone(), Arc::clone(&log));
                std::thread::spawn(move || while answer(&socket, &behaviour, &log) {});
            }
        });
        Self {
            directory,
            socket,
            seen,
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// debox, using this broker.
    pub fn debox(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(DEBOX);
        command
            .args(arguments)
            .env("DEBOX_SOCKET", self.socket())
            .env("LC_ALL", "C.UTF-8");
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.debox(arguments).output().unwrap()
    }
}

pub const DEBOX: &str = env!("CARGO_BIN_EXE_debox");

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// As `needs::bpf`, and `debox doctor` must be content.
pub fn kernel_or_skip() -> bool {
    static DOCTOR: OnceLock<Output> = OnceLock::new();
    if !needs::bpf() {
        return false;
    }
    let out = DOCTOR.get_or_init(|| {
        Command::new(DEBOX)
            .arg("doctor")
            .env_remove("DEBOX_SOCKET")
            .output()
            .unwrap()
    });
    assert!(
        out.status.success(),
        "this test needs root and BPF (DEBOX_TEST_NO_BPF=1 leaves it out):\n{}",
        text(&out.stdout)
    );
    true
}

/// `debox` with the broker that the tests of a program share.
pub fn debox_of_shared(arguments: &[&str]) -> Command {
    let mut command = Command::new(DEBOX);
    command
        .args(arguments)
        .env("DEBOX_SOCKET", debox_tests::shared_broker().socket())
        .env("LC_ALL", "C.UTF-8");
    command
}

/// Replaces what differs from run to run: every duration, by `# ms` and the like.
/// The first line's is how long the command really took: its unit differs, too.
pub fn masked(text: &str) -> String {
    let mut out = String::new();
    for (number, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split(' ').collect();
        let mut masked: Vec<String> = Vec::new();
        for (i, word) in words.iter().enumerate() {
            let unit = words
                .get(i + 1)
                .map(|w| w.trim_end_matches([';', ',', ':', ')']));
            let figure = word.trim_start_matches('(').replace([',', '.'], "");
            let is_number = !figure.is_empty() && figure.bytes().all(|b| b.is_ascii_digit());
            if is_number && matches!(unit, Some("ns" | "µs" | "ms" | "s")) {
                masked.push("#".into());
            } else {
                masked.push((*word).to_owned());
            }
        }
        if number == 0
            && let Some(unit) = masked.iter().position(|w| w == "#").map(|at| at + 1)
        {
            masked[unit] = masked[unit].replace("µs", "ms");
        }
        out.push_str(masked.join(" ").trim_end());
        out.push('\n');
    }
    out
}

/// Compares with tests/golden/NAME; DEBOX_GOLDEN_WRITE=1 writes it anew.
pub fn golden(name: &str, text: &str) {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("DEBOX_GOLDEN_WRITE").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    assert!(
        text == want,
        "{name} differs; it is now:\n{text}\n--- and was:\n{want}"
    );
}
