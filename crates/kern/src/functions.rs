// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which function does a name stand for, and what to write if it is none, or several?

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub use debox_symbol::{Function, Functions};
use debox_symbol::{KernelSymbols, SymbolError, SymbolOptions};

use crate::error::Error;

/// The running kernel's functions. Fails if it hides its addresses.
pub fn functions_open() -> Result<Arc<Functions>, Error> {
    let functions = Functions::running().map_err(|source: io::Error| SymbolError::Unreadable {
        path: "/proc/kallsyms".into(),
        source,
    })?;
    if functions.is_empty() {
        // Knows the reasons, and says them.
        KernelSymbols::open(SymbolOptions::default())?;
        return Err(Error::CannotAttach(
            "/proc/kallsyms lists no functions of this kernel".into(),
        ));
    }
    Ok(functions)
}

/// The one function that a name stands for; the error says what to write
/// instead.
pub fn find(all: &Functions, name: &str, choice: Choice) -> Result<Vec<Function>, String> {
    let (module, base) = match name.split_once(':') {
        Some((module, base)) => (Some(module.replace('-', "_")), base),
        None => (None, name),
    };
    if let Some(hex) = base.strip_prefix("0x") {
        let address =
            u64::from_str_radix(hex, 16).map_err(|_| format!("{name}: not an address"))?;
        return match all.starting_at(address) {
            Some(function) => Ok(vec![function]),
            None => Err(match all.around(address) {
                Some((f, offset)) => format!(
                    "{name}: no function starts there; it lies in {} (write {}+{offset:#x} \
                     for the instruction)",
                    f.name, f.name
                ),
                None => format!("{name}: no function of this kernel lies there"),
            }),
        };
    }
    let mut found = all.named(base, module.as_deref());
    if found.is_empty() {
        // The compiler's copy with changed arguments is the whole function.
        let variants = all.beginning(&format!("{base}."));
        let whole: Vec<&Function> = variants
            .iter()
            .filter(|f| module.is_none() || f.module.as_deref() == module.as_deref())
            .filter(|f| is_whole_variant(base, &f.name))
            .collect();
        if whole.len() == 1 {
            return Ok(vec![whole[0].clone()]);
        }
        return Err(missing(all, name, base, module.as_deref(), &variants));
    }
    if found.len() == 1 {
        return Ok(found);
    }
    match choice {
        Choice::All => Ok(found),
        Choice::Number(n) if (1..=found.len()).contains(&n) => Ok(vec![found.swap_remove(n - 1)]),
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
                    beside(all, f.address)
                ));
            }
            text.push_str(&format!("\nName one of them so, or all: {base}@all"));
            Err(text)
        }
    }
}

/// The functions on both sides in memory, which tell the source file.
fn beside(all: &Functions, address: u64) -> String {
    match all.neighbours(address) {
        (Some(b), Some(a)) => format!("between {b} and {a}"),
        (Some(n), None) | (None, Some(n)) => format!("beside {n}"),
        (None, None) => String::new(),
    }
}

fn missing(
    all: &Functions,
    name: &str,
    base: &str,
    module: Option<&str>,
    variants: &[Function],
) -> String {
    let mut text = format!("this kernel has no function {name}.");
    if let Some(module) = module
        && !all.has_module(module)
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
    let near = near(all, base);
    if let Some(unloaded) = unloaded_module(base, all.modules()) {
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
fn near(all: &Functions, base: &str) -> Vec<String> {
    let base = base.to_lowercase();
    let limit = (base.len() / 4).clamp(1, 4);
    let mut scored: Vec<(usize, &str)> = Vec::new();
    for name in all.names() {
        if name.len() > base.len() + 24 {
            continue;
        }
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
        let one = |name: &str| find(&all, name, Choice::Only);
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
        assert_eq!(find(&all, "cleanup", Choice::All).unwrap().len(), 3);
        assert_eq!(
            find(&all, "cleanup", Choice::Number(2)).unwrap()[0].address,
            0xffffffff81000280
        );
        assert!(find(&all, "cleanup", Choice::Number(4)).is_err());
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
        let why = |name: &str| find(&all, name, Choice::Only).unwrap_err();
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
}
