// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does a broker that serves get its kernel side and its names?

use crate::error::BrokerError;
use crate::site::SiteResolver;
use debox_labels::LabelTable;
use debox_probe::Probe;
use debox_symbol::{
    Debuginfod, KernelSymbols, Resolver, SharedFunctions, Site, SymbolError, SymbolOptions,
    UNKNOWN_FUNCTION,
};
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
    /// Nobody is known to need the hooks at system calls: they are loaded for who turns out to.
    pub boundary_later: bool,
    /// For many, who want nothing to be loaded when they ask.
    pub everything: bool,
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
    let options_probe = debox_probe::Options {
        verify_sites: options.verify_sites,
        boundary_later: options.boundary_later,
        everything: options.everything,
        ..debox_probe::Options::default()
    };
    let functions = SharedFunctions::default();
    // Each takes its time.
    let (symbols, probe) = std::thread::scope(|scope| {
        let probe = scope.spawn(|| Probe::load(options_probe, functions.clone()));
        let symbols = KernelSymbols::open(SymbolOptions {
            vmlinux: options.vmlinux.clone(),
            debuginfod: Debuginfod::from_env(),
            progress: Some(options.progress),
            functions: Some(functions.clone()),
        });
        let panicked = |panic| std::panic::resume_unwind(panic);
        (symbols, probe.join().unwrap_or_else(panicked))
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
    Ok((probe?, names, notes))
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
    fn resolve(&mut self, frames: &[u64]) -> Site {
        let Names::Known { resolver, reloaded } = self else {
            return Site {
                label: "unnamed".to_owned(),
                function: UNKNOWN_FUNCTION.to_owned(),
                ..Site::default()
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
        site
    }

    fn function(&mut self, address: u64) -> Option<String> {
        let Names::Known { resolver, .. } = self else {
            return None;
        };
        // As if it returned to the function's second byte.
        let frame = resolver.symbols().frame(address + 1)?;
        Some(frame.function)
    }

    fn label_table(&mut self) -> Option<LabelTable> {
        match self {
            Names::Known { resolver, .. } => resolver.label_table(),
            Names::Hidden => None,
        }
    }

    fn symbols_serial(&self) -> u64 {
        match self {
            Names::Known { resolver, .. } => resolver.serial(),
            Names::Hidden => 0,
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
