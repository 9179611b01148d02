// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does a call become dearer when many descriptors are open?
//!
//! Two questions of servers: what does it cost to get a new descriptor (the
//! kernel must find the lowest free number: the old ufalloc() question), and
//! what does it cost to wait for one of many that are idle?

use super::{Ctx, Group, Make};
use crate::Error;
use crate::raw::{call3, call6, check, os_error};
use crate::sampling::Case;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

const LEVELS: [usize; 9] = [10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000];
const LEVELS_QUICK: [usize; 4] = [10, 100, 1_000, 10_000];
/// Descriptors that this process needs beside the idle ones.
const SPARE: u64 = 100;

/// Raises this process's own limit as far as it may; what it is then.
pub fn limit_raise() -> u64 {
    // SAFETY: locals; the limit is this process's only.
    unsafe {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return 256;
        }
        let want = LEVELS[LEVELS.len() - 1] as u64 + SPARE;
        // With CAP_SYS_RESOURCE the hard limit, too.
        let higher = libc::rlimit {
            rlim_cur: want,
            rlim_max: want.max(limit.rlim_max),
        };
        if limit.rlim_max < want && libc::setrlimit(libc::RLIMIT_NOFILE, &higher) == 0 {
            return want;
        }
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur
    }
}

pub fn levels(quick: bool) -> &'static [usize] {
    if quick { &LEVELS_QUICK } else { &LEVELS }
}

fn event(ready: bool) -> Result<OwnedFd, Error> {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    // SAFETY: owned at once.
    unsafe {
        Ok(OwnedFd::from_raw_fd(check(
            libc::eventfd(u32::from(ready), flags),
            "eventfd",
        )?))
    }
}

/// Idle descriptors, each of its own object, as connections are.
fn idle(n: usize) -> Result<Rc<Vec<OwnedFd>>, Error> {
    (0..n)
        .map(|_| event(false))
        .collect::<Result<Vec<_>, _>>()
        .map(Rc::new)
}

/// Times each of the n operations alone, since what undoes it is not to be timed.
fn pieces(
    ctx: &Ctx,
    id: String,
    mut piece: impl FnMut(&crate::clock::Clock) -> Result<f64, Error> + 'static,
) -> Case {
    let clock = ctx.clock;
    Case::new(id, move |n| {
        let mut took = 0.0;
        for _ in 0..n {
            took += piece(&clock)?;
        }
        Ok(took)
    })
    .most(20_000)
}

fn close(fd: i64) {
    // SAFETY: a descriptor that was just made here.
    unsafe { call3(libc::SYS_close, fd as usize, 0, 0) };
}

fn made(fd: i64, what: &str) -> Result<i64, Error> {
    if fd >= 0 {
        return Ok(fd);
    }
    Err(Error::System {
        what: what.into(),
        source: std::io::Error::from_raw_os_error(-fd as i32),
    })
}

fn getting(ctx: &Ctx, level: usize) -> Result<Vec<Case>, Error> {
    let held = idle(level)?;
    let some = held[0].as_raw_fd() as usize;
    let mut found = Vec::new();
    let keep = held.clone();
    found.push(pieces(
        ctx,
        format!("descriptor/open/{level}"),
        move |clock| {
            let _keep = &keep;
            let mut fd = 0;
            let path = c"/dev/null".as_ptr() as usize;
            // SAFETY: a literal path; the number is closed below.
            let took = clock.time(|| unsafe {
                fd = call6(
                    libc::SYS_openat,
                    libc::AT_FDCWD as usize,
                    path,
                    libc::O_RDONLY as usize,
                    0,
                    0,
                    0,
                );
            });
            close(made(fd, "open")?);
            Ok(took)
        },
    ));
    found.push(pieces(
        ctx,
        format!("descriptor/dup/{level}"),
        move |clock| {
            let mut fd = 0;
            // SAFETY: no memory involved; the number is closed below.
            let took = clock.time(|| unsafe { fd = call3(libc::SYS_dup, some, 0, 0) });
            close(made(fd, "dup")?);
            Ok(took)
        },
    ));
    // A low number is given up and got back: the kernel remembers where that
    // was, so the next dup must look for a free number from there, past all
    // that are open.
    found.push(pieces(
        ctx,
        format!("descriptor/dup-search/{level}"),
        move |clock| {
            let mut fd = 0;
            let low = LOW.with(|l| *l);
            close(i64::from(low));
            // SAFETY: no memory involved.
            let again = made(unsafe { call3(libc::SYS_dup, some, 0, 0) }, "dup")?;
            if again != i64::from(low) {
                close(again);
                return Err(Error::Unavailable(format!(
                    "descriptor {low} was given up, and dup gave {again}: the kernel does not take the lowest"
                )));
            }
            // SAFETY: no memory involved; the number is closed below.
            let took = clock.time(|| unsafe { fd = call3(libc::SYS_dup, some, 0, 0) });
            close(made(fd, "dup")?);
            Ok(took)
        },
    ));
    found.push(pieces(
        ctx,
        format!("descriptor/socket/{level}"),
        move |clock| {
            let mut fd = 0;
            // SAFETY: no memory involved; the number is closed below.
            let took = clock.time(|| unsafe {
                fd = call3(
                    libc::SYS_socket,
                    libc::AF_INET as usize,
                    libc::SOCK_STREAM as usize,
                    0,
                );
            });
            close(made(fd, "socket")?);
            Ok(took)
        },
    ));
    found.push(accepting(ctx, level)?);
    Ok(found)
}

thread_local! {
    /// A descriptor with a low number that is given up and got back.
    static LOW: i32 = {
        // SAFETY: a plain dup of standard error, which is always open here.
        unsafe { libc::fcntl(2, libc::F_DUPFD_CLOEXEC, 3) }
    };
}

/// accept() of a connection that is waiting, on loopback.
fn accepting(ctx: &Ctx, level: usize) -> Result<Case, Error> {
    let id = format!("descriptor/accept/{level}");
    let failed = |source| Error::System {
        what: "listening on loopback".into(),
        source,
    };
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let fd = listener.as_raw_fd() as usize;
    Ok(pieces(ctx, id, move |clock| {
        let client = std::net::TcpStream::connect(address).map_err(|source| Error::System {
            what: "connecting to loopback".into(),
            source,
        })?;
        // The client resets, so that no port stays in TIME_WAIT.
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        // SAFETY: a struct linger of its size.
        unsafe {
            libc::setsockopt(
                client.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size_of::<libc::linger>() as u32,
            );
        }
        let _keep = &listener;
        let mut got = 0;
        let took = clock.time(|| {
            // SAFETY: no address wanted.
            got = unsafe {
                call6(
                    libc::SYS_accept4,
                    fd,
                    0,
                    0,
                    libc::SOCK_CLOEXEC as usize,
                    0,
                    0,
                )
            };
        });
        drop(client);
        close(made(got, "accept")?);
        Ok(took)
    })
    .most(200))
}

/// One that is ready beside the idle ones: every wait returns at once with it.
fn waiting(ctx: &Ctx, level: usize) -> Result<Vec<Case>, Error> {
    let clock = ctx.clock;
    let held = idle(level)?;
    let ready = Rc::new(event(true)?);
    let mut found = Vec::new();
    let repeated = |id: String, mut wait: Box<dyn FnMut() -> i64>| {
        let name = id.clone();
        Case::new(id, move |n| {
            let mut last = 1;
            let took = clock.time(|| {
                for _ in 0..n {
                    last = wait();
                }
            });
            if last == 1 {
                return Ok(took);
            }
            Err(Error::Unavailable(format!(
                "{name} returned {last} instead of the one that is ready{}",
                crate::raw::errno_text(last)
            )))
        })
    };

    // select: FD_SETSIZE bounds libc's type, not the call.
    let highest = held
        .iter()
        .map(|f| f.as_raw_fd())
        .chain([ready.as_raw_fd()])
        .max();
    let count = highest.unwrap_or(0) as usize + 1;
    let mut wanted = vec![0u64; count.div_ceil(64)];
    for fd in held
        .iter()
        .map(|f| f.as_raw_fd() as usize)
        .chain([ready.as_raw_fd() as usize])
    {
        wanted[fd / 64] |= 1 << (fd % 64);
    }
    let mut set = wanted.clone();
    let zero = Box::new(libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    });
    let keep = (held.clone(), ready.clone());
    found.push(repeated(
        format!("wait/select/{level}"),
        Box::new(move || {
            let _keep = &keep;
            // The call overwrites the set, and so a program copies it each time.
            set.copy_from_slice(&wanted);
            // SAFETY: a set of `count` bits, and a timeval that lives.
            unsafe {
                call6(
                    libc::SYS_select,
                    count,
                    set.as_mut_ptr() as usize,
                    0,
                    0,
                    &raw const *zero as usize,
                    0,
                )
            }
        }),
    ));

    let mut polled: Vec<libc::pollfd> = held
        .iter()
        .map(|f| f.as_raw_fd())
        .chain([ready.as_raw_fd()])
        .map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let keep = (held.clone(), ready.clone());
    found.push(repeated(
        format!("wait/poll/{level}"),
        Box::new(move || {
            let _keep = &keep;
            // SAFETY: as many entries as said.
            unsafe {
                call3(
                    libc::SYS_poll,
                    polled.as_mut_ptr() as usize,
                    polled.len(),
                    0,
                )
            }
        }),
    ));

    // SAFETY: owned at once.
    let epoll = unsafe {
        OwnedFd::from_raw_fd(check(
            libc::epoll_create1(libc::EPOLL_CLOEXEC),
            "epoll_create",
        )?)
    };
    for fd in held
        .iter()
        .map(|f| f.as_raw_fd())
        .chain([ready.as_raw_fd()])
    {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: fd as u64,
        };
        // SAFETY: an event that lives through the call.
        let result =
            unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        if result < 0 {
            return Err(os_error("epoll_ctl"));
        }
    }
    let keep = (held.clone(), ready.clone());
    found.push(repeated(
        format!("wait/epoll/{level}"),
        Box::new(move || {
            let _keep = &keep;
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
            // SAFETY: room for the 8 events that are asked for.
            unsafe {
                call6(
                    libc::SYS_epoll_wait,
                    epoll.as_raw_fd() as usize,
                    events.as_mut_ptr() as usize,
                    8,
                    0,
                    0,
                    0,
                )
            }
        }),
    ));
    Ok(found)
}

/// One group a level for each of the two questions.
pub fn groups(ctx: &Ctx) -> Vec<Make> {
    let limit = limit_raise();
    // Taken while low numbers are free.
    LOW.with(|_| ());
    let mut found: Vec<Make> = Vec::new();
    let all = levels(ctx.quick);
    for &level in all {
        let share = 0.5 / all.len() as f64;
        for (getting_too, make) in [(true, getting as fn(&Ctx, usize) -> _), (false, waiting)] {
            found.push(Box::new(move |ctx: &Ctx| {
                if level as u64 + SPARE <= limit {
                    return Ok(Group {
                        cases: make(ctx, level)?,
                        share,
                    });
                }
                let why = Error::Unavailable(format!(
                    "the limit of open descriptors is {limit} here (ulimit -Hn)"
                ));
                let ids: &[&str] = if getting_too {
                    &[
                        "descriptor/open",
                        "descriptor/dup",
                        "descriptor/dup-search",
                        "descriptor/socket",
                        "descriptor/accept",
                    ]
                } else {
                    &["wait/select", "wait/poll", "wait/epoll"]
                };
                let cases = ids
                    .iter()
                    .map(|id| super::unavailable(format!("{id}/{level}"), &why))
                    .collect();
                Ok(Group { cases, share })
            }));
        }
    }
    found
}
