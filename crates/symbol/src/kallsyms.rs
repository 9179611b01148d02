// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which kernel function does an address lie in?
//!
//! /proc/kallsyms has 120,000 to 250,000 lines of which a stack needs only the
//! code: kept in two flat arrays that is 2 to 4 MB, where one heap string for
//! each symbol would be 15. It also makes reading it again cheap, which is
//! needed after each attach, since BPF programs and trampolines come and go.

use std::io::{self, BufRead};

/// No function is longer than this, so an address further behind the last
/// symbol before it belongs to nothing that is listed (freed BPF code, say).
const FUNCTION_LEN_MAX: u64 = 1 << 20;

/// The kernel's functions, sorted by address.
#[derive(Debug, Default)]
pub struct SymbolTable {
    addresses: Vec<u64>,
    /// Where name i starts in `names`; one more entry than there are names.
    starts: Vec<u32>,
    names: String,
    /// Lines that had a name and the address 0: the kernel hides addresses.
    hidden: usize,
    /// First and last address of the kernel image itself: without modules and
    /// BPF, which kallsyms marks with a fourth word.
    core: (u64, u64),
}

impl SymbolTable {
    /// Reads text in the format of /proc/kallsyms: `address type name [module]`.
    pub fn read(mut reader: impl BufRead) -> io::Result<SymbolTable> {
        let mut entries: Vec<(u64, u32, u8, u16)> = Vec::with_capacity(1 << 17);
        let mut arena = String::with_capacity(4 << 20);
        let mut hidden = 0;
        let mut core = (u64::MAX, 0);
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
            if !matches!(kind, "t" | "T" | "w" | "W") {
                continue;
            }
            let Ok(address) = u64::from_str_radix(address, 16) else {
                continue;
            };
            if address == 0 {
                hidden += 1;
                continue;
            }
            if words.next().is_none() {
                core = (core.0.min(address), core.1.max(address));
            }
            // Padding in front of functions (call depth tracking, kCFI) is
            // never executed, and doubles the table.
            if name.starts_with("__pfx_") || name.starts_with("__cfi_") {
                continue;
            }
            let Ok(len) = u16::try_from(name.len()) else {
                continue;
            };
            let Ok(start) = u32::try_from(arena.len()) else {
                break;
            };
            arena.push_str(name);
            entries.push((address, start, rank(kind, name), len));
        }
        entries.sort_by_key(|&(address, start, rank, _)| (address, rank, start));
        entries.dedup_by_key(|entry| entry.0);
        let mut table = SymbolTable {
            addresses: Vec::with_capacity(entries.len()),
            starts: Vec::with_capacity(entries.len() + 1),
            names: String::with_capacity(entries.iter().map(|e| usize::from(e.3)).sum()),
            hidden,
            core,
        };
        for (address, start, _, len) in entries {
            table.addresses.push(address);
            table.starts.push(table.names.len() as u32);
            table
                .names
                .push_str(&arena[start as usize..start as usize + usize::from(len)]);
        }
        table.starts.push(table.names.len() as u32);
        Ok(table)
    }

    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Whether the kernel listed names but zeroed their addresses.
    pub fn is_hidden(&self) -> bool {
        self.is_empty() && self.hidden > 0
    }

    /// Whether an address is one of the kernel image, not of a module.
    pub fn is_core(&self, address: u64) -> bool {
        (self.core.0..=self.core.1).contains(&address)
    }

    fn name(&self, index: usize) -> &str {
        &self.names[self.starts[index] as usize..self.starts[index + 1] as usize]
    }

    /// The function that `address` lies in, and the function's start.
    pub fn function(&self, address: u64) -> Option<(&str, u64)> {
        let index = self
            .addresses
            .partition_point(|&start| start <= address)
            .checked_sub(1)?;
        let start = self.addresses[index];
        let name = self.name(index);
        (address - start < FUNCTION_LEN_MAX && !is_marker(name)).then_some((name, start))
    }

    /// The address of the function called `name`; the first one if several
    /// are called so.
    pub fn address(&self, name: &str) -> Option<u64> {
        (0..self.len())
            .find(|&index| self.name(index) == name)
            .map(|index| self.addresses[index])
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

/// Which of several names for one address is taken: the lowest.
fn rank(kind: &str, name: &str) -> u8 {
    if is_marker(name) {
        return 3;
    }
    // The i386 entry of a call with no arguments is an alias of the native one.
    if name.starts_with("__ia32_") {
        return 2;
    }
    u8::from(!matches!(kind, "T" | "W"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> SymbolTable {
        SymbolTable::read(text.as_bytes()).unwrap()
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
            table.function(0xffffffff810001ff),
            Some(("first", 0xffffffff81000100))
        );
        assert_eq!(
            table.function(0xffffffff81000200),
            Some(("second", 0xffffffff81000200))
        );
        assert_eq!(
            table.function(0xffffffffc0000010).unwrap().0,
            "bpf_prog_6deef7357e7b4530_f"
        );
        assert_eq!(table.function(0xffffffff810000ff), None);
        // Far behind the last symbol there is nothing.
        assert_eq!(table.function(0xffffffffd0000000), None);
        assert!(table.is_core(0xffffffff81000150) && !table.is_core(0xffffffffc0000010));
        assert_eq!(table.function(0), None);
        assert_eq!(table.function(u64::MAX), None);
    }

    #[test]
    fn markers_end_functions_but_name_nothing() {
        let table = table(
            "ffffffff81000000 T _stext\n\
             ffffffff81000000 T _text\n\
             ffffffff81000000 t first\n\
             ffffffff81000100 T _etext\n",
        );
        assert_eq!(table.function(0xffffffff81000010).unwrap().0, "first");
        assert_eq!(table.function(0xffffffff81000110), None);
        assert_eq!(table.address("_text"), None, "one name for each address");
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
        assert_eq!(table.function(0xffffffff81000041).unwrap().0, "g");
    }
}
