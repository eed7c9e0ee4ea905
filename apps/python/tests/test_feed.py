"""A feed in Python: every message, at its deadline, one by one and in batches."""

import asyncio
import decimal
import os
import socket
import threading
import time
import unittest

import polars

import evenfall as ev

from workplace import Case, address, interrupted, program, wait_until

SETTINGS = """
[feed]
file = "{feed}"
rate = {rate}

[[node]]
name = "root"
id = 0
role = "root"
address = "{root}"

[[node]]
name = "desk-1"
id = 1
role = "receiver"
address = "{desk_1}"

[[node]]
name = "desk-2"
id = 2
role = "receiver"
address = "{desk_2}"
"""


class RunOfAFile(Case):
    """A root of its own process replays a generated feed to two subscriptions of this one."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.feed = cls.directory / "day.itch50"
        program("feed", "make", cls.feed, "--messages", 4000)
        cls.settings = cls.directory / "evenfall.toml"
        cls.settings.write_text(
            SETTINGS.format(
                feed=cls.feed, rate=4000, root=address(), desk_1=address(), desk_2=address()
            )
        )

    def test_two_desks_get_all_messages_one_by_one_and_in_batches(self):
        root = self.start("run", "root", "--config", self.settings)
        one_by_one = []

        def read():
            with ev.subscribe(self.settings, "desk-2", hashed=True) as feed:
                one_by_one.extend([message for message in feed])
                one_by_one.append(feed.content_hash)

        reader = threading.Thread(target=read)
        reader.start()
        with ev.subscribe(self.settings, "desk-1", hashed=True) as feed:
            frames = [polars.DataFrame(batch) for batch in feed.batches(most=500, wait=0.02)]
            content_hash = feed.content_hash
            self.assertEqual((feed.messages, feed.lost), (4000, 0))
        reader.join()
        root.wait()
        self.assertIn(content_hash, program("feed", "info", self.feed, "--json"))
        self.assertEqual(one_by_one.pop(), content_hash)
        self.assertEqual(len(one_by_one), 4000)
        self.check_frame(polars.concat(frames), frames)
        self.check_messages(one_by_one, polars.concat(frames))
        self.check_report()

    def check_frame(self, frame, frames):
        self.assertGreater(len(frames), 8)
        self.assertLessEqual(max(part.height for part in frames), 500)
        self.assertEqual(frame["seq"].to_list(), list(range(1, 4001)))
        self.assertEqual(frame["lost"].sum(), 0)
        self.assertEqual(frame["deadline"].null_count(), 0)
        early = frame.filter(polars.col("released") < polars.col("deadline"))
        self.assertEqual(early.height, 0)
        recorded = ev.open(self.directory / "ticks").record("feed", self.feed, date="2026-01-05")
        columns = ["ts", "seq", "type", "symbol", "side", "shares", "price", "order_ref"]
        self.assertTrue(frame.select(columns).equals(recorded.messages(columns=columns).polars()))

    def check_messages(self, messages, frame):
        for at in range(0, 4000, 97):
            message, row = messages[at], frame.row(at, named=True)
            self.assertEqual((message.number, message.type), (at, row["type"]))
            self.assertEqual(message.symbol, row["symbol"])
            if row["price"] is not None:
                self.assertEqual((message.price, message.shares), (row["price"], row["shares"]))
                self.assertIsInstance(message.price, decimal.Decimal)
            self.assertGreaterEqual(message.released_ns, message.deadline_ns)
            self.assertEqual(message.format, "itch")

    def check_report(self):
        report = ev.report(self.directory / "run")
        self.assertEqual(report.figures["messages"], 4000)
        self.assertIn("messages", report.verdict)
        self.assertIn("<html", report.html())


class NodeKeys(Case):
    """A run in which each node has a key of its own."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.feed = cls.directory / "day.itch50"
        program("feed", "make", cls.feed, "--messages", 1000)
        cls.settings = cls.directory / "evenfall.toml"
        cls.root, cls.desks = address(), [address(), address()]
        keys = """
[run]
key_file = "shared.key"
master_key_file = "master.key"
node_key_file = "keys/{name}.key"
"""
        cls.settings.write_text(
            SETTINGS.format(
                feed=cls.feed, rate=1000, root=cls.root, desk_1=cls.desks[0], desk_2=cls.desks[1]
            )
            + keys
        )
        program("key", "new", cls.directory / "shared.key")
        program("key", "new", "--nodes", "--config", cls.settings)

    def key(self, name):
        return self.directory / f"{name}.key"

    def test_desks_with_node_keys_get_the_feed_by_settings_and_by_plain_values(self):
        root, hashes = self.start("run", "root", "--config", self.settings), []

        def read(*settings, **options):
            with ev.subscribe(*settings, hashed=True, **options) as feed:
                messages = sum(isinstance(update, ev.Message) for update in feed)
                hashes.append((messages, feed.lost, feed.content_hash))

        keys = {"key": self.key("shared"), "node_key": self.key("keys/desk-2")}
        plain = {"root": self.root, "address": self.desks[1], "id": 2}
        reader = threading.Thread(target=read, kwargs=plain | keys)
        reader.start()
        read(self.settings, "desk-1")
        reader.join()
        root.wait()
        self.assertEqual([found[:2] for found in hashes], [(1000, 0)] * 2)
        whole = program("feed", "info", self.feed, "--json")
        self.assertTrue(all(found[2] in whole for found in hashes), hashes)

    def test_a_root_with_a_master_key_lets_in_a_desk_with_its_key_and_no_other(self):
        root_at, messages = address(), [b"message %d" % at for at in range(200)]
        got = []

        def read(node_key):
            with ev.subscribe(
                root=root_at, address=address(), id=1, key=self.key("shared"), node_key=node_key
            ) as feed:
                # A desk without its own key is not let in, and waits.
                if node_key is None:
                    return self.assertFalse(feed._wait(1.5))
                got.extend(message.bytes for message in feed)

        keys = {"key": self.key("shared"), "master_key": self.key("master")}
        with ev.publish(root_at, {1: "127.0.0.1:0"}, **keys) as root:
            read(None)
            reader = threading.Thread(target=read, args=(self.key("keys/desk-1"),))
            reader.start()
            for message in messages:
                root.publish(message)
            root.finish()
        reader.join()
        self.assertEqual(got, messages)

    def test_a_key_of_the_wrong_kind_is_named(self):
        shared, own = self.key("shared"), self.key("keys/desk-1")
        plain = {"root": self.root, "address": self.desks[0], "id": 1}
        for call, words in [
            (lambda: ev.subscribe(**plain, key=own), "is the key of node 1, and here belongs a key"),
            (lambda: ev.subscribe(**plain, key=shared, node_key=shared), "begins with the id"),
            (lambda: ev.subscribe(**plain, node_key=own), "needs the shared key"),
            (
                lambda: ev.subscribe(**(plain | {"id": 2}), key=shared, node_key=own),
                "the node key is of node 1, and this node has id 2",
            ),
            (lambda: ev.subscribe(self.settings, "desk-1", node_key=own), "names its keys itself"),
            (
                lambda: ev.publish(self.root, {1: self.desks[0]}, key=shared, master_key=shared),
                "is the shared key",
            ),
            (
                lambda: ev.publish(self.root, {1: self.desks[0]}, key=shared, master_key=own),
                "master_key: ",
            ),
            (
                lambda: ev.Publisher([self.root], address=address(), id=9, node_key=shared),
                "node_key: ",
            ),
        ]:
            with self.assertRaises(ev.SettingsError) as raised:
                call()
            self.assertIn(words, str(raised.exception))


class RootInPython(Case):
    def setUp(self):
        self.address, self.desk = address(), address()

    def subscribe(self, **options):
        return ev.subscribe(root=self.address, address=self.desk, id=7, **options)

    def test_what_one_program_publishes_another_gets(self):
        messages = [os.urandom(20 + at % 30) for at in range(3000)]
        got, summary = [], {}

        def read():
            with self.subscribe(hashed=True) as feed:
                for batch in feed.batches(bytes=True):
                    got.extend(batch.arrow()["message"].to_pylist())
                summary["hash"] = feed.content_hash

        reader = threading.Thread(target=read)
        reader.start()
        root = ev.publish(self.address, {7: self.desk})
        for message in messages:
            root.publish(message)
        finished = root.finish()
        reader.join()
        self.assertEqual(got, messages)
        self.assertEqual((finished["messages"], finished["content_hash"]), (3000, summary["hash"]))
        with self.assertRaisesRegex(ev.RunError, "finished"):
            root.publish(b"late")

    def test_a_desk_that_wants_a_symbol_gets_no_other(self):
        feed = self.directory / "day.itch50"
        program("feed", "make", feed, "--messages", 2000)
        recording = ev.open(self.directory / "ticks").record("feed", feed, date="2026-01-05")
        symbols = recording.messages(columns=["symbol"]).polars()["symbol"]
        symbol = symbols.drop_nulls().value_counts(sort=True)["symbol"][0]
        settings = self.directory / "one.toml"
        settings.write_text(
            SETTINGS.format(
                feed=feed, rate=4000, root=address(), desk_1=address(), desk_2=address()
            )
        )
        self.start("run", "root", "--config", settings)
        self.start("run", "receiver", "--config", settings, "--name", "desk-2")
        with ev.subscribe(settings, "desk-1", only=[symbol]) as feed:
            got = polars.concat([polars.DataFrame(batch) for batch in feed.batches()])
        wanted = symbols.is_null() | (symbols == symbol)
        self.assertEqual(got.height, wanted.sum())
        self.assertEqual(set(got["symbol"].drop_nulls()), {symbol})

    def test_async_for_gives_the_messages_and_can_be_cancelled(self):
        async def read_all():
            with self.subscribe() as feed:
                return [message.bytes async for message in feed]

        async def read_until_cancelled(feed):
            async for _ in feed:
                pass

        async def main():
            reader = asyncio.create_task(read_all())
            root = await asyncio.to_thread(ev.publish, self.address, {7: self.desk})
            for at in range(100):
                root.publish(bytes([at]))
            await asyncio.to_thread(root.finish)
            self.assertEqual(await reader, [bytes([at]) for at in range(100)])
            with ev.subscribe(root=address(), address=address(), id=8) as feed:
                reader = asyncio.create_task(read_until_cancelled(feed))
                await asyncio.sleep(0.2)
                reader.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await reader

        asyncio.run(main())

    def test_ctrl_c_ends_every_call_that_waits(self):
        nobody = address()
        feed = ev.subscribe(root=nobody, address=self.desk, id=7)
        publisher = ev.Publisher([nobody], address=address(), id=40)
        pending = publisher.send(b"an order")
        for call in (
            lambda: next(feed),
            lambda: next(feed.batches()),
            publisher.before,
            pending.number,
            lambda: publisher.publish(b"another"),
        ):
            interrupted(call)
        feed.close()

    def test_a_program_that_is_too_slow_is_told_so(self):
        reader = self.subscribe(waiting=100)
        joined = threading.Thread(target=lambda: reader._wait(20.0))
        joined.start()
        root = ev.publish(self.address, {7: self.desk})
        for at in range(5000):
            root.publish(b"message %d" % at)
        joined.join()
        time.sleep(0.5)
        with self.assertRaisesRegex(ev.TooSlowError, "cut off"):
            for batch in reader.batches(wait=0.0):
                batch.count()

    def test_wrong_arguments_are_refused_with_what_is_right(self):
        for call, words in [
            (lambda: ev.subscribe("evenfall.toml"), "subscribe(root="),
            (lambda: ev.subscribe("none.toml", "desk-1"), "none.toml"),
            (lambda: ev.subscribe(root="here", address=self.desk, id=7), "root: "),
            (lambda: self.subscribe(key="none.key"), "none.key"),
            (lambda: ev.subscribe(root="10.0.0.1:9000", address="10.0.0.2:9000", id=7), "key"),
            (lambda: ev.publish(self.address, {}), "receiver"),
            (lambda: self.subscribe().batches(wait=-1.0), "number of seconds"),
        ]:
            with self.assertRaises(ev.SettingsError) as raised:
                call()
            self.assertIn(words, str(raised.exception))

    def test_a_forked_child_is_refused(self):
        child = os.fork()
        if child == 0:
            try:
                self.subscribe()
            except ev.ForkedError:
                os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_a_dropped_subscription_leaves_the_run_and_frees_its_address(self):
        for _ in range(2):
            feed = self.subscribe()
            self.assertFalse(feed._wait(0.1))
            del feed
            wait_until(self.is_address_free)

    def is_address_free(self):
        host, port = self.desk.split(":")
        with socket.socket(type=socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((host, int(port)))
            except OSError:
                return False
        return True


if __name__ == "__main__":
    unittest.main()
