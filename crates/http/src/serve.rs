// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who answers, while the rest of the program does something else?

use crate::limited::{Limited, Limits, Peer};
use crate::listen::Socket;
use axum::Router;
use axum::http::{HeaderValue, header};
use axum::middleware::map_response;
use axum::response::Response;
use std::io;
use tokio::runtime::Runtime;

/// A connection is over with its answer: one that is kept for a next question is room that
/// somebody else has not.
async fn last(mut answer: Response) -> Response {
    let close = HeaderValue::from_static("close");
    answer.headers_mut().insert(header::CONNECTION, close);
    answer
}

fn until_the_end(
    socket: Socket,
    limits: Limits,
    router: Router,
    runtime: &Runtime,
) -> io::Result<()> {
    // Which connection a request came over is told to its handler.
    let router = router.layer(map_response(last));
    let service = router.into_make_service_with_connect_info::<Peer>();
    runtime.block_on(async {
        match socket {
            Socket::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                let listener = tokio::net::TcpListener::from_std(listener)?;
                axum::serve(Limited::new(listener, limits), service).await
            }
            Socket::Unix(listener) => {
                listener.set_nonblocking(true)?;
                let listener = tokio::net::UnixListener::from_std(listener)?;
                axum::serve(Limited::new(listener, limits), service).await
            }
        }
    })
}

/// Begins to answer, on a thread of that name, which ends with the process.
///
/// # Errors
/// There is no thread, or nothing to wait with, to be had.
pub fn serve(socket: Socket, limits: Limits, router: Router, thread: &str) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    std::thread::Builder::new()
        .name(thread.to_owned())
        .spawn(move || {
            // Ends with the process.
            let _ = until_the_end(socket, limits, router, &runtime);
        })?;
    Ok(())
}
