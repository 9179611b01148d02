// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does the time of reading a file go?
//!
//! `cargo run -p debox --example read_file -- FILE`

use std::fs::File;
use std::io::Read;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "/etc/services".into());
    let session = debox::Session::open()?;
    let why = session.why();
    if !why.is_empty() {
        eprintln!("note: {why}");
    }
    let span = debox::Span::begin()?;
    let mut file = File::open(&path)?;
    let mut buf = vec![0; 1 << 20];
    loop {
        let (n, record) = debox::call(|| file.read(&mut buf));
        println!("{record}");
        for sleep in record.sleeps().into_iter().flatten() {
            match sleep.text() {
                Ok(site) => println!(
                    "    {} in {} for {:?}",
                    site.label,
                    site.function,
                    sleep.total()
                ),
                Err(why) => println!("    site {}: {why}", sleep.site()),
            }
        }
        if n? == 0 {
            break;
        }
    }
    println!("all of it: {}", span.end()?);
    Ok(())
}
