// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the answer to a request mean: was it taken, is it to be sent once more, and when?
//!
//! As OTLP's specification says it, for both protocols. Whatever is in an answer is somebody else's
//! word: not more of it is read than [`ANSWER_MOST`], not more is shown than a line.

use super::config::Signal;
use axum::http::HeaderMap;
use axum::http::header::RETRY_AFTER;
use debox_output::{Utc, printable_within};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use prost::Message;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub const ANSWER_MOST: usize = 64 << 10;
/// Of what somebody else says, for people.
const SAID_CHARS: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// But so many of it; `said` is what there is to be told of it.
    Taken { rejected: u64, said: String },
    /// To be tried again, not before so much time has gone.
    Later {
        after: Option<Duration>,
        what: String,
    },
    /// Trying again would be of no use.
    Refused { what: String },
}

/// google.rpc.Status, of which servers send the details of a failure.
#[derive(Clone, PartialEq, Message)]
pub struct RpcStatus {
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Any {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// google.rpc.RetryInfo
#[derive(Clone, PartialEq, Message)]
pub struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    pub delay: Option<Delay>,
}

/// google.protobuf.Duration
#[derive(Clone, PartialEq, Message)]
pub struct Delay {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// For people, of somebody else's words.
pub fn line(text: &str) -> String {
    let text = text.trim();
    let first = text.lines().next().unwrap_or_default();
    printable_within(first, SAID_CHARS)
}

/// A response to Export, which may say that a part was left out.
pub fn taken(signal: Signal, body: &[u8]) -> Answer {
    let partial = match signal {
        Signal::Metrics => ExportMetricsServiceResponse::decode(body)
            .ok()
            .and_then(|is| is.partial_success)
            .map(|is| (is.rejected_data_points, is.error_message)),
        Signal::Logs => ExportLogsServiceResponse::decode(body)
            .ok()
            .and_then(|is| is.partial_success)
            .map(|is| (is.rejected_log_records, is.error_message)),
    };
    // What is no such message says nothing: that it was taken has been said by the status.
    let (rejected, said) = partial.unwrap_or_default();
    Answer::Taken {
        rejected: u64::try_from(rejected).unwrap_or(0),
        said: line(&said),
    }
}

/// What a server says of how long to wait, as seconds or as a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let then = UNIX_EPOCH + Duration::from_secs(http_date(text)?);
    Some(then.duration_since(now).unwrap_or(Duration::ZERO))
}

/// "Fri, 27 Nov 2026 14:05:00 GMT"
fn http_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (_, rest) = text.split_once(", ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let [day, month, year, time, "GMT"] = words[..] else {
        return None;
    };
    let month = MONTHS.iter().position(|is| *is == month)? as i64 + 1;
    let clock: Vec<i64> = time.split(':').filter_map(|is| is.parse().ok()).collect();
    let [hour, minute, second] = clock[..] else {
        return None;
    };
    let moment = Utc {
        year: year.parse().ok()?,
        month,
        day: day.parse().ok()?,
        hour,
        minute,
        second,
    };
    u64::try_from(moment.seconds()?).ok()
}

/// What a status of HTTP means. `body` is as much of it as was read.
pub fn of_http(signal: Signal, status: u16, headers: &HeaderMap, body: &[u8]) -> Answer {
    if (200..300).contains(&status) {
        return taken(signal, body);
    }
    let said = match RpcStatus::decode(body) {
        Ok(status) if !status.message.is_empty() => line(&status.message),
        _ => line(&String::from_utf8_lossy(body)),
    };
    let mut what = format!("HTTP status {status}");
    if !said.is_empty() {
        what = format!("{what}: {said}");
    }
    match status {
        429 | 502..=504 => Answer::Later {
            after: retry_after(headers, SystemTime::now()),
            what,
        },
        300..=399 => Answer::Refused {
            what: format!(
                "{what}; it sends the agent elsewhere, which the agent does not follow: name that place in \
                 [otlp] endpoint"
            ),
        },
        401 | 403 => Answer::Refused {
            what: format!("{what}; are [otlp] headers what it wants?"),
        },
        404 | 405 => Answer::Refused {
            what: format!(
                "{what}; is [otlp] endpoint right, and does it take {0} (signals)? The agent adds /v1/{0}",
                signal.name()
            ),
        },
        _ => Answer::Refused { what },
    }
}

/// What a server says of how long to wait, among the details of a status of gRPC.
pub fn retry_info(details: &[u8]) -> Option<Duration> {
    let status = RpcStatus::decode(details).ok()?;
    let info = (status.details.iter()).find(|is| is.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(info.value.as_slice()).ok()?.delay?;
    let seconds = u64::try_from(delay.seconds).unwrap_or(0);
    Some(Duration::new(
        seconds,
        u32::try_from(delay.nanos).unwrap_or(0).min(999_999_999),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsPartialSuccess;

    fn http(status: u16, headers: &[(&'static str, &str)], body: &[u8]) -> Answer {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect();
        of_http(Signal::Logs, status, &headers, body)
    }

    #[test]
    fn each_status_is_what_otlp_says() {
        for status in [429, 502, 503, 504] {
            let is = http(status, &[("retry-after", "7")], b"busy\nlines");
            let Answer::Later { after, what } = is else {
                panic!("{status}: {is:?}");
            };
            assert_eq!(after, Some(Duration::from_secs(7)));
            assert_eq!(what, format!("HTTP status {status}: busy"));
        }
        for status in [301, 307, 400, 401, 404, 413, 500, 501] {
            let is = http(status, &[("retry-after", "7")], b"\x1b[2J");
            let Answer::Refused { what } = is else {
                panic!("{status}: {is:?}");
            };
            assert!(
                what.starts_with(&format!("HTTP status {status}: \\u{{1b}}[2J")),
                "{what}"
            );
        }
        let Answer::Refused { what } = http(307, &[], b"") else {
            panic!()
        };
        assert!(what.contains("[otlp] endpoint"), "{what}");
    }

    #[test]
    fn a_date_says_how_long_to_wait() {
        let now = UNIX_EPOCH + Duration::from_secs(1_795_788_300);
        let wait = |text: &str| {
            let headers = [(RETRY_AFTER, text.parse().unwrap())].into_iter().collect();
            retry_after(&headers, now)
        };
        assert_eq!(
            wait("Fri, 27 Nov 2026 14:05:30 GMT"),
            Some(Duration::from_secs(30))
        );
        assert_eq!(wait("Fri, 27 Nov 2026 14:04:30 GMT"), Some(Duration::ZERO));
        for none in [
            "",
            "soon",
            "-1",
            "Fri, 27 Nov 2026",
            "Fri, 99 Xxx 2026 14:05:30 GMT",
        ] {
            assert_eq!(wait(none), None, "{none:?}");
        }
    }

    #[test]
    fn what_was_left_out_is_read() {
        let response = ExportLogsServiceResponse {
            partial_success: Some(ExportLogsPartialSuccess {
                rejected_log_records: 3,
                error_message: "too old\x07".into(),
            }),
        };
        let is = http(200, &[], &response.encode_to_vec());
        let said = "too old\\u{7}".to_owned();
        assert_eq!(is, Answer::Taken { rejected: 3, said });
        let taken = Answer::Taken {
            rejected: 0,
            said: String::new(),
        };
        for nothing in [&b""[..], b"{}", b"\xff\xff\xff"] {
            assert_eq!(http(200, &[], nothing), taken);
        }
        let negative = ExportLogsServiceResponse {
            partial_success: Some(ExportLogsPartialSuccess {
                rejected_log_records: -3,
                error_message: String::new(),
            }),
        };
        assert_eq!(http(200, &[], &negative.encode_to_vec()), taken);
    }

    #[test]
    fn grpc_says_how_long_to_wait() {
        let delay = Some(Delay {
            seconds: 2,
            nanos: 500_000_000,
        });
        let status = RpcStatus {
            message: "full".into(),
            details: vec![Any {
                type_url: "type.googleapis.com/google.rpc.RetryInfo".into(),
                value: RetryInfo { delay }.encode_to_vec(),
            }],
        };
        assert_eq!(
            retry_info(&status.encode_to_vec()),
            Some(Duration::from_millis(2_500))
        );
        assert_eq!(retry_info(b""), None);
        assert_eq!(retry_info(b"\xff"), None);
        // HTTP has the same message, of a refusal.
        let is = http(400, &[], &status.encode_to_vec());
        assert_eq!(
            is,
            Answer::Refused {
                what: "HTTP status 400: full".into()
            }
        );
    }
}
