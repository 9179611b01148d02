// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a process get its slots without waiting for the kernel?
//!
//! Putting an inner map into an array of maps waits for an RCU grace period:
//! 10 to 40 ms, twice for a segment. So a thread keeps segments ready, made in
//! batches (one wait for many), and takes released ones back. A segment is
//! given out once: whoever had it may still hold its mapping.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use libbpf_rs::libbpf_sys;

use crate::error::Error;
use crate::{SEGMENTS_MAX, pages_create};

/// Kept ready, 256 KiB each; batches are as large. The first batch is small,
/// for somebody waits for it.
const READY: usize = 16;
const FIRST: usize = 2;

pub(crate) struct Ready {
    pub id: u32,
    pub record: OwnedFd,
    pub control: OwnedFd,
    /// Map ids of both.
    pub memory: [u32; 2],
}

#[derive(Default)]
struct Shelf {
    ready: VecDeque<Ready>,
    /// Free ids whose place in the outer maps is empty.
    empty: Vec<u32>,
    /// Free ids whose place still holds the maps of a released segment.
    retired: Vec<u32>,
    failed: Option<Error>,
    wanted: bool,
    stop: bool,
}

struct Shared {
    shelf: Mutex<Shelf>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn wait<'a>(&self, guard: MutexGuard<'a, Shelf>) -> MutexGuard<'a, Shelf> {
        self.changed.wait(guard).unwrap_or_else(|e| e.into_inner())
    }
}

pub(crate) struct Pool {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Pool {
    /// `records` and `controls` are the outer maps.
    pub fn start(records: OwnedFd, controls: OwnedFd) -> Result<Pool, Error> {
        let shelf = Shelf {
            empty: (0..SEGMENTS_MAX).rev().collect(),
            ..Shelf::default()
        };
        let shared = Arc::new(Shared {
            shelf: Mutex::new(shelf),
            changed: Condvar::new(),
        });
        let worker = shared.clone();
        let thread = std::thread::Builder::new()
            .name("debox-segments".into())
            .spawn(move || work(&worker, &records, &controls))
            .map_err(|source| Error::Kernel {
                action: "start a thread",
                source,
            })?;
        Ok(Pool {
            shared,
            thread: Some(thread),
        })
    }

    /// Waits only when all that were ready are gone.
    pub fn take(&self) -> Result<Ready, Error> {
        let mut shelf = self.shared.lock();
        loop {
            if let Some(ready) = shelf.ready.pop_front() {
                self.shared.changed.notify_all();
                return Ok(ready);
            }
            if let Some(error) = shelf.failed.take() {
                return Err(error);
            }
            shelf.wanted = true;
            self.shared.changed.notify_all();
            shelf = self.shared.wait(shelf);
        }
    }

    /// No thread is bound to the segment any more.
    pub fn give_back(&self, id: u32) {
        self.shared.lock().retired.push(id);
        self.shared.changed.notify_all();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared, records: &OwnedFd, controls: &OwnedFd) {
    let mut batch = FIRST;
    let mut shelf = shared.lock();
    loop {
        if shelf.stop {
            return;
        }
        if shelf.wanted || shelf.ready.len() < READY / 2 {
            // Places that hold old maps first: putting new ones there frees
            // the old.
            let mut ids = vec![];
            while ids.len() < batch {
                let Some(id) = shelf.retired.pop().or_else(|| shelf.empty.pop()) else {
                    break;
                };
                ids.push(id);
            }
            if ids.is_empty() {
                if shelf.wanted {
                    shelf.wanted = false;
                    shelf.failed = Some(Error::Full {
                        what: "segments of slots",
                        limit: SEGMENTS_MAX,
                    });
                    shared.changed.notify_all();
                }
                shelf = shared.wait(shelf);
                continue;
            }
            batch = READY;
            drop(shelf);
            let made = make(&ids, records, controls);
            shelf = shared.lock();
            shelf.wanted = false;
            match made {
                Ok(ready) => shelf.ready.extend(ready),
                Err(error) => {
                    shelf.retired.extend(ids);
                    shelf.failed = Some(error);
                }
            }
            shared.changed.notify_all();
            if shelf.failed.is_some() {
                // Somebody is told; try again when asked again.
                shelf = shared.wait(shelf);
            }
        } else if let Some(id) = shelf.retired.pop() {
            drop(shelf);
            for outer in [records, controls] {
                // SAFETY: a map descriptor and a key of its key size. An
                // empty place (ENOENT) is what is wanted.
                unsafe {
                    libbpf_sys::bpf_map_delete_elem(outer.as_raw_fd(), (&raw const id).cast())
                };
            }
            shelf = shared.lock();
            shelf.empty.push(id);
        } else {
            shelf = shared.wait(shelf);
        }
    }
}

fn make(ids: &[u32], records: &OwnedFd, controls: &OwnedFd) -> Result<Vec<Ready>, Error> {
    let mut out = vec![];
    for &id in ids {
        let record = pages_create("debox_record")?;
        let control = pages_create("debox_control")?;
        record
            .freeze()
            .map_err(Error::bpf("freezing a record map"))?;
        out.push(Ready {
            id,
            memory: [crate::map_id(&record)?, crate::map_id(&control)?],
            record: crate::owned(&record)?,
            control: crate::owned(&control)?,
        });
    }
    put(
        records,
        ids,
        &out.iter()
            .map(|r| r.record.as_fd().as_raw_fd())
            .collect::<Vec<_>>(),
    )?;
    put(
        controls,
        ids,
        &out.iter()
            .map(|r| r.control.as_fd().as_raw_fd())
            .collect::<Vec<_>>(),
    )?;
    Ok(out)
}

fn put(outer: &OwnedFd, ids: &[u32], inner: &[i32]) -> Result<(), Error> {
    let mut count = ids.len() as u32;
    let options = libbpf_sys::bpf_map_batch_opts {
        sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: keys and values are arrays of `count` elements of the map's
    // key and value size, 4 bytes both.
    let ret = unsafe {
        libbpf_sys::bpf_map_update_batch(
            outer.as_raw_fd(),
            ids.as_ptr().cast(),
            inner.as_ptr().cast(),
            &mut count,
            &options,
        )
    };
    if ret == 0 {
        return Ok(());
    }
    // Kernels without batches for this kind of map: one wait each.
    for (id, fd) in ids.iter().zip(inner) {
        // SAFETY: one key and one value of 4 bytes.
        let ret = unsafe {
            libbpf_sys::bpf_map_update_elem(
                outer.as_raw_fd(),
                (&raw const *id).cast(),
                (&raw const *fd).cast(),
                0,
            )
        };
        if ret != 0 {
            return Err(Error::Kernel {
                action: "put a shared map in place",
                source: io::Error::from_raw_os_error(-ret),
            });
        }
    }
    Ok(())
}
