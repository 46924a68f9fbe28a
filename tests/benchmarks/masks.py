"""What token masks cost of a decode step: the demonstration model with and without a schema, in turn.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.masks [MODEL] [--rows 8] [--rounds 5] [--top-p 1]

Both sides decode as many rows for as many steps. Two whole steps differ by more than masks cost, so what is compared is the part
of a step that they change: making the mask, drawing, and following the grammar. Times are seconds of the processor.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from kvproxy.engine import output_processor as answers
from kvproxy.engine.core import EngineCore
from kvproxy.engine.models.loader import load_model
from kvproxy.engine.sampler import structured_output as grammars
from kvproxy.generation import GenerationRequest, Grammar, SamplingParams
from kvproxy.settings import EngineSettings

STEPS = 48


def listed(**fields: dict[str, Any]) -> str:
    """A schema of a long list of objects with these fields."""
    item = {"type": "object", "properties": fields, "required": list(fields)}
    items = {"type": "array", "items": item, "minItems": 40}
    return json.dumps({"type": "object", "properties": {"list": items}, "required": ["list"]})


SCHEMAS = {
    "long texts": listed(name={"type": "string", "minLength": 400}),
    "short fields": listed(
        name={"type": "string", "maxLength": 12}, colour={"enum": ["red", "green"]}, count={"type": "integer"}
    ),
}


class Clock:
    """Adds up the time of calls."""

    def __init__(self) -> None:
        self.total = 0.0

    def __call__(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            try:
                return call(*arguments, **options)
            finally:
                self.total += time.process_time() - began

        return timed


def measure(
    engine: EngineCore, clock: Clock, rows: int, grammar: Grammar | None, round: str, top_p: float
) -> tuple[float, float]:
    """Time of a decode step, and of the part of it that masks change."""
    prompt = tuple(engine.tokenizer.encode("What is a block?"))
    params = SamplingParams(max_tokens=STEPS, temperature=1.0, top_p=top_p, seed=1, ignore_eos=grammar is None)
    for row in range(rows):
        engine.add_request(GenerationRequest(f"{round} {row}", prompt, params, grammar=grammar), lambda piece: None)
    for _ in range(2):
        engine.step()
    clock.total, steps, began = 0.0, 0, time.process_time()
    while engine.has_work:
        engine.step()
        steps += 1
    return (time.process_time() - began) / steps, clock.total / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--top-p", type=float, default=1.0)
    given = parser.parse_args()
    clock = Clock()
    answers.sample_constrained = clock(answers.sample_constrained)  # type: ignore[assignment]
    grammars.GrammarMatcher.accept_token = clock(grammars.GrammarMatcher.accept_token)  # type: ignore[method-assign]
    engine = EngineCore(load_model(given.model, "cpu"), EngineSettings(num_blocks=1000))
    for name, schema in SCHEMAS.items():
        grammar = Grammar("json_schema", schema)
        measure(engine, clock, given.rows, grammar, f"{name}, warm up", given.top_p)
        shares = []
        for round in range(given.rounds):
            step, plain = measure(engine, clock, given.rows, None, f"plain {name} {round}", given.top_p)
            _, masked = measure(engine, clock, given.rows, grammar, f"{name} {round}", given.top_p)
            shares.append((masked - plain) / step)
            print(
                f"{name}: a step {step * 1e3:.2f} ms, drawing {plain * 1e6:.0f} us, with masks {masked * 1e6:.0f} us:"
                f" {shares[-1]:.3f}"
            )
        print(
            f"{given.rows} rows, {name}: masks cost {statistics.median(shares):.3f} of a step, median of {given.rounds} rounds"
        )


if __name__ == "__main__":
    main()
