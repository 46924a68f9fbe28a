"""The pages about control per request and RAG: their code runs with the real clients, and prints the output in its comments."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.settings import load_settings
from tests.commands.upstream import Upstream
from tests.plain_upstream import run_recording_upstream
from tests.servers import run_proxy, until_stored

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"
URL = "http://127.0.0.1:8484"
RESULT = re.compile(r'fwd=uri-miss(?:; ttl=\d+)?|fwd=request|hit(?:; detail="\w+)?')


@pytest.mark.parametrize(("page", "least"), [("control-the-cache", 13), ("rag", 10)])
def test_the_code_prints_what_its_comments_say(
    page: str, least: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (RECIPES / f"{page}.md").read_text(), re.DOTALL)
    shown = [RESULT.findall(line.partition("#")[2]) for block in blocks for line in block.splitlines()]
    with Upstream().run() as upstream, run_proxy(load_settings(data=tmp_path, upstream=upstream)) as (url, _):
        names: dict[str, Any] = {}
        exec("\n".join(blocks).replace(URL, url), names)
        # The garbage collector would free the socket of a client before the client could close it.
        names["client"].close()
    printed = capsys.readouterr().out.splitlines()
    expected = [each for line in shown for each in line]
    assert len(printed) == len(expected) >= least
    for line, part in zip(printed, expected, strict=True):
        assert part in re.sub(r"; ttl=86[34]\d\d", "", line), printed


def test_litellms_switches_are_neither_sent_on_nor_part_of_the_key(tmp_path: Path) -> None:
    from openai import BadRequestError, OpenAI

    with run_recording_upstream() as (upstream, bodies):
        settings = load_settings(data=tmp_path, upstream=upstream, cache={"semantic": False})
        with run_proxy(settings) as (url, services), OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:

            def ask(**switches: object) -> str:
                raw = client.chat.completions.with_raw_response.create(
                    model="m",
                    messages=[{"role": "user", "content": "hi"}],
                    extra_body={"cache": switches} if switches else {},
                )
                until_stored(services)
                return raw.headers["cache-status"]

            assert "uri-miss" in ask(**{"no-store": True})
            assert "uri-miss" in ask(**{"use-cache": False})
            assert "uri-miss" in ask(ttl=60)
            hit = ask()
            assert int(re.search(r"hit; ttl=(\d+)", hit)[1]) <= 60  # type: ignore[index]
            assert "hit" in ask(**{"s-maxage": "1h"})
            assert "uri-miss" in ask(namespace="other")
            assert "hit" in ask(namespace="other")
            assert "fwd=request" in ask(**{"no-cache": True})
            for bad in ({"nocache": True}, {"ttl": "soon"}, {"ttl": -1}, {"no-cache": 1}, {"namespace": 3}):
                with pytest.raises(BadRequestError, match="cache") as refused:
                    ask(**bad)
                assert refused.value.param == "cache"
            # Another kind of value belongs to the upstream.
            body = {"model": "m", "cache": True, "messages": [{"role": "user", "content": "hi"}]}
            httpx.post(f"{url}/v1/chat/completions", json=body).raise_for_status()
    assert [body.pop("cache", None) for body in bodies] == [None] * (len(bodies) - 1) + [True]
    assert all(body == bodies[0] for body in bodies)
