#!/usr/bin/env python3
"""The settings and rules that `evenfall generate` makes, with a real Prometheus. Each rule fires on figures that it is
for. Beside a run of five processes no alert may fire that is not true, and processes that end fire their alerts.

A busy machine loses messages, is late, and answers late by itself, and rules that say so are right. So an alert of the
run is judged by what the nodes' own pages say: it is wrong when it goes on firing although no page has ever said so.

    alerts.py PROGRAM [--quiet SECONDS] [--host ADDRESS] [--port PORT]

Exit code 0: all is right. 1: an alert fires that should not, or the other way round. 3: there is no Prometheus (Debian's
package prometheus has it).
"""

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROLES = {"root": "root", "proxy-1": "proxy", "receiver-1": "receiver", "receiver-2": "receiver", "recorder": "recorder"}
# The longest time until the run has begun, and until an alert fires. A rule over a minute needs some samples.
START_SECONDS, ALERT_SECONDS = 120, 90
# How long a condition holds before it is an alert. A busy machine misses the second of a scrape now and then.
HOLD_SECONDS = 4
# Looks, a second apart, that an alert may go on firing after the last page that says so. Prometheus has each figure a
# scrape later than the page, and drops the alert an evaluation after that.
UNTRUE_LOOKS_MAX = 4
HOLD_MAX_SECONDS, ON_TIME_SHARE = 0.4, 0.99
# By how much the clock of a host steps ahead.
STEP_NS = 3_600_000_000_000

# What a busy machine does by itself: a rule, and whether the page of a node, beside its page a look earlier, says that the
# rule is right. All other rules are wrong whenever they fire beside a run without faults.
TRUE_BY_PAGE = {
    "EvenfallUnfair": lambda page, _: page.get("on_time_share", 1) < ON_TIME_SHARE,
    "EvenfallWindowWide": lambda page, _: page.get("windows_over_5_ms", 0) > 0,
    "EvenfallMessagesLost": lambda page, _: page.get("lost_messages_total", 0) > 0,
    "EvenfallReceiverLate": lambda page, _: page.get("late_messages_total", 0) > 0,
    # A root counts reports of nodes that have no place yet among its refusals.
    "EvenfallForgedDatagrams": lambda page, _: page.get("forged_datagrams_total", 0) > 0,
    "EvenfallHoldAtLimit": lambda page, _: page.get("hold_seconds", 0) >= HOLD_MAX_SECONDS * 0.99,
    "EvenfallClockUnsound": lambda page, _: page.get("clock_sound", 1) == 0,
    "EvenfallRecorderStands": lambda page, before: page.get("kept_messages_total", 0) == before.get("kept_messages_total"),
}
SCRAPE_SECONDS = 1

# Figures by which each rule fires, and the figures of a run that is well: a series, its first value, and what is added
# every ten seconds.
BAD = {
    "EvenfallUnfair": [("evenfall_on_time_share", 0.5, 0)],
    "EvenfallWindowWide": [('evenfall_window_seconds_bucket{le="0.001"}', 0, 1), ('evenfall_window_seconds_bucket{le="1"}', 0, 100)],
    "EvenfallMessagesLost": [('evenfall_lost_messages_total{node="desk",role="receiver"}', 0, 1)],
    "EvenfallReceiverLate": [('evenfall_late_messages_total{node="desk",role="receiver"}', 0, 50)],
    "EvenfallProxyReplaced": [("evenfall_replacements_made_total", 0, 1)],
    "EvenfallForgedDatagrams": [('evenfall_forged_datagrams_total{node="desk"}', 0, 1)],
    "EvenfallCloudAllowance": [('evenfall_card_lost_packets_total{node="desk",card="eth0",cause="cloud",counter="pps_allowance_exceeded"}', 0, 1)],
    "EvenfallHoldAtLimit": [("evenfall_hold_seconds", 0.4, 0)],
    "EvenfallNodeGone": [('up{job="evenfall",node="desk",role="receiver"}', 0, 0)],
    "EvenfallNoRoot": [("evenfall_leads", 0, 0)],
    "EvenfallClockUnsound": [('evenfall_clock_sound{node="desk"}', 0, 0)],
    "EvenfallClockStepped": [('evenfall_clock_steps_total{node="desk"}', 0, 1)],
    "EvenfallClockAboveWindow": [('evenfall_clock_assumed_seconds{node="desk"}', 0.1, 0)],
    "EvenfallClockLost": [("evenfall_clock_lost", 1, 0)],
    "EvenfallRecorderStands": [('evenfall_kept_messages_total{node="day"}', 5, 0)],
    "EvenfallDiskErrors": [("evenfall_store_disk_errors_total", 0, 1)],
    "EvenfallUploadsFail": [("evenfall_store_upload_errors_total", 0, 1)],
    "EvenfallSecondNodeAway": [("evenfall_store_replica_away", 1, 0)],
    "EvenfallRackOut": [("evenfall_racks_out", 1, 0)],
}
WELL = [
    ("evenfall_on_time_share", 0.994, 0), ("evenfall_leads", 1, 0), ("evenfall_hold_seconds", 0.001, 0),
    ('evenfall_window_seconds_bucket{le="0.001"}', 0, 100), ('evenfall_window_seconds_bucket{le="+Inf"}', 0, 100),
    ('evenfall_released_messages_total{node="desk",role="receiver"}', 0, 100),
    ('evenfall_late_messages_total{node="desk",role="receiver"}', 0, 1),
    ('evenfall_lost_messages_total{node="desk",role="receiver"}', 0, 0), ("evenfall_replacements_made_total", 0, 0),
    ('evenfall_forged_datagrams_total{node="desk"}', 0, 0), ('up{job="evenfall",node="desk",role="receiver"}', 1, 0),
    ('evenfall_card_lost_packets_total{node="desk",card="eth0",cause="cloud",counter="pps_allowance_exceeded"}', 7, 0),
    ('evenfall_card_lost_packets_total{node="desk",card="eth0",cause="card",counter="rx_drops"}', 0, 1),
    ('evenfall_clock_sound{node="desk"}', 1, 0), ('evenfall_clock_steps_total{node="desk"}', 0, 0),
    ('evenfall_clock_assumed_seconds{node="desk"}', 0.0001, 0), ("evenfall_clock_lost", 0, 0),
    ("evenfall_clock_disrupted", 0, 0), ("evenfall_clock_liars", 0, 0),
    ('evenfall_released_messages_total{node="day",role="recorder"}', 0, 100),
    ('evenfall_kept_messages_total{node="day"}', 0, 100), ("evenfall_store_disk_errors_total", 0, 0),
    ("evenfall_store_refused_appends_total", 0, 0), ("evenfall_store_upload_errors_total", 0, 0),
    ("evenfall_store_replica_away", 0, 0), ("evenfall_racks_out", 0, 0),
]


def tests_of_rules():
    """A file for `promtool test rules`. JSON is YAML too."""

    def test(bad, firing):
        series = {**{name: rest for name, *rest in WELL}, **{name: rest for name, *rest in bad}}
        inputs = [{"series": name, "values": f"{first}+{step}x60"} for name, (first, step) in series.items()]
        expected = [{"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "8m", "exp_samples": [
            {"labels": json.dumps(alert).join(["{alertname=", "}"]), "value": 1} for alert in firing]}]
        return {"interval": "10s", "input_series": inputs, "promql_expr_test": expected}

    tests = [test([], [])] + [test(bad, [alert]) for alert, bad in BAD.items()]
    return json.dumps({"rule_files": ["evenfall-alerts.yml"], "evaluation_interval": "10s", "tests": tests})


def settings(host, port, quiet):
    # The run goes on after the quiet seconds until all faults were tried.
    seconds = quiet + START_SECONDS + 6 * ALERT_SECONDS
    text = f'[feed]\nfit = "{seconds}s"\n[feed.synthetic]\nmessages = {500 * seconds}\n'
    # No message may be late on a busy machine, so that messages are lost or late by a fault alone.
    text += f'[multicast.deadline]\nhold_max = "{HOLD_MAX_SECONDS * 1000:.0f}ms"\n'
    # Faults by files: a host's clock steps, and a receiver's datagrams come later.
    text += '[run]\nclock = "realtime"\n[clock]\nsteps = "."\n[inject]\nfile = "delays"\n'
    for number, (name, role) in enumerate(ROLES.items()):
        text += f'[[node]]\nname = "{name}"\nid = {number}\nrole = "{role}"\naddress = "{host}:{port + number}"\n'
        text += f'http = "{host}:{port + 10 + number}"\n' + ('record = "ticks"\n' if role == "recorder" else "")
    return text


class Run:
    """The processes of the run and of Prometheus."""

    def __init__(self, program, directory, host, port, quiet):
        self.program, self.directory, self.host, self.port, self.processes = program, directory, host, port, {}
        self.quiet = quiet

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf8") as out:
            out.write(text)

    def start(self, name, command):
        with open(self.path(f"{name}.log"), "w", encoding="utf8") as log:
            self.processes[name] = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log)

    def generate(self, what, out, *options):
        command = [self.program, "generate", what, self.path("evenfall.toml"), "--out", self.path(out), *options]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)

    def begin(self):
        self.write("evenfall.toml", settings(self.host, self.port, self.quiet))
        self.write("delays", "")
        self.generate("prometheus", "prometheus.yml", "--interval", f"{SCRAPE_SECONDS}s")
        self.generate("alerts", "evenfall-alerts.yml", "--for", f"{HOLD_SECONDS}s")
        self.write("tests.yml", tests_of_rules())
        with open(self.path("evenfall-alerts.yml"), encoding="utf8") as rules:
            untried = [line for line in rules if "- alert: " in line and line.split()[-1] not in BAD]
        if untried:
            raise SystemExit(f"no figures are planted for these rules: {untried}")
        for command in (["check", "config", self.path("prometheus.yml")], ["test", "rules", self.path("tests.yml")]):
            said = subprocess.run(["promtool", *command], capture_output=True, text=True)
            if said.returncode:
                raise SystemExit(f"promtool {command[0]} {command[1]}:\n{said.stdout}{said.stderr}")
        print(f"each of {len(BAD)} rules fires on its figures, and none on those of a run that is well", flush=True)
        for name, role in reversed(ROLES.items()):
            self.start(name, [self.program, "run", role, "--config", "evenfall.toml", "--name", name])
        self.start("prometheus", ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb",
                                  f"--web.listen-address={self.host}:{self.port + 20}"])

    def ask(self, path):
        with urllib.request.urlopen(f"http://{self.host}:{self.port + 20}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def alerts(self):
        """The alerts that wait or fire: their states by their names and nodes."""
        alerts = self.ask("alerts")["alerts"]
        return {(one["labels"]["alertname"], one["labels"].get("node")): one["state"] for one in alerts}

    def is_firing(self, alert):
        return self.alerts().get(alert) == "firing"

    def page(self, name, seconds):
        number = list(ROLES).index(name)
        with urllib.request.urlopen(f"http://{self.host}:{self.port + 10 + number}/metrics", timeout=seconds) as page:
            return page.read().decode()

    def check_metrics(self):
        for name in ROLES:
            said = subprocess.run(["promtool", "check", "metrics"], input=self.page(name, 10), capture_output=True, text=True)
            if said.returncode:
                raise SystemExit(f"promtool refuses the metrics of {name}:\n{said.stderr}")
        return True

    def expect_alive(self):
        """Ends with the log of a process that has ended by itself."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                with open(self.path(f"{name}.log"), encoding="utf8", errors="replace") as log:
                    raise SystemExit(f"{name} has ended with code {process.returncode}:\n{log.read()[-2000:]}")

    def slow_receiver(self):
        """Holds the datagrams to and from the second receiver up, by more than the longest hold."""
        number = list(ROLES).index("receiver-2")
        self.write("delays", f"* {self.host}:{self.port + number} {1_500_000 * HOLD_MAX_SECONDS:.0f}\n")

    def end(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def wait_for(what, seconds, is_there):
    until, refusal = time.monotonic() + seconds, ""
    while time.monotonic() < until:
        try:
            if is_there():
                return
        except (OSError, http.client.HTTPException) as error:
            refusal = f" ({error})"
        time.sleep(0.5)
    raise SystemExit(f"{what}: not within {seconds} s{refusal}")


def figures_of(page):
    """The figures of a page without their labels. Of several, the sum of counters, the least of what is best at 1, and the
    greatest of all others."""
    figures, windows = {}, {}
    for line in page.splitlines():
        if line.startswith("#") or not line:
            continue
        series, value = line.rsplit(" ", 1)
        name, value = series.split("{")[0].removeprefix("evenfall_"), float(value)
        if name == "window_seconds_bucket":
            windows[float(re.search('[{,]le="([^"]*)"', series).group(1))] = value
        worst = min if name in ("on_time_share", "clock_sound") else max
        worst = sum if name.endswith("_total") else worst
        figures[name] = worst([figures[name], value]) if name in figures else value
    figures["windows_over_5_ms"] = max(windows.values(), default=0) - max(
        (count for end, count in windows.items() if end <= 0.005), default=0)
    return figures


def silence_of(node, error):
    """The alerts that are right when a node whose process runs does not answer within the time of a scrape."""
    rules = ["EvenfallNodeGone"] + (["EvenfallNoRoot"] if ROLES[node] == "root" else [])
    return {(rule, node): f"{node} does not answer: {error}" for rule in rules}


class AlertLog:
    """Says when each alert begins to wait, to fire and to end, and keeps what the nodes' pages say."""

    def __init__(self, run):
        self.run, self.began, self.states, self.pages, self.reasons, self.untrue = run, time.monotonic(), {}, {}, {}, {}
        self.at_start = None

    def say(self, words):
        print(f"{time.monotonic() - self.began:6.1f} s: {words}", flush=True)

    def is_start_over(self):
        """Whether no alert fires that the start explains. One that goes on is a rule that is wrong, and is named."""
        firing = {alert for alert, state in self.run.alerts().items() if state == "firing" and alert[0] not in TRUE_BY_PAGE}
        if firing != self.at_start:
            self.at_start = firing
            self.say(f"alerts of the start that fire: {', '.join(map(words_of, sorted(firing, key=str))) or 'none'}")
        return not firing

    def look(self):
        """Reads the pages, and then the alerts. Ends when an alert fires that no page says."""
        self.run.expect_alive()
        true_now = {}
        for name in ROLES:
            try:
                page = figures_of(self.run.page(name, SCRAPE_SECONDS))
            except (OSError, http.client.HTTPException) as error:
                true_now.update(silence_of(name, error))
                continue
            before, self.pages[name] = self.pages.get(name, {}), page
            for rule, is_true in TRUE_BY_PAGE.items():
                if is_true(page, before):
                    true_now[rule, name] = f"the page of {name} says so"
        for target in self.run.ask("targets")["activeTargets"]:
            # A process that is dead was found above, so that the machine was too busy for this scrape.
            if target["health"] == "down":
                true_now.update(silence_of(target["labels"]["node"], target["lastError"]))
        self.judge(self.run.alerts(), true_now)

    def judge(self, alerts, true_now):
        for alert in sorted({*alerts, *self.states}, key=str):
            state = alerts.get(alert, "over")
            if state != self.states.get(alert):
                self.say(f"{words_of(alert)}: {state}{self.figures_of_node(alert[1]) if state == 'firing' else ''}")
        self.states = alerts
        firing = {alert for alert, state in alerts.items() if state == "firing"}
        reasons = {
            # An alert without a node may be of any.
            alert: [why for (rule, node), why in true_now.items() if rule == alert[0] and alert[1] in (node, None)]
            for alert in firing
        }
        for alert in firing:
            if reasons[alert] and alert not in self.reasons:
                self.say(f"{words_of(alert)} is right on this machine: {reasons[alert][0]}")
        self.reasons.update({alert: why for alert, why in reasons.items() if why})
        self.untrue = {alert: self.untrue.get(alert, 0) + 1 for alert in firing if not reasons[alert]}
        wrong = [alert for alert, looks in self.untrue.items()
                 if looks > (UNTRUE_LOOKS_MAX if alert in self.reasons else 0)]
        if wrong:
            raise SystemExit(f"nothing is wrong, and these alerts fire: {', '.join(map(words_of, wrong))}")

    def figures_of_node(self, node):
        """What the page of the alert's node said last of what rules watch."""
        told = ("released_messages_total", "late_messages_total", "lost_messages_total", "kept_messages_total",
                "forged_datagrams_total", "clock_steps_total", "clock_sound", "hold_seconds", "on_time_share", "leads")
        page = self.pages.get(node, {})
        figures = ", ".join(f"{name} {page[name]:g}" for name in told if name in page)
        return f" ({figures})" if figures else ""


def words_of(alert):
    return alert[0] + (f" of {alert[1]}" if alert[1] else "")


def judge(run, quiet):
    def all_up():
        run.expect_alive()
        targets = run.ask("targets")["activeTargets"]
        return len(targets) == len(ROLES) and all(target["health"] == "up" for target in targets)

    wait_for("all nodes answer Prometheus", START_SECONDS, all_up)
    begun = "query?query=sum(evenfall_released_messages_total)>1000"
    wait_for("the run begins", START_SECONDS, lambda: run.ask(begun)["result"])
    wait_for("the metrics of all nodes", START_SECONDS, run.check_metrics)
    print(f"{len(ROLES)} nodes are scraped, and promtool takes their metrics", flush=True)
    log = AlertLog(run)
    # Before the run had begun, nodes were away and no root led. Alerts that said so end an evaluation after the run
    # has begun, or two when a scrape comes late.
    wait_for("the end of the alerts of the start", ALERT_SECONDS, log.is_start_over)
    log.began = time.monotonic()
    # A rule that is wrong needs its time before it is an alert.
    quiet += HOLD_SECONDS
    while time.monotonic() < log.began + quiet:
        try:
            log.look()
        except (OSError, http.client.HTTPException) as error:
            log.say(f"Prometheus does not answer: {error}")
        time.sleep(1)
    log.say(f"no alert fires in {quiet} s that is not true")

    def send(node, number):
        return lambda: run.processes[node].send_signal(number)

    faults = [
        ("the clock of a receiver's host steps", ("EvenfallClockStepped", "receiver-1"),
         lambda: run.write("receiver-1.step", str(STEP_NS))),
        ("a receiver is slow", ("EvenfallReceiverLate", "receiver-2"), run.slow_receiver),
        ("the recorder is killed", ("EvenfallNodeGone", "recorder"), send("recorder", signal.SIGKILL)),
        ("a receiver stands still", ("EvenfallNodeGone", "receiver-1"), send("receiver-1", signal.SIGSTOP)),
        ("the root is killed", ("EvenfallNoRoot", None), send("root", signal.SIGKILL)),
    ]
    for what, alert, cause in faults:
        # An alert of the busy machine says nothing about the fault.
        wait_for(f"{words_of(alert)} before {what}", ALERT_SECONDS, lambda: alert not in run.alerts())
        cause()
        log.say(what)
        wait_for(f"{what}: {words_of(alert)}", ALERT_SECONDS, lambda: run.is_firing(alert))
        log.say(f"{words_of(alert)} fires")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program")
    parser.add_argument("--quiet", type=int, default=30)
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address for all ports")
    parser.add_argument("--port", type=int, default=29_400)
    options = parser.parse_args()
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        print("skipped: no Prometheus (Debian's package prometheus)")
        return 3
    with tempfile.TemporaryDirectory() as directory:
        run = Run(os.path.realpath(options.program), directory, options.host, options.port, options.quiet)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            run.begin()
            judge(run, options.quiet)
        finally:
            run.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
