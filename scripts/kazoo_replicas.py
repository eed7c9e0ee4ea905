"""Lets kazoo's tests find replicas of evenfall where they look for servers of ZooKeeper."""

import os
import signal
import socket
import subprocess
import time

from kazoo.testing import harness

FIRST = 21811
COUNT = 3
# The tests open sessions of 0.8 seconds.
OPTIONS = ["minSessionTimeout=500", "maxSessionTimeout=60000", "4lw.commands.whitelist=*"]


class Replica:
    """One replica, with what the tests ask of a server."""

    def __init__(self, number):
        self.number = number
        self.process = None

    @property
    def address(self):
        return f"127.0.0.1:{FIRST + self.number}"

    client_port = property(lambda self: FIRST + self.number)

    @property
    def running(self):
        return self.process is not None and self.process.poll() is None

    def run(self):
        if self.running:
            return
        arguments = [os.environ["EVENFALL"], "run", "keys", f"--node={self.number}"]
        arguments += [f"--of={COUNT}", f"--zookeeper={FIRST}"]
        arguments += ["--dir", os.environ["DIRECTORY"]]
        for option in OPTIONS:
            arguments += ["--zoo", option]
        self.process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", self.client_port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"replica {self.number} takes no clients")

    def stop(self):
        if self.running:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()

    def destroy(self):
        self.stop()


class Replicas(list):
    """All replicas, with what the tests ask of a cluster."""

    def start(self):
        for replica in self:
            replica.run()

    def stop(self):
        for replica in self:
            replica.stop()

    terminate = stop

    def reset(self):
        pass

    def get_logs(self):
        return []


REPLICAS = Replicas(Replica(number) for number in range(COUNT))


def replicas():
    REPLICAS.start()
    return REPLICAS


harness.get_global_cluster = replicas
os.environ.setdefault("ZOOKEEPER_VERSION", "3.8.0")


def pytest_unconfigure():
    REPLICAS.stop()
