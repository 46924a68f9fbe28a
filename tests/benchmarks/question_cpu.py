"""CPU time of a new question by its parts, in one process, on a processor without VNNI.

python -m tests.benchmarks.question_cpu STREAM [--warm 350] [--questions 200] [--words 0] [--vnni]

Questions of a stream (see `new_questions`) are sent one after the other, without sockets, to a proxy whose upstream responds at
once. Each response is stored and compared before the next question. `--words` adds words to each answer. The time of a part
excludes that of the parts that it calls. Other work on the machine raises all times, so only the shares are exact.
"""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import orjson
import uvloop

from tests.benchmarks.decided_rate import longer_answers
from tests.benchmarks.hidden_vnni import hidden_vnni
from tests.benchmarks.in_process_requests import HEAD, Client, exclude_loaded_objects, proxy_in_process
from tests.benchmarks.new_questions import SYSTEM, shuffled_lines
from tests.benchmarks.servers import answering_app, run_process

_EVENT_LOOP = "event loop"


class PartTimes:
    """CPU seconds and calls by part, without those of inner parts."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls = Counter[str]()
        self._local = threading.local()

    def measure(self, owner: Any, method: str, part: str) -> None:
        original: Callable[..., Any] = getattr(owner, method)

        @wraps(original)
        def timed(*arguments: Any, **options: Any) -> Any:
            inner = self._local.__dict__.setdefault("inner", [])
            inner.append(0.0)
            began = time.thread_time()
            try:
                return original(*arguments, **options)
            finally:
                seconds = time.thread_time() - began
                self.seconds[part] += seconds - inner.pop()
                self.calls[part] += 1
                if inner:
                    inner[-1] += seconds

        setattr(owner, method, timed)

    def measure_all(self) -> None:
        from kvproxy.flow import compare_responses
        from kvproxy.index.models.minilm.embedder import MiniLMEmbedder
        from kvproxy.index.models.verifier.built_in import BuiltInVerifier
        from kvproxy.index.policies.checked import CheckedPolicy
        from kvproxy.index.policies.learned.feedback import FeedbackRecorder
        from kvproxy.index.search.semantic_cache import SemanticCache
        from kvproxy.index.search.vector_search import FaissSearch
        from kvproxy.index.store.writer import StoreWriter
        from kvproxy.journal.record_writer import RecordWriter

        self.measure(MiniLMEmbedder, "_embed_one", "embedder")
        self.measure(BuiltInVerifier, "logits", "verifier")
        self.measure(CheckedPolicy, "decide", "guards and wordings of `checked`")
        self.measure(FaissSearch, "search", "vector search")
        self.measure(SemanticCache, "_look_up", "rest of the lookup")
        self.measure(StoreWriter, "put_many", "store of the response")
        self.measure(compare_responses, "compare_words", "comparison of answers")
        self.measure(FeedbackRecorder, "_store_result", "learning")
        self.measure(RecordWriter, "write", "journal")


async def _run(questions: list[str], warm: int, upstream: str) -> None:
    times, connection = PartTimes(), Client()
    times.measure_all()
    async with proxy_in_process(upstream, lookup_timeout=1e3) as (make_protocol, flush, services):
        protocol = make_protocol()
        protocol.connection_made(connection)

        async def send(question: str) -> None:
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
            content = orjson.dumps({"model": "m", "messages": messages})
            connection.answer = asyncio.get_running_loop().create_future()
            protocol.data_received(HEAD % len(content) + content)
            assert b" 200 " in await connection.answer
            await services.cache.pending_writes.wait_for_all()
            await services.comparer.wait_until_idle()

        exclude_loaded_objects()
        for question in questions[:warm]:
            await send(question)
        await flush()
        times.seconds.clear()
        times.calls.clear()
        began, began_here = time.process_time(), time.thread_time()
        for question in questions[warm:]:
            await send(question)
        await flush()
        times.seconds[_EVENT_LOOP] = time.thread_time() - began_here
        total, count = time.process_time() - began, len(questions) - warm
    times.seconds["other threads"] = total - sum(times.seconds.values())
    print(f"| part | ms of {1e3 * total / count:.1f} | share | calls |\n|---|---|---|---|")
    for part, seconds in sorted(times.seconds.items(), key=lambda pair: -pair[1]):
        print(f"| {part} | {1e3 * seconds / count:.2f} | {seconds / total:.0%} | {times.calls[part] / count:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream", type=Path)
    parser.add_argument("--warm", type=int, default=350)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--words", type=int, default=0)
    parser.add_argument("--vnni", action="store_true")
    parser.add_argument("--upstream", help=argparse.SUPPRESS)
    options = parser.parse_args()
    lines = shuffled_lines(options.stream)
    if options.upstream is not None:
        questions = [line.text for line in lines[: options.warm + options.questions]]
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            uvloop.run(_run(questions, options.warm, options.upstream))
        return
    with (
        run_process(partial(answering_app, longer_answers(lines, options.words))) as upstream,
        contextlib.nullcontext({}) if options.vnni else hidden_vnni() as variables,
    ):
        command = [sys.executable, "-m", "tests.benchmarks.question_cpu", *sys.argv[1:], "--upstream", upstream]
        subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"} | variables)


if __name__ == "__main__":
    main()
