"""Questions about passages in the last user message: python -m tests.benchmarks.passages [--data passages] [--forms blind]

Each case stores one question of a pair, then asks the other one about the same passages in the same form, in both orders; or
the same question about passages with a sentence that was removed, moved, added, or got another word. All cases use the keys,
the store, and the policy of a proxy with default settings, and a namespace of their own. `system` has the passages in the
system message, so that only the questions are compared.
"""

import asyncio
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvproxy.apis.json import Json, JsonObject
from kvproxy.flow.cache_keys import cache_key
from kvproxy.index.evaluation.confidence_intervals import wilson_interval
from kvproxy.index.response_cache import ResponseCache
from kvproxy.library.configured_cache import open_response_cache
from kvproxy.settings import CacheSettings
from tests.benchmarks.options import read_options
from tests.index.entries import make_entry
from tests.requests import api_request

DATA = Path(__file__).parent.parent / "index/data"
LENGTHS = (0, 600, 2800)
Form = Callable[[str, str], list[Json]]


def _one(template: str) -> Form:
    def messages(passages: str, question: str) -> list[Json]:
        return [{"role": "user", "content": template.replace("PASSAGES", passages).replace("QUESTION", question)}]

    return messages


def _system(passages: str, question: str) -> list[Json]:
    return [{"role": "system", "content": f"Answer from:\n{passages}"}, {"role": "user", "content": question}]


def _two_parts(passages: str, question: str) -> list[Json]:
    texts = (f"Context:\n{passages}", question)
    return [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]


def _numbered(passages: str, question: str) -> list[Json]:
    documents = "\n".join(f"[{place}] {line}" for place, line in enumerate(passages.split(". "), 1))
    return _one("Documents:\nPASSAGES\n\nQuestion: QUESTION\nAnswer:")(documents, question)


def _email(passages: str, question: str) -> list[Json]:
    quoted = "\n".join(f"> {line}" for line in passages.split(". "))
    return _one("QUESTION\n\nOn Monday, Ann Lee wrote:\nPASSAGES")(quoted, question)


def _json(passages: str, question: str) -> list[Json]:
    return [{"role": "user", "content": json.dumps({"context": passages, "question": question})}]


FORMS: dict[str, Form] = {
    "label": _one("Context:\nPASSAGES\n\nQuestion: QUESTION"),
    "instruction": _one("Answer the question based only on the following context:\nPASSAGES\n\nQuestion: QUESTION\n"),
    "XML tag": _one("<context>\nPASSAGES\n</context>\n\nQUESTION"),
    "Markdown": _one("# Context\nPASSAGES\n\n# Question\nQUESTION"),
    "German labels": _one("Kontext:\nPASSAGES\n\nFrage: QUESTION\nAntwort:"),
    "two parts": _two_parts,
    "question first": _one("QUESTION\n\nContext:\nPASSAGES"),
    "e-mail": _email,
}
SECOND: dict[str, Form] = {
    "LlamaIndex": _one(
        "Context information is below.\n---------------------\nPASSAGES\n---------------------\nGiven the context information"
        " and not prior knowledge, answer the query.\nQuery: QUESTION\nAnswer: "
    ),
    "question between": _one("You are an assistant.\nQuestion: QUESTION \nContext: PASSAGES \nAnswer:"),
    "numbered": _numbered,
    "paragraphs only": _one("PASSAGES\n\nQUESTION"),
    "one line": _one("PASSAGES QUESTION"),
    "JSON": _json,
    "tags for both": _one("<docs>PASSAGES</docs>\n<user_query>QUESTION</user_query>\nReply in one sentence."),
    "headline": _one("Handbook, chapter 3\n\nPASSAGES\n\nMy colleague wants to know: QUESTION Thanks!"),
}


def _sources(passages: str, question: str) -> list[Json]:
    texts = [*(f"Source {place}: {line}" for place, line in enumerate(passages.split(". "), 1)), question]
    return [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]


def _bullets(passages: str, question: str) -> list[Json]:
    return _one("What we know:\nPASSAGES\n\nQUESTION")(
        "\n".join(f"- {line}" for line in passages.split(". ")), question
    )


BLIND: dict[str, Form] = {
    "transcript": _one(
        "User: Hello!\nAssistant: Hi, how can I help?\n\nRelevant documents:\nPASSAGES\n\nUser: QUESTION"
    ),
    "French labels": _one("Contexte :\nPASSAGES\n\nQuestion : QUESTION\nRéponse :"),
    "quotation marks": _one(
        'Here are excerpts from our wiki:\n\n"""\nPASSAGES\n"""\n\nBased on these excerpts: QUESTION'
    ),
    "YAML": _one("context: >\n  PASSAGES\nuser_question: QUESTION\nlanguage: en"),
    "instruction tags": _one("[INST] <<SYS>>\nUse the documents.\n<</SYS>>\n\nPASSAGES\n\nQUESTION [/INST]"),
    "bullets": _bullets,
    "rule": _one("QUESTION\n---\nPASSAGES"),
    "pasted page": _one("I have pasted a page below. QUESTION\n\nPASSAGES"),
    "within a sentence": _one("Use the text PASSAGES to answer this: QUESTION Be brief."),
    "sources as parts": _sources,
}
GROUPS = {"first": FORMS, "second": SECOND, "blind": BLIND}


Asked = tuple[str, str]
"""Passages, and a question about them."""
KINDS = ("different", "changed", "reworded")


@dataclass(frozen=True)
class Case:
    """What is stored and what is asked: `different` or `reworded` questions, or one question about `changed` passages."""

    kind: str
    stored: Asked
    asked: Asked


def read_cases(name: str) -> Iterator[Case]:
    rows = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]
    for place, row in enumerate(rows):
        passages, others = row["passage"], [other["passage"] for other in (*rows[place + 1 :], *rows[:place])]
        while others and len(passages) < LENGTHS[place % len(LENGTHS)]:
            passages += f"\n\n{others.pop(0)}"
        for one, other, is_same in row["pairs"]:
            yield Case(KINDS[2 * is_same], (passages, one), (passages, other))
            yield Case(KINDS[2 * is_same], (passages, other), (passages, one))
        question = row["pairs"][0][0]
        yield from (
            Case("changed", (passages, question), (changed, question)) for changed in changed_passages(passages)
        )


def changed_passages(passages: str) -> Iterator[str]:
    sentences = passages.split(". ")
    middle = len(sentences) // 2
    yield ". ".join(sentences[:-1])
    yield ". ".join([*sentences[1:], sentences[0]])
    yield f"{passages} This was changed in May."
    for word, other in ((" and ", " or "), (" the ", " each "), (" for ", " without ")):
        sentences[middle] = sentences[middle].replace(word, other, 1)
        if ". ".join(sentences) != passages:
            yield ". ".join(sentences)


async def is_served(cache: ResponseCache, form: Form, case: Case, number: int) -> bool:
    assert cache.semantic is not None
    headers = {"x-kvproxy-namespace": f"{number}"}
    bodies: list[JsonObject] = [{"model": "m", "messages": form(*each)} for each in (case.stored, case.asked)]
    keys = [cache_key(api_request(body, headers=headers), "b", conversations=True) for body in bodies]
    stored, asked = (key.semantic for key in keys)
    if stored.text is None or asked.text is None:
        return False
    entry = make_entry(stored.text, namespace=stored.namespace, key=keys[0].exact)
    await cache.semantic.insert(entry)
    lookup = await cache.semantic.lookup(asked.namespace, asked.text, explore=False)
    return lookup.entry is not None


async def measure(forms: dict[str, Form], cases: Sequence[Case], *, show: bool) -> None:
    print(f"| form | {' | '.join(f'{kind}, served' for kind in KINDS)} |\n|---|---|---|---|")
    counts, wrong = Counter(case.kind for case in cases), 0
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder:
        cache = open_response_cache(Path(folder) / "cache.db", CacheSettings())
        for name, form in forms.items():
            served = [case for case in cases if await is_served(cache, form, case, next(numbers))]
            found = Counter(case.kind for case in served)
            cells = (f"{found[kind]} of {counts[kind]} ({found[kind] / counts[kind]:.1%})" for kind in KINDS)
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
            wrong += found["different"] + found["changed"]
            for case in served if show else ():
                if case.kind != "reworded":
                    print(f"    {case.kind}: {case.stored[1]} / {case.asked[1]}")
        cache.close()
    low, high = wilson_interval(wrong, len(forms) * (counts["different"] + counts["changed"]))
    print(f"wrong: {wrong}, {low:.1%} to {high:.1%}")


def main() -> None:
    options = read_options(__doc__, data="passages", forms="first", show=0)
    forms = {"system": _system, **GROUPS[options.forms]}
    asyncio.run(measure(forms, [*read_cases(options.data)], show=bool(options.show)))


if __name__ == "__main__":
    main()
