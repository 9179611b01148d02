// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which BPF programs does this kernel take, and what have they counted?
//!
//! A kernel that refuses one way to attach gets the object without it. Loading
//! attaches nothing.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock};

use debox_abi::{DEBOX_HIST_BUCKETS, Pod};
use libbpf_rs::libbpf_sys;
use libbpf_rs::{AsRawLibbpf, Link, MapCore, MapFlags, Object, ObjectBuilder, PrintLevel};

use crate::error::Error;
use crate::generated::{KERN_WAYS, kern_metric, kern_stack_time, kern_state, kern_sums};
use crate::way::Way;

/// Which ways of attaching this kernel has, as far as is known without loading
/// their programs: [`Loaded::has`] loads them.
#[derive(Clone, Debug, Default)]
pub struct Ways {
    /// kprobe.session: one link for any number of functions, 6.10 and later.
    pub session: bool,
    /// kprobe.multi, a pair of links for any number of functions.
    pub multi: bool,
    /// fentry and fexit, a pair of programs for each function.
    pub trampoline: bool,
    /// kprobe and kretprobe, through perf_event_open().
    pub kprobe: bool,
    /// Why not, for each that is missing: name and reason.
    pub refused: Vec<(&'static str, String)>,
}

impl Ways {
    fn allows(&self, way: Way) -> bool {
        match way {
            Way::Session => self.session,
            Way::Multi => self.multi,
            Way::Trampoline => self.trampoline,
            Way::Kprobe => self.kprobe,
        }
    }

    fn flag(&mut self, way: Way) -> &mut bool {
        match way {
            Way::Session => &mut self.session,
            Way::Multi => &mut self.multi,
            Way::Trampoline => &mut self.trampoline,
            Way::Kprobe => &mut self.kprobe,
        }
    }
}

/// Limits that are set before loading.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Metrics at the same time.
    pub metrics: u32,
    /// Threads inside of measured functions at the same time.
    pub threads: u32,
    /// Indirect call instructions at the same time.
    pub operands: u32,
    /// Different stacks, for sampling; 1: no sampling.
    pub stacks: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            metrics: 512,
            threads: 8192,
            operands: 1024,
            stacks: 16384,
        }
    }
}

/// The loaded programs and their maps.
///
/// The verifier takes its time for the programs at functions, so each pair is
/// loaded when it is first needed, with the maps of the first object.
pub struct Loaded {
    object: Object,
    parts: [OnceLock<Result<Object, String>>; PARTS.len()],
    ways: Ways,
    pub limits: Limits,
    kernel_btf: OnceLock<Option<Btf>>,
}

/// Programs that are loaded together, on demand.
struct Part {
    /// `None`: probes on instructions.
    way: Option<Way>,
    programs: &'static [&'static str],
}

const PARTS: [Part; 5] = [
    Part {
        way: Some(Way::Session),
        programs: &["function_session"],
    },
    Part {
        way: Some(Way::Multi),
        programs: &["function_enter_multi", "function_leave_multi"],
    },
    Part {
        way: Some(Way::Trampoline),
        programs: &["function_enter_trampoline", "function_leave_trampoline"],
    },
    Part {
        way: Some(Way::Kprobe),
        programs: &["function_enter_kprobe", "function_leave_kprobe"],
    },
    Part {
        way: None,
        programs: &["instruction_hit", "indirect_call"],
    },
];

/// The place in PARTS of a program that is loaded on demand.
fn part_of(program: &str) -> Option<usize> {
    PARTS.iter().position(|p| p.programs.contains(&program))
}

/// The kernel's own type information.
struct Btf(*mut libbpf_sys::btf);

// SAFETY: only read after it was made, and freed by its only owner.
unsafe impl Send for Btf {}
// SAFETY: as above.
unsafe impl Sync for Btf {}

impl Drop for Btf {
    fn drop(&mut self) {
        // SAFETY: made by btf__load_vmlinux_btf and not freed before.
        unsafe { libbpf_sys::btf__free(self.0) }
    }
}

impl Btf {
    fn kernel() -> Option<Btf> {
        // SAFETY: no arguments; null or an owned object comes back.
        let btf = unsafe { libbpf_sys::btf__load_vmlinux_btf() };
        (!btf.is_null()).then_some(Btf(btf))
    }

    fn function_id(&self, name: &str) -> Option<u32> {
        let name = CString::new(name).ok()?;
        // SAFETY: a live btf and a NUL-terminated name.
        let id = unsafe {
            libbpf_sys::btf__find_by_name_kind(self.0, name.as_ptr(), libbpf_sys::BTF_KIND_FUNC)
        };
        u32::try_from(id).ok().filter(|id| *id > 0)
    }
}

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kern.bpf.o"));

/// libbpf's own words about the last failure, which say more than its errno.
static WARNINGS: Mutex<String> = Mutex::new(String::new());

fn quiet_libbpf() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        fn print(_: PrintLevel, text: String) {
            if std::env::var_os("DEBOX_LOG").is_some() {
                let text = debox_output::printable_lines(&text);
                let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
            }
            if let Ok(mut warnings) = WARNINGS.lock()
                && warnings.len() < 1 << 20
            {
                warnings.push_str(&text);
            }
        }
        libbpf_rs::set_print(Some((PrintLevel::Warn, print)));
    });
}

/// The verifier's last words, which are the reason, of all that libbpf said.
fn last_warning() -> String {
    let text = WARNINGS
        .lock()
        .map(|mut w| std::mem::take(&mut *w))
        .unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines
        .iter()
        .position(|l| l.starts_with("processed "))
        .and_then(|at| at.checked_sub(1))
        .or(lines.len().checked_sub(1))
        .map(|at| lines[at].trim().to_owned())
        .unwrap_or_default()
}

/// The object with some of its programs. `base`: whose maps it uses.
fn load_some(
    limits: Limits,
    base: Option<&Object>,
    wanted: impl Fn(&str) -> bool,
) -> Result<Object, libbpf_rs::Error> {
    let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let wanted = wanted(&name);
        if wanted && name.ends_with("_trampoline") {
            // Replaced in each copy.
            program.set_attach_target(0, Some("vfs_read".to_owned()))?;
        }
        program.set_autoload(wanted);
    }
    let buckets = (limits.threads / KERN_WAYS).max(1).next_power_of_two();
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some(base) = base {
            let there = base.maps().find(|m| *m.name() == *name);
            let there =
                there.ok_or_else(|| io::Error::other(format!("the map {name} is missing")))?;
            map.reuse_fd(there.as_fd())?;
            continue;
        }
        match name.as_str() {
            "metrics" | "sums" | "histograms" => map.set_max_entries(limits.metrics)?,
            "buckets" => map.set_max_entries(buckets)?,
            "threads" => map.set_max_entries(buckets * KERN_WAYS)?,
            "operands" => map.set_max_entries(limits.operands)?,
            "stacks" | "stack_times" | "away" => map.set_max_entries(limits.stacks.max(1))?,
            name if name.ends_with(".rodata") => {
                if let Some(data) = map.initial_value_mut() {
                    // bucket_mask, metrics_len
                    data[..4].copy_from_slice(&(buckets - 1).to_ne_bytes());
                    data[4..8].copy_from_slice(&limits.metrics.to_ne_bytes());
                }
            }
            _ => {}
        }
    }
    open.load()
}

impl Loaded {
    /// Loads what this kernel takes. Fails only if not even the tracepoint
    /// programs can be loaded.
    pub fn load(limits: Limits) -> Result<Loaded, Error> {
        quiet_libbpf();
        let btf = Btf::kernel();
        let has_function = |name: &str| {
            btf.as_ref()
                .is_some_and(|btf| btf.function_id(name).is_some())
        };
        let mut ways = Ways {
            session: has_function("bpf_session_is_return"),
            multi: has_function("bpf_kprobe_multi_link_attach"),
            trampoline: true,
            kprobe: std::path::Path::new("/sys/bus/event_source/devices/kprobe/type").exists(),
            refused: Vec::new(),
        };
        if !ways.kprobe {
            ways.refused.push((
                "kprobe",
                "this kernel was built without CONFIG_KPROBE_EVENTS".into(),
            ));
        }
        if !ways.multi && !ways.session {
            ways.refused.push((
                "kprobe.multi",
                "this kernel was built without CONFIG_FPROBE, or is older than 5.18".into(),
            ));
        }
        if ways.trampoline
            && let Err(reason) = trampoline_try()
        {
            ways.trampoline = false;
            ways.refused.push(("fentry/fexit", reason));
        }
        let object = load_some(limits, None, |name| {
            part_of(name).is_none() && (!name.starts_with("sample_") || limits.stacks > 1)
        })
        .map_err(|error| Error::Bpf {
            what: "loading the BPF programs".into(),
            text: format!(
                "{error:#} ({}). `debox doctor` says what is missing",
                last_warning()
            ),
        })?;
        Ok(Loaded {
            object,
            parts: Default::default(),
            ways,
            limits,
            kernel_btf: OnceLock::from(btf),
        })
    }

    /// The ways that this kernel may have; those whose programs it refused when
    /// they were needed are not among them any more.
    pub fn ways(&self) -> Ways {
        let mut ways = self.ways.clone();
        for (part, loaded) in PARTS.iter().zip(&self.parts) {
            if let (Some(way), Some(Err(why))) = (part.way, loaded.get()) {
                *ways.flag(way) = false;
                ways.refused.push((way.name(), why.clone()));
            }
        }
        ways
    }

    /// Whether functions can be attached to in a way: loads what it needs.
    pub fn has(&self, way: Way) -> bool {
        let at = PARTS.iter().position(|p| p.way == Some(way));
        self.ways.allows(way) && at.is_some_and(|at| self.part(at).is_ok())
    }

    /// Whether a kernel function can be measured in any way.
    pub fn functions(&self) -> bool {
        PARTS.iter().filter_map(|p| p.way).any(|way| self.has(way))
    }

    fn part(&self, at: usize) -> Result<&Object, &String> {
        self.parts[at]
            .get_or_init(|| {
                let part = &PARTS[at];
                let object = load_some(self.limits, Some(&self.object), |name| {
                    part.programs.contains(&name)
                })
                .map_err(|error| format!("{error:#} ({})", last_warning()))?;
                match part.way {
                    Some(Way::Session) => {
                        multi_try(
                            &object,
                            part.programs[0],
                            libbpf_sys::BPF_TRACE_KPROBE_SESSION,
                        )?;
                    }
                    Some(Way::Multi) => {
                        multi_try(
                            &object,
                            part.programs[0],
                            libbpf_sys::BPF_TRACE_KPROBE_MULTI,
                        )?;
                    }
                    _ => {}
                }
                Ok(object)
            })
            .as_ref()
    }

    /// The object that has a program, loaded.
    fn object_of(&self, program: &str) -> Option<&Object> {
        match part_of(program) {
            None => Some(&self.object),
            Some(at) => self.part(at).ok(),
        }
    }

    /// Whether the kernel's type information knows a function: fentry needs it.
    pub fn btf_function(&self, name: &str) -> Option<u32> {
        self.kernel_btf
            .get_or_init(Btf::kernel)
            .as_ref()?
            .function_id(name)
    }

    pub fn program_fd(&self, name: &str) -> Option<i32> {
        self.object_of(name)?
            .progs()
            .find(|p| p.name() == name)
            .map(|p| p.as_fd().as_raw_fd())
            .filter(|fd| *fd >= 0)
    }

    /// Attaches one of the tracepoint programs.
    pub fn attach_trace(&self, name: &str) -> Result<Link, Error> {
        let program = self
            .object
            .progs_mut()
            .find(|p| p.name() == name)
            .ok_or_else(|| Error::Usage(format!("no program {name}")))?;
        program
            .attach_trace()
            .map_err(Error::bpf(format!("attaching {name}")))
    }

    /// Attaches a uprobe program at an offset in a file.
    pub fn attach_uprobe(
        &self,
        name: &str,
        path: &std::path::Path,
        offset: usize,
        cookie: u64,
    ) -> Result<Link, Error> {
        let program = self
            .object
            .progs_mut()
            .find(|p| p.name() == name)
            .ok_or_else(|| Error::Usage(format!("no program {name}")))?;
        program
            .attach_uprobe_with_opts(
                -1,
                path,
                offset,
                libbpf_rs::UprobeOpts {
                    cookie,
                    ..Default::default()
                },
            )
            .map_err(Error::bpf(format!(
                "attaching to {} at {offset:#x}",
                path.display()
            )))
    }

    /// A copy of a trampoline program, for another function.
    pub fn trampoline_copy(&self, name: &str, btf_id: u32) -> Result<OwnedFd, io::Error> {
        let object = self
            .object_of(name)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
        let program = object
            .progs_mut()
            .find(|p| p.name() == name)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        let kind = if name == "function_leave_trampoline" {
            libbpf_sys::BPF_TRACE_FEXIT
        } else {
            libbpf_sys::BPF_TRACE_FENTRY
        };
        // SAFETY: a loaded program; its function information lives as long as it.
        let information = unsafe {
            let raw = program.as_libbpf_object().as_ptr();
            FunctionInformation {
                btf_fd: libbpf_sys::bpf_object__btf_fd(object.as_libbpf_object().as_ptr()),
                records: libbpf_sys::bpf_program__func_info(raw).cast(),
                len: libbpf_sys::bpf_program__func_info_cnt(raw),
            }
        };
        trampoline_load(name, program.insns(), kind, btf_id, Some(&information))
    }

    fn map(&self, name: &str) -> Result<libbpf_rs::Map<'_>, Error> {
        self.object
            .maps()
            .find(|m| m.name().to_string_lossy().ends_with(name))
            .ok_or_else(|| Error::Usage(format!("no map {name}")))
    }

    pub fn map_write<K: Pod, V: Pod>(&self, map: &str, key: &K, value: &V) -> Result<(), Error> {
        self.map(map)?
            .update(key.as_bytes(), value.as_bytes(), MapFlags::ANY)
            .map_err(Error::bpf(format!("writing the map {map}")))
    }

    pub fn map_read<K: Pod, V: Pod>(&self, map: &str, key: &K) -> Result<Option<V>, Error> {
        Ok(self
            .map(map)?
            .lookup(key.as_bytes(), MapFlags::ANY)
            .map_err(Error::bpf(format!("reading the map {map}")))?
            .map(|bytes| read(&bytes)))
    }

    pub fn map_entries<K: Pod, V: Pod>(&self, map: &str) -> Result<Vec<(K, V)>, Error> {
        let handle = self.map(map)?;
        let keys: Vec<Vec<u8>> = handle.keys().collect();
        let mut entries = Vec::new();
        for key in keys {
            if let Ok(Some(value)) = handle.lookup(&key, MapFlags::ANY) {
                entries.push((read(&key), read(&value)));
            }
        }
        Ok(entries)
    }

    pub fn map_delete<K: Pod>(&self, map: &str, key: &K) -> Result<(), Error> {
        self.map(map)?
            .delete(key.as_bytes())
            .map_err(Error::bpf(format!("deleting from the map {map}")))
    }

    pub fn metric_set(&self, index: u32, metric: &kern_metric) -> Result<(), Error> {
        self.map_write("metrics", &index, metric)
    }

    fn state_read(&self) -> Result<kern_state, Error> {
        let value = self
            .map(".bss")?
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(Error::bpf("reading the BPF variables"))?
            .unwrap_or_default();
        Ok(read(&value))
    }

    fn state_write(&self, change: impl Fn(&mut kern_state)) -> Result<(), Error> {
        let mut state = self.state_read()?;
        change(&mut state);
        self.map(".bss")?
            .update(&0u32.to_ne_bytes(), state.as_bytes(), MapFlags::ANY)
            .map_err(Error::bpf("writing the BPF variables"))
    }

    /// Children of processes in these sets belong to them, too.
    pub fn follow_set(&self, sets: u32) -> Result<(), Error> {
        self.state_write(|state| state.follow = sets)
    }

    pub fn sample_metric_set(&self, index: u32) -> Result<(), Error> {
        self.state_write(|state| state.sample_metric = index)
    }

    /// Children that were not followed for want of room.
    pub fn unfollowed(&self) -> Result<u64, Error> {
        Ok(self.state_read()?.unfollowed)
    }

    /// Samples that found no room.
    pub fn samples_lost(&self) -> Result<u64, Error> {
        Ok(self.state_read()?.samples_lost)
    }

    /// All stacks seen (innermost address first), with their times.
    pub fn stacks_read(&self) -> Result<Vec<(Vec<u64>, kern_stack_time)>, Error> {
        let stacks = self.map("stacks")?;
        let mut all = Vec::new();
        for (id, time) in self.map_entries::<u32, kern_stack_time>("stack_times")? {
            if let Ok(Some(bytes)) = stacks.lookup(&id.to_ne_bytes(), MapFlags::ANY) {
                let frames = bytes
                    .chunks_exact(8)
                    .map(read::<u64>)
                    .take_while(|a| *a != 0)
                    .collect();
                all.push((frames, time));
            }
        }
        Ok(all)
    }

    /// Makes a metric's place new: all sums zero.
    pub fn sums_clear(&self, index: u32) -> Result<(), Error> {
        for (name, len) in [
            ("sums", size_of::<kern_sums>()),
            ("histograms", DEBOX_HIST_BUCKETS * 8),
        ] {
            let zero = vec![vec![0u8; len]; cpus()?];
            self.map(name)?
                .update_percpu(&index.to_ne_bytes(), &zero, MapFlags::ANY)
                .map_err(Error::bpf(format!("clearing the map {name}")))?;
        }
        Ok(())
    }

    /// The sums of a metric over all CPUs, each CPU's consistent in itself.
    pub fn sums_read(&self, index: u32) -> Result<kern_sums, Error> {
        let map = self.map("sums")?;
        let mut cpu_sums: Vec<Option<kern_sums>> = Vec::new();
        // Nearly always once; a function that is entered all the time may be
        // in the middle of an update on some CPU.
        for attempt in 0..1000 {
            let values = map
                .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)
                .map_err(Error::bpf("reading the sums"))?
                .unwrap_or_default();
            cpu_sums.resize(values.len(), None);
            for (slot, bytes) in cpu_sums.iter_mut().zip(&values) {
                if slot.is_none() {
                    let sums: kern_sums = read(bytes);
                    if sums.begun == sums.ended || attempt == 999 {
                        *slot = Some(sums);
                    }
                }
            }
            if cpu_sums.iter().all(Option::is_some) {
                break;
            }
        }
        let mut all = kern_sums::default();
        for sums in cpu_sums.into_iter().flatten() {
            all.calls += sums.calls;
            all.entered += sums.entered;
            all.entered_at = all.entered_at.wrapping_add(sums.entered_at);
            all.left += sums.left;
            all.left_at = all.left_at.wrapping_add(sums.left_at);
            all.returned += sums.returned;
            all.total_ns += sums.total_ns;
            all.self_ns += sums.self_ns;
            all.off_ns += sums.off_ns;
            all.self_off_ns += sums.self_off_ns;
            all.max_ns = all.max_ns.max(sums.max_ns);
            all.never += sums.never;
            all.lost += sums.lost;
            all.no_room += sums.no_room;
            all.too_deep += sums.too_deep;
            all.nested += sums.nested;
        }
        Ok(all)
    }

    pub fn histogram_read(&self, index: u32) -> Result<Vec<u64>, Error> {
        let values = self
            .map("histograms")?
            .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)
            .map_err(Error::bpf("reading the histogram"))?
            .unwrap_or_default();
        let mut all = vec![0u64; DEBOX_HIST_BUCKETS];
        for bytes in values {
            for (sum, word) in all.iter_mut().zip(bytes.chunks_exact(8)) {
                *sum += read::<u64>(word);
            }
        }
        Ok(all)
    }
}

/// What a map has is as long as the type in bpf/kern.h.
fn read<T: Pod>(bytes: &[u8]) -> T {
    T::read_from(bytes).unwrap_or_else(T::zeroed)
}

/// Whether kprobe.multi attaches: 6.1 takes the program in any case, and refuses
/// the link if it was built without CONFIG_FPROBE.
fn multi_try(object: &Object, program: &str, kind: u32) -> Result<(), String> {
    let program = object
        .progs()
        .find(|p| p.name() == program)
        .ok_or("no such program")?;
    let symbol = c"vfs_statfs".as_ptr();
    let mut symbols = [symbol];
    let mut options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    options.__bindgen_anon_1.kprobe_multi =
        libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_2 {
            flags: 0,
            cnt: 1,
            syms: symbols.as_mut_ptr(),
            addrs: std::ptr::null(),
            cookies: std::ptr::null(),
        };
    // SAFETY: a live program; the options and what they point to live
    // through the call.
    let link = unsafe {
        libbpf_sys::bpf_link_create(program.as_fd().as_raw_fd(), 0, kind, &raw const options)
    };
    match -link {
        libc::EOPNOTSUPP => Err("this kernel was built without CONFIG_FPROBE".into()),
        errno if errno > 0 => Err(format!(
            "attaching one is refused: {}",
            io::Error::from_raw_os_error(errno)
        )),
        _ => {
            // SAFETY: a new descriptor that nobody else owns.
            drop(unsafe { OwnedFd::from_raw_fd(link) });
            Ok(())
        }
    }
}

fn cpus() -> Result<usize, Error> {
    libbpf_rs::num_possible_cpus().map_err(Error::bpf("counting the CPUs"))
}

/// Tells the verifier which functions of a program are global: without it each
/// call of one is verified anew.
struct FunctionInformation {
    btf_fd: i32,
    records: *const libc::c_void,
    len: u32,
}

fn trampoline_load(
    name: &str,
    instructions: &[libbpf_sys::bpf_insn],
    kind: u32,
    btf_id: u32,
    information: Option<&FunctionInformation>,
) -> Result<OwnedFd, io::Error> {
    let name = CString::new(name.get(..15).unwrap_or(name)).unwrap_or_default();
    let mut options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t,
        expected_attach_type: kind,
        attach_btf_id: btf_id,
        ..Default::default()
    };
    if let Some(information) = information
        && information.btf_fd >= 0
        && !information.records.is_null()
    {
        options.prog_btf_fd = information.btf_fd as u32;
        options.func_info = information.records;
        options.func_info_cnt = information.len;
        options.func_info_rec_size = size_of::<libbpf_sys::bpf_func_info>() as u32;
    }
    // SAFETY: all pointers live through the call; the options' size is set.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_TRACING,
            name.as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            instructions.as_ptr(),
            instructions.len() as libbpf_sys::size_t,
            &mut options,
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether this kernel attaches an fentry program at all: an empty one, to a
/// function that hardly anybody calls.
fn trampoline_try() -> Result<(), String> {
    let btf = Btf::kernel().ok_or("this kernel has no BTF (CONFIG_DEBUG_INFO_BTF)")?;
    let id = ["vfs_statfs", "vfs_read"]
        .iter()
        .find_map(|name| btf.function_id(name))
        .ok_or("the kernel's BTF has no functions")?;
    // r0 = 0; exit
    let instructions = [
        libbpf_sys::bpf_insn {
            code: 0xb7,
            ..Default::default()
        },
        libbpf_sys::bpf_insn {
            code: 0x95,
            ..Default::default()
        },
    ];
    let program = trampoline_load("try", &instructions, libbpf_sys::BPF_TRACE_FENTRY, id, None)
        .map_err(|e| format!("loading one is refused: {e}"))?;
    // SAFETY: a live program; no options.
    let link = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            0,
            libbpf_sys::BPF_TRACE_FENTRY,
            std::ptr::null(),
        )
    };
    if link < 0 {
        return Err(format!(
            "attaching one is refused: {}",
            io::Error::from_raw_os_error(-link)
        ));
    }
    // SAFETY: a new descriptor that nobody else owns.
    drop(unsafe { OwnedFd::from_raw_fd(link) });
    Ok(())
}

/// The sizes that the compiled object has, for the layout's test.
#[cfg(test)]
fn value_sizes() -> Vec<(String, u32)> {
    let open = ObjectBuilder::default().open_memory(OBJECT).unwrap();
    open.maps()
        .map(|m| (m.name().to_string_lossy().into_owned(), m.value_size()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::{kern_call_ids, kern_operand};

    #[test]
    fn layouts_agree_with_the_object() {
        let sizes = value_sizes();
        let size = |name: &str| {
            sizes
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, s)| *s as usize)
        };
        assert_eq!(size("metrics"), Some(size_of::<kern_metric>()));
        assert_eq!(size("sums"), Some(size_of::<kern_sums>()));
        assert_eq!(size("operands"), Some(size_of::<kern_operand>()));
        assert_eq!(size("stack_times"), Some(size_of::<kern_stack_time>()));
        assert_eq!(size("histograms"), Some(DEBOX_HIST_BUCKETS * 8));
        assert_eq!(size("calls"), Some(size_of::<kern_call_ids>()));
    }
}
