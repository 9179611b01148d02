# SPDX-License-Identifier: MIT OR Apache-2.0
"""The finding of the KernInst paper"""

from guest import *

import re

PROGRAMS = ["release/debox", "proxy/proxy"]
FILES = ["examples/proxy/finding.sh"]
CPUS = 1
# A disk that takes its time, as disks did.
DISK_OPTIONS = "throttling.iops-total=400"
LIMIT_S = 900
KERNELS = ["6.12"]


@check("proxy-finding", feature="`debox kern --auto` explains a slow open()")
def _():
    execute(["busybox", "mount", "-o", "remount,sync", "/var/tmp"])
    with open("/tmp/finding.md", "w") as out:
        done = subprocess.run(
            ["sh", f"{HERE}/finding.sh", f"{HERE}/debox", f"{HERE}/proxy", "/var/tmp"],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=800,
        )
    with open("/tmp/finding.md") as file:
        text = file.read()
    save("finding.md", text)
    equal(done.returncode, 0, "finding.sh's exit status;", text[-800:])
    ways = text[text.index("Where the time of"): text.index("## One slow open")]
    trace = text[text.index("## One slow open"): text.index("## First fix")]
    expect(re.search(r"slowest openat.*path_openat", trace, re.S), "no call trace:", trace)
    expect("do_truncate" in trace and "ext4_truncate" in trace, "no truncation in the trace:", trace)
    # Truncation, down into the journal; and the lookup.
    expect(re.search(r"do_truncate.*ext4_truncate.*jbd2_", ways, re.S), "no way through truncation:", ways)
    expect(re.search(r"lookup|link_path_walk", ways), "no lookup:", ways)
    # The program's own clock: open's share before and after both fixes.
    shares = [float(s) for s in re.findall(r"^\| .*open [0-9.]+ s \(([0-9.]+) %\)", text, re.M)]
    equal(len(shares), 4, "runs")
    expect(shares[0] > 20, "open took only", shares[0], "% before")
    expect(shares[3] < shares[0] / 3, "open took", shares[0], "% before and", shares[3], "% after")
    kernel_log_expect_clean()


native_needs_probes()
