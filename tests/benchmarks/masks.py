"""Cost of token masks in a decode step: batches with and without a JSON schema, in turn.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.masks [--model MODEL] [--rows 8] [--rounds 5] [--top-p 1]

Whole steps vary by more than a mask costs. So only the part of a step that masks change is compared: computing the mask,
sampling, and adding the token, in CPU time.
"""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from kvproxy.apis.codecs.generation import Grammar
from kvproxy.engine import core
from kvproxy.engine.core import EngineCore
from kvproxy.engine.models.loader import load_model
from kvproxy.engine.scheduler.sequence import SequenceState
from kvproxy.settings import EngineSettings
from tests.benchmarks.options import read_options
from tests.benchmarks.random_engine import submit

STEPS = 48


def list_schema(**fields: dict[str, Any]) -> Grammar:
    """Return the schema of a long list of objects with these fields."""
    item = {"type": "object", "properties": fields, "required": list(fields)}
    items = {"type": "array", "items": item, "minItems": 40}
    return Grammar("json_schema", json.dumps({"type": "object", "properties": {"list": items}, "required": ["list"]}))


SCHEMAS = {
    "long texts": list_schema(name={"type": "string", "minLength": 400}),
    "short fields": list_schema(
        name={"type": "string", "maxLength": 12}, colour={"enum": ["red", "green"]}, count={"type": "integer"}
    ),
}


class Stopwatch:
    """Adds up the CPU time of the functions that it wraps."""

    def __init__(self) -> None:
        self.total = 0.0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                self.total += time.process_time() - began

        return timed


def main() -> None:
    options = read_options(__doc__, model="demo", rows=8, rounds=5, top_p=1.0)
    watch = Stopwatch()
    core.allowed_tokens = watch.wrap(core.allowed_tokens)  # type: ignore[attr-defined]
    core.sample = watch.wrap(core.sample)  # type: ignore[attr-defined]
    SequenceState.append = watch.wrap(SequenceState.append)  # type: ignore[method-assign]
    engine = EngineCore(load_model(options.model, "cpu"), EngineSettings(num_blocks=1000))
    prompts = [engine.tokenizer.encode("What is a block?")] * options.rows

    def measure(grammar: Grammar | None) -> tuple[float, float]:
        """Return the time of a decode step, and of the part that masks change."""
        submit(engine, prompts, grammar, max_tokens=STEPS, temperature=1.0, top_p=options.top_p, seed=1)
        for _ in range(2):
            engine.step()
        watch.total, steps, began = 0.0, 0, time.process_time()
        while engine.has_work:
            engine.step()
            steps += 1
        return (time.process_time() - began) / steps, watch.total / steps

    for name, grammar in SCHEMAS.items():
        measure(grammar)
        shares = []
        for _ in range(options.rounds):
            step, plain = measure(None)
            shares.append((measure(grammar)[1] - plain) / step)
        print(f"{options.rows} rows, {name}: masks cost {statistics.median(shares):.1%} of a step", flush=True)


if __name__ == "__main__":
    main()
