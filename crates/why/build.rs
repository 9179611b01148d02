// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two iterators of `bpf/why.bpf.c`.

fn main() {
    debox_bpf::skeleton("why");
}
