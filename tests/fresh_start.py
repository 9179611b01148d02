# SPDX-License-Identifier: MIT OR Apache-2.0
"""What did whoever started the tests leave to them that must not matter?

nohup, a script's background job and some CI runners start what they start with
SIGINT ignored; children inherit that, and a test that waits for what SIGINT
does to one of them waits for ever. tests/fresh_start.rs and fresh_start.h are
the same for Rust and C.
"""

import os
import resource
import signal
import stat


def fresh_start():
    """Every signal as a shell's foreground gives it, none blocked, umask 022."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        # Those that Python has a handler for are so already.
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    # Python ignores these two for itself and gives them back to its children.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    os.umask(0o022)


# What steers DeBox or the tools that tests read; where the user's own broker is.
NOT_THE_TESTS = (
    "DEBOX_SOCKET", "DEBOX_COLLECT", "DEBOX_SELECT", "DEBOX_WRAP_LIBRARY", "DEBUGINFOD_URLS",
    "LANGUAGE", "POSIXLY_CORRECT", "COLUMNS", "CLICOLOR_FORCE", "MANPATH", "PKG_CONFIG_PATH",
)  # fmt: skip
# A socket's path holds 107 bytes; tests put names of 60 below.
TMPDIR_MAX = 40
FILES = 65536


def fresh_environment():
    """Variables and limits as on a machine where nobody has set any."""
    for name in NOT_THE_TESTS:
        os.environ.pop(name, None)
    os.environ["LC_ALL"] = "C.UTF-8"
    directory = os.environ.get("TMPDIR", "")
    # Tests of ordinary users need one that these can enter and write.
    if directory and not (
        len(directory) <= TMPDIR_MAX and directory.startswith("/") and os.path.isdir(directory)
        and stat.S_IMODE(os.stat(directory).st_mode) == 0o1777
    ):  # fmt: skip
        print(f"TMPDIR={directory} is not used: it is too long, or not for everybody", flush=True)
        del os.environ["TMPDIR"]
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        _, most = resource.getrlimit(limit)
        try:
            resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except ValueError:  # without CAP_SYS_RESOURCE, which root in a container may lack
            resource.setrlimit(limit, (most, most))
    # Not all that there may be: some programs go through all of them.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES if most == resource.RLIM_INFINITY else min(most, FILES), most))
