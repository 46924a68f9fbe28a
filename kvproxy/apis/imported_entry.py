"""Checks the response of an imported entry as that of a backend."""

from kvproxy.apis import APIS
from kvproxy.apis.json import as_object, loads
from kvproxy.index.entry import Entry


def is_servable(entry: Entry) -> bool:
    """Whether an entry has a complete, successful response to its request, which a hit may repeat."""
    api = APIS.get(entry.endpoint)
    if api is None:
        return False
    try:
        return api.is_storable(as_object(loads(entry.response)), as_object(loads(entry.request)))
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
