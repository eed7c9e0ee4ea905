#!/usr/bin/env python3
"""Measures what subscribers and watchers cost, for docs/results/people.md. Prints JSON.

    scripts/costs.py languages [--rate 500000] [--seconds 4] [--rounds 3]
        processor time of a message in Rust, C and Python, each alone beside its root, in turn
    scripts/costs.py minute [--rate 1000000] [--seconds 60]
        a subscriber in Rust and one in Python beside their root, at once
    scripts/costs.py watch [--receivers 100] [--receivers 1000] [--seconds 10] [--rounds 3]
        processor time of a root with and without `evenfall watch`, in turn

`lost` counts messages that did not come. `cut_off` says that a subscriber was too slow, and was ended by its name.
The release builds are made first, which takes some minutes; `--no-build` takes them as they are.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
RELEASE = TARGET / "release"
PYTHON = ROOT / "target/venv-store/bin/python"
BYTES = 40
READER = """
import sys, evenfall
with evenfall.subscribe(root=sys.argv[1], address=sys.argv[2], id=int(sys.argv[3])) as feed:
    for {one} in {of}: pass
    print("messages", feed.messages, "lost", feed.lost)
"""
PYTHON_READERS = {
    "python, batches": READER.format(one="batch", of="feed.batches()"),
    "python, one by one": READER.format(one="message", of="feed"),
}
# Receivers of one process of the crowd: each has some descriptors, of which a process has 1,024 by default.
CROWD = 125
# Messages a second of the root that is watched. The nodes of a thousand receivers share the cores with it.
WATCHED_RATE = 2
# The example `crowd` has the same: a thousand receivers below one root report to it twenty times a second by default,
# where in a run they report to their proxies.
MEMBERSHIP = """[multicast.membership]
join_retry = "1s"
beacon_interval = "500ms"
report_interval = "1s"
silence = "20s"
root_timeout = "60s"
expect_timeout = "90s"
"""
# How long nodes may take to come, and a root to end.
PATIENCE_S = 120


def build():
    """The programs. Builds of one package each share their crates."""
    cargo = ["cargo", "build", "--quiet", "--release", "--package"]
    for words in (
        ["evenfall", "--features", "subscriber,publisher"]
        + [word for name in ("batches", "paced_root", "crowd") for word in ("--example", name)],
        ["evenfall-cli"],
        ["evenfall-python"],
        ["evenfall-c"],
    ):
        subprocess.run([*cargo, *words], check=True, cwd=ROOT)


def host():
    """A loopback address of this run alone, on which all ports are free."""
    return f"127.{random.randrange(20, 220)}.{random.randrange(250)}.{random.randrange(1, 250)}"


def readers(work):
    """The commands of the subscribers by name: those whose parts are there."""
    found = {"rust, batches": ([RELEASE / "examples/batches"], {})}
    library, compiler = RELEASE / "libevenfall_c.so", shutil.which("cc")
    if library.exists() and compiler:
        shutil.copy(library, work / "libevenfall.so.0")
        (work / "libevenfall.so").symlink_to("libevenfall.so.0")
        source, out = ROOT / "apps/c/examples/batches.c", work / "batches"
        words = ["-std=c11", "-O2", "-D_GNU_SOURCE", "-I", ROOT / "apps/c/include", source, "-o", out]
        words += ["-L", work, "-levenfall", f"-Wl,-rpath,{work}", "-pthread"]
        subprocess.run([compiler, *words], check=True)
        found["c, batches"] = ([out], {})
    else:
        print("skipped: no C library or no compiler", file=sys.stderr)
    library = RELEASE / "libevenfall_python.so"
    if library.exists():
        package = work / "package"
        shutil.copytree(ROOT / "apps/python/evenfall", package / "evenfall")
        shutil.copy(library, package / "evenfall/_evenfall.abi3.so")
        python = PYTHON if PYTHON.exists() else sys.executable
        for name, program in PYTHON_READERS.items():
            found[name] = ([python, "-c", program], {"PYTHONPATH": str(package)})
    else:
        print("skipped: no Python package", file=sys.stderr)
    return found


def start(command, words, environment, errors):
    return subprocess.Popen(
        [*map(str, command), *words],
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, **environment},
    )


def ended(process, until):
    """Standard output, the code and the CPU seconds of a process, which is killed when it hangs."""
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid != 0:
            break
        if time.monotonic() > until:
            process.kill()
        time.sleep(0.02)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.stdout.read(), process.returncode, used.ru_utime + used.ru_stime


def feed(commands, rate, seconds):
    """A feed to these subscribers at once. For each its CPU seconds, lost messages and whether it was cut off; and the
    same of the root under the name `root`."""
    at = host()
    address = f"{at}:9000"
    own = {name: f"{at}:{9000 + number}" for number, name in enumerate(commands, 1)}
    with tempfile.TemporaryDirectory() as work:
        running, errors = {}, {}
        for number, (name, (command, environment)) in enumerate(commands.items(), 1):
            errors[name] = pathlib.Path(work) / f"errors-{number}"
            with errors[name].open("w") as written:
                running[name] = start(command, [address, own[name], str(number)], environment, written)
        receivers = [f"{number}={own[name]}" for number, name in enumerate(commands, 1)]
        words = [address, str(rate), str(seconds), str(BYTES), *receivers]
        root = start([RELEASE / "examples/paced_root"], words, {}, None)
        until = time.monotonic() + 3 * seconds + PATIENCE_S
        out, code, cpu = ended(root, until)
        sent = json.loads(out) if code == 0 else {"messages": 0, "seconds": 0}
        found = {"root": {"cpu_s": cpu, "failed": code != 0, **sent}}
        until = time.monotonic() + 30
        for name, process in running.items():
            out, code, cpu = ended(process, until)
            taken = re.search(r"messages (\d+)", out) or re.search(r"(\d+) messages", out)
            taken = int(taken.group(1)) if taken else 0
            said = errors[name].read_text().strip()
            cut_off = code != 0 and ("were waiting" in said or "TooSlow" in said)
            lost = max(0, sent["messages"] - taken)
            found[name] = {"cpu_s": cpu, "messages": taken, "lost": lost, "cut_off": cut_off}
            if code != 0:
                found[name]["error"] = said.splitlines()[-1] if said else f"code {code}"
        return found


def per_message(all_of_it, start_of_it, messages):
    return round((all_of_it["cpu_s"] - start_of_it["cpu_s"]) / max(1, messages) * 1e9, 1)


def languages(asked):
    rate, seconds = asked.rate or 500_000, asked.seconds or 4
    rows = {}
    with tempfile.TemporaryDirectory() as work:
        commands = readers(pathlib.Path(work))
        for _ in range(asked.rounds):
            for name, command in commands.items():
                # A feed without messages at the rate has what the start of the process and its imports cost.
                begun, full = (feed({name: command}, rate, span) for span in (0, seconds))
                rows.setdefault(name, []).append((begun[name], full[name], full["root"]))
    told = {}
    for name, rounds in rows.items():
        costs = [per_message(full, begun, rate * seconds) for begun, full, _ in rounds]
        told[name] = {
            "cpu_ns_per_message": statistics.median(costs),
            "rounds": costs,
            "lost": sum(full["lost"] for _, full, _ in rounds),
            "cut_off": sum(full["cut_off"] for _, full, _ in rounds),
            "seconds": statistics.median(root["seconds"] for _, _, root in rounds),
        }
        errors = [full["error"] for _, full, _ in rounds if "error" in full]
        if errors:
            told[name]["error"] = errors[0]
    return {"messages_per_s": rate, "seconds": seconds, "bytes": BYTES, "subscribers": told}


def minute(asked):
    rate, seconds = asked.rate or 1_000_000, asked.seconds or 60
    with tempfile.TemporaryDirectory() as work:
        commands = readers(pathlib.Path(work))
        commands = {name: commands[name] for name in ("rust, batches", "python, batches") if name in commands}
        begun, full = (feed(commands, rate, span) for span in (0, seconds))
    told = {}
    for name, of in full.items():
        told[name] = {"cpu_ns_per_message": per_message(of, begun[name], rate * seconds), **of}
        told[name]["cpu_s"] = round(of["cpu_s"], 2)
    return {"messages_per_s": rate, "seconds": seconds, "bytes": BYTES, "cores": os.cpu_count(), "nodes": told}


def cpu_ns(pid):
    """Nanoseconds that all threads of a process have run."""
    ns = 0
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            ns += int((thread / "schedstat").read_text().split()[0])
        except FileNotFoundError:
            pass
    return ns


def settings_of(work, at, receivers, seconds):
    """The settings of a root that sends some messages a second to so many receivers."""
    node = '[[node]]\nname = "{}"\nid = {}\nrole = "{}"\naddress = "{}:{}"\n'
    text = [f'[run]\ndir = "{work}/run"\nlog = false\nwarm_up = "1s"\n[feed]\nrate = {WATCHED_RATE}\n']
    text += [f"[feed.synthetic]\nmessages = {WATCHED_RATE * seconds}\n"]
    text += [MEMBERSHIP, node.format("root", 0, "root", at, 9000), f'http = "{at}:9190"\n']
    text += [node.format(f"receiver-{id}", id, "receiver", at, 20_000 + id) for id in range(1, receivers + 1)]
    path = work / "evenfall.toml"
    path.write_text("".join(text))
    return path


def share_of_core(root, seconds):
    """The share of a core that a process takes from now on."""
    began, used = time.monotonic(), cpu_ns(root.pid)
    time.sleep(seconds)
    return (cpu_ns(root.pid) - used) / 1e9 / (time.monotonic() - began)


def members(at):
    """The receivers that are members of the run."""
    with urllib.request.urlopen(f"http://{at}:9190/status", timeout=10) as answer:
        return json.load(answer)[0]["receivers"]


def watched(receivers, seconds, rounds):
    """The shares of a core of a root with so many receivers, without a watcher and with one, in turn."""
    at, program = host(), RELEASE / "evenfall"
    running = []
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        life = 2 * PATIENCE_S + rounds * 2 * (seconds + 2)
        config = settings_of(work, at, receivers, life)
        said, crowd_errors = (work / "root").open("w"), (work / "crowd").open("w")
        try:
            root = subprocess.Popen([program, "run", "root", "--config", config], stdout=said, stderr=said)
            running.append(root)
            for first in range(1, receivers + 1, CROWD):
                count = min(CROWD, receivers + 1 - first)
                words = [f"{at}:9000", at, first, count, life]
                crowd = [RELEASE / "examples/crowd", *map(str, words)]
                running.append(subprocess.Popen(crowd, stdout=subprocess.DEVNULL, stderr=crowd_errors))
            until = time.monotonic() + PATIENCE_S
            while "the feed begins" not in (work / "root").read_text():
                if root.poll() is not None or time.monotonic() > until:
                    sys.exit(f"costs: the root did not begin: {(work / 'root').read_text()}")
                time.sleep(0.2)
            # The first seconds of a feed settle the hold.
            time.sleep(5)
            shares, present = {"without": [], "with": []}, [members(at)]
            for _ in range(rounds):
                shares["without"].append(share_of_core(root, seconds))
                watch = [program, "watch", "--config", config, "--listen", f"{at}:0"]
                watcher = subprocess.Popen(watch, stdout=subprocess.DEVNULL)
                running.append(watcher)
                time.sleep(2)
                shares["with"].append(share_of_core(root, seconds))
                watcher.terminate()
                watcher.wait()
                present.append(members(at))
        finally:
            for process in running:
                process.kill()
                process.wait()
            said.close()
            crowd_errors.close()
    middle = {name: statistics.median(found) for name, found in shares.items()}
    return {
        "receivers": receivers,
        "receivers_present": min(present),
        "core_share_without": round(middle["without"], 5),
        "core_share_with": round(middle["with"], 5),
        "core_share_of_watch": round(middle["with"] - middle["without"], 5),
        "rounds": {name: [round(share, 5) for share in found] for name, found in shares.items()},
    }


def watch(asked):
    sizes = asked.receivers or [100, 1_000]
    return {"watch": [watched(size, asked.seconds or 10, asked.rounds) for size in sizes]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["languages", "minute", "watch"])
    parser.add_argument("--rate", type=int, help="messages a second")
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--receivers", type=int, action="append")
    parser.add_argument("--no-build", action="store_true")
    asked = parser.parse_args()
    if not asked.no_build:
        build()
    print(json.dumps({"languages": languages, "minute": minute, "watch": watch}[asked.what](asked)))


if __name__ == "__main__":
    main()
