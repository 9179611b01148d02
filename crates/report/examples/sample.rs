// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does the HTML report of an invented run look? Writes one to stdout:
//! cargo run -p debox-report --example sample -- [server|hostile|empty] [call sites]

#[path = "../tests/support/mod.rs"]
mod support;

fn main() {
    let mut args = std::env::args().skip(1);
    let which = args.next().unwrap_or_else(|| "server".into());
    let sites = args.next().and_then(|n| n.parse().ok()).unwrap_or(500);
    let report = match which.as_str() {
        "server" => support::server(sites),
        "hostile" => support::hostile(),
        "empty" => support::empty(),
        other => {
            eprintln!("unknown sample {other}; there are server, hostile, empty");
            std::process::exit(2);
        }
    };
    print!("{}", debox_report::render_html(&report));
}
