// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do addresses become the right functions, files and lines?
//!
//! A small "kernel" is built with gcc: an ELF at a kernel's address, with
//! debug information, and a kallsyms of it that was moved, as a boot with
//! KASLR does. The running kernel's own symbols are tested too, as far as the
//! tests may see them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use debox_symbol::{
    KernelSymbols, Resolver, SymbolError, SymbolOptions, SymbolSources, UNKNOWN_FUNCTION,
};

/// How far the boot moved the kernel.
const MOVED: u64 = 0x1260_0000;

const CORE_C: &str = "\
void __attribute__((noinline)) __schedule(void) { __asm__ volatile(\"\" ::: \"memory\"); }
void __attribute__((noinline)) schedule(void)
{
	__schedule();
	__asm__ volatile(\"\" ::: \"memory\");
}
";

const PIPE_C: &str = "\
void schedule(void);
void vfs_read(void);
__attribute__((noreturn)) void do_exit(void);

static inline __attribute__((always_inline)) void wait_here(void)
{
	schedule();
	__asm__ volatile(\"\" ::: \"memory\");
}

void __attribute__((noinline)) pipe_read(void)
{
	__asm__ volatile(\"\" ::: \"memory\");
	schedule();                             /* line 14 */
	__asm__ volatile(\"\" ::: \"memory\");
	wait_here();                            /* line 16 */
	__asm__ volatile(\"\" ::: \"memory\");
}

void __attribute__((noinline)) vfs_read(void)
{
	pipe_read();                            /* line 22 */
	__asm__ volatile(\"\" ::: \"memory\");
}

__attribute__((noreturn, noinline)) void do_exit(void)
{
	schedule();
	for (;;)
		;
}

/* Its last instruction is a call: the return address is the next function's. */
void __attribute__((noinline)) last_call(void)
{
	do_exit();                              /* line 36 */
}

void __attribute__((noinline)) after_last_call(void)
{
	schedule();
}
";

struct Kernel {
    dir: tempfile::TempDir,
    vmlinux: PathBuf,
    /// Name and address in memory.
    symbols: Vec<(String, u64)>,
    /// The build id as an ELF note.
    note: Vec<u8>,
}

fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

impl Kernel {
    fn build() -> Kernel {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("build/linux");
        for (path, text) in [("kernel/sched/core.c", CORE_C), ("fs/pipe.c", PIPE_C)] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let vmlinux = dir.path().join("vmlinux");
        run(Command::new("gcc").current_dir(&root).args([
            "-g",
            "-O1",
            "-static",
            "-nostdlib",
            "-no-pie",
            "-fno-pie",
            "-mcmodel=kernel",
            "-fno-asynchronous-unwind-tables",
            "-fno-optimize-sibling-calls",
            "-fno-reorder-functions",
            "-falign-functions=1",
            "-fcf-protection=none",
            "-Wl,--build-id=sha1",
            "-Wl,-Ttext=0xffffffff81000000",
            "-Wl,-e,schedule",
            "-o",
            vmlinux.to_str().unwrap(),
            "./kernel/sched/core.c",
            "./fs/pipe.c",
        ]));
        let symbols = run(Command::new("nm").arg(&vmlinux))
            .lines()
            .filter_map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                let address = u64::from_str_radix(words[0], 16).ok()?;
                matches!(words[1], "t" | "T").then(|| (words[2].to_owned(), address + MOVED))
            })
            .collect();
        let note = dir.path().join("note");
        run(Command::new("objcopy").args([
            "-O",
            "binary",
            "--only-section=.note.gnu.build-id",
            vmlinux.to_str().unwrap(),
            note.to_str().unwrap(),
        ]));
        let note = fs::read(note).unwrap();
        let kernel = Kernel {
            dir,
            vmlinux,
            symbols,
            note,
        };
        kernel.write_sources(0, &kernel.note);
        kernel
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write_sources(&self, more: u64, note: &[u8]) {
        let mut text = String::new();
        for (name, address) in &self.symbols {
            // `more` moves one function only: another kernel.
            let address = address + if name == "vfs_read" { more } else { 0 };
            text += &format!("{address:016x} T {name}\n");
        }
        text += "ffffffffc0201000 t bpf_prog_6deef7357e7b4530_debox\t[bpf]\n";
        fs::write(self.path("kallsyms"), text).unwrap();
        fs::write(self.path("notes"), note).unwrap();
        fs::write(self.path("kptr_restrict"), "1\n").unwrap();
        fs::write(self.path("status"), "CapEff:\t000001ffffffffff\n").unwrap();
    }

    fn sources(&self) -> SymbolSources {
        SymbolSources {
            kallsyms: self.path("kallsyms"),
            notes: self.path("notes"),
            kptr_restrict: self.path("kptr_restrict"),
            status: self.path("status"),
            vmlinux_search: Vec::new(),
        }
    }

    fn open(&self, vmlinux: Option<&Path>) -> Result<KernelSymbols, SymbolError> {
        let options = SymbolOptions {
            vmlinux: vmlinux.map(Path::to_owned),
            ..SymbolOptions::default()
        };
        KernelSymbols::open_from(self.sources(), options)
    }

    fn address(&self, name: &str) -> u64 {
        self.symbols
            .iter()
            .find(|symbol| symbol.0 == name)
            .expect(name)
            .1
    }

    /// The return addresses of the calls in a function, from its machine code.
    fn returns(&self, function: &str) -> Vec<u64> {
        let text = run(Command::new("objdump")
            .args([
                "-d",
                "--no-show-raw-insn",
                &format!("--disassemble={function}"),
            ])
            .arg(&self.vmlinux));
        let mut found = Vec::new();
        for line in text.lines() {
            let Some((address, code)) = line.trim().split_once(":\t") else {
                continue;
            };
            let address = u64::from_str_radix(address, 16).unwrap();
            if code.starts_with("call") {
                // A near call with a 32-bit displacement.
                found.push(address + 5 + MOVED);
            }
        }
        found
    }
}

#[test]
fn lines_of_a_moved_kernel() {
    let kernel = Kernel::build();
    let symbols = kernel.open(Some(&kernel.vmlinux)).unwrap();
    assert_eq!(symbols.vmlinux(), Some(kernel.vmlinux.as_path()));
    assert!(symbols.notes().is_empty());

    let [first, second] = kernel.returns("pipe_read")[..] else {
        panic!("two calls")
    };
    assert_eq!(symbols.frame(first).unwrap().function, "pipe_read");
    assert_eq!(
        u64::from(symbols.frame(first).unwrap().offset),
        first - kernel.address("pipe_read")
    );
    assert_eq!(symbols.location(first), Some(("fs/pipe.c".into(), 14)));
    // Not line 7, where the inlined function itself calls: the site's own line.
    assert_eq!(symbols.location(second), Some(("fs/pipe.c".into(), 16)));
    assert_eq!(
        symbols.location(kernel.returns("schedule")[0]),
        Some(("kernel/sched/core.c".into(), 4))
    );
    // Not of the kernel image.
    assert_eq!(symbols.location(0xffffffffc0201010), None);
    assert_eq!(symbols.location(0), None);
    assert_eq!(symbols.location(u64::MAX), None);
}

#[test]
fn a_call_at_a_functions_end_is_that_functions() {
    let kernel = Kernel::build();
    let symbols = kernel.open(Some(&kernel.vmlinux)).unwrap();
    let returns = kernel.returns("last_call")[0];
    assert_eq!(
        returns,
        kernel.address("after_last_call"),
        "the test's own premise"
    );
    let frame = symbols.frame(returns).unwrap();
    assert_eq!(frame.function, "last_call");
    assert_eq!(
        u64::from(frame.offset),
        returns - kernel.address("last_call")
    );
    assert_eq!(symbols.location(returns), Some(("fs/pipe.c".into(), 36)));
}

#[test]
fn a_stack_becomes_a_site() {
    let kernel = Kernel::build();
    let symbols = kernel.open(Some(&kernel.vmlinux)).unwrap();
    let mut resolver = Resolver::new(symbols, debox_labels::Rules::builtin());
    let pipe_return = kernel.returns("pipe_read")[0];
    let stack = [
        0xffffffffc0201010,
        0xffffffffd0000000,
        kernel.address("__schedule") + 1,
        kernel.returns("schedule")[0],
        pipe_return,
        kernel.returns("vfs_read")[0],
        0,
        0,
    ];
    let site = resolver.resolve(&stack);
    assert_eq!(site.label, "pipe-read");
    assert!(site.labelled);
    assert_eq!(site.function, "pipe_read");
    assert_eq!(
        u64::from(site.offset),
        pipe_return - kernel.address("pipe_read")
    );
    assert_eq!((site.file.as_str(), site.line), ("fs/pipe.c", 14));
    assert_eq!(
        site.frames,
        ["__schedule", "schedule", "pipe_read", "vfs_read"]
    );
    // From the cache, with or without the padding.
    assert_eq!(resolver.resolve(&stack), site);
    assert_eq!(resolver.resolve(&stack[..6]), site);

    // No rule for it: the function is the label.
    let site = resolver.resolve(&[kernel.returns("schedule")[0], kernel.returns("vfs_read")[0]]);
    assert_eq!((site.label.as_str(), site.labelled), ("vfs_read", false));
    // Nothing known, nothing leaked.
    let site = resolver.resolve(&[0xffffffffd0000000]);
    assert_eq!(
        (site.label.as_str(), site.function.as_str()),
        ("unknown", UNKNOWN_FUNCTION)
    );
    assert!(!site.labelled && site.offset == 0);
    let site = resolver.resolve(&[0, 0]);
    assert_eq!((site.label.as_str(), site.frames.len()), ("no-stack", 0));
}

#[test]
fn new_bpf_programs_are_known_after_a_reload() {
    let kernel = Kernel::build();
    let mut resolver = Resolver::new(kernel.open(None).unwrap(), debox_labels::Rules::builtin());
    let address = 0xffffffffc0301010;
    assert_eq!(resolver.resolve(&[address]).function, UNKNOWN_FUNCTION);
    let mut text = fs::read_to_string(kernel.path("kallsyms")).unwrap();
    text += "ffffffffc0301000 t bpf_prog_d35b94b4c0c10efb_new\t[bpf]\n";
    fs::write(kernel.path("kallsyms"), text).unwrap();
    resolver.reload().unwrap();
    let site = resolver.resolve(&[address]);
    assert_eq!(site.function, "bpf_prog_d35b94b4c0c10efb_new");
    assert_eq!(site.offset, 0x10);
    // A reload that fails leaves what was known.
    fs::remove_file(kernel.path("kallsyms")).unwrap();
    assert!(resolver.reload().is_err());
    assert_eq!(resolver.resolve(&[address]), site);
}

#[test]
fn a_vmlinux_that_was_asked_for_must_fit() {
    let kernel = Kernel::build();
    let error = |path: &Path| kernel.open(Some(path)).unwrap_err().to_string();

    let missing = error(&kernel.path("missing"));
    assert!(
        missing.contains("missing") && missing.contains("No such file"),
        "{missing}"
    );
    fs::write(kernel.path("text"), "not an ELF file").unwrap();
    let text = error(&kernel.path("text"));
    assert!(text.contains("/text cannot be used"), "{text}");

    let stripped = kernel.path("stripped");
    run(Command::new("objcopy")
        .arg("-g")
        .arg(&kernel.vmlinux)
        .arg(&stripped));
    let text = error(&stripped);
    assert!(
        text.contains("no line numbers") && text.contains("debug package"),
        "{text}"
    );

    let mut note = kernel.note.clone();
    *note.last_mut().unwrap() ^= 1;
    kernel.write_sources(0, &note);
    let text = error(&kernel.vmlinux);
    assert!(
        text.contains("another kernel") && text.contains("build id"),
        "{text}"
    );

    // Without a build id to compare, the distances between functions tell.
    kernel.write_sources(0x40, b"");
    let text = error(&kernel.vmlinux);
    assert!(
        text.contains("another kernel") && text.contains("distances"),
        "{text}"
    );
    kernel.write_sources(0, b"");
    assert!(kernel.open(Some(&kernel.vmlinux)).is_ok());
}

#[test]
fn a_vmlinux_that_was_found_is_used_or_passed_over() {
    let kernel = Kernel::build();
    let mut sources = kernel.sources();
    let stripped = kernel.path("stripped");
    run(Command::new("objcopy")
        .arg("-g")
        .arg(&kernel.vmlinux)
        .arg(&stripped));
    sources.vmlinux_search = vec![kernel.path("missing"), stripped.clone()];
    let symbols = KernelSymbols::open_from(sources.clone(), SymbolOptions::default()).unwrap();
    assert_eq!(symbols.vmlinux(), None);
    let notes = symbols.notes().join("\n");
    assert!(notes.contains("stripped has no line numbers"), "{notes}");
    assert!(
        notes.contains("function+offset") && notes.contains("missing"),
        "{notes}"
    );
    let site = Resolver::new(symbols, debox_labels::Rules::builtin())
        .resolve(&kernel.returns("pipe_read"));
    assert_eq!(
        (site.function.as_str(), site.file.as_str(), site.line),
        ("pipe_read", "", 0)
    );

    sources.vmlinux_search.push(kernel.vmlinux.clone());
    let symbols = KernelSymbols::open_from(sources, SymbolOptions::default()).unwrap();
    assert_eq!(symbols.vmlinux(), Some(kernel.vmlinux.as_path()));
}

#[test]
fn hidden_addresses_are_explained() {
    let kernel = Kernel::build();
    let none = "CapEff:\t0000000000000000\n";
    let all = "CapEff:\t000001ffffffffff\n";
    for (restrict, status, words) in [
        (
            "2\n",
            all,
            &[
                "kptr_restrict is 2",
                "has CAP_SYSLOG",
                "sysctl -w kernel.kptr_restrict=1",
            ][..],
        ),
        (
            "2\n",
            none,
            &["kptr_restrict is 2", "does not have", "sysctl -w", "root"],
        ),
        (
            "1\n",
            none,
            &[
                "kptr_restrict is 1",
                "does not have CAP_SYSLOG",
                "Run as root",
            ],
        ),
        ("0\n", all, &["kptr_restrict is 0", "lockdown"]),
    ] {
        fs::write(kernel.path("kallsyms"), "0000000000000000 T schedule\n").unwrap();
        fs::write(kernel.path("kptr_restrict"), restrict).unwrap();
        fs::write(kernel.path("status"), status).unwrap();
        let error = kernel.open(None).unwrap_err();
        assert!(matches!(error, SymbolError::Hidden { .. }));
        for word in words {
            assert!(error.to_string().contains(word), "{error} lacks {word:?}");
        }
    }
    fs::write(kernel.path("kallsyms"), "").unwrap();
    let error = kernel.open(None).unwrap_err().to_string();
    assert!(error.contains("CONFIG_KALLSYMS"), "{error}");
    fs::remove_file(kernel.path("kallsyms")).unwrap();
    let error = kernel.open(None).unwrap_err().to_string();
    assert!(
        error.contains("No such file") && error.contains("CONFIG_KALLSYMS"),
        "{error}"
    );
}

/// The kernel that the tests run on. Whoever may not see its addresses gets
/// the error that says so.
#[test]
fn the_running_kernel() {
    let symbols = match KernelSymbols::open(SymbolOptions::default()) {
        Ok(symbols) => symbols,
        Err(error @ SymbolError::Hidden { .. }) => {
            let text = error.to_string();
            assert!(
                text.contains("kptr_restrict") && text.contains("Run"),
                "{text}"
            );
            return;
        }
        Err(error) => panic!("{error}"),
    };
    assert!(symbols.len() > 20_000, "{} functions", symbols.len());
    let text = fs::read_to_string("/proc/kallsyms").unwrap();
    let address = |wanted: &str| {
        let line = text
            .lines()
            .find(|line| line.split(' ').nth(2) == Some(wanted))
            .expect(wanted);
        u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    };
    let stack: Vec<u64> = ["__schedule", "schedule", "do_wait", "kernel_wait4"]
        .iter()
        .map(|name| address(name) + 9)
        .collect();
    let mut resolver = Resolver::new(symbols, debox_labels::Rules::builtin());
    let site = resolver.resolve(&stack);
    assert_eq!(
        (site.label.as_str(), site.function.as_str()),
        ("wait-child", "do_wait")
    );
    assert_eq!(site.offset, 9);
    assert_eq!(
        site.frames,
        ["__schedule", "schedule", "do_wait", "kernel_wait4"]
    );
    resolver.reload().unwrap();
    assert_eq!(resolver.resolve(&stack), site);
}

/// A debuginfod server on the loopback device: answers each request by what
/// `answer` makes of its path (status, length that it claims, body), and counts
/// them.
struct Server {
    url: String,
    asked: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
}

impl Server {
    fn start(answer: impl Fn(&str) -> (u16, usize, Vec<u8>) + Send + 'static) -> Server {
        use std::io::{BufRead as _, BufReader, Write as _};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = asked.clone();
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let request = lines.next().unwrap().unwrap();
                while !lines.next().unwrap().unwrap().is_empty() {}
                let path = request.split(' ').nth(1).unwrap().to_owned();
                let (status, len, body) = answer(&path);
                seen.lock().unwrap().push(path);
                let head = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
                );
                // A client that has had enough closes its end.
                let _ = stream.write_all(head.as_bytes());
                let _ = stream.write_all(&body);
            }
        });
        Server { url, asked }
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

fn debuginfod(cache: &Path, servers: &[&Server]) -> debox_symbol::Debuginfod {
    debox_symbol::Debuginfod {
        urls: servers.iter().map(|server| server.url.clone()).collect(),
        cache: cache.to_owned(),
        timeout: std::time::Duration::from_secs(30),
        max_time: None,
        max_bytes: 1 << 30,
    }
}

#[test]
fn lines_from_a_debuginfod_server() {
    let kernel = Kernel::build();
    let cache = kernel.dir.path().join("cache");
    let bytes = fs::read(&kernel.vmlinux).unwrap();
    let without = Server::start(|_| (404, 0, Vec::new()));
    let with = Server::start(move |_| (200, bytes.len(), bytes.clone()));
    let open = |server: &debox_symbol::Debuginfod| {
        let options = SymbolOptions {
            debuginfod: Some(server.clone()),
            ..SymbolOptions::default()
        };
        KernelSymbols::open_from(kernel.sources(), options).unwrap()
    };
    let both = debuginfod(&cache, &[&without, &with]);
    let symbols = open(&both);
    assert!(symbols.notes().is_empty(), "{:?}", symbols.notes());
    let place = kernel.returns("pipe_read")[0];
    assert_eq!(symbols.location(place), Some(("fs/pipe.c".into(), 14)));
    let id: String = kernel.note[16..]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let path = format!("/buildid/{id}/debuginfo");
    assert_eq!(without.asked(), std::slice::from_ref(&path));
    assert_eq!(with.asked(), [path]);
    // Where elfutils' client would look, and nothing else there.
    assert_eq!(symbols.vmlinux(), Some(&*cache.join(&id).join("debuginfo")));
    assert_eq!(fs::read_dir(cache.join(&id)).unwrap().count(), 1);
    // From then on nobody is asked.
    let symbols = open(&both);
    assert_eq!(symbols.location(place), Some(("fs/pipe.c".into(), 14)));
    assert!(without.asked().is_empty() && with.asked().is_empty());
}

#[test]
fn what_debuginfod_servers_can_do_wrong() {
    let kernel = Kernel::build();
    let dir = tempfile::tempdir().unwrap();
    let bytes = fs::read(&kernel.vmlinux).unwrap();
    let note = |server: &debox_symbol::Debuginfod| {
        let options = SymbolOptions {
            debuginfod: Some(server.clone()),
            ..SymbolOptions::default()
        };
        let symbols = KernelSymbols::open_from(kernel.sources(), options).unwrap();
        assert_eq!(symbols.location(kernel.returns("pipe_read")[0]), None);
        symbols.notes()[0].clone()
    };
    // Nobody has it: said, and remembered.
    let absent = Server::start(|_| (404, 0, Vec::new()));
    let server = debuginfod(&dir.path().join("a"), &[&absent]);
    let text = note(&server);
    assert!(
        text.contains("it has none") && text.contains(&absent.url),
        "{text}"
    );
    assert_eq!(absent.asked().len(), 1);
    let text = note(&server);
    assert!(text.contains("less than ten minutes ago"), "{text}");
    assert!(absent.asked().is_empty());
    // Broken off, failing, too long, empty, away: said, and asked again.
    let cut = bytes.clone();
    let whole = bytes.len();
    let broken = Server::start(move |_| (200, whole, cut[..whole / 2].to_vec()));
    let failing = Server::start(|_| (503, 0, Vec::new()));
    let empty = Server::start(|_| (200, 0, Vec::new()));
    let long = Server::start(|_| (200, 2 << 30, vec![0; 1 << 16]));
    for (name, server, words) in [
        ("broken", &broken, "after "),
        ("failing", &failing, "HTTP status 503"),
        ("empty", &empty, "an empty file"),
        ("long", &long, "DEBUGINFOD_MAXSIZE"),
    ] {
        let client = debuginfod(&dir.path().join(name), &[server]);
        let text = note(&client);
        assert!(text.contains(words), "{name}: {text}");
        note(&client);
        assert_eq!(server.asked().len(), 2, "{name}");
    }
    let away = debox_symbol::Debuginfod {
        urls: vec!["http://127.0.0.1:1".into()],
        ..debuginfod(&dir.path().join("away"), &[])
    };
    assert!(
        note(&away).contains("http://127.0.0.1:1: "),
        "{}",
        note(&away)
    );
    // Another kernel's: not used.
    let other = Server::start(|_| (200, 4, b"\x7fELF".to_vec()));
    let text = note(&debuginfod(&dir.path().join("other"), &[&other]));
    assert!(text.contains("debuginfo cannot be used"), "{text}");
    // A cache that cannot be written.
    let text = note(&debuginfod(Path::new("/proc/none"), &[&absent]));
    assert!(text.contains("DEBUGINFOD_CACHE_PATH"), "{text}");
}
