"""Chunks in Redis or Valkey, shared between machines. Down or slow, it is passed over and tried again later."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from threading import Lock
from typing import Any, TypeVar

from kvproxy.errors import SettingsError
from kvproxy.tiers.store import Data, StoreStats, TierError


class CircuitBreaker:
    """Closed (calls go through) until `failures` in a row; then open for `rest` seconds; then one call decides.

    Args:
        failures: failed calls in a row that open it.
        rest: seconds without calls.
        clock: seconds, ever growing.
    """

    def __init__(self, failures: int = 3, rest: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures = failures
        self._rest = rest
        self._clock = clock
        self._count = 0
        self._opened: float | None = None
        self._lock = Lock()

    @property
    def ready(self) -> bool:
        """Whether a call would be allowed now."""
        opened = self._opened
        return opened is None or self._clock() - opened >= self._rest

    def allow(self) -> bool:
        """Whether to make a call now; its outcome must then be told by `success` or `failure`."""
        with self._lock:
            if not self.ready:
                return False
            if self._opened is not None:
                # The trial: whoever comes meanwhile still finds the circuit open.
                self._opened = self._clock()
            return True

    def success(self) -> None:
        with self._lock:
            self._count = 0
            self._opened = None

    def failure(self) -> None:
        with self._lock:
            self._count += 1
            if self._count >= self._failures:
                self._opened = self._clock()


T = TypeVar("T")
_PREFIX = "kvproxy:chunk:"
_REMEMBERED = 100_000


class RedisStore:
    """Chunks as plain string values; Redis' own `maxmemory` policy decides what goes first.

    Args:
        url: redis://, rediss:// or unix://.
        timeout: seconds for a connection and for each read or write; a call that takes longer in all counts as failed.
        ttl: seconds after which Redis drops a chunk; None keeps it.
        breaker: when to leave Redis alone.

    Raises:
        SettingsError: the URL is none, or redis-py is missing. A server that does not answer is no error.
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
        try:
            self._client: Any = Redis.from_url(
                url,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                retry=Retry(NoBackoff(), 0),
                decode_responses=False,
            )
        except ValueError as error:
            raise SettingsError(f"tiers.redis is no Redis URL ({error}): use redis://HOST:PORT/DB") from None
        self._errors: tuple[type[Exception], ...] = (RedisError, OSError)
        self._timeout = timeout
        self._ttl = None if ttl is None else max(1, int(ttl))
        self._breaker = breaker or CircuitBreaker()
        # Keys that this process has put, so that it does not send a chunk again each time it is used.
        self._known: OrderedDict[str, int] = OrderedDict()
        self._lock = Lock()

    @property
    def available(self) -> bool:
        return self._breaker.ready

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
        there = bool(self._call(lambda: self._client.exists(_PREFIX + key)))
        if not there:
            self._forget(key)
        return there

    def wants(self, key: str) -> bool:
        return key not in self._known and self._breaker.ready

    def delete(self, key: str) -> None:
        self._call(lambda: self._client.delete(_PREFIX + key))
        self._forget(key)

    def clear(self, chosen: Callable[[str], bool]) -> int:
        dropped = 0
        for keys in self._scan():
            doomed = [key for key in keys if chosen(key)]
            if doomed:
                dropped += self._unlink(doomed)
        return dropped

    def _unlink(self, keys: list[str]) -> int:
        for key in keys:
            self._forget(key)
        return int(self._call(lambda: self._client.unlink(*(_PREFIX + key for key in keys))))

    def keys(self) -> Iterator[str]:
        """All chunks that are there, of every model and machine."""
        return chain.from_iterable(self._scan())

    def _scan(self) -> Iterator[list[str]]:
        scan, cursor = partial(self._client.scan, match=f"{_PREFIX}*", count=500), 0
        while True:
            cursor, names = self._call(partial(scan, cursor))
            yield [name.decode().removeprefix(_PREFIX) for name in names]
            if not cursor:
                return

    def server(self) -> dict[str, Any]:
        """What the server says of itself: its version, `maxmemory` and `maxmemory_policy`, ..."""
        return dict(self._call(self._client.info))

    def _call(self, command: Callable[[], T]) -> T:
        if not self._breaker.allow():
            raise TierError("redis is left alone after failures")
        began = time.monotonic()
        try:
            value = command()
        except self._errors as error:
            self._breaker.failure()
            raise TierError(f"redis: {error}") from None
        # redis-py's timeout is for each read: a server that drips would keep every request waiting.
        if time.monotonic() - began > self._timeout:
            self._breaker.failure()
        else:
            self._breaker.success()
        return value

    def _remember(self, key: str, size: int) -> None:
        with self._lock:
            self._known[key] = size
            self._known.move_to_end(key)
            if len(self._known) > _REMEMBERED:
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
