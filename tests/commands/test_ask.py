"""kvproxy ask sends one request of each API, and prints the answer and its source."""

import json
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse

from tests.commands.run import NOWHERE, kvproxy, result
from tests.commands.upstream import proxied
from tests.servers import run_front, run_upstream


def test_a_question_is_computed_once(tmp_path: Path) -> None:
    with proxied(tmp_path) as url:
        given = ("ask", "What is a block?", "--system", "Be brief.", "--header", "cache-control: confirm")
        first, second = (kvproxy(*given, url=url).stdout.splitlines() for _ in range(2))
        assert first[0].startswith("cache-status: kvproxy; fwd=uri-miss; stored")
        assert second[0].startswith("cache-status: kvproxy; hit; ")
        assert first[1:] == second[1:] != []
        document = result(*given, url=url)
        assert document["response"]["choices"][0]["message"]["content"] == document["answer"] == "\n".join(first[1:])
        assert document["cache_status"] == second[0].removeprefix("cache-status: ").replace(
            "ttl=" + second[0].split("ttl=")[1].split(";")[0],
            "ttl=" + document["cache_status"].split("ttl=")[1].split(";")[0],
        )
        assert document["request_id"]


def test_errors_name_their_cause(tmp_path: Path) -> None:
    with proxied(tmp_path) as url:
        body = tmp_path / "body.json"
        body.write_text(json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}))
        stream = kvproxy("ask", "--file", body, url=url)
        assert (stream.returncode, "remove the field stream" in stream.stderr) == (2, True)
        refused = kvproxy("ask", "x", "--header", "cache-control: only-if-cached", url=url)
        assert (refused.returncode, "only-if-cached" in refused.stderr) == (1, True)
    assert kvproxy("ask", "x", url=NOWHERE).returncode == 4


def test_the_prompt_may_be_on_stdin(tmp_path: Path) -> None:
    with proxied(tmp_path) as url:
        first = kvproxy("ask", "What is a block?", "--model", "m", "--header", "cache-control: confirm", url=url)
        assert "; stored" in first.stdout
        for given in ((), ("-",)):
            asked = kvproxy("ask", *given, "--model", "m", url=url, stdin=b"What is a block?\n")
            assert "hit" in asked.stdout.splitlines()[0], asked
    for given in ((), ("-",)):
        empty = kvproxy("ask", *given, stdin=b"\n")
        assert (empty.returncode, "give a prompt, also on stdin, or --file" in empty.stderr) == (2, True)


def test_errors_of_the_server_have_their_status(tmp_path: Path) -> None:
    async def respond(request: Request) -> JSONResponse:
        if request.method == "GET":
            # A probe: after an exception, the server would close a connection that the next request takes.
            return JSONResponse({"data": [{"id": "m"}]})
        status = int((await request.json())["user"])
        return JSONResponse({"error": {"message": "slow down"}}, status)

    with run_upstream(respond) as upstream, run_front(tmp_path, upstream) as (url, _):
        for status, code in ((500, 1), (429, 1), (401, 1), (404, 3), (400, 2)):
            given = ("ask", "x", "--model", "m", "--body", f'user="{status}"')
            shown = kvproxy(*given, url=url)
            assert (shown.returncode, shown.stdout, shown.stderr) == (code, "", f"kvproxy: HTTP {status}: slow down\n")
            printed = kvproxy(*given, "--json", url=url)
            document = json.loads(printed.stdout)
            assert (printed.returncode, document["status"], document["answer"]) == (code, status, None)
            assert document["response"]["error"]["message"] == "slow down"
            assert document["request_id"]


def test_all_choices_are_printed(tmp_path: Path) -> None:
    choices = [{"index": at, "message": {"role": "assistant", "content": f"answer {at}"}} for at in range(3)]

    async def respond(request: Request) -> JSONResponse:
        if request.url.path == "/v1/models":
            return JSONResponse({"error": {"message": "broken"}}, 500)
        return JSONResponse({"id": "x", "object": "chat.completion", "model": "m", "choices": choices})

    body = tmp_path / "body.json"
    body.write_text(json.dumps({"n": 3, "messages": [{"role": "user", "content": "x"}]}))
    with run_upstream(respond) as upstream, run_front(tmp_path, upstream) as (url, _):
        given = ("ask", "--file", body)
        shown = kvproxy(*given, "--model", "m", url=url).stdout.splitlines()
        assert shown[1:] == ["choice 1: answer 0", "choice 2: answer 1", "choice 3: answer 2"]
        document = result(*given, "--model", "m", url=url)
        assert (document["answer"], document["answers"]) == ("answer 0", ["answer 0", "answer 1", "answer 2"])
        # Without a model, the list of models is needed.
        refused = kvproxy(*given, url=url)
        assert "name its model with --model" in refused.stderr
