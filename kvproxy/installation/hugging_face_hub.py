"""Prefers cached models if the Hugging Face Hub is unreachable."""

import os

from kvproxy.errors import ModelUnsupported
from kvproxy.index.models.embedder import DEFAULT, MULTILINGUAL
from kvproxy.index.models.hugging_face_hub import check_cached, hub_url, is_hub_id, is_unreachable
from kvproxy.settings import Settings

_BUILT_IN = ("demo", DEFAULT, MULTILINGUAL, "built-in", "none", "upstream")


def prefer_cached_models(settings: Settings) -> str:
    """If the Hugging Face Hub is unreachable, set `HF_HUB_OFFLINE`, so that models come from the local cache.

    Return where models come from. Raises ModelUnsupported if the cache lacks a model. Call it before the import of
    `huggingface_hub`.
    """
    names = _hub_model_ids(settings)
    if not names:
        return "packaged, or in local folders"
    if not is_unreachable():
        return f"{', '.join(names)}: from the local cache, or {hub_url()}"
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in names:
        try:
            check_cached(name)
        except ValueError as error:
            fix = "connect to the network, or name a local folder"
            raise ModelUnsupported(f"cannot load {name!r}: {error}; {fix}") from None
    return f"{', '.join(names)}: from the local cache, because {hub_url()} cannot be reached"


def _hub_model_ids(settings: Settings) -> list[str]:
    names = [settings.forward.tokenizer if settings.servers else settings.model]
    if settings.cache.enabled and settings.cache.semantic:
        names += [settings.embedder, settings.cache.verifier]
    others = [name for name in names if name not in _BUILT_IN and not name.endswith(".gguf")]
    return [name for name in others if is_hub_id(name)]
