"""Load from each tier against recomputing: by prompt length, by chunk size, and the first hit after a restart.

python -m tests.benchmarks.tiers [--rounds 5] [--lengths 64,256,1024,3072] [--chunks 64,256,1024]

Every figure is the time to first token of one prompt whose last 16 tokens are new, pool emptied before each round. The
Redis tier needs redis-server on the path and is left out without it.
"""

import argparse
import contextlib
import itertools
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kvproxy.engine import attention
from kvproxy.engine.engine import Engine
from kvproxy.engine.models import LoadedModel, prepare
from kvproxy.engine.request import GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings, TierSettings
from tests.benchmarks.models import fifty_million
from tests.benchmarks.timing import interleave
from tests.engine.models import LetterTokenizer
from tests.redis_server import run_redis

SUFFIX = 16
_numbers = itertools.count()
_chance = random.Random(0)


def tokens(count: int) -> list[int]:
    return [_chance.randrange(16_000) for _ in range(count)]


def make(loaded: LoadedModel, **tiers: Any) -> Engine:
    return Engine(loaded, EngineSettings(num_blocks=600, max_batch_tokens=2048), TierSettings(**tiers))


def first_token(engine: Engine, prompt: list[int]) -> float:
    """Seconds to one token; whatever is to be saved is put away after the clock stopped."""
    began = time.perf_counter()
    request = GenerationRequest(str(next(_numbers)), tuple(prompt), SamplingParams(max_tokens=1, temperature=0.0))
    engine.submit(request, lambda delta: None)
    while engine.has_work:
        if engine.is_stalled and engine.tiers:
            engine.tiers.wait(0.01)
        engine.step()
    return time.perf_counter() - began


def emptied(engine: Engine, prompt: list[int]) -> float:
    """The same with an empty pool, and with a tail that nobody has seen."""
    assert engine.manager.reset_prefix_cache()
    seconds = first_token(engine, prompt + tokens(SUFFIX))
    if engine.tiers:
        engine.tiers.chain.flush()
    return seconds


@contextlib.contextmanager
def tiers(loaded: LoadedModel, folder: Path, chunk: int) -> Iterator[dict[str, Engine]]:
    """An engine without tiers, and one for each tier alone."""
    with contextlib.ExitStack() as stack:
        engines = {
            "recompute": make(loaded),
            "host": make(loaded, host=4 << 30, chunk_tokens=chunk),
            "disk": make(loaded, disk=folder / str(chunk), chunk_tokens=chunk),
        }
        if shutil.which("redis-server"):
            url = stack.enter_context(run_redis()).url
            engines["redis"] = make(loaded, redis=url, redis_timeout=5.0, chunk_tokens=chunk)
        yield engines
        for engine in engines.values():
            engine.close()


def by_length(loaded: LoadedModel, folder: Path, lengths: list[int], rounds: int) -> None:
    print(f"\nTime to first token by prefix length, chunks of 64 tokens, median of {rounds}: ms (ratio to recomputing)")
    with tiers(loaded, folder, 64) as engines:
        print(f"{'prefix':>8}" + "".join(f"{name:>20}" for name in engines))
        for length in lengths:
            prefix = tokens(length)
            for engine in engines.values():
                emptied(engine, prefix)
            works = {name: partial(emptied, engine, prefix) for name, engine in engines.items()}
            _row(str(length), interleave(works, rounds))


def by_chunk(loaded: LoadedModel, folder: Path, chunks: list[int], length: int, rounds: int) -> None:
    print(f"\nPrefix of {length} tokens by chunk size, median of {rounds}: ms (ratio to recomputing)")
    for number, chunk in enumerate(chunks):
        with tiers(loaded, folder, chunk) as engines:
            if number == 0:
                print(f"{'chunk':>8}" + "".join(f"{name:>20}" for name in engines) + f"{'hit tokens':>12}")
            prefix = tokens(length)
            for engine in engines.values():
                emptied(engine, prefix)
            works = {name: partial(emptied, engine, prefix) for name, engine in engines.items()}
            _row(str(chunk), interleave(works, rounds), f"{length // chunk * chunk:12}")


def _row(title: str, seconds: dict[str, list[float]], more: str = "") -> None:
    base = seconds["recompute"]
    cells = []
    for values in seconds.values():
        ratio = statistics.median(value / other for value, other in zip(values, base, strict=True))
        cells.append(f"{statistics.median(values) * 1e3:11.1f} ({ratio:5.3f})")
    print(f"{title:>8}" + "".join(f"{cell:>20}" for cell in cells) + more)


def cost_of_saving(loaded: LoadedModel, folder: Path, rounds: int) -> None:
    """A cold prompt with and without tiers to write it to, the background's share of the machine included."""
    plain, saving = make(loaded), make(loaded, host=4 << 30, disk=folder / "cold", chunk_tokens=256)
    works = {
        "recompute": lambda: emptied(plain, tokens(1024)),
        "saving": lambda: emptied(saving, tokens(1024)),
    }
    print(f"\nA cold prompt of 1,040 tokens, without tiers and written to host and disk, median of {rounds}")
    print(f"{'':>8}" + "".join(f"{name:>20}" for name in works))
    _row("", interleave(works, rounds))
    saving.close()


def restart(loaded: LoadedModel, folder: Path, length: int, rounds: int) -> None:
    """From making the engine (the model is loaded) to the first token of a prompt that an earlier engine saw."""
    prefix = tokens(length)
    first = make(loaded, disk=folder / "restart")
    first_token(first, prefix + tokens(SUFFIX))
    first.close()

    def again(**settings: Any) -> None:
        engine = make(loaded, **settings)
        first_token(engine, prefix + tokens(SUFFIX))
        engine.close()

    works = {"recompute": lambda: again(), "disk": lambda: again(disk=folder / "restart")}
    print(f"\nRestart to first token, prefix of {length} tokens: engine made, folder read, weights named, answered")
    print(f"{'':>8}" + "".join(f"{name:>20}" for name in works))
    _row("", interleave(works, rounds))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", default="64,128,256,512,1024,2048")
    parser.add_argument("--chunks", default="64,256,1024")
    parser.add_argument("--length", type=int, default=2000)
    chosen = parser.parse_args()
    attention.register()
    loaded = prepare("random", fifty_million(), LetterTokenizer(), torch.device("cpu"))
    block = loaded.shape.block_bytes(16, loaded.dtype)
    print(f"{torch.get_num_threads()} threads; {block / 16 / 1024:.0f} KiB of keys and values a token")
    with tempfile.TemporaryDirectory() as folder:
        by_length(loaded, Path(folder), [int(each) for each in chosen.lengths.split(",")], chosen.rounds)
        by_chunk(loaded, Path(folder), [int(each) for each in chosen.chunks.split(",")], chosen.length, chosen.rounds)
        cost_of_saving(loaded, Path(folder), chosen.rounds)
        restart(loaded, Path(folder), chosen.length, chosen.rounds)


if __name__ == "__main__":
    main()
