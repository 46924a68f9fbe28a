"""Injects losses of each cause into random conversations, and compares the ledger with them.

python -m tests.journal.sessions.injected_losses provider [--count 1000] [--seed 0]
python -m tests.journal.sessions.injected_losses openai [--count 1000] [--seed 0]
python -m tests.journal.sessions.injected_losses engine [--count 1000] [--seed 0]
python -m tests.journal.sessions.injected_losses http://127.0.0.1:8000 [--count 1000] [--seed 0]

`provider` is two upstreams that bill and diagnose like Anthropic, `openai` one like OpenAI's Responses, and `engine` the
embedded engine with the demonstration model. A URL is a real vLLM with this model, the name `demo`, VLLM_SERVER_DEV_MODE=1, and
--enable-prompt-tokens-details.
"""

import argparse
import contextlib
import copy
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from kvproxy.http.serve import make_server
from kvproxy.http.services import Services, build_services
from kvproxy.journal.journal import StoredJournal
from kvproxy.journal.sessions.ledger import main_cause
from kvproxy.journal.sessions.session_reader import SessionReader, Turn
from kvproxy.settings import load_settings
from tests.anthropic_upstream import AnthropicUpstream
from tests.clients.agent_script import Text
from tests.clients.openai_api import OpenAIApi
from tests.clients.prompt_cache import PromptCache
from tests.polling import until
from tests.servers import run_server, run_upstream

OPENAI = ("none", "changed", "evicted", "expired", "minimum", "unmarked")
PROVIDER = ("none", "changed", "evicted", "expired", "moved", "minimum", "unmarked", "unreported")
ENGINE = ("none", "changed", "evicted", "retokenised")
_DIAGNOSES = {"name": "diagnoses", "diagnoses": True}
_JOURNAL = {"retention": 1e9}
"""Records have simulated times, which the journal's own clock would call expired."""
WORDS = "block cache prefix token turn agent tool file test error queue pool chain store hash answer reads writes the of".split()
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = [{"name": name, "description": f"{name} a file", "input_schema": SCHEMA} for name in ("read", "write", "list")]


@dataclass(slots=True)
class Result:
    """Compared losses by injected cause. The tokens of an unbalanced turn do not add up.

    Attributes:
        agreed: turns whose change, by the ledger, is the one that the upstream's own diagnosis names.
        disagreed: the other turns with a comparison.
    """

    trials: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    unbalanced: int = 0
    agreed: int = 0
    disagreed: list[Turn] = field(default_factory=list)
    wrong: list[tuple[str, Turn]] = field(default_factory=list)

    def add(self, cause: str, turns: list[Turn]) -> None:
        self.turns += len(turns)
        self.unbalanced += sum(
            sum(turn.lost.values()) + (turn.reused_tokens or 0) != turn.prompt_tokens for turn in turns
        )
        self.agreed += sum(turn.agrees is True for turn in turns)
        self.disagreed += [turn for turn in turns if turn.agrees is False]
        self.trials[cause] += 1
        if (main_cause(turns[-1].lost) or "none") == cause:
            self.right[cause] += 1
        else:
            self.wrong.append((cause, turns[-1]))
        if self.trials.total() % 100 == 0:
            print(f"{self.trials.total()} losses injected", file=sys.stderr, flush=True)

    def __str__(self) -> str:
        lines = [f"{cause:12} {self.right[cause]:5} of {count:5}" for cause, count in self.trials.items()]
        lines.append(f"{'all':12} {self.right.total():5} of {self.trials.total():5}")
        lines.append(f"{self.agreed} of {self.agreed + len(self.disagreed)} diagnoses agree")
        lines.append(f"{self.unbalanced} of {self.turns} turns do not add up")
        lines += [f"{turn.diagnosis}: {turn.region}, {turn.lost}" for turn in self.disagreed[:10]]
        lines += [
            f"{cause}: {turn.lost} of {turn.prompt_tokens}, reused {turn.reused_tokens}"
            for cause, turn in self.wrong[:10]
        ]
        return "\n".join(lines)


class Texts(random.Random):
    def words(self, least: int, most: int) -> str:
        return " ".join(self.choices(WORDS, k=self.randint(least, most)))


class Proxy:
    """A proxy in this process, and its ledger."""

    def __init__(self, url: str, services: Services) -> None:
        self._last_request = ""
        self.client = httpx.Client(base_url=url, timeout=600, event_hooks={"response": [self._remember]})
        self.services = services
        journal = services.journal
        assert isinstance(journal, StoredJournal)
        self.journal = journal

    def _remember(self, response: httpx.Response) -> None:
        if response.url.path.startswith("/v1/"):
            self._last_request = response.headers["x-request-id"]

    def turns(self, count: int) -> list[Turn]:
        """The last turns."""

        def is_recorded() -> bool:
            return self.journal.latest(1)[0].request_id == self._last_request

        # A request is recorded after its response has been sent.
        until(is_recorded)
        with contextlib.closing(self.journal.reader()) as reader:
            sessions = SessionReader(reader, {})
            found = (sessions.turn(record.number) for record in self.journal.latest(count))
            return [turn for turn in found if turn is not None][::-1]


@contextlib.contextmanager
def proxy(clock: Any = time.time, **settings: Any) -> Iterator[Proxy]:
    with tempfile.TemporaryDirectory() as folder:
        services = build_services(
            load_settings(data=Path(folder), cache={"enabled": False, "semantic": False}, journal=_JOURNAL, **settings)
        )
        services.clock = clock
        with run_server(make_server(services)) as url:
            served = Proxy(url, services)
            with served.client:
                yield served


def run_provider(count: int, seed: int) -> Result:
    texts, result = Texts(seed), Result()
    # No conversation begins within an hour of another one.
    now = 1_790_000_000.0
    upstreams = [AnthropicUpstream(clock=lambda: now), AnthropicUpstream(clock=lambda: now)]
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(run_upstream(upstream.answer)) for upstream in upstreams]
        served = stack.enter_context(proxy(lambda: now, upstreams=tuple(urls), rules=(_DIAGNOSES,)))
        for number in range(count):
            cause = PROVIDER[number % len(PROVIDER)]
            now += 7_200
            chat = _ProviderChat(texts, served.client, f"{seed}-{number}", short=cause == "minimum")
            earlier = texts.randint(2, 4)
            for _ in range(earlier):
                for upstream in upstreams:
                    upstream.api.answers = [[{"type": "text", "text": texts.words(40, 60)}]]
                chat.ask(marked=cause != "unmarked")
                now += texts.uniform(5, 200)
            if cause == "changed":
                chat.change()
            elif cause == "evicted":
                for upstream in upstreams:
                    upstream.evict()
            elif cause == "expired":
                now += texts.uniform(400, 7_000)
            elif cause == "moved":
                _drain(served, urls, served.turns(1)[0].upstream)
            for upstream in upstreams:
                upstream.api.reports_cache = cause != "unreported"
            chat.ask(marked=cause != "unmarked")
            for upstream in upstreams:
                upstream.api.reports_cache = True
            _drain(served, urls, None)
            result.add(cause, served.turns(earlier + 1))
    return result


def _drain(served: Proxy, urls: list[str], drained: str | None) -> None:
    for url in urls:
        path = "drain" if url == drained else "undrain"
        served.client.post(f"/admin/upstreams/{path}", params={"name": url}).raise_for_status()


class _ProviderChat:
    """A conversation with tools, and breakpoints as Claude Code sets them."""

    def __init__(self, texts: Texts, client: httpx.Client, name: str, *, short: bool) -> None:
        self._texts = texts
        self._client = client
        self._least, self._most = (5, 20) if short else (150, 600)
        system = f"Session {name}. " + texts.words(*(20, 60) if short else (700, 1_500))
        # As Claude Code does, so that the router finds the upstream of a changed conversation.
        self._headers = {"x-claude-code-session-id": name}
        self._system: list[dict[str, Any]] = [{"type": "text", "text": system}]
        self._tools = [] if short else TOOLS
        self._messages: list[dict[str, Any]] = []
        self._model = "claude-sonnet-5"

    def ask(self, *, marked: bool) -> None:
        text = self._texts.words(self._least, self._most)
        self._messages.append({"role": "user", "content": [{"type": "text", "text": text}]})
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": 9,
            "system": self._system,
            "messages": self._messages,
        }
        body = copy.deepcopy(body | ({"tools": self._tools} if self._tools else {}))
        if marked:
            body["system"][-1]["cache_control"] = body["messages"][-1]["content"][-1]["cache_control"] = {
                "type": "ephemeral"
            }
        reply = self._client.post("/v1/messages", json=body, headers=self._headers)
        reply.raise_for_status()
        self._messages.append({"role": "assistant", "content": reply.json()["content"]})

    def change(self) -> None:
        """Change the history as clients do."""
        kind = self._texts.choice(("date", "order of tools", "message", "answer", "model"))
        if kind == "model":
            self._model = "claude-sonnet-4-6"
        elif kind == "date":
            self._system[0]["text"] = f"It is {self._texts.random()}. " + self._system[0]["text"]
        elif kind == "order of tools":
            self._tools = self._tools[1:] + self._tools[:1]
        else:
            block = self._messages[0 if kind == "message" else 1]["content"][0]
            block["text"] = block["text"].replace(" ", "  ", 3) + " "


def run_openai(count: int, seed: int) -> Result:
    texts, result = Texts(seed), Result()
    now = 1_790_000_000.0
    upstream = OpenAIApi(lambda conversation: [Text(texts.words(40, 60))], cache=PromptCache(lambda: now))
    with run_upstream(upstream.answer) as url, proxy(lambda: now, upstream=url, rules=(_DIAGNOSES,)) as served:
        for number in range(count):
            cause = OPENAI[number % len(OPENAI)]
            now += 7_200
            name, marked = f"{seed}-{number}", cause != "unmarked"
            chat = _ResponsesChat(texts, served.client, name, short=cause == "minimum", marked=marked)
            earlier = texts.randint(2, 4)
            for _ in range(earlier):
                chat.ask()
                now += texts.uniform(5, 200)
            if cause == "changed":
                chat.change()
            elif cause == "evicted":
                upstream.cache.clear()
            elif cause == "expired":
                now += texts.uniform(2_000, 7_000)
            elif cause == "unmarked":
                # The instructions are equal, and no breakpoint ends them.
                chat.begin_again()
            chat.ask()
            result.add(cause, served.turns(earlier + 1))
    return result


class _ResponsesChat:
    """A conversation with a developer message and tools, as Codex sends them."""

    def __init__(self, texts: Texts, client: httpx.Client, name: str, *, short: bool, marked: bool) -> None:
        self._texts = texts
        self._client = client
        self._sizes = (5, 20) if short else (150, 600)
        developer = f"Session {name}. " + texts.words(*(20, 60) if short else (1_500, 2_500))
        self._headers = {"session-id": name}
        tools = [] if short else [{"type": "function", "name": tool["name"], "parameters": SCHEMA} for tool in TOOLS]
        self._body: dict[str, Any] = {
            "model": "gpt-5.6",
            "reasoning": {"effort": "low"},
            "tools": tools,
            "store": False,
        }
        mark = {"prompt_cache_breakpoint": {"mode": "explicit"}} if marked else {}
        part = {"type": "input_text", "text": developer, **mark}
        self._items: list[dict[str, Any]] = [{"type": "message", "role": "developer", "content": [part]}]

    def ask(self) -> None:
        self._items.append({"type": "message", "role": "user", "content": self._texts.words(*self._sizes)})
        body = copy.deepcopy(self._body | {"input": self._items})
        reply = self._client.post("/v1/responses", json=body, headers=self._headers)
        reply.raise_for_status()
        (answer,) = reply.json()["output"]
        self._items.append({"type": "message", "role": "assistant", "content": answer["content"]})

    def begin_again(self) -> None:
        self._items = self._items[:1]

    def change(self) -> None:
        kind = self._texts.choice(("developer", "tools", "message", "answer", "effort", "format", "model"))
        if kind == "developer":
            part = self._items[0]["content"][0]
            part["text"] = f"It is {self._texts.random()}. {part['text']}"
        elif kind == "tools":
            self._body["tools"] = self._body["tools"][1:] + self._body["tools"][:1]
        elif kind == "message":
            self._items[1]["content"] = self._items[1]["content"].replace(" ", "  ", 3) + " "
        elif kind == "answer":
            part = self._items[2]["content"][0]
            part["text"] = part["text"].replace(" ", "  ", 3) + " "
        elif kind == "effort":
            self._body["reasoning"] = {"effort": "high"}
        elif kind == "format":
            self._body["text"] = {"format": {"type": "json_object"}}
        else:
            self._body["model"] = "gpt-5.6-luna"


def run_engine(count: int, seed: int, vllm: str | None = None) -> Result:
    texts, result = Texts(seed), Result()
    settings: dict[str, Any] = {"upstream": vllm} if vllm else {"model": "demo", "engine": {"num_blocks": 512}}
    with proxy(**settings) as served:
        number, block = 0, 16
        if vllm:
            until(lambda: served.client.get("/admin/upstreams").json()[0]["metrics"] is not None)
            block = served.client.get("/admin/upstreams").json()[0]["metrics"]["block_size"]
        while result.trials.total() < count:
            cause = ENGINE[number % len(ENGINE)]
            number += 1
            messages = [
                {"role": "system", "content": f"Session {seed}-{number}. " + texts.words(60, 120)},
                {"role": "user", "content": texts.words(10, 30)},
            ]
            earlier = texts.randint(1, 3)
            for _ in range(earlier):
                answer = _ask(served, messages, sampled=cause == "retokenised")
                messages += [answer, {"role": "user", "content": texts.words(5, 15)}]
            if cause == "changed":
                # A change of less than a block is no loss.
                place = texts.choice([0, 1, 2] if earlier > 1 else [0, 1])
                words = messages[place]["content"].split(" ")
                messages[place]["content"] = " ".join(["Changed", *words[1:]])
            elif cause == "evicted":
                # A request that just ended may still hold blocks.
                until(lambda: _reset(served, vllm))
            _ask(served, messages, sampled=False)
            turns = served.turns(earlier + 1)
            if cause == "retokenised":
                before, last = turns[-2:]
                end = before.prompt_tokens + (before.completion_tokens or 0)
                # Most answers have the same tokens again.
                cause = "retokenised" if (end - 1) // block * block > (last.reused_tokens or 0) else ""
            if cause:
                result.add(cause, turns)
    return result


def _reset(served: Proxy, vllm: str | None) -> bool:
    if vllm is None:
        return bool(served.client.post("/admin/blocks/reset").json()["reset"])
    reply = httpx.post(f"{vllm}/reset_prefix_cache").raise_for_status()
    return not reply.content or reply.json().get("success") is not False


def _ask(served: Proxy, messages: list[dict[str, Any]], *, sampled: bool) -> dict[str, Any]:
    more = {"temperature": 2.0, "seed": len(messages)} if sampled else {"temperature": 0}
    body = {"model": "demo", "messages": messages, "max_tokens": 40 if sampled else 16, **more}
    reply = served.client.post("/v1/chat/completions", json=body)
    reply.raise_for_status()
    message: dict[str, Any] = reply.json()["choices"][0]["message"]
    return {"role": "assistant", "content": message["content"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", help="provider, openai, engine, or the URL of a vLLM")
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.backend == "provider":
        print(run_provider(given.count, given.seed))
    elif given.backend == "openai":
        print(run_openai(given.count, given.seed))
    else:
        vllm = None if given.backend == "engine" else given.backend
        print(run_engine(given.count, given.seed, vllm))


if __name__ == "__main__":
    main()
