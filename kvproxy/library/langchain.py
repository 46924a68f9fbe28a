"""A cache for the models of LangChain, in the response cache. Only this module requires langchain-core."""

import contextlib
import json
import logging
from collections.abc import Sequence
from typing import Any

from langchain_core.caches import BaseCache
from langchain_core.load import dumps, loads
from langchain_core.outputs import Generation

from kvproxy.index.errors import CacheStoreError, EmbedderError
from kvproxy.library.open_cache import Cache

_log = logging.getLogger("kvproxy")
_TAG = "langchain"


class KvproxyCache(BaseCache):
    """Stores the answers of LangChain's models in an open cache, with the tag `langchain`; the program closes the cache.

    If the store or the embedder fails, the models answer.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def lookup(self, prompt: str, llm_string: str) -> list[Generation] | None:
        try:
            hit = self._cache.get(prompt, llm_string)
        except (CacheStoreError, EmbedderError) as error:
            _log.warning("the lookup failed, so the model is asked: %s", error)
            return None
        return None if hit is None else [loads(each, allowed_objects="core") for each in json.loads(hit.answer)]

    def update(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> None:
        with contextlib.suppress(CacheStoreError):  # The store logs its failure.
            self._cache.set(prompt, json.dumps([dumps(each) for each in return_val]), llm_string, tags=[_TAG])

    def clear(self, **kwargs: Any) -> None:
        self._cache.delete_tag(_TAG)
