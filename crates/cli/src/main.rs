// SPDX-License-Identifier: MIT OR Apache-2.0
//! What did this process inherit before Rust's runtime changed it?
//!
//! The runtime ignores SIGPIPE and opens /dev/null in the place of closed
//! standard streams before `main`. A command started by `debox run` must see
//! neither, so this is noted first, from the loader's list of initialisers.

use debox_command::{Inherited, note_before_runtime};

extern "C" fn before_runtime() {
    note_before_runtime();
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_RUNTIME: extern "C" fn() = before_runtime;

fn main() {
    let inherited = Inherited::take();
    std::process::exit(debox_cli::main(inherited));
}
