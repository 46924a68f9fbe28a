"""Tells whether a model must come from the local cache."""

import contextlib
import os
import threading
from pathlib import Path

_SECONDS = 3.0


def must_load_from_cache(name: str) -> bool:
    """Whether a model must come from the local cache, because the Hugging Face Hub is unreachable.

    Raises ValueError if the cache lacks the model. The Hub's client would retry for more than a minute.
    """
    if not is_hub_id(name) or not is_unreachable():
        return False
    check_cached(name)
    return True


def is_hub_id(name: str) -> bool:
    return not (name.startswith(("/", ".", "~")) or Path(name).exists())


def check_cached(name: str) -> None:
    if not is_cached(name):
        raise ValueError(f"it is not in the local cache, and {hub_url()} cannot be reached")


def is_cached(name: str) -> bool:
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    # sentence-transformers has its own variable, and adds its own name to short ids.
    caches = (os.environ.get("HF_HUB_CACHE") or home / "hub", os.environ.get("SENTENCE_TRANSFORMERS_HOME") or home)
    ids = (name,) if "/" in name else (name, f"sentence-transformers/{name}")
    folders = (Path(cache).expanduser() / f"models--{id.replace('/', '--')}" for cache in caches for id in ids)
    return any((folder / "snapshots").is_dir() for folder in folders)


def hub_url() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def is_unreachable() -> bool:
    """Whether the Hub does not answer in three seconds. False if `HF_HUB_OFFLINE` is set: its client then fails immediately."""
    if os.environ.get("HF_HUB_OFFLINE"):
        return False
    import httpx

    answered = threading.Event()

    def probe() -> None:
        with contextlib.suppress(httpx.HTTPError, httpx.InvalidURL, OSError):
            httpx.head(hub_url(), timeout=_SECONDS)
            answered.set()

    # The lookup of a host name ignores the timeouts of sockets.
    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return not answered.is_set()
