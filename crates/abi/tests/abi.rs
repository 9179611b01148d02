// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do the helpers of the ABI crate keep their promises?

use debox_abi::*;

#[test]
fn every_bucket_meets_the_next_and_is_narrow() {
    for bucket in 0..DEBOX_HIST_BUCKETS - 1 {
        let (low, high) = hist_range(bucket);
        assert_eq!(hist_range(bucket + 1).0, high, "bucket {bucket}");
        assert_eq!(hist_bucket(low), bucket);
        assert_eq!(hist_bucket(high - 1), bucket);
        assert_eq!(hist_bucket(high), bucket + 1);
        if bucket > 0 {
            assert!(
                (high - low) * 8 <= low,
                "wider than 12.5 %: bucket {bucket}"
            );
        }
    }
    assert_eq!(hist_bucket(0), 0);
    assert_eq!(hist_bucket(u64::MAX), DEBOX_HIST_BUCKETS - 1);
}

#[test]
fn sleeps_are_in_the_buckets_of_a_native_histogram() {
    for bound in 0..DEBOX_SLEEP_BUCKETS - 1 {
        let ns = sleep_bound(bound);
        // The bound is 2^exponent seconds, rounded down to whole nanoseconds.
        let exponent = bound as f64 / 2.0 - f64::from(DEBOX_SLEEP_MIN_EXP);
        let exact = exponent.exp2() * 1e9;
        assert!(
            ns as f64 <= exact && exact < (ns + 1) as f64,
            "bound {bound}: {ns} of {exact}"
        );
        assert_eq!((sleep_bucket(ns), sleep_bucket(ns + 1)), (bound, bound + 1));
        assert_eq!(sleep_range(bound).1, ns + 1);
        assert_eq!(sleep_range(bound + 1).0, ns + 1);
    }
    assert_eq!(sleep_bucket(0), 0);
    assert_eq!(sleep_bucket(u64::MAX), DEBOX_SLEEP_BUCKETS - 1);
    assert_eq!(sleep_range(DEBOX_SLEEP_BUCKETS - 1).1, u64::MAX);
}

#[test]
fn the_longest_is_told_whole_or_not_at_all() {
    let mut row = debox_site_row {
        longest_ns: 9,
        longest_end_ns: 5,
        longest_told: 3,
        longest_begun: 3,
        ..Default::default()
    };
    assert_eq!(row.longest(), None, "nobody's");
    text_put(&mut row.longest_comm, "dd");
    assert_eq!(row.longest(), Some((9, 5, "dd")));
    row.longest_begun = 4;
    assert_eq!(row.longest(), None, "being written");
}

#[test]
fn text_is_cut_at_a_character_and_foreign_bytes_are_left_out() {
    let mut field = [0xffu8; 8];
    text_put(&mut field, "abcdefü");
    assert_eq!(text_get(&field), "abcdef");
    text_put(&mut field, "ab");
    assert_eq!(field, *b"ab\0\0\0\0\0\0");
    assert_eq!(text_get(b"ok\xffno"), "ok");
    assert_eq!(text_get(b"full"), "full");
}

#[test]
fn bytes_make_the_round_trip() {
    let request = debox_request::watch(42, DEBOX_REQ_NOFOLLOW);
    let back = debox_request::read_from(request.as_bytes()).unwrap();
    assert_eq!(back.pid, 42);
    assert_eq!(back.kind, DEBOX_MSG_WATCH);
    assert_eq!(back.size as usize, size_of::<debox_request>());
    assert!(debox_request::read_from(&request.as_bytes()[1..]).is_none());
}

#[test]
fn a_site_is_seen_only_when_published() {
    let mut entry = debox_site::default();
    // As a mapping is reached: an atomic is read through it.
    let entry = &raw mut entry;
    let site = debox_site::new("pipe-read", "pipe_read", "fs/pipe.c", 12, 0x10);
    // SAFETY: a local that nobody else touches.
    unsafe {
        assert!(debox_site::load(entry).is_none());
        debox_site::publish(entry, &site);
        let seen = debox_site::load(entry).unwrap();
        assert_eq!(
            (seen.label(), seen.function(), seen.file()),
            ("pipe-read", "pipe_read", "fs/pipe.c")
        );
    }
}

#[test]
fn site_keys_take_apart() {
    let row = debox_site_row {
        key: debox_site_row::key_of(DEBOX_NR_COMPAT + 4, DEBOX_SITE_NONE),
        ..Default::default()
    };
    assert_eq!(row.key_parts(), Some((516, DEBOX_SITE_NONE)));
    assert_eq!(debox_site_row::default().key_parts(), None);
}
