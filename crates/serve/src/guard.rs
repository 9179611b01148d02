// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who may ask?
//!
//! Over TCP: whoever has the token, which is random and stands in the address that is printed.
//! Opened once, the browser keeps it in a cookie that no script reads and no other site sends, and which is
//! for a folder of this server that nobody can guess: browsers tell cookies apart by host and path, not by
//! port, and another port may be another user's.
//! Over a Unix socket: this user and root, by the kernel's word. Over both a page of another
//! site, whose name leads here (DNS rebinding), is told by the host that its browser asks for.

use crate::Error;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use base64::Engine as _;
use debox_http::Peer;
use std::hash::{Hash as _, Hasher as _};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

const TOKEN_BYTES: usize = 32;
/// Of one that somebody wrote.
const TOKEN_LEAST: usize = 32;
const TOKEN_MOST: usize = 256;

pub struct Token(String);

impl Token {
    pub fn random() -> Result<Self, Error> {
        let mut bytes = [0u8; TOKEN_BYTES];
        let mut source = std::fs::File::open("/dev/urandom").map_err(Error::Random)?;
        source.read_exact(&mut bytes).map_err(Error::Random)?;
        let text = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
        Ok(Self(text))
    }

    /// Of a file that nobody else can read.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let wrong = |what: String| Error::Token {
            path: path.to_owned(),
            what,
        };
        let mut file = std::fs::OpenOptions::new()
            .read(true)
            // A FIFO would be waited for.
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map_err(|error| {
                wrong(format!(
                    "{error}. Make it with: (umask 077; head -c 32 /dev/urandom | base64 | tr -d =+/ >{})",
                    debox_output::shell_word(path.as_os_str().as_encoded_bytes())
                ))
            })?;
        let meta = file.metadata().map_err(|error| wrong(error.to_string()))?;
        if !meta.is_file() || meta.mode() & 0o077 != 0 {
            return Err(wrong(
                "others can read it, or it is no file. Make it one with mode 600".into(),
            ));
        }
        let mut text = String::new();
        (&mut file)
            .take(TOKEN_MOST as u64 + 2)
            .read_to_string(&mut text)
            .map_err(|error| wrong(error.to_string()))?;
        let text = text.trim_end_matches(['\n', '\r']).to_owned();
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !(TOKEN_LEAST..=TOKEN_MOST).contains(&text.len()) || !text.chars().all(fits) {
            return Err(wrong(format!(
                "it is {TOKEN_LEAST} to {TOKEN_MOST} letters, digits, - and _ in one line"
            )));
        }
        Ok(Self(text))
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// The folder that its cookie is for: the same as long as the token is.
    pub fn folder(&self) -> String {
        let half = |number: u8| {
            let mut hasher = std::hash::DefaultHasher::new();
            (number, &self.0).hash(&mut hasher);
            hasher.finish()
        };
        format!("{:016x}{:016x}", half(0), half(1))
    }

    /// Takes the same time whatever it is, if it is as long.
    fn is(&self, said: &str) -> bool {
        let (ours, said) = (self.0.as_bytes(), said.as_bytes());
        let differ = ours.iter().zip(said).fold(0u8, |sum, (a, b)| {
            std::hint::black_box(sum | std::hint::black_box(a ^ b))
        });
        ours.len() == said.len() && differ == 0
    }
}

/// By what who asks is known.
pub enum Who {
    Token {
        token: Token,
        /// The port is in its name: cookies are not told apart by ports.
        cookie: String,
        /// Of [`Token::folder`].
        folder: String,
    },
    /// Of the socket's other end.
    Peer { uid: u32 },
}

pub struct Guard {
    pub who: Who,
    /// Names by which this is asked for, beside addresses and localhost.
    pub hosts: Vec<String>,
    /// Addresses beyond those of this machine alone, too.
    pub anywhere: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Welcome,
    /// Has the token in the address: is to keep it, and ask without it.
    Keep {
        cookie: String,
        path: String,
    },
    Refused(StatusCode, &'static str),
}

const WHERE: &str = "Open the address that debox serve printed: the token is in it.";

/// `localhost`, `127.0.0.1`, `::1`: without port and brackets.
fn host_name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(name, _)| name);
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

fn said<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(key, _)| *key == name).map(|p| p.1)
}

impl Guard {
    fn host_fits(&self, host: &str) -> bool {
        let name = host_name(host);
        if let Ok(address) = name.parse::<IpAddr>() {
            // A name that leads here is no address.
            return self.anywhere || address.is_loopback();
        }
        name.eq_ignore_ascii_case("localhost")
            || (self.hosts.iter()).any(|known| known.eq_ignore_ascii_case(name))
    }

    fn in_cookies(&self, headers: &HeaderMap, name: &str, token: &Token) -> bool {
        let lines = headers.get_all(header::COOKIE).iter();
        lines
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .any(|(key, value)| key == name && token.is(value))
    }

    pub fn judge(&self, method: &Method, uri: &Uri, headers: &HeaderMap, peer: Peer) -> Verdict {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok());
        if hosts.next().is_some() || !host.is_some_and(|host| self.host_fits(host)) {
            return Verdict::Refused(
                StatusCode::MISDIRECTED_REQUEST,
                "This is asked for by an address of this machine, or localhost. By another name it answers if \
                 debox serve was started with --host NAME.",
            );
        }
        if method != Method::GET && method != Method::HEAD {
            return Verdict::Refused(
                StatusCode::METHOD_NOT_ALLOWED,
                "There is nothing to be changed here: GET and HEAD are all.",
            );
        }
        let (token, cookie, folder) = match &self.who {
            Who::Peer { uid } if peer.uid == Some(*uid) || peer.uid == Some(0) => {
                return match other_site(headers) {
                    false => Verdict::Welcome,
                    true => Verdict::Refused(
                        StatusCode::FORBIDDEN,
                        "Pages of other sites are not let in; open this address by itself.",
                    ),
                };
            }
            Who::Peer { .. } => {
                return Verdict::Refused(
                    StatusCode::FORBIDDEN,
                    "This socket is for the user who runs debox serve, and for root.",
                );
            }
            Who::Token {
                token,
                cookie,
                folder,
            } => (token, cookie, folder),
        };
        if let Some(given) = uri.query().and_then(|query| said(query, "token")) {
            if !token.is(given) {
                return Verdict::Refused(StatusCode::FORBIDDEN, WHERE);
            }
            let path = uri.path().trim_start_matches('/');
            let path = path.strip_prefix(folder).unwrap_or(path);
            return Verdict::Keep {
                cookie: format!("{cookie}={given}; Path=/{folder}/; HttpOnly; SameSite=Strict"),
                path: format!("/{folder}/{}", path.trim_start_matches('/')),
            };
        }
        let bearer = headers.get(header::AUTHORIZATION);
        let bearer = bearer.and_then(|line| line.to_str().ok()?.strip_prefix("Bearer "));
        if let Some(given) = bearer {
            return match token.is(given) {
                true => Verdict::Welcome,
                false => Verdict::Refused(StatusCode::FORBIDDEN, WHERE),
            };
        }
        match self.in_cookies(headers, cookie, token) {
            true if other_site(headers) => Verdict::Refused(StatusCode::FORBIDDEN, WHERE),
            true => Verdict::Welcome,
            false => Verdict::Refused(StatusCode::UNAUTHORIZED, WHERE),
        }
    }
}

/// By the browser's word, of those that say it.
fn other_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    site.is_some_and(|site| site != "same-origin" && site != "none")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "abcdefghijklmnopqrstuvwxyz012345";

    fn guard() -> Guard {
        Guard {
            who: Who::Token {
                token: Token(TOKEN.into()),
                cookie: "debox-1".into(),
                folder: Token(TOKEN.into()).folder(),
            },
            hosts: vec!["box.example".into()],
            anywhere: false,
        }
    }

    fn judge(
        guard: &Guard,
        uri: &str,
        lines: &[(&'static str, &str)],
        uid: Option<u32>,
    ) -> Verdict {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        guard.judge(&Method::GET, &uri.parse().unwrap(), &headers, Peer { uid })
    }

    fn status(verdict: Verdict) -> u16 {
        match verdict {
            Verdict::Welcome => 200,
            Verdict::Keep { .. } => 303,
            Verdict::Refused(status, _) => status.as_u16(),
        }
    }

    #[test]
    fn who_has_the_token_is_let_in() {
        let cookie = format!("a=b; debox-1={TOKEN}");
        let bearer = format!("Bearer {TOKEN}");
        let with = format!("/history?token={TOKEN}");
        let here = ("host", "127.0.0.1:1");
        for (uri, line, expected) in [
            ("/", None, 401),
            ("/", Some(("cookie", &*cookie)), 200),
            (
                "/",
                Some(("cookie", "debox-1=abcdefghijklmnopqrstuvwxyz012346")),
                401,
            ),
            ("/", Some(("cookie", "debox-1=")), 401),
            (
                "/",
                Some(("cookie", "debox-2=abcdefghijklmnopqrstuvwxyz012345")),
                401,
            ),
            ("/", Some(("authorization", &*bearer)), 200),
            ("/", Some(("authorization", "Bearer x")), 403),
            ("/?token=", None, 403),
            ("/?token=abc", None, 403),
            (&*with, None, 303),
        ] {
            let mut lines = vec![here];
            lines.extend(line);
            assert_eq!(
                status(judge(&guard(), uri, &lines, None)),
                expected,
                "{uri} {line:?}"
            );
        }
        let Verdict::Keep { cookie, path } = judge(&guard(), &with, &[here], None) else {
            panic!("not kept");
        };
        let folder = Token(TOKEN.into()).folder();
        assert!(folder.len() == 32 && !TOKEN.contains(&folder[..8]));
        assert_eq!(path, format!("/{folder}/history"));
        assert_eq!(
            cookie,
            format!("debox-1={TOKEN}; Path=/{folder}/; HttpOnly; SameSite=Strict")
        );
        // Asked for where it is kept for already, or with somebody's name before it.
        for (asked, path) in [
            (format!("{path}?token={TOKEN}"), path.clone()),
            (
                format!("//evil.example/?token={TOKEN}"),
                format!("/{folder}/evil.example/"),
            ),
        ] {
            let kept = Verdict::Keep {
                cookie: cookie.clone(),
                path,
            };
            assert_eq!(judge(&guard(), &asked, &[here], None), kept, "{asked}");
        }
        let cookie = format!("debox-1={TOKEN}");
        for (site, expected) in [
            ("none", 200),
            ("same-origin", 200),
            ("same-site", 403),
            ("cross-site", 403),
        ] {
            let lines = [here, ("cookie", &*cookie), ("sec-fetch-site", site)];
            assert_eq!(
                status(judge(&guard(), "/", &lines, None)),
                expected,
                "{site}"
            );
        }
    }

    #[test]
    fn names_that_lead_here_are_refused() {
        let bearer = format!("Bearer {TOKEN}");
        for (host, anywhere, expected) in [
            ("127.0.0.1:9", false, 200),
            ("127.9.9.9", false, 200),
            ("localhost:8080", false, 200),
            ("LOCALHOST", false, 200),
            ("[::1]:9", false, 200),
            ("box.example:9", false, 200),
            ("evil.example:9", false, 421),
            ("127.0.0.1.evil.example", false, 421),
            ("localhost.evil.example:9", false, 421),
            ("192.168.0.1:9", false, 421),
            ("192.168.0.1:9", true, 200),
            ("evil.example:9", true, 421),
            ("[::1", false, 421),
            ("", false, 421),
        ] {
            let guard = Guard {
                anywhere,
                ..guard()
            };
            let lines = [("host", host), ("authorization", &*bearer)];
            assert_eq!(status(judge(&guard, "/", &lines, None)), expected, "{host}");
        }
        assert_eq!(
            status(judge(&guard(), "/", &[("authorization", &bearer)], None)),
            421
        );
        let two = [
            ("host", "localhost"),
            ("host", "evil.example"),
            ("authorization", &*bearer),
        ];
        assert_eq!(status(judge(&guard(), "/", &two, None)), 421);
    }

    #[test]
    fn a_socket_is_for_its_user_and_root() {
        let guard = Guard {
            who: Who::Peer { uid: 1000 },
            ..guard()
        };
        let here = [("host", "localhost")];
        for (uid, expected) in [
            (Some(1000), 200),
            (Some(0), 200),
            (Some(1001), 403),
            (None, 403),
        ] {
            assert_eq!(status(judge(&guard, "/", &here, uid)), expected, "{uid:?}");
        }
        let from = [("host", "localhost"), ("sec-fetch-site", "cross-site")];
        assert_eq!(status(judge(&guard, "/", &from, Some(1000))), 403);
    }

    #[test]
    fn nothing_is_changed() {
        let headers: HeaderMap = [(header::HOST, "localhost".parse().unwrap())]
            .into_iter()
            .collect();
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            let uri = "/".parse().unwrap();
            let verdict = guard().judge(&method, &uri, &headers, Peer { uid: None });
            assert_eq!(status(verdict), 405, "{method}");
        }
    }

    #[test]
    fn a_token_of_a_file_is_long_and_its_owners() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let set = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, mode).unwrap();
            Token::read(&path)
                .map(|token| token.0)
                .map_err(|error| error.to_string())
        };
        assert_eq!(set(&format!("{TOKEN}\n"), 0o600).as_deref(), Ok(TOKEN));
        for (text, mode, why) in [
            (TOKEN, 0o640, "others can read it"),
            ("short", 0o600, "32 to 256"),
            ("abcdefghijklmnopqrstuvwxyz 012345", 0o600, "32 to 256"),
            (&*"a".repeat(300), 0o600, "32 to 256"),
        ] {
            let said = set(text, mode).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        std::fs::remove_file(&path).unwrap();
        let said = Token::read(&path).err().map(|error| error.to_string());
        assert!(said.is_some_and(|said| said.contains("umask 077")));
        assert_ne!(Token::random().unwrap().0, Token::random().unwrap().0);
        assert!(Token::random().unwrap().0.len() >= 43);
    }
}
