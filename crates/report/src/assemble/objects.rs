// SPDX-License-Identifier: MIT OR Apache-2.0
//! What did a call work on, in words?

use crate::model::{Object, ObjectKind};
use debox_abi::*;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// Bytes of a name that are not UTF-8 stand there as `\xff`.
fn name_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let mut name = String::new();
    for chunk in bytes[..end].utf8_chunks() {
        name.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(name, "\\x{byte:02x}");
        }
    }
    name
}

fn device_text(dev: u32) -> String {
    format!("{}:{}", dev >> 20, dev & 0xf_ffff)
}

fn anonymous_kind(name: &str) -> ObjectKind {
    match name {
        "[eventpoll]" => ObjectKind::Epoll,
        "[eventfd]" => ObjectKind::Eventfd,
        "[timerfd]" => ObjectKind::Timerfd,
        "[signalfd]" => ObjectKind::Signalfd,
        "inotify" => ObjectKind::Inotify,
        "[fanotify]" => ObjectKind::Fanotify,
        "[pidfd]" => ObjectKind::Pidfd,
        "[io_uring]" => ObjectKind::IoUring,
        _ => ObjectKind::Anonymous,
    }
}

fn kind_of(o: &debox_object, name: &str) -> ObjectKind {
    match o.kind {
        DEBOX_OBJECT_FILE => ObjectKind::File,
        DEBOX_OBJECT_DIRECTORY => ObjectKind::Directory,
        DEBOX_OBJECT_CHARACTER => ObjectKind::CharacterDevice,
        DEBOX_OBJECT_BLOCK => ObjectKind::BlockDevice,
        DEBOX_OBJECT_FIFO => ObjectKind::Fifo,
        DEBOX_OBJECT_PIPE => ObjectKind::Pipe,
        DEBOX_OBJECT_SOCKET => ObjectKind::Socket,
        DEBOX_OBJECT_ANON => anonymous_kind(name),
        DEBOX_OBJECT_PSEUDO if name.starts_with("memfd:") => ObjectKind::Memfd,
        DEBOX_OBJECT_PATH => ObjectKind::Path,
        DEBOX_OBJECT_FUTEX => ObjectKind::Futex,
        DEBOX_OBJECT_NONE if o.flags & DEBOX_OBJECT_UNSURE != 0 => ObjectKind::Unsure,
        _ => ObjectKind::Other,
    }
}

fn socket_text(o: &debox_object) -> String {
    match (o.family, o.socket_type, o.protocol) {
        (AF_UNIX, ..) => "unix".into(),
        (AF_INET | AF_INET6, 1, 262) => "mptcp".into(),
        (AF_INET | AF_INET6, 1, 0 | 6) => "tcp".into(),
        (AF_INET | AF_INET6, 2, 0 | 17) => "udp".into(),
        (AF_INET | AF_INET6, _, 132) => "sctp".into(),
        (AF_INET | AF_INET6, 3, protocol) => format!("ip protocol {protocol}"),
        (16, ..) => "netlink".into(),
        (17, ..) => "packet".into(),
        (40, ..) => "vsock".into(),
        (family, ..) => format!("socket of family {family}"),
    }
}

/// `address:port`; a port that is not told apart is a star.
fn address_text(family: u16, address: &[u8; 16], port: u16) -> String {
    let ip = match family {
        AF_INET => IpAddr::V4(Ipv4Addr::new(
            address[0], address[1], address[2], address[3],
        )),
        _ => IpAddr::V6(Ipv6Addr::from(*address)).to_canonical(),
    };
    let port = match port {
        0 => "*".to_owned(),
        port => port.to_string(),
    };
    match ip {
        IpAddr::V4(ip) => format!("{ip}:{port}"),
        IpAddr::V6(ip) => format!("[{ip}]:{port}"),
    }
}

fn text_of(o: &Object) -> String {
    let name = o.name.as_deref().unwrap_or("");
    let cut = if o.cut { "…" } else { "" };
    let numbered = |what: &str| {
        let mut text = what.to_owned();
        if let Some(fd) = o.descriptor {
            let _ = write!(text, " {fd}");
        }
        if let Some(pid) = o.pid {
            let _ = write!(text, " of process {pid}");
        }
        text
    };
    match o.kind {
        ObjectKind::File
        | ObjectKind::Directory
        | ObjectKind::CharacterDevice
        | ObjectKind::BlockDevice
        | ObjectKind::Fifo
        | ObjectKind::Other => {
            let deleted = if o.deleted { " (deleted)" } else { "" };
            match (name, o.inode) {
                ("", Some(inode)) => format!("inode {inode}{deleted}"),
                _ => format!("{cut}{name}{deleted}"),
            }
        }
        ObjectKind::Path if name.is_empty() => "(a path that could not be read)".into(),
        ObjectKind::Path => format!("{name}{cut}"),
        ObjectKind::Pipe => format!("pipe {}", o.inode.unwrap_or(0)),
        ObjectKind::Memfd => format!("memfd {}", name.trim_start_matches("memfd:")),
        ObjectKind::Futex => {
            let address = o.inode.unwrap_or(0);
            format!("futex {address:#x} of process {}", o.pid.unwrap_or(0))
        }
        ObjectKind::Socket => {
            let mut text = o.socket.clone().unwrap_or_else(|| "socket".into());
            match (&o.local, &o.peer) {
                (Some(local), Some(peer)) => {
                    let _ = write!(text, " {local} with {peer}");
                }
                (Some(local), None) => {
                    let _ = write!(text, " {local}");
                }
                (None, Some(peer)) => {
                    let _ = write!(text, " to {peer}");
                }
                (None, None) => {}
            }
            if !name.is_empty() {
                let to = if o.peer_name { "to " } else { "" };
                let _ = write!(text, " {to}{name}");
            }
            match o.peer_pid {
                Some(pid) => {
                    let _ = write!(text, " with process {pid}");
                }
                None if o.withheld => text.push_str(" with another user's process"),
                None => {}
            }
            if let (None, None, "", None, Some(inode)) =
                (&o.local, &o.peer, name, o.peer_pid, o.inode)
            {
                let _ = write!(text, " socket {inode}");
            }
            text
        }
        ObjectKind::Epoll => numbered("epoll"),
        ObjectKind::Eventfd => numbered("eventfd"),
        ObjectKind::Timerfd => numbered("timerfd"),
        ObjectKind::Signalfd => numbered("signalfd"),
        ObjectKind::Inotify => numbered("inotify"),
        ObjectKind::Fanotify => numbered("fanotify"),
        ObjectKind::Pidfd => numbered("pidfd"),
        ObjectKind::IoUring => numbered("io_uring"),
        ObjectKind::Anonymous => numbered(name),
        ObjectKind::NoRoom => "(no room for more objects)".into(),
        ObjectKind::Unsure => {
            "(not certain: another thread could have changed the descriptor)".into()
        }
    }
}

impl Object {
    /// Of a file, as far as it has one; or as it was passed.
    pub fn path(&self) -> Option<&str> {
        match self.kind {
            ObjectKind::File
            | ObjectKind::Directory
            | ObjectKind::CharacterDevice
            | ObjectKind::BlockDevice
            | ObjectKind::Fifo
            | ObjectKind::Path => self.name.as_deref(),
            _ => None,
        }
    }

    /// What found no room among the objects.
    pub fn no_room() -> Object {
        let mut object = Object {
            kind: ObjectKind::NoRoom,
            ..Object::default()
        };
        object.text = text_of(&object);
        object
    }

    /// None: the call has no object, or it was not seen.
    pub fn of(o: &debox_object) -> Option<Object> {
        let has = |flag: u32| o.flags & flag != 0;
        if o.kind == DEBOX_OBJECT_NONE && !has(DEBOX_OBJECT_UNSURE) {
            return None;
        }
        let name = name_of(&o.text);
        let kind = kind_of(o, &name);
        let placed = o.kind <= DEBOX_OBJECT_FIFO || kind == ObjectKind::Other;
        let numbered = o.kind == DEBOX_OBJECT_ANON;
        let socket = kind == ObjectKind::Socket;
        let device = matches!(kind, ObjectKind::CharacterDevice | ObjectKind::BlockDevice);
        let some = |wanted: bool, value: u64| (wanted && value != 0).then_some(value);
        let mut object = Object {
            kind,
            text: String::new(),
            name: (!name.is_empty()).then_some(name),
            deleted: has(DEBOX_OBJECT_DELETED),
            cut: has(DEBOX_OBJECT_CUT),
            device: (placed && o.kind != DEBOX_OBJECT_NONE).then(|| device_text(o.dev)),
            inode: some(kind != ObjectKind::Path && !numbered, o.ino),
            several_inodes: has(DEBOX_OBJECT_SEVERAL),
            special: device.then(|| device_text(o.rdev)),
            descriptor: (numbered && o.fd >= 0).then_some(o.fd),
            pid: some(numbered || kind == ObjectKind::Futex, o.pid.into()).map(|pid| pid as u32),
            socket: socket.then(|| socket_text(o)),
            local: has(DEBOX_OBJECT_LOCAL).then(|| address_text(o.family, &o.local, o.local_port)),
            peer: has(DEBOX_OBJECT_PEER).then(|| address_text(o.family, &o.peer, o.peer_port)),
            peer_name: has(DEBOX_OBJECT_TEXT_PEER),
            peer_pid: some(socket, o.peer_pid.into()).map(|pid| pid as u32),
            withheld: has(DEBOX_OBJECT_WITHHELD),
            late: has(DEBOX_OBJECT_LATE),
        };
        object.text = text_of(&object);
        Some(object)
    }
}
