// SPDX-License-Identifier: MIT OR Apache-2.0
//! By which ways can a program be attached to kernel functions?

/// How to attach to functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// kprobe.session: one step for any number of functions (Linux 6.10)
    Session,
    /// kprobe.multi: two steps for any number of functions (Linux 5.18)
    Multi,
    /// fentry and fexit: any number of threads may be inside; slow to attach
    #[value(name = "fentry")]
    Trampoline,
    /// kprobe and kretprobe
    Kprobe,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Session => "kprobe.session",
            Way::Multi => "kprobe.multi",
            Way::Trampoline => "fentry/fexit",
            Way::Kprobe => "kprobe",
        }
    }
}
