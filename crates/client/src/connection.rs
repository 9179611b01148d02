// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a broker asked, and are its answers what was asked for?

use crate::account::AccountView;
use crate::away::away_parse;
use crate::cost::Costs;
use crate::error::Error;
use crate::packet;
use debox_abi::*;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long an answer is waited for.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// Once the broker has taken the request: it is broken then, not busy.
    answer: Duration,
    /// Before: systemd lets connect whom the broker will serve when it has loaded its programs, for which its unit
    /// (`TimeoutStartSec=`) gives it as long as this.
    taking: Duration,
    /// How often it is looked whether it has; after the first time it is said that it has not.
    look: Duration,
}

const PATIENCE: Patience = Patience {
    answer: Duration::from_secs(20),
    taking: Duration::from_secs(300),
    look: Duration::from_secs(5),
};
/// Of who asks now and then, and goes on without.
const SHORT: Patience = Patience {
    answer: Duration::from_secs(2),
    taking: Duration::from_secs(2),
    look: Duration::from_secs(1),
};
/// The broker writes no more.
const SHARED_BYTES_MAX: u64 = 16 << 20;

pub struct Connection {
    socket: OwnedFd,
    path: PathBuf,
    turn: Mutex<()>,
    patience: Patience,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection {
    /// A path, or "@name" for a name without a file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let socket = packet::connect(path, true).map_err(|source| Error::Connect {
            path: path.to_owned(),
            source,
        })?;
        packet::patience_set(&socket, PATIENCE.answer, PATIENCE.look);
        Ok(Self {
            socket,
            path: path.to_owned(),
            turn: Mutex::new(()),
            patience: PATIENCE,
        })
    }

    /// The same for who goes on without an answer: it waits seconds, not minutes.
    pub fn impatient(mut self) -> Self {
        self.patience = SHORT;
        packet::patience_set(&self.socket, self.patience.answer, self.patience.look);
        self
    }

    /// Process and user id of who listens there, as the kernel tells them.
    pub fn server(&self) -> io::Result<(u32, u32)> {
        packet::peer(self.as_fd()).map(|peer| (peer.pid.max(0) as u32, peer.uid))
    }

    /// One request, one reply; a refusal is an error.
    pub fn ask(&self, request: &debox_request) -> Result<(debox_reply, Vec<OwnedFd>), Error> {
        self.ask_bytes(request.kind, request.as_bytes())
    }

    /// The same for a request that is longer than others.
    pub fn ask_bytes(
        &self,
        kind: u32,
        request: &[u8],
    ) -> Result<(debox_reply, Vec<OwnedFd>), Error> {
        // Each is followed by its own answer, whichever threads ask.
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        self.send(request).map_err(|source| self.lost(source))?;
        self.answer(kind)
    }

    /// Sends a request whose answer somebody else takes. Also used between fork
    /// and exec: system calls only.
    pub fn send(&self, request: &[u8]) -> io::Result<()> {
        packet::send(self.socket.as_raw_fd(), request, &[])
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the broker gave is of no use.
    pub fn broken(&self, what: String) -> Error {
        Error::Protocol {
            path: self.path.clone(),
            what,
        }
    }

    fn lost(&self, source: io::Error) -> Error {
        self.broken(match source.raw_os_error() {
            Some(libc::EAGAIN) => format!("no answer within {} s", self.patience.answer.as_secs()),
            _ => source.to_string(),
        })
    }

    /// The next packet, for which somebody who has not begun yet has longer than who has taken the request.
    fn reply_wait(&self, bytes: &mut [u8]) -> Result<packet::Received, Error> {
        let begin = Instant::now();
        let mut taken = begin;
        let mut said = false;
        loop {
            let error = match packet::receive(self.socket.as_raw_fd(), bytes) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => error,
                other => return other.map_err(|source| self.lost(source)),
            };
            let now = Instant::now();
            if !packet::unread(self.as_fd()) {
                if now - taken >= self.patience.answer {
                    return Err(self.lost(error));
                }
                continue;
            }
            taken = now;
            if now - begin >= self.patience.taking {
                return Err(Error::Starting {
                    path: self.path.clone(),
                    seconds: self.patience.taking.as_secs(),
                });
            }
            if !said {
                debox_output::say(&format!(
                    "the broker at {} has not begun yet (it loads its programs), or is busy: waiting for it",
                    self.path.display()
                ));
                said = true;
            }
        }
    }

    /// The reply to a request of this kind that was sent by whoever shares the
    /// connection; a refusal is an error.
    pub fn answer(&self, kind: u32) -> Result<(debox_reply, Vec<OwnedFd>), Error> {
        let mut reply = debox_reply::zeroed();
        let got = self.reply_wait(reply.as_bytes_mut())?;
        if got.length == 0 {
            return Err(self.lost(io::Error::from_raw_os_error(libc::ECONNRESET)));
        }
        if got.cut || got.length < size_of::<debox_reply>() {
            return Err(self.lost(io::Error::from_raw_os_error(libc::EPROTO)));
        }
        reply_judge(&self.path, kind, &reply, got.fds.len())?;
        Ok((reply, got.fds))
    }

    /// Opens the connection's account; flags are DEBOX_REQ_BOUNDARY, _DETAILS
    /// and _USER_STACKS. `hz`: of a clock of CPU time, 0: without.
    pub fn account(&self, flags: u32, hz: u32) -> Result<AccountView, Error> {
        let (reply, fds) = self.ask(&debox_request::account(flags, hz))?;
        AccountView::map(&reply, fds).map_err(|what| self.broken(what))
    }

    /// From now on the kernel tells of the calls of all threads that share memory with one of the
    /// account's; flags are DEBOX_REQ_OPEN_COUNTED, DEBOX_REQ_RENAMES, DEBOX_REQ_EXECUTES.
    pub fn boundary(&self, tid: i32, flags: u32) -> Result<(), Error> {
        self.ask(&debox_request::boundary(tid, flags)).map(drop)
    }

    /// What is in the file that answers such a request.
    fn shared_file(&self, kind: u32) -> Result<Vec<u8>, Error> {
        let (_, fds) = self.ask(&debox_request::new(kind, 0))?;
        match fds.into_iter().next() {
            Some(fd) => shared_read(fd.into()).map_err(|source| self.lost(source)),
            None => Ok(Vec::new()),
        }
    }

    /// The kernel functions of the sites, outermost first.
    pub fn site_stacks(&self) -> Result<Vec<(u32, Vec<String>)>, Error> {
        let bytes = self.shared_file(DEBOX_MSG_SITE_STACKS)?;
        Ok(site_stacks_parse(&String::from_utf8_lossy(&bytes)))
    }

    /// The kernel's functions in the account's samples, by number.
    pub fn kernel_functions(&self) -> Result<HashMap<u32, String>, Error> {
        let bytes = self.shared_file(DEBOX_MSG_KERNEL_FUNCTIONS)?;
        Ok(functions_parse(&String::from_utf8_lossy(&bytes)))
    }

    /// Labels, the first of number 1; from now on the kernel side gives them to
    /// places as it meets them.
    pub fn labels(&self) -> Result<Vec<String>, Error> {
        let bytes = self.shared_file(DEBOX_MSG_LABELS)?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.lines().map(debox_output::printable).collect())
    }

    /// The account's threads that are off the CPU now.
    pub fn away_threads(&self) -> Result<Vec<debox_away>, Error> {
        Ok(away_parse(&self.shared_file(DEBOX_MSG_AWAY)?))
    }

    /// What watching takes; with `run_time` the programs in the kernel as well, of which the kernel takes it
    /// from here on, for as long as what comes is kept.
    pub fn costs(&self, run_time: bool) -> Result<Costs, Error> {
        let flags = if run_time { DEBOX_REQ_RUN_TIME } else { 0 };
        let (reply, fds) = self.ask(&debox_request::new(DEBOX_MSG_COSTS, flags))?;
        let mut fds = fds.into_iter();
        let bytes = match fds.next() {
            Some(fd) => shared_read(fd.into()).map_err(|source| self.lost(source))?,
            None => Vec::new(),
        };
        let costs = Costs::parse(&bytes)
            .ok_or_else(|| self.broken("what it takes is not told as it should be".into()))?;
        let lack = debox_output::printable(reply.text());
        Ok(Costs {
            lack: (!lack.is_empty()).then_some(lack),
            statistics: fds.next(),
            ..costs
        })
    }

    /// The links of chains, the first of number 1.
    pub fn chains(&self) -> Result<Vec<debox_chain>, Error> {
        let bytes = self.shared_file(DEBOX_MSG_CHAINS)?;
        Ok(chains_parse(&bytes))
    }
}

/// Is this what was asked for? The broker's bytes are judged here and nowhere
/// else.
pub fn reply_judge(
    path: &Path,
    kind: u32,
    reply: &debox_reply,
    descriptors: usize,
) -> Result<(), Error> {
    let broken = |what: String| Error::Protocol {
        path: path.to_owned(),
        what,
    };
    if reply.version != DEBOX_PROTOCOL_VERSION {
        return Err(broken(format!(
            "it speaks version {}, this debox version {}: install the same release of both",
            reply.version, DEBOX_PROTOCOL_VERSION
        )));
    }
    if reply.status < 0 {
        // i32::MIN has no counterpart.
        let errno = reply.status.saturating_neg();
        let text = if reply.text().is_empty() {
            io::Error::from_raw_os_error(errno).to_string()
        } else {
            debox_output::printable(reply.text())
        };
        return Err(Error::Refused {
            path: path.to_owned(),
            errno,
            text,
        });
    }
    if reply.kind != kind || reply.fds as usize != descriptors {
        return Err(broken("the reply does not fit the request".into()));
    }
    Ok(())
}

/// A pipe would be waited for, and a device read for ever.
fn shared_read(file: std::fs::File) -> io::Result<Vec<u8>> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(
            "what the broker shares is no regular file",
        ));
    }
    let mut bytes = Vec::new();
    file.take(SHARED_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A link leads only to one with a lower number, so chains end.
pub fn chains_parse(bytes: &[u8]) -> Vec<debox_chain> {
    (1u32..)
        .zip(bytes.chunks_exact(size_of::<debox_chain>()))
        .take(DEBOX_CHAINS_MAX)
        .filter_map(|(number, bytes)| {
            let link = debox_chain::read_from(bytes)?;
            let parent = if link.parent < number { link.parent } else { 0 };
            Some(debox_chain { parent, ..link })
        })
        .collect()
}

/// `NUMBER TAB NAME`, a line for each.
fn functions_parse(text: &str) -> HashMap<u32, String> {
    text.lines()
        .filter_map(|line| {
            let (number, name) = line.split_once('\t')?;
            Some((number.parse().ok()?, debox_output::printable(name)))
        })
        .collect()
}

/// Of several lines about one site the last holds.
pub fn site_stacks_parse(text: &str) -> Vec<(u32, Vec<String>)> {
    let sites: BTreeMap<u32, Vec<String>> = text
        .lines()
        .filter_map(|line| {
            let (site, names) = line.split_once('\t')?;
            let names = names.split(';').filter(|name| !name.is_empty());
            Some((
                site.parse().ok()?,
                names.map(debox_output::printable).collect(),
            ))
        })
        .collect();
    sites.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::{Connection, Patience, shared_read};
    use crate::{Error, packet};
    use debox_abi::{
        DEBOX_MSG_STATUS, DEBOX_PROTOCOL_VERSION, Pod as _, debox_reply, debox_request,
    };
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::time::{Duration, Instant};

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    /// A broker is asked that does so with who connects, and keeps what it returns open.
    fn asked(
        patience: Patience,
        broker: impl FnOnce(OwnedFd) -> OwnedFd + Send,
    ) -> Result<(), Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = packet::bind(&path, true).unwrap();
        packet::listen(&listener, 4).unwrap();
        let mut connection = Connection::open(&path).unwrap();
        connection.patience = patience;
        packet::patience_set(&connection.socket, patience.answer, patience.look);
        std::thread::scope(|scope| {
            let open = scope.spawn(|| broker(listener));
            let answer = connection.ask(&debox_request::new(DEBOX_MSG_STATUS, 0));
            open.join().unwrap();
            answer.map(drop)
        })
    }

    fn request_take(listener: &OwnedFd) -> OwnedFd {
        let socket = packet::accept(listener, true).unwrap();
        let mut request = debox_request::new(0, 0);
        packet::receive(socket.as_raw_fd(), request.as_bytes_mut()).unwrap();
        assert_eq!(request.kind, DEBOX_MSG_STATUS);
        socket
    }

    #[test]
    fn a_broker_that_begins_late_is_waited_for_and_one_that_hangs_is_not() {
        let patience = Patience {
            answer: ms(300),
            taking: ms(60_000),
            look: ms(20),
        };
        // Later than an answer may take, and answered at once then.
        asked(patience, |listener| {
            std::thread::sleep(ms(900));
            let socket = request_take(&listener);
            let reply = debox_reply {
                size: size_of::<debox_reply>() as u32,
                version: DEBOX_PROTOCOL_VERSION,
                kind: DEBOX_MSG_STATUS,
                ..debox_reply::zeroed()
            };
            packet::send(socket.as_raw_fd(), reply.as_bytes(), &[]).unwrap();
            socket
        })
        .unwrap();
        // Who has the request and says nothing has no more time than that.
        let begin = Instant::now();
        let error = asked(patience, |listener| request_take(&listener)).unwrap_err();
        assert!(error.to_string().contains("no answer within"), "{error}");
        assert!(begin.elapsed() < ms(30_000), "{:?}", begin.elapsed());
        // And who never takes it has a limit, too.
        let patience = Patience {
            taking: ms(500),
            ..patience
        };
        let begin = Instant::now();
        let error = asked(patience, |listener| listener).unwrap_err();
        assert!(matches!(error, Error::Starting { .. }), "{error}");
        assert!(begin.elapsed() >= ms(500), "{:?}", begin.elapsed());
    }

    #[test]
    fn names_of_sites_come_from_a_file_of_bounded_size() {
        let (from, _open) = std::io::pipe().unwrap();
        let error = shared_read(OwnedFd::from(from).into()).unwrap_err();
        assert!(error.to_string().contains("no regular file"), "{error}");
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 30).unwrap();
        assert_eq!(shared_read(file).unwrap().len(), 16 << 20);
    }
}
