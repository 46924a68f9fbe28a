import contextlib
import os
import threading
from pathlib import Path

from kvproxy.errors import ModelUnsupported
from kvproxy.index.models.embedder import DEFAULT, MULTILINGUAL
from kvproxy.settings import Settings

_SECONDS = 3.0
_BUILT_IN = ("demo", DEFAULT, MULTILINGUAL, "built-in", "none", "upstream")


def prefer_cached_models(settings: Settings) -> None:
    """If the Hugging Face Hub is unreachable, set `HF_HUB_OFFLINE`, so that models come from the local cache.

    Raises ModelUnsupported if the cache lacks a model. Call it before the import of `huggingface_hub`.
    """
    names = _hub_model_ids(settings)
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if not names or os.environ.get("HF_HUB_OFFLINE") or _is_reachable(endpoint):
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in names:
        if not _is_cached(name):
            raise ModelUnsupported(
                f"cannot load {name!r}: it is not in the local cache, and {endpoint} cannot be reached;"
                " connect to the network, or name a local folder"
            )


def _is_cached(name: str) -> bool:
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    # sentence-transformers adds its own name to short ids.
    ids = (name,) if "/" in name else (name, f"sentence-transformers/{name}")
    return any((cache / f"models--{id.replace('/', '--')}" / "snapshots").is_dir() for id in ids)


def _hub_model_ids(settings: Settings) -> list[str]:
    names = [settings.forward.tokenizer if settings.servers else settings.model]
    if settings.cache.enabled and settings.cache.semantic:
        names += [settings.embedder, settings.cache.verifier]
    others = [name for name in names if name not in _BUILT_IN and not name.endswith(".gguf")]
    return [name for name in others if not (name.startswith(("/", ".", "~")) or Path(name).exists())]


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
