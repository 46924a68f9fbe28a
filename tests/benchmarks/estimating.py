"""How far estimates are from a live replay of the same log: python -m tests.benchmarks.estimating [--lint]

Three logs: agent-like conversations, a Mooncake trace (--trace FILE), and questions in pairs (--pairs FILE). The first part of a
log's figures is compared in front of an upstream that gives the log's answers, the second with the embedded engine. What the
policy learned explores is drawn by the same chance on both sides, and once more for each of --draws.

With --lint every prompt begins with another number, and what lint says that stripping it would reuse is compared with what a
proxy reuses that strips it.
"""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from random import Random

from kvproxy.commands.formatting import percent
from kvproxy.commands.tables import print_table
from kvproxy.offline.estimate import Estimate, estimate
from kvproxy.offline.lint import lint
from kvproxy.offline.request_log import read_log
from kvproxy.settings import load_settings
from kvproxy.upstreams.prompt_tokenizer import LocalTokenizer
from tests.offline import live, logs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="a Mooncake trace")
    parser.add_argument("--pairs", type=Path, help="question pairs, gzipped")
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--pool", type=int, default=400, help="blocks of the embedded engine")
    parser.add_argument("--draws", type=int, default=3, help="replays of each log, each exploring by another chance")
    parser.add_argument("--lint", action="store_true", help="compare what lint predicts")
    chosen = parser.parse_args()
    count: int = chosen.requests
    found = {"agents": logs.agents(max(1, count // 12), 10)}
    if chosen.trace:
        found["mooncake"] = [each | {"response": logs.words(each, 8)} for each in logs.mooncake(chosen.trace, count)]
    if chosen.pairs:
        found["pairs"] = logs.pairs(chosen.pairs, count)
    if chosen.lint:
        rows = [row for name, lines in found.items() for row in _stripped(name, lines, chosen.pool)]
    else:
        rows = [row for name, lines in found.items() for row in _rows(name, lines, chosen.pool, chosen.draws)]
    print_table(["log", "what", "estimated#", "live#"], rows)


def _rows(name: str, lines: list[logs.Line], pool: int, draws: int) -> list[tuple[str, str, str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        shown = [live.layers(lines, data / f"layers{draw}", Random(draw).random) for draw in range(draws)]
        seen = _estimated(lines, data / "one", pool, draws)
        # An engine answers in its own words: what the log answered is no part of what it keeps.
        alone = _estimated([each | {"response": None} for each in lines], data / "two", pool).prefix_alone
        reused, total = live.prefix(lines, data / "prefix", pool)
    similar = sorted(each["semantic"] for each in shown)
    return [
        (name, "equal requests", percent(seen.exact / len(lines)), percent(shown[0]["exact"] / len(lines))),
        (name, "similar questions", percent(seen.similar / len(lines)), percent(similar[draws // 2] / len(lines))),
        (
            name,
            "the least and the most",
            _range(seen.similar_range, len(lines)),
            _range((similar[0], similar[-1]), len(lines)),
        ),
        (name, "prompt tokens reused", percent(alone.share(alone.points[0].reused)), percent(reused / total)),
    ]


def _range(counts: tuple[int, int], requests: int) -> str:
    return " to ".join(percent(count / requests) for count in counts)


def _stripped(name: str, lines: list[logs.Line], pool: int) -> list[tuple[str, str, str, str]]:
    numbered = [_numbered(each, number) for number, each in enumerate(lines)]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        requests = read_log(Path("log"), "".join(json.dumps(each) + "\n" for each in numbered), "m").requests
        report = asyncio.run(lint(requests, load_settings(data=data), LocalTokenizer("demo"), 16, pool)).families[0]
        (saving, *_) = report.savings
        members = [numbered[place] for place in report.family.members]
        before, total = live.prefix(members, data / "before", pool)
        after, _ = live.prefix(members, data / "after", pool, [saving.edit.model_dump()])
    tokens = report.prompt_tokens
    return [
        (name, "reused as it is", percent(report.reused / tokens), percent(before / total)),
        # Of the tokens of the prompts as they were: fewer are left of them.
        (name, f"reused without the {saving.span.kind}", percent(saving.stripped / tokens), percent(after / total)),
    ]


def _numbered(each: logs.Line, number: int) -> logs.Line:
    """A line whose first message begins with a number of its own."""
    first, *others = each["body"]["messages"]
    messages = [{**first, "content": f"Request {7919 * number % 10**6} of today. {first['content']}"}, *others]
    return {**each, "response": None, "body": each["body"] | {"messages": messages}}


def _estimated(lines: list[logs.Line], data: Path, pool: int, draws: int = 1) -> Estimate:
    requests = read_log(Path("log"), "".join(json.dumps(each) + "\n" for each in lines), "m").requests
    return asyncio.run(estimate(requests, load_settings(data=data), LocalTokenizer("demo"), 16, [pool], draws=draws))


if __name__ == "__main__":
    main()
