// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does the binding give what libdebox gives, with nobody there to measure?

use debox::{Options, RecordError, SiteError, Span, Status};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// One state per process: one test at a time.
static ONE: Mutex<()> = Mutex::new(());

fn open() -> debox::Session {
    Options::new()
        .socket_path("/nonexistent/debox.sock")
        .open()
        .unwrap()
}

#[test]
fn closed() {
    let _one = ONE.lock();
    open().close();
    assert_eq!(debox::last().unwrap_err(), RecordError::Closed);
    assert_eq!(debox::trace_set(9), Err(RecordError::Closed));
    assert_eq!(debox::trace_last().unwrap_err(), RecordError::Closed);
    assert_eq!(Span::begin().err(), Some(RecordError::Closed));
    let (value, record) = debox::call(|| 7u32);
    assert_eq!(value, 7);
    assert_eq!(record.wall(), None);
    assert_eq!(record.retval(), None);
}

#[test]
fn wall_times_without_a_broker() {
    let _one = ONE.lock();
    let session = open();
    assert_eq!(session.status(), Status::WallOnly);
    assert!(
        session.why().contains("/nonexistent/debox.sock"),
        "{}",
        session.why()
    );
    assert_eq!(session.features(), 0);
    let before = Instant::now();
    let ((), record) = debox::call_nr(libc::SYS_clock_nanosleep as i32, || {
        std::thread::sleep(Duration::from_millis(3));
    });
    let most = before.elapsed();
    let wall = record.wall().unwrap();
    assert!(
        wall >= Duration::from_millis(3) && wall <= most,
        "{wall:?} of {most:?}"
    );
    assert_eq!(record.name(), Some("clock_nanosleep"));
    assert_eq!(
        (record.cpu(), record.blocked(), record.minor_faults()),
        (None, None, None)
    );
    assert!(record.sleeps().is_none());
    assert_eq!(debox::Site::read(0), Err(SiteError::NoBroker));
    assert!(
        record.to_string().contains("blocked not measured"),
        "{record}"
    );
}

#[test]
fn without_a_broker_nothing_is_traced_stale_or_clobbered() {
    let _one = ONE.lock();
    let _session = open();
    assert!(debox::trace_set(9).is_err());
    debox::trace_set(0).unwrap();
    let ((), record) = debox::call_nr(1, || ());
    assert!(!record.is_stale() && !record.is_clobbered());
    assert!(debox::trace_last().is_err());
}

#[test]
fn results() {
    let _one = ONE.lock();
    let _session = open();
    // SAFETY: a null read from no descriptor.
    let (value, record) = debox::call(|| unsafe { libc::read(-1, std::ptr::null_mut(), 0) });
    assert_eq!(
        (value, record.retval()),
        (-1, Some(-i64::from(libc::EBADF)))
    );
    let (value, record) = debox::call(|| std::fs::read("/nonexistent").map(|v| v.len()));
    assert!(value.is_err());
    assert_eq!(record.retval(), Some(-i64::from(libc::ENOENT)));
    // SAFETY: no arguments.
    let (pid, record) = debox::call(|| unsafe { libc::getpid() });
    assert_eq!(record.retval(), Some(i64::from(pid)));
    assert_eq!(record.pid(), pid as u32);
}

#[test]
fn nested_and_panicking() {
    let _one = ONE.lock();
    let _session = open();
    let ((inner, in_record), out_record) =
        debox::call_raw(1, || debox::call_nr(2, || 20i32), |v| i64::from(v.0));
    assert_eq!(
        (inner, in_record.nr(), out_record.nr()),
        (20, Some(2), Some(1))
    );
    assert!(out_record.seq() < in_record.seq());
    let result = std::panic::catch_unwind(|| {
        let (_, _): ((), _) = debox::call_nr(3, || panic!("in the closure"));
    });
    assert!(result.is_err());
    let last = debox::last().unwrap();
    assert_eq!((last.nr(), last.retval()), (Some(3), Some(-4)));
    assert!(!last.is_unfinished());
}

#[test]
fn history_and_span() {
    let _one = ONE.lock();
    let _session = open();
    let span = Span::begin().unwrap();
    debox::history(1).unwrap();
    for n in 0..10 {
        debox::call_nr(n, || ());
    }
    let history = debox::history(4).unwrap();
    assert_eq!(
        history.records.iter().map(|r| r.nr()).collect::<Vec<_>>(),
        [Some(6), Some(7), Some(8), Some(9)]
    );
    assert_eq!(history.lost, 6);
    let account = span.end().unwrap();
    assert!(account.is_span());
    assert_eq!(account.calls(), 10);
    assert!(account.wall().is_some() && account.blocked().is_none());
}
