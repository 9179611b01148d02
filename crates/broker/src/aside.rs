// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who does the work that takes its time, while the loop goes on serving?
//!
//! One thread owns the kernel side: making maps waits for grace periods (10 to
//! 40 ms each), binding walks all tasks, attaching and detaching stops for all
//! CPUs. Another owns the names: taking up a kernel's debug information takes
//! 0.4 s. The loop hands work to the first one by user, in turn, with what is to
//! be done in the loop afterwards; it never waits for either. A third closes
//! what clients sent, for which nobody waits at all.

use crate::error::BrokerError;
use crate::site::SiteResolver;
use debox_labels::LabelTable;
use debox_probe::{Counters, Kernel, NewStack, Turns};
use debox_symbol::Site;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The lane of work that no user asked for; no process has this user id.
pub(crate) const OWN_LANE: u32 = u32::MAX;
/// How often stacks are fetched from a kernel side that cannot announce them.
const STACKS_TICK: Duration = Duration::from_millis(100);

/// To be done in the loop; B is the broker.
pub(crate) type Done<B> = Box<dyn FnOnce(&mut B) + Send>;
/// With number and name of each function.
pub(crate) type Named = Box<dyn FnOnce(Vec<(u32, String)>) + Send>;
type Closing = Box<dyn FnOnce() + Send>;
type Work<K, B> = Box<dyn FnOnce(&mut K) -> Done<B> + Send>;

/// What comes back to the loop.
pub(crate) enum Back<B> {
    Done(Done<B>),
    /// With the label that the kernel side gave it.
    Site(u32, Site, u8),
    /// None: it cannot be made.
    Labels(Option<LabelTable>),
    /// One of the threads ended by a panic.
    Failed(String),
}

enum Ask {
    Stacks(Vec<NewStack>),
    Reload,
    Labels,
    /// Number and beginning of each; what to do with their names.
    Functions(Vec<(u32, u64)>, Named),
}

struct Orders<K, B> {
    turns: Turns<Work<K, B>>,
    stop: bool,
}

struct Between<K, B> {
    orders: Mutex<Orders<K, B>>,
    /// Wakes the kernel side's thread.
    ordered: OwnedFd,
    back: Mutex<VecDeque<Back<B>>>,
    /// Wakes the loop.
    returned: OwnedFd,
    /// As they were when the kernel side was last at rest.
    known: Mutex<(u64, Counters)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts up: the reader takes all at once.
fn wake(fd: &OwnedFd) {
    // EAGAIN: it is about to overflow, hence readable.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

fn calm(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0u8; 8]);
}

impl<K, B> Between<K, B> {
    fn bring(&self, what: Back<B>) {
        lock(&self.back).push_back(what);
        wake(&self.returned);
    }
}

pub(crate) struct Aside<K, B> {
    between: Arc<Between<K, B>>,
    kernel: Arc<Mutex<K>>,
    names: Option<Sender<Ask>>,
    closings: Sender<Closing>,
    threads: Vec<JoinHandle<()>>,
}

impl<K: Kernel + Send + 'static, B: 'static> Aside<K, B> {
    pub fn start<R: SiteResolver + Send + 'static>(
        kernel: K,
        resolver: R,
    ) -> Result<Self, BrokerError> {
        let event = || {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|source| {
                BrokerError::Socket {
                    step: "eventfd",
                    source,
                }
            })
        };
        let between = Arc::new(Between {
            orders: Mutex::new(Orders {
                turns: Turns::default(),
                stop: false,
            }),
            ordered: event()?,
            back: Mutex::default(),
            returned: event()?,
            known: Mutex::new((kernel.features(), kernel.counters())),
        });
        // A descriptor of its own, since it is waited for without the lock.
        let stacks = kernel
            .event_fd()
            .map(|fd| fd.try_clone_to_owned())
            .transpose()
            .map_err(BrokerError::Thread)?;
        let kernel = Arc::new(Mutex::new(kernel));
        let (ask, asked) = channel();
        let (closings, closing) = channel::<Closing>();
        let mut aside = Self {
            between: between.clone(),
            kernel: kernel.clone(),
            names: Some(ask.clone()),
            closings,
            threads: Vec::new(),
        };
        let told = between.clone();
        aside.spawn("debox-kernel", move || {
            kernel_work(&told, &kernel, stacks.as_ref(), &ask)
        })?;
        aside.spawn("debox-names", move || {
            names_work(&between, resolver, &asked)
        })?;
        // It may never be done, and is not waited for at the end.
        let closer = aside.thread("debox-close", move || {
            closing.iter().for_each(|close| close())
        })?;
        drop(closer);
        Ok(aside)
    }

    fn spawn(
        &mut self,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), BrokerError> {
        let thread = self.thread(name, work)?;
        self.threads.push(thread);
        Ok(())
    }

    fn thread(
        &self,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<JoinHandle<()>, BrokerError> {
        let between = self.between.clone();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
                    between.bring(Back::Failed(panic_text(&*panic)));
                }
            })
            .map_err(BrokerError::Thread)
    }

    /// Closes what somebody else sent, which may take for ever.
    pub fn close(&self, closing: impl FnOnce() + Send + 'static) {
        // Fails only when the thread has failed, which the loop is told.
        let _ = self.closings.send(Box::new(closing));
    }

    /// Readable when there is something to [`Aside::take`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.between.returned.as_fd()
    }

    pub fn take(&self) -> VecDeque<Back<B>> {
        calm(&self.between.returned);
        std::mem::take(&mut *lock(&self.between.back))
    }

    /// Does `work` with the kernel side, after what was ordered in this lane
    /// before, and its result in the loop.
    pub fn order(&self, lane: u32, work: impl FnOnce(&mut K) -> Done<B> + Send + 'static) {
        lock(&self.between.orders).turns.push(lane, Box::new(work));
        wake(&self.between.ordered);
    }

    /// For somebody else to call, once, from any thread: then `done` is done in
    /// the loop.
    pub fn returning(
        &self,
        done: impl FnOnce(&mut B) + Send + 'static,
    ) -> Box<dyn FnOnce() + Send> {
        let between = self.between.clone();
        Box::new(move || between.bring(Back::Done(Box::new(done))))
    }

    pub fn reload(&self) {
        if let Some(names) = &self.names {
            // Fails only when the thread has failed, which the loop is told.
            let _ = names.send(Ask::Reload);
        }
    }

    /// Brings [`Back::Labels`], now and whenever the symbols are read anew.
    pub fn labels_ask(&self) {
        if let Some(names) = &self.names {
            // Fails only when the thread has failed, which the loop is told.
            let _ = names.send(Ask::Labels);
        }
    }

    /// Names functions; `named` is called from another thread.
    pub fn functions_ask(&self, functions: Vec<(u32, u64)>, named: Named) {
        if let Some(names) = &self.names {
            // Fails only when the thread has failed, which the loop is told.
            let _ = names.send(Ask::Functions(functions, named));
        }
    }

    /// What is done in the loop when it is called with a value, once, from any thread.
    pub fn returning_with<T: Send + 'static>(
        &self,
        done: impl FnOnce(&mut B, T) + Send + 'static,
    ) -> Box<dyn FnOnce(T) + Send> {
        let between = self.between.clone();
        Box::new(move |value| {
            between.bring(Back::Done(Box::new(move |broker| done(broker, value))));
        })
    }

    pub fn features(&self) -> u64 {
        self.known().0
    }

    pub fn counters(&self) -> Counters {
        self.known().1
    }

    /// As they are, or, while the kernel side is at work, as they were before.
    fn known(&self) -> (u64, Counters) {
        if let Ok(kernel) = self.kernel.try_lock() {
            return (kernel.features(), kernel.counters());
        }
        *lock(&self.between.known)
    }
}

impl<K, B> Drop for Aside<K, B> {
    /// What was ordered is still done; its results find nobody.
    fn drop(&mut self) {
        self.names = None;
        lock(&self.between.orders).stop = true;
        wake(&self.between.ordered);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no reason given")
        .to_owned()
}

fn kernel_work<K: Kernel, B>(
    between: &Between<K, B>,
    kernel: &Mutex<K>,
    event: Option<&OwnedFd>,
    names: &Sender<Ask>,
) {
    loop {
        calm(&between.ordered);
        loop {
            let next = lock(&between.orders).turns.pop();
            let Some((_, work)) = next else { break };
            let mut kernel = lock(kernel);
            let done = work(&mut kernel);
            *lock(&between.known) = (kernel.features(), kernel.counters());
            drop(kernel);
            between.bring(Back::Done(done));
        }
        if lock(&between.orders).stop {
            return;
        }
        let stacks = {
            let mut kernel = lock(kernel);
            kernel.new_stacks()
        };
        if !stacks.is_empty() {
            let _ = names.send(Ask::Stacks(stacks));
        }
        rest(between, kernel, event);
    }
}

/// Until there is something to do.
fn rest<K: Kernel, B>(between: &Between<K, B>, kernel: &Mutex<K>, event: Option<&OwnedFd>) {
    let (watching, due) = {
        let kernel = lock(kernel);
        (kernel.features() != 0, kernel.due())
    };
    let mut fds = vec![PollFd::new(&between.ordered, PollFlags::IN)];
    if let Some(event) = event {
        fds.push(PollFd::new(event, PollFlags::IN));
    }
    let tick = (event.is_none() && watching).then_some(STACKS_TICK);
    let until = tick.into_iter().chain(due).min();
    let until = until.map(|until| rustix::event::Timespec {
        tv_sec: until.as_secs() as i64,
        tv_nsec: until.subsec_nanos().into(),
    });
    let _ = poll(&mut fds, until.as_ref());
}

fn names_work<K, B, R: SiteResolver>(
    between: &Between<K, B>,
    mut resolver: R,
    asked: &Receiver<Ask>,
) {
    // What the kernel side's table was made of; None: nobody asked for one.
    let mut table_of: Option<u64> = None;
    while let Ok(ask) = asked.recv() {
        let asked = matches!(ask, Ask::Labels);
        match ask {
            Ask::Reload => match resolver.reload() {
                Ok(()) => tracing::info!("symbols and labels were read again"),
                Err(error) => tracing::error!(%error, "symbols and labels stay as they were"),
            },
            Ask::Labels => {}
            Ask::Functions(functions, named) => {
                let names = functions
                    .into_iter()
                    .filter_map(|(number, address)| Some((number, resolver.function(address)?)));
                named(names.collect());
            }
            Ask::Stacks(mut stacks) => {
                // By number, so that within a batch the lowest becomes the
                // canonical one. A number that comes later than a higher one
                // does not take over: clients may have printed the other.
                stacks.sort_by_key(|stack| stack.id);
                for stack in stacks {
                    if lock(&between.orders).stop {
                        return;
                    }
                    let text = resolver.resolve(&stack.frames);
                    between.bring(Back::Site(stack.id, text, stack.label));
                }
            }
        }
        let serial = resolver.symbols_serial();
        if asked || table_of.is_some_and(|old| old != serial) {
            table_of = Some(serial);
            between.bring(Back::Labels(resolver.label_table()));
        }
    }
}
