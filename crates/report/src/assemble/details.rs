// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who, from where, and which single calls: what an account tells beyond sums?

use super::lives;
use super::{CallNames, Notes, key_name, mean, n, site_text, time};
use crate::family::Families;
use crate::model::*;
use debox_abi::*;
use debox_output::error_name;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Where a frame of a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodePlace<'a> {
    /// Byte offset of the return address in a file, as the process saw it.
    File {
        path: &'a str,
        pid: u32,
        offset: u64,
    },
    /// An address of a process in no file.
    Memory { pid: u32, address: u64 },
    /// The code that the kernel lends programs.
    Vdso { offset: u64 },
}

/// Names a place: innermost function first, never empty.
pub type FrameNames<'a> = dyn Fn(CodePlace<'_>) -> Vec<Frame> + 'a;

/// The arguments of a call by name: (number, 32-bit table?, as they were passed).
pub type CallArguments<'a> = dyn Fn(u32, bool, &[u64; 6]) -> Vec<CallArgument> + 'a;

/// The details of a snapshot.
pub struct Details<'a> {
    pub details: &'a debox_details,
    /// Kernel functions of sites, outermost first; may lack any.
    pub site_stacks: &'a [(u32, Vec<String>)],
    /// Single calls, longest first.
    pub events: &'a [&'a debox_event_call],
    pub call_arguments: &'a CallArguments<'a>,
    /// What sleeps were on, and how long.
    pub objects: Option<&'a debox_objects>,
    /// What the clock of CPU time found, and names of the kernel's functions by number.
    pub on_cpu: Option<&'a debox_on_cpu>,
    pub kernel_functions: &'a HashMap<u32, String>,
    pub lives: Option<&'a debox_lives>,
    pub frames: &'a FrameNames<'a>,
    /// Blocked time by chain, and the links, the first of number 1.
    pub chain_sums: &'a [(u32, debox_chain_sum)],
    pub chain_links: &'a [debox_chain],
    /// CLOCK_MONOTONIC at the start of the run.
    pub start_ns: u64,
    /// Texts of the conditions, by number.
    pub conditions: &'a [String],
}

/// What goes into the report.
#[derive(Default)]
pub(super) struct Told {
    pub culprits: Vec<CulpritRow>,
    pub chain_links: Vec<ChainLink>,
    pub chains: Vec<ChainRow>,
    pub lives: Vec<LifeRow>,
    pub activities: Vec<ActivityRow>,
    pub critical_path: Option<CriticalPath>,
    pub objects: Vec<Object>,
    pub by_object: Vec<ObjectRow>,
    pub threads: Vec<ThreadRow>,
    pub sites: Vec<Site>,
    pub stacks: Vec<UserStack>,
    pub paths: Vec<PathRow>,
    pub call_sites: Vec<CallSiteRow>,
    pub slow_calls: Vec<SlowCall>,
}

/// Of a thread that calls itself nothing.
const NAMELESS: &str = "(no name)";

/// The task of a chain's link; empty: withheld.
fn link_comm(link: &debox_chain) -> String {
    if link.flags & DEBOX_CHAIN_CLASS != 0 {
        return String::new();
    }
    match name_get(&link.comm) {
        // One that is withheld has no number either.
        name if name.is_empty() && link.tid != 0 => NAMELESS.to_owned(),
        name => name.into_owned(),
    }
}

/// The first link of a chain, and whose sleep it was; None: that is withheld.
pub(super) fn sleeper<'a>(facts: &Details<'a>, number: u32) -> Option<(&'a debox_chain, String)> {
    let at = (number as usize).checked_sub(1)?;
    let link = facts.chain_links.get(at)?;
    let comm = link_comm(link);
    (link.kind == DEBOX_CHAIN_SLEEP && !comm.is_empty()).then_some((link, comm))
}

/// The parts of a key; None for a free row.
struct Key {
    nr_key: u32,
    site: Option<u32>,
    low: u64,
}

fn key_parse(key: u64) -> Option<Key> {
    if key & DEBOX_KEY_USED == 0 {
        return None;
    }
    let site = (key >> DEBOX_KEY_SITE_SHIFT) as u32 & DEBOX_KEY_SITE_NONE;
    Some(Key {
        nr_key: (key >> DEBOX_KEY_NR_SHIFT) as u32 & (DEBOX_NR_SLOTS as u32 - 1),
        site: (site != DEBOX_KEY_SITE_NONE).then_some(site),
        low: key & ((1 << DEBOX_KEY_SITE_SHIFT) - 1),
    })
}

/// Tables that are filled as they are referred to.
struct Tables<'a> {
    facts: &'a Details<'a>,
    sites_text: &'a [debox_site],
    names: &'a CallNames<'a>,
    measured: Measured,
    site_frames: HashMap<u32, &'a [String]>,
    site_index: HashMap<u32, usize>,
    sites: Vec<Site>,
    site_known: HashMap<Site, usize>,
    stack_index: HashMap<u32, Option<usize>>,
    stacks: Vec<UserStack>,
    stack_known: HashMap<UserStack, usize>,
    objects: Vec<Object>,
    object_known: HashMap<Object, usize>,
    /// By the kernel side's number.
    chain_index: HashMap<u32, usize>,
    chain_links: Vec<ChainLink>,
    chain_known: HashMap<ChainLink, usize>,
    families: Families,
    /// Where threads of a name rest: call, name and place; None: not asked for yet.
    rest_places: Option<HashSet<(i32, [u8; DEBOX_COMM_LEN], u32)>>,
}

/// The index of an entry, which is added unless it is there.
pub(super) fn placed<T: Clone + Eq + std::hash::Hash>(
    list: &mut Vec<T>,
    known: &mut HashMap<T, usize>,
    entry: T,
) -> usize {
    *known.entry(entry).or_insert_with_key(|entry| {
        list.push(entry.clone());
        list.len() - 1
    })
}

/// REQ_OP_*, include/linux/blk_types.h.
pub fn disk_operation(operation: i32) -> Option<&'static str> {
    Some(match operation {
        0 => "read",
        1 => "write",
        2 => "flush",
        3 => "discard",
        5 => "secure erase",
        7 => "zone append",
        9 => "write zeroes",
        _ => return None,
    })
}

/// Adds what a row of the kernel side has counted to a row of the report.
macro_rules! sums_add {
    ($to:expr, $from:expr) => {
        $to.count = $to.count.saturating_add($from.count);
        $to.total_ns = $to.total_ns.saturating_add($from.total_ns);
        $to.max_ns = $to.max_ns.max($from.max_ns);
    };
}

fn some_text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// A place as tables show it: `function (file:line)`.
pub fn frame_text(frame: &Frame) -> String {
    let module = frame.module.as_deref().unwrap_or("?");
    let Some(function) = &frame.function else {
        return format!("{module}+{:#x}", frame.offset);
    };
    let file = frame
        .file
        .as_deref()
        .map(|file| file.rsplit('/').next().unwrap_or(file));
    match (file, frame.line) {
        (Some(file), Some(line)) => format!("{function} ({file}:{line})"),
        (Some(file), None) => format!("{function} ({file})"),
        _ => format!("{function}+{:#x} ({module})", frame.offset),
    }
}

/// Where a frame of a stack of process `pid` is.
pub(super) fn frame_place(details: &debox_details, pid: u32, frame: u64) -> CodePlace<'_> {
    let offset = frame & ((1 << DEBOX_FRAME_FILE_SHIFT) - 1);
    let index = (frame >> DEBOX_FRAME_FILE_SHIFT) as usize;
    if index == DEBOX_FRAME_VDSO as usize {
        return CodePlace::Vdso { offset };
    }
    let file = details
        .files
        .get(index)
        .filter(|file| index > 0 && file.state == 1);
    match file {
        Some(file) => CodePlace::File {
            path: text_get(&file.path),
            pid: file.pid,
            offset,
        },
        None if index == 0 => CodePlace::Memory {
            pid,
            address: offset,
        },
        // Its path was not written in time.
        None => CodePlace::File {
            path: "",
            pid,
            offset,
        },
    }
}

impl<'a> Tables<'a> {
    /// The number that stands for all stacks of its place.
    fn place(&self, site: u32) -> u32 {
        let merged = site_text(self.sites_text, site).map(|entry| entry.merged);
        merged
            .filter(|merged| site_text(self.sites_text, *merged).is_some())
            .unwrap_or(site)
    }

    fn entry(&self, site: u32) -> Option<&'a debox_site> {
        site_text(self.sites_text, self.place(site))
    }

    fn site(&mut self, site: u32) -> usize {
        if let Some(index) = self.site_index.get(&site) {
            return *index;
        }
        let frames = self.site_frames.get(&site).map_or(&[][..], |f| f);
        let text = match self.entry(site) {
            Some(e) => Site {
                label: e.label().to_owned(),
                unlabelled: e.flags & DEBOX_SITE_FLAG_UNLABELLED != 0,
                function: some_text(e.function()),
                offset: (!e.function().is_empty()).then_some(e.offset),
                file: some_text(e.file()),
                line: (e.line != 0).then_some(e.line),
                frames: frames.to_vec(),
            },
            None => Site {
                label: "(unknown)".into(),
                unlabelled: false,
                function: None,
                offset: None,
                file: None,
                line: None,
                frames: frames.to_vec(),
            },
        };
        // Stacks that differ where nobody can see it are one place.
        let index = placed(&mut self.sites, &mut self.site_known, text);
        self.site_index.insert(site, index);
        index
    }

    fn stack(&mut self, stack: u32) -> Option<usize> {
        if stack == 0 {
            return None;
        }
        if let Some(index) = self.stack_index.get(&stack) {
            return *index;
        }
        let text = self.stack_text(stack);
        let index = text.map(|text| placed(&mut self.stacks, &mut self.stack_known, text));
        self.stack_index.insert(stack, index);
        index
    }

    fn stack_text(&self, stack: u32) -> Option<UserStack> {
        let details = self.facts.details;
        let raw = details.stacks.get(stack as usize)?;
        let depth = (raw.depth as usize).min(DEBOX_USER_FRAMES_MAX);
        if raw.hash == 0 || depth == 0 {
            return None;
        }
        let mut frames: Vec<Frame> = Vec::new();
        let mut site_frame = 0;
        for (i, frame) in raw.frames[..depth].iter().enumerate() {
            if i == raw.site_frame as usize {
                site_frame = frames.len();
            }
            frames.extend((self.facts.frames)(frame_place(details, raw.pid, *frame)));
        }
        Some(UserStack {
            site_frame: site_frame.min(frames.len().saturating_sub(1)),
            frames,
            cut: raw.flags & (DEBOX_STACK_CUT | DEBOX_STACK_LOST) != 0,
        })
    }

    fn since_start(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.facts.start_ns)
    }

    /// A chain's first link. Links that read the same are one.
    fn chain(&mut self, number: u32) -> Option<usize> {
        // From the root: a link's parent has a lower number.
        let mut path = vec![number];
        while let Some(parent) = self
            .chain_link(*path.last().unwrap_or(&0))
            .map(|link| link.parent)
            .filter(|parent| *parent != 0 && !path.contains(parent))
        {
            path.push(parent);
        }
        let mut parent = None;
        for number in path.into_iter().rev() {
            let index = match self.chain_index.get(&number) {
                Some(index) => *index,
                None => {
                    if self.ends_with_grace_period(number) {
                        let root = ChainLink::of(ChainKind::GracePeriod);
                        parent = Some(placed(&mut self.chain_links, &mut self.chain_known, root));
                    }
                    let link = self.chain_link_told(number, parent);
                    let index = placed(&mut self.chain_links, &mut self.chain_known, link);
                    self.chain_index.insert(number, index);
                    index
                }
            };
            parent = Some(index);
        }
        parent
    }

    /// Chains of the same links are one.
    fn chains(&mut self) -> Vec<ChainRow> {
        let mut rows: BTreeMap<usize, ChainRow> = BTreeMap::new();
        for (number, sum) in self.facts.chain_sums {
            let Some(first) = self.chain(*number) else {
                continue;
            };
            let row = rows.entry(first).or_insert(ChainRow {
                first,
                count: 0,
                total_ns: 0,
                max_ns: 0,
            });
            sums_add!(row, sum);
        }
        let mut rows: Vec<ChainRow> = rows.into_values().collect();
        rows.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then(a.first.cmp(&b.first)));
        rows
    }

    fn chain_link(&self, number: u32) -> Option<&'a debox_chain> {
        let at = (number as usize).checked_sub(1)?;
        self.facts.chain_links.get(at)
    }

    fn ends_with_grace_period(&self, number: u32) -> bool {
        let slept = (self.chain_link(number)).filter(|link| link.kind == DEBOX_CHAIN_SLEEP);
        let site = slept.and_then(|link| site_text(self.sites_text, link.site));
        // What wakes one whose sleep is not over is not known.
        let over = slept.is_some_and(|link| {
            self.chain_link(link.parent)
                .is_some_and(|parent| parent.kind != DEBOX_CHAIN_NOT_OVER)
        });
        over && site.is_some_and(|site| site.flags & DEBOX_SITE_FLAG_GRACE_PERIOD != 0)
    }

    /// Whether the thread's name has been found to rest where a link's sleep was.
    fn rests_there(&mut self, link: &debox_chain) -> bool {
        let at = |link: &debox_chain| (link.nr, link.comm, self.place(link.site));
        let here = at(link);
        // Thousands of threads may be in a sleep that is their first.
        if self.rest_places.is_none() {
            let rests = self.facts.chain_links.iter().filter(|other| {
                other.kind == DEBOX_CHAIN_SLEEP && other.flags & DEBOX_CHAIN_REST != 0
            });
            self.rest_places = Some(rests.map(at).collect());
        }
        (self.rest_places.as_ref()).is_some_and(|places| places.contains(&here))
    }

    fn chain_link_told(&mut self, number: u32, parent: Option<usize>) -> ChainLink {
        let Some(link) = self.chain_link(number) else {
            let dropped = ChainLink::of(ChainKind::Dropped);
            return ChainLink { parent, ..dropped };
        };
        let kind = match link.kind {
            DEBOX_CHAIN_SLEEP => ChainKind::Sleep,
            DEBOX_CHAIN_RAN_USER => ChainKind::RanUser,
            DEBOX_CHAIN_RAN_CALL => ChainKind::RanCall,
            DEBOX_CHAIN_RAN => ChainKind::Ran,
            DEBOX_CHAIN_RUNQ => ChainKind::Runq,
            DEBOX_CHAIN_DEVICE => ChainKind::Device,
            DEBOX_CHAIN_DISK => ChainKind::Disk,
            DEBOX_CHAIN_TIMER => ChainKind::Timer,
            DEBOX_CHAIN_LIMIT => ChainKind::Limit,
            DEBOX_CHAIN_NETWORK => ChainKind::Network,
            DEBOX_CHAIN_INTERRUPT => ChainKind::Interrupt,
            DEBOX_CHAIN_EARLIER => ChainKind::Earlier,
            DEBOX_CHAIN_WOKEN => ChainKind::Woken,
            DEBOX_CHAIN_UNSEEN => ChainKind::Unseen,
            DEBOX_CHAIN_NOT_OVER => ChainKind::NotOver,
            DEBOX_CHAIN_DEEPER => ChainKind::Deeper,
            DEBOX_CHAIN_SLEPT => ChainKind::Slept,
            _ => ChainKind::Other,
        };
        let class = link.flags & DEBOX_CHAIN_CLASS != 0;
        let rests = kind == ChainKind::Sleep
            && (link.flags & DEBOX_CHAIN_REST != 0
                || link.flags & DEBOX_CHAIN_FIRST != 0 && self.rests_there(link));
        let called = matches!(
            kind,
            ChainKind::Sleep | ChainKind::RanCall | ChainKind::Earlier | ChainKind::Woken
        );
        ChainLink {
            kind,
            comm: self.families.name(&link_comm(link)),
            call: u32::try_from(link.nr)
                .ok()
                .filter(|_| called)
                .and_then(|key| key_name(key, self.names).0),
            site: (kind == ChainKind::Sleep && link.site != DEBOX_SITE_NONE)
                .then(|| self.site(link.site)),
            operation: (kind == ChainKind::Disk)
                .then(|| disk_operation(link.nr).map(str::to_owned))
                .flatten(),
            parent,
            held: kind == ChainKind::Sleep && link.flags & DEBOX_CHAIN_HELD != 0,
            // The numbers of another account's stacks mean nothing here.
            stack: (link.serial == self.facts.details.serial as u32)
                .then(|| self.stack(link.user_stack))
                .flatten(),
            rests,
            by_own: kind == ChainKind::Sleep && link.flags & DEBOX_CHAIN_OWN != 0,
            in_loop: kind == ChainKind::Sleep && link.flags & DEBOX_CHAIN_LOOP != 0,
            means: None,
            class: class.then(|| text_get(&link.comm).to_owned()),
        }
    }

    fn culprits(&mut self) -> Vec<CulpritRow> {
        type Of = (u32, Option<u32>, u32, u64, Option<usize>);
        let mut rows: BTreeMap<Of, CulpritRow> = BTreeMap::new();
        for row in &self.facts.details.culprits {
            let Some(key) = key_parse(row.key).filter(|_| row.count > 0) else {
                continue;
            };
            let kind = (key.low >> DEBOX_CULPRIT_KIND_SHIFT) as u32 & 3;
            let role = match kind {
                DEBOX_CULPRIT_HOLDER_WRITER => CulpritRole::Holder,
                DEBOX_CULPRIT_HOLDER_READER => CulpritRole::Reader,
                _ => CulpritRole::Waker,
            };
            let pid = key.low as u32 & DEBOX_CULPRIT_PID_MASK;
            let nr = (key.low >> DEBOX_CULPRIT_NR_SHIFT) as u32 & 0x7ff;
            let entry = key.site.and_then(|site| self.entry(site));
            // Stacks of one place count as one.
            let place = entry.map(|e| e.merged);
            let (call, _, abi) = key_name(key.nr_key, self.names);
            let stack = row.place.checked_sub(1).and_then(|stack| self.stack(stack));
            let sum = rows
                .entry((key.nr_key, place, kind, key.low, stack))
                .or_insert_with(|| CulpritRow {
                    call,
                    abi,
                    label: entry.map_or("(unknown)", |e| e.label()).to_owned(),
                    function: entry.and_then(|e| some_text(e.function())),
                    role,
                    pid,
                    tid: row.tid,
                    comm: name_get(&row.comm).into_owned(),
                    culprit_call: (nr > 0).then(|| (self.names)(nr - 1, false)).flatten(),
                    stack,
                    count: 0,
                    total_ns: 0,
                    max_ns: 0,
                });
            sums_add!(sum, row);
        }
        let mut rows: Vec<CulpritRow> = rows.into_values().collect();
        rows.sort_by(|a, b| {
            b.total_ns
                .cmp(&a.total_ns)
                .then_with(|| (&a.label, a.pid, &a.comm).cmp(&(&b.label, b.pid, &b.comm)))
        });
        rows
    }

    fn threads(&self) -> Vec<ThreadRow> {
        let mut rows: Vec<ThreadRow> = self
            .facts
            .details
            .threads
            .iter()
            .enumerate()
            .filter(|(i, row)| (row.count > 0 || row.wall_ns > 0) && (*i == 0 || row.tid != 0))
            .map(|(i, row)| ThreadRow {
                pid: if i == 0 { 0 } else { row.tgid },
                tid: if i == 0 { 0 } else { row.tid },
                comm: name_get(&row.comm).into_owned(),
                count: row.count,
                errors: row.errors,
                wall_ns: row.wall_ns,
                cpu_ns: row
                    .wall_ns
                    .saturating_sub(row.blocked_ns)
                    .saturating_sub(row.runq_ns)
                    .saturating_sub(row.irq_ns),
                blocked_ns: row.blocked_ns,
                runq_ns: row.runq_ns,
                irq_ns: self.measured.irq.then_some(row.irq_ns),
                irq_outside_ns: self.measured.irq.then_some(row.irq_outside_ns),
                minor_faults: row.minor_faults,
                major_faults: row.major_faults,
                first_ns: self.since_start(row.first_ns),
                ended_ns: (row.ended_ns != 0).then(|| self.since_start(row.ended_ns)),
            })
            .collect();
        rows.sort_by(|a, b| b.wall_ns.cmp(&a.wall_ns).then(a.tid.cmp(&b.tid)));
        rows
    }

    fn paths(&mut self) -> Vec<PathRow> {
        let facts = self.facts;
        let mut rows: BTreeMap<(u32, Option<usize>, Option<usize>), PathRow> = BTreeMap::new();
        for row in &facts.details.paths {
            let Some(key) = key_parse(row.key).filter(|_| row.count > 0) else {
                continue;
            };
            let stack = self.stack(key.low as u32);
            let site = key.site.map(|site| self.site(site));
            let (call, _, abi) = key_name(key.nr_key, self.names);
            let sum = rows.entry((key.nr_key, stack, site)).or_insert(PathRow {
                call,
                abi,
                stack,
                site,
                count: 0,
                total_ns: 0,
                max_ns: 0,
            });
            sums_add!(sum, row);
        }
        let mut rows: Vec<PathRow> = rows.into_values().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.total_ns));
        rows
    }

    /// One row per call and place; of several stacks through one place the one
    /// that took most stands for them.
    fn call_sites(&mut self) -> Vec<CallSiteRow> {
        let facts = self.facts;
        let mut rows: BTreeMap<(u32, String), (CallSiteRow, u64)> = BTreeMap::new();
        for row in &facts.details.call_sites {
            let Some(key) = key_parse(row.key).filter(|_| row.count > 0) else {
                continue;
            };
            let stack = self.stack(key.low as u32);
            let place = stack
                .and_then(|stack| {
                    let stack = &self.stacks[stack];
                    stack.frames.get(stack.site_frame).map(frame_text)
                })
                .unwrap_or_else(|| "(unknown)".into());
            let (call, _, abi) = key_name(key.nr_key, self.names);
            let call = call.unwrap_or_else(|| "(outside)".into());
            let call = if abi == 32 {
                format!("{call} (32-bit)")
            } else {
                call
            };
            let m = self.measured;
            let (sum, most) = rows.entry((key.nr_key, place.clone())).or_insert_with(|| {
                let none = |on: bool| on.then_some(0u64);
                let sum = CallSiteRow {
                    call,
                    place,
                    stack: None,
                    count: 0,
                    errors: 0,
                    wall_ns: Some(0),
                    mean_ns: Some(0),
                    max_ns: Some(0),
                    cpu_ns: none(m.blocked && m.runq),
                    blocked_ns: none(m.blocked),
                    runq_ns: none(m.runq),
                    irq_ns: none(m.irq),
                };
                (sum, 0)
            });
            if sum.stack.is_none() || row.wall_ns > *most {
                *most = row.wall_ns;
                sum.stack = stack;
            }
            sum.count = sum.count.saturating_add(row.count);
            sum.errors = sum.errors.saturating_add(row.errors);
            sum.wall_ns = Some(sum.wall().saturating_add(row.wall_ns));
            sum.max_ns = sum.max_ns.max(Some(row.max_ns));
            let off_ns = row.blocked_ns.saturating_add(row.runq_ns);
            let off_ns = off_ns.saturating_add(row.irq_ns);
            for (to, from) in [
                (&mut sum.blocked_ns, row.blocked_ns),
                (&mut sum.runq_ns, row.runq_ns),
                (&mut sum.irq_ns, row.irq_ns),
                (&mut sum.cpu_ns, row.wall_ns.saturating_sub(off_ns)),
            ] {
                if let Some(to) = to {
                    *to = to.saturating_add(from);
                }
            }
        }
        let mut rows: Vec<CallSiteRow> = rows.into_values().map(|(row, _)| row).collect();
        for row in &mut rows {
            row.mean_ns = Some(mean(row.wall(), row.count));
        }
        rows.sort_by(|a, b| {
            b.wall_ns
                .cmp(&a.wall_ns)
                .then_with(|| (&a.call, &a.place).cmp(&(&b.call, &b.place)))
        });
        rows
    }

    fn party(&self, tid: u32, comm: &[u8], nr: i32, reader: bool) -> Party {
        let nr = u32::try_from(nr).ok();
        Party {
            tid,
            comm: name_get(comm).into_owned(),
            call: nr.and_then(|nr| (self.names)(nr, false)),
            reader,
            stack: None,
        }
    }

    fn sleep(&mut self, sleep: &debox_event_sleep) -> Sleep {
        let reader = sleep.holder_kind == DEBOX_HOLDER_READER;
        let held = sleep.holder_kind != DEBOX_HOLDER_NONE && sleep.holder_pid != 0;
        let held_on = sleep.holder_exit_kind != DEBOX_HOLDER_NONE && sleep.holder_exit_pid != 0;
        let known = |flag: u32, waiters: u32| (sleep.flags & flag != 0).then_some(waiters);
        Sleep {
            start_ns: self.since_start(sleep.start_ns),
            blocked_ns: sleep.blocked_ns,
            runq_ns: sleep.runq_ns,
            site: (sleep.site != DEBOX_SITE_NONE).then(|| self.site(sleep.site)),
            waiters_entry: known(DEBOX_SLEEP_WAITERS_ENTRY, sleep.waiters_entry),
            waiters_exit: known(DEBOX_SLEEP_WAITERS_EXIT, sleep.waiters_exit),
            holder: held.then(|| Party {
                stack: self.stack(sleep.holder_stack),
                ..self.party(
                    sleep.holder_pid,
                    &sleep.holder_comm,
                    sleep.holder_nr,
                    reader,
                )
            }),
            holder_exit: held_on.then(|| {
                self.party(
                    sleep.holder_exit_pid,
                    &sleep.holder_exit_comm,
                    sleep.holder_exit_nr,
                    sleep.holder_exit_kind == DEBOX_HOLDER_READER,
                )
            }),
            chain: (sleep.chain != 0 && self.chain_link(sleep.chain).is_some())
                .then(|| self.chain(sleep.chain))
                .flatten(),
            chain_permille: (sleep.chain != 0)
                .then_some(sleep.flags >> DEBOX_SLEEP_PERMILLE_SHIFT)
                .filter(|permille| *permille > 0)
                .map(|permille| permille.min(1000)),
            waker: (sleep.waker_comm[0] != 0)
                .then(|| self.party(sleep.waker_pid, &sleep.waker_comm, sleep.waker_nr, false)),
        }
    }

    fn object(&mut self, object: Object) -> usize {
        placed(&mut self.objects, &mut self.object_known, object)
    }

    /// Objects that read the same are one.
    fn by_object(&mut self) -> Vec<ObjectRow> {
        let Some(told) = self.facts.objects else {
            return Vec::new();
        };
        let mut rows: BTreeMap<(u32, Option<usize>), ObjectRow> = BTreeMap::new();
        for row in told
            .rows
            .iter()
            .filter(|row| row.key >> 63 != 0 && row.count > 0)
        {
            let nr_key = (row.key >> 32) as u32 & (DEBOX_NR_SLOTS as u32 - 1);
            let object = match row.key as u32 {
                0 => None,
                DEBOX_OBJECT_NO_ROOM => Some(Object::no_room()),
                number => told.objects.get(number as usize).and_then(Object::of),
            };
            let object = object.map(|object| self.object(object));
            let (call, _, abi) = key_name(nr_key, self.names);
            let sum = rows.entry((nr_key, object)).or_insert(ObjectRow {
                call,
                abi,
                object,
                count: 0,
                total_ns: 0,
                max_ns: 0,
            });
            sums_add!(sum, row);
        }
        let mut rows: Vec<ObjectRow> = rows.into_values().collect();
        rows.sort_by_key(|row| (std::cmp::Reverse(row.total_ns), row.object));
        rows
    }

    fn slow_call(&mut self, call: &debox_event_call) -> SlowCall {
        let (name, nr, abi) = key_name(call.key, self.names);
        let object = Object::of(&call.object);
        let sleeps = (call.sleep_count as usize).min(DEBOX_EVENT_SLEEPS_MAX);
        SlowCall {
            one_sleep: call.flags & DEBOX_EVENT_SLEEP != 0,
            start_ns: self.since_start(call.start_ns),
            pid: call.pid,
            tid: call.tid,
            comm: name_get(&call.comm).into_owned(),
            call: name.unwrap_or_else(|| "(unknown)".into()),
            abi,
            retval: call.retval,
            error: error_name(call.retval),
            args: call.args,
            arguments: nr.map_or(Vec::new(), |nr| {
                (self.facts.call_arguments)(nr, abi == 32, &call.args)
            }),
            path: object.as_ref().map(|object| object.text.clone()),
            object: object.map(|object| self.object(object)),
            wall_ns: call.wall_ns,
            cpu_ns: call.cpu_ns,
            blocked_ns: call.blocked_ns,
            runq_ns: call.runq_ns,
            irq_ns: self.measured.irq.then_some(call.irq_ns),
            minor_faults: call.minor_faults,
            major_faults: call.major_faults,
            stack: self.stack(call.user_stack),
            conditions: self
                .facts
                .conditions
                .iter()
                .enumerate()
                .filter(|(i, _)| *i < 32 && call.conditions >> i & 1 != 0)
                .map(|(_, text)| text.clone())
                .collect(),
            sleeps: call.sleeps[..sleeps]
                .iter()
                .map(|s| self.sleep(s))
                .collect(),
            sleeps_dropped: call.sleeps_dropped,
            sleeps_dropped_ns: call.sleeps_dropped_ns,
        }
    }
}

fn notes_of(details: &debox_details, objects: Option<&debox_objects>, notes: &mut Notes) {
    let mut put = |count: u64, time_ns: Option<u64>, text: String| {
        if count > 0 {
            notes.put(NoteKind::DetailsDropped, count, time_ns, text);
        }
    };
    let d = details;
    put(
        d.call_sites_dropped,
        Some(d.call_sites_dropped_ns),
        format!(
            "{} ({}) missing among the call sites: room for {} pairs of call and stack",
            n(d.call_sites_dropped, "call is", "calls are"),
            time(d.call_sites_dropped_ns),
            DEBOX_CALL_SITE_ROWS_MAX
        ),
    );
    put(
        d.stacks_dropped,
        None,
        format!(
            "{} without a call site: room for {} user stacks",
            n(d.stacks_dropped, "call", "calls"),
            DEBOX_USER_STACKS_MAX - 1
        ),
    );
    put(
        d.stacks_failed,
        None,
        format!(
            "{} without a call site: the program's stack could not be walked",
            n(d.stacks_failed, "call", "calls")
        ),
    );
    put(
        d.stacks_pending,
        None,
        format!(
            "{} taken by frame pointers, before the file's unwind table was read: callers may be \
             missing",
            n(d.stacks_pending, "user stack was", "user stacks were")
        ),
    );
    put(
        d.paths_dropped,
        Some(d.paths_dropped_ns),
        format!(
            "{} ({}) missing among the blocked paths: room for {} of call, stack and place",
            n(d.paths_dropped, "sleep is", "sleeps are"),
            time(d.paths_dropped_ns),
            DEBOX_PATH_ROWS_MAX
        ),
    );
    put(
        d.culprits_dropped,
        Some(d.culprits_dropped_ns),
        format!(
            "{} ({}) without a culprit: room for {} of them",
            n(d.culprits_dropped, "wait", "waits"),
            time(d.culprits_dropped_ns),
            DEBOX_CULPRIT_ROWS_MAX
        ),
    );
    if let Some(objects) = objects {
        put(
            objects.rows_dropped,
            Some(objects.rows_dropped_ns),
            format!(
                "{} ({}) missing among the objects: room for {} pairs of call and object",
                n(objects.rows_dropped, "sleep is", "sleeps are"),
                time(objects.rows_dropped_ns),
                DEBOX_OBJECT_ROWS_MAX
            ),
        );
    }
    put(
        d.files_dropped,
        None,
        format!(
            "{} without a name: programs and libraries beyond {}",
            n(d.files_dropped, "frame", "frames"),
            DEBOX_USER_FILES_MAX - 1
        ),
    );
    put(
        d.threads_dropped,
        None,
        format!(
            "{} summed up in one row of the thread table",
            n(d.threads_dropped, "thread is", "threads are")
        ),
    );
    put(
        d.events_dropped,
        None,
        format!(
            "{} missing among the slowest: the ring of events was full",
            n(d.events_dropped, "call or sleep is", "calls or sleeps are")
        ),
    );
}

pub(super) fn tell(
    facts: &Details<'_>,
    sites: &[debox_site],
    names: &CallNames<'_>,
    measured: Measured,
    notes: &mut Notes,
) -> Told {
    let lives = facts
        .lives
        .map_or_else(Vec::new, |lives| lives::rows(lives, facts.start_ns));
    let comms: Vec<_> = facts
        .chain_links
        .iter()
        .map(|link| name_get(&link.comm))
        .collect();
    let mut tables = Tables {
        facts,
        sites_text: sites,
        names,
        measured,
        site_frames: facts
            .site_stacks
            .iter()
            .map(|(site, frames)| (*site, frames.as_slice()))
            .collect(),
        site_index: HashMap::new(),
        sites: Vec::new(),
        site_known: HashMap::new(),
        stack_index: HashMap::new(),
        stacks: Vec::new(),
        stack_known: HashMap::new(),
        objects: Vec::new(),
        object_known: HashMap::new(),
        chain_index: HashMap::new(),
        chain_links: Vec::new(),
        chain_known: HashMap::new(),
        families: Families::of(
            comms.iter().map(|name| name.as_ref()),
            lives.iter().map(|row| row.comm.as_str()),
        ),
        rest_places: None,
    };
    notes_of(facts.details, facts.objects, notes);
    if let Some(lives) = facts.lives {
        lives::notes_of(lives, notes);
    }
    let slow_calls = facts.events.iter().map(|e| tables.slow_call(e)).collect();
    let by_object = tables.by_object();
    let paths = tables.paths();
    let call_sites = tables.call_sites();
    let chains = tables.chains();
    let critical_path = facts
        .lives
        .and_then(|lives| lives::critical(lives, &mut |number| tables.chain(number)));
    let activities = facts.lives.map_or_else(Vec::new, |lives| {
        lives::activities(lives, names, &mut |number| tables.chain(number))
    });
    Told {
        chains,
        critical_path,
        activities,
        lives,
        by_object,
        culprits: tables.culprits(),
        threads: tables.threads(),
        paths,
        call_sites,
        slow_calls,
        objects: tables.objects,
        sites: tables.sites,
        stacks: tables.stacks,
        chain_links: tables.chain_links,
    }
}
