// SPDX-License-Identifier: MIT OR Apache-2.0
//! On what was this measured?
//!
//! Enough to tell later why two runs differ. No host name and no user: results
//! are made to be shown around.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Machine {
    /// In the order in which people read them.
    pub facts: BTreeMap<String, String>,
    /// Of the processor's known weaknesses, what the kernel does about each.
    pub mitigations: BTreeMap<String, String>,
    pub cpus: Vec<usize>,
}

fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// `a [b] c` of sysfs: b.
fn chosen(text: &str) -> String {
    match (text.find('['), text.find(']')) {
        (Some(from), Some(to)) if from < to => text[from + 1..to].to_owned(),
        _ => text.to_owned(),
    }
}

fn cpuinfo(key: &str) -> Option<String> {
    let text = read("/proc/cpuinfo")?;
    text.lines()
        .find_map(|l| {
            l.strip_prefix(key)?
                .trim_start()
                .strip_prefix(':')
                .map(str::trim)
        })
        .map(str::to_owned)
}

/// Under which hypervisor, as the processor says (leaf 0x40000000).
fn virtualisation() -> String {
    let flags = cpuinfo("flags").unwrap_or_default();
    if !flags.split_whitespace().any(|f| f == "hypervisor") {
        return "none seen (bare metal, or a hypervisor that hides)".into();
    }
    let leaf = core::arch::x86_64::__cpuid(0x4000_0000);
    let bytes: Vec<u8> = [leaf.ebx, leaf.ecx, leaf.edx]
        .iter()
        .flat_map(|r| r.to_le_bytes())
        .filter(|b| b.is_ascii_graphic())
        .collect();
    let name = String::from_utf8_lossy(&bytes).into_owned();
    let known = match name.as_str() {
        "KVMKVMKVM" => "KVM",
        "MicrosoftHv" => "Hyper-V",
        "VMwareVMware" => "VMware",
        "XenVMMXenVMM" => "Xen",
        "TCGTCGTCGTCG" => "QEMU without hardware help (TCG)",
        other => other,
    };
    format!("virtual machine: {known}")
}

fn container() -> Option<&'static str> {
    if fs::exists("/.dockerenv").unwrap_or(false) {
        return Some("docker");
    }
    fs::exists("/run/.containerenv")
        .unwrap_or(false)
        .then_some("podman")
}

/// CPUs that this process may run on.
pub fn cpus_allowed() -> Vec<usize> {
    // SAFETY: a zeroed set of its size, filled by the kernel.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return vec![0];
        }
        (0..libc::CPU_SETSIZE as usize)
            .filter(|c| libc::CPU_ISSET(*c, &set))
            .collect()
    }
}

/// The line of /proc/self/mountinfo that `device` (major:minor) belongs to:
/// kind of file system and its source.
pub fn file_system(dev: u64) -> Option<(String, String)> {
    let wanted = format!("{}:{}", libc::major(dev), libc::minor(dev));
    let text = read("/proc/self/mountinfo")?;
    text.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        if before.split(' ').nth(2)? != wanted {
            return None;
        }
        let mut words = after.split(' ');
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    })
}

/// Read-ahead, scheduler and kind of the disk below a file.
fn disk(dev: u64) -> Option<String> {
    let link = format!("/sys/dev/block/{}:{}", libc::major(dev), libc::minor(dev));
    // A partition's queue is its disk's.
    let queue = [format!("{link}/queue"), format!("{link}/../queue")]
        .into_iter()
        .find(|q| fs::exists(q).unwrap_or(false))?;
    let get = |name: &str| read(&format!("{queue}/{name}"));
    Some(format!(
        "read-ahead {} KiB, scheduler {}, {}",
        get("read_ahead_kb").unwrap_or_else(|| "?".into()),
        get("scheduler").map_or_else(|| "?".into(), |s| chosen(&s)),
        match get("rotational").as_deref() {
            Some("0") => "not rotating",
            Some(_) => "said to rotate",
            None => "?",
        }
    ))
}

/// What of the boot line changes how fast the kernel is. The rest may name
/// disks, hosts and networks, which are nobody's business.
fn options_shown(line: &str) -> String {
    const KNOWN: [&str; 24] = [
        "mitigations",
        "nosmt",
        "pti",
        "nopti",
        "spectre_v2",
        "spec_store_bypass_disable",
        "l1tf",
        "mds",
        "retbleed",
        "preempt",
        "isolcpus",
        "nohz",
        "nohz_full",
        "rcu_nocbs",
        "idle",
        "intel_idle.max_cstate",
        "processor.max_cstate",
        "clocksource",
        "tsc",
        "transparent_hugepage",
        "hugepages",
        "init_on_alloc",
        "slub_debug",
        "lockdown",
    ];
    let shown: Vec<&str> = line
        .split_whitespace()
        .filter(|word| KNOWN.contains(&word.split('=').next().unwrap_or(word)))
        .collect();
    if shown.is_empty() {
        "none that change its speed".into()
    } else {
        shown.join(" ")
    }
}

fn c_library() -> Option<String> {
    // SAFETY: a constant string of libc's own.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    Some(format!("glibc {}", version.to_str().ok()?))
}

/// Which of the CPUs are threads of one core, and in which package each is.
fn topology(cpus: &[usize]) -> Option<String> {
    let of =
        |cpu: usize, what: &str| read(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/{what}"));
    let mut cores: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for &cpu in cpus {
        let key = (of(cpu, "physical_package_id")?, of(cpu, "core_id")?);
        cores.entry(key).or_default().push(cpu.to_string());
    }
    let packages: std::collections::BTreeSet<&String> = cores.keys().map(|(p, _)| p).collect();
    let mut text = format!("{} cores in {} packages", cores.len(), packages.len());
    let shared: Vec<String> = cores
        .values()
        .filter(|threads| threads.len() > 1)
        .map(|threads| threads.join("+"))
        .collect();
    if !shared.is_empty() {
        text += &format!("; threads of one core: {}", shared.join(", "));
    }
    Some(text)
}

impl Machine {
    /// `file_device`: where the file for the reads lies.
    pub fn look(cpus: &[usize], file_device: Option<u64>) -> Self {
        let mut facts = BTreeMap::new();
        let mut add = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                facts.insert(key.to_owned(), value);
            }
        };
        add("processor", cpuinfo("model name"));
        add("microcode", cpuinfo("microcode"));
        add(
            "cpus",
            Some(format!(
                "{} usable{}",
                cpus.len(),
                read("/sys/devices/system/cpu/smt/active").map_or_else(String::new, |s| {
                    if s == "1" {
                        ", SMT on".into()
                    } else {
                        ", SMT off".into()
                    }
                })
            )),
        );
        add(
            "memory",
            read("/proc/meminfo").and_then(|t| {
                let kib: u64 = t.lines().next()?.split_whitespace().nth(1)?.parse().ok()?;
                Some(format!("{:.1} GiB", kib as f64 / (1 << 20) as f64))
            }),
        );
        add("kernel", read("/proc/sys/kernel/osrelease"));
        add("kernel build", read("/proc/sys/kernel/version"));
        add(
            "kernel options",
            read("/proc/cmdline").map(|t| options_shown(&t)),
        );
        add("C library", c_library());
        add("topology", topology(cpus));
        add("virtualisation", Some(virtualisation()));
        add("container", container().map(str::to_owned));
        add("clock source", Some(crate::os::clocks::clock_source()));
        add(
            "frequency governor",
            Some(
                read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").unwrap_or_else(
                    || "not shown (no cpufreq: a virtual machine, or the firmware decides)".into(),
                ),
            ),
        );
        add(
            "turbo",
            read("/sys/devices/system/cpu/intel_pstate/no_turbo")
                .map(|v| if v == "0" { "on".into() } else { "off".into() })
                .or_else(|| {
                    read("/sys/devices/system/cpu/cpufreq/boost")
                        .map(|v| if v == "1" { "on".into() } else { "off".into() })
                }),
        );
        add(
            "preemption",
            read("/sys/kernel/debug/sched/preempt").map(|t| {
                t.split_whitespace()
                    .find_map(|w| w.strip_prefix('(')?.strip_suffix(')'))
                    .unwrap_or(&t)
                    .to_owned()
            }),
        );
        add(
            "huge pages",
            read("/sys/kernel/mm/transparent_hugepage/enabled").map(|t| chosen(&t)),
        );
        add(
            "io_uring_disabled",
            read("/proc/sys/kernel/io_uring_disabled"),
        );
        add("security modules", read("/sys/kernel/security/lsm"));
        add(
            "seccomp filters on us",
            read("/proc/self/status").and_then(|t| {
                t.lines()
                    .find_map(|l| l.strip_prefix("Seccomp_filters:"))
                    .map(|v| v.trim().to_owned())
            }),
        );
        add("cpu limit (cgroup)", read("/sys/fs/cgroup/cpu.max"));
        if let Some(dev) = file_device {
            add("file system", file_system(dev).map(|(kind, _)| kind));
            add("disk", disk(dev));
        }
        let mitigations = fs::read_dir("/sys/devices/system/cpu/vulnerabilities")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|e| {
                let text = read(e.path().to_str()?)?;
                Some((e.file_name().to_string_lossy().into_owned(), text))
            })
            .collect();
        Self {
            facts,
            mitigations,
            cpus: cpus.to_vec(),
        }
    }

    /// One line: processor, CPUs, hypervisor, kernel.
    pub fn line(&self) -> String {
        let get = |k: &str| self.facts.get(k).cloned().unwrap_or_else(|| "?".into());
        format!(
            "{}, {} CPU{}, {}; Linux {}",
            get("processor"),
            self.cpus.len(),
            if self.cpus.len() == 1 { "" } else { "s" },
            get("virtualisation"),
            get("kernel")
        )
    }

    /// What is not the same there: (what, here, there).
    pub fn differences(&self, there: &Self) -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        for (a, b) in [
            (&self.facts, &there.facts),
            (&self.mitigations, &there.mitigations),
        ] {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let get = |m: &BTreeMap<String, String>| {
                    m.get(key).cloned().unwrap_or_else(|| "not known".into())
                };
                if get(a) != get(b) {
                    found.push((key.clone(), get(a), get(b)));
                }
            }
        }
        found
    }
}

/// The CPU that is measured on, and another one.
pub fn cpus_choose(wanted: Option<usize>) -> Result<(usize, Option<usize>, Vec<usize>), Error> {
    let allowed = cpus_allowed();
    let cpu = match wanted {
        Some(cpu) if allowed.contains(&cpu) => cpu,
        Some(cpu) => {
            return Err(Error::Usage(format!(
                "--cpu {cpu}: this process may use CPUs {allowed:?} only"
            )));
        }
        None => *allowed.last().expect("a process runs somewhere"),
    };
    let other = allowed.iter().copied().find(|c| *c != cpu);
    Ok((cpu, other, allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysfs_choices_are_read() {
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!(chosen("none"), "none");
    }

    #[test]
    fn the_boot_line_shows_only_what_matters_for_speed() {
        let line = "BOOT_IMAGE=/vmlinuz root=UUID=1234 ip=10.0.0.1 mitigations=off nosmt quiet";
        assert_eq!(options_shown(line), "mitigations=off nosmt");
        assert_eq!(options_shown("quiet ro"), "none that change its speed");
    }

    #[test]
    fn differences_are_found_in_both_directions() {
        let mut a = Machine::default();
        let mut b = Machine::default();
        a.facts.insert("kernel".into(), "6.1".into());
        b.facts.insert("kernel".into(), "6.12".into());
        b.mitigations
            .insert("meltdown".into(), "Mitigation: PTI".into());
        let found = a.differences(&b);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], ("kernel".into(), "6.1".into(), "6.12".into()));
        assert_eq!(found[1].1, "not known");
    }

    #[test]
    fn this_machine_is_described() {
        let m = Machine::look(&cpus_allowed(), None);
        // Independent of our reading of /proc: what uname says.
        let name = std::process::Command::new("uname")
            .arg("-r")
            .output()
            .unwrap();
        let release = String::from_utf8(name.stdout).unwrap();
        assert_eq!(m.facts["kernel"], release.trim());
        assert!(!m.line().contains("? CPU"));
    }
}
