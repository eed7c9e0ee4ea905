"""Sorts records by evenfall and by others in turns, and prints medians and their ratios.

    peers.py PROGRAM BUILT [--rounds N] [--records N] [--ranks N]

Every round measures each once, in an order that rotates.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import time

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("built", type=pathlib.Path)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--records", type=int, default=4_000_000)
parser.add_argument("--ranks", type=int, default=8)
arguments = parser.parse_args()


def evenfall(records, ranks):
    command = [arguments.program, "sort", "--records", str(records), "--ranks", str(ranks), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def mpi():
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(arguments.ranks)]
    if os.geteuid() == 0:
        command.insert(1, "--allow-run-as-root")
    command += [arguments.built / "sample_sort", str(arguments.records), "1"]
    # Ranks that wait give their core away, since there are more ranks than cores.
    environment = dict(os.environ, OMPI_MCA_mpi_yield_when_idle="1")
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout)


def polars_sort():
    import polars

    count = arguments.records
    keys, values = os.urandom(10 * count), os.urandom(90 * count)
    frame = polars.DataFrame({
        "key": [keys[at : at + 10] for at in range(0, len(keys), 10)],
        "value": [values[at : at + 90] for at in range(0, len(values), 90)],
    })
    begun = time.perf_counter()
    frame.sort("key")
    return time.perf_counter() - begun


def local_rates(records):
    """Records per ms of one core: keys alone."""
    rates = {}
    ours = evenfall(records, 1)["phases_us"]["local_sort"]["mean"]
    rates["evenfall"] = records / (ours / 1000)
    done = subprocess.run([arguments.built / "local", str(records), "3"], check=True, capture_output=True, text=True)
    # The first round of a process also fetches its memory.
    rates.update(json.loads(done.stdout.splitlines()[-1]))
    return rates


def medians(rounds):
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def show(title, figures, higher):
    ours = figures["evenfall"]
    for name, figure in figures.items():
        ratio = ours / figure if higher else figure / ours
        print(f"{title:<44} {name:<10} {figure:>12,.3f}   evenfall is {ratio:.2f} times as fast")


for records in (7_000, 10_000_000):
    rounds = [local_rates(records) for _ in range(arguments.rounds)]
    show(f"keys of one rank, {records:,}, records/ms", medians(rounds), True)

whole = {"evenfall": lambda: evenfall(arguments.records, arguments.ranks)["seconds"], "polars": polars_sort}
if (arguments.built / "sample_sort").exists():
    whole["mpi"] = mpi


def cpu_seconds():
    """Processor time of this process and of all that it has waited for, making records included."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def measure(run):
    before = cpu_seconds()
    seconds = run()
    return seconds, cpu_seconds() - before


names, rounds = list(whole), []
for at in range(arguments.rounds):
    turn = names[at % len(names) :] + names[: at % len(names)]
    rounds.append({name: measure(whole[name]) for name in turn})
title = f"{arguments.records:,} records, {arguments.ranks} ranks, seconds"
show(title, medians([{name: one[name][0] for name in names} for one in rounds]), False)
for name in names:
    spent = statistics.median(one[name][1] for one in rounds)
    print(f"{title:<44} {name:<10} {spent:>12,.3f}   CPU seconds, making records included")
print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, medians of {arguments.rounds}")
