"""Opposites and rewordings in five languages that `learned` serves with the embedder `multilingual`.

OMP_NUM_THREADS=1 python -m tests.benchmarks.languages [--languages de fr] [--requests 2000] [--threshold 0.9] [--http 1]

The traffic of a language is generated from hand-written templates: sentences with a gap, and phrases for each intent. The
test questions are hand-written, too, and do not occur in it. After the traffic, the first question of each pair arrives,
then the second one. The intent is the answer, and the judge knows it.

- `first`: the traffic has the intent of the first question of each pair, but not the intent of the second question;
- `both`: the traffic has both intents;
- `none`: the traffic has neither.

With `--http 1`, the questions go through `kvproxy serve --embedder multilingual`, one after another: the traffic, the opposites,
and the rewordings. The upstream's answer is the first phrase of the question's intent.
"""

import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from kvproxy.index.evaluation.stream_replay import InMemoryObservations, Stream, replay
from kvproxy.index.models.embedder import Embedder, load_embedder
from kvproxy.index.models.verifier import load_verifier
from kvproxy.index.models.verifier.multilingual import new_words_detector
from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.index.policies.policy import Policy
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.settings.cache import LEAST_SIMILARITY, CacheSettings
from tests.benchmarks.load import PATH
from tests.benchmarks.options import read_options
from tests.benchmarks.servers import answering_app, kvproxy, run_process

FOLDER = Path(__file__).parents[1] / "index" / "data" / "languages"
LANGUAGES = ("de", "fr", "es", "zh", "ja")
CONDITIONS: Mapping[str, Sequence[str]] = {"first": ("first",), "both": ("first", "second"), "none": ()}
MAX_ERROR = 0.02


def read_language(name: str) -> dict[str, Any]:
    return dict(json.loads((FOLDER / f"{name}.json").read_text()))


def traffic(language: Mapping[str, Any], count: int, sides: Sequence[str], seed: int = 0) -> list[tuple[str, str]]:
    """Return different questions with their intents, in random order.

    Args:
        sides: `first` and `second` for the intents of the pairs; the other intents always occur.
    """
    rng, intents = random.Random(seed), phrases_by_intent(language, sides)
    found: dict[str, str] = {}
    while len(found) < count:
        intent = rng.choice(list(intents))
        question = rng.choice(language["frames"]).format(rng.choice(intents[intent]))
        before, after = rng.choice(["", "", *language["greetings"]]), rng.choice(["", "", *language["thanks"]])
        found.setdefault(f"{before}{question}{after}", intent)
    return list(found.items())


def phrases_by_intent(language: Mapping[str, Any], sides: Sequence[str]) -> dict[str, list[str]]:
    found = {f"other {number}": phrases for number, phrases in enumerate(language["others"])}
    return found | {f"{side} {number}": pair[side] for number, pair in enumerate(language["pairs"]) for side in sides}


def pairs_of(language: Mapping[str, Any], kind: str) -> list[tuple[str, str]]:
    """Return the questions of all pairs with their intents: the first of a pair, then the second.

    Args:
        kind: `opposites` or `rewordings`.
    """
    side = "second" if kind == "opposites" else "first"
    return [
        line
        for number, pair in enumerate(language["pairs"])
        for one, other in pair[kind]
        for line in ((one, f"first {number}"), (other, f"{side} {number}"))
    ]


def served(lines: Sequence[tuple[str, str]], tail: int, embedder: Embedder, policy: Policy) -> tuple[int, int, float]:
    """Replay traffic and test pairs.

    Args:
        tail: number of test questions at the end of the lines.

    Returns:
        Second questions of pairs that are served right and wrong, and the hit rate of the traffic.
    """
    texts, intents = [text for text, _ in lines], [intent for _, intent in lines]
    stream = Stream(texts, intents, embedder.embed(texts), lambda one, other: intents[one] == intents[other])
    outcome = replay(stream, policy)
    hits, wrong = outcome.served[-tail:][1::2], outcome.wrong[-tail:][1::2]
    return int((hits & ~wrong).sum()), int((hits & wrong).sum()), float(outcome.served[:-tail].mean())


def send(lines: Sequence[tuple[str, str]], language: Mapping[str, Any]) -> list[bool | None]:
    """Send questions through a proxy; return whether each semantic hit is right, and None for other responses."""
    answers = {intent: phrases[0] for intent, phrases in phrases_by_intent(language, ("first", "second")).items()}
    app, found = partial(answering_app, {text: answers[intent] for text, intent in lines}), list[bool | None]()
    with (
        run_process(app) as upstream,
        tempfile.TemporaryDirectory() as folder,
        kvproxy(Path(folder), "--upstream", upstream, "--embedder", "multilingual") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        for text, intent in lines:
            response = client.post(PATH, json={"model": "m", "messages": [{"role": "user", "content": text}]})
            answer = response.raise_for_status().json()["choices"][0]["message"]["content"]
            is_semantic = "semantic" in response.headers["cache-status"]
            found.append(answer == answers[intent] if is_semantic else None)
    return found


def make_policy(embedder: Embedder, threshold: float | None = None) -> Policy:
    if threshold is not None:
        return ThresholdPolicy(threshold, guards=())
    floor = LEAST_SIMILARITY["learned"]
    checked = CheckedPolicy(load_verifier(embedder=embedder.name), CacheSettings().min_probability, floor)
    return LearnedPolicy(
        InMemoryObservations(), checked, MAX_ERROR, floor, has_new_words=new_words_detector(embedder.name)
    )


class Remembering:
    """An embedder that embeds each text once."""

    def __init__(self, embedder: Embedder) -> None:
        self.name, self.dim = embedder.name, embedder.dim
        self.vocabulary, self.can_read = embedder.vocabulary, embedder.can_read
        self._embedder = embedder
        self._vectors: dict[str, np.ndarray] = {}

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        missing = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        self._vectors |= zip(missing, self._embedder.embed(missing), strict=True)
        return np.stack([self._vectors[text] for text in texts])


def main() -> None:
    options = read_options(__doc__, languages=list(LANGUAGES), requests=2000, threshold=float, seed=0, http=0)
    embedder = Remembering(load_embedder("multilingual"))
    print("language  intents known  opposites wrong  rewordings right  wrong  traffic hits")
    for name in options.languages:
        language = read_language(name)
        for condition, sides in CONDITIONS.items():
            lines = traffic(language, options.requests, sides, options.seed)
            opposites, rewordings = pairs_of(language, "opposites"), pairs_of(language, "rewordings")
            if options.http:
                found = send([*lines, *opposites, *rewordings], language)
                start, end = len(lines), len(lines) + len(opposites)
                opposite, rate = found[start:end][1::2].count(False), 1 - found[:start].count(None) / start
                right, wrong = (found[end:][1::2].count(is_right) for is_right in (True, False))
            else:
                policy = make_policy(embedder, options.threshold)
                _, opposite, rate = served([*lines, *opposites], len(opposites), embedder, policy)
                policy = make_policy(embedder, options.threshold)
                right, wrong, _ = served([*lines, *rewordings], len(rewordings), embedder, policy)
            total = len(rewordings) // 2
            print(
                f"{name:<9} {condition:<14} {opposite:>8} of {len(opposites) // 2:<4}"
                f" {right:>9} of {total:<4} {wrong:>6}  {rate:>11.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
