# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which designs does the server go through, and what is each of them to mend?

The order is that of section 5 of the DeBox paper: each design is the one before it
with one thing changed, by what DeBox said of that one.
"""

from typing import NamedTuple


class Design(NamedTuple):
    name: str
    switches: dict[str, str]
    paper: str  # what the paper did there, and where
    change: str  # against the one before


FIRST = {"model": "amped", "send": "sendfile", "residency": "none", "names": "loop", "cgi": "fork", "cgi-answer": "pipe", "helpers": "8"}

DESIGNS = (
    Design("loop", FIRST, "no counterpart: what an event loop without helpers does", "one process does all by itself"),
    Design(
        "maps",
        FIRST | {"send": "writev", "residency": "mincore", "names": "path"},
        "5.1, the first Flash: mapped files, mincore, helpers that load what the loop then opens again",
        "mapped files; mincore(2) before each piece; helpers read what is missing and look names up",
    ),
    Design(
        "descriptors",
        FIRST | {"send": "writev", "residency": "mincore", "names": "descriptor"},
        "5.2: helpers pass open files, so that the loop does not open them again",
        "helpers pass descriptors (SCM_RIGHTS)",
    ),
    Design(
        "fork helper",
        FIRST | {"send": "writev", "residency": "mincore", "names": "descriptor", "cgi": "persistent"},
        "5.4.1: fork's time grows with what the loop has mapped",
        "CGI programs are started by a process that is small",
    ),
    Design(
        "no maps",
        FIRST | {"send": "sendfile", "residency": "heuristic", "names": "descriptor", "cgi": "persistent"},
        "5.4.2: mincore and maps go, a heuristic says what is in memory",
        "sendfile; what was sent lately is believed to be in memory",
    ),
    Design(
        "client's socket",
        FIRST | {"send": "sendfile", "residency": "heuristic", "names": "descriptor", "cgi": "persistent", "cgi-answer": "socket"},
        "5.5: the CGI program answers the client itself",
        "a CGI program gets the client's socket",
    ),
    Design(
        "exact",
        FIRST | {"send": "sendfile", "residency": "both", "names": "cached", "cgi": "persistent", "cgi-answer": "socket"},
        "5.6: a sendfile that does not wait for the disk",
        "openat2(RESOLVE_CACHED) in the loop; the exact check that does not start what it asks about",
    ),
)

# No step: no report of DeBox leads to it. sendfile's pages stay in memory until the client has them; what writev copies
# into the socket stays in the server's memory only where sockets count as its own (cgroup v2).
COPIED = Design("exact, maps", DESIGNS[-1].switches | {"send": "writev"}, "none", "as `exact`, but it copies what it sends out of maps")

# What the same code does in other ways. A worker that blocks has one client: there are more of them than clients.
WORKERS = "466"
OTHERS = (
    COPIED,
    Design("cachestat alone", DESIGNS[-1].switches | {"residency": "cachestat"}, "none", "as `exact`, but it takes pages that are still being read for there"),
    Design("nowait alone", DESIGNS[-1].switches | {"residency": "nowait"}, "none", "as `exact`, but its check starts reads of what is missing"),
    Design(
        "vfork",
        FIRST | {"send": "writev", "residency": "mincore", "names": "descriptor", "cgi": "vfork"},
        "none",
        "as `descriptors`, but the loop starts CGI programs by vfork(2), as posix_spawn(3) does, which copies no mappings",
    ),
    Design("threads", FIRST | {"model": "threads", "workers": WORKERS}, "section 4: MT", f"as `loop`, but {WORKERS} threads that block"),
    Design("processes", FIRST | {"model": "processes", "workers": WORKERS}, "section 4: MP", f"as `loop`, but {WORKERS} processes that block"),
)


def argv(design: Design) -> list[str]:
    return [word for name, value in design.switches.items() for word in (f"--{name}", value)]
