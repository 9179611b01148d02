// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the kernels that must be C (DEBOX_CALL brackets, stdio) get built?

fn main() {
    let root =
        std::path::PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    cc::Build::new()
        .file(root.join("kernels/calls.c"))
        .file(root.join("kernels/wrap.c"))
        .include(root.join("include"))
        .define("_GNU_SOURCE", None)
        .std("gnu11")
        .opt_level(2)
        .warnings(true)
        .compile("debox_bench_kernels");
    println!("cargo:rerun-if-changed=kernels");
    println!("cargo:rerun-if-changed=include");
    println!("cargo:rerun-if-changed=build.rs");
}
