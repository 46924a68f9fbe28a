"""Chunk stores: contract, limits, failures, and chunks after kill -9."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvproxy.errors import SettingsError
from kvproxy.settings import TierSettings
from kvproxy.tiers.chunk_store import ChunkData, ChunkStore, TierError
from kvproxy.tiers.local_stores import DiskStore, HostStore
from kvproxy.tiers.redis import RedisStore
from kvproxy.tiers.tier_chain import build_chain
from tests.polling import until
from tests.redis_server import RedisServer
from tests.tiers.doubles import DictStore

KEYS = [f"model-{number:02x}" for number in range(6)]


@pytest.fixture(params=["host", "disk", "redis", "dict"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChunkStore]:
    made: ChunkStore
    if request.param == "host":
        made = HostStore(1 << 20)
    elif request.param == "disk":
        made = DiskStore(tmp_path / "chunks", 1 << 20)
    elif request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        made = RedisStore(server.url)
    else:
        made = DictStore()
    yield made
    made.close()


def test_every_store_puts_deletes_and_clears(store: ChunkStore) -> None:
    assert store.get("a-00") is None
    assert not store.contains("a-00")
    assert store.should_put("a-00")
    store.put("a-00", b"one" * 1000)
    store.put("a-01", memoryview(b"two"))
    assert store.contains("a-00")
    assert not store.should_put("a-00")
    assert bytes(store.get("a-00") or b"") == b"one" * 1000
    store.put("a-00", b"new")
    assert bytes(store.get("a-00") or b"") == b"new"
    assert (store.stats().chunks, store.stats().bytes) == (2, 6)
    store.delete("a-00")
    store.delete("a-00")
    assert store.get("a-00") is None
    assert store.should_put("a-00")
    assert (store.stats().chunks, store.stats().bytes) == (1, 3)
    assert store.clear() == 1
    assert not store.contains("a-01")
    assert store.should_put("a-01")
    assert (store.clear(), store.stats().chunks, store.stats().bytes) == (0, 0, 0)


operations = st.lists(
    st.tuples(st.sampled_from(["put", "get", "delete"]), st.sampled_from(KEYS), st.sampled_from([0, 7, 30, 60, 101])),
    max_size=40,
)


@pytest.mark.parametrize("kind", ["host", "disk"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=operations)
def test_local_stores_are_lru_under_their_limit(
    kind: str, steps: list[tuple[str, str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    limit = 100
    store: ChunkStore = HostStore(limit) if kind == "host" else DiskStore(tmp_path_factory.mktemp("d"), limit)
    naive: dict[str, bytes] = {}
    for what, key, size in steps:
        if what == "put":
            if size <= limit:
                naive.pop(key, None)
                naive[key] = b"x" * size
            while sum(map(len, naive.values())) > limit:
                del naive[next(iter(naive))]
            store.put(key, b"x" * size)
        elif what == "get":
            expected = naive.pop(key, None)
            if expected is not None:
                naive[key] = expected
            found = store.get(key)
            assert (None if found is None else bytes(found)) == expected
        else:
            naive.pop(key, None)
            store.delete(key)
        assert {key for key in KEYS if store.contains(key)} == set(naive)
        assert store.stats().bytes == sum(map(len, naive.values()))


def test_a_reopened_folder_keeps_the_lru_order(tmp_path: Path) -> None:
    first = DiskStore(tmp_path, 100)
    for number, key in enumerate(KEYS[:4]):
        first.put(key, bytes([number]) * 20)
        time.sleep(0.002)
    first.get(KEYS[0])
    second = DiskStore(tmp_path, 40)
    assert [key for key in KEYS if second.contains(key)] == [KEYS[0], KEYS[3]]
    assert bytes(second.get(KEYS[3]) or b"") == b"\x03" * 20
    assert len(list(tmp_path.rglob("*.chunk"))) == 2


def test_deleted_and_foreign_files_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "notes.part").write_text("not ours")
    (tmp_path / "999999999-1.part").write_bytes(b"of a killed process")
    store = DiskStore(tmp_path, 1000)
    assert sorted(path.name for path in tmp_path.glob("*.part")) == ["notes.part"]
    store.put("a-00", b"data")
    next(tmp_path.rglob("*.chunk")).unlink()
    assert store.get("a-00") is None
    assert store.should_put("a-00")
    assert store.stats().bytes == 0


def test_a_folder_is_private_and_write_errors_are_reported(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "chunks", 1000)
    assert os.stat(tmp_path / "chunks").st_mode & 0o077 == 0
    (tmp_path / "chunks" / "00").write_text("a file in place of a folder")
    with pytest.raises(TierError, match="cannot write"):
        store.put("a-00", b"data")
    assert not store.contains("a-00")
    assert not list((tmp_path / "chunks").glob("*.part"))


class SmallDisk(DiskStore):
    others = 0

    def _write(self, path: Path, data: ChunkData) -> None:
        if self.others + sum(file.stat().st_size for file in self._folder.rglob("*.chunk")) + len(data) > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        super()._write(path, data)


def test_a_full_disk_is_a_limit(tmp_path: Path) -> None:
    store = SmallDisk(tmp_path, 1 << 30)
    for number in range(30):
        store.put(f"a-{number:02x}", bytes([number]) * 100)
    assert [number for number in range(30) if store.contains(f"a-{number:02x}")] == list(range(20, 30))
    assert bytes(store.get("a-1d") or b"") == b"\x1d" * 100
    assert (store.stats().bytes, store.stats().evictions) == (1000, 20)
    store.others = 1000
    with pytest.raises(TierError, match="No space left"):
        store.put("b-00", b"x" * 100)
    assert not store.contains("b-00")
    store.others = 0
    store.put("b-00", b"x" * 100)
    assert store.contains("b-00")


def test_the_limit_holds_while_a_chunk_is_written(tmp_path: Path) -> None:
    class Watched(DiskStore):
        def _write(self, path: Path, data: ChunkData) -> None:
            super()._write(path, data)
            used.append(sum(file.stat().st_size for file in self._folder.rglob("*.chunk")))

    used: list[int] = []
    store = Watched(tmp_path, 250)
    for number in range(20):
        store.put(f"a-{number % 7:02x}", b"x" * (10 * number))
    assert max(used) <= 250


def test_redis_is_not_called_while_it_is_down(redis_server: RedisServer) -> None:
    now = [0.0]
    store = RedisStore(redis_server.url, timeout=1.0, clock=lambda: now[0])
    store.put("a-00", b"data")
    redis_server.kill()
    for _ in range(3):
        assert store.available
        with pytest.raises(TierError, match="redis: "):
            store.get("a-00")
    assert not store.available
    assert not store.should_put("b-00")
    for _ in range(100):
        with pytest.raises(TierError, match="not used"):
            store.get("a-00")
    now[0] = 6.0
    for message in ("redis: ", "not used", "not used"):
        with pytest.raises(TierError, match=message):
            store.get("a-00")
    redis_server.start()
    now[0] = 12.0
    assert store.available
    assert store.get("a-00") is None
    # Redis lost the chunk, so it should be stored again.
    assert store.should_put("a-00")
    store.close()


def test_redis_deletes_chunks_after_their_ttl_and_a_frozen_redis_costs_a_timeout(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url, timeout=1.0, ttl=3)
    store.put("a-00", b"data")
    assert store.contains("a-00")
    until(lambda: not store.contains("a-00"))
    redis_server.freeze()
    began = time.monotonic()
    with pytest.raises(TierError):
        store.get("a-00")
    assert 0.9 < time.monotonic() - began < 30
    redis_server.thaw()
    store.close()


def test_errors_of_settings_name_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for tiers, message in (
        (TierSettings(redis="127.0.0.1:6379"), "redis://HOST"),
        (TierSettings(disk=tmp_path / "file"), "name a writable folder"),
        (TierSettings(host=100, chunk_tokens=24), "use 16"),  # type: ignore[arg-type]
    ):
        with pytest.raises(SettingsError, match=message):
            build_chain(tiers, 16)
    assert build_chain(TierSettings(), 16) is None


def _make_large(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def test_files_that_others_exchange_are_no_chunks(tmp_path: Path) -> None:
    """A pipe would block the engine, a larger file would fill the memory, and a link would leave the folder."""
    store = DiskStore(tmp_path / "chunks", 1 << 20)
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 10)
    kinds: dict[str, Callable[[Path], object]] = {
        "pipe-00": os.mkfifo,
        "link-00": lambda path: path.symlink_to(secret),
        "large-00": _make_large,
        "short-00": lambda path: path.write_bytes(b"short"),
    }
    for key in kinds:
        store.put(key, b"x" * 10)
    times = secret.stat()
    for key, make in kinds.items():
        path = tmp_path / "chunks" / "00" / f"{key}.chunk"
        path.unlink()
        make(path)
        if key == "link-00":
            with pytest.raises(TierError, match="cannot read"):
                store.get(key)
        else:
            assert store.get(key) is None
    assert secret.read_bytes() == b"x" * 10
    assert secret.stat().st_mtime_ns == times.st_mtime_ns


def test_only_regular_files_are_found_at_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "chunks" / "00"
    folder.mkdir(parents=True)
    (folder / "folder-00.chunk").mkdir()
    (folder / "link-00.chunk").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe-00.chunk")
    (folder / "good-00.chunk").write_bytes(b"x" * 10)
    store = DiskStore(tmp_path / "chunks", 5)
    assert store.stats().chunks == 0
    assert {path.name for path in folder.iterdir()} == {"folder-00.chunk", "link-00.chunk", "pipe-00.chunk"}


def test_keys_in_redis_are_remembered_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.tiers.redis._MAX_KNOWN_KEYS", 10)
    store = RedisStore("redis://127.0.0.1:1")
    monkeypatch.setattr(store, "_client", DictRedis())
    for number in range(50):
        store.put(f"key-{number}", b"x")
    assert store.stats().chunks == 10
    # A forgotten chunk is sent again.
    assert [store.should_put(f"key-{number}") for number in (0, 49)] == [True, False]
    store.close()


class DictRedis(dict[str, bytes]):
    """The commands of Redis that a tier uses to store chunks."""

    def set(self, name: str, value: bytes, **options: object) -> bool:
        self[name] = value
        return True

    def close(self) -> None: ...
