// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do the BPF programs fit the stack that Linux 6.1 gives them?
//!
//! Its verifier adds up what all functions of a call path use, each rounded up to 32
//! bytes, and refuses more than 512, or more than 8 functions deep
//! (check_max_stack_depth). Newer kernels round to 16, or give each program a stack of
//! its own: what does not fit is seen here in a second, and not in a guest first.

use object::read::elf::{ElfFile64, ElfSection64, FileHeader};
use object::{
    Endianness, Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionKind, SymbolKind,
};
use std::collections::HashMap;
use std::path::Path;

const STACK_BYTES: u64 = 512;
const FRAMES: usize = 8;
/// R10, the frame's end; below it lies what a function keeps.
const FRAME: u8 = 10;

type File<'a> = ElfFile64<'a, Endianness>;

/// Of a function: its section and first instruction.
type At = (usize, u64);

struct Function {
    name: String,
    /// Nothing calls it but the kernel.
    program: bool,
    stack: u64,
    calls: Vec<At>,
}

fn functions(data: &[u8]) -> HashMap<At, Function> {
    let file = File::parse(data).expect("an object of clang's");
    assert_eq!(
        file.elf_header().e_machine(Endianness::Little),
        object::elf::EM_BPF
    );
    let mut found = HashMap::new();
    for section in file.sections().filter(|s| s.kind() == SectionKind::Text) {
        functions_of(&file, &section, &mut found);
    }
    found
}

fn functions_of<'a>(
    file: &File<'a>,
    section: &ElfSection64<'a, '_>,
    found: &mut HashMap<At, Function>,
) {
    let own = section.index();
    let code = section.data().expect("in the file");
    // None: of the kernel.
    let targets: HashMap<u64, Option<At>> = section
        .relocations()
        .filter_map(|(offset, relocation)| {
            let RelocationTarget::Symbol(target) = relocation.target() else {
                return None;
            };
            let target = file.symbol_by_index(target).expect("clang wrote it");
            let section = target.section_index();
            let at = section.map(|section| (section.0, target.address() / 8));
            Some((offset / 8, at))
        })
        .collect();
    let symbols = file.symbols().filter(|symbol| {
        symbol.section_index() == Some(own)
            && symbol.kind() == SymbolKind::Text
            && symbol.size() > 0
    });
    for symbol in symbols {
        let first = symbol.address() / 8;
        let mut function = Function {
            name: symbol.name().expect("clang names functions").to_owned(),
            program: section.name() != Ok(".text"),
            stack: 0,
            calls: Vec::new(),
        };
        let mut copies = [false; 16];
        for at in first..first + symbol.size() / 8 {
            let word = &code[at as usize * 8..][..8];
            let (destination, source) = (word[1] & 15, word[1] >> 4);
            let offset = i64::from(i16::from_le_bytes([word[2], word[3]]));
            let number = i64::from(i32::from_le_bytes([word[4], word[5], word[6], word[7]]));
            let mut below = |offset: i64| {
                function.stack = function.stack.max(offset.min(0).unsigned_abs());
            };
            match word[0] {
                // *(r10 + offset) read, or written.
                code if code & 7 == 1 && source == FRAME => below(offset),
                code if matches!(code & 7, 2 | 3) && destination == FRAME => below(offset),
                // r = r10; r += number: the address of something that is kept.
                0xbf => copies[usize::from(destination)] = source == FRAME,
                0x07 if std::mem::take(&mut copies[usize::from(destination)]) => below(number),
                // A call of a function of this object.
                0x85 if source == 1 => {
                    function.calls.extend(match targets.get(&at) {
                        // By its section's name, to that much behind the call.
                        Some(Some((section, 0))) => Some((*section, (number + 1) as u64)),
                        Some(target) => *target,
                        None => Some((own.0, (at as i64 + 1 + number) as u64)),
                    });
                }
                // The address of one, for bpf_loop(): 0x18 with a place in .text.
                0x18 => {
                    if let Some(&Some((section, start))) = targets.get(&at)
                        && file
                            .section_by_index(object::SectionIndex(section))
                            .is_ok_and(|s| s.name() == Ok(".text"))
                    {
                        function.calls.push((section, start + number as u64 / 8));
                    }
                }
                _ => {}
            }
        }
        found.insert((own.0, first), function);
    }
}

/// The deepest path by bytes and the longest by functions, from `at` on.
fn deepest(
    all: &HashMap<At, Function>,
    at: At,
    above: &mut Vec<At>,
    bytes: u64,
    worst: &mut (u64, usize, String),
) {
    let function = all
        .get(&at)
        .unwrap_or_else(|| panic!("a call to {at:?}, where no function begins"));
    let bytes = bytes + function.stack.max(1).next_multiple_of(32);
    above.push(at);
    if bytes > worst.0 {
        worst.0 = bytes;
        let path: Vec<_> = above
            .iter()
            .map(|at| format!("{} {}", all[at].name, all[at].stack))
            .collect();
        worst.2 = path.join(" > ");
    }
    worst.1 = worst.1.max(above.len());
    for &next in &function.calls {
        // The verifier refuses a circle; bpf_loop's functions may name their caller's.
        if !above.contains(&next) {
            deepest(all, next, above, bytes, worst);
        }
    }
    above.pop();
}

#[test]
fn all_programs_fit_the_stack_of_linux_6_1() {
    for name in ["debox", "trace", "doctor", "floor"] {
        let path = Path::new(env!("OUT_DIR")).join(format!("{name}.bpf.o"));
        let all = functions(&std::fs::read(&path).expect("left by the build script"));
        let programs = all.iter().filter(|(_, function)| function.program);
        let mut seen = 0;
        for (&at, function) in programs {
            let mut worst = (0, 0, String::new());
            deepest(&all, at, &mut Vec::new(), 0, &mut worst);
            assert!(
                worst.0 <= STACK_BYTES && worst.1 <= FRAMES,
                "{name}: {} needs {} bytes of stack and is {} functions deep; Linux 6.1 gives {STACK_BYTES} and {FRAMES}: {}",
                function.name,
                worst.0,
                worst.1,
                worst.2
            );
            seen += 1;
        }
        assert!(seen > 0, "{name}: no programs");
        assert!(
            name != "debox" || all.values().any(|f| f.stack > 100 && !f.calls.is_empty()),
            "nothing was seen"
        );
    }
}
