// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a metric inserted into the running kernel, read, and taken away?
//!
//! Everything attached is a file descriptor of this process, close-on-exec:
//! when it ends, in whatever way, the kernel takes all of it away.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::Link;
use libbpf_rs::libbpf_sys;

use crate::error::Error;
use crate::functions::Function;
use crate::generated::{
    KERN_CALLS, KERN_FILTER, KERN_OPERAND_MEMORY, KERN_PER_CALL, KERN_TIMED, KERN_UNDER,
    kern_call_ids, kern_metric, kern_operand, kern_sums, kern_target,
};
use crate::object::{Limits, Loaded};
use crate::way::Way;

/// What a metric is restricted to. The default is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restriction {
    /// Bits of process sets; 0: any process.
    pub processes: u32,
    /// Number of the system call that the thread is in.
    pub call: Option<i32>,
    /// Place in the map of cgroups.
    pub cgroup: Option<i32>,
    /// Number of the call site in the program; 0: any.
    pub call_site: u32,
    /// Directly below this metric only.
    pub under: Option<MetricId>,
}

/// A metric that is, or was, inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MetricId(u32);

impl MetricId {
    fn index(self) -> u32 {
        self.0 & 0xffff
    }
}

/// What can be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    Function(Function),
    /// One instruction: only how often it is executed.
    Instruction {
        function: Function,
        offset: u64,
    },
    /// A system call, at its tracepoints.
    Call {
        number: i32,
        name: String,
    },
}

impl Resource {
    pub fn name(&self) -> String {
        match self {
            Resource::Function(f) => f.full_name(),
            Resource::Instruction { function, offset } => {
                format!("{}+{offset:#x}", function.full_name())
            }
            Resource::Call { name, .. } => format!("{name}()"),
        }
    }

    pub fn module(&self) -> Option<&str> {
        match self {
            Resource::Function(f) | Resource::Instruction { function: f, .. } => {
                f.module.as_deref()
            }
            Resource::Call { .. } => None,
        }
    }

    /// As documents have it.
    pub fn kind(&self) -> &'static str {
        match self {
            Resource::Function(_) => "function",
            Resource::Instruction { .. } => "instruction",
            Resource::Call { .. } => "call",
        }
    }
}

/// One metric to insert.
#[derive(Clone, Debug)]
pub struct Insertion {
    pub resource: Resource,
    /// With the times; else calls are only counted, which is cheaper.
    pub timed: bool,
    pub restriction: Restriction,
}

impl Insertion {
    /// Whether returns are to be seen. Of a function that never returns they
    /// are not: each thread would keep what its return was to pass through until
    /// some time after its end, and while there is none left (there are two for
    /// each CPU) the kernel does not tell entries either.
    fn returns(&self) -> bool {
        self.timed
            && !matches!(&self.resource, Resource::Function(f) if debox_abi::never_returns(&f.name))
    }
}

/// An indirect call instruction whose targets are to be learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndirectCall {
    pub address: u64,
    /// Register that holds the target, or the base of its place in memory.
    pub register: u8,
    pub memory: Option<MemoryOperand>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOperand {
    pub displacement: i64,
    pub index: Option<u8>,
    pub scale: u8,
}

enum Attached {
    /// Our own descriptors, in the order in which they are closed.
    Descriptors { _descriptors: Vec<OwnedFd> },
    /// Through the call tracepoints: nothing of its own.
    Call,
}

struct Inserted {
    resource: Resource,
    group: u64,
    way: Option<Way>,
}

/// A metric, and the place of its insertion in the list.
pub type Placed = (MetricId, usize);

/// What could not be attached, and why.
#[derive(Clone, Debug)]
pub struct Skipped {
    pub name: String,
    pub why: String,
}

/// Inserts metrics into the kernel.
pub struct Engine {
    loaded: Loaded,
    inserted: HashMap<MetricId, Inserted>,
    groups: HashMap<u64, Attached>,
    next_group: u64,
    /// Next generation of each place.
    generations: Vec<u32>,
    free: Vec<u32>,
    /// The tracepoints that time needs; attached with the first timed metric.
    switch: Option<Link>,
    processes: Vec<Link>,
    call_links: Vec<Link>,
    calls: HashMap<i32, Vec<MetricId>>,
    uprobes: Vec<Link>,
    call_sites: u32,
    cgroups: Vec<OwnedFd>,
    operands: u32,
    /// A function is measured in one way at a time: two would see each
    /// other's frames on the stack in an order of their own.
    way_of: HashMap<u64, (Way, u32)>,
    pub forced_way: Option<Way>,
    /// For sets that change all the time: what is attached soonest.
    pub prefer_sessions: bool,
    perf_type: Option<u32>,
}

impl Engine {
    pub fn open(limits: Limits) -> Result<Engine, Error> {
        let loaded = Loaded::load(limits)?;
        Ok(Engine {
            generations: vec![1; limits.metrics as usize],
            // Place 0 is never used: an id of 0 means none.
            free: (1..limits.metrics).rev().collect(),
            loaded,
            inserted: HashMap::new(),
            groups: HashMap::new(),
            next_group: 1,
            switch: None,
            processes: Vec::new(),
            call_links: Vec::new(),
            calls: HashMap::new(),
            uprobes: Vec::new(),
            call_sites: 0,
            cgroups: Vec::new(),
            operands: 0,
            way_of: HashMap::new(),
            forced_way: None,
            prefer_sessions: false,
            perf_type: std::fs::read_to_string("/sys/bus/event_source/devices/kprobe/type")
                .ok()
                .and_then(|text| text.trim().parse().ok()),
        })
    }

    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// How a set of functions would be attached: the way for each, or why not.
    ///
    /// fentry and fexit know no limit of threads that are inside at the same
    /// time, but each pair takes the kernel a moment; sessions are attached at
    /// once, but before 6.14 have only two instances for each function and CPU
    /// in common. So: trampolines for a few, sessions for many.
    pub fn plan(&self, functions: &[&Function]) -> Vec<Result<Way, String>> {
        const FEW: usize = 8;
        let few = if self.prefer_sessions { 0 } else { FEW };
        let ways = self.loaded.ways();
        let has = |way| self.loaded.has(way);
        functions
            .iter()
            .map(|f| {
                if let Some((way, _)) = self.way_of.get(&f.address) {
                    return Ok(*way);
                }
                if let Some(why) = f.refusal(ways.kprobe) {
                    return Err(why);
                }
                let trampoline = ways.trampoline
                    && f.traceable
                    && !f.ambiguous
                    && f.module.is_none()
                    && !debox_abi::threads_end_inside(&f.name)
                    && !debox_abi::threads_stay_inside(&f.name)
                    && !debox_abi::bpf_entry_runs_through(&f.name)
                    && self.loaded.btf_function(&f.name).is_some();
                // What each of these needs is loaded where it is asked for.
                let many = || {
                    [Way::Session, Way::Multi]
                        .into_iter()
                        .find(|way| f.traceable && has(*way))
                };
                let is_few = functions.len() <= few || !(ways.session || ways.multi);
                match self.forced_way {
                    Some(Way::Session) if f.traceable && has(Way::Session) => Ok(Way::Session),
                    Some(Way::Multi) if f.traceable && has(Way::Multi) => Ok(Way::Multi),
                    Some(Way::Trampoline) if trampoline && has(Way::Trampoline) => {
                        Ok(Way::Trampoline)
                    }
                    Some(Way::Kprobe) if !f.blacklisted && has(Way::Kprobe) => Ok(Way::Kprobe),
                    Some(Way::Trampoline) if debox_abi::bpf_entry_runs_through(&f.name) => {
                        Err(format!(
                            "{} cannot be measured by {}: entering a BPF program runs through \
                             it, so it would never end",
                            f.name,
                            Way::Trampoline.name(),
                        ))
                    }
                    Some(Way::Trampoline) if debox_abi::threads_stay_inside(&f.name) => {
                        Err(format!(
                            "{} cannot be measured by {}: idle threads stay inside of it for \
                             hours, and the kernel would keep what they return through as long. \
                             --way session, multi or kprobe leave nothing",
                            f.name,
                            Way::Trampoline.name(),
                        ))
                    }
                    Some(way) => Err(format!(
                        "{} cannot be measured by {}{}",
                        f.name,
                        way.name(),
                        self.loaded
                            .ways()
                            .refused
                            .iter()
                            .find(|(name, _)| *name == way.name())
                            .map(|(_, why)| format!(": {why}"))
                            .unwrap_or_default()
                    )),
                    None if trampoline && is_few && has(Way::Trampoline) => Ok(Way::Trampoline),
                    None => many()
                        .or_else(|| (trampoline && has(Way::Trampoline)).then_some(Way::Trampoline))
                        .or_else(|| (!f.blacklisted && has(Way::Kprobe)).then_some(Way::Kprobe))
                        .ok_or_else(|| {
                            format!("{} cannot be measured: {}", f.name, self.why_no_functions())
                        }),
                }
            })
            .collect()
    }

    /// Why functions cannot be measured on this machine, with the remedy.
    pub fn why_no_functions(&self) -> String {
        let reasons: Vec<String> = self
            .loaded
            .ways()
            .refused
            .iter()
            .map(|(way, why)| format!("{way}: {why}"))
            .collect();
        reasons.join("; ")
    }

    fn claim(&mut self) -> Result<MetricId, Error> {
        let index = self.free.pop().ok_or_else(|| {
            Error::Usage(format!(
                "{} metrics are inserted, which is the limit: remove some, or raise it with \
                 --max-functions",
                self.loaded.limits.metrics - 1
            ))
        })?;
        let generation = self.generations[index as usize];
        Ok(MetricId(index | generation << 16))
    }

    fn give_back(&mut self, id: MetricId) {
        let index = id.index();
        let generation = &mut self.generations[index as usize];
        *generation = (*generation % 0xffff) + 1;
        // Nothing may count for the old one any more.
        let _ = self.loaded.metric_set(index, &kern_metric::default());
        self.free.push(index);
    }

    /// Inserts metrics as one group, which is attached and removed together.
    /// What cannot be attached comes back in the second list; the call fails
    /// only when something is wrong with all of it.
    pub fn insert(
        &mut self,
        insertions: &[Insertion],
    ) -> Result<(Vec<Placed>, Vec<Skipped>), Error> {
        let functions: Vec<&Function> = insertions
            .iter()
            .filter_map(|i| match &i.resource {
                Resource::Function(f) => Some(f),
                _ => None,
            })
            .collect();
        let mut plan = self.plan(&functions).into_iter();
        let group = self.next_group;
        self.next_group += 1;
        if self.switch.is_none() && insertions.iter().any(|i| i.timed) {
            self.switch = Some(self.loaded.attach_trace("thread_switch")?);
        }
        let mut done = Vec::new();
        let mut skipped = Vec::new();
        let mut descriptors = Vec::new();
        let mut multi: Vec<(u64, u64, MetricId, usize)> = Vec::new();
        let mut only_calls = true;
        for (place, insertion) in insertions.iter().enumerate() {
            let way = match &insertion.resource {
                Resource::Function(f) => match plan.next() {
                    Some(Ok(way)) => Some(way),
                    Some(Err(why)) => {
                        skipped.push(Skipped {
                            name: f.full_name(),
                            why,
                        });
                        continue;
                    }
                    None => continue,
                },
                _ => None,
            };
            let id = self.claim()?;
            let metric = metric_for(id, insertion);
            self.loaded.sums_clear(id.index())?;
            self.loaded.metric_set(id.index(), &metric)?;
            let attached: Result<(), io::Error> = match (&insertion.resource, way) {
                (Resource::Function(f), Some(Way::Session | Way::Multi)) => {
                    only_calls = false;
                    multi.push((f.address, u64::from(id.0), id, place));
                    Ok(())
                }
                (Resource::Function(f), Some(Way::Trampoline)) => {
                    only_calls = false;
                    self.attach_trampoline(f, id, insertion.returns(), &mut descriptors)
                }
                (Resource::Function(f), Some(Way::Kprobe)) => {
                    only_calls = false;
                    self.attach_kprobe(f.address, id, insertion.returns(), &mut descriptors)
                }
                (Resource::Function(_), None) => continue,
                (Resource::Instruction { function, offset }, _) => {
                    only_calls = false;
                    self.attach_instruction(
                        "instruction_hit",
                        function.address + offset,
                        u64::from(id.0),
                    )
                    .map(|fds| descriptors.extend(fds))
                }
                (Resource::Call { number, .. }, _) => self.attach_call(*number, id),
            };
            match attached {
                Ok(()) => {
                    self.inserted.insert(
                        id,
                        Inserted {
                            resource: insertion.resource.clone(),
                            group,
                            way,
                        },
                    );
                    if let (Resource::Function(f), Some(way)) = (&insertion.resource, way) {
                        self.way_of.entry(f.address).or_insert((way, 0)).1 += 1;
                    }
                    done.push((id, place));
                }
                Err(error) => {
                    self.give_back(id);
                    skipped.push(Skipped {
                        name: insertion.resource.name(),
                        why: self.explain(&insertion.resource, &error),
                    });
                }
            }
        }
        let (with_returns, entries): (Vec<_>, Vec<_>) = multi
            .into_iter()
            .partition(|(.., place)| insertions[*place].returns());
        for (functions, returns) in [(with_returns, true), (entries, false)] {
            if !functions.is_empty() {
                self.attach_multi(
                    functions,
                    returns,
                    &mut descriptors,
                    &mut done,
                    &mut skipped,
                    insertions,
                );
            }
        }
        if done.is_empty() {
            drop(descriptors);
            return Ok((done, skipped));
        }
        self.groups.insert(
            group,
            if only_calls {
                Attached::Call
            } else {
                Attached::Descriptors {
                    _descriptors: descriptors,
                }
            },
        );
        Ok((done, skipped))
    }

    /// Takes metrics away. A group goes when its last metric goes; until then
    /// the others' probes stay, and count nothing for those that went.
    pub fn remove(&mut self, ids: &[MetricId]) -> Duration {
        let begin = Instant::now();
        let mut groups = Vec::new();
        for id in ids {
            let Some(inserted) = self.inserted.remove(id) else {
                continue;
            };
            // First of all: from here on its entries open nothing that a
            // return, no longer seen, would have to close.
            self.give_back(*id);
            if let Resource::Call { number, .. } = &inserted.resource
                && let Some(list) = self.calls.get_mut(number)
            {
                list.retain(|other| other != id);
                let list = list.clone();
                let _ = self.write_calls(*number, &list);
            }
            if let (Resource::Function(f), Some(_)) = (&inserted.resource, inserted.way)
                && let Some((_, users)) = self.way_of.get_mut(&f.address)
            {
                *users -= 1;
                if *users == 0 {
                    self.way_of.remove(&f.address);
                }
            }
            groups.push(inserted.group);
        }
        for group in groups {
            if !self.inserted.values().any(|i| i.group == group) {
                self.groups.remove(&group);
            }
        }
        begin.elapsed()
    }

    /// Takes everything away.
    pub fn clear(&mut self) -> Duration {
        let ids: Vec<MetricId> = self.inserted.keys().copied().collect();
        let took = self.remove(&ids);
        self.targets_forget();
        took
    }

    pub fn way(&self, id: MetricId) -> Option<Way> {
        self.inserted.get(&id)?.way
    }

    pub fn read(&self, id: MetricId) -> Result<kern_sums, Error> {
        self.loaded.sums_read(id.index())
    }

    pub fn histogram(&self, id: MetricId) -> Result<Vec<u64>, Error> {
        self.loaded.histogram_read(id.index())
    }

    /// Hits that the kernel skipped, as far as it tells (6.7 and later).
    pub fn missed(&self) -> Result<u64, Error> {
        let mut all = 0;
        for group in self.groups.values() {
            let Attached::Descriptors { _descriptors } = group else {
                continue;
            };
            for fd in _descriptors {
                let mut info = libbpf_sys::bpf_link_info::default();
                let mut len = size_of::<libbpf_sys::bpf_link_info>() as u32;
                // SAFETY: room for `len` bytes; a descriptor that is no link
                // is refused.
                let got = unsafe {
                    libbpf_sys::bpf_obj_get_info_by_fd(
                        fd.as_raw_fd(),
                        std::ptr::from_mut(&mut info).cast(),
                        &mut len,
                    )
                };
                if got != 0 {
                    continue;
                }
                match info.type_ {
                    libbpf_sys::BPF_LINK_TYPE_KPROBE_MULTI => {
                        // SAFETY: the link's type says which member is meant;
                        // the kernel zeroes what it does not know.
                        all += unsafe { info.__bindgen_anon_1.kprobe_multi.missed };
                    }
                    libbpf_sys::BPF_LINK_TYPE_PERF_EVENT => {
                        // SAFETY: as above; ours are all kprobes.
                        all += unsafe {
                            info.__bindgen_anon_1
                                .perf_event
                                .__bindgen_anon_1
                                .kprobe
                                .missed
                        };
                    }
                    _ => {}
                }
            }
        }
        Ok(all)
    }

    // -- the ways ---------------------------------------------------------

    fn explain(&self, resource: &Resource, error: &io::Error) -> String {
        let name = resource.name();
        match (resource, error.raw_os_error()) {
            (Resource::Instruction { .. }, Some(libc::EILSEQ | libc::EINVAL)) => format!(
                "no instruction begins at {name}, or it is one that no probe may replace. \
                 objdump -d of the kernel's vmlinux, or --list {name}, shows where they begin"
            ),
            (_, Some(libc::EPERM | libc::EACCES)) => format!(
                "{name}: {error}. It needs CAP_BPF and CAP_PERFMON (root has them) and a kernel \
                 that is not locked down: see /sys/kernel/security/lockdown and `debox doctor`"
            ),
            (_, Some(libc::EBUSY)) => format!(
                "{name}: something else holds this function (a live patch, another trampoline \
                 with the same address); try --way kprobe"
            ),
            _ => format!("{name}: {error}"),
        }
    }

    fn attach_multi(
        &mut self,
        functions: Vec<(u64, u64, MetricId, usize)>,
        returns: bool,
        descriptors: &mut Vec<OwnedFd>,
        done: &mut Vec<(MetricId, usize)>,
        skipped: &mut Vec<Skipped>,
        insertions: &[Insertion],
    ) {
        // One function that the kernel refuses would refuse all: then halves
        // are tried, down to the one.
        let mut stack = vec![functions];
        while let Some(part) = stack.pop() {
            match self.link_multi(&part, returns) {
                Ok(links) => {
                    // Closed entries first, see attach_trampoline().
                    descriptors.extend(links.into_iter().rev());
                    done.extend(part.iter().map(|(_, _, id, place)| (*id, *place)));
                }
                Err(error) if part.len() == 1 => {
                    let (_, _, id, place) = part[0];
                    let resource = &insertions[place].resource;
                    skipped.push(Skipped {
                        name: resource.name(),
                        why: self.explain(resource, &error),
                    });
                    if let Some(inserted) = self.inserted.remove(&id)
                        && let Resource::Function(f) = &inserted.resource
                    {
                        self.way_of.remove(&f.address);
                    }
                    self.give_back(id);
                }
                Err(_) => {
                    let (a, b) = part.split_at(part.len() / 2);
                    stack.push(b.to_vec());
                    stack.push(a.to_vec());
                }
            }
        }
        // They were counted as done when they were planned.
        let mut seen = std::collections::HashSet::new();
        done.retain(|(id, _)| self.inserted.contains_key(id) && seen.insert(*id));
    }

    fn link_multi(
        &self,
        functions: &[(u64, u64, MetricId, usize)],
        returns: bool,
    ) -> Result<Vec<OwnedFd>, io::Error> {
        let addresses: Vec<u64> = functions.iter().map(|f| f.0).collect();
        let cookies: Vec<u64> = functions.iter().map(|f| f.1).collect();
        let programs: &[(&str, u32, u32)] = if !returns {
            &[(
                "function_enter_multi",
                libbpf_sys::BPF_TRACE_KPROBE_MULTI,
                0,
            )]
        } else if self.forced_way != Some(Way::Multi) && self.loaded.has(Way::Session) {
            &[("function_session", libbpf_sys::BPF_TRACE_KPROBE_SESSION, 0)]
        } else {
            &[
                // The return first: entries without it would wait for nothing.
                (
                    "function_leave_multi",
                    libbpf_sys::BPF_TRACE_KPROBE_MULTI,
                    1, // BPF_F_KPROBE_MULTI_RETURN
                ),
                (
                    "function_enter_multi",
                    libbpf_sys::BPF_TRACE_KPROBE_MULTI,
                    0,
                ),
            ]
        };
        programs
            .iter()
            .map(|(program, kind, flags)| {
                let fd = self
                    .loaded
                    .program_fd(program)
                    .ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
                let mut options = libbpf_sys::bpf_link_create_opts {
                    sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
                    ..Default::default()
                };
                options.__bindgen_anon_1.kprobe_multi =
                    libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_2 {
                        flags: *flags,
                        cnt: addresses.len() as u32,
                        syms: std::ptr::null_mut(),
                        addrs: addresses.as_ptr(),
                        cookies: cookies.as_ptr(),
                    };
                // SAFETY: the arrays live through the call and are `cnt` long.
                let link = unsafe { libbpf_sys::bpf_link_create(fd, 0, *kind, &raw const options) };
                own(link)
            })
            .collect()
    }

    fn attach_trampoline(
        &self,
        function: &Function,
        id: MetricId,
        returns: bool,
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<(), io::Error> {
        let btf_id = self
            .loaded
            .btf_function(&function.name)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        let mut parts = Vec::new();
        let programs: &[(&str, u32)] = &[
            ("function_leave_trampoline", libbpf_sys::BPF_TRACE_FEXIT),
            ("function_enter_trampoline", libbpf_sys::BPF_TRACE_FENTRY),
        ];
        for (name, kind) in &programs[usize::from(!returns)..] {
            let program = self.loaded.trampoline_copy(name, btf_id)?;
            let mut options = libbpf_sys::bpf_link_create_opts {
                sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
                ..Default::default()
            };
            options.__bindgen_anon_1.tracing =
                libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_4 {
                    cookie: u64::from(id.0),
                };
            // SAFETY: a live program; the options live through the call.
            let link = unsafe {
                libbpf_sys::bpf_link_create(program.as_raw_fd(), 0, *kind, &raw const options)
            };
            parts.push(own(link)?);
        }
        // Attached returns first, closed entries first: no entry without its return.
        descriptors.extend(parts.into_iter().rev());
        Ok(())
    }

    fn attach_kprobe(
        &self,
        address: u64,
        id: MetricId,
        returns: bool,
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<(), io::Error> {
        let cookie = u64::from(id.0);
        let leave = match returns {
            true => self.attach_perf("function_leave_kprobe", address, true, cookie)?,
            false => Vec::new(),
        };
        let enter = self.attach_perf("function_enter_kprobe", address, false, cookie)?;
        // As above; and of each the link before its event.
        descriptors.extend(enter.into_iter().chain(leave));
        Ok(())
    }

    fn attach_instruction(
        &self,
        program: &str,
        address: u64,
        cookie: u64,
    ) -> Result<Vec<OwnedFd>, io::Error> {
        self.attach_perf(program, address, false, cookie)
    }

    /// A kprobe as a perf event of this process, with a BPF program on it.
    fn attach_perf(
        &self,
        program: &str,
        address: u64,
        at_return: bool,
        cookie: u64,
    ) -> Result<Vec<OwnedFd>, io::Error> {
        let program = self
            .loaded
            .program_fd(program)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
        let kind = self
            .perf_type
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
        let mut attributes = libbpf_sys::perf_event_attr {
            type_: kind,
            size: size_of::<libbpf_sys::perf_event_attr>() as u32,
            config: u64::from(at_return),
            ..Default::default()
        };
        // config1: no name; config2: the address.
        attributes.__bindgen_anon_3.config1 = 0;
        attributes.__bindgen_anon_4.config2 = address;
        self.perf_link(&attributes, 0, program, cookie)
    }

    /// A perf event on one CPU (kprobes fire on all), with a BPF program.
    fn perf_link(
        &self,
        attributes: &libbpf_sys::perf_event_attr,
        cpu: i32,
        program: i32,
        cookie: u64,
    ) -> Result<Vec<OwnedFd>, io::Error> {
        const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
        // SAFETY: the attributes live through the call and hold their size.
        let event = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                std::ptr::from_ref(attributes),
                -1,
                cpu,
                -1,
                PERF_FLAG_FD_CLOEXEC,
            )
        };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        let event = unsafe { OwnedFd::from_raw_fd(event as i32) };
        let mut options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        options.__bindgen_anon_1.perf_event =
            libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_1 { bpf_cookie: cookie };
        // SAFETY: live descriptors; the options live through the call.
        let link = unsafe {
            libbpf_sys::bpf_link_create(
                program,
                event.as_raw_fd(),
                libbpf_sys::BPF_PERF_EVENT,
                &raw const options,
            )
        };
        // The link first, then the event.
        let link = own(link)?;
        // SAFETY: a live perf event; this request takes a number.
        unsafe {
            libc::ioctl(
                event.as_raw_fd(),
                0x2400, /* PERF_EVENT_IOC_ENABLE */
                0,
            )
        };
        Ok(vec![link, event])
    }

    fn write_calls(&self, number: i32, ids: &[MetricId]) -> Result<(), Error> {
        let mut list = kern_call_ids::default();
        for (slot, id) in list.id.iter_mut().zip(ids) {
            *slot = id.0;
        }
        self.loaded.map_write("calls", &(number as u32), &list)
    }

    fn attach_call(&mut self, number: i32, id: MetricId) -> Result<(), io::Error> {
        let refuse = |errno| io::Error::from_raw_os_error(errno);
        if !(0..KERN_CALLS as i32).contains(&number) {
            return Err(refuse(libc::ENOSYS));
        }
        let mut list = self.calls.get(&number).cloned().unwrap_or_default();
        if list.len() >= KERN_PER_CALL {
            return Err(io::Error::other(format!(
                "at most {KERN_PER_CALL} metrics on one system call"
            )));
        }
        list.push(id);
        if self.call_links.is_empty() {
            for program in ["call_leave", "call_enter"] {
                let link = self
                    .loaded
                    .attach_trace(program)
                    .map_err(|e| io::Error::other(e.to_string()))?;
                self.call_links.push(link);
            }
        }
        self.write_calls(number, &list)
            .map_err(|e| io::Error::other(e.to_string()))?;
        self.calls.insert(number, list);
        Ok(())
    }

    // -- restrictions -------------------------------------------------------

    fn watch_processes(&mut self) -> Result<(), Error> {
        if self.processes.is_empty() {
            self.processes
                .push(self.loaded.attach_trace("process_fork")?);
            self.processes
                .push(self.loaded.attach_trace("process_exit")?);
        }
        Ok(())
    }

    /// Puts a process into a set (one bit).
    pub fn process_add(&mut self, pid: u32, set: u32) -> Result<(), Error> {
        self.watch_processes()?;
        let known: u32 = self.loaded.map_read("processes", &pid)?.unwrap_or(0);
        self.loaded.map_write("processes", &pid, &(known | set))
    }

    /// Children of processes in these sets are in them, too.
    pub fn follow(&mut self, sets: u32) -> Result<(), Error> {
        self.watch_processes()?;
        self.loaded.follow_set(sets)
    }

    /// A place for a cgroup (v2), by its directory.
    pub fn cgroup_add(&mut self, directory: &std::path::Path) -> Result<i32, Error> {
        let file = std::fs::File::open(directory)
            .map_err(Error::system(format!("cgroup {}", directory.display())))?;
        let place = self.cgroups.len() as u32;
        let fd: OwnedFd = file.into();
        self.loaded
            .map_write("cgroups", &place, &(fd.as_raw_fd() as u32))
            .map_err(|_| {
                Error::Usage(format!(
                    "{} is no directory of the cgroup (v2) file system: see /proc/self/cgroup \
                     for the names, below where cgroup2 is mounted (findmnt -t cgroup2)",
                    directory.display()
                ))
            })?;
        self.cgroups.push(fd);
        Ok(place as i32)
    }

    /// A call site in a program: between the call instruction at `call` and the
    /// one behind it (file offsets).
    pub fn call_site_add(
        &mut self,
        path: &std::path::Path,
        call: usize,
        behind: usize,
    ) -> Result<u32, Error> {
        self.watch_processes()?;
        let number = self.call_sites + 1;
        let leave =
            self.loaded
                .attach_uprobe("call_site_leave", path, behind, u64::from(number))?;
        let enter = self
            .loaded
            .attach_uprobe("call_site_enter", path, call, u64::from(number))?;
        self.uprobes.extend([leave, enter]);
        self.call_sites = number;
        Ok(number)
    }

    // -- stacks -------------------------------------------------------------

    /// Begins to sample the stacks of threads that meet a restriction.
    pub fn sample(&mut self, restriction: &Restriction) -> Result<Sampling, Error> {
        let id = self.claim()?;
        let insertion = Insertion {
            resource: Resource::Call {
                number: -1,
                name: String::new(),
            },
            timed: false,
            restriction: restriction.clone(),
        };
        self.loaded
            .metric_set(id.index(), &metric_for(id, &insertion))?;
        self.loaded.sample_metric_set(id.index())?;
        let program = self
            .loaded
            .program_fd("sample_on_cpu")
            .ok_or_else(|| Error::Usage("no program sample_on_cpu".into()))?;
        let mut sampling = Sampling {
            id,
            _switch: self.loaded.attach_trace("sample_switch")?,
            _events: Vec::new(),
        };
        let cpus = libbpf_rs::num_possible_cpus().map_err(Error::bpf("counting the CPUs"))?;
        for cpu in 0..cpus {
            let mut attributes = libbpf_sys::perf_event_attr {
                type_: libbpf_sys::PERF_TYPE_SOFTWARE,
                config: libbpf_sys::PERF_COUNT_SW_CPU_CLOCK.into(),
                size: size_of::<libbpf_sys::perf_event_attr>() as u32,
                ..Default::default()
            };
            attributes.__bindgen_anon_1.sample_period = SAMPLE_NS;
            match self.perf_link(&attributes, cpu as i32, program, 0) {
                Ok(descriptors) => sampling._events.extend(descriptors),
                // A CPU that is possible but not there.
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::EINVAL)) => {}
                Err(e) => return Err(Error::system("a clock event for samples")(e)),
            }
        }
        Ok(sampling)
    }

    /// Ends sampling.
    pub fn sample_end(&mut self, sampling: Sampling) {
        let id = sampling.id;
        drop(sampling);
        self.give_back(id);
    }

    // -- whom do indirect calls call? -----------------------------------------

    /// Probes on indirect call instructions of a measured function. What is
    /// returned keeps them there.
    pub fn learn(&mut self, under: MetricId, calls: &[IndirectCall]) -> Learning {
        let mut learning = Learning {
            _descriptors: Vec::new(),
            sites: HashMap::new(),
        };
        for call in calls {
            let site = self.operands;
            if site >= self.loaded.limits.operands || !self.loaded.ways().kprobe {
                break;
            }
            self.operands += 1;
            let operand = kern_operand {
                displacement: call.memory.as_ref().map_or(0, |m| m.displacement),
                under: under.0,
                reserved: 0,
            };
            if self.loaded.map_write("operands", &site, &operand).is_err() {
                continue;
            }
            let mut cookie = u64::from(call.register) | u64::from(site) << 24;
            if let Some(memory) = &call.memory {
                cookie |= KERN_OPERAND_MEMORY
                    | u64::from(memory.index.unwrap_or(0xff)) << 8
                    | u64::from(memory.scale) << 16;
            } else {
                cookie |= 0xff << 8;
            }
            if let Ok(fds) = self.attach_instruction("indirect_call", call.address, cookie) {
                learning._descriptors.extend(fds);
                learning.sites.insert(site, call.address);
            }
        }
        learning
    }

    /// Addresses that the probed instructions called, and how often.
    pub fn learned(&self, learning: &Learning) -> Result<Vec<(u64, u64)>, Error> {
        let mut found: HashMap<u64, u64> = HashMap::new();
        for (target, count) in self.loaded.map_entries::<kern_target, u64>("targets")? {
            if learning.sites.contains_key(&target.site) && target.address != 0 {
                *found.entry(target.address).or_default() += count;
            }
        }
        let mut found: Vec<(u64, u64)> = found.into_iter().collect();
        found.sort_by_key(|(address, count)| (std::cmp::Reverse(*count), *address));
        Ok(found)
    }

    /// Forgets all learned targets; only when no learning is going on.
    pub fn targets_forget(&mut self) {
        if let Ok(entries) = self.loaded.map_entries::<kern_target, u64>("targets") {
            for (target, _) in entries {
                let _ = self.loaded.map_delete("targets", &target);
            }
        }
        self.operands = 0;
    }
}

/// Time between two samples of a CPU. No divisor of usual timer periods.
pub const SAMPLE_NS: u64 = 1_009_000;

/// Samples of stacks, while it lives.
pub struct Sampling {
    id: MetricId,
    _switch: Link,
    _events: Vec<OwnedFd>,
}

/// Probes on indirect calls, while it lives.
pub struct Learning {
    _descriptors: Vec<OwnedFd>,
    sites: HashMap<u32, u64>,
}

impl Learning {
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }
}

fn own(fd: i32) -> Result<OwnedFd, io::Error> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn metric_for(id: MetricId, insertion: &Insertion) -> kern_metric {
    let r = &insertion.restriction;
    let filtered = r.processes != 0 || r.call.is_some() || r.cgroup.is_some() || r.call_site != 0;
    kern_metric {
        generation: id.0 >> 16,
        flags: if insertion.timed { KERN_TIMED } else { 0 }
            | if r.under.is_some() { KERN_UNDER } else { 0 }
            | if filtered { KERN_FILTER } else { 0 },
        under: r.under.map_or(0, |u| u.0),
        processes: r.processes,
        call: r.call.unwrap_or(-1),
        cgroup: r.cgroup.unwrap_or(-1),
        call_site: r.call_site,
        reserved: 0,
    }
}
