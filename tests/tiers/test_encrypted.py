"""Chunks are encrypted outside of the process."""

from pathlib import Path

from kvproxy.privacy.encryption import Cipher
from kvproxy.settings import TierSettings
from kvproxy.tiers.chunk_store import ChunkStore
from kvproxy.tiers.local_stores import DiskStore
from kvproxy.tiers.tier_chain import TierChain, build_chain
from tests.tiers.doubles import DictStore

OLD, NEW = Cipher([b"o" * 32]), Cipher([b"n" * 32])
CHUNK = b"kvchunk\n" + b"tokens of a prompt " * 50


def accept(data: object) -> bytes | None:
    assert isinstance(data, bytes | bytearray)
    return bytes(data) if data.startswith(b"kvchunk\n") else None


def save(store: ChunkStore, key: str, cipher: Cipher | None) -> None:
    chain = TierChain([store], cipher=cipher)
    assert chain.save(key, CHUNK)
    chain.close()


def test_chunks_are_encrypted_on_disk_and_in_clear_in_memory(tmp_path: Path) -> None:
    chain = build_chain(TierSettings(host=1 << 20, disk=tmp_path / "chunks", chunk_tokens=16), 16, cipher=NEW)  # type: ignore[arg-type]
    assert chain is not None
    assert chain.save("model-aa", CHUNK)
    assert chain.flush(300)
    (file,) = tmp_path.rglob("*.chunk")
    assert b"prompt" not in file.read_bytes()
    assert chain.stores[0].get("model-aa") == CHUNK
    chain.stores[0].delete("model-aa")
    found = chain.load("model-aa", lambda data: data)
    assert isinstance(found, bytearray), "torch requires a writable buffer"
    assert found == CHUNK
    chain.close()


def test_older_keys_and_chunks_in_clear_can_be_read(tmp_path: Path) -> None:
    save(DiskStore(tmp_path, 1 << 20), "model-aa", OLD)
    save(DiskStore(tmp_path, 1 << 20), "model-bb", None)
    both = TierChain([DiskStore(tmp_path, 1 << 20)], cipher=Cipher([b"n" * 32, b"o" * 32]))
    assert both.load("model-aa", accept) == both.load("model-bb", accept) == CHUNK
    both.close()


def test_a_chunk_with_another_key_or_name_is_deleted() -> None:
    store = DictStore()
    save(store, "model-aa", OLD)
    save(store, "model-bb", NEW)
    store.chunks["model-cc"] = store.chunks["model-bb"]
    chain = TierChain([store], cipher=NEW)
    assert chain.load("model-aa", accept) is None
    assert chain.load("model-cc", accept) is None
    assert chain.load("model-bb", accept) == CHUNK
    assert store.chunks.keys() == {"model-bb"}
    (stats,) = chain.stats()
    assert (stats.damaged, stats.hits, stats.errors) == (2, 1, 0)
    chain.close()
