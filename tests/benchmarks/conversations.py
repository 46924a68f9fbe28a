"""Conversations that are served from the cache although their earlier questions are reworded.

python -m tests.benchmarks.conversations [--cases 1000] [--foreign 10000] [--pairs FILE] [--policy learned]

Each case stores a conversation and its last answer, then another conversation asks its last question. All cases use the
keys, the store, and the policy of a proxy with `cache.conversations`. The sets are generated from the tests' pairs:

- `rephrased`: one to three earlier questions, each a rewording of the stored one (hand-written, or from templates of
  directions). The last question is equal or reworded: a follow-up, or a question of its own. The earlier answers are
  equal, as after hits of the same stored responses.
- `one earlier near-miss`: the same, but one earlier question is a near-miss: a hit is wrong. The answers are still equal,
  which a canned answer would cause.
- `follow-ups elsewhere`: a follow-up such as `continue` in a conversation about something else, which has other answers.
- `follow-ups elsewhere, equal answers`: the same, but all answers are equal, as with a canned answer.

`--pairs` adds a set of rewordings from a file with lines `{"a", "b", "same"}`.
"""

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvproxy.exchange import CacheKey
from kvproxy.flow.cache_keys import cache_key
from kvproxy.index.evaluation.confidence_intervals import wilson_interval
from kvproxy.index.evaluation.labelled_pairs import read_pairs
from kvproxy.library.configured_cache import open_response_cache
from kvproxy.settings import CacheSettings
from tests.benchmarks.options import read_options
from tests.index.entries import make_entry
from tests.index.policies import directions
from tests.index.policies.directions import make_rewordings, make_swaps
from tests.requests import api_request

Texts = tuple[str, str]
"""Two texts: of the stored conversation, and of the conversation that asks."""
FOLLOW_UPS: tuple[Texts, ...] = (
    ("continue", "please continue"), ("go on", "please go on"), ("And in Python?", "What about in Python?"),
    ("the second one", "the second one, please"), ("Why?", "Why is that?"), ("yes", "yes, please"),
    ("Can you give me an example?", "Could you show me an example?"), ("How much does it cost?", "What does it cost?"),
    ("Is that safe?", "Is it safe to do that?"), ("How long does that take?", "How much time does it take?"),
    ("Are there any alternatives?", "What are the alternatives?"), ("Who invented it?", "Who was it invented by?"),
    ("What are the drawbacks?", "What disadvantages does it have?"), ("Explain that again.", "Can you explain that again?"),
    ("make it shorter", "can you make it shorter"), ("And on Windows?", "What about on Windows?"),
    ("What should I do first?", "What do I have to do first?"), ("no, the other one", "no, I mean the other one"),
    ("Is there a free version?", "Does a free version exist?"), ("Translate it to French.", "Translate that into French."),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A stored conversation and one that asks: their turns, and the answers to all but the last turn."""

    kind: str
    turns: tuple[Texts, ...]
    answers: tuple[Texts, ...]


def read(name: str) -> list[Texts]:
    return [*map(_texts, directions.read_pairs(name))]


def _texts(pair: dict[str, str]) -> Texts:
    return pair["a"], pair["b"]


def rephrased(
    kind: str, rewordings: Sequence[Texts], count: int, chance: random.Random, near_misses: Sequence[Texts] = ()
) -> Iterator[Case]:
    for _ in range(count):
        turns = chance.sample(rewordings, chance.choice((1, 1, 2, 3)))
        if near_misses:
            turns[chance.randrange(len(turns))] = chance.choice(near_misses)
        last = chance.choice((*FOLLOW_UPS, *rewordings[: len(FOLLOW_UPS)]))
        answers = tuple((f"Answer to: {turn[0]}",) * 2 for turn in turns)
        yield Case(kind, (*turns, last if chance.random() < 0.5 else (last[0], last[0])), answers)


def elsewhere(
    kind: str, questions: Sequence[str], count: int, chance: random.Random, *, canned: bool
) -> Iterator[Case]:
    for _ in range(count):
        depth = chance.choice((1, 1, 2, 3))
        stored, asked = (chance.sample(questions, depth) for _ in range(2))
        turns = tuple(zip(stored, asked, strict=True))
        follow_up = chance.choice(FOLLOW_UPS)
        answers = tuple(("Here you are.",) * 2 if canned else (f"On: {a}", f"On: {b}") for a, b in turns)
        if stored != asked:
            yield Case(kind, (*turns, (follow_up[0], chance.choice(follow_up))), answers)


def key_of(case: Case, side: int, number: int) -> CacheKey:
    messages = [{"role": "system", "content": f"Case {number}."}]
    for turn, answer in zip(case.turns, case.answers, strict=False):
        messages += [{"role": "user", "content": turn[side]}, {"role": "assistant", "content": answer[side]}]
    messages.append({"role": "user", "content": case.turns[-1][side]})
    return cache_key(api_request({"model": "m", "messages": messages}), "b", conversations=True)


async def measure(cases: Sequence[Case], policy: str) -> list[bool]:
    """Return whether each case is served with its stored answer."""
    served = []
    with tempfile.TemporaryDirectory() as folder:
        settings = CacheSettings.model_validate({"policy": policy, "conversations": True})
        cache = open_response_cache(Path(folder) / "responses.db", settings, random_number=lambda: 0.999)
        assert cache.semantic is not None
        try:
            for number, case in enumerate(cases):
                stored, asked = (key_of(case, side, number) for side in (0, 1))
                key, lookup = stored.semantic, asked.semantic
                if key.text is None or lookup.text is None or stored.exact == asked.exact:
                    served.append(stored.exact == asked.exact)
                else:
                    await cache.insert(make_entry(key.text, namespace=key.namespace, key=stored.exact))
                    served.append((await cache.semantic.lookup(lookup.namespace, lookup.text)).entry is not None)
        finally:
            cache.close()
    return served


def main() -> None:
    options = read_options(__doc__, cases=1000, foreign=10_000, pairs=Path, policy="learned")
    chance = random.Random(0)
    rewordings, templates = read("rewordings"), [*map(_texts, [*make_rewordings(), *make_rewordings(second=True)])]
    near_misses = [*read("near_misses"), *read("opposites"), *map(_texts, make_swaps())]
    questions = [text for pair in near_misses for text in pair]
    cases = [
        *rephrased("rephrased", rewordings, options.cases, chance),
        *rephrased("rephrased, from templates", templates, options.cases, chance),
        *rephrased("one earlier near-miss", rewordings, options.cases, chance, near_misses),
        *elsewhere("follow-ups elsewhere", questions, options.foreign, chance, canned=False),
        *elsewhere("follow-ups elsewhere, equal answers", questions, options.foreign, chance, canned=True),
    ]
    if options.pairs is not None:
        pairs = list(read_pairs(options.pairs))[: 10 * options.cases]
        same, other = ([(pair.a, pair.b) for pair in pairs if pair.same is is_same] for is_same in (True, False))
        cases += rephrased("rephrased, from the file", same, options.cases, chance)
        cases += rephrased("one earlier near-miss, from the file", same, options.cases, chance, other)
    served = asyncio.run(measure(cases, options.policy))
    totals, hits = Counter(case.kind for case in cases), Counter[str]()
    for case, hit in zip(cases, served, strict=True):
        hits[case.kind] += hit
    print("| set | cases | served | 95% interval |\n|---|---|---|---|")
    for kind, total in totals.items():
        low, high = wilson_interval(hits[kind], total)
        print(f"| {kind} | {total:,} | {hits[kind]:,} ({hits[kind] / total:.2%}) | {low:.2%} to {high:.2%} |")
    right, wrong = hits["rephrased"], hits["one earlier near-miss"]
    share = wrong / max(1, right + wrong)
    print(f"\nWrong after as many rephrasings as near-misses: {wrong:,} of {right + wrong:,} hits ({share:.2%}).")


if __name__ == "__main__":
    main()
