"""Chunks in Redis or Valkey, shared between machines, behind a circuit breaker."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from threading import Lock
from typing import Any, TypeVar

from kvproxy.errors import SettingsError
from kvproxy.tiers.chunk_store import Data, StoreStats, TierError


class CircuitBreaker:
    """Opens after `failures` consecutive failures; one trial call after `reset_seconds` decides whether it closes."""

    def __init__(
        self, failures: int = 3, reset_seconds: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures = failures
        self._reset_seconds = reset_seconds
        self._clock = clock
        self._count = 0
        self._opened_at: float | None = None
        self._lock = Lock()

    @property
    def is_ready(self) -> bool:
        opened_at = self._opened_at
        return opened_at is None or self._clock() - opened_at >= self._reset_seconds

    def allows_call(self) -> bool:
        """Reserve a call; False while the circuit is open.

        Each call must end with `record_success` or `record_failure`.
        """
        with self._lock:
            if not self.is_ready:
                return False
            if self._opened_at is not None:
                # A trial call: the circuit stays open for other calls.
                self._opened_at = self._clock()
            return True

    def record_success(self) -> None:
        with self._lock:
            self._count = 0
            self._opened_at = None

    def record_failure(self) -> None:
        with self._lock:
            self._count += 1
            if self._count >= self._failures:
                self._opened_at = self._clock()


T = TypeVar("T")
_PREFIX = "kvproxy:chunk:"
_MAX_KNOWN_KEYS = 100_000


class RedisStore:
    """Chunks as string values; Redis evicts them by its `maxmemory` policy.

    `timeout` is in seconds, also for a whole call. `ttl` is in seconds.
    """

    name = "redis"
    remote = True

    def __init__(
        self, url: str, timeout: float = 0.5, ttl: float | None = None, breaker: CircuitBreaker | None = None
    ) -> None:
        try:
            from redis import Redis
            from redis.backoff import NoBackoff
            from redis.exceptions import RedisError
            from redis.retry import Retry
        except ImportError:
            raise SettingsError(
                "the redis tier needs redis-py: pip install 'kvproxy[redis]'", param="tiers.redis"
            ) from None
        retry = Retry(NoBackoff(), 0)
        try:
            self._client: Any = Redis.from_url(url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=retry)
        except ValueError as error:
            raise SettingsError(f"tiers.redis is not a Redis URL ({error}): use redis://HOST:PORT/DB") from None
        self._errors: tuple[type[Exception], ...] = (RedisError, OSError)
        self._timeout = timeout
        self._ttl = None if ttl is None else max(1, int(ttl))
        self._breaker = breaker or CircuitBreaker()
        # Keys in Redis, so that a chunk is not sent again at each use.
        self._known: OrderedDict[str, int] = OrderedDict()
        self._lock = Lock()

    @property
    def available(self) -> bool:
        return self._breaker.is_ready

    def get(self, key: str) -> Data | None:
        found: bytes | None = self._call(lambda: self._client.get(_PREFIX + key))
        if found is None:
            self._forget(key)
            return None
        self._remember(key, len(found))
        return bytearray(found)

    def put(self, key: str, data: Data) -> None:
        self._call(lambda: self._client.set(_PREFIX + key, memoryview(data), ex=self._ttl))
        self._remember(key, len(data))

    def contains(self, key: str) -> bool:
        if self._call(lambda: self._client.exists(_PREFIX + key)):
            return True
        self._forget(key)
        return False

    def should_put(self, key: str) -> bool:
        return key not in self._known and self._breaker.is_ready

    def delete(self, key: str) -> None:
        self._call(lambda: self._client.delete(_PREFIX + key))
        self._forget(key)

    def clear(self, matches: Callable[[str], bool]) -> int:
        num_deleted = 0
        for keys in self._scan():
            found = [key for key in keys if matches(key)]
            if found:
                for key in found:
                    self._forget(key)
                num_deleted += self._call(partial(self._client.unlink, *(_PREFIX + key for key in found)))
        return num_deleted

    def keys(self) -> Iterator[str]:
        """Return the keys of all chunks, of every model and machine."""
        return chain.from_iterable(self._scan())

    def _scan(self) -> Iterator[list[str]]:
        scan, cursor = partial(self._client.scan, match=f"{_PREFIX}*", count=500), 0
        while True:
            cursor, names = self._call(partial(scan, cursor))
            yield [name.decode().removeprefix(_PREFIX) for name in names]
            if not cursor:
                return

    def server_info(self) -> dict[str, Any]:
        return dict(self._call(self._client.info))

    def _call(self, command: Callable[[], T]) -> T:
        if not self._breaker.allows_call():
            raise TierError("redis is not used for a few seconds after failures")
        start = time.monotonic()
        try:
            value = command()
        except self._errors as error:
            self._breaker.record_failure()
            raise TierError(f"redis: {error}") from None
        # redis-py's timeout applies to each read, so a slow server could exceed it many times.
        if time.monotonic() - start > self._timeout:
            self._breaker.record_failure()
        else:
            self._breaker.record_success()
        return value

    def _remember(self, key: str, size: int) -> None:
        with self._lock:
            self._known[key] = size
            self._known.move_to_end(key)
            if len(self._known) > _MAX_KNOWN_KEYS:
                self._known.popitem(last=False)

    def _forget(self, key: str) -> None:
        with self._lock:
            self._known.pop(key, None)

    def stats(self) -> StoreStats:
        with self._lock:
            sizes = list(self._known.values())
        return StoreStats(self.name, len(sizes), sum(sizes), None, 0, self.available)

    def close(self) -> None:
        self._client.close()
