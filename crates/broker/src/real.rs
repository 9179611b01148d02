// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the BPF probe and the kernel's symbols fit the broker's two seams?

use crate::error::BrokerError;
use crate::kernel::{
    Account, AccountOptions, Counters, Kernel, KernelError, NewStack, Segment, Trace, TraceTarget,
    TraceWish, WatchedTest, Watcher,
};
use crate::site::{SiteResolver, SiteText};
use debox_probe::Probe;
use debox_symbol::{
    Debuginfod, KernelSymbols, Resolver, SymbolError, SymbolOptions, UNKNOWN_FUNCTION,
};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Where names come from, and how much is checked.
#[derive(Debug, Clone)]
pub struct RealOptions {
    /// Files with label rules, before the user's, the system's and DeBox's own.
    pub labels: Vec<PathBuf>,
    /// A vmlinux with debug information; None searches the usual places.
    pub vmlinux: Option<PathBuf>,
    /// Walk every recognised stack as well and count differences.
    pub verify_sites: bool,
    /// Is told, in sentences, what takes minutes the first time.
    pub progress: fn(&str),
}

/// Loads the BPF programs (attaching nothing yet) and the kernel's symbols.
/// The last part of the result is for people: what will be missing, and how to
/// get it.
///
/// # Errors
/// When the programs cannot be loaded, or a file that was named cannot be used.
pub fn open(options: &RealOptions) -> Result<(Probe, Names, Vec<String>), BrokerError> {
    if let Some(missing) = capabilities_missing() {
        return Err(BrokerError::NotPermitted { missing });
    }
    let rules = debox_labels::Rules::load(&options.labels)
        .map_err(|error| BrokerError::Symbols(error.to_string()))?;
    let mut notes = Vec::new();
    let symbols = KernelSymbols::open(SymbolOptions {
        vmlinux: options.vmlinux.clone(),
        debuginfod: Debuginfod::from_env(),
        progress: Some(options.progress),
    });
    let names = match symbols {
        Ok(symbols) => {
            notes.extend(symbols.notes().iter().cloned());
            Names::Known {
                resolver: Box::new(Resolver::new(symbols, rules)),
                reloaded: None,
            }
        }
        // Times and counts are right without names.
        Err(
            error @ (SymbolError::Hidden { .. }
            | SymbolError::Empty { .. }
            | SymbolError::Unreadable { .. }),
        ) => {
            notes.push(format!("places where threads block have no names: {error}"));
            Names::Hidden
        }
        Err(error) => return Err(BrokerError::Symbols(error.to_string())),
    };
    let probe = Probe::load(debox_probe::Options {
        verify_sites: options.verify_sites,
        ..debox_probe::Options::default()
    })
    .map_err(KernelError::from)?;
    Ok((probe, names, notes))
}

/// What of CAP_BPF and CAP_PERFMON this thread lacks, None when nothing
/// (CAP_SYS_ADMIN stands for both).
fn capabilities_missing() -> Option<String> {
    use rustix::thread::CapabilitySet;
    // Where it cannot be asked, loading will tell.
    let effective = rustix::thread::capabilities(None).ok()?.effective;
    if effective.contains(CapabilitySet::SYS_ADMIN) {
        return None;
    }
    let missing: Vec<&str> = [
        (CapabilitySet::BPF, "CAP_BPF"),
        (CapabilitySet::PERFMON, "CAP_PERFMON"),
    ]
    .into_iter()
    .filter(|&(capability, _)| !effective.contains(capability))
    .map(|(_, name)| name)
    .collect();
    (!missing.is_empty()).then(|| missing.join(" and "))
}

impl From<debox_probe::Error> for KernelError {
    fn from(error: debox_probe::Error) -> Self {
        KernelError::new(error.errno(), error.to_string())
    }
}

impl From<Watcher> for debox_probe::Watcher {
    fn from(watcher: Watcher) -> Self {
        Self {
            uid: watcher.uid,
            gid: watcher.gid,
            euid: watcher.euid,
            cap_permitted: watcher.cap_permitted,
            sys_ptrace: watcher.sys_ptrace,
            user_ns: watcher.user_ns,
            privileged: watcher.privileged,
        }
    }
}

impl Kernel for Probe {
    fn segment_create(
        &mut self,
        tgid: u32,
        watcher: Watcher,
        boundary: bool,
    ) -> Result<Segment, KernelError> {
        let segment = Probe::segment_create(self, tgid, watcher.into(), boundary)?;
        Ok(Segment {
            id: segment.id,
            record: segment.record,
            control: segment.control,
            threads: segment.threads,
            memory: segment.memory,
        })
    }

    fn segment_release(&mut self, id: u32) {
        Probe::segment_release(self, id);
    }

    fn user_stacks_prepare(&mut self, uid: u32, pid: u32, ready: Box<dyn FnOnce() + Send>) {
        Probe::user_stacks_prepare(self, uid, pid, ready);
    }

    fn watched_test(&self) -> WatchedTest {
        match Probe::watched_test(self) {
            Ok(test) => Box::new(test),
            Err(error) => {
                tracing::warn!(%error, "nobody is known to be watched");
                Box::new(|_| false)
            }
        }
    }

    fn account_create(
        &mut self,
        watcher: Watcher,
        options: AccountOptions,
    ) -> Result<Account, KernelError> {
        let account = Probe::account_create(
            self,
            watcher.into(),
            debox_probe::AccountOptions {
                boundary: options.boundary,
                details: options.details,
            },
        )?;
        Ok(Account {
            id: account.id,
            account: account.account,
            cpus_map: account.cpus_map,
            cpus: account.cpus,
            cpu_stride: account.cpu_stride,
            memory: account.memory,
            details: account.details.map(|d| [d.details, d.events, d.control]),
        })
    }

    fn account_join(&mut self, id: u32, tgid: u32, follow: bool) -> Result<u32, KernelError> {
        Ok(Probe::account_join(self, id, tgid, follow)?)
    }

    fn account_leave(&mut self, id: u32, tgid: u32) {
        Probe::account_leave(self, id, tgid);
    }

    fn account_release(&mut self, id: u32) {
        Probe::account_release(self, id);
    }

    fn memory_held(&mut self, memory: &[u32]) -> Vec<u32> {
        // Not known is not gone: it is asked for again.
        Probe::memory_held(self, memory).unwrap_or_else(|error| {
            tracing::warn!(%error, "memory that was given out stays counted");
            memory.to_vec()
        })
    }

    fn trace_start(&mut self, id: u32, wish: TraceWish) -> Result<Trace, KernelError> {
        let options = debox_probe::TraceOptions {
            target: match wish.target {
                TraceTarget::Process { tgid } => debox_probe::TraceTarget::Slots { tgid },
                TraceTarget::Account { id } => debox_probe::TraceTarget::Account { id },
            },
            capacity: wish.capacity,
            threads: wish.threads,
            way: debox_probe::Way::from_number(wish.way),
            calls: wish.calls,
            patterns: wish.patterns,
        };
        let trace = Probe::trace_start(self, id, options)?;
        Ok(Trace {
            buffers: trace.buffers,
            sums: trace.sums,
            table: trace.table,
        })
    }

    fn trace_stop(&mut self, id: u32) {
        Probe::trace_stop(self, id);
    }

    fn trace_release(&mut self, id: u32) {
        Probe::trace_release(self, id);
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(Probe::event_fd(self))
    }

    fn new_stacks(&mut self) -> Vec<NewStack> {
        Probe::new_stacks(self)
            .into_iter()
            .map(|stack| NewStack {
                id: stack.id,
                frames: stack.frames,
            })
            .collect()
    }

    fn site_merged(&mut self, id: u32, merged: u32) {
        Probe::site_merged(self, id, merged);
    }

    fn features(&self) -> u64 {
        Probe::features(self)
    }

    fn counters(&self) -> Counters {
        let counters = Probe::counters(self);
        Counters {
            site_walks: counters.site_walks,
            site_hits: counters.site_hits,
            site_mismatches: counters.site_mismatches,
            site_failures: counters.site_failures,
            storage_failures: counters.storage_failures,
            slots_exhausted: counters.slots_exhausted,
            switches_hidden: counters.switches_hidden,
        }
    }
}

/// The kernel's symbols, as far as they may be read.
pub enum Names {
    Known {
        resolver: Box<Resolver>,
        reloaded: Option<Instant>,
    },
    /// kallsyms shows no addresses (see the note of [`open`]).
    Hidden,
}

/// Reading kallsyms anew takes tens of milliseconds: not more often than this
/// for a stack that has no name.
const RELOAD_PAUSE: Duration = Duration::from_secs(30);

impl SiteResolver for Names {
    fn resolve(&mut self, frames: &[u64]) -> SiteText {
        let Names::Known { resolver, reloaded } = self else {
            return SiteText {
                label: "unnamed".to_owned(),
                function: UNKNOWN_FUNCTION.to_owned(),
                ..SiteText::default()
            };
        };
        let mut site = resolver.resolve(frames);
        // A module may have been loaded since the symbols were read.
        if site.frames.iter().any(|name| name == UNKNOWN_FUNCTION)
            && reloaded.is_none_or(|at| at.elapsed() > RELOAD_PAUSE)
        {
            *reloaded = Some(Instant::now());
            match resolver.reload() {
                Ok(()) => site = resolver.resolve(frames),
                Err(error) => tracing::warn!(%error, "symbols stay as they were"),
            }
        }
        SiteText {
            label: site.label,
            function: site.function,
            offset: site.offset,
            file: site.file,
            line: site.line,
            labelled: site.labelled,
            frames: site.frames,
        }
    }

    fn reload(&mut self) -> Result<(), String> {
        match self {
            Names::Known { resolver, .. } => resolver.reload().map_err(|error| error.to_string()),
            Names::Hidden => {
                Err("symbols were hidden when the broker started; restart it".to_owned())
            }
        }
    }
}
