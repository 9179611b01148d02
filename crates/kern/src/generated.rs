// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does bpf/kern.h say, in Rust?
//!
//! Made by `make abi` and not by hand. A constant that is an array's length is a
//! usize; a field that C calls `type` is called `kind`.

use debox_abi::mirror;

pub const KERN_WAYS: u32 = 8;
pub const KERN_TIMED: u32 = 1 << 0;
pub const KERN_UNDER: u32 = 1 << 1;
pub const KERN_FILTER: u32 = 1 << 2;
pub const KERN_OPERAND_MEMORY: u64 = 1 << 63;
pub const KERN_PER_CALL: usize = 4;
pub const KERN_CALLS: u32 = 512;

mirror! {
    kern_metric = 32, 4 {
        generation: u32 = 0,
        flags: u32 = 4,
        under: u32 = 8,
        processes: u32 = 12,
        call: i32 = 16,
        cgroup: i32 = 20,
        call_site: u32 = 24,
        reserved: u32 = 28,
    }
}

mirror! {
    kern_sums = 144, 8 {
        ended: u64 = 0,
        calls: u64 = 8,
        entered: u64 = 16,
        entered_at: u64 = 24,
        left: u64 = 32,
        left_at: u64 = 40,
        returned: u64 = 48,
        total_ns: u64 = 56,
        self_ns: u64 = 64,
        off_ns: u64 = 72,
        self_off_ns: u64 = 80,
        max_ns: u64 = 88,
        never: u64 = 96,
        lost: u64 = 104,
        no_room: u64 = 112,
        too_deep: u64 = 120,
        nested: u64 = 128,
        begun: u64 = 136,
    }
}

mirror! {
    kern_target = 16, 8 {
        address: u64 = 0,
        site: u32 = 8,
        reserved: u32 = 12,
    }
}

mirror! {
    kern_operand = 16, 8 {
        displacement: i64 = 0,
        under: u32 = 8,
        reserved: u32 = 12,
    }
}

mirror! {
    kern_state = 32, 8 {
        follow: u32 = 0,
        sample_metric: u32 = 4,
        unfollowed: u64 = 8,
        samples_lost: u64 = 16,
        samples_user: u64 = 24,
    }
}

mirror! {
    kern_call_ids = 16, 4 {
        id: [u32; 4] = 0,
    }
}

mirror! {
    kern_stack_time = 24, 8 {
        samples: u64 = 0,
        times: u64 = 8,
        off_ns: u64 = 16,
    }
}
