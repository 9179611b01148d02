// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a machine get a permanent broker?
//!
//! deboxd listens (itself, or on the socket that systemd opened), gives up the
//! privileges that it does not need, loads the BPF programs, and serves until
//! it is told to stop. Nothing is attached while nobody watches.

mod notify;
mod privileges;
mod signals;

use clap::Parser;
use debox_broker::real::{self, RealOptions};
use debox_broker::{Broker, BrokerError, Config, Control, Listener};
use signals::{Signal, Signals};
use std::path::PathBuf;
use std::process::ExitCode;

/// The DeBox broker: gives each program the records of its own system calls.
#[derive(Parser, Debug)]
#[command(name = "deboxd", version)]
struct Options {
    /// Where to listen; not looked at when systemd passes a socket
    #[arg(long, value_name = "PATH", default_value = debox_abi::DEBOX_SOCKET_PATH)]
    socket: PathBuf,
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
    let options = Options::parse();
    // The probe passes libbpf's messages on, a thousand lines for each load:
    // one step later.
    let levels = match options.verbose {
        0 => "warn",
        1 => "info",
        2 => "debug,libbpf=info",
        3 => "trace,libbpf=info",
        _ => "trace",
    };
    // The journal stamps lines itself.
    tracing_subscriber::fmt()
        .with_env_filter(levels)
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .with_ansi(false)
        .init();
    // Before anything opens a descriptor: it would be taken for systemd's.
    match debox_broker::activated().and_then(|socket| serve(&options, socket)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("deboxd: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &Options, activated: Option<std::os::fd::OwnedFd>) -> Result<(), BrokerError> {
    // Signals wait in the descriptor from here on, so that one that comes
    // during the start is not lost and does not leave the socket file behind.
    let signals = Signals::new().map_err(|source| BrokerError::Socket {
        step: "signalfd",
        source,
    })?;
    debox_broker::nofile_raise();
    let (socket, _listener) = match activated {
        Some(fd) => (fd, None),
        None => {
            let mut listener = Listener::bind(&options.socket)?;
            match listener.take_fd() {
                Some(fd) => (fd, Some(listener)),
                None => {
                    return Err(BrokerError::Activation(
                        "the listening socket was taken twice".to_owned(),
                    ));
                }
            }
        }
    };
    privileges::drop_needless();
    let (probe, names, notes) = real::open(&RealOptions {
        labels: options.labels.clone(),
        vmlinux: options.vmlinux.clone(),
        verify_sites: options.verify_sites,
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
    notify::send("READY=1");
    tracing::info!(
        socket = %options.socket.display(),
        activated = _listener.is_none(),
        "ready"
    );
    broker.run(signals.as_fd(), || match signals.next() {
        Some(Signal::Stop(number)) => {
            tracing::info!(signal = number, "stopping");
            notify::send("STOPPING=1");
            Control::Stop
        }
        Some(Signal::Reload) => Control::Reload,
        None => Control::Continue,
    })
}
