"""The response cache as a library: `open_cache`, or `open_async_cache` for asyncio."""

import asyncio
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from kvproxy.errors import SettingsError
from kvproxy.index.entry import Entry, new_id
from kvproxy.index.models.embedder import Embedder
from kvproxy.index.policies.guards import Guard
from kvproxy.index.policies.policy import Policy
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.store import EntryFilter
from kvproxy.index.store_location import is_url
from kvproxy.library.configured_cache import open_response_cache
from kvproxy.library.lookup_explanation import LookupExplanation, explain_lookup
from kvproxy.settings.cache import CacheSettings
from kvproxy.settings.privacy import EncryptionSettings, RedactionSettings
from kvproxy.units import parse_seconds

T = TypeVar("T")
_BATCH = 1_000
_ENDPOINT = "library"  # In all keys and namespaces: a proxy with the same store serves no answers of the library.


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """A stored answer.

    Attributes:
        similarity: cosine of the stored and the requested question; None if they are equal.
        id: names the answer for `feedback`.
    """

    answer: str
    question: str
    similarity: float | None
    id: str = field(default="", compare=False)


class AsyncCache:
    """The same as `Cache`, for asyncio. Open it with `open_async_cache`, and use it in one event loop."""

    def __init__(
        self,
        cache: ResponseCache,
        ttl: float,
        clock: Callable[[], float] = time.time,
        namespace_ttls: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._cache = cache
        self._ttl = ttl
        self._clock = clock
        self._namespace_ttls = namespace_ttls
        self._counts = Counter[str]()
        self._is_closed = False

    async def get(self, question: str, namespace: str = "") -> CachedAnswer | None:
        self._check_open()
        _check_texts(question=question, namespace=namespace)
        cache, similarity = self._cache, None
        entry = await cache.find(_digest(namespace, question))
        if entry is not None and entry.expires <= self._clock():
            entry = None
        if entry is None and cache.semantic is not None and await cache.is_unchanged_by_redaction(question):
            lookup = await cache.semantic.lookup(_digest(namespace), question)
            entry, similarity = lookup.entry, lookup.similarity
        self._counts["miss" if entry is None else "exact" if similarity is None else "semantic"] += 1
        if entry is None:
            return None
        cache.store.record_hit(entry.id)
        return CachedAnswer(json.loads(entry.response), entry.prompt, similarity, entry.id)

    async def explain(self, question: str, namespace: str = "") -> LookupExplanation:
        self._check_open()
        _check_texts(question=question, namespace=namespace)
        return await explain_lookup(
            self._cache, _digest(namespace, question), _digest(namespace), question, self._clock()
        )

    async def set(
        self,
        question: str,
        answer: str,
        namespace: str = "",
        *,
        ttl: float | str | None = None,
        tags: Sequence[str] = (),
    ) -> bool:
        self._check_open()
        return await self._cache.insert(self._entry(question, answer, namespace, ttl, tags))

    async def set_many(
        self,
        answers: Mapping[str, str],
        namespace: str = "",
        *,
        ttl: float | str | None = None,
        tags: Sequence[str] = (),
    ) -> int:
        self._check_open()
        # All arguments are checked before the first answer is stored.
        entries = [self._entry(question, answer, namespace, ttl, tags) for question, answer in answers.items()]
        starts = range(0, len(entries), _BATCH)
        return sum([await self._cache.insert_many(entries[start : start + _BATCH]) for start in starts])

    def _entry(self, question: str, answer: str, namespace: str, ttl: float | str | None, tags: Sequence[str]) -> Entry:
        _check_texts(question=question, answer=answer, namespace=namespace)
        if not question.strip():
            raise ValueError("the question is empty")
        now = self._clock()
        lifetime = self._namespace_ttls.get(namespace, self._ttl) if ttl is None else _positive_seconds("ttl", ttl)
        return Entry(
            id=new_id(),
            key=_digest(namespace, question),
            namespace=_digest(namespace),
            tenant="",
            model="",
            endpoint=_ENDPOINT,
            prompt=question,
            semantic=True,
            request=json.dumps({"question": question, "namespace": namespace}).encode(),
            response=json.dumps(answer).encode(),
            created=now,
            expires=now + lifetime,
            tags=_checked_tags(tags),
        )

    async def delete(self, question: str, namespace: str = "") -> bool:
        self._check_open()
        _check_texts(question=question, namespace=namespace)
        entry = await self._cache.find(_digest(namespace, question))
        return entry is not None and await self._cache.remove([entry.id]) > 0

    async def delete_tag(self, tag: str, namespace: str | None = None) -> int:
        self._check_open()
        _check_texts(tag=tag, **({} if namespace is None else {"namespace": namespace}))
        where = EntryFilter(tag=tag, namespace=None if namespace is None else _digest(namespace))
        entries = await asyncio.to_thread(self._cache.store.list_entries, where)
        return await self._cache.remove([entry.id for entry in entries if entry.endpoint == _ENDPOINT])

    async def feedback(self, answer: CachedAnswer, right: bool, question: str | None = None) -> None:
        self._check_open()
        _check_type("answer", answer, CachedAnswer)
        if self._cache.semantic is None:
            raise ValueError("semantic matching is off: there is nothing to reject or approve")
        entry = await asyncio.to_thread(self._cache.store.get, answer.id)
        if entry is None:
            raise ValueError(f"the answer to {answer.question[:80]!r} is no longer stored")
        await self._cache.semantic.feedback(entry, right, question)

    async def stats(self) -> dict[str, Any]:
        self._check_open()
        store, semantic = self._cache.store, self._cache.semantic
        figures = asdict(await asyncio.to_thread(store.stats))
        learned = await asyncio.to_thread(store.observations.summary)
        learning = None if semantic is None or semantic.learning is None else semantic.learning.summary()
        policy = None if semantic is None else semantic.policy.name
        decisions = {"policy": policy, "learned": learned, "learning": learning}
        gets = {name: self._counts[name] for name in ("exact", "semantic", "miss")}
        return figures | {"gets": gets, "semantic": decisions}

    async def close(self) -> None:
        self._is_closed = True
        await asyncio.to_thread(self._cache.close)

    async def __aenter__(self) -> "AsyncCache":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this cache is closed: open it again")


class Cache:
    """Stored answers with exact and semantic lookups.

    Open it with `open_cache`. Works in threads and in running event loops. Methods raise CacheStoreError or
    EmbedderError, TypeError or ValueError for invalid arguments, and RuntimeError after `close`.
    """

    def __init__(self, cache: AsyncCache) -> None:
        self._cache = cache
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kvproxy-cache", daemon=True)
        self._thread.start()

    def get(self, question: str, namespace: str = "") -> CachedAnswer | None:
        """Return the stored answer to an equal question, or else to a similar question.

        `namespace` contains everything else that changes the answer: the model, the system prompt, the user.
        """
        return self._run(self._cache.get(question, namespace))

    def explain(self, question: str, namespace: str = "") -> LookupExplanation:
        """Return what `get` would return, and why, without counting a lookup."""
        return self._run(self._cache.explain(question, namespace))

    def set(
        self,
        question: str,
        answer: str,
        namespace: str = "",
        *,
        ttl: float | str | None = None,
        tags: Sequence[str] = (),
    ) -> bool:
        """Store an answer durably for `ttl`: seconds, or text such as `1h`.

        Without `ttl`, the lifetime of the namespace counts, or else of the settings.
        `tags` select answers for `delete_tag`. Return False if the answer exceeds the capacity, or contains text to redact.
        """
        return self._run(self._cache.set(question, answer, namespace, ttl=ttl, tags=tags))

    def set_many(
        self,
        answers: Mapping[str, str],
        namespace: str = "",
        *,
        ttl: float | str | None = None,
        tags: Sequence[str] = (),
    ) -> int:
        """Store the answer to each question, see `set`, with few commits; return the number of stored answers."""
        return self._run(self._cache.set_many(answers, namespace, ttl=ttl, tags=tags))

    def delete(self, question: str, namespace: str = "") -> bool:
        """Remove the answer to an equal question; return whether it existed."""
        return self._run(self._cache.delete(question, namespace))

    def delete_tag(self, tag: str, namespace: str | None = None) -> int:
        """Remove the answers with a tag, in one namespace or (None) in all; return their number."""
        return self._run(self._cache.delete_tag(tag, namespace))

    def feedback(self, answer: CachedAnswer, right: bool, question: str | None = None) -> None:
        """Report whether an answer was right. A wrong answer is served for equal questions only.

        From the `question` of a semantic hit, the policy `learned` also learns.
        """
        self._run(self._cache.feedback(answer, right, question))

    def stats(self) -> dict[str, Any]:
        """Return the figures of `kvproxy cache stats --json`, and `gets`: the numbers of results since the cache was opened."""
        return self._run(self._cache.stats())

    def close(self) -> None:
        if not self._loop.is_closed():
            self._run(self._cache.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> "Cache":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("this cache is closed: open it again")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def open_async_cache(
    where: str | Path,
    settings: CacheSettings | None = None,
    *,
    embedder: str | Embedder = "default",
    guards: Sequence[Guard] = (),
    policy: Policy | None = None,
    encryption: EncryptionSettings | None = None,
    redaction: RedactionSettings | None = None,
    namespace_ttls: Mapping[str, float | str] = MappingProxyType({}),
) -> AsyncCache:
    """Open a cache for asyncio. A missing file is created; the folder must exist.

    Args:
        where: a file, or `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`.
        settings: None uses the defaults of `kvproxy serve`.
        embedder: an `Embedder`, or its name: `default`, `multilingual`, a plugin's, a folder, or a sentence-transformers id.
        guards: veto similar questions, in addition to the guards of the settings.
        policy: decides about similar questions, instead of the policy of the settings, its guards, and its verifier.
        encryption: location of the keys; None does not encrypt.
        redaction: texts to redact before storing; None redacts nothing.
        namespace_ttls: lifetime of answers by namespace, in seconds or as text such as `1h`; others have that of the settings.

    Raises:
        SettingsError: the keys, the store, the embedder or the verifier cannot be used.
        TypeError, ValueError: an argument has the wrong type or value.
    """
    _check_type("settings", settings, CacheSettings)
    _check_type("encryption", encryption, EncryptionSettings)
    _check_type("redaction", redaction, RedactionSettings)
    if not is_url(str(where)) and not Path(where).parent.is_dir():
        raise SettingsError(f"there is no folder {Path(where).parent}: create it, or name another file")
    settings = settings or CacheSettings()
    ttls = {name: _positive_seconds(f"namespace_ttls[{name!r}]", ttl) for name, ttl in namespace_ttls.items()}
    cache = open_response_cache(
        where,
        settings,
        embedder=embedder,
        guards=guards,
        policy=policy,
        encryption=encryption or EncryptionSettings(),
        redaction=redaction or RedactionSettings(),
    )
    return AsyncCache(cache, settings.ttl, namespace_ttls=ttls)


def open_cache(
    where: str | Path,
    settings: CacheSettings | None = None,
    *,
    embedder: str | Embedder = "default",
    guards: Sequence[Guard] = (),
    policy: Policy | None = None,
    encryption: EncryptionSettings | None = None,
    redaction: RedactionSettings | None = None,
    namespace_ttls: Mapping[str, float | str] = MappingProxyType({}),
) -> Cache:
    """Open a cache for threads. See `open_async_cache` for the arguments."""
    return Cache(
        open_async_cache(
            where,
            settings,
            embedder=embedder,
            guards=guards,
            policy=policy,
            encryption=encryption,
            redaction=redaction,
            namespace_ttls=namespace_ttls,
        )
    )


def _check_texts(**texts: object) -> None:
    for name, value in texts.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string, not {type(value).__name__}")


def _positive_seconds(name: str, value: float | str) -> float:
    if (seconds := parse_seconds(value)) <= 0:
        raise ValueError(f"{name} must be positive, but it is {value!r}")
    return seconds


def _checked_tags(tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str):
        raise TypeError(f"tags must be a sequence of strings: write ({tags!r},)")
    _check_texts(**{f"tags[{place}]": tag for place, tag in enumerate(tags)})
    return tuple(dict.fromkeys(tags))


def _check_type(name: str, value: object, expected: type) -> None:
    if value is not None and not isinstance(value, expected):
        raise TypeError(f"{name} must be of the type {expected.__name__}, not {type(value).__name__}")


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps([_ENDPOINT, *parts]).encode()).hexdigest()
