// SPDX-License-Identifier: MIT OR Apache-2.0
//! From where in the program did a thread make its call?
//!
//! Its stack is read from outside (it sleeps, so it stands still; where it does not, the
//! walk ends early or a frame is wrong, never more) and walked with the tables of
//! `debox_unwind`, which the symboliser makes: it reads the files, this process does
//! not.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use debox_symbol::{CodeFile, UserCode, UserOptions, UserSymbols};
use debox_symboliser::{Symboliser, foreign};
use debox_unwind::{END, FRAME_POINTER, PLT, RBP, RBP_LOST, RDI, REALIGNED, RSP, Row, SIGNAL};

use crate::call::clock_now;
use crate::proc::{self, Mapping};
use crate::task::Registers;

const FRAMES_MAX: usize = 48;
/// Processor time for all files and places, here and in the symbolisers; after it nothing
/// new is read, and what is known is used on.
const CPU_MAX: Duration = Duration::from_millis(700);
/// The same on the clock, where the machine is busy.
const WALL_MAX: Duration = Duration::from_secs(10);
/// Of the stack, read at once.
const WINDOW_BYTES: usize = 32 << 10;
const ROWS_MAX: u32 = 2 << 20;
/// For the tables of one file.
const CPU_PER_FILE: Duration = Duration::from_millis(300);
/// `ucontext`: where the kernel put the registers of whom a signal interrupted.
const UC_RBP: u64 = 120;
const UC_RSP: u64 = 160;
const UC_RIP: u64 = 168;

pub(crate) struct UserStacks {
    tables: Symboliser,
    symbols: UserSymbols,
    rows: HashMap<(String, u64), Option<Rc<Vec<Row>>>>,
    maps: HashMap<u32, Rc<Vec<Mapping>>>,
    named: HashMap<(String, u64), Vec<Place>>,
    /// Of this thread when it began: whoever looks may do so beside others.
    cpu_before: Duration,
    began: Instant,
    late: bool,
}

/// A piece of the stack, and the rest of the memory behind it.
struct Memory {
    tid: u32,
    from: u64,
    bytes: Vec<u8>,
}

impl Memory {
    fn open(tid: u32, from: u64, end: u64) -> Memory {
        let len = usize::try_from(end.saturating_sub(from)).unwrap_or(0);
        let mut bytes = vec![0; len.min(WINDOW_BYTES)];
        let got = proc::memory(tid, from, &mut bytes);
        bytes.truncate(got);
        Memory { tid, from, bytes }
    }

    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.wrapping_sub(self.from)).unwrap_or(usize::MAX);
        if let Some(bytes) = at.checked_add(8).and_then(|end| self.bytes.get(at..end)) {
            return Some(u64::from_ne_bytes(bytes.try_into().ok()?));
        }
        let mut bytes = [0u8; 8];
        (proc::memory(self.tid, address, &mut bytes) == 8).then(|| u64::from_ne_bytes(bytes))
    }
}

impl UserStacks {
    pub fn new() -> UserStacks {
        UserStacks {
            tables: Symboliser::new(),
            symbols: UserSymbols::new(UserOptions::default()),
            rows: HashMap::new(),
            maps: HashMap::new(),
            named: HashMap::new(),
            cpu_before: cpu_of_this_thread(),
            began: Instant::now(),
            late: false,
        }
    }

    /// Whether time ran out: some places are then numbers.
    pub fn was_late(&self) -> bool {
        self.late
    }

    /// What kept places from being named.
    pub fn notes(&self) -> Vec<String> {
        self.symbols.notes().map(|note| note.text).collect()
    }

    pub fn mappings(&mut self, pid: u32) -> Rc<Vec<Mapping>> {
        self.maps
            .entry(pid)
            .or_insert_with(|| Rc::new(proc::mappings(pid)))
            .clone()
    }

    fn in_time(&mut self) -> bool {
        let own = cpu_of_this_thread().saturating_sub(self.cpu_before);
        let cpu = own + self.tables.cpu() + self.symbols.symboliser().cpu();
        let in_time = cpu < CPU_MAX && self.began.elapsed() < WALL_MAX;
        self.late |= !in_time;
        in_time
    }

    fn rows(&mut self, pid: u32, mapping: &Mapping) -> Option<Rc<Vec<Row>>> {
        let key = (mapping.device.clone(), mapping.inode);
        if let Some(rows) = self.rows.get(&key) {
            return rows.clone();
        }
        if mapping.inode == 0 || !self.in_time() {
            return None;
        }
        let range = format!("{:x}-{:x}", mapping.start, mapping.end);
        let name = Path::new(&mapping.path)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let open = foreign::open(Path::new(&format!("/proc/{pid}/map_files/{range}")))
            .or_else(|_| foreign::open(Path::new(&format!("/proc/{pid}/root{}", mapping.path))));
        let rows = open
            .ok()
            .and_then(|file| self.tables.table(&file, &name, ROWS_MAX, CPU_PER_FILE).ok())
            .map(Rc::new);
        self.rows.insert(key, rows.clone());
        rows
    }

    /// Its frames, innermost first, as they are shown, and the bare names of their
    /// functions.
    pub fn walk(&mut self, pid: u32, tid: u32, registers: &Registers) -> Vec<Place> {
        let maps = self.mappings(pid);
        let find = |address: u64| {
            let at = maps.partition_point(|map| map.end <= address);
            maps.get(at).filter(|map| map.start <= address)
        };
        let Some(stack) = find(registers.sp) else {
            return Vec::new();
        };
        let memory = Memory::open(tid, registers.sp, stack.end);
        let mut places = Vec::new();
        let (mut ip, mut sp, mut bp) = (registers.ip, registers.sp, registers.bp);
        // Behind `syscall`, or behind a call; not so where it was interrupted.
        let mut after = registers.call.is_some();
        let mut innermost = true;
        while places.len() < FRAMES_MAX {
            let inside = if after { ip.wrapping_sub(1) } else { ip };
            let Some(mapping) = find(inside).filter(|map| map.executable) else {
                break;
            };
            places.extend(self.name(pid, mapping, if after { ip } else { ip + 1 }));
            let row = self.rows(pid, mapping).and_then(|rows| {
                let offset = u32::try_from(inside - mapping.start + mapping.offset).ok()?;
                let next = rows.partition_point(|row| row.pc <= offset);
                rows.get(next.checked_sub(1)?).copied()
            });
            let row = row.unwrap_or(Row {
                pc: 0,
                cfa_words: 2,
                rbp_words: -2,
                kind: FRAME_POINTER,
            });
            let words = u64::from(row.cfa_words) * 8;
            if row.kind() == SIGNAL {
                let (Some(new_ip), Some(new_sp), Some(new_bp)) = (
                    memory.word(sp + UC_RIP),
                    memory.word(sp + UC_RSP),
                    memory.word(sp + UC_RBP),
                ) else {
                    break;
                };
                (ip, sp, bp, after, innermost) = (new_ip, new_sp, new_bp, false, false);
                continue;
            }
            let cfa = match row.kind() {
                END => None,
                RSP | RDI => Some(sp.wrapping_add(words)),
                RBP | FRAME_POINTER => Some(bp.wrapping_add(words)),
                PLT => {
                    let pushed = u64::from(ip & 15 >= u64::from(row.cfa_words));
                    Some(sp.wrapping_add(8 + 8 * pushed))
                }
                REALIGNED => memory.word(bp.wrapping_sub(words)),
                _ => None,
            };
            let Some(cfa) = cfa.filter(|cfa| *cfa > sp || row.kind() == RDI) else {
                break;
            };
            let returns = match row.kind() {
                RDI if innermost => Some(registers.args[0]),
                RDI => None,
                _ => memory.word(cfa.wrapping_sub(8)),
            };
            let Some(returns) = returns else { break };
            bp = match (row.kind(), row.rbp_words) {
                (REALIGNED, _) => memory.word(bp).unwrap_or(0),
                (_, 0) => bp,
                (_, RBP_LOST) => 0,
                (_, words) => memory
                    .word(cfa.wrapping_add_signed(i64::from(words) * 8))
                    .unwrap_or(0),
            };
            (ip, sp, after, innermost) = (returns, cfa, true, false);
        }
        places
    }

    /// The functions of one place, which a call returns to.
    fn name(&mut self, pid: u32, mapping: &Mapping, place: u64) -> Vec<Place> {
        let key = match mapping.path.starts_with('/') {
            true => (mapping.path.clone(), place - mapping.start + mapping.offset),
            false => (pid.to_string(), place),
        };
        if let Some(known) = self.named.get(&key) {
            return known.clone();
        }
        let (code, place) = if mapping.path.starts_with('/') {
            let file = CodeFile {
                path: mapping.path.clone().into(),
                pid: Some(pid),
                build_id: None,
            };
            (UserCode::File(file), place - mapping.start + mapping.offset)
        } else {
            (UserCode::Memory { pid }, place)
        };
        if !self.in_time() {
            let module = mapping.path.rsplit('/').next().unwrap_or_default();
            return vec![Place {
                function: String::new(),
                text: format!("{module}+{place:#x}"),
            }];
        }
        let places: Vec<Place> = self
            .symbols
            .resolve_one(&code, place)
            .into_iter()
            .map(|frame| Place {
                text: frame.to_string(),
                function: frame.function,
            })
            .collect();
        self.named.insert(key, places.clone());
        places
    }
}

fn cpu_of_this_thread() -> Duration {
    clock_now(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

/// One function of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Empty if not known.
    pub function: String,
    /// With file and line, or where in its module it is.
    pub text: String,
}
