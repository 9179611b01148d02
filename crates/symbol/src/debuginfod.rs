// SPDX-License-Identifier: MIT OR Apache-2.0
//! Can a debuginfod server give the debug information that is not installed?
//!
//! Done as elfutils' own client does, so that both share one cache: the
//! servers of `$DEBUGINFOD_URLS` are asked in turn for
//! `/buildid/ID/debuginfo`, and the answer is kept below
//! `$DEBUGINFOD_CACHE_PATH` or `~/.cache/debuginfod_client`. That no server
//! has it is remembered, too, for ten minutes.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Default of `$DEBUGINFOD_TIMEOUT`: nothing arrives for so long.
const TIMEOUT: Duration = Duration::from_secs(90);
/// Many systems set `$DEBUGINFOD_URLS` for everybody: a machine without a
/// network should not stand still at each start. (A server that is there may
/// take much longer to answer: it unpacks the file first.)
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long "no server has it" is believed (debuginfod's cache_miss_s).
const MISS_LIFE: Duration = Duration::from_secs(600);
/// A kernel's debug information has some hundred megabytes.
const DEFAULT_MAX_BYTES: u64 = 4 << 30;

/// Where to ask, and how long.
#[derive(Clone, Debug)]
pub struct Debuginfod {
    /// `https://debuginfod.example.org`
    pub urls: Vec<String>,
    pub cache: PathBuf,
    /// Without a byte for so long, a server is given up.
    pub timeout: Duration,
    /// The longest that one download may take altogether.
    pub max_time: Option<Duration>,
    pub max_bytes: u64,
}

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DebuginfodError {
    #[error(
        "no debuginfod server has debug information for build id {build_id} ({tried}). \
         Install the debug package instead, or add a server to DEBUGINFOD_URLS"
    )]
    Absent { build_id: String, tried: String },
    #[error(
        "no debuginfod server had debug information for build id {build_id} when asked less than \
         ten minutes ago. Remove {path} to ask again"
    )]
    AbsentBefore { build_id: String, path: PathBuf },
    #[error(
        "debuginfod: {path}: {source}. Set DEBUGINFOD_CACHE_PATH to a place that can be written"
    )]
    Cache {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Debuginfod {
    /// What the environment says; None if `$DEBUGINFOD_URLS` names no server.
    pub fn from_env() -> Option<Debuginfod> {
        Debuginfod::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Option<Debuginfod> {
        let urls: Vec<String> = variable("DEBUGINFOD_URLS")?
            .split_whitespace()
            // Others, `ima:enforcing` say, are switches of elfutils' client.
            .filter(|url| url.starts_with("http://") || url.starts_with("https://"))
            .map(|url| url.trim_end_matches('/').to_owned())
            .collect();
        if urls.is_empty() {
            return None;
        }
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let number = |name| set(name)?.parse::<u64>().ok().filter(|&number| number > 0);
        let cache = set("DEBUGINFOD_CACHE_PATH").map(PathBuf::from).or_else(|| {
            let base = set("XDG_CACHE_HOME")
                .map(PathBuf::from)
                .or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))?;
            Some(base.join("debuginfod_client"))
        });
        Some(Debuginfod {
            urls,
            cache: cache.unwrap_or_else(|| "/var/cache/debuginfod_client".into()),
            timeout: number("DEBUGINFOD_TIMEOUT").map_or(TIMEOUT, Duration::from_secs),
            max_time: number("DEBUGINFOD_MAXTIME").map(Duration::from_secs),
            max_bytes: number("DEBUGINFOD_MAXSIZE").unwrap_or(DEFAULT_MAX_BYTES),
        })
    }

    /// The file with the debug information of a build id: from the cache, or
    /// from the first server that has it. `progress` is told, in sentences,
    /// what takes so long.
    pub fn debuginfo(
        &self,
        build_id: &[u8],
        progress: &mut dyn FnMut(&str),
    ) -> Result<PathBuf, DebuginfodError> {
        let id: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let folder = self.cache.join(&id);
        let path = folder.join("debuginfo");
        // Empty: nobody had it.
        match fs::metadata(&path) {
            Ok(metadata) if metadata.len() > 0 => return Ok(path),
            Ok(metadata) => {
                let age = metadata
                    .modified()
                    .ok()
                    .and_then(|time| time.elapsed().ok());
                if age.is_some_and(|age| age < MISS_LIFE) {
                    return Err(DebuginfodError::AbsentBefore { build_id: id, path });
                }
            }
            Err(_) => {}
        }
        let cache_error = |path: &Path| {
            let path = path.to_owned();
            move |source| DebuginfodError::Cache { path, source }
        };
        fs::create_dir_all(&folder).map_err(cache_error(&folder))?;
        let mut tried = Vec::new();
        let mut all_said_no = true;
        for url in &self.urls {
            // Several may download the same: each into a file of its own.
            let part = folder.join(format!("debuginfo.{}", std::process::id()));
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .open(&part)
                .map_err(cache_error(&part))?;
            match self.download(url, &id, file, progress) {
                Ok(()) => {
                    fs::rename(&part, &path).map_err(cache_error(&path))?;
                    return Ok(path);
                }
                Err(refusal) => {
                    // What is there is not whole.
                    let _ = fs::remove_file(&part);
                    all_said_no &= refusal.is_final;
                    tried.push(format!("{url}: {}", refusal.text));
                }
            }
        }
        if all_said_no {
            File::create(&path).map_err(cache_error(&path))?;
        }
        Err(DebuginfodError::Absent {
            build_id: id,
            tried: tried.join("; "),
        })
    }

    fn download(
        &self,
        url: &str,
        id: &str,
        mut file: File,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), Refusal> {
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_resolve(Some(self.timeout.min(CONNECT_TIMEOUT)))
            .timeout_connect(Some(self.timeout.min(CONNECT_TIMEOUT)))
            .timeout_recv_response(Some(self.timeout))
            .timeout_per_read(Some(self.timeout))
            .timeout_global(self.max_time)
            .user_agent(concat!("debox/", env!("CARGO_PKG_VERSION")));
        if is_loopback(url) {
            // No proxy leads to this machine itself.
            config = config.proxy(None);
        }
        let agent: ureq::Agent = config.build().into();
        let passing = |text: String| Refusal {
            text,
            is_final: false,
        };
        let mut response = agent
            .get(format!("{url}/buildid/{id}/debuginfo"))
            .call()
            .map_err(|error| passing(error.to_string()))?;
        match response.status().as_u16() {
            200 => {}
            404 => {
                return Err(Refusal {
                    text: "it has none".into(),
                    is_final: true,
                });
            }
            status => return Err(passing(format!("it answers with HTTP status {status}"))),
        }
        let too_long = |len: u64| {
            passing(format!(
                "{len} bytes are more than DEBUGINFOD_MAXSIZE allows ({})",
                self.max_bytes
            ))
        };
        // The length before the server packed it, if it says so.
        let len = response
            .headers()
            .get("x-debuginfod-size")
            .and_then(|value| value.to_str().ok()?.parse::<u64>().ok())
            .or_else(|| response.body().content_length());
        if let Some(len) = len.filter(|&len| len > self.max_bytes) {
            return Err(too_long(len));
        }
        let size = len.map_or("of unknown length".to_owned(), |len| {
            format!("{:.1} MB", len as f64 / 1e6)
        });
        progress(&format!(
            "fetching debug information of the kernel from {url} ({size}); it is kept in {}. \
             To do without: DEBUGINFOD_URLS=",
            self.cache.display()
        ));
        let mut body = response
            .body_mut()
            .with_config()
            .limit(self.max_bytes.saturating_add(1))
            .reader();
        let mut buffer = vec![0; 1 << 17];
        let mut written = 0u64;
        let mut told = Instant::now();
        loop {
            let got = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(passing(format!("after {written} bytes: {error}"))),
            };
            written += got as u64;
            if written > self.max_bytes {
                return Err(too_long(written));
            }
            file.write_all(&buffer[..got])
                .map_err(|error| passing(format!("cannot be kept: {error}")))?;
            if told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                progress(&format!("{:.1} MB of {size} so far", written as f64 / 1e6));
            }
        }
        if written == 0 {
            return Err(passing("it sends an empty file".into()));
        }
        Ok(())
    }
}

struct Refusal {
    text: String,
    /// The server does not have it, rather than that something failed.
    is_final: bool,
}

fn is_loopback(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else {
        return false;
    };
    let host = rest.split('/').next().unwrap_or(rest);
    host.starts_with("127.")
        || host.starts_with("[::1]")
        || host.split(':').next() == Some("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Option<Debuginfod> {
        Debuginfod::from_variables(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment() {
        assert!(with(&[]).is_none());
        assert!(with(&[("DEBUGINFOD_URLS", " ")]).is_none());
        assert!(with(&[("DEBUGINFOD_URLS", "ima:enforcing")]).is_none());
        let both = with(&[
            ("DEBUGINFOD_URLS", "https://a.example/ http://b.example"),
            ("HOME", "/h"),
            ("DEBUGINFOD_TIMEOUT", "7"),
        ])
        .unwrap();
        assert_eq!(both.urls, ["https://a.example", "http://b.example"]);
        assert_eq!(both.cache, Path::new("/h/.cache/debuginfod_client"));
        assert_eq!(
            (both.timeout, both.max_time),
            (Duration::from_secs(7), None)
        );
        let places = with(&[
            ("DEBUGINFOD_URLS", "http://a"),
            ("XDG_CACHE_HOME", "/x"),
            ("HOME", "/h"),
            ("DEBUGINFOD_MAXSIZE", "100"),
            ("DEBUGINFOD_MAXTIME", "0"),
        ])
        .unwrap();
        assert_eq!(places.cache, Path::new("/x/debuginfod_client"));
        assert_eq!((places.max_bytes, places.max_time), (100, None));
        let own = with(&[
            ("DEBUGINFOD_URLS", "http://a"),
            ("DEBUGINFOD_CACHE_PATH", "/c"),
        ]);
        assert_eq!(own.unwrap().cache, Path::new("/c"));
    }

    #[test]
    fn loopback() {
        for (url, yes) in [
            ("http://127.0.0.1:8002", true),
            ("http://localhost/x", true),
            ("http://[::1]:80", true),
            ("http://localhost.example.org", false),
            ("https://debuginfod.example.org", false),
        ] {
            assert_eq!(is_loopback(url), yes, "{url}");
        }
    }
}
