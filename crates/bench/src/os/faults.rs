// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the first touch of a page cost, of each kind of page?

use super::{Ctx, unavailable};
use crate::Error;
use crate::clock::Clock;
use crate::raw::os_error;
use crate::sampling::{Case, pin};

pub const PAGE: usize = 4096;
pub const HUGE: usize = 2 << 20;
/// 8 MiB, the paper's region.
const PAGES: u64 = 2048;
const HUGE_PAGES: u64 = 8;

struct Region {
    at: *mut u8,
    /// As mapped.
    base: *mut libc::c_void,
    mapped: usize,
}

impl Region {
    /// `bytes` of new memory, aligned to huge pages; `madvise` is applied when not 0.
    fn new(bytes: usize, flags: i32, fd: i32, advice: i32) -> Result<Self, Error> {
        let anonymous = fd < 0;
        let mapped = if anonymous { bytes + HUGE } else { bytes };
        let protection = if anonymous || flags & libc::MAP_PRIVATE != 0 {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        let flags = if anonymous {
            flags | libc::MAP_ANONYMOUS
        } else {
            flags
        };
        // SAFETY: a new mapping, unmapped in drop.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(os_error("mmap"));
        }
        let at = if anonymous {
            (base as usize).next_multiple_of(HUGE)
        } else {
            base as usize
        };
        let region = Self {
            at: at as *mut u8,
            base,
            mapped,
        };
        if advice != 0 {
            // SAFETY: our own mapping; advice changes no contents here.
            if unsafe { libc::madvise(at as *mut _, bytes, advice) } != 0 {
                return Err(os_error("madvise"));
            }
        }
        Ok(region)
    }

    fn small(pages: u64) -> Result<Self, Error> {
        // Where huge pages do not exist the advice is refused, and not needed.
        let bytes = pages as usize * PAGE;
        Self::new(bytes, libc::MAP_PRIVATE, -1, libc::MADV_NOHUGEPAGE)
            .or_else(|_| Self::new(bytes, libc::MAP_PRIVATE, -1, 0))
    }

    #[inline(always)]
    fn write(&self, page: usize) {
        // SAFETY: callers stay inside the region.
        unsafe { self.at.add(page * PAGE).write_volatile(1) };
    }

    #[inline(always)]
    fn read(&self, page: usize) -> u8 {
        // SAFETY: callers stay inside the region.
        unsafe { self.at.add(page * PAGE).read_volatile() }
    }

    #[inline(always)]
    fn touch(&self, from: usize, pages: usize, write: bool) {
        for page in from..from + pages {
            if write {
                self.write(page);
            } else {
                std::hint::black_box(self.read(page));
            }
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in new().
        unsafe { libc::munmap(self.base, self.mapped) };
    }
}

/// The kernel maps a fault's neighbours in the same file as well, since Linux
/// 6.18 all of a large folio, but nothing beyond the page table of the fault:
/// touches this far apart each take one of their own.
const APART: usize = HUGE / PAGE;

/// Faults of a mapped file, one in each page table.
struct Scattered(Region);

impl Scattered {
    /// Maps the file for `n` faults. Page tables are made beforehand, as a
    /// program that touches more than one page in 2 MiB has them: every block's
    /// first page is mapped and stays, whatever came with it is taken out again.
    fn new(fd: i32, n: usize) -> Result<Self, Error> {
        let region = Region::new(n * APART * PAGE, libc::MAP_SHARED, fd, libc::MADV_RANDOM)?;
        // All before anything is taken out: a mapping need not begin where a
        // page table does, and a fault reaches back into the block before.
        for i in 0..n {
            region.touch(i * APART, 1, false);
        }
        for i in 0..n {
            // SAFETY: pages of our own mapping of a file; nothing is written.
            let result = unsafe {
                let from = region.at.add((i * APART + 1) * PAGE);
                libc::madvise(from.cast(), (APART - 1) * PAGE, libc::MADV_DONTNEED)
            };
            if result != 0 {
                return Err(os_error("madvise(MADV_DONTNEED)"));
            }
        }
        Ok(Self(region))
    }

    #[inline(always)]
    fn touch(&self, i: usize) {
        self.0.touch(i * APART + APART / 2, 1, false);
    }
}

fn file_faults(ctx: &Ctx, fd: i32, most: u64) -> Case {
    let clock = ctx.clock;
    Case::new("fault/file-mapped", move |n| {
        let pages = Scattered::new(fd, n as usize)?;
        let before = faults();
        let took = clock.time(|| {
            for i in 0..n as usize {
                pages.touch(i);
            }
        });
        one_each(faults() - before, n)?;
        Ok(took)
    })
    .most(most)
    .singles(move |to| {
        let pages = Scattered::new(fd, most as usize)?;
        for i in 0..most as usize {
            to.push(clock.time(|| pages.touch(i)));
        }
        Ok(())
    })
    .before(move || super::reads::warm(fd, most * (APART * PAGE) as u64))
}

/// Is what was timed what was meant: a fault a touch?
fn one_each(taken: i64, touches: u64) -> Result<(), Error> {
    if taken as u64 >= touches {
        return Ok(());
    }
    Err(Error::Unavailable(format!(
        "{touches} touches took {taken} faults: this kernel maps more than one page at a fault here"
    )))
}

/// Touches page after page of what `make` gives.
fn touching(
    id: &str,
    clock: Clock,
    write: bool,
    most: u64,
    make: impl Fn(u64) -> Result<Region, Error> + Clone + 'static,
) -> Case {
    let again = make.clone();
    Case::new(format!("fault/{id}"), move |n| {
        let region = make(n)?;
        Ok(clock.time(|| region.touch(0, n as usize, write)))
    })
    .most(most)
    .singles(move |to| {
        let region = again(256.min(most))?;
        for page in 0..256.min(most) as usize {
            let took = clock.time(|| region.touch(page, 1, write));
            // Of each 512 the first also makes a page table: as it comes.
            to.push(took);
        }
        Ok(())
    })
}

/// Page faults of this thread so far.
fn faults() -> i64 {
    // SAFETY: zeroed is valid, getrusage fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_minflt + usage.ru_majflt
    }
}

fn huge_refused() -> Error {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{name}"))
            .map_or_else(|_| "not there".into(), |t| t.trim().to_owned())
    };
    Error::Unavailable(format!(
        "the kernel gave small pages though huge ones were asked for \
         (/sys/kernel/mm/transparent_hugepage/enabled: {}; defrag: {}; or no free 2 MiB block)",
        read("enabled"),
        read("defrag")
    ))
}

fn huge(ctx: &Ctx) -> Case {
    let clock = ctx.clock;
    let make = |n: u64| {
        Region::new(
            n as usize * HUGE,
            libc::MAP_PRIVATE,
            -1,
            libc::MADV_HUGEPAGE,
        )
    };
    let per = HUGE / PAGE;
    Case::new("fault/huge", move |n| {
        let region = make(n)?;
        let before = faults();
        let took = clock.time(|| region.touch(0, n as usize * per, true));
        if faults() - before > n as i64 + 8 {
            return Err(huge_refused());
        }
        Ok(took)
    })
    .most(HUGE_PAGES)
}

/// The parent writes to pages that it shares with a forked child, which does
/// nothing but hold them.
fn copy_on_write(ctx: &Ctx) -> Case {
    let clock = ctx.clock;
    let held = move |region: &Region, f: &mut dyn FnMut(&Region)| -> Result<(), Error> {
        // SAFETY: the child only pauses; it is killed and reaped here.
        unsafe {
            let pid = crate::raw::check(libc::fork(), "fork")?;
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    libc::pause();
                }
            }
            f(region);
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
        Ok(())
    };
    Case::new("fault/copy-on-write", move |n| {
        let region = Region::small(n)?;
        region.touch(0, n as usize, true);
        let mut took = 0.0;
        held(&region, &mut |r| {
            took = clock.time(|| r.touch(0, n as usize, true))
        })?;
        Ok(took)
    })
    .most(PAGES)
    .singles(move |to| {
        let region = Region::small(256)?;
        region.touch(0, 256, true);
        held(&region, &mut |r| {
            for page in 0..256 {
                to.push(clock.time(|| r.touch(page, 1, true)));
            }
        })
    })
}

/// While it lives, new memory of this process has small pages, also where huge
/// ones are on for all memory: MAP_POPULATE makes the pages before any advice
/// could be given.
struct SmallPages {
    before: i32,
}

impl SmallPages {
    fn new() -> Self {
        // SAFETY: numbers only. Where there are no huge pages both are refused,
        // and nothing is lost.
        unsafe {
            let before = libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0);
            libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
            Self { before }
        }
    }
}

impl Drop for SmallPages {
    fn drop(&mut self) {
        if self.before == 0 {
            // SAFETY: as above.
            unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
        }
    }
}

/// Mapping with the pages in place at once; touched afterwards.
fn populate(ctx: &Ctx) -> Case {
    let clock = ctx.clock;
    Case::new("fault/map-populate", move |n| {
        let bytes = n as usize * PAGE;
        let mut failed = false;
        let mut region = None;
        let _small = SmallPages::new();
        let before = faults();
        let took = clock.time(|| {
            // SAFETY: a new mapping, owned by the region below.
            let base = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    bytes,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                    -1,
                    0,
                )
            };
            if base == libc::MAP_FAILED {
                failed = true;
            } else {
                let r = Region {
                    at: base.cast(),
                    base,
                    mapped: bytes,
                };
                r.touch(0, n as usize, true);
                region = Some(r);
            }
        });
        if failed {
            return Err(os_error("mmap(MAP_POPULATE)"));
        }
        one_each(faults() - before, n)?;
        Ok(took)
    })
    .most(PAGES)
    .whole_batches()
}

const MADV_POPULATE_WRITE: i32 = 23;

fn madvise_populate(ctx: &Ctx) -> Case {
    let clock = ctx.clock;
    Case::new("fault/madvise-populate", move |n| {
        let region = Region::small(n)?;
        let mut result = 0;
        let took = clock.time(|| {
            // SAFETY: our own region.
            result =
                unsafe { libc::madvise(region.at.cast(), n as usize * PAGE, MADV_POPULATE_WRITE) };
            region.touch(0, n as usize, true);
        });
        if result != 0 {
            return Err(Error::Unavailable(format!(
                "madvise(MADV_POPULATE_WRITE), since Linux 5.14: {}",
                std::io::Error::last_os_error()
            )));
        }
        Ok(took)
    })
    .most(PAGES)
    .whole_batches()
}

struct SendRegion<'a>(&'a Region);
// SAFETY: the helper thread only writes bytes with volatile stores, as we do;
// nobody reads them.
unsafe impl Send for SendRegion<'_> {}

/// The paper's advice: another thread touches the memory before it is used.
/// `before`: it has finished when the measured thread begins; else both begin
/// at once.
fn prefault(ctx: &Ctx, before: bool) -> Case {
    let clock = ctx.clock;
    let id = if before {
        "fault/prefaulted-before"
    } else {
        "fault/prefaulted-beside"
    };
    let Some(other) = ctx.other_cpu else {
        return unavailable(
            id.into(),
            &Error::Unavailable(
                "a thread on another CPU is needed, and this process may use one CPU only".into(),
            ),
        );
    };
    Case::new(id, move |n| {
        let region = Region::small(n)?;
        let started = std::sync::atomic::AtomicBool::new(false);
        let mut took = 0.0;
        std::thread::scope(|scope| {
            let theirs = SendRegion(&region);
            let flag = &started;
            let helper = scope.spawn(move || {
                let theirs = theirs;
                let pinned = pin(other);
                flag.store(true, std::sync::atomic::Ordering::Release);
                theirs.0.touch(0, n as usize, true);
                pinned
            });
            if before {
                helper.join().expect("the helper does not panic")?;
                took = clock.time(|| region.touch(0, n as usize, true));
                return Ok(());
            }
            while !started.load(std::sync::atomic::Ordering::Acquire) {
                std::thread::yield_now();
            }
            took = clock.time(|| region.touch(0, n as usize, true));
            helper
                .join()
                .expect("the helper does not panic")
                .map(|_| ())
        })?;
        Ok(took)
    })
    .most(PAGES)
    .whole_batches()
}

pub fn cases(ctx: &Ctx) -> Result<Vec<Case>, Error> {
    let clock = ctx.clock;
    let mut found = vec![
        // What the touching itself costs.
        touching("none", clock, true, PAGES, |n| {
            let region = Region::small(n)?;
            region.touch(0, n as usize, true);
            Ok(region)
        })
        .whole_batches()
        .no_singles(),
        touching("zero-fill", clock, true, PAGES, Region::small),
        touching("zero-page-read", clock, false, PAGES, Region::small),
        copy_on_write(ctx),
        huge(ctx),
    ];
    match ctx.file {
        Some(fd) => {
            let most = PAGES.min(ctx.file_bytes / PAGE as u64);
            let apart = ctx.file_bytes / (APART * PAGE) as u64;
            found.push(file_faults(ctx, fd, apart));
            for (id, advice, flags, write) in [
                ("file-around", libc::MADV_NORMAL, libc::MAP_SHARED, false),
                (
                    "file-private-write",
                    libc::MADV_RANDOM,
                    libc::MAP_PRIVATE,
                    true,
                ),
            ] {
                found.push(
                    touching(id, clock, write, most, move |n| {
                        Region::new(n as usize * PAGE, flags, fd, advice)
                    })
                    .before(move || super::reads::warm(fd, most * PAGE as u64)),
                );
            }
        }
        None => {
            for id in ["file-mapped", "file-around", "file-private-write"] {
                found.push(unavailable(
                    format!("fault/{id}"),
                    &Error::Unavailable("no file could be made; see the notes".into()),
                ));
            }
        }
    }
    found.push(populate(ctx));
    found.push(madvise_populate(ctx));
    found.push(prefault(ctx, true));
    found.push(prefault(ctx, false));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pages_are_asked_for_while_that_is_needed() {
        // SAFETY: numbers only.
        let state = || unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) };
        let before = state();
        {
            let _small = SmallPages::new();
            // Where the kernel has no huge pages it refuses the question.
            assert_ne!(state(), 0);
        }
        assert_eq!(state(), before);
    }

    #[test]
    fn fewer_faults_than_touches_are_told() {
        assert!(one_each(8, 8).is_ok());
        let error = one_each(1, 512).unwrap_err().to_string();
        assert!(error.contains("512 touches took 1 fault"), "{error}");
    }
}
