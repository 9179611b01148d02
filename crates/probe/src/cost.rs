// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the kernel side take: time of its programs, memory of its maps?
//!
//! The kernel takes the run time of BPF programs for whoever asks, at a cost at each run of one:
//! who asks holds a descriptor meanwhile. Programs and maps are found by this process's
//! descriptors; a client's maps, of which none is kept, are noted as they are made.

use crate::kernel::RunTime;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

const BPF_ENABLE_STATS: libc::c_long = 32;
const BPF_STATS_RUN_TIME: u32 = 0;

/// From here on the kernel takes it, and this is what it has so far.
pub(crate) fn run_time() -> Result<RunTime, String> {
    let statistics = statistics_enable()?;
    let found = own_objects("prog_id:", "run_time_ns:");
    let found = found.ok_or("the run time of DeBox's programs cannot be read in /proc")?;
    Ok(RunTime {
        ns: found.values().sum(),
        statistics,
    })
}

/// None: the kernel takes it all the time.
fn statistics_enable() -> Result<Option<OwnedFd>, String> {
    let always = std::fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled");
    if always.is_ok_and(|text| text.trim() == "1") {
        return Ok(None);
    }
    let attr: [u32; 32] = {
        let mut attr = [0; 32];
        attr[0] = BPF_STATS_RUN_TIME;
        attr
    };
    // SAFETY: the struct is a valid local of that size; the kernel reads it only.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_ENABLE_STATS,
            attr.as_ptr(),
            size_of_val(&attr),
        )
    };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(format!(
            "the CPU time of DeBox's programs in the kernel is not measured: {error}. It needs sysctl \
             kernel.bpf_stats_enabled=1, or a broker with CAP_SYS_ADMIN, which deboxd never has"
        ));
    }
    // SAFETY: the descriptor is new, and this process's own.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
}

/// Bytes of the maps that this process has open, by map id. None: /proc does not tell.
pub(crate) fn own_maps() -> Option<HashMap<u32, u64>> {
    own_objects("map_id:", "memlock:")
}

/// Map id and bytes, as far as they are told.
pub(crate) fn map_bytes(map: &impl AsFd) -> Option<(u32, u64)> {
    let path = format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd());
    object(Path::new(&path), "map_id:", "memlock:")
}

fn object(fdinfo: &Path, id: &str, value: &str) -> Option<(u32, u64)> {
    let text = std::fs::read_to_string(fdinfo).ok()?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let (id, value) = (field(id)?, field(value)?);
    Some((id.trim().parse().ok()?, value.trim().parse().ok()?))
}

/// A value of this process's BPF objects of a kind, each once. Of its other descriptors, which with many
/// clients are thousands, only the kind is looked at.
fn own_objects(id: &str, value: &str) -> Option<HashMap<u32, u64>> {
    let mut found = HashMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").ok()?.flatten() {
        let kind = std::fs::read_link(entry.path()).unwrap_or_default();
        if kind.to_string_lossy().starts_with("anon_inode:bpf") {
            let fdinfo = Path::new("/proc/self/fdinfo").join(entry.file_name());
            found.extend(object(&fdinfo, id, value));
        }
    }
    Some(found)
}
