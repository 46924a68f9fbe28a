"""What token masks cost of a decode step: the demonstration model with and without a schema, in turn.

    python -m tests.benchmarks.masks [MODEL] [--rows 8] [--rounds 5]

Both sides decode as many rows for as many steps; the schema is one whose answers go on. Times are seconds of the
processor, which other processes do not lengthen: run it with OMP_NUM_THREADS=1.
"""

import argparse
import json
import statistics
import time

from kvproxy.engine.engine import Engine
from kvproxy.engine.models import load_model
from kvproxy.generation import GenerationRequest, Grammar, SamplingParams
from kvproxy.settings import EngineSettings

STEPS = 48
TEXTS = {"type": "string", "minLength": 400}
SCHEMA = {
    "type": "object",
    "properties": {
        "list": {
            "type": "array",
            "items": {"type": "object", "properties": {"name": TEXTS}, "required": ["name"]},
            "minItems": 40,
        }
    },
    "required": ["list"],
}


def seconds(engine: Engine, rows: int, grammar: Grammar | None, round: str) -> float:
    """Time of the steps that decode, the first one of each row aside."""
    prompt = tuple(engine.tokenizer.encode("What is a block?"))
    params = SamplingParams(max_tokens=STEPS, temperature=1.0, seed=1, ignore_eos=grammar is None)
    for row in range(rows):
        engine.submit(GenerationRequest(f"{round} {row}", prompt, params, grammar=grammar), lambda piece: None)
    for _ in range(2):
        engine.step()
    began, steps = time.process_time(), 0
    while engine.has_work:
        engine.step()
        steps += 1
    return (time.process_time() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    engine = Engine(load_model(given.model, "cpu"), EngineSettings(num_blocks=1000))
    grammar = Grammar("json_schema", json.dumps(SCHEMA))
    seconds(engine, given.rows, grammar, "warm up")
    ratios = []
    for round in range(given.rounds):
        plain = seconds(engine, given.rows, None, f"plain {round}")
        masked = seconds(engine, given.rows, grammar, f"masked {round}")
        ratios.append(masked / plain)
        print(f"plain {plain * 1000:.2f} ms a step, with a schema {masked * 1000:.2f} ms: {ratios[-1]:.3f}", flush=True)
    print(f"{given.rows} rows, median of {given.rounds} rounds: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
