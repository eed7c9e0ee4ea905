#!/usr/bin/env python3
"""Goes through the places where strangers stumbled in their first ten minutes, with a program of `make dist`.

    stumbles.py ROOT PROGRAM [--lean]

ROOT is a directory in which the program is alone (or /), and PROGRAM its path there. Called by scripts/dist_test.sh in a
network of its own. Each step says what the stranger met, and fails when the program does it again.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time
import zipfile

STEPS = []


def step(*, is_full=False):
    """Marks a step. With `is_full` it needs a program with all features."""

    def keep(function):
        STEPS.append((function, is_full))
        return function

    return keep


class Stranger:
    """Somebody with the program and a directory, and nothing else."""

    def __init__(self, root, program, is_full):
        self.root, self.program, self.is_full = root, program, is_full
        self.home = pathlib.Path(root, "tmp/first-minutes")
        self.home.mkdir(parents=True)

    def command(self, *words):
        # The program sees its root alone, and begins in the stranger's directory.
        inside = "/" + str(self.home.relative_to(self.root))
        alone = [] if self.root == "/" else ["chroot", self.root]
        return ["env", "--chdir", str(self.home), self.program, *words] if not alone else [
            *alone, self.program, *[word.replace("@/", inside + "/") for word in words]]

    def path(self, word):
        return word.replace("@/", str(self.home) + "/") if self.root == "/" else word

    def run(self, *words, seconds=120):
        words = [self.path(word) for word in words]
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=seconds)

    def expect(self, *words, seconds=120):
        said = self.run(*words, seconds=seconds)
        if said.returncode:
            raise AssertionError(f"evenfall {' '.join(words)}: code {said.returncode}: {said.stderr.strip()[-400:]}")
        return said.stdout + said.stderr

    def refuse(self, *words, telling):
        said = self.run(*words, seconds=30)
        answer = said.stdout + said.stderr
        if said.returncode == 0 or telling not in answer or "os error" in answer:
            raise AssertionError(f"evenfall {' '.join(words)}: code {said.returncode}, without {telling!r}: {answer[-400:]}")

    def start(self, *words):
        words = [self.path(word) for word in words]
        log = open(self.home / f"log-{'-'.join(words[1:2] + words[-1:])}", "w+", encoding="utf8")
        return subprocess.Popen(self.command(*words), stdout=log, stderr=log), log


# Processes that want a core, for each core, from which the machine is too busy for a comparison of modes. The nine
# processes of a demo are a part of this.
BUSY_LOAD = 2
# Commands that are programs of their own, and no files of `make dist`.
OTHER_PROGRAMS = {("sim",), ("bench",), ("query",), ("clock", "lab"), ("plan", "qap")}


def contains(text, *wanted):
    for words in wanted:
        if words not in text:
            shown = text if len(text) < 1200 else f"{text[:600]} ... {text[-600:]}"
            raise AssertionError(f"{words!r} is not in {shown!r}")


@step()
def a_first_tree_has_proxies_that_forward(one):
    """The example for several hosts was a tree whose proxies forwarded nothing, and nothing said when the feed begins."""
    one.expect("init", "--receivers", "3", "--proxies", "2", "@/evenfall.toml")
    settings = (one.home / "evenfall.toml").read_text().replace("messages = 100000", "messages = 3000")
    (one.home / "evenfall.toml").write_text(settings.replace('fit = "30s"', 'fit = "8s"'))
    contains(one.expect("config", "check", "@/evenfall.toml"), "depth 2")
    names = ["receiver-3", "receiver-2", "receiver-1", "proxy-2", "proxy-1", "root"]
    nodes = {name: one.start("run", name.split("-")[0], "--config", "@/evenfall.toml", "--name", name) for name in names}
    try:
        until = time.monotonic() + 60
        while "the feed begins" not in pathlib.Path(nodes["root"][1].name).read_text():
            if time.monotonic() > until or nodes["root"][0].poll() is not None:
                raise AssertionError(pathlib.Path(nodes["root"][1].name).read_text())
            time.sleep(0.1)
        table = one.expect("stat", "--config", "@/evenfall.toml")
        contains(table, "receiver-3", " us")
        for name, (process, log) in nodes.items():
            if process.wait(timeout=90):
                raise AssertionError(f"{name}: code {process.returncode}: {pathlib.Path(log.name).read_text()[-400:]}")
        forwarded = [pathlib.Path(nodes[name][1].name).read_text() for name in ("proxy-1", "proxy-2")]
        if any(" 0 frames forwarded" in words for words in forwarded):
            raise AssertionError(f"a proxy forwards nothing: {forwarded}")
    finally:
        for process, log in nodes.values():
            process.kill()
            process.wait()
            log.close()
    contains(one.expect("report", "@/run"), "0 lost", "on time at every receiver")


@step()
def a_key_is_one_command(one):
    """A key was made by hand with od and chmod."""
    one.expect("key", "new", "@/evenfall.key")
    if (one.home / "evenfall.key").stat().st_mode & 0o077:
        raise AssertionError("other users can read the key")
    one.refuse("key", "new", "@/evenfall.key", telling="evenfall.key")


@step()
def a_demo_names_its_page_and_evens_out(one):
    """README's line of `demo --compare` found the product less even than sending to each receiver alone."""
    for _ in range(3):
        told = one.expect("demo", "--compare", "--receivers", "5", "--messages", "1500", "--fit", "2s", "--dir", "@/compare",
                          seconds=300)
        contains(told, "http://", "even than mode", "paths to two of five receivers")
        if "more even than mode" in told:
            return
    # Where processes wait for a core, what is left with a hold is the scheduler, and no mode evens that out.
    load, cores = os.getloadavg()[0], os.cpu_count()
    if load < BUSY_LOAD * cores:
        contains(told, "more even than mode")
    print(f"stumbles: not judged, at a load of {load:.1f} on {cores} cores: {told.splitlines()[0]}", flush=True)


@step()
def recordings_have_days_and_names(one):
    """`store ls` had neither the day nor the name, one recording needed its name, and a zip of ITCH was called damaged."""
    one.expect("feed", "make", "@/20191230.itch50", "--messages", "3000")
    one.expect("store", "append", "@/ticks", "day", "--feed", "@/20191230.itch50")
    contains(one.expect("store", "ls", "@/ticks"), "3000 messages", "day", "2019-12-30")
    one.expect("store", "verify", "@/ticks")
    table = one.expect("store", "export", "@/ticks", "--out", "@/x.csv")
    contains(table, "3000 rows")
    contains((one.home / "x.csv").read_text()[:200], "time_ns,", ",symbol")
    with zipfile.ZipFile(one.home / "day.zip", "w", zipfile.ZIP_DEFLATED) as made:
        made.write(one.home / "20191230.itch50", "20191230.itch50")
    contains(one.expect("feed", "info", "@/day.zip"), "3000 messages")
    one.expect("store", "append", "@/ticks", "zipped", "--feed", "@/day.zip")


@step(is_full=True)
def exported_rows_are_parquet_when_the_name_says_so(one):
    """`--out x.csv` wrote Parquet."""
    one.expect("store", "export", "@/ticks", "day", "--out", "@/x.parquet")
    if (one.home / "x.parquet").read_bytes()[:4] != b"PAR1" or (one.home / "x.csv").read_bytes()[:4] == b"PAR1":
        raise AssertionError("the ending of the name does not choose the format")


@step()
def mistakes_are_answered_with_what_to_do(one):
    """`report` of a file said "Not a directory (os error 20)", and a missing directory got no advice."""
    one.refuse("report", "@/evenfall.toml", telling="Name the directory of a run")
    one.refuse("report", "@/run", "--csv", "/nonexist/x.csv", telling="there is no directory /nonexist")
    one.refuse("store", "verify", "@/ticks", "--feed", "@/day.zip", "--name", "nobody", telling="there are: day, zipped")
    one.refuse("run", "receiver", "--config", "@/evenfall.toml", "--name", "nobody", telling="receiver-1")
    one.refuse("demo", "--receivers", "0", telling="receivers")
    one.refuse("watch", "--root", "127.0.0.1:1", "--listen", "0.0.0.0:0", telling="run.key_file")


@step()
def every_command_has_an_example(one):
    """63 pages of help had no example."""
    missing, waiting = [], [()]
    while waiting:
        words = waiting.pop()
        told = one.expect(*words, "--help")
        commands = told.partition("\nCommands:\n")[2].split("\n\n")[0].splitlines() if "\nCommands:\n" in told else []
        # A wrapped line of an explanation begins further to the right.
        below = [line.split()[0] for line in commands if line.startswith("  ") and line[2:3].strip()]
        waiting += [(*words, name) for name in below if (*words, name) not in OTHER_PROGRAMS and name != "help"]
        # In a lean program, a command of a feature only says how to get it.
        is_missing = f"Usage: evenfall {' '.join(words)}\n" in told
        if not below and not is_missing and "Example" not in told:
            missing.append(" ".join(words))
    if missing:
        raise AssertionError(f"no example: {missing}")


@step(is_full=True)
def a_platform_gets_its_files_out_of_the_settings(one):
    """The feed on Kubernetes, rules, a dashboard and units were written by hand, and the metrics took port 9100."""
    (one.home / "host.key").write_text("0" * 63 + "1\n")
    os.chmod(one.home / "host.key", 0o600)
    one.expect("init", "--hosts", "10.0.0.4,10.0.0.5,10.0.0.6,10.0.0.7", "--proxies", "1", "--receivers", "2", "--key-file",
               "@/host.key", "@/hosts.toml")
    cluster = ["--hosts", "a=10.0.0.4,b=10.0.0.5,c=10.0.0.6,d=10.0.0.7"]
    for what, wanted, options in (("kubernetes", '"kind": "Deployment"', cluster), ("prometheus", "job_name: evenfall", []),
                                  ("alerts", "EvenfallUnfair", []), ("grafana", "on_time_share", []),
                                  ("systemd", "evenfall", [])):
        told = one.expect("generate", what, "@/hosts.toml", *options)
        contains(told, wanted)
        if ":9100" in told:
            raise AssertionError(f"{what} uses the port of node_exporter")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("root")
    parser.add_argument("program")
    parser.add_argument("--lean", action="store_true", help="the program has no further features")
    options = parser.parse_args()
    one, failed = Stranger(options.root, options.program, not options.lean), 0
    for function, is_full in STEPS:
        name = function.__name__.replace("_", " ")
        if is_full and not one.is_full:
            continue
        try:
            function(one)
            print(f"stumbles: {name}", flush=True)
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"stumbles: FAILED: {name}\n  {function.__doc__}\n  {error}", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
