// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is this packet a request, and if not, what is wrong with it?
//!
//! Pure: bytes and what the kernel said about the sender go in, a request or a
//! refusal comes out. Everything a client can put into a packet is judged
//! here, so this is what the fuzz target drives.

use debox_abi::{
    DEBOX_MSG_ACCOUNT, DEBOX_MSG_AWAY, DEBOX_MSG_CHAINS, DEBOX_MSG_JOIN, DEBOX_MSG_LABELS,
    DEBOX_MSG_SITE_STACKS, DEBOX_MSG_SLOTS, DEBOX_MSG_STATUS, DEBOX_MSG_TRACE, DEBOX_MSG_WATCH,
    DEBOX_NR_SLOTS, DEBOX_PROTOCOL_VERSION, DEBOX_REQ_BOUNDARY, DEBOX_REQ_CHAINS,
    DEBOX_REQ_DETAILS, DEBOX_REQ_IRQ, DEBOX_REQ_NOFOLLOW, DEBOX_REQ_TRACE_ACCOUNT,
    DEBOX_REQ_TRACE_STOP, DEBOX_REQ_USER_STACKS, DEBOX_TRACE_MAX, DEBOX_TRACE_WAY_TRACEPOINT, Pod,
    debox_reply, debox_request, debox_trace_request,
};
use debox_probe::{AccountOptions, SegmentOptions, TraceOptions, Way};

/// The one length of a request of protocol version 1.
pub const REQUEST_SIZE: usize = size_of::<debox_request>();
/// ... but for DEBOX_MSG_TRACE, which says more.
pub const TRACE_REQUEST_SIZE: usize = size_of::<debox_trace_request>();

/// What the kernel says about the sender of one packet (SCM_CREDENTIALS), as
/// seen from the broker's own namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// Thread group; 0 when the sender is not visible in our PID namespace.
    pub pid: u32,
    /// Real user id.
    pub uid: u32,
    /// Real group id.
    pub gid: u32,
}

/// One packet as it came in.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    /// The bytes that fitted into the receive buffer.
    pub bytes: &'a [u8],
    /// The packet's real length; larger than `bytes` when it was cut off.
    pub length: usize,
    pub sender: Option<Credentials>,
    /// Descriptors (or other ancillary data) came along.
    pub descriptors: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Slots {
        options: SegmentOptions,
    },
    Account {
        options: AccountOptions,
        /// Begin when user stacks can be taken, of what the client has mapped.
        user_stacks: bool,
    },
    /// The kernel functions of the sites, as text.
    SiteStacks,
    Chains,
    Labels,
    Away,
    Join {
        follow: bool,
    },
    Watch {
        pid: u32,
        follow: bool,
    },
    Status,
    Trace {
        /// Of the connection's account, not of the sender's own calls.
        account: bool,
        options: TraceOptions,
    },
    TraceStop,
}

/// Why a request is not carried out. It becomes the reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The request's type as far as it could be read, else 0.
    pub kind: u32,
    /// Positive.
    pub errno: i32,
    pub text: String,
    /// The sender does not speak the protocol: the connection ends here.
    pub close: bool,
}

impl Refusal {
    /// A request that was understood and is not granted; the connection goes on.
    pub fn new(kind: u32, errno: i32, text: impl Into<String>) -> Self {
        Self {
            kind,
            errno,
            text: text.into(),
            close: false,
        }
    }

    fn closing(kind: u32, errno: i32, text: impl Into<String>) -> Self {
        Self {
            close: true,
            ..Self::new(kind, errno, text)
        }
    }

    pub fn reply(&self) -> debox_reply {
        debox_reply::refusal(self.kind, self.errno, &self.text)
    }
}

impl Request {
    /// DEBOX_MSG_*
    pub fn kind(&self) -> u32 {
        match self {
            Request::Slots { .. } => DEBOX_MSG_SLOTS,
            Request::Account { .. } => DEBOX_MSG_ACCOUNT,
            Request::SiteStacks => DEBOX_MSG_SITE_STACKS,
            Request::Chains => DEBOX_MSG_CHAINS,
            Request::Labels => DEBOX_MSG_LABELS,
            Request::Away => DEBOX_MSG_AWAY,
            Request::Join { .. } => DEBOX_MSG_JOIN,
            Request::Watch { .. } => DEBOX_MSG_WATCH,
            Request::Status => DEBOX_MSG_STATUS,
            Request::Trace { .. } | Request::TraceStop => DEBOX_MSG_TRACE,
        }
    }
}

/// Judges one packet. The order of the checks is part of the protocol: framing
/// first, then version, then type, then the fields, so that a client of another
/// version is told about the version and not about some field.
pub fn parse_request(packet: &Packet) -> Result<Request, Refusal> {
    // The first 12 bytes keep their meaning in every version of the protocol.
    let word = |at: usize| -> Option<u32> {
        let bytes = packet.bytes.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let kind = word(8).unwrap_or(0);

    if packet.descriptors {
        return Err(Refusal::closing(
            kind,
            libc::EPROTO,
            "the request carried file descriptors (SCM_RIGHTS) or other ancillary data; no \
             request takes any, they were closed. Send the 64 bytes of struct debox_request alone.",
        ));
    }
    let (Some(size), Some(version)) = (word(0), word(4)) else {
        return Err(Refusal::closing(
            kind,
            libc::EBADMSG,
            format!(
                "a packet of {} bytes is too short to be a request; send one struct debox_request \
                 ({REQUEST_SIZE} bytes) in one packet.",
                packet.length
            ),
        ));
    };
    if version != DEBOX_PROTOCOL_VERSION {
        return Err(Refusal::closing(
            kind,
            libc::EPROTONOSUPPORT,
            format!(
                "the client speaks protocol version {version}, this broker speaks \
                 {DEBOX_PROTOCOL_VERSION}; install libdebox and deboxd of the same release and \
                 restart both."
            ),
        ));
    }
    let wanted = if kind == DEBOX_MSG_TRACE {
        TRACE_REQUEST_SIZE
    } else {
        REQUEST_SIZE
    };
    if packet.length != wanted || size as usize != wanted {
        return Err(Refusal::closing(
            kind,
            libc::EMSGSIZE,
            format!(
                "a request of version {DEBOX_PROTOCOL_VERSION} has {wanted} bytes; this \
                 packet has {} and its size field says {size}. Send one struct debox_request per \
                 packet.",
                packet.length
            ),
        ));
    }
    let Some(request) = debox_request::read_from(packet.bytes) else {
        // length says 64 but fewer bytes are there: a caller's mistake, not a
        // client's; refuse it all the same.
        return Err(Refusal::closing(
            kind,
            libc::EBADMSG,
            "the packet was cut off.",
        ));
    };

    let Some(sender) = packet.sender else {
        return Err(Refusal::closing(
            kind,
            libc::EPROTO,
            "the kernel told nothing about the sender of this packet (no SCM_CREDENTIALS); \
             connect anew with an AF_UNIX SOCK_SEQPACKET socket.",
        ));
    };
    if sender.pid == 0 {
        return Err(Refusal::closing(
            kind,
            libc::ESRCH,
            "the broker cannot see your process: it is in a PID namespace outside of the broker's \
             (run deboxd in the host's), or it asked before the broker was up (connect again).",
        ));
    }

    let allowed_flags = match kind {
        DEBOX_MSG_SLOTS => DEBOX_REQ_BOUNDARY | DEBOX_REQ_CHAINS | DEBOX_REQ_IRQ,
        DEBOX_MSG_ACCOUNT => {
            DEBOX_REQ_BOUNDARY | DEBOX_REQ_DETAILS | DEBOX_REQ_USER_STACKS | DEBOX_REQ_IRQ
        }
        DEBOX_MSG_JOIN | DEBOX_MSG_WATCH => DEBOX_REQ_NOFOLLOW,
        DEBOX_MSG_STATUS
        | DEBOX_MSG_SITE_STACKS
        | DEBOX_MSG_CHAINS
        | DEBOX_MSG_LABELS
        | DEBOX_MSG_AWAY => 0,
        DEBOX_MSG_TRACE => DEBOX_REQ_TRACE_ACCOUNT | DEBOX_REQ_TRACE_STOP,
        _ => {
            return Err(Refusal::new(
                kind,
                libc::EOPNOTSUPP,
                format!(
                    "request type {kind} is not known to this broker (it knows \
                     {DEBOX_MSG_SLOTS} to {DEBOX_MSG_AWAY}); a newer deboxd may."
                ),
            ));
        }
    };
    let unknown = request.flags & !allowed_flags;
    if unknown != 0 {
        return Err(Refusal::new(
            kind,
            libc::EINVAL,
            format!(
                "flags {unknown:#x} mean nothing for request type {kind} (allowed: \
                 {allowed_flags:#x}); clear them."
            ),
        ));
    }
    if request.reserved.iter().any(|&word| word != 0) {
        return Err(Refusal::new(
            kind,
            libc::EINVAL,
            "the reserved bytes of the request are not zero; clear the whole struct before \
             filling it in.",
        ));
    }
    if kind != DEBOX_MSG_WATCH && request.pid != 0 {
        return Err(Refusal::new(
            kind,
            libc::EINVAL,
            format!(
                "pid is {} but request type {kind} is about the sender's own process; set pid to \
                 0, or use DEBOX_MSG_WATCH.",
                request.pid
            ),
        ));
    }

    if kind == DEBOX_MSG_TRACE {
        return trace_request(packet);
    }
    let boundary = request.flags & DEBOX_REQ_BOUNDARY != 0;
    let irq = request.flags & DEBOX_REQ_IRQ != 0;
    let follow = request.flags & DEBOX_REQ_NOFOLLOW == 0;
    Ok(match kind {
        DEBOX_MSG_SLOTS => Request::Slots {
            options: SegmentOptions {
                boundary,
                chains: request.flags & DEBOX_REQ_CHAINS != 0,
                irq,
            },
        },
        DEBOX_MSG_ACCOUNT => {
            let details = request.flags & DEBOX_REQ_DETAILS != 0;
            let user_stacks = request.flags & DEBOX_REQ_USER_STACKS != 0;
            if (details && !boundary) || (user_stacks && !details) {
                return Err(Refusal::new(
                    kind,
                    libc::EINVAL,
                    format!(
                        "flags {:#x}: details come with boundary capture, user stacks with \
                         details; set DEBOX_REQ_BOUNDARY ({DEBOX_REQ_BOUNDARY:#x}) and \
                         DEBOX_REQ_DETAILS ({DEBOX_REQ_DETAILS:#x}) as well.",
                        request.flags
                    ),
                ));
            }
            Request::Account {
                options: AccountOptions {
                    boundary,
                    details,
                    irq,
                },
                user_stacks,
            }
        }
        DEBOX_MSG_SITE_STACKS => Request::SiteStacks,
        DEBOX_MSG_CHAINS => Request::Chains,
        DEBOX_MSG_LABELS => Request::Labels,
        DEBOX_MSG_AWAY => Request::Away,
        DEBOX_MSG_JOIN => Request::Join { follow },
        DEBOX_MSG_WATCH => {
            if request.pid <= 0 {
                return Err(Refusal::new(
                    kind,
                    libc::EINVAL,
                    format!(
                        "pid {} names no process; give a process id above 0.",
                        request.pid
                    ),
                ));
            }
            Request::Watch {
                pid: request.pid as u32,
                follow,
            }
        }
        _ => Request::Status,
    })
}

/// The rest of a DEBOX_MSG_TRACE, whose head has been judged.
fn trace_request(packet: &Packet) -> Result<Request, Refusal> {
    let kind = DEBOX_MSG_TRACE;
    let invalid = |text: String| Refusal::new(kind, libc::EINVAL, text);
    let Some(request) = debox_trace_request::read_from(packet.bytes) else {
        return Err(Refusal::closing(
            kind,
            libc::EBADMSG,
            "the packet was cut off.",
        ));
    };
    if request.head.flags & DEBOX_REQ_TRACE_STOP != 0 {
        return Ok(Request::TraceStop);
    }
    if request.reserved.iter().any(|&word| word != 0) {
        return Err(invalid(
            "the reserved bytes of the request are not zero; clear the whole struct before filling \
             it in."
                .into(),
        ));
    }
    if request.capacity > DEBOX_TRACE_MAX {
        return Err(invalid(format!(
            "a trace of {} entries was asked for, the limit is {DEBOX_TRACE_MAX}.",
            request.capacity
        )));
    }
    if request.way > DEBOX_TRACE_WAY_TRACEPOINT {
        return Err(invalid(format!(
            "there is no way {} of tracing (0 to {DEBOX_TRACE_WAY_TRACEPOINT}).",
            request.way
        )));
    }
    let calls = request
        .calls
        .get(..request.calls_count as usize)
        .ok_or_else(|| {
            invalid(format!(
                "{} calls were chosen, the limit is {}.",
                request.calls_count,
                request.calls.len()
            ))
        })?
        .to_vec();
    if let Some(key) = calls.iter().find(|&&key| key as usize >= DEBOX_NR_SLOTS) {
        return Err(invalid(format!("{key} is no key of a call (DEBOX_NR_*).")));
    }
    let end = request.patterns.iter().position(|&b| b == 0);
    let patterns = end.and_then(|end| std::str::from_utf8(&request.patterns[..end]).ok());
    let Some(patterns) = patterns.filter(|p| p.bytes().all(|b| b.is_ascii_graphic() || b == b' '))
    else {
        return Err(invalid(
            "the patterns of functions are not plain text that ends with a zero byte.".into(),
        ));
    };
    Ok(Request::Trace {
        account: request.head.flags & DEBOX_REQ_TRACE_ACCOUNT != 0,
        options: TraceOptions {
            capacity: request.capacity,
            threads: request.threads,
            way: Way::from_number(request.way),
            calls,
            patterns: patterns.to_owned(),
        },
    })
}
