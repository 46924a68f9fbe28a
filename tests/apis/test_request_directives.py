"""Cache directives in headers: valid values, bounds, and errors."""

from collections.abc import Mapping

import pytest

from kvproxy.apis.request_directives import MAX_TAG_LENGTH, MAX_TAGS, RequestDirectives, read_directives
from kvproxy.errors import InvalidRequest
from kvproxy.index.policies.policy import Limits


@pytest.mark.parametrize(
    ("headers", "asked"),
    [
        ({}, RequestDirectives()),
        ({"authorization": "x", "x-other": "y"}, RequestDirectives()),
        ({"cache-control": ""}, RequestDirectives()),
        ({"cache-control": "no-cache"}, RequestDirectives(no_cache=True)),
        ({"cache-control": "No-Store, unheard=5"}, RequestDirectives(no_store=True)),
        ({"cache-control": " only-if-cached ,confirm"}, RequestDirectives(only_if_cached=True, confirm=True)),
        ({"cache-control": 'max-age="0", stale-if-error=60'}, RequestDirectives(max_age=0.0, stale_if_error=60.0)),
        (
            {"cache-control": "min-similarity=0.5, min-probability=0.75"},
            RequestDirectives(limits=Limits(0.5, 0.75, None)),
        ),
        ({"cache-control": "max-error=0.25"}, RequestDirectives(limits=Limits(None, None, 0.25))),
        ({"x-kvproxy-tags": " b,a ,,b"}, RequestDirectives(tags=("a", "b"))),
        ({"x-kvproxy-ttl": "0"}, RequestDirectives(ttl=0.0)),
        ({"cache-control": "max-age=1h", "x-kvproxy-ttl": "7d"}, RequestDirectives(max_age=3_600.0, ttl=604_800.0)),
        ({"x-kvproxy-timeout": "1.5"}, RequestDirectives(timeout=1.5)),
        ({"x-kvproxy-priority": " 9 "}, RequestDirectives(priority=9)),
        ({"x-kvproxy-priority": "0"}, RequestDirectives(priority=0)),
        ({"x-kvproxy-tags": ",".join(f"{number:03}" for number in range(MAX_TAGS))}, None),
        ({"x-kvproxy-tags": "x" * MAX_TAG_LENGTH}, RequestDirectives(tags=("x" * 128,))),
        (
            {"cache-control": "min-similarity=0, min-probability=1, max-error=1"},
            RequestDirectives(limits=Limits(0.0, 1.0, 1.0)),
        ),
        ({"x-kvproxy-admin-token": "secret", "x-kvproxy-request-id": "7"}, RequestDirectives()),
    ],
)
def test_headers_are_parsed(headers: Mapping[str, str], asked: RequestDirectives | None) -> None:
    found = read_directives(headers)
    assert found == asked if asked is not None else len(found.tags) == 16


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        *[
            ("cache-control", f"max-age={value}", "max-age: .* is not a duration")
            for value in ("", "x", "nan", "-1", "inf")
        ],
        ("cache-control", "stale-if-error=-1", "stale-if-error: .* is not a duration"),
        *[
            ("cache-control", f"{name}={value}", "from 0 to 1")
            for name in ("min-similarity", "min-probability", "max-error")
            for value in ("2", "-0.1", "nan", "inf", "")
        ],
        ("x-kvproxy-tll", "600", "did you mean x-kvproxy-ttl?"),
        ("x-kvproxy-semantic", "off", "valid headers are x-kvproxy-namespace, .*x-kvproxy-ttl"),
        ("x-kvproxy-", "1", "valid headers are"),
        *[
            ("x-kvproxy-ttl", value, "is not a duration: use a form such as 90s")
            for value in ("-1", "nan", "inf", "", "x")
        ],
        ("x-kvproxy-timeout", "inf", "is not a duration"),
        *[("x-kvproxy-priority", value, "from 0 to 9") for value in ("10", "-1", "", "x", "\u0665", "0123456789")],
        ("x-kvproxy-tags", ",".join(map(str, range(MAX_TAGS + 1))), "up to 16 tags"),
        ("x-kvproxy-tags", "x" * (MAX_TAG_LENGTH + 1), "of 128 characters"),
        ("x-kvproxy-namespace", "x" * 129, "up to 128 characters"),
    ],
)
def test_invalid_values_are_rejected_by_name(name: str, value: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as raised:
        read_directives({name: value})
    assert str(raised.value.param).lower() == name
    assert raised.value.code == "invalid_directive"
