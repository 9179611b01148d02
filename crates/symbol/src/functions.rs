// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which functions does this kernel have, where do they lie, and which of them
//! can something be attached to?
//!
//! /proc/kallsyms has 120,000 to 250,000 lines, of which stacks and probes need
//! the code only: kept in flat arrays that is 2 to 4 MB, where one heap string for
//! each symbol would be 15. It also makes reading it again cheap, which is
//! needed after each attach, since BPF programs and trampolines come and go.
//! Every name is kept: static functions of one name in several files, aliases,
//! modules.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use debox_labels::glob;

use crate::tracefs;

pub const KALLSYMS: &str = "/proc/kallsyms";
pub const TRACEABLE_ADDRESSES: &str = "available_filter_functions_addrs"; // Linux 6.5
pub const TRACEABLE_NAMES: &str = "available_filter_functions";

/// No function is longer than this, so an address further behind the last
/// symbol before it belongs to nothing that is listed (freed BPF code, say).
const FUNCTION_LEN_MAX: u64 = 1 << 20;

#[derive(Clone, Debug)]
struct Symbol {
    address: u64,
    name_at: u32,
    name_len: u16,
    module: u16,
}

const NO_MODULE: u16 = 0;
/// BPF programs, trampolines: code that comes and goes and is nobody's source.
const GENERATED: u16 = u16::MAX;
const GENERATED_MODULES: [&str; 3] = ["bpf", "__builtin__ftrace", "__builtin__kprobes"];

/// The functions of a kernel and its modules.
#[derive(Debug, Default)]
pub struct Functions {
    /// By address; of several names for one, the one to be shown first.
    symbols: Vec<Symbol>,
    names: String,
    modules: Vec<String>,
    /// Places in `symbols`, by name, without generated code.
    by_name: OnceLock<Vec<u32>>,
    /// Lines that had a name and the address 0: the kernel hides addresses.
    hidden: usize,
    /// First and last address of the kernel image itself.
    core: (u64, u64),
    /// Starts of functions that ftrace can attach to, sorted; None: unknown.
    traceable: Option<Vec<u64>>,
    /// Address ranges that kprobes refuse.
    blacklist: Vec<(u64, u64)>,
}

/// The running kernel's, without what can be attached to, for several who want them at the same
/// time: who asks first reads them, the others wait for that.
#[derive(Clone, Debug)]
pub struct SharedFunctions(Arc<LazyLock<io::Result<Arc<Functions>>>>);

impl Default for SharedFunctions {
    fn default() -> Self {
        Self(Arc::new(LazyLock::new(|| Functions::open().map(Arc::new))))
    }
}

impl SharedFunctions {
    pub fn get(&self) -> io::Result<Arc<Functions>> {
        match &**self.0 {
            Ok(functions) => Ok(Arc::clone(functions)),
            Err(error) => Err(match error.raw_os_error() {
                Some(errno) => io::Error::from_raw_os_error(errno),
                None => io::Error::new(error.kind(), error.to_string()),
            }),
        }
    }
}

/// One function of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub address: u64,
    /// Bytes to the next function, or 1 MiB.
    pub len: u64,
    /// The module's name; None: the kernel itself.
    pub module: Option<String>,
    /// Whether another function has the same name.
    pub ambiguous: bool,
    /// Whether ftrace can attach here (fentry, kprobe.multi); true where
    /// tracefs cannot be read: the kernel will tell when it is tried.
    pub traceable: bool,
    /// Whether kprobes refuse this place.
    pub blacklisted: bool,
}

impl Function {
    /// `module:name` or `name`.
    pub fn full_name(&self) -> String {
        match &self.module {
            Some(module) => format!("{module}:{}", self.name),
            None => self.name.clone(),
        }
    }

    /// Why nothing can be attached to it, if so.
    pub fn refusal(&self, kprobes: bool) -> Option<String> {
        if self.traceable || (kprobes && !self.blacklisted) {
            return None;
        }
        Some(if self.blacklisted {
            format!(
                "{} is on the kernel's list of functions that no probe may enter \
                 (/sys/kernel/debug/kprobes/blacklist): probes themselves run through it. \
                 Measure its callers or callees instead",
                self.name
            )
        } else {
            format!(
                "{} is built without a place to attach to (notrace: it is not in \
                 /sys/kernel/tracing/available_filter_functions). Measure its callers or \
                 callees instead",
                self.name
            )
        })
    }
}

/// Section boundaries of the linker script. They stay in the table, so that
/// what lies behind `_etext` is not taken for the last function.
fn is_marker(name: &str) -> bool {
    matches!(
        name,
        "_text" | "_stext" | "_etext" | "_sinittext" | "_einittext"
    ) || name.ends_with("_text_start")
        || name.ends_with("_text_end")
}

/// Which of several names for one address is shown: the lowest.
fn rank(kind: u8, name: &str) -> u8 {
    if is_marker(name) {
        return 3;
    }
    // The i386 entry of a call with no arguments is an alias of the native one.
    if name.starts_with("__ia32_") {
        return 2;
    }
    u8::from(!matches!(kind, b'T' | b'W'))
}

/// Address, kind, name and module of `address type name [module]`. (There are more than a hundred thousand
/// lines, which somebody waits for.)
fn line_parse(line: &[u8]) -> Option<(u64, u8, &str, Option<&str>)> {
    let space = line.iter().position(|&c| c == b' ')?;
    let address = line
        .get(..space)
        .filter(|digits| (1..=16).contains(&digits.len()))?;
    let address = address.iter().try_fold(0, |address: u64, &digit| {
        Some(address << 4 | u64::from((digit as char).to_digit(16)?))
    })?;
    let [kind, b' ', rest @ ..] = line.get(space + 1..)? else {
        return None;
    };
    let rest = rest.trim_ascii_end();
    let end = rest.iter().position(u8::is_ascii_whitespace);
    let (name, module) = rest.split_at(end.unwrap_or(rest.len()));
    let module = match std::str::from_utf8(module).ok()?.trim_ascii_start() {
        "" => None,
        module => Some(module.trim_matches(['[', ']'])),
    };
    let name = std::str::from_utf8(name)
        .ok()
        .filter(|name| !name.is_empty())?;
    Some((address, *kind, name, module))
}

impl Functions {
    /// The running kernel's, without what can be attached to.
    pub fn open() -> io::Result<Functions> {
        Functions::read(BufReader::with_capacity(1 << 18, File::open(KALLSYMS)?))
    }

    /// The running kernel's, with what can be attached to. Kept until a module
    /// comes or goes, for reading it takes a tenth of a second (under emulation
    /// seconds).
    pub fn running() -> io::Result<Arc<Functions>> {
        static KEPT: Mutex<Option<(String, Arc<Functions>)>> = Mutex::new(None);
        let modules = fs::read_to_string("/proc/modules").unwrap_or_default();
        // Use counts change all the time.
        let modules: String = modules
            .lines()
            .filter_map(|line| line.split_ascii_whitespace().next())
            .collect::<Vec<_>>()
            .join(" ");
        let mut kept = KEPT.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((of, functions)) = &*kept
            && *of == modules
        {
            return Ok(functions.clone());
        }
        let mut functions = Functions::open()?;
        functions.traceable_read();
        functions.blacklist_read();
        let functions = Arc::new(functions);
        if !functions.is_empty() {
            *kept = Some((modules, functions.clone()));
        }
        Ok(functions)
    }

    /// Reads text in the format of /proc/kallsyms: `address type name [module]`.
    pub fn read(mut reader: impl BufRead) -> io::Result<Functions> {
        let mut all = Functions {
            core: (u64::MAX, 0),
            ..Functions::default()
        };
        let mut ranked: Vec<(Symbol, u8)> = Vec::with_capacity(1 << 17);
        let mut line = Vec::with_capacity(128);
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let Some((address, kind, name, module)) = line_parse(&line) else {
                continue;
            };
            if !matches!(kind, b't' | b'T' | b'w' | b'W') {
                continue;
            }
            if address == 0 {
                all.hidden += 1;
                continue;
            }
            let module = match module {
                Some(name) => all.module(name),
                None => {
                    all.core = (all.core.0.min(address), all.core.1.max(address));
                    NO_MODULE
                }
            };
            // Padding in front of functions (call depth tracking, kCFI) is
            // never executed, and doubles the table.
            if name.starts_with("__pfx_") || name.starts_with("__cfi_") {
                continue;
            }
            let (Ok(name_at), Ok(name_len)) =
                (u32::try_from(all.names.len()), u16::try_from(name.len()))
            else {
                continue;
            };
            all.names.push_str(name);
            let symbol = Symbol {
                address,
                name_at,
                name_len,
                module,
            };
            ranked.push((symbol, rank(kind, name)));
        }
        ranked.sort_by_key(|(s, rank)| (s.address, *rank, s.name_at));
        all.symbols = ranked.into_iter().map(|(s, _)| s).collect();
        all.names.shrink_to_fit();
        Ok(all)
    }

    fn module(&mut self, name: &str) -> u16 {
        if GENERATED_MODULES.contains(&name) {
            return GENERATED;
        }
        // kallsyms lists a module's symbols one after the other.
        let place = match self.modules.iter().rposition(|m| m == name) {
            Some(place) => place,
            None => {
                self.modules.push(name.to_owned());
                self.modules.len() - 1
            }
        };
        u16::try_from(place + 1).unwrap_or(GENERATED)
    }

    fn traceable_read(&mut self) {
        let mut starts: Vec<u64> = match tracefs::read(TRACEABLE_ADDRESSES) {
            // "ffffffff81000000 name [module]"; all zero without the privilege. The
            // address is the place of the call to ftrace: at the function's
            // beginning, or behind its ENDBR.
            Ok(text) => text
                .lines()
                .filter_map(|line| line.split_ascii_whitespace().next())
                .filter_map(|word| u64::from_str_radix(word, 16).ok())
                .filter_map(|address| self.start_of(address))
                .collect(),
            Err(_) => vec![],
        };
        if starts.is_empty()
            && let Ok(text) = tracefs::read(TRACEABLE_NAMES)
        {
            let names: HashSet<&str> = text
                .lines()
                .filter_map(|line| line.split_ascii_whitespace().next())
                .collect();
            starts = self
                .symbols
                .iter()
                .filter(|s| names.contains(self.name(s)))
                .map(|s| s.address)
                .collect();
        }
        starts.sort_unstable();
        starts.dedup();
        self.traceable = (!starts.is_empty()).then_some(starts);
    }

    fn blacklist_read(&mut self) {
        let Ok(text) = tracefs::debugfs_read("kprobes/blacklist") else {
            return;
        };
        let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        self.blacklist = text
            .lines()
            .filter_map(|line| line.split_ascii_whitespace().next()?.split_once('-'))
            .filter_map(|(from, to)| Some((number(from)?, number(to)?)))
            .collect();
    }

    fn name(&self, symbol: &Symbol) -> &str {
        &self.names[symbol.name_at as usize..symbol.name_at as usize + usize::from(symbol.name_len)]
    }

    fn name_at(&self, place: u32) -> &str {
        self.name(&self.symbols[place as usize])
    }

    fn by_name(&self) -> &[u32] {
        self.by_name.get_or_init(|| {
            let mut places: Vec<u32> = (0..self.symbols.len() as u32)
                .filter(|p| self.symbols[*p as usize].module != GENERATED)
                .collect();
            places.sort_by(|a, b| self.name_at(*a).cmp(self.name_at(*b)));
            places
        })
    }

    /// The symbols that begin at the last start before `address`.
    fn last_before(&self, address: u64) -> Option<&[Symbol]> {
        let end = self.symbols.partition_point(|s| s.address <= address);
        let start = self.symbols.get(end.checked_sub(1)?)?.address;
        let first = self.symbols[..end].partition_point(|s| s.address < start);
        (address - start < FUNCTION_LEN_MAX).then_some(&self.symbols[first..end])
    }

    fn start_of(&self, address: u64) -> Option<u64> {
        Some(self.last_before(address)?[0].address)
    }

    /// Bytes to the next function, or 1 MiB.
    fn len_of(&self, symbol: &Symbol) -> u64 {
        let next = self
            .symbols
            .partition_point(|s| s.address <= symbol.address);
        match self.symbols.get(next) {
            Some(next) => (next.address - symbol.address).min(FUNCTION_LEN_MAX),
            None => 1,
        }
    }

    fn function(&self, symbol: &Symbol) -> Function {
        let name = self.name(symbol);
        Function {
            address: symbol.address,
            len: self.len_of(symbol),
            module: match symbol.module {
                NO_MODULE | GENERATED => None,
                module => Some(self.modules[usize::from(module) - 1].clone()),
            },
            ambiguous: self
                .places(name)
                .any(|p| self.symbols[p as usize].address != symbol.address),
            traceable: self
                .traceable
                .as_ref()
                .is_none_or(|starts| starts.binary_search(&symbol.address).is_ok()),
            blacklisted: self
                .blacklist
                .iter()
                .any(|(from, to)| (*from..*to).contains(&symbol.address)),
            name: name.to_owned(),
        }
    }

    /// Names, counted with aliases.
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// Whether the kernel listed names but zeroed their addresses.
    pub fn is_hidden(&self) -> bool {
        self.is_empty() && self.hidden > 0
    }

    /// Whether an address is one of the kernel image, not of a module.
    pub fn is_core(&self, address: u64) -> bool {
        (self.core.0..=self.core.1).contains(&address)
    }

    pub fn has_module(&self, name: &str) -> bool {
        self.modules.iter().any(|m| m == name)
    }

    /// Names of the loaded modules that have functions.
    pub fn modules(&self) -> &[String] {
        &self.modules
    }

    /// What an address is called in a stack: the name of the function that it
    /// lies in, generated code as well, and where that begins.
    pub fn name_around(&self, address: u64) -> Option<(&str, u64)> {
        let first = &self.last_before(address)?[0];
        let name = self.name(first);
        (!is_marker(name)).then_some((name, first.address))
    }

    /// Where each function begins, by address, under the name that
    /// [`Functions::name_around`] gives. None: nothing that stays (generated code, the
    /// space behind a module, into which another one may be loaded).
    pub fn starts(&self) -> impl Iterator<Item = (u64, Option<&str>)> {
        let places = 0..self.symbols.len();
        let first = places
            .filter(|&at| at == 0 || self.symbols[at - 1].address != self.symbols[at].address);
        first.flat_map(|at| {
            let symbol = &self.symbols[at];
            let name = self.name(symbol);
            let stays = symbol.module != GENERATED && !is_marker(name);
            let after = self.symbols[at..]
                .iter()
                .find(|s| s.address != symbol.address);
            // A module begins on a page of its own.
            let page_end = (symbol.address | 0xfff) + 1;
            let open =
                after.is_none_or(|next| next.module != symbol.module) && symbol.module != NO_MODULE;
            let gap = open && after.is_none_or(|next| next.address > page_end);
            [
                Some((symbol.address, stays.then_some(name))),
                gap.then_some((page_end, None)),
            ]
            .into_iter()
            .flatten()
        })
    }

    /// Where the kernel's own functions of these names lie, those of modules left out. (By one look at
    /// each: who asks for more takes [`Functions::named`], which sorts them first.)
    pub fn ranges(&self, names: &[&str]) -> Vec<Range<u64>> {
        let of =
            |symbol: &&Symbol| symbol.module == NO_MODULE && names.contains(&self.name(symbol));
        (self.symbols.iter().filter(of))
            .map(|symbol| symbol.address..symbol.address + self.len_of(symbol))
            .collect()
    }

    /// The address of the function called `name`; the first one if several
    /// are called so.
    pub fn address(&self, name: &str) -> Option<u64> {
        let symbol = self.symbols.iter().find(|s| self.name(s) == name)?;
        Some(symbol.address)
    }

    /// The function that starts exactly at `address`: of several names the one
    /// that is the call's own and not the i386 entry's.
    pub fn starting_at(&self, address: u64) -> Option<Function> {
        let first = self.symbols.partition_point(|s| s.address < address);
        let symbol = self.symbols.get(first)?;
        let known = symbol.address == address && symbol.module != GENERATED;
        (known && !is_marker(self.name(symbol))).then(|| self.function(symbol))
    }

    /// The function around an address, and the distance from its start.
    pub fn around(&self, address: u64) -> Option<(Function, u64)> {
        let start = self.start_of(address)?;
        let function = self.starting_at(start)?;
        (address - start < function.len).then_some((function, address - start))
    }

    /// Places in `symbols` with this name.
    fn places(&self, name: &str) -> impl Iterator<Item = u32> {
        let by_name = self.by_name();
        let first = by_name.partition_point(|p| self.name_at(*p) < name);
        by_name[first..]
            .iter()
            .copied()
            .take_while(move |p| self.name_at(*p) == name)
    }

    /// Every name once, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let mut last = "";
        self.by_name().iter().filter_map(move |p| {
            let name = self.name_at(*p);
            let new = name != last;
            last = name;
            (new && !is_marker(name)).then_some(name)
        })
    }

    fn collected(&self, places: impl Iterator<Item = u32>) -> Vec<Function> {
        let mut found: Vec<Function> = places
            .map(|p| self.function(&self.symbols[p as usize]))
            .collect();
        found.sort_by_key(|f| f.address);
        found.dedup_by_key(|f| f.address);
        found
    }

    /// All functions with this name, by address.
    pub fn named(&self, name: &str, module: Option<&str>) -> Vec<Function> {
        let mut found = self.collected(self.places(name));
        found.retain(|f| module.is_none() || f.module.as_deref() == module);
        found
    }

    /// All functions whose name begins so, by name.
    pub fn beginning(&self, prefix: &str) -> Vec<Function> {
        let by_name = self.by_name();
        let first = by_name.partition_point(|p| self.name_at(*p) < prefix);
        by_name[first..]
            .iter()
            .take_while(|p| self.name_at(**p).starts_with(prefix))
            .map(|p| self.function(&self.symbols[*p as usize]))
            .collect()
    }

    /// All functions whose name matches a pattern with `*` and `?`, that ftrace
    /// can attach to.
    pub fn matching(&self, pattern: &str, module: Option<&str>) -> Vec<Function> {
        let names = self.by_name().iter().copied().filter(|p| {
            let name = self.name_at(*p);
            glob(pattern, name) && !is_marker(name) && !name.contains(".cold")
        });
        let mut found = self.collected(names);
        found.retain(|f| f.traceable && (module.is_none() || f.module.as_deref() == module));
        found
    }

    /// The names on both sides in memory, which tell the source file.
    pub fn neighbours(&self, address: u64) -> (Option<&str>, Option<&str>) {
        let at = self.symbols.partition_point(|s| s.address < address);
        let after = self.symbols.partition_point(|s| s.address <= address);
        let before = at.checked_sub(1).map(|p| self.name(&self.symbols[p]));
        (before, self.symbols.get(after).map(|s| self.name(s)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Functions {
        Functions::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn finds_the_function_around_an_address() {
        let table = table(
            "ffffffff81000200 T second\n\
             ffffffff81000100 t first\n\
             ffffffff810001f0 t __pfx_second\n\
             ffffffff81000150 d data_is_not_code\n\
             ffffffffc0000000 t bpf_prog_6deef7357e7b4530_f\t[bpf]\n",
        );
        assert_eq!(table.len(), 3);
        assert_eq!(
            table.name_around(0xffffffff810001ff),
            Some(("first", 0xffffffff81000100))
        );
        assert_eq!(
            table.name_around(0xffffffff81000200),
            Some(("second", 0xffffffff81000200))
        );
        assert_eq!(
            table.name_around(0xffffffffc0000010).unwrap().0,
            "bpf_prog_6deef7357e7b4530_f"
        );
        // A stack names generated code; nothing is attached to it.
        assert_eq!(table.around(0xffffffffc0000010), None);
        assert!(table.named("bpf_prog_6deef7357e7b4530_f", None).is_empty());
        assert_eq!(table.name_around(0xffffffff810000ff), None);
        // Far behind the last symbol there is nothing.
        assert_eq!(table.name_around(0xffffffffd0000000), None);
        assert!(table.is_core(0xffffffff81000150) && !table.is_core(0xffffffffc0000010));
        assert_eq!(table.name_around(0), None);
        assert_eq!(table.name_around(u64::MAX), None);
    }

    #[test]
    fn markers_end_functions_but_name_nothing() {
        let table = table(
            "ffffffff81000000 T _stext\n\
             ffffffff81000000 T _text\n\
             ffffffff81000000 t first\n\
             ffffffff81000100 T _etext\n",
        );
        assert_eq!(table.name_around(0xffffffff81000010).unwrap().0, "first");
        assert_eq!(table.name_around(0xffffffff81000110), None);
        assert_eq!(table.starting_at(0xffffffff81000000).unwrap().len, 0x100);
        assert!(table.starting_at(0xffffffff81000100).is_none());
        assert_eq!(table.names().collect::<Vec<_>>(), ["first"]);
        assert_eq!(table.address("_etext"), Some(0xffffffff81000100));
    }

    #[test]
    fn zero_addresses_are_hidden_ones() {
        let hidden = table("0000000000000000 T _text\n0000000000000000 t schedule\n");
        assert!(hidden.is_hidden() && hidden.is_empty());
        assert!(!table("").is_hidden());
        // Per-CPU data at address 0 does not count.
        let some = table("0000000000000000 A fixed_percpu_data\nffffffff81000000 T f\n");
        assert!(!some.is_hidden());
        assert_eq!(some.len(), 1);
    }

    #[test]
    fn broken_lines_are_passed_over() {
        let table = table(
            "\nxyz T f\nffffffff81000000\nffffffff81000000 T\n\u{fffd}\nffffffff81000040 T g",
        );
        assert_eq!(table.len(), 1);
        assert_eq!(table.name_around(0xffffffff81000041).unwrap().0, "g");
    }

    #[test]
    fn one_name_may_be_several_functions_and_one_function_have_several_names() {
        let all = table(
            "ffffffff81000100 T vfs_read\n\
             ffffffff81000180 t cleanup\n\
             ffffffff81000200 T vfs_write\n\
             ffffffff81000280 t cleanup\n\
             ffffffff81000480 T __ia32_sys_getpid\n\
             ffffffff81000480 T __x64_sys_getpid\n\
             ffffffff81000500 T _etext\n\
             ffffffffc0000100 t cleanup\t[ext4]\n",
        );
        let getpid = all.starting_at(0xffffffff81000480).unwrap();
        assert_eq!(getpid.name, "__x64_sys_getpid");
        assert!(!getpid.ambiguous);
        assert_eq!(all.around(0xffffffff81000110).unwrap().1, 0x10);
        let cleanups = all.named("cleanup", None);
        assert_eq!(cleanups.len(), 3);
        assert!(cleanups.iter().all(|f| f.ambiguous));
        let of_ext4 = all.named("cleanup", Some("ext4"));
        assert_eq!(of_ext4[0].full_name(), "ext4:cleanup");
        let names: Vec<String> = all
            .matching("vfs_*", None)
            .into_iter()
            .map(|f| f.name)
            .collect();
        assert_eq!(names, ["vfs_read", "vfs_write"]);
    }
}
