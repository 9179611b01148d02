// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a kernel stack look like to a person?

use std::collections::HashMap;

use crate::kernel::{Frame, KernelSymbols, SymbolError};
use debox_labels::{LABEL_LEN_MAX, LabelTable, Rule, Rules, plain, sleeper};

/// What a frame is called that lies in no known function, for instance in a
/// BPF program that is gone. Never its address: that is the kernel's secret.
pub const UNKNOWN_FUNCTION: &str = "[unknown]";

/// The caches are emptied when they get this large: a broker that runs for
/// months sees modules and BPF programs come and go.
const CACHE_MAX: usize = 1 << 15;

/// A stack, resolved: what anybody may know about it, names and lines, no
/// addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// The resource's name; at most [`LABEL_LEN_MAX`] bytes.
    pub label: String,
    /// The function that decided to sleep.
    pub function: String,
    /// How far into it, in bytes, the call returns to.
    pub offset: u32,
    /// Source file, relative to the kernel's source directory; empty without
    /// debug information.
    pub file: String,
    /// 0 without debug information.
    pub line: u32,
    /// Whether a rule gave the label; otherwise it is the function's name.
    pub labelled: bool,
    /// It ends when all CPUs have left what they read.
    pub grace_period: bool,
    /// The group of labels that the rules put it into; empty without one.
    pub group: String,
    /// The whole stack's functions, innermost first, from `__schedule` on.
    pub frames: Vec<String>,
}

/// Turns stacks into sites.
#[derive(Debug)]
pub struct Resolver {
    symbols: KernelSymbols,
    rules: Rules,
    frames: HashMap<u64, Frame>,
    sites: HashMap<Box<[u64]>, Site>,
    serial: u64,
}

impl Resolver {
    pub fn new(symbols: KernelSymbols, rules: Rules) -> Resolver {
        Resolver {
            symbols,
            rules,
            frames: HashMap::new(),
            sites: HashMap::new(),
            serial: 1,
        }
    }

    pub fn symbols(&self) -> &KernelSymbols {
        &self.symbols
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Reads the kernel's symbols again; to be called after BPF programs were
    /// attached or detached.
    pub fn reload(&mut self) -> Result<(), SymbolError> {
        self.symbols.reload()?;
        self.frames.clear();
        self.sites.clear();
        self.serial += 1;
        Ok(())
    }

    /// How often the symbols were read.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Labels for who has addresses alone; see [`LabelTable`].
    pub fn label_table(&self) -> Option<LabelTable> {
        self.rules.table(self.symbols.starts())
    }

    /// `stack` is what bpf_get_stackid() gives: return addresses, innermost
    /// first. Zeros at its end, the padding of a stack map's value, are
    /// passed over.
    pub fn resolve(&mut self, stack: &[u64]) -> Site {
        let len = stack
            .iter()
            .rposition(|&address| address != 0)
            .map_or(0, |last| last + 1);
        let stack = &stack[..len];
        if let Some(site) = self.sites.get(stack) {
            return site.clone();
        }
        let site = self.walk(stack);
        if self.sites.len() >= CACHE_MAX {
            self.sites.clear();
        }
        self.sites.insert(stack.into(), site.clone());
        site
    }

    fn walk(&mut self, stack: &[u64]) -> Site {
        if self.frames.len() >= CACHE_MAX {
            self.frames.clear();
        }
        for &address in stack {
            self.frames.entry(address).or_insert_with(|| {
                self.symbols.frame(address).unwrap_or_else(|| Frame {
                    function: UNKNOWN_FUNCTION.into(),
                    offset: 0,
                })
            });
        }
        let frames: Vec<&Frame> = stack.iter().map(|address| &self.frames[address]).collect();
        let names: Vec<&str> = frames.iter().map(|frame| frame.function.as_str()).collect();
        let own = sleeper(&names);
        let Some((site, label, labelled)) = stack_label(&self.rules, &names) else {
            return Site {
                label: "no-stack".into(),
                function: UNKNOWN_FUNCTION.into(),
                offset: 0,
                file: String::new(),
                line: 0,
                labelled: false,
                grace_period: false,
                group: String::new(),
                frames: Vec::new(),
            };
        };
        let (file, line) = self.symbols.location(stack[site]).unwrap_or_default();
        let meaning = self.rules.meanings().get(&label);
        Site {
            group: meaning.map_or_else(String::new, |meaning| meaning.group.clone()),
            label,
            function: names[site].to_owned(),
            offset: frames[site].offset,
            file,
            line,
            labelled,
            grace_period: self.rules.grace_period(&names),
            frames: names[own].iter().map(|name| (*name).to_owned()).collect(),
        }
    }
}

/// Which of a stack's functions decided to sleep, the label, and whether a rule gave it.
/// Nothing of no stack.
pub fn stack_label(rules: &Rules, functions: &[&str]) -> Option<(usize, String, bool)> {
    // A stack that is plumbing to its end still ended somewhere.
    let last = functions.len().checked_sub(1);
    let site = rules.site_frame(functions).or(last)?;
    let rule = rules.label(functions);
    let rule = rule.or_else(|| (site == 0).then(|| label_from_outside(rules, functions))?);
    Some(match rule {
        Some(rule) => (site, rule.label.clone(), true),
        None => (site, function_label(functions[site]), false),
    })
}

/// Of another task's stack the kernel leaves out its scheduler and with it its locks: it begins with
/// whoever took one. Such a stack is tried as one that waits for each kind of lock, and only rules that
/// ask for the place as well are believed.
fn label_from_outside<'a>(rules: &'a Rules, functions: &[&str]) -> Option<&'a Rule> {
    const LOCKS: [&str; 4] = [
        "mutex_lock",
        "rwsem_down_write_slowpath",
        "percpu_rwsem_wait",
        "wait_for_completion",
    ];
    LOCKS.iter().find_map(|lock| {
        let stack: Vec<&str> = std::iter::once(*lock)
            .chain(functions.iter().copied())
            .collect();
        (rules.label(&stack)).filter(|rule| !rule.site.is_empty() || !rule.any.is_empty())
    })
}

/// A label made of a function's name, where no rule has one.
fn function_label(function: &str) -> String {
    if function == UNKNOWN_FUNCTION {
        return "unknown".into();
    }
    let mut label = plain(function).to_owned();
    while label.len() > LABEL_LEN_MAX {
        label.pop();
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fallback_labels_fit() {
        assert_eq!(function_label("pipe_read"), "pipe_read");
        assert_eq!(
            function_label("ext4_wait_block_bitmap.isra.0"),
            "ext4_wait_block_bitmap"
        );
        assert_eq!(
            function_label("a_function_with_a_very_long_name"),
            "a_function_with_a_very_"
        );
        assert_eq!(function_label("ääääääääääääää"), "äääääääääää");
        assert_eq!(function_label(UNKNOWN_FUNCTION), "unknown");
    }
}
