#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is on the dashboards for Grafana, and how do they lead into each other?

Writes dashboards/*.json: an overview of all hosts, one host, one unit, and root causes. Run it after
a change; tests/dashboards.py says when a file is not what this writes, and holds every series and
label against what the agent exposes.
"""

import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
# Of the form that Grafana 12 writes; older ones read it, newer ones bring it up to theirs.
SCHEMA_VERSION = 41
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# What waiting may end in that somebody could do something about.
ROOTS = "disk|network|run_queue|own_code|system_call|device"
HOST = 'instance=~"$host"'
UNIT = f'{HOST},unit=~"$unit"'
PROGRAM = f'{UNIT},program=~"$program"'
OVERVIEW, HOST_BOARD, UNIT_BOARD, ROOT_BOARD = "debox-overview", "debox-host", "debox-unit", "debox-root-cause"
TITLES = {OVERVIEW: "DeBox: overview", HOST_BOARD: "DeBox: host", UNIT_BOARD: "DeBox: unit", ROOT_BOARD: "DeBox: root cause"}
# The next level takes what has been chosen, the time, and the row that was clicked.
KEPT = "${datasource:queryparam}&${__url_time_range}"


def to(board, title, *variables):
    """A link to a dashboard; a variable is NAME=FIELD of the row, or the name of one that is kept."""
    chosen = "&".join(f"var-{v}" if "=" in v else "${%s:queryparam}" % v for v in variables)
    return {"title": title, "url": f"/d/{board}?{KEPT}&{chosen}", "targetBlank": False}


def variable(name, label, query, many=True):
    return {
        "type": "query", "name": name, "label": label, "datasource": SOURCE, "definition": query,
        "query": {"query": query, "refId": f"Variable-{name}", "qryType": 1},
        "refresh": 2, "sort": 1, "regex": "", "hide": 0, "skipUrlSync": False,
        "multi": many, "includeAll": many, "allValue": ".*" if many else None,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]} if many else {}, "options": [],
    }  # fmt: skip


def variables(*names):
    known = {
        "host": variable("host", "Host", "label_values(debox_build_info, instance)"),
        "unit": variable("unit", "Unit", f"label_values(debox_thread_seconds_total{{{HOST}}}, unit)"),
        "program": variable("program", "Program", f"label_values(debox_thread_seconds_total{{{UNIT}}}, program)"),
    }
    source = {
        "type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus", "regex": "",
        "hide": 0, "refresh": 1, "multi": False, "includeAll": False, "skipUrlSync": False, "current": {}, "options": [],
    }  # fmt: skip
    return {"list": [source, *(known[name] for name in names)]}


class Board:
    """Panels are laid out in rows of 24 columns, in the order in which they are added."""

    def __init__(self, uid, about, *names):
        self.uid, self.about, self.names = uid, about, names
        self.panels, self.x, self.y, self.row_height = [], 0, 0, 0

    def add(self, kind, title, wide, high, queries, about="", unit="s", links=(), options=None, defaults=None, legend="{{instance}}", instant=False, **more):
        if self.x + wide > 24:
            self.x, self.y, self.row_height = 0, self.y + self.row_height, 0
        targets = []
        for index, query in enumerate(queries):
            expr, name = query if isinstance(query, tuple) else (query, legend)
            targets.append({
                "refId": "ABCDEFGH"[index], "datasource": SOURCE, "editorMode": "code", "expr": expr,
                "legendFormat": name, "range": not instant, "instant": instant,
                "format": "table" if instant and kind == "table" else "time_series",
            })  # fmt: skip
        self.panels.append({
            "id": len(self.panels) + 1, "type": kind, "title": title, "description": about, "datasource": SOURCE,
            "gridPos": {"h": high, "w": wide, "x": self.x, "y": self.y},
            "fieldConfig": {"defaults": {"unit": unit, "links": list(links), **(defaults or {})}, "overrides": more.pop("overrides", [])},
            "options": options or {}, "targets": targets, **more,
        })  # fmt: skip
        self.x, self.row_height = self.x + wide, max(self.row_height, high)

    def series(self, title, wide, *queries, high=8, stacked=False, exemplars=False, **more):
        custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 60 if stacked else 10, "showPoints": "never",
                  "stacking": {"mode": "normal" if stacked else "none", "group": "A"}}  # fmt: skip
        options = {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["mean", "max"], "showLegend": True},
                   "tooltip": {"mode": "multi", "sort": "desc"}}  # fmt: skip
        self.add("timeseries", title, wide, high, queries, options=options, defaults={"custom": custom, "min": 0}, **more)
        if exemplars:
            # Which recording has the longest: a point on the panel, where Prometheus keeps them (exemplar-storage).
            for target in self.panels[-1]["targets"]:
                target["exemplar"] = True

    def stat(self, title, wide, query, **more):
        options = {"colorMode": "value", "graphMode": "area", "justifyMode": "auto", "textMode": "auto",
                   "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}  # fmt: skip
        self.add("stat", title, wide, 4, [query], options=options, **more)

    def table(self, title, wide, query, name, hide=(), high=9, **more):
        changes = [{"id": "organize", "options": {"excludeByName": {"Time": True, **{h: True for h in hide}}, "renameByName": {"Value": name}}},
                   {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": name, "desc": True}]}}]  # fmt: skip
        options = {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}}
        self.add("table", title, wide, high, [query], options=options, instant=True, transformations=changes, **more)

    def text(self, title, wide, words, high=4):
        self.add("text", title, wide, high, [], options={"mode": "markdown", "content": words})
        del self.panels[-1]["datasource"]

    def json(self):
        links = [{"type": "link", "title": TITLES[uid], "url": f"/d/{uid}", "icon": "dashboard", "includeVars": True,
                  "keepTime": True, "targetBlank": False, "asDropdown": False, "tags": [], "tooltip": ""}
                 for uid in TITLES if uid != self.uid]  # fmt: skip
        board = {
            "uid": self.uid, "title": TITLES[self.uid], "description": self.about, "tags": ["debox"], "schemaVersion": SCHEMA_VERSION,
            "version": 1, "editable": True, "graphTooltip": 1, "fiscalYearStartMonth": 0, "weekStart": "", "timezone": "browser",
            "refresh": "1m", "time": {"from": "now-6h", "to": "now"}, "timepicker": {}, "links": links,
            "templating": variables(*self.names), "annotations": {"list": []}, "panels": self.panels,
        }  # fmt: skip
        return json.dumps(board, indent=1, ensure_ascii=False) + "\n"


def rate(series, matchers, by, window="$__rate_interval"):
    return f"sum by ({by}) (rate({series}{{{matchers}}}[{window}]))"


def quantile(q, matchers, by, window="$__rate_interval"):
    """How long the sleeps took: of native histograms where Prometheus has them, else of classic ones."""
    series = "debox_blocked_duration_seconds"
    native = f"histogram_quantile({q}, {rate(series, matchers, by, window)})"
    return f"{native} or histogram_quantile({q}, {rate(series + '_bucket', matchers, by + ', le', window)})"


# What a table shows is of the whole time that is chosen.
RANGE = "$__range"


def run_queue_share(matchers, by, window="$__rate_interval"):
    waits = rate("debox_thread_seconds_total", f'{matchers},state="run_queue"', by, window)
    wants = rate("debox_thread_seconds_total", f'{matchers},state=~"own_code|system_calls|run_queue"', by, window)
    return f"{waits} / {wants}"


def overview():
    board = Board(OVERVIEW, "All hosts: who loses time, and by what. A click on a host leads to it.", "host")
    host = to(HOST_BOARD, "This host", "host=${__field.labels.instance}")
    row = to(HOST_BOARD, "This host", "host=${__data.fields.instance}")
    board.stat("Hosts that are watched", 4, f"count(count by (instance) (debox_build_info{{{HOST}}}))", unit="none", legend="")
    board.stat("Lost asleep, in each second", 5, f'sum(rate(debox_blocked_seconds_total{{{HOST},class="loss"}}[$__rate_interval]))', legend="")
    board.stat("Waiting for a CPU, in each second", 5, f'sum(rate(debox_thread_seconds_total{{{HOST},state="run_queue"}}[$__rate_interval]))', legend="")
    board.stat("Throttled, in each second", 5, f"sum(rate(debox_cpu_throttled_seconds_total{{{HOST}}}[$__rate_interval]))", legend="")
    board.stat("Figures that lack something", 5, f"count(debox_incomplete_total{{{HOST}}} > 0) or vector(0)", unit="none", legend="", about="How many kinds of notes all hosts have had since their agents began: see the host.")  # fmt: skip
    board.series("Lost asleep, by host", 12, rate("debox_blocked_seconds_total", f'{HOST},class="loss"', "instance"), links=[host],
                 about="Seconds that threads were asleep in system calls on something that is a loss, in each second.")  # fmt: skip
    board.series("What waiting ends in, all hosts", 12, (rate("debox_wait_root_seconds_total", f'{HOST},root=~"{ROOTS}"', "root"), "{{root}}"), stacked=True,
                 links=[to(ROOT_BOARD, "Root causes", "host")], about="Followed through who was waited for. Timers, and what is not known, are left out.")  # fmt: skip
    board.series("Share of runnable time without a CPU, by host", 12, run_queue_share(HOST, "instance"), unit="percentunit", links=[host],
                 about="Waiting for a CPU, of all that threads ran or wanted to run.")  # fmt: skip
    board.series("Throttled by limits of CPU time, by host", 12, rate("debox_cpu_throttled_seconds_total", HOST, "instance"), links=[host])
    board.table("Lost asleep in the time that is shown, by host", 12, rate("debox_blocked_seconds_total", f'{HOST},class="loss"', "instance", RANGE), "Lost, in each second", links=[row])  # fmt: skip
    board.table("Waits for a CPU in the time that is shown, by host and unit", 12,
                "topk(20, " + rate("debox_thread_seconds_total", f'{HOST},state="run_queue"', "instance, unit", RANGE) + ")", "Run queue, in each second", links=[row])  # fmt: skip
    return board


def host():
    board = Board(HOST_BOARD, "One host: where its threads' time goes, by unit, and what its waits are.", "host", "unit")
    unit = to(UNIT_BOARD, "This unit", "host", "unit=${__field.labels.unit}")
    row = to(UNIT_BOARD, "This unit", "host", "unit=${__data.fields.unit}")
    roots = to(ROOT_BOARD, "Root causes", "host")
    board.series("Where its threads' time goes", 12, (rate("debox_thread_seconds_total", f'{HOST},state!="resting"', "state"), "{{state}}"), stacked=True,
                 about="Without what is asleep where it waits for work.")  # fmt: skip
    board.series("What waiting ends in", 12, (rate("debox_wait_root_seconds_total", f'{HOST},root=~"{ROOTS}"', "root"), "{{root}}"), stacked=True, links=[roots])
    board.series("Waits for a CPU, by unit", 12, ("topk(10, " + rate("debox_thread_seconds_total", f'{UNIT},state="run_queue"', "unit") + ")", "{{unit}}"), links=[unit])
    board.series("Held up asleep, by unit", 12, ("topk(10, " + rate("debox_thread_seconds_total", f'{UNIT},state=~"blocked|page_faults"', "unit") + ")", "{{unit}}"), links=[unit],
                 about="Asleep in calls and in page faults, but not where it waits for work. Idle threads whose resting place is not known are in it.")  # fmt: skip
    board.series("Losses, by what was waited for", 12, ("topk(10, " + rate("debox_blocked_seconds_total", f'{HOST},class="loss"', "label") + ")", "{{label}}"), links=[roots])
    board.series("Of a hundred losses, how long the longest takes, by what was waited for", 12, ("topk(10, " + quantile(0.99, f'{HOST},class="loss"', "label") + ")", "{{label}}"), links=[roots], exemplars=True,
                 about="p99 of the sleeps that are over, each whole. Points: the longest since the last reading, with its program and the recording that has it (/var/lib/debox/flight).")  # fmt: skip
    board.series("Throttled, by control group", 12, ("topk(10, " + rate("debox_cpu_throttled_seconds_total", HOST, "group") + ")", "{{group}}"))
    board.table("Units in the time that is shown", 12, "topk(30, " + rate("debox_thread_seconds_total", f'{UNIT},state=~"own_code|system_calls|run_queue"', "unit", RANGE) + ")",
                "Ran or wanted to, in each second", links=[row])  # fmt: skip
    lost = rate("debox_unit_blocked_seconds_total", f'{HOST},class="loss"', "instance, unit", RANGE)
    board.table("Lost asleep in containers in the time that is shown", 24, f"topk(20, {lost} * on (instance, unit) group_left (container_id, pod_uid) debox_unit_info{{{HOST}}})",
                "Lost, in each second", links=[row], high=8)  # fmt: skip
    board.table("What the figures lack", 6, f"debox_incomplete_total{{{HOST}}} > 0", "How many", hide=("__name__", "job"), unit="none",
                about="How many calls, sleeps, threads or processes a note was about since the agent began (docs/json.md, notes).")  # fmt: skip
    board.series("What reading the figures takes", 6, f"debox_agent_report_seconds{{{HOST}}}", high=9)
    board.series("Threads that are watched, by policy", 6, (f"sum by (policy) (debox_policy_threads{{{HOST}}})", "{{policy}}"), unit="none", stacked=True)
    board.series("Calls that met a condition, in each second", 6, (rate("debox_condition_calls_total", HOST, "policy, condition"), "{{policy}}: {{condition}}"), unit="none")
    board.series("CPU time that watching takes", 6, (f"sum by (what) (debox_agent_cpu_ratio{{{HOST}}})", "{{what}}"), unit="percentunit", stacked=True,
                 about="As [budget] has it measured: the agent, and DeBox's programs in the kernel.")  # fmt: skip
    board.series("Memory that watching takes", 6, (f"sum by (what) (debox_agent_memory_bytes{{{HOST}}})", "{{what}}"), unit="bytes", stacked=True, about="As [budget] has it measured.")
    return board


def unit():
    board = Board(UNIT_BOARD, "Units of a host: where the time of their programs' threads goes.", "host", "unit", "program")
    board.series("Where the threads' time goes", 12, (rate("debox_thread_seconds_total", f'{PROGRAM},state!="resting"', "state"), "{{state}}"), stacked=True)
    board.series("Share of runnable time without a CPU, by program", 12, (run_queue_share(PROGRAM, "program"), "{{program}}"), unit="percentunit")
    board.series("Held up asleep, by program", 12, ("topk(10, " + rate("debox_thread_seconds_total", f'{PROGRAM},state=~"blocked|page_faults"', "program") + ")", "{{program}}"))
    board.series("Own code and system calls, by program", 12, ("topk(10, " + rate("debox_thread_seconds_total", f'{PROGRAM},state=~"own_code|system_calls"', "program") + ")", "{{program}}"))
    board.series("Page faults that read from a disk, by program", 12, ("topk(10, " + rate("debox_page_faults_total", f'{PROGRAM},state="major"', "program") + ")", "{{program}}"), unit="ops")
    board.table("Programs in the time that is shown", 12, rate("debox_thread_seconds_total", PROGRAM, "program, state", RANGE), "In each second", high=8)
    board.series("Losses, by what was waited for", 12, ("topk(10, " + rate("debox_unit_blocked_seconds_total", f'{UNIT},class="loss"', "label") + ")", "{{label}}"), about="Of the unit; all its programs.")
    board.table("Waits in the time that is shown, by label", 12, "topk(30, " + rate("debox_unit_blocked_seconds_total", f'{UNIT},class!="idle"', "unit, label, class", RANGE) + ")", "In each second", high=8)
    board.series("What losses end in", 12, (rate("debox_unit_wait_root_seconds_total", f'{UNIT},class="loss"', "root"), "{{root}}"), stacked=True, links=[to(ROOT_BOARD, "Root causes", "host", "unit")],
                 about="Followed through who was waited for. Of the unit; all its programs. Told as periods end.")  # fmt: skip
    board.table("What waits end in in the time that is shown", 12, "topk(30, " + rate("debox_unit_wait_root_seconds_total", f'{UNIT},class!="idle"', "unit, root, class", RANGE) + ")", "In each second", high=8,
                links=[to(ROOT_BOARD, "Root causes", "host", "unit=${__data.fields.unit}")])  # fmt: skip
    board.text("In which calls, behind whom, and where does it end?", 24, "Where it ends is told of the unit, calls of the whole host: **[root causes](/d/" + ROOT_BOARD + "?${datasource:queryparam}&${host:queryparam}&${unit:queryparam}&${__url_time_range})**. "
               "Of this unit alone, on the host: `debox top --unit NAME` (live), `debox why --unit NAME` (who keeps whom waiting, now), "
               "`debox attach --unit NAME -d 30s -o unit.debox` (a recording), or `debox serve --unit NAME`.")  # fmt: skip
    return board


def root_cause():
    board = Board(ROOT_BOARD, "What waiting ends in, of units and of a whole host; and on what, in which call, its threads sleep.", "host", "unit")
    row = to(UNIT_BOARD, "This unit", "host", "unit=${__data.fields.unit}")
    board.series("What losses of the units end in", 12, (rate("debox_unit_wait_root_seconds_total", f'{UNIT},class="loss"', "root"), "{{root}}"), stacked=True,
                 about="Of the units that are chosen, followed through who was waited for. Told as periods end; all other panels below are of the whole host.")  # fmt: skip
    board.table("Losses in the time that is shown, by unit and what they end in", 12, "topk(30, " + rate("debox_unit_wait_root_seconds_total", f'{UNIT},class="loss"', "unit, root", RANGE) + ")", "In each second", high=8, links=[row])
    board.series("What waiting ends in", 12, (rate("debox_wait_root_seconds_total", HOST, "root"), "{{root}}"), stacked=True,
                 about="All sleeps in system calls, followed through who was waited for; with timers and what is not known.")  # fmt: skip
    board.series("Asleep, by whether it is a loss", 12, (rate("debox_blocked_seconds_total", HOST, "class"), "{{class}}"), stacked=True)
    board.series("Losses, by what was waited for", 12, ("topk(10, " + rate("debox_blocked_seconds_total", f'{HOST},class="loss"', "label") + ")", "{{label}}"))
    board.series("Mean loss of a sleep, by what was waited for", 12,
                 ("topk(10, " + rate("debox_blocked_seconds_total", f'{HOST},class="loss"', "label") + " / " + rate("debox_sleeps_total", f'{HOST},class="loss"', "label") + ")", "{{label}}"))  # fmt: skip
    for share, q in (("Half", 0.5), ("A hundredth", 0.99)):
        least = "at most" if q == 0.5 else "at least"
        board.series(f"{share} of the losses take {least} that, by what was waited for", 12, ("topk(10, " + quantile(q, f'{HOST},class="loss"', "label") + ")", "{{label}}"), exemplars=q == 0.99,
                     about="Of the sleeps that are over, each whole, between two bounds of the histogram.")  # fmt: skip
    board.table("Losses in the time that is shown, by label and call", 12, "topk(30, " + rate("debox_blocked_seconds_total", f'{HOST},class="loss"', "label, call", RANGE) + ")", "In each second", high=11)
    board.table("Of what is not known whether it is a loss", 12, "topk(30, " + rate("debox_blocked_seconds_total", f'{HOST},class=~"unknown|input"', "label, call, class", RANGE) + ")", "In each second", high=11)
    board.text("What do these words mean?", 24, "Labels: docs/labels.md. Roots and how they are found: docs/chains.md. On the host, `debox why --all` says who keeps whom waiting at this moment, "
               "and `debox serve` shows the same live and opens recordings.")  # fmt: skip
    return board


def files():
    return {f"{board.uid.removeprefix('debox-')}.json": board.json() for board in (overview(), host(), unit(), root_cause())}


if __name__ == "__main__":
    for name, text in files().items():
        (HERE / name).write_text(text)
