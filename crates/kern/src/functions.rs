// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which functions does this kernel have, and which of them can be measured?
//!
//! Unlike the table that names stacks (crates/symbol), this one keeps every
//! name: static functions of one name in several files, aliases, modules.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use debox_symbol::{KernelSymbols, SymbolError, SymbolOptions};

use crate::error::Error;
use crate::tracefs;

/// No function is longer; what lies further behind a symbol is no code of it.
const FUNCTION_LEN_MAX: u64 = 1 << 20;

#[derive(Clone, Debug)]
struct Symbol {
    address: u64,
    name: (u32, u16),
    /// 0: the kernel itself; else 1 + place in `modules`.
    module: u16,
}

/// All functions of the kernel and its modules, by address.
#[derive(Debug, Default)]
pub struct Functions {
    symbols: Vec<Symbol>,
    /// Places in `symbols`, by name.
    by_name: Vec<u32>,
    names: String,
    modules: Vec<String>,
    /// Starts of functions that ftrace can attach to; None: unknown.
    filter: Option<HashSet<u64>>,
    /// Address ranges that kprobes refuse.
    blacklist: Vec<(u64, u64)>,
}

/// One function of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub address: u64,
    pub len: u64,
    /// The module's name; None: the kernel itself.
    pub module: Option<String>,
    /// Whether another function has the same name.
    pub ambiguous: bool,
    /// Whether ftrace can attach here (fentry, kprobe.multi).
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

/// Section boundaries, which are no functions.
fn is_marker(name: &str) -> bool {
    matches!(
        name,
        "_text" | "_stext" | "_etext" | "_sinittext" | "_einittext"
    ) || name.ends_with("_text_start")
        || name.ends_with("_text_end")
        || name.starts_with("__pfx_")
        || name.starts_with("__cfi_")
}

impl Functions {
    /// Reads the running kernel's. Fails if it hides its addresses.
    pub fn open() -> Result<Functions, Error> {
        let file = File::open("/proc/kallsyms").map_err(|source| SymbolError::Unreadable {
            path: "/proc/kallsyms".into(),
            source,
        })?;
        let mut functions = Functions::read(BufReader::with_capacity(1 << 18, file))
            .map_err(Error::system("reading /proc/kallsyms"))?;
        if functions.symbols.is_empty() {
            // Knows the reasons, and says them.
            KernelSymbols::open(SymbolOptions::default())?;
            return Err(Error::CannotAttach(
                "/proc/kallsyms lists no functions of this kernel".into(),
            ));
        }
        functions.filter_read();
        functions.blacklist_read();
        Ok(functions)
    }

    /// Reads text in the format of /proc/kallsyms.
    pub fn read(mut reader: impl BufRead) -> std::io::Result<Functions> {
        let mut all = Functions::default();
        let mut line = Vec::with_capacity(128);
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let Ok(text) = std::str::from_utf8(&line) else {
                continue;
            };
            let mut words = text.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            if !matches!(kind, "t" | "T" | "w" | "W") || name.starts_with("__pfx_") {
                continue;
            }
            let Ok(address) = u64::from_str_radix(address, 16) else {
                continue;
            };
            let module = match words.next() {
                // BPF programs come and go, and belong to nobody's kernel code.
                Some("[bpf]" | "[__builtin__ftrace]" | "[__builtin__kprobes]") => continue,
                Some(module) => {
                    let module = module.trim_matches(['[', ']']);
                    match all.modules.iter().rposition(|m| m == module) {
                        Some(place) => place as u16 + 1,
                        None => {
                            all.modules.push(module.to_owned());
                            all.modules.len() as u16
                        }
                    }
                }
                None => 0,
            };
            let (Ok(start), Ok(len)) = (u32::try_from(all.names.len()), u16::try_from(name.len()))
            else {
                continue;
            };
            if address == 0 {
                continue;
            }
            all.names.push_str(name);
            all.symbols.push(Symbol {
                address,
                name: (start, len),
                module,
            });
        }
        all.symbols.sort_by_key(|s| s.address);
        let mut by_name: Vec<u32> = (0..all.symbols.len() as u32).collect();
        by_name.sort_by(|a, b| all.name_at(*a).cmp(all.name_at(*b)));
        all.by_name = by_name;
        Ok(all)
    }

    fn name_of(&self, symbol: &Symbol) -> &str {
        &self.names[symbol.name.0 as usize..symbol.name.0 as usize + usize::from(symbol.name.1)]
    }

    fn name_at(&self, place: u32) -> &str {
        self.name_of(&self.symbols[place as usize])
    }

    fn filter_read(&mut self) {
        // 6.5 and later have the addresses; before, names must do.
        if let Ok(text) = tracefs::tracefs_read("available_filter_functions_addrs") {
            let mut starts = HashSet::new();
            for line in text.lines() {
                let Some(address) = line
                    .split_ascii_whitespace()
                    .next()
                    .and_then(|word| u64::from_str_radix(word, 16).ok())
                else {
                    continue;
                };
                // With IBT the place lies behind an endbr64.
                if let Some(start) = self.start_of(address) {
                    starts.insert(start);
                }
            }
            if !starts.is_empty() {
                self.filter = Some(starts);
            }
            return;
        }
        if let Ok(text) = tracefs::tracefs_read("available_filter_functions") {
            let mut starts = HashSet::new();
            for line in text.lines() {
                let Some(name) = line.split_ascii_whitespace().next() else {
                    continue;
                };
                for place in self.places(name) {
                    starts.insert(self.symbols[place as usize].address);
                }
            }
            if !starts.is_empty() {
                self.filter = Some(starts);
            }
        }
    }

    fn blacklist_read(&mut self) {
        let Ok(text) = tracefs::debugfs_read("kprobes/blacklist") else {
            return;
        };
        for line in text.lines() {
            let Some((from, to)) = line
                .split_ascii_whitespace()
                .next()
                .and_then(|range| range.split_once('-'))
            else {
                continue;
            };
            let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
            if let (Some(from), Some(to)) = (number(from), number(to)) {
                self.blacklist.push((from, to));
            }
        }
    }

    /// Places in `symbols` with this name.
    fn places(&self, name: &str) -> impl Iterator<Item = u32> + '_ {
        let first = self.by_name.partition_point(|p| self.name_at(*p) < name);
        let name = name.to_owned();
        self.by_name[first..]
            .iter()
            .copied()
            .take_while(move |p| self.name_at(*p) == name)
    }

    fn start_of(&self, address: u64) -> Option<u64> {
        let place = self
            .symbols
            .partition_point(|s| s.address <= address)
            .checked_sub(1)?;
        let start = self.symbols[place].address;
        (address - start < FUNCTION_LEN_MAX).then_some(start)
    }

    fn function(&self, place: u32) -> Function {
        let symbol = &self.symbols[place as usize];
        let name = self.name_of(symbol).to_owned();
        let next = self.symbols[place as usize..]
            .iter()
            .map(|s| s.address)
            .find(|a| *a > symbol.address)
            .unwrap_or(symbol.address + 1);
        let mut others: Vec<u64> = self
            .places(&name)
            .map(|p| self.symbols[p as usize].address)
            .collect();
        others.dedup();
        Function {
            address: symbol.address,
            len: (next - symbol.address).min(FUNCTION_LEN_MAX),
            module: symbol
                .module
                .checked_sub(1)
                .map(|m| self.modules[usize::from(m)].clone()),
            ambiguous: others.len() > 1,
            traceable: self
                .filter
                .as_ref()
                .is_none_or(|filter| filter.contains(&symbol.address)),
            blacklisted: self
                .blacklist
                .iter()
                .any(|(from, to)| (*from..*to).contains(&symbol.address)),
            name,
        }
    }

    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// The function that starts exactly at `address`: of several names the one
    /// that is the call's own and not the i386 entry's.
    pub fn starting_at(&self, address: u64) -> Option<Function> {
        let first = self.symbols.partition_point(|s| s.address < address);
        let mut best: Option<Function> = None;
        for place in first..self.symbols.len() {
            if self.symbols[place].address != address {
                break;
            }
            let function = self.function(place as u32);
            if is_marker(&function.name) {
                continue;
            }
            let better = match &best {
                None => true,
                Some(best) => {
                    best.name.starts_with("__ia32_") && !function.name.starts_with("__ia32_")
                }
            };
            if better {
                best = Some(function);
            }
        }
        best
    }

    /// The function around an address, and the distance from its start.
    pub fn around(&self, address: u64) -> Option<(Function, u64)> {
        let start = self.start_of(address)?;
        let function = self.starting_at(start)?;
        (address - start < function.len).then_some((function, address - start))
    }

    /// All functions with this name, by address.
    pub fn named(&self, name: &str, module: Option<&str>) -> Vec<Function> {
        let mut found: Vec<Function> = self
            .places(name)
            .map(|p| self.function(p))
            .filter(|f| module.is_none() || f.module.as_deref() == module)
            .collect();
        found.sort_by_key(|f| f.address);
        found.dedup_by_key(|f| f.address);
        found
    }

    /// All functions whose name matches a pattern with `*` and `?`, that ftrace
    /// can attach to.
    pub fn matching(&self, pattern: &str, module: Option<&str>) -> Vec<Function> {
        let mut found: Vec<Function> = self
            .by_name
            .iter()
            .filter(|p| glob(pattern, self.name_at(**p)))
            .map(|p| self.function(*p))
            .filter(|f| f.traceable && (module.is_none() || f.module.as_deref() == module))
            .filter(|f| !is_marker(&f.name) && !f.name.contains(".cold"))
            .collect();
        found.sort_by_key(|f| f.address);
        found.dedup_by_key(|f| f.address);
        found
    }

    /// The functions on both sides in memory, which tell the source file.
    fn neighbours(&self, address: u64) -> String {
        let at = self.symbols.partition_point(|s| s.address < address);
        let after = self.symbols.partition_point(|s| s.address <= address);
        let before = at.checked_sub(1).map(|p| self.name_of(&self.symbols[p]));
        let after = self.symbols.get(after).map(|s| self.name_of(s));
        match (before, after) {
            (Some(b), Some(a)) => format!("between {b} and {a}"),
            (Some(n), None) | (None, Some(n)) => format!("beside {n}"),
            (None, None) => String::new(),
        }
    }

    /// The one function that a name stands for; the error says what to write
    /// instead.
    pub fn find(&self, name: &str, choice: Choice) -> Result<Vec<Function>, String> {
        let (module, base) = match name.split_once(':') {
            Some((module, base)) => (Some(module.replace('-', "_")), base),
            None => (None, name),
        };
        if let Some(hex) = base.strip_prefix("0x") {
            let address =
                u64::from_str_radix(hex, 16).map_err(|_| format!("{name}: not an address"))?;
            return match self.starting_at(address) {
                Some(function) => Ok(vec![function]),
                None => Err(match self.around(address) {
                    Some((f, offset)) => format!(
                        "{name}: no function starts there; it lies in {} (write {}+{offset:#x} \
                         for the instruction)",
                        f.name, f.name
                    ),
                    None => format!("{name}: no function of this kernel lies there"),
                }),
            };
        }
        let mut found = self.named(base, module.as_deref());
        if found.is_empty() {
            // The compiler's copy with changed arguments is the whole function.
            let variants = self.variants(base);
            let whole: Vec<&Function> = variants
                .iter()
                .filter(|f| module.is_none() || f.module.as_deref() == module.as_deref())
                .filter(|f| is_whole_variant(base, &f.name))
                .collect();
            if whole.len() == 1 {
                return Ok(vec![whole[0].clone()]);
            }
            return Err(self.missing(name, base, module.as_deref(), &variants));
        }
        if found.len() == 1 {
            return Ok(found);
        }
        match choice {
            Choice::All => Ok(found),
            Choice::Number(n) if (1..=found.len()).contains(&n) => {
                Ok(vec![found.swap_remove(n - 1)])
            }
            Choice::Number(n) => Err(format!(
                "{name}@{n}: there are only {} functions called so",
                found.len()
            )),
            Choice::Only => {
                let mut text = format!("{} functions are called {base}:", found.len());
                for (i, f) in found.iter().enumerate() {
                    text.push_str(&format!(
                        "\n  {base}@{}  at {:#x}{}, {}",
                        i + 1,
                        f.address,
                        f.module
                            .as_ref()
                            .map(|m| format!(" in module {m}"))
                            .unwrap_or_default(),
                        self.neighbours(f.address)
                    ));
                }
                text.push_str(&format!("\nName one of them so, or all: {base}@all"));
                Err(text)
            }
        }
    }

    fn variants(&self, base: &str) -> Vec<Function> {
        let prefix = format!("{base}.");
        let first = self
            .by_name
            .partition_point(|p| self.name_at(*p) < prefix.as_str());
        self.by_name[first..]
            .iter()
            .take_while(|p| self.name_at(**p).starts_with(&prefix))
            .map(|p| self.function(*p))
            .collect()
    }

    fn missing(
        &self,
        name: &str,
        base: &str,
        module: Option<&str>,
        variants: &[Function],
    ) -> String {
        let mut text = format!("this kernel has no function {name}.");
        if let Some(module) = module
            && !self.modules.iter().any(|m| m == module)
        {
            return format!("{text} Module {module} is not loaded: modprobe {module}");
        }
        if !variants.is_empty() {
            let parts: Vec<&str> = variants.iter().map(|f| f.name.as_str()).collect();
            text.push_str(&format!(
                " The compiler left only {} of it: {}. `.isra`, `.constprop` are whole copies \
                 for some callers; `.part`, `.cold` are pieces, the rest is inlined in its \
                 callers",
                if parts.len() == 1 { "this" } else { "these" },
                parts.join(", ")
            ));
            return text;
        }
        let near = self.near(base);
        if let Some(unloaded) = unloaded_module(base, &self.modules) {
            text.push_str(&format!(
                " Its name looks like one of module {unloaded}, which is not loaded: modprobe \
                 {unloaded}."
            ));
        }
        text.push_str(
            " If the source has it, the compiler has inlined it in its callers: measure those",
        );
        if !near.is_empty() {
            text.push_str(&format!(". Similar names: {}", near.join(", ")));
        }
        text
    }

    /// Up to five names that may have been meant.
    pub fn near(&self, base: &str) -> Vec<String> {
        let base = base.to_lowercase();
        let limit = (base.len() / 4).clamp(1, 4);
        let mut scored: Vec<(usize, &str)> = Vec::new();
        let mut last = "";
        for place in &self.by_name {
            let name = self.name_at(*place);
            if name == last || is_marker(name) || name.len() > base.len() + 24 {
                continue;
            }
            last = name;
            let score = if name.len().abs_diff(base.len()) <= limit
                && strsim::damerau_levenshtein(&base, name) <= limit
            {
                strsim::damerau_levenshtein(&base, name)
            } else if base.len() >= 4 && name.contains(&base) {
                limit + name.len() - base.len()
            } else {
                continue;
            };
            scored.push((score, name));
        }
        scored.sort();
        scored
            .into_iter()
            .take(5)
            .map(|(_, n)| n.to_owned())
            .collect()
    }
}

/// Which of several functions with one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    #[default]
    Only,
    Number(usize),
    All,
}

/// `.isra.N` and `.constprop.N`, and nothing else, behind the name.
fn is_whole_variant(base: &str, name: &str) -> bool {
    let Some(rest) = name.strip_prefix(base) else {
        return false;
    };
    rest.split('.').filter(|word| !word.is_empty()).all(|word| {
        matches!(word, "isra" | "constprop") || word.chars().all(|c| c.is_ascii_digit())
    })
}

/// A module on disk, not loaded, whose name is the function's prefix.
fn unloaded_module(base: &str, loaded: &[String]) -> Option<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let path: PathBuf = ["/lib/modules", release.trim(), "modules.dep"]
        .iter()
        .collect();
    let text = std::fs::read_to_string(path).ok()?;
    let mut best: Option<String> = None;
    for line in text.lines() {
        let file = line.split(':').next()?.rsplit('/').next()?;
        let module = file.split(".ko").next()?.replace('-', "_");
        if base.starts_with(&format!("{module}_"))
            && !loaded.contains(&module)
            && best.as_ref().is_none_or(|b| b.len() < module.len())
        {
            best = Some(module);
        }
    }
    best
}

/// `*` any characters, `?` one.
pub fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && (pattern[p] == b'?' || pattern[p] == text[t]) && pattern[p] != b'*'
        {
            p += 1;
            t += 1;
        } else if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, t));
            p += 1;
        } else if let Some((sp, st)) = star {
            p = sp + 1;
            t = st + 1;
            star = Some((sp, t));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions() -> Functions {
        Functions::read(
            "ffffffff81000000 T _text\n\
             ffffffff81000000 T _stext\n\
             ffffffff81000100 T vfs_read\n\
             ffffffff81000180 t cleanup\n\
             ffffffff81000200 T vfs_write\n\
             ffffffff81000280 t cleanup\n\
             ffffffff81000300 t shrink.isra.0\n\
             ffffffff81000380 t partly.part.0\n\
             ffffffff81000400 t partly.cold\n\
             ffffffff81000480 T __ia32_sys_getpid\n\
             ffffffff81000480 T __x64_sys_getpid\n\
             ffffffff81000500 T _etext\n\
             ffffffffc0000100 t cleanup\t[ext4]\n\
             ffffffffc0000180 t ext4_lookup\t[ext4]\n\
             ffffffffc0000200 t bpf_prog_1234\t[bpf]\n"
                .as_bytes(),
        )
        .unwrap()
    }

    #[test]
    fn names_stand_for_one_function() {
        let all = functions();
        let one = |name: &str| all.find(name, Choice::Only);
        let f = &one("vfs_read").unwrap()[0];
        assert_eq!((f.address, f.len), (0xffffffff81000100, 0x80));
        assert_eq!(
            one("ext4:ext4_lookup").unwrap()[0].module.as_deref(),
            Some("ext4")
        );
        assert_eq!(one("shrink").unwrap()[0].name, "shrink.isra.0");
        let text = one("cleanup").unwrap_err();
        assert!(text.starts_with("3 functions are called cleanup"), "{text}");
        assert!(text.contains("between vfs_read and vfs_write"), "{text}");
        assert!(
            text.contains("in module ext4") && text.contains("cleanup@all"),
            "{text}"
        );
        assert_eq!(all.find("cleanup", Choice::All).unwrap().len(), 3);
        assert_eq!(
            all.find("cleanup", Choice::Number(2)).unwrap()[0].address,
            0xffffffff81000280
        );
        assert!(all.find("cleanup", Choice::Number(4)).is_err());
        assert_eq!(one("ext4:cleanup").unwrap()[0].address, 0xffffffffc0000100);
        assert_eq!(one("0xffffffff81000100").unwrap()[0].name, "vfs_read");
        assert!(
            one("0xffffffff81000104")
                .unwrap_err()
                .contains("vfs_read+0x4")
        );
    }

    #[test]
    fn what_is_missing_is_explained() {
        let all = functions();
        let why = |name: &str| all.find(name, Choice::Only).unwrap_err();
        assert!(
            why("partly").contains("partly.cold, partly.part.0"),
            "{}",
            why("partly")
        );
        assert!(why("vfs_raed").contains("vfs_read"), "{}", why("vfs_raed"));
        assert!(why("read").contains("vfs_read"), "{}", why("read"));
        assert!(
            why("xfs:xfs_lookup").contains("modprobe xfs"),
            "{}",
            why("xfs:xfs_lookup")
        );
        assert!(
            why("quite_another").contains("inlined"),
            "{}",
            why("quite_another")
        );
    }

    #[test]
    fn addresses_have_the_natives_name() {
        let all = functions();
        assert_eq!(
            all.starting_at(0xffffffff81000480).unwrap().name,
            "__x64_sys_getpid"
        );
        assert_eq!(all.around(0xffffffff81000110).unwrap().1, 0x10);
        assert!(all.starting_at(0xffffffff81000000).is_none());
        assert!(all.named("bpf_prog_1234", None).is_empty());
    }

    #[test]
    fn patterns() {
        let all = functions();
        let names: Vec<String> = all
            .matching("vfs_*", None)
            .into_iter()
            .map(|f| f.name)
            .collect();
        assert_eq!(names, ["vfs_read", "vfs_write"]);
        for (pattern, text, is) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("?b", "ab", true),
            ("?b", "b", false),
            ("**", "x", true),
            ("ext4_*_write", "ext4_file_buffered_write", true),
        ] {
            assert_eq!(glob(pattern, text), is, "{pattern} {text}");
        }
    }
}
