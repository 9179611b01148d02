// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does the runtime of spliced programs lie in this crate? As it is published (`setup/crates.py`); who builds the
//! tree has it beside `debox`.

fn main() {
    println!("cargo:rustc-check-cfg=cfg(runtime_within)");
    println!("cargo:rerun-if-changed=build.rs");
    if std::path::Path::new("compiled/debox-splice.bin").is_file() {
        println!("cargo:rustc-cfg=runtime_within");
    }
}
