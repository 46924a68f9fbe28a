"""Semantic hits in front of a model that words its answers differently: python -m tests.benchmarks.live_wordings

Sends questions of eight intents through `kvproxy serve` with default settings. The upstream answers each intent with one fixed
text, with one of five wordings of the same facts, as a sampled model does, or with other facts each time, as a small one does.
A hit with the answer of another intent is wrong. `--model URL` uses a real server as the upstream instead, with
`--temperature` and `--max-tokens`. A hit is then wrong if its answer was generated for a question of another intent.
`--answers FILE` writes the upstream's answers, one JSON object a line.
"""

import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.benchmarks.options import read_options
from tests.ports import free_port
from tests.processes import serve
from tests.servers import run_app

DATA = Path(__file__).parent.parent / "index" / "data" / "answer_wordings.jsonl"
# Frames and phrases that are combined into questions; the phrases of an intent are lines, in the order of DATA.
FRAMES = ("", "Hi, ", "Please tell me: ", "Quick question: ", "I'd like to know, ", "Hello! ")
ENDS = ("?", "? Thanks!", " please?")
_PHRASES = """\
how long does a transfer to another bank take
how many days until a transfer reaches another bank
when does money that I send to another bank arrive
what is the duration of a bank transfer to another bank
how long do I wait for a transfer to another bank
how fast are transfers to other banks

can I bring my dog to the hotel
are dogs allowed in the hotel
may my dog stay with me in the hotel room
do you accept dogs in the hotel
is it possible to take a dog to the hotel
does the hotel allow dogs

how do I cancel my subscription
where can I cancel my subscription
what do I do to end my subscription
how can I stop my subscription
how to cancel a subscription
which steps cancel my subscription

how do I list files by size
which command sorts files by size
how can I show the files sorted by size
what is the command to list the largest files first
how to order a file listing by size
how do I see files ordered by size

is the museum open on public holidays
can I visit the museum on a public holiday
does the museum open on public holidays
what are the hours of the museum on public holidays
are you open on public holidays at the museum
when can I see the museum on public holidays

do I need to book the gym course
must I reserve a place in a gym course
is booking required for gym courses
do gym courses need a reservation
can I join a gym course without booking
how do I book a gym course

what does photosynthesis do
what happens in photosynthesis
explain what photosynthesis does
what is the purpose of photosynthesis
what is photosynthesis good for
can you describe photosynthesis

who pays for the return of a broken item
who covers the costs if I return a broken item
do I pay to send back a broken item
is the return of a broken item free
are returns of broken items free of charge
what does it cost to return a broken item
"""


def questions(count: int, seed: int) -> list[tuple[int, str]]:
    """Return intents and their questions in random order, without repetitions."""
    chance, found = random.Random(seed), list[tuple[int, str]]()
    for intent, phrases in enumerate(group.splitlines() for group in _PHRASES.split("\n\n")):
        texts = {
            (frame + phrase + end)[0].upper() + (frame + phrase + end)[1:]
            for frame, phrase, end in itertools.product(FRAMES, phrases, ENDS)
        }
        found += [(intent, text) for text in sorted(texts)]
    chance.shuffle(found)
    return found[:count]


@dataclass
class ScriptedUpstream:
    """Answers each question with one of the first `wordings` texts of its intent, or, if it is 0, with other facts each time."""

    answers: dict[str, list[str]]
    wordings: int
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def _other_facts(self, text: str) -> str:
        return f"{self.chance.choice(('Yes', 'No'))}, {self.chance.randint(1, 10_000)} {' '.join(text.split()[:4])}."

    def app(self) -> Starlette:
        async def chat(request: Request) -> Response:
            question = (await request.json())["messages"][-1]["content"]
            texts = self.answers[question]
            text = self.chance.choice(texts[: self.wordings]) if self.wordings else self._other_facts(texts[0])
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 20, "completion_tokens": 30, "total_tokens": 50}
            return JSONResponse(
                {
                    "id": "x",
                    "object": "chat.completion",
                    "created": 1,
                    "model": "m",
                    "choices": [choice],
                    "usage": usage,
                }
            )

        async def models(request: Request) -> Response:
            return JSONResponse({"object": "list", "data": [{"id": "m", "object": "model"}]})

        return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"]), Route("/v1/models", models)])


@dataclass(frozen=True)
class LiveResult:
    """For each request, whether it was a semantic hit, and whether the served answer belongs to another intent.

    `answers` are those of the upstream, with their questions and intents.
    """

    served: list[bool]
    wrong: list[bool]
    compared: dict[str, int]
    answers: list[dict[str, str | int]]

    def __str__(self) -> str:
        quarter = len(self.served) // 4
        last = sum(self.served[-quarter:])
        hits = max(1, sum(self.served))
        return (
            f"{sum(self.served)} hits of {len(self.served)}, {sum(self.wrong)} wrong ({sum(self.wrong) / hits:.1%}),"
            f" {last} in the last quarter; comparisons: {self.compared}"
        )


def run_live(
    asked: list[tuple[int, str]],
    url: str,
    model: str,
    settings: list[str],
    interval: float,
    fields: dict[str, float] | None = None,
) -> LiveResult:
    """Send the questions through a proxy in front of `url`, and judge each hit by the intent of the question that it answers."""
    with tempfile.TemporaryDirectory() as folder, httpx.Client(timeout=120.0) as client:
        port = free_port()
        command = [
            sys.executable,
            "-m",
            "kvproxy",
            "serve",
            "--upstream",
            url,
            "--port",
            str(port),
            "--data",
            folder,
            *settings,
        ]
        with serve(command, port, Path(folder) / "log"):
            intents = {text: intent for intent, text in asked}
            origins: dict[str, set[int]] = {}
            served, wrong = [], []
            answers: list[dict[str, str | int]] = []
            for intent, question in asked:
                start = time.monotonic()
                body = {
                    "model": model,
                    "messages": [{"role": "user", "content": question}],
                    **(fields or {}),
                }
                response = client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body)
                response.raise_for_status()
                text = response.json()["choices"][0]["message"]["content"]
                is_hit = (
                    "hit" in response.headers.get("cache-status", "") and "fwd" not in response.headers["cache-status"]
                )
                served.append(is_hit)
                wrong.append(is_hit and intent not in origins.get(text, set()))
                if not is_hit:
                    origins.setdefault(text, set()).add(intents[question])
                    answers.append({"intent": intent, "question": question, "answer": text})
                time.sleep(max(0.0, interval - (time.monotonic() - start)))
            stats = client.get(f"http://127.0.0.1:{port}/admin/cache/stats")
            stats.raise_for_status()
    return LiveResult(served, wrong, stats.json()["semantic"]["compared"], answers)


def scripted(asked: list[tuple[int, str]], wordings: int, settings: list[str], interval: float) -> LiveResult:
    texts = [json.loads(line)["same"] for line in DATA.read_text().splitlines()]
    upstream = ScriptedUpstream({question: texts[intent] for intent, question in asked}, wordings)
    with run_app(upstream.app()) as url:
        return run_live(asked, url, "m", settings, interval)


def main() -> None:
    options = read_options(
        __doc__,
        requests=700,
        seed=0,
        per_second=20.0,
        model=str,
        name="m",
        settings="",
        temperature=0.7,
        max_tokens=48,
        answers=Path,
    )
    asked, extra = questions(options.requests, options.seed), options.settings.split()
    for label, result in _results(asked, options, extra):
        print(f"{label}: {result}", flush=True)
        if options.answers is not None:
            with options.answers.open("a") as file:
                file.writelines(f"{json.dumps(answer)}\n" for answer in result.answers)


def _results(asked: list[tuple[int, str]], options, extra: list[str]) -> Iterator[tuple[str, LiveResult]]:  # type: ignore[no-untyped-def]
    interval = 1 / options.per_second
    if options.model is not None:
        yield (
            f"model {options.name}",
            run_live(
                asked,
                options.model,
                options.name,
                extra,
                interval,
                {"temperature": options.temperature, "max_tokens": options.max_tokens},
            ),
        )
        return
    for wordings in (1, 5, 0):
        label = f"{wordings} wordings" if wordings else "other facts each time"
        yield label, scripted(asked, wordings, extra, interval)


if __name__ == "__main__":
    main()
