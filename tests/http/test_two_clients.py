"""Two clients with keys in front of a real server: no upload of one client reaches the answer or the entry of the other."""

import contextlib
import json
import random
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.client_keys import add_client
from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.http.test_request_framing import HOST, PROBES, UPGRADES, connected, responses, statuses
from tests.servers import run_proxy, run_upstream, until_stored

ROUNDS = 40


@dataclass
class Stack:
    port: int
    services: Services
    attacker: bytes
    victim: str
    questions: list[str]
    """Questions in the order in which the upstream received them."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    questions: list[str] = []

    async def answer(request: Request) -> Response:
        if request.url.path in PROBES:
            return JSONResponse({})
        body = await request.body()
        if not request.url.path.startswith("/v1/chat"):
            return JSONResponse({"echo": body.decode("latin-1")})
        try:
            question = json.loads(body)["messages"][-1]["content"]
        except ValueError:
            return JSONResponse({"error": {"message": "not JSON"}}, 400)
        questions.append(question)
        message = {"role": "assistant", "content": f"answer to {question}"}
        return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    with run_upstream(answer) as url:
        found = load_settings(
            data=tmp_path_factory.mktemp("two"),
            upstream=url,
            cache={"semantic": False},
            # One connection to the upstream, so that each request follows the one before it.
            forward={"max_connections": 1},
            limits={"body_bytes": 4096, "body_seconds": 0.3},
        )
        attacker, victim = add_client(found, "attacker"), add_client(found, "victim")
        with run_proxy(found) as (proxy, services):
            port = httpx.URL(proxy).port or 0
            yield Stack(port, services, attacker.encode(), f"Bearer {victim}", questions)


def chat(question: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": question}]}).encode()


def ask(stack: Stack, question: str) -> str:
    headers = {"authorization": stack.victim, "content-type": "application/json", "cache-control": "confirm"}
    url = f"http://127.0.0.1:{stack.port}/v1/chat/completions"
    response = httpx.post(url, content=chat(question), headers=headers, timeout=30)
    assert response.status_code == 200, response.text
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


def smuggled(stack: Stack) -> bytes:
    body = chat("smuggled")
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Authorization: Bearer " + stack.attacker
    return head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def head_of(stack: Stack, path: bytes, *headers: bytes) -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: 127.0.0.1", b"Authorization: Bearer " + stack.attacker, *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def check_victim(stack: Stack, question: str) -> None:
    assert ask(stack, question) == f"answer to {question}"
    until_stored(stack.services)
    entries = {entry.prompt: entry for entry in stack.services.answerer.store.list_entries()}
    assert entries[question].tenant == "client:victim"
    assert f"answer to {question}".encode() in entries[question].response
    assert "smuggled" not in entries
    assert "smuggled" not in stack.questions


def test_a_held_back_body_of_an_h2c_offer_reaches_no_other_client(running: Stack) -> None:
    body = smuggled(running)
    head = head_of(running, b"/v1/other", UPGRADES.strip(), b"Content-Length: %d" % len(body))
    with connected(running.port) as client:
        client.sendall(head)
        time.sleep(0.1)
        client.sendall(body)
        answer = responses(client, 0.3)
    assert statuses(answer) == [b"200"]
    assert b"answer to smuggled" not in answer
    check_victim(running, "after the offer")


def test_good_and_broken_uploads_in_any_order_reach_no_other_client(running: Stack) -> None:
    generator = random.Random(5)
    for number in range(ROUNDS):
        body = smuggled(running)
        path = generator.choice((b"/v1/other", b"/v1/other", b"/v1/chat/completions"))
        headers = list(generator.choice(((), (UPGRADES.strip(),), (b"Expect: 100-continue",), (b"Connection: close",))))
        kept = generator.choice((len(body), len(body), len(body) - 5, len(body) // 2, 0))
        if generator.random() < 0.5:
            upload = body[:kept]
            headers.append(b"Content-Length: %d" % (len(body) + generator.choice((0, 0, -20, 30))))
        else:
            end = generator.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"", b"zz\r\n", b"0\r\nContent-Length: 3\r\n\r\n"))
            upload = b"%x\r\n" % len(body) + body[:kept] + b"\r\n" + end
            headers.append(b"Transfer-Encoding: chunked")
        with connected(running.port) as client:
            client.sendall(head_of(running, path, *headers))
            time.sleep(generator.choice((0, 0.02)))
            with contextlib.suppress(ConnectionError):
                client.sendall(upload)
                match generator.randrange(3):
                    case 0:
                        client.shutdown(socket.SHUT_WR)
                    case 1:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    case _:
                        answer = responses(client, 0.05)
                        assert not re.search(rb"answer to (?!smuggled)", answer)
        check_victim(running, f"round {number}")
