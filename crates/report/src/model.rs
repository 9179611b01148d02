// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a report say? These structs are the JSON document (docs/json.md):
//! fields may be added within a schema version, never renamed or removed. A
//! recording holds the same document, so every field that was added later has a
//! default.

use debox_abi::debox_life_time;
use debox_output::printable;
use serde::{Deserialize, Serialize};

pub const SCHEMA: &str = "debox.report";
pub const SCHEMA_VERSION: u32 = 1;

/// The account of a whole run.
/// (The default has no schema: whoever makes a report says which.)
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    pub schema_version: u32,
    pub debox_version: String,
    pub run: Run,
    /// Why it took so long, in one to three sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdict: Vec<String>,
    pub measured: Measured,
    pub totals: Totals,
    /// One row per system call, sorted.
    pub calls: Vec<CallRow>,
    /// Where the threads blocked, largest total first.
    pub blocking: Vec<BlockingRow>,
    /// What the user's own rules say of labels in `blocking`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<LabelMeaning>,
    /// Calls by the place in the program that made them (wrap capture only).
    pub call_sites: Vec<CallSiteRow>,
    /// Calls that had not returned when the report was made.
    pub open_calls: Vec<OpenCall>,
    /// What is missing from this report, or must be known to read it.
    pub notes: Vec<Note>,
    /// Who held what was waited for, or ended the wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub culprits: Vec<CulpritRow>,
    /// What sleeps waited for: the links, and what they lead to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain_links: Vec<ChainLink>,
    /// Blocked time by chain, largest first; the parts of a sleep add up to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chains: Vec<ChainRow>,
    /// Where the time of threads went, by process and name; longest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lives: Vec<LifeRow>,
    /// What threads did between two rests; most time first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub activities: Vec<ActivityRow>,
    /// What the end of the command depended on, back to its beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critical_path: Option<CriticalPath>,
    /// What kept CPUs from the threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// What calls worked on, for `by_object` and `slow_calls`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Object>,
    /// Blocked time by call and object, largest first; with those that have no
    /// object it adds up to that of `blocking`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_object: Vec<ObjectRow>,
    /// Interrupts that landed in calls, and between them, largest total in calls
    /// first (--irq).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interrupts: Vec<InterruptRow>,
    /// What the threads did while they had a CPU (--hz).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_cpu: Option<OnCpu>,
    /// One row per thread, largest wall time first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<ThreadRow>,
    /// Places in the kernel and in the program, for `paths` and `slow_calls`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<Site>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<UserStack>,
    /// Blocked time by call, user stack and site.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathRow>,
    /// Time of each call against invocation number (recordings only).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<CallHistory>,
    /// The process over time (recordings only).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gauges: Vec<Gauge>,
    /// Calls that became slower or faster as the run went on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trends: Vec<Trend>,
    /// Single calls that took long, or met a condition; longest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow_calls: Vec<SlowCall>,
    /// Of those that were seen singly: so many are in the sums alone, shorter ones of their call.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub slow_calls_left_out: u64,
    /// What matters most, in plain words, most important first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// How whole the recording is, when the report was made from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recording: Option<RecordingState>,
    /// The kernel functions that calls ran through (`--trace`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<crate::trace::TraceReport>,
}

/// What a clock of CPU time found the threads doing: each sample stands for 1/hz s.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OnCpu {
    pub hz: u32,
    pub samples: u64,
    /// Threads of one name, most samples first.
    pub groups: Vec<OnCpuGroup>,
    /// Of the stacks; those that ran themselves most often first.
    pub functions: Vec<OnCpuFunction>,
    /// The stacks, as a tree from the outermost functions on: a caller stands before
    /// what it calls.
    pub frames: Vec<OnCpuFrame>,
    /// Samples by group, kind, call and stack, most first.
    pub rows: Vec<OnCpuRow>,
    /// Samples in `groups` that found no room in `rows`.
    pub rows_dropped: u64,
    /// Samples in `rows` whose callers are missing for lack of room.
    pub stacks_dropped: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OnCpuGroup {
    pub comm: String,
    pub samples: u64,
    /// Of those: in the program's own code.
    pub user: u64,
    /// In the kernel, in calls.
    pub calls: u64,
    /// In the kernel, for something else.
    pub kernel: u64,
    pub interrupts: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OnCpuFunction {
    /// null: not known.
    pub name: Option<String>,
    /// The program or library; null: the kernel.
    pub module: Option<String>,
    /// Samples in it, and in it or what it called.
    #[serde(rename = "self")]
    pub own: u64,
    pub total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OnCpuFrame {
    /// Index into `functions`.
    pub function: usize,
    /// Index into `frames`; null: the outermost one.
    pub caller: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnCpuKind {
    /// The program's own code.
    User,
    /// The kernel, in a call.
    Call,
    /// The kernel for something else: a fault, the way back from a call.
    Kernel,
    /// A soft interrupt that came while the thread had the CPU.
    Interrupt,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OnCpuRow {
    /// Index into `groups`.
    pub group: usize,
    pub kind: OnCpuKind,
    pub call: Option<String>,
    pub abi: u32,
    /// Index into `frames`: what ran, and through its callers the stack; null: not known.
    pub frame: Option<usize>,
    pub samples: u64,
}

/// Somebody who kept a call waiting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CulpritRow {
    /// The call that waited; null: outside of calls.
    pub call: Option<String>,
    pub abi: u32,
    /// Of the place where it waited.
    pub label: String,
    pub function: Option<String>,
    pub role: CulpritRole,
    /// The process; 0: an interrupt (a device or a timer).
    pub pid: u32,
    /// The thread last seen.
    pub tid: u32,
    pub comm: String,
    /// The system call that the culprit was in, when known.
    pub culprit_call: Option<String>,
    /// Index into `stacks`: of the owner of a lock of the program, where in its program it
    /// made that call; without one, where it made its last call (`--call-site`, `--stacks`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<usize>,
    /// Waits, and how long they were.
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
}

/// A link of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChainLink {
    pub kind: ChainKind,
    /// Of the task; of a device or disk its name; empty: withheld, or nobody.
    pub comm: String,
    /// The system call that it was in.
    pub call: Option<String>,
    /// Index into `sites`, of a sleep.
    pub site: Option<usize>,
    /// What a disk did.
    pub operation: Option<String>,
    /// Index into `chain_links`: what this waited for; null: the root.
    pub parent: Option<usize>,
    /// Of a sleep: `parent` tells of who held what was waited for.
    #[serde(default)]
    pub held: bool,
    /// Index into `stacks`: of a task that ran, where in its program it was as it woke who
    /// waited (`--call-site`, `--stacks`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<usize>,
    /// Of a sleep: it was at the thread's resting place, with nothing to do.
    #[serde(default)]
    pub rests: bool,
    /// Of a sleep: what the program means by it, in a sentence, where its functions are
    /// known (`--stacks`, idle.toml).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub means: Option<String>,
    /// Of a sleep: a thread that is watched along with it ended it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_own: bool,
    /// Of a sleep elsewhere: its thread rests in a call that waits for many things at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_loop: bool,
    /// Of another user's sleep, whose place is withheld: the group of its label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChainKind {
    /// The task slept, until what `parent` tells of ended.
    Sleep,
    /// It ran its own code.
    RanUser,
    /// It ran in the call.
    RanCall,
    /// It ran, in which of both is not known.
    Ran,
    /// It waited for a CPU.
    Runq,
    /// An interrupt of a device.
    Device,
    /// A block device.
    Disk,
    Timer,
    /// The time that the call would wait at most was over: what it waited for had not come.
    Limit,
    Network,
    /// All CPUs had left what they read (RCU); whoever woke it ran the call-back.
    GracePeriod,
    /// Another interrupt.
    Interrupt,
    /// The task woke it; what it did at that time is not known.
    Earlier,
    /// The task woke it, and had slept: for more things than are kept apart.
    Slept,
    /// The task woke it, and was not followed.
    Woken,
    /// Who woke it was not seen.
    Unseen,
    /// Nobody yet: it was still asleep.
    NotOver,
    /// Nobody: it was asleep as debox ended the command (--duration).
    Ended,
    /// More links than are kept.
    Deeper,
    /// No room was left for the chain.
    Dropped,
    /// A kind that a later version wrote.
    #[serde(other)]
    Other,
}

impl ChainLink {
    /// One that says no more than what it is.
    pub fn of(kind: ChainKind) -> Self {
        Self {
            kind,
            comm: String::new(),
            call: None,
            site: None,
            operation: None,
            parent: None,
            held: false,
            stack: None,
            rests: false,
            means: None,
            by_own: false,
            in_loop: false,
            class: None,
        }
    }
}

impl ChainKind {
    /// No cause: more is not known from here on, or it never came.
    pub fn ends_knowledge(self) -> bool {
        use ChainKind::*;
        matches!(
            self,
            Limit | Earlier | Slept | Woken | Unseen | Ended | Deeper | Dropped | Other
        )
    }
}

/// The one list of where a thread's time went: what the kernel side counts
/// (`struct debox_life_time`) and what is done with all of it, field by field.
macro_rules! life_time {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// `life_ns` is the sum of the times after it, to the nanosecond.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct LifeTime {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl LifeTime {
            pub(crate) fn with(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
                Self { $($field: of(self.$field, other.$field),)* }
            }
        }

        impl From<&debox_life_time> for LifeTime {
            fn from(time: &debox_life_time) -> Self {
                let mut own = Self { $($field: time.$field,)* };
                // Without ends of calls all time on a CPU is its own.
                let beyond_ns = own.irq_ns.saturating_sub(own.calls_ns);
                own.irq_ns -= beyond_ns;
                own.irq_outside_ns = own.irq_outside_ns.saturating_add(beyond_ns).min(own.own_ns);
                own.calls_ns -= own.irq_ns;
                own.own_ns -= own.irq_outside_ns;
                own
            }
        }
    };
}

life_time! {
    /// From first to last sight.
    life_ns,
    /// On a CPU outside of calls: own code, and faults of it.
    own_ns,
    /// On a CPU in calls.
    calls_ns,
    /// On a CPU, on its way out.
    exit_ns,
    /// Asleep in calls,
    blocked_ns,
    /// of this at its resting place, with nothing to do,
    rest_ns,
    /// and outside of them.
    outside_ns,
    /// By a signal, or a tracer.
    stopped_ns,
    /// Waiting for a CPU.
    runq_ns,
    minor_faults,
    major_faults,
    /// Time on a CPU in the program and in the kernel, as the kernel counts it: by ticks,
    /// or exactly where it is built so.
    user_ns,
    system_ns,
    /// Interrupts that landed in calls, and outside of them (`--irq`); `own_ns` and
    /// `calls_ns` are without them then.
    irq_ns,
    irq_outside_ns,
}

/// The longest tick of a kernel's clock.
const TICK_NS: u64 = 10_000_000;

impl LifeTime {
    /// About how much of `own_ns` the kernel took: faults, and what else is no call.
    /// None: too little is known, or calls were not told apart.
    pub fn own_kernel_ns(&self) -> Option<u64> {
        let ticks_ns = self.user_ns.saturating_add(self.system_ns);
        if ticks_ns < 4 * TICK_NS || self.calls_ns == 0 {
            return None;
        }
        // Each tick is a sample: the least that so many of them tell.
        let part = self.system_ns as f64 / ticks_ns as f64;
        let ticks = (ticks_ns / TICK_NS) as f64;
        let sure = part - 2.0 * (part * (1.0 - part) / ticks).sqrt();
        let irq_ns = self.interrupts_ns();
        let known_ns = (self.calls_ns.saturating_add(self.exit_ns)).saturating_add(irq_ns);
        let all_ns = self.cpu_ns().saturating_add(irq_ns);
        let beyond = |part: f64| ((all_ns as f64 * part) as u64).saturating_sub(known_ns);
        Some(match beyond(sure.max(0.0)) {
            0 => 0,
            _ => beyond(part).min(self.own_ns),
        })
    }

    pub fn interrupts_ns(&self) -> u64 {
        self.irq_ns.saturating_add(self.irq_outside_ns)
    }

    /// Its own: without interrupts, where they are measured.
    pub fn cpu_ns(&self) -> u64 {
        (self.own_ns)
            .saturating_add(self.calls_ns)
            .saturating_add(self.exit_ns)
    }

    pub fn add(&mut self, other: &Self) {
        *self = self.with(other, u64::saturating_add);
    }
}

/// The threads of one name in one process, or in many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LifeRow {
    /// 0: of several processes, of a control group or of all, which came when there were many already.
    pub pid: u32,
    /// The process that made it; 0: several.
    pub parent: u32,
    pub comm: String,
    /// Of the last exec under this name; empty: none was seen.
    pub command: String,
    /// That began under this name, or came to it.
    pub threads: u32,
    /// First threads of a process among them.
    pub processes: u32,
    /// Came to it by exec.
    pub execs: u32,
    /// Since the start of the run.
    pub first_ns: u64,
    pub last_ns: u64,
    /// Its control group, in the unified hierarchy; None: not known, or several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// systemd's unit that this is, or is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Its number; 0: not known, or several.
    #[serde(skip)]
    pub cgroup_number: u64,
    #[serde(flatten)]
    pub time: LifeTime,
}

/// What threads of one name did from being woken at their resting place to their next
/// rest there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityRow {
    pub comm: String,
    /// The call in which they rest.
    pub call: Option<String>,
    pub count: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    pub all: ActivityTime,
    /// Of the slowest: those that took at least `slow_from_ns`, a hundredth of them or a
    /// little more.
    pub slow_from_ns: u64,
    pub slow_count: u64,
    pub slow: ActivityTime,
    /// The longest wait in one of the slowest.
    pub longest_ns: u64,
    /// Index into `chain_links`: for what.
    pub longest_chain: Option<usize>,
}

/// `total_ns` is the sum of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityTime {
    pub total_ns: u64,
    pub own_ns: u64,
    pub calls_ns: u64,
    pub blocked_ns: u64,
    pub runq_ns: u64,
}

/// The time from the beginning to the end of a process, by what its end depended on;
/// the parts add up to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CriticalPath {
    pub pid: u32,
    pub total_ns: u64,
    /// Largest first.
    pub parts: Vec<CriticalPart>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CriticalPart {
    /// Name of the thread whose time it was; null: of several, which found no room.
    pub comm: Option<String>,
    pub kind: CriticalKind,
    /// Index into `chain_links`: what it waited for.
    pub chain: Option<usize>,
    pub total_ns: u64,
}

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum CriticalKind {
    /// On a CPU, outside of calls.
    Own,
    /// On a CPU, in calls.
    Calls,
    /// On a CPU, ending.
    Exit,
    /// Interrupts that landed in it, where they are measured: of the time on a CPU the share
    /// that they have in all threads of the name.
    Interrupts,
    /// Waiting for a CPU.
    Runq,
    /// Asleep.
    Blocked,
    /// A kind that a later version wrote.
    #[default]
    #[serde(other)]
    Other,
}

/// The CPUs that the watched processes may use, during the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    pub cpus_online: u32,
    /// Which of them the first processes may use: the union of their affinities.
    pub cpus_allowed: Vec<u32>,
    /// What those were busy for, with anything, and what a hypervisor took of them.
    pub busy_ns: u64,
    pub steal_ns: u64,
    /// Of their control groups and those above; what held up most first.
    pub limits: Vec<CpuLimit>,
}

/// A control group with a limit of CPU time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuLimit {
    pub group: String,
    /// The file that sets it.
    pub file: String,
    /// So much of
    pub quota_ns: u64,
    /// each of these.
    pub period_ns: u64,
    /// Periods that went by during the run, those in which the group used up its quota,
    pub periods: u64,
    pub throttled: u64,
    /// and how long its CPUs were held up by that, summed up.
    pub throttled_ns: u64,
}

/// Blocked time of one chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainRow {
    /// Index into `chain_links`.
    pub first: usize,
    /// Parts of sleeps; of a sleep that one chain explains that is all of it.
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CulpritRole {
    /// Owned the lock when the wait began.
    Holder,
    /// Held it for reading, perhaps with others.
    Reader,
    /// Ended the wait.
    Waker,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadRow {
    pub pid: u32,
    /// 0: the sum of the threads that found no row of their own.
    pub tid: u32,
    pub comm: String,
    pub count: u64,
    pub errors: u64,
    pub wall_ns: u64,
    pub cpu_ns: u64,
    pub blocked_ns: u64,
    pub runq_ns: u64,
    /// Interrupts in its calls,
    #[serde(default)]
    pub irq_ns: Option<u64>,
    /// and between them.
    #[serde(default)]
    pub irq_outside_ns: Option<u64>,
    pub minor_faults: u64,
    pub major_faults: u64,
    /// Since the start of the run.
    pub first_ns: u64,
    /// null: it lives.
    pub ended_ns: Option<u64>,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Interrupts of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InterruptRow {
    pub kind: InterruptKind,
    /// Of a device's line, of the processor's vector, of the soft interrupt.
    pub number: u32,
    /// Its device's handler, or what it is for.
    pub name: String,
    /// That landed in calls.
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
    /// Between calls, in the program's own code.
    pub outside_count: u64,
    pub outside_ns: u64,
    pub outside_max_ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterruptKind {
    Device,
    /// One of the processor's own.
    Vector,
    Soft,
    /// A kind that a later version wrote.
    #[default]
    #[serde(other)]
    Other,
}

impl InterruptKind {
    pub fn text(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Vector => "processor",
            Self::Soft => "soft",
            Self::Other => "other",
        }
    }
}

/// What a call worked on, as it was while the call was open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Object {
    pub kind: ObjectKind,
    /// As people read it.
    pub text: String,
    /// Path, name of a socket or of an anonymous file, string passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "is_false")]
    pub deleted: bool,
    /// The front of a file's path is missing, or the end of a string passed.
    #[serde(skip_serializing_if = "is_false")]
    pub cut: bool,
    /// The file system's, "major:minor".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Of a futex its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inode: Option<u64>,
    /// Several files had this path; `inode` is the first one's.
    #[serde(skip_serializing_if = "is_false")]
    pub several_inodes: bool,
    /// Which device a device file stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub special: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descriptor: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// "tcp", "udp", "unix", ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// "address:port"; port "*": many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// `name` is that of the peer's socket.
    #[serde(skip_serializing_if = "is_false")]
    pub peer_name: bool,
    /// Of a unix socket: the process that connected, or listened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_pid: Option<u32>,
    /// The peer is another user's process.
    #[serde(skip_serializing_if = "is_false")]
    pub withheld: bool,
    /// Looked up as the call ended: it had never left the CPU.
    #[serde(skip_serializing_if = "is_false")]
    pub late: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectKind {
    File,
    Directory,
    CharacterDevice,
    BlockDevice,
    /// A pipe with a name.
    Fifo,
    Pipe,
    Socket,
    Epoll,
    Eventfd,
    Timerfd,
    Signalfd,
    Inotify,
    Fanotify,
    Pidfd,
    Memfd,
    IoUring,
    /// Another anonymous file; `name` is the kernel's name of its kind.
    Anonymous,
    /// A string passed, as it stood in the program's memory.
    Path,
    Futex,
    NoRoom,
    /// Not looked up: another thread could have changed the descriptor.
    Unsure,
    /// Also kinds that a later version wrote.
    #[default]
    #[serde(other)]
    Other,
}

/// The sleeps of one call on one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRow {
    /// null: outside of calls.
    pub call: Option<String>,
    pub abi: u32,
    /// Index into `objects`; null: the call has none, or it is not known.
    pub object: Option<usize>,
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
}

/// An argument of a call, with its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallArgument {
    pub name: String,
    /// Flags and constants by name.
    pub text: String,
    /// A place in memory.
    #[serde(default, skip_serializing_if = "is_false")]
    pub address: bool,
}

/// A place in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Site {
    pub label: String,
    pub unlabelled: bool,
    pub function: Option<String>,
    pub offset: Option<u32>,
    pub file: Option<String>,
    pub line: Option<u32>,
    /// Kernel functions, outermost first; empty when not known.
    pub frames: Vec<String>,
}

/// One frame of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    pub function: Option<String>,
    /// File name of the executable or library.
    pub module: Option<String>,
    /// Bytes from the function's start to the return address; from the file's
    /// start (in no file: the address) when the function is not known.
    pub offset: u64,
    pub file: Option<String>,
    pub line: Option<u32>,
    /// Inlined into the next frame.
    pub inlined: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UserStack {
    /// Innermost first; in recordings without --stacks the call site alone.
    pub frames: Vec<Frame>,
    /// Index of the program's own call site in `frames`.
    pub site_frame: usize,
    /// Not to its outermost frame.
    pub cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRow {
    pub call: Option<String>,
    pub abi: u32,
    /// Index into `stacks`.
    pub stack: Option<usize>,
    /// Index into `sites`; null: the stack could not be taken.
    pub site: Option<usize>,
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
}

/// Time of one system call against invocation number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallHistory {
    pub call: String,
    pub abi: u32,
    /// In order; each stands for the calls between two looks.
    pub points: Vec<HistoryPoint>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPoint {
    /// Since the start of the run, of the point's end.
    pub time_ns: u64,
    /// Number of the point's first call, from 0.
    pub first: u64,
    pub count: u64,
    pub wall_ns: u64,
    pub blocked_ns: u64,
    pub runq_ns: u64,
    /// Left out when there were none, or they were not measured.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub irq_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    /// Upper edge of the highest histogram bucket with a call in it.
    pub max_ns: u64,
}

/// The watched processes at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gauge {
    pub time_ns: u64,
    pub processes: u64,
    pub threads: u64,
    /// The largest that one of the processes has.
    pub descriptors: Option<u64>,
    pub mappings: Option<u64>,
    pub resident_bytes: Option<u64>,
}

/// A call whose time changed with its invocation number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trend {
    pub call: String,
    pub abi: u32,
    pub calls: u64,
    /// What of the calls' time changed.
    #[serde(default)]
    pub part: TrendPart,
    /// Of one call, at the start and at the end (medians of a sixth of the run).
    pub from_ns: u64,
    pub to_ns: u64,
    /// Change from one call to the next, by a robust line.
    #[serde(default)]
    pub per_call_ns: f64,
    /// Of the test against "no trend".
    pub p_value: f64,
    /// What grew with it: "open descriptors", "mappings", "resident memory".
    pub grows_with: Vec<String>,
    pub text: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrendPart {
    /// Time on CPU and blocked together; waiting for a CPU, and interrupts where they are
    /// measured, are not the call's doing.
    #[default]
    Whole,
    Cpu,
    Blocked,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowCall {
    /// Of one sleep in it alone, whose call may have gone on: start and times are the sleep's, and what only the end of
    /// a call tells is 0.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub one_sleep: bool,
    /// Since the start of the run.
    pub start_ns: u64,
    pub pid: u32,
    pub tid: u32,
    pub comm: String,
    pub call: String,
    pub abi: u32,
    pub retval: i64,
    /// Name of the error that it returned; null: none.
    #[serde(default)]
    pub error: Option<String>,
    pub args: [u64; 6],
    /// The same by name, as far as the call is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<CallArgument>,
    /// What it worked on, in words: that of `object`.
    pub path: Option<String>,
    /// Index into `objects`.
    #[serde(default)]
    pub object: Option<usize>,
    pub wall_ns: u64,
    pub cpu_ns: u64,
    pub blocked_ns: u64,
    pub runq_ns: u64,
    #[serde(default)]
    pub irq_ns: Option<u64>,
    pub minor_faults: u32,
    pub major_faults: u32,
    /// Index into `stacks`.
    pub stack: Option<usize>,
    /// Texts of the conditions (--on) that it met.
    pub conditions: Vec<String>,
    pub sleeps: Vec<Sleep>,
    pub sleeps_dropped: u32,
    pub sleeps_dropped_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sleep {
    /// Since the start of the run.
    pub start_ns: u64,
    pub blocked_ns: u64,
    pub runq_ns: u64,
    /// Index into `sites`.
    pub site: Option<usize>,
    /// Others that waited for the same when it began, and when it ended: none where
    /// that could not be known. Counted up to DEBOX_WAITERS_MAX.
    pub waiters_entry: Option<u32>,
    pub waiters_exit: Option<u32>,
    /// Who held it when the sleep began,
    pub holder: Option<Party>,
    /// and when it ended.
    #[serde(default)]
    pub holder_exit: Option<Party>,
    pub waker: Option<Party>,
    /// Index into `chain_links`: what explains the longest part of it.
    #[serde(default)]
    pub chain: Option<usize>,
    /// How much of it that part is, in thousandths; None if not known.
    #[serde(default)]
    pub chain_permille: Option<u32>,
}

impl Sleep {
    /// How long the part is that `chain` explains, unless it is nearly all of it, or not
    /// known.
    pub fn chain_part_ns(&self) -> Option<u64> {
        let permille = u64::from(self.chain_permille.filter(|_| self.chain.is_some())?);
        (permille < PART_NEARLY_ALL).then(|| self.blocked_ns / 1000 * permille)
    }
}

/// What explains so many thousandths of a sleep is told as if it were all of it.
const PART_NEARLY_ALL: u64 = 950;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Party {
    /// Thread id; 0: an interrupt.
    pub tid: u32,
    pub comm: String,
    pub call: Option<String>,
    /// Held for reading, perhaps with others.
    pub reader: bool,
    /// Of a holder, as in `CulpritRow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<usize>,
}

/// Something worth knowing, with what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// One sentence.
    pub title: String,
    /// What it means and what can be done.
    pub text: String,
    /// The numbers behind it, a line each.
    pub evidence: Vec<String>,
    /// Of the run's blocked (or wall) time, 0 to 1.
    pub share: f64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingState {
    /// Written to its end.
    pub complete: bool,
    /// Since the start of the run, of the last flush that could be read.
    pub until_ns: u64,
    /// Why it is not complete, in words.
    pub why: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    pub kind: RunKind,
    pub command: Vec<String>,
    pub pids: Vec<u32>,
    pub capture: Capture,
    /// From the start of the command (or the attach) to its end.
    pub wall_ns: u64,
    pub exit: Option<Exit>,
    /// CPUs that the account has counters for.
    pub cpus: u32,
    /// Nanoseconds since 1970 (recordings only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_unix_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// None: not splice capture, or the kernel side tells it as waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub splice_setup: Option<SpliceSetup>,
}

/// What debox itself did as programs began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpliceSetup {
    pub programs: u64,
    /// How long they stood still, in all.
    pub total_ns: u64,
    /// How long threads waited for it later, in all: as a library was mapped, or their own code was put back.
    #[serde(default)]
    pub asked_ns: u64,
    /// Files of which there was no patched copy yet.
    pub files_copied: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    #[default]
    Run,
    Attach,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capture {
    #[default]
    Boundary,
    Wrap,
    Splice,
    Sleeps,
}

impl Capture {
    /// As people are told of it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Boundary => "boundary capture (every call, taken in the kernel)",
            Self::Wrap => "wrap capture (interposed calls, counted in user space)",
            Self::Splice => "splice capture (every call, counted in user space)",
            Self::Sleeps => "sleeps capture (what waited, calls not counted)",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    Code(i32),
    Signal { number: i32, name: String },
}

fn yes() -> bool {
    true
}

/// Null: calls were not counted.
fn or_zero<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(0))
}

/// Which kinds of numbers were measured; the fields of the others are null.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// Calls by count and wall time.
    #[serde(default = "yes")]
    pub calls: bool,
    pub blocked: bool,
    pub runq: bool,
    pub minor_faults: bool,
    pub major_faults: bool,
    pub switches: bool,
    pub sites: bool,
    /// Interrupts (--irq); `cpu_ns` is without them then.
    #[serde(default)]
    pub irq: bool,
}

/// Whether the kernel's clock has seen enough of these to tell the program from the kernel.
pub(crate) fn clock_tells(lives: &[LifeRow]) -> bool {
    let ticks = |row: &LifeRow| row.time.user_ns.saturating_add(row.time.system_ns);
    lives.iter().map(ticks).fold(0, u64::saturating_add) >= 10 * TICK_NS
}

impl Report {
    /// Whether threads of several names slept.
    pub(crate) fn names_differ(&self) -> bool {
        let all = self.blocking.iter().flat_map(|row| &row.by_name);
        let mut names = all.filter_map(|name| name.comm.as_deref());
        let first = names.next();
        names.any(|name| Some(name) != first)
    }

    /// Whether own code is told from the kernel's: where calls have no ends, by the clock.
    pub(crate) fn own_is_told(&self) -> bool {
        self.measured.calls || clock_tells(&self.lives)
    }
}

impl Default for Measured {
    fn default() -> Self {
        Self {
            calls: true,
            blocked: false,
            runq: false,
            minor_faults: false,
            major_faults: false,
            switches: false,
            sites: false,
            irq: false,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    #[serde(deserialize_with = "or_zero")]
    pub calls: u64,
    #[serde(deserialize_with = "or_zero")]
    pub errors: u64,
    #[serde(deserialize_with = "or_zero")]
    pub restarted: u64,
    #[serde(deserialize_with = "or_zero")]
    pub unfinished: u64,
    #[serde(deserialize_with = "or_zero")]
    pub wall_ns: u64,
    pub cpu_ns: Option<u64>,
    pub blocked_ns: Option<u64>,
    pub runq_ns: Option<u64>,
    /// Interrupts that landed in calls,
    #[serde(default)]
    pub irq_ns: Option<u64>,
    /// and between them.
    #[serde(default)]
    pub irq_outside_ns: Option<u64>,
    pub minor_faults: Option<u64>,
    pub major_faults: Option<u64>,
    pub nvcsw: Option<u64>,
    pub nivcsw: Option<u64>,
    /// Sleeps in the blocking table, those outside of calls included.
    pub sleeps: u64,
    pub sleeps_ns: u64,
    pub processes_started: u64,
    pub threads_started: u64,
    pub threads_ended: u64,
}

/// The calls of one system call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallRow {
    pub name: String,
    /// null for calls whose number lies beyond the tables.
    pub nr: Option<u32>,
    /// 64 or 32: which system call table `nr` is of.
    pub abi: u32,
    pub count: u64,
    pub errors: u64,
    pub restarted: u64,
    pub unfinished: u64,
    /// Of `count`: without a time (splice capture: `exit`, and an execve whose end nobody could tell). Where all
    /// are, the times are null.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub untimed: u64,
    /// Of `count`: without stamps (`--sample`), and so neither in the percentiles nor in the histogram. `wall_ns` has
    /// them by estimate.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unstamped: u64,
    pub wall_ns: Option<u64>,
    pub mean_ns: Option<u64>,
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
    pub max_ns: Option<u64>,
    pub cpu_ns: Option<u64>,
    pub blocked_ns: Option<u64>,
    pub runq_ns: Option<u64>,
    #[serde(default)]
    pub irq_ns: Option<u64>,
    pub minor_faults: Option<u64>,
    pub major_faults: Option<u64>,
    pub nvcsw: Option<u64>,
    pub nivcsw: Option<u64>,
    /// Of the errors: ENOENT, what was asked for is not there (counted in the kernel only).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missing: u64,
    /// Calls that returned 1: of reads and writes, those of one byte (as above).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ones: u64,
    /// Wall times: the buckets in use, shortest first.
    pub histogram: Vec<Bucket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    pub from_ns: u64,
    /// Exclusive; null in the bucket that holds everything longer.
    pub to_ns: Option<u64>,
    pub count: u64,
}

/// Before a time: it is an estimate.
pub(crate) const ESTIMATE: &str = "~";

/// What a user's own rule says of its label; see the head of labels/linux.toml.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelMeaning {
    pub label: String,
    #[serde(flatten)]
    pub meaning: debox_labels::Meaning,
}

/// One place where one system call blocked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockingRow {
    pub label: String,
    /// No rule names this place: the label is its function.
    pub unlabelled: bool,
    /// null: outside of calls, as by page faults of the program's own code.
    pub call: Option<String>,
    pub abi: u32,
    pub function: Option<String>,
    /// Bytes from the function's start.
    pub offset: Option<u32>,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub count: u64,
    pub total_ns: u64,
    pub mean_ns: u64,
    pub max_ns: u64,
    /// Of all blocked time in this table, 0 to 1.
    pub share: f64,
    /// Others waiting for the same when a sleep began, where they are known: mean,
    /// most, and of how many sleeps.
    pub waiters_mean: Option<f64>,
    pub waiters_max: Option<u64>,
    #[serde(default)]
    pub waiters_known: u64,
    /// Recordings of an earlier DeBox have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durations: Option<Durations>,
    /// By the names of the threads that slept, longest total first; the times add up to `total_ns`.
    /// Empty: nothing is known of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_name: Vec<BlockedName>,
}

/// Of the sleeps of a row, those of threads of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedName {
    /// As they fell asleep, or as of the report where they still sleep; null: whose they were is not known.
    pub comm: Option<String>,
    /// null: not known, as some sleeps of the row waited for several things.
    pub count: Option<u64>,
    pub total_ns: u64,
}

/// How long sleeps took that are over, each whole: of one that began in the period before, also what
/// was then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durations {
    pub total_ns: u64,
    /// The buckets in use, shortest first.
    pub histogram: Vec<Bucket>,
    /// null: nobody knows whose it was.
    pub longest: Option<Longest>,
}

/// The longest sleep of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Longest {
    pub ns: u64,
    /// Since the start of the run.
    pub end_ns: u64,
    pub comm: String,
}

/// The calls of one system call from one place in the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallSiteRow {
    pub call: String,
    pub place: String,
    /// Index into `stacks` (boundary capture).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<usize>,
    pub count: u64,
    pub errors: u64,
    pub wall_ns: Option<u64>,
    pub mean_ns: Option<u64>,
    pub max_ns: Option<u64>,
    pub cpu_ns: Option<u64>,
    pub blocked_ns: Option<u64>,
    pub runq_ns: Option<u64>,
    #[serde(default)]
    pub irq_ns: Option<u64>,
}

/// A call that one thread was in when the report was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCall {
    pub pid: u32,
    pub tid: u32,
    pub comm: String,
    pub call: String,
    /// The thread has been asleep in it for at least this long.
    pub at_least_ns: u64,
    /// What it waited for when the report was made, in a sentence; empty if not asked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// In a sentence, that something that has begun is held up: by whom, where somebody else has
    /// what it waits for, or what `labels/idle.toml` says of the program's functions; empty if
    /// neither is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub held_up: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub kind: NoteKind,
    /// How many calls, sleeps, threads or processes it is about; 0 if that
    /// does not apply.
    pub count: u64,
    /// The time it is about, when known.
    pub time_ns: Option<u64>,
    pub text: String,
}

impl Note {
    /// One that is about no time.
    pub fn new(kind: NoteKind, count: u64, text: impl Into<String>) -> Self {
        Self {
            kind,
            count,
            time_ns: None,
            text: text.into(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoteKind {
    Stale,
    ThreadsUnwatched,
    RowsDropped,
    SitesDropped,
    SitesUnknown,
    SitesUnresolved,
    ThreadsLeft,
    NotMeasured,
    Inconsistent,
    ThreadsRunning,
    WrapCoverage,
    WrapUncoveredSleeps,
    WrapNobody,
    WrapNotMeasured,
    WrapThreadsLost,
    WrapDropped,
    WrapRefused,
    /// What splice capture does not measure, and what it left.
    SpliceNotMeasured,
    SpliceLeft,
    /// Files with calls whose code has no room for a jump.
    SplicePlaces,
    /// Sleeps in calls that a spliced program did not tell of.
    SpliceUntold,
    /// Programs that were not spliced: the kernel told of their calls.
    SpliceBoundary,
    /// What --audit found.
    SpliceAudit,
    /// Calls without stamps, whose times are estimates.
    SpliceSampled,
    /// Single rows or events that found no room.
    DetailsDropped,
    /// Whose open calls were not looked for.
    ProcessesLeftOut,
    /// Open calls of which nobody found out what they wait for.
    CallsUnexplained,
    /// Told together with others of their name.
    LivesShared,
    /// Also kinds that a later version wrote.
    #[serde(other)]
    Other,
}

/// What the call table is sorted by, largest first (names from A to Z).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortKey {
    #[default]
    Total,
    Count,
    Errors,
    Mean,
    P50,
    P99,
    Max,
    Cpu,
    Blocked,
    Runq,
    Irq,
    Faults,
    Name,
}

impl SortKey {
    pub const NAMES: [&'static str; 13] = [
        "total", "count", "errors", "mean", "p50", "p99", "max", "cpu", "blocked", "runq", "irq",
        "faults", "name",
    ];

    pub fn parse(name: &str) -> Option<Self> {
        const KEYS: [SortKey; 13] = [
            SortKey::Total,
            SortKey::Count,
            SortKey::Errors,
            SortKey::Mean,
            SortKey::P50,
            SortKey::P99,
            SortKey::Max,
            SortKey::Cpu,
            SortKey::Blocked,
            SortKey::Runq,
            SortKey::Irq,
            SortKey::Faults,
            SortKey::Name,
        ];
        let index = Self::NAMES.iter().position(|n| *n == name)?;
        Some(KEYS[index])
    }
}

impl CallRow {
    /// Wall time, as far as it was measured.
    pub fn wall(&self) -> u64 {
        self.wall_ns.unwrap_or(0)
    }

    /// The same of one call.
    pub fn mean(&self) -> u64 {
        self.mean_ns.unwrap_or(0)
    }

    /// What stands before a time that is an estimate.
    pub fn mark(&self) -> &'static str {
        if self.unstamped > 0 { ESTIMATE } else { "" }
    }
}

/// So many names at a place are told, and the others as one.
const NAMES_SHOWN: usize = 3;

/// A line of [`BlockingRow::names_told`].
pub(crate) struct NamesTold {
    pub text: String,
    pub count: Option<u64>,
    pub total_ns: u64,
    /// Of one name or several: indices into `by_name`.
    pub of: Vec<usize>,
}

impl BlockingRow {
    /// Where in the kernel, spelled as places of programs are; empty: not known.
    pub fn place(&self) -> String {
        let Some(function) = &self.function else {
            return String::new();
        };
        match (&self.file, self.line) {
            (Some(file), Some(line)) => format!("{function} ({file}:{line})"),
            (Some(file), None) => format!("{function} ({file})"),
            _ => match self.offset {
                Some(offset) if offset > 0 => format!("{function}+{offset:#x}"),
                _ => function.clone(),
            },
        }
    }

    /// Who slept there, those that nobody knows last.
    pub(crate) fn names_told(&self) -> Vec<NamesTold> {
        let line = |text: String, of: &[usize]| {
            let names = || of.iter().map(|at| &self.by_name[*at]);
            NamesTold {
                text,
                count: names().try_fold(0u64, |n, of| Some(n.saturating_add(of.count?))),
                total_ns: names().fold(0u64, |ns, of| ns.saturating_add(of.total_ns)),
                of: of.to_vec(),
            }
        };
        let (known, unknown): (Vec<usize>, Vec<usize>) =
            (0..self.by_name.len()).partition(|at| self.by_name[*at].comm.is_some());
        let (told, others) = known.split_at(match known.len() {
            all if all > NAMES_SHOWN + 1 => NAMES_SHOWN,
            all => all,
        });
        let text = |at: usize| printable(self.by_name[at].comm.as_deref().unwrap_or_default());
        let mut lines: Vec<_> = told.iter().map(|&at| line(text(at), &[at])).collect();
        if !others.is_empty() {
            lines.push(line(format!("({} others)", others.len()), others));
        }
        if !unknown.is_empty() {
            lines.push(line("(unknown)".to_owned(), &unknown[..]));
        }
        lines
    }

    /// The same in a word.
    pub(crate) fn whose(&self) -> String {
        let mut known = self.by_name.iter().filter_map(|name| name.comm.as_deref());
        match (known.next(), known.count()) {
            (None, _) => String::new(),
            (Some(one), 0) if self.by_name.len() > 1 => format!("{}, ?", printable(one)),
            (Some(one), 0) => printable(one),
            (_, more) => format!("({} names)", more + 1),
        }
    }
}

impl CallSiteRow {
    /// Wall time, as far as it was measured.
    pub fn wall(&self) -> u64 {
        self.wall_ns.unwrap_or(0)
    }
}

impl Report {
    /// Sorts the call table; equal rows stand by total, then by name.
    pub fn sort_calls(&mut self, key: SortKey) {
        let value = |row: &CallRow| -> u64 {
            match key {
                SortKey::Total => row.wall(),
                SortKey::Count => row.count,
                SortKey::Errors => row.errors,
                SortKey::Mean => row.mean(),
                SortKey::P50 => row.p50_ns.unwrap_or(0),
                SortKey::P99 => row.p99_ns.unwrap_or(0),
                SortKey::Max => row.max_ns.unwrap_or(0),
                SortKey::Cpu => row.cpu_ns.unwrap_or(0),
                SortKey::Blocked => row.blocked_ns.unwrap_or(0),
                SortKey::Runq => row.runq_ns.unwrap_or(0),
                SortKey::Irq => row.irq_ns.unwrap_or(0),
                SortKey::Faults => {
                    let minor = row.minor_faults.unwrap_or(0);
                    minor.saturating_add(row.major_faults.unwrap_or(0))
                }
                SortKey::Name => 0,
            }
        };
        self.calls.sort_by(|a, b| {
            let by_key = value(b).cmp(&value(a));
            let by_total = match key {
                SortKey::Name => std::cmp::Ordering::Equal,
                _ => b.wall_ns.cmp(&a.wall_ns),
            };
            by_key
                .then(by_total)
                .then_with(|| a.name.cmp(&b.name))
                .then(b.abi.cmp(&a.abi))
        });
    }
}
