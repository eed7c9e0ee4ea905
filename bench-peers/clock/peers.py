"""Measures how far evenfall, chrony and linuxptp believe two equal clocks to be apart.

    peers.py --programs DIR [--rounds N] [--seconds S] [--polls LOG2] [--json FILE]

Two network namespaces are joined by a pair of virtual cards and share the kernel's clock, so that
the true offset is 0 at every moment, and an estimate of the offset is its own error. No program
may steer the kernel's clock, because both ends would move:

| row | how it leaves the clock alone | what counts as its error |
|---|---|---|
| chrony | `chronyd -x`, and a source that is never selected | "Est offset" of statistics.log |
| linuxptp | `free_running`, stamps by software | "master offset", said once a second |
| evenfall | `clock lab` without planted errors | reading less true time, 20 ms old or more |
| evenfall, planted | clocks 20 ms and 100 ppm wrong | the same |

chrony and linuxptp ask equally often, 2^-LOG2 times a second. evenfall chooses its pace by its
limit of .5 % of a core, and its column has the pairs of probes. The rounds are interleaved. The
table has medians over the rounds, and the lines of JSON in front of it have every round. Processor
time is that of the end that estimates.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
import time

SERVER, CLIENT = "10.77.0.1", "10.77.0.2"
NAMES = ("evenfall-clock-a", "evenfall-clock-b")
# A program has found its delays after this time. Earlier estimates do not count.
WARM_UP_S = 5
# Readings that `clock lab` takes of a node in a second.
SAMPLES_PER_S = 27


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


def start(name, command, log):
    return subprocess.Popen(["ip", "netns", "exec", name, *command], stdout=log, stderr=log)


def core_share(process, seconds):
    """The share of a core that a process has taken since it started."""
    # `ip netns exec` becomes the program, so the number is the program's.
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") / seconds


def measure(server, client, directory, seconds):
    """Runs a server and a client, each (command, file of its output). Returns the client's share of
    a core."""
    with open(directory / server[1], "wb") as first, open(directory / client[1], "wb") as second:
        processes = [start(NAMES[0], server[0], first), start(NAMES[1], client[0], second)]
        try:
            time.sleep(WARM_UP_S + seconds)
            for process, (_, log) in zip(processes, (server, client)):
                if process.poll() is not None:
                    raise SystemExit(f"{process.args} ended: {(directory / log).read_text()}")
            return core_share(processes[1], WARM_UP_S + seconds)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(10)


def row(offsets, share, seconds):
    """A row out of offsets in seconds, one for each exchange, without those of the warm-up."""
    errors = sorted(abs(offset) * 1e6 for offset in offsets[-int(len(offsets) * seconds
                                                               / (seconds + WARM_UP_S)):])
    if not errors:
        raise SystemExit("no estimates")
    at = lambda part: errors[min(len(errors) - 1, int(part * len(errors)))]
    return {"p50": at(0.5), "p99": at(0.99), "max": errors[-1], "core_share": share,
            "per_s": len(errors) / seconds}


def chrony(directory, args):
    common = f"user root\ncmdport 0\nbindcmdaddress /\nlogdir {directory}\n"
    (directory / "server.conf").write_text(
        common + f"pidfile {directory}/server.pid\nlocal stratum 1\nallow all\n")
    (directory / "client.conf").write_text(
        common + f"pidfile {directory}/client.pid\nport 0\nlog statistics\n"
        f"server {SERVER} minpoll {args.polls} maxpoll {args.polls} xleave noselect\n")
    command = lambda end: ["chronyd", "-x", "-d", "-f", str(directory / f"{end}.conf")]
    share = measure((command("server"), "server.log"), (command("client"), "client.log"),
                    directory, args.seconds)
    lines = (directory / "statistics.log").read_text().splitlines()
    estimates = [line.split() for line in lines if SERVER in line]
    return row([float(estimate[4]) for estimate in estimates], share, args.seconds)


def linuxptp(directory, args):
    def conf(end, lines):
        path = directory / f"{end}.conf"
        path.write_text(
            "[global]\nfree_running 1\ntime_stamping software\nnetwork_transport UDPv4\n"
            f"logSyncInterval {args.polls}\nlogMinDelayReqInterval {args.polls}\n"
            "logAnnounceInterval -2\nannounceReceiptTimeout 2\n"
            # A program that is free running says its offset once a second at most.
            f"freq_est_interval 0\nsummary_interval {args.polls}\n"
            f"uds_address {directory}/{end}\n{lines}\n")
        return str(path)
    server = ["ptp4l", "-m", "-q", "-i", "clock-a", "-f", conf("server", "priority1 10")]
    client = ["ptp4l", "-m", "-q", "-i", "clock-b", "-f", conf("client", "slaveOnly 1")]
    share = measure((server, "server.log"), (client, "client.log"), directory, args.seconds)
    said = (directory / "client.log").read_text()
    found = re.findall(r"(?:master|server) offset\s+(-?\d+)", said)
    return row([int(offset) / 1e9 for offset in found], share, args.seconds)


def evenfall(args, offset, drift):
    command = [args.programs / "evenfall-lab", "clock", "lab", "--hosts", "2", "--offset", offset,
               "--drift", drift, "--samples", str(args.seconds * SAMPLES_PER_S), "--json"]
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    errors = said["error_us"]
    return {"p50": errors["p50"], "p99": errors["p99"], "max": errors["max"],
            "core_share": said["clock_core_share"], "per_s": said["pairs_per_s"]}


def rounds(args):
    """The rows of every round, by name."""
    rows = {}
    peers = [("chrony", "chronyd", chrony), ("linuxptp", "ptp4l", linuxptp)]
    for name, program, _ in peers:
        if shutil.which(program) is None:
            print(f"{name} is left out: apt-get install {name}")
    peers = [peer for peer in peers if shutil.which(peer[1])]
    for number in range(args.rounds):
        for name, _, run in peers:
            with namespaces(), tempfile.TemporaryDirectory() as directory:
                rows.setdefault(name, []).append(run(pathlib.Path(directory), args))
        rows.setdefault("evenfall", []).append(evenfall(args, "0s", "0ppm"))
        rows.setdefault("evenfall, planted", []).append(evenfall(args, "20ms", "100ppm"))
        for name, measured in rows.items():
            print(json.dumps({"round": number, "row": name, **measured[-1]}), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--polls", type=int, default=-4, help="log2 of the seconds between polls")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    rows = rounds(args)
    print("\n| program | estimates/s | error p50, us | p99 | max | % of a core |\n"
          "|---|---|---|---|---|---|")
    for name, measured in rows.items():
        middle = lambda key: statistics.median(one[key] for one in measured)
        span = lambda key: f"{min(one[key] for one in measured):.2f} to " \
                           f"{max(one[key] for one in measured):.2f}"
        print(f"| {name} | {middle('per_s'):.0f} | {middle('p50'):.2f} | {middle('p99'):.2f} "
              f"({span('p99')}) | {middle('max'):.2f} | {middle('core_share') * 100:.2f} |")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
