"""What prompts of the past held: out of the journal, or out of the requests of stored responses."""

import zlib
from collections.abc import Mapping

from kvproxy.apis import by_name
from kvproxy.apis.json import Json, as_object, loads
from kvproxy.apis.request import ApiRequest
from kvproxy.flow.keys import cache_key
from kvproxy.index.store import Store
from kvproxy.journal.causes import Texts
from kvproxy.journal.reader import Reader
from kvproxy.journal.regions import parts_of


def texts(reader: Reader, store: Store | None) -> Texts:
    """Finds what the regions of a prompt held: in the journal, or in the request of the response that is stored for it."""

    def text_of(prompt: int) -> Mapping[str, Json] | None:
        kept = reader.whole(prompt)
        if kept is not None:
            return as_object(loads(zlib.decompress(kept)))
        stored = reader.stored(prompt)
        return None if store is None or stored is None else _of_entry(store, stored[0])

    return text_of


def _of_entry(store: Store, id: str) -> Mapping[str, Json] | None:
    entry = store.get(id)
    api = None if entry is None else by_name(entry.endpoint)
    if entry is None or api is None:
        return None
    request = ApiRequest(api, as_object(loads(entry.request)), entry.request, {}, entry.tenant, entry.request_id)
    return dict(parts_of(cache_key(request, entry.backend).parts))
