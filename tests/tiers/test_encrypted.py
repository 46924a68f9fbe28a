"""Chunks that are encrypted outside of the process."""

from pathlib import Path

from kvproxy.encryption import Cipher
from kvproxy.settings import TierSettings
from kvproxy.tiers.build import build_chain
from kvproxy.tiers.chain import TierChain
from kvproxy.tiers.disk import DiskStore
from kvproxy.tiers.encrypted import EncryptedStore
from tests.tiers.doubles import DictStore

OLD, NEW = Cipher([b"o" * 32]), Cipher([b"n" * 32])
BOTH = Cipher([b"n" * 32, b"o" * 32])
CHUNK = b"kvchunk\n" + b"tokens of a prompt " * 50


def accept(data: object) -> bytes | None:
    """As the engine does: what is no chunk is not taken."""
    assert isinstance(data, bytes | bytearray)
    return bytes(data) if data.startswith(b"kvchunk\n") else None


def test_the_disk_holds_no_readable_chunk_and_memory_does(tmp_path: Path) -> None:
    chain = build_chain(TierSettings(host=1 << 20, disk=tmp_path / "chunks", chunk_tokens=16), 16, cipher=NEW)  # type: ignore[arg-type]
    assert chain is not None
    assert chain.save("model-aa", CHUNK)
    assert chain.flush(10)
    (file,) = tmp_path.rglob("*.chunk")
    assert b"prompt" not in file.read_bytes()
    assert chain.stores[0].get("model-aa") == CHUNK
    found = chain.stores[1].get("model-aa")
    assert isinstance(found, bytearray), "torch lays a tensor over it"
    assert found == CHUNK
    chain.close()


def test_a_restart_with_a_new_key_in_front_finds_its_chunks(tmp_path: Path) -> None:
    EncryptedStore(DiskStore(tmp_path, 1 << 20), OLD).put("model-aa", CHUNK)
    again = EncryptedStore(DiskStore(tmp_path, 1 << 20), BOTH)
    assert again.contains("model-aa")
    assert again.get("model-aa") == CHUNK


def test_what_was_kept_in_clear_is_read() -> None:
    inner = DictStore()
    inner.put("model-aa", CHUNK)
    assert EncryptedStore(inner, NEW).get("model-aa") == CHUNK


def test_what_cannot_be_decrypted_is_a_miss_and_is_dropped() -> None:
    inner = DictStore()
    EncryptedStore(inner, OLD).put("model-aa", CHUNK)
    EncryptedStore(inner, NEW).put("model-bb", CHUNK)
    inner.chunks["model-cc"] = inner.chunks["model-bb"]  # Another chunk's content under this name.
    chain = TierChain([EncryptedStore(inner, NEW)])
    assert chain.load("model-aa", accept) is None
    assert chain.load("model-cc", accept) is None
    assert chain.load("model-bb", accept) == CHUNK
    assert inner.chunks.keys() == {"model-bb"}
    (figures,) = chain.stats()
    assert (figures.damaged, figures.hits, figures.errors) == (2, 1, 0)
    chain.close()
