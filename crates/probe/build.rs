// SPDX-License-Identifier: MIT OR Apache-2.0
//! What watches (`debox`, `trace`), what it costs (`floor`), and whether it can
//! (`doctor`).

fn main() {
    for name in ["debox", "doctor", "floor", "trace"] {
        debox_bpf::skeleton(name);
    }
    debox_bpf::types("debox");
}
