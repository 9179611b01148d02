// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which program does a part of `debox` that is not in it?
//!
//! Parts that bring much along (a web server, exports) are programs of their own, in packages
//! of their own. They get the words that debox got, and lie beside debox or in libexec.

use crate::error::Error;
use debox_command::Inherited;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Part {
    program: &'static str,
    /// How it comes to be there.
    remedy: &'static str,
}

pub const AGENT: Part = Part {
    program: "debox-agent",
    remedy: "Install the package debox-agent, run `make build`, or `cargo install debox-agent`",
};

pub const SERVE: Part = Part {
    program: "debox-serve",
    remedy: "Install the package debox-agent, run `make build`, or `cargo install debox-serve`",
};

pub const FLEET: Part = Part {
    program: "debox-fleet",
    remedy: "Install the package debox-agent, run `make build`, or `cargo install debox-fleet`",
};

fn places(part: &Part) -> Vec<PathBuf> {
    let own = std::env::current_exe().unwrap_or_default();
    let folder = own.parent().unwrap_or(Path::new("/usr/bin"));
    [folder.into(), folder.join("../libexec")]
        .map(|folder: PathBuf| folder.join(part.program))
        .into()
}

/// Becomes it.
pub fn program(part: &Part, inherited: &Inherited) -> Result<i32, Error> {
    let places = places(part);
    let Some(found) = places.iter().find(|path| path.is_file()) else {
        let looked = places.iter().map(|path| path.display().to_string());
        return Err(Error::Elsewhere {
            program: part.program,
            looked: looked.collect(),
            remedy: part.remedy,
        });
    };
    inherited.restore();
    let mut words = std::env::args_os();
    let mut command = Command::new(found);
    if let Some(name) = words.next() {
        command.arg0(name);
    }
    let source = command.args(words).exec();
    Err(Error::System {
        action: "executing the program of this part",
        source,
    })
}
