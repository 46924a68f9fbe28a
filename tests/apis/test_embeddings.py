"""Embeddings are converted between lists of numbers and base64 only if no number changes."""

import base64
import struct

import pytest

from kvproxy.apis.embeddings import convert_embeddings, decode, encode, in_other_format
from kvproxy.apis.json import Json, JsonObject

PRECISE = struct.unpack("<3f", struct.pack("<3f", 0.1, -1 / 3, 2e-7))


def pack(*numbers: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


@pytest.mark.parametrize(
    "numbers",
    [
        [*PRECISE],
        [0.1, -0.33333334, 0.14285715],  # The shortest decimals of the same 32-bit floats.
        [0.5, -1, 0],
    ],
)
def test_32_bit_floats_are_encoded(numbers: list[Json]) -> None:
    encoded = encode(numbers)
    assert encoded == pack(*map(float, map(str, numbers)))
    assert decode(encoded) == list(struct.unpack(f"<{len(numbers)}f", base64.b64decode(encoded)))


@pytest.mark.parametrize(
    "numbers",
    [
        [0.1, -0.3333333333333333],
        [0.1, -0.333, 0.14285714],  # May be rounded.
        [1e300],
        ["0.5"],
        [],
        "AAAA",
        None,
    ],
)
def test_other_numbers_are_not_encoded(numbers: Json) -> None:
    assert encode(numbers) is None


@pytest.mark.parametrize("text", ["", "AAA", "AAAA", "not base64", [0.5], None])
def test_other_texts_are_not_decoded(text: Json) -> None:
    assert decode(text) is None


def test_only_the_embedding_changes() -> None:
    item: JsonObject = {"object": "embedding", "index": 0, "embedding": [0.5, 2.0]}
    response: JsonObject = {"object": "list", "data": [item], "model": "e", "usage": {"prompt_tokens": 1}}
    packed = convert_embeddings(response, {"input": "a", "encoding_format": "base64"})
    assert packed == {**response, "data": [{**item, "embedding": pack(0.5, 2.0)}]}
    assert convert_embeddings(packed, {"input": "a"}) == response
    assert convert_embeddings({**response, "data": []}, {"input": "a"}) is None


@pytest.mark.parametrize(
    ("fields", "other"),
    [
        ({}, "base64"),
        ({"encoding_format": None}, "base64"),
        ({"encoding_format": "base64"}, "float"),
        ({"encoding_format": "int8"}, None),
        ({"embed_dtype": "float16"}, None),
        ({"input": ["a", "b"]}, None),
    ],
)
def test_formats_of_a_request(fields: JsonObject, other: str | None) -> None:
    body: JsonObject = {"model": "e", "input": "a", **fields}
    assert in_other_format(body) == (None if other is None else {**body, "encoding_format": other})
