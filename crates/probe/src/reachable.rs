// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which instructions of a program can run on this kernel?
//!
//! Programs ask what the kernel has (`bpf/core_fixes.h`) and what the user side has set for good
//! (`const volatile`). Before loading, the answers are constants, and the kernel takes out what
//! they exclude: one piece at a time, for each of which it moves all that follows. There are
//! thousands of pieces, and that was an eighth of what a start took. Here they go at once: branches
//! that are decided, what only the other side leads to, functions that nobody calls, and values that
//! nobody uses any more. What is left means the same, and the kernel verifies it.

use libbpf_rs::libbpf_sys as sys;
use std::collections::HashMap;

/// What the kernel may load: code, and what is told of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Code {
    pub instructions: Vec<sys::bpf_insn>,
    pub functions: Vec<sys::bpf_func_info>,
    pub lines: Vec<sys::bpf_line_info>,
}

/// The content of maps that nobody writes any more, by their descriptors.
pub(crate) type Constants = HashMap<i32, Vec<u8>>;

// linux/bpf_common.h, linux/bpf.h
const CLASS: u8 = 0x07;
const LD: u8 = 0x00;
const LDX: u8 = 0x01;
const STX: u8 = 0x03;
const ALU: u8 = 0x04;
const JMP: u8 = 0x05;
const JMP32: u8 = 0x06;
const ALU64: u8 = 0x07;
const OPERATION: u8 = 0xf0;
const SOURCE_REGISTER: u8 = 0x08;
const MODE: u8 = 0xe0;
const MEM: u8 = 0x60;
const ATOMIC: u8 = 0xc0;
const LD_IMM64: u8 = 0x18;
const JA: u8 = 0x00;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
const JCOND: u8 = 0xe0;
const ADD: u8 = 0x00;
const AND: u8 = 0x50;
const LSH: u8 = 0x60;
const RSH: u8 = 0x70;
const END: u8 = 0xd0;
const MOV: u8 = 0xb0;
const PSEUDO_CALL: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;
const PSEUDO_FUNC: u8 = 4;

const REGISTERS: usize = 11;
/// What a call takes and leaves.
const ARGUMENTS: u16 = 0b11_1110;
const CLOBBERED: usize = 6;

/// What is known of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Anything,
    NotZero,
    Is(u64),
    /// An address in a map that nobody writes.
    Constant {
        map: i32,
        at: u32,
    },
}

impl Value {
    /// What holds of either.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (a, b) if a == b => a,
            (a, b) if a.not_zero() && b.not_zero() => Self::NotZero,
            _ => Self::Anything,
        }
    }

    fn not_zero(self) -> bool {
        match self {
            Self::Anything => false,
            Self::NotZero | Self::Constant { .. } => true,
            Self::Is(value) => value != 0,
        }
    }
}

type Known = [Value; REGISTERS];
const NOTHING: Known = [Value::Anything; REGISTERS];

/// Where an instruction leads to besides the next one, or what it refers to.
fn target(at: usize, distance: i64) -> usize {
    (at as i64 + 1 + distance) as usize
}

fn class(of: &sys::bpf_insn) -> u8 {
    of.code & CLASS
}

fn is_jump(of: &sys::bpf_insn) -> bool {
    matches!(class(of), JMP | JMP32) && !matches!(of.code & OPERATION, CALL | EXIT)
}

fn is_goto(of: &sys::bpf_insn) -> bool {
    of.code == JMP | JA
}

fn is_call(of: &sys::bpf_insn) -> bool {
    of.code == JMP | CALL
}

fn slots(of: &sys::bpf_insn) -> usize {
    if of.code == LD_IMM64 { 2 } else { 1 }
}

/// A function of the program that is called, or whose address is taken.
fn function_of(at: usize, of: &sys::bpf_insn) -> Option<usize> {
    let called = is_call(of) && of.src_reg() == PSEUDO_CALL;
    let taken = of.code == LD_IMM64 && of.src_reg() == PSEUDO_FUNC;
    (called || taken).then(|| target(at, i64::from(of.imm)))
}

/// Instructions that a compiler for `-mcpu=v3` does not make, and nobody here understands.
fn is_foreign(of: &sys::bpf_insn) -> bool {
    match class(of) {
        JMP => {
            of.code & OPERATION == JCOND
                || matches!(of.code & OPERATION, CALL | EXIT | JA) && of.code & SOURCE_REGISTER != 0
        }
        JMP32 => matches!(of.code & OPERATION, JA | CALL | EXIT | JCOND),
        // 0: the second half of one.
        LD => !matches!(of.code, LD_IMM64 | 0),
        _ => false,
    }
}

struct Walk<'a> {
    code: &'a [sys::bpf_insn],
    constants: &'a Constants,
    /// Where ways meet: behind a jump, a call, and at the beginning.
    meets: Vec<bool>,
    /// What is known there, as soon as a way leads there.
    known: Vec<Option<Box<Known>>>,
    todo: Vec<usize>,
    runs: Vec<bool>,
    jumps: Vec<bool>,
    falls: Vec<bool>,
    /// Loads of what is constant.
    constant: Vec<bool>,
}

impl<'a> Walk<'a> {
    fn of(code: &'a [sys::bpf_insn], constants: &'a Constants) -> Self {
        let none = vec![false; code.len()];
        let mut meets = none.clone();
        for (at, this) in code.iter().enumerate() {
            if is_jump(this) {
                meets[target(at, i64::from(this.off))] = true;
            }
            if let Some(function) = function_of(at, this) {
                meets[function] = true;
            }
        }
        let mut walk = Self {
            code,
            constants,
            meets,
            known: vec![None; code.len()],
            todo: vec![],
            runs: none.clone(),
            jumps: none.clone(),
            falls: none.clone(),
            constant: none,
        };
        walk.reach(0, &NOTHING);
        while let Some(at) = walk.todo.pop() {
            if let Some(known) = walk.known[at].as_deref().copied() {
                walk.from(at, known);
            }
        }
        walk
    }

    /// There with this knowledge, beside what was known of other ways there.
    fn reach(&mut self, at: usize, with: &Known) {
        let both = match &self.known[at] {
            Some(known) => std::array::from_fn(|i| known[i].or(with[i])),
            None => *with,
        };
        if self.known[at].as_deref() != Some(&both) {
            self.known[at] = Some(Box::new(both));
            self.todo.push(at);
        }
    }

    /// To where other ways come in, too, or no further.
    fn from(&mut self, begin: usize, mut known: Known) {
        let mut at = begin;
        while let Some(this) = self.code.get(at) {
            if at != begin && self.meets[at] {
                return self.reach(at, &known);
            }
            self.runs[at] = true;
            if let Some(function) = function_of(at, this) {
                self.reach(function, &NOTHING);
            }
            match class(this) {
                JMP | JMP32 if is_call(this) => known[..CLOBBERED].fill(Value::Anything),
                JMP | JMP32 if is_jump(this) => {
                    let decided = if is_goto(this) {
                        Some(true)
                    } else {
                        decide(this, &known)
                    };
                    if decided != Some(false) {
                        self.jumps[at] = true;
                        self.reach(target(at, i64::from(this.off)), &known);
                    }
                    if decided == Some(true) {
                        return;
                    }
                    self.falls[at] = true;
                }
                JMP | JMP32 => return,
                STX if this.code & MODE == ATOMIC => {
                    known[0] = Value::Anything;
                    known[usize::from(this.src_reg())] = Value::Anything;
                }
                LDX => {
                    let value = self.load(this, known[usize::from(this.src_reg())]);
                    self.constant[at] = value.is_some();
                    known[usize::from(this.dst_reg())] = value.map_or(Value::Anything, Value::Is);
                }
                LD => known[usize::from(this.dst_reg())] = self.immediate(at, this),
                ALU | ALU64 => known[usize::from(this.dst_reg())] = computed(this, &known),
                _ => {}
            }
            at += slots(this);
        }
    }

    fn immediate(&self, at: usize, this: &sys::bpf_insn) -> Value {
        let high = self.code.get(at + 1).map_or(0, |next| next.imm) as u32;
        match this.src_reg() {
            0 => Value::Is(u64::from(high) << 32 | u64::from(this.imm as u32)),
            PSEUDO_MAP_VALUE if self.constants.contains_key(&this.imm) => Value::Constant {
                map: this.imm,
                at: high,
            },
            // Maps, functions, what the kernel has by a name that it knows.
            _ => Value::NotZero,
        }
    }

    fn load(&self, this: &sys::bpf_insn, from: Value) -> Option<u64> {
        const SIZE: u8 = 0x18;
        let Value::Constant { map, at } = from else {
            return None;
        };
        if this.code & MODE != MEM {
            return None;
        }
        let length = match this.code & SIZE {
            0x00 => 4,
            0x08 => 2,
            0x10 => 1,
            _ => 8,
        };
        let at = usize::try_from(i64::from(at) + i64::from(this.off)).ok()?;
        let bytes = self.constants.get(&map)?.get(at..at.checked_add(length)?)?;
        let mut value = [0; 8];
        value[..length].copy_from_slice(bytes);
        Some(u64::from_le_bytes(value))
    }
}

/// The second operand.
fn operand(of: &sys::bpf_insn, known: &Known) -> Value {
    match of.code & SOURCE_REGISTER {
        0 => Value::Is(i64::from(of.imm) as u64),
        _ => known[usize::from(of.src_reg())],
    }
}

/// Whether a condition holds, if that is certain.
fn decide(of: &sys::bpf_insn, known: &Known) -> Option<bool> {
    const JEQ: u8 = 0x10;
    const JGT: u8 = 0x20;
    const JGE: u8 = 0x30;
    const JSET: u8 = 0x40;
    const JNE: u8 = 0x50;
    const JSGT: u8 = 0x60;
    const JSGE: u8 = 0x70;
    const JLT: u8 = 0xa0;
    const JLE: u8 = 0xb0;
    const JSLT: u8 = 0xc0;
    const JSLE: u8 = 0xd0;
    let (left, right) = (known[usize::from(of.dst_reg())], operand(of, known));
    let wide = class(of) == JMP;
    let (Value::Is(left), Value::Is(right)) = (left, right) else {
        return match of.code & OPERATION {
            JEQ if wide && left.not_zero() && right == Value::Is(0) => Some(false),
            JNE if wide && left.not_zero() && right == Value::Is(0) => Some(true),
            _ => None,
        };
    };
    let (left, right, below) = match wide {
        true => (left, right, (left as i64).cmp(&(right as i64))),
        false => {
            let (left, right) = (left as u32, right as u32);
            let below = (left as i32).cmp(&(right as i32));
            (u64::from(left), u64::from(right), below)
        }
    };
    Some(match of.code & OPERATION {
        JEQ => left == right,
        JNE => left != right,
        JGT => left > right,
        JGE => left >= right,
        JLT => left < right,
        JLE => left <= right,
        JSET => left & right != 0,
        JSGT => below.is_gt(),
        JSGE => below.is_ge(),
        JSLT => below.is_lt(),
        JSLE => below.is_le(),
        _ => return None,
    })
}

fn computed(of: &sys::bpf_insn, known: &Known) -> Value {
    let wide = class(of) == ALU64;
    let (left, right) = (known[usize::from(of.dst_reg())], operand(of, known));
    let operation = of.code & OPERATION;
    // A move that extends a sign, and the like.
    if of.off != 0 || operation == END {
        return Value::Anything;
    }
    let value = match (operation, left, right) {
        (MOV, _, Value::Is(right)) => right,
        (MOV, _, right) if wide => return right,
        (ADD, Value::Constant { map, at }, Value::Is(right)) if wide => {
            let at = u32::try_from(u64::from(at).wrapping_add(right));
            return at.map_or(Value::NotZero, |at| Value::Constant { map, at });
        }
        (ADD, Value::Is(left), Value::Is(right)) => left.wrapping_add(right),
        (AND, Value::Is(left), Value::Is(right)) => left & right,
        (LSH, Value::Is(left), Value::Is(right)) if wide => left.wrapping_shl(right as u32),
        (RSH, Value::Is(left), Value::Is(right)) if wide => left.wrapping_shr(right as u32),
        _ => return Value::Anything,
    };
    Value::Is(if wide { value } else { u64::from(value as u32) })
}

/// Registers that an instruction sets, and those that it reads.
fn sets_and_reads(of: &sys::bpf_insn) -> (u16, u16) {
    let (to, from) = (1u16 << of.dst_reg(), 1u16 << of.src_reg());
    let operand = if of.code & SOURCE_REGISTER != 0 {
        from
    } else {
        0
    };
    match class(of) {
        LD => (to, 0),
        LDX => (to, from),
        ALU | ALU64 if of.code & OPERATION == MOV => (to, operand),
        // Which byte order, the bit says here.
        ALU | ALU64 if of.code & OPERATION == END => (to, to),
        ALU | ALU64 => (to, to | operand),
        JMP | JMP32 => match of.code & OPERATION {
            CALL => ((1 << CLOBBERED) - 1, ARGUMENTS),
            EXIT => (0, 1),
            JA => (0, 0),
            _ => (0, to | operand),
        },
        STX if of.code & MODE == ATOMIC => (0, to | from | 1),
        STX => (0, to | from),
        _ => (0, to),
    }
}

/// Which of those that run have an effect.
fn used(walk: &Walk<'_>) -> Vec<bool> {
    let code = walk.code;
    let mut read_from = vec![0u16; code.len() + 1];
    let mut used = walk.runs.clone();
    loop {
        let mut changed = false;
        for at in (0..code.len()).rev().filter(|&at| walk.runs[at]) {
            let this = &code[at];
            let mut after = 0;
            if !is_jump(this) && this.code != JMP | EXIT || walk.falls[at] {
                after |= read_from[at + slots(this)];
            }
            if walk.jumps[at] {
                after |= read_from[target(at, i64::from(this.off))];
            }
            let (sets, reads) = sets_and_reads(this);
            let mere = match class(this) {
                LD | ALU | ALU64 => true,
                LDX => walk.constant[at],
                _ => false,
            };
            let decided = is_jump(this) && walk.jumps[at] != walk.falls[at];
            used[at] = match () {
                () if decided => walk.jumps[at],
                () if mere => after & sets != 0,
                () => true,
            };
            let before = match used[at] && !decided {
                true => after & !sets | reads,
                false => after,
            };
            changed |= std::mem::replace(&mut read_from[at], before) != before;
        }
        if !changed {
            return used;
        }
    }
}

impl Code {
    /// What of it can run.
    pub fn reachable(&self, constants: &Constants) -> Self {
        let code = &self.instructions;
        if code.iter().any(is_foreign) {
            return self.clone();
        }
        let walk = Walk::of(code, constants);
        let mut stays = used(&walk);
        // Where what was at a place is now; from the end on, so that a jump over what goes goes, too.
        let mut next = vec![code.len(); code.len() + 1];
        for at in (0..code.len()).rev() {
            let this = &code[at];
            if stays[at] && is_jump(this) && !walk.falls[at] {
                let to = target(at, i64::from(this.off));
                stays[at] = to <= at || next[to] != next[at + 1];
            }
            next[at] = if stays[at] { at } else { next[at + 1] };
        }
        let mut moved = vec![0; code.len() + 1];
        let mut count = 0;
        for at in 0..code.len() {
            moved[at] = count;
            if stays[at] {
                count += slots(&code[at]);
            }
        }
        moved[code.len()] = count;

        let mut left = Self::default();
        for at in (0..code.len()).filter(|&at| stays[at]) {
            let mut this = code[at];
            let distance = |to: usize| moved[to] as i64 - moved[at] as i64 - 1;
            if is_jump(&this) {
                // Nothing is further away than it was.
                let off = distance(target(at, i64::from(this.off))) as i16;
                if !walk.falls[at] {
                    this = sys::bpf_insn {
                        code: JMP | JA,
                        ..Default::default()
                    };
                }
                this.off = off;
            }
            if let Some(function) = function_of(at, &this) {
                this.imm = distance(function) as i32;
            }
            left.instructions.push(this);
            left.instructions
                .extend((slots(&this) == 2).then(|| code[at + 1]));
        }
        for function in &self.functions {
            let at = function.insn_off as usize;
            if walk.runs.get(at).is_some_and(|runs| *runs) {
                left.functions.push(sys::bpf_func_info {
                    insn_off: moved[at] as u32,
                    ..*function
                });
            }
        }
        for line in &self.lines {
            let Some(&at) = moved.get(line.insn_off as usize).filter(|at| **at < count) else {
                continue;
            };
            // Of what went, nothing is told.
            if left
                .lines
                .last()
                .is_some_and(|last| last.insn_off as usize == at)
            {
                left.lines.pop();
            }
            left.lines.push(sys::bpf_line_info {
                insn_off: at as u32,
                ..*line
            });
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const R0: u8 = 0;
    const R1: u8 = 1;
    const R6: u8 = 6;
    const FROZEN: i32 = 7;

    fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> sys::bpf_insn {
        let mut insn = sys::bpf_insn {
            code,
            off,
            imm,
            ..Default::default()
        };
        insn.set_dst_reg(dst);
        insn.set_src_reg(src);
        insn
    }

    fn wide(dst: u8, src: u8, low: i32, high: i32) -> [sys::bpf_insn; 2] {
        [insn(LD_IMM64, dst, src, 0, low), insn(0, 0, 0, 0, high)]
    }

    fn mov(dst: u8, imm: i32) -> sys::bpf_insn {
        insn(ALU64 | MOV, dst, 0, 0, imm)
    }

    fn if_zero(register: u8, off: i16) -> sys::bpf_insn {
        insn(JMP | 0x10, register, 0, off, 0)
    }

    fn goto(off: i16) -> sys::bpf_insn {
        insn(JMP | JA, 0, 0, off, 0)
    }

    fn call(function: i32) -> sys::bpf_insn {
        insn(JMP | CALL, 0, PSEUDO_CALL, 0, function)
    }

    fn helper(number: i32) -> sys::bpf_insn {
        insn(JMP | CALL, 0, 0, 0, number)
    }

    fn exit() -> sys::bpf_insn {
        insn(JMP | EXIT, 0, 0, 0, 0)
    }

    fn told(code: &[sys::bpf_insn]) -> Vec<String> {
        code.iter()
            .map(|i| {
                let (dst, src) = (i.dst_reg(), i.src_reg());
                format!("{:02x} {dst} {src} {} {}", i.code, i.off, i.imm)
            })
            .collect()
    }

    fn left_of(instructions: Vec<sys::bpf_insn>) -> Vec<String> {
        let constants = Constants::from([(FROZEN, vec![0, 1, 0, 0])]);
        let code = Code {
            instructions,
            ..Code::default()
        };
        told(&code.reachable(&constants).instructions)
    }

    #[test]
    fn what_a_kernel_has_is_not_asked_again() {
        // if (bpf_ksym_exists(f)) helper 1; else helper 2; return 0;
        let asked = |known: [sys::bpf_insn; 2]| {
            let mut code = known.to_vec();
            code.extend([
                if_zero(R6, 2),
                helper(1),
                goto(1),
                helper(2),
                mov(R0, 0),
                exit(),
            ]);
            left_of(code)
        };
        let one = |number| told(&[helper(number), mov(R0, 0), exit()]);
        assert_eq!(asked(wide(R6, 3, 4711, 0)), one(1), "it has it");
        assert_eq!(asked(wide(R6, 0, 0, 0)), one(2), "it has it not");
    }

    #[test]
    fn what_is_set_for_good_is_a_constant_and_what_is_not_is_none() {
        let asked = |map, at: i16| {
            let mut code = wide(R6, PSEUDO_MAP_VALUE, map, 0).to_vec();
            code.extend([
                insn(LDX | MEM | 0x10, R6, R6, at, 0),
                if_zero(R6, 1),
                helper(1),
                mov(R0, 0),
                exit(),
            ]);
            left_of(code)
        };
        assert_eq!(asked(FROZEN, 0), told(&[mov(R0, 0), exit()]));
        assert_eq!(asked(FROZEN, 1), told(&[helper(1), mov(R0, 0), exit()]));
        assert_eq!(asked(FROZEN, 4).len(), 7, "beyond its end");
        assert_eq!(asked(FROZEN + 1, 0).len(), 7, "somebody writes it");
    }

    #[test]
    fn what_depends_on_the_way_stays() {
        // r6 is 0 or 1; twice around, it is both.
        let code = vec![
            mov(R6, 0),
            if_zero(R6, 1),
            helper(1),
            helper(2),
            mov(R6, 1),
            if_zero(R0, -5),
            exit(),
        ];
        assert_eq!(left_of(code.clone()), told(&code));
    }

    #[test]
    fn a_jump_back_at_the_end_stays() {
        let code = vec![goto(1), exit(), helper(1), goto(-3)];
        assert_eq!(left_of(code.clone()), told(&code));
    }

    #[test]
    fn functions_that_nobody_calls_go_with_what_is_told_of_them() {
        let line = |insn_off| sys::bpf_line_info {
            insn_off,
            line_col: insn_off,
            ..Default::default()
        };
        let function = |insn_off| sys::bpf_func_info {
            insn_off,
            type_id: insn_off,
        };
        let code = Code {
            instructions: vec![
                mov(R6, 0),
                if_zero(R6, 1),
                call(2), // the first
                call(3), // the second
                exit(),
                mov(R0, 1),
                exit(),
                mov(R0, 2),
                exit(),
            ],
            functions: vec![function(0), function(5), function(7)],
            lines: [0, 1, 2, 3, 5, 6, 7, 8].map(line).to_vec(),
        };
        let left = code.reachable(&Constants::new());
        assert_eq!(
            told(&left.instructions),
            told(&[call(1), exit(), mov(R0, 2), exit()])
        );
        let functions: Vec<_> = left
            .functions
            .iter()
            .map(|f| (f.insn_off, f.type_id))
            .collect();
        assert_eq!(functions, [(0, 0), (2, 7)]);
        let lines: Vec<_> = left
            .lines
            .iter()
            .map(|l| (l.insn_off, l.line_col))
            .collect();
        assert_eq!(lines, [(0, 3), (2, 7), (3, 8)]);
    }

    #[test]
    fn a_function_whose_address_is_taken_is_called() {
        let mut code = wide(R1, PSEUDO_FUNC, 3, 0).to_vec();
        code.extend([helper(181), exit(), mov(R0, 1), exit()]);
        assert_eq!(left_of(code.clone()), told(&code));
    }

    /// Runs code without functions; what helpers were called with, and the result.
    fn run(code: &[sys::bpf_insn], frozen: &[u8], answers: &[u64]) -> Option<Vec<u64>> {
        let (mut registers, mut trace, mut at) = ([3u64; REGISTERS], vec![], 0);
        let mut answers = answers.iter();
        for _ in 0..1000 {
            let this = &code[at];
            let (to, from) = (usize::from(this.dst_reg()), usize::from(this.src_reg()));
            let known: Known = registers.map(Value::Is);
            match class(this) {
                LD => {
                    let value = u64::from(this.imm as u32);
                    registers[to] = if this.src_reg() == 0 {
                        value
                    } else {
                        value << 32
                    };
                }
                LDX => {
                    let offset = (registers[from] & 0xff) as usize + this.off as usize;
                    registers[to] = u64::from(frozen[offset]);
                }
                ALU | ALU64 => match computed(this, &known) {
                    Value::Is(value) => registers[to] = value,
                    other => unreachable!("{other:?}"),
                },
                _ if is_goto(this) => at = target(at, i64::from(this.off)) - 1,
                _ if is_jump(this) => {
                    if decide(this, &known) == Some(true) {
                        at = target(at, i64::from(this.off)) - 1;
                    }
                }
                _ if is_call(this) => {
                    trace.push(this.imm as u64);
                    trace.extend(&registers[1..CLOBBERED]);
                    let answer = *answers.next()?;
                    registers[..CLOBBERED].fill(answer);
                }
                _ => {
                    trace.push(registers[0]);
                    return Some(trace);
                }
            }
            at += slots(this);
        }
        None
    }

    #[test]
    fn what_is_left_does_the_same() {
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let (mut shorter, mut ended) = (0, 0);
        for _ in 0..20_000 {
            let blocks = 4 + random(12) as usize;
            let mut code = vec![];
            // A block is one instruction, or a load of one that is constant (3 slots).
            let mut begins = vec![];
            let mut jumps = vec![];
            for _ in 0..blocks {
                begins.push(code.len());
                let (to, from) = (random(7) as u8, random(7) as u8);
                let small = random(3) as i32;
                match random(8) {
                    0 => code.push(mov(to, small)),
                    1 => code.push(insn(ALU64 | MOV | SOURCE_REGISTER, to, from, 0, 0)),
                    2 => code.push(insn(ALU64 | ADD, to, 0, 0, small)),
                    3 => code.push(insn(ALU | AND | SOURCE_REGISTER, to, from, 0, 0)),
                    4 => code.push(helper(small)),
                    5 => {
                        code.extend(wide(to, PSEUDO_MAP_VALUE, FROZEN, 0));
                        code.push(insn(LDX | MEM | 0x10, to, to, small as i16, 0));
                    }
                    kind => {
                        jumps.push((code.len(), random(blocks as u64 + 1) as usize));
                        let operation = [JA, 0x10, 0x50, 0xa0][random(4) as usize];
                        code.push(match (operation, kind) {
                            (JA, _) => goto(0),
                            (operation, 6) => insn(JMP | operation, to, 0, 0, small),
                            (operation, _) => {
                                insn(JMP32 | operation | SOURCE_REGISTER, to, from, 0, 0)
                            }
                        });
                    }
                }
            }
            begins.push(code.len());
            code.push(exit());
            for (at, block) in jumps {
                code[at].off = (begins[block] as i64 - at as i64 - 1) as i16;
            }
            let frozen = vec![random(2) as u8, random(3) as u8, 0];
            let answers: Vec<u64> = (0..40).map(|_| random(3)).collect();
            let before = Code {
                instructions: code,
                ..Code::default()
            };
            let constants = Constants::from([(FROZEN, frozen.clone())]);
            let after = before.reachable(&constants);
            shorter += usize::from(after.instructions.len() < before.instructions.len());
            let Some(expected) = run(&before.instructions, &frozen, &answers) else {
                continue;
            };
            ended += 1;
            let traced = run(&after.instructions, &frozen, &answers);
            assert_eq!(
                traced.as_ref(),
                Some(&expected),
                "{:#?}\n{:#?}",
                told(&before.instructions),
                told(&after.instructions)
            );
        }
        assert!(shorter > 5_000 && ended > 5_000, "{shorter} {ended}");
    }
}
