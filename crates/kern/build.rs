// SPDX-License-Identifier: MIT OR Apache-2.0
//! An object and no skeleton: single programs are copied out of it.

fn main() {
    debox_bpf::object("kern");
}
