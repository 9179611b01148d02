// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does one machine hold more connections than one process may have?
//!
//! Each server has its clients in a process of their own, this program again.
//! It is told for how long to ask by a line on its standard input, and answers
//! with a line of numbers.

use crate::load::{Client, Load, Outcome};
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

pub struct Agent {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It is our own child and not waited for yet.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Agent {
    /// Starts the process on CPU 1; returns when its connections are open.
    pub fn start(load: &Load) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["bench", "load", "--port", &load.server.port().to_string()])
            .args(["--idle", &load.idle.to_string()])
            .args(["--hot", &load.hot.to_string()])
            .args(["--path", &load.path]);
        if !load.keep_alive {
            command.arg("--close");
        }
        if load.churn {
            command.arg("--churn");
        }
        if let Some(rate) = load.rate {
            command.args(["--rate", &rate.to_string()]);
        }
        let mut child = command
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        crate::servers::pin(child.id() as i32, 1);
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped"));
        let mut agent = Self { child, to, from };
        agent.answer()?;
        Ok(agent)
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn answer(&mut self) -> io::Result<Vec<f64>> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            return Err(io::Error::other(
                "a client process ended (its own words are above)",
            ));
        }
        Ok(line
            .split_whitespace()
            .filter_map(|w| w.parse().ok())
            .collect())
    }

    /// Asks for so long.
    pub fn run(&mut self, duration: Duration) -> io::Result<Outcome> {
        writeln!(self.to, "{}", duration.as_micros())?;
        let a = self.answer()?;
        if a.len() != 8 {
            return Err(io::Error::other("a client process gave no numbers"));
        }
        Ok(Outcome {
            requests: a[0] as u64,
            seconds: a[1],
            wrong: a[2] as u64,
            stalled: a[3] as u64,
            dropped: a[4] as u64,
            // Three quantiles stand for all.
            latencies_us: vec![a[5] as u32, a[6] as u32, a[7] as u32],
        })
    }
}

/// The process itself.
pub fn serve(load: Load) -> io::Result<()> {
    let mut client = Client::new(load)?;
    println!("ready");
    for line in io::stdin().lock().lines() {
        let microseconds = line?.trim().parse().unwrap_or(0);
        let o = client.run(Duration::from_micros(microseconds))?;
        println!(
            "{} {} {} {} {} {} {} {}",
            o.requests,
            o.seconds,
            o.wrong,
            o.stalled,
            o.dropped,
            o.latency_us(0.5),
            o.latency_us(0.99),
            o.latency_us(1.0)
        );
        io::stdout().flush()?;
    }
    Ok(())
}
