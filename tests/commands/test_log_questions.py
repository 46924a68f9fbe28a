"""The log shows the question of each request, and for a semantic hit the stored question, too."""

import json
from pathlib import Path

import httpx
import pytest

from kvproxy.settings import load_settings
from tests.commands.run import kvproxy
from tests.plain_upstream import run_plain_upstream
from tests.servers import run_proxy, until_stored

STORED, ASKED = "How do I reset my password?", "How can I reset my password?"


@pytest.mark.parametrize(("text", "shadow"), [("hits", False), ("none", False), ("hits", True)])
def test_a_semantic_hit_shows_both_questions(tmp_path: Path, text: str, shadow: bool) -> None:
    with run_plain_upstream() as upstream:
        settings = load_settings(
            data=tmp_path,
            upstream=upstream,
            cache={"policy": "threshold", "min_similarity": 0.85, "shadow": shadow},
            journal={"text": text},
        )
        with run_proxy(settings) as (url, services):
            for question in (STORED, ASKED):
                body = {"model": "m", "messages": [{"role": "user", "content": question}]}
                answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers={"cache-control": "confirm"})
                until_stored(services)
            assert ("semantic" in answer.headers["cache-status"]) is not shadow
            services.answerer.journal.latest(1)
            done = kvproxy("log", "--json", "--data", tmp_path, url=url)
            table = kvproxy("log", "--data", tmp_path, url=url).stdout.splitlines()
            # The first entry is replaced; a semantic hit has the entry of another question.
            body["messages"] = [{"role": "user", "content": STORED}]
            httpx.post(f"{url}/v1/chat/completions", json=body, headers={"cache-control": "confirm, no-cache"})
            services.answerer.journal.latest(1)
            top = json.loads(kvproxy("log", "top", "--json", "--data", tmp_path, url=url).stdout)
    named = {row["name"]: row["requests"] for row in top}
    assert named == {STORED: 2, ASKED if text == "hits" or shadow else "prompt 2": 1}
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["question"], first["stored_question"]) == (STORED, None)
    assert (second["question"], second["stored_question"]) == (ASKED if text == "hits" else None, STORED)
    assert table[-1].endswith(f"\t{ASKED if text == 'hits' else '-'}\t{STORED}")
