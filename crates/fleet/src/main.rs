// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox fleet`: what do many hosts tell? `debox` becomes this program, with its words.

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
    // It and its engine take signals as any other program.
    Inherited::take().restore();
    std::process::exit(debox_cli::command_line(|verb| match verb {
        Verb::Fleet(args) => debox_fleet::ask(args),
        _ => Err(Error::Arguments(
            "this program is what `debox fleet` becomes; call that".into(),
        )),
    }));
}
