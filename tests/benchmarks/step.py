"""What a decode step of the embedded engine costs outside the model: processor time of planning, sampling and detokenising.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.step [MODEL] [--rounds 5] [--against CHECKOUT]

With --against the same is measured with another checkout's code, in turn, in processes of their own.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from kvproxy.engine.core import EngineCore
from kvproxy.engine.models.loader import load_model
from kvproxy.generation import GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings

_ROWS, _PROMPT, _ANSWER = (1, 8, 32), 16, 64


def answer(engine: EngineCore, rows: int, seed: int) -> None:
    """Answer so many prompts of random tokens at once."""
    chance = random.Random(seed)
    for row in range(rows):
        ids = tuple(chance.randrange(100, engine.limits.vocab_size) for _ in range(_PROMPT))
        params = SamplingParams(max_tokens=_ANSWER, temperature=0.0, ignore_eos=True)
        engine.add_request(GenerationRequest(f"{seed} {rows} {row}", ids, params), lambda delta: None)
    while engine.has_work:
        engine.step()


def costs(name: str) -> dict[str, tuple[float, float]]:
    """Processor seconds of a step outside the model and inside it, by the number of rows."""
    loaded, inside = load_model(name, "cpu", "float32"), 0.0
    forward = loaded.model.forward

    def timed(*given: Any, **named: Any) -> Any:
        nonlocal inside
        began = time.thread_time()
        output = forward(*given, **named)
        inside += time.thread_time() - began
        return output

    loaded.model.forward = timed
    engine = EngineCore(loaded, EngineSettings(num_blocks=2000))
    answer(engine, 8, 0)
    found = {}
    for rows in _ROWS:
        inside, began = 0.0, time.thread_time()
        answer(engine, rows, 1)
        found[str(rows)] = ((time.thread_time() - began - inside) / _ANSWER, inside / _ANSWER)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.once:
        print(json.dumps(costs(given.model)))
        return
    # Another checkout's code is what Python finds first when it is started there.
    places = {"here": Path.cwd()} | ({"against": given.against} if given.against else {})
    found: dict[str, list[dict[str, tuple[float, float]]]] = {name: [] for name in places}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), given.model, "--once"]
    for _ in range(given.rounds):
        for name, place in places.items():
            done = subprocess.run(
                command,
                cwd=place,
                env={**os.environ, "PYTHONPATH": str(place)},
                capture_output=True,
                text=True,
                check=True,
            )
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    for rows in map(str, _ROWS):
        for name, rounds in found.items():
            outside, inside = (statistics.median(each[rows][part] for each in rounds) for part in (0, 1))
            share = outside / (outside + inside)
            print(f"{rows:>2} rows, {name:8} {outside * 1e3:6.2f} ms outside the model, {share:.1%} of the step")
        if given.against:
            pairs = zip(found["here"], found["against"], strict=True)
            print(
                f"         ratio outside {statistics.median(one[rows][0] / other[rows][0] for one, other in pairs):.2f}"
            )


if __name__ == "__main__":
    main()
