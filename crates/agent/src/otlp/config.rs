// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the agent's file say of OTLP (`[otlp]`)?

use crate::config::{Wrong, number_of, time_of};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use toml::Spanned;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const QUEUE_MB: u64 = 16;
const QUEUE_MB_MOST: u64 = 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Protobuf in a POST.
    #[default]
    Http,
    Grpc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    Metrics,
    Logs,
}

impl Signal {
    pub const ALL: [Self; 2] = [Self::Metrics, Self::Logs];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        }
    }
}

/// Names and values that go with each request; a value may be a key, and is shown nowhere.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(pub HeaderMap);

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpConfig {
    /// Without a slash at its end.
    pub endpoint: String,
    pub protocol: Protocol,
    pub headers: Headers,
    pub every: Duration,
    /// Of one request, from its connection to the last byte of its answer.
    pub timeout: Duration,
    pub queue_bytes: usize,
    /// Instead of the system's authorities.
    pub ca_file: Option<PathBuf>,
    pub signals: Vec<Signal>,
    /// What is said of the host besides.
    pub attributes: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OtlpFile {
    endpoint: Option<Spanned<String>>,
    protocol: Protocol,
    headers: BTreeMap<Spanned<String>, Spanned<String>>,
    every: Option<Spanned<String>>,
    timeout: Option<Spanned<String>>,
    queue_mb: Option<Spanned<u64>>,
    ca_file: Option<Spanned<String>>,
    signals: Option<Vec<Signal>>,
    attributes: BTreeMap<String, String>,
}

/// What the agent says itself in a request.
fn is_own(name: &str) -> bool {
    let own = [
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "te",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    ];
    own.contains(&name) || name.starts_with("grpc-") || name.ends_with("-bin")
}

fn headers_of(file: BTreeMap<Spanned<String>, Spanned<String>>) -> Result<Headers, Wrong> {
    let mut headers = HeaderMap::new();
    for (name, value) in file {
        let text = name.as_ref().to_ascii_lowercase();
        let is = match HeaderName::from_bytes(text.as_bytes()) {
            Ok(_) if is_own(&text) => {
                let what = format!("the agent writes {text} itself; leave it out");
                return Err((what, name.span()));
            }
            Ok(is) => is,
            Err(_) => {
                let what = format!("{text:?} is no name of a header: letters, digits and -");
                return Err((what, name.span()));
            }
        };
        // The value itself is not repeated: it may be a key.
        let mut given = HeaderValue::from_str(value.as_ref()).map_err(|_| {
            let what = format!("the value of {text} has what no header can: plain letters only");
            (what, value.span())
        })?;
        given.set_sensitive(true);
        headers.insert(is, given);
    }
    Ok(Headers(headers))
}

fn endpoint_of(endpoint: Spanned<String>, protocol: Protocol) -> Result<String, Wrong> {
    let span = endpoint.span();
    let text = endpoint.into_inner();
    let wrong = |what: String| Err((what, span.clone()));
    let uri = match text.parse::<Uri>() {
        Ok(uri) if matches!(uri.scheme_str(), Some("http" | "https")) => uri,
        _ if text.starts_with("grpc") => {
            return wrong(format!(
                "endpoint is http://HOST:4317 or https://HOST:4317 for gRPC as well, with protocol = \"grpc\", \
                 and {text:?} is neither"
            ));
        }
        _ => {
            return wrong(format!(
                "endpoint is http://HOST:4318 or https://HOST:4318, or \"\" for nothing, and {text:?} is none of these"
            ));
        }
    };
    let Some(authority) = uri.authority().filter(|is| !is.host().is_empty()) else {
        return wrong(format!("endpoint {text:?} names no host"));
    };
    if authority.as_str().contains('@') {
        let what = "endpoint has a user and a password: say them as headers = { authorization = \"Basic ...\" }";
        return wrong(what.to_owned());
    }
    if uri.query().is_some() {
        return wrong("endpoint has a question mark: leave away what follows from it".to_owned());
    }
    let path = uri.path().trim_end_matches('/');
    if protocol == Protocol::Grpc && !path.is_empty() {
        let what = format!("gRPC knows no path: leave {path:?} away, or say protocol = \"http\"");
        return wrong(what);
    }
    for signal in Signal::ALL {
        let end = format!("/v1/{}", signal.name());
        if path.ends_with(&end) {
            let what = format!("the agent adds {end:?} itself: leave it away");
            return wrong(what);
        }
    }
    let scheme = uri.scheme_str().unwrap_or("http");
    Ok(format!("{scheme}://{authority}{path}"))
}

/// None: nothing is sent.
pub fn otlp_of(file: OtlpFile) -> Result<Option<OtlpConfig>, Wrong> {
    let Some(endpoint) = file.endpoint.filter(|to| !to.as_ref().is_empty()) else {
        return Ok(None);
    };
    let ca_file = match file.ca_file {
        Some(path) if path.as_ref().is_empty() => None,
        Some(path) if path.as_ref().starts_with('/') => Some(path.into_inner().into()),
        Some(path) => {
            let what = format!(
                "ca_file is a path that begins with /, or \"\" for the system's, and {:?} is neither",
                path.as_ref()
            );
            return Err((what, path.span()));
        }
        None => None,
    };
    let most = (SECOND, HOUR);
    Ok(Some(OtlpConfig {
        endpoint: endpoint_of(endpoint, file.protocol)?,
        protocol: file.protocol,
        headers: headers_of(file.headers)?,
        every: time_of("every", file.every, most, MINUTE)?,
        timeout: time_of("timeout", file.timeout, most, 10 * SECOND)?,
        queue_bytes: (number_of("queue_mb", file.queue_mb, QUEUE_MB_MOST, QUEUE_MB)? as usize)
            << 20,
        ca_file,
        signals: file.signals.unwrap_or_else(|| Signal::ALL.to_vec()),
        attributes: file.attributes,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn all_settings_are_taken() {
        let config = Config::parse(
            "[otlp]\nendpoint = \"https://collector.example:4317/\"\nprotocol = \"grpc\"\nevery = \"30s\"\n\
             timeout = \"5s\"\nqueue_mb = 2\nca_file = \"/etc/ca.pem\"\nsignals = [\"logs\"]\n\
             headers = { Authorization = \"Bearer sesame\" }\nattributes = { \"deployment.environment.name\" = \"test\" }\n",
        )
        .unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("authorization", "Bearer sesame".parse().unwrap());
        let otlp = config.otlp.unwrap();
        assert!(!format!("{otlp:?}").contains("sesame"));
        assert_eq!(
            otlp,
            OtlpConfig {
                endpoint: "https://collector.example:4317".into(),
                protocol: Protocol::Grpc,
                headers: Headers(headers),
                every: 30 * SECOND,
                timeout: 5 * SECOND,
                queue_bytes: 2 << 20,
                ca_file: Some("/etc/ca.pem".into()),
                signals: vec![Signal::Logs],
                attributes: [("deployment.environment.name".into(), "test".into())].into(),
            }
        );
        for off in ["", "[otlp]\n", "[otlp]\nendpoint = \"\"\nevery = \"5s\"\n"] {
            assert_eq!(Config::parse(off).unwrap().otlp, None, "{off:?}");
        }
        let otlp = Config::parse("[otlp]\nendpoint = \"http://[::1]:4318/otlp/\"\n");
        let otlp = otlp.unwrap().otlp.unwrap();
        assert_eq!(otlp.endpoint, "http://[::1]:4318/otlp");
        assert_eq!((otlp.every, otlp.timeout), (MINUTE, 10 * SECOND));
        assert_eq!(
            (otlp.queue_bytes, otlp.signals),
            (16 << 20, Signal::ALL.to_vec())
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let at = "[otlp]\nendpoint = \"http://a:4318\"\n";
        for (text, place, what) in [
            (
                "[otlp]\nendpoint = \"a:4318\"\n",
                "line 2, column 12",
                "http://HOST:4318",
            ),
            (
                "[otlp]\nendpoint = \"grpc://a:4317\"\n",
                "line 2, column 12",
                "protocol = \"grpc\"",
            ),
            (
                "[otlp]\nendpoint = \"http://u:sesame@a\"\n",
                "line 2, column 12",
                "authorization",
            ),
            (
                "[otlp]\nendpoint = \"http://a/?key=sesame\"\n",
                "line 2, column 12",
                "question mark",
            ),
            (
                "[otlp]\nendpoint = \"http://a/v1/logs\"\n",
                "line 2, column 12",
                "adds \"/v1/logs\" itself",
            ),
            (
                "[otlp]\nprotocol = \"grpc\"\nendpoint = \"http://a/x\"\n",
                "line 3, column 12",
                "no path",
            ),
            ("[otlp]\nprotocol = \"json\"\n", "line 2, column 12", "grpc"),
            (
                "[otlp]\nsignals = [\"traces\"]\n",
                "line 2, column 12",
                "metrics",
            ),
            (
                "[otlp]\nendpoints = \"\"\n",
                "line 2, column 1",
                "endpoints",
            ),
            (
                &format!("{at}every = \"1ms\"\n"),
                "line 3, column 9",
                "every",
            ),
            (
                &format!("{at}timeout = \"2h\"\n"),
                "line 3, column 11",
                "1 s to 3600 s",
            ),
            (
                &format!("{at}queue_mb = 0\n"),
                "line 3, column 12",
                "1 to 1024",
            ),
            (
                &format!("{at}ca_file = \"ca.pem\"\n"),
                "line 3, column 11",
                "begins with /",
            ),
            (
                &format!("{at}headers = {{ \"a b\" = \"sesame\" }}\n"),
                "line 3, column 13",
                "no name of a header",
            ),
            (
                &format!("{at}headers = {{ te = \"sesame\" }}\n"),
                "line 3, column 13",
                "itself",
            ),
            (
                &format!("{at}headers = {{ key = \"sesame\\n\" }}\n"),
                "line 3, column 19",
                "value of key",
            ),
        ] {
            let said = Config::parse(text).unwrap_err();
            assert!(
                said.starts_with(place) && said.contains(what),
                "{text:?}: {said}"
            );
            assert!(
                !text.contains("header") || !said.contains("sesame"),
                "{said}"
            );
        }
    }
}
