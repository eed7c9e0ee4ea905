"""Measures how far evenfall, chrony and linuxptp believe two equal clocks to be apart.

    peers.py --programs DIR [--rounds N] [--seconds S] [--polls LOG2] [--json FILE]

Two network namespaces are joined by a pair of virtual cards and share the kernel's clock, so that
the true offset is 0 at every moment, and an estimate of the offset is its own error. No program
may steer the kernel's clock, because both ends would move:

| row | how it leaves the clock alone | what counts as its error |
|---|---|---|
| chrony | `chronyd -x`, and a source that is never selected | "Est offset" of statistics.log |
| linuxptp | `free_running`, stamps by software | offsetFromMaster, asked through its socket |
| evenfall | `clock lab` without planted errors | reading less true time, 20 ms old or more |
| evenfall, planted | clocks up to 20 ms and 100 ppm wrong | the same |

chrony and linuxptp probe equally often, 2^-LOG2 times a second. evenfall chooses its pace by its
limit of .5 % of a core, and the column of probes has its pairs. Its namespaces have a bridge
between them, so that its probes take a longer way. The rounds are interleaved, and each has another
seed of the planted clocks. The table has medians over the rounds and the span of the 99th
percentiles. The lines of JSON on the standard error have every round.

Processor time is that of the whole process that estimates, after the warm-up. For evenfall it is
the greater of both nodes, which also read their clock 50 times a second and take 27 samples; the
column "for the clock" is what the node measures for its probes and solves, which its limit is
about. linuxptp's time is taken before it is asked for offsets.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from stopping import stop

SERVER, CLIENT = "10.77.0.1", "10.77.0.2"
NAMES = tuple(f"clock-{end}-{os.getpid()}" for end in "ab")
# A program has found its delays after this time. Earlier estimates do not count.
WARM_UP_S = 5
# Readings that `clock lab` takes of a node in a second.
SAMPLES_PER_S = 27
# Nodes of evenfall that have no time after two minutes give up by themselves.
LEARN_MAX_S = 150


@contextlib.contextmanager
def namespaces():
    """Two namespaces with a pair of cards between them."""
    commands = [["netns", "add", name] for name in NAMES]
    commands += [["link", "add", "clock-a", "netns", NAMES[0], "type", "veth", "peer", "name",
                  "clock-b", "netns", NAMES[1]]]
    for name, card, address in zip(NAMES, ("clock-a", "clock-b"), (SERVER, CLIENT)):
        commands += [["-n", name, "addr", "add", f"{address}/24", "dev", card],
                     ["-n", name, "link", "set", "lo", "up"],
                     ["-n", name, "link", "set", card, "up"]]
    try:
        for command in commands:
            subprocess.run(["ip", *command], check=True)
        yield
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], check=False)


@contextlib.contextmanager
def running(server, client, directory):
    """Runs a server and a client, one in each namespace, and gives the client."""
    processes = []
    try:
        for name, command, end in zip(NAMES, (server, client), ("server", "client")):
            with open(directory / f"{end}.out", "wb") as log:
                # `ip netns exec` becomes the program, so the process is the program's.
                processes.append(subprocess.Popen(["ip", "netns", "exec", name, *command],
                                                  stdout=log, stderr=log))
        yield processes[1]
        for process, end in zip(processes, ("server", "client")):
            if process.poll() is not None:
                said = (directory / f"{end}.out").read_text()
                raise SystemExit(f"{process.args} ended early: {said}")
    finally:
        stop(processes)


def cpu_ns(process):
    """Processor time of a process. `stat` counts in hundredths of a second, which is too coarse."""
    tasks = pathlib.Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)


def core_share(process, seconds):
    """The share of a core that a process takes during the next seconds."""
    since, before = time.monotonic_ns(), cpu_ns(process)
    time.sleep(seconds)
    return (cpu_ns(process) - before) / (time.monotonic_ns() - since)


def row(offsets, share, per_s, log):
    """A row out of offsets in seconds."""
    if not offsets:
        raise SystemExit(f"no estimates: {log.read_text()}")
    errors = sorted(abs(offset) * 1e6 for offset in offsets)
    at = lambda part: errors[min(len(errors) - 1, int(part * len(errors)))]
    return {"p50": at(0.5), "p99": at(0.99), "max": errors[-1], "per_s": per_s,
            "estimates": len(errors), "core_share": share, "clock_core_share": share}


def chrony(directory, args):
    common = f"user root\ncmdport 0\nbindcmdaddress /\nlogdir {directory}\n"
    (directory / "server.conf").write_text(
        common + f"pidfile {directory}/server.pid\nlocal stratum 1\nallow all\n")
    (directory / "client.conf").write_text(
        common + f"pidfile {directory}/client.pid\nport 0\nlog statistics\n"
        f"server {SERVER} minpoll {args.polls} maxpoll {args.polls} xleave noselect\n")
    command = lambda end: ["chronyd", "-x", "-d", "-f", str(directory / f"{end}.conf")]

    def estimates():
        log = directory / "statistics.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [float(line.split()[4]) for line in lines if SERVER in line]

    with running(command("server"), command("client"), directory) as client:
        time.sleep(WARM_UP_S)
        earlier = len(estimates())
        share = core_share(client, args.seconds)
        found = estimates()[earlier:]
    return row(found, share, len(found) / args.seconds, directory / "client.out")


def asked_offsets(directory, args):
    """What ptp4l says of its offset when it is asked as often as it probes. Its log has the offset
    of a clock that runs free once a second at most."""
    pace = 2.0 ** args.polls
    with open(directory / "asked.out", "w+") as log:
        command = ["pmc", "-u", "-b", "0", "-i", str(directory / "pmc"),
                   "-s", str(directory / "client")]
        asking = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True)
        try:
            end = time.monotonic() + args.seconds
            while time.monotonic() < end and asking.poll() is None:
                asking.stdin.write("GET CURRENT_DATA_SET\n")
                asking.stdin.flush()
                time.sleep(pace)
        finally:
            asking.kill()
            asking.wait()
        log.seek(0)
        found = re.findall(r"offsetFromMaster\s+(-?[\d.]+)", log.read())
    return [float(offset) / 1e9 for offset in found]


def linuxptp(directory, args):
    def conf(end, lines):
        path = directory / f"{end}.conf"
        path.write_text(
            "[global]\nfree_running 1\ntime_stamping software\nnetwork_transport UDPv4\n"
            f"logSyncInterval {args.polls}\nlogMinDelayReqInterval {args.polls}\n"
            "logAnnounceInterval -2\nannounceReceiptTimeout 2\n"
            f"uds_address {directory}/{end}\n{lines}\n")
        return str(path)
    server = ["ptp4l", "-m", "-q", "-i", "clock-a", "-f", conf("server", "priority1 10")]
    client = ["ptp4l", "-m", "-q", "-i", "clock-b", "-f", conf("client", "slaveOnly 1")]
    with running(server, client, directory) as process:
        time.sleep(WARM_UP_S)
        share = core_share(process, args.seconds)
        found = asked_offsets(directory, args)
    return row(found, share, 2.0 ** -args.polls, directory / "client.out")


def evenfall(args, offset, drift, seed):
    command = [args.programs / "evenfall-lab", "clock", "lab", "--hosts", "2", "--offset", offset,
               "--drift", drift, "--samples", str(args.seconds * SAMPLES_PER_S),
               "--seed", str(seed), "--json"]
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE,
                                     timeout=args.seconds + LEARN_MAX_S).stdout)
    if said["nodes"] != "processes":
        raise SystemExit("evenfall's nodes have no namespaces of their own")
    errors = said["error_us"]
    return {"p50": errors["p50"], "p99": errors["p99"], "max": errors["max"],
            "core_share": said["core_share"], "per_s": said["pairs_per_s"],
            "estimates": said["samples"], "clock_core_share": said["clock_core_share"],
            "coverage": said["coverage"]}


def rounds(args):
    """The rows of every round, by name."""
    peers = [("chrony", ("chronyd",), chrony), ("linuxptp", ("ptp4l", "pmc"), linuxptp)]
    has = lambda programs: all(shutil.which(program) for program in programs)
    missing = [name for name, programs, _ in peers if not has(programs)]
    if missing:
        print(f"Left out: {', '.join(missing)} (apt-get install {' '.join(missing)})",
              file=sys.stderr)
    rows = {}
    for number in range(args.rounds):
        for name, programs, run in peers:
            if has(programs):
                with namespaces(), tempfile.TemporaryDirectory() as directory:
                    rows.setdefault(name, []).append(run(pathlib.Path(directory), args))
        seed = number + 1
        rows.setdefault("evenfall", []).append(evenfall(args, "0s", "0ppm", seed))
        rows.setdefault("evenfall, planted", []).append(evenfall(args, "20ms", "100ppm", seed))
        for name, measured in rows.items():
            line = {"round": number, "row": name, "load": os.getloadavg()[0], **measured[-1]}
            print(json.dumps(line), file=sys.stderr, flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--polls", type=int, default=-4, help="log2 of the seconds between probes")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("network namespaces need root")
    # The programs and the namespaces go when a signal comes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rows = rounds(args)
    print("| program | probes/s | error p50, us | p99 | max | % of a core | for the clock |\n"
          "|---|---|---|---|---|---|---|")
    for name, measured in rows.items():
        middle = lambda key: statistics.median(one[key] for one in measured)
        p99 = [one["p99"] for one in measured]
        print(f"| {name} | {middle('per_s'):.0f} | {middle('p50'):.2f} | {middle('p99'):.2f} "
              f"({min(p99):.2f} to {max(p99):.2f}) | {middle('max'):.2f} | "
              f"{middle('core_share') * 100:.2f} | {middle('clock_core_share') * 100:.2f} |")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
