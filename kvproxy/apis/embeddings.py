"""Embeddings: the single inputs of an array, the responses to them and to the array, and the formats of a response."""

import base64
import binascii
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise

from kvproxy.apis.json import Json, JsonMap, JsonObject
from kvproxy.apis.key_fields import EMBEDDINGS

_KNOWN = EMBEDDINGS.key | EMBEDDINGS.ignored
_OTHERS = {"float": "base64", "base64": "float"}
_FORMAT = "encoding_format"
_DIGITS = range(6, 10)
_ROUNDED = 7  # If most numbers have at most this many digits, they may be rounded: most 32-bit floats have 8 or 9.


def separate_inputs(body: JsonMap) -> list[Json]:
    """Return the inputs of an array, each of which has the same embedding in a request of its own.

    Return an empty list for a single input, an invalid array, and a request with other fields than OpenAI's: with
    `late_chunking`, for example, an embedding depends on the other inputs.
    """
    inputs = body.get("input")
    if not isinstance(inputs, list) or not has_known_fields(body):
        return []
    is_valid = all(isinstance(given, str) for given in inputs) or all(map(_is_tokens, inputs))
    return inputs if is_valid else []


def has_known_fields(body: JsonMap) -> bool:
    """Whether a body has only fields of OpenAI's API."""
    return body.keys() <= _KNOWN


def is_single_input(body: JsonMap) -> bool:
    given = body.get("input")
    return isinstance(given, str) or _is_tokens(given)


def _is_tokens(given: Json) -> bool:
    return isinstance(given, list) and bool(given) and all(type(token) is int for token in given)


def split_response(response: JsonMap, count: int) -> list[JsonObject] | None:
    """Return the responses to single inputs, in order; None if a response has not one embedding for each of `count` inputs.

    Their `usage` is 0, because the response reports only the sum; see `split_tokens`.
    """
    data = response.get("data")
    items = [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []
    by_index = {item.get("index", place): item for place, item in enumerate(items)}
    if len(items) != count or by_index.keys() != set(range(count)):
        return None
    return [without_usage({**response, "data": [{**by_index[index], "index": 0}]}) for index in range(count)]


def without_usage(response: JsonMap) -> JsonObject:
    """Return a response whose `usage` states that the upstream computed nothing."""
    usage = response.get("usage")
    if not isinstance(usage, dict):
        return dict(response)
    return {**response, "usage": {name: 0 for name, number in usage.items() if isinstance(number, int)}}


def join_responses(head: JsonMap, singles: Iterable[JsonMap]) -> JsonObject:
    """Return the response to an array: the fields of `head`, and the embeddings of responses to single inputs in order."""
    data: list[Json] = [{**_item(single), "index": place} for place, single in enumerate(singles)]
    return {**head, "data": data}


def _item(single: JsonMap) -> JsonObject:
    """Return the only embedding of a response. Raises ValueError if the response is invalid."""
    data = single.get("data")
    if not isinstance(data, list) or len(data) != 1 or not isinstance(data[0], dict):
        raise ValueError("the response has not one embedding")
    return data[0]


def split_tokens(tokens: int | None, inputs: Sequence[Json]) -> list[int | None]:
    """Return the estimated tokens of each input, in proportion to its length. Their sum is `tokens`, or they are unknown."""
    if tokens is None:
        return [None] * len(inputs)
    ends = list(accumulate(map(_length, inputs), initial=0))
    shares = [round(tokens * end / ends[-1]) for end in ends]
    return [end - start for start, end in pairwise(shares)]


def _length(given: Json) -> int:
    """Return the number of bytes of a text, or of token ids; at least 1."""
    if isinstance(given, list):
        return len(given)
    return max(1, len(str(given).encode("utf-8", "replace")))


def sum_tokens(counts: Sequence[int | None]) -> int | None:
    """Return the sum of numbers of tokens; None if one of them is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def in_other_format(body: JsonMap) -> JsonObject | None:
    """Return the body that requests the same embedding in the other format; None if only one format is known."""
    if not is_single_input(body) or not has_known_fields(body):
        return None
    other = _OTHERS.get(_format_of(body))
    return None if other is None else {**body, _FORMAT: other}


def convert_embeddings(response: JsonMap, body: JsonMap) -> JsonObject | None:
    """Return a response in the format that a request has; None if that would change an embedding."""
    data = response.get("data")
    convert: Callable[[Json], Json] = encode if _format_of(body) == "base64" else decode
    converted: list[Json] = []
    for item in data if isinstance(data, list) else ():
        if not isinstance(item, dict) or (embedding := convert(item.get("embedding"))) is None:
            return None
        converted.append({**item, "embedding": embedding})
    return {**response, "data": converted} if converted else None


def decode(embedding: Json) -> list[Json] | None:
    """Return the numbers of an embedding in base64, which are 32-bit floats."""
    if not isinstance(embedding, str):
        return None
    try:
        packed = base64.b64decode(embedding, validate=True)
        return list(struct.unpack(f"<{len(packed) // 4}f", packed)) or None
    except (binascii.Error, struct.error):
        return None


def encode(embedding: Json) -> str | None:
    """Return an embedding in base64; None if the numbers are no 32-bit floats in full precision."""
    if not isinstance(embedding, list) or not embedding:
        return None
    numbers = [float(number) for number in embedding if isinstance(number, int | float)]
    try:
        packed = struct.pack(f"<{len(embedding)}f", *numbers)
    except (struct.error, OverflowError):
        return None
    return (
        base64.b64encode(packed).decode() if _are_exact(numbers, struct.unpack(f"<{len(numbers)}f", packed)) else None
    )


def _are_exact(numbers: Sequence[float], packed: Sequence[float]) -> bool:
    """Whether numbers are 32-bit floats, or their shortest decimals, such as 0.1 for 0.10000000149011612."""
    if numbers == list(packed):
        return True
    digits = [
        next((count for count in _DIGITS if float(f"{single:.{count}g}") == number), None)
        for number, single in zip(numbers, packed, strict=True)
    ]
    known = sorted(count for count in digits if count is not None)
    return len(known) == len(numbers) and known[len(known) // 2] > _ROUNDED


def _format_of(body: JsonMap) -> str:
    given = body.get(_FORMAT)
    return "float" if given is None else str(given)
