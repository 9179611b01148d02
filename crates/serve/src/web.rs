// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is there to be asked for, and with what around it?
//!
//! Whoever may not ask is told so before anything else is looked at ([`crate::guard`]). Every
//! answer says that it is not kept, not framed, not guessed at, and not for other sites; a page
//! of ours may load its style and its script, and nothing else. That of a recording has its
//! script in it, admitted by its hash, and is a place of its own (`sandbox`): whatever a
//! recording made of it, it could ask nothing of this server.

use crate::guard::{Guard, Verdict, Who};
use crate::history::{History, Listing, NotRead};
use crate::live::Live;
use crate::page::{self, Span};
use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use debox_http::{Asker, Limits, PATIENCE, Peer};
use std::sync::Arc;
use std::time::Duration;

pub const LIMITS: Limits = Limits {
    connections: 64,
    request: Duration::from_secs(3),
    // A recording may take a while, after another one that takes a while.
    longest: Duration::from_secs(60),
};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const HTML: &str = "text/html; charset=utf-8";

pub struct Shared {
    pub guard: Guard,
    pub asker: Asker<Arc<Live>>,
    pub history: Arc<History>,
    /// Of the page of a recording.
    recording_policy: HeaderValue,
}

impl Shared {
    pub fn new(guard: Guard, asker: Asker<Arc<Live>>, history: History) -> Self {
        let policy = format!(
            "default-src 'none'; style-src 'unsafe-inline'; script-src {}; base-uri 'none'; form-action 'none'; \
             frame-ancestors 'none'; sandbox allow-scripts",
            debox_report::script_policy()
        );
        Self {
            guard,
            asker,
            history: Arc::new(history),
            recording_policy: HeaderValue::try_from(policy)
                .unwrap_or(HeaderValue::from_static("sandbox")),
        }
    }
}

type Us = State<Arc<Shared>>;

fn html(status: StatusCode, page: impl Into<Body>) -> Response {
    let mut answer = Response::new(page.into());
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static(HTML);
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

/// `up`: to where the pages are from there; None: that is not known.
fn sorry(status: StatusCode, why: &str, up: Option<&str>) -> Response {
    let heading = status.canonical_reason().unwrap_or("It cannot be shown");
    html(status, page::sorry(heading, why, up))
}

fn file(kind: &'static str, text: impl Into<Body>) -> Response {
    let mut answer = Response::new(text.into());
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

/// What is shown of now.
async fn now(shared: &Shared, show: impl FnOnce(&Live) -> Response) -> Response {
    match shared.asker.ask().await {
        Some(live) => show(&live),
        None => sorry(
            StatusCode::SERVICE_UNAVAILABLE,
            &format!(
                "There are no figures after {} s: debox serve is ending, or its machine is stuck.",
                PATIENCE.as_secs()
            ),
            Some(""),
        ),
    }
}

async fn live(State(shared): Us, uri: Uri) -> Response {
    let span = Span::parse(uri.query());
    now(&shared, |live| html(StatusCode::OK, page::live(live, span))).await
}

async fn live_part(State(shared): Us, uri: Uri) -> Response {
    let span = Span::parse(uri.query());
    let show = |live: &Live| html(StatusCode::OK, page::live_part(live, span));
    now(&shared, show).await
}

async fn live_json(State(shared): Us) -> Response {
    now(&shared, |live| file("application/json", live.json())).await
}

async fn listing(shared: &Shared) -> Result<Listing, String> {
    let history = Arc::clone(&shared.history);
    let listing = tokio::task::spawn_blocking(move || history.list()).await;
    let listing = listing.map_err(|error| error.to_string())?;
    let listing =
        listing.map_err(|error| format!("{}: {error}", shared.history.folder.display()))?;
    shared.history.catch_up(&listing);
    Ok(listing)
}

async fn history(State(shared): Us) -> Response {
    let listing = listing(&shared).await;
    let folder = shared.history.folder.display().to_string();
    html(StatusCode::OK, page::history(&folder, &listing))
}

async fn history_part(State(shared): Us) -> Response {
    html(StatusCode::OK, page::history_part(&listing(&shared).await))
}

async fn recording(State(shared): Us, Path(name): Path<String>) -> Response {
    match shared.history.page(&name).await {
        Ok(page) => {
            let mut answer = html(StatusCode::OK, page);
            let policy = shared.recording_policy.clone();
            let headers = answer.headers_mut();
            headers.insert(header::CONTENT_SECURITY_POLICY, policy);
            answer
        }
        Err(error @ NotRead::NotThere) => {
            sorry(StatusCode::NOT_FOUND, &format!("{error}."), Some("../"))
        }
        Err(error) => sorry(
            StatusCode::UNPROCESSABLE_ENTITY,
            &format!("{name} cannot be shown: {error}."),
            Some("../"),
        ),
    }
}

/// What every answer says, where it says nothing of its own.
const SAID: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

fn harden(headers: &mut HeaderMap) {
    for (name, value) in SAID {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
}

fn keep(cookie: &str, path: &str) -> Result<Response, axum::http::Error> {
    Response::builder()
        .status(StatusCode::SEE_OTHER)
        .header(header::SET_COOKIE, cookie)
        .header(header::LOCATION, path)
        .body(Body::empty())
}

async fn guarded(
    State(shared): Us,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let verdict = {
        let (method, uri) = (request.method(), request.uri());
        shared.guard.judge(method, uri, request.headers(), peer)
    };
    let mut answer = match verdict {
        Verdict::Welcome => next.run(request).await,
        Verdict::Keep { cookie, path } => keep(&cookie, &path).unwrap_or_else(|_| {
            let why = "This address makes no sense.";
            sorry(StatusCode::BAD_REQUEST, why, None)
        }),
        Verdict::Refused(status, why) => {
            // Pages of ours look like it even then: style and script are no secret.
            match request.uri().path() {
                "/style.css" | "/script.js" | "/icon.svg"
                    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) =>
                {
                    next.run(request).await
                }
                _ => sorry(status, why, None),
            }
        }
    };
    if answer.status() == StatusCode::UNAUTHORIZED {
        let how = HeaderValue::from_static("Bearer");
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, how);
    }
    if answer.status() == StatusCode::METHOD_NOT_ALLOWED {
        let how = HeaderValue::from_static("GET, HEAD");
        answer.headers_mut().insert(header::ALLOW, how);
    }
    harden(answer.headers_mut());
    answer
}

pub fn router(shared: Arc<Shared>) -> Router {
    let style = || async {
        let text = [debox_output::PAGE_STYLE, page::STYLE].concat();
        file("text/css; charset=utf-8", text)
    };
    let script = || async {
        let text = [debox_report::PAGE_SCRIPT, page::SCRIPT].concat();
        file("text/javascript; charset=utf-8", text)
    };
    let pages = Router::new()
        .route("/", get(live))
        .route("/part/live", get(live_part))
        .route("/api/live.json", get(live_json))
        .route("/history", get(history))
        .route("/part/history", get(history_part))
        .route("/recording/{name}", get(recording));
    // Programs, and who is known by a socket, need no cookie and so no folder.
    let all = match &shared.guard.who {
        Who::Token { folder, .. } => pages.clone().nest(&format!("/{folder}/"), pages),
        Who::Peer { .. } => pages,
    };
    all.route("/style.css", get(style))
        .route("/script.js", get(script))
        .route(
            "/icon.svg",
            get(|| async { file("image/svg+xml", page::ICON) }),
        )
        .fallback(|| async {
            sorry(StatusCode::NOT_FOUND, "There is no such page.", None).into_response()
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), guarded))
        .with_state(shared)
}
