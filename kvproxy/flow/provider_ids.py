"""Finds stored responses by the ids of objects that the provider keeps, so that a deleted object is no longer served.

Such an object is a stored response or completion, a file, a vector store, and so on. The ids are tags of the stored response.
"""

import asyncio
import hashlib
from collections.abc import Iterator

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, JsonObject, contains_any, field
from kvproxy.apis.request_directives import MAX_TAG_LENGTH
from kvproxy.index.entry import PROVIDER_ID_TAG
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.store import EntryFilter

_REFERENCES = frozenset(
    "previous_response_id file_id file_ids vector_store_id vector_store_ids skill_id container_id".split()
)
_ID_WORDS = (b"_id", b'"item_reference"', b'"prompt"')


def provider_id_tags(request: ApiRequest, response: JsonObject) -> tuple[str, ...]:
    """Return the tags of a response's own id, if the provider stores the response, and of the ids that the request names."""
    ids = set(_referenced_ids(request.body)) if contains_any(request.raw, _ID_WORDS) else set[str]()
    own = response.get("id")
    if isinstance(own, str) and own and request.api.is_stored_by_provider(request.body):
        ids.add(own)
    return tuple(sorted(map(_tag, ids)))


def _tag(id: str) -> str:
    tag = PROVIDER_ID_TAG + id
    if len(tag) <= MAX_TAG_LENGTH:
        return tag
    return PROVIDER_ID_TAG + hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()


def _referenced_ids(value: Json) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _referenced_ids(item)
    elif isinstance(value, dict):
        if value.get("type") == "item_reference" and isinstance(value.get("id"), str):
            yield str(value["id"])
        if isinstance(id := field(value.get("prompt"), "id"), str):
            yield id
        for name, inner in value.items():
            if name not in _REFERENCES:
                yield from _referenced_ids(inner)
                continue
            for reference in inner if isinstance(inner, list) else [inner]:
                if isinstance(reference, str):
                    yield reference


async def remove_responses(cache: ResponseCache, path: str, tenant: str | None) -> int:
    """Remove the stored responses that name an object of a deleted path; return their number. Raises a CacheStoreError.

    Args:
        path: such as `/v1/responses/resp_1` or `/v1/vector_stores/vs_1/files/file_1`.
        tenant: remove the responses of this tenant only; None removes the responses of all tenants.
    """
    await cache.pending_writes.wait_for_all()
    removed = 0
    for id in filter(None, path.split("/")):
        entry_ids = await asyncio.to_thread(cache.store.invalidate, EntryFilter(tag=_tag(id), tenant=tenant))
        removed += await cache.remove(entry_ids) if entry_ids else 0
    return removed
