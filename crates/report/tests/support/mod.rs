// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which invented reports do the tests of findings, HTML and comparison look at?
#![allow(dead_code)]

use debox_report::*;

pub const MS: u64 = 1_000_000;

/// A report with nothing in it but the facts of its run.
pub fn empty() -> Report {
    Report {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        debox_version: "0.1.0".into(),
        run: Run {
            kind: RunKind::Run,
            command: vec!["program".into()],
            pids: vec![812],
            capture: Capture::Boundary,
            wall_ns: 1_000 * MS,
            exit: Some(Exit::Code(0)),
            cpus: 2,
            ..Run::default()
        },
        measured: Measured {
            calls: true,
            blocked: true,
            runq: true,
            minor_faults: true,
            major_faults: true,
            switches: true,
            sites: true,
            irq: false,
        },
        ..Report::default()
    }
}

/// Numbers that look random and are the same every time.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Evenly in 0..n.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
    /// Evenly in 0..1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
    /// Normal with mean 0 and variance 1.
    pub fn normal(&mut self) -> f64 {
        let r = (2.0 * self.exponential()).sqrt();
        r * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// The histogram that DeBox would have made of these wall times.
pub fn histogram(walls: &[u64]) -> Vec<Bucket> {
    let mut counts = std::collections::BTreeMap::new();
    for wall in walls {
        *counts.entry(debox_abi::hist_bucket(*wall)).or_insert(0) += 1;
    }
    counts
        .into_iter()
        .map(|(bucket, count)| {
            let (from_ns, to) = debox_abi::hist_range(bucket);
            Bucket {
                from_ns,
                to_ns: (to != u64::MAX).then_some(to),
                count,
            }
        })
        .collect()
}

/// Fills a report step by step and sums it up at the end.
pub struct Build {
    pub report: Report,
}

impl Build {
    pub fn new() -> Self {
        Self { report: empty() }
    }

    /// `parts_ns`: on CPU, blocked, waiting for a CPU.
    pub fn call(&mut self, name: &str, count: u64, parts_ns: [u64; 3]) -> &mut CallRow {
        let wall_ns: u64 = parts_ns.iter().sum();
        let mean = wall_ns / count.max(1);
        let mut dice = Dice(name.len() as u64 + count);
        let walls: Vec<u64> = (0..count.min(2_000))
            .map(|_| 1 + (mean as f64 * dice.exponential()) as u64)
            .collect();
        let mut sorted = walls.clone();
        sorted.sort_unstable();
        let at = |q: usize| sorted.get(sorted.len() * q / 100).copied().unwrap_or(0);
        let mut histogram = histogram(&walls);
        let made = walls.len().max(1) as u64;
        for bucket in &mut histogram {
            bucket.count = bucket.count * count / made;
        }
        self.report.calls.push(CallRow {
            name: name.into(),
            nr: Some(self.report.calls.len() as u32),
            abi: 64,
            count,
            errors: 0,
            restarted: 0,
            unfinished: 0,
            untimed: 0,
            unstamped: 0,
            wall_ns: Some(wall_ns),
            mean_ns: Some(mean),
            p50_ns: Some(at(50)),
            p99_ns: Some(at(99)),
            max_ns: Some(sorted.last().copied().unwrap_or(0)),
            cpu_ns: Some(parts_ns[0]),
            blocked_ns: Some(parts_ns[1]),
            runq_ns: Some(parts_ns[2]),
            irq_ns: None,
            minor_faults: Some(0),
            major_faults: Some(0),
            nvcsw: Some(0),
            nivcsw: Some(0),
            missing: 0,
            ones: 0,
            histogram,
        });
        self.report.calls.last_mut().unwrap()
    }

    /// `call` "" is: outside of calls.
    pub fn blocked(
        &mut self,
        label: &str,
        call: &str,
        function: &str,
        count: u64,
        total_ns: u64,
    ) -> &mut BlockingRow {
        self.report.blocking.push(BlockingRow {
            label: label.into(),
            unlabelled: label == function,
            call: (!call.is_empty()).then(|| call.into()),
            abi: 64,
            function: Some(function.into()),
            offset: Some(0x1c),
            file: None,
            line: None,
            count,
            total_ns,
            mean_ns: total_ns / count.max(1),
            max_ns: total_ns / count.max(1) * 3,
            share: 0.0,
            waiters_mean: None,
            waiters_max: None,
            waiters_known: 0,
            durations: None,
            by_name: Vec::new(),
        });
        self.report.blocking.last_mut().unwrap()
    }

    pub fn culprit(
        &mut self,
        label: &str,
        call: &str,
        role: CulpritRole,
        who: (u32, &str, &str),
        count: u64,
        total_ns: u64,
    ) {
        self.report.culprits.push(CulpritRow {
            call: (!call.is_empty()).then(|| call.into()),
            abi: 64,
            label: label.into(),
            function: None,
            role,
            pid: who.0,
            tid: who.0,
            comm: who.1.into(),
            culprit_call: (!who.2.is_empty()).then(|| who.2.into()),
            stack: None,
            count,
            total_ns,
            max_ns: total_ns / count.max(1) * 2,
        });
    }

    /// Sums, shares and the order of rows.
    pub fn done(mut self) -> Report {
        let r = &mut self.report;
        let sum = |f: &dyn Fn(&CallRow) -> u64| r.calls.iter().map(f).sum::<u64>();
        r.totals = Totals {
            calls: sum(&|c| c.count),
            errors: sum(&|c| c.errors),
            wall_ns: sum(&|c| c.wall()),
            cpu_ns: Some(sum(&|c| c.cpu_ns.unwrap_or(0))),
            blocked_ns: Some(sum(&|c| c.blocked_ns.unwrap_or(0))),
            runq_ns: Some(sum(&|c| c.runq_ns.unwrap_or(0))),
            minor_faults: Some(sum(&|c| c.minor_faults.unwrap_or(0))),
            major_faults: Some(sum(&|c| c.major_faults.unwrap_or(0))),
            nvcsw: Some(sum(&|c| c.nvcsw.unwrap_or(0))),
            nivcsw: Some(sum(&|c| c.nivcsw.unwrap_or(0))),
            sleeps: r.blocking.iter().map(|b| b.count).sum(),
            sleeps_ns: r.blocking.iter().map(|b| b.total_ns).sum(),
            ..r.totals
        };
        let all = r.totals.sleeps_ns.max(1) as f64;
        for row in &mut r.blocking {
            row.share = row.total_ns as f64 / all;
        }
        r.blocking.sort_by_key(|b| std::cmp::Reverse(b.total_ns));
        r.culprits.sort_by_key(|c| std::cmp::Reverse(c.total_ns));
        r.sort_calls(SortKey::Total);
        self.report
    }
}

fn frame(function: &str, module: &str, file: &str, line: u32) -> Frame {
    Frame {
        function: (!function.is_empty()).then(|| function.into()),
        module: Some(module.into()),
        offset: 0x1000 + u64::from(line) * 16,
        file: (!file.is_empty()).then(|| file.into()),
        line: (line > 0).then_some(line),
        inlined: false,
    }
}

/// A web server with a cold cache, whose disk is also used by others: every
/// part of a report is in it. `call_sites` rows of call sites are made.
pub fn server(call_sites: usize) -> Report {
    let mut b = Build::new();
    b.report.run.command = ["webserver", "-c", "/etc/web server.conf"]
        .map(String::from)
        .to_vec();
    b.report.run.wall_ns = 30_000 * MS;
    b.report.totals.processes_started = 3;
    b.report.totals.threads_started = 5;
    b.report.totals.threads_ended = 6;
    let openat = b.call("openat", 48_210, [310 * MS, 9_120 * MS, 44 * MS]);
    openat.errors = 312;
    openat.major_faults = Some(2);
    let read = b.call("read", 120_400, [420 * MS, 1_900 * MS, 61 * MS]);
    read.errors = 4_100;
    read.major_faults = Some(1_204);
    b.call("fsync", 512, [9 * MS, 1_075 * MS, 3 * MS]);
    b.call("epoll_wait", 96_022, [180 * MS, 62_000 * MS, 310 * MS]);
    b.call("sendfile", 40_110, [2_310 * MS, 640 * MS, 90 * MS]);
    b.call("futex", 3_018, [12 * MS, 480 * MS, 14 * MS]);
    b.call("clone", 402, [1_500 * MS, 0, 20 * MS]);
    b.call("mmap", 4_014, [96 * MS, 12 * MS, 2 * MS]);
    for (i, name) in [
        "close",
        "fstat",
        "getdents64",
        "accept4",
        "setsockopt",
        "write",
        "munmap",
        "brk",
        "getpid",
        "clock_gettime",
        "lseek",
        "fcntl",
    ]
    .iter()
    .enumerate()
    {
        b.call(
            name,
            20_000 / (i as u64 + 1),
            [40 * MS / (i as u64 + 1), 0, MS],
        );
    }
    let row = b.blocked(
        "inode-lock",
        "openat",
        "open_last_lookups",
        2_812,
        6_210 * MS,
    );
    row.file = Some("fs/namei.c".into());
    row.line = Some(3_517);
    row.waiters_mean = Some(2.4);
    row.waiters_max = Some(5);
    row.waiters_known = row.count;
    b.blocked("buffer-io", "openat", "__ext4_find_entry", 940, 2_900 * MS);
    b.blocked("page-in", "read", "filemap_read", 1_204, 1_820 * MS);
    b.blocked("page-in", "sendfile", "filemap_get_pages", 402, 610 * MS);
    b.blocked("page-in", "", "filemap_fault", 88, 212 * MS);
    b.blocked(
        "journal-commit",
        "fsync",
        "jbd2_log_wait_commit",
        512,
        1_020 * MS,
    );
    b.blocked("device-flush", "fsync", "blkdev_issue_flush", 31, 55 * MS);
    b.blocked("futex", "futex", "futex_wait_queue", 1_902, 480 * MS);
    b.blocked("epoll", "epoll_wait", "ep_poll", 61_020, 62_000 * MS);
    b.blocked("mmap-lock", "mmap", "vm_mmap_pgoff", 40, 12 * MS);
    b.blocked(
        "drm_wait_one_vblank",
        "read",
        "drm_wait_one_vblank",
        2,
        9 * MS,
    );
    b.culprit(
        "inode-lock",
        "openat",
        CulpritRole::Holder,
        (4_812, "find", "getdents64"),
        2_600,
        5_890 * MS,
    );
    b.culprit(
        "inode-lock",
        "openat",
        CulpritRole::Waker,
        (4_812, "find", "getdents64"),
        2_590,
        5_800 * MS,
    );
    b.culprit(
        "page-in",
        "read",
        CulpritRole::Waker,
        (0, "", ""),
        1_190,
        1_800 * MS,
    );
    b.culprit(
        "futex",
        "futex",
        CulpritRole::Waker,
        (813, "webserver", "futex"),
        1_800,
        460 * MS,
    );
    let mut r = b.done();
    r.sites = vec![
        Site {
            label: "inode-lock".into(),
            unlabelled: false,
            function: Some("open_last_lookups".into()),
            offset: Some(0x1c),
            file: Some("fs/namei.c".into()),
            line: Some(3_517),
            frames: [
                "do_syscall_64",
                "do_sys_openat2",
                "path_openat",
                "open_last_lookups",
            ]
            .map(String::from)
            .to_vec(),
        },
        Site {
            label: "page-in".into(),
            unlabelled: false,
            function: Some("filemap_read".into()),
            offset: Some(0x40),
            file: None,
            line: None,
            frames: [
                "do_syscall_64",
                "ksys_read",
                "vfs_read",
                "filemap_read",
                "folio_wait_bit_common",
            ]
            .map(String::from)
            .to_vec(),
        },
        Site {
            label: "journal-commit".into(),
            unlabelled: false,
            function: Some("jbd2_log_wait_commit".into()),
            offset: Some(0x90),
            file: None,
            line: None,
            frames: [
                "do_syscall_64",
                "do_fsync",
                "ext4_sync_file",
                "jbd2_log_wait_commit",
            ]
            .map(String::from)
            .to_vec(),
        },
        Site {
            label: "epoll".into(),
            unlabelled: false,
            function: Some("ep_poll".into()),
            offset: Some(0x33),
            file: None,
            line: None,
            frames: ["do_syscall_64", "do_epoll_wait", "ep_poll"]
                .map(String::from)
                .to_vec(),
        },
    ];
    let main = frame("main", "webserver", "src/main.c", 90);
    let serve = frame("serve_request", "webserver", "src/serve.c", 218);
    let stack = |inner: &[Frame]| UserStack {
        frames: inner
            .iter()
            .cloned()
            .chain([serve.clone(), main.clone()])
            .collect(),
        site_frame: 0,
        cut: false,
    };
    r.stacks = vec![
        stack(&[frame("cache_open", "webserver", "src/cache.c", 77)]),
        stack(&[frame("read_body", "webserver", "src/body.c", 31)]),
        stack(&[
            frame("log_flush", "webserver", "src/log.c", 12),
            frame("log_rotate", "webserver", "src/log.c", 140),
        ]),
        UserStack {
            frames: vec![frame("", "libevent.so.7", "", 0), main.clone()],
            site_frame: 0,
            cut: true,
        },
    ];
    let path = |call: &str, stack: usize, site: Option<usize>, count, total_ns| PathRow {
        call: Some(call.into()),
        abi: 64,
        stack: Some(stack),
        site,
        count,
        total_ns,
        max_ns: total_ns / count * 3,
    };
    r.paths = vec![
        path("epoll_wait", 3, Some(3), 61_020, 62_000 * MS),
        path("openat", 0, Some(0), 2_812, 6_210 * MS),
        path("openat", 0, None, 940, 2_900 * MS),
        path("read", 1, Some(1), 1_204, 1_820 * MS),
        path("fsync", 2, Some(2), 512, 1_020 * MS),
        PathRow {
            call: None,
            abi: 64,
            stack: None,
            site: Some(1),
            count: 88,
            total_ns: 212 * MS,
            max_ns: 9 * MS,
        },
    ];
    let mut dice = Dice(7);
    let names = [
        "openat",
        "read",
        "fsync",
        "sendfile",
        "futex",
        "close",
        "write",
        "epoll_wait",
    ];
    for i in 0..call_sites {
        let call = names[i % names.len()];
        let count = 1 + dice.below(4_000);
        let wall_ns = count * (500 + dice.below(400_000));
        r.call_sites.push(CallSiteRow {
            call: call.into(),
            place: match i {
                0 => "cache_open (cache.c:77)".into(),
                1 => "read_body (body.c:31)".into(),
                _ => format!("handler_{i:03} (h{}.c:{})", i % 40, 10 + i),
            },
            stack: (i < 4).then_some(i),
            count,
            errors: if i % 17 == 0 { count / 10 } else { 0 },
            wall_ns: Some(wall_ns),
            mean_ns: Some(wall_ns / count),
            max_ns: Some(wall_ns / count * 4),
            cpu_ns: Some(wall_ns / 3),
            blocked_ns: Some(wall_ns / 2),
            runq_ns: Some(wall_ns - wall_ns / 3 - wall_ns / 2),
            irq_ns: None,
        });
    }
    r.call_sites.sort_by_key(|c| std::cmp::Reverse(c.wall_ns));
    for (call, from, to, calls, points) in [
        ("clone", 300_000u64, 12_000_000u64, 402u64, 160u64),
        ("fsync", 2_100_000, 2_100_000, 512, 120),
        ("openat", 40_000, 300_000, 48_210, 400),
        ("epoll_wait", 640_000, 640_000, 96_022, 400),
    ] {
        let mut list = Vec::new();
        let per = calls / points;
        for i in 0..points {
            // One that stands out from all others.
            let hiccup = if call == "fsync" && i == 60 { 200 } else { 1 };
            let mean = (from + (to - from) * i / points) * hiccup;
            let noise = 0.8 + 0.4 * dice.unit();
            let wall_ns = (mean as f64 * noise) as u64 * per;
            list.push(HistoryPoint {
                time_ns: r.run.wall_ns * (i + 1) / points,
                first: i * per,
                count: per,
                wall_ns,
                blocked_ns: if call == "clone" { 0 } else { wall_ns * 8 / 10 },
                runq_ns: wall_ns / 50,
                irq_ns: 0,
                p50_ns: wall_ns / per * 7 / 10,
                p99_ns: wall_ns / per * 3,
                max_ns: wall_ns / per * 5,
            });
        }
        r.history.push(CallHistory {
            call: call.into(),
            abi: 64,
            points: list,
        });
    }
    for i in 0..60u64 {
        r.gauges.push(Gauge {
            time_ns: r.run.wall_ns * (i + 1) / 60,
            processes: 4,
            threads: 5 + i / 30,
            descriptors: Some(40 + i * 30),
            mappings: Some(120 + i * 55),
            resident_bytes: Some((20 << 20) + i * (4 << 20)),
        });
    }
    r.trends.push(Trend {
        part: TrendPart::Whole,
        per_call_ns: 0.0,
        call: "clone".into(),
        abi: 64,
        calls: 402,
        from_ns: 300_000,
        to_ns: 12_000_000,
        p_value: 1e-12,
        grows_with: vec!["open descriptors".into(), "mappings".into()],
        text: "clone: 300 µs → 12.0 ms over 402 calls; grows with open descriptors, mappings"
            .into(),
    });
    for i in 0..120u64 {
        let (call, site, stack, path) = match i % 4 {
            0 | 1 => ("openat", 0, 0, Some("/srv/www/images/a b.png")),
            2 => ("read", 1, 1, Some("/srv/www/video.mp4")),
            _ => ("fsync", 2, 2, Some("/var/log/web.log")),
        };
        let start_ns = i * 240 * MS + dice.below(100 * MS);
        let blocked = 4 * MS + dice.below(40 * MS);
        let pid = 812;
        let tid = 812 + (i % 5) as u32;
        let first = blocked * 7 / 10;
        let sleep = |start_ns, blocked_ns, site| Sleep {
            start_ns,
            blocked_ns,
            runq_ns: 30_000,
            site: Some(site),
            waiters_entry: Some(2),
            waiters_exit: None,
            holder_exit: None,
            holder: (site == 0).then(|| Party {
                tid: 4_812,
                comm: "find".into(),
                call: Some("getdents64".into()),
                reader: false,
                stack: None,
            }),
            waker: Some(Party {
                tid: if site == 0 { 4_812 } else { 0 },
                comm: if site == 0 {
                    "find".into()
                } else {
                    String::new()
                },
                call: None,
                reader: false,
                stack: None,
            }),
            chain: None,
            chain_permille: None,
        };
        r.slow_calls.push(SlowCall {
            one_sleep: false,
            start_ns,
            pid,
            tid,
            comm: "webserver".into(),
            call: call.into(),
            abi: 64,
            retval: if i % 30 == 0 { -2 } else { 7 },
            error: (i % 30 == 0).then(|| "ENOENT".into()),
            args: [0xffff_ff9c, 0x7ffd_1234, 0, 0, 0, 0],
            arguments: vec![],
            path: path.map(String::from),
            object: None,
            wall_ns: blocked + 200_000,
            cpu_ns: 140_000,
            blocked_ns: blocked,
            runq_ns: 60_000,
            irq_ns: None,
            minor_faults: 1,
            major_faults: u32::from(call == "read"),
            stack: Some(stack),
            conditions: if i == 5 {
                vec!["call == openat && blocked > 1ms".into()]
            } else {
                vec![]
            },
            sleeps: vec![
                sleep(start_ns + 60_000, first, site),
                sleep(start_ns + 90_000 + first, blocked - first, site),
            ],
            sleeps_dropped: 0,
            sleeps_dropped_ns: 0,
        });
    }
    r.slow_calls.sort_by_key(|s| std::cmp::Reverse(s.wall_ns));
    for i in 0..5u32 {
        r.threads.push(ThreadRow {
            pid: 812,
            tid: 812 + i,
            comm: if i == 0 {
                "webserver".into()
            } else {
                format!("worker/{i}")
            },
            count: 70_000,
            errors: 900,
            wall_ns: 15_000 * MS,
            cpu_ns: 900 * MS,
            blocked_ns: 14_000 * MS,
            runq_ns: 100 * MS,
            irq_ns: None,
            irq_outside_ns: None,
            minor_faults: 300,
            major_faults: 240,
            first_ns: u64::from(i) * 3 * MS,
            ended_ns: (i > 2).then_some(29_000 * MS),
        });
    }
    r.notes.push(Note {
        kind: NoteKind::SitesUnknown,
        count: 3,
        time_ns: Some(MS),
        text: "3 sleeps (1.00 ms): their place could not be taken.".into(),
    });
    r.recording = Some(RecordingState {
        complete: false,
        until_ns: 29_900 * MS,
        why: Some(
            "the file ends in the middle of a block: the disk was full or the recorder was killed"
                .into(),
        ),
    });
    r
}

/// The server again, with every text that a process can choose made hostile.
pub fn hostile() -> Report {
    let evil = "</script><script>alert(1)</script><!-- '\"&lt;\u{202e}\u{2028}";
    let mut r = server(20);
    r.run.command = vec![evil.into(), "-x".into()];
    for t in &mut r.threads {
        t.comm = evil.into();
    }
    for s in &mut r.slow_calls {
        s.comm = evil.into();
        s.path = Some(format!("/tmp/{evil}"));
        s.conditions = vec![evil.into()];
        for sleep in &mut s.sleeps {
            if let Some(holder) = &mut sleep.holder {
                holder.comm = evil.into();
            }
        }
    }
    for c in &mut r.culprits {
        c.comm = evil.into();
    }
    for c in &mut r.call_sites {
        c.place = format!("{evil} ({evil}.c:1)");
    }
    for s in &mut r.stacks {
        for f in &mut s.frames {
            f.function = Some(evil.into());
            f.module = Some(evil.into());
            f.file = Some(evil.into());
        }
    }
    for n in &mut r.notes {
        n.text = evil.into();
    }
    for f in &mut r.blocking {
        f.function = Some(evil.into());
        f.label = format!("{}{evil}", f.label);
    }
    for s in &mut r.sites {
        s.label = evil.into();
        s.frames = vec![evil.into()];
    }
    r.findings = vec![Finding {
        title: evil.into(),
        text: evil.into(),
        evidence: vec![evil.into()],
        share: 0.5,
    }];
    r
}
