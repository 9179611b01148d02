// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a RESOURCE on the command line stand for?

use std::path::{Path, PathBuf};

use crate::engine::Resource;
use crate::functions::{Choice, Functions, find};

/// A resource as written, in parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub name: String,
    pub offset: Option<u64>,
    pub choice: Choice,
    pub pids: Vec<u32>,
    pub call: Option<String>,
    pub cgroup: Option<PathBuf>,
    pub call_site: Option<String>,
}

impl Written {
    pub fn parse(text: &str) -> Result<Written, String> {
        let (place, rest) = match text.split_once('@') {
            Some((place, rest)) => (place, Some(rest)),
            None => (text, None),
        };
        if place.is_empty() {
            return Err(format!("{text:?}: the name of a function is missing"));
        }
        let mut written = Written {
            name: place.to_owned(),
            ..Written::default()
        };
        if let Some((name, offset)) = place.rsplit_once('+') {
            let parsed = match offset.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).ok(),
                None => offset.parse().ok(),
            };
            let offset = parsed.filter(|o| *o < 1 << 20).ok_or_else(|| {
                format!("{place}: {offset} is no distance from a function's start, such as 0x1f")
            })?;
            written.name = name.to_owned();
            written.offset = Some(offset);
        }
        for item in rest.into_iter().flat_map(|r| r.split(',')) {
            match item.split_once('=') {
                Some(("pid", value)) => written.pids.push(
                    value
                        .parse()
                        .ok()
                        .filter(|p| *p > 0)
                        .ok_or_else(|| format!("{text}: {value} is no process id"))?,
                ),
                Some(("call", value)) => written.call = Some(value.to_owned()),
                Some(("cgroup", value)) => written.cgroup = Some(value.into()),
                Some(("from", value)) => written.call_site = Some(value.to_owned()),
                Some((key, _)) => {
                    return Err(format!(
                        "{text}: a metric can be restricted by pid=, call=, cgroup= and \
                         from=, not by {key}="
                    ));
                }
                None if item == "all" => written.choice = Choice::All,
                None => match item.parse() {
                    Ok(n) if n > 0 => written.choice = Choice::Number(n),
                    _ => {
                        return Err(format!(
                            "{text}: {item:?} is neither the number of one of several functions, \
                             nor `all`, nor a restriction such as pid=1234"
                        ));
                    }
                },
            }
        }
        Ok(written)
    }

    /// Where a system call's function cannot be measured, the call still can:
    /// how that is written.
    pub fn as_call(&self) -> Option<String> {
        let name = ["__x64_sys_", "__do_sys_", "__se_sys_", "sys_"]
            .iter()
            .find_map(|prefix| self.name.strip_prefix(prefix))
            .unwrap_or(&self.name);
        debox_symbol::syscall_number(name)?;
        Some(format!(
            "the system call as a whole can be measured without that: debox kern '{name}()'"
        ))
    }

    /// The functions, instruction or call that it names.
    pub fn resolve(&self, functions: &Functions) -> Result<Vec<Resource>, String> {
        if let Some(name) = self.name.strip_suffix("()") {
            let number = debox_symbol::syscall_number(name).ok_or_else(|| {
                format!("{name} is no system call of this kernel: see `man 2 syscalls`")
            })?;
            return Ok(vec![Resource::Call {
                number: number as i32,
                name: name.to_owned(),
            }]);
        }
        if self.name.contains(['*', '?']) {
            let (module, pattern) = match self.name.split_once(':') {
                Some((module, pattern)) => (Some(module.replace('-', "_")), pattern),
                None => (None, self.name.as_str()),
            };
            let found = functions.matching(pattern, module.as_deref());
            if found.is_empty() {
                return Err(format!(
                    "no function that can be attached to matches {}: see \
                     /sys/kernel/tracing/available_filter_functions",
                    self.name
                ));
            }
            return Ok(found.into_iter().map(Resource::Function).collect());
        }
        let found = match find(functions, &self.name, self.choice) {
            Ok(found) => found,
            Err(why) => match call_entry(functions, &self.name) {
                Some(function) => vec![function],
                None => return Err(why),
            },
        };
        let Some(offset) = self.offset else {
            return Ok(found.into_iter().map(Resource::Function).collect());
        };
        found
            .into_iter()
            .map(|function| {
                if offset >= function.len {
                    return Err(format!(
                        "{} is only {:#x} bytes long",
                        function.name, function.len
                    ));
                }
                Ok(Resource::Instruction { function, offset })
            })
            .collect()
    }
}

/// A system call's own function, by the name of the call.
pub fn call_entry(functions: &Functions, call: &str) -> Option<crate::functions::Function> {
    debox_symbol::syscall_number(call)?;
    ["__x64_sys_", "__se_sys_", "sys_"]
        .iter()
        .find_map(|prefix| {
            functions
                .named(&format!("{prefix}{call}"), None)
                .into_iter()
                .next()
        })
}

/// `PROGRAM:FUNCTION+0x1f` or `PROGRAM:0xADDRESS`.
pub fn call_site_parse(text: &str) -> Result<(&Path, &str), String> {
    text.rsplit_once(':')
        .filter(|(program, place)| !program.is_empty() && !place.is_empty())
        .map(|(program, place)| (Path::new(program), place))
        .ok_or_else(|| {
            format!("{text}: a call site is written PROGRAM:FUNCTION+0x1f or PROGRAM:0xADDRESS")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_resources() {
        let w = Written::parse("ext4:ext4_lookup+0x1f@pid=12,pid=13,call=openat").unwrap();
        assert_eq!(w.name, "ext4:ext4_lookup");
        assert_eq!(w.offset, Some(0x1f));
        assert_eq!(w.pids, [12, 13]);
        assert_eq!(w.call.as_deref(), Some("openat"));
        assert_eq!(Written::parse("f@2").unwrap().choice, Choice::Number(2));
        assert_eq!(Written::parse("f@all").unwrap().choice, Choice::All);
        assert_eq!(Written::parse("f+31").unwrap().offset, Some(31));
        for bad in [
            "",
            "@1",
            "f@0",
            "f@x",
            "f+",
            "f+0xzz",
            "f@color=red",
            "f@pid=0",
        ] {
            assert!(Written::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn calls_and_their_functions() {
        let functions = Functions::read(
            "ffffffff81000100 T __x64_sys_openat\nffffffff81000200 t do_open\nffffffff81000300 T _etext\n".as_bytes(),
        )
        .unwrap();
        let resolve = |text: &str| Written::parse(text).unwrap().resolve(&functions);
        assert_eq!(resolve("openat()").unwrap()[0].name(), "openat()");
        assert_eq!(resolve("openat").unwrap()[0].name(), "__x64_sys_openat");
        assert!(resolve("nosuch()").is_err());
        assert_eq!(resolve("do_open+0x10").unwrap()[0].name(), "do_open+0x10");
        assert!(
            resolve("__x64_sys_openat+0x100")
                .unwrap_err()
                .contains("only 0x100 bytes")
        );
        assert_eq!(resolve("*o*").unwrap().len(), 2);
        assert!(resolve("zzz*").is_err());
    }

    #[test]
    fn call_sites() {
        assert_eq!(
            call_site_parse("/bin/x:main+0x4").unwrap(),
            (Path::new("/bin/x"), "main+0x4")
        );
        assert!(call_site_parse("main").is_err());
        assert!(call_site_parse(":main").is_err());
    }
}
