// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox serve`: what does this machine wait for, in a browser? `debox` becomes this program,
//! with its words; and it becomes the process that reads recordings.

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
    if let Some(status) = debox_serve::read_if_asked() {
        std::process::exit(status);
    }
    let inherited = Inherited::take();
    std::process::exit(debox_cli::command_line(|verb| match verb {
        Verb::Serve(args) => debox_serve::serve(*args, inherited),
        _ => Err(Error::Arguments(
            "this program is what `debox serve` becomes; call that".into(),
        )),
    }));
}
