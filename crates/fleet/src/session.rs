// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is an engine asked that is a process of this machine?
//!
//! chDB is begun once and answers one question after the other: its start takes as long as a question about a
//! day. `clickhouse local` takes all its statements on its command line, and is begun for each question.

use crate::engine::{Answer, FORMAT};
use crate::error::Error;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

const CHDB: &str = include_str!("engine.py");
/// Of what it complains about, so much is read.
const COMPLAINT_MOST: u64 = 1 << 20;

/// Values as they stand for {name:Type}, with what must not be in them escaped.
pub type Escaped<'a> = BTreeMap<&'a str, String>;

struct Running {
    program: String,
    process: Child,
    complaint: Option<JoinHandle<String>>,
}

impl Running {
    fn begin(mut command: Command, room: &Path, input: Stdio) -> Result<Self, Error> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut process = command
            .current_dir(room)
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| Error::Engine {
                program: program.clone(),
                action: "starting",
                source,
            })?;
        let complaint = process.stderr.take().map(|stderr| {
            std::thread::spawn(move || {
                let mut said = Vec::new();
                let _ = stderr.take(COMPLAINT_MOST).read_to_end(&mut said);
                String::from_utf8_lossy(&said).trim().to_owned()
            })
        });
        Ok(Self {
            program,
            process,
            complaint,
        })
    }

    fn wrong(&self, why: String) -> Error {
        Error::Answer {
            who: self.program.clone(),
            why,
        }
    }

    /// Waits until it has ended, whose input has.
    fn end(&mut self) -> Result<(ExitStatus, String), Error> {
        let status = self.process.wait().map_err(|source| Error::Engine {
            program: self.program.clone(),
            action: "waiting for",
            source,
        })?;
        let said = self.complaint.take().map(JoinHandle::join);
        Ok((status, said.and_then(Result::ok).unwrap_or_default()))
    }

    /// It ended by itself.
    fn why_ended(&mut self) -> Error {
        match self.end() {
            Ok((_, said)) if said.contains("No module named 'chdb'") => Error::NoEngine,
            Ok((_, said)) if said.contains("Cannot lock file") => self.wrong(
                "another process has this database open (a load, a question): try again when it has ended".into(),
            ),
            Ok((status, said)) if said.is_empty() => self.wrong(format!("it ended with {status}")),
            Ok((_, said)) => self.wrong(said),
            Err(error) => error,
        }
    }
}

/// A process of chDB's, with its database open, which nobody else can open meanwhile.
pub struct Session {
    running: Running,
    /// A socket: whoever writes to one that has ended is told, and not ended as well (SIGPIPE). None: it is to end.
    questions: Option<UnixStream>,
    /// None as well then: one that still writes is told that nobody reads.
    answers: Option<BufReader<ChildStdout>>,
}

/// What comes before the rows.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Head {
    Wrong(String),
    Bytes(u64),
}

fn send_all(to: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(to, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl Session {
    pub fn begin(python: &Path, room: &Path) -> Result<Self, Error> {
        let mut command = Command::new(python);
        command.args(["-c", CHDB]);
        let (questions, input) = UnixStream::pair().map_err(|source| Error::Engine {
            program: python.display().to_string(),
            action: "starting",
            source,
        })?;
        let mut running = Running::begin(command, room, OwnedFd::from(input).into())?;
        let answers = running.process.stdout.take().map(BufReader::new);
        Ok(Self {
            running,
            questions: Some(questions),
            answers,
        })
    }

    /// The rows of the last of these statements. After an error it is to be asked nothing more.
    pub fn ask(
        &mut self,
        path: Option<&Path>,
        all: &[&str],
        params: &Escaped,
    ) -> Result<Answer, Error> {
        let (Some(questions), Some(answers)) = (&self.questions, &mut self.answers) else {
            return Err(self.why_ended());
        };
        let ask = serde_json::json!({ "path": path, "statements": all, "params": params });
        let mut head = String::new();
        // One that does not listen says why.
        let asked = send_all(questions, format!("{ask}\n").as_bytes());
        if asked.is_err() || answers.read_line(&mut head).unwrap_or(0) == 0 {
            return Err(self.why_ended());
        }
        let why = match serde_json::from_str(&head) {
            Ok(Head::Bytes(bytes)) => {
                let mut rows = answers.take(bytes);
                match Answer::read(&mut rows) {
                    Ok(answer) if rows.limit() == 0 => return Ok(answer),
                    // It ended within its answer.
                    _ if rows.limit() > 0
                        && rows.get_mut().fill_buf().is_ok_and(<[u8]>::is_empty) =>
                    {
                        return Err(self.why_ended());
                    }
                    Ok(_) => "its answer is not whole".into(),
                    Err(why) => why,
                }
            }
            Ok(Head::Wrong(why)) => why,
            Err(error) => format!("its answer is not understood: {error}: {head}"),
        };
        Err(self.running.wrong(why))
    }

    fn why_ended(&mut self) -> Error {
        (self.questions, self.answers) = (None, None);
        self.running.why_ended()
    }

    /// Closes its database, which may still have something to write. The next process can open it then.
    pub fn end(mut self) -> Result<(), Error> {
        (self.questions, self.answers) = (None, None);
        match self.running.end()? {
            (status, _) if status.success() => Ok(()),
            (status, said) if said.is_empty() => {
                Err(self.running.wrong(format!("it ended with {status}")))
            }
            (_, said) => Err(self.running.wrong(said)),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        (self.questions, self.answers) = (None, None);
        let _ = self.running.end();
    }
}

/// The rows of the last of these statements, by `clickhouse local`.
pub fn clickhouse_local(
    program: &Path,
    room: &Path,
    path: Option<&Path>,
    all: &[&str],
    params: &Escaped,
) -> Result<Answer, Error> {
    let mut command = Command::new(program);
    command.args(["local", "--multiquery", "--output-format", FORMAT]);
    command.arg("--output_format_json_quote_64bit_integers=0");
    if let Some(path) = path {
        command.arg("--path").arg(path);
    }
    for (name, value) in params {
        command.arg(format!("--param_{name}={value}"));
    }
    command.arg("--query").arg(all.join(";\n"));
    let mut running = Running::begin(command, room, Stdio::null())?;
    let answer = (running.process.stdout.take()).map_or(Ok(Answer::default()), Answer::read);
    let (status, said) = running.end()?;
    match (status.success(), answer) {
        (true, answer) => answer.map_err(|why| running.wrong(why)),
        (false, _) if said.is_empty() => Err(running.wrong(format!("it ended with {status}"))),
        (false, _) => Err(running.wrong(said)),
    }
}
