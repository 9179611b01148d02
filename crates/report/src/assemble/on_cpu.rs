// SPDX-License-Identifier: MIT OR Apache-2.0
//! What did the threads do while they had a CPU?

use super::details::{frame_place, placed};
use super::{CallNames, Details, Notes, key_name, n};
use crate::model::*;
use debox_abi::*;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Between a call and the function that does it: the same for all.
const ENTRY: [&str; 4] = [
    "entry_SYSCALL_64_after_hwframe",
    "do_syscall_64",
    "x64_sys_call",
    "entry_SYSCALL_64",
];
/// What concerns less than a tenth of the samples is not worth a note.
const NOTE_SHARE: u64 = 10;

/// In place of callers that are missing.
const CUT: &str = "(cut off)";

/// A row's key, taken apart.
struct Key {
    group: usize,
    kind: OnCpuKind,
    nr_key: u32,
    kernel: usize,
    user: usize,
}

fn key_parse(key: u64) -> Option<Key> {
    if key & DEBOX_KEY_USED == 0 {
        return None;
    }
    let part = |shift: u32, room: usize| (key >> shift) as usize & (room - 1);
    let kind = match part(DEBOX_ON_CPU_CLASS_SHIFT, DEBOX_ON_CPU_CLASSES) as u32 {
        DEBOX_ON_CPU_USER => OnCpuKind::User,
        DEBOX_ON_CPU_CALL => OnCpuKind::Call,
        DEBOX_ON_CPU_INTERRUPT => OnCpuKind::Interrupt,
        _ => OnCpuKind::Kernel,
    };
    Some(Key {
        group: part(DEBOX_ON_CPU_GROUP_SHIFT, DEBOX_ON_CPU_GROUPS_MAX),
        kind,
        nr_key: part(DEBOX_ON_CPU_NR_SHIFT, DEBOX_NR_SLOTS) as u32,
        kernel: part(DEBOX_ON_CPU_KERNEL_SHIFT, DEBOX_USER_STACKS_MAX),
        user: part(0, DEBOX_USER_STACKS_MAX),
    })
}

/// Stacks by name of their functions: places in one function are one.
struct Stacks<'a> {
    table: &'a debox_on_cpu,
    facts: &'a Details<'a>,
    functions: Vec<OnCpuFunction>,
    known: HashMap<(Option<String>, Option<String>), usize>,
    /// By number in the table; outermost first.
    stacks: HashMap<usize, Vec<usize>>,
}

impl Stacks<'_> {
    fn function(&mut self, name: Option<String>, module: Option<String>) -> usize {
        *self
            .known
            .entry((name, module))
            .or_insert_with_key(|(name, module)| {
                self.functions.push(OnCpuFunction {
                    name: name.clone(),
                    module: module.clone(),
                    ..OnCpuFunction::default()
                });
                self.functions.len() - 1
            })
    }

    /// Of one stack, outermost first; empty: there is none.
    fn stack(&mut self, number: usize) -> Vec<usize> {
        if let Some(known) = self.stacks.get(&number) {
            return known.clone();
        }
        let mut told = Vec::new();
        if let Some(raw) = self.table.stacks.get(number).filter(|raw| raw.hash != 0) {
            let depth = (raw.depth as usize).min(DEBOX_USER_FRAMES_MAX);
            for frame in &raw.frames[..depth] {
                if frame >> DEBOX_FRAME_FILE_SHIFT == u64::from(DEBOX_FRAME_KERNEL) {
                    let name = self.facts.kernel_functions.get(&(*frame as u32));
                    told.push(self.function(name.cloned(), None));
                    continue;
                }
                if frame >> DEBOX_FRAME_FILE_SHIFT == u64::from(DEBOX_FRAME_PYTHON) {
                    let (name, file) = self.python(*frame as usize & 0xffff_ffff);
                    told.push(self.function(name, Some(file)));
                    continue;
                }
                let place = frame_place(self.facts.details, raw.pid, *frame);
                for frame in (self.facts.frames)(place) {
                    let module = frame.module.unwrap_or_else(|| "?".into());
                    told.push(self.function(frame.function, Some(module)));
                }
            }
            let kernel = raw.frames[0] >> DEBOX_FRAME_FILE_SHIFT == u64::from(DEBOX_FRAME_KERNEL);
            if !kernel && raw.flags & (DEBOX_STACK_CUT | DEBOX_STACK_LOST) != 0 {
                told.push(self.function(Some(CUT.into()), Some(String::new())));
            }
        }
        told.reverse();
        self.stacks.insert(number, told.clone());
        told
    }

    /// Name and file of a function that a Python interpreter ran.
    fn python(&self, index: usize) -> (Option<String>, String) {
        let known = self.table.python.get(index).filter(|_| index > 0);
        let Some(known) = known.filter(|known| known.hash != 0) else {
            return (None, "Python".into());
        };
        let name = text_get(&known.name);
        let name = match name.len() + 1 < DEBOX_PYTHON_TEXT {
            true => name.to_owned(),
            false => format!("{name}…"),
        };
        let file = text_get(&known.file).rsplit('/').next().unwrap_or_default();
        let file = match file {
            "" => "Python".to_owned(),
            file => file.to_owned(),
        };
        (Some(name), file)
    }

    /// The kernel's functions, without what leads into every call.
    fn kernel(&mut self, number: usize) -> Vec<usize> {
        let mut stack = self.stack(number);
        let entry = |function: &usize| {
            let name = self.functions[*function].name.as_deref();
            name.is_some_and(|name| ENTRY.contains(&name))
        };
        let led = stack.iter().take_while(|function| entry(function)).count();
        if led < stack.len() {
            stack.drain(..led);
        }
        stack
    }
}

fn group_of(group: &debox_on_cpu_group, first: bool) -> OnCpuGroup {
    let [user, calls, kernel, interrupts] = group.samples;
    OnCpuGroup {
        comm: match first {
            true => "(others)".into(),
            false => name_get(&group.comm).into_owned(),
        },
        samples: group
            .samples
            .iter()
            .fold(0, |all, n| all.saturating_add(*n)),
        user,
        calls,
        kernel,
        interrupts,
    }
}

/// None: there was no clock, which is noted.
pub(super) fn tell(
    table: &debox_on_cpu,
    facts: &Details<'_>,
    names: &CallNames<'_>,
    notes: &mut Notes,
) -> Option<OnCpu> {
    if table.hz == 0 {
        let why = std::io::Error::from_raw_os_error(table.error);
        notes.put(
            NoteKind::NotMeasured,
            0,
            None,
            format!("what the threads did on a CPU is not known: the kernel refuses a clock of CPU time (perf_event_open: {why})"),
        );
        return None;
    }
    let mut groups: Vec<(usize, OnCpuGroup)> = table
        .groups
        .iter()
        .enumerate()
        .map(|(number, group)| (number, group_of(group, number == 0)))
        .filter(|(_, group)| group.samples > 0)
        .collect();
    groups.sort_by(|(_, a), (_, b)| b.samples.cmp(&a.samples).then(a.comm.cmp(&b.comm)));
    let group_index: HashMap<usize, usize> = groups
        .iter()
        .enumerate()
        .map(|(index, (number, _))| (*number, index))
        .collect();
    let mut stacks = Stacks {
        table,
        facts,
        functions: Vec::new(),
        known: HashMap::new(),
        stacks: HashMap::new(),
    };
    type Of = (usize, OnCpuKind, u32, Vec<usize>);
    let mut rows: BTreeMap<Of, u64> = BTreeMap::new();
    for row in table.rows.iter().filter(|row| row.count > 0) {
        let Some(key) = key_parse(row.key) else {
            continue;
        };
        // One that came after the groups were copied.
        let Some(group) = group_index.get(&key.group) else {
            continue;
        };
        let mut stack = stacks.stack(key.user);
        stack.extend(stacks.kernel(key.kernel));
        let count = rows
            .entry((*group, key.kind, key.nr_key, stack))
            .or_default();
        *count = count.saturating_add(row.count);
    }
    let mut functions = stacks.functions;
    for ((_, _, _, stack), samples) in &rows {
        if let Some(last) = stack.last() {
            functions[*last].own += samples;
        }
        for function in stack.iter().collect::<HashSet<_>>() {
            functions[*function].total += samples;
        }
    }
    let mut order: Vec<usize> = (0..functions.len())
        .filter(|at| functions[*at].total > 0)
        .collect();
    order.sort_by_key(|at| {
        let f = &functions[*at];
        (
            std::cmp::Reverse((f.own, f.total)),
            f.module.clone(),
            f.name.clone(),
        )
    });
    let place: HashMap<usize, usize> = order.iter().enumerate().map(|(to, at)| (*at, to)).collect();
    let mut rows: Vec<(Of, u64)> = rows.into_iter().collect();
    rows.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
    let mut frames = Vec::new();
    let mut frame_known = HashMap::new();
    let rows = rows
        .into_iter()
        .map(|((group, kind, nr_key, stack), samples)| {
            let (call, _, abi) = key_name(nr_key, names);
            let mut frame = None;
            for function in &stack {
                let entry = OnCpuFrame {
                    function: place[function],
                    caller: frame,
                };
                frame = Some(placed(&mut frames, &mut frame_known, entry));
            }
            OnCpuRow {
                group,
                kind,
                call,
                abi,
                frame,
                samples,
            }
        })
        .collect();
    let groups: Vec<OnCpuGroup> = groups.into_iter().map(|(_, group)| group).collect();
    let samples = groups
        .iter()
        .fold(0u64, |all, group| all.saturating_add(group.samples));
    notes_of(table, samples, notes);
    (samples > 0).then(|| OnCpu {
        hz: table.hz,
        samples,
        groups,
        functions: order.iter().map(|at| functions[*at].clone()).collect(),
        frames,
        rows,
        rows_dropped: table.rows_dropped,
        stacks_dropped: table.stacks_dropped,
    })
}

fn notes_of(table: &debox_on_cpu, samples: u64, notes: &mut Notes) {
    let mut put = |count: u64, text: String| {
        if count > 0 {
            notes.put(NoteKind::DetailsDropped, count, None, text);
        }
    };
    put(
        table.rows_dropped,
        format!(
            "{} without a function: room for {DEBOX_ON_CPU_ROWS_MAX}",
            n(
                table.rows_dropped,
                "sample of what ran on a CPU is",
                "samples of what ran on a CPU are"
            )
        ),
    );
    put(
        table.stacks_dropped,
        format!(
            "{} without callers, or by file alone: room for {} stacks",
            n(
                table.stacks_dropped,
                "sample of what ran on a CPU is",
                "samples of what ran on a CPU are"
            ),
            DEBOX_USER_STACKS_MAX - 1
        ),
    );
    put(
        table.python_dropped,
        format!(
            "{} without a name: room for {} functions",
            n(
                table.python_dropped,
                "frame of Python is",
                "frames of Python are"
            ),
            DEBOX_PYTHON_FUNCTIONS_MAX - 1
        ),
    );
    if table.withheld > samples / NOTE_SHARE {
        put(
            table.withheld,
            format!(
                "{} left out: of threads of which it was not certain that they may be seen",
                n(
                    table.withheld,
                    "sample of what ran on a CPU is",
                    "samples of what ran on a CPU are"
                )
            ),
        );
    }
    if table.stacks_pending > samples / NOTE_SHARE {
        put(
            table.stacks_pending,
            format!(
                "{} taken by frame pointers, before the file's unwind table was read: callers may \
                 be missing",
                n(
                    table.stacks_pending,
                    "sample of what ran on a CPU was",
                    "samples of what ran on a CPU were"
                )
            ),
        );
    }
}
