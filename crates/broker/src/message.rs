// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is this packet a request, and if not, what is wrong with it?
//!
//! Pure: bytes and what the kernel said about the sender go in, a request or a
//! refusal comes out. Everything a client can put into a packet is judged
//! here, so this is what the fuzz target drives.

use debox_abi::{
    DEBOX_MSG_ACCOUNT, DEBOX_MSG_AWAY, DEBOX_MSG_BOUNDARY, DEBOX_MSG_CHAINS, DEBOX_MSG_COSTS,
    DEBOX_MSG_JOIN, DEBOX_MSG_KERNEL_FUNCTIONS, DEBOX_MSG_LABELS, DEBOX_MSG_SELECT,
    DEBOX_MSG_SITE_STACKS, DEBOX_MSG_SLOTS, DEBOX_MSG_STATUS, DEBOX_MSG_TRACE, DEBOX_MSG_WATCH,
    DEBOX_MSG_YIELD, DEBOX_NR_SLOTS, DEBOX_ON_CPU_HZ_MAX, DEBOX_PROTOCOL_VERSION, DEBOX_REQ_AUDIT,
    DEBOX_REQ_BOUNDARY, DEBOX_REQ_CHAINS, DEBOX_REQ_DESCENDANTS, DEBOX_REQ_DETAILS,
    DEBOX_REQ_EXECUTES, DEBOX_REQ_IRQ, DEBOX_REQ_NOFOLLOW, DEBOX_REQ_ON_CPU,
    DEBOX_REQ_OPEN_COUNTED, DEBOX_REQ_OWNERS_FIRST, DEBOX_REQ_RENAMES, DEBOX_REQ_RUN_TIME,
    DEBOX_REQ_SPLICE, DEBOX_REQ_TRACE_ACCOUNT, DEBOX_REQ_TRACE_STOP, DEBOX_REQ_USER_STACKS,
    DEBOX_SELECT_RANK_MAX, DEBOX_TRACE_MAX, DEBOX_TRACE_WAY_TRACEPOINT, Pod, debox_reply,
    debox_request, debox_select, debox_trace_request,
};
use debox_probe::{AccountOptions, Boundary, Pattern, SegmentOptions, TraceOptions, Way, Whom};

/// The one length of a request of protocol version 1.
pub const REQUEST_SIZE: usize = size_of::<debox_request>();
/// ... but for DEBOX_MSG_TRACE, which says more, the longest of all,
pub const TRACE_REQUEST_SIZE: usize = size_of::<debox_trace_request>();
/// and DEBOX_MSG_SELECT.
pub const SELECT_REQUEST_SIZE: usize = size_of::<debox_select>();

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
    /// Of the account's samples.
    KernelFunctions,
    Join {
        follow: bool,
    },
    Watch {
        pid: u32,
        follow: bool,
        descendants: bool,
    },
    /// `except` is not filled in.
    Select(Whom),
    Yield,
    Boundary(Boundary),
    /// `run_time`: of the programs in the kernel as well.
    Costs {
        run_time: bool,
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
            Request::KernelFunctions => DEBOX_MSG_KERNEL_FUNCTIONS,
            Request::Join { .. } => DEBOX_MSG_JOIN,
            Request::Watch { .. } => DEBOX_MSG_WATCH,
            Request::Select(_) => DEBOX_MSG_SELECT,
            Request::Yield => DEBOX_MSG_YIELD,
            Request::Boundary(_) => DEBOX_MSG_BOUNDARY,
            Request::Costs { .. } => DEBOX_MSG_COSTS,
            Request::Status => DEBOX_MSG_STATUS,
            Request::Trace { .. } | Request::TraceStop => DEBOX_MSG_TRACE,
        }
    }
}

/// Judges one packet. The order of the checks is part of the protocol: framing
/// first, then version, then type, then the fields, so that a client of another
/// version is told about the version and not about some field.
pub fn parse_request(packet: &Packet) -> Result<Request, Refusal> {
    let (kind, request) = framed(packet)?;
    sender_known(kind, packet)?;
    fields_checked(kind, &request)?;
    clock_checked(kind, &request)?;
    match kind {
        DEBOX_MSG_SLOTS => Ok(slots_request(&request)),
        DEBOX_MSG_ACCOUNT => account_request(&request),
        DEBOX_MSG_SITE_STACKS => Ok(Request::SiteStacks),
        DEBOX_MSG_CHAINS => Ok(Request::Chains),
        DEBOX_MSG_LABELS => Ok(Request::Labels),
        DEBOX_MSG_AWAY => Ok(Request::Away),
        DEBOX_MSG_KERNEL_FUNCTIONS => Ok(Request::KernelFunctions),
        DEBOX_MSG_JOIN => Ok(Request::Join {
            follow: !has(&request, DEBOX_REQ_NOFOLLOW),
        }),
        DEBOX_MSG_WATCH => watch_request(&request),
        DEBOX_MSG_TRACE => trace_request(packet),
        DEBOX_MSG_SELECT => select_request(packet),
        DEBOX_MSG_YIELD => Ok(Request::Yield),
        DEBOX_MSG_BOUNDARY => boundary_request(&request),
        DEBOX_MSG_COSTS => Ok(Request::Costs {
            run_time: has(&request, DEBOX_REQ_RUN_TIME),
        }),
        _ => Ok(Request::Status),
    }
}

/// The type and the head of a request of this version and of its length.
fn framed(packet: &Packet) -> Result<(u32, debox_request), Refusal> {
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
    let wanted = match kind {
        DEBOX_MSG_TRACE => TRACE_REQUEST_SIZE,
        DEBOX_MSG_SELECT => SELECT_REQUEST_SIZE,
        _ => REQUEST_SIZE,
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
    Ok((kind, request))
}

fn sender_known(kind: u32, packet: &Packet) -> Result<(), Refusal> {
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
    Ok(())
}

/// The flags that a type knows.
fn flags_known(kind: u32) -> Result<u32, Refusal> {
    Ok(match kind {
        DEBOX_MSG_SLOTS => DEBOX_REQ_BOUNDARY | DEBOX_REQ_CHAINS | DEBOX_REQ_IRQ,
        DEBOX_MSG_ACCOUNT => {
            DEBOX_REQ_BOUNDARY
                | DEBOX_REQ_DETAILS
                | DEBOX_REQ_USER_STACKS
                | DEBOX_REQ_IRQ
                | DEBOX_REQ_ON_CPU
                | DEBOX_REQ_SPLICE
                | DEBOX_REQ_AUDIT
        }
        DEBOX_MSG_JOIN => DEBOX_REQ_NOFOLLOW,
        DEBOX_MSG_SELECT => DEBOX_REQ_NOFOLLOW | DEBOX_REQ_OWNERS_FIRST,
        DEBOX_MSG_WATCH => DEBOX_REQ_NOFOLLOW | DEBOX_REQ_DESCENDANTS,
        DEBOX_MSG_BOUNDARY => DEBOX_REQ_OPEN_COUNTED | DEBOX_REQ_RENAMES | DEBOX_REQ_EXECUTES,
        DEBOX_MSG_COSTS => DEBOX_REQ_RUN_TIME,
        DEBOX_MSG_STATUS
        | DEBOX_MSG_SITE_STACKS
        | DEBOX_MSG_CHAINS
        | DEBOX_MSG_LABELS
        | DEBOX_MSG_AWAY
        | DEBOX_MSG_KERNEL_FUNCTIONS
        | DEBOX_MSG_YIELD => 0,
        DEBOX_MSG_TRACE => DEBOX_REQ_TRACE_ACCOUNT | DEBOX_REQ_TRACE_STOP,
        _ => {
            return Err(Refusal::new(
                kind,
                libc::EOPNOTSUPP,
                format!(
                    "request type {kind} is not known to this broker (it knows \
                     {DEBOX_MSG_SLOTS} to {DEBOX_MSG_COSTS}); a newer deboxd may."
                ),
            ));
        }
    })
}

fn fields_checked(kind: u32, request: &debox_request) -> Result<(), Refusal> {
    let allowed_flags = flags_known(kind)?;
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
    if ![DEBOX_MSG_WATCH, DEBOX_MSG_BOUNDARY].contains(&kind) && request.pid != 0 {
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
    Ok(())
}

fn clock_checked(kind: u32, request: &debox_request) -> Result<(), Refusal> {
    let clock = kind == DEBOX_MSG_ACCOUNT && request.flags & DEBOX_REQ_ON_CPU != 0;
    let hz_allowed = if clock {
        1..=DEBOX_ON_CPU_HZ_MAX
    } else {
        0..=0
    };
    if !hz_allowed.contains(&request.hz) {
        return Err(Refusal::new(
            kind,
            libc::EINVAL,
            format!(
                "hz is {}, which must be from {} to {} here; a clock is asked for with \
                 DEBOX_REQ_ON_CPU ({DEBOX_REQ_ON_CPU:#x}) in DEBOX_MSG_ACCOUNT.",
                request.hz,
                hz_allowed.start(),
                hz_allowed.end()
            ),
        ));
    }
    Ok(())
}

fn has(request: &debox_request, flag: u32) -> bool {
    request.flags & flag != 0
}

fn slots_request(request: &debox_request) -> Request {
    Request::Slots {
        options: SegmentOptions {
            boundary: has(request, DEBOX_REQ_BOUNDARY),
            chains: has(request, DEBOX_REQ_CHAINS),
            irq: has(request, DEBOX_REQ_IRQ),
        },
    }
}

fn account_request(request: &debox_request) -> Result<Request, Refusal> {
    let boundary = has(request, DEBOX_REQ_BOUNDARY);
    let details = has(request, DEBOX_REQ_DETAILS);
    let user_stacks = has(request, DEBOX_REQ_USER_STACKS);
    let clock = has(request, DEBOX_REQ_ON_CPU);
    let spliced = has(request, DEBOX_REQ_SPLICE);
    let audit = has(request, DEBOX_REQ_AUDIT);
    if (user_stacks || clock) && !details {
        return Err(Refusal::new(
            DEBOX_MSG_ACCOUNT,
            libc::EINVAL,
            format!(
                "flags {:#x}: user stacks and the clock come with details; set DEBOX_REQ_DETAILS \
                 ({DEBOX_REQ_DETAILS:#x}) as well.",
                request.flags
            ),
        ));
    }
    if spliced && (boundary || !details) {
        return Err(Refusal::new(
            DEBOX_MSG_ACCOUNT,
            libc::EINVAL,
            format!(
                "flags {:#x}: splice capture comes with details, and instead of boundary capture; \
                 set DEBOX_REQ_DETAILS ({DEBOX_REQ_DETAILS:#x}), clear DEBOX_REQ_BOUNDARY \
                 ({DEBOX_REQ_BOUNDARY:#x}).",
                request.flags
            ),
        ));
    }
    if audit && !spliced {
        return Err(Refusal::new(
            DEBOX_MSG_ACCOUNT,
            libc::EINVAL,
            format!(
                "flags {:#x}: what is looked after is what spliced programs tell; set DEBOX_REQ_SPLICE \
                 ({DEBOX_REQ_SPLICE:#x}) as well.",
                request.flags
            ),
        ));
    }
    Ok(Request::Account {
        options: AccountOptions {
            boundary,
            spliced,
            audit,
            details,
            irq: has(request, DEBOX_REQ_IRQ),
            on_cpu_hz: request.hz,
        },
        user_stacks,
    })
}

fn pid_checked(kind: u32, request: &debox_request) -> Result<u32, Refusal> {
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
    Ok(request.pid as u32)
}

fn boundary_request(request: &debox_request) -> Result<Request, Refusal> {
    Ok(Request::Boundary(Boundary {
        tid: pid_checked(DEBOX_MSG_BOUNDARY, request)?,
        open_counted: has(request, DEBOX_REQ_OPEN_COUNTED),
        renames: has(request, DEBOX_REQ_RENAMES),
        executes: has(request, DEBOX_REQ_EXECUTES),
    }))
}

fn watch_request(request: &debox_request) -> Result<Request, Refusal> {
    let pid = pid_checked(DEBOX_MSG_WATCH, request)?;
    Ok(Request::Watch {
        pid,
        follow: !has(request, DEBOX_REQ_NOFOLLOW),
        descendants: has(request, DEBOX_REQ_DESCENDANTS),
    })
}

/// The rest of a DEBOX_MSG_SELECT, whose head has been judged.
fn select_request(packet: &Packet) -> Result<Request, Refusal> {
    let kind = DEBOX_MSG_SELECT;
    let invalid = |text: String| Refusal::new(kind, libc::EINVAL, text);
    let Some(request) = debox_select::read_from(packet.bytes) else {
        return Err(Refusal::closing(
            kind,
            libc::EBADMSG,
            "the packet was cut off.",
        ));
    };
    if request.reserved.iter().any(|&word| word != 0) {
        return Err(invalid(
            "the reserved bytes of the request are not zero; clear the whole struct before filling \
             it in."
                .into(),
        ));
    }
    let follow = !has(&request.head, DEBOX_REQ_NOFOLLOW);
    let owners_first = has(&request.head, DEBOX_REQ_OWNERS_FIRST);
    if owners_first && request.rank == 0 {
        return Err(invalid(
            "owners go before policies only (DEBOX_REQ_OWNERS_FIRST), and rank 0 is none.".into(),
        ));
    }
    if request.rank > DEBOX_SELECT_RANK_MAX || (request.rank != 0 && !follow) {
        return Err(invalid(format!(
            "rank {} was asked for; {DEBOX_SELECT_RANK_MAX} is the most, and 0 the only one of who does not follow.",
            request.rank
        )));
    }
    let uids = request.uid.get(..request.uids as usize).ok_or_else(|| {
        invalid(format!(
            "{} users were chosen, the limit is {}.",
            request.uids,
            request.uid.len()
        ))
    })?;
    let patterns = |texts: Option<Vec<String>>, of: fn(&str) -> Result<Pattern, String>| {
        texts
            .ok_or_else(|| invalid("patterns end with a zero byte and are plain ASCII.".into()))?
            .iter()
            .map(|text| of(text).map_err(invalid))
            .collect::<Result<Vec<Pattern>, Refusal>>()
    };
    Ok(Request::Select(Whom {
        uids: uids.to_vec(),
        comms: patterns(request.comms(), Pattern::of_comm)?,
        cgroups: patterns(request.cgroups(), Pattern::of_path)?,
        follow,
        rank: request.rank,
        owners_first,
        except: [0; 2],
    }))
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
