// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whom does a kernel function call? Read from its own machine code, as it is
//! in memory now: with all of the kernel's patching of itself applied.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use iced_x86::{Code as Op, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};

use crate::engine::{IndirectCall, MemoryOperand};
use crate::functions::{Function, Functions};

/// Where the kernel's code can be read.
pub struct Code {
    file: File,
    /// Address, offset in the file, length.
    segments: Vec<(u64, u64, u64)>,
}

/// What a function's code calls.
#[derive(Clone, Debug, Default)]
pub struct Callees {
    /// Functions called by name, in the order of the code.
    pub direct: Vec<Function>,
    /// Instructions whose target is known only when they are executed.
    pub indirect: Vec<IndirectCall>,
    /// Each call instruction: its distance from the start, and whom it calls.
    pub calls: Vec<(u64, String)>,
}

impl Code {
    /// /proc/kcore: root, and a kernel that is not locked down.
    pub fn open() -> io::Result<Code> {
        let file = File::open("/proc/kcore")?;
        let mut head = [0u8; 64];
        file.read_exact_at(&mut head, 0)?;
        let word = |at: usize| {
            let mut bytes = [0u8; 8];
            bytes.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let table = word(32);
        let count = u64::from(u16::from_le_bytes([head[56], head[57]]));
        let mut segments = Vec::new();
        for i in 0..count {
            let mut entry = [0u8; 56];
            file.read_exact_at(&mut entry, table + i * 56)?;
            let word = |at: usize| {
                let mut bytes = [0u8; 8];
                bytes.copy_from_slice(&entry[at..at + 8]);
                u64::from_le_bytes(bytes)
            };
            if entry[0] == 1 {
                segments.push((word(16), word(8), word(32)));
            }
        }
        let code = Code { file, segments };
        Ok(code)
    }

    /// The bytes at an address of the kernel.
    pub fn read(&self, address: u64, len: usize) -> io::Result<Vec<u8>> {
        let segment = self
            .segments
            .iter()
            .find(|(start, _, size)| address >= *start && address - start < *size)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let len = len.min((segment.0 + segment.2 - address) as usize);
        let mut bytes = vec![0; len];
        self.file
            .read_exact_at(&mut bytes, segment.1 + (address - segment.0))?;
        if bytes.iter().all(|b| *b == 0) {
            // What may not be read comes as zeros.
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        Ok(bytes)
    }

    /// Whom a function calls.
    pub fn callees(&self, functions: &Functions, function: &Function) -> io::Result<Callees> {
        let bytes = self.read(function.address, function.len as usize)?;
        let mut found = Found::default();
        found.scan(functions, function, function.address, &bytes);
        // The compiler moves what it thinks is rare behind all functions.
        let mut cold: Vec<Function> = Vec::new();
        std::mem::swap(&mut cold, &mut found.cold);
        for part in cold {
            if let Ok(bytes) = self.read(part.address, part.len as usize) {
                found.scan(functions, function, part.address, &bytes);
            }
        }
        let mut seen = HashSet::new();
        found
            .callees
            .direct
            .retain(|f| f.address != function.address && seen.insert(f.address));
        Ok(found.callees)
    }

    /// Whether a function is too small to take time: it calls nothing, has no
    /// loop, and waits for nothing.
    pub fn is_trivial(&self, function: &Function) -> bool {
        let Ok(bytes) = self.read(function.address, function.len.min(4096) as usize) else {
            return false;
        };
        function.len <= 4096 && straight(function.address, &bytes)
    }
}

fn straight(start: u64, bytes: &[u8]) -> bool {
    for instruction in &mut Decoder::with_ip(64, bytes, start, DecoderOptions::NONE) {
        if instruction.is_invalid() {
            return false;
        }
        // The place of the call that tracing patches in.
        if instruction.ip() - start <= 4 && instruction.len() == 5 {
            continue;
        }
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::Return | FlowControl::Interrupt => {}
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                let target = instruction.near_branch_target();
                let inside = (start..start + bytes.len() as u64).contains(&target);
                let returns = instruction.flow_control() == FlowControl::UnconditionalBranch
                    && !inside
                    && bytes.len() as u64 - (instruction.ip() - start) < 64;
                if (!inside && !returns) || (inside && target <= instruction.ip()) {
                    return false;
                }
            }
            _ => return false,
        }
        if instruction.has_rep_prefix()
            || instruction.has_repne_prefix()
            || instruction.has_lock_prefix()
            || matches!(
                instruction.code(),
                Op::Pause | Op::Hlt | Op::Wrmsr | Op::Rdmsr | Op::Wbinvd | Op::Cpuid
            )
        {
            return false;
        }
    }
    true
}

#[derive(Default)]
struct Found {
    callees: Callees,
    cold: Vec<Function>,
}

impl Found {
    fn scan(&mut self, functions: &Functions, function: &Function, start: u64, bytes: &[u8]) {
        let end = start + bytes.len() as u64;
        for instruction in &mut Decoder::with_ip(64, bytes, start, DecoderOptions::NONE) {
            let from = instruction.ip();
            let calling = match instruction.flow_control() {
                FlowControl::Call | FlowControl::UnconditionalBranch => true,
                FlowControl::ConditionalBranch => false,
                FlowControl::IndirectCall | FlowControl::IndirectBranch => {
                    if let Some(call) = indirect(&instruction) {
                        self.callees
                            .calls
                            .push((from.wrapping_sub(function.address), "(indirect)".into()));
                        self.callees.indirect.push(call);
                    }
                    continue;
                }
                _ => continue,
            };
            let target = instruction.near_branch_target();
            if target == 0 || (start..end).contains(&target) {
                continue;
            }
            let Some((callee, offset)) = functions.around(target) else {
                continue;
            };
            if callee.name.starts_with(&function.name) && callee.name.contains(".cold") {
                // Also reached by conditional jumps; once is enough.
                if !self.cold.contains(&callee) {
                    self.cold.push(callee);
                }
                continue;
            }
            if !calling || (function.address..function.address + function.len).contains(&target) {
                continue;
            }
            // Where tracing patches its own call in.
            if from - start <= 4 && start == function.address {
                continue;
            }
            if let Some(register) = thunk_register(&callee.name) {
                self.callees
                    .calls
                    .push((from.wrapping_sub(function.address), "(indirect)".into()));
                self.callees.indirect.push(IndirectCall {
                    address: from,
                    register,
                    memory: None,
                });
                continue;
            }
            // Behind the endbr64; further inside is no call of the function.
            if offset > 4 || callee.name.starts_with("__x86_return_thunk") {
                continue;
            }
            if matches!(callee.name.as_str(), "__stack_chk_fail" | "__fentry__") {
                continue;
            }
            self.callees
                .calls
                .push((from.wrapping_sub(function.address), callee.full_name()));
            self.callees.direct.push(callee);
        }
        // Conditional jumps into the cold part.
        for instruction in &mut Decoder::with_ip(64, bytes, start, DecoderOptions::NONE) {
            if instruction.flow_control() != FlowControl::ConditionalBranch {
                continue;
            }
            let target = instruction.near_branch_target();
            if let Some((callee, _)) = functions.around(target)
                && callee.name.starts_with(&function.name)
                && callee.name.contains(".cold")
                && callee.address != start
                && !self.cold.contains(&callee)
            {
                self.cold.push(callee);
            }
        }
    }
}

/// The place of a register among those that a kprobe sees (bpf/kern.bpf.c).
fn register_place(register: Register) -> Option<u8> {
    Some(match register {
        Register::R15 => 0,
        Register::R14 => 1,
        Register::R13 => 2,
        Register::R12 => 3,
        Register::RBP => 4,
        Register::RBX => 5,
        Register::R11 => 6,
        Register::R10 => 7,
        Register::R9 => 8,
        Register::R8 => 9,
        Register::RAX => 10,
        Register::RCX => 11,
        Register::RDX => 12,
        Register::RSI => 13,
        Register::RDI => 14,
        Register::RSP => 19,
        _ => return None,
    })
}

/// Retpolines: one small function for each register.
fn thunk_register(name: &str) -> Option<u8> {
    let register = [
        "__x86_indirect_thunk_",
        "__x86_indirect_call_thunk_",
        "__x86_indirect_jump_thunk_",
    ]
    .iter()
    .find_map(|prefix| name.strip_prefix(prefix))?;
    register_place(match register {
        "rax" | "array" => Register::RAX,
        "rbx" => Register::RBX,
        "rcx" => Register::RCX,
        "rdx" => Register::RDX,
        "rsi" => Register::RSI,
        "rdi" => Register::RDI,
        "rbp" => Register::RBP,
        "r8" => Register::R8,
        "r9" => Register::R9,
        "r10" => Register::R10,
        "r11" => Register::R11,
        "r12" => Register::R12,
        "r13" => Register::R13,
        "r14" => Register::R14,
        "r15" => Register::R15,
        _ => return None,
    })
}

fn indirect(instruction: &Instruction) -> Option<IndirectCall> {
    match instruction.op0_kind() {
        OpKind::Register => Some(IndirectCall {
            address: instruction.ip(),
            register: register_place(instruction.op0_register())?,
            memory: None,
        }),
        OpKind::Memory => {
            let base = instruction.memory_base();
            let index = instruction.memory_index();
            // Switches jump through a table: no call.
            if instruction.flow_control() == FlowControl::IndirectBranch && index != Register::None
            {
                return None;
            }
            Some(IndirectCall {
                address: instruction.ip(),
                // A number that is no register reads as 0.
                register: if base == Register::None || base == Register::RIP {
                    0xff
                } else {
                    register_place(base)?
                },
                memory: Some(MemoryOperand {
                    displacement: instruction.memory_displacement64() as i64,
                    index: if index == Register::None {
                        None
                    } else {
                        Some(register_place(index)?)
                    },
                    scale: instruction.memory_index_scale() as u8,
                }),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions() -> Functions {
        Functions::read(
            "0000000000001000 T caller\n\
             0000000000001100 T callee\n\
             0000000000001200 T other\n\
             0000000000001300 t __x86_indirect_thunk_rbx\n\
             0000000000001400 t caller.cold\n\
             0000000000001500 T end\n"
                .as_bytes(),
        )
        .unwrap()
    }

    fn call(from: u64, to: u64) -> [u8; 5] {
        let [a, b, c, d] = (to.wrapping_sub(from + 5) as u32).to_le_bytes();
        [0xe8, a, b, c, d]
    }

    #[test]
    fn calls_are_found() {
        let all = functions();
        let caller = all.starting_at(0x1000).unwrap();
        let mut code = vec![0xf3, 0x0f, 0x1e, 0xfa]; // endbr64
        code.extend(call(0x1004, 0x1200)); // tracing's
        code.extend(call(0x1009, 0x1100)); // callee
        code.extend(call(0x100e, 0x1104)); // callee behind its endbr64
        code.extend(call(0x1013, 0x1300)); // through rbx
        code.extend([0xff, 0xd0]); // call *%rax, 0x1018
        code.extend([0xff, 0x53, 0x10]); // call *0x10(%rbx), 0x101a
        code.extend([0x0f, 0x84]); // je caller.cold, 0x101d
        code.extend((0x1400u32 - 0x1023).to_le_bytes());
        let mut jump = call(0x1023, 0x1200); // jmp other: a tail call
        jump[0] = 0xe9;
        code.extend(jump);
        let mut found = Found::default();
        found.scan(&all, &caller, 0x1000, &code);
        let names: Vec<&str> = found
            .callees
            .direct
            .iter()
            .map(|f| f.name.as_str())
            .collect();
        assert_eq!(names, ["callee", "callee", "other"]);
        assert_eq!(found.cold[0].name, "caller.cold");
        let places: Vec<(u64, u8)> = found
            .callees
            .indirect
            .iter()
            .map(|c| (c.address, c.register))
            .collect();
        assert_eq!(places, [(0x1013, 5), (0x1018, 10), (0x101a, 5)]);
        let memory = found.callees.indirect[2].memory.as_ref().unwrap();
        assert_eq!((memory.displacement, memory.index), (0x10, None));
    }

    #[test]
    fn what_takes_no_time() {
        // mov %rdi,%rax; ret
        assert!(straight(0x1000, &[0x48, 0x89, 0xf8, 0xc3]));
        // a loop
        assert!(!straight(0x1000, &[0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3]));
        // rep movsb
        assert!(!straight(0x1000, &[0xf3, 0xa4, 0xc3]));
        // a call, beyond the place of tracing
        let mut code = vec![0x90; 8];
        code.extend(call(0x1008, 0x1100));
        assert!(!straight(0x1000, &code));
    }
}
