// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where do the files of a host's periods go?
//!
//! A directory: each file is written under another name, brought to the disk, and renamed, so
//! that nobody reads half of one. Or an object store that speaks S3, where a file is there as
//! a whole or not at all; its address, region and keys come from AWS's usual variables.

use bytes::Bytes;
use debox_output::Utc;
use http_body_util::BodyExt;
use object_store::aws::AmazonS3Builder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::path::Path as Key;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Of one request, all of it.
const REQUEST: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(10);
/// What a store answers to a file is short.
const ANSWER_MOST: u64 = 16 << 20;
const DAY_S: i64 = 86_400;
/// Letters of a host's name in a path; the rest would make the name too long for some.
const HOST_MOST: usize = 64;
/// What stays as it is in a part of a path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "{url:?} is no place for tables: name a directory (/var/lib/debox/fleet), file:///DIRECTORY or s3://BUCKET/PREFIX"
    )]
    Place { url: String },
    #[error(
        "{url}: {source}. The store's address, region and keys are taken from AWS_ENDPOINT_URL, AWS_REGION, \
         AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )]
    Options {
        url: String,
        source: object_store::Error,
    },
    #[error("{url}: {source}")]
    Store {
        url: String,
        source: object_store::Error,
    },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("a runtime for requests: {0}")]
    Runtime(io::Error),
}

pub enum Store {
    Directory(PathBuf),
    Objects {
        url: String,
        prefix: Key,
        store: Arc<dyn ObjectStore>,
        runtime: tokio::runtime::Runtime,
    },
}

/// A host's name as a part of a path: it cannot leave its directory.
pub fn host_part(host: &str) -> String {
    let short: String = host.chars().take(HOST_MOST).collect();
    match short.as_str() {
        "" => "host=unknown".into(),
        short => format!("host={}", utf8_percent_encode(short, PLAIN)),
    }
}

/// "2026-11-27" of a moment.
pub fn date_of(unix_ns: u64) -> String {
    Utc::of_seconds((unix_ns / 1_000_000_000) as i64).date()
}

/// And the other way round.
fn day_of(date: &str) -> Option<i64> {
    let mut parts = date.splitn(3, '-').map(|part| part.parse().ok());
    let midnight = Utc {
        year: parts.next()??,
        month: parts.next()??,
        day: parts.next()??,
        hour: 0,
        minute: 0,
        second: 0,
    };
    Some(midnight.seconds()? / DAY_S)
}

fn entries(path: &Path) -> impl Iterator<Item = std::fs::DirEntry> + use<> {
    std::fs::read_dir(path).into_iter().flatten().flatten()
}

impl Store {
    /// # Errors
    /// It is neither a directory nor an address of a store, or that lacks something.
    pub fn open(url: &str) -> Result<Self, StoreError> {
        let place = || StoreError::Place { url: url.into() };
        if let Some(rest) = url.strip_prefix("s3://") {
            return Self::objects(url, rest);
        }
        let path = match url.strip_prefix("file://") {
            Some(path) if path.starts_with('/') => {
                let path = percent_decode_str(path).decode_utf8();
                PathBuf::from(path.map_err(|_| place())?.as_ref())
            }
            None if url.starts_with('/') || url.starts_with("./") => url.into(),
            _ => return Err(place()),
        };
        Ok(Self::Directory(path))
    }

    fn objects(url: &str, rest: &str) -> Result<Self, StoreError> {
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(StoreError::Place { url: url.into() });
        }
        let options = |source| StoreError::Options {
            url: url.into(),
            source,
        };
        let prefix = Key::parse(prefix).map_err(|error| options(error.into()))?;
        let plain = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
            .iter()
            .find_map(|name| std::env::var(name).ok())
            .is_some_and(|endpoint| endpoint.starts_with("http://"));
        let store = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            // Who wrote http:// meant it.
            .with_allow_http(plain)
            .with_http_connector(Connector)
            .with_retry(RetryConfig {
                max_retries: 1,
                retry_timeout: REQUEST,
                ..RetryConfig::default()
            })
            .build()
            .map_err(options)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(StoreError::Runtime)?;
        Ok(Self::Objects {
            url: url.into(),
            prefix,
            store: Arc::new(store),
            runtime,
        })
    }

    /// A file as a whole; `parts` of its path are as [`host_part`] and [`date_of`] make them.
    ///
    /// # Errors
    /// It is not there then, or is the one that was.
    pub fn put(&self, parts: &[&str], bytes: &[u8]) -> Result<(), StoreError> {
        match self {
            Self::Directory(root) => put_file(root, parts, bytes),
            Self::Objects {
                url,
                prefix,
                store,
                runtime,
            } => {
                let wrong = |source: object_store::Error| StoreError::Store {
                    url: url.clone(),
                    source,
                };
                let key = match prefix.as_ref() {
                    "" => parts.join("/"),
                    prefix => format!("{prefix}/{}", parts.join("/")),
                };
                let key = Key::parse(key).map_err(|error| wrong(error.into()))?;
                let bytes = Bytes::copy_from_slice(bytes);
                let put = runtime.block_on(store.put(&key, bytes.into()));
                put.map(drop).map_err(wrong)
            }
        }
    }

    /// The days that a host wrote of, counted from 1970. Of a store of objects none are told.
    pub fn days(&self, host_part: &str) -> BTreeSet<i64> {
        let Self::Directory(root) = self else {
            return BTreeSet::new();
        };
        let days = entries(root).flat_map(|table| entries(&table.path()));
        let own = days.filter(|day| day.path().join(host_part).is_dir());
        own.filter_map(|day| day_of(day.file_name().to_str()?.strip_prefix("date=")?))
            .collect()
    }

    /// Takes away what a host wrote before `date`. Of a store of objects nothing: that has rules
    /// of its own for it.
    pub fn forget(&self, host_part: &str, date: &str) {
        let Self::Directory(root) = self else {
            return;
        };
        for table in entries(root) {
            for day in entries(&table.path()) {
                let name = day.file_name();
                let of = name.to_str().and_then(|name| name.strip_prefix("date="));
                let is_date = |of: &&str| of.len() == date.len() && of.is_ascii();
                if of.filter(is_date).is_some_and(|of| of < date) {
                    // What others still need stays, and what is no directory.
                    let _ = std::fs::remove_dir_all(day.path().join(host_part));
                    let _ = std::fs::remove_dir(day.path());
                }
            }
        }
    }
}

fn put_file(root: &Path, parts: &[&str], bytes: &[u8]) -> Result<(), StoreError> {
    let mut path = root.to_owned();
    path.extend(parts);
    let wrong = |source| StoreError::File {
        path: path.clone(),
        source,
    };
    let folder = path.parent().unwrap_or(root);
    debox_output::create_directory(folder).map_err(wrong)?;
    let mut file = tempfile::Builder::new()
        .prefix(".debox-")
        .suffix(".part")
        .tempfile_in(folder)
        .map_err(wrong)?;
    file.write_all(bytes)
        .and_then(|()| file.as_file().sync_all())
        .map_err(wrong)?;
    file.persist(&path)
        .map(drop)
        .map_err(|error| wrong(error.error))
}

/// object_store's requests by ureq.
#[derive(Debug)]
struct Connector;

#[derive(Debug)]
struct Service(ureq::Agent);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(REQUEST))
            .timeout_connect(Some(CONNECT))
            .max_redirects(0)
            .user_agent(concat!("debox/", env!("CARGO_PKG_VERSION")));
        Ok(HttpClient::new(Service(config.build().into())))
    }
}

fn http_error(error: ureq::Error) -> HttpError {
    let kind = match &error {
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => HttpErrorKind::Connect,
        ureq::Error::Io(_) => HttpErrorKind::Request,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}

#[async_trait::async_trait]
impl HttpService for Service {
    /// The thread is the store's own: it waits.
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let answer = match body.is_empty() && head.method != ureq::http::Method::PUT {
            true => self.0.run(ureq::http::Request::from_parts(head, ())),
            false => (self.0).run(ureq::http::Request::from_parts(head, body.to_vec())),
        };
        let (head, mut body) = answer.map_err(http_error)?.into_parts();
        let body = body.with_config().limit(ANSWER_MOST).read_to_vec();
        let body = body.map_err(http_error)?;
        Ok(HttpResponse::from_parts(head, body.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_735_689_599, "2024-12-31"),
            (1_735_689_600, "2025-01-01"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date_of(seconds * 1_000_000_000), date);
            assert_eq!(day_of(date), Some((seconds / 86_400) as i64));
        }
        for bad in ["", "2026", "2026-11", "2026-11-27-1", "2026-13-01", "old"] {
            assert_eq!(day_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_host_cannot_leave_its_directory() {
        for (host, part) in [
            ("web-1.example", "host=web-1.example"),
            ("../../etc", "host=..%2F..%2Fetc"),
            ("a b\n*{x}'", "host=a%20b%0A%2A%7Bx%7D%27"),
            ("", "host=unknown"),
            ("é", "host=%C3%A9"),
        ] {
            assert_eq!(host_part(host), part);
        }
        assert!(host_part(&"x".repeat(1000)).len() <= 69);
    }

    #[test]
    fn places_are_told_apart() {
        let directory = |url: &str| match Store::open(url) {
            Ok(Store::Directory(path)) => path.display().to_string(),
            Ok(_) => "objects".into(),
            Err(error) => error.to_string(),
        };
        assert_eq!(directory("/var/x"), "/var/x");
        assert_eq!(directory("file:///var/x%20y"), "/var/x y");
        for bad in ["", "x", "file://host/x", "ftp://x", "s3:///x", "s3://"] {
            assert!(directory(bad).contains("s3://BUCKET/PREFIX"), "{bad}");
        }
    }
}
