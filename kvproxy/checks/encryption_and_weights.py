from pathlib import Path

from kvproxy.checks.configured_store import open_configured_store, store_exists
from kvproxy.encryption import is_encrypted, load_cipher
from kvproxy.errors import KvproxyError
from kvproxy.index.private_files import is_accessible_to_others
from kvproxy.settings import Settings

_NUM_HEADER_BYTES = 64  # Enough of a chunk to detect encryption.


def check_encryption(settings: Settings) -> str:
    """Check that the key file is private, and that all stored texts are encrypted. Raises KvproxyError."""
    cipher = load_cipher(settings.encryption)
    if cipher is None:
        return "off: texts are stored unencrypted, in files that only their owner can read"
    file = settings.encryption.key_file
    if file is not None and is_accessible_to_others(file):
        raise KvproxyError(f"other users can read the keys in {file}: chmod 600 {file}")
    chunks = _count_unencrypted_chunks(settings.tiers.disk)
    if chunks:
        raise KvproxyError(
            f"{chunks:,} chunks in {settings.tiers.disk} are unencrypted: kvproxy blocks clear-tier disk"
        )
    by_key: dict[str, int] = {}
    if store_exists(settings):
        with open_configured_store(settings) as store:
            by_key = store.count_by_key_name()
    if by_key.get(""):
        raise KvproxyError(f"{by_key['']:,} responses are stored unencrypted: kvproxy cache encrypt")
    older = sum(count for name, count in by_key.items() if name != cipher.name)
    more = f", {older:,} responses use an older key (kvproxy cache encrypt)" if older else ""
    return f"the key {cipher.name} encrypts texts{more}; vectors and digests are not encrypted"


def _count_unencrypted_chunks(folder: Path | None) -> int:
    count = 0
    for path in folder.glob("*/*.chunk") if folder is not None else ():
        with path.open("rb") as file:
            count += not is_encrypted(file.read(_NUM_HEADER_BYTES))
    return count


def check_weights(embedder: str) -> str:
    """Check the embedder's and the verifier's installed weights against their released digests. Raises KvproxyError."""
    from kvproxy.demo import verified_model_path
    from kvproxy.index.errors import EmbedderError
    from kvproxy.index.models.e5 import installed_file
    from kvproxy.index.models.embedder import MULTILINGUAL
    from kvproxy.index.models.minilm.weights import RANGES, check_packaged_weights, packaged_model, weights_file
    from kvproxy.index.models.verifier.built_in import ADAPTER

    extra = (installed_file(),) if embedder == MULTILINGUAL else ()
    try:
        for path in (weights_file(packaged_model()), RANGES, ADAPTER, *extra):
            check_packaged_weights(path)
    except (OSError, ValueError, EmbedderError) as error:
        raise KvproxyError(str(error)) from None
    verified_model_path()
    return "embedder, verifier and demo model are the released ones (SHA-256)"
