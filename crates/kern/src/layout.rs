// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the structures of `bpf/kern.h` lie in memory?

use std::mem::size_of;

pub const KERN_WAYS: u32 = 8;
pub const KERN_PER_CALL: usize = 4;
pub const KERN_CALLS: u32 = 512;

pub const KERN_TIMED: u32 = 1 << 0;
pub const KERN_UNDER: u32 = 1 << 1;
pub const KERN_FILTER: u32 = 1 << 2;

pub const KERN_OPERAND_MEMORY: u64 = 1 << 63;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KernMetric {
    pub generation: u32,
    pub flags: u32,
    pub under: u32,
    pub processes: u32,
    pub call: i32,
    pub cgroup: i32,
    pub call_site: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KernSums {
    pub ended: u64,
    pub calls: u64,
    pub entered: u64,
    pub entered_at: u64,
    pub left: u64,
    pub left_at: u64,
    pub returned: u64,
    pub total_ns: u64,
    pub self_ns: u64,
    pub off_ns: u64,
    pub self_off_ns: u64,
    pub max_ns: u64,
    pub never: u64,
    pub lost: u64,
    pub no_room: u64,
    pub too_deep: u64,
    pub nested: u64,
    pub begun: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KernTarget {
    pub address: u64,
    pub site: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KernOperand {
    pub displacement: i64,
    pub under: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KernState {
    pub follow: u32,
    pub sample_metric: u32,
    pub unfollowed: u64,
    pub samples_lost: u64,
    pub samples_user: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KernStackTime {
    pub samples: u64,
    pub times: u64,
    pub off_ns: u64,
}

/// Structures without padding whose every bit pattern is a value.
///
/// # Safety
/// Implement it for `repr(C)` structures of integers only, without padding.
pub unsafe trait Plain: Copy + Default {}
// The sum of the fields: there is no padding.
const _: () = {
    assert!(size_of::<KernMetric>() == 8 * 4);
    assert!(size_of::<KernSums>() == 18 * 8);
    assert!(size_of::<KernTarget>() == 8 + 2 * 4);
    assert!(size_of::<KernOperand>() == 8 + 2 * 4);
    assert!(size_of::<KernState>() == 2 * 4 + 3 * 8);
    assert!(size_of::<KernStackTime>() == 3 * 8);
};
// SAFETY: integers without padding.
unsafe impl Plain for KernMetric {}
// SAFETY: as above.
unsafe impl Plain for KernSums {}
// SAFETY: as above.
unsafe impl Plain for KernTarget {}
// SAFETY: as above.
unsafe impl Plain for KernOperand {}
// SAFETY: as above.
unsafe impl Plain for KernState {}
// SAFETY: as above.
unsafe impl Plain for KernStackTime {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for [u32; KERN_PER_CALL] {}

pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: Plain has no padding, so every byte is initialised; the slice
    // lives as long as the value.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The value at the start of `bytes`, which may lie anywhere; what is missing
/// at the end is zero.
pub fn read_plain<T: Plain>(bytes: &[u8]) -> T {
    let mut value = T::default();
    let len = size_of::<T>().min(bytes.len());
    // SAFETY: Plain accepts any bits; the two do not overlap and `len` fits both.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(&mut value).cast(), len);
    }
    value
}
