// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is this function the C library's or the language runtime's, and not the
//! program's own?

use std::collections::HashSet;
use std::fs::File;
use std::sync::{Arc, OnceLock};

use object::elf;

use crate::elf::{Image, Symbol};
use crate::{Error, Options, Source};

/// The C library of this machine, where distributions put it; glibc first.
const LIBC_PATHS: [&str; 6] = [
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib64/libc.so.6",
    "/usr/lib64/libc.so.6",
    "/usr/lib/libc.so.6",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/libc.musl-x86_64.so.1",
];

/// A shared library with one of these names is a wrapper as a whole. Ends in
/// `*`: a prefix. (`libc.so` is musl's; the vDSO's time functions make system
/// calls when no clock can be read in user space; the last two are DeBox's.)
const SONAMES: [&str; 14] = [
    "libc.so.6",
    "libc.so",
    "libc.musl-*",
    "ld-linux*",
    "ld-musl-*",
    "libpthread.so.0",
    "librt.so.1",
    "libdl.so.2",
    "libanl.so.1",
    "linux-vdso*",
    "linux-gate*",
    "libsystem_kernel*",
    "libdebox.so.0",
    "libdebox-wrap.so",
];

/// Functions of glibc and musl that no libc exports and that stand between an
/// exported function and the system call.
const LIBC_INTERNAL: [&str; 12] = [
    "new_do_write",
    "sysmalloc",
    "sysmalloc_mmap",
    "systrim",
    "systrim.constprop.0",
    "heap_trim",
    "new_heap",
    "alloc_new_heap",
    "start_thread",
    "cancel_handler",
    "do_system",
    "_start",
];

/// Beginnings that the C standard reserves for the implementation, or that
/// only libc uses.
const LIBC_PREFIXES: [&str; 6] = ["__", "_IO_", "_dl_", "_nl_", "_int_", "_exit"];

/// Go packages whose functions stand between a program and its system calls.
const GO_PACKAGES: [&str; 4] = ["runtime", "syscall", "os", "golang.org/x/sys"];
const GO_TREES: [&str; 3] = ["runtime/", "internal/", "golang.org/x/sys/"];

/// Whether a shared library of this name is the C library, or of it.
pub fn soname_is_wrapper(soname: &str) -> bool {
    SONAMES.iter().any(|known| match known.strip_suffix('*') {
        Some(prefix) => soname.starts_with(prefix),
        None => soname == *known,
    })
}

/// The package of a Go function: `golang.org/x/sys/unix.Read`,
/// `main.(*server).serve.func1`, `type:.eq.main.key`.
fn go_package(function: &str) -> &str {
    // Type arguments hold slashes and dots of their own.
    let plain = function.split('[').next().unwrap_or(function);
    let from = plain.rfind('/').map_or(0, |slash| slash + 1);
    let dot = plain[from..]
        .find('.')
        .map_or(plain.len(), |dot| from + dot);
    &plain[..dot]
}

pub fn go_function_is_wrapper(function: &str) -> bool {
    let package = go_package(function);
    let package = package.strip_prefix("vendor/").unwrap_or(package);
    GO_PACKAGES.contains(&package)
        || GO_TREES.iter().any(|tree| package.starts_with(tree))
        // Assembly and linker-made functions without a package, and cgo's glue.
        || ["_rt0_", "gosave", "setg_", "gogo", "crosscall", "x_cgo_", "_cgo_", "callRet"]
            .iter()
            .any(|prefix| function.starts_with(prefix))
}

/// Names of the C library's functions.
#[derive(Debug, Default)]
pub struct LibcNames(HashSet<String>);

impl LibcNames {
    /// The functions that the C library of this machine exports. Empty if none
    /// is found; the reserved name prefixes still tell much then.
    pub fn of_this_machine() -> Arc<LibcNames> {
        static NAMES: OnceLock<Arc<LibcNames>> = OnceLock::new();
        NAMES
            .get_or_init(|| {
                let found = LibcNames::file_of_this_machine()
                    .and_then(|file| LibcNames::exported_by(&file).ok());
                Arc::new(found.unwrap_or_default())
            })
            .clone()
    }

    /// The C library that they are read from.
    pub fn file_of_this_machine() -> Option<File> {
        LIBC_PATHS.iter().find_map(|path| File::open(path).ok())
    }

    /// The functions that a shared library exports.
    pub fn exported_by<S: Source + ?Sized>(library: &S) -> Result<LibcNames, Error> {
        // Not Default: that asks for the names that are being made here.
        let options = Options {
            max_file_bytes: 1 << 30,
            max_read_bytes: 64 << 20,
            max_rows: 1 << 20,
            max_cpu: std::time::Duration::from_secs(10),
            file_name: None,
            libc_names: Arc::default(),
        };
        let image = Image::open(library, &options)?;
        let functions = image.functions(elf::SHT_DYNSYM)?;
        Ok(LibcNames(functions.into_iter().map(|s| s.name).collect()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether a function of a static program is libc's.
    pub fn is_libc(&self, function: &str) -> bool {
        LIBC_PREFIXES
            .iter()
            .any(|prefix| function.starts_with(prefix))
            || LIBC_INTERNAL.contains(&function)
            || self.0.contains(function)
    }
}

/// Which addresses of a file are wrappers, by its symbols.
pub struct Functions {
    /// Start, end (0 long: up to the next), whether a wrapper; sorted.
    spans: Vec<(u64, u64, bool)>,
}

impl Functions {
    /// Several names for one address are common (`read`, `__read`,
    /// `__libc_read`): one that is a wrapper's is enough.
    pub fn new(symbols: &[Symbol], is_wrapper: impl Fn(&str) -> bool) -> Functions {
        let mut spans: Vec<(u64, u64, bool)> = Vec::new();
        for symbol in symbols {
            let wrapper = is_wrapper(&symbol.name);
            let end = symbol.address.saturating_add(symbol.len);
            match spans.last_mut() {
                Some(last) if last.0 == symbol.address => {
                    last.1 = last.1.max(end);
                    last.2 |= wrapper;
                }
                _ => spans.push((symbol.address, end, wrapper)),
            }
        }
        for index in 0..spans.len() {
            if spans[index].1 == spans[index].0 {
                spans[index].1 = spans.get(index + 1).map_or(u64::MAX, |next| next.0);
            }
        }
        Functions { spans }
    }

    pub fn is_wrapper(&self, address: u64) -> bool {
        let next = self.spans.partition_point(|span| span.0 <= address);
        next.checked_sub(1)
            .map(|index| self.spans[index])
            .is_some_and(|(_, end, wrapper)| wrapper && address < end)
    }

    pub fn spans(&self) -> &[(u64, u64, bool)] {
        &self.spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_packages() {
        for (function, package, wrapper) in [
            ("main.main", "main", false),
            ("main.(*server).serve.func1", "main", false),
            ("runtime.futex", "runtime", true),
            ("runtime/debug.FreeOSMemory", "runtime/debug", true),
            ("syscall.Syscall", "syscall", true),
            (
                "internal/runtime/syscall.Syscall6",
                "internal/runtime/syscall",
                true,
            ),
            ("internal/poll.(*FD).Read", "internal/poll", true),
            ("os.(*File).Read", "os", true),
            ("os/exec.(*Cmd).Run", "os/exec", false),
            ("golang.org/x/sys/unix.Read", "golang.org/x/sys/unix", true),
            (
                "vendor/golang.org/x/sys/cpu.init",
                "vendor/golang.org/x/sys/cpu",
                true,
            ),
            ("osquery.com/a.Read", "osquery.com/a", false),
            ("example.com/os.Read", "example.com/os", false),
            ("main.f[go.shape.struct { os.File/x.y }]", "main", false),
            ("_rt0_amd64_linux", "_rt0_amd64_linux", true),
            ("", "", false),
        ] {
            assert_eq!(go_package(function), package, "{function}");
            assert_eq!(go_function_is_wrapper(function), wrapper, "{function}");
        }
    }

    #[test]
    fn sonames() {
        for (soname, wrapper) in [
            ("libc.so.6", true),
            ("libc.so", true),
            ("ld-linux-x86-64.so.2", true),
            ("libcurl.so.4", false),
            ("libcrypto.so.3", false),
            ("linux-vdso.so.1", true),
        ] {
            assert_eq!(soname_is_wrapper(soname), wrapper, "{soname}");
        }
    }

    #[test]
    fn the_host_has_a_libc() {
        let names = LibcNames::of_this_machine();
        assert!(names.len() > 1000, "{}", names.len());
        assert!(names.is_libc("read") && names.is_libc("_IO_new_file_write"));
        assert!(!names.is_libc("main") && !names.is_libc("serve_request"));
    }

    #[test]
    fn any_alias_counts() {
        let symbol = |address, len, name: &str| Symbol {
            address,
            len,
            name: name.into(),
        };
        let symbols = [
            symbol(16, 0, "own"),
            symbol(32, 16, "__read"),
            symbol(32, 16, "zread"),
            symbol(64, 8, "other"),
        ];
        let functions = Functions::new(&symbols, |name| name.starts_with("__"));
        let wrapper: Vec<bool> = [0, 16, 31, 32, 47, 48, 64, 100]
            .iter()
            .map(|&address| functions.is_wrapper(address))
            .collect();
        assert_eq!(
            wrapper,
            [false, false, false, true, true, false, false, false]
        );
    }
}
