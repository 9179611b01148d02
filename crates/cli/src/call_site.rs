// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which place in the program does a return address stand for?

use crate::session::names_of;
use debox_symbol::{CodeFile, UserCode};

struct Module {
    start: u64,
    end: u64,
    offset: u64,
    path: String,
}

/// The executable mappings of one process at the time it connected.
pub struct Modules(Vec<Module>);

impl Modules {
    pub fn of_process(pid: u32) -> Option<Self> {
        let text = std::fs::read(format!("/proc/{pid}/maps")).ok()?;
        Some(Self::parse(&String::from_utf8_lossy(&text)))
    }

    /// Those of process n; for one that had ended before they could be read,
    /// those of another that has code at the address. That is as good as always
    /// one it was forked from or with: a child has its parent's addresses, and
    /// programs started apart lie at random ones.
    pub fn holding(all: &[Option<Self>], process: usize, address: u64) -> Option<&Self> {
        let own = all.get(process).and_then(Option::as_ref);
        if let Some(own) = own
            && !own.0.is_empty()
        {
            return Some(own);
        }
        all.iter()
            .flatten()
            .find(|modules| modules.find(address).is_some())
    }

    fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(Module::parse).collect())
    }

    fn find(&self, address: u64) -> Option<(&str, u64)> {
        let module = self
            .0
            .iter()
            .find(|m| (m.start..m.end).contains(&address))?;
        Some((&module.path, address - module.start + module.offset))
    }
}

impl Module {
    fn parse(line: &str) -> Option<Self> {
        // 55d0c0000000-55d0c0021000 r-xp 00002000 fe:01 1234   /usr/bin/cat
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        if !words.next()?.contains('x') {
            return None;
        }
        let offset = words.next()?;
        let path = words.nth(2)?.trim_start();
        Some(Self {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            offset: u64::from_str_radix(offset, 16).ok()?,
            path: path.to_owned(),
        })
    }
}

/// `function (file.c:12)`, `module+0x1234`, or the bare address of code that
/// was mapped after the process connected.
pub fn name(modules: Option<&Modules>, address: u64) -> String {
    if address == 0 {
        return "(unknown)".into();
    }
    let Some((path, offset)) = modules.and_then(|m| m.find(address)) else {
        return format!("{address:#x}");
    };
    let file = CodeFile {
        path: path.into(),
        pid: None,
        build_id: None,
    };
    let frames = names_of(&UserCode::File(file), offset);
    // Not the functions inlined into it: one line is one place.
    match frames.last() {
        Some(frame) => frame.to_string(),
        None => format!("{address:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_found_by_address() {
        let modules = Modules::parse(
            "1000-2000 r--p 00000000 fe:01 12    /bin/a b\n\
             2000-3000 r-xp 00001000 fe:01 12    /bin/a b\n\
             7000-8000 r-xp 00000000 00:00 0    [vdso]\n\
             9000-a000 r-xp 00000000 00:00 0 \n\
             garbage\n",
        );
        assert_eq!(modules.find(0x2010), Some(("/bin/a b", 0x1010)));
        assert_eq!(modules.find(0x1010), None);
        assert_eq!(modules.find(0x3000), None);
        assert_eq!(name(Some(&modules), 0x7004), "[vdso]+0x4");
        assert_eq!(name(Some(&modules), 0x5004), "0x5004");
        assert_eq!(name(None, 0), "(unknown)");
    }

    #[test]
    fn an_ended_child_is_read_with_its_parents_mappings() {
        let parsed = |path: &str, start: &str, end: &str| {
            Modules::parse(&format!("{start}-{end} r-xp 00000000 fe:01 12    {path}\n"))
        };
        let all = [
            Some(parsed("/bin/other", "1000", "2000")),
            Some(parsed("/bin/parent", "5000", "6000")),
            Some(Modules::parse("")),
            None,
        ];
        let path = |process, address| {
            let modules = Modules::holding(&all, process, address)?;
            Some(modules.find(address)?.0)
        };
        assert_eq!(path(0, 0x5004), None, "its own are known");
        assert_eq!(path(1, 0x5004), Some("/bin/parent"));
        assert_eq!(path(2, 0x5004), Some("/bin/parent"));
        assert_eq!(path(3, 0x5004), Some("/bin/parent"));
        assert_eq!(path(3, 0x9004), None);
    }

    #[inline(never)]
    fn some_function_with_a_name() -> u64 {
        some_function_with_a_name as fn() -> u64 as usize as u64
    }

    #[test]
    fn own_functions_have_names() {
        let modules = Modules::of_process(std::process::id()).unwrap();
        let name = name(Some(&modules), some_function_with_a_name() + 4);
        assert!(name.contains("some_function_with_a_name"), "{name}");
    }
}
