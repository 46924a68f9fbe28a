"""What `doctor` checks of data at rest: the keys and what they encrypt, and the weights in the box."""

from pathlib import Path

from kvproxy.checks.stored import opened_store, store_exists
from kvproxy.encryption import is_sealed, load_cipher
from kvproxy.errors import KvproxyError
from kvproxy.index.private_files import is_accessible_to_others
from kvproxy.settings import Settings

_BEGINNING = 64  # Bytes of a chunk that tell whether it is encrypted.


def check_encryption(settings: Settings) -> str:
    """Whether the keys can be read by their owner alone, and everything that is stored is encrypted.

    Raises:
        KvproxyError: it is not; the message names the fix.
    """
    cipher = load_cipher(settings.encryption)
    if cipher is None:
        return "off: texts are stored in clear, in files that only their owner can read"
    file = settings.encryption.key_file
    if file is not None and is_accessible_to_others(file):
        raise KvproxyError(f"others can read the keys in {file}: chmod 600 {file}")
    chunks = _clear_chunks(settings.tiers.disk)
    if chunks:
        raise KvproxyError(
            f"{chunks:,} chunks in {settings.tiers.disk} are in clear, from before: kvproxy blocks clear-tier disk"
        )
    sealed: dict[str, int] = {}
    if store_exists(settings):
        with opened_store(settings) as store:
            sealed = store.count_by_key_name()
    if sealed.get(""):
        raise KvproxyError(f"{sealed['']:,} responses are stored in clear, from before: kvproxy cache encrypt")
    older = sum(count for name, count in sealed.items() if name != cipher.name)
    more = f", {older:,} responses are under an older key (kvproxy cache encrypt)" if older else ""
    return f"the key {cipher.name} encrypts texts{more}; vectors and digests stay in clear"


def _clear_chunks(folder: Path | None) -> int:
    count = 0
    for path in folder.glob("*/*.chunk") if folder is not None else ():
        with path.open("rb") as file:
            count += not is_sealed(file.read(_BEGINNING))
    return count


def check_weights() -> str:
    """Whether the embedder's, the verifier's and the demo model's weights are the released ones.

    Raises:
        KvproxyError: they are not; the message names the fix.
    """
    from kvproxy.demo import checked_model
    from kvproxy.index.errors import EmbedderError
    from kvproxy.index.models.minilm.shipped import check_shipped
    from kvproxy.index.models.minilm.weights import RANGES, packaged_model
    from kvproxy.index.models.verifier.built_in import ADAPTER

    try:
        embedder = packaged_model() / "model.safetensors"
        for path in (embedder, RANGES, ADAPTER):
            check_shipped(path)
    except (OSError, ValueError, EmbedderError) as error:
        raise KvproxyError(str(error)) from None
    checked_model()
    return "embedder, verifier and demo model are the released ones (SHA-256)"
