"""URLs of upstreams and their credentials."""

import base64
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.errors import SettingsError
from kvproxy.settings import UpstreamServer, load_settings


def refused(upstream: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(upstream=upstream)
    return caught.value.message


@pytest.mark.parametrize(
    ("upstream", "fix"),
    [
        ("127.0.0.1:8000", "write http://127.0.0.1:8000"),
        ("localhost:8000/v1", "write http://localhost:8000/v1"),
        ("ftp://x", "http:// or https://"),
        ("http://", "has no host"),
        ("http://:8000", "has no host"),
        ("http://x:0", "has no host"),
        ("http://a b", "has no host"),
        ("http://[::1", "is not a URL"),
        ("http://x:99999", "is not a URL"),
        ("http://x?a=1", "remove the part after ? or #"),
        ("http://x/v1#a", "remove the part after ? or #"),
    ],
)
def test_invalid_urls_are_rejected_with_their_fix(upstream: str, fix: str) -> None:
    assert fix in refused(upstream)
    with pytest.raises(SettingsError, match=r"setting upstreams\.1"):
        load_settings(upstreams=["http://good", {"url": upstream}])


WITH_SECRETS = (
    "ftp://u:SECRET@x u:SECRET@h:80 http://x?key=SECRET http://a:SE?SECRET@x http://a:x/SECRET@x http://SECRET/x@h"
    " http://u:SECRET@ http://u:SECRET@x:99999 http://sk%0ASECRET@x"
).split()


@pytest.mark.parametrize("upstream", WITH_SECRETS)
def test_error_messages_contain_no_secret(upstream: str) -> None:
    assert "SECRET" not in refused(upstream)


@pytest.mark.parametrize(
    ("upstream", "url"),
    [
        ("http://h:8000/v1/", "http://h:8000"),
        ("https://h/base/v1", "https://h/base"),
        ("http://[::1]:8", "http://[::1]:8"),
        (" http://h ", "http://h"),
        ("http://:@h", "http://h"),
    ],
)
def test_a_url_is_stored_without_its_version_path(upstream: str, url: str) -> None:
    settings = load_settings(upstream=upstream)
    assert settings.upstream == url
    assert settings.servers == (UpstreamServer(url=url),)


@given(st.text("abc%/?#@: ü", min_size=1), st.text("abc%/?#@: ü"))
def test_user_and_password_become_a_header(user: str, password: str) -> None:
    user = user.replace(":", "")
    if not user + password:
        return
    settings = load_settings(upstream=f"http://{quote(user, safe='')}:{quote(password, safe='')}@h:8000/v1")
    (server,) = settings.servers
    assert (settings.upstream, server.url, server.api_key) == ("http://h:8000", "http://h:8000", None)
    assert server.authorization is not None
    kind, _, encoded = server.authorization.get_secret_value().partition(" ")
    assert (kind, base64.b64decode(encoded).decode()) == ("Basic", f"{user}:{password}")


def test_a_key_in_the_url_overrides_the_common_key() -> None:
    servers = load_settings(
        upstreams=["http://one@a", {"url": "http://b"}, {"url": "http://c", "api_key": "three"}, "http://u:p@d"],
        forward={"api_key": "common"},
    ).servers
    keys = [server.api_key and server.api_key.get_secret_value() for server in servers]
    assert keys == ["one", "common", "three", None]
    with pytest.raises(SettingsError, match="remove one of them"):
        load_settings(upstreams=[{"url": "http://one@a", "api_key": "two"}])


def test_the_repr_of_settings_contains_no_secret() -> None:
    settings = load_settings(
        upstream="http://u:SECRET@h",
        forward={"api_key": "SECRET"},
        admin_token="SECRET",
        upstreams=["http://SECRET@h"],
        store="postgresql://u:SECRET@h/d",
        tiers={"redis": "redis://:SECRET@h"},
    )
    assert "SECRET" not in repr(settings) + str(settings) + repr(settings.servers)
