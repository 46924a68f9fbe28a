"""Fields of forms (multipart/form-data), such as the model of an audio file to transcribe."""

import re

_BOUNDARY = re.compile(r'multipart/form-data\s*;(?:.*;)?\s*boundary="?([^";]+)', re.IGNORECASE)
_END_OF_HEAD = b"\r\n\r\n"


def is_form(content_type: str) -> bool:
    return content_type.lower().startswith("multipart/form-data")


def find_form_field(body: bytes, content_type: str, name: str) -> slice | None:
    """Return the place of a field's value in the body; None if the body is no form, or has no such field."""
    boundary = _BOUNDARY.match(content_type)
    if boundary is None:
        return None
    delimiter = b"\r\n--" + boundary[1].encode("latin-1")
    field = re.compile(rb'content-disposition:[^\r\n]*;\s*name="?%b"?\s*(?:;|\r|$)' % re.escape(name.encode()), re.I)
    start = body.find(delimiter[2:])
    while start >= 0:
        value, end = body.find(_END_OF_HEAD, start), body.find(delimiter, start + 1)
        if value < 0 or end < 0:
            return None
        if value < end and field.search(body, start, value):
            return slice(value + len(_END_OF_HEAD), end)
        start = end
    return None
