// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where in a program's file is a call instruction, and what lies behind it?

use std::path::{Path, PathBuf};

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use object::{Object, ObjectSegment, ObjectSymbol};

use crate::error::Error;
use crate::resource::call_site_parse;

/// A place in a program that calls.
#[derive(Clone, Debug)]
pub struct CallSite {
    pub name: String,
    pub path: PathBuf,
    /// Offsets in the file, as uprobes want them.
    pub call_offset: usize,
    pub behind_offset: usize,
}

impl CallSite {
    /// Finds `PROGRAM:FUNCTION+0x1f` or `PROGRAM:0xADDRESS`. A place that is no
    /// call instruction is refused, with those of the function listed.
    pub fn find(text: &str) -> Result<CallSite, Error> {
        let (path, place) = call_site_parse(text).map_err(Error::Usage)?;
        let data = std::fs::read(path).map_err(Error::system(path.display().to_string()))?;
        Self::find_in(text, path, place, &data).map_err(Error::Usage)
    }

    fn find_in(text: &str, path: &Path, place: &str, data: &[u8]) -> Result<CallSite, String> {
        let file = object::File::parse(data)
            .map_err(|e| format!("{}: no program file: {e}", path.display()))?;
        let (name, offset) = match place.rsplit_once('+') {
            Some((name, offset)) => (name, number(offset)?),
            None => (place, 0),
        };
        let (start, len) = if let Some(hex) = name.strip_prefix("0x") {
            let address =
                u64::from_str_radix(hex, 16).map_err(|_| format!("{name}: no address"))?;
            (address, 16)
        } else {
            let symbol = file
                .symbols()
                .chain(file.dynamic_symbols())
                .find(|s| s.name() == Ok(name) && s.address() != 0)
                .ok_or_else(|| {
                    format!(
                        "{} has no function {name}: name a function of its symbol table (nm {0}), \
                         or an address as objdump -d shows it",
                        path.display()
                    )
                })?;
            (symbol.address(), symbol.size().max(16))
        };
        let address = start + offset;
        let segment = file
            .segments()
            .find(|s| (s.address()..s.address() + s.size()).contains(&address))
            .ok_or_else(|| format!("{address:#x} lies in no segment of {}", path.display()))?;
        let to_file = |a: u64| (a - segment.address() + segment.file_range().0) as usize;
        let bytes = segment.data().map_err(|e| e.to_string())?;
        let from = (start - segment.address()) as usize;
        let to = (from + len as usize + 16).min(bytes.len());
        let mut decoder = Decoder::with_ip(64, &bytes[from..to], start, DecoderOptions::NONE);
        let mut calls = Vec::new();
        for instruction in &mut decoder {
            let calling = matches!(
                instruction.flow_control(),
                FlowControl::Call | FlowControl::IndirectCall
            );
            if instruction.ip() == address {
                if calling {
                    return Ok(CallSite {
                        name: text.to_owned(),
                        path: path.to_owned(),
                        call_offset: to_file(address),
                        behind_offset: to_file(instruction.next_ip()),
                    });
                }
                break;
            }
        }
        let mut decoder = Decoder::with_ip(
            64,
            &bytes[from..(from + len as usize).min(bytes.len())],
            start,
            DecoderOptions::NONE,
        );
        for instruction in &mut decoder {
            if matches!(
                instruction.flow_control(),
                FlowControl::Call | FlowControl::IndirectCall
            ) {
                let target = instruction.near_branch_target();
                let callee = file
                    .symbols()
                    .find(|s| target != 0 && s.address() == target)
                    .and_then(|s| s.name().ok().map(str::to_owned));
                calls.push(format!(
                    "{name}+{:#x}{}",
                    instruction.ip() - start,
                    callee.map(|c| format!(" ({c})")).unwrap_or_default()
                ));
            }
        }
        Err(format!(
            "{text}: no call instruction begins there{}",
            if calls.is_empty() {
                String::new()
            } else {
                format!("; {name} calls at {}", calls.join(", "))
            }
        ))
    }
}

fn number(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .map_err(|_| format!("{text} is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_instructions_of_our_own_program() {
        let me = std::env::current_exe().unwrap();
        let data = std::fs::read(&me).unwrap();
        let listing = CallSite::find_in("x", &me, "main", &data).unwrap_err();
        let (_, calls) = listing.split_once(" calls at ").expect(&listing);
        let first = calls.split([',', ' ']).next().unwrap();
        let site = CallSite::find_in("x", &me, first, &data).unwrap();
        assert!(
            (2..=7).contains(&(site.behind_offset - site.call_offset)),
            "{site:?}"
        );
        // A near call, relative or through memory.
        assert!(
            matches!(data[site.call_offset], 0xe8 | 0xff | 0x41 | 0x67),
            "{site:?}"
        );
        assert!(CallSite::find_in("x", &me, "no_such_function_", &data).is_err());
    }
}
