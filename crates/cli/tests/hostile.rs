// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does `debox` survive what a watched program's files can do to it, with its
//! report and the program's exit status?
//!
//! These need root and BPF, and fail without; DEBOX_TEST_NO_BPF=1 leaves them
//! out and says so.

mod common;

use common::{debox_of_shared, kernel_or_skip};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Far more than any of these takes on a busy machine; a hang is for ever.
const PATIENCE: Duration = Duration::from_secs(120);

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Calls `outermost` of each library named, truncates those named after `-`,
/// and ends with status 7.
const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int cut = 0;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "-")) {
			cut = 1;
			continue;
		}
		void *library = cut ? 0 : dlopen(argv[i], RTLD_NOW);
		if (!cut && !library)
			return fprintf(stderr, "%s\n", dlerror()), 1;
		int (*function)(int) = cut ? 0 : (int (*)(int))dlsym(library, "outermost");
		for (int n = 0; function && n < 200; n++)
			function(0);
		if (cut && truncate(argv[i], 8192))
			return 2;
	}
	/* Not exit(): the destructors of a library that is cut off are gone. */
	_exit(7);
}
"#;

const LIBRARY: &str = r#"
#include <unistd.h>
volatile int sink;
__attribute__((noinline)) int outermost(int fd)
{
	char byte;
	sink = (int)read(fd, &byte, 1);
	return sink;
}
"#;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        place.compile("program", PROGRAM, &["-ldl"]);
        place.compile("good.so", LIBRARY, &["-shared", "-fPIC"]);
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn compile(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let (from, to) = (self.at(&format!("{name}.c")), self.at(name));
        std::fs::write(&from, source).unwrap();
        let mut command = Command::new("gcc");
        command.args(["-O1", "-g", "-o"]).arg(&to).arg(&from);
        run(command.args(flags));
        to
    }

    fn of_corpus(&self, name: &str) -> PathBuf {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/elf");
        std::fs::copy(corpus.join(name), self.at(name)).unwrap();
        self.at(name)
    }

    /// `debox run OPTIONS program LIBRARIES`, which must end.
    fn debox(&self, options: &[&str], libraries: &[&str]) -> Output {
        let child = debox_of_shared(&["run"])
            .args(options)
            .arg("--")
            .arg(self.at("program"))
            .args(libraries)
            .current_dir(self.0.path())
            .stdin(std::fs::File::open("/dev/zero").unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id() as libc::pid_t;
        let start = Instant::now();
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(child.wait_with_output()));
        match ended.recv_timeout(PATIENCE) {
            Ok(output) => output.unwrap(),
            Err(_) => {
                // SAFETY: no memory; a child that nobody has waited for.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                panic!("debox hangs for {:?}", start.elapsed());
            }
        }
    }
}

/// The status is the program's, the report is there, and the good library's
/// function has its name and line in it: at least in one of a few runs, as unwind tables are read
/// beside the program, which may have ended before on a busy machine.
fn survives(run: impl Fn() -> Output) -> String {
    let mut text = String::new();
    for _ in 0..3 {
        let output = run();
        text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
        .replace("\n      ", " ");
        assert_eq!(output.status.code(), Some(7), "{text}");
        if text.contains("outermost (good.so.c:7)") {
            return text;
        }
    }
    panic!("in none of three runs it has its name: {text}");
}

#[test]
fn a_debug_link_to_a_fifo() {
    if !kernel_or_skip() {
        return;
    }
    let place = Place::new();
    place.compile("plain.so", LIBRARY, &["-shared", "-fPIC", "-g0"]);
    std::fs::write(place.at("debug"), "x").unwrap();
    let mut add = std::ffi::OsString::from("--add-gnu-debuglink=");
    add.push(place.at("debug"));
    run(Command::new("objcopy")
        .arg(add)
        .arg(place.at("plain.so"))
        .arg(place.at("evil.so")));
    std::fs::remove_file(place.at("debug")).unwrap();
    let name = CString::new(place.at("debug").as_os_str().as_bytes()).unwrap();
    // SAFETY: a string that ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o644) }, 0);
    let text = survives(|| place.debox(&["--call-site"], &["./evil.so", "./good.so"]));
    assert!(text.contains("(evil.so)"), "{text}");
}

#[test]
fn inputs_of_the_corpus() {
    if !kernel_or_skip() {
        return;
    }
    let place = Place::new();
    let names = ["line-table-file-index.so", "section-of-gigabytes.so"];
    for name in names {
        place.of_corpus(name);
        let library = format!("./{name}");
        let text = survives(|| place.debox(&["--call-site"], &[&library, "./good.so"]));
        let told = text.contains("1 place in section-of-gigabytes.so may have no file and line");
        assert_eq!(told, name == names[1], "{text}");
    }
}

/// It truncates a library of its own before the report is made.
#[test]
fn a_truncated_library() {
    if !kernel_or_skip() {
        return;
    }
    let place = Place::new();
    let padded = format!("{LIBRARY}const char padding[16 << 20] = {{1}};\n");
    place.compile("evil.so", &padded, &["-shared", "-fPIC"]);
    let arguments = ["./evil.so", "./good.so", "-", "./evil.so"];
    for options in [&["--call-site"][..], &["--call-site", "--json"]] {
        let run = || {
            place.compile("evil.so", &padded, &["-shared", "-fPIC"]);
            place.debox(options, &arguments)
        };
        if options.len() == 1 {
            let text = survives(run);
            assert!(
                text.contains("in evil.so") || text.contains("evil.so cannot"),
                "{text}"
            );
        } else {
            let output = run();
            assert_eq!(output.status.code(), Some(7));
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(text.contains("evil.so"), "{text}");
        }
    }
}
