"""What the tests share: the program, the data, free addresses, and waiting."""

import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = pathlib.Path(os.environ.get("TESTED_PROGRAM", ROOT / "target/debug/evenfall"))
QUERY = pathlib.Path(os.environ.get("EVENFALL_QUERY", ROOT / "target/debug/evenfall-query"))
LAB = pathlib.Path(os.environ.get("EVENFALL_LAB", ROOT / "target/debug/evenfall-lab"))
DATA = pathlib.Path(os.environ.get("EVENFALL_DATA", ROOT / "../shared/data"))
AAPL = DATA / "itch/nasdaq_20191230_aapl.itch50"


def unless(is_there, words):
    """Skips a test without what it needs, and says so in a line of its own."""
    if not is_there:
        print(f"skipped: {words}", flush=True)
    return unittest.skipUnless(is_there, words)


def program(*arguments, **options):
    """Runs `evenfall` to its end, and gives its standard output."""
    done = subprocess.run(
        [PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options
    )
    if done.returncode != 0:
        raise AssertionError(f"evenfall {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def address():
    """A free address of loopback. UDP and TCP have ports of their own, and both are tried. The port
    is below those that the kernel gives to clients: a client that tries to connect before the
    server is there may be given the port that it calls, and holds it."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket(type=socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
            try:
                udp.bind(("127.0.0.1", port))
                tcp.bind(("127.0.0.1", port))
                return f"127.0.0.1:{port}"
            except OSError:
                continue


def answers(place):
    """Whether a server takes connections at an address."""
    host, port = place.rsplit(":", 1)
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


def wait_until(true, seconds=20.0):
    """Waits for a state."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            raise AssertionError("it did not come to pass in time")
        time.sleep(0.02)


def interrupted(call, after=0.3):
    """Makes a call that waits, presses Ctrl-C, and gives the seconds from there to its end."""
    pressed = []

    def press():
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    # A job in the background of a script ignores SIGINT, and Python then installs no handler.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    timer, answers = threading.Timer(after, press), []
    timer.start()
    try:
        try:
            answers.append(call())
        finally:
            # Ctrl-C may still come here, behind a call that has ended.
            timer.cancel()
    except KeyboardInterrupt:
        if not answers:
            return time.monotonic() - pressed[0]
    raise AssertionError(f"the call ended by itself: {answers}")


def itch_messages(path):
    """The messages of an ITCH file with lengths of two bytes."""
    data, at, messages = path.read_bytes(), 0, []
    while at < len(data):
        length = int.from_bytes(data[at : at + 2], "big")
        messages.append(data[at + 2 : at + 2 + length])
        at += 2 + length
    return messages


class Case(unittest.TestCase):
    """A test with a directory of its own."""

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="evenfall-python-")
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.directory = pathlib.Path(cls.scratch.name)
        cls.processes = []
        cls.addClassCleanup(cls.kill_processes)

    @classmethod
    def kill_processes(cls):
        for process in cls.processes:
            process.kill()
            process.wait()

    @classmethod
    def start(cls, *arguments, **options):
        """Starts `evenfall` beside, until the class is done. What it says on standard error is in the
        file `process.errors`."""
        errors = cls.directory / f"errors-{len(cls.processes)}"
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                [PROGRAM, *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=cls.directory,
                **options,
            )
        process.errors = errors
        cls.processes.append(process)
        return process
