"""How the judge compares a model's own answers: python -m tests.benchmarks.judged_answers FILE [--labelled FILE]

FILE has lines `{"intent", "question", "answer"}`, as `live_wordings --model URL --answers FILE` writes them. A pair of answers to
different intents that the judge `similarity` calls equal is an error; so is a pair of `--labelled` whose label it contradicts.
The lines of that file are `{"a", "b", "same"}`.
"""

import json
from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

from kvproxy.index.models.embedder import Embedder, load_embedder
from kvproxy.index.policies.learned.answer_facts import answers_equal, embedded_part
from tests.benchmarks.options import read_options

_NAMES = {True: "equal", False: "different", None: "undecided"}


def judge(pairs: Iterable[tuple[str, str]], embedder: Embedder) -> Counter[str]:
    counts = Counter[str]()
    for one, other in pairs:
        vectors = embedder.embed([embedded_part(one), embedded_part(other)])
        counts[_NAMES[one == other or answers_equal(one, other, float(vectors[0] @ vectors[1]))]] += 1
    return counts


def show(name: str, counts: Counter[str]) -> None:
    print(
        f"| {name} | {counts.total()} | {' | '.join(str(counts[verdict]) for verdict in _NAMES.values())} |", flush=True
    )


def main() -> None:
    options = read_options(__doc__, "file", labelled=Path)
    answers = [json.loads(line) for line in options.file.read_text().splitlines()]
    embedder = load_embedder()
    print(f"| pairs of answers | number | {' | '.join(_NAMES.values())} |\n|---|---|---|---|---|")
    for name, is_one_intent in (("of one intent", True), ("of two intents", False)):
        pairs = [
            (one["answer"], other["answer"])
            for one, other in combinations(answers, 2)
            if (one["intent"] == other["intent"]) is is_one_intent
        ]
        show(name, judge(pairs, embedder))
    if options.labelled is not None:
        labelled = [json.loads(line) for line in options.labelled.read_text().splitlines()]
        for name, label in (("labelled equal", True), ("labelled different", False)):
            show(name, judge([(pair["a"], pair["b"]) for pair in labelled if bool(pair["same"]) is label], embedder))


if __name__ == "__main__":
    main()
