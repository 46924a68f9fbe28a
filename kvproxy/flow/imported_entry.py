"""Checks the response of an imported entry as that of a backend."""

from kvproxy.apis import APIS
from kvproxy.apis.json import as_object, loads
from kvproxy.index.entry import LIBRARY_ENDPOINT, Entry


def is_servable(entry: Entry) -> bool:
    """Whether an entry has a complete, successful response to its request, which a hit may repeat."""
    try:
        if entry.endpoint == LIBRARY_ENDPOINT:
            return isinstance(loads(entry.response), str)
        api = APIS[entry.endpoint]
        return api.is_storable(as_object(loads(entry.response)), as_object(loads(entry.request)))
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
