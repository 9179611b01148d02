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
