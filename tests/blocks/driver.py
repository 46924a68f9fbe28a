"""A minimal scheduler for tests: requests that begin, decode, and end."""

from collections.abc import Sequence
from typing import Any

from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.manager import KVCacheManager
from tests.reference.integrity import check_integrity


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def begin(manager: KVCacheManager, id: str, tokens: Sequence[int], **options: Any) -> CacheRequest:
    """Admit a request and compute its whole prompt."""
    request = CacheRequest(id, tokens, **options)
    computed = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, request.num_tokens - computed.num_tokens, computed) is not None
    request.num_computed_tokens = request.num_tokens
    return request


def decode(manager: KVCacheManager, request: CacheRequest, tokens: Sequence[int]) -> None:
    """Append tokens one at a time."""
    for token in tokens:
        request.append(token)
        assert manager.allocate_slots(request, 1) is not None
        request.num_computed_tokens += 1


def serve(manager: KVCacheManager, id: str, tokens: Sequence[int], answer: Sequence[int] = (), **options: Any) -> int:
    """Compute a prompt and an answer, then free the request; return the number of hit tokens."""
    hit = hit_tokens(manager, tokens, **options)
    request = begin(manager, id, tokens, **options)
    decode(manager, request, answer)
    manager.free(request)
    check_integrity(manager)
    return hit


def hit_tokens(manager: KVCacheManager, tokens: Sequence[int], **options: Any) -> int:
    """Return the length of the cached prefix of a prompt."""
    return manager.get_computed_blocks(CacheRequest("lookup", tokens, **options)).num_tokens
