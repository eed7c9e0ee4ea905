"""Two clients of WebHDFS, hdfs and fsspec, against our servers."""

import hashlib
import posixpath
import random
import sys

import fsspec
import hdfs

host, port = sys.argv[1].split(":")
content = random.Random(7).randbytes(3_000_000)


def expect_error(kind, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        return str(error)
    raise AssertionError(f"{call} was not refused")


client = hdfs.InsecureClient(f"http://{host}:{port}", user="ann")
client.makedirs("/python/a/b")
client.write("/python/a/b/file", data=content)
with client.read("/python/a/b/file") as reader:
    assert reader.read() == content
with client.read("/python/a/b/file", offset=1_000_000, length=10) as reader:
    assert reader.read() == content[1_000_000:1_000_010]
client.write("/python/a/b/file", data=b"more", append=True)
status = client.status("/python/a/b/file")
assert (status["length"], status["owner"], status["type"]) == (3_000_004, "ann", "FILE"), status
assert client.list("/python/a/b") == ["file"]
expect_error(hdfs.HdfsError, client.write, "/python/a/b/file", data=b"x")
client.write("/python/a/b/file", data=b"short", overwrite=True)
with client.read("/python/a/b/file") as reader:
    assert reader.read() == b"short"
client.rename("/python/a/b/file", "/python/a/moved")
assert client.status("/python/a/b/file", strict=False) is None
assert client.content("/python/a")["length"] == 5
assert client.checksum("/python/a/moved")["algorithm"] == "MD5-of-0MD5-of-512CRC32C"
client.set_permission("/python/a/moved", "600")
client.set_owner("/python/a/moved", owner="bob")
client.set_replication("/python/a/moved", 2)
status = client.status("/python/a/moved")
assert (status["permission"], status["owner"], status["replication"]) == ("600", "bob", 2), status
assert client.delete("/python/a", recursive=True) is True
assert client.delete("/python/a", recursive=True) is False
expect_error(hdfs.HdfsError, client.status, "/python/a")
expect_error(hdfs.HdfsError, client.create_snapshot, "/python", "s")
with client.write("/python/streamed") as writer:
    for at in range(0, len(content), 100_000):
        writer.write(content[at : at + 100_000])
with client.read("/python/streamed", chunk_size=65_536) as reader:
    assert hashlib.sha256(b"".join(reader)).digest() == hashlib.sha256(content).digest()

files = fsspec.filesystem("webhdfs", host=host, port=int(port), user="ann")
files.mkdirs("/fsspec/a", exist_ok=True)
with files.open("/fsspec/a/file", "wb", block_size=1 << 20) as out:
    out.write(content)
assert files.cat("/fsspec/a/file") == content
assert files.cat_file("/fsspec/a/file", start=5, end=15) == content[5:15]
with files.open("/fsspec/a/file", "rb") as reader:
    reader.seek(2_999_990)
    assert reader.read() == content[2_999_990:]
assert [posixpath.basename(name) for name in files.ls("/fsspec/a", detail=False)] == ["file"]
assert files.info("/fsspec/a/file")["size"] == len(content)
assert files.content_summary("/fsspec")["fileCount"] == 1
assert files.ukey("/fsspec/a/file")["algorithm"] == "MD5-of-0MD5-of-512CRC32C"
files.mv("/fsspec/a/file", "/fsspec/b")
assert files.exists("/fsspec/b") and not files.exists("/fsspec/a/file")
expect_error(FileNotFoundError, files.info, "/fsspec/none")
files.rm("/fsspec", recursive=True)
assert not files.exists("/fsspec")
print("all there")
