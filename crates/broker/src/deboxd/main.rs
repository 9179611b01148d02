// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a machine get a permanent broker?
//!
//! deboxd listens (itself, or on the socket that systemd opened), becomes a user
//! of its own without the privileges that it does not need, loads the BPF
//! programs, and serves until it is told to stop. Nothing is attached while
//! nobody watches.

mod error;
mod privileges;
mod signals;
mod user;

use clap::Parser;
use debox_broker::real::{self, RealOptions};
use debox_broker::{Access, Broker, BrokerError, Config, Control, Listener};
use debox_command::service;
use debox_symbol::{TRACEABLE_ADDRESSES, TRACEABLE_NAMES};
use error::StartError;
use signals::{Signal, Signals};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// The DeBox broker: gives each program the records of its own system calls.
#[derive(Parser, Debug)]
#[command(name = "deboxd", version)]
struct Options {
    /// Where to listen; not looked at when systemd passes a socket
    #[arg(long, value_name = "PATH", default_value = debox_abi::DEBOX_SOCKET_PATH)]
    socket: PathBuf,
    /// Members of this group may use the broker (the socket's mode is 0660); not
    /// looked at when systemd passes a socket
    #[arg(long, value_name = "NAME", default_value = user::DEFAULT_NAME, conflicts_with = "everybody")]
    group: String,
    /// Every user of this machine may use the broker (mode 0666)
    #[arg(long)]
    everybody: bool,
    /// Started as root, run as this user; default: debox, and without such an
    /// account a user id that nobody has
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// A file with label rules, before the system's and DeBox's own; may be repeated
    #[arg(long, value_name = "FILE")]
    labels: Vec<PathBuf>,
    /// A vmlinux with debug information, for files and lines of kernel functions
    #[arg(long, value_name = "FILE")]
    vmlinux: Option<PathBuf>,
    /// Walk every recognised kernel stack as well and count differences (slow)
    #[arg(long)]
    verify_sites: bool,
    /// Let programs without privileges have their own calls traced: probes on
    /// kernel functions, which cost all processes a little
    #[arg(long)]
    trace_for_all: bool,
    /// Tell more; -vv tells every refusal, -vvv every connection, -vvvv what libbpf does
    #[arg(short, action = clap::ArgAction::Count)]
    verbose: u8,
}

fn main() -> ExitCode {
    debox_command::names_settle();
    let options = Options::parse();
    // The probe passes libbpf's messages on, a thousand lines for each load:
    // one step later.
    let (all, libbpf) = match options.verbose {
        0 => (LevelFilter::WARN, LevelFilter::WARN),
        1 => (LevelFilter::INFO, LevelFilter::INFO),
        2 => (LevelFilter::DEBUG, LevelFilter::INFO),
        3 => (LevelFilter::TRACE, LevelFilter::INFO),
        _ => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    // The journal stamps lines itself.
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .with_ansi(false);
    tracing_subscriber::registry()
        .with(
            Targets::new()
                .with_default(all)
                .with_target("libbpf", libbpf),
        )
        .with(lines)
        .init();
    // Before anything opens a descriptor: it would be taken for systemd's.
    match debox_broker::activated()
        .map_err(StartError::from)
        .and_then(|socket| serve(&options, socket))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("deboxd: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &Options, activated: Option<OwnedFd>) -> Result<(), StartError> {
    // Signals wait in the descriptor from here on, so that one that comes
    // during the start is not lost and does not leave the socket file behind.
    let signals = Signals::new(service::alive_every()).map_err(|source| BrokerError::Socket {
        step: "signalfd",
        source,
    })?;
    debox_broker::nofile_raise();
    let (socket, _listener) = settle(options, activated)?;
    let (probe, names, notes) = real::open(&RealOptions {
        labels: options.labels.clone(),
        vmlinux: options.vmlinux.clone(),
        verify_sites: options.verify_sites,
        boundary_later: false,
        everything: true,
        progress: |text| tracing::info!("{text}"),
    })?;
    for note in notes {
        tracing::info!("{note}");
    }
    let mut broker = Broker::new(
        Config {
            trace_for_all: options.trace_for_all,
            ..Config::default()
        },
        probe,
        names,
        socket,
    )?;
    tell(service::READY);
    tracing::info!(
        socket = %options.socket.display(),
        activated = _listener.is_none(),
        "ready"
    );
    broker.run(signals.as_fd(), || match signals.next() {
        Some(Signal::Stop(number)) => {
            tracing::info!(signal = number, "stopping");
            tell(service::STOPPING);
            Control::Stop
        }
        Some(Signal::Reload) => Control::Reload,
        Some(Signal::Beat) => {
            tell(service::ALIVE);
            Control::Continue
        }
        None => Control::Continue,
    })?;
    Ok(())
}

/// Systemd, if it has started this.
fn tell(state: &str) {
    if let Err(error) = service::tell(state) {
        tracing::warn!(%error, state, "the service manager could not be told");
    }
}

/// Where the listening socket comes from.
enum Place {
    /// systemd opened it, for whom its unit says.
    Passed(OwnedFd),
    Here(Access),
}

/// The socket, and this process as the user who it stays. The listener removes
/// the socket file; what systemd opened, systemd removes.
fn settle(
    options: &Options,
    activated: Option<OwnedFd>,
) -> Result<(OwnedFd, Option<Listener>), StartError> {
    let place = match activated {
        Some(socket) => Place::Passed(socket),
        None if options.everybody => Place::Here(Access::Everybody),
        None => Place::Here(Access::Group(user::group(&options.group)?)),
    };
    let mut bound = None;
    if rustix::process::getuid().is_root() || rustix::process::geteuid().is_root() {
        // Root's alone, and read when the first call trace is asked for.
        debox_symbol::tracefs::keep(&[TRACEABLE_ADDRESSES, TRACEABLE_NAMES]);
        bound = leave_root(options, &place)?;
    }
    privileges::drop_rest()?;
    let in_force = privileges::verify()?;
    tracing::info!(
        user = debox_broker::account::user_name(in_force.uid).unwrap_or_default(),
        uid = in_force.uid,
        gid = in_force.gid,
        capabilities = in_force.capabilities,
        "running as a user of its own"
    );
    let (socket, listener) = match place {
        Place::Passed(socket) => (socket, None),
        Place::Here(access) => {
            let mut listener = match bound {
                Some(listener) => listener,
                None => Listener::bind(&options.socket, access)?,
            };
            let socket = listener.take_fd();
            let twice = || BrokerError::Activation("the socket was taken twice".to_owned());
            (socket.ok_or_else(twice)?, Some(listener))
        }
    };
    // Clients ask the socket whose it is (SO_PEERCRED): from now on ours.
    debox_broker::listen(&socket)?;
    Ok((socket, listener))
}

/// Becomes the broker's own user. In a directory that stays root's the socket
/// is bound before; in one of the broker's own it is bound by its owner, since
/// root must not create files where another user can put links in their place.
fn leave_root(options: &Options, place: &Place) -> Result<Option<Listener>, StartError> {
    let Place::Here(access) = place else {
        privileges::switch(&user_of(options, None)?, None)?;
        return Ok(None);
    };
    let owner = debox_broker::directory_owner(&options.socket);
    let user = user_of(options, owner)?;
    debox_broker::directory_make(&options.socket, user.uid, user.gid)?;
    let listener = match debox_broker::directory_owner(&options.socket) {
        Some(0) => Some(Listener::bind(&options.socket, *access)?),
        Some(owner) if owner != user.uid => {
            return Err(StartError::DirectoryOfAnother {
                path: options.socket.clone(),
                owner,
            });
        }
        _ => None,
    };
    let group = match access {
        Access::Group(group) if *group != user.gid => Some(*group),
        _ => None,
    };
    privileges::switch(&user, group)?;
    Ok(listener)
}

fn user_of(options: &Options, directory_owner: Option<u32>) -> Result<user::User, StartError> {
    let user = user::choose(options.user.as_deref(), directory_owner)?;
    if user.name.is_none() {
        tracing::warn!(
            "there is no user {}: running as user id {}, which nobody has. `make install` makes \
             that user, and so does systemd-sysusers",
            user::DEFAULT_NAME,
            user.uid
        );
    }
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    #[test]
    fn the_manual_has_the_options_that_there_are() {
        let manual = include_str!("../../../../man/deboxd.8");
        let defined: BTreeSet<String> = manual
            .lines()
            .filter_map(|line| line.strip_prefix(".It Fl "))
            .flat_map(|line| line.split(" , Fl "))
            .filter_map(|option| Some(option.split(' ').next()?.replace("\\&", "-")))
            .collect();
        let mut command = Options::command();
        command.build();
        let mut there = BTreeSet::new();
        for arg in command.get_arguments() {
            there.extend(arg.get_short().map(|short| short.to_string()));
            there.extend(arg.get_long().map(|long| format!("--{long}")));
        }
        assert_eq!(defined, there);
    }
}
