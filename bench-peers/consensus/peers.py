"""Measures single-key writes and reads of evenfall, ZooKeeper and etcd in one run.

    peers.py --programs DIR --dir DIR [--zookeeper CLASSPATH] [--etcd PROGRAM] [--rounds N]
             [--warm-up S] [--seconds S] [--outstanding N] [--value-bytes N]

Every system has three servers on this machine, each a process, and equally many writes under way:
3,000, because etcd refuses requests when some 5,000 wait.
Each batches as it likes. The rounds are interleaved. The table has the medians, and the lines of
JSON in front of it have every measurement.

| row | what is measured |
|---|---|
| bench consensus | replicas of the machine with a map of keys, and the load generator of `bench consensus` |
| front | `evenfall run keys --local 3`, and ZooKeeper's protocol |
| ZooKeeper | ZooKeeper 3.8, the same load generator, and the same bytes as for the front |
| etcd | etcd 3.6, and a load of Go, because the load generator does not speak gRPC |
"""

import argparse
import json
import pathlib
import shutil
import socket
import statistics
import subprocess
import time

from stopping import stop

SERVERS = 3
START_S = 60


def free_ports(count):
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for(ports):
    """Waits until every port takes connections."""
    end = time.monotonic() + START_S
    for port in ports:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)


def wait_for_leader(ports):
    """Waits until every ZooKeeper server answers."""
    end = time.monotonic() + START_S
    for port in ports:
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as one:
                    one.sendall(b"srvr")
                    if b"Mode:" in one.recv(4096):
                        break
            except OSError:
                pass
            if time.monotonic() > end:
                raise TimeoutError(f"the server on port {port} does not answer")
            time.sleep(0.1)


def children_of(pid):
    """Processes that a process has started."""
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def last_json(command):
    """Runs a command that prints one line of JSON."""
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out.strip().splitlines()[-1])


class Bench:
    """The replicas of `bench consensus`."""

    def __init__(self, args, durable):
        self.args, self.durable = args, durable
        self.name = "bench consensus, " + ("synced" if durable else "in memory")

    def run(self, place):
        args = self.args
        command = [args.programs / "evenfall-lab", "bench", "consensus", "--peak", "--json"]
        command += ["--outstanding", args.outstanding, "--value-bytes", args.value_bytes]
        command += ["--duration", f"{args.seconds}s", "--dir", place]
        found = last_json([str(word) for word in command + ["--durable"] * self.durable])
        return {"set": {
            "operations_per_s": found["writes_per_s"],
            "times_us": found["commit_us"],
            "cpu_us_per_operation": found["cpu_us_per_write"],
            "load_cpu_us_per_operation": found["load_cpu_us_per_write"],
            "load_cpu_share": found["load_cpu_share"],
        }}


def zookeeper_load(args, ports, pids, operations=("set", "get")):
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)
    found = {}
    for operation in operations:
        command = [args.programs / "evenfall-lab", "bench", "zookeeper", "--servers", servers]
        command += ["--operation", operation, "--outstanding", args.outstanding, "--json"]
        command += ["--value-bytes", args.value_bytes, "--duration", f"{args.seconds}s"]
        command += ["--sessions", args.sessions, "--warm-up", f"{args.warm_up}s"]
        for pid in pids:
            command += ["--pid", pid]
        found[operation] = last_json([str(word) for word in command])
    return found


class Front:
    """Our replicas behind ZooKeeper's protocol."""

    def __init__(self, args):
        self.args, self.name = args, "front of evenfall, synced"

    def run(self, place):
        first = free_ports(1)[0]
        ports = [first + number for number in range(SERVERS)]
        command = [self.args.programs / "evenfall", "run", "keys", "--local", SERVERS]
        command += ["--zookeeper", first, "--dir", place]
        command = [str(word) for word in command]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_for_leader(ports)
            return zookeeper_load(self.args, ports, children_of(process.pid))
        finally:
            stop([process])


class ZooKeeper:
    """ZooKeeper's servers."""

    def __init__(self, args, synced):
        self.args, self.synced = args, synced
        self.name = "ZooKeeper, " + ("synced" if synced else "not synced")

    def run(self, place):
        ports, quorum = free_ports(SERVERS), free_ports(2 * SERVERS)
        processes = []
        try:
            for number in range(SERVERS):
                own = place / str(number)
                own.mkdir(parents=True)
                (own / "myid").write_text(f"{number + 1}\n")
                lines = ["tickTime=2000", "initLimit=10", "syncLimit=5", f"dataDir={own}"]
                lines += [f"clientPort={ports[number]}", "admin.enableServer=false"]
                lines += ["4lw.commands.whitelist=*", "maxClientCnxns=0"]
                lines += [f"globalOutstandingLimit={2 * self.args.outstanding}"]
                for other in range(SERVERS):
                    at = f"127.0.0.1:{quorum[2 * other]}:{quorum[2 * other + 1]}"
                    lines.append(f"server.{other + 1}={at}")
                (own / "zoo.cfg").write_text("\n".join(lines) + "\n")
                command = ["java", "-Xmx1g", "-cp", self.args.zookeeper]
                command += [f"-Dzookeeper.forceSync={'yes' if self.synced else 'no'}"]
                command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain"]
                command += [str(own / "zoo.cfg")]
                with open(own / "log", "w") as log:
                    processes.append(subprocess.Popen(command, stdout=log, stderr=log))
            wait_for_leader(ports)
            return zookeeper_load(self.args, ports, [process.pid for process in processes])
        finally:
            stop(processes)


class Etcd:
    """etcd's servers."""

    def __init__(self, args, synced):
        self.args, self.synced = args, synced
        self.name = "etcd, " + ("synced" if synced else "not synced")

    def run(self, place):
        ports = free_ports(2 * SERVERS)
        at = [f"http://127.0.0.1:{port}" for port in ports]
        cluster = ",".join(f"n{number}={at[2 * number + 1]}" for number in range(SERVERS))
        processes = []
        try:
            for number in range(SERVERS):
                own = place / str(number)
                own.mkdir(parents=True)
                client, peer = at[2 * number], at[2 * number + 1]
                command = [self.args.etcd, "server", "--name", f"n{number}"]
                command += ["--data-dir", str(own / "data"), "--initial-cluster", cluster]
                command += ["--listen-client-urls", client, "--advertise-client-urls", client]
                command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
                command += ["--log-level", "error", "--quota-backend-bytes", str(8 << 30)]
                if not self.synced:
                    command.append("--unsafe-no-fsync")
                with open(own / "log", "w") as log:
                    processes.append(subprocess.Popen(command, stdout=log, stderr=log))
            wait_for(ports[::2])
            command = [self.args.etcd, "load", "--endpoints", ",".join(at[::2])]
            command += ["--outstanding", str(self.args.outstanding)]
            command += ["--value-bytes", str(self.args.value_bytes)]
            command += ["--duration", f"{self.args.seconds}s"]
            command += ["--warm-up", f"{self.args.warm_up}s"]
            command += ["--pids", ",".join(str(process.pid) for process in processes)]
            return {"set": last_json(command)}
        finally:
            stop(processes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("--dir", type=pathlib.Path, required=True)
    parser.add_argument("--zookeeper")
    parser.add_argument("--etcd")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=5, help="seconds before a measurement")
    parser.add_argument("--outstanding", type=int, default=3_000)
    parser.add_argument("--sessions", type=int, default=4, help="sessions with each server")
    parser.add_argument("--value-bytes", type=int, default=16)
    parser.add_argument("--only", default="", help="parts of names of systems, with commas")
    args = parser.parse_args()
    systems = [Bench(args, False), Bench(args, True), Front(args)]
    if args.zookeeper:
        systems += [ZooKeeper(args, True), ZooKeeper(args, False)]
    if args.etcd:
        systems += [Etcd(args, True), Etcd(args, False)]
    parts = args.only.split(",")
    systems = [system for system in systems if any(part in system.name for part in parts)]
    found = {}
    for number in range(args.rounds):
        for system in systems:
            place = args.dir / f"run-{number}"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            try:
                results = system.run(place)
            except (OSError, subprocess.CalledProcessError) as error:
                said = (getattr(error, "stderr", None) or "").strip().splitlines()
                print(f"{system.name}: {error} {said[-1:]}", flush=True)
                continue
            finally:
                shutil.rmtree(place, ignore_errors=True)
            for operation, result in results.items():
                print(json.dumps({"system": system.name, "operation": operation, **result}))
                found.setdefault((system.name, operation), []).append(result)
    load = pathlib.Path("/proc/loadavg").read_text().split()[0]
    print(f"\n{args.outstanding} requests under way, medians of {args.rounds}, load {load}\n")
    print("| system | operation | per second | p50, p99 ms | CPU us, servers | load generator |")
    print("|---|---|---|---|---|---|")
    for (name, operation), results in found.items():
        middle = lambda of: statistics.median(of(result) for result in results)
        rates = [result["operations_per_s"] for result in results]
        print(
            f"| {name} | {operation} | {middle(lambda r: r['operations_per_s']):,.0f}"
            f" ({min(rates):,.0f} to {max(rates):,.0f})"
            f" | {middle(lambda r: r['times_us']['p50']) / 1e3:.1f},"
            f" {middle(lambda r: r['times_us']['p99']) / 1e3:.1f}"
            f" | {middle(lambda r: r['cpu_us_per_operation']):.2f}"
            f" | {middle(lambda r: r['load_cpu_us_per_operation']):.2f} us,"
            f" {middle(lambda r: r['load_cpu_share']):.2f} of a core |"
        )


if __name__ == "__main__":
    main()
