// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does what waits arrive, once, whatever whoever takes it does, and is the rest counted?

use super::Otlp;
use super::answer::{Any, Delay, RetryInfo, RpcStatus};
use super::collector::{Collector, Does, nobody, until};
use super::config::{Headers, OtlpConfig, Protocol, Signal};
use super::logs;
use super::message;
use super::queue::{Batch, Figures};
use super::send::Sender;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::series::Value;
use axum::http::HeaderMap;
use debox_fleet::Period;
use debox_report::Report;
use prost::Message;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
const BOTH: [Protocol; 2] = [Protocol::Http, Protocol::Grpc];

fn config(protocol: Protocol, address: SocketAddr) -> OtlpConfig {
    OtlpConfig {
        endpoint: format!("http://{address}"),
        protocol,
        headers: Headers::default(),
        every: SECOND,
        timeout: SECOND,
        queue_bytes: 1 << 20,
        ca_file: None,
        signals: Signal::ALL.to_vec(),
        attributes: BTreeMap::new(),
    }
}

fn collector(protocol: Protocol, address: Option<SocketAddr>) -> Collector {
    match protocol {
        Protocol::Http => Collector::http(address),
        Protocol::Grpc => Collector::grpc(address),
    }
}

/// A log record that is told from the others.
fn log(number: u64) -> Vec<Batch> {
    let period = Period {
        end_ns: number,
        ..Period::default()
    };
    let record = logs::period(&Report::default(), &period, None, 0);
    message::logs(&message::resource(&BTreeMap::new()), vec![record])
}

/// Which arrived, in their order.
fn arrived(collector: &Collector) -> Vec<u64> {
    let seen = collector.seen();
    let taken = seen.iter().filter(|is| is.taken);
    let records = taken.flat_map(|is| is.logs());
    records.map(|record| record.time_unix_nano).collect()
}

fn figures(sender: &Sender, sent: u64) -> Figures {
    until("so many are sent", || {
        let figures = sender.figures();
        (figures.sent[Signal::Logs as usize] >= sent).then_some(figures)
    })
}

/// What was dropped as nothing is to be sent any more is told all the same.
#[test]
fn what_is_dropped_last_is_shown() {
    let config = config(Protocol::Http, nobody());
    let mut metrics = Metrics::new(&Config::parse("").unwrap().metrics);
    let mut otlp = Otlp::new(Some(&config));
    otlp.send(&metrics);
    otlp.read(&mut metrics);
    otlp.take(None);
    until("the drops", || {
        otlp.read(&mut metrics);
        let families = metrics.families();
        let dropped = families.iter().find(|it| it.name == "debox_otlp_dropped");
        let labels = [
            ("signal", "metrics".to_owned()),
            ("reason", "ended".to_owned()),
        ];
        let mut samples = dropped.unwrap().samples.iter();
        let ended = samples.find(|sample| sample.labels == labels)?;
        matches!(ended.value, Value::Count(1..)).then_some(())
    });
}

const NONE: [[u64; 4]; 2] = [[0; 4]; 2];

/// Of logs.
fn dropped(queue_full: u64, refused: u64, rejected: u64, ended: u64) -> [[u64; 4]; 2] {
    [[0; 4], [queue_full, refused, rejected, ended]]
}

#[test]
fn requests_are_as_the_protocol_has_them() {
    for protocol in BOTH {
        let server = collector(protocol, None);
        let mut config = config(protocol, server.address);
        let mut headers = HeaderMap::new();
        headers.insert("x-scope-orgid", "sesame".parse().unwrap());
        config.headers = Headers(headers);
        if protocol == Protocol::Http {
            config.endpoint += "/otlp";
        }
        let sender = Sender::start(&config).unwrap();
        sender.push(log(1));
        sender.push(vec![Batch {
            signal: Signal::Metrics,
            ..log(2).remove(0)
        }]);
        figures(&sender, 1);
        until("metrics too", || {
            (sender.figures().sent[0] == 1).then_some(())
        });
        let seen = server.seen();
        let (logs, metrics, kind) = match protocol {
            Protocol::Http => (
                "/otlp/v1/logs",
                "/otlp/v1/metrics",
                "application/x-protobuf",
            ),
            Protocol::Grpc => (
                "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
                "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
                "application/grpc",
            ),
        };
        let mut paths: Vec<&str> = seen.iter().map(|is| is.path.as_str()).collect();
        paths.sort_unstable();
        let mut due = [logs, metrics];
        due.sort_unstable();
        assert_eq!(paths, due);
        for request in &seen {
            assert_eq!(request.headers["content-type"], kind);
            assert_eq!(request.headers["x-scope-orgid"], "sesame");
            assert!(
                request.headers["user-agent"].starts_with("debox-agent/"),
                "{request:?}"
            );
        }
        // All of it over one connection, which is not held open.
        assert!(server.connections() <= 2, "{}", server.connections());
        assert_eq!(arrived(&server), [1]);
        assert!(sender.news().is_empty());
    }
}

#[test]
fn who_is_busy_is_asked_again_when_he_wants() {
    let retry = RpcStatus {
        message: String::new(),
        details: vec![Any {
            type_url: "type.googleapis.com/google.rpc.RetryInfo".into(),
            value: RetryInfo {
                delay: Some(Delay {
                    seconds: 3,
                    nanos: 0,
                }),
            }
            .encode_to_vec(),
        }],
    };
    for (protocol, busy, full) in [
        (
            Protocol::Http,
            Does::Says(503, String::new()),
            Does::Says(429, "Retry-After: 3\r\n".into()),
        ),
        (
            Protocol::Grpc,
            Does::Says(14, "not now".into()),
            Does::Details(8, retry.encode_to_vec()),
        ),
    ] {
        let server = collector(protocol, None);
        server.does([busy, full]);
        let sender = Sender::start(&config(protocol, server.address)).unwrap();
        sender.push(log(1));
        sender.push(log(2));
        let figures = figures(&sender, 2);
        assert_eq!((figures.sent, figures.dropped), ([0, 2], NONE));
        assert_eq!(arrived(&server), [1, 2]);
        let at: Vec<Instant> = server.seen().iter().map(|is| is.at).collect();
        assert!(at[1] - at[0] >= SECOND / 2, "{:?}", at[1] - at[0]);
        assert!(at[2] - at[1] >= 3 * SECOND, "{:?}", at[2] - at[1]);
    }
}

#[test]
fn what_nobody_took_waits_until_somebody_is_there() {
    for protocol in BOTH {
        let address = nobody();
        let sender = Sender::start(&config(protocol, address)).unwrap();
        for number in 0..20 {
            sender.push(log(number));
        }
        let said = until("it says so", || sender.news().pop());
        assert!(
            said.contains("tried again")
                && said.contains("logs")
                && said.contains("onnection refused"),
            "{said}"
        );
        std::thread::sleep(2 * SECOND);
        assert!(sender.news().is_empty(), "once");
        let waiting = sender.waiting(Signal::Logs);
        assert!((2 * SECOND..60 * SECOND).contains(&waiting), "{waiting:?}");
        // Of these there are none.
        assert_eq!(sender.waiting(Signal::Metrics), Duration::ZERO);
        let server = collector(protocol, Some(address));
        let figures = figures(&sender, 20);
        assert_eq!(sender.waiting(Signal::Logs), Duration::ZERO);
        assert_eq!((figures.sent, figures.dropped), ([0, 20], NONE));
        assert_eq!(arrived(&server), (0..20).collect::<Vec<u64>>());
        assert_eq!(sender.news().len(), 1, "that it goes on");
    }
}

#[test]
fn what_has_no_room_goes_oldest_first() {
    let address = nobody();
    let mut config = config(Protocol::Http, address);
    let one = log(0)[0].bytes.len();
    config.queue_bytes = 10 * one + one / 2;
    let sender = Sender::start(&config).unwrap();
    for number in 1..=50 {
        sender.push(log(number));
    }
    let said = until("it says so", || {
        sender.news().into_iter().find(|is| is.contains("queue_mb"))
    });
    assert!(said.contains("logs are dropped"), "{said}");
    let server = collector(Protocol::Http, Some(address));
    let figures = figures(&sender, 10);
    let full = figures.dropped[1][0];
    // One may have been under way as the others came.
    assert!((39..=40).contains(&full), "{figures:?}");
    assert_eq!(figures.sent[1] + full, 50);
    let arrived = arrived(&server);
    assert_eq!(
        arrived[arrived.len() - 9..],
        (42..=50).collect::<Vec<u64>>()
    );
}

#[test]
fn who_hands_over_waits_for_nothing_and_another_place_gets_it_all() {
    for protocol in BOTH {
        let hangs = collector(protocol, None);
        hangs.does((0..100).map(|_| Does::Hang));
        let mut config = config(protocol, hangs.address);
        config.timeout = 2 * SECOND;
        let sender = Sender::start(&config).unwrap();
        sender.push(log(1));
        until("it is asked", || (!hangs.seen().is_empty()).then_some(()));
        let begin = Instant::now();
        for number in 2..=100 {
            sender.push(log(number));
            sender.figures();
            sender.news();
        }
        assert!(begin.elapsed() < SECOND, "{:?}", begin.elapsed());
        until("it says so", || {
            (sender.news().into_iter()).find(|is| is.contains("no answer in 2 s"))
        });
        let takes = collector(protocol, None);
        config.endpoint = takes.endpoint();
        sender.take(&config);
        let figures = figures(&sender, 100);
        assert_eq!((figures.sent, figures.dropped), ([0, 100], NONE));
        assert_eq!(arrived(&takes), (1..=100).collect::<Vec<u64>>());
    }
}

#[test]
fn what_is_refused_or_left_out_is_counted_and_not_sent_again() {
    for (protocol, refuses) in [
        (Protocol::Http, Does::Says(400, String::new())),
        (Protocol::Grpc, Does::Says(3, "said.".into())),
    ] {
        let server = collector(protocol, None);
        server.does([refuses, Does::Partly(1, "too\x1b old"), Does::Take]);
        let sender = Sender::start(&config(protocol, server.address)).unwrap();
        let step = |number: u64, what: &str| {
            sender.push(log(number));
            until(what, || {
                (server.seen().len() as u64 == number).then_some(())
            });
            until(what, || {
                let told = sender.news();
                told.into_iter().next()
            })
        };
        let said = step(1, "refused");
        assert!(said.contains("refused") && said.contains("said."), "{said}");
        let said = step(2, "left out");
        assert!(
            said.contains("left out 1 items of logs: too\\u{1b} old"),
            "{said}"
        );
        let said = step(3, "taken");
        assert!(said.contains("are taken by"), "{said}");
        let figures = figures(&sender, 1);
        assert_eq!(
            (figures.sent, figures.dropped),
            ([0, 1], dropped(0, 1, 1, 0))
        );
        std::thread::sleep(2 * SECOND);
        assert_eq!(server.seen().len(), 3);
    }
}

#[test]
fn a_signal_that_is_not_taken_does_not_hold_the_other_up() {
    let server = collector(Protocol::Http, None);
    server.does([Does::Says(503, "Retry-After: 100\r\n".into())]);
    let sender = Sender::start(&config(Protocol::Http, server.address)).unwrap();
    sender.push(log(1));
    until("it is asked", || (!server.seen().is_empty()).then_some(()));
    sender.push(vec![Batch {
        signal: Signal::Metrics,
        ..log(2).remove(0)
    }]);
    until("metrics are sent", || {
        (sender.figures().sent == [1, 0]).then_some(())
    });
}

/// None of them gets more than a little of the agent's time and memory, nor what was for another one.
#[test]
fn a_server_that_means_harm_gets_nothing_by_it() {
    let elsewhere = Collector::http(None);
    for protocol in BOTH {
        let server = collector(protocol, None);
        let redirect = format!("Location: {}\r\n", elsewhere.endpoint());
        let mut harm = vec![
            Does::Slow,
            Does::Flood,
            Does::FloodHeaders,
            Does::Close,
            Does::Garbage,
        ];
        if protocol == Protocol::Http {
            for status in [301, 302, 303, 307, 308] {
                harm.push(Does::Says(status, redirect.clone()));
            }
            harm.push(Does::Says(
                503,
                "Retry-After: 99999999999999999999\r\n".into(),
            ));
        }
        for does in harm {
            server.does([does.clone()]);
            let sender = Sender::start(&config(protocol, server.address)).unwrap();
            let before = server.flooded();
            let begin = Instant::now();
            sender.push(log(1));
            // Another one is sent after it, in whatever way it ended.
            until("it is over", || {
                sender.push(log(2));
                (sender.figures().sent[1] > 0).then_some(())
            });
            let took = begin.elapsed();
            assert!(took < 20 * SECOND, "{does:?}: {took:?}");
            // What is on the way in sockets was not taken by the agent.
            let taken = server.flooded() - before;
            assert!(taken < 32 << 20, "{does:?}: {taken}");
        }
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[test]
fn the_end_is_not_waited_for_longer_than_it_has() {
    for protocol in BOTH {
        let server = collector(protocol, None);
        let sender = Sender::start(&config(protocol, server.address)).unwrap();
        for number in 0..50 {
            sender.push(log(number));
        }
        sender.end(20 * SECOND);
        assert_eq!(sender.wait(), (0, None));
        assert_eq!(arrived(&server), (0..50).collect::<Vec<u64>>());
        // One that hangs, with a request that would go on for longer.
        let hangs = collector(protocol, None);
        hangs.does((0..100).map(|_| Does::Hang));
        let mut config = config(protocol, hangs.address);
        config.timeout = 60 * SECOND;
        let sender = Sender::start(&config).unwrap();
        sender.push(log(1));
        until("it is asked", || (!hangs.seen().is_empty()).then_some(()));
        sender.push(log(2));
        let begin = Instant::now();
        sender.end(SECOND);
        let (left, _) = sender.wait();
        assert!(begin.elapsed() < 10 * SECOND, "{:?}", begin.elapsed());
        assert_eq!(left, 2);
        assert_eq!(sender.figures().dropped, dropped(0, 0, 0, 1));
        // Nobody there.
        let sender = Sender::start(&self::config(protocol, nobody())).unwrap();
        sender.push(log(1));
        sender.end(SECOND);
        let (left, why) = sender.wait();
        assert_eq!(left, 1);
        assert!(why.unwrap().contains("onnection refused"));
    }
}

#[test]
fn authorities_that_are_none_are_told() {
    for protocol in BOTH {
        let mut config = config(protocol, nobody());
        config.endpoint = config.endpoint.replace("http:", "https:");
        config.ca_file = Some("/nowhere/ca.pem".into());
        let sender = Sender::start(&config).unwrap();
        sender.push(log(1));
        let said = until("it says so", || sender.news().pop());
        assert!(
            said.contains("[otlp] ca_file /nowhere/ca.pem: No such file"),
            "{said}"
        );
        config.ca_file = Some("/dev/null".into());
        sender.take(&config);
        let said = until("it says so", || sender.news().pop());
        assert!(!said.contains("/nowhere"), "{said}");
    }
}
