"""Cookies of the upstream and renewed tokens keep a user's tenant, and give no user the tenant of another."""

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.errors import SettingsError
from kvproxy.flow.tenants import Tenants
from kvproxy.settings import load_settings
from kvproxy.settings.access import AccessSettings
from tests.plain_upstream import WHOLE
from tests.requests import chat, post
from tests.servers import run_front, run_upstream


class StickyUpstream:
    """Sets a new cookie with each answer, and accepts tokens that begin with `good` or end with `.good`."""

    def __init__(self, cookie: str) -> None:
        self.cookie = cookie
        self.chats = 0

    async def answer(self, request: Request) -> Response:
        self.chats += request.method == "POST"
        token = request.headers.get("authorization", "Bearer good").removeprefix("Bearer ")
        if not token.startswith("good") and not token.endswith(".good"):
            return JSONResponse({"error": {"message": "bad token"}}, 401)
        return JSONResponse(WHOLE, headers={"set-cookie": self.cookie.format(n=self.chats) + "; Path=/; HttpOnly"})


@pytest.mark.parametrize("cookie", ["AWSALB=token{n}", "route=abc", "SERVERID=s{n}", "sticky=lb-{n}", "__cf_bm=a.{n}"])
def test_a_client_with_cookies_of_the_upstream_has_hits(tmp_path: Path, cookie: str) -> None:
    upstream = StickyUpstream(cookie)
    with run_upstream(upstream.answer) as url, run_front(tmp_path, url) as (front, _):
        with openai.OpenAI(base_url=f"{front}/v1", api_key="good") as client:
            for _ in range(4):
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "same"}])
                client.models.with_raw_response.list()
        assert upstream.chats == 1
        # Another user with a cookie of the first one.
        post(front, "same", authorization="Bearer good-2", cookie=cookie.format(n=1))
        post(front, "same", authorization="Bearer good", cookie="login=someone")
        assert upstream.chats == 3


def test_cookies_of_other_routes_identify_users(tmp_path: Path) -> None:
    async def answer(request: Request) -> Response:
        if request.url.path == "/login":
            return JSONResponse({}, headers={"set-cookie": f"session={await request.body()!r}"})
        return JSONResponse(WHOLE)

    with run_upstream(answer) as url, run_front(tmp_path, url) as (front, _):
        statuses = []
        for user in ("one", "two"):
            with httpx.Client(base_url=front) as client:
                client.post("/login", content=user)
                statuses += [
                    client.post("/v1/chat/completions", json=chat("same")).headers["cache-status"] for _ in "ab"
                ]
        assert ["hit" in status for status in statuses] == [False, True, False, True]


COOKIES = st.lists(st.sampled_from(["a=1", "a=2", "lb=1", "lb=2", "AWSALB=1"]), unique=True, max_size=3)


@given(COOKIES, COOKIES, st.lists(st.tuples(COOKIES, st.sampled_from(["lb=1", "lb=2"])), max_size=4))
def test_only_the_own_cookies_of_the_upstream_are_ignored(
    one: list[str], two: list[str], answers: list[tuple[list[str], str]]
) -> None:
    tenants = Tenants(AccessSettings())

    def tenant(cookies: list[str]) -> str:
        return tenants.tenant_of({"cookie": "; ".join(cookies)} if cookies else {}, None)

    for cookies, new in answers:
        tenants.record_cookies(tenant(cookies), [("set-cookie", f"{new}; Path=/")])
    users = [[each for each in cookies if each.startswith("a=")] for cookies in (one, two)]
    # Whatever the upstream sets, users with different cookies of their own share no tenant.
    if users[0] != users[1]:
        assert tenant(one) != tenant(two)


def test_named_cookies_identify_users() -> None:
    tenants = Tenants(AccessSettings(tenant_cookies=("session",)))
    found = [tenants.tenant_of({"cookie": text}, None) for text in ("session=1; x=2", "session=1", "session=2", "x=3")]
    assert found[0] == found[1] != found[2]
    assert found[3] == "public"
    assert Tenants(AccessSettings(tenant_cookies=())).tenant_of({"cookie": "session=1"}, None) == "public"


def token(subject: str, signature: str = "good", **claims: Any) -> str:
    payload = json.dumps({"sub": subject, "iss": "https://auth.example", **claims}).encode()
    return f"e30.{base64.urlsafe_b64encode(payload).decode().rstrip('=')}.{signature}"


def test_a_renewed_token_keeps_the_cache_of_its_user_after_the_upstream_has_accepted_it(tmp_path: Path) -> None:
    upstream = StickyUpstream("lb={n}")
    with run_upstream(upstream.answer) as url, run_front(tmp_path, url, access={"tenant_claim": "sub"}) as (front, _):

        def ask(question: str, token: str) -> str:
            reply = post(front, question, authorization=f"Bearer {token}")
            return "refused" if reply.status_code == 401 else reply.headers["cache-status"].split("; ")[1]

        # The upstream verifies a new token at its first request.
        assert [ask("same", token("anna")) for _ in range(3)] == ["fwd=uri-miss", "fwd=uri-miss", "hit"]
        assert [ask("same", token("anna", "forged")) for _ in range(2)] == ["refused", "refused"]
        renewed = token("anna", exp=2)
        assert [ask("other", renewed), ask("same", renewed)] == ["fwd=uri-miss", "hit"]
        for other in (token("bert"), token("anna", iss="https://other.example"), "good", "e30.!.good"):
            assert [ask(question, other) for question in ("other", "same")] == ["fwd=uri-miss", "fwd=uri-miss"]


@pytest.mark.parametrize("settings", [{}, {"upstream": "http://key@127.0.0.1:1"}, {"forward": {"api_key": "k"}}])
def test_a_claim_requires_an_upstream_that_verifies_tokens(tmp_path: Path, settings: dict[str, Any]) -> None:
    given = {"upstream": "http://127.0.0.1:1"} | settings if settings else {}
    with pytest.raises(SettingsError, match="nobody verifies the tokens"):
        load_settings(data=tmp_path, access={"tenant_claim": "sub"}, **given)
