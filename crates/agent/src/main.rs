// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox agent` and `debox snapshot`: what is left on? `debox` becomes this program, with its
//! words.

use debox_cli::args::Verb;
use debox_cli::error::Error;
use debox_command::{Inherited, note_before_runtime};

extern "C" fn before_runtime() {
    note_before_runtime();
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_RUNTIME: extern "C" fn() = before_runtime;

fn main() {
    let inherited = Inherited::take();
    std::process::exit(debox_cli::command_line(|verb| match verb {
        Verb::Agent(args) => debox_agent::watch(args, inherited),
        Verb::Snapshot(args) => debox_agent::snapshot(&args),
        _ => Err(Error::Arguments(
            "this program is what `debox agent` and `debox snapshot` become; call these".into(),
        )),
    }));
}
