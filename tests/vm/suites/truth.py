# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a call's record and account say

An emulated machine is slow and stalls at any moment, so times are bounded from
below only; counts, labels and sums are exact.
"""

from guest import *  # noqa: F403

PROGRAMS = [
    "release/debox", "release/deboxd", "release/libdebox-wrap.so", "release/libdebox.so.0", "release/debox-splice.bin",
    "truth/truth", "truth/calls", "truth/calls-static", "truth/calls-32", "truth/gocalls", "truth/storm", "truth/chains", "truth/lives", "truth/oncpu", "truth/inband", "truth/locks", "truth/locks-musl", "truth/objects", "truth/flood", "truth/attached",
    "truth/coroutines", "truth/restarted", "truth/clones", "truth/itself",
]  # fmt: skip
MODULES = ("fuse",)
LIMIT_S = 1500
# So slow that reading a file in is seen to block.
DISK_OPTIONS = "throttling.bps-read=6000000"

# Rows of docs/KERNELS.md.
PROGRAMS_LOAD = "BPF programs load and attach"
DOCTOR = "`debox doctor` finds all that the basic features need"
RUN_WRAP = "wrap capture under `debox run --capture=wrap`"
ATTACH_SPLICE = "splice capture of a running program, each call told, which goes on as it would"
RUN_SPLICE = "splice capture under `debox run --capture=splice`, each call told, and what it cannot splice"
RUN_SLEEPS = "sleeps capture under `debox run --capture=sleeps`"
RUN = "boundary capture: exact counts through threads, fork, vfork, exec, kill, 32-bit, static and Go programs"
SLEEP = "records: sleeps, their labels and times, wrap capture"
RUNSLEEP = "accounts: blocking places, boundary capture"
FAULTS = "page faults in the call that took them"
PAGE_IN = "major faults apart from minor ones"
RUNQ = "waits for a CPU apart from sleeps"
INODE_LOCK = "who held the lock, who woke the sleeper"
CHAINS = "what a sleep waited for, link by link"
LOCKS = "who holds locks of the kernel, of files and of programs, and how many wait for them"
OBJECTS = "on which object a call slept"
IRQ = "interrupts that landed in calls, out of the time on CPU"
ON_CPU = "what the threads did on a CPU: functions, kernel, calls"
SPAN = "spans"
SITES_VERIFIED = "sites recognised in the raw stack, none wrong"
NOTHING_STAYS_ATTACHED = "nothing stays attached afterwards"

BEFORE = {}

native(PROGRAMS_LOAD, "deboxd_starts_serves_and_stops", "a_sleep_of_known_length")
native(RUN, "strace_counts_the_same", "awkward_programs_are_counted_exactly", "static_go_and_32_bit_programs_are_counted_exactly")
native(RUN_WRAP, "wrap_counts_and_says_what_it_does_not_cover")
native(ATTACH_SPLICE, "a_running_program_is_counted_and_goes_on", "each_call_is_told")
native(RUN_SPLICE, "short_calls_are_counted_and_their_time_is_estimated", "each_sleep_of_calls_without_stamps_is_told", "the_kernel_side_knows_the_calls", "what_splicing_leaves_is_counted_at_the_boundary",
                   "code_that_comes_back_under_a_thread_loses_no_call", "an_audit_tells_what_was_not_counted", "stacks_are_switched_out_of_calls", "a_call_that_is_stopped_and_goes_on_is_one",
                   "threads_and_processes_of_no_library_are_counted", "a_program_that_changes_its_code_changes_its_own",
       "a_spliced_program_has_the_record_of_its_last_call")
native(RUN_SLEEPS, "sleeps_alone_are_told_without_calls")
native(PAGE_IN, "a_mapped_file_written_to_another")
native(CHAINS, "a_mutex_whose_holder_waits_for_a_pipe", "a_server_on_this_machine", "a_waker_that_is_not_watched",
       "a_record_says_what_its_sleep_waited_for", "a_record_does_not_name_other_users")
native(LOCKS, "three_others_who_are_not_watched_are_counted_as_three", "the_owner_of_a_mutex_is_named", "the_writer_of_a_rwlock_is_named", "musl_has_owners_too",
       "the_call_that_holds_the_address_space_is_named")
native(OBJECTS, "descriptors_are_named_as_they_were_not_as_they_are", "every_kind_of_object_is_told")
native(IRQ, "packets_for_the_machine_itself_are_received_in_the_call_that_sends_them", "records_have_them_too")
native(ON_CPU, "functions_have_the_shares_that_they_have", "the_kernel_has_the_share_that_it_has", "who_sleeps_has_no_samples",
       "of_a_program_with_more_rights_nothing_is_told")
native(SITES_VERIFIED, "no_site_is_ever_mislabelled")
native(NOTHING_STAYS_ATTACHED, "nothing_stays_attached")


@check("kernel-is-the-one-under-test", always=True)
def _():
    equal(os.uname().release, command_line("debox.release"), "the release")
    BEFORE.update(footprint())


@check("programs-load", feature=PROGRAMS_LOAD)
def _():
    with Broker("-vvv") as broker:
        broker.bracketed("nanosleep", "1")


@check("doctor", feature=DOCTOR, smoke=True)
def _():
    doctor = json.loads(execute([f"{HERE}/debox", "doctor", "--json"]).stdout)
    expect(doctor["ok"], doctor["verdict"])
    refused = [c for c in doctor["checks"] if c["state"] not in ("ok", "degraded", "info")]
    expect(not [c for c in refused if c["basic"]], refused)
    by_name = {c["name"]: c["state"] for c in doctor["checks"]}
    # All that these kernels are known to have.
    for name in ("bpf-load", "sched_switch", "sys_enter", "contention_begin", "sched_waking", "interrupts", "task-iterator",
                 "perf-major-faults", "frozen-maps", "kernel-symbols", "sched-info"):
        equal(by_name.get(name), "ok", "doctor's word on", name, "in", doctor["checks"])


@check("run-getppid", feature=RUN, smoke=True)
def _():
    equal(calls("getppid", "1000").call("getppid")["count"], 1000, "getppid")


@check("run-threads", feature=RUN)
def _():
    r = calls("threads", "50", "10")
    equal(r.call("getppid")["count"], 500, "getppid")
    equal(r.all["totals"]["threads_started"], 50, "threads started")


@check("run-fork", feature=RUN, smoke=True)
def _():
    r = calls("fork", "20")
    equal(r.call("getppid")["count"], 20, "getppid")
    equal(r.call("exit_group")["unfinished"], 21, "exits")


@check("run-vfork", feature=RUN)
def _():
    r = calls("vfork", "10")
    equal(r.call("vfork")["count"], 10, "vfork")
    equal(r.call("execve")["count"], 11, "execve")
    expect([b for b in r.blocked("vfork") if b["label"] == "vfork"], r.blocked("vfork"))


@check("run-exec", feature=RUN)
def _():
    r = calls("exec", "5")
    equal(r.call("getppid")["count"], 6, "getppid")
    equal(r.call("execve")["count"], 6, "execve")


@check("run-thread-exec", feature=RUN)
def _():
    calls("thread-exec", expected=7)


@check("run-killed", feature=RUN, smoke=True)
def _():
    r = calls("killed", expected=-signal.SIGKILL)
    read = r.call("read")
    equal(read["unfinished"] + read["restarted"], 1, "reads that were killed:", read)
    expect([b for b in r.blocked("read") if b["label"] == "pipe-read"], "no pipe-read:", r.blocked("read"))


@check("run-errors", feature=RUN)
def _():
    equal(calls("errors", "77").call("close")["errors"], 77, "errors of close")


@check("run-handler", feature=RUN)
def _():
    r = calls("handler", "20")
    equal(r.call("getppid")["count"], 21, "getppid")


@check("run-unknown-call", feature=RUN)
def _():
    r = calls("unknown")
    equal(sum(c["errors"] for c in r.all["calls"] if c["nr"] is None), 1, "unknown calls")


@check("run-static", feature=RUN)
def _():
    equal(calls("getppid", "1000", program="calls-static").call("getppid")["count"], 1000, "getppid")


@check("run-32-bit", feature=RUN)
def _():
    r = calls("getppid", "500", program="calls-32")
    equal(r.call("getppid", 32)["count"], 500, "32-bit getppid")
    equal(r.call("getppid")["count"], 0, "64-bit getppid")


@check("run-go", feature=RUN)
def _():
    r = calls("300", program="gocalls")
    equal(r.call("getppid")["count"], 1200, "getppid")
    waited_in_a_pipe(r.all)


def waited_in_a_pipe(report):
    rows = [b for b in report["blocking"] if b["call"] == "read" and b["label"] == "pipe-read" and b["max_ns"] > 20 * MS]
    expect(rows, "no pipe-read of 20 ms:", report["blocking"])


@check("run-wrap", feature=RUN_WRAP, smoke=True)
def _():
    r = Report([f"{HERE}/truth", "-d", "/var/tmp", "pipe", "40"], ["--capture=wrap", *shared()])
    waited_in_a_pipe(r.all)


def stamps_count_time():
    """The emulated stamps do count time, and the emulated processor does not say so."""
    with open("/proc/cpuinfo") as file:
        text = file.read()
    if "constant_tsc" in text and "nonstop_tsc" in text:
        return
    with open("/tmp/cpuinfo", "w") as file:
        file.write(re.sub(r"^(flags\s*: )", r"\1constant_tsc nonstop_tsc ", text, flags=re.M))
    execute(["mount", "--bind", "/tmp/cpuinfo", "/proc/cpuinfo"])


def spliced(*command, options=(), status=0):
    """What `debox run --capture=splice` says of a command; of an execve no parts are known."""
    path = "/tmp/spliced.json"
    stamps_count_time()
    execute([f"{HERE}/debox", "run", "--capture=splice", "--audit", "--json", "-o", path, *shared(), *options, "--", *command],
            env=dict(os.environ, XDG_CACHE_HOME="/var/tmp"), expected=status)  # fmt: skip
    with open(path) as file:
        report = json.load(file)
    kinds = {note["kind"]: note for note in report["notes"]}
    expect("splice_left" not in kinds and "inconsistent" not in kinds, report["notes"])
    equal(kinds["splice_audit"]["count"], 0, "calls that were not told:", report["notes"])
    return report, kinds


def call_of(report, name):
    return next(row for row in report["calls"] if row["name"] == name)


@check("run-splice", feature=RUN_SPLICE, smoke=True)
def _():
    report, kinds = spliced(f"{HERE}/calls", "getppid", "1000")
    equal(call_of(report, "getppid")["count"], 1000, "getppid")
    expect("splice_boundary" not in kinds, report["notes"])
    report, kinds = spliced(f"{HERE}/gocalls", "300")
    equal(call_of(report, "getppid")["count"], 1200, "getppid of Go")
    expect("splice_boundary" not in kinds, report["notes"])
    report, _ = spliced(f"{HERE}/truth", "-d", "/var/tmp", "pipe", "40", options=("--irq",))
    waited_in_a_pipe(report)
    # It has counted that one, and its end is in no call.
    ended = call_of(report, "exit_group")
    equal((ended["unfinished"], ended["untimed"], ended["wall_ns"], ended["irq_ns"]), (0, ended["count"], None, None), ended)
    for row in report["calls"]:
        expect((row["irq_ns"] or 0) <= (row["wall_ns"] or 0), row)


@check("run-splice-sites", feature=RUN_SPLICE)
def _():
    """Without privileges, hence without anybody's help: the program itself tells from where its calls come."""
    stamps_count_time()
    nobody, folder = 65534, "/var/tmp/nobody"
    os.makedirs(folder, exist_ok=True)
    os.chown(folder, nobody, nobody)
    path = f"{folder}/sites.json"
    execute([f"{HERE}/debox", "run", "--capture=splice", "--call-site", "--json", "-o", path, "--", f"{HERE}/calls", "threads", "4", "500"],
            user=nobody, group=nobody, extra_groups=[], env=dict(os.environ, XDG_CACHE_HOME=folder, HOME=folder))  # fmt: skip
    with open(path) as file:
        report = json.load(file)
    equal(call_of(report, "getppid")["count"], 2000, "getppid")
    places = {row["place"]: row["count"] for row in report["call_sites"] if row["call"] == "getppid"}
    equal(sum(places.values()), 2000, "getppid by place:", places)
    equal(sum(count for place, count in places.items() if place.startswith("getppids")), 2000, "of its function:", places)


@check("run-splice-static", feature=RUN_SPLICE)
def _():
    report, kinds = spliced(f"{HERE}/calls-static", "getppid", "1000")
    equal(call_of(report, "getppid")["count"], 1000, "getppid")


@check("run-splice-sample", feature=RUN_SPLICE)
def _():
    """Without --audit, whose hooks would make each call too long to leave a stamp out."""
    path = "/tmp/sampled.json"
    stamps_count_time()
    for command, calls in (("getppid", 2_000_000), ("threads", 4 * 400_000)):
        words = ["getppid", str(calls)] if command == "getppid" else ["threads", "4", str(calls // 4)]
        execute([f"{HERE}/debox", "run", "--capture=splice", "--sample", "16", "--json", "-o", path, *shared(), "--", f"{HERE}/calls", *words],
                env=dict(os.environ, XDG_CACHE_HOME="/var/tmp"))  # fmt: skip
        with open(path) as file:
            report = json.load(file)
        row = call_of(report, "getppid")
        equal(row["count"], calls, "getppid")
        stamped = sum(bucket["count"] for bucket in row["histogram"])
        equal(stamped + row.get("unstamped", 0), calls, "stamped and not:", row)
        expect(row["mean_ns"] >= 1000 or row.get("unstamped", 0) > 0, "stamped each, and short:", row)
        equal(row["wall_ns"], row["cpu_ns"] + row["blocked_ns"] + row["runq_ns"], row)
        expect("inconsistent" not in {note["kind"] for note in report["notes"]}, report["notes"])


@check("run-splice-programs", feature=RUN_SPLICE)
def _():
    """Programs that do what few do end as they do without, and each call is told (tests/splice)."""
    told = {
        "coroutines": (7, {"getppid": 1201, "getpid": 200, "clock_nanosleep": 21}),
        "restarted": (7, {"clock_nanosleep": 1, "ppoll": 1, "futex": 1}),
        "clones": (7, {"getppid": 2200, "clone3": 21, "exit": 10}),
        "itself": (7, {"getppid": 200, "getpid": 206, "clone": 3}),
    }
    for name, (status, counts) in told.items():
        equal(subprocess.run([f"{HERE}/{name}"]).returncode, status, name, "without")
        report, kinds = spliced(f"{HERE}/{name}", status=status)
        expect("splice_untold" not in kinds, name, report["notes"])
        for call, count in counts.items():
            equal(call_of(report, call)["count"], count, name, call)
    # Libraries that are loaded later.
    script = "import ctypes, json, os; [os.getppid() for _ in range(100)]; ctypes.CDLL(None).getppid()"
    report, kinds = spliced(sys.executable, "-I", "-S", "-c", script)
    equal(call_of(report, "getppid")["count"], 101, "of libraries that were loaded")
    expect("splice_boundary" not in kinds, report["notes"])


@check("run-splice-leaves", feature=RUN_SPLICE)
def _():
    report, kinds = spliced(f"{HERE}/calls-32", "getppid", "500")
    equal(call_of(report, "getppid")["count"], 500, "32-bit getppid")
    expect("splice_boundary" in kinds, report["notes"])


def areas_of(pid):
    with open(f"/proc/{pid}/maps") as file:
        return file.read().count("memfd:debox-splice")


@check("attach-splice", feature=ATTACH_SPLICE)
def _():
    stamps_count_time()
    path = "/tmp/attached.json"
    program = subprocess.Popen([f"{HERE}/attached", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    equal(program.stdout.read(1), b"r", "it is ready")
    debox = subprocess.Popen(
        [f"{HERE}/debox", "attach", "--capture=splice", "-p", str(program.pid), "--json", "-o", path, *shared()],
        stderr=subprocess.PIPE, env=dict(os.environ, XDG_CACHE_HOME="/var/tmp"),
    )  # fmt: skip
    until = time.monotonic() + 120
    while not areas_of(program.pid):
        expect(time.monotonic() < until and debox.poll() is None, "nobody attached to it")
        time.sleep(0.1)
    time.sleep(1)
    for order in b"atf":
        program.stdin.write(bytes([order]))
        equal(program.stdout.read(1), bytes([order]), "what it answers")
    debox.send_signal(signal.SIGINT)
    said = debox.communicate()[1]
    equal(debox.returncode, 0, said)
    with open(path) as file:
        report = json.load(file)
    # A shell may ask once.
    expect(call_of(report, "getppid")["count"] in (1200, 1201), "getppid:", call_of(report, "getppid"))
    kinds = {note["kind"] for note in report["notes"]}
    expect(not kinds & {"splice_left", "splice_boundary"}, report["notes"])
    # With its own code again.
    program.stdin.write(b"a")
    equal(program.stdout.read(1), b"a", "what it answers")
    program.stdin.write(b"q")
    equal(program.wait(), 7, "status")


@check("run-sleeps", feature=RUN_SLEEPS)
def _():
    path = "/tmp/sleeps.json"
    execute([f"{HERE}/debox", "run", "--capture=sleeps", "--json", "-o", path, *shared(), "--", f"{HERE}/truth", "-d", "/var/tmp", "pipe", "40"])
    with open(path) as file:
        report = json.load(file)
    equal(report["calls"], [], "calls")
    waited_in_a_pipe(report)


# tests/truth.rs, which runs on the machine itself as well. Only there: what needs
# more programs than a guest has (sites-verified below is the same for guests).
RUST = {"truth": ["no_site_is_ever_mislabelled"]}
for name, feature, smoke in (
    ("a_sleep_of_known_length", (SLEEP, RUNSLEEP), False),
    ("a_pipe_that_fills_late", (SLEEP, RUNSLEEP), True),
    ("a_futex_that_times_out", (SLEEP, RUNSLEEP), False),
    ("a_file_lock_held_by_another", (SLEEP, RUNSLEEP), False),
    ("an_accept_before_the_connection", (SLEEP, RUNSLEEP), False),
    ("a_call_broken_by_a_signal", SLEEP, True),
    ("a_call_that_the_kernel_restarts", (SLEEP, RUNSLEEP), True),
    ("faults_inside_a_read", FAULTS, True),
    ("a_flush_to_disk_is_labelled", SLEEP, True),
    ("waiting_for_a_cpu_is_not_blocking", RUNQ, False),
    ("preemption_beside_a_call_is_not_in_the_call", RUNQ, False),
    ("two_writers_of_one_file", INODE_LOCK, False),
    ("a_span_holds_everything_in_it", SPAN, False),
):
    check(name, "truth", name, feature=feature, smoke=smoke)(rust_test)


# Python, Go and Java are on no guest.
RUST["chains"] = [
    "pythons_lock_leads_to_the_thread_that_computes",
    "a_channel_of_go_leads_to_the_thread_that_computes",
    "a_runtime_is_not_named_for_its_program",
    "a_parked_thread_of_java_leads_to_the_thread_that_computes",
]
for name, smoke in (
    ("a_mutex_whose_holder_waits_for_a_pipe", True),
    ("a_mutex_whose_holder_waits_for_who_flushes_files", False),
    ("sleeps_that_a_timer_ends_beside_a_busy_disk", False),
    ("a_time_limit_is_not_what_was_waited_for", True),
    ("a_condition_that_is_signalled_after_computing", False),
    ("a_convoy_ends_in_what_each_holder_does", False),
    ("a_futex_with_priority_inheritance", False),
    ("a_file_lock_of_another_process", False),
    ("a_directory_of_another_process", False),
    ("a_server_on_this_machine", False),
    ("a_child_that_sleeps_and_computes", False),
    ("a_waker_that_is_not_watched", True),
    ("a_record_says_what_its_sleep_waited_for", True),
    ("a_record_does_not_name_other_users", False),
    ("a_child_that_ends_has_its_name_for_an_ordinary_user", False),
    ("who_computes_is_named_by_its_function", False),
    ("a_holder_that_sleeps_is_told_with_the_place_of_its_call", False),
    ("a_holder_that_computes_is_told_with_the_place_of_its_last_call", False),
):
    check(name, "chains", name, feature=CHAINS, smoke=smoke)(rust_test)

# An emulated processor does not say of its stamps that they count time: splicing under `run` is a check of its own.
RUST["lives"] = ["an_event_loop_whose_calls_are_shown_rests_as_others_do"]
for name, smoke in (
    ("computing_is_own_code_and_nothing_else", False),
    ("calls_are_time_in_calls", False),
    ("faults_are_told_from_own_code", False),
    ("the_schedulers_books_say_the_same", False),
    ("the_kernel_says_the_same_of_its_cpu_time", False),
    ("a_sleep_is_what_it_took", False),
    ("a_sleep_is_sleep_whatever_cpu_the_thread_is_taken_to", True),
    ("the_slow_middle_of_a_pipeline_is_what_it_took", True),
    ("the_thread_that_ends_last_is_what_it_took", False),
    ("an_event_loop_rests_where_it_waits_for_events", True),
    ("a_loop_is_told_from_the_threads_of_its_pool", False),
    ("who_is_stopped_is_neither_blocked_nor_at_rest", False),
    ("commands_are_told_with_their_arguments", False),
    ("more_processes_than_there_are_rows_are_told_by_control_group", False),
    ("the_end_of_one_that_is_watched_for_a_while_is_not_what_it_is_about", False),
    ("who_sleeps_when_debox_ends_it_has_waited_for_nobody", False),
    ("who_looks_now_and_then_rests_from_the_first_sleep_on", False),
):
    check(name, "lives", name, feature=CHAINS, smoke=smoke)(rust_test)

# Splicing wants stamps that count time, which an emulated processor does not say of itself.
RUST["irq"] = ["spliced_calls_have_theirs"]
for name, smoke in (
    ("packets_for_the_machine_itself_are_received_in_the_call_that_sends_them", True),
    ("calls_without_packets_have_hardly_any", False),
    ("interrupts_are_of_who_has_the_cpu", False),
    ("what_nobody_asked_for_is_not_measured", False),
    ("records_have_them_too", True),
    ("the_interposer_counts_them", False),
    ("conditions_ask_for_them", False),
):
    check(name, "irq", name, feature=IRQ, smoke=smoke)(rust_test)

# Who has no rights gets no details, hence no samples, on kernels with CVE-2024-41009; and
# no guest has Python.
RUST["on_cpu"] = ["of_a_program_with_more_rights_nothing_is_told", "functions_of_python_have_their_names"]
for name, smoke in (
    ("functions_have_the_shares_that_they_have", True),
    ("the_kernel_has_the_share_that_it_has", False),
    ("code_that_is_made_while_it_runs_has_its_names", False),
    ("who_sleeps_has_no_samples", False),
    ("all_time_adds_up_to_the_lives", False),
    ("nobody_asks_and_nothing_is_told", False),
    ("a_hostile_name_does_no_harm", False),
):
    check(name, "on_cpu", name, feature=ON_CPU, smoke=smoke)(rust_test)

# Which calls are slow enough to be kept differs on an emulated machine; and no guest
# has Python.
RUST["objects"] = [
    "descriptors_are_named_as_they_were_not_as_they_are",
    "peers_of_other_users_are_withheld",
    "files_of_others_are_not_told_by_their_pages",
]
for name, smoke in (
    ("every_kind_of_object_is_told", True),
    ("a_path_leads_over_mount_points", False),
    ("a_page_is_of_the_file_that_is_mapped", True),
    ("by_sleeps_files_are_told_as_well", False),
    ("a_descriptor_that_may_be_another_one_is_not_told", False),
    ("device_and_inode_are_those_of_the_file", False),
    ("hostile_names_are_told_and_do_no_harm", False),
):
    check(name, "objects", name, feature=OBJECTS, smoke=smoke)(rust_test)


# No guest has bash and setpriv; of 500 threads that emulation starts, those that
# wait are not the slowest.
RUST["locks"] = [
    "who_took_a_lock_and_is_gone_is_not_named",
    "a_stranger_that_is_claimed_to_be_the_owner",
    "a_crowd_of_five_hundred",
]
for name, smoke in (
    ("three_others_who_are_not_watched_are_counted_as_three", False),
    ("nobody_else_is_counted_as_nobody", False),
    ("the_owner_of_a_mutex_is_named", True),
    ("the_writer_of_a_rwlock_is_named", False),
    ("musl_has_owners_too", False),
    ("what_is_no_lock_has_no_owner", False),
    ("what_only_looks_like_a_lock_has_no_owner", False),
    ("an_owner_that_is_the_waiter", False),
    ("the_call_that_holds_the_address_space_is_named", False),
):
    check(name, "locks", name, feature=LOCKS, smoke=smoke)(rust_test)


def perf_event_paranoid(value):
    with open("/proc/sys/kernel/perf_event_paranoid", "w") as file:
        file.write(value)


@check("a_mapped_file_written_to_another", feature=PAGE_IN)
def _():
    # Debian's default, 3, is Debian's own: perf events for nobody without
    # CAP_SYS_ADMIN, which deboxd gives up. 2 is the kernel's default.
    perf_event_paranoid("2")
    rust_test("truth", "a_mapped_file_written_to_another")


@check("page-in-without-perf-events")
def _():
    perf_event_paranoid("3")
    line = one("page-in", "10")
    r = record(line)
    expect([s for s in r["sleeps"] if s["label"] == "page-in"], "no page-in:", line)
    expect(line["majflt"] >= 1, "the file was cached:", line)
    expect(abs(r["minor_faults"] + r["major_faults"] - line["minflt"] - line["majflt"]) <= 2, line)
    expect(r["major_faults"] in (0, line["majflt"]), "some major faults, but not all:", line)


@check("on-cpu-without-perf-events", feature=ON_CPU)
def _():
    # deboxd gives CAP_SYS_ADMIN up; see above.
    perf_event_paranoid("3")
    with Broker() as broker:
        r = Report([f"{HERE}/oncpu", "shares", "0.3"], ["--socket", broker.socket])
    refused = [n for n in r.all["notes"] if n["kind"] == "not_measured" and "perf_event_open" in n["text"]]
    expect(refused and "on_cpu" not in r.all, "no note:", r.all["notes"])
    expect(r.call("execve")["count"] >= 1, "all else is there:", r.all["calls"])


@check("sites-verified", feature=SITES_VERIFIED)
def _():
    with Broker("--verify-sites") as broker:
        script = (
            "for i in 1 2 3; do T pipe 5; T futex 5; T flock 5; T accept 5; T fsync 2; T page-in 4; T inode-lock 30; done "
            "&& tar cf /var/tmp/a.tar /lib && sync "
            "&& (seq 1500 | while read a; do echo $a; done) | (while read a; do :; done) "
            f"&& {HERE}/storm 16 16 2"
        ).replace("T ", f"{HERE}/truth -d /var/tmp ")
        # What was learned in one round is recognised in the next; how fast it is
        # learned depends on how often the broker gets a CPU.
        for _ in range(6):
            on_label = ["--on", "label == nanosleep && wall > 100s", "--do", "print"]
            Report(["/bin/sh", "-c", script], ["--socket", broker.socket, *on_label])
            status = broker.status()
            if status["site_hits"] > max(200, 5 * status["site_walks"]):
                break
        if status["site_mismatches"]:
            for line in lines_of(broker.log.name):
                if "recognised wrongly" in line:
                    note(symbols_in(line))
    equal(status["site_mismatches"], 0, "mismatches in", status)
    expect(status["site_hits"] > max(200, 5 * status["site_walks"]), status)
    note(f"{status['site_hits']} sites recognised and verified, {status['site_walks']} walked, {status['site_failures']} walks failed, 0 differ")


@check("nothing-stays-attached", feature=NOTHING_STAYS_ATTACHED, last=True, smoke=True)
def _():
    shared_broker_stop()
    footprint_expect(BEFORE)


@check("kernel-log-is-clean", last=True, smoke=True)
def _():
    kernel_log_expect_clean()
