#!/usr/bin/env python3
"""The settings and rules that `evenfall generate` makes, with a real Prometheus. Each rule fires on figures that it is
for. Beside a run of five processes nothing may fire while the run is well, and processes that end fire their alerts.

    alerts.py PROGRAM [--quiet SECONDS] [--host ADDRESS] [--port PORT]

Exit code 0: all is right. 1: an alert fires that should not, or the other way round. 3: there is no Prometheus (Debian's
package prometheus has it).
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROLES = {"root": "root", "proxy-1": "proxy", "receiver-1": "receiver", "receiver-2": "receiver", "recorder": "recorder"}
# The longest time until an alert fires. A rule over a minute of samples needs some of them.
ALERT_SECONDS = 90
# A busy machine is late and uneven by itself, and these rules say so. They are judged by their faults alone.
OF_BUSY_MACHINES = {"EvenfallUnfair", "EvenfallWindowWide", "EvenfallReceiverLate", "EvenfallHoldAtLimit"}


# Figures by which each rule fires, and the figures of a run that is well: a series, its first value, and what is added
# every ten seconds.
BAD = {
    "EvenfallUnfair": [("evenfall_on_time_share", 0.5, 0)],
    "EvenfallWindowWide": [('evenfall_window_seconds_bucket{le="0.001"}', 0, 1), ('evenfall_window_seconds_bucket{le="1"}', 0, 100)],
    "EvenfallMessagesLost": [('evenfall_lost_messages_total{node="desk",role="receiver"}', 0, 1)],
    "EvenfallReceiverLate": [('evenfall_late_messages_total{node="desk",role="receiver"}', 0, 50)],
    "EvenfallProxyReplaced": [("evenfall_replacements_made_total", 0, 1)],
    "EvenfallForgedDatagrams": [('evenfall_forged_datagrams_total{node="desk"}', 0, 1)],
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


def settings(host, port):
    # No message may be late on a busy machine, so that messages are lost or late by a fault alone.
    text = '[feed]\nfit = "10m"\n[feed.synthetic]\nmessages = 300000\n[multicast.deadline]\nhold_max = "400ms"\n'
    for number, (name, role) in enumerate(ROLES.items()):
        text += f'[[node]]\nname = "{name}"\nid = {number}\nrole = "{role}"\naddress = "{host}:{port + number}"\n'
        text += f'http = "{host}:{port + 10 + number}"\n' + ('record = "ticks"\n' if role == "recorder" else "")
    return text


class Run:
    """The processes of the run and of Prometheus."""

    def __init__(self, program, directory, host, port):
        self.program, self.directory, self.host, self.port, self.processes = program, directory, host, port, {}

    def path(self, name):
        return os.path.join(self.directory, name)

    def start(self, name, command):
        with open(self.path(f"{name}.log"), "w", encoding="utf8") as log:
            self.processes[name] = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log)

    def generate(self, what, out, *options):
        command = [self.program, "generate", what, self.path("evenfall.toml"), "--out", self.path(out), *options]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)

    def begin(self):
        with open(self.path("evenfall.toml"), "w", encoding="utf8") as out:
            out.write(settings(self.host, self.port))
        self.generate("prometheus", "prometheus.yml", "--interval", "1s")
        self.generate("alerts", "evenfall-alerts.yml", "--for", "2s")
        with open(self.path("tests.yml"), "w", encoding="utf8") as out:
            out.write(tests_of_rules())
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

    def firing(self):
        """The alerts that fire, each with its node."""
        alerts = self.ask("alerts")["alerts"]
        return {(one["labels"]["alertname"], one["labels"].get("node")) for one in alerts if one["state"] == "firing"}

    def check_metrics(self):
        for number, name in enumerate(ROLES):
            with urllib.request.urlopen(f"http://{self.host}:{self.port + 10 + number}/metrics", timeout=10) as page:
                said = subprocess.run(["promtool", "check", "metrics"], input=page.read(), capture_output=True)
            if said.returncode:
                raise SystemExit(f"promtool refuses the metrics of {name}:\n{said.stderr.decode()}")

    def end(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def wait_for(what, seconds, is_there):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if is_there():
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise SystemExit(f"{what}: not within {seconds} s")


def judge(run, quiet):
    def all_up():
        targets = run.ask("targets")["activeTargets"]
        return len(targets) == len(ROLES) and all(target["health"] == "up" for target in targets)

    wait_for("all nodes answer Prometheus", 60, all_up)
    wait_for("the run begins", 60, lambda: run.ask("query?query=sum(evenfall_released_messages_total)>1000")["result"])
    run.check_metrics()
    print(f"{len(ROLES)} nodes are scraped, and promtool takes their metrics", flush=True)
    until = time.monotonic() + quiet
    while time.monotonic() < until:
        wrong = {alert for alert in run.firing() if alert[0] not in OF_BUSY_MACHINES}
        if wrong:
            raise SystemExit(f"nothing is wrong, and these alerts fire: {wrong}")
        time.sleep(1)
    print(f"nothing fires in {quiet} s in which nothing is wrong", flush=True)

    faults = [
        ("the recorder is killed", "recorder", signal.SIGKILL, ("EvenfallNodeGone", "recorder")),
        ("a receiver stands still", "receiver-1", signal.SIGSTOP, ("EvenfallNodeGone", "receiver-1")),
        ("the root is killed", "root", signal.SIGKILL, ("EvenfallNoRoot", None)),
    ]
    for what, node, number, alert in faults:
        run.processes[node].send_signal(number)
        wait_for(f"{what}: {alert}", ALERT_SECONDS, lambda: alert in run.firing())
        print(f"{what}: {alert[0]} fires", flush=True)


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
        run = Run(os.path.realpath(options.program), directory, options.host, options.port)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            run.begin()
            judge(run, options.quiet)
        finally:
            run.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
