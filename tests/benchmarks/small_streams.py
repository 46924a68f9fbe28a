"""Streams of small namespaces: python -m tests.benchmarks.small_streams [--orders 6] [--policies learned checked]

Each namespace has the questions of one business (`business_questions.jsonl`): 50 intents in four wordings, and a near-miss of
each, which needs another answer. In the form `courtesies`, two of the four wordings repeat the others, and half of the
near-misses are reworded, with *Hi, ..*, *.. please?*, and the like. `free_questions.jsonl` has 37 intents and 74 near-misses.
The questions are replayed in random orders with default settings. Equal answers have equal texts, and the judge is perfect.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvproxy.index.evaluation.stream_evaluation import embed_texts
from kvproxy.index.evaluation.stream_replay import InMemoryObservations, ReplayOutcome, Stream, replay
from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.library.configured_cache import build_policy
from kvproxy.settings import CacheSettings
from tests.benchmarks.live_wordings import ENDS, FRAMES
from tests.benchmarks.options import read_options

_DATA = Path(__file__).parent.parent / "index" / "data"
FORMS = ("own words", "courtesies")
Intents = Sequence[tuple[Sequence[str], Sequence[str]]]
"""The wordings of each intent, and its near-misses."""


def load_businesses() -> dict[str, Intents]:
    found: dict[str, list[tuple[Sequence[str], Sequence[str]]]] = {}
    for name in ("business_questions", "free_questions"):
        for line in (_DATA / f"{name}.jsonl").read_text("utf-8").splitlines():
            intent = json.loads(line)
            found.setdefault(intent.get("business", name), []).append((intent["same"], intent["near"]))
    return dict(found)


def make_stream(intents: Intents, form: str) -> Stream:
    """Return the questions and their answers; two answers are equal if their texts are."""
    chance, answers = random.Random(7), dict[str, str]()
    for number, (same, near) in enumerate(intents):
        wordings, others = list(same), list(near)
        if form == "courtesies":
            wordings = [*same[:2], *(_with_courtesies(text, chance) for text in same[:2])]
            others = [_with_courtesies(text, chance) if chance.random() < 0.5 else text for text in near]
        answers |= dict.fromkeys(wordings, f"intent {number}")
        answers |= {text: f"intent {number}, near-miss {place}" for place, text in enumerate(others)}
    texts, truths = list(answers), list(answers.values())
    vectors = embed_texts(texts, load_embedder(), lambda share: None)
    return Stream(texts, truths, vectors, lambda one, other: truths[one] == truths[other])


def _with_courtesies(text: str, chance: random.Random) -> str:
    return chance.choice(FRAMES[1:]) + text.rstrip("?.") + chance.choice(ENDS)


def replay_order(stream: Stream, settings: CacheSettings, order: int) -> tuple[ReplayOutcome, float | None]:
    """Return the outcome of the stream in a random order, and the number of wrong hits that the policy expects."""
    policy = build_policy(settings, InMemoryObservations(), load_embedder().name)
    lines: list[int] = np.random.default_rng(order).permutation(len(stream.texts)).tolist()
    found = replay(stream.reordered(lines), policy, seed=order, texts_differ=False)
    return found, policy.status("").expected_wrong if isinstance(policy, LearnedPolicy) else None


def main() -> None:
    options = read_options(__doc__, orders=6, policies=["learned", "checked"])
    print("| namespace | form | policy | hits of an order | wrong, all orders | expected |\n|---|---|---|---|---|---|")
    for name, intents in load_businesses().items():
        for form in FORMS:
            stream = make_stream(intents, form)
            for policy in options.policies:
                settings = CacheSettings(policy=policy)
                found = [replay_order(stream, settings, order) for order in range(options.orders)]
                hits = sum(int(outcome.served.sum()) for outcome, _ in found)
                wrong = sum(int(outcome.wrong.sum()) for outcome, _ in found)
                expected = sum(number or 0.0 for _, number in found) if policy == "learned" else None
                cells = (
                    name,
                    form,
                    policy,
                    f"{hits / options.orders:.1f}",
                    f"{wrong} of {hits}",
                    "" if expected is None else f"{expected:.1f}",
                )
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
