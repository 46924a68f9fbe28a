"""Arrays of inputs to embed: the single inputs, and the responses to single inputs and to the array."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from kvproxy.apis.json import Json, JsonMap, JsonObject
from kvproxy.apis.key_fields import EMBEDDINGS

_KNOWN = EMBEDDINGS.key | EMBEDDINGS.ignored


def separate_inputs(body: JsonMap) -> list[Json]:
    """Return the inputs of an array, each of which has the same embedding in a request of its own.

    Return an empty list for a single input, an invalid array, and a request with other fields than OpenAI's: with
    `late_chunking`, for example, an embedding depends on the other inputs.
    """
    inputs = body.get("input")
    if not isinstance(inputs, list) or not body.keys() <= _KNOWN:
        return []
    is_valid = all(isinstance(given, str) for given in inputs) or all(map(_is_tokens, inputs))
    return inputs if is_valid else []


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
