# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a process waits for right now (`debox why`)"""

from guest import *  # noqa: F403

PROGRAMS = ["release/debox", "truth/stuck"]
MODULES = ("fuse",)
LIMIT_S = 900


class Stuck:
    """A program that hangs in a known way; its children end with it."""

    def __init__(self, *words):
        self.process = subprocess.Popen([f"{HERE}/stuck", *words], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        expect(line == "ready\n", words, "did not get there:", line)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.kill()
        self.process.wait()

    def asleep(self, name):
        """The number of the thread of that name, once it sleeps."""
        for _ in range(400):
            for pid in os.listdir("/proc"):
                if not pid.isdigit():
                    continue
                try:
                    for tid in os.listdir(f"/proc/{pid}/task"):
                        with open(f"/proc/{pid}/task/{tid}/stat") as file:
                            head, _, rest = file.read().rpartition(")")
                        if head.endswith(f"({name}") and rest.split()[0] in "SDTt":
                            return int(tid)
                except OSError:
                    pass
            time.sleep(0.05)
        expect(False, "no thread", name, "is asleep")


def why(tid):
    time.sleep(0.5)  # asleep, and in the call that it stays in
    answer = json.loads(execute([f"{HERE}/debox", "why", "--json", str(tid)]).stdout)
    equal(answer["source"], "kernel", answer["notes"])
    return answer, next(thread for thread in answer["threads"] if thread["tid"] == tid)


def waits(thread, relation, tid):
    on = thread["waits_for"]
    expect(len(on) == 1, "waits for one:", thread)
    equal((on[0]["relation"], on[0]["tid"] or on[0]["pid"]), (relation, tid), thread)


@check("mutex-ring", smoke=True)


def _():
    with Stuck("ring") as stuck:
        ring = [stuck.asleep(f"ring-{letter}") for letter in "ABC"]
        answer, thread = why(ring[0])
        waits(thread, "holder", ring[1])
        equal(sorted(answer["deadlocks"][0]["threads"]), sorted(ring), answer["sentences"])


@check("file-locks")


def _():
    for kind in ("flock", "posix"):
        with Stuck(kind, f"/tmp/why-{kind}") as stuck:
            holder = stuck.asleep(f"{kind}-holder")
            waits(why(stuck.asleep(f"{kind}-waiter"))[1], "holder", holder)


@check("pipe-and-sockets")


def _():
    with Stuck("pipe") as stuck:
        reader = stuck.asleep("pipe-reader")
        answer, thread = why(stuck.asleep("pipe-writer"))
        waits(thread, "reader", reader)
        expect("which is stopped by a signal" in answer["sentences"][0], answer["sentences"])
    for family in ("unix", "tcp"):
        with Stuck("sockets", family) as stuck:
            a, b = stuck.asleep("socket-A"), stuck.asleep("socket-B")
            answer, thread = why(a)
            waits(thread, "peer", b)
            equal(sorted(answer["deadlocks"][0]["threads"]), sorted((a, b)), answer["sentences"])


@check("children")


def _():
    with Stuck("stopped") as stuck:
        waits(why(stuck.asleep("stopped-parent"))[1], "child", stuck.asleep("stopped-child"))
    with Stuck("vfork") as stuck:
        answer, thread = why(stuck.asleep("vfork-parent"))
        equal(thread["state"], "uninterruptible", thread)
        waits(thread, "child", stuck.asleep("vfork-child"))


@check("kernel-lock", smoke=True)


def _():
    place = "/tmp/why-fuse"
    os.makedirs(place, exist_ok=True)
    with Stuck("fuse-lock", place) as stuck:
        server, holder = stuck.asleep("fuse-server"), stuck.asleep("fuse-maker")
        answer, thread = why(stuck.asleep("fuse-behind"))
        waits(thread, "holder", holder)
        chain = [link["tid"] for link in thread["chain"]]
        equal(chain, [holder, server], answer["sentences"])
