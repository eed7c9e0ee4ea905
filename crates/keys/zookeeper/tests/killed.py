"""A client of ZooKeeper loses no write and no session while replicas are killed. Arguments: the addresses of the
replicas, and the number of writes. Prints the number of each write that was acknowledged, and at the end `all there`."""

import sys
import time

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, NodeExistsError

HOSTS, WRITES = sys.argv[1], int(sys.argv[2])
SECONDS = 300


def write(zk, number):
    while True:
        try:
            return zk.create(f"/all/{number}", str(number).encode())
        except NodeExistsError:
            # An earlier attempt got no answer, and took effect.
            return None
        except (ConnectionLoss, ConnectionClosedError):
            time.sleep(0.01)


def read(call, *arguments):
    while True:
        try:
            return call(*arguments)
        except (ConnectionLoss, ConnectionClosedError):
            time.sleep(0.01)


zk = KazooClient(hosts=HOSTS, timeout=60)
zk.start(timeout=SECONDS)
session = zk.client_id[0]
zk.create("/mine", ephemeral=True)
zk.create("/all")
for number in range(WRITES):
    write(zk, number)
    print(number, flush=True)
read(zk.sync, "/all")
names = read(zk.get_children, "/all")
assert sorted(map(int, names)) == list(range(WRITES)), names
for number in range(WRITES):
    value, stat = read(zk.get, f"/all/{number}")
    assert (value, stat.version) == (str(number).encode(), 0), (number, value, stat)
assert zk.client_id[0] == session, "another session"
assert read(zk.exists, "/mine").ephemeralOwner == session
print("all there", flush=True)
zk.stop()
