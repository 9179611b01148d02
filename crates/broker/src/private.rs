// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a program have a broker of its own, with nothing set up?
//!
//! The same broker in a thread of the calling process, on a fresh socket.
//! It serves the user who started it and the processes that it watches (a
//! server's workers have other user ids); whoever else finds the socket is
//! refused. What the others may do is decided message by message, as ever.

use crate::aside::panic_text;
use crate::broker::{Broker, Config, Control, Serve};
use crate::error::BrokerError;
use crate::limits::{Limits, Shares};
use crate::listen;
use crate::real::{self, RealOptions};
use crate::site::SiteResolver;
use debox_probe::Kernel;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// A broker in this process. Dropping it ends it, or with `ends_with_process` leaves that to the process's end.
pub struct Private {
    socket: PathBuf,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<Result<(), BrokerError>>>,
    nofile_before: rustix::process::Rlimit,
    notes: Vec<String>,
    ends_with_process: bool,
    _directory: tempfile::TempDir,
}

#[derive(Debug, Clone)]
pub struct PrivateOptions {
    /// A file with label rules, before all others.
    pub labels: Option<PathBuf>,
    /// A vmlinux with debug information; None searches the usual places.
    pub vmlinux: Option<PathBuf>,
    /// Walk every recognised stack as well and count differences.
    pub verify_sites: bool,
    /// Nobody is known to need the hooks at system calls: they are loaded for who turns out to.
    pub boundary_later: bool,
    /// Whoever drops it ends at once: the kernel takes down what is left, in a tenth of the time that it takes to
    /// be taken down here, a grace period after the other.
    pub ends_with_process: bool,
    /// Is told, in sentences, what takes minutes the first time.
    pub progress: fn(&str),
}

impl Default for PrivateOptions {
    fn default() -> Self {
        Self {
            labels: None,
            vmlinux: None,
            verify_sites: false,
            boundary_later: false,
            ends_with_process: false,
            progress: |text| tracing::info!("{text}"),
        }
    }
}

impl Private {
    /// Loads the BPF programs and the kernel's symbols, and starts a broker
    /// over them.
    ///
    /// # Errors
    /// [`BrokerError::NotPermitted`] without the capabilities;
    /// [`BrokerError::Kernel`] when the kernel refuses the programs;
    /// [`BrokerError::Symbols`] when a file that was named cannot be used.
    pub fn start(options: PrivateOptions) -> Result<Self, BrokerError> {
        let ends_with_process = options.ends_with_process;
        let options = RealOptions {
            labels: options.labels.into_iter().collect(),
            vmlinux: options.vmlinux,
            verify_sites: options.verify_sites,
            boundary_later: options.boundary_later,
            everything: false,
            progress: options.progress,
        };
        let (notes_tx, notes_rx) = mpsc::channel();
        let mut private = Self::start_with(move || {
            let (probe, names, notes) = real::open(&options)?;
            let _ = notes_tx.send(notes);
            Ok((probe, names))
        })?;
        private.notes = notes_rx.try_recv().unwrap_or_default();
        private.ends_with_process = ends_with_process;
        Ok(private)
    }

    /// Starts a broker over any kernel side and resolver. Both are made in the
    /// broker's thread, by `make`; when this returns, the socket answers.
    ///
    /// # Errors
    /// What `make` returned, or why the socket or shared memory cannot be had.
    pub fn start_with<K, R, F>(make: F) -> Result<Self, BrokerError>
    where
        K: Kernel + Send + 'static,
        R: SiteResolver + Send + 'static,
        F: FnOnce() -> Result<(K, R), BrokerError> + Send + 'static,
    {
        let nofile_before = crate::identity::nofile_raise();
        let (directory, mut listener) = listen::private()?;
        let socket = listener.path().to_owned();
        let stop =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|source| {
                BrokerError::Socket {
                    step: "eventfd",
                    source,
                }
            })?;
        let stop = Arc::new(stop);
        let stopped = stop.clone();
        let (ready_tx, ready_rx) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("debox-broker".to_owned())
            .spawn(move || {
                signals_block();
                let made = make().and_then(|(kernel, resolver)| {
                    let fd = listener.take_fd().ok_or_else(|| {
                        BrokerError::Activation("the listening socket was taken twice".to_owned())
                    })?;
                    Broker::new(private_config(), kernel, resolver, fd)
                });
                let mut broker = match made {
                    Ok(broker) => {
                        let _ = ready_tx.send(Ok(()));
                        broker
                    }
                    Err(error) => {
                        let _ = ready_tx.send(Err(error));
                        return Ok(());
                    }
                };
                broker.run(stopped.as_fd(), || Control::Stop)
                // The listener, which removes the socket file, goes last.
            })
            .map_err(BrokerError::Thread)?;
        let mut private = Self {
            socket,
            stop,
            thread: Some(thread),
            nofile_before,
            notes: Vec::new(),
            ends_with_process: false,
            _directory: directory,
        };
        match ready_rx.recv() {
            Ok(Ok(())) => Ok(private),
            Ok(Err(error)) => Err(error),
            // The thread ended before it said anything.
            Err(_) => Err(private
                .join()
                .err()
                .unwrap_or_else(|| BrokerError::Panicked("no reason given".to_owned()))),
        }
    }

    /// What will be missing from records and how to get it, in whole
    /// sentences; empty when nothing is.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    pub fn socket_path(&self) -> &Path {
        &self.socket
    }

    /// RLIMIT_NOFILE as it was before the broker raised its soft limit: give
    /// it back to children before their exec, since programs that close or
    /// count all possible descriptors behave differently with another one.
    pub fn nofile_before(&self) -> rustix::process::Rlimit {
        self.nofile_before
    }

    /// Ends the broker: clients see their records become stale, everything is
    /// detached.
    ///
    /// # Errors
    /// When the broker's thread had failed before.
    pub fn stop(mut self) -> Result<(), BrokerError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), BrokerError> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        match thread.join() {
            Ok(result) => result,
            Err(panic) => Err(BrokerError::Panicked(panic_text(&*panic))),
        }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // One that has ended by itself has failed.
        if self.ends_with_process
            && self
                .thread
                .as_ref()
                .is_some_and(|thread| !thread.is_finished())
        {
            return;
        }
        if let Err(error) = self.join() {
            tracing::error!(%error, "the private broker failed");
        }
    }
}

/// A private broker serves one run: its user's own limit is the total.
fn private_config() -> Config {
    let limits = Limits::default();
    Config {
        limits: Limits {
            per_uid: limits.total,
            own_uid: limits.total,
            reserved_for_root: Shares::NONE,
            ..limits
        },
        serve: Serve::OwnAndWatched,
        ..Config::default()
    }
}

/// Signals are for the threads of the program that we are a guest in.
fn signals_block() {
    // SAFETY: the set is initialised by sigfillset before it is used; only
    // this thread's mask changes.
    unsafe {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}
