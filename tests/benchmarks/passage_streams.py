"""A stream of questions about documents: python -m tests.benchmarks.passage_streams FILE [--documents 11] [--classes 7]

FILE has labelled questions, such as Banking77: lines like `{"text": .., "answer": ..}`. Each document has questions of some
labels, which are near each other, and is sent as passages in the user message. Requests use the keys, the store, and the policy
of a proxy with default settings. A response is right if document and label are equal; the judge knows both.
"""

import asyncio
import random
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvproxy.apis.json import JsonObject
from kvproxy.exchange import SemanticKey
from kvproxy.flow.cache_keys import cache_key
from kvproxy.index.evaluation.stream_evaluation import StreamLine, embed_texts, read_stream
from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.policies.learned.answer_classes import run_comparisons
from kvproxy.index.policies.policy import PolicyName
from kvproxy.index.response_cache import ResponseCache
from kvproxy.library.configured_cache import open_response_cache
from kvproxy.settings import CacheSettings
from tests.benchmarks.options import read_options
from tests.index.entries import make_entry
from tests.requests import api_request

_FORM = "Context:\nThis is document {document} of the handbook for clients of the bank.\n\nQuestion: {question}"
_EMBEDDED = 20  # Questions of a label, for its mean vector.


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    document: int
    label: str

    @property
    def key(self) -> SemanticKey:
        content = _FORM.format(document=self.document, question=self.text)
        body: JsonObject = {"model": "m", "messages": [{"role": "user", "content": content}]}
        return cache_key(api_request(body), "b", conversations=True).semantic


class Replay:
    def __init__(self, cache: ResponseCache) -> None:
        assert cache.semantic is not None
        assert cache.semantic.learning is not None
        self._cache, self._learning = cache.semantic, cache.semantic.learning
        self._answered: dict[str, Question] = {}

    async def ask(self, question: Question) -> Question | None:
        """Return the stored question whose response is served; None if the question is forwarded."""
        key = question.key
        assert key.text is not None
        lookup = await self._cache.lookup(key.namespace, key.text)
        if lookup.entry is not None:
            self._learning.record_served(lookup)
            return self._answered[lookup.entry.id]
        entry = make_entry(key.text, namespace=key.namespace)
        self._answered[entry.id] = question
        await self._cache.insert(entry)
        recording = self._learning.record_response(lookup, entry, f"answer {len(self._answered)}")
        run_comparisons(recording, self._are_equal)
        return None

    def _are_equal(self, one: str, other: str) -> bool:
        return _is_right(self._answered[one], self._answered[other])


def _is_right(served: Question, asked: Question) -> bool:
    return (served.document, served.label) == (asked.document, asked.label)


def near_labels(lines: Sequence[StreamLine], documents: int, classes: int) -> list[list[str]]:
    """Return the labels of each document: one, and the nearest of those that no other document has."""
    texts: defaultdict[str, list[str]] = defaultdict(list)
    for line in lines:
        texts[line.answer].append(line.text)
    embedder = load_embedder()
    means = {
        name: embed_texts(found[:_EMBEDDED], embedder, lambda share: None).mean(0) for name, found in texts.items()
    }
    left, groups = sorted(means), list[list[str]]()
    while len(left) >= classes and len(groups) < documents:
        first = left[0]
        left.sort(key=lambda name: -float(np.dot(means[name], means[first])))
        groups.append(left[:classes])
        left = sorted(left[classes:])
    return groups


def make_questions(
    lines: Sequence[StreamLine], groups: Sequence[Sequence[str]], count: int, seed: int
) -> list[Question]:
    documents = {label: document for document, labels in enumerate(groups) for label in labels}
    once = {line.text: line for line in lines if line.answer in documents}
    chosen = random.Random(seed).sample(sorted(once), min(count, len(once)))
    return [Question(text, documents[once[text].answer], once[text].answer) for text in chosen]


async def replay(questions: Sequence[Question], policy: PolicyName) -> list[bool]:
    """Return for each hit whether its response was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        cache = open_response_cache(
            Path(folder) / "cache.db", CacheSettings(policy=policy), random_number=random.Random(0).random
        )
        stream = Replay(cache)
        served = [(question, await stream.ask(question)) for question in questions]
        cache.close()
    return [not _is_right(stored, question) for question, stored in served if stored is not None]


def main() -> None:
    options = read_options(
        __doc__, "file", documents=11, classes=7, requests=4000, orders=1, policies=["learned", "checked"]
    )
    lines = read_stream(options.file)
    groups = near_labels(lines, options.documents, options.classes)
    print("| policy | order | documents | requests | hits | wrong |\n|---|---|---|---|---|---|")
    for order in range(options.orders):
        questions = make_questions(lines, groups, options.requests, order)
        for policy in options.policies:
            wrong = asyncio.run(replay(questions, policy))
            cells = (
                policy,
                order,
                len(groups),
                len(questions),
                f"{len(wrong) / len(questions):.1%}",
                f"{sum(wrong) / max(1, len(wrong)):.2%}",
            )
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
