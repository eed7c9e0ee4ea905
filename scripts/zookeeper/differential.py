#!/usr/bin/env python3
"""Random calls of two clients, made at replicas of ordered keys and at a server of ZooKeeper, with every answer compared.

    differential.py PROGRAM [--calls N] [--seed N] [--port PORT]

PROGRAM is an `evenfall` with the feature `keys`. The server comes from the jars that scripts/zookeeper-suites.sh fetches.
Exit code 0: no answer differs. 1: the first answers that differ are printed
with the seed that finds them again. 3: there is no Java, or there are no jars.

An answer is its error, its body, and the events that reach both clients. A number of a change (zxid) must always stand
for the same number at the other side, an owner of a node is compared as the client that it is, and times are not
compared. A few kinds of answers differ on purpose. Comments name them where they are left out or taken as equal.
"""

import argparse
import glob
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

CREATE, DELETE, EXISTS, GET, SET, GET_ACL, SET_ACL, CHILDREN, SYNC = range(1, 10)
PING, CHILDREN2, CHECK, MULTI, CREATE2, REMOVE_WATCHES = 11, 12, 13, 14, 15, 18
CONTAINER, TTL, MULTI_READ, AUTH, EPHEMERALS, CHILDREN_NUMBER, ADD_WATCH = 19, 21, 22, 100, 103, 104, 106
WORDS = {value: name.lower() for name, value in list(globals().items()) if name.isupper() and isinstance(value, int)}
NO_AUTH, NO_NODE = -102, -101
READ, ALL = 1, 31
# A socket that says nothing for so long has lost an answer.
ANSWER_SECONDS = 20


def put_bytes(value):
    return struct.pack(">i", len(value)) + value


def put_acl(acl):
    entries = (struct.pack(">i", perms) + put_bytes(scheme) + put_bytes(who) for perms, scheme, who in acl)
    return struct.pack(">i", len(acl)) + b"".join(entries)


class Reader:
    """The fields of an answer, one after the other."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, layout):
        values = struct.unpack_from(">" + layout, self.data, self.at)
        self.at += struct.calcsize(">" + layout)
        return values[0] if len(values) == 1 else values

    def bytes(self):
        length = self.take("i")
        if length < 0:
            return None
        self.at += length
        return self.data[self.at - length : self.at]

    def list(self, read):
        return [read() for _ in range(self.take("i"))]


class Change(int):
    """The number that a server gave to a change."""


class Equality:
    """Whether an answer of ours equals theirs. Remembers which of their changes each of ours is."""

    def __init__(self):
        self.theirs, self.ours = {}, {}

    def holds(self, ours, theirs):
        if isinstance(ours, Change) and isinstance(theirs, Change):
            return self.theirs.setdefault(ours, theirs) == theirs and self.ours.setdefault(theirs, ours) == ours
        if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)):
            # ZooKeeper 3.8 answers a `create2` inside a transaction as a `create` (ZOOKEEPER-4026, mended later).
            if len(ours) == len(theirs) == 3 and ours[:2] == (CREATE2, 0) and theirs[:2] == (CREATE, 0):
                return ours[2][0] == theirs[2]
            return len(ours) == len(theirs) and all(self.holds(*pair) for pair in zip(ours, theirs))
        # ZooKeeper tells a client without rights that a name is free. Ours does not say which of the two it is not.
        return ours == theirs or (ours, theirs) == (NO_NODE, NO_AUTH)


class Side:
    """A server or a group of replicas: two clients, and how its numbers read."""

    def __init__(self, addresses):
        self.sessions = {}
        self.clients = [Client(self, address) for address in addresses]

    def stat(self, reader):
        created, modified, _, _, *versions, owner, length, children, pzxid = reader.take("qqqqiiiqiiq")
        changes = [Change(zxid) for zxid in (created, modified, pzxid)]
        return changes, versions, self.sessions.get(owner, owner), length, children


class Client:
    def __init__(self, side, address):
        self.side = side
        self.xid, self.events = 0, []
        until = time.monotonic() + 120
        while time.monotonic() < until:
            try:
                session = self.begin_session(address)
                break
            except (ConnectionError, TimeoutError):
                # A server that listens may not serve yet.
                time.sleep(0.1)
        else:
            raise ConnectionError(f"{address} gives no session")
        side.sessions[session] = f"client {len(side.sessions)}"

    def begin_session(self, address):
        self.socket = socket.create_connection(address, ANSWER_SECONDS)
        self.socket.sendall(put_bytes(struct.pack(">iqiq", 0, 0, 30_000, 0) + put_bytes(bytes(16)) + b"\0"))
        return Reader(self.frame()).take("iiq")[2]

    def exactly(self, length):
        data = b""
        while len(data) < length:
            piece = self.socket.recv(length - len(data))
            if not piece:
                raise ConnectionError("the connection was closed")
            data += piece
        return data

    def frame(self):
        return self.exactly(struct.unpack(">i", self.exactly(4))[0])

    def call(self, kind, body):
        """The error and the body of the answer. Events before it are kept."""
        self.xid += 1
        xid = self.xid
        self.socket.sendall(put_bytes(struct.pack(">ii", xid, kind) + body))
        while True:
            reader = Reader(self.frame())
            got, _, error = reader.take("iqi")
            if got == -1:
                self.events.append((reader.take("ii")[0], reader.bytes()))
                continue
            assert got == xid, f"the answer to call {xid} has the number {got}"
            return error, self.read_answer(kind, reader) if error == 0 else None

    def read_answer(self, kind, reader):
        if kind == CREATE:
            return reader.bytes()
        if kind in (CREATE2, CONTAINER, TTL):
            return reader.bytes(), self.side.stat(reader)
        if kind in (EXISTS, SET, SET_ACL):
            return self.side.stat(reader)
        if kind == GET:
            return reader.bytes(), self.side.stat(reader)
        if kind == GET_ACL:
            return reader.list(lambda: (reader.take("i"), reader.bytes(), reader.bytes())), self.side.stat(reader)
        if kind in (CHILDREN, EPHEMERALS):
            return sorted(reader.list(reader.bytes))
        if kind == CHILDREN2:
            return sorted(reader.list(reader.bytes)), self.side.stat(reader)
        if kind == CHILDREN_NUMBER:
            return reader.take("i")
        if kind in (MULTI, MULTI_READ):
            return self.read_results(reader)
        return reader.data[reader.at :] if kind != SYNC else reader.bytes()

    def read_results(self, reader):
        results = []
        while True:
            kind, done, error = reader.take("i?i")
            if done:
                return results
            if kind == -1:
                results.append((kind, error, reader.take("i")))
            else:
                results.append((kind, error, self.read_answer(kind, reader) if kind not in (DELETE, CHECK) else None))

    def take_events(self):
        # A call that waits for all changes so far brings all of their events with it.
        self.call(SYNC, put_bytes(b"/"))
        events, self.events = sorted(self.events), []
        return events


class Draw:
    """Calls, drawn from one seed."""

    OPEN = [(ALL, b"world", b"anyone")]
    ACLS = [OPEN] * 6 + [
        [(READ, b"world", b"anyone")], [(ALL, b"auth", b"")], [(ALL, b"ip", b"127.0.0.1")], [(ALL, b"ip", b"10.1.1.1/8")],
        [(5, b"world", b"anyone"), (ALL, b"auth", b"")], [], [(ALL, b"none", b"x")], [(ALL, b"ip", b"300.1.1.1")]]
    NAMES = [b"a", b"b", b"c", b"a", b"b", "\u00e4".encode(), b"s-"]
    BAD = [b"", b"x", b"/a/", b"/a//b", b"/a/./b", b"/a/../b", b"/\0", b"/a\xff", b"/zookeeper"]

    def __init__(self, seed):
        self.random = random.Random(seed)

    def path(self):
        if self.random.random() < 0.04:
            return self.random.choice(self.BAD)
        return b"".join(b"/" + self.random.choice(self.NAMES) for _ in range(self.random.randint(1, 3)))

    def version(self):
        return self.random.choice([-1, -1, -1, 0, 1, 2])

    def creation(self, kinds=(CREATE, CREATE2)):
        kind = self.random.choice(kinds)
        flags = {CONTAINER: 4, TTL: self.random.choice([5, 6])}.get(kind, self.random.choice([0, 0, 0, 1, 2, 3, 9]))
        data = self.random.choice([b"", b"1", b"12345"])
        body = put_bytes(self.path()) + put_bytes(data) + put_acl(self.random.choice(self.ACLS)) + struct.pack(">i", flags)
        return kind, body + (struct.pack(">q", self.random.choice([100_000, 0, -1])) if kind == TTL else b"")

    def change(self):
        """A change that a transaction may have too."""
        kind = self.random.choice([CREATE, CREATE, DELETE, SET, CHECK])
        if kind == CREATE:
            return self.creation((CREATE, CREATE2, CONTAINER, TTL))
        data = put_bytes(b"z") if kind == SET else b""
        return kind, put_bytes(self.path()) + data + struct.pack(">i", self.version())

    def batch(self, draw):
        parts = (draw() for _ in range(self.random.randint(0, 4)))
        return b"".join(struct.pack(">i?i", kind, False, -1) + body for kind, body in parts) + struct.pack(">i?i", -1, True, -1)

    def call(self):
        at = self.random.random()
        watch = self.random.random() < 0.3
        if at < 0.25:
            return self.creation((CREATE, CREATE2, CREATE2, CONTAINER, TTL))
        if at < 0.4:
            kind, body = self.change()
            # A check is an operation of transactions only.
            return (kind, body) if kind != CHECK else (GET_ACL, put_bytes(self.path() or b"/"))
        if at < 0.52:
            return MULTI, self.batch(self.change)
        if at < 0.57:
            return SET_ACL, put_bytes(self.path()) + put_acl(self.random.choice(self.ACLS)) + struct.pack(">i", self.version())
        if at < 0.6:
            one = lambda: (self.random.choice([GET, CHILDREN]), put_bytes(self.path() or b"/") + b"\0")
            return MULTI_READ, self.batch(one)
        if at < 0.62:
            # A path of its own: ZooKeeper 3.8 loses a standing watch when an ordinary one comes to the same path.
            return ADD_WATCH, put_bytes(b"/standing" + self.path()) + struct.pack(">i", self.random.choice([0, 1]))
        if at < 0.65:
            return self.random.choice([(EPHEMERALS, put_bytes(b"/")), (CHILDREN_NUMBER, put_bytes(self.path() or b"/"))])
        if at < 0.68:
            return GET_ACL, put_bytes(self.path() or b"/")
        # ZooKeeper reads no path as the root, and sets a watch there that never fires. No client sends it.
        return self.random.choice([EXISTS, GET, CHILDREN, CHILDREN2]), put_bytes(self.path() or b"/") + bytes([watch])


def start(command, ports, log):
    process = subprocess.Popen(command, stdout=log, stderr=log)
    for port in ports:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit(f"{command[0]} ended, see its output") from None
                time.sleep(0.1)
        else:
            raise SystemExit(f"{command[0]} does not listen on {port}")
    return process


def zookeeper_command(directory, port):
    """How a server of ZooKeeper is started here, or None."""
    here = os.path.dirname(os.path.abspath(__file__))
    fetched = os.path.join(here, "../../target/zookeeper-suites/zookeeper/jars")
    if not shutil.which("java") or not glob.glob(f"{fetched}/zookeeper-3*.jar"):
        return None
    with open(f"{directory}/zoo.cfg", "w", encoding="ascii") as settings:
        settings.write(f"tickTime=3000\ndataDir={directory}/zookeeper\nclientPort={port}\nclientPortAddress=127.0.0.1\n")
    flags = ["-Xmx256m", "-Dzookeeper.admin.enableServer=false", "-Dzookeeper.extendedTypesEnabled=true"]
    return ["java", *flags, "-cp", f"{fetched}/*", "org.apache.zookeeper.server.ZooKeeperServerMain", f"{directory}/zoo.cfg"]


def compare(sides, draw, calls):
    """Makes the calls, and gives back those whose answers differ, at most ten."""
    differ, kinds, equality = [], {}, Equality()
    for side in sides:
        for client, secret in zip(side.clients, (b"desk:secret", None)):
            if secret:
                error, _ = client.call(AUTH, struct.pack(">i", 0) + put_bytes(b"digest") + put_bytes(secret))
                assert error == 0, f"a digest is refused with {error}"
            client.call(CREATE, put_bytes(b"/standing") + put_bytes(b"") + put_acl(Draw.OPEN) + struct.pack(">i", 0))
            client.take_events()
    for number in range(calls):
        who = draw.random.randrange(2)
        kind, body = draw.call()
        answers = []
        for side in sides:
            answer = side.clients[who].call(kind, body)
            answers.append((answer, [client.take_events() for client in side.clients]))
        kinds[WORDS[kind], answers[0][0][0]] = kinds.get((WORDS[kind], answers[0][0][0]), 0) + 1
        if not equality.holds(*answers):
            differ.append(f"call {number}, client {who}, {WORDS[kind]} {body!r}:\n  ours   {answers[0]}\n  theirs {answers[1]}")
            if len(differ) == 10:
                break
    return differ, kinds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=24_851)
    parser.add_argument("--counts", action="store_true", help="print how often each call had each error")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    processes, ports = [], [options.port + number for number in range(3)]
    with tempfile.TemporaryDirectory() as directory, open(f"{directory}/log", "w", encoding="utf8") as log:
        theirs = zookeeper_command(directory, options.port + 3)
        if not theirs:
            print("skipped: no Java, or no jars of ZooKeeper (scripts/zookeeper-suites.sh fetches them)")
            return 3
        try:
            for number, port in enumerate(ports):
                ours = [options.program, "run", "keys", f"--node={number}", "--of=3", f"--zookeeper={options.port}"]
                processes.append(start([*ours, "--dir", f"{directory}/keys"], [port], log))
            processes.append(start(theirs, [options.port + 3], log))
            # Our clients are at different replicas.
            sides = [Side([("127.0.0.1", port) for port in at]) for at in (ports[:2], [options.port + 3] * 2)]
            differ, kinds = compare(sides, Draw(options.seed), options.calls)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    if options.counts:
        for (word, error), count in sorted(kinds.items()):
            print(f"{word:16} {error:6} {count:6}")
    print("\n".join(differ))
    print(f"{sum(kinds.values())} calls, {len(differ)} answers differ, seed {options.seed}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
