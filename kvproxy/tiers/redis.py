"""Stores KV chunks in Redis or Valkey."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from kvproxy.errors import SettingsError
from kvproxy.optional_packages import install_command
from kvproxy.settings import TierSettings
from kvproxy.tiers.chunk_store import ChunkData, TierError, TierStats

T = TypeVar("T")
_MAX_FAILURES = 3  # failed or timed-out calls in a row, after which a pause begins
_PAUSE_SECONDS = 5.0  # all calls fail in a pause; if the first call after it fails, the next pause begins
_PREFIX = "kvproxy:chunk:"
_MAX_KNOWN_KEYS = 100_000


class RedisStore:
    """Chunks as string values in Redis or Valkey, which evicts them by its `maxmemory` policy; `ttl` is in seconds."""

    name = "redis"
    remote = True

    def __init__(
        self, url: str, timeout: float = 0.5, ttl: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        try:
            from redis import Redis
            from redis.backoff import NoBackoff
            from redis.exceptions import RedisError
            from redis.retry import Retry
        except ImportError:
            hint = install_command("redis")
            raise SettingsError(f"the redis tier needs redis-py: {hint}", param="tiers.redis") from None
        retry = Retry(NoBackoff(), 0)
        try:
            self._client: Any = Redis.from_url(url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=retry)
        except ValueError:
            # The reason may quote a part of a password.
            raise SettingsError(
                "tiers.redis is not a Redis URL: use redis://HOST:PORT/DB, and write / in a password as %2F, ? as"
                " %3F, # as %23, @ as %40"
            ) from None
        self._errors: tuple[type[Exception], ...] = (RedisError, OSError)
        self._timeout = timeout
        self._ttl = None if ttl is None else max(1, int(ttl))
        self._clock = clock
        self._failures = 0
        self._next_try = 0.0
        # Keys in Redis, to send each chunk only once.
        self._known: OrderedDict[str, int] = OrderedDict()
        self._lock = Lock()

    @property
    def available(self) -> bool:
        return self._failures < _MAX_FAILURES or self._clock() >= self._next_try

    def get(self, key: str) -> ChunkData | None:
        chunk: bytes | None = self._call(lambda: self._client.get(_PREFIX + key))
        if chunk is None:
            self._remove_known_key(key)
            return None
        self._add_known_key(key, len(chunk))
        return bytearray(chunk)

    def put(self, key: str, data: ChunkData) -> None:
        self._call(lambda: self._client.set(_PREFIX + key, memoryview(data), ex=self._ttl))
        self._add_known_key(key, len(data))

    def contains(self, key: str) -> bool:
        if self._call(lambda: self._client.exists(_PREFIX + key)):
            return True
        self._remove_known_key(key)
        return False

    def should_put(self, key: str) -> bool:
        return key not in self._known and self.available

    def delete(self, key: str) -> None:
        self._call(lambda: self._client.delete(_PREFIX + key))
        self._remove_known_key(key)

    def clear(self) -> int:
        num_deleted: int = sum(self._call(partial(self._client.unlink, *names)) for names in self.scan_names() if names)
        with self._lock:
            self._known.clear()
        return num_deleted

    def scan_names(self) -> Iterator[list[bytes]]:
        """Yield the names of all chunks in Redis, in parts."""
        scan, cursor = partial(self._client.scan, match=f"{_PREFIX}*", count=500), 0
        while True:
            cursor, names = self._call(partial(scan, cursor))
            yield names
            if not cursor:
                return

    def server_info(self) -> dict[str, Any]:
        return self._call(self._client.info)

    def _call(self, command: Callable[[], T]) -> T:
        with self._lock:
            if not self.available:
                raise TierError("redis is not used for a few seconds after failures")
            self._next_try = self._clock() + _PAUSE_SECONDS
        start = time.monotonic()
        try:
            value = command()
        except self._errors as error:
            self._count_failure()
            raise TierError(f"redis: {error}") from None
        # redis-py's timeout applies to each read, not to the whole call.
        if time.monotonic() - start > self._timeout:
            self._count_failure()
        else:
            self._failures = 0
        return value

    def _count_failure(self) -> None:
        with self._lock:
            self._failures += 1
            self._next_try = self._clock() + _PAUSE_SECONDS

    def _add_known_key(self, key: str, size: int) -> None:
        with self._lock:
            self._known[key] = size
            self._known.move_to_end(key)
            if len(self._known) > _MAX_KNOWN_KEYS:
                self._known.popitem(last=False)

    def _remove_known_key(self, key: str) -> None:
        with self._lock:
            self._known.pop(key, None)

    def stats(self) -> TierStats:
        with self._lock:
            sizes = list(self._known.values())
        return TierStats(self.name, len(sizes), sum(sizes), None, 0, self.available)

    def close(self) -> None:
        self._client.close()


def open_redis_store(settings: TierSettings, pin_memory: object) -> RedisStore | None:
    return None if settings.redis is None else RedisStore(settings.redis, settings.redis_timeout, settings.redis_ttl)
