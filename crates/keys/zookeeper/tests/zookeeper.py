"""What kazoo, a client of ZooKeeper, does with a replica. Argument: the addresses of replicas."""

import sys
import threading

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
)

HOSTS = sys.argv[1]
SECONDS = 120


def connected(**options):
    client = KazooClient(hosts=HOSTS, timeout=20, **options)
    client.start(timeout=SECONDS)
    return client


def refused(error, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except error:
        return
    raise AssertionError(f"{call.__name__}{arguments} is not refused by {error.__name__}")


def nodes(zk):
    assert zk.create("/a", b"one") == "/a"
    refused(NodeExistsError, zk.create, "/a")
    refused(NoNodeError, zk.create, "/none/below")
    value, stat = zk.get("/a")
    assert (value, stat.version, stat.dataLength, stat.numChildren) == (b"one", 0, 3, 0)
    assert zk.set("/a", b"two", version=0).version == 1
    refused(BadVersionError, zk.set, "/a", b"three", version=0)
    assert zk.exists("/none") is None and zk.exists("/a").mzxid > stat.mzxid
    made = [zk.create("/a/n-", sequence=True) for _ in range(3)]
    assert made == [f"/a/n-{n:010}" for n in range(3)]
    names, stat = zk.get_children("/a", include_data=True)
    assert sorted(names) == [path[3:] for path in made] and stat.cversion == 3
    refused(NotEmptyError, zk.delete, "/a")
    refused(BadVersionError, zk.delete, made[0], version=5)
    zk.delete(made[0])
    path, stat = zk.create("/a/two", b"x", include_data=True)
    assert (path, stat.dataLength) == ("/a/two", 1)
    assert zk.sync("/a") == "/a"
    zk.ensure_path("/deep/er/est")
    zk.delete("/deep", recursive=True)
    assert zk.exists("/deep") is None


def transactions(zk):
    change = zk.transaction()
    change.check("/a", 1)
    change.create("/a/t", b"t")
    change.set_data("/a", b"three")
    results = change.commit()
    assert results[1] == "/a/t" and results[2].version == 2, results
    change = zk.transaction()
    change.create("/a/u")
    change.check("/a", 99)
    change.delete("/a/t")
    results = change.commit()
    assert isinstance(results[0], RolledBackError), results
    assert isinstance(results[1], BadVersionError), results
    assert zk.exists("/a/u") is None and zk.exists("/a/t") is not None


def watches(zk, other):
    seen = threading.Semaphore(0)
    events = []

    def tell(event):
        events.append((event.type, event.path))
        seen.release()

    def expect(*wanted):
        for _ in wanted:
            assert seen.acquire(timeout=SECONDS), (wanted, events)
        assert sorted(events) == sorted(wanted), (wanted, events)
        events.clear()

    zk.exists("/w", watch=tell)
    other.create("/w")
    expect(("CREATED", "/w"))
    zk.get("/w", watch=tell)
    other.set("/w", b"1")
    other.set("/w", b"2")
    expect(("CHANGED", "/w"))
    zk.get_children("/w", watch=tell)
    other.create("/w/c")
    expect(("CHILD", "/w"))
    zk.get("/w/c", watch=tell)
    zk.get_children("/w", watch=tell)
    other.delete("/w/c")
    expect(("DELETED", "/w/c"), ("CHILD", "/w"))


def sessions(zk, other):
    other.create("/mine", ephemeral=True)
    refused(NoChildrenForEphemeralsError, zk.create, "/mine/below")
    assert zk.exists("/mine").ephemeralOwner == other.client_id[0]
    gone = threading.Event()
    zk.exists("/mine", watch=lambda event: gone.set())
    other.stop()
    other.close()
    assert gone.wait(SECONDS)

    # A connection that breaks keeps its session.
    before = zk.client_id
    zk.create("/kept", ephemeral=True)
    zk._connection._socket.shutdown(2)
    assert zk.retry(zk.get, "/kept")[1].ephemeralOwner == before[0]
    assert zk.client_id[0] == before[0]


def recipes(zk):
    lock = zk.Lock("/lock", "one")
    assert lock.acquire(timeout=SECONDS)
    assert not zk.Lock("/lock", "two").acquire(blocking=False)
    lock.release()
    queue = zk.LockingQueue("/queue")
    queue.put_all([b"a", b"b"])
    assert queue.get(timeout=SECONDS) == b"a" and queue.consume()
    counter = zk.Counter("/counter")
    counter += 5
    counter -= 2
    assert counter.value == 3


def main():
    zk, other = connected(), connected()
    nodes(zk)
    transactions(zk)
    watches(zk, other)
    sessions(zk, other)
    recipes(zk)
    pending = [zk.create_async(f"/p{n}", b"x" * n) for n in range(300)]
    assert [one.get(timeout=SECONDS) for one in pending] == [f"/p{n}" for n in range(300)]
    big = b"b" * 1_000_000
    zk.create("/big", big)
    assert zk.get("/big")[0] == big
    assert zk.command(b"ruok") == "imok"
    zk.stop()
    print("all there")


main()
