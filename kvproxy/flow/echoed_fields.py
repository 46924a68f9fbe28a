"""Adapts a stored response to the fields of a request that a response repeats and that the cache key ignores."""

import re

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import as_object, dumps, loads
from kvproxy.index.entry import Entry


def response_for(request: ApiRequest, entry: Entry) -> bytes:
    """Return the stored response, with the request's own values of fields such as `metadata`. Raises ValueError."""
    fields = request.api.fields
    if not fields.echoed:
        return entry.response
    own = fields.echo(request.body)
    names = "|".join(map(re.escape, fields.echoed))
    is_plain = own == dict(fields.echoed) and not re.search(rf'"(?:{names})"\s*:'.encode(), entry.request)
    if is_plain:
        return entry.response
    stored = fields.echo(as_object(loads(entry.request)))
    response = as_object(loads(entry.response))
    changed = {name: value for name, value in own.items() if value != stored[name] and name in response}
    return dumps({**response, **changed}) if changed else entry.response
