"""Models from the Hugging Face Hub: offline, only the local cache is used."""

import contextlib
import os
import threading
from pathlib import Path

from kvproxy.settings import Settings

_SECONDS = 3.0
_BUILT_IN = ("demo", "default", "built-in", "none", "upstream")


def prefer_cached_models(settings: Settings) -> None:
    """Use only the local cache if the Hub is unreachable. Otherwise, each file of a model would wait for a timeout."""
    names = [settings.forward.tokenizer if settings.servers else settings.model]
    if settings.cache.enabled and settings.cache.semantic:
        names += [settings.embedder, settings.cache.verifier]
    ids = [name for name in names if name not in _BUILT_IN and not name.endswith(".gguf")]
    ids = [name for name in ids if not (name.startswith(("/", ".", "~")) or Path(name).exists())]
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if ids and not os.environ.get("HF_HUB_OFFLINE") and not _is_reachable(endpoint):
        # `huggingface_hub` reads the environment at its import.
        os.environ["HF_HUB_OFFLINE"] = "1"


def _is_reachable(endpoint: str) -> bool:
    import httpx

    answered = threading.Event()

    def probe() -> None:
        with contextlib.suppress(httpx.HTTPError, httpx.InvalidURL, OSError):
            httpx.head(endpoint, timeout=_SECONDS)
            answered.set()

    # The lookup of a host name ignores the timeouts of sockets.
    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return answered.is_set()
