#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Do the dashboards and the alert rules ask for what the agent exposes, and for nothing else?

Series, labels and the values of those that have a fixed set are read from the agent's source
(crates/agent/src/metrics.rs and what it calls); whatever a dashboard or a rule names must be
there. promtool parses every expression and runs the rules' unit tests. Without a Grafana the
dashboards' JSON is checked as far as its structure goes.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TOP = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / "dashboards"))
import make  # noqa: E402

HERE = TOP / "dashboards"
# What Prometheus adds to every series.
OF_PROMETHEUS = {"instance", "job"}
SECONDS = 120
PROMTOOL = shutil.which("promtool")
NEEDS_PROMTOOL = unittest.skipUnless(PROMTOOL, "NOT RUN: no prometheus is installed")
# What Grafana fills in, and a value that parses.
VARIABLES = {"$__rate_interval": "5m", "$__range": "1h", "$host": "a", "$unit": "b", "$program": "c"}


def source(path):
    # Tests of its own name series as well.
    return (TOP / path).read_text().split("#[cfg(test)]")[0]


def camel_to_snake(name):
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def exposed():
    """{series: {label: set of values, or None where names are foreign}}"""
    text = source("crates/agent/src/metrics.rs")
    structs = {m[1]: re.findall(r"(\w+): ", m[2]) for m in re.finditer(r"labels! \{\s*struct (\w+) \{(.*?)\}", text, re.S)}
    fields = dict(re.findall(r"\b(\w+): HashMap<(\w+), \w+>", text)) | {"build": "Build"}
    values = {
        "root": set(re.findall(r'=> "(\w+)"', re.search(r"fn root_name.*?\n    \}\n", source("crates/report/src/chains.rs"), re.S)[0])),
        "class": set(re.findall(r'=> "(\w+)"', re.search(r"pub fn class\(.*?\n\}\n", source("crates/report/src/findings.rs"), re.S)[0])) | {"other"},
        "state": set(re.findall(r'\("(\w+)", (?:row\.)?time\.', text)),
        "what": {camel_to_snake(name) for name in re.findall(r"^    (\w+),$", re.search(r"pub enum NoteKind \{\n(.*?)\n\}", source("crates/report/src/model.rs"), re.S)[1], re.M)}
        | set(re.findall(r'\("(\w+)", self\.', source("crates/agent/src/budget.rs"))),
        "signal": set(re.findall(r'Self::\w+ => "(\w+)"', source("crates/agent/src/otlp/config.rs"))),
        "reason": set(re.findall(r'Self::\w+ => "(\w+)"', source("crates/agent/src/otlp/queue.rs"))),
    }  # fmt: skip
    series = {}
    for name, kind, of in re.findall(r'family\(\s*"(\w+)",\s*Kind::(\w+),\s*"[^"]*",\s*(samples(?:_since)?\(\s*&[\w.]+|alone\()', text):
        labels = {label: values.get(label) for label in structs[fields[re.search(r"\w+$", of)[0]]]} if of.startswith("samples") else {}
        series[name + {"Counter": "_total", "Info": "_info"}.get(kind, "")] = labels
        if kind == "Histogram":
            # The classic one, beside the native one.
            series |= {f"{name}_count": labels, f"{name}_sum": labels, f"{name}_bucket": labels | {"le": None}}
    return series


def classic(series):
    """The series of which a classic histogram is made."""
    return {name for name in series if name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") in set(series) - {name}}


def expressions():
    """[(where, expression)] of all dashboards, rules, and what variables ask for."""
    found = []
    for path in sorted(HERE.glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            found += [(f"{path.name}: {panel['title']}", target["expr"]) for target in panel["targets"]]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
                found.append((f"{path.name}: ${variable['name']}", f"count by ({label}) ({selector})"))
    for rule in re.findall(r"expr: (?:>-\n((?:          .*\n)+)|(.*)\n)", (HERE / "alerts.yml").read_text()):
        found.append(("alerts.yml", " ".join("".join(rule).split())))
    return found


def wrong(expr, known):
    """What an expression names that is not there."""
    said = []
    for name, matchers in re.findall(r"\b(debox_\w+)(?:\{([^}]*)\})?", expr):
        if name not in known:
            said.append(f"no series {name}")
            continue
        for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', matchers):
            if label in OF_PROMETHEUS:
                continue
            if label not in known[name]:
                said.append(f"{name} has no label {label}")
            elif (values := known[name][label]) is not None:
                said += [f'{name} has no {label}="{one}"' for one in value.split("|") if one not in values]
    # What sums are by is a label of all that is summed.
    names = [name for name in re.findall(r"\bdebox_\w+", expr) if name in known]
    for labels in re.findall(r"\bby \(([^)]*)\)", expr):
        for label in (part.strip() for part in labels.split(",")):
            # Of a histogram both forms are asked for.
            of = [name for name in names if name in classic(known)] if label == "le" else names
            if label not in OF_PROMETHEUS and not (of and all(label in known[name] for name in of)):
                said.append(f"by ({label}): not a label of {names}")
    return said


def filled(expr):
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


def promtool(*words, cwd=HERE):
    got = subprocess.run([PROMTOOL, *map(str, words)], cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=SECONDS)
    return got.returncode, got.stdout + got.stderr


class Exposed(unittest.TestCase):
    def test_the_source_is_understood(self):
        series = exposed()
        document = set(re.findall(r"`(debox_\w+)`", (TOP / "docs/agent.md").read_text()))
        self.assertEqual(set(series) - classic(series), document)
        self.assertEqual(classic(series), {f"debox_blocked_duration_seconds_{part}" for part in ("bucket", "count", "sum")})
        self.assertEqual(series["debox_build_info"], {"version": None, "boot": None})
        self.assertEqual(set(series["debox_unit_info"]), {"unit", "container_id", "pod_uid"})
        self.assertEqual(set(series["debox_thread_seconds_total"]), {"program", "unit", "state"})
        self.assertIn("run_queue", series["debox_thread_seconds_total"]["state"])
        self.assertIn("disk", series["debox_wait_root_seconds_total"]["root"])
        self.assertLessEqual({"loss", "idle", "input", "tool", "unknown"}, series["debox_blocked_seconds_total"]["class"])
        self.assertIn("rows_dropped", series["debox_incomplete_total"]["what"])
        self.assertEqual(series["debox_otlp_waiting_seconds"], {"signal": {"metrics", "logs"}})
        self.assertEqual(series["debox_otlp_dropped_total"], {"signal": {"metrics", "logs"}, "reason": {"queue_full", "refused", "rejected", "ended"}})

    def test_a_typo_is_found(self):
        known = exposed()
        for expr in ("rate(debox_bloked_seconds_total[5m])", 'debox_blocked_seconds_total{clas="loss"}', 'debox_blocked_seconds_total{class="lost"}',
                     "sum by (le) (debox_blocked_duration_seconds)", "sum by (le) (debox_sleeps_total)",
                     'debox_wait_root_seconds_total{root=~"disk|dsik"}', "sum by (program) (debox_blocked_seconds_total)"):  # fmt: skip
            self.assertTrue(wrong(expr, known), expr)

    def test_what_is_asked_for_is_there(self):
        known = exposed()
        found = expressions()
        self.assertGreater(len(found), 40)
        self.assertEqual([(where, said) for where, expr in found for said in wrong(expr, known)], [])
        # And nothing is exposed that nobody looks at, but calls: most agents do not count them.
        asked = {name for _, expr in found for name in re.findall(r"\bdebox_\w+", expr)}
        self.assertEqual(set(known) - classic(known) - asked, {"debox_calls_total", "debox_call_errors_total", "debox_threads_total", "debox_otlp_sent_total"})

    def test_the_unit_tests_series_are_there(self):
        known = exposed()
        series = re.findall(r"series: '([^']*)'", (HERE / "alerts.test.yml").read_text())
        self.assertGreater(len(series), 15)
        self.assertEqual([said for one in series for said in wrong(one, known)], [])


class Boards(unittest.TestCase):
    def test_they_are_what_is_written(self):
        for name, text in make.files().items():
            self.assertEqual((HERE / name).read_text(), text, f"run dashboards/make.py: {name} is not up to date")
        self.assertEqual({path.name for path in HERE.glob("*.json")}, set(make.files()))

    def test_their_structure(self):
        boards = {name: json.loads(text) for name, text in make.files().items()}
        uids = [board["uid"] for board in boards.values()]
        self.assertEqual(len(set(uids)), len(uids))
        for name, board in boards.items():
            self.assertLessEqual({"title", "uid", "schemaVersion", "templating", "panels", "time", "links", "tags"}, set(board))
            defined = {variable["name"] for variable in board["templating"]["list"]}
            self.assertIn("datasource", defined)
            ids = [panel["id"] for panel in board["panels"]]
            self.assertEqual(len(set(ids)), len(ids), name)
            taken = set()
            for panel in board["panels"]:
                where = f"{name}: {panel['title']}"
                place = panel["gridPos"]
                self.assertLessEqual(place["x"] + place["w"], 24, where)
                cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
                self.assertFalse(cells & taken, f"{where} lies on another one")
                taken |= cells
                self.assertEqual(len({target["refId"] for target in panel["targets"]}), len(panel["targets"]), where)
                self.assertEqual(bool(panel["targets"]), panel["type"] != "text", where)
                for target in panel["targets"]:
                    self.assertEqual(target["datasource"], make.SOURCE, where)
                text = json.dumps(panel)
                used = set(re.findall(r"\$\{(\w+):queryparam\}", text)) | set(re.findall(r'=~\\"\$(\w+)\\"', text))
                self.assertLessEqual(used, defined, where)
                for uid in re.findall(r"/d/([\w-]+)", text):
                    self.assertIn(uid, uids, where)
                # What a link takes from a row or a series is there.
                by = " ".join(re.findall(r"by \(([^)]*)\)", text))
                for field in re.findall(r"\$\{__(?:field\.labels|data\.fields)\.(\w+)\}", text):
                    self.assertIn(field, by, where)
                for label in re.findall(r"\{\{(\w+)\}\}", " ".join(target["legendFormat"] for target in panel["targets"])):
                    self.assertTrue(label in by or label == "instance", f"{where}: {label}")

    def test_levels_lead_into_each_other(self):
        def leads(board):
            panels = [link["url"] for panel in board["panels"] for link in panel["fieldConfig"]["defaults"]["links"]]
            words = re.findall(r"/d/[\w-]+", json.dumps([panel["options"] for panel in board["panels"]]))
            return {re.match(r"/d/([\w-]+)", url)[1] for url in panels + words}

        boards = {board["uid"]: board for board in (json.loads(text) for text in make.files().values())}
        for uid, to in ((make.OVERVIEW, make.HOST_BOARD), (make.HOST_BOARD, make.UNIT_BOARD), (make.UNIT_BOARD, make.ROOT_BOARD)):
            self.assertIn(to, leads(boards[uid]))
        for uid, board in boards.items():
            self.assertEqual({link["url"] for link in board["links"]}, {f"/d/{other}" for other in boards if other != uid})


@NEEDS_PROMTOOL
class Promtool(unittest.TestCase):
    def test_the_rules_are_rules(self):
        status, said = promtool("check", "rules", "alerts.yml")
        self.assertEqual(status, 0, said)
        self.assertIn("SUCCESS", said)

    def test_alerts_fire_when_they_should(self):
        status, said = promtool("test", "rules", "alerts.test.yml")
        self.assertEqual(status, 0, said)
        alerts = set(re.findall(r"alert: (\w+)", (HERE / "alerts.yml").read_text()))
        tests = (HERE / "alerts.test.yml").read_text()
        fires = set(re.findall(r"alertname: (\w+)\n", tests))
        silent = set(re.findall(r"alertname: (\w+), eval_time: \w+, exp_alerts: \[\]", tests))
        self.assertEqual(alerts, fires)
        self.assertLessEqual(silent, alerts)
        with tempfile.TemporaryDirectory() as folder:
            # A test that cannot fail would be none.
            text = (HERE / "alerts.yml").read_text()
            for name in ("alerts.yml", "alerts.test.yml"):
                shutil.copy(HERE / name, folder)
            (pathlib.Path(folder) / "alerts.yml").write_text(text.replace("> 0.3", "> 0.9"))
            self.assertNotEqual(promtool("test", "rules", "alerts.test.yml", cwd=folder)[0], 0)

    def test_every_expression_parses(self):
        rules = {"groups": [{"name": "all", "rules": [{"record": f"x{n}", "expr": filled(expr)} for n, (_, expr) in enumerate(expressions())]}]}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "all.yml"
            # JSON is YAML.
            path.write_text(json.dumps(rules))
            status, said = promtool("check", "rules", path)
            self.assertEqual(status, 0, said)


if __name__ == "__main__":
    # With the reasons of what was left out.
    unittest.main(verbosity=2)
