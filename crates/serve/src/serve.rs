// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox serve`: who is watched meanwhile, and when is it looked at?
//!
//! As often as a page asks, once a second at most, and once a minute where nobody does: an
//! interval is what passed since the look before. What cannot be watched is no reason to end:
//! there are recordings.

use crate::Error;
use crate::guard::{Guard, Token, Who};
use crate::history::History;
use crate::live::{Interval, Live, State};
use crate::web::{self, Shared};
use debox_cli::ahead::Ahead;
use debox_cli::args::{CaptureArgs, ServeArgs, Way};
use debox_cli::capture::{Capture, Target, Want};
use debox_cli::whom::WhomArgs;
use debox_command::{Ended, Inherited, Signals};
use debox_http::{Desk, Listen, Socket};
use debox_report::{Report, since};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Of a socket: for this user. Root may always.
const MODE: u32 = 0o600;
/// An interval is not longer, also if nobody asks.
const LOOK_EVERY: Duration = Duration::from_secs(60);

type CliError = debox_cli::error::Error;

struct Watch {
    capture: Capture,
    follow: bool,
    next: Instant,
    /// Two looks, the later one last.
    looks: (Option<Report>, Option<Report>),
}

impl Watch {
    fn look(&mut self) {
        self.capture.look(self.follow);
        let report = self.capture.report();
        self.looks = (self.looks.1.take(), Some(report));
        self.next = Instant::now() + LOOK_EVERY;
    }

    fn show(&self, title: &str, over: Option<&String>) -> Live {
        let (before, Some(now)) = (&self.looks.0, &self.looks.1) else {
            return Live::default();
        };
        let all = Interval::of(now);
        let interval = match before {
            Some(before) => Interval::of(&since(now, before)),
            None => all.clone(),
        };
        Live {
            title: title.to_owned(),
            state: over.map_or(State::Live, |why| State::Over(why.clone())),
            cpus: now.run.cpus,
            now: interval,
            all,
            notes: now.notes.iter().map(|note| note.text.clone()).collect(),
        }
    }
}

enum Watched {
    By(Box<Watch>),
    Nobody { signals: Signals, why: String },
}

struct Server {
    watched: Watched,
    desk: Desk<Arc<Live>>,
    title: String,
    over: Option<String>,
}

impl Server {
    /// Until somebody ends it: by which signal.
    fn stay(&mut self) -> i32 {
        loop {
            let stop = match &mut self.watched {
                Watched::By(watch) => {
                    let until = self.over.is_none().then_some(watch.next);
                    watch.capture.tick(Some(self.desk.as_fd()), until).stop
                }
                Watched::Nobody { signals, .. } => {
                    signals.wait(&[self.desk.as_fd()], None);
                    signals.wants_end()
                }
            };
            if let Some(signal) = stop {
                return signal;
            }
            let asked = self.desk.asked();
            if let Watched::By(watch) = &mut self.watched
                && self.over.is_none()
            {
                self.over = watch.capture.ended();
                if let Some(why) = &self.over {
                    debox_cli::say(&format!("the watch is over: {why}"));
                }
                if asked.is_some() || self.over.is_some() || Instant::now() >= watch.next {
                    watch.look();
                }
            }
            let Some(first) = asked else { continue };
            let live = Arc::new(match &self.watched {
                Watched::By(watch) => watch.show(&self.title, self.over.as_ref()),
                Watched::Nobody { why, .. } => Live {
                    title: self.title.clone(),
                    state: State::NotWatched(why.clone()),
                    ..Live::default()
                },
            });
            first.answer(Arc::clone(&live));
            while let Some(asked) = self.desk.asked() {
                asked.answer(Arc::clone(&live));
            }
        }
    }
}

fn capture_open(
    args: &ServeArgs,
    target: Target<'_>,
    inherited: &Inherited,
) -> Result<Watch, CliError> {
    let want = Want::new(&CaptureArgs {
        broker: args.broker.clone(),
        no_follow: args.no_follow,
        capture_way: Some(args.capture_way.unwrap_or(Way::Sleeps)),
        ..CaptureArgs::default()
    })?;
    let ahead = Ahead::begin();
    let capture = Capture::open(want, &target)?.start(target, inherited)?;
    drop(ahead);
    let mut watch = Watch {
        capture,
        follow: !args.no_follow,
        next: Instant::now(),
        looks: (None, None),
    };
    // The first interval begins here.
    watch.look();
    Ok(watch)
}

fn listen_of(args: &ServeArgs) -> Result<Listen, Error> {
    let text = args.listen.as_str();
    let path = match text.contains('/') && !text.starts_with('/') {
        true => std::env::current_dir().ok().map(|here| here.join(text)),
        false => None,
    };
    let listen = match path {
        Some(path) => Listen::Path(path),
        None => Listen::parse(text).ok_or_else(|| Error::Place(text.to_owned()))?,
    };
    if let Listen::Address(address) = &listen
        && !address.ip().is_loopback()
        && !(args.anywhere && args.token.is_some())
    {
        return Err(Error::Anywhere(*address));
    }
    Ok(listen)
}

/// Who may ask, and where that is told to people.
fn guard_of(args: &ServeArgs, address: Option<SocketAddr>) -> Result<(Guard, String), Error> {
    let (who, said) = match address {
        Some(address) => {
            let (token, shown) = match &args.token {
                Some(path) => (
                    Token::read(path)?,
                    format!("TOKEN, that of {}", path.display()),
                ),
                None => {
                    let token = Token::random()?;
                    let shown = token.text().to_owned();
                    (token, shown)
                }
            };
            let cookie = format!("debox-{}", address.port());
            let said = format!("http://{address}/?token={shown}");
            let who = Who::Token {
                folder: token.folder(),
                token,
                cookie,
            };
            (who, said)
        }
        None => {
            // SAFETY: it takes nothing and cannot fail.
            let uid = unsafe { libc::geteuid() };
            let said = format!(
                "{} (for this user; from elsewhere: ssh -L 8080:{0} HOST, then http://localhost:8080/)",
                args.listen
            );
            (Who::Peer { uid }, said)
        }
    };
    let guard = Guard {
        who,
        hosts: args.host.clone(),
        anywhere: args.anywhere,
    };
    Ok((guard, said))
}

pub fn serve(args: ServeArgs, inherited: Inherited) -> Result<i32, CliError> {
    let way = args.capture_way.unwrap_or(Way::Sleeps);
    way.check_live(!args.pids.is_empty())?;
    let listen = listen_of(&args)?;
    // Before the long part: who else has the address is to be told at once.
    let socket = Socket::open(&listen, MODE).map_err(|source| Error::Listen {
        listen: listen.to_string(),
        source,
    })?;
    let address = socket.address().map_err(Error::Start)?;
    let (guard, said) = guard_of(&args, address)?;

    let whole = WhomArgs::whole_machine();
    let target = match (&args.pids[..], args.whom.any()) {
        ([], true) => Target::whom(&args.whom)?,
        ([], false) => Target::whom(&whole)?,
        (pids, _) => Target::processes(pids)?,
    };
    let title = match args.pids.is_empty() {
        true if args.whom.any() && !args.whom.all => args.whom.words().join(" "),
        true => "The whole machine".to_owned(),
        false => target.words().join(" "),
    };
    let watched = match args.no_watch {
        true => Err("it was started with --no-watch".to_owned()),
        false => match capture_open(&args, target, &inherited) {
            Ok(watch) => Ok(Box::new(watch)),
            Err(
                error
                @ (CliError::Arguments(_) | CliError::Usage(_) | CliError::Interrupted { .. }),
            ) => {
                return Err(error);
            }
            Err(error) => {
                debox_cli::say(&format!("recordings only: {error}"));
                Err(error.to_string())
            }
        },
    };
    let watched = match watched {
        Ok(watch) => Watched::By(watch),
        Err(why) => Watched::Nobody {
            signals: Signals::open()?,
            why,
        },
    };
    let (asker, desk) = debox_http::desk().map_err(Error::Start)?;
    let history = History::new(args.recordings.clone());
    let shared = Arc::new(Shared::new(guard, asker, history));
    debox_http::serve(socket, web::LIMITS, web::router(shared), "debox-serve")
        .map_err(Error::Start)?;
    debox_cli::say(&format!("the page is at {said}"));
    let mut server = Server {
        watched,
        desk,
        title,
        over: None,
    };
    let signal = server.stay();
    if let Listen::Path(path) = &listen {
        // It leads to nobody now.
        let _ = std::fs::remove_file(path);
    }
    Ok(match signal {
        libc::SIGTERM => 0,
        signal => Ended::Signal(signal).end_as(),
    })
}
